//! The merge must move exactly as a cursor over one sorted vector of all entries.

use bifold_contract::{Kind, Result, SeqNo};
use proptest::prelude::*;

use super::{
    MergeCursor,
    vec_cursor::{OwnedEntry, VecCursor, merge_of},
};
use crate::cursor::Cursor;

fn entry(key: &str, seqno: SeqNo) -> OwnedEntry {
    OwnedEntry { key: key.into(), seqno, kind: Kind::Inline, payload: seqno.to_string().into() }
}

fn current(cursor: &impl Cursor) -> Option<OwnedEntry> {
    let entry = cursor.entry().map(OwnedEntry::of);
    assert_eq!(cursor.payload().to_vec(), entry.as_ref().map_or(vec![], |e| e.payload.clone()));
    entry
}

#[test]
fn versions_of_a_key_come_newest_first_whatever_their_source() -> Result<()> {
    let mut merge = merge_of([
        VecCursor::new(vec![entry("a", 3), entry("b", 2)]),
        VecCursor::new(vec![entry("a", 9), entry("a", 1)]),
    ]);
    assert_eq!(current(&merge), None);
    merge.first()?;
    for expected in [Some(entry("a", 9)), Some(entry("a", 3)), Some(entry("a", 1)), Some(entry("b", 2)), None, None] {
        assert_eq!(current(&merge), expected);
        merge.next()?;
    }
    Ok(())
}

#[test]
fn keys_that_differ_only_in_length_after_zeros_are_ordered_in_full() -> Result<()> {
    let mut merge =
        merge_of([VecCursor::new(vec![entry("k\0", 1)]), VecCursor::new(vec![entry("k", 2), entry("k\0\0", 3)])]);
    merge.first()?;
    for expected in [entry("k", 2), entry("k\0", 1), entry("k\0\0", 3)] {
        assert_eq!(current(&merge), Some(expected));
        merge.next()?;
    }
    Ok(())
}

#[test]
fn a_merge_of_nothing_has_no_entry() -> Result<()> {
    let mut merge = MergeCursor::new(vec![]);
    merge.first()?;
    merge.next()?;
    merge.last()?;
    merge.prev()?;
    assert_eq!(current(&merge), None);
    Ok(())
}

#[test]
fn after_an_error_it_has_no_entry_and_repeats_the_error() {
    let intact = VecCursor::new(vec![entry("a", 1), entry("d", 2)]);
    let broken = VecCursor::new(vec![entry("b", 3), entry("c", 4)]).failing_at(1);
    let mut merge = merge_of([intact, broken]);
    merge.first().unwrap();
    merge.next().unwrap();
    assert_eq!(current(&merge), Some(entry("b", 3)));
    let first = merge.next().unwrap_err().to_string();
    assert_eq!(current(&merge), None);
    for again in [merge.next(), merge.prev(), merge.first(), merge.last(), merge.seek(b"a", 1), merge.seek_before(b"z")]
    {
        assert_eq!(again.unwrap_err().to_string(), first);
    }
    assert_eq!(current(&merge), None);
}

#[derive(Clone, Debug)]
enum Move {
    First,
    Last,
    Seek(Vec<u8>, SeqNo),
    SeekBefore(Vec<u8>),
    Next,
    Prev,
}

fn make(cursor: &mut impl Cursor, step: &Move) -> Result<()> {
    match step {
        Move::First => cursor.first(),
        Move::Last => cursor.last(),
        Move::Seek(key, seqno) => cursor.seek(key, *seqno),
        Move::SeekBefore(key) => cursor.seek_before(key),
        Move::Next => cursor.next(),
        Move::Prev => cursor.prev(),
    }
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    // With a long common prefix the cached prefixes are equal; with a short one they decide.
    let tail = prop::collection::vec(prop_oneof![Just(0), b'a'..b'd'], 1..3);
    (prop::bool::ANY, tail).prop_map(|(long, tail)| [if long { b"01234567".as_slice() } else { b"" }, &tail].concat())
}

fn a_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        1 => Just(Move::First),
        1 => Just(Move::Last),
        2 => (key(), 0..60u64).prop_map(|(key, seqno)| Move::Seek(key, seqno)),
        2 => key().prop_map(Move::SeekBefore),
        10 => Just(Move::Next),
        10 => Just(Move::Prev),
    ]
}

proptest! {
    #[test]
    fn a_merge_moves_like_one_sorted_vector(
        keys in prop::collection::vec((key(), 0..9usize), 0..50),
        sources in 1..9usize,
        moves in prop::collection::vec(a_move(), 1..60),
    ) {
        let mut pieces = vec![vec![]; sources];
        for (seqno, (key, source)) in (1..).zip(keys) {
            pieces[source % sources].push(OwnedEntry { key, seqno, kind: Kind::Inline, payload: vec![1] });
        }
        let mut whole = VecCursor::new(pieces.concat());
        let mut merge = merge_of(pieces.into_iter().map(VecCursor::new));
        for step in &moves {
            make(&mut whole, step).unwrap();
            make(&mut merge, step).unwrap();
            prop_assert_eq!(current(&merge), current(&whole), "after {:?}", step);
        }
    }
}
