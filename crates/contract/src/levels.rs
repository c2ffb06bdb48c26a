//! The shape of an LSM-tree as plain data: what compaction policies, golden tests and statistics look at.
//!
//! ```text
//! level 0   run 41 [a────────z]     newest first; every flush is a run of its own, runs overlap
//!           run 38 [b──────y]
//! level 1   run 30 [a─e][f─m][n─z]  tables of one run never overlap
//! level 2   run 12 [a─c][d─f] …     leveled: one run a level; tiered: several
//! ```

use std::sync::Arc;

use crate::{FileId, RunId, SeqNo};

/// What the manifest knows of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableMeta {
    /// The file.
    pub id: FileId,
    /// File size in bytes.
    pub bytes: u64,
    /// Entries in it, tombstones included, range tombstones not.
    pub entries: u64,
    /// How many of the entries are tombstones.
    pub tombstones: u64,
    /// Range tombstones in it.
    pub range_tombstones: u64,
    /// Smallest key that an entry or a range tombstone touches.
    pub smallest: Box<[u8]>,
    /// Largest key that an entry touches, or the end of a range tombstone where that is larger.
    /// Treated as inclusive even then: a wider range is safe, a narrower one would lose a deletion.
    pub largest: Box<[u8]>,
    /// A range tombstone without an upper bound is in it, so it reaches past every key.
    pub unbounded: bool,
    /// Smallest sequence number in it.
    pub min_seqno: SeqNo,
    /// Largest sequence number in it.
    pub max_seqno: SeqNo,
}

impl TableMeta {
    /// Whether a key in `start..=end` may be in this table (`None`: unbounded).
    #[must_use]
    pub fn overlaps(&self, start: Option<&[u8]>, end: Option<&[u8]>) -> bool {
        let begins_before = end.is_none_or(|end| self.smallest.as_ref() <= end);
        let ends_after = self.unbounded || start.is_none_or(|start| self.largest.as_ref() >= start);
        begins_before && ends_after
    }
}

/// A sorted run: tables in key order that do not overlap (they may touch in one key only where a range tombstone ends).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its age: within a level, larger is newer.
    pub id: RunId,
    /// Its tables in key order.
    pub tables: Vec<Arc<TableMeta>>,
}

impl Run {
    /// Bytes of all its tables.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tables.iter().map(|t| t.bytes).sum()
    }
}

/// One level: its runs, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Runs in descending order of id.
    pub runs: Vec<Run>,
}

impl Level {
    /// Bytes of all its runs.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.runs.iter().map(Run::bytes).sum()
    }
}

/// All levels, level 0 first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    /// Level `i` at index `i`.
    pub levels: Vec<Level>,
}

impl Levels {
    /// Bytes of all tables.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.levels.iter().map(Level::bytes).sum()
    }

    /// The deepest level with tables; 0 when there is none.
    #[must_use]
    pub fn deepest(&self) -> u8 {
        let filled = self.levels.iter().rposition(|level| !level.runs.is_empty()).unwrap_or(0);
        u8::try_from(filled).unwrap_or(u8::MAX)
    }

    /// Every table with its level and run, newest data first.
    pub fn tables(&self) -> impl Iterator<Item = (u8, RunId, &Arc<TableMeta>)> {
        self.levels.iter().enumerate().flat_map(|(depth, level)| {
            let depth = u8::try_from(depth).unwrap_or(u8::MAX);
            level.runs.iter().flat_map(move |run| run.tables.iter().map(move |t| (depth, run.id, t)))
        })
    }
}

/// Whether an exclusive upper bound (`None`: none) lies after `key`.
pub(crate) fn upper_bound_is_after(end: Option<&[u8]>, key: &[u8]) -> bool {
    end.is_none_or(|end| key < end)
}
