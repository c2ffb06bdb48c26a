//! Databases for tests.

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use bifold::{Db, Keyspace, KeyspaceOptions, Options, Range, Result, Workers};
use bifold_io::fs::APPENDS_NAME;

/// A directory that is removed at the end of the test.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("bifold-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// The files of a directory, `APPENDS` first. Threads bring bytes from there to the others: copied in this order, they
/// are what a process that is killed then leaves. In another order bytes could be in none of the copies.
pub fn files_to_copy(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort_unstable_by_key(|path| (!path.ends_with(APPENDS_NAME), path.clone()));
    files
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _best_effort = std::fs::remove_dir_all(&self.0);
    }
}

/// Options with which a few hundred writes flush and compact several times, in the calling thread.
pub fn tiny() -> Options {
    Options {
        memory_limit: 1 << 20,
        memtable_bytes: 16 << 10,
        workers: Workers::Caller,
        keyspace: KeyspaceOptions { table_bytes: 8 << 10, block_bytes: 512, ..KeyspaceOptions::default() },
        ..Options::default()
    }
}

/// A database with those options in a directory of its own.
pub fn tiny_db() -> (TempDir, Db) {
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), tiny()).unwrap();
    (dir, db)
}

/// All entries of an iterator.
pub fn entries(range: impl Iterator<Item = Result<bifold::Pair>>) -> Vec<(Vec<u8>, Vec<u8>)> {
    range
        .map(|pair| {
            let (key, value) = pair.unwrap().into_parts().unwrap();
            (key.into_vec(), value.to_vec())
        })
        .collect()
}

/// Checks that iterators in both directions, keys alone and visits yield these entries.
pub fn check_iterators(keyspace: &Keyspace, all: &[(Vec<u8>, Vec<u8>)], what: &str) {
    assert!(entries(keyspace.iter()) == all, "{what}: forwards");
    assert!(entries(keyspace.iter().rev()).iter().rev().eq(all), "{what}: backwards");
    let keys: Vec<Vec<u8>> = keyspace.iter().keys().map(|key| key.unwrap().into_vec()).collect();
    assert!(keys.iter().eq(all.iter().map(|(key, _)| key)), "{what}: keys");
    let mut visited = Vec::new();
    let see = |key: &[u8], value: &[u8]| {
        visited.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    };
    keyspace.iter().visit(see).unwrap();
    assert!(visited == all, "{what}: visited");
}

/// All keys of an iterator, as text.
pub fn keys(range: Range) -> Vec<String> {
    entries(range).into_iter().map(|(key, _)| String::from_utf8(key).unwrap()).collect()
}

/// Puts `count` keys `key0000`, `key0001`, … with values that name their round.
pub fn fill(keyspace: &Keyspace, count: usize, round: &str) {
    for number in 0..count {
        keyspace.put(format!("key{number:04}"), value(number, round)).unwrap();
    }
}

/// The value that [`fill`] puts.
pub fn value(number: usize, round: &str) -> String {
    format!("{round}-{number}-{}", "x".repeat(number % 97))
}

/// Checks that the database has exactly the keys of [`fill`] with this round, by gets and by scans both ways.
pub fn check_filled(keyspace: &Keyspace, count: usize, round: &str) {
    for number in 0..count {
        let found = keyspace.get(format!("key{number:04}")).unwrap();
        assert_eq!(found.as_deref(), Some(value(number, round).as_bytes()), "key{number:04}");
    }
    let expected: Vec<_> =
        (0..count).map(|n| (format!("key{n:04}").into_bytes(), value(n, round).into_bytes())).collect();
    assert_eq!(entries(keyspace.iter()), expected);
    let backward: Vec<_> = expected.into_iter().rev().collect();
    assert_eq!(entries(keyspace.iter().rev()), backward);
}
