//! The number of open files stays within its limit, however many files there are.

use std::{path::Path, sync::Arc, thread};

use bifold::{
    Db, Env, Keyspace, KeyspaceOptions, Options, PlacementKind, Workers,
    options::{DiffKv, HashKv, Values},
};
use bifold_io::{FileSystem, counting::CountingFs, disk::DiskFs, memory::MemoryFs};

use crate::support::{TempDir, entries, tiny};

const OPEN_MAX: usize = 8;

const PLACEMENTS: [PlacementKind; 7] = PlacementKind::ALL;

/// Tables and value files so small that there are hundreds.
fn options(placement: PlacementKind, workers: Workers) -> Options {
    let values = Values {
        separate_from_bytes: Some(64),
        file_bytes: 2 << 10,
        hashkv: HashKv { group_bytes: 4 << 10, ..HashKv::default() },
        diffkv: DiffKv { large_bytes: 250, ..DiffKv::default() },
        ..Values::default()
    };
    let keyspace = KeyspaceOptions { placement, values, table_bytes: 1 << 10, block_bytes: 512, ..tiny().keyspace };
    Options { open_files_max: OPEN_MAX as u32, cache_bytes: Some(0), workers, keyspace, ..tiny() }
}

fn key(number: usize) -> String {
    format!("key{number:05}")
}

/// Mostly short; some longer than what is read through a mapping, or in a log of `diffkv`.
fn value(number: usize, round: usize) -> String {
    let len = if number.is_multiple_of(50) { 10_000 } else { 64 + number % 250 };
    format!("{round}-{number}-{}", "x".repeat(len))
}

fn fill(keyspace: &Keyspace, count: usize, round: usize) {
    for number in 0..count {
        keyspace.put(key(number), value(number, round)).unwrap();
    }
}

fn check(keyspace: &Keyspace, count: usize, round: usize) {
    for number in (0..count).rev() {
        assert_eq!(keyspace.get(key(number)).unwrap().unwrap(), value(number, round).as_bytes());
    }
    let all = entries(keyspace.iter());
    assert_eq!(all.len(), count);
    for (number, (found, bytes)) in all.into_iter().enumerate() {
        assert!(found == key(number).as_bytes() && bytes == value(number, round).as_bytes(), "{number}");
    }
}

/// Writes twice, reads, and reopens. Returns by how many the open files exceeded the limit or the files being
/// written.
fn use_few(inner: Arc<dyn FileSystem>, path: &Path, placement: PlacementKind, count: usize) -> usize {
    let fs = CountingFs::new(inner, OPEN_MAX);
    let env = Env { fs: Arc::new(fs.clone()), ..Env::system() };
    for round in 0..2 {
        let db = Db::open_in(env.clone(), path, options(placement, Workers::Caller)).unwrap();
        fill(db.default_keyspace(), count, round);
        check(db.default_keyspace(), count, round);
        db.sync().unwrap();
        let stats = db.stats().files;
        assert_eq!((stats.open, stats.open_max), (fs.open_files() as u64, OPEN_MAX as u64), "{placement:?}");
        assert!(stats.reopened > 10, "{placement:?}: {stats:?}");
    }
    let db = Db::open_in(env, path, options(placement, Workers::Caller)).unwrap();
    check(db.default_keyspace(), count, 1);
    let files = fs.list(path).unwrap().len();
    assert!(files > count / 15, "{placement:?}: {files} files only");
    assert!(fs.open_files() <= OPEN_MAX + 1, "{placement:?}: {} are open", fs.open_files());
    drop(db);
    assert_eq!(fs.open_files(), 0, "{placement:?}");
    fs.over_max()
}

#[test]
fn a_database_of_many_files_needs_few_open_ones() {
    for placement in PLACEMENTS {
        let over = use_few(Arc::new(MemoryFs::new()), Path::new("/db"), placement, 1000);
        assert!(over <= 2, "{placement:?}: {over} too many");
    }
}

#[test]
fn a_database_with_an_append_region_and_mapped_reads_needs_few_open_files() {
    for placement in PLACEMENTS {
        let dir = TempDir::new();
        // So many that files are opened again although most are mapped, for long values and tables with long blocks.
        let over = use_few(Arc::new(DiskFs), &dir.join("db"), placement, 800);
        assert!(over <= 2, "{placement:?}: {over} too many");
    }
}

#[test]
fn threads_read_and_write_with_few_open_files() {
    const READERS: usize = 3;
    const COUNT: usize = 300;
    for placement in PLACEMENTS {
        let fs = CountingFs::new(Arc::new(MemoryFs::new()), OPEN_MAX);
        let env = Env { fs: Arc::new(fs.clone()), ..Env::system() };
        let db = Db::open_in(env, "/db", options(placement, Workers::Threads(2))).unwrap();
        let keyspace = db.default_keyspace();
        fill(keyspace, COUNT, 0);
        let read = |reader: usize| {
            for number in (0..COUNT).cycle().skip(reader * 100).step_by(7).take(700) {
                let found = keyspace.get(key(number)).unwrap().unwrap();
                assert!((0..4).any(|round| found == value(number, round).as_bytes()), "{number}");
            }
        };
        thread::scope(|scope| {
            (0..READERS).for_each(|reader| drop(scope.spawn(move || read(reader))));
            (1..4).for_each(|round| fill(keyspace, COUNT, round));
        });
        check(keyspace, COUNT, 3);
        // One read under way for each thread, including the writer and the workers.
        assert!(fs.over_max() <= READERS + 4, "{placement:?}: {} too many", fs.over_max());
    }
}
