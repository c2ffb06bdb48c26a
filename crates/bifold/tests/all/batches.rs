//! Several operations as one.

use bifold::{Batch, Db, Durability, Error, KeyspaceOptions};

use crate::support::{TempDir, keys, tiny, tiny_db};

#[test]
fn a_batch_takes_effect_on_all_its_keyspaces() {
    let (dir, db) = tiny_db();
    let (a, b) = (db.keyspace("a", tiny().keyspace).unwrap(), db.keyspace("b", tiny().keyspace).unwrap());
    a.put("gone", "1").unwrap();
    let mut batch = db.batch();
    batch.put(&a, "x", "1").unwrap().put(&b, "y", "2").unwrap().delete(&a, "gone").unwrap();
    assert_eq!((batch.len(), batch.bytes()), (3, 8));
    for durability in [Durability::Sync, Durability::Buffered, Durability::Memory] {
        let mut more = db.batch();
        more.put(&b, format!("{durability:?}"), "").unwrap();
        db.commit_with(more, durability).unwrap();
    }
    db.commit(batch).unwrap();
    assert_eq!(
        (keys(a.iter()), keys(b.iter())),
        (vec!["x".into()], ["Buffered", "Memory", "Sync", "y"].map(String::from).to_vec())
    );
    drop((a, b));
    db.close().unwrap();
    let db = Db::open_with(dir.join("db"), tiny()).unwrap();
    assert_eq!(keys(db.existing_keyspace("a").unwrap().unwrap().iter()), ["x"]);
    assert_eq!(keys(db.existing_keyspace("b").unwrap().unwrap().iter()), ["Buffered", "Memory", "Sync", "y"]);
}

#[test]
fn later_operations_of_a_batch_win() {
    let (_dir, db) = tiny_db();
    let keyspace = db.default_keyspace();
    let mut batch = Batch::new();
    batch.put(keyspace, "k", "1").unwrap().put(keyspace, "k", "2").unwrap();
    batch.put(keyspace, "d", "1").unwrap().delete(keyspace, "d").unwrap();
    batch.put(keyspace, "r1", "").unwrap().delete_range(keyspace, "r".."s").unwrap().put(keyspace, "r2", "").unwrap();
    db.commit(batch).unwrap();
    for _flushed in 0..2 {
        assert_eq!(db.get("k").unwrap().unwrap(), "2");
        assert_eq!(keys(db.iter()), ["k", "r2"]);
        db.flush().unwrap();
    }
}

#[test]
fn a_batch_with_a_bad_operation_keeps_the_good_ones_before_it() {
    let (_dir, db) = tiny_db();
    let mut batch = Batch::new();
    batch.put(db.default_keyspace(), "good", "1").unwrap();
    assert!(batch.put(db.default_keyspace(), "", "1").is_err());
    assert_eq!(batch.len(), 1);
    db.commit(batch).unwrap();
    assert_eq!(keys(db.iter()), ["good"]);
}

#[test]
fn a_batch_of_another_database_is_refused() {
    let (_dir, db) = tiny_db();
    let dir = TempDir::new();
    let other = Db::open(dir.join("db")).unwrap();
    let mut batch = Batch::new();
    batch.put(db.default_keyspace(), "a", "1").unwrap().put(other.default_keyspace(), "b", "2").unwrap();
    assert!(matches!(db.commit(batch), Err(Error::InvalidArgument { .. })));
    assert_eq!(keys(db.iter()), Vec::<String>::new());
}

#[test]
fn a_batch_on_a_dropped_keyspace_is_refused_as_a_whole() {
    let (_dir, db) = tiny_db();
    let dropped = db.keyspace("dropped", KeyspaceOptions::default()).unwrap();
    db.drop_keyspace("dropped").unwrap();
    let mut batch = Batch::new();
    batch.put(db.default_keyspace(), "a", "1").unwrap().put(&dropped, "b", "2").unwrap();
    assert!(matches!(db.commit(batch), Err(Error::Closed { .. })));
    assert_eq!(db.get("a").unwrap(), None);
}
