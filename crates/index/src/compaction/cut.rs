//! Where one output table ends and the next begins.
//!
//! A table ends
//!
//! * before each key that the plan names: flushes cut level 0 into parts that go down one by one (see `parts`);
//! * when its filter and its index are so long that the table could not be opened again if they became much longer;
//! * when it is full. If tables of the level below its own (LevelDB calls them grandparents) lie ahead, it waits for
//!   the end of one, up to a quarter more: where tables of one level end where some of the next do, they can be
//!   merged without their neighbours;
//! * when it would overlap too much of that level: merging it down later would then rewrite far more than the table
//!   itself.

use std::sync::Arc;

use bifold_contract::TableMeta;

/// A table ends when its filter and its index have so many bytes: half of what a writer takes, since more versions of
/// its last key may follow.
const METADATA_BYTES_DUE: u64 = 1 << 30;

/// The size of the open table so far, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Open {
    /// Bytes of its file.
    pub bytes: u64,
    /// Bytes of the values it points at.
    pub reach: u64,
    /// Bytes of its filter and its index.
    pub metadata: u64,
}

/// The limits of a table, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub bytes: u64,
    pub reach: u64,
    /// Bytes of the tables that it overlaps one level deeper.
    pub overlap: u64,
}

/// Follows the keys of an output and decides where a table ends.
pub(super) struct Cut<'a> {
    /// Sorted by largest key, because tables of several runs may overlap one another.
    grandparents: Vec<&'a TableMeta>,
    /// How many of them end before the last key.
    passed: usize,
    /// The bytes of those passed since the open table started.
    overlap_bytes: u64,
    /// The keys still ahead at which a table must end.
    ahead: &'a [Box<[u8]>],
    limits: Limits,
}

impl<'a> Cut<'a> {
    pub(super) fn new(grandparents: &'a [Arc<TableMeta>], cuts: &'a [Box<[u8]>], limits: Limits) -> Self {
        let mut grandparents: Vec<&TableMeta> = grandparents.iter().map(|table| &**table).collect();
        grandparents.sort_unstable_by(|a, b| a.largest.cmp(&b.largest));
        Self { grandparents, passed: 0, overlap_bytes: 0, ahead: cuts, limits }
    }

    /// Whether the open table must end before `key`. Keys ascend.
    pub(super) fn is_due(&mut self, key: &[u8], open: Option<Open>) -> bool {
        let is_named = self.pass_named(key);
        let is_between = self.pass_grandparents(key, open.is_some());
        let Some(open) = open else { return false };
        let is_aligned = is_between || self.passed == self.grandparents.len();
        let exceeds =
            |bytes: u64, limit: u64| bytes >= if is_aligned { limit } else { limit.saturating_add(limit / 4) };
        let is_full = exceeds(open.bytes, self.limits.bytes) || exceeds(open.reach, self.limits.reach);
        let is_too_long = open.metadata >= METADATA_BYTES_DUE;
        let due = is_named || is_full || is_too_long || self.overlap_bytes > self.limits.overlap;
        if due {
            self.overlap_bytes = 0;
        }
        due
    }

    /// Whether the plan names a key after the last key and not after `key`.
    fn pass_named(&mut self, key: &[u8]) -> bool {
        let passed = self.ahead.iter().take_while(|cut| &***cut <= key).count();
        self.ahead = &self.ahead[passed..];
        passed > 0
    }

    /// Whether a table of the level below the output ends between the last key and `key`.
    fn pass_grandparents(&mut self, key: &[u8], is_open: bool) -> bool {
        let before = self.passed;
        while let Some(next) = self.grandparents.get(self.passed).filter(|next| &*next.largest < key) {
            self.passed += 1;
            // Tables before the first key of the output overlap none of it.
            if is_open {
                self.overlap_bytes = self.overlap_bytes.saturating_add(next.bytes);
            }
        }
        self.passed > before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::model::table;

    fn limits(bytes: u64, overlap: u64) -> Limits {
        Limits { bytes, reach: u64::MAX, overlap }
    }

    #[expect(clippy::unnecessary_wraps, reason = "as `is_due` takes it")]
    fn open(bytes: u64) -> Option<Open> {
        Some(Open { bytes, ..Open::default() })
    }

    #[test]
    fn a_full_table_ends() {
        let mut cut = Cut::new(&[], &[], limits(100, u64::MAX));
        assert!(!cut.is_due(b"a", None));
        assert!(!cut.is_due(b"b", open(99)));
        assert!(cut.is_due(b"c", open(100)));
    }

    #[test]
    fn a_table_that_points_at_too_many_value_bytes_ends() {
        let mut cut = Cut::new(&[], &[], Limits { bytes: 100, reach: 400, overlap: u64::MAX });
        let reaching = |bytes: u64, reach: u64| Some(Open { bytes, reach, metadata: 0 });
        assert!(!cut.is_due(b"a", reaching(50, 399)));
        assert!(cut.is_due(b"b", reaching(51, 400)));
    }

    /// Opening reads filter and index at once.
    #[test]
    fn a_table_whose_filter_and_index_are_long_ends_whatever_its_size_may_be() {
        let below = [table("a", "z", 1)];
        let mut cut = Cut::new(&below, &[], limits(u64::MAX, u64::MAX));
        let long = |metadata: u64| Some(Open { bytes: 1 << 40, reach: 0, metadata });
        assert!(!cut.is_due(b"b", long(METADATA_BYTES_DUE - 1)));
        assert!(cut.is_due(b"c", long(METADATA_BYTES_DUE)));
    }

    #[test]
    fn a_full_table_waits_for_the_end_of_one_below_it() {
        let below = [table("a", "c", 1), table("d", "k", 1), table("x", "z", 1)];
        let mut cut = Cut::new(&below, &[], limits(100, u64::MAX));
        assert!(!cut.is_due(b"b", open(90)));
        assert!(!cut.is_due(b"e", open(99)), "not full yet");
        assert!(!cut.is_due(b"f", open(100)), "in the middle of one");
        assert!(cut.is_due(b"l", open(110)), "after it");
        assert!(!cut.is_due(b"y", open(124)));
        assert!(cut.is_due(b"yy", open(125)), "a quarter more is enough");
        assert!(cut.is_due(b"zz", open(100)), "nothing is ahead");
    }

    #[test]
    fn a_table_ends_before_it_overlaps_too_much() {
        let below = [table("a", "c", 40), table("d", "f", 40), table("g", "i", 40), table("j", "l", 40)];
        let mut cut = Cut::new(&below, &[], limits(100, 60));
        assert!(!cut.is_due(b"d", None), "tables before the output do not count");
        assert!(!cut.is_due(b"g", open(1)), "40 bytes passed");
        assert!(cut.is_due(b"j", open(2)), "80 bytes passed");
        assert!(!cut.is_due(b"m", open(1)), "the count starts again");
    }

    #[test]
    fn a_table_ends_where_the_plan_says() {
        let cuts = [b"c".as_slice(), b"d", b"m"].map(Box::from);
        let mut cut = Cut::new(&[], &cuts, limits(100, u64::MAX));
        assert!(!cut.is_due(b"b", None));
        assert!(!cut.is_due(b"bb", open(1)));
        assert!(cut.is_due(b"e", open(1)), "two of them at once");
        assert!(!cut.is_due(b"f", open(1)));
        assert!(cut.is_due(b"m", open(1)));
        assert!(!cut.is_due(b"n", open(1)));
    }
}
