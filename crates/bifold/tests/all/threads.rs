//! Several threads at once, with background workers.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use bifold::{Batch, Db, Options, Swap, Workers, verify};

use crate::support::{TempDir, tiny};

fn threaded() -> (TempDir, Db) {
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), Options { workers: Workers::Threads(2), ..tiny() }).unwrap();
    (dir, db)
}

#[test]
fn writers_lose_nothing_while_background_work_runs() {
    let (dir, db) = threaded();
    thread::scope(|scope| {
        for writer in 0..4u32 {
            let db = &db;
            scope.spawn(move || {
                for number in 0..1500u32 {
                    db.put(format!("{writer}-{number:05}"), [writer as u8; 100]).unwrap();
                }
            });
        }
    });
    assert_eq!(db.iter().count(), 6000);
    db.wait_idle().unwrap();
    assert_eq!(db.iter().rev().count(), 6000);
    db.close().unwrap();
    let db = Db::open_with(dir.join("db"), tiny()).unwrap();
    assert_eq!(db.iter().map(|p| p.unwrap().value().unwrap().len()).sum::<usize>(), 600_000);
}

#[test]
fn batches_appear_as_a_whole() {
    let (_dir, db) = threaded();
    let other = db.keyspace("other", tiny().keyspace).unwrap();
    let done = AtomicBool::new(false);
    let write = |round: u32| {
        let mut batch = Batch::new();
        for key in 0..10u32 {
            let keyspace = if key % 2 == 0 { db.default_keyspace() } else { &other };
            batch.put(keyspace, key.to_be_bytes(), [&round.to_be_bytes()[..], &[0; 200]].concat()).unwrap();
        }
        db.commit(batch).unwrap();
    };
    write(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            (1..2000).for_each(write);
            done.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            let mut seen = 0;
            while !done.load(Ordering::Acquire) {
                let snapshot = db.snapshot();
                let rounds: Vec<Vec<u8>> = [db.default_keyspace(), &other]
                    .iter()
                    .flat_map(|ks| {
                        snapshot.iter(ks).map(|p| p.unwrap().value().unwrap()[..4].to_vec()).collect::<Vec<_>>()
                    })
                    .collect();
                assert_eq!(rounds.len(), 10);
                assert!(rounds.iter().all(|r| *r == rounds[0]), "half a batch: {rounds:?}");
                seen += 1;
            }
            assert!(seen > 0);
        });
    });
}

#[test]
fn swaps_of_several_threads_count_every_step() {
    let (_dir, db) = threaded();
    db.put("counter", 0u64.to_be_bytes()).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let mut now = db.get("counter").unwrap().unwrap();
                    loop {
                        let next = u64::from_be_bytes(now[..].try_into().unwrap()) + 1;
                        match db.compare_and_swap("counter", Some(&now), Some(&next.to_be_bytes())).unwrap() {
                            Swap::Done => break,
                            Swap::Mismatch { current } => now = current.unwrap(),
                        }
                    }
                }
            });
        }
    });
    assert_eq!(db.get("counter").unwrap().unwrap(), 800u64.to_be_bytes());
}

/// What each thread is doing, for the thread that waits for them.
#[derive(Clone, Default)]
pub struct Doing(Arc<Mutex<Vec<(&'static str, String)>>>);

impl Doing {
    pub fn now(&self, thread: &'static str, step: String) {
        let mut all = self.0.lock().unwrap();
        match all.iter_mut().find(|(name, _)| *name == thread) {
            Some(found) => found.1 = step,
            None => all.push((thread, step)),
        }
    }
}

/// Runs `work` on a thread of its own. If it does not end, the test fails with what each thread was doing, and leaves
/// the threads behind: a test that hangs says nothing.
pub fn must_end(work: impl FnOnce(Doing) + Send + 'static) {
    const PATIENCE: Duration = Duration::from_secs(60);
    let doing = Doing::default();
    let (ended, end) = mpsc::channel();
    let worker = thread::spawn({
        let doing = doing.clone();
        move || {
            work(doing);
            ended.send(()).unwrap();
        }
    });
    match end.recv_timeout(PATIENCE) {
        Err(mpsc::RecvTimeoutError::Timeout) => {
            panic!("no end after {PATIENCE:?}, threads wait for one another: {:#?}", doing.0.lock().unwrap())
        }
        // The channel also closes when `work` panics: then `join` has the reason.
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    }
}

fn ask_for_statistics(db: &Db, doing: &Doing, done: &AtomicBool) {
    let mut asked = 0u64;
    while !done.load(Ordering::Acquire) {
        doing.now("statistics", format!("stats, time {asked}"));
        let stats = db.stats();
        assert!(stats.space.manifest_bytes > 0 && stats.keyspaces[0].name == "default");
        asked += 1;
    }
    doing.now("statistics", "ended".into());
}

#[test]
fn statistics_block_no_change_of_the_state() {
    // Installs take the manifest's lock and then the log's. Statistics need both and once took them in the other
    // order.
    must_end(|doing| {
        let (dir, db) = threaded();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| ask_for_statistics(&db, &doing, &done));
            let changers = [
                scope.spawn(|| {
                    for number in 0..3000u32 {
                        doing.now("writer", format!("put {number}"));
                        db.put(format!("key{number:05}"), [7; 100]).unwrap();
                    }
                    doing.now("writer", "ended".into());
                }),
                scope.spawn(|| {
                    for round in 0..40 {
                        doing.now("flusher", format!("flush {round}"));
                        db.put("flushed", format!("{round}")).unwrap();
                        db.flush().unwrap();
                    }
                    doing.now("flusher", "ended".into());
                }),
                scope.spawn(|| {
                    for round in 0..40 {
                        doing.now("keyspaces", format!("create, fill and drop {round}"));
                        let short_lived = db.keyspace("short-lived", tiny().keyspace).unwrap();
                        short_lived.put("key", [7; 100]).unwrap();
                        db.drop_keyspace("short-lived").unwrap();
                    }
                    doing.now("keyspaces", "ended".into());
                }),
                scope.spawn(|| {
                    for round in 0..10 {
                        doing.now("checkpoints", format!("checkpoint {round}"));
                        db.checkpoint(dir.join(&format!("copy{round}"))).unwrap();
                    }
                    doing.now("checkpoints", "ended".into());
                }),
            ];
            for changer in changers {
                // A panic must not leave the thread of statistics running forever.
                changer.join().unwrap_or_else(|panic| {
                    done.store(true, Ordering::Release);
                    std::panic::resume_unwind(panic)
                });
            }
            done.store(true, Ordering::Release);
        });
        assert_eq!(db.iter().count(), 3001);
        for round in 0..10 {
            let report = verify(dir.join(&format!("copy{round}"))).unwrap();
            assert!(report.problems.is_empty(), "checkpoint {round}: {report:?}");
        }
    });
}
