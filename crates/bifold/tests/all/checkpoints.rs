//! Copies by hard links.

use bifold::{Db, Error, verify};

use crate::support::{check_filled, fill, tiny, tiny_db};

#[test]
fn a_checkpoint_is_a_database_of_its_own() {
    let (dir, db) = tiny_db();
    let other = db.keyspace("other", tiny().keyspace).unwrap();
    fill(db.default_keyspace(), 300, "then");
    fill(&other, 20, "then");
    db.checkpoint(dir.join("copy")).unwrap();
    fill(db.default_keyspace(), 400, "later");
    db.compact().unwrap();
    let report = verify(dir.join("copy")).unwrap();
    assert!(report.problems.is_empty() && report.files > 2, "{report:?}");
    let copy = Db::open_with(dir.join("copy"), tiny()).unwrap();
    check_filled(copy.default_keyspace(), 300, "then");
    check_filled(&copy.existing_keyspace("other").unwrap().unwrap(), 20, "then");
    fill(copy.default_keyspace(), 300, "in the copy");
    copy.compact().unwrap();
    check_filled(db.default_keyspace(), 400, "later");
    check_filled(copy.default_keyspace(), 300, "in the copy");
}

#[test]
fn a_checkpoint_never_overwrites_anything() {
    let (dir, db) = tiny_db();
    db.put("a", "1").unwrap();
    std::fs::create_dir(dir.join("full")).unwrap();
    std::fs::write(dir.join("full").join("file"), "mine").unwrap();
    let error = db.checkpoint(dir.join("full")).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    assert_eq!(std::fs::read_dir(dir.join("full")).unwrap().count(), 1);
}
