//! Copies of whole databases: by hard links, across devices, of a database open read-only, during writes.

use std::{
    fs,
    ops::RangeInclusive,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    thread,
};

use bifold::{
    Access, Db, Env, Error, KeyspaceOptions, Options, PlacementKind, Reads, Workers,
    options::{DiffKv, HashKv, Values},
    verify,
};
use bifold_io::{
    disk::DiskFs,
    faulty::{FaultKind, FaultyFs},
};

use crate::support::{TempDir, check_filled, entries, fill, tiny, tiny_db};

const ALL: [PlacementKind; 7] = PlacementKind::ALL;

fn options(placement: PlacementKind) -> Options {
    let values = Values {
        separate_from_bytes: 64,
        hashkv: HashKv { group_bytes: 8 << 10, groups_max: 16, ..HashKv::default() },
        diffkv: DiffKv { large_bytes: 250, ..DiffKv::default() },
        file_bytes: 16 << 10,
        ..Values::default()
    };
    Options { keyspace: KeyspaceOptions { placement, values, ..tiny().keyspace }, ..tiny() }
}

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

/// Each commit writes its number to two keys of two keyspaces. A copy has the same in both, from no earlier than the
/// last commit before it began and no later than the first one that had not begun when it ended.
#[test]
fn checkpoints_during_writes_reads_gc_and_keyspace_changes_are_whole() {
    for placement in ALL {
        let dir = TempDir::new();
        let options = crowded(placement);
        let db = Db::open_with(dir.join("db"), options.clone()).unwrap();
        let other = db.keyspace("other", options.keyspace.clone()).unwrap();
        let (begun, ended, stop) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
        let copies = thread::scope(|scope| {
            let write = || {
                for n in 1.. {
                    begun.store(n, SeqCst);
                    let value = n.to_be_bytes().repeat(200);
                    let mut batch = db.batch();
                    batch.put(db.default_keyspace(), "number", &value).unwrap();
                    batch.put(&other, "number", &value).unwrap();
                    batch.put(&other, format!("key{}", n % 500), &value).unwrap();
                    db.commit(batch).unwrap();
                    ended.store(n, SeqCst);
                    if stop.load(SeqCst) {
                        break;
                    }
                }
            };
            let read = || {
                while !stop.load(SeqCst) {
                    (0..500).for_each(|n| drop(other.get(format!("key{n}")).unwrap()));
                }
            };
            let gc = || {
                while !stop.load(SeqCst) {
                    db.collect_garbage().unwrap();
                    db.flush().unwrap();
                }
            };
            let make_and_drop = || {
                while !stop.load(SeqCst) {
                    let short_lived = db.keyspace("short-lived", options.keyspace.clone()).unwrap();
                    (0..20).for_each(|n| short_lived.put([n], [n; 300]).unwrap());
                    db.drop_keyspace("short-lived").unwrap();
                }
            };
            let threads = [scope.spawn(write), scope.spawn(read), scope.spawn(gc), scope.spawn(make_and_drop)];
            let make = |n: u32| {
                let (earliest, path) = (ended.load(SeqCst), dir.join(&format!("copy{n}")));
                let made = db.checkpoint(&path);
                (path, earliest, begun.load(SeqCst), made)
            };
            let copies: Vec<_> = (0..12).map(make).collect();
            stop.store(true, SeqCst);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            copies
        });
        for (path, earliest, latest, made) in copies {
            made.unwrap_or_else(|error| panic!("{placement:?}, {}: {error}", path.display()));
            check_copy(&path, earliest..=latest, &options);
            fs::remove_dir_all(&path).unwrap();
        }
    }
}

/// So few open files that those not in use are closed all the time.
fn crowded(placement: PlacementKind) -> Options {
    Options {
        open_files_max: 8,
        reads: Reads::Called,
        memory_limit: 8 << 20,
        memtable_bytes: 32 << 10,
        workers: Workers::Threads(2),
        ..options(placement)
    }
}

/// Checks that the copy holds the state after one of these commits.
fn check_copy(path: &Path, commits: RangeInclusive<u32>, options: &Options) {
    assert_eq!(verify(path).unwrap().problems.len(), 0, "{}", path.display());
    let copy = Db::open_with(path, options.clone()).unwrap();
    let number =
        |value: Option<bifold::Value>| value.map_or(0, |value| u32::from_be_bytes(value[..4].try_into().unwrap()));
    let held = number(copy.get("number").unwrap());
    let of_other = copy.existing_keyspace("other").unwrap().unwrap();
    assert_eq!(held, number(of_other.get("number").unwrap()));
    assert!(commits.contains(&held), "{}: {held} of {commits:?}", path.display());
    assert!(entries(of_other.iter()).len() <= 501);
    copy.close().unwrap();
}
