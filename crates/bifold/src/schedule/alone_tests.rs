//! A compaction that finds too little room waits for the job of a worker that has it.

use std::{
    ops::Bound,
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use bifold_io::faulty::Call;

use super::*;
use crate::{
    background::bed::Bed,
    settings::options::{Compaction, KeyspaceOptions, Leveled},
};

const KEYS: u32 = 300;
/// A job takes its next step only if there is more room than this.
const TOO_LITTLE: u64 = 64 << 10;
/// If nothing has happened by then, nothing will.
const PATIENCE: Duration = Duration::from_secs(60);

/// A tree, and another one of the same database. Each has two runs that are due to be merged.
fn beds() -> [Bed; 2] {
    let compaction = Compaction::Leveled(Leveled { level0_runs: 2, ..Leveled::default() });
    let keyspace = KeyspaceOptions { compaction, table_bytes: 64 << 10, ..KeyspaceOptions::default() };
    let first = Bed::new(keyspace);
    let engine = Arc::clone(&first.engine);
    let tree = engine.state.create_keyspace("another", &engine.options.keyspace).unwrap();
    let second = Bed { memory: first.memory.clone(), faulty: first.faulty.clone(), engine, tree };
    for bed in [&first, &second] {
        for round in 1..=2 {
            bed.fill((0..KEYS).map(|n| (n, vec![round; 3000])));
            bed.flush().unwrap();
        }
    }
    [first, second]
}

/// Keeps the thread `job` from ending what it does, once it has written its copies, until the barrier is met again.
fn stop_before_its_sync(bed: &Bed, barrier: &Arc<Barrier>) {
    let (is_first, barrier) = (AtomicBool::new(true), Arc::clone(barrier));
    bed.faulty.decide_by(Box::new(move |call: &Call<'_>| {
        let is_of_job = thread::current().name() == Some("job");
        if is_of_job && call.op == "sync" && is_first.swap(false, SeqCst) {
            barrier.wait();
            barrier.wait();
        }
        None
    }));
}

#[test]
fn a_compaction_on_a_full_disk_waits_for_the_job_that_has_its_copies_there() {
    let [bed, another] = beds();
    let Bed { engine, tree, memory, .. } = &bed;
    let numbers = &engine.state.numbers;
    let task = engine.work.take(|state| state.take_compaction(&another.tree, None, numbers)).expect("it is due");
    let barrier = Arc::new(Barrier::new(2));
    stop_before_its_sync(&bed, &barrier);
    thread::scope(|scope| {
        let job = named(scope, "job", || engine.scheduler.do_task(task));
        barrier.wait();
        memory.set_capacity(Some(memory.used_bytes() + TOO_LITTLE));
        let compact = || engine.rewrites.compact_range(tree, Bound::Unbounded, Bound::Unbounded);
        let compaction = named(scope, "compaction", compact);
        let begin = Instant::now();
        let is_waiting = || engine.work.look(|state| state.held_off) > 0;
        while !compaction.is_finished() && !is_waiting() && begin.elapsed() < PATIENCE {
            thread::yield_now();
        }
        let taken = engine.scheduler.take_task(Role::Merger);
        barrier.wait();
        job.join().unwrap();
        compaction.join().unwrap().unwrap();
        assert!(taken.is_none(), "a worker began another job");
    });
    engine.health.well().unwrap();
    assert_eq!(engine.work.look(|state| state.held_off), 0);
    let entries = tree.view().version.tables().map(|table| table.meta().entries).sum::<u64>();
    assert_eq!(entries, u64::from(KEYS), "it is merged");
}

fn named<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> thread::ScopedJoinHandle<'scope, T> {
    thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, work).unwrap()
}
