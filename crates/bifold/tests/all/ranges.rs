//! Iterators and range deletes.

use std::ops::{Bound, ControlFlow};

use bifold::{Db, Options, PlacementKind, Range};

use crate::support::{TempDir, entries, fill, keys, tiny, tiny_db};

#[test]
fn ranges_honour_their_bounds_from_both_ends() {
    let (_dir, db) = tiny_db();
    for key in ["a", "b", "c", "d", "e"] {
        db.put(key, "").unwrap();
        db.flush().unwrap();
    }
    assert_eq!(keys(db.range("b".."d")), ["b", "c"]);
    assert_eq!(keys(db.range("b"..="d")), ["b", "c", "d"]);
    assert_eq!(keys(db.range("bb"..)), ["c", "d", "e"]);
    assert_eq!(keys(db.range(.."c")), ["a", "b"]);
    assert_eq!(keys(db.range::<&str>((Bound::Excluded("b"), Bound::Included("d")))), ["c", "d"]);
    assert_eq!(keys(db.range("d".."b")), Vec::<String>::new());
    assert_eq!(keys(db.range("b".."b")), Vec::<String>::new());
    let backward = entries(db.range("b"..="d").rev());
    assert_eq!(backward.iter().map(|p| p.0[0] as char).collect::<String>(), "dcb");
}

#[test]
fn both_ends_of_an_iterator_meet_without_repeating_a_key() {
    let (_dir, db) = tiny_db();
    fill(db.default_keyspace(), 101, "r");
    for step in 1..5 {
        let mut iterator = db.iter();
        let (mut front, mut back) = (Vec::new(), Vec::new());
        loop {
            let Some(pair) = iterator.next() else { break };
            front.push(pair.unwrap().key().to_vec());
            for _ in 0..step {
                if let Some(pair) = iterator.next_back() {
                    back.push(pair.unwrap().key().to_vec());
                }
            }
        }
        assert!(iterator.next_back().is_none());
        front.extend(back.into_iter().rev());
        let all: Vec<Vec<u8>> = (0..101).map(|n| format!("key{n:04}").into_bytes()).collect();
        assert_eq!(front, all);
    }
}

/// Up to `most` entries that a visit sees.
fn visited(range: &mut Range, most: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut seen = Vec::new();
    let visit = range.visit(|key, value| {
        seen.push((key.to_vec(), value.to_vec()));
        if seen.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    visit.unwrap();
    seen
}

/// A database with values of both sizes in memtables and tables, some of them separated.
fn mixed(placement: PlacementKind) -> (TempDir, Db) {
    let dir = TempDir::new();
    let keyspace = tiny().keyspace.with_placement(placement);
    let db = Db::open_with(dir.join("db"), Options { keyspace, ..tiny() }).unwrap();
    for n in 0..300u32 {
        let value = [n as u8; 300];
        db.put(n.to_be_bytes(), &value[..if n % 3 == 0 { 20 } else { 300 }]).unwrap();
        if n == 200 {
            db.flush().unwrap();
        }
    }
    (dir, db)
}

#[test]
fn a_visit_sees_what_an_iterator_yields_wherever_it_is_broken_off() {
    for placement in [
        PlacementKind::Inline,
        PlacementKind::HashKv,
        PlacementKind::DiffKv,
        PlacementKind::UniKv,
        PlacementKind::NovKv,
    ] {
        let (_dir, db) = mixed(placement);
        let all = entries(db.iter());
        assert_eq!(all.len(), 300);
        for most in [1, 2, 3, 7, 50, 1000] {
            let (mut range, mut seen) = (db.iter(), Vec::new());
            loop {
                let part = visited(&mut range, most);
                seen.extend_from_slice(&part);
                if part.len() < most {
                    break;
                }
                // The other ways to read a range go on where the visit ended.
                seen.extend(range.next().map(|pair| entries(std::iter::once(pair)).remove(0)));
            }
            assert_eq!(seen, all, "{placement:?}, {most} at a time");
        }
    }
}

#[test]
fn a_visit_keeps_to_the_limit_and_meets_the_other_end() {
    for placement in [PlacementKind::Inline, PlacementKind::HashKv] {
        let (_dir, db) = mixed(placement);
        let all = entries(db.iter());
        let mut range = db.iter().limit(40);
        assert_eq!(visited(&mut range, usize::MAX), all[..40]);
        assert!(range.next().is_none() && visited(&mut range, 1).is_empty());
        let mut range = db.iter();
        let back: Vec<_> = entries(range.by_ref().rev().take(100));
        assert_eq!(visited(&mut range, 50), all[..50]);
        let more_back: Vec<_> = entries(range.by_ref().rev().take(100));
        assert_eq!(visited(&mut range, usize::MAX), all[50..100]);
        assert!(range.next_back().is_none());
        assert!([back, more_back].concat().iter().eq(all[100..].iter().rev()));
    }
}

#[test]
fn prefixes_select_their_keys() {
    let (_dir, db) = tiny_db();
    for key in [&b"a"[..], b"ab", b"ab\xff", b"ab\xff\xff", b"ac", b"\xff", b"\xff\xff"] {
        db.put(key, "").unwrap();
    }
    let found = |prefix: &[u8]| entries(db.prefix(prefix)).into_iter().map(|p| p.0).collect::<Vec<_>>();
    assert_eq!(found(b"ab"), [&b"ab"[..], b"ab\xff", b"ab\xff\xff"]);
    assert_eq!(found(b"ab\xff"), [&b"ab\xff"[..], b"ab\xff\xff"]);
    assert_eq!(found(b"\xff"), [&b"\xff"[..], b"\xff\xff"]);
    assert_eq!(found(b"").len(), 7);
    assert_eq!(found(b"b").len(), 0);
}

#[test]
fn an_iterator_sees_what_was_there_when_it_began() {
    let (_dir, db) = tiny_db();
    fill(db.default_keyspace(), 200, "before");
    let mut iterator = db.iter();
    let first = iterator.next().unwrap().unwrap();
    assert_eq!(first.key(), b"key0000");
    fill(db.default_keyspace(), 300, "after");
    db.delete_range("key0000".."key0100").unwrap();
    db.compact().unwrap();
    let rest = entries(iterator);
    assert_eq!(rest.len(), 199);
    assert!(rest.iter().all(|(_, value)| value.starts_with(b"before")));
}

#[test]
fn deleted_ranges_are_empty_and_can_be_filled_again() {
    let (dir, db) = tiny_db();
    fill(db.default_keyspace(), 300, "old");
    db.flush().unwrap();
    db.delete_range("key0100".."key0200").unwrap();
    db.put("key0150", "new").unwrap();
    let expect = |db: &Db| {
        let numbers: Vec<String> =
            (0..300).filter(|n| !(100..200).contains(n) || *n == 150).map(|n| format!("key{n:04}")).collect();
        assert_eq!(keys(db.iter()), numbers);
        assert_eq!(db.get("key0149").unwrap(), None);
        assert_eq!(db.get("key0150").unwrap().unwrap(), "new");
        assert!(db.get("key0200").unwrap().is_some());
        assert_eq!(entries(db.iter().rev()).len(), numbers.len());
    };
    expect(&db);
    db.flush().unwrap();
    expect(&db);
    db.compact().unwrap();
    expect(&db);
    drop(db);
    let db = Db::open_with(dir.join("db"), tiny()).unwrap();
    expect(&db);
}

#[test]
fn a_keyspace_can_be_cleared() {
    let (_dir, db) = tiny_db();
    fill(db.default_keyspace(), 300, "old");
    db.flush().unwrap();
    db.put("\u{0}", "first of all").unwrap();
    db.put([0xFF; 300], "last of all").unwrap();
    db.delete_range::<&[u8]>(..).unwrap();
    assert_eq!(db.iter().count(), 0);
    db.put("new", "1").unwrap();
    db.compact().unwrap();
    assert_eq!(keys(db.iter()), ["new"]);
}

#[test]
fn range_deletes_with_all_kinds_of_bounds() {
    let (_dir, db) = tiny_db();
    let reset = || ["a", "b", "b\u{0}", "c", "d"].iter().for_each(|k| db.put(k, "").unwrap());
    let left = |what: &str| (what.to_owned(), keys(db.iter()).concat());
    reset();
    db.delete_range("b"..="c").unwrap();
    assert_eq!(left("inclusive").1, "ad");
    reset();
    db.delete_range::<&str>((Bound::Excluded("b"), Bound::Excluded("d"))).unwrap();
    assert_eq!(left("exclusive").1, "abd");
    reset();
    db.delete_range(.."b").unwrap();
    assert_eq!(left("to").1, "bb\u{0}cd");
    reset();
    db.delete_range("c"..).unwrap();
    assert_eq!(left("from").1, "abb\u{0}");
    reset();
    db.delete_range("d".."a").unwrap();
    assert_eq!(left("nothing").1, "abb\u{0}cd");
}

/// What a program does that trims to a watermark. Lists of all range deletes over each key would take n² memory.
#[test]
fn a_watermark_that_moves_a_thousand_times_is_read_flushed_and_recovered() {
    let dir = TempDir::new();
    let options = || Options { memory_limit: 64 << 20, memtable_bytes: 8 << 20, ..tiny() };
    let key = |n: u32| n.to_be_bytes();
    let db = Db::open_with(dir.join("db"), options()).unwrap();
    (0..=1501).for_each(|n| db.put(key(n), "").unwrap());
    let trim = |n: u32| {
        db.delete_range(..key(n)).unwrap();
        assert!(db.get(key(n)).unwrap().is_some() && db.get(key(n - 1)).unwrap().is_none(), "{n}");
        if n.is_multiple_of(50) {
            assert_eq!(db.iter().next().unwrap().unwrap().key(), key(n));
            assert_eq!(db.range(key(n - 20)..=key(n + 1)).count(), 2, "{n}");
            assert_eq!(db.range(..key(n)).count(), 0, "{n}");
        }
    };
    (1..=500).for_each(trim);
    let (snapshot, keyspace) = (db.snapshot(), db.default_keyspace());
    let check_snapshot = || {
        for n in [0, 1, 250, 499] {
            assert_eq!(snapshot.get(keyspace, key(n)).unwrap(), None, "{n}");
        }
        assert!(snapshot.get(keyspace, key(500)).unwrap().is_some());
        assert_eq!(snapshot.iter(keyspace).rev().count(), 1002);
    };
    (501..=1000).for_each(trim);
    check_snapshot();
    db.flush().unwrap();
    check_snapshot();
    assert_eq!(db.iter().next().unwrap().unwrap().key(), key(1000));
    (1001..=1500).for_each(trim);
    check_snapshot();
    drop(snapshot);
    drop(db);
    let db = Db::open_with(dir.join("db"), options()).unwrap();
    assert_eq!(db.iter().map(|pair| pair.unwrap().key().to_vec()).collect::<Vec<_>>(), [key(1500), key(1501)]);
}
