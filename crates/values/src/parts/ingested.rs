//! What an ingest writes: values in files of its own.
//!
//! ```text
//! ingest ─▶ new files, in the order of its keys ─▶ durable, hidden ─▶ edit ─▶ readers and GC find them
//! ```
//!
//! Nobody knows these files before the edit that names them is durable, so no GC takes them for garbage. A rewriter
//! that is dropped before that deletes them; what a crash leaves, recovery deletes like any file without a name in the
//! manifest.

use std::{collections::BTreeMap, sync::Arc};

use bifold_contract::{Entry, Kind, Pointer, Result, Rewriter, SeqNo, ValueEdit, ValueFileMeta};
use bifold_format::{
    compression::{Compression, Compressor},
    value::{self, Stored, ValueKind},
};
use bifold_io::Together;

use super::value_files::{APPENDED, Copy, Finished, ValueFiles};
use crate::placement::Kept;

/// The files of one ingest, by group.
pub struct IngestedFiles {
    files: Arc<ValueFiles>,
    /// A file ends at this length.
    file_bytes: u64,
    compressor: Compressor,
    open: BTreeMap<u64, Copy>,
    done: Vec<ValueFileMeta>,
    /// Those of them that no sync has covered.
    unsynced: Together<Finished>,
}

impl IngestedFiles {
    /// None yet.
    #[must_use]
    pub fn new(files: &Arc<ValueFiles>, file_bytes: u64, compression: Compression) -> Self {
        Self {
            files: Arc::clone(files),
            file_bytes,
            compressor: Compressor::new(compression),
            open: BTreeMap::new(),
            done: Vec::new(),
            unsynced: Together::default(),
        }
    }

    /// Appends a value to the file of a group and returns where it is.
    ///
    /// # Errors
    /// I/O errors.
    pub fn value(&mut self, group: u64, (key, seqno): (&[u8], SeqNo), value: &[u8]) -> Result<Pointer> {
        let copy = open_file((&self.files, &mut self.open), group)?;
        let compressor = &mut self.compressor;
        let to = copy.append_with(|out, place| value::encode_value(out, place, seqno, key, value, compressor))?;
        self.end_full(group)?;
        Ok(to)
    }

    /// Appends a record without a value to the file of a group and returns where it is.
    ///
    /// # Errors
    /// I/O errors.
    pub fn note(&mut self, group: u64, (key, seqno): (&[u8], SeqNo), kind: ValueKind) -> Result<Pointer> {
        let copy = open_file((&self.files, &mut self.open), group)?;
        let to = copy.append_with(|out, place| value::encode(out, place, kind, seqno, key, Stored::NOTHING))?;
        self.end_full(group)?;
        Ok(to)
    }

    fn end_full(&mut self, group: u64) -> Result<()> {
        if self.open.get(&group).is_some_and(|copy| copy.end() >= self.file_bytes) {
            self.end(group)?;
        }
        Ok(())
    }

    fn end(&mut self, group: u64) -> Result<()> {
        if let Some(copy) = self.open.remove(&group) {
            let (meta, finished) = self.files.finish_hidden(copy, None)?;
            self.done.push(meta);
            self.unsynced.push(finished);
        }
        if self.unsynced.is_full() { self.sync() } else { Ok(()) }
    }

    fn sync(&mut self) -> Result<()> {
        self.files.sync_finished(&self.unsynced.take())
    }

    /// Ends all files. They are durable, except for their names, and the caller names them in an edit or removes them.
    ///
    /// # Errors
    /// I/O errors; nothing is left then.
    pub fn finish(mut self) -> Result<Vec<ValueFileMeta>> {
        while let Some((&group, _)) = self.open.first_key_value() {
            self.end(group)?;
        }
        self.sync()?;
        Ok(std::mem::take(&mut self.done))
    }
}

/// The open file of a group, which is begun if there is none.
fn open_file<'a>((files, open): (&ValueFiles, &'a mut BTreeMap<u64, Copy>), group: u64) -> Result<&'a mut Copy> {
    Ok(match open.entry(group) {
        std::collections::btree_map::Entry::Occupied(copy) => copy.into_mut(),
        std::collections::btree_map::Entry::Vacant(none) => none.insert(files.begin_ingested(APPENDED, group)?),
    })
}

impl Drop for IngestedFiles {
    fn drop(&mut self) {
        self.done.iter().for_each(|meta| self.files.remove(meta.id));
    }
}

/// The rewriter of an ingest for placements whose commits append values to a log: it separates what they separate.
pub struct IngestedLog {
    files: IngestedFiles,
    separates_from: usize,
    /// Called with the bytes of each record.
    wrote: Box<dyn FnMut(u64) + Send>,
}

impl IngestedLog {
    /// Values of `separates_from` bytes and above go to `files`. Calls `wrote` with the bytes of each record.
    #[must_use]
    pub fn new(files: IngestedFiles, separates_from: usize, wrote: impl FnMut(u64) + Send + 'static) -> Self {
        Self { files, separates_from, wrote: Box::new(wrote) }
    }
}

impl Rewriter for IngestedLog {
    fn keep(&mut self, entry: &Entry<'_>) -> Result<Kept> {
        if entry.kind != Kind::Inline || entry.payload.len() < self.separates_from {
            return Ok(Kept::Unchanged);
        }
        let to = self.files.value(0, (entry.key, entry.seqno), entry.payload)?;
        (self.wrote)(to.len.into());
        Ok(Kept::Moved(to))
    }

    fn discard(&mut self, _entry: &Entry<'_>, _newer: SeqNo) -> Result<()> {
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<ValueEdit> {
        Ok(ValueEdit { added: self.files.finish()?, ..ValueEdit::default() })
    }
}
