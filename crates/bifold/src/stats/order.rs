//! How well values are sorted that rewrites sort (DiffKV §3.2), and what that took.

use serde::Serialize;

use crate::{sync::LockExt, tree::Tree};

/// Values of one keyspace that are sorted in part. Byte counts are of records, since the database was opened.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OrderStats {
    /// The levels that have value files.
    pub levels: Vec<LevelOrderStats>,
    /// Merges that moved values.
    pub merges: u64,
    /// Milliseconds that these took, with their tables.
    pub merge_ms: u64,
    /// Bytes parted from their keys by flushes.
    pub separated_bytes: u64,
    /// Bytes moved because their keys went to a deeper level.
    pub merged_bytes: u64,
    /// Bytes moved because files overlapped too many others.
    pub untangled_bytes: u64,
    /// Bytes moved out of files with too much garbage.
    pub gc_bytes: u64,
}

/// The value files that follow one level of the tables.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LevelOrderStats {
    /// Its number.
    pub level: u32,
    /// Sorted groups: files that one flush or merge has written do not overlap.
    pub groups: u64,
    /// Files in it.
    pub files: u64,
    /// Bytes in it.
    pub bytes: u64,
    /// Of these, bytes that are not known to be dead.
    pub live_bytes: u64,
    /// How many files have a part of the keys of one, that one included: the mean. A scan reads about so many side by side.
    pub overlap: f64,
    /// Files whose values move with the next merge that meets them.
    pub tagged: u64,
}

impl OrderStats {
    pub(super) fn of(tree: &Tree) -> Option<Self> {
        if !tree.placement().profile().separates_at_rewrite {
            return None;
        }
        let order = tree.placement().order();
        let history = *tree.history.hold();
        let level = |level: &bifold_values::placement::LevelOrder| LevelOrderStats {
            level: level.level.into(),
            groups: level.groups,
            files: level.files,
            bytes: level.bytes,
            live_bytes: level.live_bytes,
            overlap: level.overlap,
            tagged: level.tagged,
        };
        Some(Self {
            levels: order.levels.iter().map(level).collect(),
            merges: history.value_merges,
            merge_ms: u64::try_from(history.value_merge_time.as_millis()).unwrap_or(u64::MAX),
            separated_bytes: order.separated_bytes,
            merged_bytes: order.merged_bytes,
            untangled_bytes: order.untangled_bytes,
            gc_bytes: order.gc_bytes,
        })
    }
}
