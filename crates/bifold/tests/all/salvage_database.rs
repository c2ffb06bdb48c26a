//! Salvage of whole directories: what comes back was written for its key, what does not is reported, and nothing else
//! is missing.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bifold::{
    Env, Error, PlacementKind,
    salvage::{DatabaseReport, DatabaseSalvage, LostStretch, SalvageOptions},
};
use bifold_format::{
    log::{LogReader, Tail},
    manifest::ManifestReader,
};
use bifold_io::{FileSystem, memory::MemoryFs};

use crate::bed::{Bed, numbers, small};

mod operands;
mod trust;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Both keyspaces.
const NAMES: [&str; 2] = ["default", "other"];

fn key(n: u64) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

/// What was written.
#[derive(Default)]
struct History {
    /// What each keyspace has in the end.
    live: [Model; 2],
    /// Each value that a key of a keyspace had once.
    written: [BTreeSet<(Vec<u8>, Vec<u8>)>; 2],
}

/// A database after random writes, flushes and merges, open, and what was written.
fn written(placement: PlacementKind, seed: u64) -> (Bed, History) {
    let (bed, mut history, mut held) = (Bed::new(placement), History::default(), Vec::new());
    let other = bed.db().keyspace("other", small(placement).keyspace).unwrap();
    let spaces = [bed.ks().clone(), other];
    let mut random = numbers(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    for step in 0..900 {
        let (which, n) = (random(2) as usize, random(120));
        let (space, live) = (&spaces[which], &mut history.live[which]);
        let value = format!("{which}.{n}.{step} ").into_bytes().repeat(1 + random(40) as usize);
        let act = random(60);
        if act <= 41 {
            history.written[which].insert((key(n), value.clone()));
        }
        match act {
            0..=37 => {
                space.put(key(n), &value).unwrap();
                live.insert(key(n), value);
            }
            38..=39 => {
                space.put_with_ttl(key(n), &value, Duration::from_secs(1)).unwrap();
                live.remove(&key(n));
            }
            40..=41 => {
                space.put_with_ttl(key(n), &value, Duration::from_secs(100_000_000)).unwrap();
                live.insert(key(n), value);
            }
            42..=46 => {
                space.delete(key(n)).unwrap();
                live.remove(&key(n));
            }
            47 => {
                space.delete_range(key(n)..key(n + 8)).unwrap();
                live.retain(|k, _| !(key(n)..key(n + 8)).contains(k));
            }
            48..=50 => bed.db().flush().unwrap(),
            51 => space.compact_range(key(n)..key(n + 40)).unwrap(),
            52 => held.push(bed.db().snapshot()),
            53 if random(4) == 0 => held.clear(),
            54 if random(3) == 0 => drop(bed.db().collect_garbage()),
            _ => {}
        }
    }
    drop(held);
    (bed, history)
}

/// What came back.
struct Restored {
    spaces: BTreeMap<String, Model>,
    report: DatabaseReport,
}

fn salvaged(bed: &Bed, fs: &MemoryFs, memory_bytes: usize) -> Restored {
    let before: Vec<_> = fs.files().into_iter().map(|path| (fs.read(&path).unwrap(), path)).collect();
    let merge_operators = bed.options.merge_operators.clone();
    let options = SalvageOptions { memory_bytes, merge_operators, ..SalvageOptions::default() };
    let salvage = DatabaseSalvage::open(&bed.env_of(fs), Path::new("/db"), &options).unwrap();
    let to = Bed::of(small(PlacementKind::Inline));
    to.set_time(2_000_000);
    let report = salvage.restore(to.db(), |_| ()).unwrap();
    for (bytes, path) in before {
        assert!(fs.read(&path).unwrap() == bytes, "{} was changed", path.display());
    }
    let mut spaces = BTreeMap::new();
    for name in to.db().keyspace_names() {
        let space = to.db().existing_keyspace(&name).unwrap().unwrap();
        let entries = space.iter().map(|pair| pair.unwrap());
        spaces.insert(name, entries.map(|pair| (pair.key().to_vec(), pair.value().unwrap().to_vec())).collect());
    }
    Restored { spaces, report }
}

/// How a file was damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Flip(usize),
    Zero(usize, usize),
    Cut(usize),
}

fn damage(fs: &MemoryFs, path: &Path, random: &mut impl FnMut(u64) -> u64) -> Option<Damage> {
    let sound = fs.read(path).unwrap();
    let mut bytes = sound.clone();
    let at = random(bytes.len().max(1) as u64) as usize;
    let damage = match random(5) {
        _ if bytes.is_empty() => return None,
        0 => Damage::Cut(at),
        1 | 2 => Damage::Zero(at, bytes.len().min(at + 1 + random(1500) as usize)),
        _ => Damage::Flip(at),
    };
    match damage {
        Damage::Cut(at) => bytes.truncate(at),
        Damage::Zero(from, to) => bytes[from..to].fill(0),
        Damage::Flip(at) => bytes[at] ^= 1 << random(8),
    }
    fs.write_durable(path, &bytes);
    (bytes != sound).then_some(damage)
}

fn files(fs: &MemoryFs) -> Vec<PathBuf> {
    let counts = |path: &PathBuf| {
        let extension = path.extension().map(|extension| extension.to_string_lossy().into_owned());
        matches!(extension.as_deref(), Some("tbl" | "log" | "val")) || path.ends_with("MANIFEST")
    };
    fs.files().into_iter().filter(counts).collect()
}

#[derive(Debug, Default)]
struct Counts {
    damages: u64,
    stretches: u64,
    lost_values: u64,
    missing: u64,
    older: u64,
    entries: u64,
}

/// Whether a stretch that was left out may explain what became of a key.
fn explains(left_out: &LostStretch, space: &str, key: &[u8]) -> bool {
    left_out.keyspace.as_deref().is_none_or(|name| name == space)
        && left_out.first.as_deref().is_none_or(|first| first <= key)
        && left_out.last.as_deref().is_none_or(|last| key <= last)
}

/// Whether the report says that a log may have lost some of a key's operands. [`operands`] looks at these keys.
fn lacks(report: &DatabaseReport, space: &str, key: &[u8]) -> bool {
    let mut said = report.keyspaces.iter().filter(|keyspace| keyspace.name == space);
    said.any(|keyspace| keyspace.lacking_keys.iter().any(|lacking| **lacking == *key))
}

fn check(what: &str, history: &History, restored: &Restored, counts: &mut Counts) {
    let Restored { spaces, report } = restored;
    assert_eq!(spaces.values().flatten().count() > 0, report.keyspaces.iter().any(|k| k.restored > 0), "{what}");
    for (name, entries) in spaces {
        let known = NAMES.iter().position(|known| known == name);
        for (key, value) in entries {
            let entry = (key.clone(), value.clone());
            let is_one = |which: usize| history.written[which].contains(&entry);
            let was_written = known.map_or_else(|| is_one(0) || is_one(1), is_one) || lacks(report, name, key);
            assert!(was_written, "{what}: {name}, {}: never written", key.escape_ascii());
            counts.entries += 1;
        }
    }
    // Tables whose keyspace is lost become keyspaces of their own.
    let have_owners = report.keyspaces.iter().all(|keyspace| keyspace.id.is_some());
    for (name, live) in NAMES.iter().zip(&history.live).filter(|_| have_owners) {
        let nothing = Model::new();
        let found = spaces.get(*name).unwrap_or(&nothing);
        let said = report.keyspaces.iter().find(|keyspace| keyspace.name == *name).cloned().unwrap_or_default();
        let mut older = 0;
        for key in live.keys().chain(found.keys()).collect::<BTreeSet<_>>() {
            if live.get(key) == found.get(key) {
                continue;
            }
            let is_lost = said.lost_keys.iter().any(|lost| **lost == **key);
            let is_explained = is_lost || report.left_out.iter().any(|left_out| explains(left_out, name, key));
            assert!(is_explained, "{what}: {name}, {}: {:?}", key.escape_ascii(), report);
            assert!(!is_lost || !found.contains_key(key), "{what}: a lost key that came back");
            older += u64::from(found.contains_key(key) && !lacks(report, name, key));
            counts.missing += u64::from(!found.contains_key(key));
        }
        assert!(older <= said.may_be_older, "{what}: {name}: {older} of {} that may be older", said.may_be_older);
        counts.older += older;
        counts.lost_values += said.lost_values;
    }
    counts.stretches += report.left_out_stretches;
}

/// What must not be missing, whatever else is: tables whose data is whole lose no key.
fn check_table(what: &str, fs: &MemoryFs, sound: &[u8], (path, how): (&Path, Damage), report: &DatabaseReport) {
    let data_bytes = sound[sound.len() - 72..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let now = fs.read(path).unwrap();
    for left_out in &report.left_out {
        assert_eq!(left_out.file, path, "{what}: {left_out:?}");
        let (start, end) = (left_out.offset as usize, (left_out.offset + left_out.bytes) as usize);
        // Behind the data there is what tells where it ends. A table that was cut has lost that.
        let differs = now.get(start..end.min(now.len())) != sound.get(start..end) || matches!(how, Damage::Cut(_));
        assert!(differs || end as u64 > data_bytes, "{what}: {how:?}: {left_out:?}");
    }
}

/// Whether a log or manifest was cut between two records: nothing tells that there were more.
fn looks_shorter(fs: &MemoryFs, path: &Path) -> bool {
    let now = fs.read(path).unwrap();
    let id = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse().ok());
    match (path.extension().is_some_and(|e| e == "log"), id) {
        (true, Some(id)) => LogReader::new(&now, id)
            .is_ok_and(|mut reader| reader.by_ref().all(|record| record.is_ok()) && reader.tail() == Tail::Clean),
        _ => {
            path.ends_with("MANIFEST")
                && ManifestReader::new(&now).is_ok_and(|mut reader| {
                    reader.by_ref().all(|record| record.is_ok()) && reader.tail() == Tail::Clean
                })
        }
    }
}

/// Damages what a history has left, again and again, salvages it and hands out what came back.
fn damaged(
    (mut bed, history): (Bed, History),
    (what, seed): (String, u64),
    counts: &mut Counts,
    mut came_back: impl FnMut(&str, &History, &Restored),
) {
    let is_killed = seed.is_multiple_of(2);
    if !is_killed {
        bed.db.take().unwrap().close().unwrap();
    }
    let source = bed.fs.fork();
    let whole = salvaged(&bed, &source, 2000);
    assert!(whole.report.is_sound() && whole.report.manifest_is_whole, "{what}: {:?}", whole.report);
    for (name, live) in NAMES.iter().zip(&history.live) {
        assert!(whole.spaces.get(*name) == Some(live), "{what}: {name} of an undamaged database");
    }
    assert!(whole.report.keyspaces.iter().all(|keyspace| keyspace.may_be_older == 0), "{what}");
    let mut random = numbers(seed + 77);
    let all = files(&source);
    for round in 0..24 {
        let fs = source.fork();
        let path = &all[random(all.len() as u64) as usize];
        let sound = fs.read(path).unwrap();
        let Some(how) = damage(&fs, path, &mut random) else { continue };
        let mut what = format!("{what}, round {round}, {}, {how:?}", path.display());
        let mut paths = vec![path];
        for _ in 0..if round % 3 == 2 { 3 } else { 0 } {
            paths.push(&all[random(all.len() as u64) as usize]);
            let how = damage(&fs, paths[paths.len() - 1], &mut random);
            what = format!("{what}, {}, {how:?}", paths[paths.len() - 1].display());
        }
        if paths.iter().any(|path| looks_shorter(&fs, path)) {
            continue;
        }
        let restored = salvaged(&bed, &fs, if round % 2 == 0 { 2000 } else { 1 << 20 });
        counts.damages += 1;
        check(&what, &history, &restored, counts);
        came_back(&what, &history, &restored);
        if path.extension().is_some_and(|e| e == "tbl") && paths.len() == 1 {
            check_table(&what, &fs, &sound, (path, how), &restored.report);
        }
        if path.ends_with("MANIFEST") && paths.len() == 1 {
            assert!(!restored.report.is_sound(), "{what}: nothing is reported");
        }
    }
    for (file, fs) in without_a_file(&source, &all) {
        let what = format!("{what}, without {file}");
        let restored = salvaged(&bed, &fs, 1 << 20);
        counts.damages += 1;
        check(&what, &history, &restored, counts);
        came_back(&what, &history, &restored);
    }
}

/// What is left without one of the newest tables, or without the oldest log, which may be the first that is needed.
fn without_a_file(source: &MemoryFs, all: &[PathBuf]) -> Vec<(String, MemoryFs)> {
    let with = |extension| all.iter().filter(move |path| path.extension().is_some_and(|e| e == extension));
    let removed = |path: &PathBuf| {
        let fs = source.fork();
        fs.remove(path).unwrap();
        (path.display().to_string(), fs)
    };
    with("tbl").rev().take(2).chain(with("log").take(1)).map(removed).collect()
}

#[test]
fn what_comes_back_was_written_and_what_is_missing_is_reported() {
    let mut counts = Counts::default();
    for placement in PlacementKind::ALL {
        for seed in 0..6 {
            let what = format!("{placement:?}, seed {seed}");
            damaged(written(placement, seed), (what, seed), &mut counts, |_, _, _| ());
        }
    }
    println!("{counts:?}");
    assert!(counts.damages > 500 && counts.missing > 500 && counts.older > 20, "too little was damaged");
    assert!(counts.stretches > 300 && counts.lost_values > 20, "too little was damaged");
}

/// Everything behind the blocks of each table may be lost, and the manifest, too.
#[test]
fn blocks_are_found_without_index_and_manifest() {
    for placement in PlacementKind::ALL {
        let mut bed = Bed::new(placement);
        let entries: Model =
            (0..400).map(|n| (key(n), format!("{n} ").into_bytes().repeat(1 + n as usize % 30))).collect();
        entries.iter().for_each(|(key, value)| bed.ks().put(key, value).unwrap());
        bed.db().flush().unwrap();
        bed.db().compact().unwrap();
        bed.db.take().unwrap().close().unwrap();
        let fs = bed.fs.fork();
        for path in files(&fs).iter().filter(|path| path.extension().is_some_and(|e| e == "tbl")) {
            let mut bytes = fs.read(path).unwrap();
            let data = bytes[bytes.len() - 72..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)) as usize;
            bytes[data..].fill(0);
            fs.write_durable(path, &bytes);
        }
        let found = salvaged(&bed, &fs, 1 << 20);
        assert!(found.spaces["default"] == entries, "{placement:?}");
        assert!(!found.report.is_sound(), "{placement:?}");
        fs.write_durable(Path::new("/db/MANIFEST"), b"");
        let options = SalvageOptions { tables_of: Some(2), ..SalvageOptions::default() };
        let salvage = DatabaseSalvage::open(&bed.env_of(&fs), Path::new("/db"), &options).unwrap();
        let to = Bed::of(small(PlacementKind::Inline));
        let report = salvage.restore(to.db(), |_| ()).unwrap();
        let found: Model =
            to.ks().iter().map(|pair| pair.unwrap()).map(|p| (p.key().to_vec(), p.value().unwrap().to_vec())).collect();
        assert!(found == entries && !report.manifest_is_whole, "{placement:?}: {report:?}");
    }
}

#[test]
fn a_database_that_is_open_for_writing_is_refused() {
    let bed = Bed::new(PlacementKind::Inline);
    let opened = DatabaseSalvage::open(&bed.env(), Path::new("/db"), &SalvageOptions::default());
    assert!(matches!(opened, Err(Error::Locked { .. })), "{opened:?}");
    let nowhere = DatabaseSalvage::open(
        &Env { fs: Arc::new(MemoryFs::new()), ..bed.env() },
        Path::new("/none"),
        &SalvageOptions::default(),
    );
    assert!(matches!(nowhere, Err(Error::NotFound { .. })), "{nowhere:?}");
}
