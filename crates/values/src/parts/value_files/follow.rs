//! Value files of a database that another process may be writing.
//!
//! A file counts up to its recorded length and up to the end of what commits in the logs point at: values are written
//! before the record that points at them. What follows may be half written, so nobody looks at it.
//!
//! That order holds for what a writer appends while this process reads. What was there before may be what a power loss
//! has left, and no writer has been there since: a record that log and file had then is checked.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use bifold_contract::{FileId, IoSource, Pointer, Result, ValueEdit, planted};
use bifold_format::names;

use super::{StoreContext, ValueFile, ValueFiles};
use crate::{
    parts::{
        scan::{Met, Scan},
        sync::LockExt,
    },
    placement::Located,
};

/// What the files of a database are opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// Reading and writing.
    Write,
    /// Reading, while nobody writes.
    Read,
    /// Reading, while another process may write. What follows the recorded length of a file is found only by the
    /// pointers that lead there: it may be half written.
    Follow,
}

impl ValueFiles {
    /// What it was opened with.
    pub(crate) fn context(&self) -> &StoreContext {
        &self.context
    }

    /// As [`ValueFiles::open`], some edits after `before`, which have `removed` files. Files that were open stay open.
    ///
    /// # Errors
    /// As [`ValueFiles::open`].
    pub fn open_after(
        context: StoreContext,
        recorded: &ValueEdit,
        (before, removed): (&Self, &BTreeSet<FileId>),
    ) -> Result<Self> {
        let files = Self::none_of(context);
        let mut stay = Vec::new();
        for meta in recorded.added.iter().filter(|meta| meta.keyspace == files.context.keyspace) {
            match (meta.deleted, before.get(meta.id)) {
                (Some(last), _) => drop(files.deleted.hold().insert(meta.id, last)),
                (None, Some(file)) => {
                    file.len.fetch_max(meta.bytes, Relaxed);
                    file.recorded_len.fetch_max(meta.bytes, Relaxed);
                    file.tags.fetch_or(meta.tags, Relaxed);
                    stay.push(file);
                }
                (None, None) => files.adopt(meta.id, Some(meta))?,
            }
        }
        // Commits have begun these, and no edit has recorded them yet. Others may have been recorded and removed since:
        // a file that is only held must not be found, as it is about to be deleted.
        let is_gone = |id| removed.contains(&id) || files.deleted.hold().contains_key(&id);
        let is_begun =
            |file: &ValueFile| !file.is_known() && (!is_gone(file.id) || planted!("followers_keep_removed_files"));
        for file in before.all().into_iter().filter(|file| is_begun(file)) {
            if files.context.dir.len(&names::value(file.id))?.is_some() {
                stay.push(file);
            }
        }
        files.insert(&stay);
        for &(id, bytes, _) in &recorded.garbage {
            if let Some(file) = files.get(id) {
                file.raise_dead_to(bytes);
                file.recorded_dead.store(bytes, Relaxed);
            }
        }
        Ok(files)
    }

    /// What a pointer in the log leads to. Takes a file in that a commit has begun.
    pub(super) fn locate_followed(&self, pointer: Pointer) -> Result<Located> {
        if self.deleted.hold().contains_key(&pointer.file) {
            return Ok(Located::Whole);
        }
        let name = names::value(pointer.file);
        if self.get(pointer.file).is_none() && self.context.dir.len(&name)?.is_some() {
            self.adopt(pointer.file, None)?;
        }
        let Some(file) = self.get(pointer.file) else { return Ok(Located::Missing) };
        let end = pointer.offset.saturating_add(u64::from(pointer.len));
        // `synced`: what is known to be there. Nothing is synced here.
        if end > file.synced.load(Relaxed) {
            file.synced.fetch_max(self.context.dir.len(&name)?.unwrap_or(0), Relaxed);
        }
        if end > file.synced.load(Relaxed) || !self.is_whole(&file, pointer)? {
            return Ok(Located::Missing);
        }
        file.len.fetch_max(end, Relaxed);
        Ok(Located::Whole)
    }

    /// Whether no power loss has taken a part of this record.
    fn is_whole(&self, file: &Arc<ValueFile>, pointer: Pointer) -> Result<bool> {
        let was_there = self.tails.hold().get(&file.id).is_some_and(|tail| pointer.offset < tail.file_end);
        let end = pointer.offset + u64::from(pointer.len);
        if !was_there || end <= file.recorded_len.load(Relaxed) || planted!("followers_trust_pointers") {
            return Ok(true);
        }
        let mut scan = Scan::new(file, pointer.offset, end, IoSource::Recovery);
        Ok(matches!(scan.step()?, Met::Record(_, len) if len == pointer.len))
    }
}
