//! What a killed process leaves after the lengths in the manifest: damage there is damage, and none of it is copied.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use bifold::{
    Db, Env, Error, KeyspaceOptions, Options, PlacementKind,
    options::{DiffKv, HashKv, Values},
    verify_in,
};
use bifold_format::value::DESCRIPTION_BYTES_MAX;
use bifold_io::memory::{Fate, MemoryFs, OpKind};

use crate::support::tiny;

const SEPARATED_AT_COMMIT: [PlacementKind; 5] = [
    PlacementKind::WiscKey,
    PlacementKind::HashKv,
    PlacementKind::NovKv,
    PlacementKind::DiffKv,
    PlacementKind::Streams,
];

const COMMITS: u32 = 60;
const VALUE_BYTES: usize = 900;
const DIR: &str = "/db";

fn options(placement: PlacementKind) -> Options {
    let values = Values {
        separate_from_bytes: Some(64),
        file_bytes: 16 << 10,
        hashkv: HashKv { group_bytes: 64 << 10, ..HashKv::default() },
        diffkv: DiffKv { large_bytes: 64, ..DiffKv::default() },
        ..Values::default()
    };
    let keyspace = KeyspaceOptions { placement, values, ..tiny().keyspace };
    Options { memtable_bytes: 256 << 10, memory_limit: 8 << 20, keyspace, ..tiny() }
}

fn env(fs: &MemoryFs) -> Env {
    Env { fs: Arc::new(fs.clone()), ..Env::system() }
}

fn open(fs: &MemoryFs, placement: PlacementKind) -> Result<Db, Error> {
    Db::open_in(env(fs), DIR, options(placement))
}

fn value(number: u32) -> Vec<u8> {
    vec![number as u8 | 1; VALUE_BYTES]
}

fn key(number: u32) -> String {
    format!("key{number:04}")
}

/// The files of a database that was killed in the middle of its work, with or without a sync at the end. Every commit
/// has one large value, and one small one in another keyspace with inline values.
fn killed(placement: PlacementKind, synced: bool) -> MemoryFs {
    let fs = MemoryFs::new();
    let db = open(&fs, placement).unwrap();
    let inline = KeyspaceOptions { placement: PlacementKind::Inline, ..tiny().keyspace };
    let other = db.keyspace("other", inline).unwrap();
    for number in 0..COMMITS {
        let mut batch = db.batch();
        batch.put(db.default_keyspace(), key(number), value(number)).unwrap();
        batch.put(&other, key(number), "small").unwrap();
        db.commit(batch).unwrap();
    }
    if synced {
        db.sync().unwrap();
    }
    fs.fork()
}

/// The value files of a database with their contents.
fn value_files(fs: &MemoryFs) -> BTreeMap<PathBuf, Vec<u8>> {
    let of_values = |path: &PathBuf| path.extension().is_some_and(|end| end == "val");
    fs.files().into_iter().filter(of_values).map(|path| (path.clone(), fs.read(&path).unwrap())).collect()
}

/// Flips one bit in every section of every value file, one at a time, and calls `each` with the image.
fn flip_everywhere(fs: &MemoryFs, mut each: impl FnMut(&MemoryFs, &Path, usize)) {
    for (path, bytes) in value_files(fs) {
        for at in (0..bytes.len()).step_by(151) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 4;
            let image = fs.fork();
            image.write_durable(&path, &flipped);
            each(&image, &path, at);
        }
    }
}

fn names(error: &Error, path: &Path) -> bool {
    matches!(error, Error::Corruption { path: of, .. } if of == path)
}

#[test]
fn one_flipped_bit_after_a_kill_costs_the_value_it_is_in_and_nothing_else() {
    for placement in SEPARATED_AT_COMMIT {
        let mut damaged = 0;
        flip_everywhere(&killed(placement, false), |image, path, at| {
            let what = format!("{placement:?}, byte {at} of {}", path.display());
            let report = verify_in(&env(image), DIR, |_| ()).unwrap();
            let db = match open(image, placement) {
                Ok(db) => db,
                // A file that does not say whose it is.
                Err(error) if at < DESCRIPTION_BYTES_MAX => return assert!(names(&error, path), "{what}: {error}"),
                Err(error) => panic!("{what}: {error}"),
            };
            let other = db.existing_keyspace("other").unwrap().unwrap();
            let mut lost = 0;
            for number in 0..COMMITS {
                assert_eq!(other.get(key(number)).unwrap().as_deref(), Some(&b"small"[..]), "{what}: {number}");
                match db.get(key(number)) {
                    Ok(found) => assert_eq!(found.as_deref(), Some(&value(number)[..]), "{what}: {number}"),
                    Err(error) => {
                        assert!(names(&error, path), "{what}: {error}");
                        lost += 1;
                    }
                }
            }
            // Not every byte is needed: the flags of a sound record, a file that no commit leads to any more.
            if lost > 0 {
                assert_eq!((lost, db.damage().len()), (1, 1), "{what}");
                assert!(db.damage().iter().chain(&report.problems).all(|error| names(error, path)), "{what}");
                assert!(!report.problems.is_empty(), "{what}: verify reports nothing");
                if damaged % 8 == 0 {
                    gc_around_damage(&db, path, &what);
                }
                damaged += 1;
            }
        });
        assert!(damaged > 100, "{placement:?}: {damaged} values were damaged");
    }
}

/// Runs GC of everything: all but the damaged value is as before, and writes go on.
fn gc_around_damage(db: &Db, path: &Path, what: &str) {
    // A log of `diffkv` in which nothing is known to be dead is not read.
    let finds_it = db.default_keyspace().options().placement != PlacementKind::DiffKv;
    match db.compact() {
        Ok(()) => assert!(!finds_it, "{what}: nothing was reported"),
        Err(error) => {
            assert!(names(&error, path), "{what}: {error}");
            assert!(db.left_out().iter().any(|left_out| names(left_out, path)), "{what}: {:?}", db.left_out());
        }
    }
    db.put("more", value(7)).unwrap();
    let lost = (0..COMMITS).filter(|&n| match db.get(key(n)) {
        Ok(found) => found.as_deref() != Some(&value(n)[..]),
        Err(error) => names(&error, path),
    });
    assert_eq!(lost.count(), 1, "{what}");
}

#[test]
fn a_flipped_bit_in_what_was_synced_is_an_error_that_names_the_file() {
    for placement in SEPARATED_AT_COMMIT {
        flip_everywhere(&killed(placement, true), |image, path, at| {
            let what = format!("{placement:?}, byte {at} of {}", path.display());
            let problems = verify_in(&env(image), DIR, |_| ()).unwrap().problems;
            match open(image, placement) {
                Ok(db) => {
                    // Nobody checks these bytes: a reader finds everything.
                    let found = (0..COMMITS).filter(|&n| db.get(key(n)).unwrap().unwrap() == value(n)).count();
                    assert_eq!(found, COMMITS as usize, "{what}");
                }
                Err(error) => {
                    assert!(names(&error, path), "{what}: {error}");
                    assert!(
                        problems.iter().any(|problem| names(problem, path)),
                        "{what}: verify reported {problems:?}"
                    );
                }
            }
        });
    }
}

/// In synced bytes, what looks torn cannot be.
#[test]
fn a_sector_of_zeros_or_a_lost_end_in_what_was_synced_is_an_error() {
    for placement in SEPARATED_AT_COMMIT {
        let fs = killed(placement, true);
        for (path, bytes) in value_files(&fs) {
            for sector in 1..bytes.len() / 512 {
                let mut zeroed = bytes.clone();
                zeroed[sector * 512..(sector + 1) * 512].fill(0);
                let truncated = bytes[..sector * 512].to_vec();
                for left in [zeroed, truncated] {
                    let image = fs.fork();
                    image.write_durable(&path, &left);
                    let error = open(&image, placement).map(drop).unwrap_err();
                    assert!(names(&error, &path), "{placement:?}, sector {sector} of {}: {error}", path.display());
                    assert!(!verify_in(&env(&image), DIR, |_| ()).unwrap().problems.is_empty());
                }
            }
        }
    }
}

/// Counts the bytes that `work` appends, and the files that it writes again.
fn count(fs: &MemoryFs, work: impl FnOnce()) -> (u64, usize) {
    let again = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&again);
    let before = fs.used_bytes();
    fs.set_hook(Some(Arc::new(move |_, kind, path| {
        if kind == OpKind::WriteAgain && path.extension().is_some_and(|end| end == "val") {
            *counted.lock().unwrap() += 1;
        }
    })));
    work();
    fs.set_hook(None);
    let again = *again.lock().unwrap();
    (fs.used_bytes().saturating_sub(before), again)
}

#[test]
fn opening_after_a_kill_copies_no_value_and_writes_nothing_again_that_was_synced() {
    for placement in SEPARATED_AT_COMMIT {
        for synced in [true, false] {
            let fs = killed(placement, synced);
            let files = value_files(&fs);
            let (grown, again) = count(&fs, || drop(open(&fs, placement).unwrap()));
            let all: usize = files.values().map(Vec::len).sum();
            assert!(all > COMMITS as usize * VALUE_BYTES && grown < all as u64 / 3, "{placement:?}: {grown} of {all}");
            assert_eq!(again > 0, !synced, "{placement:?}, synced {synced}: {again} files were written again");
            for (path, bytes) in files {
                assert_eq!(fs.read(&path), Some(bytes), "{placement:?}: {}", path.display());
            }
            // What was served is on the disk, whatever the syncs before the kill did.
            let lost = fs.power_loss(Fate::DropUnsynced);
            let db = open(&lost, placement).unwrap();
            assert!((0..COMMITS).all(|n| db.get(key(n)).unwrap().unwrap() == value(n)), "{placement:?}");
        }
    }
}

/// The log is longer than the memory limit.
#[test]
fn a_database_opens_with_a_log_that_no_memory_holds() {
    let fs = MemoryFs::new();
    let large = Options { memory_limit: 256 << 20, memtable_bytes: 32 << 20, log_bytes: 1 << 30, ..tiny() };
    let db = Db::open_in(env(&fs), DIR, large).unwrap();
    (0..12_000).for_each(|n| db.put(key(n), value(n)).unwrap());
    let image = fs.fork();
    let logs = image.files().into_iter().filter(|path| path.extension().is_some_and(|end| end == "log"));
    let log_bytes: usize = logs.map(|path| image.read(&path).unwrap().len()).sum();
    assert!(log_bytes > 10 << 20, "{log_bytes}");
    let db = Db::open_in(env(&image), DIR, tiny()).unwrap();
    assert_eq!(db.iter().count(), 12_000);
}
