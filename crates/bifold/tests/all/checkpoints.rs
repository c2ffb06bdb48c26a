//! Copies of whole databases: by hard links, across devices, of a database open read-only, during writes.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use bifold::{Access, Db, Env, Error, Options, PlacementKind, verify};
use bifold_io::{
    disk::DiskFs,
    faulty::{FaultKind, FaultyFs},
};

use crate::{
    copies::{ALL, check_copy, copy_while_written, crowded, options},
    support::{TempDir, check_filled, entries, fill, tiny, tiny_db},
};

/// Every file of a directory but its lock, with its bytes.
fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        paths.filter(|path| !path.ends_with("LOCK")).map(|p| (p.clone(), fs::read(p).unwrap())).collect();
    files.sort_unstable();
    files
}

#[test]
fn a_checkpoint_is_a_database_of_its_own() {
    let (dir, db) = tiny_db();
    let other = db.keyspace("other", tiny().keyspace).unwrap();
    fill(db.default_keyspace(), 300, "then");
    fill(&other, 20, "then");
    db.checkpoint(dir.join("copy")).unwrap();
    fill(db.default_keyspace(), 400, "later");
    db.compact().unwrap();
    let report = verify(dir.join("copy")).unwrap();
    assert!(report.problems.is_empty() && report.files > 2, "{report:?}");
    let copy = Db::open_with(dir.join("copy"), tiny()).unwrap();
    check_filled(copy.default_keyspace(), 300, "then");
    check_filled(&copy.existing_keyspace("other").unwrap().unwrap(), 20, "then");
    fill(copy.default_keyspace(), 300, "in the copy");
    copy.compact().unwrap();
    check_filled(db.default_keyspace(), 400, "later");
    check_filled(copy.default_keyspace(), 300, "in the copy");
}

#[test]
fn a_checkpoint_never_overwrites_anything() {
    let (dir, db) = tiny_db();
    db.put("a", "1").unwrap();
    fs::create_dir(dir.join("full")).unwrap();
    fs::write(dir.join("full").join("file"), "mine").unwrap();
    let error = db.checkpoint(dir.join("full")).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    assert_eq!(fs::read_dir(dir.join("full")).unwrap().count(), 1);
}

#[test]
fn an_unsuitable_place_for_a_copy_is_refused_and_nothing_is_created() {
    let (dir, db) = tiny_db();
    db.put("a", "1").unwrap();
    fs::write(dir.join("file"), "mine").unwrap();
    fs::create_dir(dir.join("empty")).unwrap();
    for (to, name) in [("empty", "link"), ("nothing", "nowhere"), ("db", "same")] {
        std::os::unix::fs::symlink(dir.join(to), dir.join(name)).unwrap();
    }
    let before = entries(db.iter());
    let places = [
        ("db", "the database's own directory"),
        ("db/copy", "the database's own directory"),
        ("db/deep/er/copy", "the database's own directory"),
        ("empty/../db/copy", "the database's own directory"),
        ("same/copy", "the database's own directory"),
        ("file", "is a file"),
        ("link", "symbolic link"),
        ("link/", "symbolic link"),
        ("nowhere", "symbolic link"),
        ("new/../db", "`..`"),
        (".", "contains or lies within"),
        ("..", "does not name a new directory"),
    ];
    for (place, why) in places {
        let error = db.checkpoint(dir.join(place)).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{place}: {error}");
        assert!(error.to_string().contains(why), "{place}: {error}");
    }
    for place in ["file/copy", "nowhere/copy"] {
        assert!(matches!(db.checkpoint(dir.join(place)), Err(Error::Io { .. })), "{place}");
    }
    assert_eq!(fs::read_dir(dir.join(".")).unwrap().count(), 6, "nothing new");
    assert_eq!(fs::read_dir(dir.join("empty")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(dir.join("db")).unwrap().filter(|e| e.as_ref().unwrap().path().is_dir()).count(), 0);
    db.checkpoint(dir.join("empty/../deep/er/copy/")).unwrap();
    let copy = Db::open_with(dir.join("deep/er/copy"), tiny()).unwrap();
    assert_eq!(entries(copy.iter()), before);
}

/// Makes the last value file look as after a power loss in an append: longer, with zeros at the end. Recovery
/// truncates it.
fn tear(dir: &Path) {
    let mut values = files(dir).into_iter().filter(|(path, _)| path.extension().is_some_and(|end| end == "val"));
    if let Some((path, mut bytes)) = values.next_back() {
        bytes.extend([0; 300]);
        fs::write(path, bytes).unwrap();
    }
}

/// The tail of the last log is torn, a value file's tail is in no manifest, and some of both is in `APPENDS`.
#[test]
fn a_checkpoint_of_a_database_open_read_only_holds_what_it_shows_and_shares_nothing_that_recovery_changes() {
    for placement in ALL {
        let dir = TempDir::new();
        let (origin, copy) = (dir.join("db"), dir.join("copy"));
        let db = Db::open_with(dir.join("live"), options(placement)).unwrap();
        for round in 0..3 {
            fill(db.default_keyspace(), 200, &format!("{round} {}", "long ".repeat(30)));
            db.sync().unwrap();
        }
        db.put("last", [7; 500]).unwrap();
        // As a killed process leaves it.
        fs::create_dir(&origin).unwrap();
        for (path, bytes) in files(&dir.join("live")) {
            fs::write(origin.join(path.file_name().unwrap()), bytes).unwrap();
        }
        tear(&origin);
        let before = files(&origin);
        let shown = {
            let db = Db::open_with(&origin, Options { access: Access::ReadOnly, ..options(placement) }).unwrap();
            db.checkpoint(&copy).unwrap();
            entries(db.iter())
        };
        assert_eq!(shown.len(), 201, "{placement:?}");
        for round in 0..2 {
            let db = Db::open_with(&copy, options(placement)).unwrap();
            if round == 0 {
                assert!(entries(db.iter()) == shown, "{placement:?}: the copy holds something else");
            }
            fill(db.default_keyspace(), 100, "in the copy");
            db.compact().unwrap();
            db.close().unwrap();
            assert_eq!(verify(&copy).unwrap().problems.len(), 0);
        }
        assert!(files(&origin) == before, "{placement:?}: files of the origin have changed");
        let db = Db::open_with(&origin, options(placement)).unwrap();
        assert!(entries(db.iter()) == shown, "{placement:?}: the origin holds something else");
    }
}

#[test]
fn where_the_system_cannot_link_a_checkpoint_is_copied() {
    for placement in ALL {
        let dir = TempDir::new();
        let faulty = FaultyFs::new(Arc::new(DiskFs));
        let env = Env { fs: Arc::new(faulty.clone()), ..Env::system() };
        let db = Db::open_in(env, dir.join("db"), options(placement)).unwrap();
        fill(db.default_keyspace(), 500, &"long ".repeat(30));
        // EXDEV, EPERM, EMLINK.
        for errno in [18, 1, 31] {
            faulty.decide_by(Box::new(move |call| (call.op == "link").then_some(FaultKind::Errno(errno))));
            let copy = dir.join(&format!("copy{errno}"));
            let mut reported = Vec::new();
            db.checkpoint_with(&copy, |progress| reported.push(progress)).unwrap();
            let last = reported.last().unwrap();
            assert!(last.bytes_total > 50_000 && last.bytes_done == last.bytes_total, "{last:?}");
            assert_eq!(last.bytes_copied, last.bytes_total);
            assert!(reported.is_sorted_by_key(|progress| progress.bytes_done));
            for (path, _) in files(&copy) {
                assert_eq!(fs::metadata(&path).unwrap().nlink(), 1, "{} is shared", path.display());
            }
            assert_eq!(verify(&copy).unwrap().problems.len(), 0);
            check_filled(
                Db::open_with(&copy, options(placement)).unwrap().default_keyspace(),
                500,
                &"long ".repeat(30),
            );
        }
    }
}

/// Only on a machine with a second file system to write to.
#[test]
fn a_checkpoint_goes_to_another_device() {
    let other = Path::new("/dev/shm").join(format!("bifold-checkpoint-{}", std::process::id()));
    let dir = TempDir::new();
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    if device(Path::new("/dev/shm")).is_none_or(|shm| Some(shm) == device(&dir.join("."))) {
        return println!("skipped: /dev/shm is no other device than {}", dir.join(".").display());
    }
    let db = Db::open_with(dir.join("db"), options(PlacementKind::WiscKey)).unwrap();
    fill(db.default_keyspace(), 500, "across");
    let made = db.checkpoint(other.join("copy"));
    let checked = made.and_then(|()| Db::open_with(other.join("copy"), options(PlacementKind::WiscKey)));
    let held = checked.map(|copy| entries(copy.iter()));
    fs::remove_dir_all(&other).unwrap();
    assert!(held.unwrap() == entries(db.iter()));
}

#[test]
fn two_checkpoints_do_not_mix_in_one_directory() {
    let (dir, db) = tiny_db();
    fill(db.default_keyspace(), 200, "both");
    let made: Vec<_> = thread::scope(|scope| {
        let both: Vec<_> = (0..2).map(|_| scope.spawn(|| db.checkpoint(dir.join("copy")))).collect();
        both.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(made.iter().any(Result::is_ok), "{made:?}");
    assert_eq!(verify(dir.join("copy")).unwrap().problems.len(), 0);
    check_filled(Db::open_with(dir.join("copy"), tiny()).unwrap().default_keyspace(), 200, "both");
}

#[test]
fn checkpoints_during_writes_reads_gc_and_keyspace_changes_are_whole() {
    for placement in ALL {
        let dir = TempDir::new();
        let options = crowded(placement);
        let db = Db::open_with(dir.join("db"), options.clone()).unwrap();
        let other = db.keyspace("other", options.keyspace.clone()).unwrap();
        let read = || (0..500).for_each(|n| drop(other.get(format!("key{n}")).unwrap()));
        let make_and_drop = || {
            let short_lived = db.keyspace("short-lived", options.keyspace.clone()).unwrap();
            (0..20).for_each(|n| short_lived.put([n], [n; 300]).unwrap());
            db.drop_keyspace("short-lived").unwrap();
        };
        let copies = copy_while_written((&db, &other), &[&read, &make_and_drop], 12, |n| {
            let path = dir.join(&format!("copy{n}"));
            db.checkpoint(&path).map(|()| path)
        });
        for (commits, made) in copies {
            let path = made.unwrap_or_else(|error| panic!("{placement:?}: {error}"));
            check_copy(&path, &commits, &options);
            fs::remove_dir_all(&path).unwrap();
        }
    }
}
