//! The edit of an ingest: its tables and values become visible as one commit.
//!
//! ```text
//! commit lock ─▶ log: older commits and a skip, synced ─▶ manifest, synced ─▶ view ─▶ value files ─▶ visible
//! ```
//!
//! Everything else that an edit needs is done before the lock is taken.

use std::{collections::BTreeMap, sync::Arc};

use bifold_contract::{Edit, FileId, LevelEdit, LogFloor, Result, SeqNo, ValueEdit};
use bifold_index::table::Table;

use super::{State, note_written, remove_drained};
use crate::{
    log::{manifest::ManifestFile, wal::Wal},
    state::tree::{Layer, Tree, View},
};

/// What arrives with an ingest.
pub(crate) struct Arrival<'a> {
    /// Its tables, and those of `written`.
    pub change: LevelEdit,
    pub values: ValueEdit,
    /// The memtable that was written with it, because it has older versions of the ingest's keys.
    pub written: Option<&'a Arc<Layer>>,
    /// The tables that are open already.
    pub open: &'a BTreeMap<FileId, Arc<Table>>,
    /// The largest number of its entries. All commits have smaller numbers than any of them, and are durable.
    pub last: SeqNo,
    /// Set once nobody knows whether the manifest names its files.
    pub is_recorded: &'a mut bool,
}

impl State {
    /// Makes an ingest durable and visible. The caller holds both locks, and has checked that no memtable but `written`
    /// has older versions of its keys. Logs before the one returned are no longer needed.
    ///
    /// # Errors
    /// I/O errors, and every reason to refuse writes. Unless it is recorded, the caller removes its files.
    pub fn install_arrival(
        &self,
        (manifest, wal): (&mut ManifestFile, &mut Wal),
        tree: &Arc<Tree>,
        arrival: Arrival<'_>,
    ) -> Result<LogFloor> {
        let Arrival { change, values, written, open, last, is_recorded } = arrival;
        let health = &self.health;
        let log_floor = wal.floor_at(self.oldest_log(wal.current(), written));
        health.watch(self.dir.sync())?;
        let old = Arc::clone(&tree.view().version);
        let opened = |id: FileId| open.get(&id).cloned();
        let applied = old.apply(&change, &mut |meta| opened(meta.id).map_or_else(|| self.open_table(meta), Ok));
        let new = Arc::new(health.watch(applied)?);
        let mut edit = Edit { last_seqno: Some(last), log_floor: Some(log_floor), values, ..Edit::default() };
        // What it counts is in the dead bytes that the edit of a flush records.
        tree.placement().count_pointers(&mut edit.values);
        let flushed = note_written(tree, written, &mut edit);
        let _drained_bytes = remove_drained(tree, &mut edit.values);
        health.well()?;
        let begun = self.begun_values(wal, &mut edit);
        let unnamed = health.watch(self.name_begun(begun, &mut edit))?;
        edit.levels.push(change);
        *is_recorded = true;
        self.append(manifest, &mut edit, &unnamed)?;
        if let Some(seqno) = flushed {
            tree.note_flushed(seqno);
        }
        let arrived = |view: &View| {
            let mut arrived = view.with(written, new);
            arrived.ingested = last;
            (arrived, ())
        };
        tree.change(&self.changing([tree.keyspace]), arrived);
        // GC finds the values from here on, and their entries in the index.
        tree.placement().installed(&edit.values);
        self.visible.show(last);
        Ok(log_floor)
    }

    /// What [`State::install_arrival`] leaves to be done without the commit lock.
    ///
    /// # Errors
    /// I/O errors, which poison the database; what has arrived stays.
    pub fn end_arrival(&self, manifest: &mut ManifestFile, log_floor: LogFloor) -> Result<()> {
        self.delete_logs_below(log_floor);
        self.keep_short(manifest, log_floor)
    }
}
