//! Transactions against plain writes.
//!
//! `cargo bench -p bifold --bench transactions` prints thousands of operations a second, with one and four threads,
//! medians of five rounds: puts without transactions, batches of two puts, transactions of two gets and two puts on
//! 100 000 keys and on 10, and scans of 100 keys with one put. Values have 100 bytes; nothing is synced.

#![allow(clippy::unwrap_used, reason = "a benchmark has no caller to return an error to")]

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::Instant,
};

use bifold::{Db, Result, TransactionOptions};
use bifold_io::random::Random;

const ROUNDS: usize = 5;
const EACH: u64 = 20_000;
const MANY: u64 = 100_000;
const FEW: u64 = 10;
const VALUE: [u8; 100] = [7; 100];

/// One operation on keys below a number; `tries` counts transactions begun.
type Work = fn(db: &Db, random: &mut Random, keys: u64, tries: &AtomicU64) -> Result<()>;

fn put(db: &Db, random: &mut Random, keys: u64, _tries: &AtomicU64) -> Result<()> {
    db.put(random.below(keys).to_be_bytes(), VALUE)
}

fn batch(db: &Db, random: &mut Random, keys: u64, _tries: &AtomicU64) -> Result<()> {
    let mut batch = db.batch();
    for _ in 0..2 {
        batch.put(db.default_keyspace(), random.below(keys).to_be_bytes(), VALUE)?;
    }
    db.commit(batch)
}

fn update(db: &Db, random: &mut Random, keys: u64, tries: &AtomicU64) -> Result<()> {
    let both = [random.below(keys), random.below(keys)];
    let mut value = VALUE;
    random.fill(&mut value);
    transact(db, tries, |tx| {
        for key in both {
            tx.get(db.default_keyspace(), key.to_be_bytes())?;
            tx.put(db.default_keyspace(), key.to_be_bytes(), value)?;
        }
        Ok(())
    })
}

fn scan(db: &Db, random: &mut Random, keys: u64, tries: &AtomicU64) -> Result<()> {
    let (from, key) = (random.below(keys), random.below(keys));
    let mut value = VALUE;
    random.fill(&mut value);
    transact(db, tries, |tx| {
        for pair in tx.range(db.default_keyspace(), from.to_be_bytes()..).take(100) {
            pair?;
        }
        tx.put(db.default_keyspace(), key.to_be_bytes(), value)
    })
}

fn transact(db: &Db, tries: &AtomicU64, work: impl Fn(&mut bifold::Transaction) -> Result<()>) -> Result<()> {
    let options = TransactionOptions { tries_max: u32::MAX, ..TransactionOptions::default() };
    db.transact_with(options, |tx| {
        tries.fetch_add(1, Relaxed);
        work(tx)
    })
}

fn main() {
    let dir = std::env::temp_dir().join(format!("bifold-transactions-{}", std::process::id()));
    let kinds: [(&str, Work, u64); 5] = [
        ("put", put, MANY),
        ("batch of two puts", batch, MANY),
        ("two gets and two puts, 100 000 keys", update, MANY),
        ("two gets and two puts, 10 keys", update, FEW),
        ("scan of 100 and a put, 100 000 keys", scan, MANY),
    ];
    for (name, work, keys) in kinds {
        for threads in [1, 4] {
            let mut rounds: Vec<(f64, f64)> = (0..ROUNDS).map(|_| round(&dir, work, keys, threads)).collect();
            rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (rate, tries) = rounds[ROUNDS / 2];
            println!("{name:36} {threads} threads: {rate:7.1} k/s, {tries:.2} tries each");
        }
    }
    std::fs::remove_dir_all(dir).ok();
}

/// Thousands of operations a second, and transactions begun for each.
fn round(dir: &PathBuf, work: Work, keys: u64, threads: u64) -> (f64, f64) {
    std::fs::remove_dir_all(dir).ok();
    let db = Db::open(Path::new(dir)).unwrap();
    (0..keys).for_each(|key| db.put(key.to_be_bytes(), VALUE).unwrap());
    let (tries, begin) = (AtomicU64::new(0), Instant::now());
    thread::scope(|scope| {
        for thread in 0..threads {
            let (db, tries) = (&db, &tries);
            scope.spawn(move || {
                let mut random = Random::new(thread);
                (0..EACH / threads).for_each(|_| work(db, &mut random, keys, tries).unwrap());
            });
        }
    });
    let seconds = begin.elapsed().as_secs_f64();
    db.close().unwrap();
    (EACH as f64 / seconds / 1000.0, tries.load(Relaxed) as f64 / EACH as f64)
}
