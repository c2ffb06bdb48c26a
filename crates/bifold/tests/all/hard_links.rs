//! A directory copied by hard links (`cp -al db copy`): whatever happens to one of the two, the other stays as it is.

use std::{collections::BTreeMap, ffi::OsString, fs, os::unix::fs::MetadataExt, path::Path};

use bifold::{
    Db, Durability, Error, KeyspaceOptions, Options, PlacementKind,
    options::{DiffKv, Values},
    verify,
};

use crate::support::{TempDir, check_filled, entries, files_to_copy, fill, tiny};

const ALL: [PlacementKind; 7] = PlacementKind::ALL;

fn options(placement: PlacementKind) -> Options {
    let values = Values {
        separate_from_bytes: Some(32),
        diffkv: DiffKv { large_bytes: 60, ..DiffKv::default() },
        ..Values::default()
    };
    Options { keyspace: KeyspaceOptions { placement, values, ..tiny().keyspace }, ..tiny() }
}

/// The files of a directory.
fn files(dir: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.file_name(), fs::read(entry.path()).unwrap())).collect()
}

/// `cp -al from to`; files that `links` refuses are copied.
fn copy(from: &Path, to: &Path, links: impl Fn(&Path) -> bool) {
    fs::create_dir(to).unwrap();
    for file in files_to_copy(from) {
        let target = to.join(file.file_name().unwrap());
        match links(&file) {
            true => fs::hard_link(&file, target).unwrap(),
            false => drop(fs::copy(&file, target).unwrap()),
        }
    }
}

/// The files that a killed process has left, including staged appends and a torn log.
fn killed(placement: PlacementKind, dir: &TempDir) -> std::path::PathBuf {
    let (live, left) = (dir.join("live"), dir.join("db"));
    let db = Db::open_with(&live, options(placement)).unwrap();
    fill(db.default_keyspace(), 300, &"old ".repeat(20));
    copy(&live, &left, |_| false);
    drop(db);
    let log = fs::read_dir(&left).unwrap().map(|entry| entry.unwrap().path());
    let log = log.filter(|path| path.extension().is_some_and(|end| end == "log")).max().unwrap();
    let mut bytes = fs::read(&log).unwrap();
    bytes.extend([0; 100]);
    fs::write(&log, bytes).unwrap();
    left
}

fn work(dir: &Path, placement: PlacementKind, round: &str) {
    let db = Db::open_with(dir, options(placement)).unwrap();
    check_filled(db.default_keyspace(), 300, &"old ".repeat(20));
    fill(db.default_keyspace(), 300, &format!("{round}, ").repeat(10));
    db.compact().unwrap();
    db.close().unwrap();
    assert_eq!(verify(dir).unwrap().problems.len(), 0);
}

#[test]
fn work_in_one_of_two_directories_that_share_files_changes_none_of_the_other() {
    for placement in ALL {
        for copy_first in [true, false] {
            for closed in [true, false] {
                let dir = TempDir::new();
                let (db, linked) = (killed(placement, &dir), dir.join("linked"));
                if closed {
                    Db::open_with(&db, options(placement)).unwrap().close().unwrap();
                }
                copy(&db, &linked, |_| true);
                let (one, other) = if copy_first { (&linked, &db) } else { (&db, &linked) };
                let before = files(other);
                work(one, placement, "new");
                let what = format!("{placement:?}, the copy first: {copy_first}, closed: {closed}");
                let after = files(other);
                let changed: Vec<_> = before.keys().filter(|name| before.get(*name) != after.get(*name)).collect();
                assert!(changed.is_empty() && before.len() == after.len(), "{what}: {changed:?} changed");
                work(other, placement, "newer");
                let db = Db::open_with(one, options(placement)).unwrap();
                check_filled(db.default_keyspace(), 300, &"new, ".repeat(10));
            }
        }
    }
}

/// Value files are linked while they are appended to, with a manifest and logs that end at that moment: for the copy,
/// everything later never happened.
#[test]
fn a_copy_truncates_files_of_its_own_only() {
    for placement in ALL {
        let dir = TempDir::new();
        let (db_dir, linked) = (dir.join("db"), dir.join("linked"));
        let large = Options { memtable_bytes: 1 << 20, memory_limit: 8 << 20, ..options(placement) };
        let db = Db::open_with(&db_dir, Options { durability: Durability::Sync, ..large.clone() }).unwrap();
        db.put("first", "1".repeat(100)).unwrap();
        let is_data = |path: &Path| path.extension().is_some_and(|end| end == "val" || end == "tbl");
        copy(&db_dir, &linked, is_data);
        for n in 0..50 {
            db.put(format!("later{n:02}"), "2".repeat(100)).unwrap();
        }
        let all = entries(db.iter());
        let copied = Db::open_with(&linked, large.clone()).unwrap();
        assert_eq!(entries(copied.iter()).len(), 1, "{placement:?}");
        fill(copied.default_keyspace(), 300, "in the copy");
        copied.close().unwrap();
        assert!(entries(db.iter()) == all, "{placement:?}");
        db.close().unwrap();
        assert_eq!(verify(&db_dir).unwrap().problems.len(), 0, "{placement:?}");
        let db = Db::open_with(&db_dir, large).unwrap();
        assert!(entries(db.iter()) == all, "{placement:?}");
    }
}

/// They share one lock file, so no two processes change files under each other.
#[test]
fn directories_that_share_their_lock_are_opened_one_at_a_time() {
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), tiny()).unwrap();
    db.put("key", "value").unwrap();
    copy(&dir.join("db"), &dir.join("linked"), |_| true);
    assert!(fs::metadata(dir.join("linked").join("LOCK")).unwrap().nlink() == 2);
    assert!(matches!(Db::open_with(dir.join("linked"), tiny()), Err(Error::Locked { .. })));
    db.close().unwrap();
    assert_eq!(Db::open_with(dir.join("linked"), tiny()).unwrap().get("key").unwrap().as_deref(), Some(&b"value"[..]));
}
