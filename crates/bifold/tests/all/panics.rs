//! A panic of Bifold itself: every caller gets the error, no caller waits forever, nothing acknowledged is lost.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::Duration,
};

use bifold::{Db, Durability, Env, Error, Options, Workers};
use bifold_io::{disk::DiskFs, faulty::FaultyFs};

use crate::{
    support::{TempDir, tiny},
    threads::must_end,
};

/// A database whose file system can be made to panic.
fn breakable(workers: Workers) -> (TempDir, FaultyFs, Db) {
    let dir = TempDir::new();
    let fs = FaultyFs::new(Arc::new(DiskFs));
    let env = Env { fs: Arc::new(fs.clone()), ..Env::system() };
    let db = Db::open_in(env, dir.join("db"), Options { workers, ..tiny() }).unwrap();
    (dir, fs, db)
}

/// From now on every such call on a file whose name ends like this panics.
fn panic_at(fs: &FaultyFs, op: &'static str, ending: &'static str) {
    fs.decide_by(Box::new(move |call| {
        assert!(call.op != op || !call.path.to_string_lossy().ends_with(ending), "planned: {op} of {ending}");
        None
    }));
}

fn is_reported(error: &Error, plan: &str) {
    match error {
        Error::Poisoned { cause } => is_reported(cause, plan),
        Error::Panicked { message, .. } => assert!(message.contains(plan), "{error}"),
        _ => panic!("another error: {error}"),
    }
}

/// Everything acknowledged exists, and can be read after reopening as well.
fn nothing_is_lost(dir: &TempDir, fs: &FaultyFs, db: Db, acknowledged: usize) {
    assert!(db.iter().count() >= acknowledged, "reads go on");
    is_reported(&db.put("one", "more").unwrap_err(), "planned");
    is_reported(&db.wait_idle().unwrap_err(), "planned");
    is_reported(&db.wait_idle_within(Duration::ZERO).unwrap_err(), "planned");
    is_reported(&db.close().unwrap_err(), "planned");
    fs.clear();
    let db = Db::open_with(dir.join("db"), tiny()).unwrap();
    assert!(db.iter().count() >= acknowledged);
    db.put("one", "more").unwrap();
    db.close().unwrap();
}

#[test]
fn writers_do_not_wait_for_a_worker_that_panicked() {
    must_end(|doing| {
        let (dir, fs, db) = breakable(Workers::Threads(2));
        db.put("first", "one").unwrap();
        panic_at(&fs, "create", ".tbl");
        let mut acknowledged = 1;
        let error = loop {
            doing.now("writer", format!("put {acknowledged}"));
            match db.put(format!("{acknowledged:06}"), [0; 100]) {
                Ok(()) => acknowledged += 1,
                Err(error) => break error,
            }
        };
        is_reported(&error, "planned: create");
        doing.now("writer", "end".into());
        nothing_is_lost(&dir, &fs, db, acknowledged);
    });
}

#[test]
fn a_panic_in_a_callers_background_work_poisons_too() {
    let (dir, fs, db) = breakable(Workers::Caller);
    db.put("first", "one").unwrap();
    panic_at(&fs, "create", ".tbl");
    assert!(catch_unwind(AssertUnwindSafe(|| db.flush())).is_err(), "the caller has the panic itself");
    nothing_is_lost(&dir, &fs, db, 1);
}

#[test]
fn a_panic_within_a_commit_poisons() {
    let (dir, fs, db) = breakable(Workers::Caller);
    db.put("first", "one").unwrap();
    panic_at(&fs, "append to", ".log");
    assert!(catch_unwind(AssertUnwindSafe(|| db.put("second", "one"))).is_err());
    nothing_is_lost(&dir, &fs, db, 1);
}

#[test]
fn a_panic_within_a_sync_blocks_no_waiter() {
    must_end(|_| {
        let (dir, fs, db) = breakable(Workers::Threads(2));
        db.put("first", "one").unwrap();
        panic_at(&fs, "sync", ".log");
        thread::scope(|scope| {
            for writer in 0..4u32 {
                let db = &db;
                scope.spawn(move || {
                    for number in 0.. {
                        let mut batch = db.batch();
                        batch.put(db.default_keyspace(), format!("{writer}-{number}"), "x").unwrap();
                        let put = AssertUnwindSafe(|| db.commit_with(batch, Durability::Sync));
                        match catch_unwind(put) {
                            Ok(Ok(())) => panic!("a sync that panicked was taken for one that succeeded"),
                            Ok(Err(error)) => return is_reported(&error, "planned: sync"),
                            Err(_this_thread_synced) => {}
                        }
                    }
                });
            }
        });
        nothing_is_lost(&dir, &fs, db, 1);
    });
}
