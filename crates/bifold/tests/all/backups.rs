//! Backups: generations that share what is the same, restored exactly; damage, crashes, full disks, writers meanwhile.

mod damage;
mod fixture;
mod followed;
mod meanwhile;

use std::{fs, path::Path};

use bifold::{Access, Backup, Db, Error, Generation, Options, PlacementKind, verify};

use crate::{
    copies::{ALL, options},
    support::{TempDir, check_filled, entries, fill, tiny, tiny_db},
};

/// Entries, in order.
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

fn read_only(placement: PlacementKind) -> Options {
    Options { access: Access::ReadOnly, ..options(placement) }
}

/// The bytes of the stored files.
fn stored_bytes(repository: &Path) -> u64 {
    fs::read_dir(repository.join("files")).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

/// What is in a database; verifies it first.
fn held(path: &Path, options: &Options) -> Entries {
    let report = verify(path).unwrap();
    assert!(report.problems.is_empty(), "{}: {:?}", path.display(), report.problems);
    entries(Db::open_with(path, options.clone()).unwrap().iter())
}

#[test]
fn a_restored_generation_is_what_the_database_was_and_a_database_of_its_own() {
    for placement in ALL {
        let dir = TempDir::new();
        let (repository, options) = (dir.join("backups"), options(placement));
        let db = Db::open_with(dir.join("db"), options.clone()).unwrap();
        let mut shown = Vec::new();
        for round in 0..3 {
            fill(db.default_keyspace(), 200 + 50 * round, &format!("{round} {}", "long ".repeat(30)));
            db.delete(format!("key{round:04}")).unwrap();
            let made = db.backup(&repository).unwrap();
            assert_eq!(made.number, round as u64 + 1);
            shown.push(entries(db.iter()));
            if round == 1 {
                db.compact().unwrap();
            }
        }
        let backup = Backup::open(&repository).unwrap();
        assert!(backup.verify().unwrap().problems.is_empty());
        for (number, shown) in (1..).zip(&shown) {
            let path = dir.join(&format!("restored{number}"));
            backup.restore_generation(number, &path).unwrap();
            assert!(held(&path, &options) == *shown, "{placement:?}: generation {number} holds something else");
            let restored = Db::open_with(&path, options.clone()).unwrap();
            fill(restored.default_keyspace(), 100, "in the restored one");
            restored.compact().unwrap();
        }
        Db::restore(&repository, dir.join("newest")).unwrap();
        assert!(held(&dir.join("newest"), &options) == shown[2], "{placement:?}");
        assert!(entries(db.iter()) == shown[2]);
    }
}

#[test]
fn a_second_backup_copies_only_what_is_new() {
    for placement in ALL {
        let dir = TempDir::new();
        let repository = dir.join("backups");
        let db = Db::open_with(dir.join("db"), options(placement)).unwrap();
        fill(db.default_keyspace(), 1000, &"long ".repeat(30));
        db.flush().unwrap();
        let first = db.backup(&repository).unwrap();
        assert_eq!((first.bytes, first.bytes), (first.new_bytes, stored_bytes(&repository)), "{placement:?}");
        let log = |made: &Generation| made.new_bytes < 10_000;
        let unchanged = db.backup(&repository).unwrap();
        assert!(first.bytes > 100_000 && log(&unchanged), "{placement:?}: {first:?} {unchanged:?}");
        db.put("one more", vec![7; 300]).unwrap();
        let mut reported = Vec::new();
        let third = db.backup_with(&repository, Default::default(), |progress| reported.push(progress)).unwrap();
        assert!(log(&third), "{placement:?}: {third:?}");
        let last = reported.last().unwrap();
        assert_eq!((last.bytes_total, last.bytes_copied), (third.bytes, third.new_bytes), "{placement:?}");
        assert!(last.bytes_done == last.bytes_total && reported.is_sorted_by_key(|progress| progress.bytes_done));
        drop(db);
        // The sums of the files are forgotten: they are read, and found to be the same.
        let db = Db::open_with(dir.join("db"), read_only(placement)).unwrap();
        let again = db.backup(&repository).unwrap();
        assert!(log(&again), "{placement:?}: {again:?}");
        let all = Backup::open(&repository).unwrap().generations().unwrap();
        assert_eq!(all.iter().map(|made| made.new_bytes).sum::<u64>(), stored_bytes(&repository), "{placement:?}");
        assert_eq!(all.iter().map(|made| made.number).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert!(all.iter().all(|made| made.taken_at_unix_seconds > 0 && made.source == dir.join("db")));
    }
}

/// After restoring an older generation, both databases give the same numbers to different files.
#[test]
fn files_of_a_restored_database_are_not_mistaken_for_those_of_its_origin() {
    for placement in ALL {
        let dir = TempDir::new();
        let (repository, options) = (dir.join("backups"), options(placement));
        let db = Db::open_with(dir.join("db"), options.clone()).unwrap();
        fill(db.default_keyspace(), 300, "both");
        db.backup(&repository).unwrap();
        Db::restore(&repository, dir.join("other")).unwrap();
        let other = Db::open_with(dir.join("other"), options.clone()).unwrap();
        let mut shown = Vec::new();
        // The same keys and lengths, so files of the same number often have the same length, too.
        for round in ["a", "b", "c"] {
            for (db, of) in [(&db, "origin"), (&other, "branch")] {
                fill(db.default_keyspace(), 300, &format!("{of} {round}"));
                db.flush().unwrap();
                let made = db.backup(&repository).unwrap();
                shown.push((made.number, entries(db.iter())));
            }
        }
        let backup = Backup::open(&repository).unwrap();
        for (number, shown) in shown {
            let path = dir.join(&format!("restored{number}"));
            backup.restore_generation(number, &path).unwrap();
            assert!(held(&path, &options) == shown, "{placement:?}: generation {number} holds something else");
        }
    }
}

#[test]
fn two_databases_in_one_repository_are_kept_and_pruned_apart() {
    let dir = TempDir::new();
    let repository = dir.join("backups");
    let dbs = ["one", "two"].map(|name| (name, Db::open_with(dir.join(name), tiny()).unwrap()));
    for round in 0..3 {
        for (name, db) in &dbs {
            fill(db.default_keyspace(), 200, &format!("{name} {round}"));
            db.flush().unwrap();
            db.backup(&repository).unwrap();
        }
    }
    let backup = Backup::open(&repository).unwrap();
    let ambiguous = backup.restore(dir.join("restored")).unwrap_err();
    assert!(ambiguous.to_string().contains("several databases"), "{ambiguous}");
    let pruned = backup.prune(1).unwrap();
    assert_eq!(pruned.generations, [1, 2, 3, 4]);
    let left = backup.generations().unwrap();
    assert_eq!(left.iter().map(|made| made.number).collect::<Vec<_>>(), [5, 6]);
    for (made, (name, _)) in left.iter().zip(&dbs) {
        let path = dir.join(&format!("restored {name}"));
        backup.restore_generation(made.number, &path).unwrap();
        check_filled(Db::open_with(&path, tiny()).unwrap().default_keyspace(), 200, &format!("{name} 2"));
    }
}

#[test]
fn pruning_keeps_what_the_remaining_generations_need() {
    for placement in ALL {
        let dir = TempDir::new();
        let (repository, options) = (dir.join("backups"), options(placement));
        let db = Db::open_with(dir.join("db"), options.clone()).unwrap();
        fill(db.default_keyspace(), 600, &"long ".repeat(30));
        db.flush().unwrap();
        for round in 0..4 {
            (0..20).for_each(|n| db.put(format!("few{n}"), format!("{round}").repeat(100)).unwrap());
            db.backup(&repository).unwrap();
        }
        let (backup, before) = (Backup::open(&repository).unwrap(), stored_bytes(&repository));
        assert!(matches!(backup.prune(0), Err(Error::InvalidArgument { .. })));
        let pruned = backup.prune(2).unwrap();
        assert_eq!(pruned.generations, [1, 2]);
        assert_eq!(before - pruned.bytes, stored_bytes(&repository), "{placement:?}");
        assert!(backup.verify().unwrap().problems.is_empty(), "{placement:?}");
        backup.restore(dir.join("restored")).unwrap();
        assert!(held(&dir.join("restored"), &options) == entries(db.iter()), "{placement:?}");
        db.compact().unwrap();
        db.delete_range::<&str>(..).unwrap();
        db.compact().unwrap();
        db.backup(&repository).unwrap();
        let pruned = backup.prune(1).unwrap();
        assert!(pruned.bytes > 50_000 && stored_bytes(&repository) < 50_000, "{placement:?}: {pruned:?}");
        assert_eq!(backup.prune(1).unwrap(), Default::default());
        Db::restore(&repository, dir.join("empty")).unwrap();
        assert!(held(&dir.join("empty"), &options).is_empty(), "{placement:?}");
    }
}

#[test]
fn an_unsuitable_place_is_refused_and_nothing_is_created() {
    let (dir, db) = tiny_db();
    fill(db.default_keyspace(), 100, "there");
    let foreign = dir.join("foreign");
    fs::create_dir_all(foreign.join("files")).unwrap();
    fs::write(foreign.join("mine"), "mine").unwrap();
    for name in ["above/below", "above/files", "kept/files/mine"] {
        fs::create_dir_all(dir.join(name)).unwrap();
    }
    for (place, why) in [
        ("db", "the database's own directory"),
        ("db/backups", "the database's own directory"),
        (".", "contains or lies within"),
        ("foreign", "holds other files (mine)"),
        ("foreign/mine", "is a file"),
        ("above", "holds other files (below)"),
        ("kept", "holds other files (files)"),
    ] {
        let error = db.backup(dir.join(place)).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{place}: {error}");
        assert!(error.to_string().contains(why), "{place}: {error}");
    }
    for (place, names) in [(&foreign, 2), (&dir.join("above"), 2), (&dir.join("kept"), 1)] {
        assert_eq!(fs::read_dir(place).unwrap().count(), names, "{}", place.display());
    }
    for place in ["db", "foreign", "nowhere"] {
        let error = Backup::open(dir.join(place)).unwrap_err();
        assert!(error.to_string().contains("holds no backup"), "{place}: {error}");
    }
    // As a crash leaves it that came too early for anything else.
    fs::create_dir_all(dir.join("begun/files")).unwrap();
    db.backup(dir.join("begun")).unwrap();
    let repository = dir.join("new/deep/backups");
    db.backup(&repository).unwrap();
    let backup = Backup::open(&repository).unwrap();
    for (place, why) in [
        ("db", "already holds files"),
        ("foreign", "already holds files"),
        ("foreign/mine", "is a file"),
        ("new/deep/backups", "the repository's own directory"),
        ("new/deep/backups/restored", "the repository's own directory"),
    ] {
        let error = backup.restore(dir.join(place)).unwrap_err();
        assert!(error.to_string().contains(why), "{place}: {error}");
    }
    let error = backup.restore_generation(7, dir.join("restored")).unwrap_err();
    assert!(error.to_string().contains("no generation 7"), "{error}");
    check_filled(db.default_keyspace(), 100, "there");
}
