//! Reading a database that another handle writes. Both are in one process here; the locks are those of the files.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use bifold::{
    Access, Db, Durability, Env, Error, IfMissing, Keyspace, KeyspaceOptions, Options, PlacementKind, Snapshot,
    options::{HashKv, Values},
    verify,
};
use bifold_io::{Clock, FileSystem, ManualClock, memory::MemoryFs};

use crate::support::{TempDir, entries, tiny};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(placement: PlacementKind) -> Options {
    let values = Values {
        separate_from_bytes: Some(64),
        file_bytes: 16 << 10,
        hashkv: HashKv { group_bytes: 16 << 10, ..HashKv::default() },
        ..Values::default()
    };
    let keyspace = KeyspaceOptions { values, ..tiny().keyspace }.with_placement(placement);
    Options { memory_limit: 8 << 20, keyspace: KeyspaceOptions { table_bytes: 8 << 10, ..keyspace }, ..tiny() }
}

fn following() -> Options {
    Options { access: Access::Follow, if_missing: IfMissing::Fail, ..Options::default() }
}

fn follow(path: &Path) -> Db {
    Db::open_with(path, following()).unwrap()
}

/// Overwrites some of 150 keys, deletes some, and does what a workload does now and then.
fn write_round(db: &Db, keyspace: &Keyspace, round: usize, model: &mut Model) {
    for n in 0..60 {
        let (key, number) = (format!("key{:04}", (round * 37 + n * 7) % 150), round * 100 + n);
        if number % 11 == 0 {
            keyspace.delete(&key).unwrap();
            model.remove(key.as_bytes());
        } else {
            let value = format!("{number:06}-{}", "v".repeat(number % 300));
            keyspace.put(&key, &value).unwrap();
            model.insert(key.into_bytes(), value.into_bytes());
        }
    }
    match round % 7 {
        0 => db.flush().unwrap(),
        2 => db.collect_garbage().unwrap(),
        4 => db.compact().unwrap(),
        5 => db.sync().unwrap(),
        _ => {}
    }
}

fn contents(db: &Db) -> Model {
    let scanned: Model = entries(db.iter()).into_iter().collect();
    for n in 0..150 {
        let key = format!("key{n:04}").into_bytes();
        assert_eq!(db.get(&key).unwrap().as_deref(), scanned.get(&key).map(Vec::as_slice), "key{n:04}");
    }
    scanned
}

#[test]
fn a_follower_of_every_placement_sees_the_newest_commit_and_keeps_each_state_that_it_has() {
    for placement in PlacementKind::ALL {
        let dir = TempDir::new();
        let path = dir.join("db");
        let writer = Db::open_with(&path, options(placement)).unwrap();
        let mut model = Model::new();
        write_round(&writer, writer.default_keyspace(), 1, &mut model);
        let mut reader = follow(&path);
        let mut earlier: Vec<(Db, Model)> = Vec::new();
        for round in 2..34 {
            write_round(&writer, writer.default_keyspace(), round, &mut model);
            if round % 3 == 0 {
                assert!(reader.refresh().unwrap().is_newer);
                assert_eq!(contents(&reader), model, "{placement:?}, round {round}");
                earlier.push((reader.clone(), model.clone()));
                if earlier.len() > 4 {
                    earlier.remove(round % 5);
                }
                for (then, model) in &earlier {
                    assert_eq!(contents(then), *model, "{placement:?}, an earlier state in round {round}");
                }
            }
            if round % 16 == 0 {
                let fresh = follow(&path);
                assert_eq!(contents(&fresh), model, "{placement:?}, opened in round {round}");
                assert!(verify(&path).unwrap().problems.is_empty());
            }
        }
        assert!(!reader.refresh().unwrap().is_newer || contents(&reader) == model);
        assert!(!reader.refresh().unwrap().is_newer);
        assert!(writer.stats().followers.readers == 1, "one for all states: {:?}", writer.stats().followers);
        drop((reader, earlier));
        let held = writer.stats().followers;
        assert_eq!((held.readers, held.held_files, held.held_bytes), (0, 0, 0), "{placement:?}");
        writer.close().unwrap();
        only_needed_files(&path, placement);
    }
}

/// A directory has the files of the database and no others.
fn only_needed_files(path: &Path, placement: PlacementKind) {
    let names = |path: &Path| -> BTreeSet<PathBuf> {
        std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    assert!(names(&path.join("readers")).is_empty(), "{placement:?}");
    let before = names(path);
    Db::open_with(path, options(placement)).unwrap().close().unwrap();
    let after = names(path);
    let removed: Vec<_> = before.difference(&after).filter(|name| name.extension() != Some("log".as_ref())).collect();
    assert!(removed.is_empty(), "{placement:?}: an opening removes {removed:?}");
}

#[test]
fn files_that_a_state_needs_stay_until_it_is_dropped_or_refreshed() {
    let dir = TempDir::new();
    let path = dir.join("db");
    let writer = Db::open_with(&path, options(PlacementKind::WiscKey)).unwrap();
    let mut model = Model::new();
    (1..8).for_each(|round| write_round(&writer, writer.default_keyspace(), round, &mut model));
    let mut reader = follow(&path);
    let then = model.clone();
    for round in 8..30 {
        write_round(&writer, writer.default_keyspace(), round, &mut model);
    }
    let held = writer.stats().followers;
    assert!(held.readers == 1 && held.held_files > 0 && held.held_bytes > 0, "{held:?}");
    assert_eq!(contents(&reader), then);
    reader.refresh().unwrap();
    let held = writer.stats().followers;
    assert_eq!((held.readers, held.held_files), (1, 0));
    assert_eq!(contents(&reader), model);
}

/// A state had files that commits had begun and no edit had recorded; GC has emptied them since.
#[test]
fn a_refreshed_reader_needs_nothing_that_only_its_last_state_held() {
    for placement in PlacementKind::ALL {
        let dir = TempDir::new();
        let path = dir.join("db");
        let mut options = options(placement);
        (options.keyspace.values.space_target, options.keyspace.values.file_bytes) = (1.05, 4 << 10);
        let writer = Db::open_with(&path, options).unwrap();
        let mut model = Model::new();
        let mut put = |n: usize, with: u8| {
            let (key, value) = (format!("key{n:04}").into_bytes(), vec![with; 1000]);
            writer.put(&key, &value).unwrap();
            model.insert(key, value);
        };
        (0..12).for_each(|n| put(n, b'1'));
        // It opens files again and again.
        let mut reader = Db::open_with(&path, Options { open_files_max: 2, ..following() }).unwrap();
        writer.flush().unwrap();
        for round in b'2'..b'5' {
            (0..12).step_by(2).for_each(|n| put(n, round));
            writer.flush().unwrap();
            writer.collect_garbage().unwrap();
        }
        reader.refresh().unwrap();
        assert_eq!(writer.stats().followers.held_files, 0, "{placement:?}");
        assert_eq!(contents(&reader), model, "{placement:?}");
    }
}

#[test]
fn a_writer_that_is_opened_later_keeps_what_a_follower_needs() {
    let dir = TempDir::new();
    let path = dir.join("db");
    let mut model = Model::new();
    let writer = Db::open_with(&path, options(PlacementKind::HashKv)).unwrap();
    (1..8).for_each(|round| write_round(&writer, writer.default_keyspace(), round, &mut model));
    let mut reader = follow(&path);
    let mut then = model.clone();
    (8..16).for_each(|round| write_round(&writer, writer.default_keyspace(), round, &mut model));
    writer.close().unwrap();
    for session in 2..6 {
        let writer = Db::open_with(&path, options(PlacementKind::HashKv)).unwrap();
        assert_eq!(contents(&reader), then, "session {session}");
        if session % 2 == 0 {
            reader.refresh().unwrap();
            then = model.clone();
            assert_eq!(contents(&reader), then, "session {session}");
        }
        (0..8).for_each(|n| write_round(&writer, writer.default_keyspace(), session * 8 + n, &mut model));
        assert_eq!(contents(&reader), then, "session {session}");
        writer.close().unwrap();
    }
    reader.refresh().unwrap();
    assert_eq!(contents(&reader), model);
}

#[test]
fn a_refresh_takes_nothing_back_that_was_counted() {
    let dir = TempDir::new();
    let path = dir.join("db");
    let writer = Db::open_with(&path, options(PlacementKind::WiscKey)).unwrap();
    writer.put("k", "v").unwrap();
    let mut reader = follow(&path);
    for round in 1..4 {
        for _ in 0..100 {
            reader.get("k").unwrap();
        }
        assert_eq!(reader.iter().count(), 1);
        writer.put("k", format!("{round}")).unwrap();
        assert!(reader.refresh().unwrap().is_newer);
        let stats = reader.stats();
        assert_eq!((stats.gets, stats.get_hits, stats.scanned_entries), (round * 100, round * 100, round));
        assert!(stats.user_bytes_read > 0 && stats.latency_us.get.count > 0, "{round}");
    }
}

#[test]
fn keyspaces_are_created_configured_and_dropped_under_a_follower() {
    let dir = TempDir::new();
    let path = dir.join("db");
    let writer = Db::open_with(&path, tiny()).unwrap();
    let mut reader = follow(&path);
    let wisckey = options(PlacementKind::WiscKey).keyspace;
    let users = writer.keyspace("users", wisckey.clone()).unwrap();
    users.put("ada", "x".repeat(500)).unwrap();
    assert!(reader.existing_keyspace("users").unwrap().is_none());
    assert!(matches!(reader.keyspace("users", wisckey.clone()), Err(Error::ReadOnly)));
    reader.refresh().unwrap();
    let seen = reader.existing_keyspace("users").unwrap().unwrap();
    assert_eq!(seen.get("ada").unwrap().unwrap().len(), 500);
    users.set_options(KeyspaceOptions { filter_bits_per_key: 3, ..wisckey }).unwrap();
    reader.refresh().unwrap();
    assert_eq!(reader.existing_keyspace("users").unwrap().unwrap().options().filter_bits_per_key, 3);
    writer.drop_keyspace("users").unwrap();
    writer.put("other", "value").unwrap();
    reader.refresh().unwrap();
    assert!(reader.existing_keyspace("users").unwrap().is_none());
    assert_eq!(seen.get("ada").unwrap().unwrap().len(), 500, "a handle keeps its state");
}

#[test]
fn snapshots_and_iterators_keep_the_state_that_they_began_with() {
    let dir = TempDir::new();
    let path = dir.join("db");
    let writer = Db::open_with(&path, options(PlacementKind::DiffKv)).unwrap();
    let mut model = Model::new();
    (1..6).for_each(|round| write_round(&writer, writer.default_keyspace(), round, &mut model));
    let mut reader = follow(&path);
    let (snapshot, then): (Snapshot, Model) = (reader.snapshot(), model.clone());
    let begun = reader.iter();
    (6..30).for_each(|round| write_round(&writer, writer.default_keyspace(), round, &mut model));
    reader.refresh().unwrap();
    let keyspace = reader.default_keyspace().clone();
    drop(reader);
    assert_eq!(entries(begun).into_iter().collect::<Model>(), then);
    // Handles of later states lead to the state of the snapshot.
    for (key, value) in &then {
        assert_eq!(snapshot.get(&keyspace, key).unwrap().as_deref(), Some(&value[..]));
    }
    assert_eq!(entries(snapshot.iter(&keyspace)).into_iter().collect::<Model>(), then);
}

#[test]
fn commits_that_are_only_in_memory_are_seen_once_they_are_written() {
    let dir = TempDir::new();
    let path = dir.join("db");
    let writer = Db::open_with(&path, Options { durability: Durability::Memory, ..tiny() }).unwrap();
    writer.put("a", "1").unwrap();
    writer.sync().unwrap();
    let mut reader = follow(&path);
    for round in 0..40 {
        for n in 0..50 {
            writer.put(format!("key{n}"), format!("{round}-{n}-{}", "x".repeat(100))).unwrap();
        }
        let seen = reader.refresh().unwrap().seqno;
        let mut batches: Vec<String> = entries(reader.prefix("key"))
            .into_iter()
            .map(|(_, value)| String::from_utf8(value).unwrap().split('-').next().unwrap().to_owned())
            .collect();
        batches.dedup();
        assert!(batches.len() <= 51, "a state after commit {seen}");
    }
    writer.sync().unwrap();
    reader.refresh().unwrap();
    assert_eq!(entries(reader.iter()), entries(writer.iter()));
}

#[test]
fn checkpoints_and_backups_of_a_follower_are_whole() {
    for placement in PlacementKind::ALL {
        let dir = TempDir::new();
        let path = dir.join("db");
        let writer = Db::open_with(&path, options(placement)).unwrap();
        let mut model = Model::new();
        (1..20).for_each(|round| write_round(&writer, writer.default_keyspace(), round, &mut model));
        let mut reader = follow(&path);
        let then = model.clone();
        (20..30).for_each(|round| write_round(&writer, writer.default_keyspace(), round, &mut model));
        reader.checkpoint(dir.join("then")).unwrap();
        reader.backup(dir.join("backup")).unwrap();
        (30..40).for_each(|round| write_round(&writer, writer.default_keyspace(), round, &mut model));
        reader.refresh().unwrap();
        let now = model.clone();
        reader.backup(dir.join("backup")).unwrap();
        reader.checkpoint(dir.join("now")).unwrap();
        (40..50).for_each(|round| write_round(&writer, writer.default_keyspace(), round, &mut model));
        Db::restore(dir.join("backup"), dir.join("restored")).unwrap();
        for (name, expected) in [("then", &then), ("now", &now), ("restored", &now)] {
            assert_eq!(verify(dir.join(name)).unwrap().problems.first().map(ToString::to_string), None, "{name}");
            let copy = Db::open_with(dir.join(name), options(placement)).unwrap();
            assert_eq!(contents(&copy), *expected, "{placement:?}, {name}");
            copy.compact().unwrap();
            assert_eq!(contents(&copy), *expected, "{placement:?}, {name}");
            copy.close().unwrap();
        }
        assert_eq!(contents(&writer), model, "{placement:?}");
    }
}

#[test]
fn a_follower_does_not_write_and_says_so() {
    let dir = TempDir::new();
    let path = dir.join("db");
    assert!(matches!(Db::open_with(&path, following()), Err(Error::NotFound { .. })));
    let writer = Db::open_with(&path, tiny()).unwrap();
    let reader = follow(&path);
    assert!(matches!(reader.put("a", "b"), Err(Error::ReadOnly)));
    assert!(matches!(reader.flush(), Err(Error::ReadOnly)));
    assert!(matches!(reader.compact(), Err(Error::ReadOnly)));
    reader.wait_idle().unwrap();
    writer.put("a", "b").unwrap();
    assert!(matches!(
        Db::open_with(&path, Options { access: Access::ReadOnly, ..following() }),
        Err(Error::Locked { .. })
    ));
    reader.close().unwrap();
    writer.close().unwrap();
    // Without a writer it works, too, and keeps none out.
    let reader = follow(&path);
    let writer = Db::open_with(&path, tiny()).unwrap();
    assert_eq!(reader.get("a").unwrap().as_deref(), Some(&b"b"[..]));
    assert_eq!(writer.get("a").unwrap().as_deref(), Some(&b"b"[..]));
}

/// A clock on which only sleeps take time. It does something in each.
struct Sleeps {
    clock: ManualClock,
    slept: Mutex<Vec<Duration>>,
    then: Mutex<Box<dyn FnMut(usize) + Send>>,
}

impl std::fmt::Debug for Sleeps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sleeps")
    }
}

impl Clock for Sleeps {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn sleep(&self, time: Duration) {
        self.clock.advance(time);
        let mut slept = self.slept.lock().unwrap();
        slept.push(time);
        (self.then.lock().unwrap())(slept.len());
    }
}

fn sleeps() -> Arc<Sleeps> {
    Arc::new(Sleeps { clock: ManualClock::default(), slept: Mutex::default(), then: Mutex::new(Box::new(|_| {})) })
}

#[test]
fn a_reader_asks_again_after_pauses_that_grow_until_there_is_more_or_the_time_is_over() {
    let fs = MemoryFs::new();
    let writer = Db::open_in(Env { fs: Arc::new(fs.clone()), ..Env::system() }, "/db", tiny()).unwrap();
    let sleeps = sleeps();
    let env = Env { fs: Arc::new(fs), clock: Arc::clone(&sleeps) as _, ..Env::system() };
    let mut reader = Db::open_in(env, "/db", following()).unwrap();
    let slept = || sleeps.slept.lock().unwrap().drain(..).map(|time| time.as_millis()).collect::<Vec<_>>();
    assert_eq!(slept(), [], "an opening waits for nothing");

    assert!(!reader.refresh_within(Duration::from_millis(350)).unwrap().is_newer);
    assert_eq!(slept(), [1, 2, 4, 8, 16, 32, 64, 100, 100, 23]);
    assert!(!reader.refresh_within(Duration::ZERO).unwrap().is_newer);
    assert_eq!(slept(), []);

    let other = writer.clone();
    *sleeps.then.lock().unwrap() = Box::new(move |sleep| {
        if sleep == 3 {
            other.put("a", "b").unwrap();
        }
    });
    let seen = reader.refresh_within(Duration::MAX).unwrap();
    assert!(seen.is_newer);
    assert_eq!((seen.seqno, slept()), (writer.snapshot().seqno(), vec![1, 2, 4]));
    assert_eq!(reader.get("a").unwrap().as_deref(), Some(&b"b"[..]));

    // What is committed in the last pause is still found.
    let other = writer.clone();
    *sleeps.then.lock().unwrap() = Box::new(move |sleep| {
        if sleep == 2 {
            other.put("a", "c").unwrap();
        }
    });
    assert!(reader.refresh_within(Duration::from_millis(2)).unwrap().is_newer);
    assert_eq!(slept(), [1, 1]);

    let other = Mutex::new(Some(reader.clone()));
    *sleeps.then.lock().unwrap() = Box::new(move |_| other.lock().unwrap().take().unwrap().close().unwrap());
    assert!(matches!(reader.refresh_within(Duration::MAX), Err(Error::Closed { .. })));
    assert_eq!(slept(), [1]);
}

#[test]
fn an_older_database_in_the_same_place_is_an_error_and_not_an_older_state() {
    let fs = MemoryFs::new();
    let env = || Env { fs: Arc::new(fs.clone()), ..Env::system() };
    let writer = Db::open_in(env(), "/db", tiny()).unwrap();
    writer.put("a", "1").unwrap();
    writer.close().unwrap();
    let old: Vec<_> = fs.files().into_iter().map(|path| (path.clone(), fs.read(&path).unwrap())).collect();
    let writer = Db::open_in(env(), "/db", tiny()).unwrap();
    (0..9).for_each(|n| writer.put("a", n.to_string()).unwrap());
    let mut reader = Db::open_in(env(), "/db", following()).unwrap();
    writer.close().unwrap();
    for path in fs.files().into_iter().filter(|path| path.starts_with("/db") && !path.starts_with("/db/readers")) {
        fs.remove(&path).unwrap();
    }
    for (path, bytes) in old {
        fs.write_durable(&path, &bytes);
    }
    assert!(matches!(reader.refresh(), Err(Error::Corruption { .. })));
    assert_eq!(reader.get("a").unwrap().as_deref(), Some(&b"8"[..]));
}

/// It has more commits than the reader has seen, and its tables have numbers of tables that the reader has cached.
#[test]
fn another_history_in_the_same_place_is_an_error_even_if_it_is_longer() {
    // Somebody has removed the whole directory, or everything but the pins.
    for kept in ["/db/nothing", "/db/readers"] {
        let fs = MemoryFs::new();
        let env = || Env { fs: Arc::new(fs.clone()), ..Env::system() };
        let write = |key: &str, values: std::ops::Range<u32>| {
            let writer = Db::open_in(env(), "/db", tiny()).unwrap();
            values.for_each(|n| writer.put(key, n.to_string()).unwrap());
            writer
        };
        write("a", 0..1).close().unwrap();
        let old: Vec<_> = fs.files().into_iter().map(|path| (path.clone(), fs.read(&path).unwrap())).collect();
        (0..3).for_each(|_| write("a", 0..1).close().unwrap());
        let writer = write("a", 0..9);
        let mut reader = Db::open_in(Env { clock: sleeps(), ..env() }, "/db", following()).unwrap();
        writer.close().unwrap();
        for path in fs.files().into_iter().filter(|path| path.starts_with("/db") && !path.starts_with(kept)) {
            fs.remove(&path).unwrap();
        }
        for (path, bytes) in old {
            fs.write_durable(&path, &bytes);
        }
        let writer = write("a", 100..150);
        writer.flush().unwrap();
        for _ in 0..2 {
            let refreshed = reader.refresh();
            assert!(matches!(refreshed, Err(Error::Corruption { .. })), "{kept}: {refreshed:?}");
            assert_eq!(reader.get("a").unwrap().as_deref(), Some(&b"8"[..]));
        }
        let fresh = Db::open_in(env(), "/db", following()).unwrap();
        assert_eq!(fresh.get("a").unwrap().as_deref(), Some(&b"149"[..]));
    }
}

#[test]
fn half_a_record_at_the_end_is_no_damage() {
    let fs = MemoryFs::new();
    let env = || Env { fs: Arc::new(fs.clone()), ..Env::system() };
    let writer = Db::open_in(env(), "/db", tiny()).unwrap();
    (0..9).for_each(|n| writer.put("a", n.to_string()).unwrap());
    let mut reader = Db::open_in(env(), "/db", following()).unwrap();
    writer.put("a", "last").unwrap();
    // What a reader sees while the writer appends to either: the beginning of a record.
    let is_appended_to =
        |path: &PathBuf| path.ends_with("MANIFEST") || path.extension().is_some_and(|end| end == "log");
    for path in fs.files().into_iter().filter(is_appended_to) {
        fs.open_append(&path).unwrap().append(&[&[0x5B, 0x80, 3, 0, 0]]).unwrap();
    }
    assert!(reader.refresh().unwrap().is_newer);
    assert_eq!(reader.get("a").unwrap().as_deref(), Some(&b"last"[..]));
    let fresh = Db::open_in(env(), "/db", following()).unwrap();
    assert_eq!(fresh.get("a").unwrap().as_deref(), Some(&b"last"[..]));
}
