//! The background work that is running: who has taken what.
//!
//! The state is changed in two ways only. [`Work::change`] tells whoever waits; [`Work::take`], which only takes something for
//! the caller, tells nobody: what is taken ends no wait.
//!
//! Who looks for work looks only where some may be due: at keyspaces that have changed since nothing was due there. Whatever may make
//! work due says where ([`Work::look_at`], [`Work::change`]), which tells whoever waits, too.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex},
    thread::JoinHandle,
};

use bifold_contract::{Busy, CompactionJob, KeyspaceId};
use bifold_values::placement::GcPick;

use crate::{places::Places, signal::Signal, sync::LockExt};

/// Work that is running, and how to wait for changes of it.
pub(crate) struct Work {
    state: Mutex<WorkState>,
    /// Where work may be due. Locked after the state.
    due: Mutex<Places>,
    signal: Arc<Signal>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
pub(crate) struct WorkState {
    /// Keyspaces of which a memtable is being written.
    pub flushing: BTreeSet<KeyspaceId>,
    /// Who collects in which keyspace.
    pub collecting: BTreeMap<KeyspaceId, Collections>,
    /// Keyspaces whose emptied value files are being let go of.
    pub retiring: BTreeSet<KeyspaceId>,
    /// The last task that was neither a flush nor a reclamation was a collection.
    pub gc_came_last: bool,
    /// What running compactions have taken.
    pub busy: BTreeMap<KeyspaceId, Busy>,
    /// Jobs, those in callers' threads included.
    pub running: usize,
}

/// Collections of one tree.
#[derive(Default)]
pub(crate) struct Collections {
    /// By workers.
    pub running: Vec<GcPick>,
    /// Callers that collect everything: workers begin nothing, or those would wait for a moment without any for ever.
    pub callers: u32,
    /// One of these is at it.
    pub by_caller: bool,
}

/// What became of a manual compaction's plan.
pub(crate) enum Begun {
    /// There is nothing to merge.
    NothingToDo,
    /// A running job holds some of its tables.
    Busy,
    /// Its tables are taken for it.
    Job(CompactionJob),
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("due", &self.due).finish_non_exhaustive()
    }
}

impl Work {
    /// Nothing is running. Changes are told to those who wait at `signal`.
    pub fn new(signal: Arc<Signal>) -> Self {
        Self { state: Mutex::default(), due: Mutex::default(), signal, threads: Mutex::default() }
    }

    /// Changes the state of a keyspace, and tells whoever waits.
    ///
    /// Before the lock is let go of: whoever finds nothing running must find that something has ended.
    pub fn change<T>(&self, keyspace: KeyspaceId, change: impl FnOnce(&mut WorkState) -> T) -> T {
        let mut state = self.state.hold();
        let answer = change(&mut state);
        self.look_at(&[keyspace]);
        answer
    }

    /// Work may have become due in these keyspaces.
    pub fn look_at(&self, keyspaces: &[KeyspaceId]) {
        self.due.hold().add(keyspaces.iter().copied());
        self.signal.tell();
    }

    /// Work may have become due anywhere.
    pub fn look_everywhere(&self) {
        self.doubt();
        self.signal.tell();
    }

    /// Whoever looks next looks everywhere, in case somebody forgot to say where.
    pub fn doubt(&self) {
        self.due.hold().add_all();
    }

    /// Takes the places where work may be due. The caller looks there, and gives back those where some is: [`Work::are_due`].
    pub fn take_due(&self) -> Places {
        self.due.hold().take()
    }

    /// Work is due there, whether or not somebody takes some of it now.
    pub fn are_due(&self, keyspaces: impl IntoIterator<Item = KeyspaceId>) {
        self.due.hold().add(keyspaces);
    }

    /// Takes something for the caller, which ends no wait.
    pub fn take<T>(&self, take: impl FnOnce(&mut WorkState) -> T) -> T {
        take(&mut self.state.hold())
    }

    /// Looks at the state.
    pub fn look<T>(&self, look: impl FnOnce(&WorkState) -> T) -> T {
        look(&self.state.hold())
    }

    /// Threads that end after [`Work::stop`].
    pub fn has_threads(&self, threads: impl IntoIterator<Item = JoinHandle<()>>) {
        self.threads.hold().extend(threads);
    }

    /// Ends all workers and waits for them. A worker that calls this itself is not waited for.
    pub fn stop(&self) {
        self.signal.stop();
        let threads = std::mem::take(&mut *self.threads.hold());
        let me = std::thread::current().id();
        for thread in threads.into_iter().filter(|t| t.thread().id() != me) {
            let _a_panic_was_reported_by_its_thread = thread.join();
        }
    }

    /// Plans a manual compaction and marks its tables and levels as taken. The plan is made under the lock: a job that
    /// ends has changed the tables before it gives them back, so what is free now is there.
    pub fn try_begin(&self, keyspace: KeyspaceId, plan: impl FnOnce() -> Option<CompactionJob>) -> Begun {
        self.take(|state| {
            let Some(job) = plan() else { return Begun::NothingToDo };
            let busy = state.busy.entry(keyspace).or_default();
            if job.inputs.iter().any(|(_, _, table)| busy.tables.contains(table)) || !busy.outputs.is_empty() {
                return Begun::Busy;
            }
            mark(busy, &job);
            state.running += 1;
            Begun::Job(job)
        })
    }

    /// Whether values of a keyspace are being collected, or emptied files deleted.
    pub fn is_freeing(&self, keyspace: KeyspaceId) -> bool {
        let collects = |of: &Collections| of.by_caller || !of.running.is_empty();
        self.look(|state| state.retiring.contains(&keyspace) || state.collecting.get(&keyspace).is_some_and(collects))
    }

    /// From now on workers begin no collection of this keyspace.
    pub fn reserve_gc(&self, keyspace: KeyspaceId) {
        self.take(|state| state.collecting.entry(keyspace).or_default().callers += 1);
    }

    /// Takes [`Work::reserve_gc`] back.
    pub fn release_gc(&self, keyspace: KeyspaceId) {
        self.change(keyspace, |state| state.collecting.entry(keyspace).or_default().callers -= 1);
    }

    /// Takes all collections of a keyspace's values for a caller, unless one is running.
    pub fn try_gc(&self, keyspace: KeyspaceId) -> bool {
        self.take(|state| {
            let collections = state.collecting.entry(keyspace).or_default();
            let taken = !collections.by_caller && collections.running.is_empty();
            collections.by_caller |= taken;
            state.running += usize::from(taken);
            taken
        })
    }

    /// Tables that are inputs of running jobs, of one tree.
    pub fn busy(&self, keyspace: KeyspaceId) -> Busy {
        self.look(|state| state.busy.get(&keyspace).cloned().unwrap_or_default())
    }
}

/// Marks what a job takes: its tables, and the keys that it writes in the level of its output.
pub(crate) fn mark(busy: &mut Busy, job: &CompactionJob) {
    busy.tables.extend(job.inputs.iter().map(|i| i.2));
    busy.outputs.push(job.output());
}

/// Takes the mark of a job that has ended away.
pub(crate) fn unmark(busy: &mut Busy, job: &CompactionJob) {
    for (_, _, table) in &job.inputs {
        busy.tables.remove(table);
    }
    let output = job.output();
    if let Some(at) = busy.outputs.iter().position(|taken| *taken == output) {
        busy.outputs.swap_remove(at);
    }
}
