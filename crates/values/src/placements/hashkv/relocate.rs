//! GC of some files of the cold log (HashKV §3.4: "GC on the cold data log as in vLog").
//!
//! ```text
//! a file ─▶ each value: does the index lead here? ─▶ copy it to a file of survivors
//! a few at a time: commit the moves that the index still agrees to ─▶ for each, a new tag in the group of its key
//! when all have new tags: the files are drained
//! ```
//!
//! The tags are appended before the old files are drained, so the sync that allows these to be reclaimed makes the
//! tags durable. No reader misses a tag lost in a crash; the log only does not learn when its value dies.

use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{Arc, Mutex},
};

use bifold_contract::{FileId, IoSource, Pointer, Result, SeqNo, planted};
use bifold_format::value::ValueKind;

use super::{State, What, cold_log::End};
use crate::{
    parts::{
        scan::Scan,
        sync::LockExt,
        value_files::{ValueFile, ValueFiles},
    },
    placement::{GcRun, IndexView, Moved, Moves},
    placements::ValueOptions,
};

/// Moves that are committed, and tagged, before others get the commit lock: less than half a millisecond of tags.
const MOVES_AT_ONCE: usize = 256;

/// A GC run on files of the cold log.
pub(super) struct Relocation {
    files: Arc<ValueFiles>,
    state: Arc<Mutex<State>>,
    options: ValueOptions,
    sources: Vec<Arc<ValueFile>>,
    copied: Vec<(SeqNo, Moved)>,
    /// The moves handed out last, and the positions of those that were refused.
    handed: Range<usize>,
    refused: BTreeSet<(FileId, u64)>,
    /// All moves are handed out, committed and tagged.
    done: bool,
    freed: u64,
}

impl Relocation {
    /// A run on those of these files that GC does not have already. Nothing is copied yet.
    pub fn begin(
        files: &Arc<ValueFiles>,
        state: &Arc<Mutex<State>>,
        options: &ValueOptions,
        sources: &BTreeSet<FileId>,
    ) -> Self {
        let sources = state.hold().cold_log.take(sources);
        Self {
            files: Arc::clone(files),
            state: Arc::clone(state),
            options: *options,
            sources,
            copied: Vec::new(),
            handed: 0..0,
            refused: BTreeSet::new(),
            done: false,
            freed: 0,
        }
    }

    /// Copies what the index says is live.
    pub fn copy(&mut self, view: &dyn IndexView) -> Result<()> {
        // Survivors do not share files with what is new to the log: they die more rarely.
        let mut end = End::of_new_files(self.options.file_bytes);
        for source in self.sources.clone() {
            self.copy_file(&source, view, &mut end)?;
        }
        let (copies, _no_head) = end.into_parts();
        match self.files.finish_copies(copies)? {
            Some(files) => {
                let state = &mut *self.state.hold();
                state.cold_log.add(files, state.groups.clock);
            }
            None => self.done = true,
        }
        Ok(())
    }

    fn copy_file(&mut self, source: &Arc<ValueFile>, view: &dyn IndexView, end: &mut End) -> Result<()> {
        self.freed += source.len();
        let mut scan = Scan::new(source, source.start(), source.len(), IoSource::Gc);
        while let Some((record, len)) = scan.sound()? {
            let from = Pointer { file: source.id, epoch: 0, offset: record.offset, len };
            if record.kind != ValueKind::Value || view.current(record.key)? != Some(from) {
                continue;
            }
            let to = end.append(&self.files, &record)?;
            self.freed = self.freed.saturating_sub(u64::from(to.len));
            self.copied.push((record.seqno, Moved { key: record.key.into(), from, to }));
        }
        Ok(())
    }

    /// Appends a tag for each committed move to the group of its key.
    fn tag_committed(&mut self) -> Result<()> {
        let state = &mut *self.state.hold();
        for (seqno, moved) in &self.copied[std::mem::take(&mut self.handed)] {
            if !self.refused.contains(&(moved.to.file, moved.to.offset)) {
                state.append((&self.files, &self.options), &moved.key, *seqno, What::Tag(moved.to))?;
            }
        }
        self.refused.clear();
        Ok(())
    }
}

impl GcRun for Relocation {
    fn advance(&mut self) -> Result<Option<Moves>> {
        if self.done {
            return Ok(None);
        }
        let next = self.handed.end;
        self.tag_committed()?;
        self.handed = next..self.copied.len().min(next + MOVES_AT_ONCE);
        self.done = self.handed.is_empty();
        let moved = self.copied[self.handed.clone()].iter().map(|(_, moved)| moved.clone()).collect();
        Ok(Some(Moves { moved, check: !planted!("log_moves_unasked") }))
    }

    fn refused(&mut self, moved: &Moved) {
        // It has no tag that could report its death.
        self.state.hold().cold_log.note_dead(moved.to.file, u64::from(moved.to.len));
        self.refused.insert((moved.to.file, moved.to.offset));
    }

    fn committed(&mut self, last: SeqNo) {
        if self.done {
            self.files.mark_drained(self.sources.iter().map(|source| source.id), last);
            self.state.hold().cold_log.remove(&self.sources);
        }
    }

    fn freed(&self) -> u64 {
        self.freed
    }
}

impl Drop for Relocation {
    fn drop(&mut self) {
        self.state.hold().cold_log.give_back(&self.sources);
    }
}
