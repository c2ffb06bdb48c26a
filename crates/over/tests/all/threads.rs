//! Writers, readers, snapshots and the worker at the same time.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use bifold_io::{
    faulty::FaultyFs,
    memory::{Fate, MemoryFs},
};
use bifold_over::{Options, Placement, Store, Workers};

use crate::{
    basics::{self, calm},
    memory_index::{Kept, MemoryIndex},
    program::{DIR, contents_of, env, small},
};

const WRITERS: u64 = 2;
const KEYS: u64 = 40;
const ROUNDS: u64 = 60;

fn key(writer: u64, key: u64) -> Vec<u8> {
    format!("writer {writer} key {key:02}").into_bytes()
}

fn value(round: u64) -> Vec<u8> {
    let mut value = vec![round as u8; 100 + (round as usize * 37) % 400];
    value[..8].copy_from_slice(&round.to_le_bytes());
    value
}

fn round(value: &[u8]) -> u64 {
    let round = u64::from_le_bytes(value[..8].try_into().unwrap());
    assert_eq!(value, self::value(round));
    round
}

/// Each writer raises the values of its keys round by round. Readers never see one go down, and in a snapshot all keys
/// of a writer are of at most two rounds, the later ones first.
fn raise(placement: Placement) {
    let (fs, index) = (MemoryFs::new(), MemoryIndex::default());
    let options = Options { workers: Workers::Thread, layer_bytes: 4 << 10, ..small(placement, 1) };
    let open = || Store::open_in(&env(Arc::new(fs.clone())), DIR, index.clone(), options).unwrap();
    let (store, is_done) = (open(), AtomicBool::new(false));
    thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                let (store, is_done) = (&store, &is_done);
                scope.spawn(move || {
                    let mut seen = BTreeMap::new();
                    while !is_done.load(Relaxed) {
                        if reader == 0 {
                            for (writer, at) in (0..WRITERS).flat_map(|writer| (0..KEYS).map(move |at| (writer, at))) {
                                let got = store.get(&key(writer, at)).unwrap().map_or(0, |value| round(&value));
                                let before = seen.insert((writer, at), got).unwrap_or(0);
                                assert!(got >= before, "{got} after {before}");
                            }
                        } else {
                            let snapshot = store.snapshot().unwrap();
                            let found = contents_of(&snapshot).unwrap();
                            for writer in 0..WRITERS {
                                let of = |at| found.get(&key(writer, at)).map_or(0, |value| round(value));
                                let rounds: Vec<u64> = (0..KEYS).map(of).collect();
                                assert!(rounds.is_sorted_by(|a, b| a >= b), "{rounds:?}");
                                assert!(rounds[0] - rounds[KEYS as usize - 1] <= 1, "{rounds:?}");
                            }
                            assert_eq!(contents_of(&snapshot).unwrap(), found);
                        }
                    }
                })
            })
            .collect();
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let store = &store;
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        for at in 0..KEYS {
                            store.put(&key(writer, at), &value(round)).unwrap();
                        }
                        if round % 16 == 0 {
                            store.sync().unwrap();
                        }
                    }
                })
            })
            .collect();
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        is_done.store(true, Relaxed);
        written.into_iter().chain(readers.into_iter().map(|reader| reader.join())).for_each(|ended| ended.unwrap());
    });
    let stats = store.stats();
    assert!(stats.gc_jobs > 0 && stats.index_changes > 100 && stats.checkpoints > 0, "{stats:?}");
    store.close().unwrap();
    let store = open();
    for (writer, at) in (0..WRITERS).flat_map(|writer| (0..KEYS).map(move |at| (writer, at))) {
        assert_eq!(round(&store.get(&key(writer, at)).unwrap().unwrap()), ROUNDS);
    }
}

#[test]
fn readers_see_values_only_rise_while_groups_are_collected() {
    raise(Placement::HashKv);
}

#[test]
fn readers_see_values_only_rise_while_the_log_is_collected() {
    raise(Placement::WiscKey);
}

/// Regression: a sync forgot the log that had been current when it began. Nobody synced what came into that log while
/// the sync ran, if that filled a layer.
#[test]
fn commits_into_a_log_that_is_closed_while_it_is_synced_are_durable_after_the_next_sync() {
    let (memory, index) = (MemoryFs::new(), MemoryIndex::default());
    let faulty = FaultyFs::over_memory(memory.clone());
    let options = Options { workers: Workers::Thread, layer_bytes: 1 << 10, ..calm(Placement::HashKv) };
    let store = Store::open_in(&env(Arc::new(faulty.clone())), DIR, index.clone(), options).unwrap();
    let mut written = BTreeMap::new();
    let mut put = || {
        let (key, value) = (format!("key {:03}", written.len()).into_bytes(), vec![written.len() as u8; 50]);
        store.put(&key, &value).unwrap();
        written.insert(key, value);
    };
    put();
    // The first sync of a log also syncs its name, after its contents: there it waits.
    let meets = Arc::new(Barrier::new(2));
    let (is_synced, has_waited, sync) = (AtomicBool::new(false), AtomicBool::new(false), Arc::clone(&meets));
    faulty.decide_by(Box::new(move |call| {
        if call.op == "sync" && call.path.extension().is_some_and(|end| end == "log") {
            is_synced.store(true, Relaxed);
        }
        if call.op == "sync directory" && is_synced.load(Relaxed) && !has_waited.swap(true, Relaxed) {
            sync.wait();
            sync.wait();
        }
        None
    }));
    thread::scope(|scope| {
        let first = scope.spawn(|| store.sync());
        meets.wait();
        let logs = || memory.files().iter().filter(|path| path.extension().is_some_and(|end| end == "log")).count();
        while logs() == 1 {
            put();
        }
        meets.wait();
        first.join().unwrap().unwrap();
    });
    put();
    store.sync().unwrap();
    let (memory, index) = (memory.power_loss(Fate::DropUnsynced), index.power_loss(Kept::Nothing));
    let reopened = basics::open(&memory, &index, options).unwrap();
    assert_eq!(contents_of(&reopened.snapshot().unwrap()).unwrap(), written);
}
