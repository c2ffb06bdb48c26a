//! The only place where the state of a database changes.
//!
//! ```text
//! flush, compaction ─▶ Edit ─┐
//! new, dropped keyspace ─────┤   1 make the names of new tables and logs durable (directory sync)
//!                            ├─▶ 2 open the new tables: an unreadable table is not installed
//!                            │   3 append the edit to the manifest, sync
//!                            │   4 swap the view of each tree it touches
//!                            └   5 release removed tables, and logs below the floor
//! ```
//!
//! A crash before 3 leaves files that nothing refers to; recovery deletes them. A crash after 3 leaves files that are
//! released but not yet deleted; recovery deletes those too. Readers with an older view keep its files until they
//! end.

pub(crate) mod arrival;
mod configure;
mod expires;
mod old_logs;

use std::sync::{Arc, Mutex};

use bifold_contract::{
    Edit, Error, FileId, KeyspaceEdit, KeyspaceId, LevelEdit, LogFloor, Result, SeqNo, TableMeta, ValueEdit,
    ValueFileMeta, planted,
};
use bifold_format::names;
use bifold_index::{
    table::{Table, TableContext},
    version::Version,
};
use bifold_io::{Clock, Dir};
use bifold_values::parts::{budget::Memory, unsynced::Unsynced, value_files::FileAccess};

use crate::{
    limits::{pace::Pace, room::Room},
    log::{
        kept_large::KeptLarge,
        manifest::ManifestFile,
        trees::{self, Trees, state_of},
        wal::Wal,
    },
    settings::{
        merge::MergeOperators,
        options::{Access, KeyspaceOptions},
        placement::Registry,
    },
    state::{
        changing::{Changing, NotesChanges},
        health::Health,
        numbers::Numbers,
        presets::{self, FoundFiles, OwnPlacements},
        time::Time,
        tree::{Layer, Tree, Values},
        work::Work,
    },
    waiting::{
        sync::{FairLock, LockExt},
        visible::LastVisible,
    },
};

/// The state of a database: what its manifest records, and the trees that readers and writers see.
pub(crate) struct State {
    pub dir: Dir,
    pub access: Access,
    /// Placements of others.
    pub placements: Registry,
    pub merge_operators: MergeOperators,
    /// The manifest; only the holder of its lock may install changes.
    pub manifest: Mutex<ManifestFile>,
    /// The logs that recovery has not finished with, if any.
    pub replaying: Mutex<Option<LogFloor>>,
    pub trees: Arc<Trees>,
    pub numbers: Numbers,
    pub visible: Arc<LastVisible>,
    pub time: Arc<Time>,
    pub clock: Arc<dyn Clock>,
    pub wal: Arc<FairLock<Wal>>,
    /// Large values that the change feed needs.
    pub kept_large: KeptLarge,
    pub health: Arc<Health>,
    pub room: Arc<Room>,
    pub pace: Arc<Pace>,
    pub work: Arc<Work>,
    pub tables: Arc<TableContext>,
    /// Memory that placements share.
    pub value_memory: Memory,
    /// Keyspaces with values that the next sync covers.
    pub unsynced: Arc<Unsynced>,
}

impl NotesChanges for State {
    fn have_changed(&self, keyspaces: &[KeyspaceId]) {
        self.pace.forget(keyspaces);
        self.work.look_at(keyspaces);
    }
}

impl State {
    /// Begins a change of what readers and writers see of these keyspaces, or of whether they exist. Its end notifies
    /// waiting threads.
    pub fn changing(&self, keyspaces: impl IntoIterator<Item = KeyspaceId>) -> Changing<'_> {
        Changing::of(self, keyspaces)
    }

    /// The values that the next sync covers: those of keyspaces that have noted something new. Called under the
    /// commit lock, so that each commit in the log of that sync has its values in one of them.
    pub fn values_to_sync(&self, commit_lock: &Wal) -> Vec<Arc<Values>> {
        self.values_to_sync_of(&self.trees.steady(commit_lock), commit_lock)
    }

    /// The same, for `trees`, which are all trees.
    pub fn values_to_sync_of(&self, trees: &[Arc<Tree>], _commit_lock: &Wal) -> Vec<Arc<Values>> {
        // A keyspace that is not among them was dropped: a new one notes nothing before it is in the list.
        let find = |keyspace| trees::find(trees, keyspace);
        self.unsynced.take().into_iter().filter_map(find).map(|tree| tree.placement()).collect()
    }

    /// The last sequence number that reads may see.
    pub fn visible(&self) -> SeqNo {
        self.visible.seqno()
    }

    /// Installs the result of a flush or compaction of `tree`. `written` is the memtable that the new tables replace,
    /// if any. Returns how many bytes of value files were removed with it.
    ///
    /// # Errors
    /// I/O errors; the state in memory is then unchanged.
    pub fn install(
        &self,
        tree: &Arc<Tree>,
        change: LevelEdit,
        values: ValueEdit,
        written: Option<&Arc<Layer>>,
    ) -> Result<u64> {
        let mut manifest = self.manifest.hold();
        if tree.is_dropped() {
            self.discard_tables(&change);
            return Ok(0);
        }
        let log_floor = self.log_floor(written);
        let fresh = fresh(&values);
        // Whatever fails here, no manifest has these files yet.
        let give_up = |_: &Error| {
            self.discard_tables(&change);
            give_up(tree, &fresh);
        };
        // Also makes durable the name of the log where recovery will begin.
        let unnamed = planted!("unnamed_log_floor") && change.added.is_empty();
        let skipped = planted!("skip_dir_sync") || planted!("manifest_before_table") || unnamed;
        if !skipped {
            self.dir.sync().inspect_err(give_up)?;
        }
        let old = Arc::clone(&tree.view().version);
        let new = Arc::new(old.apply(&change, &mut |meta| self.open_table(meta)).inspect_err(give_up)?);
        let mut edit = Edit { last_seqno: Some(self.visible()), log_floor: Some(log_floor), values, ..Edit::default() };
        // What it counts is in the dead bytes that the edit of a flush records.
        tree.placement().count_pointers(&mut edit.values);
        let flushed = note_written(tree, written, &mut edit);
        let freed = remove_drained(tree, &mut edit.values);
        let unnamed = self.announce(&mut edit).inspect_err(give_up)?;
        edit.levels.push(change);
        self.append(&mut manifest, &mut edit, &unnamed)?;
        if planted!("manifest_before_table") {
            self.dir.sync()?;
        }
        if let Some(seqno) = flushed {
            tree.note_flushed(seqno);
        }
        tree.change(&self.changing([tree.keyspace]), |view| (view.with(written, new), ()));
        for removed in edit.levels.iter().flat_map(|e| &e.removed) {
            release(&old, removed.table, &edit);
        }
        tree.placement().installed(&edit.values);
        self.delete_logs_below(log_floor);
        self.keep_short(&mut manifest, log_floor)?;
        Ok(freed)
    }

    /// Installs a change of value files. Calls `in_force` when it is durable, before files that it removes are deleted.
    ///
    /// # Errors
    /// I/O errors.
    pub fn install_values(
        &self,
        tree: &Tree,
        change: impl FnOnce() -> ValueEdit,
        in_force: impl FnOnce(),
    ) -> Result<()> {
        let mut manifest = self.manifest.hold();
        if tree.is_dropped() {
            return Ok(());
        }
        let values = change();
        if values.is_empty() {
            return Ok(());
        }
        let log_floor = self.log_floor(None);
        let fresh = fresh(&values);
        let give_up = |_: &Error| give_up(tree, &fresh);
        self.dir.sync().inspect_err(give_up)?;
        let mut edit = Edit { values, ..Edit::default() };
        let unnamed = self.announce(&mut edit).inspect_err(give_up)?;
        self.append(&mut manifest, &mut edit, &unnamed)?;
        in_force();
        tree.placement().installed(&edit.values);
        self.keep_short(&mut manifest, log_floor)
    }

    /// Makes `edit` durable. No edit follows one that failed: the failed one might be lost while a later one is
    /// durable.
    ///
    /// # Errors
    /// I/O errors, and every reason to refuse writes.
    pub fn record(&self, manifest: &mut ManifestFile, edit: &mut Edit) -> Result<()> {
        let unnamed = self.announce(edit)?;
        self.append(manifest, edit, &unnamed)
    }

    /// Adds to `edit` what it must name. Returns which of its removed files no manifest has ever recorded.
    fn announce(&self, edit: &mut Edit) -> Result<Vec<FileId>> {
        self.health.well()?;
        self.health.watch(self.add_new_values(edit))
    }

    /// Makes `edit` durable, without the removal of the `unnamed` files. After a failure nobody knows whether it is
    /// durable.
    fn append(&self, manifest: &mut ManifestFile, edit: &mut Edit, unnamed: &[FileId]) -> Result<()> {
        let removed = edit.values.removed.clone();
        edit.values.removed.retain(|id| !unnamed.contains(id));
        edit.seen_time = self.time.if_used();
        self.health.watch(manifest.append(edit))?;
        self.room.note_manifest(manifest.snapshot_bytes());
        edit.values.removed = removed;
        Ok(())
    }

    /// Adds the value files that commits and GC have begun, once they are durable with their names. Returns those
    /// that the edit removes: the manifest has never recorded them.
    fn add_new_values(&self, edit: &mut Edit) -> Result<Vec<FileId>> {
        let begun = self.begun_values(&self.wal.hold(), edit);
        self.name_begun(begun, edit)
    }

    /// The same for the value files `begun`.
    fn name_begun(&self, begun: Vec<(Arc<Values>, Vec<ValueFileMeta>)>, edit: &mut Edit) -> Result<Vec<FileId>> {
        begun.iter().try_for_each(|(placement, files)| placement.make_durable(files))?;
        let files: Vec<ValueFileMeta> = begun.into_iter().flat_map(|(_, files)| files).collect();
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let removed = &edit.values.removed;
        let (deleted, recorded): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| removed.contains(&file.id));
        edit.values.added.extend(recorded);
        self.dir.sync()?;
        Ok(deleted.into_iter().map(|file| file.id).collect())
    }

    /// The value files that no edit has named, by keyspace. Read under the commit lock, so that they include each
    /// file with a number below the edit's next one.
    fn begun_values(&self, commit_lock: &Wal, edit: &mut Edit) -> Vec<(Arc<Values>, Vec<ValueFileMeta>)> {
        edit.next_file = Some(self.numbers.next());
        let trees = self.trees.steady(commit_lock);
        trees.iter().map(|p| (p.placement(), p.placement().unrecorded())).collect()
    }

    /// Records the durable lengths of all value files in the manifest. The next opening writes again what the
    /// manifest does not know to be durable.
    ///
    /// # Errors
    /// I/O errors.
    pub fn list_lengths(&self, manifest: &mut ManifestFile) -> Result<()> {
        let mut edit = Edit::default();
        let trees = self.trees.steady(manifest);
        for tree in trees.iter().filter(|p| p.separates) {
            let pending_edit = tree.placement().pending_edit(tree.flushed());
            edit.values.removed.extend(pending_edit.removed);
            edit.values.added.extend(pending_edit.added);
            edit.values.garbage.extend(pending_edit.garbage);
        }
        self.record(manifest, &mut edit)?;
        trees.iter().for_each(|p| p.placement().installed(&edit.values));
        self.keep_short_without_jobs(manifest)
    }

    /// The same, if values are separated anywhere, or if entries expire: the edit also has the time.
    ///
    /// # Errors
    /// I/O errors.
    pub fn record_value_lengths(&self) -> Result<()> {
        match self.time.if_used().is_some() || self.trees.all().iter().any(|p| p.separates) {
            true => self.list_lengths(&mut self.manifest.hold()),
            false => Ok(()),
        }
    }

    /// Rewrites a manifest that has become long.
    fn keep_short(&self, manifest: &mut ManifestFile, floor: LogFloor) -> Result<()> {
        if !manifest.is_long(self.room.is_short()) {
            return Ok(());
        }
        // Each manifest begins with a larger number than the one before: readers know them by it.
        let _unused = self.numbers.take();
        let mut state = self.as_edit(floor);
        self.health.watch(self.add_new_values(&mut state))?;
        self.health.watch(manifest.rewrite(&state))
    }

    /// Rewrites a manifest that has become long without a job. What its last edit says is in force. The caller does not
    /// have the commit lock.
    ///
    /// # Errors
    /// I/O errors, which poison the database; what was in force stays so.
    pub fn keep_short_without_jobs(&self, manifest: &mut ManifestFile) -> Result<()> {
        if !manifest.is_long(self.room.is_short()) || planted!("manifest_grows_without_jobs") {
            return Ok(());
        }
        let log_floor = self.log_floor(None);
        self.health.watch(self.dir.sync())?;
        self.keep_short(manifest, log_floor)
    }

    /// Seals the active memtables of `trees`: commits go on in new ones, with their entries in a new log.
    ///
    /// # Errors
    /// I/O errors.
    pub fn seal(&self, wal: &mut Wal, trees: &[Arc<Tree>]) -> Result<()> {
        wal.rotate(self.numbers.take())?;
        let sealed: Vec<KeyspaceId> = trees.iter().map(|tree| tree.keyspace).collect();
        let changing = self.changing(sealed.iter().copied());
        trees.iter().for_each(|tree| tree.seal(&changing));
        drop(changing);
        self.pace.update_of(&sealed);
        Ok(())
    }

    /// Creates a keyspace.
    ///
    /// # Errors
    /// I/O errors and unusable options.
    pub fn create_keyspace(&self, name: &str, options: &KeyspaceOptions) -> Result<Arc<Tree>> {
        self.health.takes_writes()?;
        options.check()?;
        let options = &options.resolved();
        let mut manifest = self.manifest.hold();
        if let Some(existing) = self.trees.named(name) {
            return Ok(existing);
        }
        // Ids are never reused: those of dropped keyspaces may still occur in logs. File numbers never repeat either.
        let id = KeyspaceId::try_from(self.numbers.take())
            .map_err(|_| Error::invalid("keyspace", "no numbers are left for new keyspaces"))?;
        let context =
            presets::value_home(&self.dir, id, &self.numbers, (&self.value_memory, &self.unsynced), FileAccess::Write);
        let values = FoundFiles {
            context,
            listed: &ValueEdit::default(),
            present: &[],
            before: None,
            own: OwnPlacements::Of(&self.placements, &self.merge_operators),
        };
        let version = presets::empty_version(options, &self.tables);
        let tree = Arc::new(Tree::new(id, name.to_owned(), options.clone(), version, 0, values)?);
        let created = KeyspaceEdit::Created { id, name: name.to_owned(), options: options.record() };
        let mut edit = Edit { keyspaces: vec![created], ..Edit::default() };
        self.record(&mut manifest, &mut edit)?;
        let changing = self.changing([id]);
        let wal = self.wal.hold();
        let all = self.trees.steady(&*wal).iter().cloned().chain([Arc::clone(&tree)]).collect();
        self.trees.set(all, (&manifest, &wal), &changing);
        drop(wal);
        self.keep_short_without_jobs(&mut manifest)?;
        Ok(tree)
    }

    /// Drops a keyspace. Its tables and value files are deleted as soon as nobody reads them. Returns whether the
    /// keyspace existed.
    ///
    /// # Errors
    /// I/O errors.
    pub fn drop_keyspace(&self, name: &str) -> Result<bool> {
        self.health.takes_writes()?;
        let mut manifest = self.manifest.hold();
        // The commit lock keeps commits that have passed their check from writing to a dropped tree. Lock order
        // everywhere: manifest, then commit lock.
        let wal = self.wal.hold();
        let Some(tree) = self.trees.named(name) else { return Ok(false) };
        let edit = Edit { keyspaces: vec![KeyspaceEdit::Dropped { id: tree.keyspace }], ..Edit::default() };
        self.health.well()?;
        self.health.watch(manifest.append(&edit))?;
        tree.mark_dropped();
        let changing = self.changing([tree.keyspace]);
        let others = self.trees.steady(&*wal).iter().filter(|p| p.name != name).cloned().collect();
        self.trees.set(others, (&manifest, &wal), &changing);
        let old = tree.take_view(&changing);
        drop(wal);
        self.work.take(|state| state.forget_idle(tree.keyspace));
        if planted!("drop_without_notify") {
            std::mem::forget(changing);
        } else {
            drop(changing);
            self.pace.update_of(&[tree.keyspace]);
        }
        old.version.tables().for_each(|table| table.mark_obsolete());
        old.values.drop_files();
        self.keep_short_without_jobs(&mut manifest)?;
        Ok(true)
    }

    /// Opens a table for reading.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn open_table(&self, meta: &Arc<TableMeta>) -> Result<Arc<Table>> {
        Table::open(&self.dir, Arc::clone(meta), &self.tables)
    }

    /// The whole state as one edit: what a new manifest begins with. The log of `floor` must be durable with its name.
    pub fn as_edit(&self, floor: LogFloor) -> Edit {
        let state = state_of(&self.trees.all(), self.numbers.next(), self.visible(), floor);
        Edit { seen_time: self.time.if_used(), ..state }
    }

    /// The oldest log position that any memtable except `written` still needs.
    pub fn log_floor(&self, written: Option<&Arc<Layer>>) -> LogFloor {
        // Reads the current log first: a concurrent commit can only add this log or a later one.
        let current = self.wal.hold().current();
        if planted!("delete_log_early") {
            return self.wal.hold().floor_at(current);
        }
        if let Some(floor) = *self.replaying.hold() {
            return floor;
        }
        let oldest = self.oldest_log(current, written);
        self.wal.hold().floor_at(oldest)
    }

    /// The oldest log that any memtable except `written` still needs. Commits go to `current`.
    fn oldest_log(&self, current: FileId, written: Option<&Arc<Layer>>) -> FileId {
        let needed = |tree: &Arc<Tree>| {
            let view = tree.view();
            let kept = |layer: &&Arc<Layer>| written.is_none_or(|w| !Arc::ptr_eq(w, layer));
            view.layers().filter(kept).filter_map(|layer| layer.first_log()).min()
        };
        self.trees.all().iter().filter_map(needed).min().map_or(current, |needed| needed.min(current))
    }

    /// Deletes the new tables of a tree that was dropped while they were written.
    fn discard_tables(&self, change: &LevelEdit) {
        for added in &change.added {
            // A moved table is in `removed` too; it was released when the keyspace was dropped.
            if change.removed.iter().all(|r| r.table != added.table.id) {
                let _recovery_deletes_leftovers = self.dir.remove(&names::table(added.table.id));
            }
        }
    }
}

/// Adds to an edit that a memtable, if one was written, is in tables. Returns the last number in it.
fn note_written(tree: &Tree, written: Option<&Arc<Layer>>, edit: &mut Edit) -> Option<SeqNo> {
    let seqno = written?.memtable.max_seqno()?;
    edit.keyspaces.push(KeyspaceEdit::Flushed { id: tree.keyspace, seqno });
    let pending_edit = tree.placement().pending_edit(seqno);
    edit.values.removed.extend(pending_edit.removed);
    edit.values.added.extend(pending_edit.added);
    edit.values.garbage.extend(pending_edit.garbage);
    Some(seqno)
}

/// The files that a rewrite or a GC run has written for an edit. A file that the edit both removes and adds existed
/// before.
fn fresh(values: &ValueEdit) -> ValueEdit {
    let is_fresh = |file: &&ValueFileMeta| !values.removed.contains(&file.id);
    ValueEdit { added: values.added.iter().filter(is_fresh).cloned().collect(), ..ValueEdit::default() }
}

/// Deletes these files: no manifest has recorded them.
pub(crate) fn give_up(tree: &Tree, fresh: &ValueEdit) {
    if !planted!("keep_given_up") {
        tree.placement().give_up(fresh);
    }
}

/// Adds to an edit the removal of the value files that it drains. Returns their bytes.
fn remove_drained(tree: &Tree, values: &mut ValueEdit) -> u64 {
    let drained = tree.placement().drained_by(values);
    values.garbage.retain(|&(file, _, _)| drained.iter().all(|&(id, _)| id != file));
    values.removed.extend(drained.iter().map(|&(id, _)| id));
    drained.iter().map(|&(_, bytes)| bytes).sum()
}

/// Releases a removed table, unless the edit only moved it.
fn release(old: &Version, id: FileId, edit: &Edit) {
    let moved = edit.levels.iter().flat_map(|e| &e.added).any(|added| added.table.id == id);
    if !moved && let Some(table) = old.tables().find(|t| t.meta().id == id) {
        table.mark_obsolete();
    }
}
