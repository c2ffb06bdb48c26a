//! Named maps within a database.

use bifold::{Compression, Db, Error, KeyspaceOptions};

use crate::support::{check_filled, fill, keys, tiny, tiny_db};

#[test]
fn keyspaces_do_not_see_each_other_and_come_back_with_their_options() {
    let (dir, db) = tiny_db();
    let zstd = KeyspaceOptions { compression: Compression::Zstd, ..tiny().keyspace };
    let (a, b) = (db.keyspace("a", tiny().keyspace).unwrap(), db.keyspace("b", zstd.clone()).unwrap());
    fill(&a, 300, "in a");
    fill(&b, 200, "in b");
    assert_eq!(keys(db.iter()), Vec::<String>::new());
    check_filled(&a, 300, "in a");
    check_filled(&b, 200, "in b");
    drop((a, b));
    db.close().unwrap();
    let db = Db::open_with(dir.join("db"), tiny()).unwrap();
    assert_eq!(db.keyspace_names(), ["a", "b", "default"]);
    let b = db.keyspace("b", KeyspaceOptions::default()).unwrap();
    assert_eq!(*b.options(), zstd, "an existing keyspace keeps its options");
    check_filled(&b, 200, "in b");
    check_filled(&db.existing_keyspace("a").unwrap().unwrap(), 300, "in a");
    assert!(db.existing_keyspace("c").unwrap().is_none());
}

#[test]
fn a_dropped_keyspace_is_gone_for_good_and_its_name_is_free() {
    let (dir, db) = tiny_db();
    let old = db.keyspace("k", tiny().keyspace).unwrap();
    fill(&old, 300, "old");
    let iterator = old.iter();
    db.drop_keyspace("k").unwrap();
    assert!(matches!(old.get("key0001"), Err(Error::Closed { .. })));
    assert!(matches!(old.put("key0001", "x"), Err(Error::Closed { .. })));
    assert_eq!(iterator.count(), 300, "an open iterator goes on");
    let new = db.keyspace("k", tiny().keyspace).unwrap();
    assert_eq!(keys(new.iter()), Vec::<String>::new());
    new.put("n", "1").unwrap();
    drop((old, new));
    db.close().unwrap();
    let db = Db::open_with(dir.join("db"), tiny()).unwrap();
    assert_eq!(keys(db.existing_keyspace("k").unwrap().unwrap().iter()), ["n"]);
}

#[test]
fn names_are_checked() {
    let (_dir, db) = tiny_db();
    assert!(matches!(db.keyspace("", KeyspaceOptions::default()), Err(Error::InvalidArgument { .. })));
    assert!(matches!(db.keyspace(&"n".repeat(256), KeyspaceOptions::default()), Err(Error::InvalidArgument { .. })));
    assert!(matches!(db.drop_keyspace("default"), Err(Error::InvalidArgument { .. })));
    assert!(matches!(db.drop_keyspace("nobody"), Err(Error::InvalidArgument { .. })));
    let bad = KeyspaceOptions { restart_interval: 0, ..KeyspaceOptions::default() };
    assert!(matches!(db.keyspace("bad", bad), Err(Error::InvalidArgument { .. })));
    assert_eq!(db.keyspace_names(), ["default"]);
}
