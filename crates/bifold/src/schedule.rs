//! What background work is due, and who does it.
//!
//! Flushes come first: they free memory and logs. Next emptied value files go: that is a sync, and frees space. Then the
//! tree with the largest debt is compacted. Last, tables are written anew of which snapshots held much that are gone. With threads, one
//! worker does nothing else than the first two, so that neither waits behind a long compaction; the others compact and
//! collect, and flush when that worker is busy. A keyspace that is being collected is collected by one more only when nothing else is
//! due. With [`Workers::Caller`] the calling thread does whatever
//! is due, in the same order.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Condvar, Mutex},
    thread::JoinHandle,
    time::Duration,
};

use bifold_contract::{Busy, CompactionJob, Error, KeyspaceId, Result, placement::Collection};

use crate::{
    engine::Engine,
    options::{Access, Workers},
    sync::{LockExt, wait, wait_for},
    tree::Tree,
};

/// What a worker may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Flushes, and retiring value files.
    Flusher,
    /// All but retiring: that would keep a collector waiting for a sync.
    Merger,
    /// Whatever is due.
    Alone,
}

/// A piece of background work.
pub(crate) enum Task {
    /// Write the oldest sealed memtable of this tree.
    Flush(Arc<Tree>),
    /// Rewrite or move tables of this tree.
    Compact(Arc<Tree>, CompactionJob),
    /// Collect this garbage among the values of this tree that are kept apart.
    Collect(Arc<Tree>, Collection),
    /// Sync, and let go of the value files of this tree that collections have emptied.
    Retire(Arc<Tree>),
}

/// How loaded a tree is: what [`choose`] decides by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Load {
    /// Memtables waiting to be written.
    pub sealed: usize,
    /// One of them is being written now.
    pub flushing: bool,
    /// The compaction policy's measure; 1.0 and more is due.
    pub debt: f64,
    /// Whether there is garbage that nobody collects yet.
    pub garbage: Garbage,
    /// There are emptied value files that nobody retires yet.
    pub emptied: bool,
    /// Much of a table was held by snapshots that are gone.
    pub held: bool,
}

impl Load {
    /// Whether there is anything to do for anyone, now or when what is being done has ended.
    fn is_due(&self) -> bool {
        self.sealed > 0 || self.debt >= 1.0 || self.garbage != Garbage::None || self.emptied || self.held
    }
}

/// Which tree to serve next, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Flush the tree at this position.
    Flush(usize),
    /// Compact it, if its policy finds a job.
    Compact(usize),
    /// Collect its garbage.
    Collect(usize),
    /// Retire its emptied value files.
    Retire(usize),
    /// Rewrite a table of which snapshots held much that are gone.
    Prune(usize),
}

/// How often whoever waits for idleness looks again.
const IDLE_LOOK: Duration = Duration::from_millis(20);

/// From this debt on compaction goes before collection.
const DEBT_URGENT: f64 = 2.0;

/// Garbage of a tree that nobody collects yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Garbage {
    /// None that is worth it.
    None,
    /// Nobody collects in this tree.
    Due,
    /// More than those will free who collect in this tree: something for another worker, not for a caller.
    Beside,
}

/// The work due, most urgent first. Under steady updates collection is always due: compaction that is due takes turns with it.
/// Pure.
pub(crate) fn choose(loads: &[Load], role: Role, collected_last: bool) -> Vec<Choice> {
    let mut flushes: Vec<usize> = (0..loads.len()).filter(|&i| loads[i].sealed > 0 && !loads[i].flushing).collect();
    flushes.sort_by_key(|&i| std::cmp::Reverse(loads[i].sealed));
    let mut choices: Vec<Choice> = flushes.into_iter().map(Choice::Flush).collect();
    if role != Role::Merger {
        choices.extend((0..loads.len()).filter(|&i| loads[i].emptied).map(Choice::Retire));
    }
    if role != Role::Flusher {
        let mut merges: Vec<usize> = (0..loads.len()).filter(|&i| loads[i].debt >= 1.0).collect();
        merges.sort_by(|&a, &b| loads[b].debt.total_cmp(&loads[a].debt));
        let is_urgent = |&&i: &&usize| collected_last || loads[i].debt >= DEBT_URGENT;
        let urgent = merges.iter().take_while(is_urgent).count();
        choices.extend(merges[..urgent].iter().copied().map(Choice::Compact));
        let with = |garbage| (0..loads.len()).filter(move |&i| loads[i].garbage == garbage).map(Choice::Collect);
        choices.extend(with(Garbage::Due));
        choices.extend(merges[urgent..].iter().copied().map(Choice::Compact));
        if role != Role::Alone {
            choices.extend(with(Garbage::Beside));
        }
        // Where a compaction is due, that may do it.
        choices.extend((0..loads.len()).filter(|&i| loads[i].held && loads[i].debt < 1.0).map(Choice::Prune));
    }
    choices
}

/// Work that is running, and how to wait for changes of it.
#[derive(Default)]
pub(crate) struct Work {
    state: Mutex<WorkState>,
    changed: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct WorkState {
    flushing: BTreeSet<KeyspaceId>,
    collecting: BTreeMap<KeyspaceId, Collections>,
    retiring: BTreeSet<KeyspaceId>,
    /// The last task that was neither a flush nor a retirement was a collection.
    collected_last: bool,
    busy: BTreeMap<KeyspaceId, Busy>,
    running: usize,
    /// Grows with every change that can make work due, so that none is slept through.
    epoch: u64,
    /// Where work may be due: in all trees, or in these. Whoever looks for work leaves out those without any, until they change.
    may_be_due: Where,
    stopping: bool,
}

/// Some trees.
#[derive(Default)]
enum Where {
    #[default]
    All,
    In(BTreeSet<KeyspaceId>),
}

/// Collections of one tree.
#[derive(Default)]
struct Collections {
    /// By workers.
    running: Vec<Collection>,
    /// Callers that collect everything: workers begin nothing, or those would wait for a moment without any for ever.
    callers: u32,
    /// One of these is at it.
    by_caller: bool,
}

impl Work {
    /// Tells that work may have become due, in any tree, or that room may have come free.
    pub fn notify(&self) {
        {
            let mut state = self.state.hold();
            state.epoch += 1;
            state.may_be_due = Where::All;
        }
        self.changed.notify_all();
    }

    /// Tells it of these trees alone: nobody looks at the others then.
    pub fn notify_of(&self, keyspaces: &[KeyspaceId]) {
        {
            let mut state = self.state.hold();
            state.epoch += 1;
            if let Where::In(some) = &mut state.may_be_due {
                some.extend(keyspaces);
            }
        }
        self.changed.notify_all();
    }

    /// Does that when it is dropped by a panic.
    pub fn notify_on_panic(&self) -> NotifyOnPanic<'_> {
        NotifyOnPanic(self)
    }

    /// Ends all workers and waits for them. A worker that calls this itself is not waited for.
    pub fn stop(&self) {
        self.state.hold().stopping = true;
        self.changed.notify_all();
        let threads = std::mem::take(&mut *self.threads.hold());
        let me = std::thread::current().id();
        for thread in threads.into_iter().filter(|t| t.thread().id() != me) {
            let _a_panic_was_reported_by_its_thread = thread.join();
        }
    }

    /// Plans a manual compaction and marks its tables and levels as taken. The plan is made under the lock: a job that
    /// ends has changed the tables before it gives them back, so what is free now is there.
    pub fn try_begin(&self, keyspace: KeyspaceId, plan: impl FnOnce() -> Option<CompactionJob>) -> Begun {
        let mut state = self.state.hold();
        let Some(job) = plan() else { return Begun::NothingToDo };
        let busy = state.busy.entry(keyspace).or_default();
        if job.inputs.iter().any(|(_, _, table)| busy.tables.contains(table)) || !busy.outputs.is_empty() {
            return Begun::Busy;
        }
        mark(busy, &job);
        state.running += 1;
        Begun::Job(job)
    }

    /// Whether values of a keyspace are being collected.
    pub fn is_collecting(&self, keyspace: KeyspaceId) -> bool {
        let state = self.state.hold();
        state.collecting.get(&keyspace).is_some_and(|of| of.by_caller || !of.running.is_empty())
    }

    /// From now on workers begin no collection of this keyspace.
    pub fn reserve_collections(&self, keyspace: KeyspaceId) {
        self.state.hold().collecting.entry(keyspace).or_default().callers += 1;
    }

    /// Takes [`Work::reserve_collections`] back.
    pub fn release_collections(&self, keyspace: KeyspaceId) {
        self.state.hold().collecting.entry(keyspace).or_default().callers -= 1;
        self.notify();
    }

    /// Takes all collections of a keyspace's values for a caller, unless one is running.
    pub fn try_collect(&self, keyspace: KeyspaceId) -> bool {
        let mut state = self.state.hold();
        let collections = state.collecting.entry(keyspace).or_default();
        let taken = !collections.by_caller && collections.running.is_empty();
        collections.by_caller |= taken;
        state.running += usize::from(taken);
        taken
    }

    /// Tables that are inputs of running jobs, of one tree.
    pub fn busy(&self, keyspace: KeyspaceId) -> Busy {
        self.state.hold().busy.get(&keyspace).cloned().unwrap_or_default()
    }
}

/// See [`Work::notify_on_panic`].
pub(crate) struct NotifyOnPanic<'a>(&'a Work);

impl Drop for NotifyOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.notify();
        }
    }
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

fn mark(busy: &mut Busy, job: &CompactionJob) {
    busy.tables.extend(job.inputs.iter().map(|i| i.2));
    busy.outputs.push((job.output_level, None, None));
}

impl Engine {
    /// Starts the background threads that the options ask for.
    ///
    /// # Errors
    /// The system's, when no thread can be had.
    pub fn start_workers(self: &Arc<Self>) -> Result<()> {
        let Workers::Threads(count) = self.options.workers else { return Ok(()) };
        if self.options.access == Access::ReadOnly {
            return Ok(());
        }
        for number in 0..count.max(2) {
            let engine = Arc::clone(self);
            let role = if number == 0 { Role::Flusher } else { Role::Merger };
            let work = Box::new(move || engine.guard("a background thread", || engine.serve(role)));
            let thread = self.env.threads.spawn(&format!("bifold-{number}"), work)?;
            self.work.threads.hold().push(thread);
        }
        let remover = self.env.threads.spawn("bifold-remover", Box::new(self.tables.remover().work()))?;
        self.work.threads.hold().push(remover);
        Ok(())
    }

    /// A worker's life.
    fn serve(&self, role: Role) {
        loop {
            let seen = {
                let state = self.work.state.hold();
                if state.stopping {
                    return;
                }
                state.epoch
            };
            if self.health.writable().is_ok()
                && let Some(task) = self.take_task(role)
            {
                self.do_task(&task);
                continue;
            }
            let mut state = self.work.state.hold();
            while state.epoch == seen && !state.stopping {
                state = wait(&self.work.changed, state);
            }
        }
    }

    /// Does what is due, in the calling thread, where the options ask for that.
    ///
    /// # Errors
    /// The failure of a job, as [`Error::Poisoned`].
    pub fn run_due_work(&self) -> Result<()> {
        if !self.works_in_caller() {
            return Ok(());
        }
        self.guard("background work in a caller's thread", || {
            while self.health.writable().is_ok()
                && let Some(task) = self.take_task(Role::Alone)
            {
                self.do_task(&task);
            }
        });
        Ok(())
    }

    /// Takes the most urgent task that nobody has.
    fn take_task(&self, role: Role) -> Option<Task> {
        let mut state = self.work.state.hold();
        let trees: Vec<Arc<Tree>> = match &state.may_be_due {
            Where::All => self.trees().to_vec(),
            Where::In(some) => some.iter().filter_map(|&keyspace| self.tree(keyspace)).collect(),
        };
        let mut found: Vec<_> = trees.into_iter().map(|tree| (self.load(&tree, &state), tree)).collect();
        found.retain(|((load, _), _)| load.is_due());
        state.may_be_due = Where::In(found.iter().map(|(_, tree)| tree.keyspace).collect());
        let (loads, mut picks): (Vec<Load>, Vec<Option<Collection>>) =
            found.iter_mut().map(|(load, _)| (load.0, load.1.take())).unzip();
        let trees: Vec<Arc<Tree>> = found.into_iter().map(|(_, tree)| tree).collect();
        choose(&loads, role, state.collected_last).into_iter().find_map(|choice| match choice {
            Choice::Flush(at) => {
                let tree = Arc::clone(&trees[at]);
                state.flushing.insert(tree.keyspace);
                state.running += 1;
                Some(Task::Flush(tree))
            }
            Choice::Compact(at) => {
                let tree = Arc::clone(&trees[at]);
                let busy = state.busy.entry(tree.keyspace).or_default();
                busy.oldest_snapshot = self.snapshots.seqnos().first().copied();
                let job = tree.choose(busy)?;
                mark(busy, &job);
                state.collected_last = false;
                state.running += 1;
                Some(Task::Compact(tree, job))
            }
            Choice::Prune(at) => {
                let tree = Arc::clone(&trees[at]);
                let busy = state.busy.entry(tree.keyspace).or_default();
                if !busy.tables.is_empty() || !busy.outputs.is_empty() {
                    return None;
                }
                let job = tree.choose_held(&self.snapshots.seqnos())?;
                mark(busy, &job);
                state.running += 1;
                Some(Task::Compact(tree, job))
            }
            Choice::Collect(at) => {
                let (tree, pick) = (Arc::clone(&trees[at]), picks[at].take()?);
                state.collecting.entry(tree.keyspace).or_default().running.push(pick.clone());
                state.collected_last = true;
                state.running += 1;
                Some(Task::Collect(tree, pick))
            }
            Choice::Retire(at) => {
                let tree = Arc::clone(&trees[at]);
                state.retiring.insert(tree.keyspace);
                state.running += 1;
                Some(Task::Retire(tree))
            }
        })
    }

    fn do_task(&self, task: &Task) {
        let outcome = match task {
            Task::Flush(tree) => self.flush_oldest(tree),
            Task::Compact(tree, job) => self.compact_job(tree, job),
            Task::Collect(tree, pick) => self.collect(tree, pick),
            Task::Retire(tree) => self.retire_values(tree),
        };
        match outcome {
            // Closing cancels long jobs; their inputs stay in force.
            Err(Error::Closed { .. }) => {}
            Err(_) if cfg!(planted = "swallow_flush_error") => {}
            other => drop(self.watch(other)),
        }
        self.end_task(task);
    }

    fn end_task(&self, task: &Task) {
        match task {
            Task::Flush(tree) => {
                self.work.state.hold().flushing.remove(&tree.keyspace);
                self.end_work(tree.keyspace);
            }
            Task::Compact(tree, job) => self.end_compaction(tree.keyspace, job),
            Task::Collect(tree, pick) => self.end_collection(tree.keyspace, Some(pick)),
            Task::Retire(tree) => {
                self.work.state.hold().retiring.remove(&tree.keyspace);
                self.end_work(tree.keyspace);
            }
        }
    }

    /// Gives back what [`Work::try_begin`] or a worker took for `job`.
    pub fn end_compaction(&self, keyspace: KeyspaceId, job: &CompactionJob) {
        {
            let mut state = self.work.state.hold();
            if let Some(busy) = state.busy.get_mut(&keyspace) {
                for (_, _, table) in &job.inputs {
                    busy.tables.remove(table);
                }
                if let Some(at) = busy.outputs.iter().position(|o| o.0 == job.output_level) {
                    busy.outputs.swap_remove(at);
                }
            }
        }
        self.end_work(keyspace);
    }

    /// Gives back what a worker took, or what [`Work::try_collect`] did.
    pub fn end_collection(&self, keyspace: KeyspaceId, pick: Option<&Collection>) {
        {
            let mut state = self.work.state.hold();
            let collections = state.collecting.entry(keyspace).or_default();
            match pick.and_then(|pick| collections.running.iter().position(|running| running == pick)) {
                Some(at) => drop(collections.running.swap_remove(at)),
                None => collections.by_caller = false,
            }
        }
        self.end_work(keyspace);
    }

    fn end_work(&self, keyspace: KeyspaceId) {
        {
            let mut state = self.work.state.hold();
            state.running -= 1;
            // At once: whoever finds nothing running must find that something has ended.
            state.epoch += 1;
            if let Where::In(some) = &mut state.may_be_due {
                some.insert(keyspace);
            }
        }
        self.update_pace_of(&[keyspace]);
        self.work.notify_of(&[keyspace]);
    }

    /// Waits until `done`, looking again after every change of background work.
    ///
    /// # Errors
    /// The failure that poisoned the database, or its being closed.
    pub fn wait_until(&self, done: impl Fn() -> bool) -> Result<()> {
        loop {
            let seen = self.work.state.hold().epoch;
            if done() {
                return Ok(());
            }
            self.health.writable()?;
            if self.works_in_caller() {
                self.run_due_work()?;
                self.health.writable()?;
                let state = self.work.state.hold();
                if state.running == 0 && state.epoch == seen {
                    return Ok(());
                }
                // Another thread is at it, or has just been: of several callers each does what is due.
                if state.running > 0 {
                    drop(wait_for(&self.work.changed, state, IDLE_LOOK));
                }
                continue;
            }
            let mut state = self.work.state.hold();
            while state.epoch == seen && !state.stopping {
                state = wait(&self.work.changed, state);
            }
        }
    }

    /// Waits until no background work is due or running and what it made obsolete is gone.
    ///
    /// # Errors
    /// As [`Engine::wait_until`].
    pub fn wait_idle(&self) -> Result<()> {
        while !self.is_idle() {
            self.health.writable()?;
            if self.works_in_caller() {
                self.run_due_work()?;
                self.health.writable()?;
                break;
            }
            // Whatever is due must be found: all trees are looked at here, so workers are asked to look at all of them too.
            self.work.notify();
            drop(wait_for(&self.work.changed, self.work.state.hold(), IDLE_LOOK));
        }
        self.tables.remover().wait();
        Ok(())
    }

    fn is_idle(&self) -> bool {
        let state = self.work.state.hold();
        let quiet = |p: &Arc<Tree>| {
            let load = self.load(p, &state).0;
            let due = load.debt >= 1.0 && {
                let busy = state.busy.get(&p.keyspace).cloned().unwrap_or_default();
                p.choose(&busy).is_some()
            };
            load.sealed == 0 && !due && load.garbage == Garbage::None && !load.emptied && !load.held
        };
        state.running == 0 && self.trees().iter().all(quiet)
    }

    /// And what would be collected.
    fn load(&self, tree: &Tree, state: &WorkState) -> (Load, Option<Collection>) {
        // First, so that none ends unnoticed between the look at them and this.
        if cfg!(not(planted = "snapshot_end_unnoticed")) && tree.is_held() {
            self.snapshots.tell_of_ends_below(self.visible());
        }
        let view = tree.view();
        let collections = state.collecting.get(&tree.keyspace);
        let running = collections.map_or(&[][..], |of| &of.running);
        let pick = match collections {
            Some(of) if of.callers > 0 => None,
            _ => self.next_collection(tree, running),
        };
        let garbage = match &pick {
            None => Garbage::None,
            Some(_) if running.is_empty() => Garbage::Due,
            Some(_) => Garbage::Beside,
        };
        let load = Load {
            sealed: view.sealed.len(),
            flushing: state.flushing.contains(&tree.keyspace),
            debt: tree.debt(),
            garbage,
            emptied: !state.retiring.contains(&tree.keyspace) && self.can_retire(tree),
            held: tree.choose_held(&self.snapshots.seqnos()).is_some(),
        };
        (load, pick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(sealed: usize, flushing: bool, debt: f64) -> Load {
        Load { sealed, flushing, debt, garbage: Garbage::None, emptied: false, held: false }
    }

    #[test]
    fn flushes_come_first_then_the_largest_debt() {
        let loads =
            [load(0, false, 3.0), load(1, false, 0.2), load(2, false, 1.0), load(1, true, 9.0), load(0, false, 0.9)];
        use Choice::{Compact, Flush};
        assert_eq!(choose(&loads, Role::Merger, false), [Flush(2), Flush(1), Compact(3), Compact(0), Compact(2)]);
        assert_eq!(choose(&loads, Role::Flusher, false), [Flush(2), Flush(1)]);
    }

    #[test]
    fn compaction_takes_turns_with_collection() {
        let garbage = Load { garbage: Garbage::Due, emptied: true, ..load(0, false, 1.2) };
        use Choice::{Collect, Compact, Retire};
        assert_eq!(choose(&[garbage], Role::Alone, false), [Retire(0), Collect(0), Compact(0)]);
        assert_eq!(choose(&[garbage], Role::Alone, true), [Retire(0), Compact(0), Collect(0)]);
        assert_eq!(choose(&[Load { debt: 2.0, ..garbage }], Role::Merger, false), [Compact(0), Collect(0)]);
        assert_eq!(choose(&[garbage], Role::Flusher, false), [Retire(0)]);
    }

    #[test]
    fn a_second_collection_of_a_tree_comes_after_everything_else() {
        let beside = Load { garbage: Garbage::Beside, ..load(0, false, 0.0) };
        let due = Load { garbage: Garbage::Due, ..load(0, false, 1.2) };
        use Choice::{Collect, Compact};
        assert_eq!(choose(&[beside, due], Role::Merger, false), [Collect(1), Compact(1), Collect(0)]);
        assert_eq!(choose(&[beside, due], Role::Merger, true), [Compact(1), Collect(1), Collect(0)]);
        assert_eq!(choose(&[beside], Role::Flusher, false), []);
        assert_eq!(choose(&[beside], Role::Alone, false), []);
    }

    #[test]
    fn what_snapshots_held_goes_last_unless_a_compaction_is_due() {
        let held = Load { held: true, garbage: Garbage::Due, ..load(0, false, 0.5) };
        use Choice::{Collect, Compact, Prune};
        assert_eq!(choose(&[held], Role::Merger, false), [Collect(0), Prune(0)]);
        assert_eq!(choose(&[Load { debt: 1.5, ..held }], Role::Alone, true), [Compact(0), Collect(0)]);
        assert_eq!(choose(&[held], Role::Flusher, false), []);
    }

    #[test]
    fn only_trees_that_have_told_of_work_are_looked_at() {
        let work = Work::default();
        let places = || match &work.state.hold().may_be_due {
            Where::All => None,
            Where::In(some) => Some(some.iter().copied().collect::<Vec<_>>()),
        };
        assert_eq!(places(), None, "nobody has looked yet");
        work.state.hold().may_be_due = Where::In(BTreeSet::new());
        work.notify_of(&[7]);
        work.notify_of(&[3, 7]);
        assert_eq!(places(), Some(vec![3, 7]));
        work.notify();
        work.notify_of(&[3]);
        assert_eq!(places(), None);
    }

    #[test]
    fn a_tree_in_shape_asks_for_nothing() {
        assert_eq!(choose(&[load(0, false, 0.99)], Role::Alone, false), []);
        assert_eq!(choose(&[load(1, true, 0.0)], Role::Alone, false), []);
    }
}
