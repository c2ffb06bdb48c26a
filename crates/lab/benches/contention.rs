//! Transactions under contention, compared with the optimistic transactions of fjall and RocksDB.
//!
//! `cargo bench -p bifold-lab --features fjall,rocksdb --bench contention` prints thousands of transactions a second
//! and how often each was tried, with one and four threads, medians of five rounds; the stores take turns. A
//! transaction reads some keys and writes each of them, all with new values of 100 bytes, and is tried again until it
//! commits. With `pause` the thread lets others run between its reads and its writes, as an application does that
//! waits for something. Nothing is synced. All stores have their default options, but the same block cache.

#![allow(clippy::unwrap_used, reason = "a benchmark has no caller to return an error to")]

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::Instant,
};

use bifold_io::random::Random;

const ROUNDS: usize = 5;
const EACH: u64 = 20_000;
const VALUE_BYTES: usize = 100;
const CACHE_BYTES: u64 = 64 << 20;

/// What the transactions of a round do.
#[derive(Clone, Copy)]
struct Work {
    name: &'static str,
    /// Keys that there are.
    keys: u64,
    /// Keys that a transaction reads and writes.
    touched: usize,
    pauses: bool,
}

const WORKS: [Work; 4] = [
    Work { name: "2 of 100 000 keys", keys: 100_000, touched: 2, pauses: false },
    Work { name: "10 of 100 000 keys", keys: 100_000, touched: 10, pauses: false },
    Work { name: "2 of 100 keys, pause", keys: 100, touched: 2, pauses: true },
    Work { name: "10 of 100 keys, pause", keys: 100, touched: 10, pauses: true },
];

/// A store with optimistic transactions.
trait Store: Sync {
    fn put(&self, key: [u8; 8], value: &[u8]);

    /// Begins a transaction, reads the keys, calls `pause`, writes the value under each, and commits. Returns whether
    /// that has succeeded; if not, others have committed something that it relies on.
    fn try_once(&self, keys: &[[u8; 8]], value: &[u8], pause: &dyn Fn()) -> bool;
}

struct Bifold(bifold::Db);

impl Store for Bifold {
    fn put(&self, key: [u8; 8], value: &[u8]) {
        self.0.put(key, value).unwrap();
    }

    fn try_once(&self, keys: &[[u8; 8]], value: &[u8], pause: &dyn Fn()) -> bool {
        let (keyspace, mut tx) = (self.0.default_keyspace(), self.0.transaction());
        keys.iter().for_each(|key| assert!(tx.get(keyspace, key).unwrap().is_some()));
        pause();
        keys.iter().for_each(|key| tx.put(keyspace, key, value).unwrap());
        match tx.commit() {
            Ok(_) => true,
            Err(bifold::Error::Conflict { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }
}

#[cfg(feature = "fjall")]
struct Fjall(fjall::OptimisticTxDatabase, fjall::OptimisticTxKeyspace);

#[cfg(feature = "fjall")]
impl Store for Fjall {
    fn put(&self, key: [u8; 8], value: &[u8]) {
        self.1.insert(key, value).unwrap();
    }

    fn try_once(&self, keys: &[[u8; 8]], value: &[u8], pause: &dyn Fn()) -> bool {
        use fjall::Readable;
        let mut tx = self.0.write_tx().unwrap();
        keys.iter().for_each(|key| assert!(tx.get(&self.1, key).unwrap().is_some()));
        pause();
        keys.iter().for_each(|key| tx.insert(&self.1, *key, value));
        tx.commit().unwrap().is_ok()
    }
}

#[cfg(feature = "rocksdb")]
struct RocksDb(rocksdb::OptimisticTransactionDB);

#[cfg(feature = "rocksdb")]
impl Store for RocksDb {
    fn put(&self, key: [u8; 8], value: &[u8]) {
        self.0.put(key, value).unwrap();
    }

    fn try_once(&self, keys: &[[u8; 8]], value: &[u8], pause: &dyn Fn()) -> bool {
        let mut from_the_beginning = rocksdb::OptimisticTransactionOptions::default();
        from_the_beginning.set_snapshot(true);
        let tx = self.0.transaction_opt(&rocksdb::WriteOptions::default(), &from_the_beginning);
        keys.iter().for_each(|key| assert!(tx.get_for_update(key, true).unwrap().is_some()));
        pause();
        keys.iter().for_each(|key| tx.put(key, value).unwrap());
        match tx.commit() {
            Ok(()) => true,
            Err(error) if matches!(error.kind(), rocksdb::ErrorKind::Busy | rocksdb::ErrorKind::TryAgain) => false,
            Err(error) => panic!("{error}"),
        }
    }
}

type Open = fn(&Path) -> Box<dyn Store>;

fn stores() -> Vec<(&'static str, Open)> {
    vec![
        ("Bifold", |dir| {
            let options = bifold::Options { cache_bytes: Some(CACHE_BYTES), ..bifold::Options::default() };
            Box::new(Bifold(bifold::Db::open_with(dir, options).unwrap()))
        }),
        #[cfg(feature = "fjall")]
        ("fjall", |dir| {
            let db = fjall::OptimisticTxDatabase::builder(dir).cache_size(CACHE_BYTES).open().unwrap();
            let keyspace = db.keyspace("default", fjall::KeyspaceCreateOptions::default).unwrap();
            Box::new(Fjall(db, keyspace))
        }),
        #[cfg(feature = "rocksdb")]
        ("RocksDB", |dir| {
            let (mut options, mut blocks) = (rocksdb::Options::default(), rocksdb::BlockBasedOptions::default());
            options.create_if_missing(true);
            blocks.set_block_cache(&rocksdb::Cache::new_lru_cache(CACHE_BYTES as usize));
            options.set_block_based_table_factory(&blocks);
            Box::new(RocksDb(rocksdb::OptimisticTransactionDB::open(&options, dir).unwrap()))
        }),
    ]
}

fn main() {
    let dir = std::env::temp_dir().join(format!("bifold-contention-{}", std::process::id()));
    for work in WORKS {
        for threads in [1, 4] {
            let mut rounds: Vec<Vec<(f64, f64)>> = vec![Vec::new(); stores().len()];
            for _ in 0..ROUNDS {
                for ((_, open), rounds) in stores().into_iter().zip(&mut rounds) {
                    rounds.push(round(&dir, open, work, threads));
                }
            }
            for ((store, _), mut rounds) in stores().into_iter().zip(rounds) {
                rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
                let (rate, tries) = rounds[ROUNDS / 2];
                println!("{:24} {threads} threads  {store:8} {rate:7.1} k/s, {tries:.2} tries each", work.name);
            }
        }
    }
    std::fs::remove_dir_all(dir).ok();
}

/// Thousands of transactions a second, and how often each was tried.
fn round(dir: &PathBuf, open: Open, work: Work, threads: u64) -> (f64, f64) {
    std::fs::remove_dir_all(dir).ok();
    let store = open(dir);
    (0..work.keys).for_each(|key| store.put(key.to_be_bytes(), &[7; VALUE_BYTES]));
    let (tries, begin) = (AtomicU64::new(0), Instant::now());
    thread::scope(|scope| {
        for thread in 0..threads {
            let (store, tries) = (&*store, &tries);
            scope.spawn(move || {
                (0..EACH / threads).fold(Random::new(thread), |random, _| one(store, work, random, tries))
            });
        }
    });
    let seconds = begin.elapsed().as_secs_f64();
    (EACH as f64 / seconds / 1000.0, tries.load(Relaxed) as f64 / EACH as f64)
}

fn one(store: &dyn Store, work: Work, mut random: Random, tries: &AtomicU64) -> Random {
    let keys: Vec<[u8; 8]> = (0..work.touched).map(|_| random.below(work.keys).to_be_bytes()).collect();
    let mut value = [0; VALUE_BYTES];
    random.fill(&mut value);
    let pause = || {
        if work.pauses {
            thread::yield_now()
        }
    };
    loop {
        tries.fetch_add(1, Relaxed);
        if store.try_once(&keys, &value, &pause) {
            return random;
        }
    }
}
