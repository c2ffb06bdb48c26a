//! Damage of a repository, of its database, and disks that are full.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bifold::{Backup, Corruption, Db, Env, Error, PlacementKind};
use bifold_io::{
    disk::DiskFs,
    faulty::{FaultKind, FaultyFs},
};

use super::{ALL, held, options, stored_bytes};
use crate::support::{TempDir, entries, fill, tiny, tiny_db};

fn paths(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort_unstable();
    paths
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 4;
    fs::write(path, bytes).unwrap();
}

/// A repository with two generations of a database with a log.
fn repository(dir: &TempDir, placement: PlacementKind) -> (Db, PathBuf) {
    let db = Db::open_with(dir.join("db"), options(placement)).unwrap();
    fill(db.default_keyspace(), 300, &"long ".repeat(30));
    db.backup(dir.join("backups")).unwrap();
    db.put("last", [7; 500]).unwrap();
    db.backup(dir.join("backups")).unwrap();
    (db, dir.join("backups"))
}

#[test]
fn a_flipped_byte_in_each_file_is_found_and_named_and_never_restored() {
    for placement in ALL {
        let dir = TempDir::new();
        let (_db, repository) = repository(&dir, placement);
        let backup = Backup::open(&repository).unwrap();
        let mut kinds = Vec::new();
        for path in [paths(&repository.join("files")), paths(&repository.join("generations"))].concat() {
            let len = fs::metadata(&path).unwrap().len() as usize;
            kinds.push(path.extension().unwrap().to_owned());
            for at in [0, len / 2, len - 1] {
                flip(&path, at);
                let problems = backup.verify().unwrap().problems;
                let [Error::Corruption { path: named, detail: Corruption { offset, .. } }] = &problems[..] else {
                    panic!("{placement:?}: byte {at} of {}: {problems:?}", path.display());
                };
                assert!(*named == path && *offset <= at as u64 + 32, "{problems:?}");
                flip(&path, at);
            }
        }
        kinds.sort_unstable();
        kinds.dedup();
        let separates = placement != PlacementKind::Inline;
        assert!(kinds.len() >= 3 + usize::from(separates), "{placement:?}: {kinds:?}");
        assert!(backup.verify().unwrap().problems.is_empty());
        let victim = paths(&repository.join("files")).remove(0);
        flip(&victim, 40);
        let error = backup.restore_generation(1, dir.join("restored")).unwrap_err();
        assert!(error.is_corruption() && error.path() == Some(&victim), "{error}");
        assert!(!dir.join("restored").exists());
    }
}

#[test]
fn files_that_are_missing_or_cut_are_found() {
    let dir = TempDir::new();
    let (_db, repository) = repository(&dir, PlacementKind::WiscKey);
    let backup = Backup::open(&repository).unwrap();
    for path in paths(&repository.join("files")) {
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(backup.verify().unwrap().problems.len(), 1, "{}", path.display());
        fs::remove_file(&path).unwrap();
        let problems = backup.verify().unwrap().problems;
        assert!(problems.len() == 1 && problems[0].to_string().contains("no such file"), "{problems:?}");
        fs::write(&path, whole).unwrap();
    }
}

#[test]
fn a_damaged_record_stops_neither_new_backups_nor_older_generations() {
    let dir = TempDir::new();
    let (db, repository) = repository(&dir, PlacementKind::HashKv);
    let record = repository.join("generations/000002.gen");
    flip(&record, 60);
    let (backup, before) = (Backup::open(&repository).unwrap(), stored_bytes(&repository));
    let all = backup.generations().unwrap();
    assert!(all[0].damage.is_none() && all[1].damage.as_ref().is_some_and(Error::is_corruption), "{all:?}");
    let error = backup.restore(dir.join("restored")).unwrap_err();
    assert_eq!(error.path(), Some(&*record), "an older generation is not what was asked for");
    backup.restore_generation(1, dir.join("first")).unwrap();
    assert_eq!(backup.prune(1).unwrap_err().path(), Some(&*record));
    assert_eq!(db.backup(&repository).unwrap().number, 3);
    assert!(stored_bytes(&repository) >= before, "what the damaged record names may still be there");
    Db::restore(&repository, dir.join("third")).unwrap();
    assert!(held(&dir.join("third"), &options(PlacementKind::HashKv)) == entries(db.iter()));
    fs::remove_file(record).unwrap();
    assert_eq!(backup.prune(1).unwrap().generations, [1]);
    assert!(backup.verify().unwrap().problems.is_empty());
}

#[test]
fn a_damaged_database_is_not_backed_up_and_older_generations_stay() {
    for placement in ALL {
        let dir = TempDir::new();
        let (db, repository) = repository(&dir, placement);
        let good = entries(db.iter());
        fill(db.default_keyspace(), 300, &"new ".repeat(50));
        db.flush().unwrap();
        drop(db);
        let ends = if placement == PlacementKind::Inline { "tbl" } else { "val" };
        let is_of_kind = |path: &PathBuf| path.extension().is_some_and(|end| end == ends);
        // The longest: a forwarding file, which is read when a database is opened, is short.
        let of_kind = paths(&dir.join("db")).into_iter().filter(is_of_kind);
        let victim = of_kind.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
        flip(&victim, fs::metadata(&victim).unwrap().len() as usize / 3);
        let db = Db::open_with(dir.join("db"), options(placement)).unwrap();
        let error = db.backup(&repository).unwrap_err();
        assert!(error.is_corruption() && error.path() == Some(&*victim), "{placement:?}: {error}");
        assert_eq!(Backup::open(&repository).unwrap().generations().unwrap().len(), 2);
        Db::restore(&repository, dir.join("restored")).unwrap();
        assert!(held(&dir.join("restored"), &options(placement)) == good, "{placement:?}");
    }
}

/// An open database does not read its logs: only their next opening would notice.
#[test]
fn a_damaged_log_is_not_backed_up() {
    let dir = TempDir::new();
    let (db, repository) = repository(&dir, PlacementKind::Inline);
    // Short appends may be in `APPENDS` until then.
    db.sync().unwrap();
    let value = [7; 400];
    let holds_it = |path: &PathBuf| {
        let bytes = fs::read(path).unwrap();
        let at = bytes.windows(value.len()).position(|bytes| bytes == value);
        at.filter(|_| path.extension().is_some_and(|end| end == "log"))
    };
    let logs = paths(&dir.join("db"));
    let (log, at) = logs.iter().find_map(|path| Some((path, holds_it(path)?))).expect("it is in a log");
    flip(log, at + 100);
    let error = db.backup(&repository).unwrap_err();
    assert!(error.is_corruption() && error.path() == Some(log), "{error}");
    assert_eq!(Backup::open(&repository).unwrap().generations().unwrap().len(), 2);
    flip(log, at + 100);
    assert_eq!(db.backup(&repository).unwrap().number, 3);
}

#[test]
fn a_full_disk_is_a_clear_error_and_loses_nothing() {
    let dir = TempDir::new();
    let faulty = FaultyFs::new(Arc::new(DiskFs));
    let env = Env { fs: Arc::new(faulty.clone()), ..Env::system() };
    let db = Db::open_in(env, dir.join("db"), tiny()).unwrap();
    let repository = dir.join("backups");
    fill(db.default_keyspace(), 200, "first");
    db.backup(&repository).unwrap();
    for (op, nth) in [("append to", 0), ("append to", 1), ("sync", 0), ("create", 1)] {
        fill(db.default_keyspace(), 300, op);
        let before = stored_bytes(&repository);
        let (within, seen) = (repository.clone(), AtomicU64::new(0));
        faulty.decide_by(Box::new(move |call| {
            let counts = call.op == op && call.path.starts_with(&within);
            (counts && seen.fetch_add(1, Relaxed) >= nth).then_some(FaultKind::ENOSPC)
        }));
        let error = db.backup(&repository).unwrap_err();
        faulty.clear();
        assert!(error.is_full() && error.path().unwrap().starts_with(&repository), "{error}");
        assert_eq!(stored_bytes(&repository), before, "what was begun is deleted: {op} {nth}");
        db.put("still", "writes").unwrap();
    }
    assert!(Backup::open(&repository).unwrap().verify().unwrap().problems.is_empty());
    db.backup(&repository).unwrap();
    Db::restore(&repository, dir.join("restored")).unwrap();
    assert!(held(&dir.join("restored"), &tiny()) == entries(db.iter()));
}

/// What a killed backup leaves: files without a record, and a record without its name.
#[test]
fn the_next_backup_or_pruning_deletes_what_an_interrupted_one_left() {
    let (dir, db) = tiny_db();
    let repository = dir.join("backups");
    fill(db.default_keyspace(), 300, "first");
    db.backup(&repository).unwrap();
    let whole = paths(&repository.join("files"));
    for prunes in [true, false] {
        for left in ["files/000002-000099.tbl", "files/000002-000001.log", "generations/000002.tmp"] {
            fs::write(repository.join(left), "left").unwrap();
        }
        fs::write(repository.join("files/notes.txt"), "mine").unwrap();
        let backup = Backup::open(&repository).unwrap();
        assert!(backup.verify().unwrap().problems.is_empty(), "what no generation names is no damage");
        assert_eq!(backup.generations().unwrap().len(), 1);
        if prunes {
            assert_eq!(backup.prune(1).unwrap().files, 2);
            let mine = repository.join("files/notes.txt");
            assert_eq!(
                paths(&repository.join("files")),
                [&whole[..], &[mine]].concat(),
                "nothing of others is deleted"
            );
        } else {
            assert_eq!(db.backup(&repository).unwrap().number, 3, "no number comes twice");
            assert!(!repository.join("files/000002-000099.tbl").exists());
        }
        assert!(!repository.join("generations/000002.tmp").exists());
    }
    // A record whose removal did not outlast a power loss.
    let backup = Backup::open(&repository).unwrap();
    fs::copy(repository.join("generations/000003.gen"), repository.join("generations/000002.gen")).unwrap();
    assert_eq!(backup.generations().unwrap().iter().map(|made| made.number).collect::<Vec<_>>(), [1, 3]);
    assert!(
        backup.restore_generation(2, dir.join("restored")).is_err() && backup.verify().unwrap().problems.is_empty()
    );
    let list = repository.join("generations/DELETED");
    flip(&list, 33);
    assert!(backup.verify().unwrap().problems.iter().any(|problem| problem.path() == Some(&list)));
}
