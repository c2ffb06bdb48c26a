//! What others do while an ingest is open or ends.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    mpsc::sync_channel,
};

use bifold::{Db, Durability, Env, Isolation, Options, PlacementKind, Transaction, TransactionOptions, Workers};
use bifold_io::{faulty::FaultyFs, memory::MemoryFs};

use super::{Model, check, expected, key, value};
use crate::{
    bed::{Bed, small},
    support::entries,
};

/// Lets the other threads end when this is dropped, also by a failed assertion.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// A transaction that has read what an ingest changes is refused, whatever memtables show.
#[test]
fn a_transaction_conflicts_with_an_ingest_over_what_it_has_read() {
    type Read = fn(&Transaction, &bifold::Keyspace);
    let reads: [(&str, Read, bool); 5] = [
        ("a key", |tx, ks| drop(tx.get(ks, key(10)).unwrap()), true),
        ("an absent key", |tx, ks| assert!(tx.get(ks, key(12)).unwrap().is_none()), true),
        ("a range", |tx, ks| assert_eq!(tx.range(ks, key(8)..key(14)).count(), 2), true),
        ("another key", |tx, ks| drop(tx.get(ks, key(11)).unwrap()), false),
        ("another range", |tx, ks| assert_eq!(tx.range(ks, key(90)..key(95)).count(), 1), false),
    ];
    for placement in [PlacementKind::Inline, PlacementKind::HashKv, PlacementKind::UniKv] {
        for (name, read, conflicts) in reads {
            for fills_memtable in [false, true] {
                let bed = Bed::new(placement);
                [10, 11, 90].into_iter().for_each(|n| bed.ks().put(key(n), value(n, 0)).unwrap());
                bed.db().flush().unwrap();
                if fills_memtable {
                    bed.ks().put(key(95), value(95, 0)).unwrap();
                }
                let mut tx = bed.db().transaction();
                read(&tx, bed.ks());
                tx.put(bed.ks(), key(50), "written").unwrap();
                let mut ingest = bed.ks().ingest().unwrap();
                [10, 12, 14].into_iter().for_each(|n| ingest.put(key(n), value(n, 1)).unwrap());
                ingest.finish().unwrap();
                let committed = tx.commit();
                let what = format!("{placement:?}, {name}, {fills_memtable}: {committed:?}");
                assert_eq!(committed.as_ref().is_err_and(bifold::Error::is_conflict), conflicts, "{what}");
                assert_eq!(committed.is_ok(), !conflicts, "{what}");
            }
        }
    }
}

/// Writers that never rest, in the range of the ingest and beside it, with workers: each ingest ends, each reader sees
/// all of it or nothing, nobody's later write is lost.
#[test]
fn writers_do_not_keep_an_ingest_from_its_end() {
    for placement in PlacementKind::ALL {
        let of_threads = Options { workers: Workers::Threads(2), ..small(placement) };
        let env = Env { fs: Arc::new(MemoryFs::new()), ..Env::system() };
        let db = Db::open_in(env, "/db", of_threads).unwrap();
        let ks = db.default_keyspace();
        let (ends, written) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut round = 0;
                while !ends.load(SeqCst) {
                    round += 1;
                    // Odd keys are the writer's, even ones the ingests'.
                    for n in (1..400).step_by(2) {
                        ks.put_with(key(n), value(n, round), Durability::Buffered).unwrap();
                    }
                    written.store(round, SeqCst);
                }
                round
            });
            let reader = scope.spawn(|| {
                while !ends.load(SeqCst) {
                    let found = entries(ks.iter());
                    let even = found.iter().filter(|(key, _)| key.last().is_some_and(|digit| digit % 2 == 0));
                    let round = |value: &[u8]| {
                        value.split(|&b| b == b' ').next().map(|of| of.split(|&b| b == b'.').nth(1).unwrap().to_vec())
                    };
                    let mut rounds: Vec<_> = even.map(|(_, value)| round(value)).collect();
                    let count = rounds.len();
                    rounds.dedup();
                    assert!(rounds.len() <= 1 && (count == 0 || count == 200), "{placement:?}: {rounds:?}, {count}");
                }
            });
            let end = Ends(&ends);
            for round in 1..6 {
                let mut ingest = ks.ingest().unwrap();
                (0..400).step_by(2).for_each(|n| ingest.put(key(n), value(n, round)).unwrap());
                ingest.finish().unwrap();
            }
            while written.load(SeqCst) < 2 {
                std::thread::yield_now();
            }
            drop(end);
            reader.join().unwrap();
            let last = writer.join().unwrap();
            let model: Model = (0..400).map(|n| (key(n), value(n, if n % 2 == 0 { 5 } else { last }))).collect();
            assert_eq!(entries(ks.iter()), expected(&model), "{placement:?}");
            db.compact().unwrap();
            assert_eq!(entries(ks.iter()), expected(&model), "{placement:?}");
        });
        assert_eq!(db.stats().overdue_waits, 0, "{placement:?}");
        assert!(db.stats().poisoned.is_none());
        db.close().unwrap();
    }
}

/// What is put after the last flush before an ingest arrives is written with it, under the commit lock. Nothing else is
/// in any table, so but for that the ingest would go to the deepest level, below the older versions of its keys.
#[test]
fn an_ingest_is_above_what_is_flushed_with_it() {
    for placement in PlacementKind::ALL {
        let faulty = FaultyFs::new(Arc::new(MemoryFs::new()));
        let env = Env { fs: Arc::new(faulty.clone()), ..Env::system() };
        let db = Db::open_in(env, "/db", small(placement)).unwrap();
        let (ks, other) = (db.default_keyspace(), db.keyspace("other", small(placement).keyspace).unwrap());
        // Something for the sync before the ingest takes the lock.
        other.put("key", "value").unwrap();
        let mut ingest = ks.ingest().unwrap();
        [10, 12, 14].into_iter().for_each(|n| ingest.put(key(n), value(n, 1)).unwrap());
        let (syncs, synced) = sync_channel(0);
        let (puts, has_put) = sync_channel(0);
        let has_put = Mutex::new(has_put);
        let first = AtomicBool::new(true);
        faulty.decide_by(Box::new(move |call| {
            let is_log = call.path.extension().is_some_and(|extension| extension == "log");
            if call.op == "sync" && is_log && first.swap(false, SeqCst) {
                syncs.send(()).unwrap();
                has_put.lock().unwrap().recv().unwrap();
            }
            None
        }));
        let report = std::thread::scope(|scope| {
            scope.spawn(move || {
                if synced.recv().is_ok() {
                    ks.put_with(key(12), value(12, 0), Durability::Buffered).unwrap();
                    puts.send(()).unwrap();
                }
            });
            let report = ingest.finish().unwrap();
            faulty.clear();
            report
        });
        assert_eq!(report.level, 0, "{placement:?}: it is below what was written with it");
        let model: Model = [10, 12, 14].into_iter().map(|n| (key(n), value(n, 1))).collect();
        check(ks, &model, &format!("{placement:?}"));
        db.compact().unwrap();
        check(ks, &model, &format!("{placement:?}, compacted"));
        db.close().unwrap();
    }
}

/// Read-modify-write transactions on keys that ingests set back: with serializable isolation no step is lost.
#[test]
fn transactions_and_ingests_are_serializable() {
    let of_threads = Options { workers: Workers::Threads(2), ..small(PlacementKind::Inline) };
    let env = Env { fs: Arc::new(MemoryFs::new()), ..Env::system() };
    let db = Db::open_in(env, "/db", of_threads).unwrap();
    let ks = db.default_keyspace();
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    // Both have the same number whenever a commit has ended: an ingest sets both, a transaction reads one, and writes
    // the other.
    let set = |n: u64| {
        let mut ingest = ks.ingest().unwrap();
        ingest.put("a", n.to_le_bytes()).unwrap();
        ingest.put("b", n.to_le_bytes()).unwrap();
        ingest.finish().unwrap();
    };
    set(0);
    let (ends, copied) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let copies = scope.spawn(|| {
            while !ends.load(SeqCst) {
                let options =
                    TransactionOptions { isolation: Isolation::Serializable, ..TransactionOptions::default() };
                let mut tx = db.transaction_with(options);
                let a = tx.get(ks, "a").unwrap().unwrap();
                tx.put(ks, "b", &a).unwrap();
                match tx.commit() {
                    Ok(_) => drop(copied.fetch_add(1, SeqCst)),
                    Err(error) => assert!(error.is_conflict(), "{error}"),
                }
            }
        });
        let (end, mut n) = (Ends(&ends), 0);
        while n < 60 || copied.load(SeqCst) < 5 {
            n += 1;
            set(n);
            let snapshot = db.snapshot();
            let (a, b) = (snapshot.get(ks, "a").unwrap().unwrap(), snapshot.get(ks, "b").unwrap().unwrap());
            assert_eq!((number(&a), number(&b)), (n, n), "a transaction has overlooked an ingest");
        }
        drop(end);
        copies.join().unwrap();
    });
}
