//! What there is to read: keyspaces, their tables, logs, value files.
//!
//! If the manifest is whole, only the tables that it names count: others were replaced, and may have what was deleted.
//! Otherwise its whole records tell the names of keyspaces and whose each table is, and all tables count.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::Arc,
};

use bifold_contract::{
    Error, FileId, IoSource, KeyspaceEdit, KeyspaceId, RangeTombstone, Result, SeqNo, TableMeta, key::MAX_SEQNO,
};
use bifold_format::{
    frame::FILE_HEADER_BYTES,
    manifest::{ManifestReader, ManifestRecord, Tail},
    names,
    table::Place,
    walk::{Met, Walk},
};
use bifold_index::table::salvage::{Lost, read_around_errors};
use bifold_io::Dir;

use super::{
    super::{SalvageOptions, name_of},
    merge::TableStart,
    reach::Reach,
    report::{LeftOuts, RecoveredKeyspace},
};
use crate::{
    api::{merge::MergeOperator, options::KeyspaceOptions},
    state::recover::{Files, ManifestState, read_manifest, read_whole},
};

/// A keyspace to recover.
#[derive(Default)]
pub(super) struct SavedKeyspace {
    pub report: RecoveredKeyspace,
    /// The logs repeat what its tables have, up to this number.
    pub flushed: SeqNo,
    pub tables: Vec<TableOf>,
    /// Something of its tables is lost.
    pub is_damaged: bool,
    /// The tables that have entries.
    pub found: Vec<TableStart>,
    /// Range deletes.
    pub ranges: Vec<RangeTombstone>,
    /// The keys that what is lost may tell of, and the largest number that it may have.
    pub lost: Vec<RangeTombstone>,
    /// The same of tables alone.
    pub lost_in_tables: Vec<RangeTombstone>,
    /// Whether the manifest says what options it has.
    pub is_described: bool,
    /// The merge operator that the manifest names.
    pub merge: Option<MergeOperator>,
}

/// A table, and what the manifest says of it.
pub(super) struct TableOf {
    pub id: FileId,
    pub meta: Option<Arc<TableMeta>>,
}

impl SavedKeyspace {
    /// Notes that what is lost may have told of keys in a range, with numbers up to `upto`.
    pub fn lose(&mut self, (first, last): (Option<&[u8]>, Option<&[u8]>), upto: SeqNo) {
        self.lost.push(range((first, last), upto));
    }

    /// The same of a table.
    pub fn lose_in_table(&mut self, (first, last): (Option<&[u8]>, Option<&[u8]>), upto: SeqNo) {
        self.is_damaged = true;
        self.lose((first, last), upto);
        self.lost_in_tables.push(range((first, last), upto));
    }

    /// What the manifest says of its options, if it is there and can be read.
    fn take_options(&mut self, recorded: &str) {
        let Ok(options) = KeyspaceOptions::recorded(recorded) else { return };
        self.is_described = true;
        let Some(merge) = options.merge else { return };
        self.report.operator = Some(merge.name().to_owned());
        self.merge = Some(merge);
    }
}

/// As a range delete: its end does not belong to it.
fn range((first, last): (Option<&[u8]>, Option<&[u8]>), seqno: SeqNo) -> RangeTombstone {
    let end = last.map(|last| [last, &[0]].concat().into());
    RangeTombstone { start: first.unwrap_or_default().into(), end, seqno }
}

/// What there is to read.
pub(super) struct Sources {
    pub spaces: Vec<SavedKeyspace>,
    /// Oldest first.
    pub logs: Vec<FileId>,
    pub values: Vec<FileId>,
    /// Of large values.
    pub large: Vec<FileId>,
    /// Whether the manifest is whole.
    pub is_exact: bool,
    /// Which numbers logs have.
    pub reach: Reach,
    /// Ids from here on are newer than the manifest.
    next_id: u64,
    dropped: BTreeSet<KeyspaceId>,
    names: BTreeMap<KeyspaceId, String>,
}

impl Sources {
    /// What `dir` has.
    ///
    /// # Errors
    /// I/O errors; [`Error::NotFound`] if there is nothing.
    pub fn find(dir: &Dir, options: &SalvageOptions, left_out: &mut LeftOuts) -> Result<Self> {
        let files = Files::list(dir)?;
        let bytes = dir.len(names::MANIFEST)?;
        if bytes.is_none() && files.last == 0 {
            return Err(Error::NotFound { path: dir.path().into() });
        }
        let mut sources = Self {
            spaces: Vec::new(),
            logs: files.logs.clone(),
            values: files.values.clone(),
            large: files.large.clone(),
            is_exact: false,
            next_id: 0,
            dropped: BTreeSet::new(),
            names: options.names.clone(),
            reach: Reach::default(),
        };
        let mut lose = |problem: String| {
            let place = Place { start: 0, end: bytes.unwrap_or(0) };
            left_out.add(dir.file(names::MANIFEST), None, Lost { place, first: None, last: None, problem });
        };
        match read_manifest(dir) {
            Ok(Some(state)) => match outdated(&state, &files) {
                None => {
                    sources.take_state(state);
                    if let Some(offset) = torn_at(dir)? {
                        let place = Place { start: offset, end: bytes.unwrap_or(offset) };
                        let problem = "a record that is cut short, or has lost sectors".to_owned();
                        left_out.add(dir.file(names::MANIFEST), None, Lost { place, first: None, last: None, problem });
                        sources.lose_any();
                    }
                    return Ok(sources);
                }
                Some(problem) => lose(problem),
            },
            Ok(None) => lose("there is no manifest".to_owned()),
            Err(error) if error.is_unreadable() => lose(error.to_string()),
            Err(error) => return Err(error),
        }
        let owners = sources.read_records(dir)?;
        for &table in &files.tables {
            let (owner, meta) =
                owners.get(&table).map_or((options.tables_of, None), |(id, meta)| (Some(*id), Some(meta)));
            match owner {
                Some(id) if sources.dropped.contains(&id) => {}
                Some(id) => {
                    let at = sources.space_of(id).unwrap_or_default();
                    sources.spaces[at].tables.push(TableOf { id: table, meta: meta.cloned() });
                }
                None => {
                    let report = RecoveredKeyspace { name: format!("table-{table}"), ..RecoveredKeyspace::default() };
                    let tables = vec![TableOf { id: table, meta: None }];
                    sources.spaces.push(SavedKeyspace { report, tables, ..SavedKeyspace::default() });
                }
            }
        }
        Ok(sources)
    }

    /// Notes that something is lost that may have told of any keys.
    pub fn lose_any(&mut self) {
        self.reach.lose_any();
        self.spaces.iter_mut().for_each(|space| space.lose((None, None), MAX_SEQNO));
    }

    /// The index of a keyspace, which is added if it is new; `None` if it was dropped.
    pub fn space_of(&mut self, id: KeyspaceId) -> Option<usize> {
        let known = self.spaces.iter().position(|space| space.report.id == Some(id));
        let is_old = self.is_exact && u64::from(id) < self.next_id;
        if known.is_none() && (is_old || self.dropped.contains(&id)) {
            return None;
        }
        Some(known.unwrap_or_else(|| {
            let report = RecoveredKeyspace {
                name: name_of(Some(id), 0, &self.names),
                id: Some(id),
                ..RecoveredKeyspace::default()
            };
            self.spaces.push(SavedKeyspace { report, ..SavedKeyspace::default() });
            self.spaces.len() - 1
        }))
    }

    /// Whether an operation in a log counts. Those that tables have do not, if all of these can be read.
    pub fn is_asked(&self, seqno: SeqNo, keyspace: KeyspaceId) -> bool {
        let space = self.spaces.iter().find(|space| space.report.id == Some(keyspace));
        space.is_some_and(|space| seqno > space.flushed || space.is_damaged)
    }

    fn take_state(&mut self, state: ManifestState) {
        (self.is_exact, self.next_id) = (true, state.next_file);
        for (id, keyspace) in state.keyspaces {
            let report = RecoveredKeyspace { name: keyspace.name, id: Some(id), ..RecoveredKeyspace::default() };
            let tables =
                keyspace.tables.into_iter().map(|(id, added)| TableOf { id, meta: Some(added.table) }).collect();
            let mut space = SavedKeyspace { report, flushed: keyspace.flushed, tables, ..SavedKeyspace::default() };
            space.take_options(&keyspace.options);
            self.spaces.push(space);
        }
    }

    /// Takes names from all whole records of the manifest. Returns whose each table is.
    fn read_records(&mut self, dir: &Dir) -> Result<BTreeMap<FileId, (KeyspaceId, Arc<TableMeta>)>> {
        let mut owners = BTreeMap::new();
        if dir.len(names::MANIFEST)?.is_none() {
            return Ok(owners);
        }
        let reader = dir.open(names::MANIFEST)?;
        let mut head = vec![0; reader.len().min(FILE_HEADER_BYTES as u64) as usize];
        read_around_errors(&reader, &mut head, 0);
        // The checks of its records are seeded with the number in its header.
        let Ok(id) = ManifestReader::new(&head).map(|reader| reader.database_id()) else { return Ok(owners) };
        let read = |buffer: &mut [u8], at: u64| -> std::result::Result<(), Infallible> {
            read_around_errors(&reader, buffer, at);
            Ok(())
        };
        let mut walk = Walk::new(id, FILE_HEADER_BYTES as u64, reader.len());
        loop {
            let Ok(met) = walk.step(read);
            match met {
                Met::Record(frame, _) => {
                    let Ok(record) = ManifestRecord::of(&frame) else { continue };
                    self.note_keyspaces(record.edit.keyspaces);
                    for level in record.edit.levels {
                        let tables = level.added.into_iter().map(|added| added.table);
                        owners.extend(tables.map(|table| (table.id, (level.keyspace, table))));
                    }
                    continue;
                }
                Met::Torn(_) | Met::Damaged { .. } => {}
                Met::End => break,
            }
            let Ok(found) = walk.find_next(read);
            if found.is_none() {
                break;
            }
        }
        Ok(owners)
    }

    fn note_keyspaces(&mut self, edits: Vec<KeyspaceEdit>) {
        for edit in edits {
            match edit {
                KeyspaceEdit::Created { id, name, options } => {
                    self.names.insert(id, name);
                    let at = self.space_of(id);
                    at.into_iter().for_each(|at| self.spaces[at].take_options(&options));
                }
                KeyspaceEdit::Configured { id, options } => {
                    let known = self.spaces.iter_mut().find(|space| space.report.id == Some(id));
                    known.into_iter().for_each(|space| space.take_options(&options));
                }
                KeyspaceEdit::Dropped { id } => {
                    self.dropped.insert(id);
                    self.spaces.retain(|space| space.report.id != Some(id));
                }
                _ => {}
            }
        }
    }
}

/// Where the manifest, which can be read, ends with a torn record.
fn torn_at(dir: &Dir) -> Result<Option<u64>> {
    let bytes = read_whole(dir, names::MANIFEST, IoSource::Maintenance)?;
    let Ok(mut reader) = ManifestReader::new(&bytes) else { return Ok(None) };
    reader.by_ref().for_each(drop);
    Ok(match reader.tail() {
        Tail::Torn { offset } => Some(offset),
        Tail::Clean => None,
    })
}

/// Why a manifest does not describe these files, if so: it is truncated, or older than they are.
fn outdated(state: &ManifestState, files: &Files) -> Option<String> {
    let log = state.log_floor.log;
    if !files.logs.contains(&log) {
        return Some(format!("{}, which it says is needed, does not exist", names::log(log)));
    }
    let mut tables = state.keyspaces.values().flat_map(|keyspace| keyspace.tables.keys());
    let missing = tables.find(|table| files.tables.binary_search(table).is_err());
    missing.map(|&table| format!("{}, which it names, does not exist", names::table(table)))
}
