//! Iterators that leave out damaged blocks of tables: all that they yield is right, and all that is missing is named.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bifold::{Access, DamagedBlock, Db, Env, Error, MergeOperator, MergeOperators, Options, PlacementKind};
use bifold_io::memory::MemoryFs;

use crate::bed::{Bed, numbers};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Values of up to so many bytes: some are inline with every placement.
const VALUE_BYTES: u64 = 400;

fn key(n: u64) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

/// A closed database after random writes, flushes and merges of parts, and what it holds. Snapshots that were open have
/// made tables keep several versions of a key.
fn written(placement: PlacementKind, seed: u64) -> (Bed, Model) {
    let (mut bed, mut model, mut held) = (Bed::new(placement), Model::new(), Vec::new());
    let mut random = numbers(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    for step in 0..800 {
        let n = random(150);
        let value = format!("{n}.{step} ").into_bytes().repeat(1 + random(VALUE_BYTES / 8) as usize);
        match random(40) {
            0..=27 => {
                bed.ks().put(key(n), &value).unwrap();
                model.insert(key(n), value);
            }
            28 => {
                bed.ks().put_with_ttl(key(n), &value, Duration::from_secs(1)).unwrap();
                model.remove(&key(n));
            }
            29..=31 => {
                bed.ks().delete(key(n)).unwrap();
                model.remove(&key(n));
            }
            32 => {
                bed.ks().delete_range(key(n)..key(n + 8)).unwrap();
                model.retain(|k, _| !(key(n)..key(n + 8)).contains(k));
            }
            33..=35 => bed.db().flush().unwrap(),
            36 => bed.ks().compact_range(key(n)..key(n + 40)).unwrap(),
            37 => held.push(bed.db().snapshot()),
            38 if random(4) == 0 => held.clear(),
            39 if random(4) == 0 => bed.db().collect_garbage().unwrap(),
            _ => {}
        }
    }
    bed.db().flush().unwrap();
    drop(held);
    bed.db.take().unwrap().close().unwrap();
    bed.set_time(2_000_000);
    (bed, model)
}

fn files(fs: &MemoryFs, extension: &str) -> Vec<PathBuf> {
    fs.files().into_iter().filter(|path| path.extension().is_some_and(|e| e == extension)).collect()
}

/// Flips a bit, or writes zeros over up to 600 bytes, somewhere in a file.
fn damage(fs: &MemoryFs, path: &Path, random: &mut impl FnMut(u64) -> u64) {
    let mut bytes = fs.read(path).unwrap();
    let at = random(bytes.len() as u64) as usize;
    if random(2) == 0 {
        bytes[at] ^= 1 << random(8);
    } else {
        let end = bytes.len().min(at + 1 + random(600) as usize);
        bytes[at..end].fill(0);
    }
    fs.write_durable(path, &bytes);
}

/// What an iterator has found.
#[derive(Default)]
struct Found {
    entries: Model,
    left_out: Vec<DamagedBlock>,
    lost_values: Vec<Vec<u8>>,
}

/// All that can be read of a copy; `None` if that does not open.
fn read(bed: &Bed, fs: &MemoryFs) -> Option<Found> {
    let env = Env { fs: Arc::new(fs.clone()), ..bed.env() };
    let options = Options { access: Access::ReadOnly, ..bed.options.clone() };
    let db = Db::open_in(env, "/db", options).ok()?;
    let mut found = Found::default();
    let mut entries = db.default_keyspace().iter().undamaged();
    while let Some(pair) = entries.next() {
        found.left_out.extend(std::iter::from_fn(|| entries.left_out()));
        let pair = pair.unwrap();
        match pair.value().or_else(|_| pair.value()) {
            Ok(value) => drop(found.entries.insert(pair.key().to_vec(), value.to_vec())),
            Err(error) if error.is_unreadable() => found.lost_values.push(pair.key().to_vec()),
            Err(error) => panic!("{error}"),
        }
    }
    found.left_out.extend(std::iter::from_fn(|| entries.left_out()));
    Some(found)
}

#[derive(Default)]
struct Counts {
    opened: u64,
    blocks: u64,
    values: u64,
    missing: u64,
}

fn damaged(placement: PlacementKind, seed: u64, counts: &mut Counts) {
    let (bed, model) = written(placement, seed);
    let tables = files(&bed.fs, "tbl");
    let whole = read(&bed, &bed.fs).unwrap();
    assert!(whole.entries == model && whole.left_out.is_empty(), "{placement:?}, seed {seed}: undamaged");
    let mut random = numbers(seed + 77);
    for round in 0..12 {
        let what = format!("{placement:?}, seed {seed}, round {round}");
        let fs = bed.fs.fork();
        for _ in 0..=random(3) {
            damage(&fs, &tables[random(tables.len() as u64) as usize], &mut random);
        }
        let value_files = files(&fs, "val");
        let damages_values = random(3) == 0 && !value_files.is_empty();
        if damages_values {
            damage(&fs, &value_files[random(value_files.len() as u64) as usize], &mut random);
        }
        let Some(found) = read(&bed, &fs) else { continue };
        counts.opened += 1;
        counts.blocks += found.left_out.len() as u64;
        counts.values += found.lost_values.len() as u64;
        assert!(damages_values || found.lost_values.is_empty(), "{what}: values that cannot be read");
        for (key, value) in &found.entries {
            assert_eq!(model.get(key), Some(value), "{what}: {}", key.escape_ascii());
        }
        for key in model.keys().filter(|key| !found.entries.contains_key(*key)) {
            let is_between = |block: &DamagedBlock| (&block.first[..]..=&block.last[..]).contains(&&key[..]);
            let is_named = found.left_out.iter().any(is_between) || found.lost_values.contains(key);
            assert!(is_named, "{what}: {} is missing, and nothing says so", key.escape_ascii());
            counts.missing += 1;
        }
        let mut blocks: Vec<_> = found.left_out.iter().map(|block| (&block.file, block.offset)).collect();
        let all = blocks.len();
        blocks.sort();
        blocks.dedup();
        assert_eq!(blocks.len(), all, "{what}: a block is named once");
        for block in &found.left_out {
            let (sound, now) = (bed.fs.read(&block.file).unwrap(), fs.read(&block.file).unwrap());
            let range = block.offset as usize..(block.offset + block.bytes) as usize;
            assert_ne!(sound[range.clone()], now[range], "{what}: a block that was damaged");
        }
    }
}

#[test]
fn what_is_yielded_is_right_and_what_is_missing_is_named() {
    let mut counts = Counts::default();
    for placement in PlacementKind::ALL {
        (0..8).for_each(|seed| damaged(placement, seed, &mut counts));
    }
    let Counts { opened, blocks, values, missing } = counts;
    println!("{opened} damaged databases opened, {blocks} blocks and {values} values left out, {missing} keys missing");
    assert!(opened > 150 && blocks > 150 && values > 5 && missing > 300, "too little was damaged");
}

/// One damaged block of a database of `inline` costs the keys between its fences and no other.
#[test]
fn one_block_costs_its_own_keys() {
    let (bed, model) = {
        let mut bed = Bed::new(PlacementKind::Inline);
        let mut random = numbers(5);
        let entries: Model = (0..2000).map(|n| (key(n), (0..50).map(|_| random(256) as u8).collect())).collect();
        entries.iter().for_each(|(key, value)| bed.ks().put(key, value).unwrap());
        bed.db().flush().unwrap();
        bed.db().compact().unwrap();
        bed.db.take().unwrap().close().unwrap();
        (bed, entries)
    };
    let mut tables = files(&bed.fs, "tbl");
    // In a short table a third of it may be behind the blocks.
    tables.retain(|path| bed.fs.read(path).unwrap().len() > 3000);
    let mut costs = Vec::new();
    for table in &tables {
        let at = bed.fs.read(table).unwrap().len() as u64 / 3;
        let fs = bed.fs.fork();
        fs.flip_bit(table, 8 * at);
        let found = read(&bed, &fs).unwrap();
        let missing = model.len() - found.entries.len();
        assert_eq!(found.left_out.len(), 1, "{}", table.display());
        let block = &found.left_out[0];
        assert!(block.offset <= at && at < block.offset + block.bytes && block.file == *table, "{block:?}");
        // 512 bytes of entries with keys of 8 bytes, of which some are shared, and values of 50.
        assert!((1..=12).contains(&missing), "{missing} keys of a block of {} bytes", block.bytes);
        costs.push(missing);
    }
    println!("{costs:?} of {} keys missing, one damaged block each", model.len());
    assert!(costs.len() > 3, "{} tables", costs.len());
}

/// A bed for operands. They append, but to a base only.
fn appending(placement: PlacementKind) -> Bed {
    let append = |_: &[u8], older: Option<&[u8]>, newer: &[u8]| {
        older.map(|older| [older, newer].concat()).ok_or_else(|| "no base".to_owned())
    };
    let operator = MergeOperator::new("append_to_base", append).unwrap();
    let mut bed = Bed::new(placement);
    (bed.options.memtable_bytes, bed.options.memory_limit) = (1 << 20, 32 << 20);
    bed.options.merge_operators = MergeOperators::default().with(operator.clone()).unwrap();
    bed.begin_with(operator);
    bed
}

/// Values in tables, and so many operands of each key in the log. What iterators combine themselves, and what they look
/// up.
fn with_operands(placement: PlacementKind, operands: impl Fn(u64) -> usize) -> (Bed, Model) {
    let (mut bed, mut random, mut model) = (appending(placement), numbers(5), Model::new());
    for n in 0..200 {
        model.insert(key(n), (0..80).map(|_| random(256) as u8).collect());
        bed.ks().put(key(n), &model[&key(n)]).unwrap();
    }
    bed.db().flush().unwrap();
    bed.db().compact().unwrap();
    for (n, value) in (0..).zip(model.values_mut()) {
        for _ in 0..operands(n) {
            bed.ks().merge(key(n), "+").unwrap();
            value.push(b'+');
        }
    }
    bed.db.take().unwrap().close().unwrap();
    (bed, model)
}

#[test]
fn a_damaged_value_below_operands_costs_its_own_key() {
    for placement in PlacementKind::ALL.into_iter().filter(|placement| *placement != PlacementKind::Inline) {
        let (bed, mut model) = with_operands(placement, |n| [0, 1, 12][n as usize % 3]);
        let value_files = files(&bed.fs, "val");
        let lost = [40, 41, 100, 101].map(key);
        for key in &lost {
            let value = &model.remove(key).unwrap()[..80];
            let find = |path: &PathBuf| {
                let at = bed.fs.read(path).unwrap().windows(80).position(|bytes| bytes == value)?;
                Some((path.clone(), at))
            };
            let Some((path, at)) = value_files.iter().find_map(find) else { panic!("{placement:?}: not separated") };
            bed.fs.flip_bit(&path, 8 * at as u64 + 100);
        }
        let found = read(&bed, &bed.fs).unwrap();
        assert_eq!(found.lost_values, lost, "{placement:?}");
        assert!(found.entries == model && found.left_out.is_empty(), "{placement:?}");
    }
}

#[test]
fn a_damaged_block_costs_the_keys_that_have_operands_above_it() {
    let (bed, model) = with_operands(PlacementKind::Inline, |n| [0, 1, 12][n as usize % 3]);
    let (mut blocks, mut missing) = (0, 0);
    for table in files(&bed.fs, "tbl") {
        let fs = bed.fs.fork();
        fs.flip_bit(&table, 8 * (fs.read(&table).unwrap().len() as u64 / 3));
        let found = read(&bed, &fs).unwrap();
        blocks += found.left_out.len();
        assert!(found.lost_values.is_empty(), "no block is read twice");
        for (key, value) in &model {
            let is_between = |block: &DamagedBlock| (&block.first[..]..=&block.last[..]).contains(&&key[..]);
            let is_left_out = found.left_out.iter().any(is_between);
            missing += usize::from(is_left_out);
            assert_eq!(found.entries.get(key), Some(value).filter(|_| !is_left_out), "{}", key.escape_ascii());
        }
    }
    assert!(blocks > 0 && missing > 2, "{blocks} blocks with {missing} keys");
}

#[test]
fn operands_that_cannot_be_combined_are_no_damage() {
    let bed = appending(PlacementKind::Inline);
    bed.ks().put("a", "v").unwrap();
    bed.ks().merge("b", "+").unwrap();
    bed.ks().put("c", "v").unwrap();
    let mut entries = bed.ks().iter().undamaged();
    assert_eq!(entries.next().unwrap().unwrap().key(), b"a");
    let failed = entries.next().unwrap();
    assert!(matches!(failed, Err(Error::Merge { .. })), "{failed:?}");
    assert!(entries.next().is_none() && entries.left_out().is_none());
}

#[test]
fn an_iterator_that_has_begun_cannot_leave_out_damage() {
    let bed = Bed::new(PlacementKind::Inline);
    ["a", "b"].iter().for_each(|key| bed.ks().put(key, "v").unwrap());
    let mut range = bed.ks().iter();
    range.next().unwrap().unwrap();
    let mut entries = range.undamaged();
    assert!(entries.next().unwrap().unwrap_err().to_string().contains("new iterator"));
    assert!(entries.next().is_none());
}
