//! Damage that compactions and GC find: it is reported, its file is left out, and everything else goes on.

mod knowledge;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use bifold::{
    Compaction, Db, Env, Error, KeyspaceOptions, Options, PlacementKind, Workers,
    options::{Cold, DiffKv, HashKv, TwoLayer, Values},
    verify_in,
};
use bifold_io::{
    faulty::{Call, FaultKind, FaultyFs},
    memory::MemoryFs,
};

use crate::support::tiny;

const DIR: &str = "/db";
const KEYS: u32 = 600;

/// Each placement that separates values, with files of a few KiB.
fn placements() -> Vec<(&'static str, Options)> {
    let values = Values {
        separate_from_bytes: Some(64),
        file_bytes: 16 << 10,
        hashkv: HashKv { group_bytes: 8 << 10, ..HashKv::default() },
        diffkv: DiffKv { large_bytes: 250, ..DiffKv::default() },
        ..Values::default()
    };
    let of = |placement, values| KeyspaceOptions { placement, values, ..tiny().keyspace };
    let two_layer = TwoLayer { unsorted_bytes: 32 << 10, ..TwoLayer::default() };
    let unikv = KeyspaceOptions {
        compaction: Compaction::TwoLayer(two_layer),
        partition_bytes: Some(1 << 20),
        ..of(PlacementKind::UniKv, values)
    };
    let cold_log = Values { hashkv: HashKv { cold: Cold::Log, ..values.hashkv }, ..values };
    let keyspaces = [
        ("streams", of(PlacementKind::Streams, values)),
        ("wisckey", of(PlacementKind::WiscKey, values)),
        ("hashkv", of(PlacementKind::HashKv, values)),
        ("hashkv with a cold log", of(PlacementKind::HashKv, cold_log)),
        ("novkv", of(PlacementKind::NovKv, values)),
        ("diffkv", of(PlacementKind::DiffKv, values)),
        ("unikv", unikv),
    ];
    keyspaces.map(|(name, keyspace)| (name, Options { keyspace, ..tiny() })).into()
}

fn env(fs: &MemoryFs) -> Env {
    Env { fs: Arc::new(fs.clone()), ..Env::system() }
}

fn open(fs: &MemoryFs, options: &Options) -> Db {
    Db::open_in(env(fs), DIR, options.clone()).unwrap()
}

fn key(n: u32) -> String {
    format!("key{n:05}")
}

fn value(n: u32, round: u32) -> Vec<u8> {
    format!("{n}.{round} ").into_bytes().repeat(20 + (n % 30) as usize)
}

fn update_all_but(db: &Db, but: Option<u32>, round: u32) {
    let order = (0..KEYS).map(|n| n * 7 % KEYS);
    order.filter(|n| Some(*n) != but).for_each(|n| db.put(key(n), value(n, round)).unwrap());
}

/// Checks that `error` names the damaged file and an offset.
fn names(error: &Error, path: &Path) -> bool {
    matches!(error, Error::Corruption { path: of, .. } if of == path) && error.to_string().contains("offset")
}

/// The keys that cannot be read. Checks that all others have the right values.
fn unreadable(db: &Db, path: &Path, round: impl Fn(u32) -> u32) -> Vec<u32> {
    let is_lost = |&n: &u32| match db.get(key(n)) {
        Ok(found) => {
            assert_eq!(found.as_deref(), Some(&value(n, round(n))[..]), "key {n}");
            false
        }
        Err(error) => {
            assert!(names(&error, path), "key {n}: {error}");
            true
        }
    };
    (0..KEYS).filter(is_lost).collect()
}

fn files(fs: &MemoryFs, extension: &str) -> Vec<PathBuf> {
    fs.files().into_iter().filter(|path| path.extension().is_some_and(|end| end == extension)).collect()
}

/// A closed database with one damaged value: its files, the damaged file, and the key.
fn with_damage(options: &Options) -> (MemoryFs, PathBuf, u32) {
    let fs = MemoryFs::new();
    let db = open(&fs, options);
    (0..3).for_each(|round| update_all_but(&db, None, round));
    db.flush().unwrap();
    db.wait_idle().unwrap();
    db.close().unwrap();
    for path in files(&fs, "val") {
        let len = fs.read(&path).unwrap().len() as u64;
        for at in (64..len).step_by(97) {
            let image = fs.fork();
            image.flip_bit(&path, at * 8 + 2);
            let Ok(db) = Db::open_in(env(&image), DIR, options.clone()) else { continue };
            if let [lost] = unreadable(&db, &path, |_| 2)[..] {
                drop(db);
                let image = fs.fork();
                image.flip_bit(&path, at * 8 + 2);
                return (image, path, lost);
            }
        }
    }
    panic!("no byte of any file belongs to one value alone");
}

/// Overwrites all but one key until a job has found the damage. Returns the last round.
fn work_until_found(db: &Db, lost: u32, first: u32) -> u32 {
    for round in first..first + 40 {
        update_all_but(db, Some(lost), round);
        db.wait_idle().unwrap();
        if !db.stats().left_out.is_empty() {
            return round;
        }
    }
    panic!("no job has found the damage");
}

#[test]
fn damage_that_a_job_finds_costs_its_value_and_nothing_else() {
    for (name, options) in placements() {
        let (fs, path, lost) = with_damage(&options);
        let mut round = 2;
        // The second session behaves the same.
        for session in 0..2 {
            let db = open(&fs, &options);
            let what = format!("{name}, session {session}, key {lost} in {}", path.display());
            round = work_until_found(&db, lost, round + 1);
            assert_eq!(db.stats().poisoned, None, "{what}");
            let left_out = db.left_out();
            assert!(left_out.len() == 1 && names(&left_out[0], &path), "{what}: {left_out:?}");
            for _ in 0..10 {
                round += 1;
                update_all_but(&db, Some(lost), round);
                db.wait_idle().unwrap();
            }
            assert_eq!(unreadable(&db, &path, |_| round), [lost], "{what}");
            for explicit in [db.collect_garbage(), db.compact(), db.collect_garbage()] {
                let error = explicit.expect_err(&what);
                assert!(names(&error, &path), "{what}: {error}");
            }
            assert!(db.left_out().len() == 1 && db.stats().poisoned.is_none(), "{what}: {:?}", db.stats().left_out);
            assert_eq!(unreadable(&db, &path, |_| round), [lost], "{what}");
            let space = db.stats().space;
            let live: u64 = (0..KEYS).map(|n| value(n, round).len() as u64 + 60).sum();
            let rest = space.values_bytes - space.left_out_bytes;
            assert!(rest < live * 8 / 5, "{what}: {rest} bytes of files for {live} live ones");
            // With `hashkv` that is the whole group: nobody can tell its garbage from live values.
            let is_group = options.keyspace.placement == PlacementKind::HashKv;
            assert!(space.left_out_bytes > 0 && (is_group || space.left_out_bytes < live / 8), "{what}: {space:?}");
            assert!(fs.read(&path).is_some(), "{what}: the file is deleted");
            db.close().unwrap();
            let problems = verify_in(&env(&fs), DIR, |_| ()).unwrap().problems;
            assert!(problems.len() == 1 && names(&problems[0], &path), "{what}: {problems:?}");
        }
        // Once overwritten, the damaged value is no longer needed.
        let db = open(&fs, &options);
        db.put(key(lost), value(lost, round)).unwrap();
        assert_eq!(unreadable(&db, &path, |_| round), [], "{name}");
        update_all_but(&db, None, round + 1);
        db.wait_idle().unwrap();
        assert_eq!(unreadable(&db, &path, |_| round + 1), [], "{name}");
        assert_eq!(db.stats().poisoned, None, "{name}");
    }
}

/// The bytes that background work has read so far.
fn work_read(db: &Db) -> u64 {
    let works = |source: &str| !matches!(source, "get" | "scan");
    db.stats().io.iter().filter(|io| works(io.source)).map(|io| io.bytes_read).sum()
}

#[test]
fn workers_rest_after_they_have_found_damage() {
    for (name, options) in placements() {
        let (fs, path, lost) = with_damage(&options);
        let db = open(&fs, &Options { workers: Workers::Threads(2), ..options });
        let round = work_until_found(&db, lost, 3);
        db.wait_idle().unwrap();
        let before = work_read(&db);
        thread::sleep(Duration::from_millis(200));
        assert_eq!(work_read(&db), before, "{name}: something is tried again and again");
        assert_eq!(unreadable(&db, &path, |_| round), [lost], "{name}");
        assert_eq!(db.stats().poisoned, None, "{name}");
        db.close().unwrap();
    }
}

#[test]
fn a_damaged_table_is_left_where_it_is() {
    let two_layer = TwoLayer { unsorted_bytes: 32 << 10, ..TwoLayer::default() };
    for compaction in [Compaction::default(), Compaction::TwoLayer(two_layer)] {
        let keyspace = KeyspaceOptions { compaction, ..tiny().keyspace };
        let options = Options { keyspace, ..tiny() };
        let fs = MemoryFs::new();
        let db = open(&fs, &options);
        update_all_but(&db, None, 0);
        db.compact().unwrap();
        db.close().unwrap();
        let tables = files(&fs, "tbl");
        assert!(tables.len() > 3, "{tables:?}");
        let path = tables[tables.len() / 2].clone();
        fs.flip_bit(&path, 700 * 8);
        let db = open(&fs, &options);
        let lost = unreadable(&db, &path, |_| 0);
        assert!(!lost.is_empty() && lost.len() < 20, "{lost:?}");
        // Level 0 is merged around it as far as possible; entries that overlap it stay for good.
        for round in 1..20 {
            let others = (0..KEYS).filter(|n| !lost.contains(n));
            others.for_each(|n| db.put(key(n), value(n, round)).unwrap());
            db.wait_idle().unwrap();
        }
        let left_out = db.left_out();
        assert!(left_out.len() == 1 && names(&left_out[0], &path), "{left_out:?}");
        for explicit in [db.compact(), db.default_keyspace().compact_range::<&[u8]>(..)] {
            assert!(names(&explicit.unwrap_err(), &path));
        }
        let reads_as_before = |db: &Db| {
            assert_eq!(db.stats().poisoned, None);
            assert_eq!(unreadable(db, &path, |_| 19), lost);
        };
        reads_as_before(&db);
        db.close().unwrap();
        let db = open(&fs, &options);
        reads_as_before(&db);
        lost.iter().for_each(|&n| db.put(key(n), value(n, 19)).unwrap());
        assert_eq!(unreadable(&db, &path, |_| 19), []);
    }
}

/// The index cannot be asked about a few keys that were written one after the other.
#[test]
fn a_damaged_table_keeps_only_files_with_its_values_from_gc() {
    let asks = |name: &&str| ["streams", "wisckey"].contains(name);
    for (name, options) in placements().into_iter().filter(|(name, _)| asks(name)) {
        let fs = MemoryFs::new();
        let db = open(&fs, &options);
        (0..KEYS).for_each(|n| db.put(key(n), value(n, 0)).unwrap());
        db.compact().unwrap();
        db.close().unwrap();
        let tables = files(&fs, "tbl");
        let damaged = tables.iter().flat_map(|path| [100, 700].map(|at| (path, at))).find_map(|(path, at)| {
            let image = fs.fork();
            image.flip_bit(path, at * 8);
            let db = Db::open_in(env(&image), DIR, options.clone()).ok()?;
            let lost = unreadable(&db, path, |_| 0);
            (1..60).contains(&lost.len()).then_some((db, path, lost))
        });
        let (db, path, lost) = damaged.expect("a block with a few keys");
        for _ in 0..2 {
            assert!(names(&db.collect_garbage().unwrap_err(), path), "{name}");
            let space = db.stats().space;
            let (left_out, all) = (space.left_out_bytes, space.values_bytes);
            assert!(0 < left_out && left_out < all / 2, "{name}: {left_out} of {all} bytes are left out");
        }
        assert_eq!(db.stats().poisoned, None, "{name}");
        assert_eq!(unreadable(&db, path, |_| 0), lost, "{name}");
    }
}

/// A value file that the system cannot read is treated like a damaged one; a failed write is not.
#[test]
fn a_file_that_cannot_be_read_is_left_out_and_one_that_cannot_be_written_poisons() {
    for (name, options) in placements() {
        for (call, poisons) in [("read", false), ("append to", true)] {
            let fs = MemoryFs::new();
            let faulty = FaultyFs::over_memory(fs.clone());
            let env = Env { fs: Arc::new(faulty.clone()), ..Env::system() };
            let db = Db::open_in(env, DIR, options.clone()).unwrap();
            (0..2).for_each(|round| update_all_but(&db, None, round));
            db.wait_idle().unwrap();
            let first = files(&fs, "val")[0].clone();
            let is_it =
                move |path: &Path| if poisons { path.extension().is_some_and(|e| e == "val") } else { path == first };
            faulty.decide_by(Box::new(move |call_now: &Call<'_>| {
                (call_now.op == call && is_it(call_now.path)).then_some(FaultKind::EIO)
            }));
            let outcome = (2..30).try_for_each(|round| {
                let put = |n: u32| db.put(key(n), value(n, round));
                (0..KEYS).try_for_each(put)?;
                db.wait_idle()?;
                db.collect_garbage()
            });
            faulty.clear();
            assert_eq!(
                db.stats().poisoned.is_some(),
                poisons,
                "{name}, {call}: {outcome:?}, {:?}",
                db.stats().left_out
            );
        }
    }
}

/// The value files of a rewrite are deleted when it is given up: nothing would ever account for them again.
#[test]
fn a_rewrite_that_is_given_up_leaves_no_value_file() {
    for (name, options) in placements() {
        let fs = MemoryFs::new();
        let faulty = FaultyFs::over_memory(fs.clone());
        let env = Env { fs: Arc::new(faulty.clone()), ..Env::system() };
        let db = Db::open_in(env, DIR, options).unwrap();
        (0..2).for_each(|round| update_all_but(&db, None, round));
        db.flush().unwrap();
        db.wait_idle().unwrap();
        let before = (db.stats().space.values_bytes, files(&fs, "val"), files(&fs, "tbl"));
        // The first sync of the directory is that of an install.
        faulty.decide_by(Box::new(|call_now: &Call<'_>| (call_now.op == "sync directory").then_some(FaultKind::EIO)));
        db.compact().unwrap_err();
        faulty.clear();
        assert!(db.stats().poisoned.is_some(), "{name}");
        let after = (db.stats().space.values_bytes, files(&fs, "val"), files(&fs, "tbl"));
        assert_eq!(after, before, "{name}");
    }
}
