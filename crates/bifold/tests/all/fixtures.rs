//! Databases that older releases wrote (`fixtures/`), read by this release.
//!
//! Their expected contents are not taken from them: [`history`] says what was done, the writer does it to a database,
//! and the tests do it to maps and compare. So a history never changes once its fixture is committed; a new format
//! version gets a new directory.

mod diffkv;
mod expiry;
mod ingest;
mod large;
mod list;
mod merge;
mod novkv;
mod separated_values;
mod streams;
mod unikv;

use std::{
    collections::BTreeMap,
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

use bifold::{
    Access, CachedValues, Compaction, Compression, Db, KeyspaceOptions, Options, PlacementKind,
    options::{Cold, DiffKv, HashKv, Leveled, MergePolicy, NovKv, Tiered, TwoLayer, UniKv, Values, Victim},
    verify,
};
use bifold_format::{log, manifest, table, value as value_file};

use self::list::FIXTURES;
use crate::support::{TempDir, entries, tiny};

/// A committed database.
struct Fixture {
    /// Its directory in `fixtures/`.
    name: &'static str,
    /// The format versions of its tables, logs, manifest and value files; 0 if it has none.
    versions: [u32; 4],
    /// [`fingerprint`] of its files: a change to one has to be recorded here.
    fingerprint: u64,
    /// The least number of files, by the ends of their names.
    files_min: [(&'static str, usize); 3],
    keyspaces: fn() -> [Named; 3],
    history: fn() -> Vec<Step>,
}

/// A keyspace of a fixture.
type Named = (&'static str, KeyspaceOptions);

impl Fixture {
    fn names(&self) -> [&'static str; 3] {
        (self.keyspaces)().map(|(name, _)| name)
    }
}

/// What is done to a fixture's database, in order.
enum Step {
    /// One atomic commit.
    Commit(Vec<Op>),
    /// One ingest of puts into one keyspace, in key order.
    Ingest(Vec<Op>),
    /// Everything so far goes into tables.
    Flush,
    /// All tables are merged.
    Compact,
    /// All tables of one keyspace are merged.
    CompactOne(&'static str),
    /// From here on a snapshot is open: older versions stay in the tables.
    Snapshot,
    /// The snapshots are dropped.
    Release,
    /// GC of everything.
    Gc,
    /// Keys with these numbers are read, one by one.
    Read(Range<usize>),
}

struct Op {
    keyspace: &'static str,
    act: Act,
}

enum Act {
    Put(Vec<u8>, Vec<u8>),
    /// For as long as any test runs, or until a moment that had passed when the fixture was written.
    PutUntil(Vec<u8>, Vec<u8>, expiry::Until),
    Merge(Vec<u8>, Vec<u8>),
    /// A commit of its own.
    PutLarge(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    /// From the first key to the second, exclusive; without a second key to the end.
    DeleteRange(Vec<u8>, Option<Vec<u8>>),
}

/// Options of values, all spelled out: defaults may change, the committed files do not. GC runs only where a history
/// says so.
fn values_spelled_out() -> Values {
    Values {
        separate_from_bytes: Some(64),
        space_target: 100.0,
        file_bytes: 4 << 10,
        compression: Compression::None,
        cache: CachedValues::None,
        hashkv: HashKv { victim: Victim::CostBenefit, cold: Cold::Segments, group_bytes: 4 << 10, groups_max: 16 },
        novkv: NovKv { gc_threshold: 0.7 },
        diffkv: DiffKv {
            gc_threshold: 0.7,
            large_bytes: 8 << 10,
            merge: MergePolicy::ScanOptimised,
            max_sorted_run: 10,
        },
        unikv: UniKv { gc_threshold: 0.7, ..UniKv::default() },
    }
}

/// Options of a keyspace with inline values, all spelled out for the same reason.
fn inline_spelled_out(values: Values) -> KeyspaceOptions {
    KeyspaceOptions {
        values,
        placement: PlacementKind::Inline,
        compression: Compression::None,
        table_bytes: 8 << 10,
        partition_bytes: None,
        hash_index: None,
        block_bytes: 1 << 10,
        restart_interval: 16,
        filter_bits_per_key: 10,
        compaction: Compaction::Leveled(Leveled {
            size_ratio: 10,
            levels: 4,
            level0_runs: 4,
            level0_overlap: 2,
            base_bytes: 256 << 20,
            overlap_tables: 25,
        }),
        ttl: None,
        merge: None,
    }
}

/// A keyspace for each compression, compaction, and way to write blocks.
fn keyspaces() -> [Named; 3] {
    let values = Values { separate_from_bytes: Some(192), cache: CachedValues::None, ..Values::default() };
    let plain = inline_spelled_out(values);
    let tiered = Compaction::Tiered(Tiered { size_ratio: 4, levels: 7, space_percent: 200 });
    let two_layer = Compaction::TwoLayer(TwoLayer { unsorted_bytes: 1 << 30, scan_merge_runs: 8 });
    let (lz4, zstd) = (Compression::Lz4, Compression::Zstd);
    [
        ("default", plain.clone()),
        ("lz4", KeyspaceOptions { compression: lz4, compaction: tiered, restart_interval: 4, ..plain.clone() }),
        ("zstd", KeyspaceOptions { compression: zstd, compaction: two_layer, filter_bits_per_key: 0, ..plain }),
    ]
}

/// Blocks so small that tables have their indexes in parts.
fn keyspaces_with_long_indexes() -> [Named; 3] {
    unikv::keyspaces()
        .map(|(name, options)| (name, KeyspaceOptions { block_bytes: 64, table_bytes: 32 << 10, ..options }))
}

const NAMES: [&str; 3] = ["default", "lz4", "zstd"];

fn key(number: usize) -> Vec<u8> {
    format!("key{number:04}").into_bytes()
}

/// Text that compresses; every tenth value has bytes that are not text.
fn value(keyspace: &str, number: usize, round: usize) -> Vec<u8> {
    let mut value = format!("{keyspace} {number} round {round} ").repeat(number % 4 + 1).into_bytes();
    if number.is_multiple_of(10) {
        value.extend([0, 9, 10, 13, 92, 0x7F, 0xC3, 0xFF]);
    }
    value
}

/// The history of version 1. Never to be changed: its fixture is committed.
fn history() -> Vec<Step> {
    let put = |keyspace, number, round| Op { keyspace, act: Act::Put(key(number), value(keyspace, number, round)) };
    let in_all = |act: fn() -> Act| Step::Commit(NAMES.map(|keyspace| Op { keyspace, act: act() }).into());
    let round = |numbers: &mut dyn Iterator<Item = usize>, round: usize| -> Vec<Step> {
        numbers.map(|number| Step::Commit(NAMES.map(|name| put(name, number, round)).into())).collect()
    };
    let mut steps = round(&mut (0..200), 1);
    steps.extend([Step::Compact, Step::Snapshot]);
    // In tables: second versions, deletes, range deletes with and without an end, a key put back into a deleted range.
    steps.extend(round(&mut (0..200).step_by(3), 2));
    for keyspace in NAMES {
        let deletes = (0..200).step_by(7).map(|number| Op { keyspace, act: Act::Delete(key(number)) });
        steps.push(Step::Commit(deletes.collect()));
    }
    steps.push(in_all(|| Act::DeleteRange(key(50), Some(key(60)))));
    steps.push(in_all(|| Act::Put(key(55), b"back again".into())));
    steps.push(Step::Flush);
    steps.push(in_all(|| Act::DeleteRange(key(190), None)));
    steps.push(in_all(|| Act::Put(b"empty".into(), Vec::new())));
    steps.push(in_all(|| Act::Put([b"long".repeat(100), b"key".into()].concat(), b"of 403 bytes".into())));
    steps.push(Step::Flush);
    // In logs: the second run of puts fills a memtable of its keyspace, so a new log begins while the others need the
    // old one.
    steps.extend(round(&mut (100..120), 3));
    steps.extend((0..120).map(|number| Step::Commit(vec![put("default", 300 + number, 3)])));
    steps.push(in_all(|| Act::DeleteRange(key(20), Some(key(30)))));
    steps.push(in_all(|| Act::Delete(key(101))));
    steps.push(in_all(|| Act::Put(key(25), b"last".into())));
    steps
}

/// The entries of each keyspace at the end of the history.
fn expected(fixture: &Fixture) -> BTreeMap<&'static str, BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut maps: BTreeMap<_, BTreeMap<Vec<u8>, Vec<u8>>> = fixture.names().map(|name| (name, BTreeMap::new())).into();
    for step in (fixture.history)() {
        let (Step::Commit(ops) | Step::Ingest(ops)) = step else { continue };
        for Op { keyspace, act } in ops {
            let map = maps.get_mut(keyspace).unwrap();
            match act {
                Act::Put(key, value) | Act::PutLarge(key, value) | Act::PutUntil(key, value, expiry::Until::Far) => {
                    drop(map.insert(key, value))
                }
                Act::PutUntil(key, _, expiry::Until::Past) => drop(map.remove(&key)),
                Act::Merge(key, operand) => map.entry(key).or_default().extend(operand),
                Act::Delete(key) => drop(map.remove(&key)),
                Act::DeleteRange(start, end) => {
                    map.retain(|key, _| *key < start || end.as_ref().is_some_and(|end| key >= end));
                }
            }
        }
    }
    maps
}

fn fixtures_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// The files of a directory, by name.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

/// FNV-1a over names and contents.
fn fingerprint(files: &BTreeMap<String, Vec<u8>>) -> u64 {
    let bytes = files.iter().flat_map(|(name, content)| name.bytes().chain([0]).chain(content.iter().copied()));
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

/// A copy of a fixture's database that may be changed.
fn copy(fixture: &Fixture) -> (TempDir, PathBuf) {
    let dir = TempDir::new();
    let to = dir.join(fixture.name);
    fs::create_dir(&to).unwrap();
    for (name, content) in files(&fixtures_dir().join(fixture.name).join("database")) {
        fs::write(to.join(name), content).unwrap();
    }
    (dir, to)
}

fn check_content(db: &Db, fixture: &Fixture) {
    let expected = expected(fixture);
    assert_eq!(db.keyspace_names(), fixture.names());
    for (name, map) in &expected {
        let keyspace = db.existing_keyspace(name).unwrap().unwrap();
        let all: Vec<_> = map.clone().into_iter().collect();
        assert_eq!(entries(keyspace.iter()), all, "{}: {name}", fixture.name);
        assert_eq!(
            entries(keyspace.iter().rev()),
            all.into_iter().rev().collect::<Vec<_>>(),
            "{}: {name}",
            fixture.name
        );
        for number in 0..500 {
            let (key, found) = (key(number), keyspace.get(key(number)).unwrap());
            assert_eq!(found.as_deref(), map.get(&key).map(|v| &v[..]), "{}: {name}, key {number}", fixture.name);
        }
    }
}

fn check_sound(path: &Path) {
    let report = verify(path).unwrap();
    assert!(report.problems.is_empty() && report.files > 3, "{report:?}");
}

#[test]
fn every_committed_database_is_as_it_was_committed() {
    for fixture in &FIXTURES {
        let files = files(&fixtures_dir().join(fixture.name).join("database"));
        let found = fingerprint(&files);
        assert_eq!(
            found, fixture.fingerprint,
            "fixtures/{} was changed; if that is meant, its fingerprint is {found:#018x}",
            fixture.name
        );
        let count = |suffix: &str| files.keys().filter(|name| name.ends_with(suffix)).count();
        let enough = fixture.files_min.iter().all(|&(suffix, least)| count(suffix) >= least);
        assert!(enough && files.contains_key("MANIFEST"), "{:?}", files.keys());
    }
}

/// The version stands 20 bytes before the end of a table.
#[test]
fn tables_with_indexes_in_parts_and_with_whole_ones_are_committed() {
    let versions = |name: &str| {
        let files = files(&fixtures_dir().join(name).join("database"));
        let tables = files.into_iter().filter(|(name, _)| name.ends_with(".tbl"));
        tables.map(|(_, content)| content[content.len() - 20]).collect::<std::collections::BTreeSet<u8>>()
    };
    assert_eq!(versions("v1-unikv"), [1].into());
    assert!(versions("v2").contains(&2));
    assert_eq!(versions("v4"), [1, 3, 4].into());
}

#[test]
fn the_present_formats_have_a_committed_database() {
    let present = [table::VERSION, log::VERSION, manifest::VERSION, value_file::VERSION];
    let newest = FIXTURES.last().map(|fixture| fixture.versions);
    assert_eq!(newest, Some(present), "a new format version needs a new directory: see fixtures/README.md");
}

#[test]
fn every_committed_database_can_be_read_without_being_changed() {
    for fixture in &FIXTURES {
        let (_dir, path) = copy(fixture);
        let before = files(&path);
        check_sound(&path);
        let db = Db::open_with(&path, Options { access: Access::ReadOnly, ..Options::default() }).unwrap();
        check_content(&db, fixture);
        db.close().unwrap();
        assert_eq!(files(&path).keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
        assert!(files(&path) == before, "reading changed a file of {}", fixture.name);
    }
}

#[test]
fn every_committed_database_can_be_written_to_and_rewritten() {
    for fixture in &FIXTURES {
        let (_dir, path) = copy(fixture);
        let db = Db::open(&path).unwrap();
        for (name, options) in (fixture.keyspaces)() {
            assert_eq!(db.existing_keyspace(name).unwrap().unwrap().options(), options, "{}", fixture.name);
        }
        check_content(&db, fixture);
        db.compact().unwrap();
        check_content(&db, fixture);
        db.collect_garbage().unwrap();
        check_content(&db, fixture);
        db.put("new", "value").unwrap();
        db.delete("new").unwrap();
        db.close().unwrap();
        check_sound(&path);
        check_content(&Db::open(&path).unwrap(), fixture);
    }
}

/// Writes the fixtures without a directory, and replaces none.
///
/// The committed files are what a process killed after a sync leaves: closing would record the lengths of all value
/// files in the manifest, and recovery must be able to find them out. Then nothing is left of the append region.
#[test]
#[ignore = "writes fixtures/: see fixtures/README.md"]
fn write_the_missing_databases() {
    let database = |fixture: &Fixture| fixtures_dir().join(fixture.name).join("database");
    for fixture in FIXTURES.iter().filter(|fixture| !database(fixture).exists()) {
        let (path, dir) = (database(fixture), TempDir::new());
        let db = make(fixture, &dir.join("db"));
        check_content(&db, fixture);
        db.sync().unwrap();
        let mut files = files(&dir.join("db"));
        files.remove("APPENDS");
        db.close().unwrap();
        fs::create_dir_all(&path).unwrap();
        files.iter().for_each(|(name, content)| fs::write(path.join(name), content).unwrap());
        println!("{}: {} bytes", path.display(), files.values().map(Vec::len).sum::<usize>());
        println!("put this into FIXTURES: fingerprint {:#018x}", fingerprint(&files));
    }
}

/// Applies a fixture's history to a new database.
fn make(fixture: &Fixture, path: &Path) -> Db {
    let [(_, default), others @ ..] = (fixture.keyspaces)();
    let db = Db::open_with(path, Options { keyspace: default, ..tiny() }).unwrap();
    for (name, options) in others {
        db.keyspace(name, options).unwrap();
    }
    let mut snapshots = Vec::new();
    for step in (fixture.history)() {
        match step {
            Step::Commit(ops) => commit(&db, &ops),
            Step::Ingest(ops) => ingest(&db, &ops),
            Step::Flush => db.flush().unwrap(),
            Step::Compact => db.compact().unwrap(),
            Step::CompactOne(name) => {
                db.existing_keyspace(name).unwrap().unwrap().compact_range::<&str>(..).unwrap();
            }
            Step::Snapshot => snapshots.push(db.snapshot()),
            Step::Release => snapshots.clear(),
            Step::Gc => db.collect_garbage().unwrap(),
            Step::Read(numbers) => read(&db, numbers),
        }
    }
    db
}

fn read(db: &Db, numbers: Range<usize>) {
    for name in db.keyspace_names() {
        let keyspace = db.existing_keyspace(&name).unwrap().unwrap();
        numbers.clone().for_each(|number| drop(keyspace.get(key(number)).unwrap()));
    }
}

fn ingest(db: &Db, ops: &[Op]) {
    let keyspace = db.existing_keyspace(ops[0].keyspace).unwrap().unwrap();
    let mut ingest = keyspace.ingest().unwrap();
    for Op { act, .. } in ops {
        let Act::Put(key, value) = act else { panic!("an ingest has puts only") };
        ingest.put(key, value).unwrap();
    }
    ingest.finish().unwrap();
}

fn commit(db: &Db, ops: &[Op]) {
    let mut batch = db.batch();
    for Op { keyspace, act } in ops {
        let keyspace = db.existing_keyspace(keyspace).unwrap().unwrap();
        match act {
            Act::Put(key, value) => batch.put(&keyspace, key, value),
            Act::PutLarge(key, value) => {
                keyspace.put_reader(key, &value[..]).unwrap();
                Ok(&mut batch)
            }
            Act::Merge(key, operand) => batch.merge(&keyspace, key, operand),
            Act::PutUntil(key, value, until) => batch.put_until(&keyspace, key, value, Some(until.moment())),
            Act::Delete(key) => batch.delete(&keyspace, key),
            Act::DeleteRange(start, Some(end)) => batch.delete_range::<&Vec<u8>>(&keyspace, start..end),
            Act::DeleteRange(start, None) => batch.delete_range::<&Vec<u8>>(&keyspace, start..),
        }
        .unwrap();
    }
    db.commit(batch).unwrap();
}
