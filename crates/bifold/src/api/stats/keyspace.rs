//! Statistics of one keyspace: its shape, level by level.

use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;

use super::OrderStats;
use crate::{state::tree::Tree, waiting::sync::LockExt};

/// One keyspace.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct KeyspaceStats {
    /// Its name.
    pub name: String,
    /// Its placement.
    pub placement: &'static str,
    /// Its compaction policy.
    pub compaction: &'static str,
    /// Entries in tables and memtables, including older versions and tombstones.
    pub entries_estimate: u64,
    /// Entries in tables that expire, those that have expired included.
    pub expiring_entries: u64,
    /// Bytes in memtables.
    pub memtable_bytes: u64,
    /// Memtables waiting to be written.
    pub sealed_memtables: u64,
    /// Its levels.
    pub levels: Vec<LevelStats>,
    /// Key ranges that compaction treats separately (`partition_bytes`).
    pub partitions: u64,
    /// The hash index over level 0, if there is one and it is not empty (`hash_index`).
    pub hash_index: Option<HashIndexStats>,
    /// Compactions that merged tables.
    pub merges: u64,
    /// Compactions that only moved tables.
    pub moves: u64,
    /// The mean share of the lower level that a compaction touched, relative to the upper level's share (VAT §3: α).
    /// Each compaction is weighted by the bytes it brought down; a table that is only moved touches none. 0 before
    /// the first.
    pub alpha: f64,
    /// How far the tree is from its target shape; from 1.0 on a compaction is due.
    pub debt: f64,
    /// What its compaction filter did.
    pub filter: FilterStats,
    /// Large values, each in a file of its own.
    pub large_files: u64,
    /// Bytes in these files.
    pub large_bytes: u64,
    /// How well values are sorted, for a placement in which compactions separate or sort them (`diffkv`, `unikv`).
    pub values: Option<OrderStats>,
}

/// What a [compaction filter](crate::CompactionFilter) did since the database was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FilterStats {
    /// Entries that it was asked about.
    pub asked: u64,
    /// Entries deleted for it.
    pub deleted: u64,
    /// Entries replaced for it.
    pub replaced: u64,
    /// Entries that stayed because it failed, because the index could not be read, or because their new values are too
    /// long.
    pub failed: u64,
}

/// A hash index over level 0.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct HashIndexStats {
    /// Runs whose keys it has, including runs that have left level 0 since the index was built.
    pub runs: u64,
    /// Buckets, each with room for one entry.
    pub buckets: u64,
    /// Buckets that hold an entry.
    pub buckets_used: u64,
    /// Entries chained to a full bucket.
    pub chained: u64,
    /// Bytes of memory, included in `memory.metadata`.
    pub bytes: u64,
}

/// One level of a keyspace.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LevelStats {
    /// Its number; 0 is the newest.
    pub level: u32,
    /// Sorted runs in it.
    pub runs: u64,
    /// Tables in it.
    pub tables: u64,
    /// Bytes in it.
    pub bytes: u64,
    /// Entries in it.
    pub entries: u64,
    /// Tombstones among them.
    pub tombstones: u64,
}

impl KeyspaceStats {
    pub(super) fn of(tree: &Tree) -> Self {
        let view = tree.view();
        let shape = tree.shape(&view);
        let levels: Vec<LevelStats> = (0u32..)
            .zip(&shape.levels.levels)
            .map(|(level, l)| {
                let tables = || l.runs.iter().flat_map(|r| &r.tables);
                LevelStats {
                    level,
                    runs: l.runs.len() as u64,
                    tables: tables().count() as u64,
                    bytes: l.bytes(),
                    entries: tables().map(|t| t.entries).sum(),
                    tombstones: tables().map(|t| t.tombstones + t.range_tombstones).sum(),
                }
            })
            .collect();
        let large = view.values.large().sizes();
        let history = *tree.history.hold();
        let in_memtables: u64 = view.layers().map(|l| l.memtable.entries()).sum();
        Self {
            name: tree.name.clone(),
            placement: tree.placement().profile().name,
            compaction: tree.view().settings.policy.name(),
            expiring_entries: view.version.tables().map(|table| table.meta().expiring.entries).sum(),
            entries_estimate: in_memtables + levels.iter().map(|l| l.entries).sum::<u64>(),
            memtable_bytes: view.layers().map(|l| l.memtable.bytes() as u64).sum(),
            sealed_memtables: view.sealed.len() as u64,
            levels,
            partitions: shape.partitions.len() as u64,
            hash_index: view.version.hash_index().map(|index| HashIndexStats {
                runs: index.runs,
                buckets: index.buckets,
                buckets_used: index.buckets_used,
                chained: index.chained,
                bytes: index.bytes,
            }),
            merges: history.merges,
            moves: history.moves,
            alpha: history.alpha_sum / history.alpha_bytes.max(1) as f64,
            debt: shape.debt(),
            filter: FilterStats {
                asked: tree.filter.counts.asked.load(Relaxed),
                deleted: tree.filter.counts.deleted.load(Relaxed),
                replaced: tree.filter.counts.replaced.load(Relaxed),
                failed: tree.filter.counts.failed.load(Relaxed),
            },
            large_files: large.0,
            large_bytes: large.1,
            values: OrderStats::of(tree),
        }
    }
}
