//! Transactions: each anomaly is refused, and nothing else is, in every placement.

use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use bifold::{
    Access, Db, Error, Isolation, Keyspace, Options, PlacementKind, Result, Transaction, TransactionOptions, Value,
    Workers,
};
use bifold_io::{Env, clock::ManualClock, memory::MemoryFs};

use crate::support::{TempDir, entries, tiny, tiny_db};

const SNAPSHOT: TransactionOptions =
    TransactionOptions { isolation: Isolation::Snapshot, durability: None, tries_max: 16 };

/// Runs `test` with a database of each placement and a second keyspace in it. Values of 100 bytes are separated.
fn in_each_placement(test: impl Fn(&Db, &Keyspace, &Keyspace)) {
    for placement in PlacementKind::ALL {
        let dir = TempDir::new();
        let mut keyspace = tiny().keyspace.with_placement(placement);
        keyspace.values.separate_from_bytes = Some(64);
        keyspace.values.file_bytes = 4 << 10;
        keyspace.values.hashkv.group_bytes = 4 << 10;
        let options = Options { keyspace: keyspace.clone(), memory_limit: 4 << 20, ..tiny() };
        let db = Db::open_with(dir.join("db"), options).unwrap();
        let other = db.keyspace("other", keyspace).unwrap();
        test(&db, &db.default_keyspace().clone(), &other);
    }
}

fn long(text: &str) -> String {
    format!("{text:.<100}")
}

fn text(value: Option<Value>) -> Option<String> {
    value.map(|value| String::from_utf8(value.to_vec()).unwrap().trim_end_matches('.').to_owned())
}

/// Requires a conflict at this key.
fn refused<T: Debug>(outcome: Result<T>, expected: &str) {
    match outcome {
        Err(Error::Conflict { key, .. }) => assert_eq!(key.escape_ascii().to_string(), expected),
        other => panic!("a conflict at {expected} was expected: {other:?}"),
    }
}

fn seen(tx: &Transaction, ks: &Keyspace) -> Vec<String> {
    let entries = entries(tx.iter(ks));
    let mut backward = entries_of(tx.iter(ks).rev());
    backward.reverse();
    assert_eq!(entries, backward);
    entries.into_iter().map(|(key, _)| String::from_utf8(key).unwrap()).collect()
}

fn entries_of(range: impl Iterator<Item = Result<bifold::Pair>>) -> Vec<(Vec<u8>, Vec<u8>)> {
    entries(range)
}

#[test]
fn an_update_is_not_lost() {
    in_each_placement(|db, ks, _| {
        ks.put("counter", long("1")).unwrap();
        let (mut first, mut second) = (db.transaction(), db.transaction());
        for tx in [&mut first, &mut second] {
            assert_eq!(text(tx.get(ks, "counter").unwrap()).as_deref(), Some("1"));
            tx.put(ks, "counter", long("2")).unwrap();
        }
        let number = first.commit().unwrap();
        assert_eq!(db.snapshot().seqno(), number);
        refused(second.commit(), "counter");
        assert_eq!(text(ks.get("counter").unwrap()).as_deref(), Some("2"));
    });
}

#[test]
fn write_skew_is_refused_across_keyspaces_and_allowed_by_snapshot_isolation() {
    in_each_placement(|db, ks, other| {
        for (options, is_refused) in [(TransactionOptions::default(), true), (SNAPSHOT, false)] {
            ks.put("on call", long("yes")).unwrap();
            other.put("on call", long("yes")).unwrap();
            let (mut first, mut second) = (db.transaction_with(options), db.transaction_with(options));
            for (tx, leaves) in [(&mut first, ks), (&mut second, other)] {
                assert!(tx.contains_key(ks, "on call").unwrap() && tx.contains_key(other, "on call").unwrap());
                tx.delete(leaves, "on call").unwrap();
            }
            first.commit().unwrap();
            match is_refused {
                true => refused(second.commit(), "on call"),
                false => assert!(second.commit().is_ok()),
            }
        }
    });
}

#[test]
fn snapshot_isolation_checks_writes_and_reads_for_update() {
    in_each_placement(|db, ks, other| {
        ks.put("a", long("1")).unwrap();
        let mut tx = db.transaction_with(SNAPSHOT);
        tx.put(ks, "a", "3").unwrap();
        ks.put("a", long("2")).unwrap();
        refused(tx.commit(), "a");
        let mut tx = db.transaction_with(SNAPSHOT);
        tx.get_for_update(ks, "a").unwrap();
        tx.put(other, "b", "3").unwrap();
        ks.delete("a").unwrap();
        refused(tx.commit(), "a");
        let mut tx = db.transaction_with(SNAPSHOT);
        tx.delete_range(ks, "a".."c").unwrap();
        ks.put("b", "1").unwrap();
        refused(tx.commit(), "b");
        let mut tx = db.transaction_with(SNAPSHOT);
        assert_eq!(tx.iter(ks).count(), 1);
        tx.put(ks, "c", "1").unwrap();
        ks.put("b", "2").unwrap();
        tx.commit().unwrap();
    });
}

#[test]
fn phantoms_are_refused_whatever_makes_them() {
    in_each_placement(|db, ks, _| {
        type Phantom = fn(&Keyspace) -> Result<()>;
        let phantoms: [(Phantom, &str); 4] = [
            (|ks| ks.put("c", long("new")), "c"),
            (|ks| ks.delete("b"), "b"),
            (|ks| ks.delete_range("b".."d"), "b"),
            (|ks| ks.put("d", long("another value")), "d"),
        ];
        for (phantom, key) in phantoms {
            for flushes in [false, true] {
                ks.delete_range::<&str>(..).unwrap();
                ["a", "b", "d", "e"].iter().for_each(|key| ks.put(key, long(key)).unwrap());
                let (mut forward, mut backward, mut counting) = (db.transaction(), db.transaction(), db.transaction());
                assert_eq!(forward.range(ks, "a".."e").count(), 3);
                assert_eq!(backward.prefix(ks, "").rev().take(3).count(), 3);
                assert_eq!(counting.range(ks, "f"..).count(), 0);
                let mut elsewhere = db.transaction();
                assert_eq!(elsewhere.range(ks, "a"..).next().unwrap().unwrap().key(), b"a");
                phantom(ks).unwrap();
                if flushes {
                    db.flush().unwrap();
                }
                for tx in [&mut forward, &mut backward, &mut counting, &mut elsewhere] {
                    tx.put(ks, "z", "1").unwrap();
                }
                refused(forward.commit(), key);
                refused(backward.commit(), key);
                counting.commit().unwrap();
                elsewhere.commit().unwrap();
            }
        }
    });
}

#[test]
fn what_reads_only_never_conflicts() {
    in_each_placement(|db, ks, _| {
        ks.put("a", long("1")).unwrap();
        let mut tx = db.transaction();
        let savepoint = tx.savepoint();
        tx.put(ks, "b", "1").unwrap();
        assert_eq!(seen(&tx, ks), ["a", "b"]);
        tx.rollback_to(savepoint).unwrap();
        ks.put("a", long("2")).unwrap();
        db.compact().unwrap();
        assert_eq!(text(tx.get_for_update(ks, "a").unwrap()).as_deref(), Some("1"));
        assert_eq!(seen(&tx, ks), ["a"]);
        tx.commit().unwrap();
        assert!(ks.get("b").unwrap().is_none());
    });
}

#[test]
fn a_transaction_sees_its_own_writes_everywhere() {
    in_each_placement(|db, ks, other| {
        ["b", "d", "f", "h"].iter().for_each(|key| ks.put(key, long("stored")).unwrap());
        db.flush().unwrap();
        let mut tx = db.transaction();
        tx.put(ks, "a", "own").unwrap();
        tx.put(ks, "d", long("own")).unwrap();
        tx.delete(ks, "f").unwrap();
        tx.delete(ks, "nothing").unwrap();
        ks.put("c", long("late")).unwrap();
        assert_eq!(seen(&tx, ks), ["a", "b", "d", "h"]);
        let found = tx.multi_get(ks, ["a", "b", "c", "d", "f", "h"]).unwrap();
        let found: Vec<_> = found.into_iter().map(text).collect();
        assert_eq!(
            found.iter().map(Option::as_deref).collect::<Vec<_>>(),
            [Some("own"), Some("stored"), None, Some("own"), None, Some("stored")]
        );
        tx.delete_range(ks, "b"..="d").unwrap();
        assert_eq!(seen(&tx, ks), ["a", "h"]);
        assert!(!tx.contains_key(ks, "d").unwrap() && tx.get(ks, "b").unwrap().is_none());
        tx.put(ks, "c", "own").unwrap();
        assert_eq!(seen(&tx, ks), ["a", "c", "h"]);
        let mut ends = tx.range(ks, "a".."z");
        let key = |pair: Option<Result<bifold::Pair>>| pair.map(|pair| pair.unwrap().key().to_vec());
        assert_eq!(key(ends.next_back()).as_deref(), Some(&b"h"[..]));
        assert_eq!(key(ends.next()).as_deref(), Some(&b"a"[..]));
        assert_eq!(key(ends.next_back()).as_deref(), Some(&b"c"[..]));
        assert!(ends.next().is_none() && ends.next_back().is_none());
        drop(ends);
        assert_eq!(seen(&tx, other), Vec::<String>::new());
        refused(tx.commit(), "c");
        // The same without a read.
        let mut tx = db.transaction();
        tx.put(ks, "b", "replaced").unwrap();
        tx.delete_range(ks, "b"..="d").unwrap();
        tx.put(ks, "c", "own").unwrap();
        ks.put("d", "late").unwrap();
        tx.commit().unwrap();
        let left: Vec<_> = entries(ks.iter()).into_iter().map(|(key, _)| key).collect();
        assert_eq!(left, [b"c", b"f", b"h"]);
    });
}

#[test]
fn savepoints_undo_writes_of_all_kinds_again_and_again() {
    let (_dir, db) = tiny_db();
    let ks = db.default_keyspace();
    ks.put("stored", "1").unwrap();
    let mut tx = db.transaction();
    tx.put(ks, "a", "1").unwrap();
    tx.delete_range(ks, "x".."z").unwrap();
    let before = tx.bytes();
    let outer = tx.savepoint();
    for _ in 0..3 {
        tx.put(ks, "a", "2").unwrap();
        tx.delete(ks, "a").unwrap();
        let inner = tx.savepoint();
        tx.put(ks, "b", "1").unwrap();
        tx.delete_range(ks, "a".."y").unwrap();
        tx.put(ks, "y", "1").unwrap();
        assert_eq!(tx.get(ks, "stored").unwrap(), None);
        tx.rollback_to(inner).unwrap();
        assert_eq!(tx.get(ks, "y").unwrap(), None);
        assert_eq!((tx.get(ks, "a").unwrap(), tx.get(ks, "b").unwrap()), (None, None));
        tx.rollback_to(outer).unwrap();
        assert_eq!(tx.get(ks, "a").unwrap().unwrap(), b"1"[..]);
        assert!(tx.rollback_to(inner).is_err(), "it is behind the other one");
        let read_since = tx.bytes() - before;
        assert!(read_since <= 2 * (6 + 48), "only what was read is counted still: {read_since}");
    }
    assert!(db.transaction().rollback_to(outer).is_err(), "it is of another transaction");
    tx.commit().unwrap();
    assert_eq!(db.iter().count(), 2);
    // What was read before going back still counts.
    let mut tx = db.transaction();
    let savepoint = tx.savepoint();
    tx.get(ks, "a").unwrap();
    tx.rollback_to(savepoint).unwrap();
    tx.put(ks, "b", "1").unwrap();
    ks.put("a", "3").unwrap();
    refused(tx.commit(), "a");
}

#[test]
fn savepoints_are_counted() {
    let (_dir, db) = tiny_db();
    let ks = db.default_keyspace();
    let mut tx = db.transaction();
    let first = tx.savepoint();
    assert!((0..1000).all(|_| tx.savepoint() == first), "nothing was written in between: it is the same moment");
    let mut rounds = 0;
    let too_large = loop {
        match tx.put(ks, "a", "1") {
            Ok(()) => rounds += 1,
            Err(error) => break error,
        }
        assert_ne!(tx.savepoint(), first);
    };
    assert!(matches!(too_large, Error::TransactionTooLarge { .. }));
    // Of each round stay a write of two bytes, or what it has replaced, a note, and a savepoint.
    let most = db.options().memory_limit / 16;
    assert!(rounds * (2 + 96 + 96 + 24) <= most, "{rounds} rounds in {most} bytes");
    tx.rollback_to(first).unwrap();
    assert_eq!((tx.bytes(), tx.savepoint()), (0, first));
}

#[test]
fn memory_is_bounded_for_all_transactions_together() {
    let (_dir, db) = tiny_db();
    let ks = db.default_keyspace();
    (0..3000u32).for_each(|n| ks.put(n.to_be_bytes(), [0; 10]).unwrap());
    let most = db.options().memory_limit / 16;
    let mut writer = db.transaction();
    let too_large = (0..).find_map(|n: u32| writer.put(ks, n.to_be_bytes(), [0; 1000]).err()).unwrap();
    assert!(matches!(too_large, Error::TransactionTooLarge { bytes, bytes_max } if bytes_max == most && bytes > most));
    assert!(writer.bytes() <= most && writer.bytes() > most * 9 / 10);
    assert_eq!(db.stats().memory.transactions, writer.bytes());
    let reader = db.transaction();
    let is_refused = (0..3000u32).any(|n| reader.get(ks, n.to_be_bytes()).is_err());
    assert!(is_refused, "the other one has nearly all");
    assert!(reader.range(ks, [0; 100]..).next().unwrap().is_err());
    // What fitted can be committed; what was refused is not in it.
    let committed = writer.get(ks, 0u32.to_be_bytes()).unwrap().unwrap();
    assert_eq!(committed.len(), 1000);
    writer.commit().unwrap();
    drop(reader);
    let mut reader = db.transaction();
    (0..1000u32).for_each(|n| assert!(reader.get(ks, n.to_be_bytes()).unwrap().is_some()));
    let before = reader.bytes();
    assert_eq!(reader.iter(ks).count(), 3000);
    assert!(reader.bytes() < before + 200, "a scan is one range, however long");
    reader.put(ks, "z", "").unwrap();
    reader.commit().unwrap();
    assert_eq!(db.transaction().bytes(), 0);
}

#[test]
fn rewrites_between_read_and_commit_neither_conflict_nor_hide_conflicts() {
    in_each_placement(|db, ks, other| {
        for n in 0..300u32 {
            ks.put(n.to_be_bytes(), long(&n.to_string())).unwrap();
        }
        let reads = |tx: &mut Transaction, n: u32| {
            assert_eq!(text(tx.get(ks, n.to_be_bytes()).unwrap()), Some(n.to_string()));
            assert_eq!(tx.range(ks, 100u32.to_be_bytes()..120u32.to_be_bytes()).rev().count(), 20);
            tx.put(other, n.to_be_bytes(), "").unwrap();
        };
        let (mut same, mut changed, mut in_range) = (db.transaction(), db.transaction(), db.transaction());
        reads(&mut same, 7);
        reads(&mut changed, 8);
        reads(&mut in_range, 9);
        // Overwrites most, so that GC has something to move: keys read stay.
        for round in 0..3u32 {
            for n in (0..300).filter(|n| ![7, 8, 9].contains(n) && !(100..120).contains(n)) {
                ks.put(u32::to_be_bytes(n), long(&round.to_string())).unwrap();
            }
            db.flush().unwrap();
            db.compact().unwrap();
            db.collect_garbage().unwrap();
        }
        same.commit().unwrap();
        ks.put(8u32.to_be_bytes(), long("new")).unwrap();
        db.compact().unwrap();
        refused(changed.commit(), r"\x00\x00\x00\x08");
        ks.delete(110u32.to_be_bytes()).unwrap();
        db.compact().unwrap();
        refused(in_range.commit(), r"\x00\x00\x00n");
    });
}

#[test]
fn what_ends_as_it_was_is_no_conflict() {
    in_each_placement(|db, ks, other| {
        ks.put("a", long("1")).unwrap();
        let mut tx = db.transaction();
        assert_eq!(seen(&tx, ks), ["a"]);
        assert!(tx.get(ks, "b").unwrap().is_none());
        ks.put("a", long("2")).unwrap();
        ks.put("b", long("2")).unwrap();
        db.flush().unwrap();
        ks.delete("b").unwrap();
        ks.put("a", long("1")).unwrap();
        ks.delete_range("c".."z").unwrap();
        tx.put(other, "c", "1").unwrap();
        tx.commit().unwrap();
    });
}

#[test]
fn a_commit_is_checked_again_after_it_has_waited() {
    let (_dir, db) = tiny_db();
    let ks = db.default_keyspace();
    let other = db.keyspace("other", tiny().keyspace).unwrap();
    ks.put("a", "1").unwrap();
    // Threads that read and write the same keys: each increment is there at the end.
    let tries = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let options = TransactionOptions { tries_max: u32::MAX, ..TransactionOptions::default() };
                    db.transact_with(options, |tx| {
                        tries.fetch_add(1, Ordering::Relaxed);
                        let n: u64 = text(tx.get(ks, "a")?).unwrap().parse().unwrap();
                        tx.put(ks, "a", (n + 1).to_string())?;
                        tx.put(&other, n.to_be_bytes(), [0; 300])
                    })
                    .unwrap();
                }
            });
        }
    });
    assert_eq!(text(ks.get("a").unwrap()).as_deref(), Some("401"));
    assert_eq!(other.iter().count(), 400);
    assert!(tries.load(Ordering::Relaxed) >= 400);
}

#[test]
fn tries_are_bounded_and_wait_on_the_given_clock() {
    let clock = ManualClock::default();
    let env = Env { fs: Arc::new(MemoryFs::new()), clock: Arc::new(clock.clone()), ..Env::system() };
    let db = Db::open_in(env, "/db", Options { workers: Workers::Caller, ..tiny() }).unwrap();
    let ks = db.default_keyspace();
    let mut tries = 0;
    let began = bifold_io::Clock::now(&clock);
    let outcome: Result<()> = db.transact(|tx| {
        tries += 1;
        tx.get(ks, "a")?;
        ks.put("a", tries.to_string())?;
        tx.put(ks, "b", "1")
    });
    refused(outcome, "a");
    assert_eq!(tries, 16);
    let waited = bifold_io::Clock::now(&clock) - began;
    assert!(waited > Duration::from_micros(100) && waited < Duration::from_millis(300), "{waited:?}");
    assert!(db.get("b").unwrap().is_none());
    let mut tries = 0;
    let stopped: Result<()> = db.transact(|_| {
        tries += 1;
        Err(Error::ReadOnly)
    });
    assert!(matches!(stopped, Err(Error::ReadOnly)) && tries == 1);
}

#[test]
fn ordinary_errors_are_returned() {
    let (dir, db) = tiny_db();
    let (other_dir, other_db) = tiny_db();
    let ks = db.default_keyspace();
    let mut tx = db.transaction();
    assert!(matches!(tx.put(ks, "", "1"), Err(Error::InvalidArgument { .. })));
    assert!(matches!(tx.get(other_db.default_keyspace(), "a"), Err(Error::InvalidArgument { .. })));
    let dropped = db.keyspace("dropped", tiny().keyspace).unwrap();
    tx.get(&dropped, "a").unwrap();
    tx.put(ks, "a", "1").unwrap();
    let mut writes_there = db.transaction();
    writes_there.put(&dropped, "a", "1").unwrap();
    db.drop_keyspace("dropped").unwrap();
    assert!(matches!(tx.get(&dropped, "b"), Err(Error::Closed { .. })));
    assert!(matches!(tx.commit(), Err(Error::Closed { .. })));
    assert!(matches!(writes_there.commit(), Err(Error::Closed { .. })));
    let tx = db.transaction();
    db.clone().close().unwrap();
    assert!(matches!(tx.get(ks, "a"), Err(Error::Closed { .. })));
    assert!(matches!(tx.commit(), Err(Error::Closed { .. })));
    drop((db, dropped));
    drop((other_db, other_dir));
    let db = Db::open_with(dir.join("db"), Options { access: Access::ReadOnly, ..tiny() }).unwrap();
    let mut tx = db.transaction();
    assert_eq!(tx.get(db.default_keyspace(), "a").unwrap(), None);
    tx.put(db.default_keyspace(), "a", "1").unwrap();
    assert!(matches!(tx.commit(), Err(Error::ReadOnly)));
    db.transaction().commit().unwrap();
}

#[test]
fn a_transaction_keeps_the_database_open_and_moves_between_threads() {
    let (dir, db) = tiny_db();
    let mut tx = db.transaction();
    tx.put(db.default_keyspace(), "a", "1").unwrap();
    drop(db);
    thread::spawn(move || tx.commit().unwrap()).join().unwrap();
    let db = Db::open_with(dir.join("db"), tiny()).unwrap();
    assert_eq!(db.get("a").unwrap().unwrap(), b"1"[..]);
    db.transaction().rollback();
    assert!(db.stats().snapshots.is_empty());
}

#[test]
fn a_scan_that_is_forgotten_counts_as_a_scan_of_everything() {
    let (_dir, db) = tiny_db();
    let ks = db.default_keyspace();
    let mut tx = db.transaction();
    std::mem::forget(tx.range(ks, "a".."m"));
    tx.put(ks, "z", "1").unwrap();
    ks.put("b", "1").unwrap();
    refused(tx.commit(), "b");
}
