//! What there is to read: keyspaces, their tables, logs, value files.
//!
//! If the manifest is whole, only the tables that it names count: others were replaced, and may have what was deleted.
//! Otherwise its whole records tell the names of keyspaces and whose each table is, and all tables count.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    iter,
    sync::Arc,
};

use bifold_contract::{
    Error, FileId, IoSource, KeyspaceEdit, KeyspaceId, RangeTombstone, Result, SeqNo, TableMeta, key::MAX_SEQNO,
    planted,
};
use bifold_format::{
    frame::FILE_HEADER_BYTES,
    manifest::{ManifestReader, ManifestRecord, Tail},
    names,
    table::Place,
    walk::{Met, Walk},
};
use bifold_index::{
    range_tombstones::RangeTombstones,
    table::salvage::{Lost, read_around_errors},
};
use bifold_io::Dir;

use super::{
    super::{SalvageOptions, name_of},
    logs,
    merge::TableStart,
    reach::Reach,
    report::{LeftOuts, RecoveredKeyspace},
};
use crate::{
    api::db::KEYSPACE_NAME_MAX,
    open::recover::{ManifestState, read_manifest, read_whole},
    settings::{merge::MergeOperator, options::KeyspaceOptions},
    state::files::Files,
};

/// A keyspace to recover.
#[derive(Default)]
pub(super) struct SavedKeyspace {
    pub report: RecoveredKeyspace,
    /// The logs repeat what its tables have, up to this number.
    pub flushed: SeqNo,
    pub tables: Vec<TableOf>,
    /// The tables that have entries.
    pub found: Vec<TableStart>,
    /// Range deletes.
    pub ranges: Vec<RangeTombstone>,
    /// The keys that what is lost may tell of, and the largest number that it may have.
    pub lost: Vec<RangeTombstone>,
    /// The same of tables alone.
    pub lost_in_tables: Vec<RangeTombstone>,
    /// The same when the tables had been walked: of these keys, logs are asked for what has been flushed.
    pub asked: RangeTombstones,
    /// Whether the manifest says what options it has.
    pub is_described: bool,
    /// The merge operator that the manifest names.
    pub merge: Option<MergeOperator>,
}

/// A table, and what the manifest says of it.
#[derive(Clone, Debug)]
pub(super) struct TableOf {
    pub id: FileId,
    pub meta: Option<Arc<TableMeta>>,
}

impl TableOf {
    /// Something lost of it, and the largest number that it may have. Where the manifest knows the table, its keys are
    /// between those named there.
    pub fn bounded(&self, mut lost: Lost) -> (Lost, SeqNo) {
        let Some(meta) = &self.meta else { return (lost, MAX_SEQNO) };
        lost.first.get_or_insert_with(|| meta.smallest.clone());
        lost.last = lost.last.or_else(|| (!meta.unbounded).then(|| meta.largest.clone()));
        (lost, meta.max_seqno)
    }
}

impl SavedKeyspace {
    /// Notes that what is lost may have told of keys in a range, with numbers up to `upto`.
    pub fn lose(&mut self, (first, last): (Option<&[u8]>, Option<&[u8]>), upto: SeqNo) {
        self.lost.push(range((first, last), upto));
    }

    /// The same of a table.
    pub fn lose_in_table(&mut self, (first, last): (Option<&[u8]>, Option<&[u8]>), upto: SeqNo) {
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
pub(super) fn range((first, last): (Option<&[u8]>, Option<&[u8]>), seqno: SeqNo) -> RangeTombstone {
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
    /// Whether something is lost that may have told of any keys.
    has_lost_any: bool,
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
            has_lost_any: false,
            next_id: 0,
            dropped: BTreeSet::new(),
            names: options.names.clone(),
            reach: Reach::default(),
        };
        let (problem, is_outdated) = match read_manifest(dir) {
            Ok(Some(state)) => match outdated(dir, &state, &files)? {
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
                Some(problem) => (problem, true),
            },
            Ok(None) => ("there is no manifest".to_owned(), false),
            Err(error) if error.is_unreadable() => (error.to_string(), false),
            Err(error) => return Err(error),
        };
        let place = Place { start: 0, end: bytes.unwrap_or(0) };
        left_out.add(dir.file(names::MANIFEST), None, Lost { place, first: None, last: None, problem });
        sources.assign(dir, &files.tables, options.tables_of)?;
        sources.distinguish(0);
        if is_outdated && !planted!("salvage_trusts_what_is_left") {
            // A file that is missing may have had newer versions of any key.
            sources.lose_any();
        }
        Ok(sources)
    }

    /// Gives each table to a keyspace, as far as whole records of the manifest say to which.
    fn assign(&mut self, dir: &Dir, tables: &[FileId], tables_of: Option<KeyspaceId>) -> Result<()> {
        let owners = self.read_records(dir)?;
        for &table in tables {
            let (owner, meta) = owners.get(&table).map_or((tables_of, None), |(id, meta)| (Some(*id), Some(meta)));
            match owner {
                Some(id) if self.dropped.contains(&id) => {}
                Some(id) => {
                    let at = self.space_of(id).unwrap_or_default();
                    self.spaces[at].tables.push(TableOf { id: table, meta: meta.cloned() });
                }
                None => {
                    let report = RecoveredKeyspace { name: format!("table-{table}"), ..RecoveredKeyspace::default() };
                    let tables = vec![TableOf { id: table, meta: None }];
                    self.spaces.push(SavedKeyspace { report, tables, ..SavedKeyspace::default() });
                }
            }
        }
        Ok(())
    }

    /// Gives the keyspaces from the index `from` on names of their own where others have the same. The one that was
    /// created last keeps its name: it could get it only because the other had been dropped.
    pub fn distinguish(&mut self, from: usize) {
        let from = from.min(self.spaces.len());
        let (known, new) = self.spaces.split_at_mut(from);
        let mut taken: BTreeSet<String> = known.iter().map(|space| space.report.name.clone()).collect();
        let mut new: Vec<_> = new.iter_mut().map(|space| &mut space.report).collect();
        new.sort_by_key(|report| Reverse(report.id));
        for report in new {
            let numbered = (report.id.unwrap_or(1)..).map(|number| with_number(&report.name, number));
            let name = iter::once(report.name.clone()).chain(numbered).find(|name| taken.insert(name.clone()));
            if let Some(name) = name {
                report.name = name;
            }
        }
    }

    /// Notes that something is lost that may have told of any keys.
    pub fn lose_any(&mut self) {
        self.has_lost_any = true;
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
            let mut space = SavedKeyspace { report, ..SavedKeyspace::default() };
            if self.has_lost_any {
                space.lose((None, None), MAX_SEQNO);
            }
            self.spaces.push(space);
            self.spaces.len() - 1
        }))
    }

    /// Whether an operation in a log on a key counts. One that tables had does not, unless what they have lost may be
    /// it: what came after it may have expired, and be in no log. In a keyspace with a merge operator nothing expires,
    /// and operands are counted in logs alone or not at all: so all operations on the key count there.
    pub fn is_asked(&self, (seqno, key): (SeqNo, &[u8]), keyspace: KeyspaceId) -> bool {
        let Some(space) = self.spaces.iter().find(|space| space.report.id == Some(keyspace)) else { return false };
        let least = if space.merge.is_some() { 1 } else { seqno };
        seqno > space.flushed || space.asked.covering(key, MAX_SEQNO) >= least
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
                    // What the caller says counts.
                    self.names.entry(id).or_insert(name);
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

/// A name with a number behind it, cut if it would be too long.
fn with_number(name: &str, number: u32) -> String {
    let number = format!("-{number}");
    let mut end = name.len().min(KEYSPACE_NAME_MAX - number.len());
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    [name.get(..end).unwrap_or_default(), &number].concat()
}

/// Why a manifest does not describe these files, if so: it is truncated, or older than they are; or files are missing.
fn outdated(dir: &Dir, state: &ManifestState, files: &Files) -> Result<Option<String>> {
    let log = state.log_floor.log;
    if !files.logs.contains(&log) {
        return Ok(Some(format!("{}, which it says is needed, does not exist", names::log(log))));
    }
    let mut tables = state.keyspaces.values().flat_map(|keyspace| keyspace.tables.keys());
    if let Some(&table) = tables.find(|table| files.tables.binary_search(table).is_err()) {
        return Ok(Some(format!("{}, which it names, does not exist", names::table(table))));
    }
    Ok(logs::say_older(dir, &files.logs, state)?.filter(|_| !planted!("salvage_believes_older_manifests")))
}
