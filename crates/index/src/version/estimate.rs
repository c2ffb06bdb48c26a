//! How much a key range has, by metadata and indexes of tables alone.

use bifold_contract::Result;

use super::Version;

/// What a key range is estimated to have.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RangeEstimate {
    /// Entries: all versions, tombstones included.
    pub entries: f64,
    /// Tombstones among them.
    pub tombstones: f64,
    /// Bytes, with indexes and filters.
    pub bytes: f64,
}

impl RangeEstimate {
    /// Adds a part of something.
    pub fn add(&mut self, share: f64, (entries, tombstones, bytes): (u64, u64, u64)) {
        self.entries += share * entries as f64;
        self.tombstones += share * tombstones as f64;
        self.bytes += share * bytes as f64;
    }
}

impl Version {
    /// What its tables have in `start..end` (`None`: no end). Looks at the index of those tables that a bound lies in:
    /// at most two in each run.
    ///
    /// # Errors
    /// I/O errors and corruption, of indexes.
    pub fn estimate(&self, start: &[u8], end: Option<&[u8]>) -> Result<RangeEstimate> {
        let mut all = RangeEstimate::default();
        for table in self.levels().iter().flatten().flat_map(|run| run.overlapping(Some(start), end)) {
            let meta = table.meta();
            all.add(table.share(start, end)?, (meta.entries, meta.tombstones, meta.bytes));
        }
        Ok(all)
    }
}
