//! Which tables to rewrite in place for what they need not hold any more.
//!
//! A merge drops what has expired on its way, and what only snapshots held that have ended. But nothing may ever be
//! merged into a table again, and then this stays. So a table is rewritten when a good part of it is of this kind:
//! whoever wrote it has noted what snapshots held in it, and its properties have the number of entries that expire, and
//! the first and last of their instants.

use std::collections::BTreeMap;

use bifold_contract::{CompactionJob, FileId, JobShape, Millis, SeqNo, TableMeta};
use bifold_index::compaction::run::Held;

use crate::{state::tree::Tree, waiting::sync::LockExt};

/// A table is rewritten when this share of its entries was kept only for snapshots that have ended.
const HELD_SHARE: u64 = 8;

/// A table is rewritten when this share of its entries has expired.
const EXPIRED_SHARE: u64 = 4;

/// Whether a table has so many expired entries at `time` that it is worth a rewrite.
fn is_due(table: &TableMeta, time: Millis) -> bool {
    let expired = table.expiring.expired_at(time);
    expired > 0 && expired * EXPIRED_SHARE >= table.entries
}

impl Tree {
    /// Notes what snapshots hold in newly installed tables.
    pub fn note_held(&self, held: Vec<Held>) {
        if !held.is_empty() {
            self.held.hold().extend(held.into_iter().map(|of| (of.table, of)));
        }
    }

    /// Whether snapshots are known to hold anything in its tables or among its value files.
    pub fn is_held(&self) -> bool {
        !self.held.hold().is_empty() || (self.separates && self.placement().drained_after(0) > 0)
    }

    /// The rewrite of a table that gives much back: of one that snapshots no longer `open` held, or of one in which
    /// much has expired to everyone at `time`.
    pub fn choose_prune(&self, open: &[SeqNo], time: Millis) -> Option<CompactionJob> {
        self.choose_held(open).or_else(|| self.choose_expired(time))
    }

    /// The rewrite of a table with many entries that only snapshots held which are no longer `open`. It never takes
    /// level 0: those tables are compacted before much gathers there, and an index of level 0 knows tables by their
    /// runs.
    fn choose_held(&self, open: &[SeqNo]) -> Option<CompactionJob> {
        let mut held = self.held.hold();
        let is_due = |of: &Held| {
            of.free_with(open) * HELD_SHARE >= of.entries && !self.unreadable.has(std::iter::once(of.table))
        };
        if !held.values().any(is_due) {
            return None;
        }
        let view = self.view();
        let levels = &self.shape(&view).levels;
        let here: BTreeMap<FileId, _> = levels.tables().map(|(level, run, table)| (table.id, (level, run))).collect();
        held.retain(|table, _| here.contains_key(table));
        held.values().filter(|of| is_due(of)).find_map(|of| {
            let &(level, run) = here.get(&of.table).filter(|(level, _)| *level > 0)?;
            Some(CompactionJob {
                shape: JobShape::Merge,
                inputs: vec![(level, run, of.table)],
                output_level: level,
                output_run: Some(run),
                keys: None,
                table_bytes: view.settings.options.table_bytes,
                max_overlap_bytes: u64::MAX,
                reason: "a snapshot that has ended held much of it".into(),
            })
        })
    }

    /// As for [`Tree::choose_held`], it is never a table of level 0. Rewritten at a later time than `time`, the table
    /// has no entry left that has expired then, so it is not chosen again.
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
