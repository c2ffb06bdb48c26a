//! Garbage collection of values kept apart: what a placement picks and copies, the engine commits.
//!
//! ```text
//! pick ─▶ copy ─▶ ┌ commit lock, a few moves at a time ─────┐ ─▶ sync ─────────────▶ reclaim what is emptied
//!                 │ pass over what is overwritten meanwhile │    (values, then log)  (manifest, then the files)
//!                 │ ─▶ commit the other moves               │
//!                 └─────────────────────────────────────────┘
//! ```
//!
//! A move is a write of the address with a number of its own: readers, snapshots, flush and compaction need no rule for
//! it. It is committed only where the address it replaces is still the newest: a placement that knows says so, for the
//! others the index is asked under the commit lock. A file that is emptied goes when the moves out of it are durable, and
//! with them all that was counted as newer than what it holds: until then a power loss leads back to it. Another worker
//! syncs and reclaims while the next collection copies.
//!
//! Values of a commit that is under way stand in files to which no address leads yet. Nothing is copied before that commit has
//! happened: those that begin later append to files that were not there, or not full, when the files were picked.
//!
//! Several collections of a keyspace run at once where the placement says which files have nothing to do with those being
//! collected ([`Placement::pick_concurrent`](bifold_values::placement::Placement::pick_concurrent), decision 0009).
//!
//! What is picked may also be a look: the placement asks the index about some values, and nothing moves.

use std::{
    cell::Cell,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use bifold_contract::{FileId, Levels, Pointer, Result, Run, planted};
use bifold_format::pointer;
use bifold_values::placement::{GcPick, GcRun, IndexView, Moved, SpacePressure};

use crate::{
    compact::{beside_largest, entries_of_runs},
    engine::Engine,
    left_out::{Took, leave_out_values, note_unreadable},
    options::Durability,
    rewrite::RewriteScope,
    room::Means,
    tree::Tree,
    wal::Wal,
    write::{Act, Op},
};

/// So many moves are compared with the index and committed under one hold of the commit lock: about a millisecond.
const CHECKED_AT_ONCE: usize = 256;

/// Workers look for garbage each time commits have written this share of a keyspace's values apart.
const LOOK_SHARE: u64 = 64;

/// Or this, where space is so tight that writers are slowed.
const TIGHT_SHARE: u64 = 512;

/// But not more often than each so many bytes.
const LOOK_BYTES_MIN: u64 = 64 << 10;

/// What an entry takes in a table beside its key where its value is apart: pointer, number, lengths, its share of filter and
/// index. With keys of 24 bytes it is 13, which share beginnings.
const PARTED_ENTRY_BYTES: u64 = 20;

/// The index as a collection may ask it.
struct LiveIndex<'a> {
    engine: &'a Engine,
    tree: &'a Tree,
    lookups: Cell<u64>,
}

impl IndexView for LiveIndex<'_> {
    fn current(&self, key: &[u8]) -> Result<Option<Pointer>> {
        self.lookups.set(self.lookups.get() + 1);
        let current = self.engine.current_pointer(self.tree, key);
        note_unreadable(self.tree, current)
    }
}

/// Bytes of live values that stay with their keys, by estimate: of the run with most entries, since others may hide what it holds or be
/// hidden, what entries would not take whose keys are as long as those at the ends of tables and whose values are apart. Too
/// little where blocks are compressed, too much where keys at the ends are shorter than others: never more than the run has.
fn inline_bytes(levels: &Levels) -> u64 {
    let runs = levels.levels.iter().flat_map(|level| &level.runs);
    let entries_of = |run: &Run| run.tables.iter().map(|table| table.entries).sum::<u64>();
    let Some(largest) = runs.max_by_key(|run| entries_of(run)) else { return 0 };
    let at_ends: usize = largest.tables.iter().map(|table| table.smallest.len() + table.largest.len()).sum();
    let key_bytes = (at_ends / (2 * largest.tables.len()).max(1)) as u64;
    largest.bytes().saturating_sub(entries_of(largest) * (key_bytes + PARTED_ENTRY_BYTES))
}

impl Engine {
    /// How tight space is in a keyspace.
    pub fn pressure(&self, tree: &Tree) -> SpacePressure {
        let view = tree.view();
        let levels = &tree.shape(&view).levels;
        // What no rewrite can find is not looked for.
        let hiding = if tree.unreadable.any() { 0.0 } else { 1.0 };
        let memtables = || view.layers().map(|layer| &layer.memtable);
        let overwritten: u64 = memtables().map(|memtable| memtable.entries().saturating_sub(memtable.keys())).sum();
        let mut runs = entries_of_runs(levels);
        runs.extend(memtables().map(|memtable| memtable.keys()));
        let tombstones: u64 = memtables().map(|memtable| memtable.tombstones()).sum();
        let in_tables: u64 = levels.tables().map(|(.., table)| table.tombstones).sum();
        let values = (runs.iter().sum::<u64>() + overwritten).saturating_sub(tombstones + in_tables).max(1) as f64;
        SpacePressure {
            index_bytes: levels.bytes(),
            inline_bytes: inline_bytes(levels),
            entries_above: hiding * beside_largest(runs) as f64 / values,
            overwritten: hiding * overwritten as f64 / values,
            target: tree.options.values.space_target,
            oldest_snapshot: self.snapshots.oldest(),
            all_before: None,
        }
    }

    /// What to collect next in a keyspace, beside what is being collected.
    pub fn next_gc(&self, tree: &Tree, running: &[GcPick]) -> Option<GcPick> {
        if !tree.separates {
            return None;
        }
        let pressure = self.pressure(tree);
        match running {
            [] => tree.placement().pick(&pressure),
            _ => tree.placement().pick_concurrent(&pressure, running),
        }
    }

    /// Whether garbage of a keyspace is being collected or deleted, or will be as soon as a worker is free.
    pub fn is_freeing(&self, tree: &Tree) -> bool {
        let by_merges = || tree.placement().profile().separates_at_rewrite && self.is_merging(tree);
        self.work.is_freeing(tree.keyspace)
            || self.can_reclaim(tree)
            || self.next_gc(tree, &[]).is_some()
            || by_merges()
    }

    /// Whether tables of a keyspace are being merged, or will be as soon as a worker is free.
    fn is_merging(&self, tree: &Tree) -> bool {
        tree.debt() >= 1.0 || !self.work.busy(tree.keyspace).tables.is_empty()
    }

    /// Collects all garbage of a keyspace, whatever the target, and waits for that.
    ///
    /// # Errors
    /// I/O errors, and every reason not to take writes. What cannot be read is an error when all else is collected.
    pub fn gc_all(&self, tree: &Arc<Tree>) -> Result<()> {
        let keyspace = tree.keyspace;
        self.work.reserve_gc(keyspace);
        let outcome = self.guard("a collection", || self.gc_all_alone(tree));
        self.work.release_gc(keyspace);
        outcome
    }

    /// The same, when workers begin no more collections of the keyspace.
    fn gc_all_alone(&self, tree: &Arc<Tree>) -> Result<()> {
        let all_before = Some(self.next_file());
        let mut is_rewritten = false;
        loop {
            // Picked when no other collection runs: what another is about to empty must not be picked.
            let is_mine = || self.work.try_gc(tree.keyspace);
            self.wait_until("a collection of everything", "collections of the keyspace to end", is_mine)?;
            let at_work = self.signal.working();
            // Of a dropped keyspace nothing moves any more: the same would be picked for ever.
            let mut pressure = SpacePressure { all_before, ..self.pressure(tree) };
            if is_rewritten {
                // What was written meanwhile was not asked for.
                (pressure.entries_above, pressure.overwritten) = (0.0, 0.0);
            }
            let picked = if tree.is_dropped() { None } else { tree.placement().pick(&pressure) };
            is_rewritten |= matches!(picked, Some(GcPick::Rewrite { .. }));
            let outcome = match &picked {
                Some(pick) => self.collect(tree, pick, all_before),
                None => self.reclaim_values(tree),
            };
            self.end_gc(tree.keyspace, None);
            drop(at_work);
            match &picked {
                None => {
                    self.watch(outcome)?;
                    return self.report_left_out(tree);
                }
                Some(pick) => match self.end_of_job(tree, Took::Values(pick), outcome) {
                    Err(error) if error.is_unreadable() && self.health.writable().is_ok() => {}
                    other => other?,
                },
            }
        }
    }

    /// Collects what was picked, under the pressure to collect what has files with numbers below `all_before`.
    ///
    /// # Errors
    /// I/O errors and corruption; [`Error::Full`](bifold_contract::Error::Full), before anything is copied.
    pub fn collect(&self, tree: &Arc<Tree>, pick: &GcPick, all_before: Option<FileId>) -> Result<()> {
        // Who asks for everything waits for it.
        let means = if all_before.is_some() { Means::Reserve } else { Means::Free };
        let pick = self.fitting(tree, pick, means)?;
        self.pace.gc_begins(self.env.clock.now());
        let freed = self.gc_unpaced(tree, &pick, means);
        self.pace.gc_ends(freed.as_ref().map_or(None, |freed| *freed), self.env.clock.now());
        freed.map(drop)
    }

    /// What of a pick the disk has room for. First goes what is emptied and waits for a sync, then `RESERVE`.
    fn fitting(&self, tree: &Tree, pick: &GcPick, means: Means) -> Result<GcPick> {
        // Of some picks one file is made: one unit alone would be picked again and again. When all is collected it is not.
        let least = if means == Means::Reserve { 1 } else { 2 };
        let mut fitting = self.fit_gc(tree, pick, least);
        if fitting.1.is_some() {
            self.reclaim_values(tree)?;
            fitting = self.fit_gc(tree, pick, least);
        }
        fitting.1.map_or(Ok(()), |needed| self.ensure_room_by(means, needed))?;
        Ok(fitting.0)
    }

    /// Answers how many bytes come free, where that says how fast they do.
    fn gc_unpaced(&self, tree: &Arc<Tree>, pick: &GcPick, means: Means) -> Result<Option<u64>> {
        if let GcPick::Rewrite { start, end, moving } = pick {
            if moving.is_empty() {
                // What memtables hide is looked for.
                self.flush(&[Arc::clone(tree)])?;
            }
            let which = if moving.is_empty() { RewriteScope::Due } else { RewriteScope::All };
            let rewritten = self.rewrite_range(tree, (start.as_deref(), end.as_deref()), which, (moving, means))?;
            if let Some(unreadable) = rewritten.unreadable {
                // What has not moved now will not the next time.
                let _are_new = leave_out_values(tree, pick, &unreadable);
            }
            self.counters.gc.jobs.fetch_add(1, Relaxed);
            return Ok(Some(rewritten.freed));
        }
        if !planted!("collect_beside_commits") {
            self.wait_for_commit();
        }
        let values = tree.placement();
        let view = LiveIndex { engine: self, tree, lookups: Cell::new(0) };
        let mut collecting = self.with_room(means, || values.collect(pick, &view))?;
        self.counters.gc.lookups.fetch_add(view.lookups.get(), Relaxed);
        if *pick == GcPick::Look {
            return Ok(None);
        }
        while self.commit_moves(tree, collecting.as_mut())? {}
        self.install_values(tree, || collecting.edit())?;
        self.counters.gc.moved_bytes.fetch_add(collecting.copied(), Relaxed);
        self.counters.gc.jobs.fetch_add(1, Relaxed);
        Ok(Some(collecting.freed()))
    }

    /// Returns when the commit that is under way has happened. Its values stand in files by now, perhaps in some that were
    /// picked since they are full, and the index is asked what leads there.
    fn wait_for_commit(&self) {
        drop(self.wal.hold());
    }

    /// Whether files of a keyspace are emptied and wait for a sync only.
    pub fn can_reclaim(&self, tree: &Tree) -> bool {
        tree.separates && tree.placement().can_reclaim(self.snapshots.oldest())
    }

    /// Makes everything durable, and lets go of the files that moves have emptied which are durable now.
    ///
    /// # Errors
    /// I/O errors.
    pub fn reclaim_values(&self, tree: &Tree) -> Result<()> {
        if !self.can_reclaim(tree) {
            return Ok(());
        }
        // On a slow disk the sync takes longer than the collections before it.
        self.pace.gc_begins(self.env.clock.now());
        let outcome = self.reclaim_unpaced(tree);
        self.pace.gc_ends(Some(0), self.env.clock.now());
        outcome
    }

    fn reclaim_unpaced(&self, tree: &Tree) -> Result<()> {
        let durable = if planted!("reclaim_unsynced") {
            self.visible()
        } else {
            self.sync_everything()?;
            self.group_sync.durable()
        };
        self.install_values(tree, || tree.placement().reclaim(durable, self.snapshots.oldest()))
    }

    /// Commits the next moves; answers whether there were any.
    fn commit_moves(&self, tree: &Arc<Tree>, collecting: &mut dyn GcRun) -> Result<bool> {
        self.pace_moves(tree)?;
        let mut wal = self.wal.hold();
        self.writable()?;
        if tree.is_dropped() {
            return Ok(false);
        }
        let Some(moves) = self.watch(collecting.advance())? else { return Ok(false) };
        if moves.check {
            drop(wal);
            for (at, chunk) in moves.moved.chunks(CHECKED_AT_ONCE).enumerate() {
                self.commit_checked(tree, chunk, collecting).inspect_err(|_| {
                    // The files they come from stay in use, so nobody needs these copies.
                    moves.moved[at * CHECKED_AT_ONCE..].iter().for_each(|moved| collecting.refused(moved));
                })?;
            }
            wal = self.wal.hold();
        } else {
            self.write_back(&mut wal, tree, &moves.moved)?;
        }
        collecting.committed(self.visible());
        drop(wal);
        self.wal.let_others();
        Ok(true)
    }

    /// Commits those moves whose old address is still the newest of its key.
    fn commit_checked(&self, tree: &Arc<Tree>, moves: &[Moved], collecting: &mut dyn GcRun) -> Result<()> {
        let mut wal = self.wal.hold();
        self.writable()?;
        let is_current = |moved: &Moved| Ok(self.current_pointer(tree, &moved.key)? == Some(moved.from));
        let are_current = note_unreadable(tree, moves.iter().map(is_current).collect::<Result<Vec<bool>>>())?;
        let mut current = Vec::with_capacity(moves.len());
        for (moved, is_current) in moves.iter().zip(are_current) {
            if is_current {
                current.push(moved.clone());
            } else {
                collecting.refused(moved);
            }
        }
        self.counters.gc.lookups.fetch_add(moves.len() as u64, Relaxed);
        self.write_back(&mut wal, tree, &current)
    }

    fn write_back(&self, wal: &mut Wal, tree: &Arc<Tree>, moves: &[Moved]) -> Result<()> {
        if moves.is_empty() {
            return Ok(());
        }
        let mut pointers = Vec::new();
        let mut ends = Vec::with_capacity(moves.len());
        for moved in moves {
            let start = pointers.len();
            pointer::encode(moved.to, &mut pointers);
            ends.push((start, pointers.len()));
        }
        let ops: Vec<Op<'_>> = moves
            .iter()
            .zip(ends)
            .map(|(moved, (start, end))| Op { tree, key: &moved.key, act: Act::Pointer(&pointers[start..end]) })
            .collect();
        let bytes = ops.iter().map(Op::memtable_bytes).sum();
        self.watch(self.make_room(wal, &ops, bytes))?;
        self.watch(self.log_and_apply(wal, &ops, Durability::Buffered))?;
        self.counters.gc.moved(moves);
        Ok(())
    }

    /// Wakes the workers when commits have written so much of a keyspace's values that there may be garbage to collect, and
    /// looks anew at how full its space is. No other keyspace is looked at: this is part of every commit, after its lock.
    pub fn note_values(&self, ops: &[Op<'_>]) {
        let mut due = Vec::new();
        for op in ops.iter().filter(|op| op.tree.separates_from != usize::MAX) {
            let (looks, bytes) = (&op.tree.looks, op.bytes());
            let written = looks.written.fetch_add(bytes, Relaxed) + bytes;
            if written >= looks.due_at.load(Relaxed) {
                let space = op.tree.placement().space().total_bytes;
                let share = if self.is_space_tight() { TIGHT_SHARE } else { LOOK_SHARE };
                looks.due_at.store(written + (space / share).max(LOOK_BYTES_MIN), Relaxed);
                self.update_fullness_of(op.tree.keyspace);
                due.push(op.tree.keyspace);
            }
        }
        if !due.is_empty() {
            self.work.look_at(&due);
        }
    }
}
