//! Notices of durable commits.

use std::{
    future::Future,
    path::Path,
    pin::{Pin, pin},
    ptr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker},
    thread::{self, Thread},
};

use bifold::{
    CommitNotice, Db, Durability, Env, Error, KeyspaceOptions, Options, PlacementKind, Result, Workers, options::Values,
};
use bifold_io::{
    faulty::{FaultKind, FaultyFs},
    memory::{Fate, MemoryFs},
};

use crate::{
    support::{TempDir, tiny},
    threads::must_end,
};

const WORKERS: [Workers; 2] = [Workers::Caller, Workers::Threads(2)];

/// Wakes a thread, and counts how often.
struct Unpark(Thread, AtomicU32);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, SeqCst);
        self.0.unpark();
    }
}

/// The smallest executor: polls, and parks the thread in between.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current(), AtomicU32::new(0))));
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn put(db: &Db, n: u32) -> Result<CommitNotice> {
    let mut batch = db.batch();
    batch.put(db.default_keyspace(), n.to_be_bytes(), [n as u8; 200])?;
    db.commit_async(batch)
}

fn options(placement: PlacementKind, workers: Workers) -> Options {
    let values = Values { separate_from_bytes: Some(64), file_bytes: 16 << 10, ..Values::default() };
    Options { workers, keyspace: KeyspaceOptions { values, ..tiny().keyspace }.with_placement(placement), ..tiny() }
}

/// The database in simulated memory, with calls that can be made to fail.
fn in_memory(placement: PlacementKind, workers: Workers) -> (Db, Arc<FaultyFs>, MemoryFs) {
    let memory = MemoryFs::new();
    let faulty = Arc::new(FaultyFs::over_memory(memory.clone()));
    let env = Env { fs: Arc::clone(&faulty) as _, ..Env::system() };
    (Db::open_in(env, Path::new("/db"), options(placement, workers)).unwrap(), faulty, memory)
}

fn fail_syncs(faulty: &FaultyFs) {
    faulty.decide_by(Box::new(|call| (call.op == "sync").then_some(FaultKind::EIO)));
}

#[test]
fn commits_are_visible_at_once_and_durable_when_their_notices_say_so() {
    for (placement, workers) in PlacementKind::ALL.into_iter().flat_map(|p| WORKERS.map(|workers| (p, workers))) {
        let (db, _, memory) = in_memory(placement, workers);
        let notices: Vec<CommitNotice> = (0..100).map(|n| put(&db, n).unwrap()).collect();
        assert!((0..100u32).all(|n| db.get(n.to_be_bytes()).unwrap().is_some()), "{placement:?}");
        notices[60].wait().unwrap();
        assert!(notices[..=60].iter().all(CommitNotice::is_durable), "a prefix");
        block_on(async {
            for notice in notices {
                notice.await.unwrap();
            }
        });
        // A power loss loses whatever is not synced.
        let image = memory.power_loss(Fate::DropUnsynced);
        let env = Env { fs: Arc::new(image), ..Env::system() };
        let after = Db::open_in(env, Path::new("/db"), options(placement, workers)).unwrap();
        assert!((0..100u32).all(|n| after.get(n.to_be_bytes()).unwrap().is_some()), "{placement:?} {workers:?}");
    }
}

#[test]
fn a_transaction_is_visible_at_once_and_durable_when_its_notice_says_so() {
    for workers in WORKERS {
        let (db, _, memory) = in_memory(PlacementKind::HashKv, workers);
        let ks = db.default_keyspace();
        let mut tx = db.transaction();
        tx.put(ks, "a", [1; 200]).unwrap();
        let notice = tx.commit_async().unwrap();
        assert!(db.get("a").unwrap().is_some());
        // One that has only read waits for what it has read.
        let reading = db.transaction();
        assert!(reading.get(ks, "a").unwrap().is_some());
        let read = reading.commit_async().unwrap();
        block_on(read).unwrap();
        assert!(notice.is_durable());
        let env = Env { fs: Arc::new(memory.power_loss(Fate::DropUnsynced)), ..Env::system() };
        let after = Db::open_in(env, Path::new("/db"), options(PlacementKind::HashKv, workers)).unwrap();
        assert!(after.get("a").unwrap().is_some(), "{workers:?}");
        // A conflict is one at once.
        let mut tx = db.transaction();
        assert!(tx.get(ks, "a").unwrap().is_some());
        db.put("a", "other").unwrap();
        tx.put(ks, "b", "1").unwrap();
        assert!(tx.commit_async().is_err_and(|error| error.is_conflict()));
    }
}

#[test]
fn nobody_needs_to_wait_where_there_are_threads() {
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), options(PlacementKind::Inline, Workers::Threads(2))).unwrap();
    let notice = put(&db, 1).unwrap();
    drop(put(&db, 2).unwrap());
    while !notice.is_durable() {
        thread::yield_now();
    }
    let many: Vec<_> = (0..8)
        .map(|t| {
            let db = db.clone();
            thread::spawn(move || (0..50).for_each(|n| block_on(put(&db, t * 100 + n).unwrap()).unwrap()))
        })
        .collect();
    many.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_failed_sync_resolves_every_notice_with_its_error() {
    for workers in WORKERS {
        let (db, faulty, _) = in_memory(PlacementKind::HashKv, workers);
        put(&db, 0).unwrap().wait().unwrap();
        fail_syncs(&faulty);
        let notices: Vec<Result<CommitNotice>> = (1..20).map(|n| put(&db, n)).collect();
        // Once a sync has failed, commits are refused.
        let notices: Vec<CommitNotice> = notices.into_iter().filter_map(Result::ok).collect();
        assert!(!notices.is_empty());
        for notice in &notices {
            let error = notice.wait().unwrap_err();
            assert!(matches!(error, Error::Io { .. }), "{workers:?}: {error}");
            assert!(!notice.is_durable());
        }
        assert!(block_on(notices.into_iter().next().unwrap()).is_err(), "also when it is polled");
        assert!(matches!(put(&db, 99), Err(Error::Poisoned { .. })), "{workers:?}");
    }
}

#[test]
fn closing_and_dropping_the_database_resolve_what_is_left() {
    for (workers, closes) in WORKERS.into_iter().flat_map(|w| [(w, true), (w, false)]) {
        let (db, _, _) = in_memory(PlacementKind::WiscKey, workers);
        let notices: Vec<CommitNotice> = (0..20).map(|n| put(&db, n).unwrap()).collect();
        if closes {
            db.close().unwrap();
        } else {
            drop(db);
        }
        assert!(notices.iter().all(CommitNotice::is_durable), "{workers:?}");
        notices.iter().for_each(|notice| notice.wait().unwrap());
        notices.into_iter().for_each(|notice| block_on(notice).unwrap());
        let (db, faulty, _) = in_memory(PlacementKind::WiscKey, workers);
        fail_syncs(&faulty);
        let notice = put(&db, 1).unwrap();
        drop(db);
        assert!(matches!(notice.wait(), Err(Error::Io { .. })), "{workers:?}: its last sync failed");
    }
}

/// Its last sync has ended, and it is not closed yet.
#[test]
fn what_is_committed_in_memory_while_another_thread_closes_is_there_afterwards() {
    for has_append_region in [false, true] {
        let memory = MemoryFs::new();
        memory.set_append_region(has_append_region);
        let faulty = Arc::new(FaultyFs::over_memory(memory.clone()));
        let env = Env { fs: Arc::clone(&faulty) as _, ..Env::system() };
        let options = options(PlacementKind::WiscKey, Workers::Caller);
        let db = Db::open_in(env, Path::new("/db"), options.clone()).unwrap();
        put(&db, 1).unwrap().wait().unwrap();
        let other = Mutex::new(Some(db.clone()));
        faulty.decide_by(Box::new(move |call| {
            let is_recording = call.op == "sync" && call.path.ends_with("MANIFEST");
            if let Some(db) = is_recording.then(|| other.lock().unwrap().take()).flatten() {
                for (key, bytes) in [("short", 10), ("separated", 200)] {
                    let mut batch = db.batch();
                    batch.put(db.default_keyspace(), key, vec![2; bytes]).unwrap();
                    db.commit_with(batch, Durability::Memory).unwrap();
                }
            }
            None
        }));
        db.close().unwrap();
        let env = Env { fs: Arc::new(memory.fork()), ..Env::system() };
        let after = Db::open_in(env, Path::new("/db"), options).unwrap();
        for (key, bytes) in [("short", 10), ("separated", 200)] {
            assert_eq!(after.get(key).unwrap().as_deref(), Some(&vec![2; bytes][..]), "{key}, {has_append_region}");
        }
    }
}

/// Holds the gate, at which syncs wait.
fn closed<'a>(gate: &'a Arc<Mutex<()>>, faulty: &FaultyFs) -> MutexGuard<'a, ()> {
    let closed = gate.lock().unwrap();
    let at_gate = Arc::clone(gate);
    faulty.decide_by(Box::new(move |call| {
        if call.op == "sync" {
            drop(at_gate.lock());
        }
        None
    }));
    closed
}

#[test]
fn a_notice_wakes_the_last_waker_that_polled_it_and_none_that_was_dropped() {
    let (db, faulty, _) = in_memory(PlacementKind::Inline, Workers::Threads(2));
    // The sync begins only when all have polled.
    let gate = Arc::new(Mutex::new(()));
    let closed = closed(&gate, &faulty);
    let wakers: Vec<Arc<Unpark>> = (0..3).map(|_| Arc::new(Unpark(thread::current(), AtomicU32::new(0)))).collect();
    let (mut first, mut dropped) = (put(&db, 1).unwrap(), put(&db, 2).unwrap());
    let poll = |notice: &mut CommitNotice, by: usize| {
        let waker = Waker::from(Arc::clone(&wakers[by]));
        Pin::new(notice).poll(&mut Context::from_waker(&waker))
    };
    assert!(poll(&mut first, 0).is_pending() && poll(&mut first, 1).is_pending() && poll(&mut dropped, 2).is_pending());
    drop(dropped);
    drop(closed);
    while wakers[1].1.load(SeqCst) == 0 {
        thread::park();
    }
    assert!(poll(&mut first, 1).is_ready());
    assert_eq!((wakers[0].1.load(SeqCst), wakers[2].1.load(SeqCst)), (0, 0));
}

/// A waker that asks a notice while it is cloned.
static ASKS: RawWakerVTable = RawWakerVTable::new(clone_and_ask, ignore, ignore, ignore);

unsafe fn clone_and_ask(notice: *const ()) -> RawWaker {
    // SAFETY: the test that has made the waker keeps the notice as long as anybody may clone it.
    let asked = unsafe { &*notice.cast::<CommitNotice>() };
    assert!(!asked.is_durable());
    RawWaker::new(notice, &ASKS)
}

unsafe fn ignore(_notice: *const ()) {}

#[test]
fn a_waker_may_ask_the_database_while_it_is_cloned() {
    must_end(|_| {
        let (db, faulty, _) = in_memory(PlacementKind::Inline, Workers::Threads(2));
        let gate = Arc::new(Mutex::new(()));
        let closed = closed(&gate, &faulty);
        let (asked, mut polled) = (put(&db, 1).unwrap(), put(&db, 2).unwrap());
        // SAFETY: only `poll` below clones it, while `asked` is there, which threads may share.
        let waker = unsafe { Waker::from_raw(RawWaker::new(ptr::from_ref(&asked).cast(), &ASKS)) };
        assert!(Pin::new(&mut polled).poll(&mut Context::from_waker(&waker)).is_pending());
        drop(closed);
        polled.wait().unwrap();
        db.close().unwrap();
    });
}

#[test]
fn empty_batches_have_notices_for_what_came_before_them() {
    for workers in WORKERS {
        let (db, _, memory) = in_memory(PlacementKind::Inline, workers);
        db.put("a", "b").unwrap();
        let (one, other) = (db.commit_async(db.batch()).unwrap(), db.commit_async(db.batch()).unwrap());
        one.wait().unwrap();
        block_on(other).unwrap();
        let env = Env { fs: Arc::new(memory.power_loss(Fate::DropUnsynced)), ..Env::system() };
        let after = Db::open_in(env, Path::new("/db"), options(PlacementKind::Inline, workers)).unwrap();
        assert!(after.get("a").unwrap().is_some());
    }
}
