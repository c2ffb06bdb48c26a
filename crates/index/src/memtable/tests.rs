//! The memtable against an ordered map: the same entries give the same results for keys of any shape.

mod concurrent;
mod ranges;
mod shapes;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bifold_contract::{Entry, Kind, RangeTombstone, SeqNo};
use proptest::{collection::vec, prelude::*, sample::Index};

use super::{Memtable, order::Order, order::SLOTS};
use crate::cursor::Cursor;

/// An entry that owns its bytes.
type Owned = (Vec<u8>, SeqNo, Kind, Vec<u8>);

/// The reference model.
#[derive(Default)]
pub(super) struct Model(BTreeMap<StreamKey, (Kind, Vec<u8>)>);

/// The order of streams.
type StreamKey = (Vec<u8>, Reverse<SeqNo>);

impl Model {
    fn insert(&mut self, entry: &Entry<'_>) {
        self.0.insert((entry.key.to_vec(), Reverse(entry.seqno)), (entry.kind, entry.payload.to_vec()));
    }

    fn all(&self) -> Vec<Owned> {
        self.0.iter().map(|((key, seqno), (kind, payload))| (key.clone(), seqno.0, *kind, payload.clone())).collect()
    }
}

fn owned(entry: Entry<'_>) -> Owned {
    (entry.key.to_vec(), entry.seqno, entry.kind, entry.payload.to_vec())
}

/// All entries from the cursor's position to the end it moves to.
fn walk<C: Cursor>(cursor: &mut C, step: impl Fn(&mut C) -> bifold_contract::Result<()>) -> Vec<Owned> {
    let mut all = Vec::new();
    while let Some(entry) = cursor.entry() {
        all.push(owned(entry));
        step(cursor).unwrap();
    }
    all
}

/// A memtable and its model with these keys, with sequence numbers from 1; every fifth entry is a tombstone.
pub(super) fn filled(keys: &[Vec<u8>]) -> (Arc<Memtable>, Model) {
    let (memtable, mut model) = (Arc::new(Memtable::new()), Model::default());
    let mut writer = memtable.writer();
    for (key, seqno) in keys.iter().zip(1..) {
        let payload = vec![seqno as u8; seqno as usize % 7];
        let entry = if seqno % 5 == 0 { Entry::delete(key, seqno) } else { Entry::inline(key, seqno, &payload) };
        writer.insert(&entry);
        model.insert(&entry);
    }
    drop(writer);
    (memtable, model)
}

/// Checks streams in both directions, counters, and gets and seeks around every key.
pub(super) fn check(memtable: &Arc<Memtable>, model: &Model) {
    let all = model.all();
    let mut cursor = memtable.cursor();
    assert_eq!(cursor.entry(), None, "a new cursor has no entry");
    cursor.first().unwrap();
    assert!(walk(&mut cursor, Cursor::next) == all, "forward");
    assert_eq!(cursor.entry(), None);
    cursor.last().unwrap();
    let backward = walk(&mut cursor, Cursor::prev);
    assert!(backward.iter().rev().eq(&all), "backward");

    let probes = all.iter().flat_map(|(key, ..)| neighbours(key)).chain([vec![], vec![0], vec![0xff; 40]]);
    // Miri is a thousand times slower than the processor, hence a sample.
    let every = if cfg!(miri) { 23 } else { 1 };
    for probe in probes.collect::<BTreeSet<_>>().into_iter().step_by(every) {
        check_around(memtable, &all, &probe);
    }
    assert_eq!(memtable.entries(), all.len() as u64);
    assert_eq!(memtable.tombstones(), all.iter().filter(|entry| entry.2 == Kind::Delete).count() as u64);
    let keys: BTreeSet<_> = all.iter().map(|entry| &entry.0).collect();
    assert_eq!(memtable.keys(), keys.len() as u64);
    assert_eq!(memtable.max_seqno(), all.iter().map(|entry| entry.1).max());
    assert_eq!(memtable.min_seqno(), all.iter().map(|entry| entry.1).min());
    assert!(memtable.data_bytes() <= memtable.bytes());
    assert!(memtable.data_bytes() >= all.iter().map(|entry| entry.3.len()).sum());
}

/// The key, the keys right after and right before it, and its first half.
fn neighbours(key: &[u8]) -> [Vec<u8>; 4] {
    let (mut after, mut before) = (key.to_vec(), key.to_vec());
    after.push(0);
    match before.last_mut() {
        Some(last) if *last > 0 => *last -= 1,
        _ => drop(before.pop()),
    }
    [key.to_vec(), after, before, key[..key.len() / 2].to_vec()]
}

fn check_around(memtable: &Arc<Memtable>, all: &[Owned], probe: &[u8]) {
    let newest = all.len() as SeqNo;
    let mut cursor = memtable.cursor();
    for snapshot in [0, 1, newest / 2, newest, SeqNo::MAX] {
        let at = all.partition_point(|(key, seqno, ..)| (&key[..], Reverse(*seqno)) < (probe, Reverse(snapshot)));
        let found = all.get(at).filter(|entry| entry.0 == probe);
        assert_eq!(memtable.get(probe, snapshot).map(owned).as_ref(), found, "get {probe:?} at {snapshot}");
        cursor.seek(probe, snapshot).unwrap();
        assert_eq!(cursor.entry().map(owned).as_ref(), all.get(at), "seek {probe:?} at {snapshot}");
        assert_eq!(cursor.payload(), all.get(at).map_or(&[][..], |entry| &entry.3));
        cursor.prev().unwrap();
        let before = at.checked_sub(1).filter(|_| at < all.len()).map(|at| &all[at]);
        assert_eq!(cursor.entry().map(owned).as_ref(), before, "before {probe:?} at {snapshot}");
    }
    let at = all.partition_point(|(key, ..)| &key[..] < probe);
    cursor.seek_before(probe).unwrap();
    let before = at.checked_sub(1).map(|at| &all[at]);
    assert_eq!(cursor.entry().map(owned).as_ref(), before, "seek before {probe:?}");
    cursor.next().unwrap();
    let here = all.get(at).filter(|_| at > 0);
    assert_eq!(cursor.entry().map(owned).as_ref(), here, "next after seek before {probe:?}");
}

/// Keys with equal slices, broken prefixes and many versions.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let prefix = prop_oneof![
        Just(vec![]),
        Just(b"user".to_vec()),
        Just(b"a long prefix that all of these share:".to_vec()),
        Just(b"a long prefix that all of these share!".to_vec()),
        Just(vec![0; 9]),
        Just(vec![0xff; 9]),
    ];
    let rest = prop_oneof![
        vec(any::<u8>(), 1..12),
        vec(prop_oneof![Just(0), Just(b'a'), Just(0xff)], 1..20),
        (0..300_u32).prop_map(|n| format!("{n:010}").into_bytes()),
        (0..3000_u32).prop_map(|n| n.to_be_bytes().to_vec()),
    ];
    (prefix, rest).prop_map(|(prefix, rest)| [prefix, rest].concat())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 96 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn it_behaves_like_an_ordered_map(keys in vec(key(), 1..if cfg!(miri) { 60 } else { 400 })) {
        let (memtable, model) = filled(&keys);
        check(&memtable, &model);
    }

    #[test]
    fn a_cursor_may_change_direction_at_any_step(
        keys in vec(key(), 1..150),
        picks in vec(any::<Index>(), 100),
        start in any::<Index>(),
        turns in vec(any::<bool>(), 80),
    ) {
        let keys: Vec<_> = picks.iter().map(|pick| pick.get(&keys).clone()).collect();
        let (memtable, model) = filled(&keys);
        let all = model.all();
        let mut at = start.index(all.len());
        let mut cursor = memtable.cursor();
        cursor.seek(&all[at].0, all[at].1).unwrap();
        for forward in turns {
            prop_assert_eq!(cursor.entry().map(owned), Some(all[at].clone()));
            if forward { cursor.next().unwrap() } else { cursor.prev().unwrap() }
            match if forward { at.checked_add(1) } else { at.checked_sub(1) } {
                Some(next) if next < all.len() => at = next,
                _ => {
                    prop_assert_eq!(cursor.entry(), None, "it moved past the end");
                    break;
                }
            }
        }
    }

    #[test]
    fn an_order_behaves_like_a_list_with_insertions(ranks in vec(any::<Index>(), SLOTS)) {
        let (mut order, mut model) = (Order::ascending(0), Vec::new());
        for rank in ranks {
            let rank = rank.index(model.len() + 1);
            order = order.with_next_slot_at(rank);
            model.insert(rank, model.len());
            prop_assert_eq!((0..order.len()).map(|rank| order.slot(rank)).collect::<Vec<_>>(), model.clone());
            prop_assert_eq!(order.is_ascending(), model.is_sorted());
        }
        prop_assert_eq!(order.len(), SLOTS);
    }
}

#[test]
fn an_empty_memtable_finds_nothing_and_takes_no_memory() {
    let memtable = Arc::new(Memtable::new());
    assert!(memtable.is_empty());
    assert_eq!(memtable.bytes(), 0);
    assert_eq!((memtable.min_seqno(), memtable.max_seqno()), (None, None));
    assert!(memtable.range_tombstones().is_empty());
    assert_eq!(memtable.get(b"a", SeqNo::MAX), None);
    let mut cursor = memtable.cursor();
    for place in [Cursor::first, Cursor::last, Cursor::next, Cursor::prev] {
        place(&mut cursor).unwrap();
        assert_eq!(cursor.entry(), None);
    }
    cursor.seek(b"a", 1).unwrap();
    assert_eq!(cursor.entry(), None);
    cursor.seek_before(b"a").unwrap();
    assert_eq!(cursor.entry(), None);
    assert_eq!(cursor.payload(), b"");
}

#[test]
#[should_panic(expected = "number 7 after 7")]
fn sequence_numbers_must_ascend() {
    let memtable = Memtable::new();
    memtable.writer().insert(&Entry::inline(b"a", 7, b""));
    memtable.writer().insert(&Entry::inline(b"b", 7, b""));
}

#[test]
fn a_writer_that_panicked_leaves_a_memtable_that_works() {
    let memtable = Memtable::new();
    memtable.writer().insert(&Entry::inline(b"a", 1, b"x"));
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        memtable.writer().insert(&Entry::inline(b"", 2, b"an empty key"));
    }));
    assert!(refused.is_err());
    memtable.writer().insert(&Entry::inline(b"b", 2, b"y"));
    assert_eq!(memtable.get(b"b", 2), Some(Entry::inline(b"b", 2, b"y")));
    assert_eq!(memtable.entries(), 2);
}

#[test]
fn range_tombstones_are_visible_once_written() {
    let memtable = Memtable::new();
    let range = |start: &str, end: Option<&str>, seqno| RangeTombstone {
        start: start.as_bytes().into(),
        end: end.map(|end| end.as_bytes().into()),
        seqno,
    };
    memtable.writer().delete_range(range("b", Some("d"), 3));
    assert!(!memtable.is_empty(), "a memtable with only a range tombstone must be flushed");
    let before = memtable.range_tombstones();
    memtable.writer().insert(&Entry::inline(b"c", 4, b""));
    memtable.writer().delete_range(range("c", None, 5));
    let after = memtable.range_tombstones();
    assert_eq!(
        (before.covering(b"c", 9), before.covering(b"e", 9)),
        (3, 0),
        "a set does not change after it was taken"
    );
    assert_eq!((after.covering(b"c", 9), after.covering(b"c", 4), after.covering(b"e", 9)), (5, 3, 5));
    assert_eq!((memtable.entries(), memtable.min_seqno(), memtable.max_seqno()), (1, Some(3), Some(5)));
}
