//! Values apart from their keys: collection, snapshots across it, deletes, space.

mod cold_log;

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

use bifold::{CachedValues, Db, Durability, Env, KeyspaceOptions, Options, Placement, Reads, Workers, options::Values};
use bifold_io::{
    disk::DiskFs,
    faulty::{Call, FaultyFs},
};

use crate::support::{TempDir, pairs, tiny};

/// Groups and files of a few KiB, so that garbage is collected every few hundred writes.
fn apart(placement: Placement) -> Options {
    let (group_bytes, file_bytes) = (8 << 10, 16 << 10);
    let values = Values { min_bytes: 64, large_bytes: 250, group_bytes, file_bytes, ..Values::default() };
    Options { keyspace: KeyspaceOptions { placement, values, ..tiny().keyspace }, ..tiny() }
}

const APART: [Placement; 4] = [Placement::WiscKey, Placement::HashKv, Placement::NovKv, Placement::DiffKv];

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
    for placement in APART {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), apart(placement)).unwrap();
        (0..6).for_each(|round| update_all(&db, 1000, round));
        db.wait_idle().unwrap();
        check_all(&db, 1000, 5);
        let stats = db.stats();
        assert!(stats.gc.jobs > 0, "{placement:?}: {:?}", stats.gc);
        let asks = matches!(placement, Placement::WiscKey | Placement::DiffKv);
        assert_eq!(stats.gc.index_lookups > 0, asks, "{:?}", stats.gc);
        match placement {
            // Its merges may have brought it about that all of a log is dead.
            Placement::DiffKv => {}
            _ => assert_eq!(stats.gc.index_inserts == 0, placement == Placement::NovKv, "{:?}", stats.gc),
        }
        db.close().unwrap();
        let db = Db::open_with(dir.join("db"), apart(placement)).unwrap();
        check_all(&db, 1000, 5);
        db.close().unwrap();
        assert_eq!(bifold::verify(dir.join("db")).unwrap().problems.len(), 0);
    }
}

/// With merges, which tell what they drop, and without.
#[test]
fn space_keeps_to_its_target_whether_or_not_anything_is_merged() {
    for (placement, options) in APART.into_iter().flat_map(|p| [(p, apart(p)), (p, in_memtable(apart(p)))]) {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), options).unwrap();
        let live: u64 = (0..1000).map(|n| value(n, 0).len() as u64 + 60).sum();
        for round in 0..8 {
            update_all(&db, 1000, round);
            db.wait_idle().unwrap();
            let held = db.stats().space.values_bytes;
            assert!(held < live * 8 / 5, "{placement:?}, round {round}: {held} bytes of files for {live} live ones");
        }
        check_all(&db, 1000, 7);
    }
}

/// A few keys get most updates, so that what is oldest is mostly live.
#[test]
fn space_keeps_to_its_target_under_skewed_updates() {
    for placement in APART {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), in_memtable(apart(placement))).unwrap();
        update_all(&db, 1000, 0);
        let live: u64 = (0..1000).map(|n| value(n, 0).len() as u64 + 60).sum();
        let mut draw: u64 = 1;
        for round in 1..=8 {
            for _ in 0..1000 {
                draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let uniform = (draw >> 32) as f64 / f64::from(u32::MAX);
                let n = (1000.0 * uniform.powi(6)) as u32 % 1000;
                db.put(key(n), value(n, round)).unwrap();
            }
            db.wait_idle().unwrap();
            let held = db.stats().space.values_bytes;
            assert!(held < live * 8 / 5, "{placement:?}, round {round}: {held} bytes of files for {live} live ones");
        }
    }
}

#[test]
fn what_is_only_written_once_is_looked_at_rarely_and_never_copied() {
    const KEYS: u32 = 20_000;
    for options in [apart(Placement::WiscKey), in_memtable(apart(Placement::WiscKey))] {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), options.clone()).unwrap();
        update_all(&db, KEYS, 0);
        db.wait_idle().unwrap();
        let gc = db.stats().gc;
        assert_eq!((gc.jobs, gc.bytes), (0, 0), "{gc:?}");
        assert!(0 < gc.index_lookups && gc.index_lookups < u64::from(KEYS) / 2, "{gc:?}");
        // And when nothing is written, not at all.
        db.flush().unwrap();
        db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
        db.wait_idle().unwrap();
        assert_eq!(db.stats().gc.index_lookups, gc.index_lookups);
        db.close().unwrap();
        let db = Db::open_with(dir.join("db"), options).unwrap();
        db.wait_idle().unwrap();
        let gc = db.stats().gc;
        assert!(gc.jobs == 0 && gc.index_lookups <= 512, "{gc:?}");
    }
}

#[test]
fn what_deletes_leave_behind_goes_whether_or_not_anything_is_merged() {
    for placement in APART {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), in_memtable(apart(placement))).unwrap();
        update_all(&db, 4000, 0);
        if placement == Placement::DiffKv {
            // Else most values are in the memtable still.
            db.flush().unwrap();
        }
        db.wait_idle().unwrap();
        let before = db.stats().space.values_bytes;
        (0..3200).for_each(|n| db.delete(key(n)).unwrap());
        db.wait_idle().unwrap();
        let after = db.stats().space.values_bytes;
        assert!(after * 2 < before, "{placement:?}: {before} bytes became {after}");
        if matches!(placement, Placement::NovKv | Placement::DiffKv) {
            // Nobody knows how much a range delete hides before a merge has met it.
            continue;
        }
        db.delete_range::<&str>(..).unwrap();
        db.wait_idle().unwrap();
        let last = db.stats().space.values_bytes;
        assert!(last * 3 < before, "{placement:?}: {before} bytes became {last}");
    }
}

#[test]
fn a_snapshot_reads_the_same_however_often_values_move() {
    for placement in APART {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), apart(placement)).unwrap();
        update_all(&db, 500, 0);
        let snapshot = db.snapshot();
        let before = pairs(snapshot.iter(db.default_keyspace()));
        for round in 1..5 {
            update_all(&db, 500, round);
            db.collect_garbage().unwrap();
            assert!(pairs(snapshot.iter(db.default_keyspace())) == before, "{placement:?}, round {round}");
        }
        drop(snapshot);
        db.collect_garbage().unwrap();
        assert_eq!(db.stats().space.drained_bytes, 0, "{placement:?}");
        check_all(&db, 500, 4);
    }
}

#[test]
fn what_a_snapshot_pins_is_shown_with_its_reason_until_it_is_gone() {
    // Where values move without writes, no emptied file is kept: snapshots find them where they are.
    for placement in [Placement::WiscKey, Placement::HashKv] {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), apart(placement)).unwrap();
        update_all(&db, 500, 0);
        let older = db.snapshot();
        update_all(&db, 500, 1);
        let newer = db.snapshot();
        update_all(&db, 500, 2);
        db.collect_garbage().unwrap();
        let space = db.stats().space;
        let by = space.pinned_by.clone().unwrap();
        assert_eq!((by.seqno, by.kind), (older.seqno(), "snapshot"), "{placement:?}: {space:?}");
        assert!(space.pinned_bytes > 0 && space.pinned_bytes + space.awaiting_sync_bytes == space.drained_bytes);
        assert_eq!(space.reclaimable_bytes_estimate, space.awaiting_sync_bytes, "{placement:?}: {space:?}");

        drop(older);
        db.collect_garbage().unwrap();
        let by = db.stats().space.pinned_by.map(|by| by.seqno);
        assert_eq!(by, Some(newer.seqno()), "{placement:?}");
        drop(newer);
        // Nothing reads them any more, but they are there until something syncs.
        let space = db.stats().space;
        assert_eq!((space.pinned_bytes, space.pinned_by.is_none()), (0, true), "{placement:?}: {space:?}");
        assert!(
            space.awaiting_sync_bytes == space.drained_bytes && space.drained_bytes > 0,
            "{placement:?}: {space:?}"
        );
        assert!(space.reclaimable_bytes_estimate >= space.drained_bytes, "{placement:?}: {space:?}");

        db.collect_garbage().unwrap();
        let space = db.stats().space;
        assert_eq!((space.drained_bytes, space.awaiting_sync_bytes), (0, 0), "{placement:?}: {space:?}");
        check_all(&db, 500, 2);
    }
}

#[test]
fn what_was_deleted_does_not_come_back_when_values_move() {
    for placement in APART {
        let dir = TempDir::new();
        let mut db = Db::open_with(dir.join("db"), apart(placement)).unwrap();
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
            let found: BTreeMap<_, _> = pairs(db.default_keyspace().iter()).into_iter().collect();
            assert!(found == model, "{placement:?}");
            db.close().unwrap();
            db = Db::open_with(dir.join("db"), apart(placement)).unwrap();
        }
    }
}

#[test]
fn garbage_is_explained() {
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), apart(Placement::HashKv)).unwrap();
    update_all(&db, 300, 0);
    let units = db.explain_garbage();
    assert!(!units.is_empty() && units.iter().all(|unit| unit.held.is_some()), "{units:?}");
    assert_eq!(units.iter().map(|unit| unit.live_bytes).sum::<u64>(), db.stats().space.live_values_estimate);
}

#[test]
fn another_placement_than_the_one_a_database_has_is_an_error() {
    let dir = TempDir::new();
    Db::open_with(dir.join("db"), apart(Placement::HashKv)).unwrap().close().unwrap();
    let says_so = |error: bifold::Error| {
        let error = error.to_string();
        let words = ["`hashkv`", "`wisckey`", "placement", "bifold convert"];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    says_so(Db::open_with(dir.join("db"), apart(Placement::WiscKey)).unwrap_err());
    let db = Db::open(dir.join("db")).unwrap();
    for name in ["default", "other"] {
        db.keyspace(name, apart(Placement::HashKv).keyspace).unwrap();
        says_so(db.keyspace(name, apart(Placement::WiscKey).keyspace).unwrap_err());
        // Default options ask for no placement.
        let keyspace = db.keyspace(name, KeyspaceOptions::default()).unwrap();
        keyspace.put("key", value(1, 1)).unwrap();
    }
    assert!(db.stats().keyspaces.iter().all(|keyspace| keyspace.placement == "hashkv"));
    db.close().unwrap();
}

/// A power loss may take away the name of a value file and leave the log that points into it. The next opening must not give
/// that number to a file of its own.
#[test]
fn a18_numbers_that_logs_point_at_are_not_used_again() {
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), apart(Placement::HashKv)).unwrap();
    let group = |n: u32| bifold_format::filter::key_hash(key(n).as_bytes()) & 15;
    let (first, other) = (1, (2..).find(|&n| group(n) != group(1)).unwrap());
    db.put(key(first), [1; 100]).unwrap();
    db.delete_range("x".."y").unwrap();
    db.put(key(other), [2; 100]).unwrap();
    // As a crash leaves it. The files of the range and of the other key are lost: the next opening would give their numbers to
    // a log and to a value file.
    let image = dir.join("image");
    std::fs::create_dir(&image).unwrap();
    let mut files: Vec<_> = std::fs::read_dir(dir.join("db")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort_unstable();
    let values: Vec<_> = files.iter().filter(|path| path.extension().is_some_and(|e| e == "val")).cloned().collect();
    assert_eq!(values.len(), 3);
    for path in files.iter().filter(|path| !values[1..].contains(path)) {
        std::fs::copy(path, image.join(path.file_name().unwrap())).unwrap();
    }
    db.close().unwrap();
    let db = Db::open_with(&image, apart(Placement::HashKv)).unwrap();
    assert_eq!(db.get(key(first)).unwrap().as_deref(), Some(&[1; 100][..]));
    assert_eq!(db.get(key(other)).unwrap(), None);
}

/// A checkpoint shares its value files with the database: neither may append to them or cut them, now or after reopening.
#[test]
fn a_database_and_its_checkpoint_go_on_without_touching_each_other() {
    for placement in APART {
        let dir = TempDir::new();
        let paths = [dir.join("db"), dir.join("copy")];
        let db = Db::open_with(&paths[0], apart(placement)).unwrap();
        update_all(&db, 300, 0);
        db.collect_garbage().unwrap();
        update_all(&db, 150, 1);
        db.checkpoint(&paths[1]).unwrap();
        db.close().unwrap();
        for round in [2, 4, 6] {
            for (n, path) in paths.iter().enumerate() {
                let db = Db::open_with(path, apart(placement)).unwrap();
                update_all(&db, 300, round + n as u32);
                db.collect_garbage().unwrap();
                update_all(&db, 40, round + n as u32);
                db.close().unwrap();
            }
            for (n, path) in paths.iter().enumerate() {
                assert_eq!(bifold::verify(path).unwrap().problems.len(), 0, "{placement:?}, {}", path.display());
                let db = Db::open_with(path, apart(placement)).unwrap();
                check_all(&db, 300, round + n as u32);
                db.close().unwrap();
            }
        }
    }
}

/// The same without collection in between, so that both still share files when they write again.
#[test]
fn a_checkpoint_that_is_written_to_at_once_leaves_the_database_as_it_is() {
    for placement in APART {
        let dir = TempDir::new();
        let paths = [dir.join("db"), dir.join("copy")];
        let options = Options {
            keyspace: KeyspaceOptions {
                values: Values { space_target: 100.0, ..apart(placement).keyspace.values },
                ..apart(placement).keyspace
            },
            ..apart(placement)
        };
        let db = Db::open_with(&paths[0], options.clone()).unwrap();
        update_all(&db, 100, 0);
        db.checkpoint(&paths[1]).unwrap();
        db.close().unwrap();
        for round in 1..4 {
            for (n, path) in paths.iter().enumerate() {
                let db = Db::open_with(path, options.clone()).unwrap();
                check_all(&db, 100, if round == 1 { 0 } else { 10 * n as u32 + round - 1 });
                update_all(&db, 100, 10 * n as u32 + round);
                db.close().unwrap();
                assert_eq!(bifold::verify(path).unwrap().problems.len(), 0, "{placement:?}, {}", path.display());
            }
        }
    }
}

fn bytes_read(db: &Db, source: &str) -> u64 {
    db.stats().io.iter().filter(|io| io.source == source).map(|io| io.bytes_read).sum()
}

#[test]
fn an_iterator_with_values_ahead_yields_the_same_from_both_ends() {
    for placement in APART {
        for keys in [0, 1, 2, 3, 17, 40, 100] {
            let dir = TempDir::new();
            let db = Db::open_with(dir.join("db"), apart(placement)).unwrap();
            update_all(&db, keys, 1);
            let expected: Vec<u32> = (0..keys).collect();
            for pattern in [0b0_u32, 0b1, 0b10, 0b1100, 0b0111, 0b1111_0000] {
                let (mut iterator, mut front, mut back) =
                    (db.default_keyspace().range::<&str>(..), Vec::new(), Vec::new());
                for turn in 0.. {
                    let is_front = pattern >> (turn % 8) & 1 == 0;
                    let Some(pair) = (if is_front { iterator.next() } else { iterator.next_back() }) else { break };
                    let (found, bytes) = pair.unwrap().into_parts().unwrap();
                    let n: u32 = String::from_utf8_lossy(&found)[3..].parse().unwrap();
                    assert_eq!(&bytes[..], value(n, 1));
                    if is_front { front.push(n) } else { back.push(n) }
                }
                assert!(iterator.next().is_none() && iterator.next_back().is_none());
                front.extend(back.into_iter().rev());
                assert_eq!(front, expected, "{placement:?}, {pattern:b}");
            }
        }
    }
}

#[test]
fn an_iterator_reads_no_value_that_is_not_asked_for() {
    for placement in APART {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), only_in_memtable(apart(placement))).unwrap();
        update_all(&db, 300, 1);
        let before = bytes_read(&db, "scan");
        for (n, pair) in db.default_keyspace().range::<&str>(..).enumerate() {
            let pair = pair.unwrap();
            if n == 10 {
                assert_eq!(pair.value().unwrap(), value(10, 1));
            }
        }
        let read = bytes_read(&db, "scan") - before;
        assert!((1..2 * value(10, 1).len() as u64).contains(&read), "{placement:?}: {read} bytes for one value");
    }
}

#[test]
fn values_read_by_calls_and_from_mapped_pages_are_the_same() {
    for reads in [Reads::Called, Reads::Mapped] {
        for placement in APART {
            let dir = TempDir::new();
            let options = Options { reads, ..apart(placement) };
            let db = Db::open_with(dir.join("db"), options.clone()).unwrap();
            for round in 0..4 {
                update_all(&db, 500, round);
                check_all(&db, 500, round);
            }
            let snapshot = db.snapshot();
            update_all(&db, 500, 4);
            db.compact().unwrap();
            let seen = pairs(snapshot.range::<&str>(db.default_keyspace(), ..));
            assert!(seen.iter().zip(0..500).all(|((_, bytes), n)| *bytes == value(n, 3)));
            drop(snapshot);
            db.close().unwrap();
            let db = Db::open_with(dir.join("db"), options).unwrap();
            check_all(&db, 500, 4);
        }
    }
}

/// Values are cached as they are got.
fn cached(placement: Placement) -> Options {
    let mut options = apart(placement);
    options.keyspace.values.cache = CachedValues::Gets;
    options.memory_limit = 8 << 20;
    options
}

/// Nothing is in tables, so what is read are values: nobody looks for garbage either.
fn only_in_memtable(mut options: Options) -> Options {
    options.keyspace.values.space_target = 100.0;
    options.keyspace.values.large_bytes = 1;
    in_memtable(options)
}

/// Nothing comes to be in tables by itself.
fn in_memtable(options: Options) -> Options {
    Options { memory_limit: 32 << 20, memtable_bytes: 2 << 20, ..options }
}

#[test]
fn a_value_got_twice_is_read_once_and_other_reads_fill_no_cache() {
    for placement in APART {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), only_in_memtable(cached(placement))).unwrap();
        update_all(&db, 300, 1);
        assert_eq!(pairs(db.default_keyspace().range::<&str>(..)).len(), 300);
        assert_eq!(db.stats().memory.cache, 0, "a scan keeps nothing");
        check_all(&db, 300, 1);
        let (read, cached) = (bytes_read(&db, "get"), db.stats().memory.cache);
        assert!(read > 0 && cached > 0);
        check_all(&db, 300, 1);
        assert_eq!((bytes_read(&db, "get"), db.stats().memory.cache), (read, cached), "{placement:?}");
    }
}

#[test]
fn cached_values_follow_overwrites_deletes_and_collections() {
    for placement in APART {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), cached(placement)).unwrap();
        for round in 0..6 {
            update_all(&db, 1000, round);
            check_all(&db, 1000, round);
            let snapshot = db.snapshot();
            (0..1000).step_by(10).for_each(|n| db.delete(key(n)).unwrap());
            db.wait_idle().unwrap();
            for n in 0..1000 {
                let found = db.get(key(n)).unwrap();
                assert_eq!(found.is_none(), n % 10 == 0, "key {n}");
                assert_eq!(snapshot.get(db.default_keyspace(), key(n)).unwrap().as_deref(), Some(&value(n, round)[..]));
            }
            let memory = db.stats().memory;
            let used = memory.memtables + memory.cache + memory.metadata + memory.compaction;
            assert!(used <= memory.limit, "{memory:?}");
        }
        assert!(db.stats().gc.jobs > 0, "{placement:?}");
        db.close().unwrap();
        assert_eq!(bifold::verify(dir.join("db")).unwrap().problems.len(), 0);
    }
}

#[test]
fn the_cache_of_values_keeps_within_its_bytes() {
    let dir = TempDir::new();
    let options = Options { cache_bytes: Some(1 << 20), ..cached(Placement::HashKv) };
    let db = Db::open_with(dir.join("db"), options).unwrap();
    for round in 0..3 {
        (0..3000u32).for_each(|n| db.put([vec![b'k'; 200], key(n).into()].concat(), vec![round; 900]).unwrap());
        for n in 0..3000u32 {
            let found = db.get([vec![b'k'; 200], key(n).into()].concat()).unwrap();
            assert_eq!(found.unwrap(), vec![round; 900]);
            assert!(db.stats().memory.cache <= 1 << 20);
        }
    }
}

/// The directory as a process killed now would leave it.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// A process that is killed between a value and its log record leaves ends of files that nothing will be replayed for. The
/// files are cut and gone on with at once, so that what the other keyspaces' looks at them have left behind is met.
#[test]
fn files_that_end_with_values_that_never_happened_go_on_where_they_were_cut() {
    for placement in APART {
        let dir = TempDir::new();
        // A collection would sync the log.
        let mut options = apart(placement);
        options.keyspace.values.space_target = 100.0;
        options.keyspace.values.large_bytes = 1;
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
        // Values go to their files, and their records no further than this process.
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

/// A killed process leaves ends of files that no manifest lists. They are cut, and both keyspaces go on.
#[test]
fn files_that_were_cut_after_a_kill_go_on_where_they_were_cut() {
    for placement in APART {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), apart(placement)).unwrap();
        let other = db.keyspace("other", apart(placement).keyspace).unwrap();
        let put = |tree: &bifold::Keyspace, round| (0..40).for_each(|n| tree.put(key(n), value(n, round)).unwrap());
        put(&other, 0);
        update_all(&db, 40, 0);
        db.flush().unwrap();
        put(&other, 1);
        update_all(&db, 40, 1);
        let image = dir.join("image");
        copy(&dir.join("db"), &image);
        db.close().unwrap();
        let db = Db::open_with(&image, apart(placement)).unwrap();
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

/// What groups remember of their keys is within the memory limit, and said.
#[test]
fn the_memory_of_groups_is_counted_and_kept_within_the_limit() {
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), apart(Placement::HashKv)).unwrap();
    let before = db.stats().memory.values;
    (0..20_000).for_each(|n| db.put(key(n), [0; 64]).unwrap());
    let (memory, files) = (db.stats().memory, db.stats().space.value_files);
    let filters = memory.values - files * 1200;
    assert!(memory.values > before && filters > 20_000, "{memory:?}");
    assert!(filters <= memory.limit / 20, "{memory:?}");
}

/// Groups that have split share files. What all of them know to be dead in one is its dead part.
#[test]
fn known_garbage_of_groups_that_share_files_survives_reopening() {
    let dir = TempDir::new();
    let mut options = apart(Placement::HashKv);
    options.keyspace.values.space_target = 100.0;
    let mut db = Db::open_with(dir.join("db"), options.clone()).unwrap();
    (0..3).for_each(|round| update_all(&db, 1000, round));
    db.flush().unwrap();
    let dead = db.stats().space.dead_values_estimate;
    assert!(dead > 0 && db.stats().gc.jobs == 0);
    for _ in 0..3 {
        db.close().unwrap();
        db = Db::open_with(dir.join("db"), options.clone()).unwrap();
        let now = db.stats().space.dead_values_estimate;
        assert!(now.abs_diff(dead) <= dead / 50, "{dead} bytes were known to be dead, now {now}");
    }
}

/// While a commit is under way its values are in files already, and no address leads to them yet: a collection that runs
/// beside it must not take them for garbage.
#[test]
fn values_of_a_commit_under_way_are_not_collected() {
    for placement in APART {
        let dir = TempDir::new();
        let fs = FaultyFs::new(Arc::new(DiskFs));
        let mut options = apart(placement);
        (options.workers, options.keyspace.values.large_bytes) = (Workers::Threads(2), 1);
        let db =
            Db::open_in(Env { fs: Arc::new(fs.clone()), ..Env::system() }, dir.join("db"), options.clone()).unwrap();
        // So that the manifest knows the file in which the values of the commit begin.
        db.put(key(0), value(0, 0)).unwrap();
        db.flush().unwrap();
        let (tell, begun) = mpsc::channel();
        let is_first = AtomicBool::new(true);
        let wait_once = move |call: &Call<'_>| {
            let is_log = call.op == "append to" && call.path.extension().is_some_and(|e| e == "log");
            if is_log && is_first.swap(false, Relaxed) {
                tell.send(()).unwrap();
                // A collection either comes to its end meanwhile, or waits for this commit.
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
