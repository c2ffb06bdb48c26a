//! Large values that the change feed needs: their files stay as long as the logs that name them.
//!
//! ```text
//! log 7 │ mark │ commit: key ─▶ 12.large │ …     log 9 │ mark: 7 is before it │ list: 7 names 12.large │ …
//!                └ retained as the commit is made      └ so an opening that does not replay 7 retains it, too
//!
//! log 7 is deleted ─▶ 12.large is released: deleted, unless its entry is still there
//! ```
//!
//! **Invariant.** A log that a change feed reads has the files of all large values that its commits name. A power loss
//! may bring back a deleted log and not its files. So an opening looks whether they are there, and takes the changes up
//! to that log for gone if not.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use bifold_contract::{Corruption, FileId, IoSource, LargeFileMeta, Result, planted};
use bifold_format::{
    frame::FILE_HEADER_BYTES,
    large::{self, LargeLayout},
    log::{LogRecord, Operation},
    names,
    walk::{Met, Walk},
};
use bifold_io::{Dir, Reader};
use bifold_values::parts::large_files::LargeFile;

use crate::{state::tree::Tree, waiting::sync::LockExt};

/// Large values, as a log names them: the number and the bytes of each file.
pub(crate) type NamedLarge = Vec<(FileId, u64)>;

/// The list of them is mostly short.
const LIST_BYTES: usize = 512;

/// The large values that kept logs and logs that replay needs name, by log. Clones share what they hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptLarge {
    /// Those that an opening finds, until it [holds](KeptLarge::hold) them.
    found: BTreeMap<FileId, NamedLarge>,
    held: Arc<Mutex<BTreeMap<FileId, Vec<Arc<LargeFile>>>>>,
}

impl KeptLarge {
    /// An opening has found that `log` names these.
    pub fn find(&mut self, log: FileId, named: NamedLarge) {
        if !named.is_empty() {
            self.found.insert(log, named);
        }
    }

    /// No log is kept.
    pub fn clear(&mut self) {
        self.found.clear();
    }

    /// The numbers of the files that were found.
    pub fn found(&self) -> impl Iterator<Item = FileId> + '_ {
        self.found.values().flatten().map(|&(id, _)| id)
    }

    /// Retains what was found, before anything can drop an entry of it. `replayed` is what replay will find.
    pub fn hold<'a>(&mut self, dir: &Dir, trees: &[Arc<Tree>], replayed: impl Iterator<Item = &'a LargeFileMeta>) {
        // An opening on a full disk may try again.
        self.held = Arc::default();
        if self.found.is_empty() {
            return;
        }
        for file in replayed {
            let tree = trees.iter().find(|tree| tree.keyspace == file.keyspace);
            tree.iter().for_each(|tree| tree.placement().large().know(file));
        }
        let of_entries: BTreeMap<FileId, Arc<LargeFile>> =
            trees.iter().flat_map(|tree| tree.placement().large().all()).map(|file| (file.id(), file)).collect();
        for (log, named) in std::mem::take(&mut self.found) {
            for (id, bytes) in named {
                let left = || LargeFile::left(dir, id, bytes);
                self.note(log, of_entries.get(&id).map_or_else(left, Arc::clone));
            }
        }
    }

    /// A commit in `log` names this one.
    pub fn note(&self, log: FileId, file: Arc<LargeFile>) {
        file.retain();
        self.held.hold().entry(log).or_default().push(file);
    }

    /// What commits in `log` name.
    pub fn named_in(&self, log: FileId) -> NamedLarge {
        let held = self.held.hold();
        held.get(&log).into_iter().flatten().map(|file| (file.id(), file.bytes())).collect()
    }

    /// The numbers of all files that are held.
    pub fn all(&self) -> Vec<FileId> {
        self.held.hold().values().flatten().map(|file| file.id()).collect()
    }

    /// Bytes in those files named in `log` that nothing but the feed needs.
    pub fn left_in(&self, log: FileId) -> u64 {
        let held = self.held.hold();
        let left = held.get(&log).into_iter().flatten().filter(|file| file.is_obsolete());
        left.map(|file| file.bytes()).sum()
    }

    /// Number of all files that nothing but the feed needs, and bytes in them.
    pub fn left(&self) -> (u64, u64) {
        let held = self.held.hold();
        let left = held.values().flatten().filter(|file| file.is_obsolete());
        left.fold((0, 0), |(files, bytes), file| (files + 1, bytes + file.bytes()))
    }

    /// These logs go. The caller releases the files when they are gone.
    pub fn forget(&self, logs: &[FileId]) -> Vec<Arc<LargeFile>> {
        let mut held = self.held.hold();
        logs.iter().filter_map(|log| held.remove(log)).flatten().collect()
    }
}

/// What the list at the beginning of the log `by` has for the kept log before it.
///
/// # Errors
/// I/O errors; a list that is damaged although its checksum is right.
pub(crate) fn listed(dir: &Dir, by: FileId) -> Result<NamedLarge> {
    let reader = dir.open(&names::log(by))?;
    let mut walk = Walk::new(by, FILE_HEADER_BYTES as u64, reader.len()).by_chunks_of(LIST_BYTES);
    let Some(_mark) = record(&mut walk, &reader, |_| Ok(()))? else { return Ok(Vec::new()) };
    let listed = record(&mut walk, &reader, |record| record.large_before().map_err(|damage| damage.of(reader.path())))?;
    Ok(listed.flatten().unwrap_or_default())
}

/// What the commits of a log name, up to the first record that is not whole.
///
/// # Errors
/// I/O errors; what is damaged although its checksum is right.
pub(crate) fn walked(dir: &Dir, id: FileId) -> Result<NamedLarge> {
    let reader = dir.open(&names::log(id))?;
    let mut walk = Walk::new(id, FILE_HEADER_BYTES as u64, reader.len());
    let mut named = Vec::new();
    while record(&mut walk, &reader, |record| note_named(record, &reader, &mut named))?.is_some() {}
    Ok(named.iter().map(|file| (file.named.file, file.bytes)).collect())
}

/// Adds the files that a commit names.
///
/// # Errors
/// What is damaged although its checksum is right.
pub(crate) fn note_named(record: &LogRecord<'_>, reader: &Reader, named: &mut Vec<LargeFileMeta>) -> Result<()> {
    for operation in record.operations() {
        let file = operation.and_then(|operation| file_of(&operation));
        named.extend(file.map_err(|damage| damage.of(reader.path()))?);
    }
    Ok(())
}

/// The file that an operation names.
///
/// # Errors
/// If what it says of it cannot be decoded.
pub(crate) fn file_of(operation: &Operation<'_>) -> std::result::Result<Option<LargeFileMeta>, Corruption> {
    let Operation::Large { keyspace, key, named } = *operation else { return Ok(None) };
    let named = large::decode(named)?;
    let bytes = LargeLayout::of(key.len(), named.len).file_bytes();
    Ok(Some(LargeFileMeta { keyspace, named, bytes }))
}

fn record<T>(walk: &mut Walk, reader: &Reader, see: impl FnOnce(&LogRecord<'_>) -> Result<T>) -> Result<Option<T>> {
    match walk.step(|buffer: &mut [u8], at: u64| reader.read_at(buffer, at, IoSource::Recovery))? {
        Met::Record(frame, _) => see(&LogRecord::of(frame)).map(Some),
        Met::End | Met::Torn(_) | Met::Damaged { .. } => Ok(None),
    }
}

/// Whether all these files are there.
///
/// # Errors
/// I/O errors.
pub(crate) fn are_there(dir: &Dir, named: &NamedLarge) -> Result<bool> {
    for &(id, bytes) in named.iter().filter(|_| !planted!("changes_without_large_values")) {
        if dir.len(&names::large(id))? != Some(bytes) {
            return Ok(false);
        }
    }
    Ok(true)
}
