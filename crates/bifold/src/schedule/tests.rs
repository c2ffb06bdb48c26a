//! What a worker does next, and that jobs of one level run at once.

use std::{
    ops::Bound,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use bifold_io::{Env, memory::MemoryFs};

use super::*;
use crate::{
    engine::Engine,
    open::recover::recover,
    settings::options::{Compaction, Durability, KeyspaceOptions, Leveled, Options},
    state::{
        op::{Act, Op},
        snapshot::Holder,
    },
    waiting::sync::LockExt,
};

/// A tree without workers: the test takes what they would.
struct Bed {
    engine: Arc<Engine>,
    tree: Arc<Tree>,
}

impl Bed {
    fn new() -> Self {
        Self::of_levels(Leveled::default().levels)
    }

    fn of_levels(levels: u8) -> Self {
        let leveled = Leveled { levels, level0_runs: 2, base_bytes: 4 << 10, ..Leveled::default() };
        let keyspace = KeyspaceOptions { compaction: Compaction::Leveled(leveled), ..KeyspaceOptions::default() };
        let options = Options { workers: Workers::Threads(3), keyspace, ..Options::default() };
        let env = Env { fs: Arc::new(MemoryFs::new()), ..Env::system() };
        let engine = recover(env, Path::new("/db"), options).unwrap();
        let tree = engine.state.create_keyspace("k", &engine.options.keyspace).unwrap();
        Self { engine, tree }
    }

    /// A run of level 0 with 200 keys that begin with `half`.
    fn fill(&self, half: char, round: u8) {
        for n in 0..200 {
            let key = format!("{half}{n:03}");
            let op = Op { tree: &self.tree, key: key.as_bytes(), act: Act::Put(&[round; 100]) };
            self.engine.commit(&[op], Durability::Buffered).unwrap();
        }
        self.engine.state.seal(&mut self.engine.wal.hold(), std::slice::from_ref(&self.tree)).unwrap();
        self.engine.flusher.flush_oldest(&self.tree, Means::Free).unwrap();
    }

    fn compact(&self) {
        self.engine.rewrites.compact_range(&self.tree, Bound::Unbounded, Bound::Unbounded).unwrap();
    }

    fn take(&self) -> Option<Task> {
        self.engine.work.take(|state| state.take_compaction(&self.tree, None, &self.engine.state.numbers))
    }
}

#[test]
fn jobs_of_one_level_run_at_once_where_their_keys_are_disjoint() {
    let bed = Bed::new();
    let Bed { engine, tree } = &bed;
    bed.fill('a', 0);
    bed.fill('z', 0);
    bed.compact();
    for round in 1..=2 {
        bed.fill('a', round);
        bed.fill('z', round);
    }
    let tasks = [bed.take().expect("one half is due"), bed.take().expect("the other half is due, too")];
    let [first, second] = tasks.each_ref().map(|task| match task {
        Task::Compact(_, job) => job.clone(),
        _ => panic!("not a compaction"),
    });
    assert_eq!((first.output_level, first.output_run), (second.output_level, second.output_run));
    assert!(first.inputs.iter().all(|input| !second.inputs.contains(input)));
    let ends = |job: &CompactionJob| job.keys.clone().map(|(first, last)| (first, last.unwrap())).unwrap();
    let ((a, b), (c, d)) = (ends(&first), ends(&second));
    assert!(b < c || d < a, "{first:?} and {second:?} write the same keys");
    assert!(bed.take().is_none(), "nothing is left");
    thread::scope(|scope| tasks.into_iter().for_each(|task| drop(scope.spawn(|| engine.scheduler.do_task(task)))));
    engine.health.well().unwrap();
    let busy = engine.work.busy(tree.keyspace);
    assert!(busy.tables.is_empty() && busy.outputs.is_empty(), "{busy:?}");
    let view = tree.view();
    let filled: Vec<usize> = view.version.shape().levels.iter().map(|level| level.runs.len()).collect();
    assert_eq!(filled.iter().sum::<usize>(), 1, "all is in one run: {filled:?}");
    let tables: Vec<_> = view.version.tables().map(|table| Arc::clone(table.meta())).collect();
    assert!(tables.windows(2).all(|pair| pair[0].largest < pair[1].smallest), "{tables:?}");
    assert_eq!(tables.iter().map(|table| table.entries).sum::<u64>(), 400, "older versions are gone");
}

#[test]
fn jobs_that_begin_a_run_of_one_level_run_at_once_and_write_one_run() {
    let bed = Bed::new();
    for round in 1..=2 {
        bed.fill('a', round);
        bed.fill('z', round);
    }
    let tasks = [bed.take().expect("one half is due"), bed.take().expect("the other half is due, too")];
    let places = tasks.each_ref().map(|task| match task {
        Task::Compact(_, job) => (job.output_level, job.output_run),
        _ => panic!("not a compaction"),
    });
    assert_eq!(places[0], places[1]);
    assert!(places[0].0 > 0 && places[0].1.is_some());
    // The one that was taken last ends first: the run is there when the other adds its tables.
    tasks.into_iter().rev().for_each(|task| bed.engine.scheduler.do_task(task));
    bed.engine.health.well().unwrap();
    let shape = bed.tree.view().version.shape();
    let runs: Vec<_> = shape.levels.iter().flat_map(|level| &level.runs).collect();
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert_eq!(runs[0].tables.iter().map(|table| table.entries).sum::<u64>(), 400, "older versions are gone");
}

/// The level has no table there yet, so no table says that the keys are taken. Newer runs may only merge with each
/// other meanwhile.
#[test]
fn keys_that_a_running_job_writes_are_taken() {
    let bed = Bed::new();
    bed.fill('z', 0);
    bed.compact();
    (1..=2).for_each(|round| bed.fill('a', round));
    let running = bed.take().expect("two runs of level 0 are due");
    let Task::Compact(_, job) = &running else { panic!("not a compaction") };
    assert_eq!(bed.engine.work.busy(bed.tree.keyspace).outputs, [job.output()]);
    (3..=4).for_each(|round| bed.fill('a', round));
    let other = bed.take().expect("two newer runs are due");
    let output = |task: &Task| match task {
        Task::Compact(_, job) => job.output_level,
        _ => panic!("not a compaction"),
    };
    assert!(output(&running) > 0);
    assert_eq!(output(&other), 0, "below, it would overlap the output of the running job");
    [running, other].into_iter().for_each(|task| bed.engine.scheduler.do_task(task));
    bed.engine.health.well().unwrap();
}

/// Otherwise two workers could relieve each other again and again.
#[test]
fn while_a_rewrite_waits_for_the_job_of_a_worker_no_other_begins() {
    let bed = Bed::new();
    for round in 1..=2 {
        bed.fill('a', round);
        bed.fill('z', round);
    }
    let engine = &bed.engine;
    let running = bed.take().expect("one half is due");
    thread::scope(|scope| {
        let rewrite = scope.spawn(|| bed.compact());
        let is_waiting = || engine.signal.waits().iter().any(|wait| wait.who == "a rewrite of a key range");
        while !rewrite.is_finished() && !is_waiting() {
            thread::yield_now();
        }
        let taken = engine.scheduler.take_task(Role::Merger);
        let has_begun = taken.is_some();
        [running].into_iter().chain(taken).for_each(|task| engine.scheduler.do_task(task));
        rewrite.join().unwrap();
        assert!(!has_begun, "the other half");
    });
    assert!(engine.work.look(|state| state.awaited.is_empty()));
    (3..=4).for_each(|round| bed.fill('a', round));
    assert!(engine.scheduler.take_task(Role::Merger).is_some(), "afterwards they begin others");
    engine.health.well().unwrap();
}

fn load(sealed: usize, flushing: bool, debt: f64) -> Load {
    let garbage = Garbage::None;
    Load { sealed, flushing, debt, garbage, short: false, shared: false, pieces: false, drained: false, held: false }
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
fn a_tree_that_nobody_flushes_comes_before_ranges_of_running_flushes() {
    let shared = Load { shared: true, ..load(2, true, 0.0) };
    use Choice::{Compact, Flush, FlushRange};
    let loads = [shared, load(1, false, 1.0)];
    assert_eq!(choose(&loads, Role::Flusher, false), [Flush(1), FlushRange(0)]);
    assert_eq!(choose(&loads, Role::Merger, false), [Flush(1), FlushRange(0), Compact(1)]);
}

#[test]
fn in_turns_flushes_come_last() {
    let all = Load { garbage: Garbage::Due, drained: true, ..load(1, false, 1.2) };
    use Choice::{Compact, Flush, Gc, Reclaim};
    assert_eq!(choose(&[all], Role::MergesFirst, false), [Gc(0), Compact(0), Flush(0)]);
    assert_eq!(choose(&[all], Role::ReclaimsFirst, false), [Reclaim(0), Flush(0)]);
}

/// Each of `threads` takes tasks while everything is always due: how many of them flush, and how many merge.
fn busy_with(threads: usize) -> (usize, usize) {
    let mut state = WorkState::default();
    let due = Load { garbage: Garbage::Due, ..load(1, false, 1.2) };
    let (mut flushing, mut merging) = (0, 0);
    for thread in 0..threads {
        let role = if thread == 0 { Role::Flusher } else { Role::Merger };
        let flushes = match choose(&[due], state.turn(role), state.gc_came_last).first() {
            Some(Choice::Flush(_)) => true,
            Some(Choice::Compact(_) | Choice::Gc(_)) => false,
            other => panic!("{other:?}"),
        };
        state.took(role, flushes);
        state.merging += usize::from(!flushes);
        flushing += usize::from(flushes);
        merging += usize::from(!flushes);
    }
    (flushing, merging)
}

#[test]
fn no_kind_of_work_takes_all_threads() {
    // Two threads: the second takes turns, and its first turn is a flush.
    assert_eq!(busy_with(2), (2, 0));
    for threads in 3..=8 {
        assert_eq!(busy_with(threads), (threads - 1, 1), "{threads} threads");
    }
    let due = [Load { garbage: Garbage::Due, ..load(1, false, 1.2) }];
    let mut state = WorkState::default();
    for turn in 0..6 {
        let flushes = matches!(choose(&due, state.turn(Role::Merger), false)[0], Choice::Flush(_));
        assert_eq!(flushes, turn % 2 == 0, "the second of two threads, turn {turn}");
        state.took(Role::Merger, flushes);
    }
    let all_due = [Load { drained: true, ..load(1, false, 9.0) }];
    let first = |state: &WorkState| choose(&all_due, state.turn(Role::Flusher), false)[0];
    assert_eq!(first(&state), Choice::Flush(0));
    state.took(Role::Flusher, true);
    assert_eq!(first(&state), Choice::Reclaim(0));
    state.took(Role::Flusher, false);
    assert_eq!(first(&state), Choice::Flush(0), "never a compaction");
}

#[test]
fn compaction_takes_turns_with_gc() {
    let garbage = Load { garbage: Garbage::Due, drained: true, ..load(0, false, 1.2) };
    use Choice::{Compact, Gc, Reclaim};
    assert_eq!(choose(&[garbage], Role::Alone, false), [Reclaim(0), Gc(0), Compact(0)]);
    assert_eq!(choose(&[garbage], Role::Alone, true), [Reclaim(0), Compact(0), Gc(0)]);
    assert_eq!(choose(&[Load { debt: 2.0, ..garbage }], Role::Merger, false), [Compact(0), Gc(0)]);
    assert_eq!(choose(&[garbage], Role::Flusher, false), [Reclaim(0)]);
}

#[test]
fn a_second_gc_run_of_a_tree_comes_after_everything_else() {
    let concurrent = Load { garbage: Garbage::Concurrent, ..load(0, false, 0.0) };
    let due = Load { garbage: Garbage::Due, ..load(0, false, 1.2) };
    use Choice::{Compact, Gc};
    assert_eq!(choose(&[concurrent, due], Role::Merger, false), [Gc(1), Compact(1), Gc(0)]);
    assert_eq!(choose(&[concurrent, due], Role::Merger, true), [Compact(1), Gc(1), Gc(0)]);
    assert_eq!(choose(&[concurrent], Role::Flusher, false), []);
    assert_eq!(choose(&[concurrent], Role::Alone, false), []);
}

#[test]
fn who_flushes_collects_only_where_that_is_short_and_nothing_else_is_due() {
    use Choice::{Flush, Gc, Reclaim};
    for garbage in [Garbage::Due, Garbage::Concurrent] {
        let short = Load { garbage, short: true, drained: true, ..load(1, false, 5.0) };
        assert_eq!(choose(&[short], Role::Flusher, false), [Flush(0), Reclaim(0), Gc(0)]);
        assert_eq!(choose(&[short], Role::ReclaimsFirst, false), [Reclaim(0), Flush(0), Gc(0)]);
        assert_eq!(choose(&[Load { short: false, ..short }], Role::Flusher, false), [Flush(0), Reclaim(0)]);
    }
    assert_eq!(choose(&[Load { short: true, ..load(0, false, 0.0) }], Role::Flusher, false), [], "nothing is due");
}

/// A tree whose keys with `z` are being compacted, and that job.
fn compacting_z() -> (Bed, Task) {
    let bed = Bed::new();
    bed.fill('a', 0);
    bed.fill('z', 0);
    bed.compact();
    (1..=2).for_each(|round| bed.fill('z', round));
    let running = bed.take().expect("two runs are due");
    (bed, running)
}

#[test]
fn a_rewrite_does_not_wait_for_jobs_of_other_keys() {
    let (bed, running) = compacting_z();
    let engine = &bed.engine;
    bed.fill('a', 1);
    let is_late = thread::scope(|scope| {
        let compact = || engine.rewrites.compact_range(&bed.tree, Bound::Included(b"a"), Bound::Excluded(b"b"));
        let rewrite = scope.spawn(compact);
        let begin = Instant::now();
        while !rewrite.is_finished() && begin.elapsed() < Duration::from_secs(10) {
            thread::yield_now();
        }
        let is_late = !rewrite.is_finished();
        engine.scheduler.do_task(running);
        rewrite.join().unwrap().unwrap();
        is_late
    });
    assert!(!is_late, "it waited for the job");
    engine.health.well().unwrap();
    let tables = bed.tree.view().version.tables().map(|table| table.meta().entries).sum::<u64>();
    assert_eq!(tables, 400, "older versions are gone");
    let runs: usize = bed.tree.view().version.shape().levels.iter().map(|level| level.runs.len()).sum();
    assert_eq!(runs, 1);
}

#[test]
fn a_prune_does_not_wait_for_jobs_of_other_keys() {
    // Nothing is due below level 0.
    let bed = Bed::of_levels(2);
    let Bed { engine, tree } = &bed;
    bed.fill('a', 0);
    bed.fill('z', 0);
    let snapshot = engine.snapshots.open(&engine.visible, Holder::Snapshot, engine.env.clock.now());
    bed.fill('a', 1);
    bed.compact();
    drop(snapshot);
    (1..=3).for_each(|round| bed.fill('z', round));
    let running = engine.scheduler.take_task(Role::Merger).expect("a compaction is due");
    let prune = engine.scheduler.take_task(Role::Merger).expect("a table with what the snapshot held is due");
    let reason = |task: &Task| match task {
        Task::Compact(_, job) => job.reason.clone(),
        _ => panic!("not a compaction"),
    };
    assert!(!reason(&running).contains("snapshot"), "{}", reason(&running));
    assert!(reason(&prune).contains("snapshot"), "{}", reason(&prune));
    assert!(tree.debt() >= 1.0);
    [running, prune].into_iter().for_each(|task| engine.scheduler.do_task(task));
    engine.health.well().unwrap();
    let shape = tree.view().version.shape();
    let of_a = shape.tables().filter(|(.., table)| table.smallest[0] == b'a').map(|(.., table)| table.entries);
    assert_eq!(of_a.sum::<u64>(), 200);
}

/// A snapshot may stay open for days.
#[test]
fn what_a_snapshot_holds_is_noted_only_of_tables_that_there_are() {
    let bed = Bed::new();
    let Bed { engine, tree } = &bed;
    bed.fill('a', 0);
    let snapshot = engine.snapshots.open(&engine.visible, Holder::Snapshot, engine.env.clock.now());
    for round in 1..=20 {
        bed.fill('a', round);
        bed.compact();
    }
    let (notes, tables) = (tree.held.hold().len(), tree.view().version.tables().count());
    assert!((1..=tables).contains(&notes), "{notes} notes of {tables} tables");
    drop(snapshot);
}

#[test]
fn what_snapshots_held_goes_last() {
    let held = Load { held: true, garbage: Garbage::Due, ..load(0, false, 0.5) };
    use Choice::{Compact, Gc, Prune};
    assert_eq!(choose(&[held], Role::Merger, false), [Gc(0), Prune(0)]);
    assert_eq!(choose(&[Load { debt: 1.5, ..held }], Role::Alone, true), [Compact(0), Gc(0), Prune(0)]);
    assert_eq!(choose(&[held], Role::Flusher, false), []);
}

#[test]
fn a_tree_in_shape_asks_for_nothing() {
    assert_eq!(choose(&[load(0, false, 0.99)], Role::Alone, false), []);
    assert_eq!(choose(&[load(1, true, 0.0)], Role::Alone, false), []);
}

/// A program may make keyspaces for a moment, as long as it runs.
#[test]
fn nothing_is_kept_of_a_keyspace_that_was_dropped_with_or_without_a_job_running() {
    for has_job in [false, true] {
        let bed = Bed::new();
        let Bed { engine, tree } = &bed;
        bed.fill('a', 0);
        bed.compact();
        engine.gc.gc_all(tree).unwrap();
        while let Some(task) = bed.take() {
            engine.scheduler.do_task(task);
        }
        (1..=2).for_each(|round| bed.fill('a', round));
        let running = if has_job { Some(bed.take().expect("two runs are due")) } else { None };
        engine.state.drop_keyspace("k").unwrap();
        running.into_iter().for_each(|task| engine.scheduler.end_task(task));
        let kept = engine.work.look(|state| [state.busy.len(), state.gc.len(), state.flushing.len(), state.running]);
        assert_eq!(kept, [0; 4], "with a job: {has_job}");
    }
}
