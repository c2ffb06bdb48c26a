//! Flush: the oldest sealed memtable of a tree becomes tables of level 0.
//!
//! Memtables of one tree are written in the order in which they were sealed, so that "all commits up to n are in
//! tables" is always true for some n. Versions that no snapshot can see are dropped: under skewed updates much of a
//! memtable is never written a second time.

use std::sync::Arc;

use bifold_contract::{IoSource, LevelEdit, Levels, Result, ValueEdit, edit::TableAdded};
use bifold_index::{
    compaction::{
        parts,
        run::{self, RewritePlan},
    },
    merge::{MergeCursor, Source},
};
use bifold_values::placement::RewriteJob;

use crate::{
    background::compact::count_of_parts,
    commit::room::Means,
    engine::Engine,
    state::tree::{Layer, Tree, View},
};

/// The most tables of one flush on a disk that is short of room.
const SHORT_PARTS_MAX: usize = 256;

impl Engine {
    /// Writes the oldest sealed memtable of `tree`, if there is one.
    ///
    /// # Errors
    /// I/O errors, and [`Error::Full`](bifold_contract::Error::Full); the memtable then stays, in memory and in the
    /// log.
    pub fn flush_oldest(&self, tree: &Arc<Tree>, means: Means) -> Result<()> {
        let view = tree.view_to_hold();
        let Some(layer) = view.sealed.last() else { return Ok(()) };
        let begin = self.env.clock.now();
        self.room.ensure_to_flush(layer.memtable.data_bytes() as u64, means)?;
        self.sync_log_for_others(tree, layer)?;
        let (change, values, held) = self.room.with_room(means, || self.write_layer(tree, &view, layer))?;
        self.install(tree, change, values, Some(layer))?;
        tree.note_held(held);
        self.pace.flushed(layer.memtable.data_bytes() as u64, self.env.clock.now().saturating_sub(begin));
        Ok(())
    }

    /// Tables must not be durable before older commits of **other** trees are: a crash in between would keep the
    /// newer commit without the older one, and could tear a batch that touches both. They must not be durable before
    /// the values they point at either. A single tree with inline values needs nothing.
    fn sync_log_for_others(&self, tree: &Arc<Tree>, layer: &Layer) -> Result<()> {
        let unwritten = |p: &&Arc<Tree>| !Arc::ptr_eq(p, tree) && p.view().layers().any(|l| !l.memtable.is_empty());
        match layer.memtable.max_seqno() {
            // During recovery values are rewritten under old numbers, so numbers do not say what is durable.
            _ if tree.placement().has_unsynced() => self.sync_everything(),
            Some(last) if self.trees.all().iter().any(|p| unwritten(&p)) => self.sync_upto(last),
            _ => Ok(()),
        }
    }

    /// On a disk that is short of room, each table below level 0 gets a part of its own: whatever is merged together
    /// is on disk twice during the merge.
    fn count_of_parts_to_flush(&self, tree: &Tree, levels: &Levels, memtable_bytes: u64) -> usize {
        let usual = count_of_parts(tree, memtable_bytes);
        if !self.room.is_short() {
            return usual;
        }
        let below = levels.tables().filter(|(level, ..)| *level > 0).count();
        below.clamp(usual, SHORT_PARTS_MAX)
    }

    fn write_layer(
        &self,
        tree: &Arc<Tree>,
        view: &View,
        layer: &Layer,
    ) -> Result<(LevelEdit, ValueEdit, Vec<run::Held>)> {
        let empty_below = view.version.tables().next().is_none() && view.sealed.len() == 1;
        let run = self.numbers.take();
        let levels = &tree.shape(view).levels;
        let (deepest, moving) = (levels.deepest(), Vec::new());
        let job = RewriteJob { from: None, to: 0, deepest, moving };
        let bytes = layer.memtable.data_bytes() as u64;
        let parts = self.count_of_parts_to_flush(tree, levels, bytes);
        // The first run is cut by bytes, later runs at the same keys.
        let cut_bytes = if empty_below { bytes.div_ceil(parts as u64).max(1) } else { u64::MAX };
        let output = run::rewrite(
            MergeCursor::new(vec![Source::Memtable(layer.memtable.cursor())]),
            layer.memtable.range_tombstones(),
            &RewritePlan {
                keys: (None, None),
                snapshots: &self.snapshots.seqnos(),
                bottom: &|_start, _end| empty_below,
                table_bytes: cut_bytes,
                reach_bytes: cut_bytes,
                max_overlap_bytes: u64::MAX,
                grandparents: &[],
                cuts: &parts::cuts(levels, parts),
                source: IoSource::Flush,
                table: tree.table_options(0),
                progress: &|_bytes| self.health.open(),
            },
            view.values.rewriter(&job)?,
            &mut || self.numbers.take(),
            &self.dir,
        )?;
        let added = |table| TableAdded { level: 0, run, table: Arc::new(table) };
        let change = LevelEdit {
            keyspace: tree.keyspace,
            added: output.tables.into_iter().map(added).collect(),
            ..LevelEdit::default()
        };
        Ok((change, output.values, output.held))
    }
}
