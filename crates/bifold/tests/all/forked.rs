//! A child that a process forks without `exec` has a copy of every handle of its parent.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use bifold::{
    Access, Db, Durability, Env, Error, IfMissing, KeyspaceOptions, Options, PlacementKind, Workers, options::Values,
};
use bifold_io::{faulty::FaultyFs, memory::MemoryFs};

use crate::support::{TempDir, entries, tiny};

/// The child has this long.
const SECONDS_MAX: u32 = 30;

/// Does `act` in a forked child, which ends without dropping anything else. It has to return whether all is well.
fn in_child(act: impl FnOnce() -> bool) {
    in_child_while(act, || ());
}

/// The same, while the parent does something.
fn in_child_while(act: impl FnOnce() -> bool, meanwhile: impl FnOnce()) {
    // SAFETY: the child allocates and frees, for which the C library's allocator is prepared after a fork, makes calls
    // of files, and ends. No other thread holds a lock of the database that it has inherited.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: kills the child if it waits for threads of its parent.
        unsafe { libc::alarm(SECONDS_MAX) };
        let is_well = act();
        // SAFETY: ends the child without what the test harness does at an exit.
        unsafe { libc::_exit(i32::from(!is_well)) };
    }
    meanwhile();
    let mut status = -1;
    // SAFETY: waits for that child; `status` lives as long as the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

fn is_refused<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Closed { .. }))
}

fn large(n: usize) -> Vec<u8> {
    vec![n as u8; 20_000]
}

/// Some values of each length, which closing notes in the manifest.
fn write(db: &Db, from: usize) {
    for n in from..from + 20 {
        db.put(format!("large{n:03}"), large(n)).unwrap();
        db.put(format!("short{n:03}"), format!("{n}")).unwrap();
    }
}

#[test]
fn a_forked_child_writes_nothing_to_the_database_of_its_parent() {
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), tiny()).unwrap();
    write(&db, 0);
    let mut db = Some(db);
    in_child(|| {
        let Some(db) = db.take() else { return false };
        let written = [db.put("child", "x"), db.put_with("child", "x", Durability::Sync), db.flush(), db.sync()];
        let made = db.keyspace("child", KeyspaceOptions::default()).map(drop);
        let copied = [db.checkpoint(dir.join("copy")), db.backup(dir.join("backups")).map(drop)];
        let is_read = db.get("large003").is_ok_and(|value| value.is_some_and(|value| value[..] == large(3)[..]));
        drop(db);
        written.iter().chain([&made]).chain(&copied).all(is_refused) && is_read
    });
    assert!(!dir.join("copy").exists() && !dir.join("backups").exists());
    let db = db.unwrap();
    write(&db, 20);
    db.keyspace("parent", KeyspaceOptions::default()).unwrap();
    db.close().unwrap();
    let db = Db::open_with(dir.join("db"), tiny()).unwrap();
    assert_eq!(db.keyspace_names(), ["default", "parent"]);
    let all = entries(db.iter());
    assert_eq!(all.len(), 80);
    assert!((0..40).all(|n| all[n].1 == large(n) && all[40 + n].1 == n.to_string().into_bytes()));
}

#[test]
fn a_forked_child_that_closes_what_it_has_inherited_does_not_wait_for_threads_that_only_its_parent_has() {
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), Options { workers: Workers::Threads(2), ..Options::default() }).unwrap();
    in_child(|| is_refused(&db.wait_idle()) && db.clone().close().is_ok());
    db.put("key", "value").unwrap();
    db.close().unwrap();
}

/// What was appended last is in memory that the child shares with its parent, which uses it again for other bytes.
#[test]
fn a_forked_child_reads_what_was_there_when_it_began_whatever_its_parent_writes_then() {
    let dir = TempDir::new();
    let values = Values { separate_from_bytes: Some(64), ..Values::default() };
    let keyspace = KeyspaceOptions { values, ..KeyspaceOptions::default() }.with_placement(PlacementKind::WiscKey);
    let options = Options { workers: Workers::Caller, keyspace, ..Options::default() };
    let db = Db::open_with(dir.join("db"), options).unwrap();
    (0..9_u8).for_each(|n| db.put([n], [n; 300]).unwrap());
    let written = dir.join("written");
    let reads = || {
        while !written.exists() {
            thread::sleep(Duration::from_millis(1));
        }
        (0..9_u8).all(|n| db.get([n]).is_ok_and(|value| value.is_some_and(|value| value[..] == [n; 300])))
    };
    let writes = || {
        db.sync().unwrap();
        (100..150_u8).for_each(|n| db.put([n], [n; 300]).unwrap());
        std::fs::write(&written, "").unwrap();
    };
    in_child_while(reads, writes);
    db.close().unwrap();
}

/// The thread that syncs for notices is the parent's, and in the middle of a sync when the child begins.
#[test]
fn a_forked_child_does_not_wait_for_notices_that_only_its_parent_resolves() {
    let faulty = FaultyFs::over_memory(MemoryFs::new());
    let env = Env { fs: Arc::new(faulty.clone()), ..Env::system() };
    let db = Db::open_in(env, "/db", Options { workers: Workers::Threads(2), ..Options::default() }).unwrap();
    let (gate, is_at_gate) = (Arc::new(Mutex::new(())), Arc::new(AtomicBool::new(false)));
    let closed = gate.lock().unwrap();
    let (opens, arrives) = (Arc::clone(&gate), Arc::clone(&is_at_gate));
    faulty.decide_by(Box::new(move |call| {
        if call.op == "sync" {
            arrives.store(true, SeqCst);
            drop(opens.lock());
        }
        None
    }));
    let mut batch = db.batch();
    batch.put(db.default_keyspace(), "key", "value").unwrap();
    let mut notice = db.commit_async(batch).unwrap();
    while !is_at_gate.load(SeqCst) {
        thread::yield_now();
    }
    in_child(|| {
        let polled = Pin::new(&mut notice).poll(&mut Context::from_waker(Waker::noop()));
        matches!(&polled, Poll::Ready(outcome) if is_refused(outcome)) && is_refused(&notice.wait())
    });
    drop(closed);
    notice.wait().unwrap();
    db.close().unwrap();
}

/// Threads of the parent are writing pieces of the ingest when the child begins.
#[test]
fn a_forked_child_that_ends_an_ingest_does_not_wait_for_threads_of_its_parent() {
    for finishes in [false, true] {
        let faulty = FaultyFs::over_memory(MemoryFs::new());
        let env = Env { fs: Arc::new(faulty.clone()), ..Env::system() };
        let db = Db::open_in(env, "/db", Options { workers: Workers::Threads(2), ..tiny() }).unwrap();
        let (gate, at_gate) = (Arc::new(Mutex::new(())), Arc::new(AtomicU32::new(0)));
        let closed = gate.lock().unwrap();
        let (opens, arrives) = (Arc::clone(&gate), Arc::clone(&at_gate));
        faulty.decide_by(Box::new(move |call| {
            let is_worker = thread::current().name().is_some_and(|name| name.starts_with("bifold-"));
            if is_worker && call.path.extension().is_some_and(|ext| ext == "tbl") {
                arrives.fetch_add(1, SeqCst);
                drop(opens.lock());
            }
            None
        }));
        let mut ingest = db.default_keyspace().ingest().unwrap();
        let mut count = 0_u32;
        while at_gate.load(SeqCst) < 2 {
            ingest.put(count.to_be_bytes(), [1; 1000]).unwrap();
            count += 1;
        }
        let mut ingest = Some(ingest);
        in_child(|| match ingest.take() {
            Some(ingest) if finishes => is_refused(&ingest.finish()),
            Some(_dropped) => true,
            None => false,
        });
        drop(closed);
        let report = ingest.take().unwrap().finish().unwrap();
        assert_eq!(report.entries, u64::from(count));
        assert_eq!(entries(db.iter()).len(), count as usize);
        db.close().unwrap();
    }
}

#[test]
fn the_files_of_a_follower_stay_when_its_forked_child_drops_or_refreshes_it() {
    let dir = TempDir::new();
    let writer = Db::open_with(dir.join("db"), tiny()).unwrap();
    write(&writer, 0);
    writer.flush().unwrap();
    let following = Options { access: Access::Follow, if_missing: IfMissing::Fail, ..tiny() };
    let reader = Db::open_with(dir.join("db"), following).unwrap();
    let before = entries(reader.iter());
    write(&writer, 20);
    let mut reader = Some(reader);
    in_child(|| {
        let Some(mut reader) = reader.take() else { return false };
        let is_refused = is_refused(&reader.refresh());
        drop(reader);
        is_refused
    });
    write(&writer, 0);
    writer.flush().unwrap();
    writer.compact().unwrap();
    assert_eq!(writer.stats().followers.readers, 1);
    assert!(entries(reader.unwrap().iter()) == before);
}
