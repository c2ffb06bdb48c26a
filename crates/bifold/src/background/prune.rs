//! Which tables to rewrite in place for what they need not hold any more.
//!
//! A merge drops what has expired on its way, and what only snapshots held that have ended. But nothing may ever be
//! merged into a table again, and then this stays. So a table is rewritten when a good part of it is of this kind:
//! whoever wrote it has noted what snapshots held in it, and its properties have the number of entries that expire, and
//! the first and last of their instants.
//!
//! A compaction that is asked for takes every table with any of this ([`Tree::with_garbage`]). Notes of earlier
//! sessions are not kept, so it reads their tables first ([`Tree::look_at_found`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bifold_contract::{Busy, CompactionJob, FileId, JobShape, Millis, Result, RunId, SeqNo, TableMeta};
use bifold_index::{
    compaction::run::Held,
    cursor::Cursor,
    table::{ReadMode, Table},
    version::Version,
};

use crate::{
    state::{tree::Tree, work::conflicts},
    waiting::sync::LockExt,
};

/// A table is rewritten when this share of its entries was kept only for snapshots that have ended.
const HELD_SHARE: u64 = 8;

/// A table is rewritten when this share of its entries has expired.
const EXPIRED_SHARE: u64 = 4;

/// Whether a table has so many expired entries at `time` that it is worth a rewrite.
fn is_due(table: &TableMeta, time: Millis) -> bool {
    let expired = table.expiring.expired_at(time);
    expired > 0 && expired * EXPIRED_SHARE >= table.entries
}

/// Whether a table has older versions of a key, or operands above one. Reads as much of it as that takes.
fn has_older_versions(table: &Arc<Table>) -> Result<bool> {
    let mut cursor = table.cursor(ReadMode::Compaction);
    cursor.first()?;
    let (mut key, mut is_first) = (Vec::<u8>::new(), true);
    while let Some(entry) = cursor.entry() {
        if !is_first && key == entry.key {
            return Ok(true);
        }
        is_first = false;
        key.clear();
        key.extend_from_slice(entry.key);
        cursor.next()?;
    }
    Ok(false)
}

/// The rewrite of a table in its place, into tables of about `table_bytes`.
fn in_place((level, run, table): (u8, RunId, &Arc<TableMeta>), table_bytes: u64, reason: &str) -> CompactionJob {
    CompactionJob {
        shape: JobShape::Merge,
        inputs: vec![(level, run, table.id)],
        output_level: level,
        output_run: Some(run),
        keys: Some((table.smallest.clone(), (!table.unbounded).then(|| table.largest.clone()))),
        table_bytes,
        max_overlap_bytes: u64::MAX,
        reason: reason.into(),
    }
}

impl Tree {
    /// Notes what snapshots hold in new tables.
    pub fn note_held(&self, held: Vec<Held>) {
        if !held.is_empty() {
            self.held.hold().extend(held.into_iter().map(|of| (of.table, of)));
        }
    }

    /// Forgets what snapshots held in tables that were replaced. Otherwise each merge would add to the notes for as
    /// long as a snapshot is open.
    pub fn forget_held(&self, replaced: &[(u8, RunId, FileId)]) {
        let (mut held, mut found) = (self.held.hold(), self.found.hold());
        for (.., table) in replaced {
            held.remove(table);
            found.remove(table);
        }
    }

    /// The tables of a version from which a rewrite in their place may drop something: it was held by snapshots that
    /// are no longer `open`, or has expired to everyone at `time`, or they are of an earlier session and may have older
    /// versions.
    pub fn with_garbage(&self, version: &Version, open: &[SeqNo], time: Millis) -> BTreeSet<FileId> {
        let expired = version.tables().map(|table| table.meta()).filter(|meta| {
            let expiring = &meta.expiring;
            expiring.entries > 0 && time > 0 && expiring.first <= time
        });
        let mut tables: BTreeSet<FileId> = expired.map(|meta| meta.id).collect();
        tables.extend(self.held.hold().values().filter(|of| of.free_with(open) > 0).map(|of| of.table));
        tables.extend(self.found.hold().iter());
        tables
    }

    /// Finds out which of these tables have older versions, as far as nobody knows.
    ///
    /// A table that cannot be read is left out of jobs, and stays one with garbage: who asked for it is told.
    ///
    /// # Errors
    /// Those of `go_on`, which is asked before each table, and of tables that are there to be read.
    pub fn look_at_found(
        &self,
        version: &Version,
        tables: &BTreeSet<FileId>,
        go_on: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let is_asked = |id| tables.contains(&id) && self.found.hold().contains(&id);
        for table in version.tables().filter(|table| is_asked(table.meta().id)) {
            go_on()?;
            match has_older_versions(table) {
                Ok(true) => {}
                Ok(false) => drop(self.found.hold().remove(&table.meta().id)),
                Err(error) if error.is_unreadable() => drop(self.unreadable.add(table.meta().id, &error)),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether snapshots are known to hold anything in its tables or among its value files.
    pub fn is_held(&self) -> bool {
        !self.held.hold().is_empty() || (self.separates && self.placement().drained_after(0) > 0)
    }

    /// The rewrite of a table that gives much back: of one that snapshots no longer `open` held, or of one in which
    /// much has expired to everyone at `time`. All running jobs of the tree have taken `busy`.
    pub fn choose_prune(&self, open: &[SeqNo], time: Millis, busy: &Busy) -> Option<CompactionJob> {
        self.choose_held(open, busy).or_else(|| self.choose_expired(time, busy))
    }

    /// The rewrite of a table with many entries that only snapshots held which are no longer `open`. It never takes
    /// level 0: those tables are compacted before much gathers there, and an index of level 0 knows tables by their
    /// runs.
    fn choose_held(&self, open: &[SeqNo], busy: &Busy) -> Option<CompactionJob> {
        let held = self.held.hold();
        let is_due = |of: &Held| {
            of.free_with(open) * HELD_SHARE >= of.entries && !self.unreadable.has(std::iter::once(of.table))
        };
        if !held.values().any(is_due) {
            return None;
        }
        let view = self.view();
        let levels = &self.shape(&view).levels;
        let here: BTreeMap<FileId, _> =
            levels.tables().map(|(level, run, table)| (table.id, (level, run, table))).collect();
        let reason = "a snapshot that has ended held much of it";
        held.values().filter(|of| is_due(of)).find_map(|of| {
            let &(level, run, table) = here.get(&of.table).filter(|(level, ..)| *level > 0)?;
            let job = in_place((level, run, table), view.settings.options.table_bytes, reason);
            (!conflicts(busy, &job)).then_some(job)
        })
    }

    /// As for [`Tree::choose_held`], it is never a table of level 0. Rewritten at a later time than `time`, the table
    /// has no entry left that has expired then, so it is not chosen again.
    fn choose_expired(&self, time: Millis, busy: &Busy) -> Option<CompactionJob> {
        if time == 0 || !self.may_lose_entries() {
            return None;
        }
        let view = self.view();
        let due = self.shape(&view).levels.tables().filter(|(level, _, table)| {
            *level > 0 && is_due(table, time) && !self.unreadable.has(std::iter::once(table.id))
        });
        let table_bytes = view.settings.options.table_bytes;
        due.map(|(level, run, table)| in_place((level, run, table), table_bytes, "much of it has expired"))
            .find(|job| !conflicts(busy, job))
    }
}
