//! Parts that are too large to be merged at once: which table to cut, and where, so that a part falls apart.
//!
//! ```text
//! a part     ▇▇▇▇▇▇▇▇▇▇▇▇      the run with most bytes: its tables are cut to a few bytes each
//!            ▇▇▇▇▇▇▇▇▇▇▇▇
//!            ▇▇▇│▇▇▇│▇▇▇│▇▇▇   then those of other runs where these begin
//! its parts  ▇▇▇│▇▇▇│▇▇▇│▇▇▇
//! ```
//!
//! A merge has its inputs and its output on the disk until it ends. A disk without room for that may still have room
//! for one table: that is written anew in its place, as several, and goes. No more than a table is on the disk twice,
//! whatever the part is.

use std::collections::BTreeMap;

use bifold_contract::{Levels, RunId, TableMeta};

use super::parts::Place;

/// No table is cut to fewer bytes.
const PIECE_BYTES_MIN: u64 = 4 << 10;

/// A table to be written anew in its place, as several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableCut {
    /// Which.
    pub table: Place,
    /// The keys before which to cut it, ascending.
    pub keys: Vec<Box<[u8]>>,
    /// And at about this size, in bytes.
    pub piece_bytes: u64,
}

/// The next cut that helps to have no part of these tables with more than `most` bytes; `None` when there is none.
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
    // Parts of half of what fits: the other runs have their bytes elsewhere than the largest.
    let share = u128::from(bytes(ruler)) * u128::from(most / 2) / u128::from(all);
    let piece_bytes = u64::try_from(share).unwrap_or(u64::MAX).max(PIECE_BYTES_MIN);
    let of = |(level, run): (u8, RunId), table: &TableMeta| (level, run, table.id);
    let is_long = |table: &&&TableMeta| table.bytes > piece_bytes + piece_bytes / 2 && has_keys_apart(table);
    if let Some(table) = ruler.iter().find(is_long) {
        return Some(TableCut { table: of(largest, table), keys: Vec::new(), piece_bytes });
    }
    let mut others = runs.iter().filter(|(place, _)| **place != largest);
    others.find_map(|(&place, tables)| {
        tables.iter().find_map(|table| {
            let keys: Vec<Box<[u8]>> =
                ruler.iter().map(|ruler| &ruler.smallest).filter(|key| is_within(key, table)).cloned().collect();
            (!keys.is_empty()).then(|| TableCut { table: of(place, table), keys, piece_bytes: u64::MAX })
        })
    })
}

fn has_keys_apart(table: &TableMeta) -> bool {
    table.entries + table.range_tombstones > 1 && (table.unbounded || table.smallest < table.largest)
}

/// Whether a table has keys before this one and others from it on.
fn is_within(key: &[u8], table: &TableMeta) -> bool {
    // The end of a range tombstone is not in its range.
    let ends_behind = || if table.range_tombstones > 0 { *table.largest > *key } else { *table.largest >= *key };
    *table.smallest < *key && (table.unbounded || ends_behind())
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, sync::Arc};

    use bifold_contract::{Level, Run};

    use super::*;
    use crate::compaction::model::table;

    const KIB: u64 = 1 << 10;

    /// Runs of level 0, the newest first, of tables from their first letter to their last one with so many KiB.
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

    /// The first letter of the table to cut, at which keys, and to how many KiB.
    fn cut(levels: &Levels, most: u64) -> Option<(String, String, u64)> {
        let tables: Vec<Place> = levels.tables().map(|(level, run, table)| (level, run, table.id)).collect();
        let cut = next_cut(levels, &tables, most * KIB)?;
        let (.., table) = levels.tables().find(|(.., table)| table.id == cut.table.2).unwrap();
        let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        Some((text(&table.smallest), cut.keys.iter().map(|key| text(key)).collect(), cut.piece_bytes / KIB))
    }

    #[test]
    fn what_fits_is_not_cut() {
        assert_eq!(cut(&tree(&[&[("az", 60)], &[("az", 40)]]), 100), None);
    }

    #[test]
    fn the_largest_run_is_cut_to_its_share_of_half_of_what_fits() {
        let levels = tree(&[&[("az", 80)], &[("am", 80), ("nz", 80)]]);
        assert_eq!(cut(&levels, 120), Some(("a".into(), String::new(), 40)));
    }

    #[test]
    fn others_are_cut_where_its_tables_begin() {
        let levels = tree(&[&[("bz", 80)], &[("ac", 40), ("dh", 40), ("im", 40), ("nz", 40)]]);
        let (table, keys, _) = cut(&levels, 120).unwrap();
        assert_eq!((&*table, &*keys), ("b", "din"));
    }

    #[test]
    fn when_all_are_cut_nothing_is_left_to_do() {
        let levels = tree(&[&[("bd", 3)], &[("bc", 5)]]);
        assert_eq!(cut(&levels, 7), None, "they begin together, and neither has more than a piece");
        assert_eq!(cut(&tree(&[&[("aa", 99)]]), 10), None, "one key");
        assert_eq!(cut(&tree(&[&[("az", 6)]]), 1), None, "no table has fewer bytes than a piece");
    }
}
