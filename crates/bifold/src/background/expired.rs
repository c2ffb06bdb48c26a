//! Which tables to rewrite for what has expired in them.
//!
//! A merge drops what has expired on its way. But nothing may ever be merged into a table again, and then what has
//! expired in it stays. So a table is rewritten in place when a good part of it has expired, as far as its properties
//! tell: they have the number of entries that expire, and the first and last of their instants.

use bifold_contract::{CompactionJob, JobShape, Millis, SeqNo, TableMeta};

use crate::state::tree::Tree;

/// A table is rewritten when this share of its entries has expired.
const EXPIRED_SHARE: u64 = 4;

/// Whether a table has so many expired entries at `time` that it is worth a rewrite.
fn is_due(table: &TableMeta, time: Millis) -> bool {
    let expired = table.expiring.expired_at(time);
    expired > 0 && expired * EXPIRED_SHARE >= table.entries
}

impl Tree {
    /// The rewrite of a table that gives much back: of one that snapshots no longer `open` held, or of one in which
    /// much has expired to everyone at `time`.
    pub fn choose_prune(&self, open: &[SeqNo], time: Millis) -> Option<CompactionJob> {
        self.choose_held(open).or_else(|| self.choose_expired(time))
    }

    /// As for [`Tree::choose_held`], it is never a table of level 0. Rewritten at a later time than `time`, the table has
    /// no entry left that has expired then, so it is not chosen again.
    fn choose_expired(&self, time: Millis) -> Option<CompactionJob> {
        if time == 0 || !self.may_lose_entries() {
            return None;
        }
        let view = self.view();
        let mut tables = self.shape(&view).levels.tables();
        let (level, run, table) = tables.find(|(level, _, table)| {
            *level > 0 && is_due(table, time) && !self.unreadable.has(std::iter::once(table.id))
        })?;
        Some(CompactionJob {
            shape: JobShape::Merge,
            inputs: vec![(level, run, table.id)],
            output_level: level,
            output_run: Some(run),
            keys: None,
            table_bytes: view.settings.options.table_bytes,
            max_overlap_bytes: u64::MAX,
            reason: "much of it has expired".into(),
        })
    }
}
