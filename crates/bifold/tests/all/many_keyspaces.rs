//! The cost of many keyspaces: nothing grows faster than their number, and a keyspace without writes costs nothing
//! when others are written.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use bifold::{Db, Durability, Env, Options, PlacementKind, Workers};
use bifold_io::{clock::SystemClock, faulty::FaultyFs, memory::MemoryFs, threads::SystemThreads};

fn options() -> Options {
    let mut options = Options { memory_limit: 8 << 20, workers: Workers::Caller, ..Options::default() };
    options.keyspace.placement = PlacementKind::WiscKey;
    options
}

/// Calls of the file system, by name.
type Calls = BTreeMap<&'static str, u64>;

fn open(fs: &FaultyFs) -> Db {
    let env =
        Env { fs: Arc::new(fs.clone()), clock: Arc::new(SystemClock::default()), threads: Arc::new(SystemThreads) };
    Db::open_in(env, "/db", options()).unwrap()
}

/// The calls on value files that `call` makes.
fn calls_of(fs: &FaultyFs, call: impl FnOnce()) -> Calls {
    let calls = Arc::new(Mutex::new(Calls::new()));
    let counted = Arc::clone(&calls);
    fs.decide_by(Box::new(move |call| {
        if call.path.extension().is_some_and(|ending| ending == "val") {
            *counted.lock().unwrap().entry(call.op).or_default() += 1;
        }
        None
    }));
    call();
    fs.clear();
    std::mem::take(&mut *calls.lock().unwrap())
}

/// The calls that opening makes on value files that no edit names, with this many keyspaces of one such file each.
fn calls_of_opening(keyspaces: u32) -> Calls {
    let memory = MemoryFs::default();
    let fs = FaultyFs::over_memory(memory.clone());
    let db = open(&fs);
    for n in 0..keyspaces {
        let keyspace = db.keyspace(&format!("k{n}"), options().keyspace).unwrap();
        keyspace.put("key", vec![1; 1000]).unwrap();
    }
    // As a killed process leaves it.
    let killed = FaultyFs::over_memory(memory.fork());
    let mut opened = None;
    let calls = calls_of(&killed, || opened = Some(open(&killed)));
    let opened = opened.unwrap();
    for n in 0..keyspaces {
        let keyspace = opened.existing_keyspace(&format!("k{n}")).unwrap().unwrap();
        assert_eq!(keyspace.get("key").unwrap().as_deref(), Some(&[1; 1000][..]));
    }
    calls
}

/// Each keyspace used to look into the files of all others to see whose they are.
#[test]
fn opening_makes_as_many_calls_for_each_keyspace_whatever_their_number() {
    let (some, many) = (calls_of_opening(10), calls_of_opening(40));
    assert!(some.values().sum::<u64>() >= 20, "{some:?}");
    for (op, &count) in &many {
        let few = some.get(op).copied().unwrap_or(0);
        assert!(count <= few * 4 + 8, "{op}: {few} calls for 10 keyspaces, {count} for 40");
    }
}

/// A sync asks the keyspaces that were written since the last one, no other.
#[test]
fn every_keyspace_that_was_written_is_synced_and_no_other() {
    let fs = FaultyFs::over_memory(MemoryFs::default());
    let db = open(&fs);
    let all: Vec<_> = (0..30).map(|n| db.keyspace(&format!("k{n}"), options().keyspace).unwrap()).collect();
    for written in [0..30, 3..4, 7..12, 7..8, 29..30] {
        let calls = calls_of(&fs, || {
            let mut batch = db.batch();
            for keyspace in &all[written.clone()] {
                batch.put(keyspace, "key", vec![2; 1000]).unwrap();
            }
            db.commit_with(batch, Durability::Sync).unwrap();
        });
        assert_eq!(calls.get("sync").copied(), Some(written.len() as u64), "{written:?}: {calls:?}");
    }
}
