//! Feeds that wait.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use bifold::{
    Access, Changes, Db, Durability, Env, Error, KeyspaceOptions, Options, PlacementKind, Result, SeqNo, Workers,
};
use bifold_io::{
    faulty::{FaultKind, FaultyFs},
    memory::MemoryFs,
};

use super::{ALL_OF_THEM, bed, key, value};
use crate::{
    bed::{numbers, small},
    support::TempDir,
};

/// A wait that is not woken ends after this, is counted and panics.
const TIME: Option<Duration> = Some(Duration::from_millis(500));

/// Long enough for a test to fail by it and not by chance.
const TRIES: u32 = 20_000;

fn options(placement: PlacementKind, workers: Workers) -> Options {
    Options { workers, retain_changes: Some(ALL_OF_THEM), ..small(placement) }
}

fn in_memory(placement: PlacementKind, workers: Workers) -> Db {
    let env = Env { fs: Arc::new(MemoryFs::new()), ..Env::system() };
    Db::open_in(env, "/db", options(placement, workers)).unwrap()
}

/// Tells the number of each change, and waits for more. Ends with the error that ends the wait.
fn follow(changes: &mut Changes, time: Option<Duration>, tell: &mpsc::Sender<SeqNo>) -> Error {
    loop {
        match changes.wait(time) {
            Ok(has_change) => {
                let seen: Vec<SeqNo> = changes.by_ref().map(|change| change.unwrap().seqno).collect();
                assert!(!has_change || !seen.is_empty(), "there was none");
                seen.into_iter().for_each(|seqno| tell.send(seqno).unwrap());
            }
            Err(error) => return error,
        }
    }
}

/// Each commit meets a feed that goes to sleep, or is asleep, or has just been woken.
#[test]
fn every_commit_wakes_a_feed() {
    for (placement, workers) in [(PlacementKind::Inline, Workers::Threads(2)), (PlacementKind::HashKv, Workers::Caller)]
    {
        let db = in_memory(placement, workers);
        let mut changes = db.changes(0).unwrap();
        let (tell, told) = mpsc::channel();
        let feed = thread::spawn(move || follow(&mut changes, TIME, &tell));
        let mut random = numbers(3);
        for n in 0..4000 {
            let before = db.snapshot().seqno();
            db.put(key(n % 50), value(n, n)).unwrap();
            let seen = told.recv().expect("the feed goes on");
            assert!(seen > before, "the commit after {before}, not {seen}");
            (0..random(300)).for_each(|_| std::hint::spin_loop());
        }
        assert_eq!(db.stats().overdue_waits, 0);
        db.close().unwrap();
        assert!(matches!(feed.join().unwrap(), Error::Closed { .. }));
    }
}

#[test]
fn feeds_see_what_several_threads_commit_while_they_wait() {
    const WRITERS: u32 = 3;
    const COMMITS: u32 = 400;
    for placement in [PlacementKind::Inline, PlacementKind::HashKv, PlacementKind::NovKv] {
        let db = in_memory(placement, Workers::Threads(2));
        let feeds: Vec<_> = (0..3)
            .map(|_| {
                let (mut changes, (tell, told)) = (db.changes(0).unwrap(), mpsc::channel());
                (thread::spawn(move || follow(&mut changes, None, &tell)), told)
            })
            .collect();
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                let db = &db;
                scope.spawn(move || {
                    let durability = [Durability::Memory, Durability::Buffered, Durability::Sync][writer as usize];
                    for n in 0..COMMITS {
                        let mut batch = db.batch();
                        batch.put(db.default_keyspace(), key(n % 90), value(n, writer)).unwrap();
                        db.commit_with(batch, durability).unwrap();
                        if n % 16 == 0 {
                            thread::yield_now();
                        }
                    }
                });
            }
            scope.spawn(|| (0..4).for_each(|_| db.collect_garbage().unwrap()));
        });
        for (_, told) in &feeds {
            let mut seen = 0;
            for _ in 0..WRITERS * COMMITS {
                let next = told.recv().unwrap();
                assert!(next > seen, "{placement:?}: in order");
                seen = next;
            }
        }
        assert_eq!(db.stats().overdue_waits, 0, "{placement:?}");
        db.close().unwrap();
        for (feed, told) in feeds {
            assert!(matches!(feed.join().unwrap(), Error::Closed { .. }), "{placement:?}");
            assert!(told.recv().is_err(), "{placement:?}: every change once");
        }
    }
}

/// However it ends, and although the feed is still there: others can open it.
#[test]
fn a_feed_that_waits_keeps_no_database_open() {
    let dir = TempDir::new();
    let path = dir.join("db");
    let open = || Db::open_with(&path, options(PlacementKind::HashKv, Workers::Threads(1)));
    let mut db = open().unwrap();
    for round in 0..60 {
        let mut changes = db.changes(db.snapshot().seqno()).unwrap();
        let ((ended, has_ended), (leave, may_leave)) = (mpsc::channel(), mpsc::channel::<()>());
        let feed = thread::spawn(move || {
            ended.send(changes.wait(None)).unwrap();
            may_leave.recv().unwrap();
            assert!(matches!(changes.next(), Some(Err(Error::Closed { .. }))));
            assert!(matches!(changes.wait(None), Err(Error::Closed { .. })));
        });
        (0..round * 20).for_each(|_| thread::yield_now());
        match round % 2 {
            0 => db.close().unwrap(),
            _ => drop(db),
        }
        let ended = has_ended.recv().unwrap();
        assert!(matches!(ended, Err(Error::Closed { .. })), "{round}: {ended:?}");
        // Background threads may hold it for a moment.
        let again = (0..TRIES).find_map(|_| match open() {
            Err(Error::Locked { .. }) => {
                thread::sleep(Duration::from_millis(1));
                None
            }
            opened => Some(opened),
        });
        db = again.expect("the feed has let go of it").unwrap();
        leave.send(()).unwrap();
        feed.join().unwrap();
    }
}

#[test]
fn a_feed_that_is_the_last_handle_closes_the_database_when_it_waits() {
    let dir = TempDir::new();
    let path = dir.join("db");
    let open = || Db::open_with(&path, options(PlacementKind::Inline, Workers::Caller));
    let db = open().unwrap();
    let mut changes = db.changes(0).unwrap();
    db.put("a", "1").unwrap();
    drop(db);
    assert!(changes.wait(None).unwrap(), "it does not wait yet");
    assert!(matches!(open(), Err(Error::Locked { .. })));
    assert_eq!(changes.by_ref().map(Result::unwrap).count(), 1);
    assert!(matches!(changes.wait(TIME), Err(Error::Closed { .. })));
    let again = open().unwrap();
    assert_eq!(again.changes(0).unwrap().count(), 1);
    drop(changes);
}

#[test]
fn a_failure_ends_a_wait() {
    let faulty = Arc::new(FaultyFs::over_memory(MemoryFs::new()));
    let env = Env { fs: Arc::clone(&faulty) as _, ..Env::system() };
    let db = Db::open_in(env, "/db", options(PlacementKind::HashKv, Workers::Threads(2))).unwrap();
    let feeds: Vec<_> = (0..2)
        .map(|_| {
            let (mut changes, (tell, told)) = (db.changes(0).unwrap(), mpsc::channel());
            (thread::spawn(move || follow(&mut changes, None, &tell)), told)
        })
        .collect();
    db.put("a", "1").unwrap();
    feeds.iter().for_each(|(_, told)| assert!(told.recv().unwrap() > 0));
    faulty.decide_by(Box::new(|call| (call.op == "sync").then_some(FaultKind::EIO)));
    // Nothing is committed.
    db.sync().unwrap_err();
    for (feed, _) in feeds {
        let error = feed.join().unwrap();
        assert!(matches!(error, Error::Poisoned { .. }), "{error}");
    }
    // At once, too, and what is there can be read.
    let mut changes = db.changes(0);
    assert!(matches!(changes.as_mut().map(|changes| changes.wait(None)), Err(Error::Poisoned { .. })));
}

/// On a clock that stands still, and without one.
#[test]
fn a_wait_ends_when_its_time_is_over() {
    for placement in [PlacementKind::Inline, PlacementKind::HashKv] {
        let bed = bed(placement, ALL_OF_THEM);
        let mut changes = bed.db().changes(0).unwrap();
        assert!(!changes.wait(Some(Duration::ZERO)).unwrap());
        assert!(!changes.wait(Some(Duration::from_millis(3))).unwrap());
        bed.ks().put(key(0), value(0, 0)).unwrap();
        bed.ks().put(key(1), value(1, 0)).unwrap();
        // As often as it is called: a wait takes nothing.
        for time in [None, Some(Duration::ZERO), Some(Duration::MAX), None] {
            assert!(changes.wait(time).unwrap());
        }
        assert_eq!(&*changes.next().unwrap().unwrap().key, key(0).as_bytes());
        assert!(changes.wait(None).unwrap());
        assert_eq!(&*changes.next().unwrap().unwrap().key, key(1).as_bytes());
        assert!(!changes.wait(Some(Duration::ZERO)).unwrap());
        assert!(changes.next().is_none());
    }
}

/// It looks at them, and goes on waiting.
#[test]
fn moves_of_gc_are_no_change_to_wait_for() {
    for workers in [Workers::Caller, Workers::Threads(2)] {
        let db = in_memory(PlacementKind::HashKv, workers);
        for n in 0..600 {
            db.put(key(n % 200), value(n % 200, n)).unwrap();
        }
        db.wait_idle().unwrap();
        let mut changes = db.changes(db.snapshot().seqno()).unwrap();
        let before = db.snapshot().seqno();
        let has_ended = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        let ended = Arc::clone(&has_ended);
        let feed = thread::spawn(move || {
            while !ended.load(Ordering::Acquire) {
                tell.send(changes.wait(Some(Duration::from_millis(20))).unwrap()).unwrap();
            }
            (changes, tell)
        });
        db.collect_garbage().unwrap();
        assert!(db.snapshot().seqno() > before, "GC has moved nothing");
        told.recv().unwrap();
        has_ended.store(true, Ordering::Release);
        let (mut changes, tell) = feed.join().unwrap();
        drop(tell);
        assert!(told.iter().all(|has_change| !has_change), "{workers:?}");
        assert!(!changes.wait(Some(Duration::ZERO)).unwrap());
        db.put("a", "b").unwrap();
        assert!(changes.wait(TIME).unwrap());
        assert_eq!(&*changes.next().unwrap().unwrap().key, b"a");
    }
}

#[test]
fn a_reader_of_another_process_is_told_what_to_call() {
    let bed = bed(PlacementKind::Inline, ALL_OF_THEM);
    bed.ks().put(key(0), value(0, 0)).unwrap();
    let keyspace = KeyspaceOptions::default();
    let options = Options { access: Access::Follow, keyspace, ..bed.options.clone() };
    let mut follower = Db::open_in(bed.env(), "/db", options).unwrap();
    let refused = follower.changes(0).unwrap().wait(None).unwrap_err();
    assert!(refused.to_string().contains("refresh_within"), "{refused}");
    let mut writer = bed.db().clone();
    assert!(matches!(writer.refresh_within(Duration::ZERO), Err(Error::InvalidArgument { .. })));
    assert!(!follower.refresh_within(Duration::ZERO).unwrap().is_newer);
    bed.ks().put(key(1), value(1, 0)).unwrap();
    assert!(follower.refresh_within(Duration::ZERO).unwrap().is_newer, "it asks at least once");
    assert_eq!(follower.changes(0).unwrap().count(), 2);
}
