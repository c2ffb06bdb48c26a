//! Value files alone: what they show, and what comes back of a database whose other files are lost.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use bifold::{
    Db, Env, Error, KeyspaceOptions, Options, PlacementKind,
    options::{HashKv, Values},
    salvage::{Fate, Report, Restore, Salvage, SalvageOptions, SalvagedKey},
};

use crate::support::{TempDir, entries, tiny};

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

fn separated(placement: PlacementKind) -> Options {
    let values = Values {
        separate_from_bytes: Some(64),
        file_bytes: 16 << 10,
        hashkv: HashKv { group_bytes: 8 << 10, ..HashKv::default() },
        ..Values::default()
    };
    Options { keyspace: KeyspaceOptions { placement, values, ..tiny().keyspace }, ..tiny() }
}

fn key(n: u32) -> String {
    format!("key{n:05}")
}

fn value(n: u32, round: u32) -> Vec<u8> {
    format!("{n}.{round} ").into_bytes().repeat(20 + (n % 30) as usize)
}

fn value_files(db: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(db).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|e| e == "val")).collect();
    files.sort();
    files
}

/// Restores files into a new database. Returns the entries of its keyspace `name`, and the report.
fn restored(dir: &TempDir, files: &[PathBuf], options: &SalvageOptions, name: &str) -> (Entries, Report) {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let db = Db::open_with(dir.join(&format!("out{number}")), tiny()).unwrap();
    let report = Salvage::open(&Env::system(), files, options).unwrap().restore(&db, |_| ()).unwrap();
    let found = db.existing_keyspace(name).unwrap().map(|keyspace| entries(keyspace.iter()));
    (found.unwrap_or_default().into_iter().collect(), report)
}

/// A database with overwritten, deleted, shrunk and range-deleted keys, closed; and its live entries.
fn database(dir: &TempDir, placement: PlacementKind) -> (PathBuf, Entries) {
    database_with(dir, separated(placement))
}

fn database_with(dir: &TempDir, options: Options) -> (PathBuf, Entries) {
    let path = dir.join("db");
    let db = Db::open_with(&path, options).unwrap();
    let mut live = Entries::new();
    for round in 0..3 {
        for n in 0..300 {
            db.put(key(n), value(n, round)).unwrap();
            live.insert(key(n).into(), value(n, round));
        }
    }
    for n in 0..100 {
        match n % 2 {
            0 => db.delete(key(n)).unwrap(),
            _ => db.put(key(n), "small").unwrap(),
        }
        live.remove(key(n).as_bytes());
    }
    db.default_keyspace().delete_range(key(100)..key(150)).unwrap();
    (100..150).for_each(|n| drop(live.remove(key(n).as_bytes())));
    db.put(key(120), value(120, 9)).unwrap();
    live.insert(key(120).into(), value(120, 9));
    db.close().unwrap();
    (path, live)
}

#[test]
fn the_files_of_hashkv_restore_live_separated_values() {
    let dir = TempDir::new();
    let (path, live) = database(&dir, PlacementKind::HashKv);
    let (found, report) = restored(&dir, &value_files(&path), &SalvageOptions::default(), "default");
    assert!(found == live, "{} entries of {}", found.len(), live.len());
    assert!(report.is_sound() && report.keyspaces.len() == 1, "{report:?}");
    let keyspace = &report.keyspaces[0];
    assert_eq!((keyspace.name.as_str(), keyspace.restored), ("default", live.len() as u64));
    assert_eq!(keyspace.keys, keyspace.values + keyspace.deleted + keyspace.range_deleted + keyspace.moved);
}

#[test]
fn little_memory_takes_more_passes_and_reports_the_same() {
    let dir = TempDir::new();
    let (path, live) = database(&dir, PlacementKind::HashKv);
    let (_, whole) = restored(&dir, &value_files(&path), &SalvageOptions::default(), "default");
    let options = SalvageOptions { memory_bytes: 10_000, ..SalvageOptions::default() };
    let (found, parts) = restored(&dir, &value_files(&path), &options, "default");
    assert!(found == live);
    assert_eq!(format!("{parts:?}"), format!("{whole:?}"));
}

#[test]
fn the_last_value_of_every_key_comes_back_on_request() {
    let dir = TempDir::new();
    let path = dir.join("db");
    let mut options = separated(PlacementKind::HashKv);
    // So that GC does not run.
    options.keyspace.values.space_target = 100.0;
    let db = Db::open_with(&path, options).unwrap();
    (0..10).for_each(|n| db.put(key(n), value(n, 1)).unwrap());
    db.delete(key(1)).unwrap();
    db.put(key(2), "small").unwrap();
    db.default_keyspace().delete_range(key(3)..key(5)).unwrap();
    db.close().unwrap();
    let all = SalvageOptions { restore: Restore::LastValue, ..SalvageOptions::default() };
    let (found, _) = restored(&dir, &value_files(&path), &all, "default");
    assert!(found == (0..10).map(|n| (key(n).into(), value(n, 1))).collect());

    let mut fates = Vec::new();
    let note = |key: SalvagedKey<'_>| {
        fates.push((String::from_utf8(key.key.to_vec()).unwrap(), key.fate));
        Ok::<(), Error>(())
    };
    let salvage = Salvage::open(&Env::system(), &value_files(&path), &SalvageOptions::default()).unwrap();
    salvage.inspect(note, |_| ()).unwrap();
    assert!(fates.is_sorted_by_key(|(key, _)| key.clone()));
    let others: Vec<Fate> = fates.iter().map(|(_, fate)| *fate).filter(|&fate| fate != Fate::Value).collect();
    assert_eq!(others, [Fate::Deleted, Fate::Moved, Fate::RangeDeleted, Fate::RangeDeleted]);
}

#[test]
fn the_files_of_wisckey_restore_every_value_but_know_of_no_delete() {
    let dir = TempDir::new();
    let (path, live) = database(&dir, PlacementKind::WiscKey);
    let (found, _) = restored(&dir, &value_files(&path), &SalvageOptions::default(), "default");
    assert!(live.iter().all(|(key, value)| found.get(key) == Some(value)));
}

#[test]
fn what_drop_files_of_novkv_name_does_not_come_back() {
    let dir = TempDir::new();
    let mut options = separated(PlacementKind::NovKv);
    // One file, so that GC does not take it: something in it lives.
    options.keyspace.values.file_bytes = 1 << 20;
    options.keyspace.values.space_target = 100.0;
    let (path, live) = database_with(&dir, options.clone());
    let db = Db::open_with(&path, options).unwrap();
    db.default_keyspace().compact_range::<&str>(..).unwrap();
    db.close().unwrap();
    let files = value_files(&path);
    let (found, report) = restored(&dir, &files, &SalvageOptions::default(), "default");
    assert!(found == live, "{} entries of {}", found.len(), live.len());
    let keyspace = &report.keyspaces[0];
    assert!(report.is_sound() && keyspace.dropped > 0, "{report:?}");
    assert_eq!(keyspace.keys, keyspace.values + keyspace.dropped);

    let little = SalvageOptions { memory_bytes: 10_000, ..SalvageOptions::default() };
    let (found, parts) = restored(&dir, &files, &little, "default");
    assert!(found == live);
    assert_eq!(format!("{parts:?}"), format!("{report:?}"));

    let all = SalvageOptions { restore: Restore::LastValue, ..SalvageOptions::default() };
    let (found, _) = restored(&dir, &files, &all, "default");
    assert_eq!(found.len() as u64, keyspace.keys);
    let has_drops = |path: &Path| report.files.iter().any(|file| file.path == path && file.drop_keys > 0);
    let values: Vec<_> = files.into_iter().filter(|path| !has_drops(path)).collect();
    let (found, _) = restored(&dir, &values, &SalvageOptions::default(), "default");
    assert_eq!(found.len() as u64, keyspace.keys, "without the drop files nobody knows");
}

#[test]
fn damage_costs_the_keys_it_touches_or_shows_an_older_value_and_never_a_wrong_one() {
    let dir = TempDir::new();
    let path = dir.join("db");
    let db = Db::open_with(&path, separated(PlacementKind::WiscKey)).unwrap();
    (0..100).for_each(|n| db.put(key(n), value(n, 0)).unwrap());
    db.close().unwrap();
    let files = value_files(&path);
    let victim = files.iter().max_by_key(|path| std::fs::metadata(path).unwrap().len()).unwrap();
    let sound = std::fs::read(victim).unwrap();
    for at in (0..sound.len()).step_by(sound.len() / 40) {
        let mut bytes = sound.clone();
        bytes[at] ^= 0x40;
        std::fs::write(victim, &bytes).unwrap();
        let (found, report) = restored(&dir, &files, &SalvageOptions::default(), "default");
        assert!(found.len() >= 99 || at < 70, "byte {at}: {} entries", found.len());
        assert!(found.iter().all(|(k, v)| (0..100).any(|n| key(n).as_bytes() == k && value(n, 0) == *v)), "byte {at}");
        assert!(!report.is_sound(), "byte {at}");
        assert_eq!(std::fs::read(victim).unwrap(), bytes, "files are not touched");
    }
}

#[test]
fn keyspaces_stay_separate_and_get_the_names_they_are_given() {
    let dir = TempDir::new();
    let path = dir.join("db");
    let db = Db::open_with(&path, separated(PlacementKind::HashKv)).unwrap();
    let users = db.keyspace("users", separated(PlacementKind::HashKv).keyspace).unwrap();
    (0..20).for_each(|n| users.put(key(n), value(n, 0)).unwrap());
    (0..20).for_each(|n| db.put(key(n), value(n, 1)).unwrap());
    users.delete(key(3)).unwrap();
    drop(users);
    db.close().unwrap();
    let files = value_files(&path);
    let (found, report) = restored(&dir, &files, &SalvageOptions::default(), "default");
    assert!(found.len() == 20 && found.iter().all(|(_, v)| !v.windows(2).any(|w| w == b".0")));
    let id = report.keyspaces.iter().find(|keyspace| keyspace.name != "default").and_then(|k| k.id).unwrap();
    let (found, _) = restored(&dir, &files, &SalvageOptions::default(), &format!("keyspace-{id}"));
    assert_eq!(found.len(), 19);
    let named = SalvageOptions { names: BTreeMap::from([(id, "users".to_owned())]), ..SalvageOptions::default() };
    assert_eq!(restored(&dir, &files, &named, "users").0, found);
    let clash = SalvageOptions { names: BTreeMap::from([(id, "default".to_owned())]), ..SalvageOptions::default() };
    let error = Salvage::open(&Env::system(), &files, &clash).unwrap_err();
    assert!(error.to_string().contains("same name"), "{error}");
}

#[test]
fn a_file_that_does_not_say_whose_it_is_gets_a_keyspace_of_its_own() {
    let dir = TempDir::new();
    let path = dir.join("db");
    let db = Db::open_with(&path, separated(PlacementKind::WiscKey)).unwrap();
    (0..10).for_each(|n| db.put(key(n), value(n, 0)).unwrap());
    db.close().unwrap();
    let files = value_files(&path);
    let mut bytes = std::fs::read(&files[0]).unwrap();
    bytes[55] ^= 1;
    std::fs::write(&files[0], &bytes).unwrap();
    let (_, report) = restored(&dir, &files, &SalvageOptions::default(), "default");
    let name = format!("keyspace-of-file-{}", report.files[0].file);
    assert_eq!((report.keyspaces[0].name.as_str(), report.keyspaces[0].restored), (name.as_str(), 10));
}

#[test]
fn a_missing_file_or_one_without_values_is_an_error_that_names_it() {
    let dir = TempDir::new();
    let (path, _) = database(&dir, PlacementKind::HashKv);
    for (name, why) in [("none.val", "none.val"), ("MANIFEST", "magic"), ("LOCK", "000014.val")] {
        let error = Salvage::open(&Env::system(), &[path.join(name)], &SalvageOptions::default()).unwrap_err();
        assert!(error.to_string().contains(why), "{name}: {error}");
    }
}
