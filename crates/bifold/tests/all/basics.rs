//! Put, get, delete, compare-and-swap.

use bifold::{Db, Error, Swap};

use crate::support::{TempDir, check_filled, fill, keys, tiny_db};

#[test]
fn a_value_put_is_got_and_a_deleted_one_is_not() {
    let (_dir, db) = tiny_db();
    assert_eq!(db.get("a").unwrap(), None);
    db.put("a", "1").unwrap();
    db.put("a", "2").unwrap();
    assert_eq!(db.get("a").unwrap().unwrap(), "2");
    assert!(db.contains_key("a").unwrap());
    db.delete("a").unwrap();
    db.delete("never there").unwrap();
    assert_eq!(db.get("a").unwrap(), None);
    assert!(!db.contains_key("a").unwrap());
}

#[test]
fn values_stay_through_flushes_compactions_and_reopening() {
    let (dir, db) = tiny_db();
    for round in ["first", "second", "third"] {
        fill(db.default_keyspace(), 600, round);
        check_filled(db.default_keyspace(), 600, round);
    }
    assert!(db.stats().keyspaces[0].merges > 0, "the test is meant to compact: {:?}", db.stats().keyspaces);
    db.compact().unwrap();
    check_filled(db.default_keyspace(), 600, "third");
    db.close().unwrap();
    let db = Db::open_with(dir.join("db"), crate::support::tiny()).unwrap();
    check_filled(db.default_keyspace(), 600, "third");
}

#[test]
fn deleted_keys_stay_deleted_through_compactions() {
    let (_dir, db) = tiny_db();
    fill(db.default_keyspace(), 500, "first");
    db.flush().unwrap();
    for number in (0..500).filter(|n| n % 3 != 0) {
        db.delete(format!("key{number:04}")).unwrap();
    }
    let left: Vec<String> = (0..500).filter(|n| n % 3 == 0).map(|n| format!("key{n:04}")).collect();
    assert_eq!(keys(db.iter()), left);
    db.flush().unwrap();
    assert_eq!(keys(db.iter()), left);
    db.compact().unwrap();
    assert_eq!(keys(db.iter()), left);
    let tombstones: u64 = db.stats().keyspaces[0].levels.iter().map(|l| l.tombstones).sum();
    assert_eq!(tombstones, 0, "a full compaction drops tombstones");
}

#[test]
fn an_empty_value_is_a_value() {
    let (_dir, db) = tiny_db();
    db.put("empty", "").unwrap();
    assert_eq!(db.get("empty").unwrap().unwrap(), "");
    db.flush().unwrap();
    assert_eq!(db.get("empty").unwrap().unwrap(), "");
}

#[test]
fn several_keys_are_got_in_their_order() {
    let (_dir, db) = tiny_db();
    db.put("a", "1").unwrap();
    db.put("c", "3").unwrap();
    let found = db.multi_get(["c", "b", "a"]).unwrap();
    let found: Vec<Option<Vec<u8>>> = found.into_iter().map(|v| v.map(|v| v.to_vec())).collect();
    assert_eq!(found, [Some(b"3".to_vec()), None, Some(b"1".to_vec())]);
}

#[test]
fn a_swap_happens_only_where_the_value_is_the_expected_one() {
    let (_dir, db) = tiny_db();
    assert_eq!(db.compare_and_swap("k", None, Some(b"1")).unwrap(), Swap::Done);
    let mismatch = db.compare_and_swap("k", None, Some(b"2")).unwrap();
    assert_eq!(mismatch, Swap::Mismatch { current: Some(b"1"[..].into()) });
    assert_eq!(db.compare_and_swap("k", Some(b"1"), Some(b"2")).unwrap(), Swap::Done);
    db.flush().unwrap();
    assert_eq!(db.compare_and_swap("k", Some(b"2"), None).unwrap(), Swap::Done);
    assert_eq!(db.get("k").unwrap(), None);
    assert_eq!(db.compare_and_swap("k", Some(b"2"), Some(b"3")).unwrap(), Swap::Mismatch { current: None });
}

#[test]
fn a_closed_database_says_so() {
    let dir = TempDir::new();
    let db = Db::open(dir.join("db")).unwrap();
    let other = db.clone();
    db.close().unwrap();
    assert!(matches!(other.put("a", "1"), Err(Error::Closed { .. })));
    assert!(matches!(other.get("a"), Err(Error::Closed { .. })));
    assert!(matches!(other.iter().next(), Some(Err(Error::Closed { .. }))));
    assert!(matches!(other.wait_idle(), Err(Error::Closed { .. })));
    other.close().unwrap();
}

#[test]
fn a_second_opener_learns_that_the_database_is_locked() {
    let dir = TempDir::new();
    let db = Db::open(dir.join("db")).unwrap();
    let error = Db::open(dir.join("db")).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    assert!(error.to_string().contains("another process"), "{error}");
    drop(db);
    Db::open(dir.join("db")).unwrap();
}
