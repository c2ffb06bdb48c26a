//! How well rewrites have sorted the values (DiffKV §3.2), and what that cost.

use serde::Serialize;

use crate::{state::tree::Tree, waiting::sync::LockExt};

/// The partially sorted values of one keyspace. Byte counts are of records, since the database was opened.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct OrderStats {
    /// The levels that have value files.
    pub levels: Vec<LevelOrderStats>,
    /// Merges that moved values, for whatever reason: GC and the untangling of files count, too.
    pub merges: u64,
    /// Those that moved values because their keys went to a deeper level: DiffKV's merges between levels.
    pub level_merges: u64,
    /// Milliseconds that these took, including the merge of their tables.
    pub merge_ms: u64,
    /// Bytes that flushes separated from their keys.
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
#[non_exhaustive]
pub struct LevelOrderStats {
    /// Its number.
    pub level: u32,
    /// Sorted groups: the files that one flush or merge wrote, which do not overlap.
    pub groups: u64,
    /// Files in it.
    pub files: u64,
    /// Bytes in it.
    pub bytes: u64,
    /// Of these, bytes not known to be dead.
    pub live_bytes: u64,
    /// The mean number of files that overlap the keys of one file, including that file. A scan reads about this many
    /// at once.
    pub overlap: f64,
    /// Files whose values the next merge that involves them moves.
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
            level_merges: order.level_merges,
            merge_ms: u64::try_from(history.value_merge_time.as_millis()).unwrap_or(u64::MAX),
            separated_bytes: order.separated_bytes,
            merged_bytes: order.merged_bytes,
            untangled_bytes: order.untangled_bytes,
            gc_bytes: order.gc_bytes,
        })
    }
}
