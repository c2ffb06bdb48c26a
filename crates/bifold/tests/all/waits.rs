//! Threads that wait for one another while keyspaces are created and dropped.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::Duration,
};

use bifold::{Db, Durability, Env, Error, KeyspaceOptions, Options, PlacementKind, Workers};
use bifold_io::{
    faulty::FaultyFs,
    memory::{Fate, MemoryFs},
};

use crate::{
    support::tiny,
    threads::{Doing, must_end},
};

pub const PLACEMENTS: [PlacementKind; 7] = PlacementKind::ALL;

/// A call of the file system that is held up until the test lets it go.
pub struct Held {
    pub entered: Receiver<()>,
    pub go: Sender<()>,
}

impl Held {
    /// Holds up the first call from now on of this kind on a file whose name ends like this.
    pub fn first(fs: &FaultyFs, op: &'static str, ending: &'static str) -> Self {
        let (enter, entered) = mpsc::channel();
        let (go, gone) = mpsc::channel();
        let (is_first, ends) = (AtomicBool::new(true), Mutex::new((enter, gone)));
        fs.decide_by(Box::new(move |call| {
            let here = call.op == op && call.path.to_string_lossy().ends_with(ending);
            if here && is_first.swap(false, Ordering::SeqCst) {
                let ends = ends.lock().unwrap();
                ends.0.send(()).unwrap();
                ends.1.recv().unwrap();
            }
            None
        }));
        Self { entered, go }
    }
}

fn wait_for_waits(db: &Db, on: &str, count: usize) {
    while db.stats().waits.iter().filter(|wait| wait.on == on).count() < count {
        thread::yield_now();
    }
}

fn options(placement: PlacementKind) -> Options {
    let keyspace = KeyspaceOptions { placement, ..tiny().keyspace };
    Options { workers: Workers::Threads(2), durability: Durability::Sync, keyspace, ..tiny() }
}

/// A thread that waited for a sync and then synced for all used to have the list of value files from before the wait.
#[test]
fn a_sync_covers_keyspaces_that_were_made_while_others_waited_for_it() {
    PLACEMENTS.into_iter().for_each(|placement| must_end(move |doing| sync_during_a_new_keyspace(placement, &doing)));
}

fn sync_during_a_new_keyspace(placement: PlacementKind, doing: &Doing) {
    const WAITING: usize = 8;
    let memory = MemoryFs::new();
    let fs = FaultyFs::over_memory(memory.clone());
    let env = |fs: Arc<dyn bifold_io::FileSystem>| Env { fs, ..Env::system() };
    let db = Db::open_in(env(Arc::new(fs.clone())), "/db", options(placement)).unwrap();
    let sync = Held::first(&fs, "sync", ".log");
    thread::scope(|scope| {
        scope.spawn(|| db.put("first", [1; 1000]).unwrap());
        sync.entered.recv().unwrap();
        for number in 0..WAITING {
            let db = &db;
            scope.spawn(move || db.put(format!("waiting{number}"), [2; 1000]).unwrap());
        }
        doing.now("main", "all but one wait".into());
        wait_for_waits(&db, "the sync that runs", WAITING);
        let late = db.keyspace("late", options(placement).keyspace).unwrap();
        scope.spawn(move || late.put("key", [3; 20_000]).unwrap());
        doing.now("main", "all wait".into());
        wait_for_waits(&db, "the sync that runs", WAITING + 1);
        sync.go.send(()).unwrap();
    });
    // All callers learned that their commits survive this.
    let after = memory.power_loss(Fate::DropUnsynced);
    drop(db);
    let db = Db::open_in(env(Arc::new(after)), "/db", options(placement)).unwrap();
    assert_eq!(db.iter().count(), 1 + WAITING, "{placement:?}");
    let late = db.existing_keyspace("late").unwrap().unwrap();
    assert!(
        late.get("key").unwrap().is_some_and(|value| *value == [3; 20_000]),
        "{placement:?}: a durable value is lost"
    );
}

/// When a keyspace was dropped with its full memtables, nobody recounted the full ones. If that is forgotten again,
/// the watchdog ends the waits and reports it by a panic.
#[test]
fn a_writer_goes_on_when_the_full_memtables_are_dropped_that_it_waits_for() {
    must_end(|doing| {
        let fs = FaultyFs::over_memory(MemoryFs::new());
        let options = Options { durability: Durability::Buffered, ..options(PlacementKind::Inline) };
        let env = Env { fs: Arc::new(fs.clone()), ..Env::system() };
        let db = Db::open_in(env, "/db", options.clone()).unwrap();
        let doomed = db.keyspace("doomed", options.keyspace).unwrap();
        let flush = Held::first(&fs, "create", ".tbl");
        let some = 3 * db.options().memtable_bytes as u32 / 1000;
        thread::scope(|scope| {
            let filler = scope.spawn(|| {
                (0..).find_map(|n: u32| doomed.put(n.to_be_bytes(), [1; 500]).err()).expect("it ends with an error")
            });
            flush.entered.recv().unwrap();
            doing.now("main", "one waits for the flush".into());
            wait_for_waits(&db, "a full memtable to be written", 1);
            // A writer whose own memtable has room waits for no other.
            let other = scope.spawn(|| (0..some).for_each(|n| db.put(n.to_be_bytes(), [2; 500]).unwrap()));
            doing.now("main", "two wait for the flush".into());
            wait_for_waits(&db, "a full memtable to be written", 2);
            db.drop_keyspace("doomed").unwrap();
            doing.now("main", "the waits have ended before the flush does".into());
            other.join().unwrap();
            assert!(matches!(filler.join().unwrap(), Error::Closed { .. }));
            flush.go.send(()).unwrap();
        });
        assert_eq!(db.get(0u32.to_be_bytes()).unwrap().as_deref(), Some(&[2; 500][..]));
        db.wait_idle().unwrap();
        assert!(db.stats().waits.is_empty() && db.stats().overdue_waits == 0);
    });
}

/// A flush that writes its table, and the thread that removes the tables of a compaction.
#[test]
fn a_wait_for_idleness_ends_at_its_limit() {
    for op in ["create", "remove"] {
        must_end(move |_doing| {
            let fs = FaultyFs::over_memory(MemoryFs::new());
            let env = Env { fs: Arc::new(fs.clone()), ..Env::system() };
            let db = Db::open_in(env, "/db", options(PlacementKind::Inline)).unwrap();
            let held = Held::first(&fs, op, ".tbl");
            thread::scope(|scope| {
                let work = scope.spawn(|| {
                    (0..3).for_each(|n| {
                        db.put("key", [n; 1000]).unwrap();
                        db.flush().unwrap();
                    });
                    db.compact().unwrap();
                });
                held.entered.recv().unwrap();
                assert!(!db.wait_idle_within(Duration::from_millis(50)).unwrap(), "{op}");
                held.go.send(()).unwrap();
                work.join().unwrap();
            });
            assert!(db.wait_idle_within(Duration::from_secs(600)).unwrap(), "{op}");
            assert!(db.wait_idle_within(Duration::MAX).unwrap(), "{op}");
        });
    }
}
