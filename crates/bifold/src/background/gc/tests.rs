//! GC that runs into a commit which the index has already and which readers do not see yet.

use std::{
    ops::Bound,
    sync::{
        Mutex,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::Duration,
};

use bifold_contract::Error;
use bifold_io::faulty::{Call, FaultKind};

use super::*;
use crate::{
    background::bed::Bed,
    counts::slow::Laps,
    limits::memory::MEMTABLES_MAX,
    settings::{
        merge::MergeOperator,
        options::{Durability, KeyspaceOptions, Options, PlacementKind, Workers},
    },
    state::{
        op::{Act, Op},
        snapshot::Holder,
    },
    waiting::sync::LockExt,
};

const KEYS: u32 = 64;

const MEMTABLE_BYTES: usize = 64 << 10;

/// A largest commit for which operands are too long.
const SMALLER: u64 = 300;

/// Placements whose GC asks the index what is live.
const ASKING: [PlacementKind; 3] = [PlacementKind::WiscKey, PlacementKind::DiffKv, PlacementKind::Streams];

/// A tree with separated values in tables. Half of them are dead, and that is known.
fn bed(placement: PlacementKind) -> Bed {
    let mut keyspace = KeyspaceOptions { placement, ..KeyspaceOptions::default() };
    (keyspace.values.file_bytes, keyspace.values.diffkv.large_bytes) = (16 << 10, 1);
    let bed = Bed::of(Options {
        workers: Workers::Threads(2),
        memtable_bytes: MEMTABLE_BYTES as u64,
        keyspace,
        ..Options::default()
    });
    bed.fill((0..KEYS).map(|n| (n, vec![0; 2000])));
    bed.flush().unwrap();
    bed.fill((0..KEYS).step_by(2).map(|n| (n, value(n))));
    bed.flush().unwrap();
    bed.engine.rewrites.compact_range(&bed.tree, Bound::Unbounded, Bound::Unbounded).unwrap();
    bed
}

/// The first job that takes files.
fn pick(Bed { engine, tree, .. }: &Bed) -> Box<dyn GcJob> {
    let pressure = SpacePressure { all_before: Some(engine.state.numbers.next()), ..engine.space.pressure(tree) };
    for _ in 0..4 {
        let job = tree.placement().pick(&pressure, &[]).expect("half of all values are dead");
        if !job.claim().files.is_empty() {
            return job;
        }
        engine.gc.gc(tree, &*job, Means::Free).unwrap();
    }
    panic!("no job takes files");
}

fn value(n: u32) -> Vec<u8> {
    vec![if n.is_multiple_of(2) { n as u8 } else { 0 }; 2000]
}

/// A job that begins, and goes on when it is told to.
struct Later {
    job: Box<dyn GcJob>,
    begun: Sender<()>,
    may_go_on: Mutex<Receiver<()>>,
}

impl GcJob for Later {
    fn claim(&self) -> &GcClaim {
        self.job.claim()
    }

    fn run(&self, gc: &dyn GcContext) -> Result<GcOutcome> {
        self.begun.send(()).expect("the test waits for it");
        self.may_go_on.hold().recv().expect("the test sends it");
        self.job.run(gc)
    }
}

/// GC finds that all values of its files are dead. Who opens a snapshot now does not see that, and a power loss would
/// undo it.
#[test]
fn a_snapshot_reads_what_a_commit_overwrites_that_gc_has_seen_and_readers_have_not() {
    for placement in ASKING {
        let bed = bed(placement);
        let (engine, tree) = (&bed.engine, &bed.tree);
        let ((begun, begins), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel());
        let job = Later { job: pick(&bed), begun, may_go_on: Mutex::new(may_go_on) };
        let keys: Vec<[u8; 4]> = (0..KEYS).map(u32::to_be_bytes).collect();
        let deletes: Vec<Op<'_>> = keys.iter().map(|key| Op { tree, key, act: Act::Delete }).collect();
        let snapshot = thread::scope(|scope| {
            let gc = scope.spawn(|| engine.gc.gc(tree, &job, Means::Free));
            begins.recv().unwrap();
            let mut wal = engine.wal.hold();
            let mut laps = Laps::begin(&*engine.env.clock, engine.env.clock.now());
            let last = engine
                .committer
                .log_and_apply_unseen(&mut wal, (&deletes, &deletes), Durability::Buffered, &mut laps)
                .unwrap();
            go_on.send(()).unwrap();
            // It must wait for the commit before it ends.
            while !gc.is_finished() && !engine.wal.is_awaited() {
                thread::yield_now();
            }
            let snapshot = engine.snapshots.open(&engine.visible, Holder::Snapshot, engine.env.clock.now());
            engine.visible.show(last);
            drop(wal);
            gc.join().unwrap().unwrap();
            snapshot
        });
        engine.gc.reclaims.reclaim_values(tree).unwrap();
        for n in 0..KEYS {
            let found = engine.reader.get(tree, &n.to_be_bytes(), Some(snapshot.sight())).unwrap();
            assert_eq!(found.as_deref(), Some(&value(n)[..]), "{placement:?}: key {n} in the snapshot");
            assert_eq!(engine.reader.get(tree, &n.to_be_bytes(), None).unwrap(), None, "{placement:?}: key {n}");
        }
        assert!(tree.placement().space().drained_bytes > 0, "{placement:?}: the snapshot holds them");
        drop(snapshot);
        engine.gc.reclaims.reclaim_values(tree).unwrap();
        assert_eq!(tree.placement().space().drained_bytes, 0, "{placement:?}: nobody needs them any more");
    }
}

/// A GC run that did not ask the index when it began must not meet entries that expire.
#[test]
fn the_first_put_that_expires_waits_for_gc_that_has_begun_before() {
    let bed = bed(PlacementKind::WiscKey);
    let (engine, tree) = (&bed.engine, &bed.tree);
    let ((begun, begins), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel());
    let job = Later { job: pick(&bed), begun, may_go_on: Mutex::new(may_go_on) };
    assert!(engine.work.try_gc(tree.keyspace));
    thread::scope(|scope| {
        // Dropped before the scope waits for its threads, so that a failed assertion ends GC, too.
        let go_on = go_on;
        let gc = scope.spawn(|| engine.gc.gc(tree, &job, Means::Free));
        begins.recv().unwrap();
        let op = Op { tree, key: b"soon", act: Act::PutUntil(b"gone", 1 << 46) };
        let put = scope.spawn(move || engine.commit(&[op], Durability::Buffered));
        let waits = || engine.signal.waits().iter().any(|wait| wait.who.contains("expires"));
        while !put.is_finished() && !waits() {
            thread::yield_now();
        }
        assert!(!put.is_finished() && engine.reader.get(tree, b"soon", None).unwrap().is_none());
        go_on.send(()).unwrap();
        gc.join().unwrap().unwrap();
        engine.gc.outcomes.end_gc(tree.keyspace, None);
        put.join().unwrap().unwrap();
    });
    assert_eq!(engine.reader.get(tree, b"soon", None).unwrap().as_deref(), Some(&b"gone"[..]));
    assert!(tree.may_lose_entries());
}

/// The worker for flushes takes short GC runs, and the other worker may be busy with one as well: nobody would flush.
#[test]
fn short_gc_waits_for_no_flush() {
    let bed = bed(PlacementKind::Streams);
    let job = pick(&bed);
    assert!(job.claim().is_short);
    for n in 0..2 {
        bed.fill([(KEYS + n, Vec::new())].into_iter());
    }
    while bed.tree.view().active.memtable.bytes() < MEMTABLE_BYTES * 97 / 100 {
        let op = Op { tree: &bed.tree, key: &KEYS.to_be_bytes(), act: Act::Put(&[0; 200]) };
        bed.engine.commit(&[op], Durability::Buffered).unwrap();
    }
    assert_eq!(bed.tree.view().sealed.len(), 2, "all memtables are full");
    let (done, is_done) = mpsc::channel();
    let gc = thread::spawn(move || {
        bed.engine.gc.gc(&bed.tree, &*job, Means::Free).unwrap();
        done.send(()).expect("the test waits for it");
    });
    is_done.recv_timeout(Duration::from_secs(60)).expect("GC waits for a flush that nobody makes");
    gc.join().unwrap();
}

/// Every key has a value, which is in files of a few of them, and may get operands.
fn appending(placement: PlacementKind) -> Bed {
    let merge = Some(MergeOperator::append());
    let mut keyspace = KeyspaceOptions { placement, merge, ..KeyspaceOptions::default() };
    keyspace.values.file_bytes = 16 << 10;
    let bed = Bed::of(Options {
        workers: Workers::Threads(2),
        memtable_bytes: MEMTABLE_BYTES as u64,
        // Each lookup reads.
        cache_bytes: Some(0),
        keyspace,
        ..Options::default()
    });
    bed.fill((0..KEYS).map(|n| (n, value(n))));
    bed.flush().unwrap();
    bed
}

/// Above a separated value operands only grow, and GC writes them again above its new address.
#[test]
fn what_gc_commits_of_long_operands_fits_into_memtables() {
    const OPERAND_BYTES: usize = MEMTABLE_BYTES;
    let bed = appending(PlacementKind::WiscKey);
    let (engine, tree) = (&bed.engine, &bed.tree);
    let operand = vec![1; OPERAND_BYTES];
    for n in 0..KEYS {
        let op = Op { tree, key: &n.to_be_bytes(), act: Act::Merge(&operand) };
        engine.commit(&[op], Durability::Buffered).unwrap();
        bed.fill(std::iter::empty());
        bed.flush().unwrap();
    }
    let moved_before = engine.gc.counters.gc.moved_bytes.load(Relaxed);
    let largest = thread::scope(|scope| {
        let gc = scope.spawn(|| engine.gc.gc_all(tree));
        let mut largest = 0;
        loop {
            let is_over = gc.is_finished();
            let view = tree.view_to_hold();
            largest = view.layers().map(|layer| layer.memtable.data_bytes()).fold(largest, usize::max);
            if is_over {
                break;
            }
            // Nothing is written to a table that was not looked at.
            if !view.sealed.is_empty() {
                bed.flush().unwrap();
            }
            thread::yield_now();
        }
        gc.join().unwrap().unwrap();
        largest
    });
    assert!(engine.gc.counters.gc.moved_bytes.load(Relaxed) > moved_before, "nothing has moved");
    assert!(largest < MEMTABLE_BYTES + OPERAND_BYTES + 4096, "{largest} bytes in a memtable");
    for n in 0..KEYS {
        let found = engine.reader.get(tree, &n.to_be_bytes(), None).unwrap();
        assert_eq!(found.as_deref(), Some(&[&value(n)[..], &operand].concat()[..]), "key {n}");
    }
}

/// No other thread would write them, and how much a run moves has no limit.
#[test]
fn gc_in_the_thread_of_a_caller_writes_the_memtables_that_it_fills() {
    const COUNT: u32 = 24_000;
    for placement in [PlacementKind::WiscKey, PlacementKind::HashKv] {
        let mut keyspace = KeyspaceOptions { placement, ..KeyspaceOptions::default() };
        keyspace.values.file_bytes = 2 << 20;
        let bed = Bed::of(Options {
            workers: Workers::Caller,
            memtable_bytes: MEMTABLE_BYTES as u64,
            keyspace,
            ..Options::default()
        });
        let (engine, tree) = (&bed.engine, &bed.tree);
        let of = |n: u32| vec![n as u8; 300];
        bed.fill((0..COUNT).map(|n| (n, of(n))));
        engine.waits.run_due_work();
        let (job, tables) = (pick(&bed), || tree.view().version.tables().count());
        let before = tables();
        engine.gc.gc(tree, &*job, Means::Free).unwrap();
        let sealed = tree.view().sealed.len();
        assert!(sealed < MEMTABLES_MAX, "{placement:?}: {sealed} memtables wait to be written");
        assert!(tables() > before + 1, "{placement:?}: too little has moved");
        for n in (0..COUNT).step_by(100) {
            let found = engine.reader.get(tree, &n.to_be_bytes(), None).unwrap();
            assert_eq!(found.as_deref(), Some(&of(n)[..]), "{placement:?}: key {n}");
        }
    }
}

/// What happens between the lookups of a job and its commits.
type Interruption = dyn Fn() + Send + Sync;

fn interrupt(by: &Interruption, moves: &[Moved]) {
    if !moves.is_empty() {
        by();
    }
}

/// What a job finds after that.
struct Interrupted<'a>(&'a dyn GcContext, &'a Interruption);

impl IndexView for Interrupted<'_> {
    fn look_up(&self, key: &[u8]) -> Result<Option<Pointer>> {
        self.0.look_up(key)
    }

    fn must_be_asked(&self) -> bool {
        self.0.must_be_asked()
    }
}

impl GcContext for Interrupted<'_> {
    fn fit(&self, copies: &[u64]) -> Result<usize> {
        self.0.fit(copies)
    }

    fn relocate(&self, moves: &[Moved], refused: &mut dyn FnMut(&Moved)) -> Result<Option<SeqNo>> {
        interrupt(self.1, moves);
        self.0.relocate(moves, refused)
    }

    fn hold_commits(&self, act: &mut dyn FnMut(&mut dyn Commits) -> Result<()>) -> Result<bool> {
        self.0.hold_commits(&mut |commits| act(&mut InterruptedCommits(commits, self.1)))
    }

    fn rewrite(&self, tables: RewrittenTables<'_>) -> Result<u64> {
        self.0.rewrite(tables)
    }

    fn install(
        &self,
        copied: Option<SeqNo>,
        edit: &mut dyn FnMut() -> ValueEdit,
        in_force: &mut dyn FnMut(),
    ) -> Result<()> {
        self.0.install(copied, edit, in_force)
    }
}

struct InterruptedCommits<'a>(&'a mut dyn Commits, &'a Interruption);

impl Commits for InterruptedCommits<'_> {
    fn commit(&mut self, moves: &[Moved], refused: &mut dyn FnMut(&Moved)) -> Result<SeqNo> {
        interrupt(self.1, moves);
        self.0.commit(moves, refused)
    }
}

/// A job that is interrupted.
struct Late(Box<dyn GcJob>, Box<Interruption>);

impl GcJob for Late {
    fn claim(&self) -> &GcClaim {
        self.0.claim()
    }

    fn run(&self, gc: &dyn GcContext) -> Result<GcOutcome> {
        self.0.run(&Interrupted(gc, &*self.1))
    }
}

/// The run ends, and writes go on. Its copies are not lost, nor what it has copied.
#[test]
fn operands_that_come_while_gc_runs_and_are_too_long_end_the_run_alone() {
    for placement in [PlacementKind::WiscKey, PlacementKind::HashKv] {
        let bed = appending(placement);
        let (engine, tree) = (&bed.engine, &bed.tree);
        let commit = |n: u32, act| {
            let op = Op { tree, key: &n.to_be_bytes(), act };
            engine.commit(&[op], Durability::Buffered).unwrap();
        };
        let operand = [7; 300];
        (0..KEYS).for_each(|n| commit(n, Act::Merge(&operand)));
        let moves = Arc::clone(&engine.gc.moves);
        // As if operands had come.
        let job = Late(pick(&bed), Box::new(move || moves.bytes_max.store(SMALLER, Relaxed)));
        let ended = engine.gc.gc(tree, &job, Means::Free);
        assert!(matches!(ended, Err(Error::OperandsTooLong { .. })), "{placement:?}: {ended:?}");
        engine.health.well().unwrap();
        commit(0, Act::Merge(b"more"));
        engine.gc.moves.bytes_max.store(u64::MAX, Relaxed);
        // It leaves the file out, and says so again.
        let told = engine.gc.gc_all(tree);
        assert!(matches!(told, Err(Error::OperandsTooLong { .. })), "{placement:?}: {told:?}");
        for n in 0..KEYS {
            let found = engine.reader.get(tree, &n.to_be_bytes(), None).unwrap();
            let more: &[u8] = if n == 0 { b"more" } else { b"" };
            assert_eq!(found.as_deref(), Some(&[&value(n), &operand[..], more].concat()[..]), "{placement:?}: key {n}");
        }
    }
}

/// Moves are compared with the index once more under the commit lock. What cannot be read then has changed nothing.
#[test]
fn an_index_that_cannot_be_read_when_moves_are_committed_ends_the_run_alone() {
    for placement in [PlacementKind::WiscKey, PlacementKind::HashKv] {
        let bed = appending(placement);
        let (engine, tree, faulty) = (&bed.engine, &bed.tree, bed.faulty.clone());
        let of_tables = |call: &Call<'_>| call.op == "read" && call.path.extension().is_some_and(|of| of == "tbl");
        let fail = move || faulty.decide_by(Box::new(move |call| of_tables(call).then_some(FaultKind::EIO)));
        let ended = engine.gc.gc(tree, &Late(pick(&bed), Box::new(fail)), Means::Free);
        bed.faulty.clear();
        assert!(matches!(ended, Err(Error::Io { op: "read", .. })), "{placement:?}: {ended:?}");
        engine.health.well().unwrap();
        let op = Op { tree, key: &0u32.to_be_bytes(), act: Act::Merge(b"more") };
        engine.commit(&[op], Durability::Buffered).unwrap();
        engine.gc.reclaims.reclaim_values(tree).unwrap();
        for n in 0..KEYS {
            let found = engine.reader.get(tree, &n.to_be_bytes(), None).unwrap();
            let more: &[u8] = if n == 0 { b"more" } else { b"" };
            assert_eq!(found.as_deref(), Some(&[&value(n)[..], more].concat()[..]), "{placement:?}: key {n}");
        }
    }
}

/// Such a commit would be no record of the log, and without all of the operands the value would be another one.
#[test]
fn a_value_below_operands_too_long_for_one_commit_stays_and_the_others_move() {
    const OPERAND_BYTES: usize = 1000;
    for placement in [PlacementKind::WiscKey, PlacementKind::HashKv] {
        let bed = appending(placement);
        let (engine, tree) = (&bed.engine, &bed.tree);
        let operands = [1, 2, 3].map(|n: u8| vec![n; OPERAND_BYTES]);
        for operand in &operands {
            let op = Op { tree, key: &0u32.to_be_bytes(), act: Act::Merge(operand) };
            engine.commit(&[op], Durability::Buffered).unwrap();
        }
        // The limit itself would take 2 GiB of operands.
        engine.gc.moves.bytes_max.store(2000, Relaxed);
        let moved_before = engine.gc.counters.gc.moved_bytes.load(Relaxed);
        let refused = engine.gc.gc_all(tree);
        let is_told = matches!(
            &refused,
            Err(Error::OperandsTooLong { keyspace, key, bytes_max: 2000, .. })
                if keyspace == "k" && **key == 0u32.to_be_bytes()
        );
        assert!(is_told, "{placement:?}: {refused:?}");
        assert_eq!(tree.left_out().len(), 1, "{placement:?}: {:?}", tree.left_out());
        engine.health.well().unwrap();
        assert!(engine.gc.counters.gc.moved_bytes.load(Relaxed) > moved_before, "{placement:?}: nothing has moved");
        for n in 0..KEYS {
            let found = engine.reader.get(tree, &n.to_be_bytes(), None).unwrap();
            let above = if n == 0 { operands.concat() } else { Vec::new() };
            assert_eq!(found.as_deref(), Some(&[value(n), above].concat()[..]), "{placement:?}: key {n}");
        }
    }
}
