//! Snapshots keep their view.

use crate::support::{check_filled, entries, fill, tiny_db, value};

#[test]
fn a_snapshot_reads_the_same_for_ever() {
    let (_dir, db) = tiny_db();
    let keyspace = db.default_keyspace();
    let mut snapshots = vec![(db.snapshot(), 0, "none")];
    for (count, round) in [(300, "first"), (400, "second"), (500, "third")] {
        fill(keyspace, count, round);
        snapshots.push((db.snapshot(), count, round));
    }
    db.delete_range("key0000".."key0250").unwrap();
    db.compact().unwrap();
    assert_eq!(db.iter().count(), 250);
    for (snapshot, count, round) in &snapshots {
        let expected: Vec<_> =
            (0..*count).map(|n| (format!("key{n:04}").into_bytes(), value(n, round).into_bytes())).collect();
        assert_eq!(entries(snapshot.iter(keyspace)), expected, "{round}");
        let backward: Vec<_> = expected.iter().rev().cloned().collect();
        assert_eq!(entries(snapshot.iter(keyspace).rev()), backward, "{round} backward");
        for (key, value) in &expected {
            assert_eq!(snapshot.get(keyspace, key).unwrap().as_deref(), Some(&value[..]));
        }
        assert_eq!(snapshot.get(keyspace, "key0499").unwrap().is_some(), *count == 500);
    }
    // Once they are dropped, entries that only they could see are dropped too.
    drop(snapshots);
    db.compact().unwrap();
    let entries: u64 = db.stats().keyspaces[0].levels.iter().map(|l| l.entries).sum();
    assert_eq!(entries, 250);
}

#[test]
fn a_snapshot_spans_keyspaces_and_outlives_handles() {
    let (_dir, db) = tiny_db();
    let other = db.keyspace("other", crate::support::tiny().keyspace).unwrap();
    fill(&other, 100, "before");
    let snapshot = db.snapshot();
    fill(&other, 100, "after");
    db.put("later", "").unwrap();
    assert_eq!(snapshot.iter(db.default_keyspace()).count(), 0);
    assert_eq!(snapshot.multi_get(&other, ["key0001"]).unwrap()[0].as_deref(), Some(value(1, "before").as_bytes()));
    assert!(!snapshot.contains_key(db.default_keyspace(), "later").unwrap());
    drop(db);
    assert_eq!(snapshot.range(&other, "key0000".."key0010").count(), 10);
    check_filled(&other, 100, "after");
}

#[test]
fn open_snapshots_and_iterators_are_shown() {
    let (_dir, db) = tiny_db();
    db.put("a", "1").unwrap();
    let snapshot = db.snapshot();
    let iterator = db.iter();
    let kinds = |db: &bifold::Db| db.stats().snapshots.iter().map(|s| (s.kind, s.seqno)).collect::<Vec<_>>();
    assert_eq!(kinds(&db), [("snapshot", 1), ("iterator", 1)]);
    drop((snapshot, iterator));
    assert_eq!(kinds(&db), []);
}
