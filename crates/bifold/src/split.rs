//! Splits: a partition that has grown past `partition_bytes` becomes two (UniKV §III-D).
//!
//! ```text
//! a merge ends ─▶ too large? ─▶ boundary at the median ─▶ one edit of the manifest ─▶ view
//!                               what is written is cut there from now on; when no table spans it, the halves are compacted each on its own
//! ```
//!
//! The paper writes all keys of the partition anew, and its writers wait for that. Here both halves stay in one tree, so a split is
//! a key: no table is rewritten, and values that both halves have in one file are parted when they are collected next. Memtables and
//! the log are the keyspace's, so a thousand partitions cost no more memory than one.
//!
//! A crash before the edit is durable leaves one partition, after it two. Readers and iterators go on with the view they hold.

use std::sync::Arc;

use bifold_contract::{LevelEdit, Result, ValueEdit};
use bifold_index::compaction::split;

use crate::{engine::Engine, tree::Tree};

impl Engine {
    /// Splits those partitions of a tree that have grown too large.
    ///
    /// # Errors
    /// I/O errors; nothing is split then.
    pub fn split_large(&self, tree: &Arc<Tree>) -> Result<()> {
        let Some(most) = tree.options.partition_bytes else { return Ok(()) };
        let view = tree.view_to_hold();
        let shape = tree.shape(&view);
        let entries: u64 = shape.levels.tables().map(|(.., table)| table.entries).sum();
        let apart = tree.placement().space().total_bytes as f64 / entries.max(1) as f64;
        let boundaries = split::due(&shape.partitions, most, apart);
        if boundaries.is_empty() {
            return Ok(());
        }
        let change = LevelEdit { keyspace: tree.keyspace, boundaries, ..LevelEdit::default() };
        self.install(tree, change, ValueEdit::default(), None).map(drop)
    }
}
