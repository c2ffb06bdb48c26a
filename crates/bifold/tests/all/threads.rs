//! Several threads at once, with background workers.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use bifold::{Batch, Db, Options, Swap, Workers};

use crate::support::{TempDir, tiny};

fn threaded() -> (TempDir, Db) {
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), Options { workers: Workers::Threads(2), ..tiny() }).unwrap();
    (dir, db)
}

#[test]
fn writers_lose_nothing_while_background_work_runs() {
    let (dir, db) = threaded();
    thread::scope(|scope| {
        for writer in 0..4u32 {
            let db = &db;
            scope.spawn(move || {
                for number in 0..1500u32 {
                    db.put(format!("{writer}-{number:05}"), [writer as u8; 100]).unwrap();
                }
            });
        }
    });
    assert_eq!(db.iter().count(), 6000);
    db.wait_idle().unwrap();
    assert_eq!(db.iter().rev().count(), 6000);
    db.close().unwrap();
    let db = Db::open_with(dir.join("db"), tiny()).unwrap();
    assert_eq!(db.iter().map(|p| p.unwrap().value().unwrap().len()).sum::<usize>(), 600_000);
}

#[test]
fn batches_appear_as_a_whole() {
    let (_dir, db) = threaded();
    let other = db.keyspace("other", tiny().keyspace).unwrap();
    let done = AtomicBool::new(false);
    let write = |round: u32| {
        let mut batch = Batch::new();
        for key in 0..10u32 {
            let keyspace = if key % 2 == 0 { db.default_keyspace() } else { &other };
            batch.put(keyspace, key.to_be_bytes(), [&round.to_be_bytes()[..], &[0; 200]].concat()).unwrap();
        }
        db.commit(batch).unwrap();
    };
    write(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            (1..2000).for_each(write);
            done.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            let mut seen = 0;
            while !done.load(Ordering::Acquire) {
                let snapshot = db.snapshot();
                let rounds: Vec<Vec<u8>> = [db.default_keyspace(), &other]
                    .iter()
                    .flat_map(|ks| {
                        snapshot.iter(ks).map(|p| p.unwrap().value().unwrap()[..4].to_vec()).collect::<Vec<_>>()
                    })
                    .collect();
                assert_eq!(rounds.len(), 10);
                assert!(rounds.iter().all(|r| *r == rounds[0]), "half a batch: {rounds:?}");
                seen += 1;
            }
            assert!(seen > 0);
        });
    });
}

#[test]
fn swaps_of_several_threads_count_every_step() {
    let (_dir, db) = threaded();
    db.put("counter", 0u64.to_be_bytes()).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let mut now = db.get("counter").unwrap().unwrap();
                    loop {
                        let next = u64::from_be_bytes(now[..].try_into().unwrap()) + 1;
                        match db.compare_and_swap("counter", Some(&now), Some(&next.to_be_bytes())).unwrap() {
                            Swap::Done => break,
                            Swap::Mismatch { current } => now = current.unwrap(),
                        }
                    }
                }
            });
        }
    });
    assert_eq!(db.get("counter").unwrap().unwrap(), 800u64.to_be_bytes());
}
