//! Key ranges with compactions of their own, which split when they have grown.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use bifold::{Compaction, Db, Env, KeyspaceOptions, Options, Workers, options::TwoLayer, verify_in};
use bifold_io::memory::MemoryFs;

use crate::support::{check_filled, fill, tiny};

/// Partitions so small that a few dozen entries split one.
fn splitting() -> Options {
    let compaction = Compaction::TwoLayer(TwoLayer { unsorted_bytes: 2 << 10, scan_merge_runs: 4 });
    let keyspace =
        KeyspaceOptions { table_bytes: 1 << 10, partition_bytes: Some(4 << 10), compaction, ..tiny().keyspace };
    Options { keyspace, ..tiny() }
}

/// Files in memory: a thousand tables are quickly written there.
fn env(fs: &MemoryFs) -> Env {
    Env { fs: Arc::new(fs.clone()), ..Env::system() }
}

fn open(fs: &MemoryFs, options: Options) -> Db {
    Db::open_in(env(fs), "/db", options).unwrap()
}

fn partitions(db: &Db) -> u64 {
    db.stats().keyspaces[0].partitions
}

#[test]
fn a_keyspace_splits_as_it_grows_and_stays_split() {
    let fs = MemoryFs::default();
    let db = open(&fs, splitting());
    fill(db.default_keyspace(), 300, "first");
    let early = partitions(&db);
    assert!(early > 1, "{early} partitions");
    fill(db.default_keyspace(), 2000, "second");
    let later = partitions(&db);
    assert!(later > early, "{later} partitions, {early} before");
    check_filled(db.default_keyspace(), 2000, "second");
    db.close().unwrap();
    assert!(verify_in(&env(&fs), "/db", |_| {}).unwrap().problems.is_empty());
    let db = open(&fs, splitting());
    assert_eq!(partitions(&db), later);
    check_filled(db.default_keyspace(), 2000, "second");
}

#[test]
fn a_thousand_partitions_are_one_keyspace() {
    let fs = MemoryFs::default();
    let db = open(&fs, splitting());
    let value = |key: u32, round: u32| format!("{round}-{key}-{}", "x".repeat(900));
    let put = |key: u32, round: u32| db.put(format!("{key:08}"), value(key, round)).unwrap();
    (0..5000).for_each(|key| put(key, 0));
    (0..5000).step_by(7).for_each(|key| put(key, 1));
    let count = partitions(&db);
    assert!(count >= 1000, "{count} partitions");
    let of = |key: u32| value(key, u32::from(key.is_multiple_of(7)));
    let snapshot = db.snapshot();
    for key in (0..5000).step_by(3) {
        assert_eq!(db.get(format!("{key:08}")).unwrap().as_deref(), Some(of(key).as_bytes()), "{key}");
    }
    db.delete_range("00000500".."00004000").unwrap();
    db.flush().unwrap();
    assert_eq!(db.iter().count(), 1500);
    assert_eq!(db.iter().rev().count(), 1500);
    let old = snapshot.iter(db.default_keyspace()).map(|pair| pair.unwrap().into_parts().unwrap());
    for (key, (found, held)) in (0..5000).zip(old) {
        assert_eq!((&found[..], &held[..]), (format!("{key:08}").as_bytes(), of(key).as_bytes()));
    }
}

#[test]
fn readers_and_writers_go_on_while_partitions_split() {
    let fs = MemoryFs::default();
    let db = open(&fs, Options { workers: Workers::Threads(3), ..splitting() });
    (0..500u32).for_each(|key| db.put(format!("a{key:05}"), "there from the start").unwrap());
    let (db, done) = (&db, AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let snapshot = db.snapshot();
                let forward: Vec<_> = snapshot.iter(db.default_keyspace()).map(|p| p.unwrap().key().to_vec()).collect();
                let mut backward: Vec<_> =
                    snapshot.iter(db.default_keyspace()).rev().map(|p| p.unwrap().key().to_vec()).collect();
                backward.reverse();
                assert_eq!(forward, backward);
                assert!(forward.is_sorted() && forward.len() >= 500);
                for key in (0..500u32).step_by(41) {
                    assert!(db.contains_key(format!("a{key:05}")).unwrap(), "{key}");
                }
            }
        });
        thread::scope(|scope| {
            for writer in ["b", "c", "a1"] {
                let put = move |number: u32| db.put(format!("{writer}{number:05}-{writer}"), [7; 100]).unwrap();
                scope.spawn(move || (0..1000).for_each(put));
            }
        });
        done.store(true, Ordering::Release);
    });
    db.wait_idle().unwrap();
    assert_eq!(db.iter().count(), 3500);
    assert!(partitions(db) > 20);
}
