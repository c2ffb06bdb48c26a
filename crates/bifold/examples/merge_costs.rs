//! What operands of a merge operator cost: `cargo run --release --example merge_costs -- DIR [OPERATIONS]`. DIR must
//! not exist. Rates are in thousands per second, times in microseconds.

use std::{
    error::Error,
    path::{Path, PathBuf},
    time::Instant,
};

use bifold::{Db, Keyspace, KeyspaceOptions, MergeOperator, MergeOperators, Options, PlacementKind};

type Outcome<T> = Result<T, Box<dyn Error>>;

const KEYS: u64 = 100_000;

const NUMBER_BYTES: usize = 8;

/// Operands of one key.
const LENGTHS: [u64; 4] = [10, 1000, 100_000, 1_000_000];

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().ok_or("name a directory that does not exist")?);
    let operations: u64 = args.next().map_or(Ok(1_000_000), |operations| operations.parse())?;
    for placement in [PlacementKind::Inline, PlacementKind::HashKv] {
        for value_bytes in [NUMBER_BYTES, 400] {
            let name = format!("{placement:?}, {value_bytes} B");
            let merged = with_database(&dir, placement, |db| merges(db, value_bytes, operations))?;
            println!("{name}: {merged}");
            let put = with_database(&dir, placement, |db| puts(db, value_bytes, operations))?;
            println!("{name}: {put}");
        }
    }
    for length in LENGTHS {
        println!("{}", with_database(&dir, PlacementKind::Inline, |db| one_key(db, length))?);
    }
    Ok(())
}

/// Adds two numbers at the beginning of longer values.
fn add(_key: &[u8], older: Option<&[u8]>, newer: &[u8]) -> Result<Vec<u8>, String> {
    let older = older.unwrap_or(&[0; NUMBER_BYTES]);
    let number = |bytes: &[u8]| bytes.first_chunk().map(|number| i64::from_le_bytes(*number));
    let (Some(a), Some(b)) = (number(older), number(newer)) else { return Err("no number".to_owned()) };
    let mut sum = if older.len() >= newer.len() { older.to_vec() } else { newer.to_vec() };
    sum[..NUMBER_BYTES].copy_from_slice(&a.wrapping_add(b).to_le_bytes());
    Ok(sum)
}

fn with_database<T>(dir: &Path, placement: PlacementKind, run: impl FnOnce(&Db) -> Outcome<T>) -> Outcome<T> {
    let operator = MergeOperator::new("add", add)?;
    let keyspace = KeyspaceOptions { merge: Some(operator.clone()), ..KeyspaceOptions::default() };
    let merge_operators = MergeOperators::default().with(operator)?;
    let keyspace = keyspace.with_placement(placement);
    let db = Db::open_with(dir, Options { keyspace, merge_operators, ..Options::default() })?;
    let outcome = run(&db)?;
    db.close()?;
    std::fs::remove_dir_all(dir)?;
    Ok(outcome)
}

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

/// Keys in random order, the same each time.
fn random_keys(operations: u64) -> impl Iterator<Item = [u8; 8]> {
    let mut random: u64 = 1;
    (0..operations).map(move |_| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        key((random >> 33) % KEYS)
    })
}

fn fill(db: &Db, value_bytes: usize) -> Outcome<()> {
    for n in 0..KEYS {
        let mut value = vec![n as u8; value_bytes];
        value[..NUMBER_BYTES].copy_from_slice(&(n as i64).to_le_bytes());
        db.put(key(n), value)?;
    }
    db.flush()?;
    db.compact()?;
    Ok(())
}

fn rate(operations: u64, run: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    let begin = Instant::now();
    run()?;
    Ok(operations as f64 / begin.elapsed().as_secs_f64() / 1000.0)
}

fn gets(keys: &Keyspace, operations: u64) -> Outcome<f64> {
    rate(operations, || {
        for key in random_keys(operations) {
            keys.get(key)?.ok_or("a key without a value")?;
        }
        Ok(())
    })
}

fn scan(keys: &Keyspace) -> Outcome<f64> {
    rate(KEYS, || {
        let mut seen = 0;
        for pair in keys.iter() {
            pair?.value()?;
            seen += 1;
        }
        if seen == KEYS { Ok(()) } else { Err("a scan misses keys".into()) }
    })
}

fn merges(db: &Db, value_bytes: usize, operations: u64) -> Outcome<String> {
    fill(db, value_bytes)?;
    let keys = db.default_keyspace();
    let merge = rate(operations, || {
        for key in random_keys(operations) {
            keys.merge(key, 1i64.to_le_bytes())?;
        }
        Ok(())
    })?;
    let (first, after, scanned) = (gets(keys, KEYS)?, gets(keys, operations)?, scan(keys)?);
    db.compact()?;
    let (compacted, scan_compacted) = (gets(keys, operations)?, scan(keys)?);
    Ok(format!(
        "merge {merge:.0}, first gets {first:.0}, gets {after:.0}, scan {scanned:.0}, compacted: gets {compacted:.0}, \
         scan {scan_compacted:.0}"
    ))
}

fn puts(db: &Db, value_bytes: usize, operations: u64) -> Outcome<String> {
    fill(db, value_bytes)?;
    let keys = db.default_keyspace();
    let put = rate(operations, || {
        for key in random_keys(operations) {
            let older = keys.get(key)?;
            keys.put(key, add(&key, older.as_deref(), &1i64.to_le_bytes())?)?;
        }
        Ok(())
    })?;
    let (after, scanned) = (gets(keys, operations)?, scan(keys)?);
    db.compact()?;
    let (compacted, scan_compacted) = (gets(keys, operations)?, scan(keys)?);
    Ok(format!(
        "get and put {put:.0}, gets {after:.0}, scan {scanned:.0}, compacted: gets {compacted:.0}, scan \
         {scan_compacted:.0}"
    ))
}

/// Reads of a key with so many operands in the memtable.
fn one_key(db: &Db, operands: u64) -> Outcome<String> {
    let keys = db.default_keyspace();
    keys.put("hot", 0i64.to_le_bytes())?;
    let merge = rate(operands, || (0..operands).try_for_each(|_| Ok(keys.merge("hot", 1i64.to_le_bytes())?)))?;
    let get = |expected: u64| -> Outcome<f64> {
        let begin = Instant::now();
        let found = keys.get("hot")?;
        let micros = begin.elapsed().as_secs_f64() * 1e6;
        let is_right = found.as_deref() == Some(&(expected as i64).to_le_bytes()[..]);
        if is_right { Ok(micros) } else { Err("a wrong sum".into()) }
    };
    let first = get(operands)?;
    let rounds = if operands > 10_000 { 20 } else { 10_000 };
    let (mut again, mut between) = (0.0, 0.0);
    for _ in 0..rounds {
        again += get(operands)? / rounds as f64;
    }
    for n in 1..=rounds {
        keys.merge("hot", 1i64.to_le_bytes())?;
        between += get(operands + n)? / rounds as f64;
    }
    Ok(format!(
        "{operands} operands: merge {merge:.0}, first get {first:.2} us, again {again:.2}, between {between:.2}"
    ))
}
