//! Writes a piece of an ingest: the merge loop of flushes, with the placement's hooks for ingests.

use std::sync::{Arc, Mutex};

use bifold_contract::{Entry, Error, IoSource, Kept, Result, Rewriter, SeqNo, TableMeta, ValueEdit};
use bifold_format::names;
use bifold_index::{
    compaction::{
        parts,
        run::{self, Output, RewritePlan, Times},
    },
    range_tombstones::RangeTombstones,
    table::Table,
};
use bifold_values::placement::RewriteJob;

use super::Ingests;
use crate::{
    background::compact::count_of_parts,
    limits::room::Means,
    settings::options::Compaction,
    state::{
        overwrites::SampledEntry,
        pieces::{IngestPiece, Pieces, TakenPiece, Written},
        tree::{Tree, View},
    },
    waiting::sync::LockExt,
};

impl Ingests {
    /// Writes a piece. The ingest learns of an error.
    pub fn write(&self, taken: &TakenPiece) {
        let outcome = self.health.guard("an ingest", || self.write_tables(taken));
        let outcome = match outcome {
            // Closing ends long work; nothing has failed.
            Err(Error::Closed { .. }) => outcome,
            other => self.health.watch(other),
        };
        taken.end(outcome);
    }

    fn write_tables(&self, taken: &TakenPiece) -> Result<Written> {
        let pieces = taken.pieces();
        let lent = Back::default();
        let write = || self.room.with_room(Means::Free, || self.rewrite(taken, &lent));
        let tables = self.opened(write()?.tables)?;
        let GivenBack { rewriter, samples } = std::mem::take(&mut *lent.hold());
        debug_assert!(rewriter.is_some() || tables.is_empty(), "{} has its hooks back", pieces.tree.name);
        Ok(Written { tables, rewriter, samples })
    }

    /// Opens tables, or deletes them.
    fn opened(&self, tables: Vec<TableMeta>) -> Result<Vec<Arc<Table>>> {
        let tables: Vec<Arc<TableMeta>> = tables.into_iter().map(Arc::new).collect();
        let opened: Result<Vec<_>> = tables.iter().map(|table| self.state.open_table(table)).collect();
        if opened.is_err() {
            for table in &tables {
                let _recovery_deletes_leftovers = self.dir.remove(&names::table(table.id));
            }
        }
        opened
    }

    /// Writes the entries as tables, and their values as the placement has it.
    fn rewrite(&self, taken: &TakenPiece, back: &Back) -> Result<Output> {
        let (pieces, IngestPiece { entries, seqno }) = (taken.pieces(), taken.piece());
        let Pieces { tree, values, .. } = &**pieces;
        let view = tree.view_to_hold();
        let levels = &tree.shape(&view).levels;
        let deepest = deepest(&view, levels.deepest());
        let rewriter = match taken.rewriter() {
            Some(rewriter) => rewriter,
            None => values.ingester(&RewriteJob { from: None, to: deepest, deepest, moving: Vec::new() })?,
        };
        let cuts = parts::cuts_of_merges(levels, count_of_parts(tree, self.memtable_bytes));
        run::rewrite(
            entries.cursor(*seqno),
            RangeTombstones::default(),
            &RewritePlan {
                keys: (None, None),
                snapshots: &[],
                times: Times::default(),
                // No key comes twice.
                combine: &|_key, _older, _newer| None,
                bottom: &|_start, _end| false,
                table_bytes: view.settings.options.table_bytes,
                reach_bytes: u64::MAX,
                max_overlap_bytes: u64::MAX,
                grandparents: &[],
                cuts: &cuts,
                source: IoSource::Flush,
                table: tree.table_options(deepest),
                progress: &|_bytes| self.health.open(),
            },
            Box::new(Lent::new(rewriter, tree, back)),
            &mut || self.numbers.take(),
            &self.dir,
        )
    }
}

/// The deepest level that a tree may have: by its options, or because it has tables there.
pub(super) fn deepest(view: &View, filled: u8) -> u8 {
    let by_options = match &view.settings.options.compaction {
        Compaction::Leveled(options) => options.levels - 1,
        Compaction::Tiered(options) => options.levels - 1,
        Compaction::TwoLayer(_) => 1,
    };
    filled.max(by_options).max(1)
}

/// Where a rewriter is given back.
type Back = Arc<Mutex<GivenBack>>;

/// What remains of the rewriting of a piece.
#[derive(Default)]
struct GivenBack {
    rewriter: Option<Box<dyn Rewriter>>,
    samples: Vec<SampledEntry>,
}

/// The rewriter of several pieces, for one of them. After an error it is dropped, and so is what it has written. It
/// takes samples of what goes through it.
struct Lent {
    rewriter: Option<Box<dyn Rewriter>>,
    tree: Arc<Tree>,
    samples: Vec<SampledEntry>,
    back: Back,
}

impl Lent {
    fn new(rewriter: Box<dyn Rewriter>, tree: &Arc<Tree>, back: &Back) -> Self {
        let (tree, back) = (Arc::clone(tree), Arc::clone(back));
        Self { rewriter: Some(rewriter), tree, samples: Vec::new(), back }
    }

    fn rewriter(&mut self) -> &mut dyn Rewriter {
        let Some(rewriter) = &mut self.rewriter else { unreachable!("until it is given back") };
        &mut **rewriter
    }
}

impl Rewriter for Lent {
    fn keep(&mut self, entry: &Entry<'_>) -> Result<Kept> {
        let kept = self.rewriter().keep(entry)?;
        if let Some(overwrites) = &self.tree.overwrites {
            self.samples.extend(overwrites.sample_of_ingest(entry, &kept));
        }
        Ok(kept)
    }

    fn discard(&mut self, entry: &Entry<'_>, newer: SeqNo) -> Result<()> {
        self.rewriter().discard(entry, newer)
    }

    fn end_table(&mut self) -> Result<()> {
        self.rewriter().end_table()
    }

    /// The last table of the piece ends.
    fn finish(mut self: Box<Self>) -> Result<ValueEdit> {
        self.end_table()?;
        let (rewriter, samples) = (self.rewriter.take(), std::mem::take(&mut self.samples));
        *self.back.hold() = GivenBack { rewriter, samples };
        Ok(ValueEdit::default())
    }
}
