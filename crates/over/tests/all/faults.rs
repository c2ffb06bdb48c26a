//! Calls that fail: of the file system and of the index. Reads go on, and what a power loss leaves after them opens as
//! a prefix with everything that was synced.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::Arc,
};

use bifold_io::{
    faulty::{Fault, FaultKind, FaultyFs, Persistence},
    memory::{Fate, MemoryFs},
};
use bifold_over::{Error, Options, Placement, Store};

use crate::{
    basics::open,
    memory_index::{Kept, MemoryIndex},
    program::{DIR, Model, Program, Shared, contents, env, small},
    random::Random,
};

const STEPS: usize = 60;

/// Runs a program of two sessions until something fails.
fn run(faulty: &FaultyFs, index: &MemoryIndex, options: Options, program: &mut Program) -> bifold_over::Result<()> {
    for _ in 0..2 {
        let store = Store::open_in(&env(Arc::new(faulty.clone())), DIR, index.clone(), options)?;
        let outcome = program.run(&store, STEPS);
        if let Err(error) = &outcome {
            reads_go_on(faulty, index, &store, program, error);
        }
        outcome?;
    }
    Ok(())
}

/// Once the call works again, all is there to be read; what was being committed is there or not.
fn reads_go_on(faulty: &FaultyFs, index: &MemoryIndex, store: &Store<MemoryIndex>, program: &Program, error: &Error) {
    faulty.clear();
    index.fail_at(None);
    let found = contents(store).unwrap_or_else(|other| panic!("after {error}: {other}"));
    let model = program.model.hold();
    assert!(model.position(&found, model.returned).is_some(), "after {error}");
}

fn survives(fs: &MemoryFs, index: &MemoryIndex, options: Options, model: &Model, what: &str) {
    let mut random = Random::new(7);
    let kept = Kept::of(random.next(), random.next());
    for (fs, index, least) in [
        (fs.fork(), index.fork(), model.returned),
        (fs.power_loss(Fate::DropUnsynced), index.power_loss(kept), model.durable),
        (fs.power_loss(Fate::Random(3)), index.power_loss(Kept::Any(5)), model.durable),
    ] {
        let store = open(&fs, &index, options).unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = contents(&store).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(model.position(&found, least).is_some(), "{what}: not one of the states from {least} on");
    }
}

fn failing_files(placement: Placement) {
    let mut failed = 0;
    for seed in 0..3 {
        let options = small(placement, seed);
        for at in 0.. {
            let (memory, index) = (MemoryFs::new(), MemoryIndex::default());
            let faulty = FaultyFs::over_memory(memory.clone());
            let number = 1 + at * 13 + seed;
            let kind = if at % 3 == 0 { FaultKind::ENOSPC } else { FaultKind::EIO };
            let persistence = if at % 2 == 0 { Persistence::Sticky } else { Persistence::Once };
            faulty.plan(Fault { at: number, kind, persistence });
            let mut program = Program::new(seed + 50, Shared::new(Model::new()));
            let outcome = run(&faulty, &index, options, &mut program);
            if faulty.injected().is_empty() && faulty.calls() < number {
                break;
            }
            failed += u64::from(outcome.is_err());
            faulty.clear();
            let model = program.model.hold().clone();
            survives(&memory, &index, options, &model, &format!("call {number}, seed {seed}: {outcome:?}"));
        }
    }
    println!("{}: {failed} failures", placement.name());
    assert!(failed > 200, "{failed}");
}

#[test]
fn failing_calls_lose_nothing_that_was_synced_with_hashkv() {
    failing_files(Placement::HashKv);
}

#[test]
fn failing_calls_lose_nothing_that_was_synced_with_wisckey() {
    failing_files(Placement::WiscKey);
}

#[test]
fn a_failing_index_ends_writes_and_loses_nothing() {
    for placement in [Placement::HashKv, Placement::WiscKey] {
        for seed in 0..4 {
            let options = small(placement, seed);
            let mut calls = 0;
            loop {
                let (memory, index) = (MemoryFs::new(), MemoryIndex::default());
                let faulty = FaultyFs::over_memory(memory.clone());
                index.fail_at(Some(calls));
                let mut program = Program::new(seed + 90, Shared::new(Model::new()));
                let outcome = run(&faulty, &index, options, &mut program);
                if index.calls() < calls {
                    break;
                }
                assert!(outcome.is_err() || calls == index.calls(), "call {calls}, seed {seed}");
                index.fail_at(None);
                let model = program.model.hold().clone();
                survives(&memory, &index, options, &model, &format!("index call {calls}, seed {seed}"));
                calls += 1;
            }
            assert!(calls > 10, "{calls} calls of the index");
        }
    }
}

#[test]
fn after_a_failed_sync_writes_are_refused_until_the_store_is_opened_again() {
    let memory = MemoryFs::new();
    let (faulty, index) = (FaultyFs::over_memory(memory.clone()), MemoryIndex::default());
    let options = small(Placement::HashKv, 1);
    let store = Store::open_in(&env(Arc::new(faulty.clone())), DIR, index.clone(), options).unwrap();
    store.put(b"a", &[1; 200]).unwrap();
    faulty.decide_by(Box::new(|call| (call.op == "sync").then_some(FaultKind::EIO)));
    assert!(store.sync().is_err());
    faulty.clear();
    assert!(matches!(store.put(b"b", b"value"), Err(Error::Poisoned { .. })));
    assert!(matches!(store.sync(), Err(Error::Poisoned { .. })));
    assert!(matches!(store.checkpoint(), Err(Error::Poisoned { .. })));
    assert_eq!(store.get(b"a").unwrap().unwrap(), [1; 200]);
    drop(store);
    let store = open(&memory, &index, options).unwrap();
    assert_eq!(store.get(b"a").unwrap().unwrap(), [1; 200]);
    store.put(b"b", b"value").unwrap();
}

#[test]
fn after_a_panic_in_a_commit_writes_are_refused_until_the_store_is_opened_again() {
    let memory = MemoryFs::new();
    let (faulty, index) = (FaultyFs::over_memory(memory.clone()), MemoryIndex::default());
    let options = small(Placement::HashKv, 1);
    let store = Store::open_in(&env(Arc::new(faulty.clone())), DIR, index.clone(), options).unwrap();
    store.put(b"a", &[1; 200]).unwrap();
    faulty.decide_by(Box::new(|call| {
        let is_log = call.path.extension().is_some_and(|end| end == "log");
        assert!(call.op != "append to" || !is_log, "as a fault of ours would");
        None
    }));
    // The value is in its file by then, but no record leads to it.
    let panicked = panic::catch_unwind(AssertUnwindSafe(|| store.put(b"b", &[2; 200])));
    assert!(panicked.is_err());
    faulty.clear();
    assert!(matches!(store.put(b"c", b"value"), Err(Error::Poisoned { .. })));
    assert!(matches!(store.sync(), Err(Error::Poisoned { .. })));
    assert_eq!(store.get(b"a").unwrap().unwrap(), [1; 200]);
    drop(store);
    let store = open(&memory, &index, options).unwrap();
    assert_eq!(store.get(b"a").unwrap().unwrap(), [1; 200]);
    assert_eq!(store.get(b"b").unwrap(), None);
    store.put(b"b", b"value").unwrap();
}
