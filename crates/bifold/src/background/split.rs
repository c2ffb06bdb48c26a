//! Splits: a partition that has grown past `partition_bytes` becomes two (UniKV §III-D).
//!
//! ```text
//! a merge ends ─▶ too large? ─▶ boundary at the median ─▶ one edit of the manifest ─▶ view
//!                               new tables end there; once no table spans it, each half is compacted on its own
//! ```
//!
//! The paper rewrites all keys of the partition while its writers wait. Here both halves stay in one tree, so a split
//! is a key: it rewrites no table, and the next GC splits value files that both halves share.
//! Memtables and the log belong to the keyspace, so a thousand partitions cost no more memory than one.
//!
//! A crash before the edit is durable leaves one partition, a later one leaves two. Readers and iterators go on with
//! the view they hold.

use std::sync::Arc;

use bifold_contract::{LevelEdit, Result, ValueEdit};
use bifold_index::compaction::split;

use crate::{install::State, state::tree::Tree};

/// Splits the partitions of a tree that have grown too large.
///
/// # Errors
/// I/O errors; then nothing is split.
pub(crate) fn split_large(state: &State, tree: &Arc<Tree>) -> Result<()> {
    let Some(most) = tree.view().settings.options.partition_bytes else { return Ok(()) };
    let view = tree.view_to_hold();
    let shape = tree.shape(&view);
    let entries: u64 = shape.levels.tables().map(|(.., table)| table.entries).sum();
    let separated_bytes_per_entry = tree.placement().space().total_bytes as f64 / entries.max(1) as f64;
    let boundaries = split::due(&shape.partitions, most, separated_bytes_per_entry);
    if boundaries.is_empty() {
        return Ok(());
    }
    let change = LevelEdit { keyspace: tree.keyspace, boundaries, ..LevelEdit::default() };
    state.install(tree, change, ValueEdit::default(), None).map(drop)
}
