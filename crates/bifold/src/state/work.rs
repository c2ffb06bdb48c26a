//! The background work that is running: which worker has taken what.
//!
//! The state changes in two ways only. [`Work::change`] notifies all waiters. [`Work::take`] only takes something for
//! the caller and notifies nobody, because no wait ends by that.
//!
//! A worker looks for work only in keyspaces that have changed since nothing was due there. Code that may make work
//! due names the keyspaces ([`Work::look_at`], [`Work::change`]), which also notifies all waiters.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex},
    thread::JoinHandle,
};

use bifold_contract::{Busy, BusyOutput, CompactionJob, KeyspaceId, planted};
use bifold_values::placement::GcClaim;

use crate::{
    state::{numbers::Numbers, pieces::Pieces, places::Places, shared_flush::SharedFlush},
    waiting::{signal::Signal, sync::LockExt},
};

/// Running work, and how to wait until it changes.
pub(crate) struct Work {
    state: Mutex<WorkState>,
    /// Where work may be due. Lock order: after the state.
    due: Mutex<Places>,
    signal: Arc<Signal>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
pub(crate) struct WorkState {
    /// Keyspaces with a memtable that is being written.
    pub flushing: BTreeSet<KeyspaceId>,
    /// Flushes with key ranges that idle workers may write.
    pub shared: BTreeMap<KeyspaceId, Arc<SharedFlush>>,
    /// The open ingest, if it has had pieces that idle workers may write.
    pub ingest: Option<Arc<Pieces>>,
    /// The number of workers that compact or garbage-collect.
    pub merging: usize,
    /// The last task of the worker that only flushes and reclaims was a flush, or a range of one.
    pub flusher_flushed: bool,
    /// The last task of the other workers was.
    pub mergers_flushed: bool,
    /// The GC runs of each keyspace.
    pub gc: BTreeMap<KeyspaceId, GcRuns>,
    /// Keyspaces whose drained value files are being reclaimed.
    pub reclaiming: BTreeSet<KeyspaceId>,
    /// The last task that was neither a flush nor a reclamation was GC.
    pub gc_came_last: bool,
    /// What running compactions have taken.
    pub busy: BTreeMap<KeyspaceId, Busy>,
    /// The number of running jobs, including those in callers' threads.
    pub running: usize,
    /// The tasks of workers.
    pub tasks: Tasks,
    /// Keyspaces in which a rewrite waits for compactions of workers to end, once for each. Workers begin none there.
    pub awaited: Vec<KeyspaceId>,
    /// Callers whose work found too little room. Workers begin no compaction and no GC run until it is done
    /// ([`alone`](crate::background::alone)).
    pub held_off: u32,
}

/// How many tasks workers have begun and ended, or callers in place of workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tasks {
    begun: u64,
    ended: u64,
}

impl Tasks {
    pub fn under_way(self) -> u64 {
        self.begun - self.ended
    }
}

/// The GC runs of one tree.
#[derive(Default)]
pub(crate) struct GcRuns {
    /// What the jobs of the workers have taken.
    pub running: Vec<GcClaim>,
    /// Callers that asked for GC of everything. Workers then start no GC, or the callers could wait forever for a
    /// moment without any.
    pub callers: u32,
    /// One of these callers is running GC now.
    pub by_caller: bool,
}

/// The outcome of planning a manual compaction.
pub(crate) enum Begun {
    /// There is nothing to merge.
    NothingToDo,
    /// Running jobs [are in the way](conflicts) of this one.
    Busy(CompactionJob),
    /// Its tables are taken for this job.
    Job(CompactionJob),
}

impl WorkState {
    /// A worker begins a task.
    pub fn begin_task(&mut self) {
        self.running += 1;
        self.tasks.begun += 1;
    }

    /// A worker's task has ended. What it took is still to be given back.
    pub fn end_task(&mut self) {
        self.tasks.ended += 1;
    }

    /// Keeps nothing of a keyspace of which nobody has taken anything. It may have been dropped, and another one never
    /// has its number.
    pub fn forget_idle(&mut self, keyspace: KeyspaceId) {
        if self.busy.get(&keyspace).is_some_and(|busy| busy.tables.is_empty() && busy.outputs.is_empty()) {
            self.busy.remove(&keyspace);
        }
        if self.gc.get(&keyspace).is_some_and(GcRuns::is_idle) {
            self.gc.remove(&keyspace);
        }
    }
}

impl GcRuns {
    fn is_idle(&self) -> bool {
        self.running.is_empty() && self.callers == 0 && !self.by_caller
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("due", &self.due).finish_non_exhaustive()
    }
}

impl Work {
    /// Nothing is running. Changes notify the waiters of `signal`.
    pub fn new(signal: Arc<Signal>) -> Self {
        Self { state: Mutex::default(), due: Mutex::default(), signal, threads: Mutex::default() }
    }

    /// Changes the state of a keyspace and notifies all waiters.
    ///
    /// It notifies before it releases the lock: a waiter that finds nothing running must also find that something has
    /// ended.
    pub fn change<T>(&self, keyspace: KeyspaceId, change: impl FnOnce(&mut WorkState) -> T) -> T {
        let mut state = self.state.hold();
        let answer = change(&mut state);
        state.forget_idle(keyspace);
        self.look_at(&[keyspace]);
        answer
    }

    /// Work may have become due in these keyspaces.
    pub fn look_at(&self, keyspaces: &[KeyspaceId]) {
        self.due.hold().add(keyspaces.iter().copied());
        self.signal.notify();
    }

    /// Work may have become due anywhere.
    pub fn look_everywhere(&self) {
        self.doubt();
        self.signal.notify();
    }

    /// The next worker that looks for work looks everywhere, in case some code did not say where.
    pub fn doubt(&self) {
        self.due.hold().add_all();
    }

    /// Takes the places where work may be due. The caller looks there and gives back those where some is:
    /// [`Work::are_due`].
    pub fn take_due(&self) -> Places {
        self.due.hold().take()
    }

    /// Work is due in these keyspaces, whether or not a worker takes some of it now.
    pub fn are_due(&self, keyspaces: impl IntoIterator<Item = KeyspaceId>) {
        self.due.hold().add(keyspaces);
    }

    /// Takes something for the caller. No wait ends by that.
    pub fn take<T>(&self, take: impl FnOnce(&mut WorkState) -> T) -> T {
        take(&mut self.state.hold())
    }

    /// Reads the state.
    pub fn look<T>(&self, look: impl FnOnce(&WorkState) -> T) -> T {
        look(&self.state.hold())
    }

    /// Adds threads that end after [`Work::stop`].
    pub fn has_threads(&self, threads: impl IntoIterator<Item = JoinHandle<()>>) {
        self.threads.hold().extend(threads);
    }

    /// Stops all workers and waits for them. A worker that calls this itself is not waited for.
    pub fn stop(&self) {
        self.signal.stop();
        let threads = std::mem::take(&mut *self.threads.hold());
        let me = std::thread::current().id();
        for thread in threads.into_iter().filter(|t| t.thread().id() != me) {
            let _a_panic_was_reported_by_its_thread = thread.join();
        }
    }

    /// Plans a manual compaction and marks its tables and levels as taken. The plan is made under the lock: a job
    /// changes the tables before it gives them back, so what is free now still exists.
    pub fn try_begin(
        &self,
        keyspace: KeyspaceId,
        numbers: &Numbers,
        plan: impl FnOnce() -> Option<CompactionJob>,
    ) -> Begun {
        self.take(|state| {
            let Some(mut job) = plan() else { return Begun::NothingToDo };
            let busy = state.busy.entry(keyspace).or_default();
            if conflicts(busy, &job) {
                return Begun::Busy(job);
            }
            // If a running job begins a run there, this one writes to it: two would be one more for lookups.
            let begun = busy.outputs.iter().filter(|output| output.level == job.output_level);
            job.output_run = job.output_run.or(begun.filter_map(|output| output.run).max());
            mark(busy, &mut job, numbers);
            state.running += 1;
            Begun::Job(job)
        })
    }

    /// Whether GC or reclamation of a keyspace is running.
    pub fn is_freeing(&self, keyspace: KeyspaceId) -> bool {
        self.look(|state| state.reclaiming.contains(&keyspace)) || self.runs_gc(keyspace)
    }

    /// Whether GC of a keyspace is running.
    pub fn runs_gc(&self, keyspace: KeyspaceId) -> bool {
        let runs = |of: &GcRuns| of.by_caller || !of.running.is_empty();
        self.look(|state| state.gc.get(&keyspace).is_some_and(runs))
    }

    /// From now on workers start no GC of this keyspace.
    pub fn reserve_gc(&self, keyspace: KeyspaceId) {
        self.take(|state| state.gc.entry(keyspace).or_default().callers += 1);
    }

    /// Undoes [`Work::reserve_gc`].
    pub fn release_gc(&self, keyspace: KeyspaceId) {
        self.change(keyspace, |state| state.gc.entry(keyspace).or_default().callers -= 1);
    }

    /// Takes all GC of a keyspace's values for a caller, unless some is running.
    pub fn try_gc(&self, keyspace: KeyspaceId) -> bool {
        self.take(|state| {
            let gc = state.gc.entry(keyspace).or_default();
            let taken = !gc.by_caller && gc.running.is_empty();
            gc.by_caller |= taken;
            state.running += usize::from(taken);
            taken
        })
    }

    /// The tables of one tree that are inputs of running jobs.
    pub fn busy(&self, keyspace: KeyspaceId) -> Busy {
        self.look(|state| state.busy.get(&keyspace).cloned().unwrap_or_default())
    }
}

/// Whether a job must wait for running ones: they have some of its tables, or write to its keys where its output goes
/// or between that and its inputs. Policies wait for the same (`shape::is_free` of `bifold-index`): a job must neither
/// write to keys of a run that another job writes to, nor overtake what is newer.
pub(crate) fn conflicts(busy: &Busy, job: &CompactionJob) -> bool {
    let to = job.output_level;
    let from = job.inputs.iter().map(|input| input.0).min().unwrap_or(to);
    let crosses = |level: u8| level == to || (from < level && level < to);
    let overlaps = |output: &BusyOutput| match &job.keys {
        Some((first, last)) => output.overlaps(first, last.as_deref()),
        None => true,
    };
    job.inputs.iter().any(|input| busy.tables.contains(&input.2))
        || busy.outputs.iter().any(|output| crosses(output.level) && overlaps(output))
}

/// Marks what a job takes: its tables, and the keys that it writes in the level of its output. A job that begins a run
/// gets the number of it here, under the lock, so that a job of other keys that is taken next can write to the same
/// run.
pub(crate) fn mark(busy: &mut Busy, job: &mut CompactionJob, numbers: &Numbers) {
    job.output_run.get_or_insert_with(|| numbers.take());
    busy.tables.extend(job.inputs.iter().map(|i| i.2));
    if !planted!("forget_output_keys") {
        busy.outputs.push(job.output());
    }
}

/// Removes the marks of a job that has ended.
pub(crate) fn unmark(busy: &mut Busy, job: &CompactionJob) {
    for (_, _, table) in &job.inputs {
        busy.tables.remove(table);
    }
    let output = job.output();
    if let Some(at) = busy.outputs.iter().position(|taken| *taken == output) {
        busy.outputs.swap_remove(at);
    }
}
