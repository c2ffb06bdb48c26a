//! Filters that meet damage.

use bifold_values::placement::RewriteJob;

use super::*;
use crate::{
    background::bed::Bed,
    settings::options::{KeyspaceOptions, PlacementKind},
};

const KEYS: u32 = 64;

/// A tree with a table of many blocks, the first of which is damaged.
fn damaged() -> Bed {
    let placement = PlacementKind::Inline;
    let bed = Bed::new(KeyspaceOptions { placement, block_bytes: 512, ..KeyspaceOptions::default() });
    bed.fill((0..KEYS).map(|n| (n, vec![n as u8; 100])));
    bed.flush().unwrap();
    let is_table = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "tbl");
    let first = bed.memory.files().into_iter().find(is_table).expect("the memtable is written");
    bed.memory.flip_bit(&first, 100 * 8);
    bed
}

/// What a merge of tables that are sound gives to its rewriter, with a filter that decides so about everything.
fn deciding(bed: &Bed, verdict: Verdict) -> Box<dyn Rewriter> {
    asking_filter(bed, CompactionFilter::new(move |_| Ok(verdict.clone())))
}

/// What such a merge gives to its rewriter, with this filter.
fn asking_filter(bed: &Bed, filter: CompactionFilter) -> Box<dyn Rewriter> {
    bed.tree.filter.set(Some(filter));
    let job = RewriteJob { from: Some(1), to: 2, deepest: 2, moving: Vec::new() };
    let rewriter = bed.tree.view().values.rewriter(&job).unwrap();
    let for_commits = (&Arc::default(), Means::Free);
    asking(&bed.tree, &bed.engine.gc.moves, for_commits, &RangeTombstones::default(), rewriter)
}

/// The number of the newest version of a key, if it can be read.
fn number(bed: &Bed, n: u32) -> Option<SeqNo> {
    match bed.engine.reader.stored(&bed.tree, &n.to_be_bytes()) {
        Ok(stored) => Some(stored.expect("nothing is deleted").seqno),
        Err(error) => {
            assert!(error.is_unreadable(), "{error}");
            None
        }
    }
}

/// The merge could read all of its tables: that it cannot look up some keys must not keep it from its end, or them from
/// later merges.
#[test]
fn a_key_that_cannot_be_looked_up_stays_and_the_others_are_decided() {
    let bed = damaged();
    let Bed { engine, tree, .. } = &bed;
    let numbers: Vec<Option<SeqNo>> = (0..KEYS).map(|n| number(&bed, n)).collect();
    let lost = numbers.iter().filter(|number| number.is_none()).count();
    assert!((1..KEYS as usize / 2).contains(&lost), "{lost} keys are lost");
    let mut rewriter = deciding(&bed, Verdict::Delete);
    for (n, number) in (0..KEYS).zip(&numbers) {
        rewriter.keep(&Entry::inline(&n.to_be_bytes(), number.unwrap_or(1), &[n as u8; 100])).unwrap();
    }
    rewriter.finish().unwrap();
    let counts = &tree.filter.counts;
    assert_eq!(counts.asked.load(Relaxed), u64::from(KEYS));
    assert_eq!(counts.failed.load(Relaxed), lost as u64);
    assert_eq!(counts.deleted.load(Relaxed), u64::from(KEYS) - lost as u64);
    assert_eq!(tree.left_out().len(), 1, "the table of these keys: {:?}", tree.left_out());
    for (n, number) in (0..KEYS).zip(numbers) {
        let found = engine.reader.get(tree, &n.to_be_bytes(), None);
        assert!(if number.is_some() { matches!(found, Ok(None)) } else { found.is_err() }, "key {n}");
    }
    engine.health.well().unwrap();
}

/// The filter is asked about what operands make of the newest version, which takes a lookup.
#[test]
fn operands_of_a_key_that_cannot_be_looked_up_stay() {
    let bed = damaged();
    let tree = &bed.tree;
    assert_eq!(number(&bed, 0), None, "it is lost");
    let mut rewriter = deciding(&bed, Verdict::Delete);
    rewriter.keep(&Entry::operand(&0u32.to_be_bytes(), 1, b"+")).unwrap();
    rewriter.finish().unwrap();
    let counts = &tree.filter.counts;
    assert_eq!([&counts.asked, &counts.failed, &counts.deleted].map(|count| count.load(Relaxed)), [0, 1, 0]);
    assert_eq!(tree.left_out().len(), 1);
    bed.engine.health.well().unwrap();
}

/// A commit that finds the disk full ends all writes.
#[test]
fn what_is_decided_is_committed_only_where_the_disk_has_room_for_it() {
    let bed = Bed::new(KeyspaceOptions { placement: PlacementKind::Inline, ..KeyspaceOptions::default() });
    let Bed { engine, tree, memory, .. } = &bed;
    bed.fill((0..KEYS).map(|n| (n, vec![n as u8; 100])));
    bed.flush().unwrap();
    let replace_all = || {
        let mut rewriter = deciding(&bed, Verdict::Replace(vec![9; 4000]));
        for n in 0..KEYS {
            let seqno = number(&bed, n).expect("nothing is damaged");
            rewriter.keep(&Entry::inline(&n.to_be_bytes(), seqno, &[n as u8; 100])).unwrap();
        }
        rewriter.finish()
    };
    let replaced = || tree.filter.counts.replaced.load(Relaxed);
    // Less than the new values take in the log.
    memory.set_capacity(Some(memory.used_bytes() + (200 << 10)));
    let refused = replace_all();
    assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
    assert_eq!(replaced(), 0);
    engine.health.well().unwrap();
    memory.set_capacity(None);
    replace_all().unwrap();
    assert_eq!(replaced(), u64::from(KEYS));
    engine.health.well().unwrap();
}

/// A filter may delete an old version and replace the newest one. The first decision is a few bytes, the second one any
/// number, and 256 of them would be one commit.
#[test]
fn what_is_decided_again_is_committed_in_parts() {
    const LEN: usize = 100_000;
    let bed = Bed::new(KeyspaceOptions { placement: PlacementKind::Inline, ..KeyspaceOptions::default() });
    let Bed { engine, tree, memory, .. } = &bed;
    bed.fill((0..KEYS).map(|n| (n, vec![1; 100])));
    let old: Vec<SeqNo> = (0..KEYS).map(|n| number(&bed, n).expect("nothing is damaged")).collect();
    bed.fill((0..KEYS).map(|n| (n, vec![2; 100])));
    bed.flush().unwrap();
    let asked = AtomicU64::new(0);
    let is_first = move || asked.fetch_add(1, Relaxed) < u64::from(KEYS);
    let decide = move || if is_first() { Verdict::Delete } else { Verdict::Replace(vec![9; LEN]) };
    let mut rewriter = asking_filter(&bed, CompactionFilter::new(move |_| Ok(decide())));
    for (n, seqno) in (0..KEYS).zip(old) {
        rewriter.keep(&Entry::inline(&n.to_be_bytes(), seqno, &[1; 100])).unwrap();
    }
    // More than a part takes, and less than all of them.
    memory.set_capacity(Some(memory.used_bytes() + (3 << 20)));
    let refused = rewriter.finish();
    assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
    let replaced = tree.filter.counts.replaced.load(Relaxed);
    assert!((DECIDED_BYTES_MAX / LEN..KEYS as usize).contains(&(replaced as usize)), "{replaced} are replaced");
    engine.health.well().unwrap();
}
