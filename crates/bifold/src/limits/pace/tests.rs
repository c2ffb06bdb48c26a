//! Tests of the rates, and of which keyspaces are looked at.

use std::{path::Path, thread};

use bifold_io::{Env, clock::ManualClock, memory::MemoryFs};

use super::{
    rates::{RATE_MIN, SPACE_OVER, TRICKLE_MIN, memtable_rate, space_rate},
    slowed::TRICKLE_WAIT_MAX,
    *,
};
use crate::{
    api::stats::Stats,
    background::bed::Bed,
    counts::counters::StallCause,
    open::recover::recover,
    settings::{
        events::{EventListener, Listener},
        options::{Durability, KeyspaceOptions, Options, PlacementKind, Workers},
    },
    state::op::Act,
};

/// No worker runs, so everything that somebody should look at stays visible.
#[test]
fn a_commit_causes_no_look_at_keyspaces_that_it_does_not_touch() {
    let env = Env { fs: Arc::new(MemoryFs::new()), ..Env::system() };
    let mut options = Options { memory_limit: 8 << 20, workers: Workers::Threads(2), ..Options::default() };
    options.keyspace.placement = PlacementKind::WiscKey;
    let engine = recover(env, Path::new("/db"), options).unwrap();
    let create = |n: u32| engine.state.create_keyspace(&format!("k{n}"), &engine.options.keyspace).unwrap();
    let trees: Vec<Arc<Tree>> = (0..40).map(create).collect();
    let (all_due, all_stale) = (engine.work.take_due(), engine.pace.stale.hold().clone());
    assert_eq!((all_due, all_stale), (Places::All, Places::All), "nobody has looked yet");
    drop(engine.pace.refresh());
    let alone = Places::In([trees[7].keyspace].into());
    for n in 0..100u32 {
        let op = Op { tree: &trees[7], key: &n.to_be_bytes(), act: Act::Put(&[1; 1000]) };
        engine.commit(&[op], Durability::Buffered).unwrap();
    }
    assert_eq!((engine.work.take_due(), engine.pace.stale.hold().clone()), (alone.clone(), Places::In([].into())));
    assert_eq!(engine.state.values_to_sync(&engine.wal.hold()).len(), 1);
    engine.state.seal(&mut engine.wal.hold(), &trees[7..8]).unwrap();
    assert_eq!(engine.work.take_due(), alone);
    assert_eq!(engine.pace.behind.hold().keys().copied().collect::<Vec<_>>(), [trees[7].keyspace]);
}

/// Two runs from 10 to 40 and from 20 to 50 have taken 40 seconds together, as long as one from 10 to 50.
#[test]
fn the_time_of_concurrent_gc_runs_counts_once() {
    let at = Duration::from_secs;
    let (one, first) = GcTime::default().begin(at(10)).begin(at(20)).end(at(40));
    let (none, second) = one.end(at(50));
    assert_eq!((first, second, none.running), (at(30), at(10), 0));
    assert_eq!(none.begin(at(70)).end(at(75)).1, at(5));
}

#[test]
fn the_rate_falls_smoothly_as_memtables_fill() {
    assert_eq!(memtable_rate(1.4), None);
    let rates: Vec<f64> = (15..=30).filter_map(|tenths| memtable_rate(f64::from(tenths) / 10.0)).collect();
    assert!(rates.windows(2).all(|pair| pair[0] >= pair[1] && pair[0] - pair[1] < 0.5), "{rates:?}");
    assert_eq!((rates[0], rates[10], rates[15]), (4.0, 1.0, 0.8));
}

#[test]
fn the_rate_falls_smoothly_as_space_fills_and_is_a_trickle_at_its_end() {
    let with_slack = |share: f64, slack_bytes: u64| space_rate(Fullness { share, slack_bytes }, 1e8);
    let rate = |share: f64| with_slack(share, 0);
    assert_eq!(rate(0.69), None);
    let rates: Vec<f64> = (70..94).filter_map(|hundredths| rate(f64::from(hundredths) / 100.0)).collect();
    assert!(rates.windows(2).all(|pair| pair[0] >= pair[1] && pair[0] - pair[1] < 0.21e8), "{rates:?}");
    assert_eq!((rates.len(), rates[0].round(), rates[15].round()), (24, 4e8, 1e8));
    let factors: Vec<f64> =
        (940..980).map(|f| rate(f64::from(f + 1) / 1e3).unwrap() / rate(f64::from(f) / 1e3).unwrap()).collect();
    assert!(
        factors.iter().all(|factor| (factor - factors[0]).abs() < 1e-6 && (0.8..0.9).contains(factor)),
        "{factors:?}"
    );
    assert_eq!((rate(SPACE_OVER), rate(2.0)), (Some(TRICKLE_MIN), Some(TRICKLE_MIN)));
    assert_eq!(with_slack(2.0, 1 << 27), Some(f64::from(1 << 27) / 100.0), "a hundredth of the slack each second");
    assert_eq!(with_slack(2.0, 1 << 40), Some(1e8 / 16.0), "but not more than a share of what GC frees");
}

/// The clock advances only by sleeping.
#[test]
fn a_full_keyspace_lets_a_trickle_through_and_slows_no_other() {
    let clock = Arc::new(ManualClock::default());
    let env = Env { fs: Arc::new(MemoryFs::new()), clock: Arc::<ManualClock>::clone(&clock), ..Env::system() };
    let mut options = Options { workers: Workers::Threads(2), ..Options::default() };
    options.keyspace.placement = PlacementKind::WiscKey;
    let engine = recover(env, Path::new("/db"), options).unwrap();
    let [full, other] =
        ["full", "other"].map(|name| engine.state.create_keyspace(name, &engine.options.keyspace).unwrap());
    drop(engine.pace.refresh());
    let note = |thousandths: u64| {
        full.looks.slack_bytes.store(0, Relaxed);
        full.looks.fullness.store(thousandths, Relaxed);
        engine.pace.is_tight.store(thousandths > 0, Relaxed);
    };
    let waits = |tree: &Arc<Tree>, bytes: u64| {
        let begin = clock.now();
        let op = Op { tree, key: b"key", act: Act::Delete };
        engine.committer.throttle.pace(&[op], bytes, 100).unwrap();
        (clock.now() - begin).as_secs_f64()
    };
    note(1100);
    let share = 64.0 * 1024.0 / TRICKLE_MIN;
    assert!((waits(&full, 64 << 10) - share).abs() < 0.001);
    assert!((waits(&full, 64 << 10) - share).abs() < 0.001, "and again");
    assert_eq!(waits(&other, 64 << 10), 0.0);
    assert!((waits(&full, 1 << 30) - TRICKLE_WAIT_MAX.as_secs_f64()).abs() < 0.001, "a large value waits for a while");
    assert!((waits(&full, 64 << 10) - share).abs() < 0.001, "and nobody for what is left of it");
    note(0);
    assert_eq!(waits(&full, 64 << 10), 0.0);
}

#[test]
fn the_rate_of_gc_is_assumed_first_then_measured_with_the_time_that_measuring_takes() {
    let with_runs = |freeing: Freeing, bytes: f64, seconds: f64, times: usize| {
        (0..times).fold(freeing, |freeing, _| freeing.and(bytes, seconds))
    };
    let first = Freeing::default();
    assert_eq!(first.rate(), FREE_RATE_ASSUMED as f64);
    let fast = with_runs(first, 6e6, 0.03, 300);
    assert!((1.9e8..2.1e8).contains(&fast.rate()), "{fast:?}");
    let with_rewrites = with_runs(fast, 0.0, 0.5, 1);
    assert!((1.4e8..1.7e8).contains(&with_rewrites.rate()), "{with_rewrites:?}");
    let idle = with_runs(fast, 0.0, 0.5, 100);
    assert_eq!(idle.rate(), RATE_MIN, "nothing was freed for long");
    let short = first.and(6e6, 1e-6);
    assert!(short.rate() < 1.5 * first.rate(), "one short GC run does not set the rate: {short:?}");
}

#[test]
fn debt_slows_writers_while_it_grows_and_lets_go_when_it_shrinks() {
    assert_eq!(next_rate(0.0, 1e8, 2.9, 2.0), 0.0);
    assert_eq!(next_rate(0.0, 1e8, 3.0, 2.9), 9e7);
    assert!((next_rate(9e7, 1e8, 3.2, 3.0) - 8.1e7).abs() < 1.0);
    assert!((next_rate(8.1e7, 1e8, 3.1, 3.2) - 8.91e7).abs() < 1.0);
    assert_eq!(next_rate(8.9e7, 1e8, 2.4, 3.1), 0.0);
    assert_eq!(next_rate(1.0, 1e8, 9.0, 8.0), RATE_MIN);
}

/// Notes stalls that begin, by their causes, and `None` for each that ends.
#[derive(Default)]
struct StallNotes(Mutex<Vec<Option<&'static str>>>);

impl EventListener for StallNotes {
    fn stall_begun(&self, cause: &'static str) {
        self.0.hold().push(Some(cause));
    }

    fn stall_ended(&self, _cause: &'static str, _time: Duration) {
        self.0.hold().push(None);
    }
}

const MEMTABLE_BYTES: u64 = 64 << 10;

/// A tree, and what its database tells. No worker runs.
fn told() -> (Bed, Arc<StallNotes>) {
    let notes = Arc::new(StallNotes::default());
    let keyspace = KeyspaceOptions { placement: PlacementKind::Inline, ..KeyspaceOptions::default() };
    let bed = Bed::of(Options {
        workers: Workers::Threads(2),
        memtable_bytes: MEMTABLE_BYTES,
        listener: Listener::new(Arc::<StallNotes>::clone(&notes)),
        keyspace,
        ..Options::default()
    });
    (bed, notes)
}

/// A memtable that waits to be written makes each commit look at how long it has to wait.
#[test]
fn a_commit_that_need_not_wait_ends_a_stall_although_a_memtable_is_sealed() {
    let (bed, notes) = told();
    let Bed { engine, tree, .. } = &bed;
    bed.fill([(0, vec![0; 100])].into_iter());
    let cause = StallCause::Memtables.name();
    engine.events.stalls(cause);
    let op = Op { tree, key: b"key", act: Act::Put(b"value") };
    engine.commit(&[op], Durability::Buffered).unwrap();
    assert_eq!((tree.view().sealed.len(), engine.pace.sealed_noted()), (1, 1));
    engine.events.tell();
    assert_eq!(*notes.0.hold(), [Some(cause), None]);
}

/// Writers may be at rest: nobody would end that stall.
#[test]
fn gc_that_waits_for_a_flush_is_no_stall() {
    let (bed, notes) = told();
    let Bed { engine, tree, .. } = &bed;
    (0..2).for_each(|n| bed.fill([(n, Vec::new())].into_iter()));
    while (tree.view().active.memtable.bytes() as u64) < MEMTABLE_BYTES * 96 / 100 {
        let op = Op { tree, key: b"key", act: Act::Put(&[0; 500]) };
        engine.commit(&[op], Durability::Buffered).unwrap();
    }
    assert_eq!(tree.view().sealed.len(), 2, "all memtables are full");
    thread::scope(|scope| {
        let moves = scope.spawn(|| engine.committer.throttle.pace_moves(tree));
        let is_waiting = || engine.signal.waits().iter().any(|wait| wait.on == "a full memtable to be written");
        while !moves.is_finished() && !is_waiting() {
            thread::yield_now();
        }
        assert!(!moves.is_finished(), "it does not wait");
        bed.flush().unwrap();
        moves.join().unwrap().unwrap();
    });
    engine.events.tell();
    let full = StallCause::MemtablesFull.name();
    let told = notes.0.hold().clone();
    assert!(!told.contains(&Some(full)), "{told:?}");
    assert!(Stats::of(engine).stalls.iter().all(|stall| stall.cause != full));
}
