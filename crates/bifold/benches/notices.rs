//! Durable commits a second, with and without notices.
//!
//! `cargo bench -p bifold --bench notices [DIRECTORY]` prints medians of three rounds of a second each: `Sync` commits
//! by one thread and by 64, and one thread that keeps 1, 8, 64 and 512 notices outstanding. Values have 100 bytes.
//! Give a directory on the device that is to be measured; in memory a sync costs nothing.

#![allow(clippy::unwrap_used, reason = "a benchmark has no caller to return an error to")]

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use bifold::{Batch, Db, Durability};

const ROUND: Duration = Duration::from_secs(1);

fn batch(db: &Db, n: u64) -> Batch {
    let mut batch = db.batch();
    batch.put(db.default_keyspace(), n.to_be_bytes(), [7; 100]).unwrap();
    batch
}

/// Commits of so many threads that each wait for their own.
fn synced(db: &Db, threads: u64) -> u64 {
    let (count, begin) = (AtomicU64::new(0), Instant::now());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while begin.elapsed() < ROUND {
                    let n = count.fetch_add(1, Relaxed);
                    db.commit_with(batch(db, n), Durability::Sync).unwrap();
                }
            });
        }
    });
    count.into_inner()
}

/// Commits of one thread that waits for the oldest notice once so many are outstanding.
fn noticed(db: &Db, outstanding: usize) -> u64 {
    let (mut count, mut notices, begin) = (0, VecDeque::new(), Instant::now());
    while begin.elapsed() < ROUND {
        notices.push_back(db.commit_async(batch(db, count)).unwrap());
        count += 1;
        if notices.len() == outstanding {
            notices.pop_front().unwrap().wait().unwrap();
        }
    }
    notices.into_iter().for_each(|notice| notice.wait().unwrap());
    count
}

fn median(dir: &Path, name: &str, work: impl Fn(&Db) -> u64) {
    let mut rounds: Vec<u64> = (0..3)
        .map(|_| {
            let db = Db::open(dir).unwrap();
            let done = work(&db);
            db.close().unwrap();
            std::fs::remove_dir_all(dir).unwrap();
            done
        })
        .collect();
    rounds.sort_unstable();
    println!("{name:<32} {:>8} a second", rounds[1]);
}

fn main() {
    let given = std::env::args().skip(1).find(|word| !word.starts_with("--"));
    let dir =
        given.map_or_else(std::env::temp_dir, PathBuf::from).join(format!("bifold-notices-{}", std::process::id()));
    median(&dir, "Sync, 1 thread", |db| synced(db, 1));
    median(&dir, "Sync, 64 threads", |db| synced(db, 64));
    for outstanding in [1, 8, 64, 512] {
        median(&dir, &format!("1 thread, {outstanding} outstanding"), |db| noticed(db, outstanding));
    }
}
