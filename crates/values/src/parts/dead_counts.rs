//! What flush and compaction drop, counted as dead in its file. It is recorded in the manifest with the tables, so it
//! is never forgotten.

use std::collections::BTreeMap;

use bifold_contract::{Entry, FileId, Kind, Pointer, Result, Rewriter, SeqNo, ValueEdit};
use bifold_format::pointer;

use crate::placement::Kept;

/// Bytes and records that died, by file.
#[derive(Clone, Debug, Default)]
pub struct DeadCounts {
    files: BTreeMap<FileId, (u64, u64)>,
}

impl DeadCounts {
    /// Counts a record that is no longer needed.
    pub fn add(&mut self, pointer: Pointer) {
        self.add_bytes(pointer.file, pointer.len.into());
    }

    /// Counts so many bytes of a file, as one record.
    pub fn add_bytes(&mut self, file: FileId, record_bytes: u64) {
        self.add_all(file, record_bytes, 1);
    }

    /// Counts so many bytes and records of a file.
    pub fn add_all(&mut self, file: FileId, of_records: u64, records: u64) {
        let (bytes, entries) = self.files.entry(file).or_default();
        *bytes += of_records;
        *entries += records;
    }

    /// Counts the value of a dropped entry, if it is separated. Returns the length of its record.
    pub fn drop_entry(&mut self, entry: &Entry<'_>) -> u64 {
        let at = if entry.kind == Kind::Pointer { pointer::decode(entry.payload).ok() } else { None };
        at.iter().for_each(|&at| self.add(at));
        at.map_or(0, |at| at.len.into())
    }

    /// As the manifest records it.
    #[must_use]
    pub fn into_garbage(self) -> Vec<(FileId, u64, u64)> {
        self.files.into_iter().map(|(file, (bytes, entries))| (file, bytes, entries)).collect()
    }
}

/// A rewrite that moves nothing and counts what it drops.
#[derive(Debug, Default)]
pub struct CountDead {
    dead: DeadCounts,
}

impl Rewriter for CountDead {
    fn keep(&mut self, _entry: &Entry<'_>) -> Result<Kept> {
        Ok(Kept::Unchanged)
    }

    fn discard(&mut self, entry: &Entry<'_>, _newer: SeqNo) -> Result<()> {
        let _bytes = self.dead.drop_entry(entry);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<ValueEdit> {
        Ok(ValueEdit { garbage: self.dead.into_garbage(), ..ValueEdit::default() })
    }
}
