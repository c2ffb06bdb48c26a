//! Where to split a partition that is too large: at its median (UniKV §III-D).
//!
//! A split is a boundary and nothing else: no table is rewritten for it. So it must lie between two tables of the
//! level that has most of the partition, and is as near to the median as these allow.

use bifold_contract::{Level, Levels};

/// The boundaries to add, one at most for each of these partitions of more than `most` bytes, where each entry has
/// `separated_bytes` of values beyond its table. One with boundaries that are not in force yet may have as much more
/// for each.
#[must_use]
pub fn due(partitions: &[Levels], most: u64, separated_bytes: f64) -> Vec<Box<[u8]>> {
    let is_large = |partition: &&Levels| {
        let entries: u64 = partition.levels.iter().map(entries).sum();
        let allowed = most as f64 * (partition.boundaries.len() + 1) as f64;
        partition.bytes() as f64 + entries as f64 * separated_bytes > allowed
    };
    let split = |partition: &Levels| {
        let largest = partition.levels.iter().skip(1).max_by_key(|level| entries(level))?;
        median(largest).filter(|key| !partition.boundaries.contains(key))
    };
    partitions.iter().filter(is_large).filter_map(split).collect()
}

/// The key before which half of the entries of a level are, as nearly as its tables allow.
fn median(level: &Level) -> Option<Box<[u8]>> {
    let mut tables: Vec<_> = level.runs.iter().flat_map(|run| &run.tables).collect();
    tables.sort_by(|a, b| a.smallest.cmp(&b.smallest));
    let half = entries(level) / 2;
    let mut before = 0;
    let mut places = Vec::new();
    for pair in tables.windows(2) {
        before += pair[0].entries;
        // Runs of a level may overlap. Then no key between these two tables divides the level.
        if !pair[0].unbounded && pair[0].largest < pair[1].smallest {
            places.push((before.abs_diff(half), &pair[1].smallest));
        }
    }
    places.into_iter().min().map(|(_, key)| key.clone())
}

fn entries(level: &Level) -> u64 {
    level.runs.iter().flat_map(|run| &run.tables).map(|table| table.entries).sum()
}

#[cfg(test)]
mod tests {
    use bifold_contract::Run;

    use super::*;
    use crate::compaction::model::table;

    fn level(tables: &[&str]) -> Level {
        let tables = tables.iter().map(|text| table(&text[..1], &text[1..], 10)).collect();
        Level { runs: vec![Run { id: 1, tables }] }
    }

    fn due_at(level0: &[&str], level1: &[&str], boundaries: &str, most: u64, separated_bytes: f64) -> String {
        let boundaries = boundaries.bytes().map(|key| [key].into()).collect();
        let levels = Levels { levels: vec![level(level0), level(level1)], boundaries };
        due(&levels.partitions(), most, separated_bytes).iter().map(|key| String::from_utf8_lossy(key)).collect()
    }

    #[test]
    fn a_large_partition_is_split_at_its_median() {
        assert_eq!(due_at(&[], &["ab", "cd", "ef", "gh"], "", 39, 0.0), "e");
        assert_eq!(due_at(&[], &["ab", "cd", "ef", "gh"], "", 40, 0.0), "");
        assert_eq!(due_at(&[], &["ab", "cd", "ef"], "", 20, 0.0), "c");
        assert_eq!(due_at(&[], &["ab", "cd"], "", 39, 10.0), "c", "separated values count too");
        assert_eq!(due_at(&["bg"], &["ab", "cd"], "", 29, 0.0), "c", "level 0 counts, and may span the boundary");
    }

    #[test]
    fn one_table_is_not_split() {
        assert_eq!(due_at(&["ac", "de"], &["ae"], "", 9, 0.0), "");
        assert_eq!(due_at(&["ac"], &[], "", 9, 0.0), "");
    }

    #[test]
    fn each_large_partition_is_split_and_one_with_a_waiting_boundary_must_be_larger() {
        assert_eq!(due_at(&[], &["ab", "cd", "ef", "gh"], "e", 19, 0.0), "cg");
        assert_eq!(
            due_at(&["bg"], &["ab", "cd", "ef", "gh"], "e", 19, 0.0),
            "",
            "its median is the boundary it waits for"
        );
        assert_eq!(due_at(&["bg"], &["ab", "cd", "ef", "gh"], "g", 25, 0.0), "");
        assert_eq!(due_at(&["bg"], &["ab", "cd", "ef", "gh"], "g", 24, 0.0), "e");
    }
}
