//! What UniKV's design promises about reads, memory and opening (§III-B, §III-F, §III-G), checked by counters.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bifold::{
    Compaction, Db, Env, Error, KeyspaceOptions, Options, Reads, Workers,
    options::{HashIndex, TwoLayer, Values},
    stats::Stats,
    verify_in,
};
use bifold_format::{
    block::sealed::SEAL_BYTES,
    table::{Footer, properties::Properties},
};
use bifold_io::{
    faulty::{FaultKind, FaultyFs},
    memory::MemoryFs,
};

const VALUE_BYTES: usize = 1000;

/// Level 0 may have 4 MiB, in memtables of 256 KiB, however much it overwrites. Nothing is cached: everything but an
/// index in memory is read.
fn options(index: HashIndex) -> Options {
    with_scan_merge_runs(100, index)
}

fn with_scan_merge_runs(scan_merge_runs: u32, index: HashIndex) -> Options {
    let two_layer = TwoLayer { unsorted_bytes: 4 << 20, scan_merge_runs };
    let keyspace = KeyspaceOptions {
        table_bytes: 1 << 20,
        compaction: Compaction::TwoLayer(two_layer),
        hash_index: Some(index),
        values: Values { space_target: 100.0, ..KeyspaceOptions::unikv().values },
        ..KeyspaceOptions::unikv()
    };
    Options {
        memory_limit: 16 << 20,
        memtable_bytes: 256 << 10,
        cache_bytes: Some(0),
        reads: Reads::Called,
        workers: Workers::Caller,
        keyspace,
        ..Options::default()
    }
}

fn open(fs: &MemoryFs, index: HashIndex) -> Db {
    open_with(fs, options(index))
}

fn open_with(fs: &MemoryFs, options: Options) -> Db {
    Db::open_in(Env { fs: Arc::new(fs.clone()), ..Env::system() }, "/db", options).unwrap()
}

fn key(number: u32) -> [u8; 24] {
    let mut key = [b'k'; 24];
    // Spread over the whole range, whatever the order.
    key[..4].copy_from_slice(&number.wrapping_mul(0x9E37_79B1).to_be_bytes());
    key
}

fn value(number: u32, round: u8) -> Vec<u8> {
    [number.to_be_bytes().to_vec(), vec![round; VALUE_BYTES - 4]].concat()
}

fn reads(stats: &Stats, source: &str) -> (u64, u64) {
    let of_source = stats.io.iter().find(|io| io.source == source).unwrap();
    (of_source.reads, of_source.bytes_read)
}

/// The number of reads for one get.
fn reads_for(db: &Db, number: u32, expected: Option<&[u8]>) -> u64 {
    let before = reads(&db.stats(), "get").0;
    assert_eq!(db.get(key(number)).unwrap().as_deref(), expected, "key {number}");
    reads(&db.stats(), "get").0 - before
}

/// Keys 0 to 10 000 in level 1. Level 0 has a newer version of each third key: 3.4 MB in 14 runs.
fn filled(fs: &MemoryFs, index: HashIndex) -> Db {
    filled_with(open(fs, index))
}

fn filled_with(db: Db) -> Db {
    (0..10_000).for_each(|n| db.put(key(n), value(n, 1)).unwrap());
    db.compact().unwrap();
    (0..10_000).step_by(3).for_each(|n| db.put(key(n), value(n, 2)).unwrap());
    db.flush().unwrap();
    let keyspace = &db.stats().keyspaces[0];
    assert!(keyspace.levels[0].runs >= 10, "{:?}", keyspace.levels);
    assert_eq!(keyspace.levels[0].entries, 3334);
    db
}

#[test]
fn a_get_is_one_read_in_the_unsorted_layer_and_two_in_the_sorted_one() {
    let db = filled(&MemoryFs::default(), HashIndex::default());
    let mut beyond = 0;
    for n in 0..12_000u32 {
        let (expected, most) = match n {
            10_000.. => (None, 1),
            n if n.is_multiple_of(3) => (Some(value(n, 2)), 1),
            n => (Some(value(n, 1)), 2),
        };
        let reads = reads_for(&db, n, expected.as_deref());
        assert!(reads <= most + 1, "{reads} reads for key {n}, which needs {most}");
        beyond += reads.saturating_sub(most);
    }
    // In some 20 000 gets a tag of 16 bits matches another key once.
    assert!(beyond <= 5, "{beyond} reads for entries of other keys");
}

/// §III-F: the size-based merge is for scans, and a keyspace without any does not pay for it.
#[test]
fn runs_are_merged_with_each_other_once_a_scan_has_met_too_many() {
    let db = filled_with(open_with(&MemoryFs::default(), with_scan_merge_runs(4, HashIndex::default())));
    let level0 = |db: &Db| db.stats().keyspaces[0].levels[0].runs;
    for n in 0..1000 {
        assert!(db.get(key(n)).unwrap().is_some());
    }
    db.wait_idle().unwrap();
    assert!(level0(&db) >= 10, "point reads ask for nothing");
    assert_eq!(db.iter().count(), 10_000);
    db.wait_idle().unwrap();
    assert!(level0(&db) <= 4, "a scan has asked");
    let runs = level0(&db);
    for n in 0..2000 {
        db.put(key(n), value(n, 3)).unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    assert!(level0(&db) > runs.max(4), "it has been answered: the next scan has to ask again");
}

#[test]
fn few_bits_of_tag_cost_reads_and_no_answers() {
    let db = filled(&MemoryFs::default(), HashIndex { tag_bits: 4, ways: 2, ..HashIndex::default() });
    let beyond: u64 =
        (0..10_000u32).filter(|n| !n.is_multiple_of(3)).map(|n| reads_for(&db, n, Some(&value(n, 1))) - 2).sum();
    // A get checks some two entries, and one in 16 has the tag.
    assert!((300..2500).contains(&beyond), "{beyond} reads beyond two");
}

#[test]
fn a_full_index_uses_its_buckets_and_is_a_hundredth_of_its_layer() {
    let db = open(&MemoryFs::default(), HashIndex::default());
    let (mut fullest, mut merges) = (0.0f64, 0);
    for n in 0..20_000 {
        db.put(key(n), value(n, 1)).unwrap();
        let keyspace = &db.stats().keyspaces[0];
        merges = keyspace.merges;
        let Some(index) = keyspace.hash_index else { continue };
        let used = index.buckets_used as f64 / index.buckets as f64;
        if used > fullest {
            fullest = used;
        }
        let share = index.bytes as f64 / (4 << 20) as f64;
        assert!(share < 0.01, "{index:?} is {share} of what level 0 may have");
        let bytes = keyspace.levels[0].bytes;
        if bytes > 3 << 20 {
            assert!((index.bytes as f64) < 0.015 * bytes as f64, "{index:?} for {bytes} bytes in level 0");
        }
    }
    assert!(fullest >= 0.8, "at most {fullest} of the buckets used");
    assert!(merges >= 3, "{merges} merges");
}

/// The hashes are the paper's checkpoint (§III-G): with them, opening reads a hundredth of level 0; without, all of it.
#[test]
fn opening_reads_hashes_where_they_are_written_and_keys_where_they_are_not() {
    let (mut read, mut answers) = (Vec::new(), BTreeSet::new());
    for written in [true, false] {
        let fs = MemoryFs::default();
        filled(&fs, HashIndex { written, ..HashIndex::default() }).close().unwrap();
        let db = open(&fs, HashIndex { written, ..HashIndex::default() });
        let stats = db.stats();
        read.push((reads(&stats, "metadata").1, reads(&stats, "compaction").1));
        let index = stats.keyspaces[0].hash_index.unwrap();
        answers.insert((index.buckets_used + index.chained, stats.keyspaces[0].levels[0].bytes / (64 << 10)));
        (0..10_000u32).step_by(7).for_each(|n| {
            let round = if n.is_multiple_of(3) { 2 } else { 1 };
            assert!(reads_for(&db, n, Some(&value(n, round))) <= 3);
        });
    }
    assert_eq!(answers.len(), 1, "the same index from either: {answers:?}");
    let [(_, with), (metadata, without)] = read[..] else { panic!("{read:?}") };
    assert_eq!(with, 0, "no data is read");
    assert!(without > 3_300_000, "all of level 0 is read: {without} bytes, and {metadata} of metadata");
}

#[test]
fn damaged_hashes_are_rebuilt_and_reported_by_verification() {
    let fs = MemoryFs::default();
    filled(&fs, HashIndex::default()).close().unwrap();
    let env = Env { fs: Arc::new(fs.clone()), ..Env::system() };
    let level0 = tables_with_hashes(&fs);
    assert!(level0.len() >= 10, "{level0:?}");
    let (path, hashes_at) = &level0[level0.len() / 2];
    fs.flip_bit(path, (hashes_at + 100) * 8);
    let db = open(&fs, HashIndex::default());
    assert!(reads(&db.stats(), "compaction").1 > 100_000, "the keys of one table are read");
    for n in 0..10_000u32 {
        let round = if n.is_multiple_of(3) { 2 } else { 1 };
        assert_eq!(db.get(key(n)).unwrap().as_deref(), Some(&value(n, round)[..]));
    }
    db.close().unwrap();
    let problems = verify_in(&env, "/db", |_| {}).unwrap().problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].to_string().contains(path.file_name().unwrap().to_str().unwrap()), "{problems:?}");
}

/// Where hashes are not written, all keys of level 0 are read to open a keyspace.
#[test]
fn a_table_whose_keys_cannot_be_read_keeps_nothing_else_from_being_read() {
    let index = HashIndex { written: false, ..HashIndex::default() };
    let fs = MemoryFs::default();
    filled(&fs, index).close().unwrap();
    let mut tables = fs.files();
    tables.retain(|path| path.extension().is_some_and(|extension| extension == "tbl"));
    // The last but one of level 0, which a full memtable has become.
    let damaged = &tables[tables.len() - 2];
    fs.flip_bit(damaged, fs.read(damaged).unwrap().len() as u64 / 2 * 8);
    let db = open(&fs, index);
    assert!(db.stats().keyspaces[0].hash_index.is_none(), "all runs are searched");
    let unreadable = |db: &Db, round_of: &dyn Fn(u32) -> u8| {
        let is_unreadable = |n: &u32| match db.get(key(*n)) {
            Ok(found) => {
                assert_eq!(found.as_deref(), Some(&value(*n, round_of(*n))[..]), "key {n}");
                false
            }
            Err(Error::Corruption { path, .. }) => path == *damaged,
            Err(error) => panic!("key {n}: {error}"),
        };
        (0..10_000u32).step_by(7).filter(is_unreadable).count()
    };
    let before = unreadable(&db, &|n| if n.is_multiple_of(3) { 2 } else { 1 });
    assert!((1..200).contains(&before), "{before} keys in the range of one block");
    // Nor does it keep memtables from being written.
    (0..280).step_by(7).for_each(|n| db.put(key(n), value(n, 3)).unwrap());
    db.flush().unwrap();
    assert!(db.stats().poisoned.is_none());
    let after = unreadable(&db, &|n| match n {
        0..280 => 3,
        n if n.is_multiple_of(3) => 2,
        _ => 1,
    });
    assert!((1..=before).contains(&after), "{after} keys of {before}");
}

/// The disk fails once, where a table has the hashes of its keys.
#[test]
fn hashes_that_a_device_does_not_return_cost_the_index_and_are_named() {
    let fs = MemoryFs::default();
    filled(&fs, HashIndex::default()).close().unwrap();
    let table = tables_with_hashes(&fs)[5].0.clone();
    // Opens the database with a read of this table that fails. Also returns how many there are.
    let open = |failing: Option<u64>| {
        let (faulty, count) = (FaultyFs::over_memory(fs.fork()), Arc::new(AtomicU64::new(0)));
        let (counted, table) = (Arc::clone(&count), table.clone());
        faulty.decide_by(Box::new(move |call| {
            let fails = call.op == "read" && *call.path == *table && failing == Some(counted.fetch_add(1, Relaxed));
            fails.then_some(FaultKind::EIO)
        }));
        let env = Env { fs: Arc::new(faulty), ..Env::system() };
        (Db::open_in(env, "/db", options(HashIndex::default())).unwrap(), count.load(Relaxed))
    };
    // The last ones are those of its hashes.
    let (db, count) = open(None);
    assert!(db.stats().keyspaces[0].hash_index.is_some() && db.stats().left_out.is_empty());
    let (db, _) = open(Some(count - 1));
    assert!(db.stats().keyspaces[0].hash_index.is_none(), "all runs are searched");
    let left_out = db.stats().left_out;
    assert!(left_out.iter().any(|why| why.contains(table.file_name().unwrap().to_str().unwrap())), "{left_out:?}");
    for n in (0..10_000u32).step_by(7) {
        let round = if n.is_multiple_of(3) { 2 } else { 1 };
        assert_eq!(db.get(key(n)).unwrap().as_deref(), Some(&value(n, round)[..]));
    }
}

/// The tables with hashes of their keys, and the offsets of these.
fn tables_with_hashes(fs: &MemoryFs) -> Vec<(PathBuf, u64)> {
    let place = |path: PathBuf| {
        let bytes = fs.read(&path)?;
        let footer = Footer::decode(bytes.last_chunk()?, bytes.len() as u64).ok()?;
        let at = footer.properties();
        let content = &bytes[at.start as usize..at.end as usize - SEAL_BYTES];
        let properties = Properties::decode(content, footer.file, bytes.len() as u64).unwrap();
        properties.has_key_hashes().then(|| (path, footer.filter().start))
    };
    let is_table = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "tbl");
    fs.files().into_iter().filter(is_table).filter_map(place).collect()
}
