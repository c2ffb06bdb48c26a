//! Reads of separated values: iterators, mapped pages, the cache.

use bifold::{CachedValues, Compression, Db, KeyspaceOptions, Options, PlacementKind, Reads};

use super::{SEPARATED, check_all, in_memtable, key, separated, update_all, value};
use crate::support::{TempDir, entries};

fn bytes_read(db: &Db, source: &str) -> u64 {
    db.stats().io.iter().filter(|io| io.source == source).map(|io| io.bytes_read).sum()
}

const MOVED: u32 = 20_000;

/// A database of `novkv` in `dir`, nearly all of whose values GC has moved.
fn moved(dir: &TempDir) -> Db {
    let mut options = Options { memory_limit: 96 << 20, memtable_bytes: 1 << 20, ..separated(PlacementKind::NovKv) };
    options.keyspace.values.file_bytes = 1 << 20;
    let db = Db::open_with(dir.join("db"), options).unwrap();
    (0..2).for_each(|round| update_all(&db, MOVED, round));
    db.collect_garbage().unwrap();
    db
}

/// Reads all of its values. How many handles were known, and how many values were searched for.
fn read_moved(db: &Db) -> (u64, u64) {
    let before = db.stats().gc;
    check_all(db, MOVED, 1);
    let after = db.stats().gc;
    (after.repaired_reads - before.repaired_reads, after.searched_reads - before.searched_reads)
}

/// A value that `novkv` has moved is searched for by the first read. The next ones know where it is. When readers know
/// that of many values, the tables are rewritten, though nothing is written, and then the index knows it.
#[test]
fn a_moved_value_is_searched_for_once() {
    let dir = TempDir::new();
    let db = moved(&dir);
    let (_, searched) = read_moved(&db);
    assert!(searched > u64::from(MOVED) * 9 / 10, "nearly all have moved: {searched}");
    let (_, searched) = read_moved(&db);
    assert!(searched < u64::from(MOVED) / 50, "{searched} searched for again");
    db.wait_idle().unwrap();
    // The last handles are too few to be worth a rewrite.
    let (repaired, searched) = read_moved(&db);
    assert!(repaired + searched < u64::from(MOVED) / 2, "{repaired} repaired, {searched} searched for");
    db.close().unwrap();
    let db = Db::open(dir.join("db")).unwrap();
    let (repaired, searched) = read_moved(&db);
    assert!(repaired + searched < u64::from(MOVED) / 2, "{repaired} repaired, {searched} searched for");
}

/// The size of the index, with which handles are compared, is known from the opening on.
#[test]
fn a_database_that_is_only_read_takes_handles_over() {
    let dir = TempDir::new();
    moved(&dir).close().unwrap();
    let db = Db::open(dir.join("db")).unwrap();
    let (_, searched) = read_moved(&db);
    assert!(searched > u64::from(MOVED) * 9 / 10, "nothing was taken over before: {searched}");
    db.wait_idle().unwrap();
    let (repaired, searched) = read_moved(&db);
    assert!(repaired + searched < u64::from(MOVED) / 2, "{repaired} repaired, {searched} searched for");
}

#[test]
fn an_iterator_with_values_ahead_yields_the_same_from_both_ends() {
    for placement in SEPARATED {
        for keys in [0, 1, 2, 3, 17, 40, 100] {
            let dir = TempDir::new();
            let db = Db::open_with(dir.join("db"), separated(placement)).unwrap();
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
    for placement in SEPARATED {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), only_in_memtable(separated(placement))).unwrap();
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
    for reads in [Reads::Called, Reads::Mapped, Reads::Auto, Reads::Direct] {
        for placement in SEPARATED {
            let dir = TempDir::new();
            let options = Options { reads, ..separated(placement) };
            let db = Db::open_with(dir.join("db"), options.clone()).unwrap();
            for round in 0..4 {
                update_all(&db, 500, round);
                check_all(&db, 500, round);
            }
            let snapshot = db.snapshot();
            update_all(&db, 500, 4);
            db.compact().unwrap();
            let seen = entries(snapshot.range::<&str>(db.default_keyspace(), ..));
            assert!(seen.iter().zip(0..500).all(|((_, bytes), n)| *bytes == value(n, 3)));
            drop(snapshot);
            db.close().unwrap();
            let db = Db::open_with(dir.join("db"), options).unwrap();
            check_all(&db, 500, 4);
        }
    }
}

#[test]
fn files_that_are_mapped_stay_within_their_bound_and_reads_are_right_beyond_it() {
    for placement in SEPARATED {
        let dir = TempDir::new();
        let options = Options { mapped_bytes_max: Some(256 << 10), reads: Reads::Mapped, ..separated(placement) };
        let db = Db::open_with(dir.join("db"), options).unwrap();
        let mut most = 0;
        for round in 0..4 {
            update_all(&db, 1000, round);
            for _ in 0..3 {
                check_all(&db, 1000, round);
                most = most.max(db.stats().memory.mapped);
            }
        }
        assert!((1..=256 << 10).contains(&most), "{placement:?}: {most} bytes are mapped");
    }
}

/// Loads values that compress, reads them all twice, and returns the bytes in the block cache.
fn cached_blocks(reads: Reads, compression: Compression) -> u64 {
    let dir = TempDir::new();
    let keyspace = KeyspaceOptions { compression, ..separated(PlacementKind::Inline).keyspace };
    let options = Options { reads, memory_limit: 8 << 20, keyspace, ..separated(PlacementKind::Inline) };
    let db = Db::open_with(dir.join("db"), options).unwrap();
    let value = |n: u32| format!("{n:08}").repeat(20);
    (0..2000).for_each(|n| db.put(key(n), value(n)).unwrap());
    db.flush().unwrap();
    for n in (0..2000).chain(0..2000) {
        assert_eq!(db.get(key(n)).unwrap().unwrap(), value(n).as_bytes());
    }
    db.stats().memory.cache
}

#[test]
fn blocks_that_are_mapped_are_not_cached_and_compressed_ones_are() {
    assert_eq!(cached_blocks(Reads::Mapped, Compression::None), 0);
    for (reads, compression) in [
        (Reads::Called, Compression::None),
        (Reads::Called, Compression::Lz4),
        (Reads::Direct, Compression::None),
        (Reads::Mapped, Compression::Lz4),
        (Reads::Mapped, Compression::Zstd),
    ] {
        let cached = cached_blocks(reads, compression);
        assert!(cached > 200_000, "{reads:?}, {compression:?}: {cached} of 320 000 bytes are cached");
    }
}

/// Gets fill the cache with values.
fn cached(placement: PlacementKind) -> Options {
    let mut options = separated(placement);
    options.keyspace.values.cache = CachedValues::Gets;
    options.memory_limit = 8 << 20;
    options
}

/// Nothing is in tables, so all reads are of values, and no GC runs either.
fn only_in_memtable(mut options: Options) -> Options {
    options.keyspace.values.space_target = 100.0;
    options.keyspace.values.diffkv.large_bytes = 1;
    in_memtable(options)
}

#[test]
fn a_value_got_twice_is_read_once_and_other_reads_fill_no_cache() {
    for placement in SEPARATED {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), only_in_memtable(cached(placement))).unwrap();
        update_all(&db, 300, 1);
        assert_eq!(entries(db.default_keyspace().range::<&str>(..)).len(), 300);
        assert_eq!(db.stats().memory.cache, 0, "a scan keeps nothing");
        check_all(&db, 300, 1);
        let (read, cached) = (bytes_read(&db, "get"), db.stats().memory.cache);
        assert!(read > 0 && cached > 0);
        check_all(&db, 300, 1);
        assert_eq!((bytes_read(&db, "get"), db.stats().memory.cache), (read, cached), "{placement:?}");
    }
}

#[test]
fn values_are_cached_by_default_where_reads_go_past_the_page_cache() {
    for (reads, are_cached) in [(Reads::Auto, false), (Reads::Called, false), (Reads::Direct, true)] {
        let mut options = only_in_memtable(cached(PlacementKind::HashKv));
        options.keyspace.values.cache = CachedValues::default();
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), Options { reads, ..options }).unwrap();
        update_all(&db, 300, 1);
        check_all(&db, 300, 1);
        assert_eq!(db.stats().memory.cache > 0, are_cached, "{reads:?}");
    }
}

#[test]
fn cached_values_follow_overwrites_deletes_and_gc() {
    for placement in SEPARATED {
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
    let options = Options { cache_bytes: Some(1 << 20), ..cached(PlacementKind::HashKv) };
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
