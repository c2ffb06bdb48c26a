//! Parts that are too large to be merged at once: which table to cut, and where, so that the part falls into smaller
//! ones.
//!
//! ```text
//! a part     ▇▇▇▇▇▇▇▇▇▇▇▇      first the run with the most bytes: its tables are cut into small ones
//!            ▇▇▇▇▇▇▇▇▇▇▇▇
//!            ▇▇▇│▇▇▇│▇▇▇│▇▇▇   then the tables of other runs, where these start
//! its parts  ▇▇▇│▇▇▇│▇▇▇│▇▇▇
//! ```
//!
//! A merge has its inputs and its output on the disk until it ends. A disk without room for that may still have room
//! for one table: that table is rewritten in its place as several, and deleted. No more than a table is on the disk
//! twice, whatever the part is.

use std::collections::BTreeMap;

use bifold_contract::{Levels, RunId, TableMeta};

use super::parts::Place;

/// No table is cut into pieces smaller than this.
const PIECE_BYTES_MIN: u64 = 4 << 10;

/// A table to rewrite in its place as several tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableCut {
    /// The table.
    pub table: Place,
    /// The keys before which to cut it, ascending.
    pub keys: Vec<Box<[u8]>>,
    /// Also cut at about this size, in bytes.
    pub piece_bytes: u64,
}

/// The next cut on the way to parts of at most `most` bytes; `None` if no cut helps.
#[must_use]
pub fn next_cut(levels: &Levels, tables: &[Place], most: u64) -> Option<TableCut> {
    let mut runs: BTreeMap<(u8, RunId), Vec<&TableMeta>> = BTreeMap::new();
    for (level, run, table) in levels.tables().filter(|(.., table)| tables.iter().any(|place| place.2 == table.id)) {
        runs.entry((level, run)).or_default().push(table);
    }
    let bytes = |tables: &[&TableMeta]| tables.iter().map(|table| table.bytes).sum::<u64>();
    let all: u64 = runs.values().map(|tables| bytes(tables)).sum();
    if all <= most {
        return None;
    }
    let (&largest, ruler) = runs.iter().max_by_key(|(_, tables)| bytes(tables))?;
    // Aim at half of `most`: the bytes of the other runs are distributed differently from those of the largest.
    let share = u128::from(bytes(ruler)) * u128::from(most / 2) / u128::from(all);
    let piece_bytes = u64::try_from(share).unwrap_or(u64::MAX).max(PIECE_BYTES_MIN);
    let place_of = |(level, run): (u8, RunId), table: &TableMeta| (level, run, table.id);
    let is_long = |table: &&&TableMeta| table.bytes > piece_bytes + piece_bytes / 2 && has_distinct_keys(table);
    if let Some(table) = ruler.iter().find(is_long) {
        return Some(TableCut { table: place_of(largest, table), keys: Vec::new(), piece_bytes });
    }
    let mut others = runs.iter().filter(|(place, _)| **place != largest);
    others.find_map(|(&place, tables)| {
        tables.iter().find_map(|table| {
            let keys: Vec<Box<[u8]>> =
                ruler.iter().map(|ruler| &ruler.smallest).filter(|key| is_within(key, table)).cloned().collect();
            (!keys.is_empty()).then(|| TableCut { table: place_of(place, table), keys, piece_bytes: u64::MAX })
        })
    })
}

fn has_distinct_keys(table: &TableMeta) -> bool {
    table.entries + table.range_tombstones > 1 && (table.unbounded || table.smallest < table.largest)
}

/// Whether a table may have keys on both sides of a cut before `key`.
fn is_within(key: &[u8], table: &TableMeta) -> bool {
    // The end of a range tombstone is not in its range.
    let ends_after = || if table.range_tombstones > 0 { *table.largest > *key } else { *table.largest >= *key };
    *table.smallest < *key && (table.unbounded || ends_after())
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, sync::Arc};

    use bifold_contract::{Level, Run};

    use super::*;
    use crate::compaction::model::table;

    const KIB: u64 = 1 << 10;

    /// Runs of level 0, newest first. Each table is given by its first and last key (one letter each) and its KiB.
    fn tree(runs: &[&[(&str, u64)]]) -> Levels {
        let ids = Cell::new(0);
        let table = |&(keys, kib): &(&str, u64)| {
            ids.set(ids.get() + 1);
            let table = TableMeta::clone(&table(&keys[..1], &keys[1..], kib * KIB));
            Arc::new(TableMeta { id: ids.get(), entries: 10, ..table })
        };
        let run =
            |(id, tables): (usize, &&[_])| Run { id: 100 - id as u64, tables: tables.iter().map(table).collect() };
        let level0 = Level { runs: runs.iter().enumerate().map(run).collect() };
        Levels { levels: vec![level0], ..Levels::default() }
    }

    /// The first key of the table to cut, the keys to cut at, and the KiB per piece.
    fn cut(levels: &Levels, most: u64) -> Option<(String, String, u64)> {
        let tables: Vec<Place> = levels.tables().map(|(level, run, table)| (level, run, table.id)).collect();
        let cut = next_cut(levels, &tables, most * KIB)?;
        let (.., table) = levels.tables().find(|(.., table)| table.id == cut.table.2).unwrap();
        let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        Some((text(&table.smallest), cut.keys.iter().map(|key| text(key)).collect(), cut.piece_bytes / KIB))
    }

    #[test]
    fn a_part_that_fits_is_not_cut() {
        assert_eq!(cut(&tree(&[&[("az", 60)], &[("az", 40)]]), 100), None);
    }

    #[test]
    fn the_largest_run_is_cut_to_its_share_of_half_of_what_fits() {
        let levels = tree(&[&[("az", 80)], &[("am", 80), ("nz", 80)]]);
        assert_eq!(cut(&levels, 120), Some(("a".into(), String::new(), 40)));
    }

    #[test]
    fn other_runs_are_cut_where_its_tables_start() {
        let levels = tree(&[&[("bz", 80)], &[("ac", 40), ("dh", 40), ("im", 40), ("nz", 40)]]);
        let (table, keys, _) = cut(&levels, 120).unwrap();
        assert_eq!((&*table, &*keys), ("b", "din"));
    }

    #[test]
    fn when_all_are_cut_nothing_is_left_to_do() {
        let levels = tree(&[&[("bd", 3)], &[("bc", 5)]]);
        assert_eq!(cut(&levels, 7), None, "they start at the same key, and neither is larger than a piece");
        assert_eq!(cut(&tree(&[&[("aa", 99)]]), 10), None, "one key");
        assert_eq!(cut(&tree(&[&[("az", 6)]]), 1), None, "no table is cut below the smallest piece");
    }
}
