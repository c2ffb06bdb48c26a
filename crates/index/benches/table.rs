//! The cost of writes, point reads and scans of tables.
//!
//! `cargo bench -p bifold-index --bench table [-- WORD...]` builds one run of 16 MiB tables on disk for each shape of
//! data and prints a line for each measure; words pick the shapes that contain them all. Files stay in the page
//! cache, so this is the processor's part of the work. Figures are CPU time of the one thread, the least of three
//! rounds: whatever else the machine does only adds.

#![allow(clippy::unwrap_used, reason = "a benchmark has no caller to return an error to")]

use std::{fs, hint::black_box, path::Path, sync::Arc, time::Instant};

use bifold_contract::{Entry, IoSource, LevelEdit, SeqNo, edit::TableAdded, policy::NewestFirst};
use bifold_format::{compression::Compression, filter::key_hash};
use bifold_index::{
    cursor::Cursor,
    lookup::{Lookup, LookupCounters},
    table::{ReadMode, Table, TableContext, TableOptions, TableWriter},
    version::Version,
};
use bifold_io::{Dir, disk::DiskFs};

const KEYS: u64 = 1_000_000;
const TABLE_BYTES: u64 = 16 << 20;
const READS: u64 = 200_000;
const ROUNDS: usize = 3;

struct Dataset {
    name: &'static str,
    value_bytes: usize,
    compression: Compression,
}

const SHAPES: &[Dataset] = &[
    Dataset { name: "1M x 1000 B", value_bytes: 1000, compression: Compression::None },
    Dataset { name: "1M x 20 B", value_bytes: 20, compression: Compression::None },
    Dataset { name: "1M x 100 B lz4", value_bytes: 100, compression: Compression::Lz4 },
    Dataset { name: "1M x 100 B zstd", value_bytes: 100, compression: Compression::Zstd },
];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    for shape in SHAPES.iter().filter(|shape| words.iter().all(|word| shape.name.contains(word.as_str()))) {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-table");
        let _not_there = fs::remove_dir_all(&path);
        let dir = Dir::new(Arc::new(DiskFs), &path);
        dir.create_dir().unwrap();
        measure(shape, &dir);
        fs::remove_dir_all(&path).unwrap();
    }
}

fn measure(shape: &Dataset, dir: &Dir) {
    let (begin, wall) = (cpu_ns(), Instant::now());
    let edit = build(shape, dir);
    let bytes: u64 = edit.added.iter().map(|added| added.table.bytes).sum();
    let megabytes = bytes as f64 / 1e6;
    println!(
        "{}: build {:.0} ns per entry, {:.0} MB/s of CPU, {:.0} MB/s with syncs",
        shape.name,
        (cpu_ns() - begin) as f64 / KEYS as f64,
        megabytes * 1e9 / (cpu_ns() - begin) as f64,
        megabytes / wall.elapsed().as_secs_f64()
    );
    for (label, cache_bytes) in [("page cache", 0), ("cache of 1/8", bytes / 8), ("all cached", bytes * 2)] {
        let context = Arc::new(TableContext::new(cache_bytes, 64 << 20));
        let open = &mut |meta: &_| Table::open(dir, Arc::clone(meta), &context);
        let version = Version::default().apply(&edit, open).unwrap();
        if label == "all cached" {
            gets(&version, KEYS * 4, |at| at);
        }
        report(shape, &format!("get, {label}"), READS, || gets(&version, READS, |at| at));
        if label != "cache of 1/8" {
            report(shape, &format!("get absent, {label}"), READS, || gets(&version, READS, |at| at + KEYS));
            report(shape, &format!("scan of 100, {label}"), READS / 20, || scans(&version, READS / 20));
        }
        if label == "page cache" {
            println!("{}: {:.1} MB of indexes and filters", shape.name, context.metadata_bytes() as f64 / 1e6);
            report(shape, "full scan, per entry", KEYS, || walk(&version, ReadMode::Scan));
            report(shape, "compaction read, per entry", KEYS, || walk(&version, ReadMode::Compaction));
        }
    }
}

fn report(shape: &Dataset, what: &str, operations: u64, mut run: impl FnMut()) {
    let round = |_| {
        let begin = cpu_ns();
        run();
        cpu_ns() - begin
    };
    let least = (0..ROUNDS).map(round).min().unwrap_or(0);
    println!("{}: {what}: {:.0} ns", shape.name, least as f64 / operations as f64);
}

fn build(shape: &Dataset, dir: &Dir) -> LevelEdit {
    let options = TableOptions { compression: shape.compression, ..TableOptions::default() };
    let mut edit = LevelEdit::default();
    let mut writer: Option<TableWriter> = None;
    let add = |edit: &mut LevelEdit, done: TableWriter| {
        edit.added.push(TableAdded { level: 1, run: 1, table: Arc::new(done.finish().unwrap()) });
    };
    let mut value = vec![0; shape.value_bytes];
    for at in 0..KEYS {
        let table = writer.get_or_insert_with(|| {
            TableWriter::create(dir, edit.added.len() as u64 + 1, IoSource::Flush, &options).unwrap()
        });
        fill(&mut value, at);
        table.add(&Entry::inline(&key(at), at + 1, &value)).unwrap();
        if table.bytes() >= TABLE_BYTES {
            add(&mut edit, writer.take().unwrap());
        }
    }
    if let Some(last) = writer {
        add(&mut edit, last);
    }
    edit
}

/// 24 bytes, in order of `at`; the keys beyond `KEYS` are between the others.
fn key(at: u64) -> [u8; 24] {
    let mut key = *b"key:00000000000000000000";
    let mut number = (at % KEYS) * 7 + at / KEYS;
    for digit in key.iter_mut().rev().take(20) {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    key
}

/// The second half compresses.
fn fill(value: &mut [u8], at: u64) {
    let half = value.len() / 2;
    let mut state = at.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for chunk in value[..half].chunks_mut(8) {
        state = next(state);
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
}

fn next(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^ state << 17
}

fn gets(version: &Version, count: u64, choose: impl Fn(u64) -> u64) {
    let counters = LookupCounters::default();
    let mut state = 88_172_645_463_325_252;
    for _ in 0..count {
        state = next(state);
        let key = key(choose(state % KEYS));
        let hash = key_hash(&key);
        let lookup = Lookup {
            key: &key,
            key_hash: hash,
            snapshot: SeqNo::MAX,
            covered_by: 0,
            after: 0,
            source: IoSource::Get,
            locator: &NewestFirst,
        };
        black_box(version.get(&lookup, &counters).unwrap());
    }
}

fn scans(version: &Version, count: u64) {
    let mut state = 88_172_645_463_325_252;
    for _ in 0..count {
        state = next(state);
        let key = key(state % (KEYS - 100));
        for run in version.streams_overlapping(Some(&key), None) {
            let mut cursor = run.cursor(ReadMode::Scan);
            cursor.seek(&key, SeqNo::MAX).unwrap();
            for _ in 0..100 {
                let entry = cursor.entry().unwrap();
                black_box((entry.key[0], cursor.payload()));
                cursor.next().unwrap();
            }
        }
    }
}

fn walk(version: &Version, mode: ReadMode) {
    let mut entries = 0;
    for run in version.streams_overlapping(None, None) {
        let mut cursor = run.cursor(mode);
        cursor.first().unwrap();
        while let Some(entry) = cursor.entry() {
            black_box(entry);
            entries += 1;
            cursor.next().unwrap();
        }
    }
    assert_eq!(entries, KEYS);
}

/// CPU time of this thread if the system reports it, else wall time.
fn cpu_ns() -> u64 {
    let reported = fs::read_to_string("/proc/thread-self/schedstat").ok();
    let first = reported.and_then(|text| text.split_whitespace().next()?.parse().ok());
    first.unwrap_or_else(|| {
        static BEGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        u64::try_from(BEGIN.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
    })
}
