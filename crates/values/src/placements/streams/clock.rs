//! Ages: of files in bytes written since they were sealed, of values in commits since they were written.

use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bifold_contract::{FileId, IoSource, SeqNo};
use bifold_format::frame::{self, HEADER_BYTES};

use crate::parts::{
    hash_map::HashMap,
    sync::LockExt,
    value_files::{FORWARDS, ValueFile, ValueFiles},
};

/// In the mean length of records this many count as much as all before them.
const MEAN_OVER: u64 = 64;

/// The mean length of records where there are none yet, in bytes.
const RECORD_BYTES: u64 = 1 << 10;

/// When a database is opened, the first records of so many files say how long records are.
const LOOKED_AT: usize = 64;

/// What has been written to a keyspace.
#[derive(Debug)]
pub struct Clock {
    /// Bytes of records, with those of earlier sessions that still exist.
    written: AtomicU64,
    /// [`Clock::written`] when files were sealed.
    sealed: Mutex<HashMap<FileId, u64>>,
    /// The number of the last commit that is known; 0: none of this session.
    newest: AtomicU64,
    mean: AtomicU64,
}

impl Clock {
    /// For the files of an earlier session. Each counts as sealed before the next one was begun.
    #[must_use]
    pub fn of(files: &ValueFiles) -> Self {
        let mut written = 0;
        let mut sealed = HashMap::default();
        let mut in_use = files.in_use();
        for file in &in_use {
            written += file.len();
            sealed.insert(file.id, written);
        }
        in_use.retain(|file| file.description.class != FORWARDS && !file.is_empty());
        let looked_at = in_use.iter().step_by(in_use.len().div_ceil(LOOKED_AT).max(1));
        let lengths: Vec<u64> = looked_at.filter_map(|file| first_length(files, file)).collect();
        let mean = lengths.iter().sum::<u64>().checked_div(lengths.len() as u64).unwrap_or(RECORD_BYTES);
        Self {
            written: AtomicU64::new(written),
            sealed: Mutex::new(sealed),
            newest: AtomicU64::new(0),
            mean: AtomicU64::new(mean),
        }
    }

    /// A commit has written a record.
    pub fn wrote(&self, seqno: SeqNo, bytes: u64) {
        self.written.fetch_add(bytes, Relaxed);
        self.newest.store(seqno, Relaxed);
        self.note_length(bytes);
    }

    /// An ingest has written a record.
    pub fn ingested(&self, bytes: u64) {
        self.written.fetch_add(bytes, Relaxed);
        self.note_length(bytes);
    }

    fn note_length(&self, bytes: u64) {
        let mean = self.mean.load(Relaxed);
        self.mean.store((mean * (MEAN_OVER - 1) + bytes).div_ceil(MEAN_OVER), Relaxed);
    }

    /// Whether a commit is known. Before that, all values seem to be new.
    #[must_use]
    pub fn knows_commits(&self) -> bool {
        self.newest.load(Relaxed) > 0
    }

    /// There are commits up to this number.
    pub fn has_commits(&self, newest: SeqNo) {
        self.newest.fetch_max(newest, Relaxed);
    }

    /// Nothing is appended to a file any more.
    pub fn sealed(&self, file: FileId) {
        self.sealed.hold().insert(file, self.written.load(Relaxed));
    }

    /// Files came into force. Nobody says of those of an ingest that they are sealed: they are from now on. Of those
    /// that commits append to it is said when they end, and of copies it was.
    pub fn came_into_force(&self, files: impl Iterator<Item = FileId>) {
        let (mut sealed, written) = (self.sealed.hold(), self.written.load(Relaxed));
        for file in files {
            sealed.entry(file).or_insert(written);
        }
    }

    /// Bytes written since files were sealed, for each of these.
    #[must_use]
    pub fn ages(&self, files: impl Iterator<Item = FileId>) -> Vec<u64> {
        let (sealed, written) = (self.sealed.hold(), self.written.load(Relaxed));
        files.map(|file| written - sealed.get(&file).copied().unwrap_or(written).min(written)).collect()
    }

    /// Files were deleted.
    pub fn forget(&self, is_there: impl Fn(FileId) -> bool) {
        self.sealed.hold().retain(|&file, _| is_there(file));
    }

    /// The mean length of recent records, in bytes.
    #[must_use]
    pub fn mean_bytes(&self) -> u64 {
        self.mean.load(Relaxed).max(1)
    }

    /// How many values so many bytes of records are.
    #[must_use]
    pub fn values_in(&self, bytes: u64) -> u64 {
        bytes / self.mean_bytes()
    }

    /// Commits since a value was written.
    #[must_use]
    pub fn age_of(&self, seqno: SeqNo) -> u64 {
        self.newest.load(Relaxed).saturating_sub(seqno)
    }
}

/// The length of the first record of a file; `None` if that cannot be read. GC leaves such a file out.
fn first_length(files: &ValueFiles, file: &ValueFile) -> Option<u64> {
    let mut header = [0; HEADER_BYTES];
    if let Err(error) = file.reader().read_at(&mut header, file.start(), IoSource::Recovery) {
        let _is_left_out = files.leave_out_source(file.id, &error);
        return None;
    }
    frame::header_span(&header, file.id, file.start())
}

#[cfg(test)]
mod tests {
    use bifold_format::{
        compression::{Compression, Compressor},
        value,
    };
    use bifold_io::memory::MemoryFs;

    use super::*;
    use crate::parts::value_files::scratch::value_files;

    #[test]
    fn records_are_as_long_as_in_the_files_that_are_there() {
        let files = value_files(&MemoryFs::new(), 1000);
        assert_eq!(Clock::of(&files).mean_bytes(), RECORD_BYTES, "nothing is there");
        let mut compressor = Compressor::new(Compression::None);
        let mut lengths = Vec::new();
        for n in 0..150_usize {
            let file = files.begin(0).unwrap();
            let mut record = Vec::new();
            value::encode_value(&mut record, (file.id, file.len()), 1, b"key", &vec![1; n * 100], &mut compressor);
            lengths.push(files.append(&file, &record).unwrap().len);
            // Only the first one is looked at.
            files.append(&file, &[0; 40]).unwrap();
        }
        let _without_records = files.begin(0).unwrap();
        let mean = lengths.iter().map(|&len| u64::from(len)).sum::<u64>() / lengths.len() as u64;
        let found = Clock::of(&files).mean_bytes();
        assert!(found.abs_diff(mean) < mean / 10, "{found}, not {mean}");
    }
}
