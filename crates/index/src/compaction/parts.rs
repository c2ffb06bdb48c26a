//! Level 0 in parts: where flushes cut their tables, so that level 0 is merged down one key range at a time.
//!
//! ```text
//! level 0   ▇▇▇▇│▇▇▇▇▇▇│▇▇▇▇│▇▇▇▇▇      each run is cut at the same keys,
//!           ▇▇▇▇│▇▇▇▇▇▇│▇▇▇▇│▇▇▇▇▇
//! base      ▇▇ ▇│▇▇▇ ▇▇│▇ ▇▇│▇▇▇ ▇      between tables of the base
//! ```
//!
//! Tables of level 0 that overlap one another must go down together. Uncut, these are all of them: one job rewrites
//! the whole base, and inputs and outputs are on disk together until it ends, with all values that move. Cut, each
//! job has the tables of a part, and the next begins when what the last one replaced is deleted. (Pebble cuts flushes
//! for the same reason.)
//!
//! Where a run of level 0 is cut, the next is too, unless the part has become far larger than others of the base, or
//! far smaller than others of both: while the first runs of a tree go down, only some of their parts have a base. The
//! tables of deeper levels end where some of the next level do (see `cut`), so that what is rewritten from top to
//! bottom goes in parts too.

use std::ops::Bound;

use bifold_contract::{FileId, Levels, RunId, TableMeta};

use super::shape::{self, Placed, Span};

/// Level, run and table.
pub type Place = (u8, RunId, FileId);

/// Tables of any levels that overlap one another and no others: they can be rewritten without the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Newest first.
    pub tables: Vec<Place>,
    /// Whether some of them have tombstones, of keys or of ranges.
    pub has_tombstones: bool,
    /// The first key of the part.
    pub start: Box<[u8]>,
    /// Its last key; `None` if it is unbounded.
    pub end: Option<Box<[u8]>>,
}

/// The parts of a tree that have keys of a range, ascending (`end` inclusive, `None`: unbounded). None ends before
/// `start`.
pub fn parts<'a>(levels: &'a Levels, start: Bound<&'a [u8]>, end: Option<&'a [u8]>) -> impl Iterator<Item = Part> {
    let mut tables: Vec<(u8, RunId, &TableMeta)> = levels.tables().map(|(level, run, t)| (level, run, &**t)).collect();
    tables.sort_by(|a, b| a.2.smallest.cmp(&b.2.smallest));
    let mut parts: Vec<(Span<'_>, Part)> = Vec::new();
    for (level, run, table) in tables {
        let (span, place) = (Span::of_table(table), (level, run, table.id));
        let has_tombstones = table.tombstones + table.range_tombstones > 0;
        match parts.last_mut() {
            Some((reach, part)) if reach.overlaps(table) => {
                *reach = reach.union(span);
                part.tables.push(place);
                part.has_tombstones |= has_tombstones;
            }
            _ => parts.push((span, Part { tables: vec![place], has_tombstones, start: span.start.into(), end: None })),
        }
    }
    let is_behind = move |last: &[u8]| match start {
        Bound::Included(start) => last >= start,
        Bound::Excluded(start) => last > start,
        Bound::Unbounded => true,
    };
    let has_keys = move |span: &Span<'_>| span.end.is_none_or(is_behind) && end.is_none_or(|end| span.start <= end);
    parts.into_iter().filter(move |(span, _)| has_keys(span)).map(|(span, mut part)| {
        // Stable, so that the tables of a run stay in key order.
        part.tables.sort_by_key(|&(level, run, _)| (level, std::cmp::Reverse(run)));
        part.end = span.end.map(Box::from);
        part
    })
}

/// The keys before which merges cut their output, ascending: those of flushes, and all boundaries.
#[must_use]
pub fn cuts_of_merges(levels: &Levels, most: usize) -> Vec<Box<[u8]>> {
    let mut cuts = cuts(levels, most);
    if !levels.boundaries.is_empty() {
        cuts.extend(levels.boundaries.iter().cloned());
        cuts.sort_unstable();
        cuts.dedup();
    }
    cuts
}

/// The keys before which to cut what is flushed, ascending: where the newest run of level 0 is cut, and into about
/// `most` parts with equally many bytes of the base. Of a tree that is split, boundaries alone, and all of them where
/// there are no more than that: of more, each flush would make as many tables, however small. Neighbours that share a
/// table then go down together.
#[must_use]
pub fn cuts(levels: &Levels, most: usize) -> Vec<Box<[u8]>> {
    let boundaries = &levels.boundaries;
    if (1..=most).contains(&boundaries.len()) {
        return boundaries.to_vec();
    }
    let (base, newest) = (base_tables(levels), newest_spans(levels));
    let share = |bytes: u64| bytes.div_ceil(most.max(1) as u64).max(1);
    let (step, newest_step) = (share(shape::bytes(&base)), share(newest.iter().map(|&(_, bytes)| bytes).sum()));
    // The first candidate key in a gap is taken, so a cut follows the base if a table of the base starts there.
    let mut candidates: Vec<(&[u8], u64, u64)> = base.iter().map(|t| (&*t.table.smallest, t.table.bytes, 0)).collect();
    candidates.extend(newest.iter().map(|&(span, bytes)| (span.start, 0, bytes)));
    candidates.extend(boundaries.iter().map(|boundary| (&**boundary, 0, 0)));
    candidates.sort_by_key(|&(key, ..)| key);
    let mut cuts: Vec<Box<[u8]>> = Vec::new();
    let (mut bytes, mut newest_bytes, mut last_gap) = (0, 0, 0);
    for (key, table_bytes, newest_table_bytes) in candidates {
        // A gap has the number of the table after it.
        let gap = newest.partition_point(|(span, _)| span.start < key);
        let before = gap.checked_sub(1).map(|table| newest[table].0);
        let is_in_gap = before.is_none_or(|span| span.end.is_some_and(|end| end < key));
        let is_uncut = (1..newest.len()).contains(&gap) && gap != last_gap;
        let is_enough = match is_in_gap {
            true if is_uncut => bytes >= step / 4 || newest_bytes >= newest_step / 4,
            true => bytes >= step,
            false => bytes >= 2 * step,
        };
        let may_cut = boundaries.is_empty() || boundaries.binary_search_by(|boundary| (**boundary).cmp(key)).is_ok();
        if may_cut && is_enough {
            cuts.push(key.into());
            (bytes, newest_bytes, last_gap) = (0, 0, gap);
        }
        bytes += table_bytes;
        newest_bytes += newest_table_bytes;
    }
    cuts
}

/// The tables of the level that level 0 is merged into, if they are one sorted run.
fn base_tables(levels: &Levels) -> Vec<Placed<'_>> {
    let base = (1..=levels.deepest()).find(|&depth| shape::level_bytes(levels, depth) > 0);
    let base = base.filter(|&base| shape::level(levels, base).is_some_and(|level| level.runs.len() == 1));
    base.map_or_else(Vec::new, |base| shape::placed(levels, base).collect())
}

/// The key ranges of the tables of the newest run of level 0, ascending, and their bytes.
fn newest_spans(levels: &Levels) -> Vec<(Span<'_>, u64)> {
    let newest = shape::level(levels, 0).and_then(|level| level.runs.first());
    newest.map_or_else(Vec::new, |run| run.tables.iter().map(|table| (Span::of_table(table), table.bytes)).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bifold_contract::{Level, Run, TableMeta};

    use super::*;
    use crate::compaction::model::table;

    /// A tree of runs of level 0 and of one in the base, whose tables go from one of these letters, twice, to the
    /// next one with it.
    fn tree(base: &str, level0: &[&[&str]]) -> Levels {
        let starts: Vec<char> = base.chars().collect();
        let base =
            starts.windows(2).map(|pair| table(&format!("{0}{0}", pair[0]), &format!("{1}{0}", pair[0], pair[1]), 10));
        let runs = level0.iter().map(|tables| run(tables.iter().map(|t| table(&t[..1], &t[1..], 10))));
        let level0 = Level { runs: runs.collect() };
        Levels { levels: vec![level0, Level::default(), Level { runs: vec![run(base)] }], ..Levels::default() }
    }

    fn run(tables: impl Iterator<Item = Arc<TableMeta>>) -> Run {
        Run { id: 1, tables: tables.collect() }
    }

    fn cut(levels: &Levels, most: usize) -> String {
        cuts(levels, most).iter().map(|key| String::from_utf8_lossy(key)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn without_a_base_only_the_cuts_of_the_newest_run_are_kept() {
        assert_eq!(cut(&Levels::default(), 4), "");
        assert_eq!(cut(&tree("a", &[&["ag", "ht"]]), 4), "h");
    }

    #[test]
    fn an_empty_level_0_is_cut_into_equal_parts_of_the_base() {
        assert_eq!(cut(&tree("abcdefghi", &[]), 4), "cc ee gg");
        assert_eq!(cut(&tree("abcdefghi", &[]), 1), "");
        assert_eq!(cut(&tree("abc", &[]), 16), "bb");
    }

    #[test]
    fn each_run_is_cut_where_the_newest_is() {
        assert_eq!(cut(&tree("abcdefghi", &[&["ac", "eh"], &["aa", "bz"]]), 1), "cc");
        assert_eq!(cut(&tree("abfghi", &[&["ac", "eh"]]), 1), "e", "no table of the base starts between them");
    }

    #[test]
    fn parts_that_become_too_large_or_too_small_are_cut_differently() {
        assert_eq!(cut(&tree("abcdefghi", &[&["az"]]), 4), "ee", "not at one share, but at twice that");
        let small = &["aa", "bb", "cc", "dd", "ez"];
        assert_eq!(cut(&tree("abcdefghi", &[small]), 1), "bb d", "parts of one table are too small");
    }

    #[test]
    fn a_run_is_cut_like_the_newest_even_if_some_of_its_parts_have_no_base_yet() {
        assert_eq!(cut(&tree("ab", &[&["ab", "cd", "ef", "gh"]]), 4), "c e g");
    }

    #[test]
    fn a_tree_that_is_split_is_cut_at_boundaries_only() {
        let split = |tree: Levels, boundaries: &str| Levels {
            boundaries: boundaries.bytes().map(|key| [key].into()).collect(),
            ..tree
        };
        assert_eq!(cut(&split(tree("abcdefghi", &[]), "cg"), 4), "c g");
        assert_eq!(cut(&split(tree("abcdefghi", &[]), "bcdefgh"), 4), "c e g", "too many for one flush");
        let levels = split(tree("abcdefghi", &[&["ac", "eh"]]), "bcdefgh");
        assert_eq!(cut(&levels, 4), "d h", "first where the newest run is cut");
        assert_eq!(cut(&levels, 1), "d");
        assert_eq!(cuts_of_merges(&levels, 1).len(), 7);
    }

    #[test]
    fn tables_that_overlap_on_any_level_are_one_part() {
        let levels = tree("acegik", &[&["bf", "hh"], &["dd"]]);
        let sizes = |start: Bound<&[u8]>, end: Option<&[u8]>| -> Vec<(usize, String)> {
            let of = |part: Part| (part.tables.len(), String::from_utf8(part.end.unwrap().into()).unwrap());
            parts(&levels, start, end).map(of).collect()
        };
        let all = [(5, "ge"), (2, "ig"), (1, "ki")].map(|(count, end)| (count, end.to_owned()));
        assert_eq!(sizes(Bound::Unbounded, None), all);
        assert_eq!(sizes(Bound::Excluded(b"ge"), None), all[1..]);
        assert_eq!(sizes(Bound::Included(b"ge"), Some(b"gg")), all[..2]);
        let first = parts(&levels, Bound::Unbounded, None).next().unwrap();
        assert!(first.tables.is_sorted_by_key(|table| table.0), "{first:?}");
    }
}
