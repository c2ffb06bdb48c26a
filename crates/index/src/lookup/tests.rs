use std::sync::Arc;

use bifold_contract::{Kind, LevelEdit, RangeTombstone, TableMeta, edit::TableAdded, policy::NewestFirst};
use bifold_format::filter::key_hash;
use proptest::prelude::*;

use super::*;
use crate::table::{
    TableWriter,
    tests::samples::{Disk, OwnedEntry, options},
};

/// One write. Its sequence number is its position.
#[derive(Clone, Debug)]
enum Op {
    Put(u8),
    Delete(u8),
    DeleteRange(u8, Option<u8>),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0u8..12).prop_map(Op::Put),
        2 => (0u8..12).prop_map(Op::Delete),
        1 => (0u8..12, prop::option::of(1u8..6))
            .prop_map(|(start, len)| Op::DeleteRange(start, len.map(|len| start + len))),
    ]
}

/// Operations `first..first + ops.len()` as one table.
fn table(disk: &Disk, id: u64, first: SeqNo, ops: &[Op]) -> Arc<TableMeta> {
    let mut writer = TableWriter::create(&disk.dir, id, IoSource::Flush, &options()).unwrap();
    let mut entries = Vec::new();
    for (seqno, op) in (first..).zip(ops) {
        let entry = |key: u8, kind| OwnedEntry { key: vec![key], seqno, kind, payload: seqno.to_le_bytes().into() };
        match *op {
            Op::Put(key) => entries.push(entry(key, Kind::Inline)),
            Op::Delete(key) => entries.push(OwnedEntry { payload: Vec::new(), ..entry(key, Kind::Delete) }),
            Op::DeleteRange(start, end) => {
                let end = end.map(|end| vec![end].into());
                writer.add_range_tombstone(&RangeTombstone { start: vec![start].into(), end, seqno }).unwrap();
            }
        }
    }
    entries.sort_by(|a, b| a.key.cmp(&b.key).then(b.seqno.cmp(&a.seqno)));
    entries.iter().for_each(|entry| writer.add(&entry.borrow()).unwrap());
    Arc::new(writer.finish().unwrap())
}

/// A version with one piece of the operations per layer, the oldest deepest: `pieces[0]` is the deepest level.
fn version(disk: &Disk, pieces: &[Vec<Op>], level0_runs: usize) -> Version {
    let mut edit = LevelEdit::default();
    let mut first = 1;
    for (at, piece) in pieces.iter().enumerate() {
        let newer = pieces.len() - 1 - at;
        let level = newer.saturating_sub(level0_runs - 1);
        let table = table(disk, at as u64, first, piece);
        edit.added.push(TableAdded { level: u8::try_from(level).unwrap(), run: at as u64, table });
        first += piece.len() as u64;
    }
    Version::default().apply(&edit, &mut |meta| Ok(disk.open(meta))).unwrap()
}

/// The sequence number and kind of the version of `key` that `snapshot` sees.
fn expected(ops: &[Op], key: u8, snapshot: SeqNo) -> Option<(SeqNo, Kind)> {
    let mut newest = None;
    for (seqno, op) in (1..=snapshot).zip(ops) {
        match *op {
            Op::Put(k) if k == key => newest = Some((seqno, Kind::Inline)),
            Op::Delete(k) if k == key => newest = Some((seqno, Kind::Delete)),
            Op::DeleteRange(start, end) if start <= key && end.is_none_or(|end| key < end) => newest = None,
            _ => {}
        }
    }
    newest
}

/// A lookup for which everything up to `snapshot` counts.
fn asking<'a>(key: &'a [u8], snapshot: SeqNo, locator: &'a dyn Locator) -> Lookup<'a> {
    let key_hash = key_hash(key);
    Lookup { key, key_hash, snapshot, covered_by: 0, after: 0, source: IoSource::Get, locator }
}

/// Knows which runs have a key, like a hash index of level 0, and nothing about ranges.
#[derive(Debug)]
struct Exact(Vec<Vec<u64>>);

impl Locator for Exact {
    fn candidates(&self, key_hash: u64, runs: usize, visit: &mut dyn FnMut(usize) -> bool) {
        assert_eq!(runs, self.0.len());
        for (at, hashes) in self.0.iter().enumerate() {
            if hashes.contains(&key_hash) && !visit(at) {
                return;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// The newest operation on a key decides; older ones may be there or not.
    #[test]
    fn newer_operations_are_found_by_key_and_by_range(
        pieces in prop::collection::vec(prop::collection::vec(op(), 1..8), 1..7),
        level0_runs in 1usize..4,
    ) {
        let disk = Disk::new();
        let version = version(&disk, &pieces, level0_runs);
        let ops: Vec<_> = pieces.concat();
        let is_on = |op: &Op, key: u8| match *op {
            Op::Put(k) | Op::Delete(k) => k == key,
            Op::DeleteRange(start, end) => start <= key && end.is_none_or(|end| key < end),
        };
        for key in 0..20u8 {
            let newest = (1..).zip(&ops).filter(|(_, op)| is_on(op, key)).map(|(seqno, _)| seqno).last().unwrap_or(0);
            for after in 0..=ops.len() as u64 {
                let bytes = [key];
                prop_assert_eq!(version.has_newer(&bytes, key_hash(&bytes), after).unwrap(), newest > after);
                let tables = version.newer(Some(&bytes), Some(&bytes), after);
                let found = tables.map(|table| table.meta().max_seqno).max().unwrap_or(0);
                prop_assert!(found > after || newest <= after, "{} is not found after {}", key, after);
            }
        }
    }

    #[test]
    fn a_lookup_finds_what_the_history_says(
        pieces in prop::collection::vec(prop::collection::vec(op(), 1..8), 1..7),
        level0_runs in 1usize..4,
    ) {
        let disk = Disk::new();
        let version = version(&disk, &pieces, level0_runs);
        let ops: Vec<_> = pieces.concat();
        let counters = LookupCounters::default();
        let hashes = |ops: &Vec<Op>| {
            let key = |op: &Op| match *op {
                Op::Put(key) | Op::Delete(key) => Some(key_hash(&[key])),
                Op::DeleteRange(..) => None,
            };
            ops.iter().filter_map(key).collect()
        };
        let exact = Exact(pieces.iter().rev().take(level0_runs).map(hashes).collect());
        for locator in [&NewestFirst as &dyn Locator, &exact] {
            for key in 0u8..13 {
                for snapshot in 0..=ops.len() as u64 {
                    let bytes = [key];
                    let lookup = asking(&bytes, snapshot, locator);
                    let found = version.get(&lookup, &counters).unwrap();
                    let answer = found.as_ref().map(|found| (found.seqno, found.kind));
                    prop_assert_eq!(answer, expected(&ops, key, snapshot), "key {} at {}", key, snapshot);
                    if let Some(found) = found.filter(|found| found.kind == Kind::Inline) {
                        prop_assert_eq!(found.payload, found.seqno.to_le_bytes());
                    }
                }
            }
        }
        prop_assert!(counters.filters_denied() <= counters.filters_asked());
        prop_assert_eq!(counters.tables_searched(), counters.filters_asked() - counters.filters_denied());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_is_not_above_the_last_run_that_may_have_the_key_is_in_that_run(
        pieces in prop::collection::vec(prop::collection::vec(op(), 1..8), 1..7),
        level0_runs in 1usize..4,
    ) {
        let disk = Disk::new();
        let version = version(&disk, &pieces, level0_runs);
        let ops: Vec<_> = pieces.concat();
        for key in 0u8..13 {
            let (bytes, snapshot) = ([key], ops.len() as u64);
            let lookup = asking(&bytes, snapshot, &NewestFirst);
            let newest = expected(&ops, key, snapshot);
            match version.get_above_last(&lookup, &LookupCounters::default()).unwrap() {
                Above::Found(found) => prop_assert_eq!(Some((found.seqno, found.kind)), newest),
                Above::Deleted => prop_assert_eq!(newest, None),
                Above::Nothing => {
                    let last = version.levels()[1..].iter().flatten().rfind(|run| run.find(&[key]).is_some());
                    // Runs have the numbers of their pieces.
                    let piece = last.map(|run| run.id() as usize);
                    let before: u64 = pieces[..piece.unwrap_or(0)].iter().map(|piece| piece.len() as u64).sum();
                    let up_to = before + piece.map_or(0, |piece| pieces[piece].len() as u64);
                    let is_there = |(seqno, _)| seqno > before && seqno <= up_to;
                    prop_assert!(newest.is_none_or(is_there), "key {}: {:?}", key, newest);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn filters_in_memory_never_exclude_an_existing_key(
        pieces in prop::collection::vec(prop::collection::vec(op(), 1..8), 1..7),
        level0_runs in 1usize..4,
    ) {
        let disk = Disk::new();
        let version = version(&disk, &pieces, level0_runs);
        let written = |key| pieces.concat().iter().any(|op| matches!(op, Op::Put(k) | Op::Delete(k) if *k == key));
        for key in 0u8..12 {
            prop_assert!(!written(key) || version.may_contain_as_held(&[key], key_hash(&[key])), "key {}", key);
        }
        prop_assert!(!version.may_contain_as_held(&[200], key_hash(&[200])), "no table spans it");
    }
}

#[test]
fn a_range_tombstone_of_a_newer_layer_covers_all_tables() {
    let disk = Disk::new();
    let version = version(&disk, &[vec![Op::Put(1)]], 1);
    let lookup = Lookup {
        key: &[1],
        key_hash: key_hash(&[1]),
        snapshot: 9,
        covered_by: 5,
        after: 0,
        source: IoSource::Get,
        locator: &NewestFirst,
    };
    let counters = LookupCounters::default();
    assert!(version.get(&lookup, &counters).unwrap().is_none());
    assert!(version.get(&Lookup { covered_by: 0, ..lookup }, &counters).unwrap().is_some());
}

#[test]
fn filters_exclude_an_absent_key_without_a_read() {
    let disk = Disk::new();
    let version = version(&disk, &[vec![Op::Put(1), Op::Put(3)], vec![Op::Put(1), Op::Put(3)]], 1);
    let counters = LookupCounters::default();
    let lookup = Lookup {
        key: &[2],
        key_hash: key_hash(&[2]),
        snapshot: 9,
        covered_by: 0,
        after: 0,
        source: IoSource::Get,
        locator: &NewestFirst,
    };
    assert!(version.get(&lookup, &counters).unwrap().is_none());
    assert_eq!((counters.filters_asked(), counters.filters_denied(), counters.false_positives()), (2, 2, 0));
    assert_eq!(disk.dir.totals().reads[IoSource::Get as usize], 0);
}

/// Merges take some tables of a level down and not others, so a table may have something newer than one above it.
#[test]
fn what_is_older_than_the_version_asked_about_is_not_above_it() {
    let disk = Disk::new();
    let table = |id: u64, entries: &[(u8, SeqNo)], deleted: Option<SeqNo>| {
        let mut writer = TableWriter::create(&disk.dir, id, IoSource::Flush, &options()).unwrap();
        if let Some(seqno) = deleted {
            let (start, end) = (vec![0].into(), Some(vec![9].into()));
            writer.add_range_tombstone(&RangeTombstone { start, end, seqno }).unwrap();
        }
        for &(key, seqno) in entries {
            let payload = seqno.to_le_bytes().into();
            writer.add(&OwnedEntry { key: vec![key], seqno, kind: Kind::Inline, payload }.borrow()).unwrap();
        }
        Arc::new(writer.finish().unwrap())
    };
    let older = [(table(1, &[(1, 3), (2, 20)], None), 3), (table(2, &[(2, 20)], Some(4)), 4)];
    for (level, (middle, number)) in [1, 2].into_iter().flat_map(|level| older.iter().map(move |older| (level, older)))
    {
        let (asked_about, last) = (table(10, &[(1, 9)], None), table(11, &[(1, 1)], None));
        let mut edit = LevelEdit::default();
        // In level 0 or 1.
        edit.added.push(TableAdded { level: level - 1, run: 3, table: asked_about });
        edit.added.push(TableAdded { level, run: 2, table: Arc::clone(middle) });
        edit.added.push(TableAdded { level: level + 1, run: 1, table: last });
        let version = Version::default().apply(&edit, &mut |meta| Ok(disk.open(meta))).unwrap();
        let look = |after| {
            let key_hash = key_hash(&[1]);
            let lookup = Lookup {
                key: &[1],
                key_hash,
                snapshot: SeqNo::MAX,
                covered_by: 0,
                after,
                source: IoSource::Get,
                locator: &NewestFirst,
            };
            version.get_above_last(&lookup, &LookupCounters::default()).unwrap()
        };
        assert!(matches!(look(9), Above::Nothing), "{number} is older: {:?}", look(9));
        assert!(matches!(look(8), Above::Found(found) if found.seqno == 9), "it is there");
        disk.dir.remove("000010.tbl").unwrap();
        disk.dir.remove("000011.tbl").unwrap();
    }
}
