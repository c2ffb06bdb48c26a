//! How much a key range takes, without reading it.
//!
//! * Tables: metadata, and the index of those tables that a bound lies in. Wrong by half a block for each of these.
//! * Memtables: up to 1000 entries are counted; of more, two descents say which part it is. Wrong as nodes are
//!   unequally full.
//! * Separated and large values: the keyspace's live values, shared out by entries. Wrong as values are unequal.

use std::sync::Arc;

use bifold_contract::{Result, key::MAX_SEQNO};
use bifold_index::{cursor::Cursor, memtable::Memtable, version::RangeEstimate};
use serde::Serialize;

use super::get::Reader;
use crate::state::tree::{Tree, View};

/// In a memtable, so many entries are counted one by one.
const COUNTED_MAX: u64 = 1000;

/// What a key range is estimated to take: see [`Keyspace::size_of_range`](crate::Keyspace::size_of_range).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RangeSize {
    /// Entries in tables and memtables: all versions, deletions included.
    pub entries: u64,
    /// Bytes of tables on disk: keys, inline values, addresses of others, and their part of indexes and filters.
    pub tables_bytes: u64,
    /// Bytes in memtables.
    pub memtables_bytes: u64,
    /// Bytes of separated values that are live, and of large values.
    pub values_bytes: u64,
}

impl RangeSize {
    /// All bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tables_bytes + self.memtables_bytes + self.values_bytes
    }
}

impl Reader {
    /// What `start..end` (`None`: no end) takes.
    ///
    /// # Errors
    /// I/O errors and corruption, of indexes; [`Closed`](crate::Error::Closed).
    pub fn size_of_range(&self, tree: &Tree, start: &[u8], end: Option<&[u8]>) -> Result<RangeSize> {
        let view = tree.view_to_hold();
        self.readable(tree)?;
        let in_tables = view.version.estimate(start, end)?;
        let mut in_memtables = RangeEstimate::default();
        for layer in view.layers().filter(|layer| !layer.memtable.is_empty()) {
            let (share, all) = estimate_memtable(&layer.memtable, start, end)?;
            in_memtables.add(share, all);
        }
        let entries = in_tables.entries + in_memtables.entries;
        let separated = if tree.separates { view.values.space().live_bytes } else { 0 };
        let live = (separated + view.values.large().sizes().1) as f64;
        let of_all = entries / (all_entries(&view) as f64).max(1.0);
        Ok(RangeSize {
            entries: entries.round() as u64,
            tables_bytes: in_tables.bytes as u64,
            memtables_bytes: in_memtables.bytes as u64,
            values_bytes: (live * of_all.min(1.0)) as u64,
        })
    }

    /// About how many keys have a value.
    ///
    /// # Errors
    /// [`Closed`](crate::Error::Closed).
    pub fn approximate_len(&self, tree: &Tree) -> Result<u64> {
        let view = tree.view_to_hold();
        self.readable(tree)?;
        let in_memtables: u64 = view.layers().map(|layer| layer.memtable.tombstones()).sum();
        let in_tables: u64 = view.version.tables().map(|table| table.meta().tombstones).sum();
        // A deletion, and the value that it deletes.
        Ok(all_entries(&view).saturating_sub(2 * (in_memtables + in_tables)))
    }
}

fn all_entries(view: &View) -> u64 {
    let in_memtables: u64 = view.layers().map(|layer| layer.memtable.entries()).sum();
    in_memtables + view.version.tables().map(|table| table.meta().entries).sum::<u64>()
}

/// Which part of so many entries, deletions and bytes a memtable has in a range.
fn estimate_memtable(memtable: &Arc<Memtable>, start: &[u8], end: Option<&[u8]>) -> Result<(f64, (u64, u64, u64))> {
    let (mut entries, mut bytes) = (0, 0);
    let mut cursor = memtable.cursor();
    cursor.seek(start, MAX_SEQNO)?;
    while let Some(entry) = cursor.entry().filter(|entry| end.is_none_or(|end| entry.key < end)) {
        (entries, bytes) = (entries + 1, bytes + (entry.key.len() + entry.payload.len()) as u64);
        if entries == COUNTED_MAX {
            let share = end.map_or(1.0, |end| memtable.share_below(end)) - memtable.share_below(start);
            let all = (memtable.entries(), memtable.tombstones(), memtable.data_bytes() as u64);
            return Ok((share.clamp(COUNTED_MAX as f64 / all.0.max(COUNTED_MAX) as f64, 1.0), all));
        }
        cursor.next()?;
    }
    Ok((1.0, (entries, 0, bytes)))
}
