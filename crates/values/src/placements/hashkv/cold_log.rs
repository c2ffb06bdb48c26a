//! The cold log (HashKV §3.4): values of all groups that were not updated, in the order in which GC found them.
//!
//! ```text
//!   a group:      k₁ value │ k₂ tag ──────┐ │ k₃ value │ …
//!                                         ▼
//!   cold log:     file │ file │ … k₂ value │ ◀─ appended to by GC of groups
//! ```
//!
//! The dead bytes of a file come from the tags that GC of groups finds to be old, or to lead to what has vanished. What
//! compaction drops is not counted, since that would count the same deaths twice, unless nothing shadows it and its
//! group knows no tags, as after a start: then nobody would ask for GC of the group.

use std::{collections::BTreeSet, sync::Arc};

use bifold_contract::{FileId, Pointer, Result};
use bifold_format::value::ValueRecord;

use crate::{
    parts::{
        value_files::{COLD, Copy, ValueFile, ValueFiles},
        victim::Candidate,
    },
    placements::hashkv::NO_REGION,
};

/// The files of the log.
#[derive(Default)]
pub(super) struct ColdLog {
    files: Vec<LogFile>,
    /// The one that the next GC of groups appends to.
    head: Option<FileId>,
}

struct LogFile {
    file: Arc<ValueFile>,
    /// [`Groups::clock`](crate::parts::segment_groups::Groups::clock) when it was begun.
    begun_at: u64,
    /// GC is running on it.
    busy: bool,
}

impl ColdLog {
    /// Opens the log with the files of an earlier session, oldest first.
    pub fn new(files: impl Iterator<Item = Arc<ValueFile>>) -> Self {
        let files: Vec<LogFile> = files.map(|file| LogFile { file, begun_at: 0, busy: false }).collect();
        Self { head: files.last().map(|last| last.file.id), files }
    }

    /// The numbers of its files.
    pub fn ids(&self) -> impl Iterator<Item = FileId> {
        self.files.iter().map(|of| of.file.id)
    }

    /// Bytes in it.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|of| of.file.len() - of.file.start()).sum()
    }

    /// Bytes in it that are not known to be dead.
    pub fn live(&self) -> u64 {
        self.files.iter().map(|of| of.live()).sum()
    }

    /// Counts so many bytes of a file as dead. Ignores files that are no longer in the log.
    pub fn note_dead(&self, file: FileId, bytes: u64) {
        if let Some(of) = self.files.iter().find(|of| of.file.id == file) {
            of.file.add_dead(bytes);
        }
    }

    /// The end of the log, for appending in files of about so many bytes. Until [`ColdLog::extend`] nobody else
    /// appends.
    pub fn take_end(&mut self, file_bytes: u64, left_out: &BTreeSet<FileId>) -> End {
        let head = self.head.take().and_then(|id| self.files.iter().find(|of| of.file.id == id));
        let is_open = |file: &ValueFile| !file.is_sealed() && !left_out.contains(&file.id);
        let goes_on = |of: &&LogFile| !of.busy && is_open(&of.file) && of.file.len() < file_bytes;
        End { head: head.filter(goes_on).map(|of| Arc::clone(&of.file)), copies: Vec::new(), file_bytes }
    }

    /// Adds what was appended to its end. The last of these files is continued from now on.
    pub fn extend(&mut self, files: Vec<Arc<ValueFile>>, clock: u64) {
        self.head = files.last().map(|last| last.id);
        self.add(files, clock);
    }

    /// Adds files that readers find copies in.
    pub fn add(&mut self, mut files: Vec<Arc<ValueFile>>, clock: u64) {
        files.retain(|file| self.ids().all(|id| id != file.id));
        self.files.extend(files.into_iter().map(|file| LogFile { file, begun_at: clock, busy: false }));
    }

    /// What GC may pick: each file with what is in it, without files that GC already has or that are appended to.
    pub fn candidates(&self, clock: u64) -> impl Iterator<Item = (FileId, Candidate)> {
        let closed = self.files.iter().filter(|of| !of.busy && self.head != Some(of.file.id));
        closed.map(move |of| (of.file.id, of.candidate(clock)))
    }

    /// Files with lower numbers than this, oldest first, with their live bytes.
    pub fn begun_before(&self, before: FileId) -> impl Iterator<Item = (FileId, u64)> {
        self.files.iter().filter(move |of| !of.busy && of.file.id < before).map(|of| (of.file.id, of.live()))
    }

    /// Takes files for GC: nothing is appended to them any more.
    pub fn take(&mut self, ids: &BTreeSet<FileId>) -> Vec<Arc<ValueFile>> {
        self.head = self.head.filter(|head| !ids.contains(head));
        let mut taken = Vec::new();
        for of in self.files.iter_mut().filter(|of| ids.contains(&of.file.id) && !of.busy) {
            of.busy = true;
            taken.push(Arc::clone(&of.file));
        }
        taken
    }

    /// Returns files that GC does not collect after all.
    pub fn give_back(&mut self, taken: &[Arc<ValueFile>]) {
        let is_taken = |of: &&mut LogFile| taken.iter().any(|file| file.id == of.file.id);
        self.files.iter_mut().filter(is_taken).for_each(|of| of.busy = false);
    }

    /// Removes files that are drained.
    pub fn remove(&mut self, drained: &[Arc<ValueFile>]) {
        self.files.retain(|of| drained.iter().all(|file| file.id != of.file.id));
    }
}

impl LogFile {
    fn live(&self) -> u64 {
        (self.file.len() - self.file.start()).saturating_sub(self.file.dead())
    }

    fn candidate(&self, clock: u64) -> Candidate {
        let dead = self.file.dead();
        let mut candidate = Candidate { live: self.live(), dead: 0, written: dead, rest: 0.0 };
        candidate.add_dead(dead, clock - self.begun_at);
        candidate
    }
}

/// The end of the log while GC appends to it.
#[derive(Default)]
pub(super) struct End {
    head: Option<Arc<ValueFile>>,
    copies: Vec<Copy>,
    file_bytes: u64,
}

impl End {
    /// An end in files of about so many bytes, all of them new.
    pub fn of_new_files(file_bytes: u64) -> Self {
        Self { file_bytes, ..Self::default() }
    }

    /// Appends a copy of `record` and returns where it will stand.
    ///
    /// # Errors
    /// I/O errors.
    pub fn append(&mut self, files: &ValueFiles, record: &ValueRecord<'_>) -> Result<Pointer> {
        if self.copies.last().is_none_or(|last| last.end() >= self.file_bytes) {
            self.copies.push(match self.head.take() {
                Some(head) => files.go_on_with(&head)?,
                None => files.begin_copy(COLD, NO_REGION)?,
            });
        }
        let last = self.copies.len() - 1;
        self.copies[last].append(record)
    }

    /// The copies, to be finished, and the head if it was not needed.
    pub fn into_parts(self) -> (Vec<Copy>, Option<Arc<ValueFile>>) {
        (self.copies, self.head)
    }
}
