//! How tight space is, and what follows from that: whether GC runs, and whether writers wait.

use std::sync::Arc;

use bifold_contract::{FileId, SeqNo, planted};

use super::ValueSpace;

/// How tight space is.
#[derive(Clone, Debug, PartialEq)]
pub struct SpacePressure {
    /// Bytes of tables.
    pub index_bytes: u64,
    /// Of these, an estimate of the live inline values.
    pub inline_bytes: u64,
    /// Bytes of deleted value files that are still to be removed from the disk.
    pub being_removed_bytes: u64,
    /// Entries that may overwrite others, per entry that is a value: those of all memtables and of all sorted runs but
    /// the largest. What they overwrite is not known to be dead until a compaction reads both.
    pub entries_above: f64,
    /// Entries overwritten by a newer one in the same memtable, per entry that is a value.
    pub overwritten: f64,
    /// Bytes that value files and tables may take for each byte of live values, each with its key.
    pub target: f64,
    /// The placement's [`Profile::copies_percent`](super::Profile::copies_percent).
    pub copies_percent: u8,
    /// The number of the oldest snapshot that is open.
    pub oldest_snapshot: Option<SeqNo>,
    /// GC takes every unit that has files with numbers below this one, whether or not it is known to be worth it: a
    /// crash may have left copies that nobody counts.
    pub all_before: Option<FileId>,
    /// The keys before which the keyspace is split into partitions, ascending.
    pub boundaries: Arc<[Box<[u8]>]>,
}

/// Lower bound of the target, in bytes: a few groups more or less are no excess.
const SLACK_BYTES: f64 = 64.0 * 1024.0 * 1024.0;

/// The [`fullness`](SpacePressure::fullness) at which GC starts, whatever part of the slack it keeps for copies.
const GC_STARTS: f64 = 0.75;

/// Drained files, and those being removed, do not count as taken up to this share of the slack. They only wait to be
/// gone: slower writers would not make that faster, and GC has nothing to do.
const DRAINED_SHARE: f64 = 0.08;

/// The garbage for each live byte that always remains: collecting it is not worth it.
const UNCOLLECTED_SHARE: f64 = 0.15;

impl SpacePressure {
    /// At most how many bytes may be stale of values of so many bytes that are not known to be dead.
    #[must_use]
    pub fn stale_at_most(&self, live_bytes: u64) -> u64 {
        (live_bytes as f64 * (self.entries_above + self.overwritten).min(1.0)) as u64
    }

    /// Bytes of live values, wherever they are, as far as known or estimated.
    fn live_bytes(&self, space: &ValueSpace) -> f64 {
        (space.live_bytes.saturating_sub(space.left_out_bytes) + self.inline_bytes) as f64
    }

    /// Bytes of value files, without those that GC cannot shrink.
    fn total_bytes(space: &ValueSpace) -> u64 {
        let left_out = if planted!("damage_counts") { 0 } else { space.left_out_bytes };
        space.total_bytes.saturating_sub(left_out)
    }

    /// GC starts when this share of the slack is taken. The rest is for the copies that it makes while the originals
    /// exist.
    fn gc_starts(&self) -> f64 {
        1.0 - f64::from(self.copies_percent.clamp(1, 99)) / 100.0
    }

    /// Bytes by which value files and tables exceed what they may take before GC starts, once drained files are
    /// deleted.
    #[must_use]
    pub fn excess(&self, space: &ValueSpace) -> u64 {
        let slack = (self.target - 1.0) * self.gc_starts();
        let bound = (self.live_bytes(space) * (1.0 + slack)) as u64;
        (Self::total_bytes(space).saturating_sub(space.drained_bytes) + self.index_bytes).saturating_sub(bound)
    }

    /// Bytes that the target leaves for value files: all but the tables.
    #[must_use]
    pub fn allowed_for_files(&self, space: &ValueSpace) -> f64 {
        self.live_bytes(space) * self.target - self.index_bytes as f64
    }

    /// How much of the target's slack is taken: by garbage, by tables, and, unless they are few, by files that are
    /// drained or being removed. It is 1.0 when they fill it, and 0.75 where GC starts: below that and above it, it
    /// grows evenly. It is for slowing writers, so it is 0 where slowing them would free nothing: while a snapshot
    /// holds drained files. A target that the tables alone exceed is raised to what GC can reach. Nearly all of its
    /// slack is tables then, so a third of it all stands for the slack.
    #[must_use]
    pub fn fullness(&self, space: &ValueSpace) -> f64 {
        if self.is_pinned(space) {
            return 0.0;
        }
        let leaving = space.drained_bytes + self.being_removed_bytes;
        let about_to_go = (leaving as f64).min(self.slack(space) * DRAINED_SHARE);
        let taken = (Self::total_bytes(space) + self.being_removed_bytes + self.index_bytes) as f64 - about_to_go;
        let share = (1.0 - (self.bound(space) - taken) / self.slack(space)).max(0.0);
        let starts = self.gc_starts();
        match share < starts {
            true => share / starts * GC_STARTS,
            false => GC_STARTS + (share - starts) / (1.0 - starts) * (1.0 - GC_STARTS),
        }
    }

    /// The bytes that the target allows beyond live values.
    #[must_use]
    pub fn slack(&self, space: &ValueSpace) -> f64 {
        let bound = self.bound(space);
        let slack = if self.is_reachable(space) { bound - self.live_bytes(space) } else { bound / 3.0 };
        slack.max(1.0)
    }

    /// The bytes that a keyspace may take.
    fn bound(&self, space: &ValueSpace) -> f64 {
        (self.live_bytes(space) * self.target).max(self.reachable(space)).max(SLACK_BYTES)
    }

    /// Whether GC can reach the target. Where values are short, the tables alone may exceed it.
    #[must_use]
    pub fn is_reachable(&self, space: &ValueSpace) -> bool {
        self.reachable(space) <= self.live_bytes(space) * self.target
    }

    fn reachable(&self, space: &ValueSpace) -> f64 {
        let live = space.live_bytes.saturating_sub(space.left_out_bytes);
        live as f64 * (1.0 + UNCOLLECTED_SHARE) + self.index_bytes as f64
    }

    /// Whether snapshots hold so many drained bytes that more GC would only take more space.
    #[must_use]
    pub fn is_pinned(&self, space: &ValueSpace) -> bool {
        self.oldest_snapshot.is_some()
            && space.drained_bytes as f64 > self.live_bytes(space) * (self.target - 1.0).max(0.1)
    }

    /// Why GC does not pick a unit now that is worth collecting.
    #[must_use]
    pub fn reason(&self, space: &ValueSpace) -> &'static str {
        if self.excess(space) == 0 {
            "space is within its target"
        } else if self.is_pinned(space) {
            "a snapshot holds the files that GC drained before"
        } else {
            "others come first"
        }
    }
}

#[cfg(test)]
impl SpacePressure {
    /// Of values alone, with nothing above others.
    pub(crate) fn of_target(target: f64) -> Self {
        Self {
            index_bytes: 0,
            inline_bytes: 0,
            being_removed_bytes: 0,
            entries_above: 0.0,
            overwritten: 0.0,
            target,
            copies_percent: super::Profile::COPIES_PERCENT,
            oldest_snapshot: None,
            all_before: None,
            boundaries: Arc::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn pressure(target: f64, oldest_snapshot: Option<SeqNo>) -> SpacePressure {
        SpacePressure { index_bytes: 200 * MIB, oldest_snapshot, ..SpacePressure::of_target(target) }
    }

    fn space(total: u64, drained: u64) -> ValueSpace {
        let (total_bytes, drained_bytes) = (total * MIB, drained * MIB);
        ValueSpace { files: 1, total_bytes, live_bytes: 1000 * MIB, drained_bytes, left_out_bytes: 0 }
    }

    #[test]
    fn values_and_tables_together_fill_the_target() {
        assert_eq!(pressure(1.5, None).fullness(&space(1300, 0)), 1.0);
        let without = pressure(1.5, None).fullness(&space(1200, 0));
        let with = |drained| pressure(1.5, None).fullness(&space(1200 + drained, drained));
        assert_eq!([with(10), with(40)], [without; 2], "they are deleted soon");
        assert!(with(100) > without + 0.1 && with(300) > 1.1, "many take space like others");
        let excess = pressure(1.5, None).excess(&space(1200, 0));
        for bytes in [10, 40, 100, 300] {
            let pressure = SpacePressure { being_removed_bytes: bytes * MIB, ..pressure(1.5, None) };
            assert_eq!(pressure.fullness(&space(1200, 0)), with(bytes), "so do files that are being removed");
            assert_eq!(pressure.excess(&space(1200, 0)), excess, "GC does not free them");
        }
    }

    /// Writers are slowed by how much is taken, so this must not depend on how much the target allows.
    #[test]
    fn gc_starts_at_the_same_fullness_whatever_the_target() {
        for (target, copies_percent) in [(1.25, 25), (1.5, 25), (2.0, 25), (4.0, 25), (1.25, 8), (1.5, 8), (2.0, 40)] {
            let pressure = SpacePressure { index_bytes: 20 * MIB, copies_percent, ..pressure(target, None) };
            let starts = 1.0 - f64::from(copies_percent) / 100.0;
            let total = (980.0 + 1000.0 * (target - 1.0) * starts) as u64;
            let case = format!("{target}, {copies_percent} %");
            assert!((pressure.fullness(&space(total, 0)) - GC_STARTS).abs() < 0.02, "{case}");
            assert_eq!(pressure.excess(&space(total, 0)), 0, "{case}");
            assert!(pressure.excess(&space(total + 4, 0)) > 0, "{case}");
            let at = |of_slack: f64| pressure.fullness(&space((980.0 + 1000.0 * (target - 1.0) * of_slack) as u64, 0));
            assert!((at(starts / 2.0) - GC_STARTS / 2.0).abs() < 0.005, "{case}");
            assert!((at(1.0) - 1.0).abs() < 0.02, "{case}");
        }
    }

    #[test]
    fn inline_values_raise_the_target_too() {
        let pressure = SpacePressure { inline_bytes: 100 * MIB, ..pressure(1.5, None) };
        assert_eq!(pressure.fullness(&space(1450, 0)), 1.0);
        assert_eq!(pressure.excess(&space(1400, 0)), 1600 * MIB - 1512 * MIB - MIB / 2);
        assert_eq!(pressure.excess(&space(1400, 100)), 0);
    }

    #[test]
    fn a_target_below_the_tables_does_not_slow_writers_without_end() {
        assert!(pressure(1.05, None).fullness(&space(1060, 0)) < 0.85);
        assert!(pressure(1.05, None).fullness(&space(1200, 0)) > 1.0);
    }

    /// With short values tables are most of the space, and slower writers would not make them shorter.
    #[test]
    fn tables_alone_do_not_fill_a_target_that_they_exceed() {
        for tables in [500, 1000, 4000] {
            let pressure = SpacePressure { index_bytes: tables * MIB, ..pressure(1.5, None) };
            let without_garbage = pressure.fullness(&space(1000, 0));
            let at_what_remains = pressure.fullness(&space(1150, 0));
            assert!(without_garbage < 0.92 && (at_what_remains - 1.0).abs() < 0.001, "{tables}: {without_garbage}");
        }
    }

    #[test]
    fn no_more_is_stale_than_stands_above() {
        let above = |entries_above, overwritten| SpacePressure { entries_above, overwritten, ..pressure(1.5, None) };
        assert_eq!(above(0.0, 0.0).stale_at_most(1000), 0);
        assert_eq!(above(0.25, 0.25).stale_at_most(1000), 500);
        assert_eq!(above(0.7, 0.7).stale_at_most(1000), 1000);
    }

    #[test]
    fn what_a_snapshot_holds_does_not_slow_writers() {
        assert_eq!(pressure(1.5, Some(7)).fullness(&space(2000, 600)), 0.0);
        assert!(pressure(1.5, None).fullness(&space(2000, 600)) > 1.0);
    }

    /// Otherwise writers would wait forever for bytes that nobody can free, and everything else would be collected
    /// again and again.
    #[test]
    fn what_cannot_be_read_neither_slows_writers_nor_asks_for_gc() {
        let sound = space(1300, 0);
        let left_out = |bytes: u64| ValueSpace {
            total_bytes: sound.total_bytes + bytes,
            live_bytes: sound.live_bytes + bytes,
            left_out_bytes: bytes,
            ..sound
        };
        let pressure = pressure(1.5, None);
        for bytes in [MIB, 500 * MIB, 9000 * MIB] {
            assert_eq!(pressure.fullness(&left_out(bytes)), pressure.fullness(&sound));
            assert_eq!(pressure.excess(&left_out(bytes)), pressure.excess(&sound));
            assert!(pressure.is_reachable(&left_out(bytes)));
        }
    }
}
