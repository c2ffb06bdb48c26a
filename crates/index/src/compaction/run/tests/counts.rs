//! The figures that a rewrite reports: what snapshots hold, how much was read and written, and its progress.

use super::*;

fn rewritten(data: &Data, plan: &RewritePlan<'_>) -> Output {
    rewrite_data(data, plan, &Mover::default(), &dir(&MemoryFs::new())).unwrap()
}

/// The number of entries and range tombstones of the only table with held entries, and how many each snapshot holds.
fn held(data: &Data, snapshots: &[SeqNo], bottom: bool) -> Option<(u64, Vec<(SeqNo, u64)>)> {
    let output = rewritten(data, &plan(snapshots, &|_, _| bottom));
    assert!(output.held.len() <= 1 && output.held.iter().all(|held| held.table == output.tables[0].id));
    output.held.into_iter().next().map(|held| (held.entries, held.by))
}

fn entries(entries: Vec<OwnedEntry>) -> Data {
    Data { entries, ..Data::default() }
}

#[test]
fn versions_that_only_a_snapshot_sees_are_held_by_it() {
    let data = entries([1, 2, 3, 4, 5, 6].map(|seqno| put("k", seqno)).to_vec());
    assert_eq!(held(&data, &[2, 4], false), Some((3, vec![(2, 1), (4, 1)])));
    assert_eq!(held(&data, &[], false), None);
    assert_eq!(held(&data, &[6], false), None, "every snapshot sees the newest version");
    let others = entries(vec![put("a", 1), put("b", 5)]);
    assert_eq!(held(&others, &[3], true), None, "a version of a key does not overwrite the next key");
}

#[test]
fn a_delete_at_the_bottom_is_held_by_the_snapshot_that_sees_the_deleted_version() {
    let data = entries(vec![put("k", 1), delete("k", 5)]);
    assert_eq!(held(&data, &[3], true), Some((2, vec![(3, 2)])));
    assert_eq!(held(&data, &[3], false), Some((2, vec![(3, 1)])), "the data below needs the delete");
    assert_eq!(held(&data, &[2, 3], true), Some((2, vec![(2, 1), (3, 1)])), "the next older snapshot holds it");
    assert_eq!(held(&entries(vec![delete("k", 5)]), &[7], true), None, "it was dropped");
    assert_eq!(held(&entries(vec![delete("k", 5)]), &[7], false), None, "it is always needed");
    assert_eq!(held(&entries(vec![put("k", 5)]), &[3], true), None, "it is not a delete");
}

#[test]
fn operands_that_only_a_snapshot_keeps_from_being_combined_are_held() {
    let operand = |seqno| OwnedEntry { kind: Kind::Operand, ..put("k", seqno) };
    let data = entries(vec![put("k", 3), operand(6), operand(9)]);
    assert_eq!(held(&data, &[4], true), Some((3, vec![(4, 1)])));
    assert_eq!(held(&data, &[4, 7], true), Some((3, vec![(4, 1), (7, 1)])));
    assert_eq!(held(&data, &[9], true), None, "the snapshot sees all of them");
}

#[test]
fn a_range_delete_and_the_versions_it_deletes_are_held() {
    let data = Data { entries: vec![put("b", 2), put("c", 9)], tombstones: vec![range("b", "d", 5)] };
    assert_eq!(held(&data, &[3], true), Some((3, vec![(3, 2)])));
    let at_once = Data { entries: vec![put("b", 5)], tombstones: vec![range("b", "d", 5)] };
    assert_eq!(held(&at_once, &[7], true), None, "it deletes older versions only");
    assert_eq!(versions(&outcome(at_once, &[7], true).0), [("b".into(), 5)]);
}

#[test]
fn held_entries_are_free_once_their_snapshots_are_closed() {
    let held = Held { table: 7, entries: 10, by: vec![(2, 3), (4, 5)] };
    for (open, free) in [(&[2, 4][..], 0), (&[4], 3), (&[2], 5), (&[], 8), (&[1, 3, 5], 8)] {
        assert_eq!(held.free_with(open), free, "{open:?}");
    }
}

#[test]
fn each_table_has_its_own_held_entries() {
    let versions = |n: u64| [put(&format!("{n:03}"), 2 * n + 1), put(&format!("{n:03}"), 2 * n + 1000)];
    let data = entries((0..60).flat_map(versions).collect());
    let output = rewritten(&data, &RewritePlan { table_bytes: 300, ..plan(&[500], &|_, _| false) });
    assert!(output.tables.len() > 3);
    assert!(output.held.iter().map(|held| held.table).eq(output.tables.iter().map(|table| table.id)));
    for (held, table) in output.held.iter().zip(&output.tables) {
        assert_eq!((held.entries, &held.by), (table.entries, &vec![(500, table.entries / 2)]));
    }
}

#[test]
fn entries_and_bytes_are_counted() {
    let data = entries(vec![put("a", 3), put("a", 6), delete("b", 9), put("c", 10), put("d", 11)]);
    let output = rewritten(&data, &plan(&[], &|_, _| true));
    let counts = (output.entries_in, output.entries_out, output.entries_discarded, output.tombstones_vanished);
    assert_eq!(counts, (5, 3, 1, 1));
    assert_eq!(output.bytes_in, 5 + 2 * 2 + 2 * 3);
    assert_eq!(output.bytes_out, output.tables.iter().map(|table| table.bytes).sum::<u64>());
    assert_eq!(output.values.removed, [77]);
}

/// Pointers to values of `len` bytes, which a [`Mover`] keeps unchanged.
fn pointers(count: u64, len: u32) -> Data {
    let entry = |n: u64| {
        let mut payload = Vec::new();
        pointer::encode(Pointer { len, ..pointer_to(n) }, &mut payload);
        OwnedEntry { kind: Kind::Pointer, payload, ..put(&format!("{n:04}"), 3 * n + 3) }
    };
    entries((0..count).map(entry).collect())
}

#[test]
fn tables_end_before_their_reach_exceeds_its_limit() {
    let data = pointers(10, 1000);
    for (reach_bytes, counts) in [(3000, vec![3, 3, 3, 1]), (1, vec![1; 10]), (10_000, vec![10]), (u64::MAX, vec![10])]
    {
        let output = rewritten(&data, &RewritePlan { reach_bytes, ..plan(&[], &|_, _| false) });
        let entries: Vec<u64> = output.tables.iter().map(|table| table.entries).collect();
        assert_eq!(entries, counts, "{reach_bytes}");
    }
    let inline: Vec<_> = (0..10).map(|n| put(&format!("{n:04}"), 3 * n + 3)).collect();
    let output = rewritten(&entries(inline), &RewritePlan { reach_bytes: 1, ..plan(&[], &|_, _| false) });
    assert_eq!(output.tables.len(), 1, "inline values do not count as reach");
}

/// How often progress was reported, and how many bytes in all.
fn reports(data: &Data, rewriter: Box<dyn Rewriter>, reach_bytes: u64) -> (u64, u64) {
    let seen = Cell::new((0, 0));
    let progress = |bytes| {
        let (times, all) = seen.get();
        seen.set((times + 1, all + bytes));
        Ok(())
    };
    let plan = RewritePlan { progress: &progress, reach_bytes, ..plan(&[], &|_, _| false) };
    let input = VecCursor::new(data.entries.clone());
    rewrite(input, RangeTombstones::default(), &plan, rewriter, &mut || 1, &dir(&MemoryFs::new())).unwrap();
    seen.get()
}

#[test]
fn progress_is_reported_once_per_progress_bytes() {
    let payload = vec![7; PROGRESS_BYTES as usize / 16 - 4];
    let large = (0..160).map(|n| OwnedEntry { payload: payload.clone(), ..put(&format!("{n:04}"), 3 * n + 3) });
    assert_eq!(reports(&entries(large.collect()), Box::<Mover>::default(), u64::MAX).0, 10);
    // Values count as input if the plan allows them to move.
    let data = pointers(160, PROGRESS_BYTES as u32 / 16);
    assert_eq!(reports(&data, Box::<Mover>::default(), u64::MAX).0, 0);
    assert_eq!(reports(&data, Box::<Mover>::default(), 1 << 40).0, 10);
}

#[test]
fn values_that_were_moved_count_as_written() {
    struct Away;
    impl Rewriter for Away {
        fn keep(&mut self, _entry: &Entry<'_>) -> Result<Kept> {
            Ok(Kept::Moved(Pointer { len: PROGRESS_BYTES as u32 / 16, ..pointer_to(1) }))
        }
        fn discard(&mut self, _entry: &Entry<'_>, _newer: SeqNo) -> Result<()> {
            Ok(())
        }
        fn finish(self: Box<Self>) -> Result<ValueEdit> {
            Ok(ValueEdit::default())
        }
    }
    let (times, bytes) = reports(&pointers(161, 0), Box::new(Away), u64::MAX);
    assert_eq!(times, 10, "160 sixteenths, reported before the next entry");
    assert!((10 * PROGRESS_BYTES..11 * PROGRESS_BYTES).contains(&bytes), "{bytes}");
}
