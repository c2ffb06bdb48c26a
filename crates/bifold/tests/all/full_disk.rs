//! A full disk: puts end before it is full, and nothing is poisoned. Another process can open the database, even with
//! not a byte free.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use bifold::{CompactionFilter, Db, Env, Error, KeyspaceOptions, Options, PlacementKind, Verdict, Workers};
use bifold_io::{
    FileSystem,
    faulty::{Fault, FaultKind, FaultyFs, Persistence},
    memory::{Fate, MemoryFs},
};

const CAPACITY: u64 = 8 << 20;
const PLACEMENTS: [PlacementKind; 7] = PlacementKind::ALL;

fn open(fs: &MemoryFs, placement: PlacementKind, workers: Workers) -> Result<Db, Error> {
    Db::open_in(env(fs), "/db", options(placement, workers))
}

fn options(placement: PlacementKind, workers: Workers) -> Options {
    let mut options = Options { memory_limit: 8 << 20, memtable_bytes: 64 << 10, workers, ..Options::default() };
    options.keyspace = KeyspaceOptions { placement, table_bytes: 64 << 10, ..KeyspaceOptions::default() };
    (options.keyspace.values.file_bytes, options.keyspace.values.hashkv.group_bytes) = (64 << 10, 64 << 10);
    options
}

fn env(fs: &MemoryFs) -> Env {
    Env { fs: Arc::new(fs.clone()), ..Env::system() }
}

fn key(number: u32) -> String {
    format!("key{number:06}")
}

/// Fills it until a put is refused. Returns the number of puts that succeeded.
fn fill(db: &Db) -> u32 {
    for number in 0.. {
        match db.put(key(number), vec![number as u8; 3000]) {
            Ok(()) => {}
            Err(Error::Full { free_bytes, needed_bytes, .. }) => {
                assert!(free_bytes < needed_bytes, "{free_bytes} of {needed_bytes}");
                return number;
            }
            Err(error) => panic!("put {number}: {error}"),
        }
    }
    unreachable!("the disk fills")
}

fn check(db: &Db, numbers: impl IntoIterator<Item = u32>) {
    for number in numbers {
        assert_eq!(db.get(key(number)).unwrap().as_deref(), Some(&vec![number as u8; 3000][..]), "{number}");
    }
}

#[test]
fn puts_are_refused_and_deletes_are_not_and_then_puts_go_on() {
    for placement in PLACEMENTS {
        for workers in [Workers::Caller, Workers::Threads(2)] {
            let fs = MemoryFs::new();
            fs.set_capacity(Some(CAPACITY));
            let db = open(&fs, placement, workers).unwrap();
            let puts = fill(&db);
            assert!(puts > 300, "{placement:?}: {puts} puts");
            assert!(matches!(db.put("key", "value"), Err(Error::Full { .. })), "{placement:?}");
            check(&db, 0..puts);
            (0..puts).step_by(2).for_each(|number| db.delete(key(number)).unwrap());
            db.compact().unwrap();
            check(&db, (1..puts).step_by(2));
            db.put("key", "value").unwrap();
            assert!(db.stats().poisoned.is_none(), "{placement:?}");
            db.close().unwrap();
        }
    }
}

#[test]
fn a_disk_that_others_have_filled_to_the_last_byte_is_opened_with_what_the_reserve_gives() {
    for placement in PLACEMENTS {
        let fs = MemoryFs::new();
        fs.set_capacity(Some(CAPACITY));
        let db = open(&fs, placement, Workers::Caller).unwrap();
        (0..500).for_each(|number| db.put(key(number), vec![number as u8; 3000]).unwrap());
        assert!(db.stats().space.reserve_bytes > 0, "{placement:?}");
        drop(db);
        fs.set_capacity(Some(fs.used_bytes()));
        let db = open(&fs, placement, Workers::Caller).unwrap();
        assert_eq!(fs.len(Path::new("/db/RESERVE")).unwrap(), None, "{placement:?}: it is released");
        check(&db, 0..500);
        db.delete(key(7)).unwrap();
        assert!(matches!(db.put("key", "value"), Err(Error::Full { .. })), "{placement:?}");
        fs.set_capacity(Some(CAPACITY));
        db.put("key", "value").unwrap();
        db.compact().unwrap();
        assert!(db.stats().space.reserve_bytes > 0, "{placement:?}: it exists again");
        db.close().unwrap();
    }
}

/// A copy-on-write file system does not report all space as free that has been deleted.
#[test]
fn a_delete_is_not_refused_before_what_was_deleted_is_free() {
    let memory = MemoryFs::new();
    memory.set_capacity(Some(CAPACITY));
    let faulty = FaultyFs::over_memory(memory.clone());
    let environment = Env { fs: Arc::new(faulty.clone()), ..Env::system() };
    // Without a reserve nothing else gives room.
    let options = Options { free_bytes_min: Some(0), ..options(PlacementKind::Inline, Workers::Caller) };
    let db = Db::open_in(environment, "/db", options).unwrap();
    fill(&db);
    memory.set_capacity(Some(memory.used_bytes()));
    assert!(matches!(db.delete(key(7)), Err(Error::Full { .. })), "nothing is free");
    let (freed, asked) = (memory.clone(), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&asked);
    faulty.decide_by(Box::new(move |call| {
        if call.op == "finish deletes in" {
            freed.set_capacity(Some(2 * CAPACITY));
            count.fetch_add(1, Relaxed);
        }
        None
    }));
    db.delete(key(7)).unwrap();
    assert_eq!(asked.load(Relaxed), 1);
    db.put("key", "value").unwrap();
    assert_eq!(asked.load(Relaxed), 1, "where enough is free, nobody asks");
    db.close().unwrap();
}

/// Merges and GC runs become as small as the free space requires.
#[test]
fn a_disk_that_others_have_filled_to_the_last_byte_is_emptied() {
    const ENTRIES: u32 = 700;
    for placement in PLACEMENTS.into_iter().chain([PlacementKind::UniKv]) {
        let fs = MemoryFs::new();
        fs.set_capacity(Some(CAPACITY));
        let mut options = options(placement, Workers::Caller);
        options.keyspace =
            KeyspaceOptions { placement: PlacementKind::Inline, ..options.keyspace }.with_placement(placement);
        let open = || Db::open_in(env(&fs), "/db", options.clone()).unwrap();
        let db = open();
        (0..ENTRIES).for_each(|number| {
            db.put(key(number * 7919 % ENTRIES), vec![(number * 7919 % ENTRIES) as u8; 3000]).unwrap()
        });
        drop(db);
        let used = fs.used_bytes();
        fs.set_capacity(Some(used));
        let db = open();
        (0..ENTRIES).step_by(2).for_each(|number| db.delete(key(number)).unwrap());
        db.compact().unwrap_or_else(|error| panic!("{placement:?}: {error}"));
        db.collect_garbage().unwrap_or_else(|error| panic!("{placement:?}: {error}"));
        check(&db, (1..ENTRIES).step_by(2));
        let left = fs.used_bytes() - db.stats().space.reserve_bytes;
        assert!(left < used / 3 * 2, "{placement:?}: of {used} bytes {left} are left");
        db.close().unwrap();
    }
}

#[test]
fn with_no_room_asked_for_puts_go_on_longer() {
    let filled = |free_bytes_min| {
        let fs = MemoryFs::new();
        fs.set_capacity(Some(CAPACITY));
        let options =
            Options { workers: Workers::Caller, memtable_bytes: 64 << 10, free_bytes_min, ..Options::default() };
        fill(&Db::open_in(env(&fs), "/db", options).unwrap())
    };
    let (most, usual) = (filled(Some(0)), filled(None));
    assert!(most > usual + usual / 4, "{most} puts where nothing is kept free, {usual} otherwise");
}

/// A merge that is killed at any of its calls leaves tables that no manifest names, or some that none names any more.
#[test]
fn a_full_disk_without_a_reserve_is_opened_with_what_no_manifest_needs() {
    let prepared = MemoryFs::new();
    {
        let db = open(&prepared, PlacementKind::Inline, Workers::Caller).unwrap();
        for _ in 0..2 {
            (0..60).for_each(|number| db.put(key(number), vec![number as u8; 3000]).unwrap());
            db.flush().unwrap();
        }
        db.close().unwrap();
    }
    let compact = |at: Option<u64>| {
        let memory = prepared.fork();
        let faulty = FaultyFs::over_memory(memory.clone());
        let environment = Env { fs: Arc::new(faulty.clone()), ..Env::system() };
        let db = Db::open_in(environment, "/db", options(PlacementKind::Inline, Workers::Caller)).unwrap();
        let first = faulty.calls() + 1;
        at.into_iter().for_each(|at| {
            faulty.plan(Fault { at, kind: FaultKind::EIO, persistence: Persistence::Calls(20_000) });
        });
        let _fails_where_it_shall = db.compact();
        (first..=faulty.calls(), memory)
    };
    // The power fails at each call of an opening that deletes what no manifest names.
    let power_fails = |killed: &MemoryFs| {
        for at in 1.. {
            let memory = killed.fork();
            memory.set_capacity(Some(memory.used_bytes()));
            let faulty = FaultyFs::over_memory(memory.clone());
            faulty.plan(Fault { at, kind: FaultKind::EIO, persistence: Persistence::Calls(20_000) });
            let environment = Env { fs: Arc::new(faulty.clone()), ..Env::system() };
            drop(Db::open_in(environment, "/db", options(PlacementKind::Inline, Workers::Caller)));
            if faulty.calls() < at {
                break;
            }
            let lost = memory.power_loss(Fate::DropUnsynced);
            lost.set_capacity(None);
            check(&open(&lost, PlacementKind::Inline, Workers::Caller).unwrap(), 0..60);
        }
    };
    let mut opened = 0;
    for at in compact(None).0 {
        let killed = compact(Some(at)).1;
        power_fails(&killed);
        killed.set_capacity(Some(killed.used_bytes()));
        match open(&killed, PlacementKind::Inline, Workers::Caller) {
            Ok(db) => {
                check(&db, 0..60);
                opened += 1;
            }
            Err(error) => assert!(error.is_full(), "call {at}: {error}"),
        }
        for seed in 0..6 {
            let lost = killed.power_loss(if seed == 0 { Fate::DropUnsynced } else { Fate::Random(seed) });
            lost.set_capacity(None);
            check(&open(&lost, PlacementKind::Inline, Workers::Caller).unwrap(), 0..60);
        }
    }
    assert!(opened > 12, "{opened} were opened");
}

/// Otherwise it would take twice the space, which a nearly full disk does not have.
#[test]
fn a_compaction_gives_back_what_it_has_replaced_before_it_ends() {
    let memory = MemoryFs::new();
    let faulty = FaultyFs::over_memory(memory.clone());
    let environment = Env { fs: Arc::new(faulty.clone()), ..Env::system() };
    let db = Db::open_in(environment, "/db", options(PlacementKind::Inline, Workers::Caller)).unwrap();
    for _ in 0..2 {
        (0..1000).for_each(|number| db.put(key(number), vec![number as u8; 3000]).unwrap());
        db.compact().unwrap();
    }
    (0..1000).step_by(2).for_each(|number| db.put(key(number), vec![number as u8; 3000]).unwrap());
    db.flush().unwrap();
    let (most, sampled) = (Arc::new(AtomicU64::new(0)), memory.clone());
    let seen = Arc::clone(&most);
    faulty.decide_by(Box::new(move |_| {
        seen.fetch_max(sampled.used_bytes(), Relaxed);
        None
    }));
    let before = memory.used_bytes();
    db.compact().unwrap();
    let peak = most.load(Relaxed);
    assert!(peak > before && peak < before + before / 4, "{peak} bytes at most, {before} before");
    check(&db, 0..1000);
}

#[test]
fn a_disk_that_others_have_filled_to_the_last_byte_is_emptied_within_the_reserve() {
    // A smaller reserve than usual.
    let options = Options { free_bytes_min: Some(768 << 10), ..options(PlacementKind::Inline, Workers::Caller) };
    let reopen = |fs: &MemoryFs| Db::open_in(env(fs), "/db", options.clone()).unwrap();
    let fs = MemoryFs::new();
    fs.set_capacity(Some(4 * CAPACITY));
    let db = reopen(&fs);
    (0..4000).for_each(|number| db.put(key(number), vec![number as u8; 3000]).unwrap());
    db.compact().unwrap();
    let reserve = db.stats().space.reserve_bytes;
    drop(db);
    let used = fs.used_bytes();
    assert!((1..used / 12).contains(&reserve), "{reserve} of {used} bytes: less than a quarter of what stays");
    fs.set_capacity(Some(used));
    let db = reopen(&fs);
    (0..4000).step_by(2).for_each(|number| db.delete(key(number)).unwrap());
    db.compact().unwrap();
    assert!(fs.used_bytes() < used * 6 / 10, "{} bytes of {used} are left", fs.used_bytes());
    check(&db, (1..4000).step_by(2));
    db.close().unwrap();
}

/// Fails if the work takes nearly as long as a thread sleeps that nobody wakes, which is half a minute.
fn is_woken<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    const PATIENCE: Duration = Duration::from_secs(15);
    let (end, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let work = scope.spawn(move || {
            let _end = end;
            work()
        });
        let outcome = ended.recv_timeout(PATIENCE);
        let done = work.join().unwrap();
        assert_eq!(outcome, Err(RecvTimeoutError::Disconnected), "nobody was woken");
        done
    })
}

/// The worker that finds no room for it sleeps, and so does the caller.
#[test]
fn a_flush_without_room_reports_that_and_is_done_when_there_is_room() {
    let fs = MemoryFs::new();
    fs.set_capacity(Some(CAPACITY));
    let options = Options { free_bytes_min: Some(0), ..options(PlacementKind::Inline, Workers::Threads(2)) };
    let db = Db::open_in(env(&fs), "/db", options).unwrap();
    db.put("key", "value").unwrap();
    fs.set_capacity(Some(fs.used_bytes() + (16 << 10)));
    let flushed = is_woken(|| db.flush());
    assert!(matches!(flushed, Err(Error::Full { .. })), "{flushed:?}");
    // The work is due, and nobody does it.
    let idle = is_woken(|| db.wait_idle());
    assert!(matches!(idle, Err(Error::Full { .. })), "{idle:?}");
    fs.set_capacity(Some(CAPACITY));
    is_woken(|| db.flush()).unwrap();
    let stats = db.stats();
    assert_eq!((stats.keyspaces[0].levels[0].entries, stats.overdue_waits), (1, 0));
    assert!(stats.poisoned.is_none());
    db.close().unwrap();
}

/// Nobody asks again: the workers find out by themselves.
#[test]
fn a_flush_without_room_is_done_by_workers_once_there_is_room() {
    let fs = MemoryFs::new();
    fs.set_capacity(Some(CAPACITY));
    let options = Options { free_bytes_min: Some(0), ..options(PlacementKind::Inline, Workers::Threads(2)) };
    let db = Db::open_in(env(&fs), "/db", options).unwrap();
    db.put("key", "value").unwrap();
    fs.set_capacity(Some(fs.used_bytes() + (16 << 10)));
    assert!(matches!(is_woken(|| db.flush()), Err(Error::Full { .. })));
    fs.set_capacity(Some(CAPACITY));
    is_woken(|| {
        while db.stats().keyspaces[0].levels.first().is_none_or(|level| level.entries == 0) {
            thread::yield_now();
        }
    });
    db.close().unwrap();
}

/// A worker may not use the reserve, and may have failed before the caller releases it.
#[test]
fn a_flush_that_a_caller_waits_for_is_done_with_the_space_of_the_reserve() {
    let fs = MemoryFs::new();
    fs.set_capacity(Some(CAPACITY));
    let db = open(&fs, PlacementKind::Inline, Workers::Threads(2)).unwrap();
    (0..500).for_each(|number| db.put(key(number), vec![number as u8; 3000]).unwrap());
    db.flush().unwrap();
    db.wait_idle().unwrap();
    assert!(db.stats().space.reserve_bytes > 128 << 10);
    db.put(key(500), vec![500u32 as u8; 3000]).unwrap();
    fs.set_capacity(Some(fs.used_bytes() + (16 << 10)));
    is_woken(|| db.flush()).unwrap();
    check(&db, 0..501);
    assert!(db.stats().poisoned.is_none());
    db.close().unwrap();
}

/// Before GC asks the index, the commit under way has to end. Nothing is committed then, so its copies wait for room
/// like those of any other GC.
#[test]
fn copies_of_gc_that_asks_the_index_wait_for_room() {
    const ENTRIES: u32 = 60;
    let prepared = MemoryFs::new();
    prepared.set_capacity(Some(CAPACITY));
    {
        let db = open(&prepared, PlacementKind::HashKv, Workers::Caller).unwrap();
        for _ in 0..2 {
            (0..ENTRIES).for_each(|number| {
                let value = vec![number as u8; 3000];
                db.default_keyspace().put_with_ttl(key(number), value, Duration::from_secs(1 << 20)).unwrap();
            });
        }
        db.close().unwrap();
    }
    // Each append to a value file fails in turn.
    for at in 1.. {
        let memory = prepared.fork();
        memory.set_capacity(Some(CAPACITY));
        let faulty = FaultyFs::over_memory(memory.clone());
        let environment = Env { fs: Arc::new(faulty.clone()), ..Env::system() };
        let db = Db::open_in(environment, "/db", options(PlacementKind::HashKv, Workers::Caller)).unwrap();
        let appends = AtomicU64::new(0);
        faulty.decide_by(Box::new(move |call| {
            let is_of_values = call.op == "append to" && call.path.extension().is_some_and(|end| end == "val");
            (is_of_values && appends.fetch_add(1, Relaxed) + 1 == at).then_some(FaultKind::ENOSPC)
        }));
        let outcome = db.collect_garbage();
        assert!(matches!(outcome, Ok(()) | Err(Error::Full { .. })), "append {at}: {outcome:?}");
        assert!(db.stats().poisoned.is_none(), "append {at}");
        let has_failed = !faulty.injected().is_empty();
        faulty.clear();
        db.collect_garbage().unwrap();
        check(&db, 0..ENTRIES);
        if !has_failed {
            assert!(at > 20, "{at}: files are begun, and copied to");
            break;
        }
    }
}

/// A compaction whose tables have addresses writes little, and its filter replaces all values.
#[test]
fn what_a_filter_replaces_waits_for_room() {
    for placement in [PlacementKind::WiscKey, PlacementKind::HashKv, PlacementKind::Streams] {
        let fs = MemoryFs::new();
        fs.set_capacity(Some(CAPACITY));
        let db = open(&fs, placement, Workers::Caller).unwrap();
        let puts = fill(&db);
        let filter = CompactionFilter::new(|_| Ok(Verdict::Replace(vec![255; 3000])));
        db.default_keyspace().set_compaction_filter(Some(filter));
        let outcome = db.compact();
        assert!(matches!(outcome, Ok(()) | Err(Error::Full { .. })), "{placement:?}: {outcome:?}");
        assert_eq!(db.stats().poisoned, None, "{placement:?}");
        for number in 0..puts {
            let found = db.get(key(number)).unwrap().unwrap();
            let is_right = *found == [number as u8; 3000] || *found == [255u8; 3000];
            assert!(is_right, "{placement:?}: {number}");
        }
        fs.set_capacity(None);
        db.compact().unwrap();
        let is_replaced = |number: &u32| *db.get(key(*number)).unwrap().unwrap() == [255u8; 3000];
        assert_eq!((0..puts).filter(is_replaced).count(), puts as usize, "{placement:?}");
        db.close().unwrap();
    }
}
