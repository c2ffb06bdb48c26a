//! What a rewrite tells of itself: what snapshots hold, how much was read and written, when it reports progress.

use super::*;

fn rewritten(data: &Data, plan: &RewritePlan<'_>) -> Output {
    rewrite_data(data, plan, &Mover::default(), &dir(&MemoryFs::new())).unwrap()
}

/// Entries and range tombstones of the only table that snapshots hold something of, and what each of them holds.
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
    assert_eq!(held(&data, &[6], false), None, "everybody sees the newest version");
    let others = entries(vec![put("a", 1), put("b", 5)]);
    assert_eq!(held(&others, &[3], true), None, "a key's version hides none of the next key");
}

#[test]
fn a_delete_at_the_bottom_is_held_by_the_snapshot_that_sees_what_it_hides() {
    let data = entries(vec![put("k", 1), delete("k", 5)]);
    assert_eq!(held(&data, &[3], true), Some((2, vec![(3, 2)])));
    assert_eq!(held(&data, &[3], false), Some((2, vec![(3, 1)])), "what lies beneath needs the delete");
    assert_eq!(held(&data, &[2, 3], true), Some((2, vec![(2, 1), (3, 1)])), "the next older snapshot is what holds it");
    assert_eq!(held(&entries(vec![delete("k", 5)]), &[7], true), None, "it has vanished");
    assert_eq!(held(&entries(vec![delete("k", 5)]), &[7], false), None, "everybody needs it");
    assert_eq!(held(&entries(vec![put("k", 5)]), &[3], true), None, "it is no delete");
}

#[test]
fn a_range_delete_makes_what_it_hides_held_and_is_held_itself() {
    let data = Data { entries: vec![put("b", 2), put("c", 9)], tombstones: vec![range("b", "d", 5)] };
    assert_eq!(held(&data, &[3], true), Some((3, vec![(3, 2)])));
    let at_once = Data { entries: vec![put("b", 5)], tombstones: vec![range("b", "d", 5)] };
    assert_eq!(held(&at_once, &[7], true), None, "it hides what is older, not itself");
    assert_eq!(versions(&outcome(at_once, &[7], true).0), [("b".into(), 5)]);
}

#[test]
fn what_snapshots_have_held_is_free_once_they_are_gone() {
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

/// Pointers at values of `len` bytes, which a [`Mover`] keeps as they are.
fn pointers(count: u64, len: u32) -> Data {
    let entry = |n: u64| {
        let mut payload = Vec::new();
        pointer::encode(Pointer { len, ..pointer_to(n) }, &mut payload);
        OwnedEntry { kind: Kind::Pointer, payload, ..put(&format!("{n:04}"), 3 * n + 3) }
    };
    entries((0..count).map(entry).collect())
}

#[test]
fn where_the_reach_of_tables_is_bounded_they_end_before_it_is_larger() {
    let data = pointers(10, 1000);
    for (reach_bytes, counts) in [(3000, vec![3, 3, 3, 1]), (1, vec![1; 10]), (10_000, vec![10]), (u64::MAX, vec![10])]
    {
        let output = rewritten(&data, &RewritePlan { reach_bytes, ..plan(&[], &|_, _| false) });
        let entries: Vec<u64> = output.tables.iter().map(|table| table.entries).collect();
        assert_eq!(entries, counts, "{reach_bytes}");
    }
    let beside: Vec<_> = (0..10).map(|n| put(&format!("{n:04}"), 3 * n + 3)).collect();
    let output = rewritten(&entries(beside), &RewritePlan { reach_bytes: 1, ..plan(&[], &|_, _| false) });
    assert_eq!(output.tables.len(), 1, "what stands beside the keys is no reach");
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
fn progress_is_reported_once_for_so_many_bytes() {
    let payload = vec![7; PROGRESS_BYTES as usize / 16 - 4];
    let large = (0..160).map(|n| OwnedEntry { payload: payload.clone(), ..put(&format!("{n:04}"), 3 * n + 3) });
    assert_eq!(reports(&entries(large.collect()), Box::<Mover>::default(), u64::MAX).0, 10);
    // Values that may be moved count where they stand; who moves none moves nothing.
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
    assert_eq!(times, 10, "160 sixteenths, told before the next entry");
    assert!((10 * PROGRESS_BYTES..11 * PROGRESS_BYTES).contains(&bytes), "{bytes}");
}
