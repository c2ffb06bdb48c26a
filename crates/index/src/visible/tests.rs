//! The yielded entries are checked against a map with the same history up to the snapshot.

use std::{collections::BTreeMap, ops::Bound};

use bifold_contract::{Kind, RangeTombstone, Result, SeqNo};
use proptest::prelude::*;

use super::{STEPS_MAX, Visible};
use crate::{
    merge::vec_cursor::{OwnedEntry, VecCursor, merge_of},
    range_tombstones::RangeTombstones,
};

type Bounds = (Bound<Box<[u8]>>, Bound<Box<[u8]>>);
const EVERYTHING: Bounds = (Bound::Unbounded, Bound::Unbounded);

fn put(key: &str, seqno: SeqNo) -> OwnedEntry {
    OwnedEntry { key: key.into(), seqno, kind: Kind::Inline, payload: seqno.to_string().into() }
}

fn delete(key: &str, seqno: SeqNo) -> OwnedEntry {
    OwnedEntry { key: key.into(), seqno, kind: Kind::Delete, payload: vec![] }
}

fn visible(sources: Vec<VecCursor>, tombstones: &[RangeTombstone], snapshot: SeqNo, bounds: Bounds) -> Visible {
    let make = Box::new(move || merge_of(sources.clone()));
    Visible::new(make, RangeTombstones::new(tombstones), (snapshot, 0), bounds.0, bounds.1)
}

/// Takes all entries, each from the end that `from_back` gives (repeatedly), and returns them in key order.
fn drain(mut visible: Visible, from_back: &[bool]) -> Result<Vec<(String, SeqNo)>> {
    let (mut low, mut high) = (vec![], vec![]);
    for &back in from_back.iter().cycle() {
        let item = if back { visible.next_back()? } else { visible.next_front()? };
        let Some(item) = item else { break };
        assert_eq!(item.payload, item.seqno.to_string().as_bytes());
        let entry = (String::from_utf8_lossy(&item.key).into_owned(), item.seqno);
        if back { high.push(entry) } else { low.push(entry) }
    }
    assert_eq!((visible.next_front()?, visible.next_back()?), (None, None), "an end that is done stays done");
    low.extend(high.into_iter().rev());
    Ok(low)
}

#[test]
fn a_snapshot_sees_the_newest_version_that_is_not_newer_than_itself() -> Result<()> {
    let source = VecCursor::new(vec![put("a", 1), put("a", 5), put("b", 6), delete("c", 4), put("c", 2), put("d", 3)]);
    for from_back in [[false], [true]] {
        let all = drain(visible(vec![source.clone()], &[], 5, EVERYTHING), &from_back)?;
        assert_eq!(all, [("a".into(), 5), ("d".into(), 3)]);
        let early = drain(visible(vec![source.clone()], &[], 3, EVERYTHING), &from_back)?;
        assert_eq!(early, [("a".into(), 1), ("c".into(), 2), ("d".into(), 3)]);
    }
    Ok(())
}

#[test]
fn many_versions_of_a_key_are_skipped_from_either_end() -> Result<()> {
    for versions in [STEPS_MAX - 1, STEPS_MAX, STEPS_MAX + 1, 3 * STEPS_MAX] {
        let last = versions as SeqNo;
        let of_all = |n| [put("a", n), put("b", 1000 + n), put("c", 2000 + n), delete("d", 3000 + n)];
        let source = VecCursor::new((1..=last).flat_map(of_all).collect());
        for snapshot in [last, last / 2, 1000 + last / 2, 1001, 2001, 2000 + last, 9999] {
            let newest = |base: SeqNo| Some(snapshot.min(base + last)).filter(|&seqno| seqno > base);
            let expected: Vec<_> = [("a", newest(0)), ("b", newest(1000)), ("c", newest(2000))]
                .into_iter()
                .filter_map(|(key, seqno)| Some((key.to_owned(), seqno?)))
                .collect();
            for from_back in [&[false][..], &[true], &[false, true]] {
                let seen = drain(visible(vec![source.clone()], &[], snapshot, EVERYTHING), from_back)?;
                assert_eq!(seen, expected, "{versions} versions at {snapshot}, {from_back:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn keys_can_be_iterated_without_reading_values() -> Result<()> {
    let mut visible = visible(vec![VecCursor::new(vec![put("a", 1), put("b", 2), put("c", 3)])], &[], 9, EVERYTHING);
    assert_eq!((visible.front(), visible.back()), (None, None));
    assert!(visible.advance_back()? && visible.advance_front()?);
    assert_eq!(visible.front().map(OwnedEntry::of), Some(put("a", 1)));
    assert_eq!(visible.back().map(OwnedEntry::of), Some(put("c", 3)));
    assert!(visible.advance_front()? && !visible.advance_front()?);
    assert_eq!((visible.front(), visible.back().map(|e| e.seqno)), (None, Some(3)));
    Ok(())
}

#[test]
fn an_error_is_repeated_by_both_ends() {
    for from_back in [false, true] {
        let broken = VecCursor::new(vec![put("a", 1), put("b", 2), put("c", 3)]).failing_at(1);
        let mut visible = visible(vec![broken], &[], 9, EVERYTHING);
        let mut next = |back| if back { visible.next_back() } else { visible.next_front() };
        if !from_back {
            assert!(next(from_back).unwrap().is_some());
        }
        // Going backward the error appears one key earlier: that end looks ahead for newer versions.
        let first = next(from_back).unwrap_err().to_string();
        assert_eq!(next(false).unwrap_err().to_string(), first);
        assert_eq!(next(true).unwrap_err().to_string(), first);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Put(u8),
    Delete(u8),
    DeleteRange(u8, Option<u8>),
}

fn op() -> impl Strategy<Value = Op> {
    // Key 0 is hot, so that it gets more versions than the step limit.
    let key = || prop_oneof![1 => Just(0), 2 => 0..8u8];
    prop_oneof![
        12 => key().prop_map(Op::Put),
        4 => key().prop_map(Op::Delete),
        1 => (key(), prop::option::weighted(0.9, key())).prop_map(|(start, end)| Op::DeleteRange(start, end)),
    ]
}

fn name(key: u8) -> String {
    // Every second key extends the previous one, so that bounds fall between a key and its extension.
    format!("{}{}", (b'a' + key / 2) as char, if key % 2 == 1 { "\0" } else { "" })
}

fn bound() -> impl Strategy<Value = Bound<Box<[u8]>>> {
    (0..3, 0..9u8).prop_map(|(kind, key)| match kind {
        0 => Bound::Unbounded,
        1 => Bound::Included(name(key).into_bytes().into()),
        _ => Bound::Excluded(name(key).into_bytes().into()),
    })
}

proptest! {
    #[test]
    fn a_snapshot_sees_the_result_of_the_history_up_to_it(
        history in prop::collection::vec((op(), 0..4usize), 0..80),
        snapshot in 0..90u64,
        lower in bound(),
        upper in bound(),
        from_back in prop::collection::vec(prop::bool::ANY, 1..6),
    ) {
        let mut model = BTreeMap::new();
        let mut pieces = vec![vec![]; 4];
        let mut tombstones = vec![];
        for (seqno, (op, source)) in (1..).zip(history) {
            let seen = seqno <= snapshot;
            match op {
                Op::Put(key) => {
                    pieces[source].push(put(&name(key), seqno));
                    if seen { model.insert(name(key), seqno); }
                }
                Op::Delete(key) => {
                    pieces[source].push(delete(&name(key), seqno));
                    if seen { model.remove(&name(key)); }
                }
                Op::DeleteRange(start, end) => {
                    let end = end.map(|end| name(end.max(start + 1)).into_bytes().into_boxed_slice());
                    let tombstone = RangeTombstone { start: name(start).into_bytes().into(), end, seqno };
                    if seen { model.retain(|key, _| !tombstone.contains(key.as_bytes())); }
                    tombstones.push(tombstone);
                }
            }
        }
        let within = |key: &str| !super::is_below(key.as_bytes(), &lower) && !super::is_above(key.as_bytes(), &upper);
        let expected: Vec<_> = model.into_iter().filter(|(key, _)| within(key)).collect();
        let sources = pieces.into_iter().map(VecCursor::new).collect();
        let seen = drain(visible(sources, &tombstones, snapshot, (lower.clone(), upper.clone())), &from_back).unwrap();
        prop_assert_eq!(seen, expected);
    }
}

/// A call on an end.
#[derive(Clone, Debug)]
enum Move {
    Next,
    NextBack,
    Seek(String),
    SeekBack(String),
    Pass(String),
    PassBack(String),
}

fn any_move() -> impl Strategy<Value = Move> {
    // Also before, between and behind all keys.
    let key = || (0..10u8, 0..3usize).prop_map(|(key, tail)| name(key) + ["", "\0", "z"][tail]);
    prop_oneof![
        6 => Just(Move::Next),
        6 => Just(Move::NextBack),
        3 => key().prop_map(Move::Seek),
        3 => key().prop_map(Move::SeekBack),
        1 => key().prop_map(Move::Pass),
        1 => key().prop_map(Move::PassBack),
    ]
}

proptest! {
    /// The model is a list of keys, and where the two ends are in it.
    #[test]
    fn each_end_goes_where_it_is_sought_and_never_past_the_other(
        history in prop::collection::vec((0..10u8, prop::bool::ANY, 0..3usize), 0..60),
        snapshot in 20..70u64,
        lower in bound(),
        upper in bound(),
        moves in prop::collection::vec(any_move(), 0..40),
    ) {
        let mut model = BTreeMap::new();
        let mut pieces = vec![vec![]; 3];
        for (seqno, (key, is_put, source)) in (1..).zip(history) {
            pieces[source].push(if is_put { put(&name(key), seqno) } else { delete(&name(key), seqno) });
            match is_put {
                _ if seqno > snapshot => {}
                true => drop(model.insert(name(key), seqno)),
                false => drop(model.remove(&name(key))),
            }
        }
        let within = |key: &str| !super::is_below(key.as_bytes(), &lower) && !super::is_above(key.as_bytes(), &upper);
        let all: Vec<(String, SeqNo)> = model.into_iter().filter(|(key, _)| within(key)).collect();
        let (mut first, mut end) = (0, all.len());
        let sources = pieces.into_iter().map(VecCursor::new).collect();
        let mut visible = visible(sources, &[], snapshot, (lower.clone(), upper.clone()));
        for one in moves {
            let (expected, found) = match &one {
                Move::Next if first < end => {
                    first += 1;
                    (all.get(first - 1), visible.next_front().unwrap())
                }
                Move::Next => {
                    first = first.max(end);
                    (None, visible.next_front().unwrap())
                }
                Move::NextBack if first < end => {
                    end -= 1;
                    (all.get(end), visible.next_back().unwrap())
                }
                Move::NextBack => {
                    end = end.min(first);
                    (None, visible.next_back().unwrap())
                }
                Move::Seek(key) => {
                    first = all.partition_point(|(k, _)| k < key);
                    visible.seek_front(key.as_bytes()).unwrap();
                    continue;
                }
                Move::Pass(key) | Move::PassBack(key) if !within(key) => continue,
                Move::Pass(key) => {
                    first = all.partition_point(|(k, _)| k <= key);
                    visible.pass_front(key.as_bytes()).unwrap();
                    continue;
                }
                Move::PassBack(key) => {
                    end = all.partition_point(|(k, _)| k < key);
                    visible.pass_back(key.as_bytes()).unwrap();
                    continue;
                }
                Move::SeekBack(key) => {
                    end = all.partition_point(|(k, _)| k <= key);
                    visible.seek_back(key.as_bytes()).unwrap();
                    continue;
                }
            };
            let found = found.map(|item| (String::from_utf8(item.key.into()).unwrap(), item.seqno));
            prop_assert_eq!(found.as_ref(), expected, "{:?}", one);
        }
    }
}

#[test]
fn entries_without_payloads_are_the_same_entries() -> Result<()> {
    for back in [false, true] {
        let source = VecCursor::new(vec![put("a", 1), put("b", 2), delete("c", 3)]);
        let mut visible = visible(vec![source], &[], 9, EVERYTHING);
        visible.leave_out_payloads();
        let mut keys = Vec::new();
        while let Some(item) = if back { visible.next_back()? } else { visible.next_front()? } {
            assert!(item.payload.is_empty());
            keys.push((item.key[0], item.seqno));
        }
        keys.sort_unstable();
        assert_eq!(keys, [(b'a', 1), (b'b', 2)]);
    }
    Ok(())
}
