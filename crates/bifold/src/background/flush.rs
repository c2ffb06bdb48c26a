//! Flush: the oldest sealed memtable of a tree becomes tables of level 0.
//!
//! Memtables of one tree are written in the order in which they were sealed, so that "all commits up to n are in
//! tables" is always true for some n. Versions that no snapshot can see are dropped: under skewed updates much of a
//! memtable is never written a second time. Several threads may write key ranges of one memtable
//! ([`shared_flush`](crate::state::shared_flush)), and flushes of different trees run at once.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use bifold_contract::{IoSource, KeyspaceId, LevelEdit, Levels, Result, edit::TableAdded, planted};
use bifold_format::names;
use bifold_index::{
    compaction::{
        parts,
        run::{self, Output, RewritePlan, Times},
    },
    merge::{MergeCursor, Source},
    range_tombstones::RangeTombstones,
};
use bifold_io::{Clock, Dir};
use bifold_values::placement::RewriteJob;

use crate::{
    background::{alone::lacks_room, compact::count_of_parts},
    commit::syncs::Syncs,
    counts::counters::Counters,
    install::{State, give_up},
    limits::{
        pace::Pace,
        room::{Means, Room},
        waits::Waits,
    },
    log::{trees::Trees, wal::Wal},
    settings::options::Workers,
    state::{
        health::Health,
        numbers::Numbers,
        shared_flush::{Flush, KeyRange, SharedFlush, TakenRange, bounds},
        snapshot::Snapshots,
        telling::{Events, JobKind},
        tree::{Layer, Tree, View},
        work::Work,
    },
    waiting::{signal::Signal, sync::FairLock},
};

/// The most tables of one flush on a disk that is short of room.
const SHORT_PARTS_MAX: usize = 256;

/// Ranges for each worker: one that comes late still finds some.
const RANGES_PER_WORKER: usize = 2;

/// The most ranges of a flush by so many threads. Each has at least the bytes of a table: it ends a table and a file
/// of values, and each file costs a sync, however small it is.
fn count_of_ranges(flush: &Flush, threads: u32) -> usize {
    let table_bytes = flush.tree.view().settings.options.table_bytes.max(1);
    let full = flush.layer.memtable.data_bytes() as u64 / table_bytes;
    (full.max(1) as usize).min(threads.max(2) as usize * RANGES_PER_WORKER)
}

/// A flush that workers find. They no longer do once this is dropped.
struct Shown<'a> {
    work: &'a Work,
    keyspace: KeyspaceId,
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        self.work.take(|state| drop(state.shared.remove(&self.keyspace)));
    }
}

/// Writes memtables as tables.
pub(crate) struct Flusher {
    pub clock: Arc<dyn Clock>,
    pub dir: Dir,
    pub numbers: Numbers,
    pub trees: Arc<Trees>,
    pub snapshots: Arc<Snapshots>,
    pub signal: Arc<Signal>,
    pub health: Arc<Health>,
    pub work: Arc<Work>,
    pub counters: Arc<Counters>,
    pub room: Arc<Room>,
    pub pace: Arc<Pace>,
    pub wal: Arc<FairLock<Wal>>,
    pub state: Arc<State>,
    pub syncs: Arc<Syncs>,
    pub waits: Arc<Waits>,
    pub events: Arc<Events>,
    pub workers: Workers,
}

impl Flusher {
    /// Writes the oldest sealed memtable of `tree`, if there is one.
    ///
    /// # Errors
    /// I/O errors, and [`Error::Full`](bifold_contract::Error::Full); the memtable then stays, in memory and in the
    /// log.
    pub fn flush_oldest(&self, tree: &Arc<Tree>, means: Means) -> Result<()> {
        let view = tree.view_to_hold();
        let oldest = if planted!("flush_newest_first") { view.sealed.first() } else { view.sealed.last() };
        let Some(layer) = oldest else { return Ok(()) };
        let begun = self.pace.flush_begins(self.clock.now());
        let input = layer.memtable.data_bytes() as u64;
        let describe = || (tree.name.clone(), input);
        let flush = || self.flush_layer(tree, &view, layer, means);
        let outcome = self.events.around(JobKind::Flush, describe, flush);
        let bytes = outcome.is_ok().then_some(input);
        self.pace.flush_ends(begun, bytes, self.clock.now());
        outcome
    }

    fn flush_layer(&self, tree: &Arc<Tree>, view: &Arc<View>, layer: &Arc<Layer>, means: Means) -> Result<()> {
        self.room.ensure_to_flush(layer.memtable.data_bytes() as u64, means)?;
        self.sync_log_for_others(tree, layer)?;
        let run = self.numbers.take();
        let write = || self.write_memtable(self.plan_flush(tree, view, layer));
        let Output { tables, values, held, .. } = self.room.with_room(means, write)?;
        let added = tables.into_iter().map(|table| TableAdded { level: 0, run, table: Arc::new(table) }).collect();
        let change = LevelEdit { keyspace: tree.keyspace, added, ..LevelEdit::default() };
        self.state.install(tree, change, values, Some(layer))?;
        tree.note_held(held);
        Ok(())
    }

    /// Tables must not be durable before older commits of **other** trees are: a crash in between would keep the
    /// newer commit without the older one, and could tear a batch that touches both. They must not be durable before
    /// the values they point at either. A single tree with inline values needs nothing.
    fn sync_log_for_others(&self, tree: &Arc<Tree>, layer: &Layer) -> Result<()> {
        let unwritten = |p: &&Arc<Tree>| !Arc::ptr_eq(p, tree) && p.view().layers().any(|l| !l.memtable.is_empty());
        match layer.memtable.max_seqno() {
            // A log that is kept must not lose its end when its entries are durable in tables.
            _ if self.wal.hold().keeps_changes() && !planted!("keep_unsynced_logs") => self.syncs.sync_everything(),
            // During recovery values are rewritten under old numbers, so numbers do not say what is durable.
            _ if tree.placement().has_unsynced() => self.syncs.sync_everything(),
            Some(last) if self.trees.all().iter().any(|p| unwritten(&p)) => self.syncs.sync_upto(last),
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

    /// How the memtable `layer` of `view` is written.
    pub fn plan_flush(&self, tree: &Arc<Tree>, view: &Arc<View>, layer: &Arc<Layer>) -> Flush {
        let is_first = view.version.tables().next().is_none() && view.sealed.len() == 1;
        let levels = &tree.shape(view).levels;
        let bytes = layer.memtable.data_bytes() as u64;
        let parts = self.count_of_parts_to_flush(tree, levels, bytes);
        Flush {
            tree: Arc::clone(tree),
            view: Arc::clone(view),
            layer: Arc::clone(layer),
            is_first,
            snapshots: self.snapshots.cut(),
            cuts: parts::cuts(levels, parts),
            // The first run is cut by bytes, later runs at the same keys.
            cut_bytes: if is_first { bytes.div_ceil(parts as u64).max(1) } else { u64::MAX },
        }
    }

    /// Writes a memtable, with the help of idle workers if there are any.
    ///
    /// # Errors
    /// Those of any range. Nothing is left then.
    pub fn write_memtable(&self, flush: Flush) -> Result<Output> {
        let bounds = match self.workers {
            Workers::Threads(threads) if !self.room.is_short() => bounds(&flush.cuts, count_of_ranges(&flush, threads)),
            // One after the other, so that the same calls write the same files; and where room is short, so that no
            // more is on disk at once than need be.
            _ => Vec::new(),
        };
        if bounds.is_empty() {
            return self.write_range(&flush, (None, None));
        }
        let keyspace = flush.tree.keyspace;
        let shared = SharedFlush::new(flush, bounds);
        // Notifies: idle workers may help.
        self.work.change(keyspace, |state| drop(state.shared.insert(keyspace, Arc::clone(&shared))));
        let shown = Shown { work: &self.work, keyspace };
        while let Some(range) = shared.take() {
            range.write(|flush, keys| self.write_range(flush, keys));
        }
        drop(shown);
        shared.wait(&self.signal, self.clock.now());
        shared.outcome(|flush, output| self.give_up_flush(flush, output))
    }

    /// Writes a range for the thread that flushes.
    pub fn help_flush(&self, range: &TakenRange) {
        self.counters.flush_ranges_helped.fetch_add(1, Relaxed);
        range.write(|flush, keys| self.write_range(flush, keys));
    }

    /// Writes these keys of a memtable as tables.
    ///
    /// # Errors
    /// I/O errors; nothing is left then.
    pub fn write_range(&self, flush: &Flush, keys: KeyRange<'_>) -> Result<Output> {
        let Flush { tree, view, layer, is_first, .. } = flush;
        let deepest = tree.shape(view).levels.deepest();
        let job = RewriteJob { from: None, to: 0, deepest, moving: Vec::new() };
        // Lists of all numbers would take n² memory if ranges are nested; the rewrite asks for no others than these.
        let deleted = layer.memtable.range_tombstone_copies();
        let tombstones = RangeTombstones::for_rewrite(&deleted, &flush.snapshots.seqnos);
        run::rewrite(
            MergeCursor::new(vec![Source::Memtable(layer.memtable.cursor())]),
            tombstones,
            &RewritePlan {
                combine: &|key, older, newer| view.combine(key, older, newer),
                keys,
                snapshots: &flush.snapshots.seqnos,
                times: Times { now: flush.snapshots.now, of_snapshots: &flush.snapshots.times },
                bottom: &|_start, _end| *is_first,
                table_bytes: flush.cut_bytes,
                reach_bytes: flush.cut_bytes,
                max_overlap_bytes: u64::MAX,
                grandparents: &[],
                cuts: &flush.cuts,
                source: IoSource::Flush,
                table: tree.table_options(0),
                progress: &|_bytes| self.health.open(),
            },
            view.values.rewriter(&job)?,
            &mut || self.numbers.take(),
            &self.dir,
        )
    }

    /// Writes all memtables of `trees` as tables and waits for that.
    ///
    /// # Errors
    /// I/O errors, and every reason not to take writes.
    pub fn flush(&self, trees: &[Arc<Tree>], means: Means) -> Result<()> {
        self.waits.or_alone(means, || self.flush_now(trees), lacks_room)?
    }

    fn flush_now(&self, trees: &[Arc<Tree>]) -> Result<()> {
        {
            let mut wal = self.wal.hold();
            self.health.takes_writes()?;
            let filled: Vec<_> =
                trees.iter().filter(|p| !p.view().active.memtable.is_empty()).map(Arc::clone).collect();
            if !filled.is_empty() {
                self.health.watch(self.health.guard("a flush", || self.state.seal(&mut wal, &filled)))?;
            }
        }
        // The flush itself leaves `RESERVE` alone, but a caller that waits for it may use it. If there is still too
        // little room, the wait below reports it.
        let reserve_bytes = self.room.reserve_bytes();
        let _reported_below = self.room.ensure(0);
        if self.room.reserve_bytes() < reserve_bytes {
            self.room.try_again();
        }
        // A worker may have found too little room before.
        if !planted!("room_wakes_nobody") {
            self.work.look_at(&trees.iter().map(|p| p.keyspace).collect::<Vec<_>>());
        }
        let unwritten = || trees.iter().find(|p| !p.view().sealed.is_empty() && !p.is_dropped());
        self.waits.wait_for_flush_of(
            ("a flush", "memtables to be written"),
            || trees.to_vec(),
            || unwritten().is_none(),
        )
    }

    /// Deletes what was written of a flush that has failed.
    pub fn give_up_flush(&self, flush: &Flush, written: &Output) {
        for table in &written.tables {
            let _recovery_deletes_leftovers = self.dir.remove(&names::table(table.id));
        }
        give_up(&flush.tree, &written.values);
    }
}
