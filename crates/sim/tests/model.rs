//! The model is tested too: it must reject what a broken database would leave.

use bifold::{Durability, Value};
use bifold_sim::{
    model::{Change, Contents, Crash, Model},
    value::Spec,
};

fn put(key: &[u8], tag: u32) -> Change {
    Change::Put(0, key.into(), Spec { tag, len: 12 })
}

fn contents(entries: &[(&[u8], u32)]) -> Contents {
    let entry = |&(key, tag): &(&[u8], u32)| (Box::from(key), Value::from(Spec { tag, len: 12 }.bytes()));
    Contents::from([("default".to_owned(), entries.iter().map(entry).collect())])
}

/// Three commits: the first synced, the second a batch, the third overwriting.
fn model() -> Model {
    let mut model = Model::default();
    model.begin(&[put(b"a", 1)]);
    model.acknowledge(Durability::Sync);
    model.begin(&[put(b"a", 2), put(b"b", 3)]);
    model.acknowledge(Durability::Buffered);
    model.begin(&[put(b"a", 4), Change::Delete(0, Box::from(&b"b"[..]))]);
    model
}

#[test]
fn every_prefix_from_the_floor_on_is_right() {
    let model = model();
    assert_eq!(model.check(&contents(&[(b"a", 1)]), Crash::Power), Ok(1));
    assert_eq!(model.check(&contents(&[(b"a", 2), (b"b", 3)]), Crash::Power), Ok(2));
    assert_eq!(model.check(&contents(&[(b"a", 4)]), Crash::Kill), Ok(3));
}

#[test]
fn lost_commits_are_reported_with_key_and_commit() {
    let lost = model().check(&contents(&[]), Crash::Power).unwrap_err();
    assert_eq!((lost.allowed.clone(), lost.nearest), (1..=3, 3));
    assert!(lost.to_string().contains("default/a: expected #4x12 (commit 3), found nothing"), "{lost}");
    let killed = model().check(&contents(&[(b"a", 1)]), Crash::Kill).unwrap_err();
    assert_eq!(killed.allowed, 2..=3);
    assert!(killed.to_string().contains("found #1x12 (commit 1)"), "{killed}");
}

#[test]
fn half_batches_holes_and_unknown_entries_are_rejected() {
    for wrong in
        [&[(&b"a"[..], 2)][..], &[(b"a", 1), (b"b", 3)], &[(b"a", 4), (b"b", 3)], &[(b"a", 1), (b"c", 9)], &[(b"a", 9)]]
    {
        assert!(model().check(&contents(wrong), Crash::Power).is_err(), "{wrong:?}");
    }
}

#[test]
fn range_deletes_and_reading_the_past() {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    let mut model = model();
    let tree = model.current(0).unwrap();
    model.begin(&[Change::DeleteRange(0, (Included(Box::from(&b"a"[..])), Excluded(Box::from(&b"b"[..]))))]);
    assert_eq!(model.get(tree, b"a", 4), None);
    assert_eq!(model.get(tree, b"a", 3), Some(Spec { tag: 4, len: 12 }));
    assert_eq!(model.scan(tree, &(Unbounded, Unbounded), 2).len(), 2);
    model.cut_back_to(2);
    assert_eq!((model.head(), model.get(tree, b"a", 9)), (2, Some(Spec { tag: 2, len: 12 })));
}

#[test]
fn keyspaces_may_exist_or_not_only_while_they_are_created_or_dropped() {
    let with = |name: &str| {
        let mut contents = contents(&[]);
        contents.insert(name.to_owned(), Vec::new());
        contents
    };
    let mut model = Model::default();
    assert!(model.check(&with("alpha"), Crash::Kill).is_err());
    model.begin_create(1);
    assert!(model.check(&with("alpha"), Crash::Kill).is_ok() && model.check(&contents(&[]), Crash::Kill).is_ok());
    model.acknowledge_change();
    assert!(model.check(&contents(&[]), Crash::Power).unwrap_err().to_string().contains("`alpha` is missing"));
    model.begin_drop(1);
    assert!(model.check(&with("alpha"), Crash::Kill).is_ok() && model.check(&contents(&[]), Crash::Kill).is_ok());
    model.acknowledge_change();
    assert!(model.check(&with("alpha"), Crash::Power).unwrap_err().to_string().contains("`alpha` is back"));
}
