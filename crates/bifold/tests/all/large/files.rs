//! Which files of large values there must be, found out without the engine: from the manifest, from the entries of all
//! tables that it names, and from the logs.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use bifold_contract::{FileId, KeyspaceEdit, KeyspaceId, Kind, SeqNo, TableMeta};
use bifold_format::{
    large,
    log::{LogReader, Operation},
    manifest::ManifestReader,
    names::{self, FileKind},
};
use bifold_index::{
    cursor::Cursor,
    table::{ReadMode, Table, TableContext},
};
use bifold_io::{Dir, memory::MemoryFs};

/// Whether somebody needs files that no entry names any more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Others {
    None,
    /// A change feed, for which every log is kept.
    Feed,
    /// Readers.
    Some,
}

/// The files of large values in a directory, and their lengths.
pub fn on_disk(fs: &MemoryFs, dir: &Path) -> BTreeMap<FileId, u64> {
    let mut found = BTreeMap::new();
    for path in fs.files().into_iter().filter(|path| path.parent() == Some(dir)) {
        if let FileKind::Large(id) = names::parse(path.file_name().unwrap().to_str().unwrap()) {
            found.insert(id, fs.read(&path).unwrap().len() as u64);
        }
    }
    found
}

#[derive(Default)]
struct State {
    tables: BTreeMap<FileId, Arc<TableMeta>>,
    of: BTreeMap<FileId, KeyspaceId>,
    flushed: BTreeMap<KeyspaceId, SeqNo>,
    large: BTreeMap<FileId, (KeyspaceId, u64)>,
}

fn state(fs: &MemoryFs, dir: &Path) -> State {
    let bytes = fs.read(&dir.join(names::MANIFEST)).unwrap();
    let mut state = State::default();
    for record in ManifestReader::new(&bytes).unwrap() {
        let edit = record.unwrap().edit;
        for change in edit.keyspaces {
            match change {
                KeyspaceEdit::Created { id, .. } => drop(state.flushed.insert(id, 0)),
                KeyspaceEdit::Flushed { id, seqno } => drop(state.flushed.insert(id, seqno)),
                KeyspaceEdit::Dropped { id } => {
                    state.flushed.remove(&id);
                    state.large.retain(|_, (keyspace, _)| *keyspace != id);
                    let tables: Vec<_> = state.of.iter().filter(|(_, of)| **of == id).map(|(id, _)| *id).collect();
                    tables.iter().for_each(|table| drop(state.tables.remove(table)));
                }
                _ => {}
            }
        }
        for level in edit.levels {
            level.removed.iter().for_each(|removed| drop(state.tables.remove(&removed.table)));
            for added in level.added {
                state.of.insert(added.table.id, level.keyspace);
                state.tables.insert(added.table.id, added.table);
            }
        }
        for id in edit.values.large.removed {
            assert!(state.large.remove(&id).is_some(), "file {id} is removed, but was never added");
        }
        for file in edit.values.large.added {
            let is_new = state.large.insert(file.named.file, (file.keyspace, file.bytes)).is_none();
            assert!(is_new, "file {} is added twice", file.named.file);
        }
    }
    state
}

/// The files that entries of tables name. No two may name the same.
fn in_tables(fs: &MemoryFs, dir: &Path, state: &State) -> BTreeMap<FileId, KeyspaceId> {
    let dir = Dir::new(Arc::new(fs.clone()), dir);
    let context = Arc::new(TableContext::new(0, 0));
    let mut named = BTreeMap::new();
    for meta in state.tables.values() {
        let table = Table::open(&dir, Arc::clone(meta), &context).unwrap();
        let mut cursor = table.cursor(ReadMode::Scan);
        cursor.first().unwrap();
        while let Some(entry) = cursor.entry() {
            if entry.kind == Kind::Large {
                let said = large::decode(entry.payload).unwrap();
                assert!(named.insert(said.file, state.of[&meta.id]).is_none(), "two entries name file {}", said.file);
            }
            cursor.next().unwrap();
        }
    }
    named
}

/// The files that commits name which are in no table, or all that commits name.
fn in_logs(fs: &MemoryFs, dir: &Path, state: &State, all: bool) -> BTreeSet<FileId> {
    let mut named = BTreeSet::new();
    for path in fs.files().into_iter().filter(|path| path.parent() == Some(dir)) {
        let FileKind::Log(id) = names::parse(path.file_name().unwrap().to_str().unwrap()) else { continue };
        let bytes = fs.read(&path).unwrap();
        for record in LogReader::new(&bytes, id).unwrap() {
            let record = record.unwrap();
            for (operation, seqno) in record.operations().zip(record.first_seqno..) {
                if let Operation::Large { keyspace, named: said, .. } = operation.unwrap()
                    && (all || state.flushed.get(&keyspace).is_some_and(|&flushed| seqno > flushed))
                {
                    named.insert(large::decode(said).unwrap().file);
                }
            }
        }
    }
    named
}

/// The manifest names the files that entries of tables name, and no others. In the directory are these, those that only
/// logs name, and, if there are others who read them, more.
pub fn check(fs: &MemoryFs, dir: &Path, others: Others, what: &str) {
    let state = state(fs, dir);
    let recorded: BTreeMap<FileId, KeyspaceId> = state.large.iter().map(|(&id, &(of, _))| (id, of)).collect();
    assert_eq!(recorded, in_tables(fs, dir, &state), "{what}: in the manifest, and in tables");
    let found = on_disk(fs, dir);
    for (id, (_, bytes)) in &state.large {
        assert_eq!(found.get(id), Some(bytes), "{what}: file {id}");
    }
    let needed: BTreeSet<FileId> =
        recorded.into_keys().chain(in_logs(fs, dir, &state, others == Others::Feed)).collect();
    let found: BTreeSet<FileId> = found.into_keys().collect();
    match others {
        Others::None | Others::Feed => assert_eq!(found, needed, "{what}: in the directory, and needed"),
        Others::Some => assert!(found.is_superset(&needed), "{what}: {needed:?} are needed, {found:?} are there"),
    }
}
