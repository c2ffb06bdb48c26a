//! Snapshots keep their view.

use bifold::{Access, Compaction, Db, Error, IfMissing, KeyspaceOptions, Options, PlacementKind, options::Leveled};

use crate::{
    bed::Bed,
    support::{check_filled, entries, fill, tiny, tiny_db, value},
};

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

/// A database of two levels.
fn bed_of_two_levels() -> Bed {
    let compaction = Compaction::Leveled(Leveled { levels: 2, ..Leveled::default() });
    Bed::of(Options { keyspace: KeyspaceOptions { compaction, ..tiny().keyspace }, ..tiny() })
}

fn entries_in_tables(bed: &Bed) -> u64 {
    bed.db().stats().keyspaces[0].levels.iter().map(|level| level.entries).sum()
}

/// One entry in a hundred is too little for a rewrite without a request.
#[test]
fn compact_drops_the_little_that_an_ended_snapshot_held() {
    for reopens in [false, true] {
        let mut bed = bed_of_two_levels();
        fill(bed.ks(), 100, "first");
        let snapshot = bed.db().snapshot();
        bed.ks().put("key0000", "second").unwrap();
        bed.db().compact().unwrap();
        bed.db().compact().unwrap();
        assert_eq!(entries_in_tables(&bed), 101, "the snapshot is open");
        drop(snapshot);
        if reopens {
            bed.reopen();
        }
        bed.db().compact().unwrap();
        assert_eq!(entries_in_tables(&bed), 100, "opened again: {reopens}");
    }
}

#[test]
fn compact_rewrites_nothing_of_a_database_that_an_earlier_session_has_compacted() {
    let mut bed = bed_of_two_levels();
    fill(bed.ks(), 400, "first");
    bed.db().compact().unwrap();
    let tables = bed.data_files();
    assert!(tables.len() > 1);
    bed.reopen();
    bed.db().compact().unwrap();
    assert_eq!(bed.data_files(), tables);
}

#[test]
fn compact_frees_a_large_value_that_a_snapshot_of_an_earlier_session_held() {
    let mut bed = Bed::new(PlacementKind::Inline);
    fill(bed.ks(), 100, "first");
    bed.ks().put_reader("key0000", &vec![7u8; 300 << 10][..]).unwrap();
    let snapshot = bed.db().snapshot();
    bed.ks().put("key0000", "second").unwrap();
    bed.db().compact().unwrap();
    assert!(bed.fs.used_bytes() > 300 << 10, "the snapshot is open");
    drop(snapshot);
    bed.reopen();
    bed.db().compact().unwrap();
    assert!(bed.fs.used_bytes() < 300 << 10);
}

#[test]
fn a_snapshot_spans_keyspaces_and_outlives_handles() {
    let (_dir, db) = tiny_db();
    let other = db.keyspace("other", tiny().keyspace).unwrap();
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

/// Both databases number their files, keyspaces and commits alike.
#[test]
fn a_snapshot_refuses_keyspaces_of_another_database() {
    let ((_dir, db), (_other_dir, other)) = (tiny_db(), tiny_db());
    db.put("k", "here").unwrap();
    other.put("k", "there").unwrap();
    let (snapshot, foreign) = (db.snapshot(), other.default_keyspace());
    let mut range = snapshot.range(foreign, "a"..);
    range.seek("k");
    for (what, outcome) in [
        ("get", snapshot.get(foreign, "k").map(drop)),
        ("contains_key", snapshot.contains_key(foreign, "k").map(drop)),
        ("multi_get", snapshot.multi_get(foreign, ["k"]).map(drop)),
        ("get_reader", snapshot.get_reader(foreign, "k").map(drop)),
        ("first_key_value", snapshot.first_key_value(foreign).map(drop)),
        ("last_key_value", snapshot.last_key_value(foreign).map(drop)),
        ("iter", snapshot.iter(foreign).next().unwrap().map(drop)),
        ("prefix", snapshot.prefix(foreign, "k").next_back().unwrap().map(drop)),
        ("range", range.next().unwrap().map(drop)),
    ] {
        assert!(matches!(outcome, Err(Error::InvalidArgument { .. })), "{what}: {outcome:?}");
    }
    assert!(range.next().is_none());
    assert_eq!(snapshot.get(db.default_keyspace(), "k").unwrap().as_deref(), Some(&b"here"[..]));
}

#[test]
fn a_snapshot_of_a_follower_answers_from_its_own_state() {
    let (dir, writer) = tiny_db();
    let follow = || {
        let options = Options { access: Access::Follow, if_missing: IfMissing::Fail, ..Options::default() };
        Db::open_with(dir.join("db"), options).unwrap()
    };
    writer.keyspace("dropped", tiny().keyspace).unwrap().put("k", "1").unwrap();
    let mut reader = follow();
    let (before, dropped) = (reader.snapshot(), reader.existing_keyspace("dropped").unwrap().unwrap());
    writer.drop_keyspace("dropped").unwrap();
    writer.keyspace("created", tiny().keyspace).unwrap().put("k", "2").unwrap();
    assert!(reader.refresh().unwrap().is_newer);
    let (after, created) = (reader.snapshot(), reader.existing_keyspace("created").unwrap().unwrap());
    assert_eq!(before.get(&dropped, "k").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(after.get(&created, "k").unwrap().as_deref(), Some(&b"2"[..]));
    assert_eq!((before.get(&created, "k").unwrap(), before.iter(&created).count()), (None, 0), "not created yet");
    let refused = [after.get(&dropped, "k").map(drop), after.iter(&dropped).next().unwrap().map(drop)];
    assert!(refused.iter().all(|outcome| matches!(outcome, Err(Error::Closed { .. }))), "{refused:?}");
    // Its states are others, even where they have the same commits.
    let of_another = after.get(follow().default_keyspace(), "k");
    assert!(matches!(of_another, Err(Error::InvalidArgument { .. })), "{of_another:?}");
}

#[test]
fn open_snapshots_and_iterators_are_shown() {
    let (_dir, db) = tiny_db();
    db.put("a", "1").unwrap();
    let snapshot = db.snapshot();
    let iterator = db.iter();
    let kinds = |db: &Db| db.stats().snapshots.iter().map(|s| (s.kind, s.seqno)).collect::<Vec<_>>();
    assert_eq!(kinds(&db), [("snapshot", 1), ("iterator", 1)]);
    drop((snapshot, iterator));
    assert_eq!(kinds(&db), []);
}
