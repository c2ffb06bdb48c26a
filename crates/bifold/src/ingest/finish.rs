//! The end of an ingest: where its tables go, and its commit.
//!
//! ```text
//! write the rest ─▶ flush older versions ─▶ sync ─▶ ┌ commit lock ──────────────────────────────────────────────┐
//!                                                   │ still older versions in the memtable? write them as tables │
//!                                                   │ announced in the log, sync ─▶ one edit ─▶ visible          │
//!                                                   └────────────────────────────────────────────────────────────┘
//! ```
//!
//! **Where.** Tables of a range in which nothing is stored go to the deepest level, unless a running compaction may
//! write there; all others become the newest run of level 0. Memtables count as newer than all tables, so those with
//! older versions of the ingest's keys are written first. The last of them is written under the lock: a writer that
//! never rests cannot keep an ingest from its end.
//!
//! **Order.** The log is synced before the edit, so after a power loss nothing older than the ingest is missing. The
//! announcement is synced with it: the numbers that commits get afterwards must not look like a gap, and who reads the
//! log must know that the manifest has more.

use std::{cell::Cell, sync::Arc};

use bifold_contract::{
    BusyOutput, Error, LevelEdit, Levels, LogFloor, Result, RunId, SeqNo, ValueEdit, edit::TableAdded, key::MAX_SEQNO,
    planted,
};
use bifold_format::log::LoggedIngest;
use bifold_index::{compaction::run::Output, cursor::Cursor, memtable::Memtable};

use super::{IngestRun, Ingests, SHORTLY_AHEAD, for_feed::FeedFile, write::deepest};
use crate::{
    ingest::IngestReport,
    install::arrival::Arrival,
    limits::room::Means,
    log::{manifest::ManifestFile, wal::Wal},
    state::{
        shared_flush::Flush,
        tree::{Layer, Tree},
    },
    waiting::sync::LockExt,
};

/// A memtable that was written because it has older versions of an ingest's keys.
struct Flushed {
    flush: Flush,
    output: Output,
    run: RunId,
}

impl Ingests {
    /// Makes all entries visible and durable, as one commit.
    ///
    /// # Errors
    /// I/O errors, and every reason to refuse writes. Nothing is visible then; if the database is poisoned by this,
    /// all of the ingest or nothing of it is there after it is opened again.
    pub fn finish(&self, run: &mut IngestRun) -> Result<IngestReport> {
        run.is_whole()?;
        if run.count == 0 {
            return Ok(IngestReport::default());
        }
        self.write_rest(run)?;
        let tables = run.tables.len() as u64;
        let level = loop {
            let trees = [Arc::clone(&run.tree)];
            if run.tree.view().layers().any(|layer| run.is_older_in(layer)) {
                self.flusher.flush(&trees, Means::Reserve)?;
            }
            if !planted!("ingest_before_log") {
                // Little is left to be synced under the lock then.
                self.syncs.sync_everything()?;
            }
            let (mut level, mut manifest) = (None, self.state.manifest.hold());
            let arrive = || self.health.guard("an ingest", || self.arrive(&mut manifest, run, &mut level));
            self.syncs.in_place_of_a_sync(arrive)?;
            drop(manifest);
            match level {
                Some(level) => break level,
                None => self.flusher.flush(&trees, Means::Reserve)?,
            }
        };
        self.counters.ingested(run.count, run.bytes);
        if let Some(overwrites) = &run.tree.overwrites {
            let files = run.value_edit.iter().flat_map(|edit| &edit.added);
            overwrites.ingested(files.map(|meta| meta.bytes).sum(), run.count);
        }
        // Where tables go to the deepest level, nothing was stored.
        if level == 0 {
            run.pieces.take_samples().report(&run.tree, &self.health);
        }
        self.committer.pace.update_of(&[run.tree.keyspace]);
        self.work.look_at(&[run.tree.keyspace]);
        self.waits.run_due_work();
        Ok(IngestReport { entries: run.count, bytes: run.bytes, tables, level })
    }

    /// Writes what is left, and ends all value files.
    fn write_rest(&self, run: &mut IngestRun) -> Result<()> {
        self.health.takes_writes()?;
        if !run.entries.is_empty() {
            self.add_piece(run, SHORTLY_AHEAD)?;
        }
        self.write_until(run, 0)?;
        run.tables = run.pieces.take_tables();
        for rewriter in run.pieces.take_rewriters() {
            let rewriter = Cell::new(Some(rewriter));
            let end = || rewriter.take().map_or(Ok(ValueEdit::default()), |rewriter| rewriter.finish());
            let end = || if planted!("full_ingests_poison") { end() } else { self.room.with_room(Means::Free, end) };
            let edit = self.health.watch(self.health.guard("an ingest", end))?;
            add(run.value_edit.get_or_insert_default(), edit);
        }
        run.for_feed.as_mut().map_or(Ok(()), FeedFile::finish)
    }

    /// Makes the ingest visible, if no memtable has older versions of its keys but the active one. Sets the level of
    /// its tables then. Returns up to which commit all is durable.
    fn arrive(&self, manifest: &mut ManifestFile, run: &mut IngestRun, level: &mut Option<u8>) -> Result<SeqNo> {
        let (tree, seqno) = (Arc::clone(&run.tree), run.first_seqno.unwrap_or(0));
        let mut wal = self.wal.hold();
        self.health.takes_writes()?;
        tree.readable(&self.health)?;
        if wal.next_seqno() > seqno {
            let reason = format!("commits have reached number {seqno}, which was kept for it: begin it again");
            return Err(Error::invalid("ingest", reason));
        }
        let view = tree.view_to_hold();
        let is_older_in_sealed = view.sealed.iter().any(|layer| run.is_older_in(layer));
        let is_older_in_active = run.is_older_in(&view.active);
        if is_older_in_sealed || (is_older_in_active && !view.sealed.is_empty()) {
            return Ok(0);
        }
        let flushing = if is_older_in_active { self.begin_flush(&tree) } else { None };
        if is_older_in_active && flushing.is_none() {
            return Ok(0);
        }
        let flushed = if is_older_in_active { Some(self.flush_active(&mut wal, &tree)?) } else { None };
        let last = seqno + run.count - 1;
        let arrived = self.announce_and_arrive((manifest, &mut wal), run, (flushed.as_ref(), last));
        if let (Err(_), Some(flushed)) = (&arrived, &flushed)
            && !run.is_recorded
        {
            self.flusher.give_up_flush(&flushed.flush, &flushed.output);
        }
        let (log_floor, at) = arrived?;
        drop(wal);
        self.wal.let_others();
        drop(flushing);
        *level = Some(at);
        self.state.end_arrival(manifest, log_floor)?;
        Ok(last)
    }

    /// The commit itself. The log says first that it comes; so whatever fails after that poisons the database.
    fn announce_and_arrive(
        &self,
        (manifest, wal): (&mut ManifestFile, &mut Wal),
        run: &mut IngestRun,
        (flushed, last): (Option<&Flushed>, SeqNo),
    ) -> Result<(LogFloor, u8)> {
        let none = LoggedIngest { next: last + 1, file: 0, bytes: 0 };
        let ingest = run.for_feed.as_ref().map_or(none, |file| file.announced(last + 1));
        self.health.watch(wal.announce(ingest))?;
        if !planted!("ingest_before_log") {
            self.syncs.sync_held(wal)?;
        }
        let or_poison = |error: Error| if self.health.well().is_ok() { error.poisoned() } else { error };
        let arrived =
            self.health.watch(self.arrive_behind((manifest, wal), run, (flushed, last)).map_err(or_poison))?;
        wal.has_arrived(ingest, run.first_seqno.unwrap_or(0));
        Ok(arrived)
    }

    /// Makes it durable and visible, after what is `flushed`.
    fn arrive_behind(
        &self,
        (manifest, wal): (&mut ManifestFile, &mut Wal),
        run: &mut IngestRun,
        (flushed, last): (Option<&Flushed>, SeqNo),
    ) -> Result<(LogFloor, u8)> {
        let tree = Arc::clone(&run.tree);
        let claim = self.claim(&tree, run, flushed);
        let mut added: Vec<TableAdded> = Vec::new();
        let mut values = run.value_edit.clone().unwrap_or_default();
        if let Some(Flushed { output, run, .. }) = flushed {
            let tables = output.tables.iter().cloned();
            added.extend(tables.map(|table| TableAdded { level: 0, run: *run, table: Arc::new(table) }));
            add(&mut values, output.values.clone());
        }
        let metas = run.tables.values().map(|table| Arc::clone(table.meta()));
        added.extend(metas.map(|table| TableAdded { level: claim.level, run: claim.run, table }));
        let arrival = Arrival {
            change: LevelEdit { keyspace: tree.keyspace, added, ..LevelEdit::default() },
            values,
            written: flushed.map(|flushed| &flushed.flush.layer),
            open: &run.tables,
            last,
            is_recorded: &mut run.is_recorded,
        };
        let log_floor = self.state.install_arrival((manifest, wal), &tree, arrival)?;
        if let Some(flushed) = flushed {
            tree.note_held(flushed.output.held.clone());
        }
        Ok((log_floor, claim.level))
    }

    /// Takes the right to flush a tree, unless somebody has it.
    fn begin_flush(&self, tree: &Arc<Tree>) -> Option<impl Drop + use<'_>> {
        let is_free = self.work.take(|state| {
            let is_free = state.flushing.insert(tree.keyspace);
            state.running += usize::from(is_free);
            is_free
        });
        is_free.then(|| FlushRight { of: self, tree: Arc::clone(tree) })
    }

    /// Writes the active memtable as tables, which the edit of the ingest installs.
    fn flush_active(&self, wal: &mut Wal, tree: &Arc<Tree>) -> Result<Flushed> {
        self.health.watch(self.state.seal(wal, std::slice::from_ref(tree)))?;
        let view = tree.view_to_hold();
        let Some(layer) = view.sealed.last() else { unreachable!("sealed right now") };
        self.room.ensure_to_flush(layer.memtable.data_bytes() as u64, Means::Reserve)?;
        let run = self.numbers.take();
        let flush = self.flusher.plan_flush(tree, &view, layer);
        let write = || self.flusher.write_range(&flush, (None, None));
        let output = self.health.watch(self.room.with_room(Means::Reserve, write))?;
        Ok(Flushed { flush, output, run })
    }

    /// Decides where the tables go, and keeps compactions from writing there. The caller holds the manifest's lock, so
    /// that no table comes meanwhile, but for those that were `flushed` and come in the same edit.
    fn claim(&self, tree: &Arc<Tree>, run: &IngestRun, flushed: Option<&Flushed>) -> Claim<'_> {
        let view = tree.view_to_hold();
        let levels = &tree.shape(&view).levels;
        let (first, last) = (&*run.first, &*run.last);
        let deepest = deepest(&view, levels.deepest());
        let flushed = flushed.filter(|_| !planted!("ingest_below_its_flush"));
        let coming = flushed.into_iter().flat_map(|flushed| &flushed.output.tables);
        let mut tables = levels.tables().map(|(.., table)| &**table).chain(coming);
        let is_empty = tables.all(|table| !table.overlaps(Some(first), Some(last)));
        let is_empty = is_empty || planted!("ingest_at_the_bottom");
        self.work.take(|state| {
            let busy = state.busy.entry(tree.keyspace).or_default();
            let may_write = |output: &BusyOutput| output.level >= 1 && output.overlaps(first, Some(last));
            let goes_deep = is_empty && !busy.outputs.iter().any(may_write);
            let level = if goes_deep { deepest } else { 0 };
            let there = busy.outputs.iter().filter(|output| output.level == level).filter_map(|output| output.run);
            let join = if goes_deep { newest_run(levels, level).max(there.max()) } else { None };
            let run = join.unwrap_or_else(|| self.numbers.take());
            let output = BusyOutput { level, run: Some(run), keys: Some((first.into(), Some(last.into()))) };
            if goes_deep {
                busy.outputs.push(output.clone());
            }
            Claim { of: self, tree: Arc::clone(tree), level, run, output: goes_deep.then_some(output) }
        })
    }
}

impl IngestRun {
    /// Whether a memtable has versions of keys within the ingest's, or deletes some.
    fn is_older_in(&self, layer: &Layer) -> bool {
        !planted!("ingest_over_memtable") && has_any(&layer.memtable, (&self.first, &self.last))
    }
}

/// Whether a memtable has anything about keys from `first` to `last`, both inclusive.
fn has_any(memtable: &Arc<Memtable>, (first, last): (&[u8], &[u8])) -> bool {
    if memtable.is_empty() {
        return false;
    }
    let mut cursor = memtable.cursor();
    let is_within = cursor.seek(first, MAX_SEQNO).is_ok() && cursor.entry().is_some_and(|entry| entry.key <= last);
    let after_last = [last, &[0]].concat();
    is_within || !memtable.range_tombstones().clipped(Some(first), Some(&after_last)).is_empty()
}

/// The newest run of a level.
fn newest_run(levels: &Levels, level: u8) -> Option<RunId> {
    levels.levels.get(usize::from(level))?.runs.first().map(|run| run.id)
}

/// Adds what another rewriter, or a flush, has changed to what an ingest has written. Only the flush knows of garbage.
fn add(values: &mut ValueEdit, more: ValueEdit) {
    let ValueEdit { removed, added, garbage, tagged, large, pointers } = more;
    values.large.extend(large);
    values.removed.extend(removed);
    values.added.extend(added);
    values.garbage.extend(garbage);
    values.tagged.extend(tagged);
    values.pointers.extend(pointers);
}

/// Where the tables go. Compactions may write there again when this is dropped.
struct Claim<'a> {
    of: &'a Ingests,
    tree: Arc<Tree>,
    level: u8,
    run: RunId,
    output: Option<BusyOutput>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let Some(output) = &self.output else { return };
        self.of.work.change(self.tree.keyspace, |state| {
            let busy = state.busy.entry(self.tree.keyspace).or_default();
            if let Some(at) = busy.outputs.iter().position(|taken| taken == output) {
                busy.outputs.swap_remove(at);
            }
        });
    }
}

/// The right to flush a tree.
struct FlushRight<'a> {
    of: &'a Ingests,
    tree: Arc<Tree>,
}

impl Drop for FlushRight<'_> {
    fn drop(&mut self) {
        self.of.outcomes.end_work(self.tree.keyspace, |state, keyspace| {
            state.flushing.remove(&keyspace);
        });
    }
}
