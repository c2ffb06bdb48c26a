//! Damage of every kind to closed and killed databases, under a memory limit: see `bifold_sim::damage`.

use std::fs;

use bifold::{Db, KeyspaceOptions, Options, PlacementKind, Workers};
use bifold_sim::{
    allocations::{Counting, are_counted, peak_of},
    damage::run,
    report::{over_seeds, scaled},
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often each database is damaged.
const TIMES: u64 = 25;

#[test]
fn damage_takes_no_memory_makes_no_panic_and_gives_no_wrong_answer() {
    assert!(are_counted());
    // Databases of all kinds are among the first 24 seeds, and not among fewer.
    let seeds = scaled(24).max(24);
    let report = over_seeds(0..seeds, |seed| run(seed, TIMES));
    let at_least = [
        ("closed databases damaged", seeds * TIMES / 3),
        ("killed databases damaged", seeds * TIMES / 6),
        ("killed databases with an append region damaged", seeds * TIMES / 6),
        ("damaged databases that answer", seeds),
    ];
    report.finish("damage", &at_least);
}

/// The size of the log, and the memory limit with which it is opened.
const LOG_BYTES: usize = 64 << 20;
const MEMORY_LIMIT: u64 = 16 << 20;

#[test]
fn a_log_much_larger_than_the_memory_limit_is_replayed_within_it() {
    let dir = std::env::temp_dir().join(format!("bifold-large-log-{}", std::process::id()));
    let large = Options { memory_limit: 8 << 30, memtable_bytes: 1 << 30, log_bytes: 4 << 30, ..Options::default() };
    let large = Options { workers: Workers::Caller, ..large };
    let written = Db::open_with(&dir, Options { keyspace: inline(), ..large }).unwrap();
    for n in 0..LOG_BYTES >> 16 {
        written.put(n.to_be_bytes(), vec![n as u8; 1 << 16]).unwrap();
    }
    // As after a kill.
    std::mem::forget(written);
    let image = dir.with_extension("image");
    fs::create_dir_all(&image).unwrap();
    for entry in fs::read_dir(&dir).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), image.join(entry.file_name())).unwrap();
    }
    let options =
        Options { memory_limit: MEMORY_LIMIT, workers: Workers::Caller, keyspace: inline(), ..Options::default() };
    let (db, peak) = peak_of(|| Db::open_with(&image, options));
    let count = db.unwrap().iter().count();
    drop((fs::remove_dir_all(&dir), fs::remove_dir_all(&image)));
    assert_eq!(count, LOG_BYTES >> 16);
    println!("opening a log of {LOG_BYTES} bytes took {peak} bytes of memory, limit {MEMORY_LIMIT}");
    assert!(peak as u64 <= MEMORY_LIMIT + (4 << 20), "{peak} bytes");
}

fn inline() -> KeyspaceOptions {
    KeyspaceOptions { placement: PlacementKind::Inline, ..KeyspaceOptions::default() }
}
