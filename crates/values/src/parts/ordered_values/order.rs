//! How well values are sorted: which level they follow, and whose key ranges overlap (DiffKV §3.4). Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use crate::{
    parts::value_files::{OVERLAPS, ValueFile},
    placement::LevelOrder,
};

/// Which compactions move values to files of their own (DiffKV §3.3, §3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MergePolicy {
    /// Only those that move values out of files with too much garbage: other values stay in the files that the flush
    /// wrote.
    Off,
    /// Each that takes keys to a deeper level (compaction-triggered merge).
    EachLevel,
    /// Those that take keys to one of the last two levels that have tables (lazy merge).
    Lazy,
    /// As [`MergePolicy::Lazy`]. These compactions also move values that they meet in files that overlap too many
    /// others (`max_sorted_run`), whatever level these values follow (scan-optimised merge). The default.
    #[default]
    ScanOptimised,
}

impl MergePolicy {
    /// The level of values that belongs to a level of keys, where `deepest` is the last that has any. With lazy
    /// merge, all but the last two are one.
    #[must_use]
    pub fn level_of_values(self, level: u8, deepest: u8) -> u8 {
        match self {
            Self::Off => 0,
            Self::EachLevel => level,
            Self::Lazy | Self::ScanOptimised if level.saturating_add(2) <= deepest => 0,
            Self::Lazy | Self::ScanOptimised => level,
        }
    }

    /// Whether values that follow the keys of level `from` move when these go to level `to`.
    #[must_use]
    pub fn moves(self, from: u8, to: u8, deepest: u8) -> bool {
        self.level_of_values(from, deepest) < self.level_of_values(to, deepest)
    }

    /// Whether a merge into level `to` moves the values of tagged files. Tags wait for a merge of values (DiffKV §3.4,
    /// §3.5): merges within level 0 are none, nor are those that lazy merge leaves out.
    #[must_use]
    pub fn honours_tags(self, to: u8, deepest: u8) -> bool {
        match self {
            Self::Off => true,
            Self::EachLevel => to > 0,
            Self::Lazy | Self::ScanOptimised => to > 0 && to.saturating_add(1) >= deepest,
        }
    }
}

/// The smallest and the largest key of a file.
pub(super) type Range<'a> = (&'a [u8], &'a [u8]);

/// How many of these ranges each of them overlaps, itself included: the number of ranges that start no later than it
/// ends, minus those that end before it starts.
pub(super) fn overlaps(ranges: &[Range<'_>]) -> Vec<usize> {
    let mut starts: Vec<&[u8]> = ranges.iter().map(|range| range.0).collect();
    let mut ends: Vec<&[u8]> = ranges.iter().map(|range| range.1).collect();
    starts.sort_unstable();
    ends.sort_unstable();
    let count = |&(smallest, largest): &Range<'_>| {
        starts.partition_point(|start| *start <= largest) - ends.partition_point(|end| *end < smallest)
    };
    ranges.iter().map(count).collect()
}

/// Which of these ranges to tag: those that overlap more than `most` ranges, themselves included, and all that
/// overlap these.
pub(super) fn to_tag(ranges: &[Range<'_>], most: usize) -> Vec<bool> {
    let overfull: Vec<Range<'_>> =
        overlaps(ranges).iter().zip(ranges).filter(|&(&count, _)| count > most).map(|(_, &range)| range).collect();
    let union = union(overfull);
    let overlaps = |&(smallest, largest): &Range<'_>| {
        let first = union.partition_point(|range| range.1 < smallest);
        union.get(first).is_some_and(|range| range.0 <= largest)
    };
    ranges.iter().map(overlaps).collect()
}

/// The same keys as ranges that do not overlap, ascending.
fn union(mut ranges: Vec<Range<'_>>) -> Vec<Range<'_>> {
    ranges.sort_unstable();
    let mut union: Vec<Range<'_>> = Vec::new();
    for range in ranges {
        match union.last_mut() {
            Some(last) if range.0 <= last.1 => last.1 = last.1.max(range.1),
            _ => union.push(range),
        }
    }
    union
}

/// What statistics show of these files, by level.
pub(super) fn by_level(files: &[Arc<ValueFile>], is_tagged: impl Fn(&ValueFile) -> bool) -> Vec<LevelOrder> {
    let mut levels: BTreeMap<u8, Vec<&Arc<ValueFile>>> = BTreeMap::new();
    for file in files {
        levels.entry(file.extent().map_or(0, |extent| extent.level)).or_default().push(file);
    }
    let order = |(level, files): (u8, Vec<&Arc<ValueFile>>)| {
        let groups: BTreeSet<u64> = files.iter().map(|file| file.description.group).collect();
        let ranges: Vec<Range<'_>> = files.iter().filter_map(|file| range_of(file)).collect();
        let overlap = overlaps(&ranges).iter().sum::<usize>() as f64 / ranges.len().max(1) as f64;
        let bytes = files.iter().map(|file| file.len()).sum();
        LevelOrder {
            level,
            groups: groups.len() as u64,
            files: files.len() as u64,
            bytes,
            live_bytes: bytes - files.iter().map(|file| file.dead()).sum::<u64>(),
            overlap,
            tagged: files.iter().filter(|file| is_tagged(file)).count() as u64,
        }
    };
    levels.into_iter().map(order).collect()
}

/// The keys from the first to the last of a file.
pub(super) fn range_of(file: &ValueFile) -> Option<Range<'_>> {
    file.extent().map(|extent| (&*extent.smallest, &*extent.largest))
}

/// Whether the file overlaps too many others.
pub(super) fn has_overlap_tag(file: &ValueFile) -> bool {
    file.tags() & OVERLAPS != 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(start: u8, end: u8) -> ([u8; 1], [u8; 1]) {
        ([start], [end])
    }

    fn borrowed(ranges: &[([u8; 1], [u8; 1])]) -> Vec<Range<'_>> {
        ranges.iter().map(|(start, end)| (&start[..], &end[..])).collect()
    }

    /// DiffKV §3.4, figure 7: before key 38 there are five starts, before key 26 one end, so \[26–38\] overlaps four.
    #[test]
    fn the_example_of_the_paper() {
        let ranges = [range(1, 13), range(15, 28), range(29, 34), range(37, 48), range(26, 38), range(50, 60)];
        assert_eq!(overlaps(&borrowed(&ranges)), [1, 2, 2, 2, 4, 1]);
        assert_eq!(to_tag(&borrowed(&ranges), 3), [false, true, true, true, true, false]);
        assert_eq!(to_tag(&borrowed(&ranges), 4), [false; 6]);
    }

    /// DiffKV §3.4, figure 6: with levels 0 to n, those up to n - 2 are one.
    #[test]
    fn lazily_all_levels_but_the_last_two_are_one() {
        let moves = |policy: MergePolicy| (0..6).map(|from| policy.moves(from, from + 1, 6)).collect::<Vec<_>>();
        assert_eq!(moves(MergePolicy::EachLevel), [true; 6]);
        assert_eq!(moves(MergePolicy::Lazy), [false, false, false, false, true, true]);
        assert_eq!(moves(MergePolicy::ScanOptimised), moves(MergePolicy::Lazy));
        assert_eq!(moves(MergePolicy::Off), [false; 6]);
        assert!(MergePolicy::Lazy.moves(0, 6, 6), "from level 0 straight to the last");
        assert!(MergePolicy::Lazy.moves(0, 1, 1), "a tree of two levels has nothing to be lazy about");
        assert!(!MergePolicy::Lazy.moves(0, 0, 0), "within level 0");
    }

    #[test]
    fn tags_wait_for_merges_of_values() {
        let honours = |policy: MergePolicy| (0..=6).map(|to| policy.honours_tags(to, 6)).collect::<Vec<_>>();
        assert_eq!(honours(MergePolicy::EachLevel), [false, true, true, true, true, true, true]);
        assert_eq!(honours(MergePolicy::Lazy), [false, false, false, false, false, true, true]);
        assert_eq!(honours(MergePolicy::ScanOptimised), honours(MergePolicy::Lazy));
        assert!(MergePolicy::ScanOptimised.honours_tags(1, 1), "the last level, wherever it is");
    }

    proptest! {
        #[test]
        fn the_sweep_counts_what_comparing_all_pairs_counts(
            pairs in prop::collection::vec((0u8..60, 0u8..12), 0..40), most in 0usize..8,
        ) {
            let owned: Vec<_> = pairs.iter().map(|&(start, len)| range(start, start + len)).collect();
            let ranges = borrowed(&owned);
            let overlap = |a: &Range<'_>, b: &Range<'_>| a.0 <= b.1 && b.0 <= a.1;
            let counts: Vec<usize> = ranges.iter().map(|a| ranges.iter().filter(|b| overlap(a, b)).count()).collect();
            prop_assert_eq!(overlaps(&ranges), counts.clone());
            let tagged: Vec<bool> = ranges
                .iter()
                .map(|a| ranges.iter().zip(&counts).any(|(b, &count)| count > most && overlap(a, b)))
                .collect();
            prop_assert_eq!(to_tag(&ranges, most), tagged);
        }
    }
}
