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
    sync::{Arc, atomic::Ordering::Relaxed},
};

use bifold_contract::{Pointer, Result, SeqNo, ValueEdit, planted};
use bifold_io::Clock;
use bifold_values::placement::{
    Commits, GcClaim, GcContext, GcJob, GcOutcome, IndexView, Moved, NewestAbove, RewrittenTables, SpacePressure,
};

use crate::{
    background::{
        alone::lacks_room,
        flush::Flusher,
        outcome::{Outcomes, Took},
        reclaim::Reclaims,
        rewrite::{RewriteScope, Rewrites},
    },
    commit::moves::{Held, MoveCommits},
    counts::counters::Counters,
    install::State,
    limits::{
        pace::Pace,
        room::{Means, Room},
        space::Space,
        waits::Waits,
    },
    read::get::Reader,
    state::{
        health::Health,
        left_out::{leave_out_values, note_unreadable},
        numbers::Numbers,
        telling::{Events, JobKind},
        tree::Tree,
        work::Work,
    },
    waiting::signal::Signal,
};

/// At most this many moves are compared with the index and committed under one hold of the commit lock: about a
/// millisecond.
const CHECKED_AT_ONCE: usize = 256;

/// What the engine does for one GC job.
struct Verbs<'a> {
    with: &'a Gc,
    tree: &'a Arc<Tree>,
    claim: &'a GcClaim,
    means: Means,
    /// What [`Tree::gc_asks_index`] said when it began.
    asks_index: bool,
    lookups: Cell<u64>,
    /// The copies are made; what fails from now on is no want of room for them.
    has_copied: Cell<bool>,
}

impl Verbs<'_> {
    /// Moves fill memtables. Where callers do the work, nobody else writes these before the run ends.
    fn flush_full(&self) {
        if !planted!("gc_leaves_memtables_full") {
            self.with.moves.flush_full(self.tree);
        }
    }
}

impl IndexView for Verbs<'_> {
    fn look_up(&self, key: &[u8]) -> Result<Option<Pointer>> {
        self.lookups.set(self.lookups.get() + 1);
        // If the value cannot be moved, that is found out before anything is copied.
        let current = self.with.moves.look_up(self.tree, key, &self.claim.files);
        note_unreadable(self.tree, current)
    }

    fn must_be_asked(&self) -> bool {
        self.asks_index && !(planted!("gc_trusts_groups_with_operands") && self.tree.merges())
    }

    fn look_above(&self, asked: &[(&[u8], SeqNo)]) -> Result<Vec<NewestAbove>> {
        self.lookups.set(self.lookups.get() + asked.len() as u64);
        note_unreadable(self.tree, self.with.reader.newest_above(self.tree, asked))
    }
}

impl GcContext for Verbs<'_> {
    fn fit(&self, copies: &[u64]) -> Result<usize> {
        self.with.fit_copies(self.tree, copies, self.means)
    }

    fn relocate(&self, moves: &[Moved], refused: &mut dyn FnMut(&Moved)) -> Result<Option<SeqNo>> {
        let had_copied = self.has_copied.replace(true);
        if moves.is_empty() && planted!("visible_is_enough") {
            return Ok(Some(self.with.state.visible()));
        }
        if moves.is_empty() {
            // The index has a commit before readers see it. What overwrote the values may be such a commit.
            let newest = self.with.moves.newest(self.tree)?;
            // Nothing was committed: what the job copies from now on may find no room.
            self.has_copied.set(had_copied);
            return Ok(newest);
        }
        let (mut last, mut left) = (None, moves);
        while !left.is_empty() {
            let chunk = &left[..left.len().min(CHECKED_AT_ONCE)];
            let mut checked = chunk.len();
            self.flush_full();
            let mut check =
                |commits: &mut Held<'_>| commits.commit_current(chunk, refused).map(|looked_at| checked = looked_at);
            last = self.with.moves.hold_commits(self.tree, &mut check).inspect_err(|_| {
                // The files they come from stay in use, so nobody needs these copies.
                left.iter().for_each(&mut *refused);
            })?;
            left = &left[checked..];
        }
        Ok(last)
    }

    fn hold_commits(&self, act: &mut dyn FnMut(&mut dyn Commits) -> Result<()>) -> Result<bool> {
        self.has_copied.set(true);
        self.flush_full();
        let done = self.with.moves.hold_commits(self.tree, &mut |commits| {
            commits.asks_index = self.asks_index;
            let outcome = act(commits);
            // Reading has changed nothing, and each move that was committed before leads to a whole copy.
            let may_go_on = commits.is_unreadable && !planted!("unread_moves_poison");
            match outcome {
                Err(error) if may_go_on && error.is_unreadable() => Err(error),
                other => self.with.health.watch(other),
            }
        })?;
        Ok(done.is_some())
    }

    fn rewrite(&self, tables: RewrittenTables<'_>) -> Result<u64> {
        // It makes room by itself.
        self.has_copied.set(true);
        let Self { with, tree, means, .. } = *self;
        let (range, scope, moving) = match tables {
            RewrittenTables::Range { start, end, moving } => ((Some(start), Some(end)), RewriteScope::All, moving),
            RewrittenTables::All | RewrittenTables::Everything => ((None, None), RewriteScope::All, &[][..]),
            RewrittenTables::Overwritten => ((None, None), RewriteScope::Due, &[][..]),
        };
        if matches!(tables, RewrittenTables::Overwritten | RewrittenTables::Everything) {
            // The rewrite sees what memtables overwrite. Entries of the memtables themselves go through the rewriter.
            with.flusher.flush(&[Arc::clone(tree)], means)?;
        }
        let rewritten = with.rewrites.rewrite_range(tree, range, scope, (moving, means))?;
        if let Some(unreadable) = rewritten.unreadable {
            // What has not moved this time will not move the next time.
            let _are_new = leave_out_values(tree, self.claim, &unreadable);
        }
        Ok(rewritten.freed)
    }

    fn install(
        &self,
        copied: Option<SeqNo>,
        edit: &mut dyn FnMut() -> ValueEdit,
        in_force: &mut dyn FnMut(),
    ) -> Result<()> {
        self.has_copied.set(true);
        if let Some(copied) = copied
            && !planted!("copies_before_their_commits")
        {
            self.with.reclaims.syncs.sync_upto(copied)?;
        }
        self.with.state.install_values(self.tree, edit, in_force)
    }
}

/// Runs GC jobs.
pub(crate) struct Gc {
    pub clock: Arc<dyn Clock>,
    pub numbers: Numbers,
    pub signal: Arc<Signal>,
    pub health: Arc<Health>,
    pub work: Arc<Work>,
    pub space: Arc<Space>,
    pub counters: Arc<Counters>,
    pub room: Arc<Room>,
    pub pace: Arc<Pace>,
    pub state: Arc<State>,
    pub waits: Arc<Waits>,
    pub outcomes: Arc<Outcomes>,
    pub reader: Arc<Reader>,
    pub moves: Arc<MoveCommits>,
    pub reclaims: Arc<Reclaims>,
    pub flusher: Arc<Flusher>,
    pub rewrites: Arc<Rewrites>,
    pub events: Arc<Events>,
}

impl Gc {
    /// Garbage-collects a whole keyspace, whatever the target, and waits for the end.
    ///
    /// # Errors
    /// I/O errors, and every reason not to take writes. If something cannot be read, GC of the rest ends first and
    /// then this is the error.
    pub fn gc_all(&self, tree: &Arc<Tree>) -> Result<()> {
        let keyspace = tree.keyspace;
        self.work.reserve_gc(keyspace);
        let outcome = self.health.guard("a GC run", || self.gc_all_alone(tree));
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
                None => self.reclaims.reclaim_values(tree),
            };
            self.outcomes.end_gc(tree.keyspace, None);
            drop(at_work);
            match &picked {
                None => {
                    self.health.watch(outcome)?;
                    return tree.report_left_out();
                }
                Some(_) => match outcome {
                    Err(error) if error.is_unreadable() && self.health.writable().is_ok() => {}
                    other => self.health.watch(other)?,
                },
            }
        }
    }

    /// Runs a GC job. A caller that waits for it has [`Means::Reserve`]. What cannot be read is left out when this
    /// returns; the caller treats other errors.
    ///
    /// # Errors
    /// I/O errors and corruption; [`Error::Full`](bifold_contract::Error::Full), after which no copy is lost track of.
    pub fn gc(&self, tree: &Arc<Tree>, job: &dyn GcJob, means: Means) -> Result<()> {
        self.pace.gc_begins(self.clock.now());
        let describe = || (tree.name.clone(), 0);
        let left_out = tree.placement().left_out_of(job.claim());
        let freed = self.events.around(JobKind::Gc, describe, || self.gc_unpaced(tree, job, means));
        self.pace.gc_ends(freed.as_ref().map_or(None, |freed| *freed), self.clock.now());
        match freed {
            Err(error) if error.is_unreadable() => {
                self.outcomes.end_of_job(tree, Took::Values(job.claim(), left_out), Err(error))
            }
            other => other.map(drop),
        }
    }

    /// Returns how many bytes come free. `None` if the run says nothing about how fast GC frees space.
    fn gc_unpaced(&self, tree: &Arc<Tree>, job: &dyn GcJob, means: Means) -> Result<Option<u64>> {
        if !planted!("gc_during_commits") {
            self.moves.wait_for_commit();
        }
        let (claim, asks_index) = (job.claim(), tree.gc_asks_index());
        let (lookups, has_copied) = (Cell::new(0), Cell::new(false));
        let verbs = Verbs { with: self, tree, claim, means, asks_index, lookups, has_copied };
        let run = || match job.run(&verbs) {
            Err(error) if !verbs.has_copied.get() => Err(error),
            other => Ok(other),
        };
        let outcome = self.waits.or_alone(means, || self.room.with_room(means, run), lacks_room)?.flatten();
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
            self.reclaims.reclaim_values(tree)?;
            (count, needed) = self.room.fitting(copies, least);
        }
        needed.map_or(Ok(()), |needed| self.room.ensure_by(means, needed))?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
