//! Calls that fail: of the file system and of the index. Reads go on, and what a power loss leaves after them opens as
//! a prefix with everything that was synced.

use std::{
    panic::{self, AssertUnwindSafe},
    path::PathBuf,
    sync::Arc,
};

use bifold_io::{
    faulty::{Fault, FaultKind, FaultyFs, Persistence},
    memory::{Fate, MemoryFs},
};
use bifold_over::{Error, Options, Placement, Store, ValueOptions};

use crate::{
    basics::{calm, open},
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

/// Options under which a few values fill a file, and no other work is due unless a test asks for it.
fn small_files() -> Options {
    let values = ValueOptions { file_bytes: 2 << 10, ..ValueOptions::default() };
    Options { values, ..calm(Placement::WiscKey) }
}

/// A closed store with so many values of 400 bytes, under the keys `k` and a number.
fn closed(count: u8, options: Options) -> (MemoryFs, MemoryIndex) {
    let (fs, index) = (MemoryFs::new(), MemoryIndex::default());
    let store = open(&fs, &index, options).unwrap();
    (0..count).for_each(|key| store.put(&[b'k', key], &[key; 400]).unwrap());
    store.close().unwrap();
    (fs, index)
}

fn value_files(fs: &MemoryFs) -> Vec<PathBuf> {
    fs.files().into_iter().filter(|path| path.extension().is_some_and(|end| end == "val")).collect()
}

/// The keys of the first `count` whose values cannot be read. The others have those of [`closed`].
fn unreadable(store: &Store<MemoryIndex>, count: u8) -> Vec<u8> {
    let is_lost = |key: &u8| match store.get(&[b'k', *key]) {
        Ok(value) => {
            assert_eq!(value.unwrap(), [*key; 400]);
            false
        }
        Err(error) => {
            assert!(error.is_corruption(), "{error}");
            true
        }
    };
    (0..count).filter(is_lost).collect()
}

/// Regression: GC of `wisckey` had left the file out by itself, which looked as if nobody was to blame, and ended
/// writes.
#[test]
fn a_damaged_value_that_gc_meets_leaves_its_file_out_and_ends_no_writes() {
    let options = calm(Placement::WiscKey);
    let (fs, index) = closed(10, options);
    let files = value_files(&fs);
    assert_eq!(files.len(), 1, "{files:?}");
    fs.flip_bit(&files[0], fs.read(&files[0]).unwrap().len() as u64 / 2 * 8);
    let store = open(&fs, &index, options).unwrap();
    assert!(store.gc().unwrap_err().is_corruption());
    store.put(b"another key", &[1; 500]).unwrap();
    store.wait_idle().unwrap();
    let left_out = store.stats().left_out;
    assert_eq!(left_out.len(), 1, "{left_out:?}");
    assert!(left_out[0].contains(".val"), "{left_out:?}");
    assert_eq!(unreadable(&store, 10).len(), 1);
    assert_eq!(value_files(&fs)[0], files[0]);
    store.close().unwrap();
}

/// Regression: all files of the run were left out.
#[test]
fn a_damaged_entry_of_the_index_leaves_out_only_the_file_of_its_value() {
    let options = small_files();
    let (fs, index) = closed(20, options);
    let before = value_files(&fs);
    assert!(before.len() > 3, "{before:?}");
    index.put_strange(b"k\x03", b"\x09x");
    let store = open(&fs, &index, options).unwrap();
    let error = store.gc().unwrap_err();
    assert!(error.is_corruption() && error.to_string().contains("the index"), "{error}");
    let left: Vec<PathBuf> = value_files(&fs).into_iter().filter(|file| before.contains(file)).collect();
    assert_eq!(left, &before[..1]);
    assert_eq!(unreadable(&store, 20), [3]);
    store.put(b"another key", &[1; 500]).unwrap();
}

/// Regression: a sample of the log belongs to no file, so a disk that does not read one of them ended writes.
#[test]
fn a_file_that_a_sample_of_the_log_cannot_read_is_left_out() {
    let options = small_files();
    let (memory, index) = closed(20, options);
    let faulty = FaultyFs::over_memory(memory.clone());
    let store = Store::open_in(&env(Arc::new(faulty.clone())), DIR, index.clone(), options).unwrap();
    // The first point of a sample is where the oldest file begins.
    let oldest = value_files(&memory).swap_remove(0);
    faulty.decide_by(Box::new(move |call| (call.op == "read" && call.path == oldest).then_some(FaultKind::EIO)));
    store.wait_idle().unwrap();
    assert!(!faulty.injected().is_empty(), "no sample was taken");
    store.put(b"another key", &[1; 500]).unwrap();
    store.sync().unwrap();
    let left_out = store.stats().left_out;
    assert_eq!(left_out.len(), 1, "{left_out:?}");
    faulty.clear();
    assert!(unreadable(&store, 20).is_empty());
}
