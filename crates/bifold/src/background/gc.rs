//! Garbage collection of separated values: a placement picks and copies, the engine commits.
//!
//! ```text
//! pick ─▶ copy ─▶ ┌ commit lock, a few moves at a time ─────┐ ─▶ sync ─────────────▶ reclaim drained files
//!                 │ skip what was overwritten meanwhile     │    (values, then log)  (manifest, then the files)
//!                 │ ─▶ commit the other moves               │
//!                 └─────────────────────────────────────────┘
//! ```
//!
//! A move is a write of the new address with a sequence number of its own: readers, snapshots, flush and compaction
//! need no rule for it. It is committed only if the address it replaces is still the newest. Some placements know
//! that; for the others the engine asks the index under the commit lock. A drained file is reclaimed once the moves
//! out of it are durable, together with everything that was counted as newer than its values: until then a power loss
//! leads back to it. Another worker syncs and reclaims while the next GC run copies.
//!
//! The values of a commit under way are in files that no address leads to yet. GC copies nothing before that commit
//! has been applied. Later commits append to files that did not exist, or were not full, when the files were picked.
//!
//! Several GC jobs of a keyspace are concurrent if the placement says that the files of each are independent of the
//! others ([`GcClaim`], decision 0009). A job can also be a look: the placement asks the index about some values, and
//! nothing moves.

use std::{
    cell::Cell,
    sync::{Arc, MutexGuard, atomic::Ordering::Relaxed},
};

use bifold_contract::{Pointer, Result, SeqNo, ValueEdit, planted};
use bifold_format::pointer;
use bifold_values::placement::{
    Commits, GcClaim, GcContext, GcJob, GcOutcome, IndexView, Moved, NewestAbove, RewrittenTables, SpacePressure,
};

use crate::{
    api::options::Durability,
    background::{
        left_out::{leave_out_values, note_unreadable},
        outcome::Took,
        rewrite::RewriteScope,
    },
    commit::{
        op::{Act, Op},
        room::Means,
        slow::Laps,
        wal::Wal,
    },
    engine::Engine,
    state::tree::Tree,
};

/// This many moves are compared with the index and committed under one hold of the commit lock: about a millisecond.
const CHECKED_AT_ONCE: usize = 256;

/// What the engine does for one GC job.
struct Verbs<'a> {
    engine: &'a Engine,
    tree: &'a Arc<Tree>,
    claim: &'a GcClaim,
    means: Means,
    lookups: Cell<u64>,
    /// The copies are made; what fails from now on is no want of room for them.
    has_copied: Cell<bool>,
}

impl IndexView for Verbs<'_> {
    fn look_up(&self, key: &[u8]) -> Result<Option<Pointer>> {
        self.lookups.set(self.lookups.get() + 1);
        let current = self.engine.reader.current_pointer(self.tree, key);
        note_unreadable(self.tree, current)
    }

    fn look_above(&self, key: &[u8]) -> Result<NewestAbove> {
        self.lookups.set(self.lookups.get() + 1);
        note_unreadable(self.tree, self.engine.reader.newest_above(self.tree, key))
    }
}

impl GcContext for Verbs<'_> {
    fn fit(&self, copies: &[u64]) -> Result<usize> {
        self.engine.fit_copies(self.tree, copies, self.means)
    }

    fn relocate(&self, moves: &[Moved], refused: &mut dyn FnMut(&Moved)) -> Result<Option<SeqNo>> {
        self.has_copied.set(true);
        if moves.is_empty() && planted!("visible_is_enough") {
            return Ok(Some(self.engine.state.visible()));
        }
        if moves.is_empty() {
            // The index has a commit before readers see it. What overwrote the values may be such a commit.
            return self.engine.hold_commits(self.tree, &mut |_| Ok(()));
        }
        let mut last = None;
        for (at, chunk) in moves.chunks(CHECKED_AT_ONCE).enumerate() {
            let mut check = |commits: &mut Held<'_>| commits.commit_current(chunk, refused);
            last = self.engine.hold_commits(self.tree, &mut check).inspect_err(|_| {
                // The files they come from stay in use, so nobody needs these copies.
                moves[at * CHECKED_AT_ONCE..].iter().for_each(&mut *refused);
            })?;
        }
        Ok(last)
    }

    fn hold_commits(&self, act: &mut dyn FnMut(&mut dyn Commits) -> Result<()>) -> Result<bool> {
        self.has_copied.set(true);
        let done = self.engine.hold_commits(self.tree, &mut |commits| self.engine.watch(act(commits)))?;
        Ok(done.is_some())
    }

    fn rewrite(&self, tables: RewrittenTables<'_>) -> Result<u64> {
        // It makes room by itself.
        self.has_copied.set(true);
        let Self { engine, tree, means, .. } = *self;
        let (range, scope, moving) = match tables {
            RewrittenTables::Range { start, end, moving } => ((Some(start), Some(end)), RewriteScope::All, moving),
            RewrittenTables::Overwritten => {
                // A flush makes entries that memtables overwrite visible to the rewrite.
                engine.flush(&[Arc::clone(tree)])?;
                ((None, None), RewriteScope::Due, &[][..])
            }
        };
        let rewritten = engine.rewrite_range(tree, range, scope, (moving, means))?;
        if let Some(unreadable) = rewritten.unreadable {
            // What has not moved this time will not move the next time.
            let _are_new = leave_out_values(tree, self.claim, &unreadable);
        }
        Ok(rewritten.freed)
    }

    fn install(&self, edit: &mut dyn FnMut() -> ValueEdit, in_force: &mut dyn FnMut()) -> Result<()> {
        self.has_copied.set(true);
        self.engine.state.install_values(self.tree, edit, in_force)
    }
}

/// The commit lock, held for a GC job.
struct Held<'a> {
    engine: &'a Engine,
    tree: &'a Arc<Tree>,
    wal: MutexGuard<'a, Wal>,
}

impl Commits for Held<'_> {
    fn commit(&mut self, moves: &[Moved]) -> Result<SeqNo> {
        self.engine.write_back(&mut self.wal, self.tree, moves)?;
        Ok(self.engine.state.visible())
    }
}

impl Held<'_> {
    /// Commits the moves whose old address is still the newest of its key.
    fn commit_current(&mut self, moves: &[Moved], refused: &mut dyn FnMut(&Moved)) -> Result<()> {
        let (engine, tree) = (self.engine, self.tree);
        let is_current = |moved: &Moved| Ok(engine.reader.current_pointer(tree, &moved.key)? == Some(moved.from));
        let are_current = note_unreadable(tree, moves.iter().map(is_current).collect::<Result<Vec<bool>>>())?;
        engine.counters.gc.lookups.fetch_add(moves.len() as u64, Relaxed);
        let (mut current, mut overwritten) = (Vec::with_capacity(moves.len()), Vec::new());
        for (moved, is_current) in moves.iter().zip(are_current) {
            if is_current { current.push(moved.clone()) } else { overwritten.push(moved) }
        }
        self.commit(&current)?;
        overwritten.into_iter().for_each(refused);
        Ok(())
    }
}

impl Engine {
    /// Garbage-collects a whole keyspace, whatever the target, and waits for the end.
    ///
    /// # Errors
    /// I/O errors, and every reason not to take writes. If something cannot be read, GC of the rest ends first and
    /// then this is the error.
    pub fn gc_all(&self, tree: &Arc<Tree>) -> Result<()> {
        let keyspace = tree.keyspace;
        self.work.reserve_gc(keyspace);
        let outcome = self.guard("a GC run", || self.gc_all_alone(tree));
        self.work.release_gc(keyspace);
        outcome
    }

    /// The same, once workers start no more GC of the keyspace.
    fn gc_all_alone(&self, tree: &Arc<Tree>) -> Result<()> {
        let all_before = Some(self.numbers.next());
        let mut is_rewritten = false;
        loop {
            // Picks only when no other GC run is active: a file that another run is about to drain must not be
            // picked.
            let is_mine = || self.work.try_gc(tree.keyspace);
            self.waits.wait_until("a GC of everything", "GC of the keyspace to end", is_mine)?;
            let at_work = self.signal.working();
            // Nothing moves any more in a dropped keyspace: the same pick would come up forever.
            let mut pressure = SpacePressure { all_before, ..self.space.pressure(tree) };
            if is_rewritten {
                // What was written meanwhile is not part of this request.
                (pressure.entries_above, pressure.overwritten) = (0.0, 0.0);
            }
            let picked = if tree.is_dropped() { None } else { tree.placement().pick(&pressure, &[]) };
            is_rewritten |= picked.as_ref().is_some_and(|job| job.claim().rewrites);
            let outcome = match &picked {
                Some(job) => self.gc(tree, &**job, Means::Reserve),
                None => self.reclaim_values(tree),
            };
            self.end_gc(tree.keyspace, None);
            drop(at_work);
            match &picked {
                None => {
                    self.watch(outcome)?;
                    return self.report_left_out(tree);
                }
                Some(job) => match self.end_of_job(tree, Took::Values(job.claim()), outcome) {
                    Err(error) if error.is_unreadable() && self.health.writable().is_ok() => {}
                    other => other?,
                },
            }
        }
    }

    /// Runs a GC job. A caller that waits for it has [`Means::Reserve`].
    ///
    /// # Errors
    /// I/O errors and corruption; [`Error::Full`](bifold_contract::Error::Full), before anything is copied.
    pub fn gc(&self, tree: &Arc<Tree>, job: &dyn GcJob, means: Means) -> Result<()> {
        self.pace.gc_begins(self.env.clock.now());
        let freed = self.gc_unpaced(tree, job, means);
        self.pace.gc_ends(freed.as_ref().map_or(None, |freed| *freed), self.env.clock.now());
        freed.map(drop)
    }

    /// Returns how many bytes come free. `None` if the run says nothing about how fast GC frees space.
    fn gc_unpaced(&self, tree: &Arc<Tree>, job: &dyn GcJob, means: Means) -> Result<Option<u64>> {
        if !planted!("gc_during_commits") {
            self.wait_for_commit();
        }
        let verbs = Verbs {
            engine: self,
            tree,
            claim: job.claim(),
            means,
            lookups: Cell::new(0),
            has_copied: Cell::new(false),
        };
        let run = || match job.run(&verbs) {
            Err(error) if !verbs.has_copied.get() => Err(error),
            other => Ok(other),
        };
        let outcome = self.room.with_room(means, run).flatten();
        self.counters.gc.lookups.fetch_add(verbs.lookups.get(), Relaxed);
        let GcOutcome::Collected { freed_bytes, installed_bytes } = outcome? else { return Ok(None) };
        self.counters.gc.moved_bytes.fetch_add(installed_bytes, Relaxed);
        self.counters.gc.jobs.fetch_add(1, Relaxed);
        Ok(Some(freed_bytes))
    }

    /// How many of these copies the disk has room for, in their order. If not for all, this first reclaims drained
    /// files that wait for a sync, then uses `RESERVE`.
    fn fit_copies(&self, tree: &Tree, copies: &[u64], means: Means) -> Result<usize> {
        // Some jobs write one file: a single copy would be made again and again. In a GC of everything it is not.
        let least = if means == Means::Reserve { 1 } else { 2 };
        let (mut count, mut needed) = self.room.fitting(copies, least);
        if needed.is_some() {
            self.reclaim_values(tree)?;
            (count, needed) = self.room.fitting(copies, least);
        }
        needed.map_or(Ok(()), |needed| self.room.ensure_by(means, needed))?;
        Ok(count)
    }

    /// Returns once the commit under way has been applied. Its values are in files already, perhaps in files that
    /// were picked because they are full, and the index is asked which addresses lead there.
    fn wait_for_commit(&self) {
        drop(self.wal.hold());
    }

    /// Makes everything durable, and reclaims the drained files whose moves are durable.
    ///
    /// # Errors
    /// I/O errors.
    pub fn reclaim_values(&self, tree: &Tree) -> Result<()> {
        if !self.space.can_reclaim(tree) {
            return Ok(());
        }
        // On a slow disk the sync takes longer than the GC runs before it.
        self.pace.gc_begins(self.env.clock.now());
        let outcome = self.reclaim_unpaced(tree);
        self.pace.gc_ends(Some(0), self.env.clock.now());
        outcome
    }

    fn reclaim_unpaced(&self, tree: &Tree) -> Result<()> {
        let durable = if planted!("reclaim_unsynced") {
            self.state.visible()
        } else {
            self.syncs.sync_everything()?;
            self.syncs.durable()
        };
        self.state.install_values(tree, || tree.placement().reclaim(durable, self.snapshots.oldest()), || {})
    }

    /// Calls `act` with the commit lock held. Returns the newest sequence number after it; `None`, without a call, when
    /// the keyspace was dropped.
    fn hold_commits(
        &self,
        tree: &Arc<Tree>,
        act: &mut dyn FnMut(&mut Held<'_>) -> Result<()>,
    ) -> Result<Option<SeqNo>> {
        self.committer.throttle.pace_moves(tree)?;
        let mut held = Held { engine: self, tree, wal: self.wal.hold() };
        self.health.takes_writes()?;
        if tree.is_dropped() {
            return Ok(None);
        }
        act(&mut held)?;
        let last = self.state.visible();
        let has_many_logs = held.wal.has_many_closed();
        drop(held);
        self.wal.let_others();
        if has_many_logs {
            self.syncs.sync_upto(last)?;
        }
        Ok(Some(last))
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
        self.watch(self.committer.make_room(wal, &ops, bytes))?;
        let mut laps = Laps::begin(&*self.env.clock, self.env.clock.now());
        self.watch(self.committer.log_and_apply(wal, &ops, Durability::Buffered, &mut laps))?;
        self.counters.gc.moved(moves);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
