//! Decides which background work is due and who does it.
//!
//! Flushes come first: they free memory and logs. Trees that nobody flushes come before key ranges of flushes that are
//! under way ([`shared_flush`](crate::state::shared_flush)), and these before pieces of an ingest
//! ([`pieces`](crate::state::pieces)), which count as flushes. Next come drained value files: reclaiming them
//! takes one sync and frees space. Then comes compaction of the tree with the largest debt, in turns with GC. Last come
//! rewrites of tables with many entries kept only for snapshots that have ended. A second GC run in a keyspace starts
//! only when nothing else is due. With [`Workers::Caller`] the calling thread does whatever is due, in this order.
//!
//! With `n` threads, no kind of work takes all of them while another kind waits:
//!
//! * The first thread only flushes and reclaims, in turns where both are due. So at most `n - 1` compact or
//!   garbage-collect.
//! * The others flush first, too. But where the last of them to take work took a flush, and nobody compacts or
//!   garbage-collects, the next one does if it is due. So at most `n - 1` flush then.

mod choice;
mod in_caller;

use std::{sync::Arc, time::Duration};

use bifold_contract::{Busy, CompactionJob, Error, KeyspaceId, Millis, Result, SeqNo, planted};
use bifold_io::{fs::FileLock, remover::Remover, threads::Threads};
use bifold_values::placement::GcJob;

use self::choice::{Choice, Garbage, Load, Role, choose};
use crate::{
    background::{
        compact::Compactor,
        flush::Flusher,
        gc::Gc,
        outcome::{Outcomes, Took},
        reclaim::Reclaims,
    },
    ingest::Ingests,
    install::State,
    limits::{
        pace::Pace,
        room::{Job, Means, Room},
        space::Space,
        waits::Waits,
    },
    log::trees::Trees,
    settings::options::{Access, Workers},
    state::{
        health::Health,
        numbers::Numbers,
        pieces::{Pieces, TakenPiece},
        shared_flush::TakenRange,
        snapshot::Snapshots,
        telling::Events,
        tree::Tree,
        work::{Work, WorkState, mark},
    },
    waiting::signal::{Signal, Vigil, Woken},
};

/// A piece of background work.
pub(crate) enum Task {
    /// Write the oldest sealed memtable of this tree.
    Flush(Arc<Tree>),
    /// Write a key range for a flush that another thread has begun.
    FlushRange(TakenRange),
    /// Write a piece of an ingest.
    IngestPiece(TakenPiece),
    /// Rewrite or move tables of this tree.
    Compact(Arc<Tree>, CompactionJob),
    /// Garbage-collect separated values of this tree.
    Gc(Arc<Tree>, Box<dyn GcJob>),
    /// Sync, then reclaim the drained value files of this tree.
    Reclaim(Arc<Tree>),
}

impl Task {
    /// Whether it is a compaction or a GC run.
    fn merges(&self) -> bool {
        matches!(self, Self::Compact(..) | Self::Gc(..))
    }
}

impl WorkState {
    /// What a worker with this role does first now.
    fn turn(&self, role: Role) -> Role {
        match role {
            Role::Flusher if self.flusher_flushed => Role::ReclaimsFirst,
            Role::Merger if self.mergers_flushed && self.merging == 0 => Role::MergesFirst,
            _ => role,
        }
    }

    /// Notes whether a worker with this role took a flush.
    fn took(&mut self, role: Role, flushes: bool) {
        match role {
            Role::Flusher => self.flusher_flushed = flushes,
            _ => self.mergers_flushed = flushes,
        }
    }

    fn take_flush(&mut self, tree: &Arc<Tree>) -> Task {
        self.flushing.insert(tree.keyspace);
        self.begin_task();
        Task::Flush(Arc::clone(tree))
    }

    fn take_range(&mut self, tree: &Arc<Tree>) -> Option<Task> {
        let range = self.shared.get(&tree.keyspace)?.take()?;
        self.begin_task();
        Some(Task::FlushRange(range))
    }

    fn take_piece(&mut self, tree: &Arc<Tree>) -> Option<Task> {
        let piece = self.ingest_of(tree)?.take()?;
        self.begin_task();
        Some(Task::IngestPiece(piece))
    }

    /// The ingest into a tree.
    fn ingest_of(&self, tree: &Tree) -> Option<&Arc<Pieces>> {
        self.ingest.as_ref().filter(|ingest| ingest.tree.keyspace == tree.keyspace)
    }

    fn take_compaction(&mut self, tree: &Arc<Tree>, oldest_snapshot: Option<SeqNo>, numbers: &Numbers) -> Option<Task> {
        let busy = self.busy.entry(tree.keyspace).or_default();
        busy.oldest_snapshot = oldest_snapshot;
        let mut job = tree.choose(busy)?;
        mark(busy, &mut job, numbers);
        self.gc_came_last = false;
        self.begin_task();
        self.merging += 1;
        Some(Task::Compact(Arc::clone(tree), job))
    }

    fn take_prune(
        &mut self,
        tree: &Arc<Tree>,
        (snapshots, time): (&[SeqNo], Millis),
        numbers: &Numbers,
    ) -> Option<Task> {
        let busy = self.busy.entry(tree.keyspace).or_default();
        let mut job = tree.choose_prune(snapshots, time, busy)?;
        mark(busy, &mut job, numbers);
        self.begin_task();
        self.merging += 1;
        Some(Task::Compact(Arc::clone(tree), job))
    }

    fn take_gc(&mut self, tree: &Arc<Tree>, job: Box<dyn GcJob>) -> Task {
        self.gc.entry(tree.keyspace).or_default().running.push(job.claim().clone());
        self.gc_came_last = true;
        self.begin_task();
        self.merging += 1;
        Task::Gc(Arc::clone(tree), job)
    }

    fn take_reclamation(&mut self, tree: &Arc<Tree>) -> Task {
        self.reclaiming.insert(tree.keyspace);
        self.begin_task();
        Task::Reclaim(Arc::clone(tree))
    }
}

/// Decides what is due, and does it: in threads of its own, or in a caller's.
pub(crate) struct Scheduler {
    pub threads: Arc<dyn Threads>,
    pub workers: Workers,
    pub access: Access,
    pub numbers: Numbers,
    pub trees: Arc<Trees>,
    pub snapshots: Arc<Snapshots>,
    pub signal: Arc<Signal>,
    pub health: Arc<Health>,
    pub work: Arc<Work>,
    pub space: Arc<Space>,
    pub room: Arc<Room>,
    pub state: Arc<State>,
    /// With the thread that deletes files.
    pub remover: Arc<Remover>,
    pub waits: Arc<Waits>,
    pub outcomes: Arc<Outcomes>,
    pub flusher: Arc<Flusher>,
    pub ingests: Arc<Ingests>,
    pub compactor: Arc<Compactor>,
    pub gc: Arc<Gc>,
    pub reclaims: Arc<Reclaims>,
    pub pace: Arc<Pace>,
    pub events: Arc<Events>,
    /// No other process opens the database before its threads have ended.
    pub _lock: Arc<dyn FileLock>,
}

impl Scheduler {
    /// Starts the background threads of the options.
    ///
    /// # Errors
    /// The system's error if it cannot create a thread.
    pub fn start_workers(self: &Arc<Self>) -> Result<()> {
        let Workers::Threads(count) = self.workers else { return Ok(()) };
        if !self.access.writes() {
            return Ok(());
        }
        for number in 0..count.max(2) {
            let this = Arc::clone(self);
            let role = if number == 0 { Role::Flusher } else { Role::Merger };
            let work = Box::new(move || this.health.guard("a background thread", || this.serve(role)));
            let thread = self.threads.spawn(&format!("bifold-{number}"), work)?;
            self.work.has_threads([thread]);
        }
        let (pace, work) = (Arc::clone(&self.pace), Arc::clone(&self.work));
        let removed = move || {
            if pace.is_space_tight() {
                pace.forget_all();
                work.look_everywhere();
            }
        };
        let remover = self.threads.spawn("bifold-remover", Box::new(self.remover.work(removed)))?;
        self.work.has_threads([remover]);
        if let Some(tells) = self.events.work() {
            self.work.has_threads([self.threads.spawn("bifold-events", tells)?]);
        }
        Ok(())
    }

    /// The loop of a worker. It waits for no particular condition, so the watchdog ignores it.
    fn serve(&self, role: Role) {
        while !self.signal.is_stopping() {
            let seen = self.signal.epoch();
            match self.health.writable().ok().and_then(|()| self.take_task(role)) {
                Some(task) => self.do_task(task),
                None => self.sleep_past(seen),
            }
        }
    }

    /// Sleeps until there have been more than `seen` changes. After a long time without a change the worker looks
    /// everywhere. All do when work that found too little room is to be tried again: this worker may have another role.
    fn sleep_past(&self, seen: u64) {
        match self.room.retry_in() {
            Some(time) if self.signal.look_up(seen, time, &mut Vigil::default()) != Woken::Changed => {
                self.work.look_everywhere();
            }
            None if self.signal.sleep_past(seen) != Woken::Changed => self.work.doubt(),
            Some(_) | None => {}
        }
    }

    /// Takes the most urgent task that nobody has taken.
    fn take_task(&self, role: Role) -> Option<Task> {
        self.work.take(|state| {
            let looked = self.trees.of(&self.work.take_due()).into_iter();
            let mut found: Vec<_> = looked.map(|tree| (self.load(&tree, state), tree)).collect();
            found.retain(|((load, _), _)| load.is_due());
            self.work.are_due(found.iter().map(|(_, tree)| tree.keyspace));
            let (loads, mut gc_jobs): (Vec<Load>, Vec<Option<Box<dyn GcJob>>>) =
                found.iter_mut().map(|(load, _)| (load.0, load.1.take())).unzip();
            let trees: Vec<Arc<Tree>> = found.into_iter().map(|(_, tree)| tree).collect();
            let mut choices = choose(&loads, state.turn(role), state.gc_came_last).into_iter();
            let task = choices.find_map(|choice| match choice {
                Choice::Compact(_) | Choice::Prune(_) | Choice::Gc(_) if state.held_off > 0 => None,
                Choice::Compact(at) | Choice::Prune(at) if state.awaited.contains(&trees[at].keyspace) => None,
                Choice::Flush(at) if self.room.held_up(&trees[at], Job::Flush).is_some() => None,
                Choice::Compact(at) | Choice::Prune(at) if self.room.held_up(&trees[at], Job::Compact).is_some() => {
                    None
                }
                Choice::Gc(at) if self.room.held_up(&trees[at], Job::Gc).is_some() => None,
                Choice::Flush(at) => Some(state.take_flush(&trees[at])),
                Choice::FlushRange(at) => state.take_range(&trees[at]),
                Choice::IngestPiece(at) => state.take_piece(&trees[at]),
                Choice::Compact(at) => {
                    let oldest_snapshot = self.snapshots.oldest();
                    state.take_compaction(&trees[at], oldest_snapshot, &self.numbers)
                }
                Choice::Prune(at) => {
                    let open = (&self.snapshots.seqnos()[..], self.snapshots.expired_to_all());
                    state.take_prune(&trees[at], open, &self.numbers)
                }
                Choice::Gc(at) => Some(state.take_gc(&trees[at], gc_jobs[at].take()?)),
                Choice::Reclaim(at) => Some(state.take_reclamation(&trees[at])),
            });
            if let Some(task) = &task {
                state.took(role, matches!(task, Task::Flush(_) | Task::FlushRange(_) | Task::IngestPiece(_)));
            }
            task
        })
    }

    fn do_task(&self, task: Task) {
        let _at_work = self.signal.working();
        let outcome = match &task {
            Task::Flush(tree) => self.room.noting(tree, Job::Flush, || self.flusher.flush_oldest(tree, Means::Free)),
            Task::FlushRange(range) => {
                self.flusher.help_flush(range);
                Ok(())
            }
            Task::IngestPiece(piece) => {
                self.ingests.write(piece);
                Ok(())
            }
            Task::Compact(tree, job) => self.room.noting(tree, Job::Compact, || self.compactor.compact_job(tree, job)),
            Task::Gc(tree, job) => self.room.noting(tree, Job::Gc, || self.gc.gc(tree, &**job, Means::Free)),
            Task::Reclaim(tree) => self.reclaims.reclaim_values(tree),
        };
        match outcome {
            // Closing cancels long jobs; their inputs stay in force.
            Err(Error::Closed { .. }) => {}
            // Already noted: the work starts again when there is room.
            Err(Error::Full { .. }) => {}
            Err(_) if planted!("swallow_flush_error") => {}
            other => drop(self.end_of_task(&task, other)),
        }
        self.end_task(task);
    }

    /// Passes on the outcome of a worker's task. If memtables cannot be written or drained files cannot be reclaimed,
    /// no more writes are taken; other tasks leave out what they cannot read.
    ///
    /// # Errors
    /// The task's errors.
    fn end_of_task(&self, task: &Task, outcome: Result<()>) -> Result<()> {
        match task {
            Task::Flush(_) | Task::FlushRange(_) | Task::IngestPiece(_) | Task::Reclaim(_) => {
                self.health.watch(outcome)
            }
            Task::Compact(tree, job) => self.outcomes.end_of_job(tree, Took::Tables(job), outcome),
            // It is left out already.
            Task::Gc(..) if outcome.as_ref().is_err_and(|error| error.is_unreadable()) => outcome,
            Task::Gc(..) => self.health.watch(outcome),
        }
    }

    /// Nothing of the task is held any more when others learn that it has ended: the files of a keyspace that was
    /// dropped meanwhile go with the last who holds them.
    fn end_task(&self, task: Task) {
        // What follows notifies.
        self.work.take(|state| {
            state.end_task();
            state.merging -= usize::from(task.merges());
        });
        match task {
            Task::Flush(tree) => self.outcomes.end_work(released(tree), |state, keyspace| {
                state.flushing.remove(&keyspace);
            }),
            Task::FlushRange(range) => {
                let keyspace = range.keyspace();
                let _too_late = release(range);
                self.outcomes.end_work(keyspace, |_state, _| {});
            }
            Task::IngestPiece(piece) => {
                let keyspace = piece.pieces().tree.keyspace;
                let _too_late = release(piece);
                self.outcomes.end_work(keyspace, |_state, _| {});
            }
            Task::Compact(tree, job) => self.outcomes.end_compaction(released(tree), &job),
            Task::Gc(tree, job) => {
                let claim = job.claim().clone();
                let _too_late = release(job);
                self.outcomes.end_gc(released(tree), Some(&claim));
            }
            Task::Reclaim(tree) => self.outcomes.end_work(released(tree), |state, keyspace| {
                state.reclaiming.remove(&keyspace);
            }),
        }
    }

    /// Waits until no background work is due or running and all obsolete files are deleted. Returns false if that is
    /// not so after `limit`. A database that is only read has no background work: what is due its writer does.
    ///
    /// # Errors
    /// As [`Waits::wait_until`]; [`Error::Full`] when due work waits for room.
    pub fn wait_idle(&self, limit: Option<Duration>) -> Result<bool> {
        if !self.access.writes() && !planted!("readers_do_due_work") {
            return self.health.open().map(|()| true);
        }
        // Not only where there is something to wait for: what has failed is no longer due. In a forked child the
        // threads to wait for are the parent's.
        self.health.writable()?;
        let (who, on) = ("a caller of wait_idle", "background work to end");
        let now = || self.waits.clock.now();
        let end = limit.and_then(|limit| now().checked_add(limit));
        let is_late = || end.is_some_and(|end| now() >= end);
        loop {
            let _waiting = self.waits.look_until(who, on, || self.is_idle() || is_late())?;
            if is_late() && !self.is_idle() {
                return Ok(false);
            }
            let are_leaving = self.trees.all().iter().any(|p| p.placement().being_removed_bytes() > 0);
            if !self.remover.wait(end.map(|end| end.saturating_sub(now()))) {
                return Ok(false);
            }
            // GC may have waited for their space.
            if !are_leaving {
                break;
            }
        }
        self.health.writable()?;
        let jobs = [Job::Flush, Job::Compact, Job::Gc];
        let held_up = self.trees.all().iter().find_map(|p| jobs.iter().find_map(|&job| self.room.held_up(p, job)));
        held_up.map_or(Ok(true), Err)
    }

    fn is_idle(&self) -> bool {
        self.work.look(|state| {
            let quiet = |p: &Arc<Tree>| {
                let load = self.load(p, state).0;
                let waits = |job| self.room.held_up(p, job).is_some();
                let due = load.debt >= 1.0 && !waits(Job::Compact) && {
                    let busy = state.busy.get(&p.keyspace).cloned().unwrap_or_default();
                    p.choose(&busy).is_some()
                };
                let is_flushed = load.sealed == 0 || waits(Job::Flush);
                let is_rewritten_by_gc = load.garbage == Garbage::None || waits(Job::Gc);
                let is_pruned = !load.held || waits(Job::Compact);
                is_flushed && !due && is_rewritten_by_gc && is_pruned && !load.drained
            };
            state.running == 0 && self.trees.all().iter().all(quiet)
        })
    }

    /// The load of a tree, and its next GC job.
    fn load(&self, tree: &Tree, state: &WorkState) -> (Load, Option<Box<dyn GcJob>>) {
        // This comes first, so that no snapshot ends unnoticed between this and the check below.
        if !planted!("snapshot_end_unnoticed") && tree.is_held() {
            self.snapshots.notify_of_ends_below(self.state.visible(), tree.keyspace);
        }
        let view = tree.view();
        let gc = state.gc.get(&tree.keyspace);
        let running = gc.map_or(&[][..], |of| &of.running);
        let is_reclaiming = state.reclaiming.contains(&tree.keyspace);
        let drained = !is_reclaiming && self.space.can_reclaim(tree);
        let are_leaving = is_reclaiming || drained || tree.placement().being_removed_bytes() > 0;
        let job = match gc {
            Some(of) if of.callers > 0 => None,
            // On a slow disk copies would pile up while what they replace still takes space.
            _ if are_leaving && self.space.is_full(tree) => None,
            _ => self.space.next_gc(tree, running),
        };
        let garbage = match &job {
            None => Garbage::None,
            Some(_) if running.is_empty() => Garbage::Due,
            Some(_) => Garbage::Concurrent,
        };
        let load = Load {
            sealed: view.sealed.len(),
            flushing: state.flushing.contains(&tree.keyspace),
            shared: state.shared.get(&tree.keyspace).is_some_and(|flush| flush.has_more()),
            pieces: state.ingest_of(tree).is_some_and(|ingest| ingest.has_more()),
            debt: tree.debt(),
            garbage,
            short: job.as_ref().is_some_and(|job| job.claim().is_short),
            drained,
            held: {
                let (open, time) = (self.snapshots.seqnos(), self.snapshots.expired_to_all());
                tree.choose_prune(&open, time, &Busy::default()).is_some()
            },
        };
        (load, job)
    }
}

/// Releases what a task held of a keyspace's files. Returns it where it is released too late.
fn release<T>(held: T) -> Option<T> {
    planted!("end_before_release").then_some(held)
}

/// Releases a tree. Returns its keyspace.
fn released(tree: Arc<Tree>) -> KeyspaceId {
    tree.keyspace
}

#[cfg(test)]
mod alone_tests;
#[cfg(test)]
mod ended_tests;
#[cfg(test)]
mod ingest_tests;
#[cfg(test)]
mod reader_tests;
#[cfg(test)]
mod room_tests;
#[cfg(test)]
mod tests;
