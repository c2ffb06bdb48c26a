//! Ages: of files in bytes written since they were sealed, of values in commits since they were written.

use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bifold_contract::{FileId, SeqNo};

use crate::parts::{hash_map::HashMap, sync::LockExt, value_files::ValueFiles};

/// In the mean length of records this many count as much as all before them.
const MEAN_OVER: u64 = 64;

/// The mean length of records before any was written, in bytes.
const RECORD_BYTES: u64 = 1 << 10;

/// What has been written to a keyspace.
#[derive(Debug)]
pub struct Clock {
    /// Bytes of records, with those of earlier sessions that still exist.
    written: AtomicU64,
    /// [`Clock::written`] when files were sealed.
    sealed: Mutex<HashMap<FileId, u64>>,
    newest: AtomicU64,
    mean: AtomicU64,
}

impl Clock {
    /// For the files of an earlier session. Each counts as sealed before the next one was begun.
    #[must_use]
    pub fn of(files: &ValueFiles) -> Self {
        let mut written = 0;
        let mut sealed = HashMap::default();
        for file in files.in_use() {
            written += file.len();
            sealed.insert(file.id, written);
        }
        Self {
            written: AtomicU64::new(written),
            sealed: Mutex::new(sealed),
            newest: AtomicU64::new(0),
            mean: AtomicU64::new(RECORD_BYTES),
        }
    }

    /// A commit has written a record.
    pub fn wrote(&self, seqno: SeqNo, bytes: u64) {
        self.written.fetch_add(bytes, Relaxed);
        self.newest.store(seqno, Relaxed);
        let mean = self.mean.load(Relaxed);
        self.mean.store((mean * (MEAN_OVER - 1) + bytes).div_ceil(MEAN_OVER), Relaxed);
    }

    /// An ingest has written a record.
    pub fn ingested(&self, bytes: u64) {
        self.written.fetch_add(bytes, Relaxed);
    }

    /// Nothing is appended to a file any more.
    pub fn sealed(&self, file: FileId) {
        self.sealed.hold().insert(file, self.written.load(Relaxed));
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
