//! What only snapshots need.

use bifold_contract::{Entry, FileId, Kind, SeqNo};
use bifold_format::large;

/// Entries of a table that only snapshots need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The table.
    pub table: FileId,
    /// Number of entries and range tombstones in it.
    pub entries: u64,
    /// Snapshots, each with the number of entries that could be dropped if it were not open; a large value counts as
    /// one for each KiB. Another snapshot may then hold some of them.
    pub by: Vec<(SeqNo, u64)>,
}

impl Held {
    /// How many entries a rewrite of the table would drop if the snapshots `open` are open.
    #[must_use]
    pub fn free_with(&self, open: &[SeqNo]) -> u64 {
        self.by.iter().filter(|(snapshot, _)| open.binary_search(snapshot).is_err()).map(|(_, entries)| entries).sum()
    }
}

/// As how many entries one counts that a snapshot holds.
pub(super) fn weight_of(entry: &Entry<'_>) -> u64 {
    match entry.kind {
        Kind::Large => large::decode(entry.payload).map_or(1, |named| 1 + (named.len >> 10)),
        _ => 1,
    }
}
