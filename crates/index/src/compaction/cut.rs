//! Where one output table ends and the next begins.
//!
//! A table ends when it is large enough, or when it would overlap too much of the level below the output: merging it down
//! later would then rewrite far more than the table itself (LevelDB calls those tables grandparents).

use std::sync::Arc;

use bifold_contract::TableMeta;

/// Follows the keys of an output and says when a table is over.
pub(super) struct Cut<'a> {
    /// By largest key: those of several runs may overlap one another.
    grandparents: Vec<&'a TableMeta>,
    /// How many of them end before the last key.
    passed: usize,
    /// Their bytes, since the table began.
    overlap_bytes: u64,
    table_bytes: u64,
    max_overlap_bytes: u64,
}

impl<'a> Cut<'a> {
    pub(super) fn new(grandparents: &'a [Arc<TableMeta>], table_bytes: u64, max_overlap_bytes: u64) -> Self {
        let mut grandparents: Vec<&TableMeta> = grandparents.iter().map(|table| &**table).collect();
        grandparents.sort_unstable_by(|a, b| a.largest.cmp(&b.largest));
        Self { grandparents, passed: 0, overlap_bytes: 0, table_bytes, max_overlap_bytes }
    }

    /// Whether the table that has `open_bytes` by now (`None`: there is none) must end before `key`. Keys ascend.
    pub(super) fn is_due(&mut self, key: &[u8], open_bytes: Option<u64>) -> bool {
        while let Some(next) = self.grandparents.get(self.passed).filter(|next| &*next.largest < key) {
            self.passed += 1;
            // What lies before the first key of the output overlaps none of it.
            if open_bytes.is_some() {
                self.overlap_bytes = self.overlap_bytes.saturating_add(next.bytes);
            }
        }
        let Some(open_bytes) = open_bytes else { return false };
        let due = open_bytes >= self.table_bytes || self.overlap_bytes > self.max_overlap_bytes;
        if due {
            self.overlap_bytes = 0;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(smallest: &str, largest: &str, bytes: u64) -> Arc<TableMeta> {
        Arc::new(TableMeta {
            id: 1,
            bytes,
            entries: 1,
            tombstones: 0,
            range_tombstones: 0,
            smallest: smallest.as_bytes().into(),
            largest: largest.as_bytes().into(),
            unbounded: false,
            min_seqno: 1,
            max_seqno: 1,
        })
    }

    #[test]
    fn a_full_table_ends() {
        let mut cut = Cut::new(&[], 100, u64::MAX);
        assert!(!cut.is_due(b"a", None));
        assert!(!cut.is_due(b"b", Some(99)));
        assert!(cut.is_due(b"c", Some(100)));
    }

    #[test]
    fn a_table_ends_before_it_overlaps_too_much() {
        let below = [table("a", "c", 40), table("d", "f", 40), table("g", "i", 40), table("j", "l", 40)];
        let mut cut = Cut::new(&below, 100, 60);
        assert!(!cut.is_due(b"d", None), "what lies before the output does not count");
        assert!(!cut.is_due(b"g", Some(1)), "40 bytes passed");
        assert!(cut.is_due(b"j", Some(2)), "80 bytes passed");
        assert!(!cut.is_due(b"m", Some(1)), "the count begins anew");
    }
}
