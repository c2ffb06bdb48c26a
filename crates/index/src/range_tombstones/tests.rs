//! Every result is checked against the definition, which looks at all tombstones one by one.

use bifold_contract::{RangeTombstone, SeqNo};
use proptest::prelude::*;

use super::{Hint, RangeTombstones};

fn tombstone(start: &str, end: Option<&str>, seqno: SeqNo) -> RangeTombstone {
    RangeTombstone { start: start.as_bytes().into(), end: end.map(|end| end.as_bytes().into()), seqno }
}

fn covering_by_definition(tombstones: &[RangeTombstone], key: &[u8], snapshot: SeqNo) -> SeqNo {
    let spans = |t: &&RangeTombstone| t.contains(key) && t.seqno <= snapshot;
    tombstones.iter().filter(spans).map(|t| t.seqno).max().unwrap_or(0)
}

#[test]
fn an_empty_set_deletes_nothing() {
    let none = RangeTombstones::default();
    assert!(none.is_empty());
    assert_eq!(none.covering(b"a", SeqNo::MAX), 0);
    assert!(RangeTombstones::new(&[tombstone("c", Some("c"), 3), tombstone("d", Some("a"), 4)]).is_empty());
}

#[test]
fn ends_are_exclusive_and_an_open_end_reaches_past_every_key() {
    let set = RangeTombstones::new(&[tombstone("b", Some("d"), 5), tombstone("x", None, 7)]);
    let at = |key: &str| set.covering(key.as_bytes(), SeqNo::MAX);
    assert_eq!([at("a"), at("b"), at("c"), at("d"), at("w"), at("x"), at("\u{7f}\u{7f}")], [0, 5, 5, 0, 0, 7, 7]);
}

#[test]
fn a_snapshot_does_not_see_tombstones_newer_than_itself() {
    let set = RangeTombstones::new(&[tombstone("a", Some("z"), 5), tombstone("a", Some("z"), 9)]);
    assert_eq!([4, 5, 8, 9].map(|snapshot| set.covering(b"k", snapshot)), [0, 5, 5, 9]);
}

#[test]
fn clipping_joins_fragments_of_one_tombstone_again() {
    let given = [tombstone("a", Some("z"), 7), tombstone("e", Some("m"), 9)];
    let set = RangeTombstones::new(&given);
    assert_eq!(set.clipped(None, None), given);
    assert_eq!(
        set.clipped(Some(b"f"), Some(b"p")),
        [tombstone("f", Some("m"), 9), tombstone("f", Some("p"), 7)].as_slice()
    );
    assert_eq!(set.clipped(Some(b"z"), None), []);
}

#[test]
fn filtering_removes_single_numbers() {
    let set = RangeTombstones::new(&[tombstone("a", Some("z"), 7), tombstone("e", Some("m"), 9)]);
    let old = set.filtered(|_, _, seqno| seqno < 8);
    assert_eq!(old.clipped(None, None), [tombstone("a", Some("z"), 7)]);
    assert!(set.filtered(|_, _, _| false).is_empty());
}

fn key() -> impl Strategy<Value = Box<[u8]>> {
    prop::collection::vec(b'a'..b'e', 1..3).prop_map(Vec::into_boxed_slice)
}

prop_compose! {
    fn any_tombstone()(start in key(), end in prop::option::weighted(0.9, key()), seqno in 1..20u64) -> RangeTombstone {
        RangeTombstone { start, end, seqno }
    }
}

proptest! {
    #[test]
    fn lookups_follow_the_definition(
        tombstones in prop::collection::vec(any_tombstone(), 0..12),
        lookups in prop::collection::vec((key(), 0..22u64), 1..40),
    ) {
        let set = RangeTombstones::new(&tombstones);
        let mut hint = Hint::default();
        for (key, snapshot) in lookups {
            let expected = covering_by_definition(&tombstones, &key, snapshot);
            prop_assert_eq!(set.covering(&key, snapshot), expected);
            prop_assert_eq!(set.covering_near(&mut hint, &key, snapshot), expected);
        }
    }

    #[test]
    fn a_set_for_some_snapshots_gives_them_the_same_results(
        tombstones in prop::collection::vec(any_tombstone(), 0..12),
        mut snapshots in prop::collection::vec(0..22u64, 0..4),
        key in key(),
    ) {
        snapshots.sort_unstable();
        let set = RangeTombstones::for_snapshots(&tombstones, &snapshots);
        for snapshot in snapshots {
            prop_assert_eq!(set.covering(&key, snapshot), covering_by_definition(&tombstones, &key, snapshot));
        }
    }

    #[test]
    fn the_pieces_of_a_clipped_set_give_the_same_results_as_the_whole(
        tombstones in prop::collection::vec(any_tombstone(), 0..12),
        boundary in key(),
        lookups in prop::collection::vec((key(), 0..22u64), 1..20),
    ) {
        let set = RangeTombstones::new(&tombstones);
        let (low, high) = (set.clipped(None, Some(&boundary)), set.clipped(Some(&boundary), None));
        for (key, snapshot) in lookups {
            let (side, other) = if key < boundary { (&low, &high) } else { (&high, &low) };
            prop_assert_eq!(covering_by_definition(side, &key, snapshot), set.covering(&key, snapshot));
            prop_assert_eq!(covering_by_definition(other, &key, snapshot), 0);
        }
    }
}
