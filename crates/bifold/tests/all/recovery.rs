//! Opening again: after a close, without one, read-only, with damage.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use bifold::{Access, Db, Durability, Env, Error, IfMissing, KeyspaceOptions, Options, PlacementKind, Workers, verify};

use bifold_format::log::LogReader;
use bifold_io::{
    FileSystem,
    faulty::{FaultKind, FaultyFs},
    memory::MemoryFs,
};

use crate::support::{TempDir, check_filled, files_to_copy, fill, keys, tiny, tiny_db};

#[test]
fn commits_that_were_not_flushed_are_replayed() {
    let (dir, db) = tiny_db();
    fill(db.default_keyspace(), 50, "r");
    drop(db);
    let files = |suffix: &str| {
        let names = fs::read_dir(dir.join("db")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|n| n.ends_with(suffix)).count()
    };
    assert_eq!(files(".tbl"), 0, "the test is meant to replay");
    let open = || check_filled(Db::open_with(dir.join("db"), tiny()).unwrap().default_keyspace(), 50, "r");
    open();
    let tables = files(".tbl");
    assert!(tables > 0);
    (0..2).for_each(|_| open());
    assert_eq!((files(".tbl"), files(".log")), (tables, 1), "they were replayed once");
}

/// A recovery gives a log another name for a moment, so that its own name becomes durable.
#[test]
fn a_log_that_a_crash_has_left_under_its_other_name_is_found_again() {
    let (dir, db) = tiny_db();
    fill(db.default_keyspace(), 50, "r");
    drop(db);
    let name = |suffix: &str| dir.join("db").join(format!("{:06}.log{suffix}", 1));
    fs::rename(name(""), name(".again")).unwrap();
    let reported = verify(dir.join("db")).unwrap_err();
    assert!(
        matches!(reported, Error::InvalidArgument { .. }) && reported.to_string().contains("000001.log.again"),
        "{reported}"
    );
    let read_only = Options { access: Access::ReadOnly, ..tiny() };
    assert!(matches!(Db::open_with(dir.join("db"), read_only), Err(Error::InvalidArgument { .. })));
    check_filled(Db::open_with(dir.join("db"), tiny()).unwrap().default_keyspace(), 50, "r");
    assert!(verify(dir.join("db")).unwrap().problems.is_empty());
}

#[test]
fn a_commit_in_memory_survives_sync_and_close() {
    let dir = TempDir::new();
    let options = Options { durability: Durability::Memory, ..tiny() };
    let db = Db::open_with(dir.join("db"), options).unwrap();
    db.put("a", "1").unwrap();
    db.sync().unwrap();
    db.put("b", "2").unwrap();
    db.close().unwrap();
    assert_eq!(keys(Db::open_with(dir.join("db"), tiny()).unwrap().iter()), ["a", "b"]);
}

#[test]
fn a_read_only_database_answers_reads_and_changes_nothing() {
    let (dir, db) = tiny_db();
    fill(db.default_keyspace(), 300, "r");
    fill(db.default_keyspace(), 20, "r");
    drop(db);
    let before = listing(&dir);
    let options = Options { access: Access::ReadOnly, ..tiny() };
    let (one, two) = (Db::open_with(dir.join("db"), options.clone()), Db::open_with(dir.join("db"), options));
    let (one, two) = (one.unwrap(), two.unwrap());
    check_filled(one.default_keyspace(), 300, "r");
    check_filled(two.default_keyspace(), 300, "r");
    assert!(matches!(one.put("a", "1"), Err(Error::ReadOnly)));
    assert!(matches!(one.flush(), Err(Error::ReadOnly)));
    assert!(matches!(one.compact(), Err(Error::ReadOnly)));
    assert!(matches!(one.sync(), Err(Error::ReadOnly)));
    assert!(matches!(one.keyspace("new", tiny().keyspace), Err(Error::ReadOnly)));
    assert!(matches!(Db::open_with(dir.join("db"), tiny()), Err(Error::Locked { .. })));
    one.close().unwrap();
    drop(two);
    assert_eq!(listing(&dir), before);
}

fn listing(dir: &TempDir) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(dir.join("db"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .map(|p| (p.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&p).unwrap()))
        .collect();
    files.sort();
    files
}

#[test]
fn a_missing_database_is_created_only_on_request() {
    let dir = TempDir::new();
    for options in [Options { if_missing: IfMissing::Fail, ..tiny() }, Options { access: Access::ReadOnly, ..tiny() }] {
        let error = Db::open_with(dir.join("db"), options).unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error}");
        assert!(!dir.join("db").exists());
    }
    assert!(matches!(verify(dir.join("db")), Err(Error::NotFound { .. })));
}

#[test]
fn a_torn_tail_of_the_log_is_truncated_and_damage_in_it_is_reported() {
    let (dir, db) = tiny_db();
    ["a", "b", "c"].iter().for_each(|k| db.put(k, "some value").unwrap());
    drop(db);
    let log = fs::read_dir(dir.join("db"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .find(|p| p.extension().is_some_and(|e| e == "log"));
    let log = log.unwrap();
    let bytes = fs::read(&log).unwrap();

    let mut damaged = bytes.clone();
    damaged[32 + 30] ^= 1;
    fs::write(&log, &damaged).unwrap();
    let error = Db::open_with(dir.join("db"), tiny()).unwrap_err();
    assert!(error.is_corruption() && error.to_string().contains(".log"), "{error}");
    assert_eq!(verify(dir.join("db")).unwrap().problems.len(), 1);

    let id = log.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    let records = LogReader::new(&bytes, id).unwrap().map(Result::unwrap);
    let last = records.filter(|record| record.operations().count() > 0).last().unwrap();
    // The marker that says it was synced is lost with it: as if the power had failed before.
    fs::write(&log, &bytes[..last.offset as usize + 20]).unwrap();
    assert!(verify(dir.join("db")).unwrap().problems.is_empty());
    let db = Db::open_with(dir.join("db"), tiny()).unwrap();
    assert_eq!(keys(db.iter()), ["a", "b"]);
}

#[test]
fn a_damaged_table_is_an_error_that_names_file_and_offset_and_never_a_wrong_value() {
    let (dir, db) = tiny_db();
    fill(db.default_keyspace(), 300, "r");
    db.compact().unwrap();
    drop(db);
    let path = fs::read_dir(dir.join("db"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .find(|p| p.extension().is_some_and(|e| e == "tbl"));
    let path = path.unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[700] ^= 0x10;
    fs::write(&path, &bytes).unwrap();
    let problems = verify(dir.join("db")).unwrap().problems;
    assert!(!problems.is_empty());
    assert!(problems[0].to_string().contains(path.file_name().unwrap().to_str().unwrap()), "{}", problems[0]);
    let db = Db::open_with(dir.join("db"), tiny()).unwrap();
    let failed = (0..300).filter(|n| match db.get(format!("key{n:04}")) {
        Ok(found) => {
            assert_eq!(found.unwrap(), crate::support::value(*n, "r"));
            false
        }
        Err(error) => {
            assert!(error.is_corruption(), "{error}");
            true
        }
    });
    assert!(failed.count() > 0);
    let mut iterator = db.iter();
    assert!(iterator.any(|pair| pair.is_err()));
    assert!(iterator.next().is_none(), "an iterator that failed yields nothing more");
}

#[test]
fn tables_without_a_manifest_are_not_overwritten() {
    let (dir, db) = tiny_db();
    fill(db.default_keyspace(), 300, "r");
    drop(db);
    fs::remove_file(dir.join("db").join("MANIFEST")).unwrap();
    let error = Db::open_with(dir.join("db"), tiny()).unwrap_err();
    assert!(error.to_string().contains("MANIFEST"), "{error}");
}

/// Whatever it is opened for, and whichever files are left: it is never taken for a new database, or for none.
#[test]
fn a_database_that_has_lost_its_manifest_is_damaged_for_everybody() {
    let ways =
        [tiny(), Options { if_missing: IfMissing::Fail, ..tiny() }, Options { access: Access::ReadOnly, ..tiny() }];
    let wisckey = || {
        let mut options = tiny();
        options.set("keyspace.preset=wisckey").unwrap();
        options
    };
    for (kind, options) in [("log", tiny()), ("tbl", tiny()), ("val", wisckey())] {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("live"), options).unwrap();
        fill(db.default_keyspace(), 20, &"long ".repeat(300));
        if kind == "tbl" {
            db.flush().unwrap();
        }
        // As a killed process leaves it: most of the log is in APPENDS.
        let path = dir.join("db");
        fs::create_dir(&path).unwrap();
        for from in files_to_copy(&dir.join("live")) {
            let is_kind = from.extension().is_none_or(|extension| extension == kind);
            if is_kind && !from.ends_with("MANIFEST") {
                fs::copy(&from, path.join(from.file_name().unwrap())).unwrap();
            }
        }
        let count =
            || fs::read_dir(&path).unwrap().filter(|e| e.as_ref().unwrap().path().extension().is_some()).count();
        let before = count();
        assert!(before > 0, "{kind}");
        for way in &ways {
            let error = Db::open_with(&path, way.clone()).unwrap_err();
            assert!(error.is_corruption() && error.to_string().contains("MANIFEST"), "{kind}: {error}");
            let report = verify(&path).unwrap();
            assert!(report.problems.iter().any(Error::is_corruption), "{kind}: {report:?}");
        }
        assert_eq!(count(), before, "{kind}");
    }
}

/// The log that it needs was deleted when a later record of it said so. No record of a later log shows the gap, since
/// there is none.
#[test]
fn a_manifest_that_ends_early_is_an_error_that_names_the_log_it_needs() {
    let (dir, db) = tiny_db();
    let path = dir.join("db");
    db.put("first", "in the log that the manifest names").unwrap();
    db.sync().unwrap();
    let early = fs::read(path.join("MANIFEST")).unwrap();
    db.flush().unwrap();
    // The log that had it goes with the next one that is full of what tables have.
    db.put("second", "in a table, too").unwrap();
    db.flush().unwrap();
    drop(db);
    fs::write(path.join("MANIFEST"), early).unwrap();
    let files = || {
        let names = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name != "LOCK").collect::<BTreeSet<_>>()
    };
    let before = files();
    for access in [Access::ReadWrite, Access::ReadOnly] {
        let error = Db::open_with(&path, Options { access, ..tiny() }).unwrap_err();
        assert!(error.is_corruption() && error.to_string().contains("000001.log"), "{error}");
    }
    assert_eq!(files(), before, "nothing is deleted that it does not name");
}

/// Creating a database begins with its log, so a crash leaves one without a manifest, with a header or less.
#[test]
fn a_crash_while_a_database_is_created_leaves_no_database_and_room_for_one() {
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("live"), tiny()).unwrap();
    let log =
        fs::read_dir(dir.join("live")).unwrap().map(|e| e.unwrap().path()).find(|p| p.extension().is_some()).unwrap();
    db.close().unwrap();
    let header = fs::read(&log).unwrap();
    for (n, bytes) in [&b""[..], &header[..20], &header].into_iter().enumerate() {
        let path = dir.join(&format!("db{n}"));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("LOCK"), b"").unwrap();
        fs::write(path.join("MANIFEST.tmp"), b"half a man").unwrap();
        fs::write(path.join(log.file_name().unwrap()), bytes).unwrap();
        for way in [Options { if_missing: IfMissing::Fail, ..tiny() }, Options { access: Access::ReadOnly, ..tiny() }] {
            assert!(matches!(Db::open_with(&path, way), Err(Error::NotFound { .. })));
        }
        assert!(matches!(verify(&path), Err(Error::NotFound { .. })));
        let db = Db::open_with(&path, tiny()).unwrap();
        db.put("a", "1").unwrap();
        db.close().unwrap();
        assert_eq!(keys(Db::open_with(&path, tiny()).unwrap().iter()), ["a"]);
    }
}

#[test]
fn leftovers_of_a_crash_are_removed() {
    let (dir, db) = tiny_db();
    fill(db.default_keyspace(), 100, "r");
    drop(db);
    for name in ["000900.tbl", "000901.val", "MANIFEST.tmp"] {
        fs::write(dir.join("db").join(name), "half").unwrap();
    }
    fs::write(dir.join("db").join("notes.txt"), "mine").unwrap();
    let db = Db::open_with(dir.join("db"), tiny()).unwrap();
    check_filled(db.default_keyspace(), 100, "r");
    let left: Vec<String> = listing(&dir).into_iter().map(|f| f.0).collect();
    assert!(left.contains(&"notes.txt".into()), "files that are not ours stay: {left:?}");
    assert!(!left.iter().any(|n| n == "000900.tbl" || n == "000901.val" || n == "MANIFEST.tmp"), "{left:?}");
}

#[test]
fn a_file_with_a_number_far_ahead_is_reported_and_the_next_numbers_do_not_run_out() {
    let (dir, db) = tiny_db();
    fill(db.default_keyspace(), 50, "r");
    drop(db);
    for extension in ["log", "tbl", "val"] {
        for number in [1 << 40, 1 << 61, (1_u64 << 62) - 1] {
            let stray = dir.join("db").join(format!("{number}.{extension}"));
            fs::write(&stray, "of another database").unwrap();
            let reported = |error: &Error| matches!(error, Error::Corruption { path, .. } if *path == stray);
            let error = Db::open_with(dir.join("db"), tiny()).unwrap_err();
            assert!(reported(&error) && error.to_string().contains("move the file elsewhere"), "{error}");
            let problems = verify(dir.join("db")).unwrap().problems;
            assert!(problems.iter().any(reported), "{problems:?}");
            fs::remove_file(&stray).unwrap();
        }
        for number in [1 << 62, u64::MAX - 1, u64::MAX] {
            // No database ever hands out these numbers: this is like any other name that is not ours.
            fs::write(dir.join("db").join(format!("{number}.{extension}")), "notes").unwrap();
        }
    }
    check_filled(Db::open_with(dir.join("db"), tiny()).unwrap().default_keyspace(), 50, "r");
    assert_eq!(verify(dir.join("db")).unwrap().problems.len(), 0);
    let (_, left) = listing(&dir).into_iter().partition::<Vec<_>, _>(|file| file.1 != b"notes");
    assert_eq!(left.len(), 9, "files that are not ours stay");
}

fn over(fs: impl FileSystem + 'static) -> Env {
    Env { fs: Arc::new(fs), ..Env::system() }
}

#[test]
fn each_directory_that_is_made_for_a_database_gets_a_durable_name() {
    let faulty = FaultyFs::over_memory(MemoryFs::new());
    let synced = Arc::new(Mutex::new(BTreeSet::<PathBuf>::new()));
    let seen = Arc::clone(&synced);
    faulty.decide_by(Box::new(move |call| {
        if call.op == "sync directory" {
            seen.lock().unwrap().insert(call.path.to_owned());
        }
        None
    }));
    Db::open_in(over(faulty), "/x/y/db", tiny()).unwrap().close().unwrap();
    let synced = synced.lock().unwrap();
    for above in ["/", "/x", "/x/y"] {
        assert!(synced.contains(Path::new(above)), "{above} is not among {synced:?}");
    }
}

/// It may be entered, and not listed: it belongs to somebody else.
#[test]
fn a_database_in_a_directory_that_may_not_be_read_is_opened_but_none_is_created_there() {
    let faulty = FaultyFs::over_memory(MemoryFs::new());
    let open = |path: &str| Db::open_in(over(faulty.clone()), path, tiny());
    let db = open("/x/db").unwrap();
    db.put("key", "value").unwrap();
    db.close().unwrap();
    faulty.decide_by(Box::new(|call| {
        (call.op == "sync directory" && call.path == Path::new("/x")).then_some(FaultKind::Errno(13))
    }));
    let db = open("/x/db").unwrap();
    assert_eq!(faulty.injected().len(), 1);
    assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"value"[..]));
    db.close().unwrap();
    assert!(matches!(open("/x/new"), Err(Error::Io { .. })), "a power loss could take its name");
}

/// The space of `APPENDS` itself cannot be freed there: its bytes are needed under another name, too.
#[test]
fn appends_that_a_killed_process_has_left_are_put_back_with_the_space_of_the_reserve() {
    let keyspace = KeyspaceOptions { placement: PlacementKind::Inline, table_bytes: 64 << 10, ..tiny().keyspace };
    let workers = Workers::Caller;
    let options = Options { memory_limit: 8 << 20, memtable_bytes: 64 << 10, workers, keyspace, ..Options::default() };
    let memory = MemoryFs::new();
    memory.set_append_region(true);
    memory.set_capacity(Some(32 << 20));
    let db = Db::open_in(over(memory.clone()), "/db", options.clone()).unwrap();
    (0..500_u32).for_each(|number| db.put(number.to_be_bytes(), vec![number as u8; 3000]).unwrap());
    assert!(db.stats().space.reserve_bytes > 64 << 10);
    (0..5).for_each(|number| db.put(format!("last{number}"), "staged").unwrap());
    let killed = memory.fork();
    let appends = Path::new("/db").join(bifold_io::fs::APPENDS_NAME);
    let staged = killed.read(&appends).unwrap();
    assert!(staged.windows(6).any(|bytes| bytes == b"staged"), "they are in no other file");
    killed.link(&appends, Path::new("/copy")).unwrap();
    killed.set_capacity(Some(killed.used_bytes()));
    let reopened = Db::open_in(over(killed.clone()), "/db", options).unwrap();
    assert_eq!(killed.len(Path::new("/db/RESERVE")).unwrap(), None, "it is released");
    for number in 0..500_u32 {
        let expected = vec![number as u8; 3000];
        assert_eq!(reopened.get(number.to_be_bytes()).unwrap().as_deref(), Some(&expected[..]), "{number}");
    }
    for number in 0..5 {
        assert_eq!(reopened.get(format!("last{number}")).unwrap().as_deref(), Some(&b"staged"[..]), "{number}");
    }
    assert_eq!(killed.read(Path::new("/copy")).unwrap(), staged, "the copy stays as it is");
}
