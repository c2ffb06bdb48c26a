//! Separated values: GC, snapshots during it, deletes, space.

mod checkpoints;
mod cold_log;
mod reads;
mod scans;
mod space;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use bifold::{
    Db, Durability, Env, KeyspaceOptions, Options, PlacementKind, Workers,
    options::{DiffKv, HashKv, Values},
};
use bifold_io::{
    disk::DiskFs,
    faulty::{Call, FaultyFs},
};

use crate::support::{TempDir, entries, files_to_copy, tiny};

/// Groups and files of a few KiB, so that GC runs every few hundred writes.
fn separated(placement: PlacementKind) -> Options {
    let values = Values {
        separate_from_bytes: Some(64),
        file_bytes: 16 << 10,
        hashkv: HashKv { group_bytes: 8 << 10, ..HashKv::default() },
        diffkv: DiffKv { large_bytes: 250, ..DiffKv::default() },
        ..Values::default()
    };
    Options { keyspace: KeyspaceOptions { placement, values, ..tiny().keyspace }, ..tiny() }
}

const SEPARATED: [PlacementKind; 5] = [
    PlacementKind::WiscKey,
    PlacementKind::HashKv,
    PlacementKind::NovKv,
    PlacementKind::DiffKv,
    PlacementKind::Streams,
];

/// Those that hold so little data to its target. In `streams` the files that are appended to are much of it.
const TIGHT: [PlacementKind; 4] =
    [PlacementKind::WiscKey, PlacementKind::HashKv, PlacementKind::NovKv, PlacementKind::DiffKv];

fn key(n: u32) -> String {
    format!("key{n:05}")
}

fn value(n: u32, round: u32) -> Vec<u8> {
    format!("{n}.{round} ").into_bytes().repeat(20 + (n % 30) as usize)
}

fn update_all(db: &Db, keys: u32, round: u32) {
    (0..keys).for_each(|n| db.put(key(n * 7 % keys), value(n * 7 % keys, round)).unwrap());
}

fn check_all(db: &Db, keys: u32, round: u32) {
    for n in 0..keys {
        assert_eq!(db.get(key(n)).unwrap().as_deref(), Some(&value(n, round)[..]), "key {n}");
    }
}

#[test]
fn garbage_is_collected_by_itself_and_nothing_changes() {
    for placement in SEPARATED {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), separated(placement)).unwrap();
        (0..6).for_each(|round| update_all(&db, 1000, round));
        db.wait_idle().unwrap();
        let stats = db.stats();
        assert!(stats.gc.jobs > 0, "{placement:?}: {:?}", stats.gc);
        let for_users = stats.io.iter().find(|io| io.source == "get").unwrap();
        assert_eq!(for_users.bytes_read, 0, "{placement:?}: nobody has asked for a key, but GC");
        check_all(&db, 1000, 5);
        let asks = matches!(placement, PlacementKind::WiscKey | PlacementKind::DiffKv | PlacementKind::Streams);
        let inserts = !matches!(placement, PlacementKind::NovKv | PlacementKind::Streams);
        assert_eq!(stats.gc.index_lookups > 0, asks, "{:?}", stats.gc);
        match placement {
            // Its merges may have left a whole log dead.
            PlacementKind::DiffKv => {}
            _ => assert_eq!(stats.gc.index_inserts > 0, inserts, "{:?}", stats.gc),
        }
        db.close().unwrap();
        let db = Db::open_with(dir.join("db"), separated(placement)).unwrap();
        check_all(&db, 1000, 5);
        db.close().unwrap();
        assert_eq!(bifold::verify(dir.join("db")).unwrap().problems.len(), 0);
    }
}

#[test]
fn a_snapshot_reads_the_same_however_often_values_move() {
    for placement in SEPARATED {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), separated(placement)).unwrap();
        update_all(&db, 500, 0);
        let snapshot = db.snapshot();
        let before = entries(snapshot.iter(db.default_keyspace()));
        for round in 1..5 {
            update_all(&db, 500, round);
            db.collect_garbage().unwrap();
            assert!(entries(snapshot.iter(db.default_keyspace())) == before, "{placement:?}, round {round}");
        }
        drop(snapshot);
        db.collect_garbage().unwrap();
        assert_eq!(db.stats().space.drained_bytes, 0, "{placement:?}");
        check_all(&db, 500, 4);
    }
}

/// GC may handle short values together and long ones alone; they stay in order.
#[test]
fn values_of_all_lengths_are_in_one_file_and_move() {
    for placement in PlacementKind::ALL {
        let mut options = Options { memory_limit: 64 << 20, memtable_bytes: 1 << 20, ..separated(placement) };
        options.keyspace.values.file_bytes = 1 << 20;
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), options.clone()).unwrap();
        let long = |n: u32, round: u32| vec![(n + round) as u8; [80, 1000, 30_000, 70_000, 130_000][n as usize % 5]];
        for round in 0..4 {
            for n in (0..60).filter(|n| round == 0 || (n * 7 + round) % 3 > 0) {
                db.put(key(n), long(n, round)).unwrap();
            }
            db.flush().unwrap();
            db.collect_garbage().unwrap();
        }
        db.close().unwrap();
        assert_eq!(bifold::verify(dir.join("db")).unwrap().problems.len(), 0, "{placement:?}");
        let db = Db::open_with(dir.join("db"), options).unwrap();
        for n in 0..60 {
            let newest = (0..4).rev().find(|round| *round == 0 || (n * 7 + round) % 3 > 0).unwrap();
            assert!(db.get(key(n)).unwrap().as_deref() == Some(&long(n, newest)[..]), "{placement:?}, key {n}");
        }
    }
}

#[test]
fn deleted_keys_do_not_come_back_when_values_move() {
    for placement in SEPARATED {
        let dir = TempDir::new();
        let mut db = Db::open_with(dir.join("db"), separated(placement)).unwrap();
        update_all(&db, 600, 0);
        for n in (0..600).step_by(3) {
            db.delete(key(n)).unwrap();
        }
        db.default_keyspace().delete_range(key(200)..key(300)).unwrap();
        for n in (1..600).step_by(3) {
            db.put(key(n), "small").unwrap();
        }
        let model: BTreeMap<Vec<u8>, Vec<u8>> = (0..600)
            .filter(|n| n % 3 == 1 || (n % 3 == 2 && !(200..300).contains(n)))
            .map(|n| (key(n).into_bytes(), if n % 3 == 1 { b"small".to_vec() } else { value(n, 0) }))
            .collect();
        for _ in 0..3 {
            db.collect_garbage().unwrap();
            db.compact().unwrap();
            let found: BTreeMap<_, _> = entries(db.default_keyspace().iter()).into_iter().collect();
            assert!(found == model, "{placement:?}");
            db.close().unwrap();
            db = Db::open_with(dir.join("db"), separated(placement)).unwrap();
        }
    }
}

#[test]
fn garbage_is_explained() {
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), separated(PlacementKind::HashKv)).unwrap();
    update_all(&db, 300, 0);
    let units = db.explain_garbage();
    assert!(!units.is_empty() && units.iter().all(|unit| unit.held.is_some()), "{units:?}");
    assert_eq!(units.iter().map(|unit| unit.live_bytes).sum::<u64>(), db.stats().space.live_values_estimate);
}

#[test]
fn another_placement_than_the_one_a_database_has_is_an_error() {
    let dir = TempDir::new();
    Db::open_with(dir.join("db"), separated(PlacementKind::HashKv)).unwrap().close().unwrap();
    let says_so = |error: bifold::Error| {
        let error = error.to_string();
        let words = ["`hashkv`", "`wisckey`", "placement", "bifold convert"];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    says_so(Db::open_with(dir.join("db"), separated(PlacementKind::WiscKey)).unwrap_err());
    let db = Db::open(dir.join("db")).unwrap();
    for name in ["default", "other"] {
        db.keyspace(name, separated(PlacementKind::HashKv).keyspace).unwrap();
        says_so(db.keyspace(name, separated(PlacementKind::WiscKey).keyspace).unwrap_err());
        // Default options ask for no placement.
        let keyspace = db.keyspace(name, KeyspaceOptions::default()).unwrap();
        keyspace.put("key", value(1, 1)).unwrap();
    }
    assert!(db.stats().keyspaces.iter().all(|keyspace| keyspace.placement == "hashkv"));
    db.close().unwrap();
}

/// A power loss may delete the name of a value file and leave the log that points into it. The next opening must not
/// give that number to a new file.
#[test]
fn a18_numbers_that_logs_point_at_are_not_used_again() {
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), separated(PlacementKind::HashKv)).unwrap();
    let group = |n: u32| bifold_format::filter::key_hash(key(n).as_bytes()) & 15;
    let (first, other) = (1, (2..).find(|&n| group(n) != group(1)).unwrap());
    db.put(key(first), [1; 100]).unwrap();
    db.delete_range("x".."y").unwrap();
    db.put(key(other), [2; 100]).unwrap();
    // As a crash leaves it. The files of the range and of the other key are lost: the next opening would give their
    // numbers to a log and to a value file.
    let image = dir.join("image");
    std::fs::create_dir(&image).unwrap();
    let files = files_to_copy(&dir.join("db"));
    let values: Vec<_> = files.iter().filter(|path| path.extension().is_some_and(|e| e == "val")).cloned().collect();
    assert_eq!(values.len(), 3);
    for path in files.iter().filter(|path| !values[1..].contains(path)) {
        std::fs::copy(path, image.join(path.file_name().unwrap())).unwrap();
    }
    db.close().unwrap();
    let db = Db::open_with(&image, separated(PlacementKind::HashKv)).unwrap();
    assert_eq!(db.get(key(first)).unwrap().as_deref(), Some(&[1; 100][..]));
    assert_eq!(db.get(key(other)).unwrap(), None);
}

/// Nothing is flushed to tables by itself.
fn in_memtable(options: Options) -> Options {
    Options { memory_limit: 32 << 20, memtable_bytes: 2 << 20, ..options }
}

/// Copies the directory as a process killed now would leave it.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for path in files_to_copy(from) {
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// A process that is killed between a value and its log record leaves ends of files that no log record points at. The
/// files are truncated and written to at once, so that anything left over from checking them for the other keyspace
/// is found.
#[test]
fn files_that_end_with_values_that_never_happened_go_on_where_they_were_truncated() {
    for placement in SEPARATED {
        let dir = TempDir::new();
        // GC would sync the log.
        let mut options = separated(placement);
        options.keyspace.values.space_target = 100.0;
        options.keyspace.values.diffkv.large_bytes = 1;
        let put_all = |db: &Db, round, durability| {
            let other = db.keyspace("other", options.keyspace.clone()).unwrap();
            for n in 0..40 {
                let mut batch = db.batch();
                batch.put(db.default_keyspace(), key(n), value(n, round)).unwrap();
                batch.put(&other, key(n), value(n, round)).unwrap();
                db.commit_with(batch, durability).unwrap();
            }
        };
        let check = |db: &Db, round| {
            let other = db.existing_keyspace("other").unwrap().unwrap();
            check_all(db, 40, round);
            (0..40).for_each(|n| assert_eq!(other.get(key(n)).unwrap().as_deref(), Some(&value(n, round)[..])));
        };
        let path = dir.join("db");
        let db = Db::open_with(&path, options.clone()).unwrap();
        put_all(&db, 0, Durability::Sync);
        db.flush().unwrap();
        db.close().unwrap();
        let db = Db::open_with(&path, options.clone()).unwrap();
        // Values go to their files, but their records stay in this process.
        put_all(&db, 1, Durability::Memory);
        let image = dir.join("image");
        copy(&path, &image);
        db.close().unwrap();
        let db = Db::open_with(&image, options.clone()).unwrap();
        check(&db, 0);
        put_all(&db, 2, Durability::Sync);
        check(&db, 2);
        db.close().unwrap();
        let db = Db::open_with(&image, options.clone()).unwrap();
        check(&db, 2);
        db.close().unwrap();
        assert_eq!(bifold::verify(&image).unwrap().problems.len(), 0, "{placement:?}");
    }
}

/// A killed process leaves ends of files that no manifest records. They are truncated, and both keyspaces go on.
#[test]
fn files_truncated_after_a_kill_go_on_where_they_were_truncated() {
    for placement in SEPARATED {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), separated(placement)).unwrap();
        let other = db.keyspace("other", separated(placement).keyspace).unwrap();
        let put = |tree: &bifold::Keyspace, round| (0..40).for_each(|n| tree.put(key(n), value(n, round)).unwrap());
        put(&other, 0);
        update_all(&db, 40, 0);
        db.flush().unwrap();
        put(&other, 1);
        update_all(&db, 40, 1);
        let image = dir.join("image");
        copy(&dir.join("db"), &image);
        db.close().unwrap();
        let db = Db::open_with(&image, separated(placement)).unwrap();
        let other = db.existing_keyspace("other").unwrap().unwrap();
        check_all(&db, 40, 1);
        update_all(&db, 20, 2);
        put(&other, 2);
        db.collect_garbage().unwrap();
        check_all(&db, 20, 2);
        drop(other);
        db.close().unwrap();
        assert_eq!(bifold::verify(&image).unwrap().problems.len(), 0, "{placement:?}");
    }
}

/// The memory that groups use for their keys is within the memory limit, and shown.
#[test]
fn the_memory_of_groups_is_counted_and_kept_within_the_limit() {
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), separated(PlacementKind::HashKv)).unwrap();
    let before = db.stats().memory.values;
    (0..20_000).for_each(|n| db.put(key(n), [0; 64]).unwrap());
    let (memory, files) = (db.stats().memory, db.stats().space.value_files);
    let filters = memory.values - files * 1200;
    assert!(memory.values > before && filters > 20_000, "{memory:?}");
    assert!(filters <= memory.limit / 20, "{memory:?}");
}

/// While a commit is under way its values are in files already, and no address leads to them yet: concurrent GC must
/// not take them for garbage.
#[test]
fn values_of_a_commit_under_way_are_not_collected() {
    for placement in SEPARATED {
        let dir = TempDir::new();
        let fs = FaultyFs::new(Arc::new(DiskFs));
        let mut options = separated(placement);
        (options.workers, options.keyspace.values.diffkv.large_bytes) = (Workers::Threads(2), 1);
        let db =
            Db::open_in(Env { fs: Arc::new(fs.clone()), ..Env::system() }, dir.join("db"), options.clone()).unwrap();
        // So that the manifest has the file in which the commit's values begin.
        db.put(key(0), value(0, 0)).unwrap();
        db.flush().unwrap();
        let (begin, begun) = mpsc::channel();
        let is_first = AtomicBool::new(true);
        let wait_once = move |call: &Call<'_>| {
            let is_log = call.op == "append to" && call.path.extension().is_some_and(|e| e == "log");
            if is_log && is_first.swap(false, Relaxed) {
                begin.send(()).unwrap();
                // GC either ends meanwhile or waits for this commit.
                thread::sleep(Duration::from_millis(200));
            }
            None
        };
        fs.decide_by(Box::new(wait_once));
        thread::scope(|scope| {
            let commit = || {
                let mut batch = db.batch();
                for n in 0..200 {
                    batch.put(db.default_keyspace(), key(n), value(n, 1)).unwrap();
                }
                db.commit(batch).unwrap();
            };
            let commit = scope.spawn(commit);
            begun.recv().unwrap();
            db.collect_garbage().unwrap();
            commit.join().unwrap();
        });
        db.collect_garbage().unwrap();
        check_all(&db, 200, 1);
        db.close().unwrap();
        let db = Db::open_with(dir.join("db"), options).unwrap();
        check_all(&db, 200, 1);
    }
}
