//! The shape of an LSM-tree as plain data, for compaction policies, golden tests and statistics.
//!
//! ```text
//! level 0   run 41 [a────────z]     newest first; each flush adds a run, and runs overlap
//!           run 38 [b──────y]
//! level 1   run 30 [a─e][f─m][n─z]  the tables of a run do not overlap
//! level 2   run 12 [a─c][d─f] …     leveled: one run per level; tiered: several
//! ```

use std::sync::Arc;

use crate::{Expiring, FileId, RunId, SeqNo, planted};

/// What the manifest knows about one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableMeta {
    /// The file.
    pub id: FileId,
    /// File size in bytes.
    pub bytes: u64,
    /// Number of entries, including tombstones but not range tombstones.
    pub entries: u64,
    /// Number of entries that are tombstones.
    pub tombstones: u64,
    /// Number of range tombstones.
    pub range_tombstones: u64,
    /// Smallest key that an entry or a range tombstone touches.
    pub smallest: Box<[u8]>,
    /// Largest key that an entry touches, or the end of a range tombstone where that is larger. Treated as inclusive
    /// even then: a wider range is safe, a narrower one would lose a delete.
    pub largest: Box<[u8]>,
    /// Whether it has a range tombstone without an upper bound, so that its range has no end.
    pub unbounded: bool,
    /// Smallest sequence number.
    pub min_seqno: SeqNo,
    /// Largest sequence number.
    pub max_seqno: SeqNo,
    /// Its entries that expire.
    pub expiring: Expiring,
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

/// A sorted run: tables in key order that do not overlap. (Neighbours may share one key where a range tombstone
/// ends.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its age: within a level, a larger id is newer.
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
    /// Keys before which the tree is split, ascending: see [`Levels::partitions`].
    pub boundaries: Arc<[Box<[u8]>]>,
}

impl Levels {
    /// Bytes of all tables.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.levels.iter().map(Level::bytes).sum()
    }

    /// The deepest level with tables, or 0 if there are none.
    #[must_use]
    pub fn deepest(&self) -> u8 {
        let filled = self.levels.iter().rposition(|level| !level.runs.is_empty()).unwrap_or(0);
        u8::try_from(filled).unwrap_or(u8::MAX)
    }

    /// The partitions (UniKV §III-D): what lies between two neighbouring boundaries, with its own level 0 and its own
    /// deeper levels, so that each can be compacted without the others.
    ///
    /// A boundary that a table spans is not in force yet; it stands among those of the partition it lies in. What is
    /// written is cut at it from now on, so it is in force when the tables that span it have been merged.
    #[must_use]
    pub fn partitions(&self) -> Vec<Self> {
        let in_force = self.unspanned();
        let partition_of = |key: &[u8]| in_force.partition_point(|boundary| *boundary <= key);
        let mut partitions = vec![Self::default(); in_force.len() + 1];
        for (depth, level) in self.levels.iter().enumerate() {
            for run in &level.runs {
                let mut rest = &run.tables[..];
                while let Some(first) = rest.first() {
                    let at = partition_of(&first.smallest);
                    let is_before_end =
                        |table: &Arc<TableMeta>| in_force.get(at).is_none_or(|end| *table.smallest < **end);
                    let (tables, others) = rest.split_at(rest.partition_point(is_before_end));
                    let levels = &mut partitions[at].levels;
                    if levels.len() <= depth {
                        levels.resize(depth + 1, Level::default());
                    }
                    levels[depth].runs.push(Run { id: run.id, tables: tables.to_vec() });
                    rest = others;
                }
            }
        }
        if in_force.len() < self.boundaries.len() {
            let spanned = self.boundaries.iter().filter(|boundary| in_force.binary_search(&&***boundary).is_err());
            let spanned: Vec<&[u8]> = spanned.map(|boundary| &**boundary).collect();
            for group in spanned.chunk_by(|a, b| partition_of(a) == partition_of(b)) {
                partitions[partition_of(group[0])].boundaries = group.iter().map(|&boundary| boundary.into()).collect();
            }
        }
        partitions
    }

    /// The boundaries that no table spans.
    fn unspanned(&self) -> Vec<&[u8]> {
        if planted!("split_within_tables") {
            return self.boundaries.iter().map(|boundary| &**boundary).collect();
        }
        let boundaries = &self.boundaries;
        let boundaries_up_to = |key: &[u8]| boundaries.partition_point(|boundary| **boundary <= *key);
        let mut is_spanned = vec![false; boundaries.len()];
        for (.., table) in self.tables() {
            let end = if table.unbounded { boundaries.len() } else { boundaries_up_to(&table.largest) };
            is_spanned[boundaries_up_to(&table.smallest)..end].fill(true);
        }
        let unspanned = boundaries.iter().zip(is_spanned).filter(|(_, is_spanned)| !is_spanned);
        unspanned.map(|(boundary, _)| &**boundary).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys of one letter: `bd` is a table from b to d, `b+` one that is unbounded.
    fn levels(runs: &[&[&[&str]]], boundaries: &str) -> Levels {
        let table = |text: &&str| {
            let (smallest, largest) = (text.as_bytes()[0], text.as_bytes()[1]);
            Arc::new(TableMeta {
                id: 1,
                bytes: 1,
                entries: 1,
                tombstones: 0,
                range_tombstones: 0,
                smallest: [smallest].into(),
                largest: [if largest == b'+' { smallest } else { largest }].into(),
                unbounded: largest == b'+',
                min_seqno: 1,
                max_seqno: 1,
                expiring: Expiring::default(),
            })
        };
        let run = |tables: &&[&str]| Run { id: 1, tables: tables.iter().map(table).collect() };
        let level = |runs: &&[&[&str]]| Level { runs: runs.iter().map(run).collect() };
        let boundaries = boundaries.bytes().map(|key| [key].into()).collect();
        Levels { levels: runs.iter().map(level).collect(), boundaries }
    }

    /// The tables of each partition by level, and the boundaries in it that are not in force.
    fn partitions(levels: &Levels) -> Vec<String> {
        let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        let show = |partition: &Levels| {
            let level = |level: &Level| {
                let tables = level.runs.iter().flat_map(|run| &run.tables);
                tables.map(|t| text(&t.smallest) + &text(&t.largest)).collect::<Vec<_>>().join(" ")
            };
            let tables = partition.levels.iter().map(level).collect::<Vec<_>>().join("/");
            let waiting: String = partition.boundaries.iter().map(|boundary| text(boundary)).collect();
            if waiting.is_empty() { tables } else { format!("{tables} waits for {waiting}") }
        };
        levels.partitions().iter().map(show).collect()
    }

    #[test]
    fn partitions_have_the_tables_between_boundaries() {
        let tables: &[&[&[&str]]] = &[&[&["ab", "ef"], &["ac", "gh"]], &[&["ac", "df", "gk"]]];
        assert_eq!(partitions(&levels(tables, "")), ["ab ef ac gh/ac df gk"]);
        assert_eq!(partitions(&levels(tables, "d")), ["ab ac/ac", "ef gh/df gk"]);
        assert_eq!(partitions(&levels(tables, "dg")), ["ab ac/ac", "ef/df", "gh/gk"]);
        assert_eq!(partitions(&levels(tables, "dgz")), ["ab ac/ac", "ef/df", "gh/gk", ""]);
        assert_eq!(partitions(&levels(&[], "d")), ["", ""]);
    }

    #[test]
    fn a_boundary_waits_for_the_tables_that_span_it() {
        assert_eq!(partitions(&levels(&[&[&["ae"]], &[&["ac", "df"]]], "d")), ["ae/ac df waits for d"]);
        assert_eq!(partitions(&levels(&[&[&["ae"]], &[&["ac", "df", "gk"]]], "dg")), ["ae/ac df waits for d", "/gk"]);
        assert_eq!(partitions(&levels(&[&[&["a+"]], &[&["df"]]], "dg")), ["aa/df waits for dg"]);
        assert_eq!(partitions(&levels(&[&[&["ad"]]], "d")), ["ad waits for d"], "d itself is after the boundary");
    }
}
