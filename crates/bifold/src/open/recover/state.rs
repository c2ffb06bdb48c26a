//! The manifest's state, and the trees that it describes.

use std::{collections::BTreeMap, sync::Arc};

use bifold_contract::{
    Corruption, Edit, Error, FileId, IoSource, KeyspaceEdit, KeyspaceId, LargeEdit, LargeFileMeta, LevelEdit, LogFloor,
    Millis, Result, SeqNo, ValueEdit, ValueFileMeta, edit::TableAdded, planted,
};
use bifold_format::{manifest, names};
use bifold_index::table::{Table, TableContext};
use bifold_io::Dir;
use bifold_values::parts::{
    budget::Memory,
    unsynced::Unsynced,
    value_files::{FileAccess, owners},
};

use crate::{
    settings::options::KeyspaceOptions,
    state::{
        files::Files,
        numbers::Numbers,
        presets::{self, FoundFiles, OwnPlacements},
        tree::Tree,
    },
};

/// The state in the manifest, with all edits applied.
#[derive(Debug, Default)]
pub(crate) struct ManifestState {
    pub database_id: u64,
    pub next_file: FileId,
    /// The same when this manifest was begun. Files with larger numbers are younger than it.
    pub begun_next_file: FileId,
    pub last_seqno: SeqNo,
    /// The latest of the recorded times.
    pub seen_time: Option<Millis>,
    pub log_floor: LogFloor,
    pub keyspaces: BTreeMap<KeyspaceId, KeyspaceState>,
    pub values: BTreeMap<FileId, ValueFileMeta>,
    /// Files of large values.
    pub large: BTreeMap<FileId, LargeFileMeta>,
    /// Bytes known to be dead, by value file.
    pub garbage: BTreeMap<FileId, u64>,
}

/// One keyspace in the manifest.
#[derive(Debug, Default)]
pub(crate) struct KeyspaceState {
    pub name: String,
    pub options: String,
    pub flushed: SeqNo,
    pub loses_entries: bool,
    pub tables: BTreeMap<FileId, TableAdded>,
    pub boundaries: Vec<Box<[u8]>>,
}

/// The state that the manifest of `dir` describes; `None` when there is no manifest.
///
/// # Errors
/// I/O errors and corruption.
pub(crate) fn read_manifest(dir: &Dir) -> Result<Option<ManifestState>> {
    if dir.len(names::MANIFEST)?.is_none() {
        return Ok(None);
    }
    let bytes = read_whole(dir, names::MANIFEST, IoSource::Recovery)?;
    let path = dir.file(names::MANIFEST);
    let reader = manifest::ManifestReader::new(&bytes).map_err(|e| e.of(&path))?;
    let mut state = ManifestState { database_id: reader.database_id(), ..ManifestState::default() };
    for record in reader {
        let record = record.map_err(|e| e.of(&path))?;
        state.apply(record.edit).map_err(|what| {
            Corruption::new(record.offset, "manifest record", "an edit that fits the state before it", what).of(&path)
        })?;
    }
    Ok(Some(state))
}

/// All bytes of a file.
///
/// # Errors
/// I/O errors.
pub(crate) fn read_whole(dir: &Dir, name: &str, source: IoSource) -> Result<Vec<u8>> {
    let reader = dir.open(name)?;
    let mut bytes = vec![0; usize::try_from(reader.len()).unwrap_or(usize::MAX)];
    reader.read_at(&mut bytes, 0, source)?;
    Ok(bytes)
}

impl ManifestState {
    /// Applies one edit.
    ///
    /// # Errors
    /// In words, if it does not fit.
    pub fn apply(&mut self, edit: Edit) -> std::result::Result<(), String> {
        self.next_file = self.next_file.max(edit.next_file.unwrap_or(0));
        if self.begun_next_file == 0 {
            self.begun_next_file = self.next_file;
        }
        self.last_seqno = self.last_seqno.max(edit.last_seqno.unwrap_or(0));
        self.seen_time = self.seen_time.max(edit.seen_time);
        self.log_floor = edit.log_floor.unwrap_or(self.log_floor);
        for change in edit.keyspaces {
            match change {
                KeyspaceEdit::Created { id, name, options } => {
                    let new = KeyspaceState { name, options, ..KeyspaceState::default() };
                    if self.keyspaces.insert(id, new).is_some() {
                        return Err(format!("keyspace {id} created twice"));
                    }
                }
                KeyspaceEdit::Configured { id, .. } if planted!("overlook_changed_options") => drop(self.keyspace(id)?),
                KeyspaceEdit::Configured { id, options } => self.keyspace(id)?.options = options,
                KeyspaceEdit::Dropped { id } => {
                    self.keyspace(id)?;
                    self.keyspaces.remove(&id);
                    self.values.retain(|_, file| file.keyspace != id);
                    self.large.retain(|_, file| file.keyspace != id);
                }
                KeyspaceEdit::Expires { id } => self.keyspace(id)?.loses_entries = true,
                KeyspaceEdit::Flushed { id, seqno } => {
                    let keyspace = self.keyspace(id)?;
                    keyspace.flushed = keyspace.flushed.max(seqno);
                }
            }
        }
        edit.levels.into_iter().try_for_each(|change| self.apply_tables(change))?;
        self.apply_values(edit.values)
    }

    fn apply_values(&mut self, change: ValueEdit) -> std::result::Result<(), String> {
        for id in change.removed {
            if self.values.remove(&id).is_none() {
                return Err(format!("value file {id} removed, but it does not exist"));
            }
        }
        for file in change.added {
            let id = file.id;
            self.keyspace(file.keyspace)?;
            if self.values.insert(id, file).is_some() {
                return Err(format!("value file {id} added twice"));
            }
        }
        for (id, bytes, _) in change.garbage {
            let sum = self.garbage.entry(id).or_default();
            *sum = sum.saturating_add(bytes);
        }
        for (id, tags) in change.tagged {
            if let Some(file) = self.values.get_mut(&id) {
                file.tags |= tags;
            }
        }
        let values = &self.values;
        self.garbage.retain(|id, _| values.contains_key(id));
        self.apply_large(change.large)
    }

    fn apply_large(&mut self, change: LargeEdit) -> std::result::Result<(), String> {
        for id in change.removed {
            if self.large.remove(&id).is_none() {
                return Err(format!("large value {id} removed, but it does not exist"));
            }
        }
        for file in change.added {
            let id = file.named.file;
            self.keyspace(file.keyspace)?;
            if self.large.insert(id, file).is_some() {
                return Err(format!("large value {id} added twice"));
            }
        }
        Ok(())
    }

    /// Its value files and large values, by keyspace.
    pub fn value_edits(&self) -> BTreeMap<KeyspaceId, ValueEdit> {
        let mut edits: BTreeMap<KeyspaceId, ValueEdit> = BTreeMap::new();
        for (&id, file) in &self.values {
            let edit = edits.entry(file.keyspace).or_default();
            edit.added.push(file.clone());
            edit.garbage.extend(self.garbage.get(&id).map(|&bytes| (id, bytes, 0)));
        }
        for file in self.large.values() {
            edits.entry(file.keyspace).or_default().large.added.push(*file);
        }
        edits
    }

    fn apply_tables(&mut self, change: LevelEdit) -> std::result::Result<(), String> {
        let next_file = self.next_file;
        let keyspace = self.keyspace(change.keyspace)?;
        for removed in change.removed {
            if keyspace.tables.remove(&removed.table).is_none() {
                return Err(format!("table {} removed, but it does not exist", removed.table));
            }
        }
        for added in change.added {
            let id = added.table.id;
            // Later runs would be taken for older ones.
            if added.run >= next_file {
                return Err(format!("table {id} in run {}, but {next_file} is the next number", added.run));
            }
            if keyspace.tables.insert(id, added).is_some() {
                return Err(format!("table {id} added twice"));
            }
        }
        keyspace.boundaries.extend(change.boundaries);
        Ok(())
    }

    fn keyspace(&mut self, id: KeyspaceId) -> std::result::Result<&mut KeyspaceState, String> {
        self.keyspaces.get_mut(&id).ok_or_else(|| format!("a change of keyspace {id}, which does not exist"))
    }

    /// The oldest log still needed was durable, with its name, before the manifest named it. If it is missing,
    /// someone deleted it, or a later manifest did not need it any more and the end of this manifest is missing.
    ///
    /// # Errors
    /// Corruption.
    pub fn check_logs(&self, dir: &Dir, files: &Files) -> Result<()> {
        let name = names::log(self.log_floor.log);
        if files.logs.contains(&self.log_floor.log) || planted!("overlook_lost_log") {
            return Ok(());
        }
        let found = "no such file: it was deleted, or MANIFEST is truncated or older than the other files";
        Err(Corruption::new(0, "log", format!("{name}, which MANIFEST says is needed"), found).of(dir.file(&name)))
    }

    /// The trees that it records. Nothing is changed.
    ///
    /// # Errors
    /// I/O errors and corruption; a placement that `own` does not have.
    pub fn open_trees(
        &self,
        dir: &Dir,
        context: &Arc<TableContext>,
        shared: (&Memory, &Arc<Unsynced>),
        numbers: &Numbers,
        present: &[FileId],
        (own, access): (OwnPlacements<'_>, FileAccess),
    ) -> Result<Vec<Arc<Tree>>> {
        let unrecorded = present.iter().copied().filter(|id| !self.values.contains_key(id));
        let (mut recorded, owners) = (self.value_edits(), owners(dir, unrecorded)?);
        let open = |(&id, keyspace): (&KeyspaceId, &KeyspaceState)| {
            let options = KeyspaceOptions::recorded(&keyspace.options)
                .map_err(|e| Error::invalid(format!("options of keyspace `{}` in the manifest", keyspace.name), e))?;
            let added = keyspace.tables.values().cloned().collect();
            let boundaries = keyspace.boundaries.clone();
            let edit = LevelEdit { keyspace: id, added, boundaries, ..LevelEdit::default() };
            let version = presets::empty_version(&options, context)
                .apply(&edit, &mut |meta| Table::open(dir, Arc::clone(meta), context))?;
            let context = presets::value_home(dir, id, numbers, shared, access);
            let (recorded, present) = (recorded.remove(&id).unwrap_or_default(), owners.of(id));
            let values = FoundFiles { context, listed: &recorded, present: &present, before: None, own };
            let tree = Tree::new(id, keyspace.name.clone(), options, version, keyspace.flushed, values)?;
            if keyspace.loses_entries {
                tree.has_lost_entries();
            }
            Ok(Arc::new(tree))
        };
        self.keyspaces.iter().map(open).collect()
    }
}

#[cfg(test)]
mod tests {
    use bifold_contract::{Expiring, TableMeta};

    use super::*;

    #[test]
    fn a_run_with_a_number_that_nobody_has_had_is_damage() {
        let applied = |run| {
            let created = KeyspaceEdit::Created { id: 2, name: "k".into(), options: String::new() };
            let table = TableMeta {
                id: 3,
                bytes: 1,
                entries: 1,
                tombstones: 0,
                range_tombstones: 0,
                smallest: (*b"a").into(),
                largest: (*b"a").into(),
                unbounded: false,
                min_seqno: 1,
                max_seqno: 1,
                expiring: Expiring::default(),
            };
            let added = vec![TableAdded { level: 0, run, table: Arc::new(table) }];
            ManifestState::default().apply(Edit {
                next_file: Some(9),
                keyspaces: vec![created],
                levels: vec![LevelEdit { keyspace: 2, added, ..LevelEdit::default() }],
                ..Edit::default()
            })
        };
        applied(8).unwrap();
        for run in [9, 10, u64::MAX] {
            assert!(applied(run).is_err_and(|why| why.contains("9 is the next number")), "run {run}");
        }
    }
}
