//! What is known of dead records: exactly, as merges report it, and by an estimate for each file.

use std::sync::Mutex;

use bifold_contract::FileId;

use crate::parts::{
    hash_map::HashMap,
    sync::LockExt,
    value_files::{ValueFile, ValueFiles},
};

/// Dead records of the files of one keyspace.
#[derive(Debug, Default)]
pub struct Dead {
    of: Mutex<HashMap<FileId, OfFile>>,
}

/// Dead records of one file.
#[derive(Debug, Default)]
struct OfFile {
    /// Where versions stand that have left the index since the database was opened.
    offsets: Vec<u32>,
    /// Estimated bytes that commits have overwritten since then, whether or not a merge has found them yet.
    overwritten: u64,
    /// Bytes that were known to be dead before.
    before: u64,
}

impl Dead {
    /// The version at `offset` of a file has left the index.
    pub fn left_index(&self, file: &ValueFile, offset: u32) {
        self.change(file, |of| of.offsets.push(offset));
    }

    /// Commits have overwritten about so many bytes of a file.
    pub fn overwrote(&self, file: &ValueFile, bytes: u64) {
        self.change(file, |of| of.overwritten += bytes);
    }

    fn change(&self, file: &ValueFile, act: impl FnOnce(&mut OfFile)) {
        let mut of = self.of.hold();
        act(of.entry(file.id).or_insert_with(|| OfFile { before: file.dead(), ..OfFile::default() }));
    }

    /// Dead bytes of a file: known or, if that is more, estimated.
    #[must_use]
    pub fn bytes(&self, file: &ValueFile) -> u64 {
        let estimated = self.of.hold().get(&file.id).map_or(0, |of| of.before + of.overwritten);
        file.dead().max(estimated).min(file.len().saturating_sub(file.start()))
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
        let of = self.of.hold();
        of.values().map(|of| (of.offsets.capacity() * size_of::<u32>() + size_of::<(FileId, OfFile)>()) as u64).sum()
    }
}
