//! Random histories are split into what is rewritten and what lies beneath. Afterwards every snapshot must read the
//! same as before, and every entry must have been accounted for.

mod counts;

use std::{
    cell::Cell,
    collections::BTreeSet,
    ops::Bound,
    path::Path,
    sync::{Arc, Mutex},
};

use bifold_contract::{Error, Pointer};
use bifold_io::{
    faulty::{Fault, FaultKind, FaultyFs, Persistence},
    memory::MemoryFs,
};
use proptest::prelude::*;

use super::*;
use crate::{
    merge::vec_cursor::{OwnedEntry, VecCursor, merge_of},
    table::{
        ReadMode, Table, TableContext,
        tests::samples::{Disk, sample},
    },
    visible::Visible,
};

/// The calls that a rewriter received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Calls {
    kept: Vec<SeqNo>,
    discarded: Vec<(SeqNo, SeqNo)>,
    finished: bool,
}

/// Separates the values of sequence numbers 1 modulo 3 and inlines those of 2 modulo 3.
#[derive(Clone, Default)]
struct Mover(Arc<Mutex<Calls>>);

fn pointer_to(seqno: SeqNo) -> Pointer {
    Pointer { file: seqno, epoch: 1, offset: 2, len: 3 }
}

/// An entry after a [`Mover`] has kept it.
fn after_move(entry: &OwnedEntry) -> OwnedEntry {
    let (kind, payload) = match (entry.kind, entry.seqno % 3) {
        (Kind::Delete, _) | (_, 0) => (entry.kind, entry.payload.clone()),
        _ => {
            let mut payload = Vec::new();
            pointer::encode(pointer_to(entry.seqno), &mut payload);
            (Kind::Pointer, payload)
        }
    };
    OwnedEntry { kind, payload, ..entry.clone() }
}

impl Rewriter for Mover {
    fn keep(&mut self, entry: &Entry<'_>) -> Result<Kept> {
        self.0.lock().unwrap().kept.push(entry.seqno);
        Ok(match (entry.kind, entry.seqno % 3) {
            (Kind::Delete, _) | (_, 0) => Kept::Unchanged,
            (_, 1) => Kept::Pointer(pointer_to(entry.seqno)),
            _ => Kept::Moved(pointer_to(entry.seqno)),
        })
    }

    fn discard(&mut self, entry: &Entry<'_>, newer: SeqNo) -> Result<()> {
        self.0.lock().unwrap().discarded.push((entry.seqno, newer));
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<ValueEdit> {
        self.0.lock().unwrap().finished = true;
        Ok(ValueEdit { removed: vec![77], ..ValueEdit::default() })
    }
}

/// Entries and range tombstones.
#[derive(Clone, Debug, Default)]
struct Data {
    entries: Vec<OwnedEntry>,
    tombstones: Vec<RangeTombstone>,
}

impl Data {
    fn and(&self, other: &Self) -> Self {
        let entries = [&self.entries[..], &other.entries].concat();
        Self { entries, tombstones: [&self.tombstones[..], &other.tombstones].concat() }
    }

    fn may_hold(&self, start: &[u8], end: Option<&[u8]>) -> bool {
        let until = |key: &[u8]| end.is_none_or(|end| key <= end);
        self.entries.iter().any(|e| e.key.as_slice() >= start && until(&e.key))
            || self.tombstones.iter().any(|t| until(&t.start) && t.end.as_deref().is_none_or(|end| end > start))
    }

    fn seen_by(&self, snapshot: SeqNo) -> Vec<(Box<[u8]>, SeqNo)> {
        let source = VecCursor::new(self.entries.clone());
        let make = Box::new(move || merge_of([source.clone()]));
        let tombstones = RangeTombstones::new(&self.tombstones);
        let mut visible = Visible::new(make, tombstones, (snapshot, 0), Bound::Unbounded, Bound::Unbounded);
        std::iter::from_fn(|| visible.next_front().unwrap()).map(|item| (item.key, item.seqno)).collect()
    }
}

fn dir(memory: &MemoryFs) -> Dir {
    let dir = Dir::new(Arc::new(memory.clone()), Path::new("/db"));
    dir.create_dir().unwrap();
    dir
}

fn plan<'a>(snapshots: &'a [SeqNo], bottom: &'a IsBottom<'a>) -> RewritePlan<'a> {
    RewritePlan {
        combine: &|_, _, _| None,
        keys: (None, None),
        snapshots,
        times: Times::default(),
        bottom,
        table_bytes: u64::MAX,
        reach_bytes: u64::MAX,
        max_overlap_bytes: u64::MAX,
        grandparents: &[],
        cuts: &[],
        source: IoSource::Compaction,
        table: TableOptions::default(),
        progress: &|_| Ok(()),
    }
}

/// Rewrites `data`, given as two streams.
fn rewrite_data(data: &Data, plan: &RewritePlan<'_>, mover: &Mover, dir: &Dir) -> Result<Output> {
    let (even, odd) = data.entries.iter().cloned().partition(|e| e.seqno % 2 == 0);
    let mut ids = 0;
    let mut new_id = || {
        ids += 1;
        ids
    };
    let input = merge_of([VecCursor::new(even), VecCursor::new(odd)]);
    rewrite(input, RangeTombstones::new(&data.tombstones), plan, Box::new(mover.clone()), &mut new_id, dir)
}

fn read_back(dir: &Dir, tables: &[TableMeta]) -> Data {
    let context = Arc::new(TableContext::new(1 << 20, 1 << 20));
    let mut data = Data::default();
    for meta in tables {
        let table = Table::open(dir, Arc::new(meta.clone()), &context).unwrap();
        let mut cursor = table.cursor(ReadMode::Compaction);
        cursor.first().unwrap();
        while let Some(entry) = cursor.entry() {
            data.entries.push(OwnedEntry::of(entry));
            cursor.next().unwrap();
        }
        data.tombstones.extend(table.range_tombstones().iter().cloned());
    }
    data
}

fn put(key: &str, seqno: SeqNo) -> OwnedEntry {
    OwnedEntry { key: key.into(), seqno, kind: Kind::Inline, payload: format!("{key}{seqno}").into() }
}

fn delete(key: &str, seqno: SeqNo) -> OwnedEntry {
    OwnedEntry { key: key.into(), seqno, kind: Kind::Delete, payload: vec![] }
}

fn range(start: &str, end: &str, seqno: SeqNo) -> RangeTombstone {
    RangeTombstone { start: start.as_bytes().into(), end: Some(end.as_bytes().into()), seqno }
}

fn versions(data: &Data) -> Vec<(String, SeqNo)> {
    data.entries.iter().map(|e| (String::from_utf8_lossy(&e.key).into_owned(), e.seqno)).collect()
}

/// Rewrites `data`. Returns what is left and the calls that the rewriter received.
fn outcome(data: Data, snapshots: &[SeqNo], bottom: bool) -> (Data, Calls) {
    let (dir, mover) = (dir(&MemoryFs::new()), Mover::default());
    let output = rewrite_data(&data, &plan(snapshots, &|_, _| bottom), &mover, &dir).unwrap();
    let calls = mover.0.lock().unwrap().clone();
    (read_back(&dir, &output.tables), calls)
}

#[test]
fn each_stripe_keeps_its_newest_version_and_discards_name_the_newer_one() {
    let entries = [1, 2, 3, 4, 5, 6].map(|seqno| put("k", seqno)).to_vec();
    let (left, calls) = outcome(Data { entries, ..Data::default() }, &[2, 4], false);
    assert_eq!(versions(&left), [("k".into(), 6), ("k".into(), 4), ("k".into(), 2)]);
    assert_eq!(calls, Calls { kept: vec![6, 4, 2], discarded: vec![(5, 6), (3, 4), (1, 2)], finished: true });
}

#[test]
fn tombstones_are_dropped_only_at_the_bottom_and_only_if_no_snapshot_is_older() {
    let data = || Data { entries: vec![put("k", 1), delete("k", 5), delete("m", 6)], ..Data::default() };
    assert_eq!(versions(&outcome(data(), &[], false).0), [("k".into(), 5), ("m".into(), 6)]);
    assert_eq!(versions(&outcome(data(), &[3], true).0), [("k".into(), 5), ("k".into(), 1), ("m".into(), 6)]);
    let (left, calls) = outcome(data(), &[], true);
    assert_eq!((versions(&left), calls.discarded), (vec![], vec![(1, 5)]));
    let newer_snapshot = outcome(data(), &[7], true).0;
    assert_eq!(versions(&newer_snapshot), []);
}

#[test]
fn range_tombstones_drop_what_they_cover_and_survive_as_long_as_needed() {
    let data = || Data {
        entries: vec![put("a", 1), put("b", 2), put("b", 9), put("c", 3)],
        tombstones: vec![range("b", "d", 5), range("b", "d", 4)],
    };
    let (left, calls) = outcome(data(), &[], false);
    assert_eq!((versions(&left), left.tombstones), (vec![("a".into(), 1), ("b".into(), 9)], vec![range("b", "d", 5)]));
    assert_eq!(calls.discarded, [(2, 9), (3, 5)]);
    let (left, _) = outcome(data(), &[], true);
    assert_eq!((left.entries.len(), left.tombstones), (2, vec![]));
    let (left, _) = outcome(data(), &[3], true);
    assert_eq!((left.entries.len(), left.tombstones), (4, vec![range("b", "d", 5)]));
}

#[test]
fn range_tombstones_alone_make_a_table() {
    let (left, _) = outcome(Data { tombstones: vec![range("a", "m", 3)], ..Data::default() }, &[], false);
    assert_eq!(left.tombstones, [range("a", "m", 3)]);
    let (dir, mover) = (dir(&MemoryFs::new()), Mover::default());
    let nothing = rewrite_data(&Data::default(), &plan(&[], &|_, _| false), &mover, &dir).unwrap();
    assert_eq!((nothing.tables, dir.list().unwrap()), (vec![], vec![]));
}

#[test]
fn progress_is_reported_and_may_stop_the_rewrite() {
    let entries: Vec<_> =
        (0..400).map(|n| OwnedEntry { payload: vec![7; 999], ..put(&format!("{n:04}"), 3 * n + 3) }).collect();
    let data = Data { entries, ..Data::default() };
    let (dir, reported) = (dir(&MemoryFs::new()), Cell::new(0));
    let count = |bytes| {
        reported.set(reported.get() + bytes);
        Ok(())
    };
    let counted = RewritePlan { progress: &count, ..plan(&[], &|_, _| false) };
    let output = rewrite_data(&data, &counted, &Mover::default(), &dir).unwrap();
    assert!(reported.get() > output.bytes_out * 3 / 4 && reported.get() <= output.bytes_out, "{}", reported.get());

    let stop = |_| Err(Error::Closed { what: "database".into() });
    let stopped = RewritePlan { progress: &stop, table_bytes: 1000, ..plan(&[], &|_, _| false) };
    dir.remove("000001.tbl").unwrap();
    assert!(matches!(rewrite_data(&data, &stopped, &Mover::default(), &dir), Err(Error::Closed { .. })));
    assert_eq!(dir.list().unwrap(), Vec::<String>::new(), "the outputs are removed");
}

#[test]
fn no_output_is_left_whichever_call_fails() {
    let entries: Vec<_> = (1..200).map(|n| put(&format!("{n:04}"), n)).collect();
    let data = Data { entries, tombstones: vec![range("0100", "0150", 500)] };
    for at in 1.. {
        let memory = MemoryFs::new();
        dir(&memory);
        let faulty = Arc::new(FaultyFs::over_memory(memory.clone()));
        faulty.plan(Fault { at, kind: FaultKind::Errno(5), persistence: Persistence::Once });
        let (dir, mover) = (Dir::new(faulty.clone(), Path::new("/db")), Mover::default());
        let plan = RewritePlan { table_bytes: 600, ..plan(&[], &|_, _| false) };
        let outcome = rewrite_data(&data, &plan, &mover, &dir);
        if faulty.injected().is_empty() {
            assert!(at > 3 && outcome.unwrap().tables.len() > 2, "every call has failed once");
            return;
        }
        assert!(outcome.is_err(), "call {at}");
        assert_eq!(memory.files(), Vec::<std::path::PathBuf>::new(), "call {at}");
        assert!(!mover.0.lock().unwrap().finished, "call {at}");
    }
}

#[test]
fn an_error_of_the_input_or_the_rewriter_leaves_no_output() {
    struct Failing(u32);
    impl Rewriter for Failing {
        fn keep(&mut self, _entry: &Entry<'_>) -> Result<Kept> {
            self.0 -= 1;
            if self.0 == 0 { Err(Error::ReadOnly) } else { Ok(Kept::Unchanged) }
        }
        fn discard(&mut self, _entry: &Entry<'_>, _newer: SeqNo) -> Result<()> {
            Ok(())
        }
        fn finish(self: Box<Self>) -> Result<ValueEdit> {
            Err(Error::ReadOnly)
        }
    }
    let dir = dir(&MemoryFs::new());
    let entries: Vec<_> = (1..50).map(|n| put(&format!("{n:04}"), n)).collect();
    let plan = RewritePlan { table_bytes: 500, ..plan(&[], &|_, _| false) };
    let mut ids = 0;
    let mut attempt = |input: VecCursor, keeps: u32| {
        let mut new_id = || {
            ids += 1;
            ids
        };
        let rewriter = Box::new(Failing(keeps));
        assert!(rewrite(input, RangeTombstones::default(), &plan, rewriter, &mut new_id, &dir).is_err());
        assert_eq!(dir.list().unwrap(), Vec::<String>::new());
    };
    attempt(VecCursor::new(entries.clone()).failing_at(40), 1000);
    attempt(VecCursor::new(entries.clone()), 40);
    attempt(VecCursor::new(entries), 1000);
}

/// A bit may flip before a block is sealed: then its checksum is right.
#[test]
fn entries_out_of_order_are_an_error_that_names_their_table_and_leave_no_output() {
    let disk = Disk::new();
    let meta = disk.write(5, &sample(40), &TableOptions::default());
    disk.change_key(&meta, 1, b'5');
    let (input, mut ids) = (disk.open(&meta).cursor(ReadMode::Compaction), 6u64..);
    let (plan, rewriter) = (plan(&[], &|_, _| false), Box::new(Mover::default()));
    let new_id = &mut || ids.next().unwrap();
    let error = rewrite(input, RangeTombstones::default(), &plan, rewriter, new_id, &disk.dir).unwrap_err();
    assert!(error.is_corruption() && error.path().is_some_and(|path| path.ends_with("000005.tbl")), "{error}");
    assert_eq!(disk.dir.list().unwrap(), ["000005.tbl"]);
}

#[derive(Clone, Debug)]
enum Op {
    Put(u8),
    Delete(u8),
    DeleteRange(u8, Option<u8>),
}

fn op() -> impl Strategy<Value = Op> {
    let key = || 0..12u8;
    prop_oneof![
        12 => key().prop_map(Op::Put),
        5 => key().prop_map(Op::Delete),
        2 => (key(), prop::option::weighted(0.9, 1..8u8)).prop_map(|(start, len)| Op::DeleteRange(start, len)),
    ]
}

/// Splits a history: writes up to `below_upto` are below the output; the rest is rewritten.
fn split(history: &[Op], below_upto: SeqNo) -> (Data, Data) {
    let (mut below, mut rewritten) = (Data::default(), Data::default());
    let name = |key: u8| format!("{key:02}");
    for (seqno, op) in (1..).zip(history) {
        let side = if seqno <= below_upto { &mut below } else { &mut rewritten };
        match *op {
            Op::Put(key) => side.entries.push(put(&name(key), seqno)),
            Op::Delete(key) => side.entries.push(delete(&name(key), seqno)),
            Op::DeleteRange(start, len) => {
                let end = len.map(|len| name(start + len).into_bytes().into());
                side.tombstones.push(RangeTombstone { start: name(start).into_bytes().into(), end, seqno });
            }
        }
    }
    (below, rewritten)
}

proptest! {
    #[test]
    fn every_snapshot_reads_the_same_before_and_after(
        history in prop::collection::vec(op(), 1..60),
        below_upto in 0..30u64,
        mut snapshots in prop::collection::btree_set(0..60u64, 0..4),
        table_bytes in prop_oneof![Just(1), 400..700u64, Just(u64::MAX)],
    ) {
        let (below, rewritten) = split(&history, below_upto);
        let (dir, mover) = (dir(&MemoryFs::new()), Mover::default());
        let open: Vec<SeqNo> = snapshots.iter().copied().collect();
        let bottom = |start: &[u8], end: Option<&[u8]>| !below.may_hold(start, end);
        let plan = RewritePlan { table_bytes, ..plan(&open, &bottom) };
        let output = rewrite_data(&rewritten, &plan, &mover, &dir).unwrap();
        let after = read_back(&dir, &output.tables);

        snapshots.insert(MAX_SEQNO);
        for &snapshot in &snapshots {
            let (was, is) = (rewritten.and(&below).seen_by(snapshot), after.and(&below).seen_by(snapshot));
            prop_assert_eq!(was, is, "at {}", snapshot);
        }
        for entry in &after.entries {
            let before = rewritten.entries.iter().find(|e| e.seqno == entry.seqno).unwrap();
            prop_assert_eq!(entry, &after_move(before));
        }
        for pair in output.tables.windows(2) {
            let touch_at_a_range = pair[0].largest == pair[1].smallest && pair[0].range_tombstones > 0;
            prop_assert!(pair[0].largest < pair[1].smallest || touch_at_a_range);
            prop_assert!(!pair[0].unbounded);
        }
        for pair in after.entries.windows(2) {
            prop_assert!(crate::merge::stream_order(&pair[0].borrow(), &pair[1].borrow()).is_lt());
        }

        let calls = mover.0.lock().unwrap().clone();
        prop_assert!(calls.finished && output.values.removed == [77]);
        prop_assert_eq!(output.entries_in as usize, rewritten.entries.len());
        prop_assert_eq!(output.entries_out as usize, calls.kept.len());
        prop_assert_eq!(calls.kept.len(), after.entries.len());
        prop_assert_eq!(output.entries_discarded as usize, calls.discarded.len());
        prop_assert_eq!(output.entries_in, output.entries_out + output.entries_discarded + output.tombstones_vanished);
        prop_assert!(calls.discarded.iter().all(|(seqno, newer)| seqno < newer));
    }

    #[test]
    fn rewrites_of_neighbouring_ranges_are_one_rewrite(
        history in prop::collection::vec(op(), 1..60),
        below_upto in 0..30u64,
        mut snapshots in prop::collection::btree_set(0..60u64, 0..4),
        bounds in prop::collection::btree_set(0..13u8, 0..4),
    ) {
        let (below, rewritten) = split(&history, below_upto);
        let dir = dir(&MemoryFs::new());
        let open: Vec<SeqNo> = snapshots.iter().copied().collect();
        let bottom = |start: &[u8], end: Option<&[u8]>| !below.may_hold(start, end);
        let bounds: Vec<Vec<u8>> = bounds.iter().map(|key| format!("{key:02}").into_bytes()).collect();
        let (mut tables, mut entries_in) = (Vec::new(), 0);
        for range in 0..=bounds.len() {
            let start = range.checked_sub(1).map(|at| &*bounds[at]);
            let plan = RewritePlan { keys: (start, bounds.get(range).map(|key| &**key)), ..plan(&open, &bottom) };
            let (source, first_id) = (VecCursor::new(rewritten.entries.clone()), 1000 * range as u64);
            let mut ids = first_id..;
            let tombstones = RangeTombstones::new(&rewritten.tombstones);
            let rewriter = Box::new(Mover::default());
            let output =
                rewrite(merge_of([source]), tombstones, &plan, rewriter, &mut || ids.next().unwrap(), &dir).unwrap();
            entries_in += output.entries_in;
            tables.extend(output.tables);
        }
        prop_assert_eq!(entries_in as usize, rewritten.entries.len());
        for pair in tables.windows(2) {
            let touch_at_a_range = pair[0].largest == pair[1].smallest && pair[0].range_tombstones > 0;
            prop_assert!(pair[0].largest < pair[1].smallest || touch_at_a_range);
        }
        let after = read_back(&dir, &tables);
        snapshots.insert(MAX_SEQNO);
        for &snapshot in &snapshots {
            let (was, is) = (rewritten.and(&below).seen_by(snapshot), after.and(&below).seen_by(snapshot));
            prop_assert_eq!(was, is, "at {}", snapshot);
        }
    }

    #[test]
    fn a_rewrite_of_everything_leaves_only_visible_versions(
        history in prop::collection::vec(op(), 1..60),
        snapshots in prop::collection::btree_set(0..60u64, 0..3),
    ) {
        let (_, all) = split(&history, 0);
        let (dir, mover) = (dir(&MemoryFs::new()), Mover::default());
        let open: Vec<SeqNo> = snapshots.iter().copied().collect();
        let output = rewrite_data(&all, &plan(&open, &|_, _| true), &mover, &dir).unwrap();
        let left = read_back(&dir, &output.tables);
        let seen: BTreeSet<SeqNo> =
            open.iter().chain(&[MAX_SEQNO]).flat_map(|&s| all.seen_by(s)).map(|(_, seqno)| seqno).collect();
        let values: BTreeSet<_> = left.entries.iter().filter(|e| e.kind != Kind::Delete).map(|e| e.seqno).collect();
        prop_assert_eq!(values, seen);
        if open.is_empty() {
            prop_assert!(left.tombstones.is_empty() && left.entries.iter().all(|e| e.kind != Kind::Delete));
        }
    }
}
