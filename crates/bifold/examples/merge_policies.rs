//! Costs and gains of the merge policies of `diffkv` (DiffKV §3.4, figures 14 to 16): values moved, sorted groups,
//! scans.
//!
//! ```text
//! cargo run --release -p bifold --example merge_policies -- [keys] [overwrites of each] [DIR]
//! ```
//!
//! For each policy in turn: loads values of 1000 bytes in random order, overwrites them, waits until all due merges
//! are done, and then scans 100 entries at a time. The levels of the tree are small, so that it has several.

use std::{path::PathBuf, time::Instant};

use bifold::{Db, Error, KeyspaceOptions, Options, PlacementKind, options};

const VALUE: usize = 1000;
const SCANS: u64 = 2000;
const SCAN_LEN: usize = 100;

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let keys: u64 = arguments.next().and_then(|keys| keys.parse().ok()).unwrap_or(500_000);
    let rounds: u64 = arguments.next().and_then(|rounds| rounds.parse().ok()).unwrap_or(2);
    let dir = arguments.next().map_or_else(|| std::env::temp_dir().join("bifold-merge-policies"), PathBuf::from);
    println!("{keys} values of {VALUE} B, {} overwritten, then {SCANS} scans of {SCAN_LEN}", rounds * keys);
    println!("policy            puts/s  merges  moved MiB  groups  side by side  scans/s  value files MiB");
    use options::MergePolicy::{EachLevel, Lazy, Off, ScanOptimised};
    for policy in [Off, EachLevel, Lazy, ScanOptimised] {
        let db = dir.join(format!("{policy:?}"));
        run((keys, rounds), policy, &db)?;
        std::fs::remove_dir_all(&db).map_err(|error| Error::invalid("DIR", error.to_string()))?;
    }
    Ok(())
}

fn run((keys, rounds): (u64, u64), policy: options::MergePolicy, dir: &std::path::Path) -> Result<(), Error> {
    let diffkv = options::DiffKv { merge: policy, ..options::DiffKv::default() };
    let values = options::Values { diffkv, ..options::Values::default() };
    let mut keyspace = KeyspaceOptions { placement: PlacementKind::DiffKv, values, ..KeyspaceOptions::default() };
    keyspace.table_bytes = 1 << 20;
    keyspace.compaction =
        options::Compaction::Leveled(options::Leveled { base_bytes: 1 << 20, size_ratio: 4, ..Default::default() });
    let options = Options { memory_limit: 256 << 20, memtable_bytes: 16 << 20, keyspace, ..Options::default() };
    let db = Db::open_with(dir, options)?;
    let begin = Instant::now();
    let mut random = 1u64;
    for n in 0..(1 + rounds) * keys {
        let key = if n < keys { n } else { next(&mut random) % keys };
        db.put(name(key), [n as u8; VALUE])?;
    }
    let puts = ((1 + rounds) * keys) as f64 / begin.elapsed().as_secs_f64();
    db.wait_idle()?;
    let begin = Instant::now();
    for _ in 0..SCANS {
        let start = name(next(&mut random) % keys);
        for pair in db.range(&start[..]..).take(SCAN_LEN) {
            assert_eq!(pair?.value()?.len(), VALUE);
        }
    }
    let scans = SCANS as f64 / begin.elapsed().as_secs_f64();
    let stats = db.stats();
    let order = stats.keyspaces[0].values.clone().unwrap_or_default();
    let groups: u64 = order.levels.iter().map(|level| level.groups).sum();
    let overlap: f64 = order.levels.iter().map(|level| level.overlap).sum();
    let moved = order.merged_bytes + order.untangled_bytes + order.gc_bytes;
    println!(
        "{:14} {puts:9.0} {:7} {:10} {groups:7} {overlap:13.1} {scans:8.0} {:16}",
        format!("{policy:?}"),
        order.merges,
        moved >> 20,
        stats.space.values_bytes >> 20,
    );
    db.close()
}

/// The key with this number; the order of keys looks random.
fn name(key: u64) -> [u8; 24] {
    let mut name = *b"user....................";
    name[4..12].copy_from_slice(&key.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes());
    name
}

fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *random >> 33
}
