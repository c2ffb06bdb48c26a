//! What is appended through a region is read at once and survives kills and power losses.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use super::{
    slots::{ROOM, SLOT_BYTES},
    *,
};
use crate::{
    disk::DiskFs,
    fs::{APPENDS_NAME, DirUse, LockMode, ReadFile, Reads},
    random::Random,
};

/// A directory that is removed at the end.
pub(super) struct TempDir(pub PathBuf);

impl TempDir {
    pub(super) fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::var_os("BIFOLD_DISK").map_or_else(std::env::temp_dir, PathBuf::from);
        let dir = root.join(format!("bifold-region-{}-{n}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn open(&self, mode: LockMode, files_max: usize) -> AppendRegion {
        open(&self.0, mode, files_max)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _left_behind = fs::remove_dir_all(&self.0);
    }
}

pub(super) fn open(dir: &Path, mode: LockMode, files_max: usize) -> AppendRegion {
    let lock = DiskFs.lock(&dir.join("LOCK"), mode).unwrap();
    let how = crate::fs::Appending { files_max, reads: Reads::Mapped, mapped_bytes_max: u64::MAX };
    let used = if mode == LockMode::Exclusive { DirUse::Write } else { DirUse::Read };
    RegionFs::open(Disk::of_kind(disk::EXT), dir, DirLock { lock, used }, how).unwrap()
}

/// The directory as a process killed now would leave it. Threads bring bytes from `APPENDS` to the other files: copied
/// last, they could be in none of the copies.
fn image(dir: &Path) -> TempDir {
    let image = TempDir::new();
    let mut paths = DiskFs.list(dir).unwrap();
    paths.sort_by_key(|path| !path.ends_with(APPENDS_NAME));
    for path in paths {
        fs::copy(&path, image.0.join(path.file_name().unwrap())).unwrap();
    }
    image
}

fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.below(256) as u8).collect()
}

pub(super) fn read_all(file: &dyn ReadFile) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Files being appended to, and what was appended.
struct Appending {
    region: AppendRegion,
    files: Vec<(PathBuf, Appended, Vec<u8>)>,
}

impl Appending {
    fn begin(dir: &Path, files: usize, slots: usize) -> Self {
        let region = open(dir, LockMode::Exclusive, slots);
        let fs = region.fs.as_ref().unwrap();
        let create = |n: usize| {
            let path = dir.join(format!("{n:06}.val"));
            (path.clone(), fs.create_appended(&path).unwrap(), Vec::new())
        };
        Self { files: (0..files).map(create).collect(), region }
    }

    /// Appends to one of the files, mostly few bytes.
    fn append(&mut self, random: &mut Random) {
        let file = random.below(self.files.len() as u64) as usize;
        let len = if random.below(50) == 0 { random.below(60_000) } else { random.below(2_000) };
        let bytes = bytes(random, len as usize);
        let (_, appended, model) = &mut self.files[file];
        let (first, second) = bytes.split_at(bytes.len() / 3);
        appended.writer.append(&[first, second]).unwrap();
        model.extend_from_slice(&bytes);
    }

    fn fs(&self) -> &dyn FileSystem {
        &**self.region.fs.as_ref().unwrap()
    }
}

#[test]
fn an_append_is_read_at_once_and_survives_a_kill() {
    // Also with too few slots for all files.
    for slots in [1, 3, 40] {
        let mut random = Random::new(slots as u64);
        let dir = TempDir::new();
        let mut appending = Appending::begin(&dir.0, 7, slots);
        for round in 0..400 {
            appending.append(&mut random);
            if round % 40 != 0 {
                continue;
            }
            let killed = image(&dir.0);
            for mode in [LockMode::Shared, LockMode::Exclusive] {
                let opened = killed.open(mode, 8);
                let fs = opened.fs.unwrap();
                for (path, appended, model) in &appending.files {
                    assert!(read_all(&*appended.reader) == *model);
                    assert_eq!(appending.fs().len(path).unwrap(), Some(model.len() as u64));
                    let path = killed.0.join(path.file_name().unwrap());
                    assert_eq!(fs.len(&path).unwrap(), Some(model.len() as u64), "{mode:?}");
                    assert!(read_all(&*fs.open(&path).unwrap()) == *model, "{mode:?}, {slots} slots, round {round}");
                }
            }
        }
    }
}

/// Appends, reads and syncs while threads write what is full.
#[test]
fn full_slots_are_written_by_threads_while_others_read_and_sync() {
    let dir = TempDir::new();
    let lock = DiskFs.lock(&dir.0.join("LOCK"), LockMode::Exclusive).unwrap();
    let how = crate::fs::Appending { files_max: 12, reads: Reads::Mapped, mapped_bytes_max: u64::MAX };
    let region = RegionFs::open(Disk::new(Reads::Mapped), &dir.0, DirLock { lock, used: DirUse::Write }, how).unwrap();
    let path = dir.0.join("a");
    let Appended { writer, reader } = region.fs.as_ref().unwrap().create_appended(&path).unwrap();
    let byte = |at: usize| (at / 7) as u8 | 1;
    let (ends, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut random, mut end) = (Random::new(3), 0);
            for _ in 0..30_000 {
                let len = 1 + random.below(1500) as usize;
                let bytes: Vec<u8> = (end..end + len).map(byte).collect();
                writer.append(&[&bytes]).unwrap();
                end += len;
                ends.store(end, Ordering::Release);
            }
            is_over.store(true, Ordering::Release);
        });
        for n in 0..2 {
            let (ends, is_over, reader, writer, path) = (&ends, &is_over, &reader, &writer, &path);
            scope.spawn(move || {
                let mut random = Random::new(n);
                while !is_over.load(Ordering::Acquire) {
                    // Mostly near the end, where slots are.
                    let end = ends.load(Ordering::Acquire);
                    let from = end - random.below(end.min(6 * ROOM) as u64 + 1) as usize;
                    let mut bytes = vec![0; random.below((end - from) as u64 + 1) as usize];
                    reader.read_at(&mut bytes, from as u64).unwrap();
                    assert!(bytes.iter().enumerate().all(|(at, &found)| found == byte(from + at)));
                    if random.below(200) == 0 {
                        writer.sync().unwrap();
                        assert!(fs::metadata(path).unwrap().len() >= end as u64);
                    }
                }
            });
        }
    });
    drop(region.lock);
    let all = fs::read(&path).unwrap();
    assert_eq!(all.len(), ends.into_inner());
    assert!(all.iter().enumerate().all(|(at, &found)| found == byte(at)));
}

#[test]
fn reads_may_cross_the_end_of_what_is_written() {
    let dir = TempDir::new();
    let mut random = Random::new(5);
    let mut appending = Appending::begin(&dir.0, 1, 1);
    (0..100).for_each(|_| appending.append(&mut random));
    let (path, appended, model) = &appending.files[0];
    let killed = image(&dir.0);
    let shared = killed.open(LockMode::Shared, 0);
    let left = shared.fs.unwrap().open(&killed.0.join(path.file_name().unwrap())).unwrap();
    for _ in 0..2_000 {
        let start = random.below(model.len() as u64) as usize;
        let len = random.below((model.len() - start + 1) as u64) as usize;
        for reader in [&appended.reader, &left] {
            let mut buffer = vec![0; len];
            reader.read_at(&mut buffer, start as u64).unwrap();
            assert!(buffer == model[start..start + len], "{start}+{len} of {}", model.len());
            assert!(reader.read_at(&mut vec![0; len + 1], (model.len() - len) as u64).is_err());
        }
    }
}

#[test]
fn slots_are_written_at_multiples_of_their_room() {
    let dir = TempDir::new();
    let region = dir.open(LockMode::Exclusive, 2);
    let path = dir.0.join("a");
    let Appended { writer, reader } = region.fs.as_ref().unwrap().create_appended(&path).unwrap();
    let mut model = Vec::new();
    let mut append = |bytes: &[u8]| {
        writer.append(&[bytes]).unwrap();
        model.extend_from_slice(bytes);
        (fs::metadata(&path).unwrap().len() as usize, model.len())
    };
    for n in 0..200 {
        let (written, end) = append(&[n; 1000]);
        assert_eq!(written % ROOM, 0, "at {end}");
        assert!((end / ROOM).saturating_sub(1) * ROOM <= written && written <= end, "{written} of {end}");
    }
    writer.sync().unwrap();
    // From the middle of a piece exactly to its end, and beyond.
    let (written, end) = append(&[1; 1000]);
    assert_eq!(written, end - 1000);
    append(&vec![2; ROOM - end % ROOM]);
    let (written, end) = append(&[3; 1000]);
    assert_eq!((written, end % ROOM), (end - 1000, 1000));
    assert!(read_all(&*reader) == model);
}

#[test]
fn writeback_begins_with_what_is_staged() {
    let dir = TempDir::new();
    let region = dir.open(LockMode::Exclusive, 2);
    let path = dir.0.join("a");
    let Appended { writer, .. } = region.fs.as_ref().unwrap().create_appended(&path).unwrap();
    writer.append(&[b"staged"]).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"");
    writer.start_writeback();
    assert_eq!(fs::read(&path).unwrap(), b"staged");
}

#[test]
fn the_end_of_the_lock_leaves_plain_files() {
    let dir = TempDir::new();
    let mut appending = Appending::begin(&dir.0, 5, 3);
    let mut random = Random::new(1);
    (0..50).for_each(|_| appending.append(&mut random));
    assert!(dir.0.join(APPENDS_NAME).exists());
    let Appending { region, files } = appending;
    drop(region.lock);
    assert!(!dir.0.join(APPENDS_NAME).exists());
    for (path, appended, model) in &files {
        assert!(fs::read(path).unwrap() == *model);
        assert!(read_all(&*appended.reader) == *model);
        assert!(appended.writer.append(&[b"late"]).is_err(), "another process may have the directory now");
    }
    drop(files);
    drop(dir.open(LockMode::Exclusive, 3));
}

#[test]
fn reads_done_once_or_past_the_cache_see_what_is_staged() {
    let (dir, mut random) = (TempDir::new(), Random::new(5));
    let mut appending = Appending::begin(&dir.0, 3, 3);
    for _ in 0..100 {
        appending.append(&mut random);
        for (_, appended, model) in &appending.files {
            let mut bytes = vec![0; model.len()];
            appended.reader.read_once(&mut bytes, 0).unwrap();
            assert!(bytes == *model);
            bytes.fill(0);
            appended.reader.read_past_cache(&mut bytes, 0).unwrap();
            assert!(bytes == *model);
        }
    }
}

#[test]
fn a_truncated_file_continues_at_its_new_end() {
    let dir = TempDir::new();
    fs::write(dir.0.join("a"), [1; 100]).unwrap();
    let region = dir.open(LockMode::Exclusive, 2);
    let fs = region.fs.as_ref().unwrap();
    let a = fs.open_appended(&dir.0.join("a")).unwrap();
    fs.truncate(&dir.0.join("a"), 30).unwrap();
    a.writer.append(&[&[2; 5]]).unwrap();
    assert_eq!(read_all(&*a.reader), [[1; 30].to_vec(), [2; 5].to_vec()].concat());
    drop(a);
    assert_eq!(fs::read(dir.0.join("a")).unwrap().len(), 35);
}

#[test]
fn a_file_has_one_writer_and_is_truncated_through_it() {
    let dir = TempDir::new();
    fs::write(dir.0.join("a"), [1; 100]).unwrap();
    let region = dir.open(LockMode::Exclusive, 2);
    let fs = region.fs.as_ref().unwrap();
    let a = fs.open_appended(&dir.0.join("a")).unwrap();
    assert!(fs.open_appended(&dir.0.join("a")).is_err(), "the second would not know what the first has staged");
    fs.truncate(&dir.0.join("a"), 30).unwrap();
    a.writer.append(&[&[2; 5]]).unwrap();
    assert_eq!(fs.len(&dir.0.join("a")).unwrap(), Some(35));
    drop(a);
    drop(fs.open_appended(&dir.0.join("a")).unwrap());
}

/// A power loss keeps any 512-byte sectors of what was not synced: of `APPENDS` those of some earlier moment or of
/// now, of the files any prefix. Every byte that is put back must be the byte that was appended there.
#[test]
fn nothing_is_put_back_that_does_not_belong_there() {
    let (mut put_back, mut images) = (0, 0);
    for seed in 0..4 {
        let mut random = Random::new(seed);
        let dir = TempDir::new();
        let mut appending = Appending::begin(&dir.0, 4, 2);
        let mut earlier: Vec<Vec<u8>> = Vec::new();
        for _ in 0..60 {
            (0..1 + random.below(30)).for_each(|_| appending.append(&mut random));
            earlier.push(fs::read(dir.0.join(APPENDS_NAME)).unwrap());
            for _ in 0..4 {
                let lost = TempDir::new();
                let mut mixed = earlier.last().unwrap().clone();
                let other = &earlier[random.below(earlier.len() as u64) as usize];
                for sector in (0..mixed.len()).step_by(512).filter(|_| random.below(3) == 0) {
                    mixed[sector..sector + 512].copy_from_slice(&other[sector..sector + 512]);
                }
                fs::write(lost.0.join(APPENDS_NAME), mixed).unwrap();
                for (path, _, model) in &appending.files {
                    // Most often everything, sometimes a little less.
                    let written = fs::metadata(path).unwrap().len();
                    let kept = (written - random.below(2) * random.below(written.min(40_000) + 1)) as usize;
                    fs::write(lost.0.join(path.file_name().unwrap()), &model[..kept]).unwrap();
                    put_back -= kept as i64;
                }
                drop(lost.open(LockMode::Exclusive, 0));
                for (path, _, model) in &appending.files {
                    let found = fs::read(lost.0.join(path.file_name().unwrap())).unwrap();
                    assert!(model.starts_with(&found), "seed {seed}: {} bytes of {}", found.len(), path.display());
                    put_back += found.len() as i64;
                }
                images += 1;
            }
        }
    }
    assert!(put_back > 300_000, "{put_back} bytes put back in {images} images: too few to prove anything");
}

#[test]
fn noise_is_not_taken_for_appends() {
    let mut random = Random::new(9);
    for round in 0..200 {
        let mut image = bytes(&mut random, SLOT_BYTES + round);
        assert!(slots::parse(&image).is_err());
        // A name and a length that look valid.
        image[8..16].copy_from_slice(b"\x03BFAPP\x01\0");
        image[16..19].copy_from_slice(b"abc");
        image[64..72].copy_from_slice(&(round as u64).to_le_bytes());
        assert_eq!(slots::parse(&image).unwrap(), []);
    }
    assert_eq!(slots::parse(&[]).unwrap(), []);
}

/// The writer may be dropped at any moment while others still read the file.
#[test]
fn a_file_that_is_closed_while_it_is_read_can_be_linked() {
    let (dir, mut random) = (TempDir::new(), Random::new(7));
    let mut appending = Appending::begin(&dir.0, 3, 2);
    for _ in 0..40 {
        appending.append(&mut random);
    }
    let files = std::mem::take(&mut appending.files);
    for (path, appended, model) in files {
        let reader = appended.reader;
        drop(appended.writer);
        let copy = path.with_extension("copy");
        appending.fs().link(&path, &copy).unwrap();
        assert_eq!(fs::read(&copy).unwrap(), model);
        assert_eq!(read_all(&*reader), model);
    }
}

/// The system drops written pages when memory is short. Scans must notice, or they announce nothing to the device.
#[test]
fn what_is_written_may_not_be_in_memory_but_what_is_staged_is() {
    let dir = TempDir::new();
    let appending = Appending::begin(&dir.0, 1, 4);
    let (path, Appended { writer, reader, .. }, _) = &appending.files[0];
    writer.append(&[&[7; 3 * ROOM]]).unwrap();
    writer.sync().unwrap();
    writer.append(&[&[8; 100]]).unwrap();
    let staged = 3 * ROOM as u64 + 50;
    assert!(reader.is_in_memory(0) && reader.is_in_memory(staged));

    let file = fs::File::open(path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    if crate::disk::is_in_memory(&file, 0) {
        println!("skipped: this file system keeps all pages in memory");
        return;
    }
    assert!(reader.is_in_memory(staged));
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    assert!(!reader.is_in_memory(0), "its pages were dropped");
}

#[test]
fn a_file_with_appends_that_a_killed_process_has_left_is_not_linked_without_them() {
    let (dir, mut random) = (TempDir::new(), Random::new(8));
    let mut appending = Appending::begin(&dir.0, 1, 1);
    appending.append(&mut random);
    let killed = image(&dir.0);
    let opened = killed.open(LockMode::Shared, 1);
    let path = killed.0.join("000000.val");
    let Err(Error::Io { source, .. }) = opened.fs.unwrap().link(&path, &path.with_extension("copy")) else {
        panic!("linked without what is in APPENDS")
    };
    assert_eq!(source.kind(), ErrorKind::Unsupported);
}

/// What another process sees of files that are being appended to: everything that was appended before it looked.
#[test]
fn a_follower_sees_each_append_once_it_looks() {
    let dir = TempDir::new();
    let region = dir.open(LockMode::Exclusive, 2);
    let writes = region.fs.as_ref().unwrap();
    let paths: Vec<_> = (0..3).map(|n| dir.0.join(format!("file{n}"))).collect();
    let files: Vec<_> = paths.iter().map(|path| writes.create_appended(path).unwrap()).collect();
    let lock = DiskFs.lock(&dir.0.join("reader"), LockMode::Exclusive).unwrap();
    let how = crate::fs::Appending::default();
    let follow = DirLock { lock, used: DirUse::Follow };
    let followed = RegionFs::open(Disk::of_kind(disk::EXT), &dir.0, follow, how).unwrap();
    let (reads, catch_up) = (followed.fs.unwrap(), followed.catch_up.unwrap());
    let readers: Vec<_> = paths.iter().map(|path| reads.open(path).unwrap()).collect();
    let mut expected = vec![Vec::new(); 3];
    let mut random = Random::new(7);
    for round in 0..600 {
        let at = random.below(3) as usize;
        let bytes = vec![round as u8 | 1; 1 + random.below(900) as usize];
        files[at].writer.append(&[&bytes]).unwrap();
        expected[at].extend(bytes);
        if round % 50 == 0 {
            files[at].writer.sync().unwrap();
        }
        if round % 3 == 0 {
            catch_up.catch_up().unwrap();
            for ((path, reader), expected) in paths.iter().zip(&readers).zip(&expected) {
                assert_eq!(reads.len(path).unwrap(), Some(expected.len() as u64));
                assert_eq!(reader.len().unwrap(), expected.len() as u64);
                let mut all = vec![0; expected.len()];
                reader.read_at(&mut all, 0).unwrap();
                assert_eq!(all, *expected, "round {round}");
                let from = random.below(expected.len() as u64 + 1) as usize;
                let mut rest = vec![0; expected.len() - from];
                reader.read_at(&mut rest, from as u64).unwrap();
                assert_eq!(rest, expected[from..]);
            }
        }
    }
    drop((files, region.lock));
    catch_up.catch_up().unwrap();
    assert_eq!(reads.len(&paths[0]).unwrap(), Some(expected[0].len() as u64));
}

/// Slots are shared memory: what a child changes there, its parent has changed.
#[test]
fn a_forked_child_appends_and_syncs_nothing_and_frees_no_slot_of_its_parent() {
    let dir = TempDir::new();
    let mut appending = Appending::begin(&dir.0, 1, 4);
    let (path, appended, model) = &mut appending.files[0];
    appended.writer.append(&[b"before "]).unwrap();
    // SAFETY: the child allocates, for which the C library's allocator is prepared after a fork, and makes calls of
    // files. It takes no lock that another thread may have held at the fork.
    let child = unsafe { libc::fork() };
    if child == 0 {
        appended.writer.start_writeback();
        let is_refused = appended.writer.sync().is_err() && appended.writer.append(&[b"child "]).is_err();
        // SAFETY: ends the child without what the test harness does at an exit.
        unsafe { libc::_exit(i32::from(!is_refused)) };
    }
    let mut status = -1;
    // SAFETY: waits for that child; `status` lives as long as the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    appended.writer.append(&[b"after"]).unwrap();
    model.extend_from_slice(b"before after");
    assert!(read_all(&*appended.reader) == *model);
    let killed = image(&dir.0);
    let opened = killed.open(LockMode::Exclusive, 8);
    assert!(read_all(&*opened.fs.unwrap().open(&killed.0.join(path.file_name().unwrap())).unwrap()) == *model);
}
