//! What an ingest writes: values and notes by the hash of their keys, in files of whole regions.
//!
//! ```text
//! ingest ─▶ a file for each of the first regions ─▶ edit ─▶ each group of a region takes its file in
//! ```
//!
//! A group must not see a record before the ingest is in force: if that is abandoned, an older value is the current
//! one. And it must see all of them from then on: GC takes the newest record of a group for the newest version. So
//! each key leaves a record, a value or a note that its value is inline, and the groups get the files under the commit
//! lock, before the ingest is visible. To a GC run that is under way they are what commits have written meanwhile.
//!
//! The regions are those of the groups that a keyspace begins with, which only split. Groups that have split since
//! share a file, and the next GC run leaves each with its own.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use bifold_contract::{Entry, FileId, Kind, Result, Rewriter, SeqNo, ValueEdit, planted};
use bifold_format::{filter::key_hash, value::ValueKind};

use super::{GROUP_BITS, HashKvState};
use crate::{
    parts::{ingested::IngestedFiles, segment_groups::Region, sync::LockExt, value_files::ValueFiles},
    placement::Kept,
};

/// Files of an ingest that is not in force.
#[derive(Default)]
pub(super) struct Arriving {
    files: Vec<FileId>,
    /// Bytes of notes in each.
    notes: BTreeMap<FileId, u64>,
    first: Vec<u8>,
    last: Vec<u8>,
    /// The first of their numbers.
    seqno: SeqNo,
}

/// The rewriter of one ingest.
pub(super) struct Ingest {
    state: Arc<Mutex<HashKvState>>,
    files: IngestedFiles,
    separates_from: usize,
    arriving: Arriving,
}

impl Ingest {
    pub fn new(state: &Arc<Mutex<HashKvState>>, files: IngestedFiles, separates_from: usize) -> Self {
        Self { state: Arc::clone(state), files, separates_from, arriving: Arriving::default() }
    }
}

impl Rewriter for Ingest {
    fn keep(&mut self, entry: &Entry<'_>) -> Result<Kept> {
        let Arriving { first, last, seqno, .. } = &mut self.arriving;
        if first.is_empty() {
            (*first, *seqno) = (entry.key.to_vec(), entry.seqno);
        }
        last.clear();
        last.extend_from_slice(entry.key);
        let prefix = key_hash(entry.key) & ((1 << GROUP_BITS) - 1);
        let group = Region { bits: GROUP_BITS, prefix }.number();
        let version = (entry.key, entry.seqno);
        if entry.kind == Kind::Inline && entry.payload.len() >= self.separates_from {
            return self.files.value(group, version, entry.payload).map(Kept::Moved);
        }
        if !planted!("ingest_forgets_notes") {
            let note = self.files.note(group, version, ValueKind::Stub)?;
            *self.arriving.notes.entry(note.file).or_default() += u64::from(note.len);
        }
        Ok(Kept::Unchanged)
    }

    fn discard(&mut self, _entry: &Entry<'_>, _newer: SeqNo) -> Result<()> {
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<ValueEdit> {
        let Self { state, files, mut arriving, .. } = *self;
        let added = files.finish()?;
        arriving.files = added.iter().map(|meta| meta.id).collect();
        state.hold().arriving.push(arriving);
        Ok(ValueEdit { added, ..ValueEdit::default() })
    }
}

impl HashKvState {
    /// The groups take in the files of ingests that `edit` names. The caller holds the commit lock.
    pub(super) fn take_in(&mut self, files: &ValueFiles, edit: &ValueEdit) {
        for arriving in self.arrived(edit) {
            let mut arrived: Vec<_> = arriving.files.iter().filter_map(|&id| files.get(id)).collect();
            arrived.sort_by_key(|file| (file.description.group, file.id));
            for of_region in arrived.chunk_by(|a, b| a.description.group == b.description.group) {
                let notes = of_region.iter().filter_map(|file| arriving.notes.get(&file.id)).sum();
                self.groups.take_in(of_region, notes);
            }
            for file in arrived {
                file.raise_dead_to(arriving.notes.get(&file.id).copied().unwrap_or(0));
                self.ranges.note_ingest(file.id, (&arriving.first, &arriving.last), arriving.seqno);
            }
        }
    }

    /// Takes the ingests out whose files `edit` names.
    pub(super) fn arrived(&mut self, edit: &ValueEdit) -> Vec<Arriving> {
        let is_named = |of: &mut Arriving| edit.added.iter().any(|meta| of.files.contains(&meta.id));
        if self.arriving.is_empty() { Vec::new() } else { self.arriving.extract_if(.., is_named).collect() }
    }
}
