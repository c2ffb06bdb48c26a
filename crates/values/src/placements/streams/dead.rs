//! What is known of dead records: exactly, as merges report it, and by a sample of what commits overwrite before that.
//!
//! ```text
//! dead bytes of a file = counted by edits + samples that no edit has counted yet × what each stands for
//! ```
//!
//! A sample goes when its record leaves the index. So what is off is off by the few samples that wait, and not by all
//! that were ever taken.
//!
//! A sample stands for records that are spread over many files. GC prefers files that have samples, and then knows how
//! much of them was overwritten: less, on average. What their samples stand for beyond that is in other files, nobody
//! knows in which. It goes on waiting for the sample's version to leave the index, and counts for all files together.

use std::{
    collections::BTreeMap,
    mem::take,
    sync::{Mutex, MutexGuard},
};

use bifold_contract::{FileId, planted};

use crate::parts::{
    hash_map::HashMap,
    sync::LockExt,
    value_files::{ValueFile, ValueFiles},
};

/// The offset of the sample that stands for all of a file. No record begins there, so no version with it leaves the
/// index.
const WHOLE: u32 = 0;

/// Dead records of the files of one keyspace.
#[derive(Debug)]
pub struct Dead {
    of: Mutex<HashMap<FileId, OfFile>>,
    elsewhere: Mutex<Elsewhere>,
    /// Files from this number on were begun after the database was opened.
    first_begun: FileId,
}

/// Dead records of one file.
#[derive(Debug, Default)]
struct OfFile {
    /// Where versions stand that have left the index since the database was opened.
    offsets: Vec<u32>,
    /// Sampled records that commits have overwritten and that have not left the index: the bytes that each stands for.
    waiting: BTreeMap<u32, u64>,
    /// Their sum.
    waiting_bytes: u128,
}

impl OfFile {
    /// The record at `offset` is overwritten, and about so many bytes with it.
    fn wait(&mut self, offset: u32, bytes: u64) {
        let before = self.waiting.insert(offset, bytes).unwrap_or(0);
        self.waiting_bytes = self.waiting_bytes + u128::from(bytes) - u128::from(before);
    }

    /// The record at `offset` waits no longer.
    fn leave(&mut self, offset: u32) {
        self.waiting_bytes -= u128::from(self.waiting.remove(&offset).unwrap_or(0));
    }

    fn memory_bytes(&self) -> usize {
        let sample = 2 * size_of::<(u32, u64)>();
        size_of::<(FileId, Self)>() + self.offsets.capacity() * size_of::<u32>() + self.waiting.len() * sample
    }
}

/// What samples of files that GC has emptied stand for in other files.
#[derive(Debug, Default)]
struct Elsewhere {
    /// By where the sampled records stood.
    waiting: BTreeMap<(FileId, u32), u64>,
    /// Their sum.
    bytes: u64,
}

impl Elsewhere {
    fn wait(&mut self, file: FileId, offset: u32, bytes: u64) {
        self.bytes += bytes;
        self.bytes -= self.waiting.insert((file, offset), bytes).unwrap_or(0);
    }

    fn leave(&mut self, file: FileId, offset: u32) {
        self.bytes -= self.waiting.remove(&(file, offset)).unwrap_or(0);
    }

    /// More was found in a file than its samples stood for, so there is as much less in others.
    fn reduce_by(&mut self, mut bytes: u64) {
        while bytes > 0
            && let Some(mut oldest) = self.waiting.first_entry()
        {
            let less = bytes.min(*oldest.get());
            *oldest.get_mut() -= less;
            (self.bytes, bytes) = (self.bytes - less, bytes - less);
            if *oldest.get() == 0 {
                oldest.remove();
            }
        }
    }
}

impl Dead {
    /// Nothing is known of these files but how much of each is dead.
    #[must_use]
    pub fn of(files: &ValueFiles) -> Self {
        let first_begun = files.all().iter().map(|file| file.id + 1).max().unwrap_or(0);
        Self { of: Mutex::default(), elsewhere: Mutex::default(), first_begun }
    }

    /// These versions have left the index: where each stood, and whether the file is still there.
    pub fn left_index(&self, offsets: impl Iterator<Item = (FileId, bool, Vec<u32>)>) {
        let (mut all, mut elsewhere) = (self.of.hold(), self.elsewhere.hold());
        for (file, is_there, offsets) in offsets {
            if elsewhere.bytes > 0 {
                offsets.iter().for_each(|&offset| elsewhere.leave(file, offset));
            }
            if !is_there {
                continue;
            }
            let of = all.entry(file).or_default();
            if !of.waiting.is_empty() {
                offsets.iter().for_each(|&offset| of.leave(offset));
            }
            of.offsets.extend(offsets);
        }
    }

    /// Commits have overwritten about so many bytes of a file, among them the record at `offset`.
    pub fn overwrote(&self, file: FileId, offset: u32, bytes: u64) {
        self.of.hold().entry(file).or_default().wait(offset, bytes);
    }

    /// A file counts as dead as a whole, for this session: an earlier one had emptied it.
    pub fn was_emptied(&self, file: &ValueFile) {
        self.overwrote(file.id, WHOLE, file.len());
    }

    /// Records of a file have moved. Those of them that commits have overwritten go on waiting where they are now.
    pub fn moved(&self, file: FileId, to: impl Fn(u32) -> Option<(FileId, u32)>) {
        let mut all = self.of.hold();
        let Some(of) = all.get_mut(&file) else { return };
        let moved: Vec<_> =
            of.waiting.iter().filter_map(|(&offset, &bytes)| Some((offset, bytes, to(offset)?))).collect();
        for &(offset, ..) in &moved {
            of.leave(offset);
        }
        for (_, bytes, (file, offset)) in moved {
            all.entry(file).or_default().wait(offset, bytes);
        }
    }

    /// GC has emptied a file, in which it has found so many bytes overwritten that had not left the index.
    /// [`Dead::moved`] comes before.
    pub fn emptied(&self, file: FileId, found_bytes: u64) {
        let (mut all, mut elsewhere) = (self.of.hold(), self.elsewhere.hold());
        let take_all = |of: &mut OfFile| {
            if !planted!("whole_files_are_elsewhere") {
                // It stood for this file alone, and would wait forever.
                of.leave(WHOLE);
            }
            (take(&mut of.waiting), take(&mut of.waiting_bytes))
        };
        let (samples, of_samples) = all.get_mut(&file).map(take_all).unwrap_or_default();
        let found = u128::from(found_bytes);
        if found >= of_samples {
            return elsewhere.reduce_by(u64::try_from(found - of_samples).unwrap_or(u64::MAX));
        }
        if planted!("samples_go_with_their_file") {
            return;
        }
        for (offset, bytes) in samples {
            let rest = u128::from(bytes) * (of_samples - found) / of_samples;
            elsewhere.wait(file, offset, u64::try_from(rest).unwrap_or(u64::MAX));
        }
    }

    /// Overwritten bytes that are in some file, nobody knows in which.
    #[must_use]
    pub fn elsewhere_bytes(&self) -> u64 {
        self.elsewhere.hold().bytes
    }

    /// Whether all versions of a file that have left the index are among its [`Dead::offsets`].
    #[must_use]
    pub fn knows_all(&self, file: FileId) -> bool {
        file >= self.first_begun
    }

    /// To ask for several files.
    #[must_use]
    pub fn look(&self) -> Counted<'_> {
        Counted(self.of.hold())
    }

    /// The versions of a file that have left the index, ascending.
    #[must_use]
    pub fn offsets(&self, file: FileId) -> Vec<u32> {
        let mut offsets = self.of.hold().get(&file).map_or_else(Vec::new, |of| of.offsets.clone());
        offsets.sort_unstable();
        offsets
    }

    /// Files were deleted.
    pub fn forget(&self, files: &ValueFiles) {
        self.of.hold().retain(|&file, _| files.get(file).is_some());
    }

    /// Memory that it takes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let elsewhere = self.elsewhere.hold().waiting.len() * 2 * size_of::<((FileId, u32), u64)>();
        self.of.hold().values().map(|of| of.memory_bytes() as u64).sum::<u64>() + elsewhere as u64
    }
}

/// What is known now.
#[derive(Debug)]
pub struct Counted<'a>(MutexGuard<'a, HashMap<FileId, OfFile>>);

impl Counted<'_> {
    /// Dead bytes of a file: those that edits have counted, and an estimate of the others.
    #[must_use]
    pub fn bytes(&self, file: &ValueFile) -> u64 {
        self.bytes_of(file, file.len())
    }

    /// The other bytes of a file.
    #[must_use]
    pub fn live_bytes(&self, file: &ValueFile) -> u64 {
        // Read once: commits may append meanwhile.
        let len = file.len();
        len - self.bytes_of(file, len)
    }

    /// Dead bytes of a file of this length.
    fn bytes_of(&self, file: &ValueFile, len: u64) -> u64 {
        let waiting = self.0.get(&file.id).map_or(0, |of| u64::try_from(of.waiting_bytes).unwrap_or(u64::MAX));
        file.dead().saturating_add(waiting).min(len.saturating_sub(file.start()))
    }
}

#[cfg(test)]
mod tests {
    use bifold_io::memory::MemoryFs;

    use super::*;
    use crate::parts::value_files::scratch::value_files;

    #[test]
    fn a_sample_counts_until_an_edit_counts_what_it_stands_for() {
        let files = value_files(&MemoryFs::new(), 100);
        let old = files.begin(0).unwrap();
        let dead = Dead::of(&files);
        let file = files.begin(0).unwrap();
        assert!(!dead.knows_all(old.id) && dead.knows_all(file.id));
        files.append(&file, &[0; 3000]).unwrap();
        dead.overwrote(file.id, 40, 1000);
        dead.overwrote(file.id, 70, 500);
        assert_eq!(dead.look().bytes(&file), 1500);
        file.add_dead(30);
        dead.left_index([(file.id, true, vec![70, 10])].into_iter());
        assert_eq!(dead.look().bytes(&file), 1030);
        assert_eq!(dead.offsets(file.id), [10, 70]);
        dead.overwrote(file.id, 2000, 1 << 40);
        assert_eq!(dead.look().bytes(&file), 3000, "never more than it has");
        assert_eq!(dead.look().live_bytes(&file), file.start());
    }

    #[test]
    fn a_sample_goes_where_its_record_goes() {
        let files = value_files(&MemoryFs::new(), 100);
        let dead = Dead::of(&files);
        let [source, copy] = [0, 0].map(|_| files.begin(0).unwrap());
        for file in [&source, &copy] {
            files.append(file, &[0; 3000]).unwrap();
        }
        dead.overwrote(source.id, 40, 1000);
        dead.overwrote(source.id, 70, 500);
        dead.moved(source.id, |offset| (offset == 40).then_some((copy.id, 90)));
        dead.moved(copy.id + 1, |_| unreachable!("nothing is known of this file"));
        let bytes = || [&source, &copy].map(|file| dead.look().bytes(file));
        assert_eq!(bytes(), [500, 1000]);
        copy.add_dead(30);
        dead.left_index([(copy.id, true, vec![90])].into_iter());
        assert_eq!(bytes(), [500, 30]);
    }

    #[test]
    fn what_samples_stand_for_in_other_files_waits_until_their_versions_leave_the_index() {
        let files = value_files(&MemoryFs::new(), 100);
        let dead = Dead::of(&files);
        let [first, second, third] = [0, 0, 0].map(|_| files.begin(0).unwrap().id);
        dead.overwrote(first, 40, 1000);
        dead.overwrote(first, 70, 3000);
        dead.emptied(first, 1000);
        assert_eq!(dead.elsewhere_bytes(), 3000, "three quarters of each");
        dead.emptied(first, 0);
        assert_eq!(dead.elsewhere_bytes(), 3000, "nothing waits there any more");

        dead.overwrote(second, 10, 500);
        dead.emptied(second, 700);
        assert_eq!(dead.elsewhere_bytes(), 2800, "found where no sample was");
        dead.left_index([(first, false, vec![40, 41])].into_iter());
        assert_eq!(dead.elsewhere_bytes(), 2250, "550 of the first sample were left");
        dead.emptied(third, 10_000);
        assert_eq!(dead.elsewhere_bytes(), 0);
        dead.left_index([(first, false, vec![70])].into_iter());
        assert_eq!(dead.elsewhere_bytes(), 0);
    }

    #[test]
    fn a_file_that_an_earlier_session_emptied_leaves_nothing_behind() {
        let files = value_files(&MemoryFs::new(), 100);
        let file = files.begin(0).unwrap();
        files.append(&file, &[0; 3000]).unwrap();
        let dead = Dead::of(&files);
        dead.was_emptied(&file);
        assert_eq!(dead.look().live_bytes(&file), file.start());
        dead.overwrote(file.id, 40, 1000);
        dead.emptied(file.id, 400);
        assert_eq!(dead.elsewhere_bytes(), 600, "what the other sample stands for");
        dead.left_index([(file.id, false, vec![40])].into_iter());
        assert_eq!(dead.elsewhere_bytes(), 0);
    }

    /// Everything in the file counts as dead, whatever is appended, so no more is live than what it begins with.
    #[test]
    fn live_bytes_are_right_while_commits_append() {
        let files = value_files(&MemoryFs::new(), 100);
        let dead = Dead::of(&files);
        let file = files.begin(0).unwrap();
        dead.overwrote(file.id, 40, u64::MAX);
        std::thread::scope(|scope| {
            let appending = scope.spawn(|| {
                for _ in 0..20_000 {
                    files.append(&file, &[0; 100]).unwrap();
                }
            });
            while !appending.is_finished() {
                assert_eq!(dead.look().live_bytes(&file), file.start());
            }
        });
    }
}
