//! Range tombstones of a memtable against their definition, which looks at all of them one by one.

use bifold_contract::{RangeTombstone, SeqNo};
use proptest::{collection::vec, prelude::*};

use super::Memtable;
use crate::range_tombstones::RangeTombstones;

const RANGES_MAX: usize = if cfg!(miri) { 70 } else { 300 };

type FromTo<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

fn range(start: u64, end: Option<u64>, seqno: SeqNo) -> RangeTombstone {
    let key = |number: u64| format!("{number:06}").into_bytes().into();
    RangeTombstone { start: key(start), end: end.map(key), seqno }
}

fn by_definition(all: &[RangeTombstone], key: &[u8], snapshot: SeqNo) -> SeqNo {
    all.iter().filter(|t| t.seqno <= snapshot && t.contains(key)).map(|t| t.seqno).max().unwrap_or(0)
}

/// Checks what a memtable says about `key`.
fn check(memtable: &Memtable, all: &[RangeTombstone], key: &[u8], snapshot: SeqNo) {
    let (ranges, expected) = (memtable.range_tombstones(), by_definition(all, key, snapshot));
    assert_eq!(ranges.covering(key, snapshot), expected, "{key:?} at {snapshot} of {}", all.len());
    check_seen(memtable, (Some(key), Some(key)), (key, snapshot), expected);
    let after = [key, &[0]].concat();
    let here = ranges.clipped(Some(key), Some(&after));
    assert!(here.iter().map(|t| t.seqno).eq(all.iter().filter(|t| t.contains(key)).map(|t| t.seqno)), "{key:?}");
    assert!(here.iter().all(|t| *t.start == *key && t.end.as_deref() == Some(&after[..])));
}

/// The same for what an iterator between some bounds takes.
fn check_seen(memtable: &Memtable, bounds: FromTo<'_>, (key, snapshot): (&[u8], SeqNo), expected: SeqNo) {
    let seen = memtable.range_tombstones().seen_by(snapshot, bounds.0, bounds.1);
    assert!(seen.iter().all(|t| t.seqno <= snapshot));
    let seen = RangeTombstones::for_snapshots(&seen, &[snapshot]);
    assert_eq!(seen.covering(key, snapshot), expected, "{key:?} at {snapshot}, {bounds:?}");
}

/// Few wide ranges, some empty ones, many narrow ones, and now and then one without an end.
fn scattered(count: u64) -> (Vec<RangeTombstone>, impl FnMut(u64) -> u64) {
    let mut state = 7_u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut all = Vec::new();
    for seqno in (1..=count).map(|n| 3 * n) {
        let start = random(1000);
        let end = match random(100) {
            0 => None,
            1..3 => Some(start + random(500)),
            3..6 => Some(start.saturating_sub(random(3))),
            _ => Some(start + random(12)),
        };
        all.push(range(start, end, seqno));
    }
    (all, random)
}

#[test]
fn lookups_among_thousands_of_ranges_follow_the_definition_at_any_time_and_for_any_snapshot() {
    let count = if cfg!(miri) { 150 } else { 1500 };
    let ((all, mut random), memtable) = (scattered(count), Memtable::new());
    for (at, tombstone) in all.iter().enumerate() {
        memtable.writer().delete_range(tombstone.clone());
        if at % 37 == 0 {
            let (key, snapshot) = (range(random(1020), None, 0).start, random(3 * at as u64 + 6));
            check(&memtable, &all[..=at], &key, snapshot);
        }
    }
    assert!(memtable.range_tombstone_copies().iter().all(|t| t.end.as_ref().is_none_or(|end| t.start < *end)));
    for at in 0..if cfg!(miri) { 5 } else { 150 } {
        let key = range(random(1020), None, 0).start;
        let snapshot = if at % 3 == 0 { SeqNo::MAX } else { random(3 * count + 6) };
        check(&memtable, &all, &key, snapshot);
        if at % 15 < 2 {
            let expected = by_definition(&all, &key, snapshot);
            for bounds in [(None, None), (Some(&*key), None), (None, Some(&*key))] {
                check_seen(&memtable, bounds, (&*key, snapshot), expected);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 48 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn lookups_follow_the_definition(
        given in vec((0..40_u64, prop::option::weighted(0.9, 0..40_u64), any::<bool>()), 1..RANGES_MAX),
        lookups in vec((0..42_u64, 0..310_u64), 1..8),
    ) {
        let (mut all, memtable) = (Vec::new(), Memtable::new());
        for ((start, end, is_read), seqno) in given.into_iter().zip(1..) {
            all.push(range(start, end, seqno));
            memtable.writer().delete_range(range(start, end, seqno));
            if is_read && seqno % 16 == 0 {
                check(&memtable, &all, &range(start, None, 0).start, seqno);
            }
        }
        for (key, snapshot) in lookups {
            check(&memtable, &all, &range(key, None, 0).start, snapshot);
        }
    }
}

/// The bounds of the range with a number.
type RangeOf = fn(u64) -> (u64, u64);

/// A memtable with so many of these ranges, read while they are written.
fn read_meanwhile(count: u64, range_of: RangeOf) -> Memtable {
    let memtable = Memtable::new();
    for n in 1..=count {
        let (start, end) = range_of(n);
        memtable.writer().delete_range(range(start, Some(end), n));
        if n % 8 == 0 || n == count {
            assert_eq!(memtable.range_tombstones().covering(&range(start, None, 0).start, SeqNo::MAX), n);
        }
    }
    memtable
}

#[test]
fn nested_ranges_take_no_more_memory_than_is_counted() {
    let count = if cfg!(miri) { 100 } else { 4000 };
    let shapes: [(&str, RangeOf); 4] = [
        ("growing", |n| (0, n)),
        ("shrinking", |n| (n, 20_000 - n)),
        ("with a common end", |n| (n, 20_000)),
        ("disjoint", |n| (2 * n, 2 * n + 1)),
    ];
    for (shape, range_of) in shapes {
        let memtable = read_meanwhile(count, range_of);
        let (prepared, counted) = (memtable.ranges.prepared_bytes(), memtable.bytes() - memtable.data_bytes());
        assert!(prepared > 0 && prepared <= counted, "{shape}: {prepared} bytes, {counted} counted");
        assert!(memtable.bytes() <= 512 * count as usize, "{shape}: {} bytes counted", memtable.bytes());
    }
}

#[test]
fn an_iterator_begins_with_few_pieces_of_ranges_that_newer_ones_hide() {
    let count = if cfg!(miri) { 100 } else { 1000 };
    let memtable = read_meanwhile(count, |n| (0, n));
    let ranges = memtable.range_tombstones();
    let seen = ranges.seen_by(SeqNo::MAX, None, None).len();
    assert!((1..=16).contains(&seen), "{seen} of {count}");
    let seen = ranges.seen_by(count / 2 + 1, None, None).len();
    assert!((1..=16 + 64).contains(&seen), "{seen} for an old snapshot");
    assert!(ranges.seen_by(SeqNo::MAX, Some(&range(count + 1, None, 0).start), None).is_empty());
}
