//! GC that asks the index which values of a file it still points at (HashKV §2.2; DiffKV §4.2, "GC for vLogs").
//!
//! ```text
//! sources ─▶ each value: does the index lead here? ─▶ copied ─▶ moves, each checked once more under the commit lock
//!                                                                └─▶ the sources are drained
//! ```

use std::sync::{Arc, Mutex};

use bifold_contract::{FileId, IoSource, Pointer, Result, SeqNo};
use bifold_format::value::ValueKind;

use super::{
    buffers::Held,
    scan::Scan,
    sync::LockExt,
    value_files::{COLLECTED, Copy, ValueFile, ValueFiles},
};
use crate::placement::{GcRun, IndexView, Moved, Moves};

/// Values copied out of a few files.
pub struct Relocation {
    files: Arc<ValueFiles>,
    /// The files that GC is copying, in all of this keyspace.
    busy: Arc<Mutex<Vec<FileId>>>,
    sources: Vec<FileId>,
    /// The busy files of this run: sources and copies.
    claimed: Vec<FileId>,
    moved: Vec<Moved>,
    /// The memory of the moves, keys included.
    held: Held,
    /// Bytes of the sources that were not copied.
    freed: u64,
    is_done: bool,
    then: Option<Box<dyn FnOnce() + Send>>,
}

impl Relocation {
    /// A run on these files. They and their copies are busy while it lives: another GC run would take copies that no
    /// move leads to yet for garbage. Nothing is copied yet.
    #[must_use]
    pub fn of(files: &Arc<ValueFiles>, busy: &Arc<Mutex<Vec<FileId>>>, sources: &[FileId]) -> Self {
        let mut taken = busy.hold();
        debug_assert!(sources.iter().all(|id| !taken.contains(id)), "collected by another: {sources:?} of {taken:?}");
        taken.extend(sources);
        drop(taken);
        Self {
            files: Arc::clone(files),
            busy: Arc::clone(busy),
            sources: sources.to_vec(),
            claimed: sources.to_vec(),
            moved: Vec::new(),
            held: files.buffers().hold(0, 0),
            freed: 0,
            is_done: false,
            then: None,
        }
    }

    /// Copies what the index points at, into files of about `file_bytes`. Returns the bytes of the sources, and how
    /// many of them were not copied.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn copy(&mut self, file_bytes: u64, view: &dyn IndexView) -> Result<(u64, u64)> {
        let mut outputs: Vec<Copy> = Vec::new();
        let mut read = 0;
        let sources: Vec<_> = self.sources.iter().filter_map(|&id| self.files.get(id)).collect();
        for source in sources {
            read += source.len();
            self.freed += source.len();
            self.copy_file(&source, &mut outputs, file_bytes, view)?;
        }
        self.files.finish_copies(outputs)?;
        Ok((read, self.freed))
    }

    fn copy_file(
        &mut self,
        source: &ValueFile,
        outputs: &mut Vec<Copy>,
        file_bytes: u64,
        view: &dyn IndexView,
    ) -> Result<()> {
        let mut scan = Scan::new(source, source.start(), source.len(), IoSource::Gc).within(self.files.buffers());
        while let Some((record, len)) = scan.sound()? {
            let from = Pointer { file: source.id, epoch: 0, offset: record.offset, len };
            if record.kind != ValueKind::Value || view.current(record.key)? != Some(from) {
                continue;
            }
            if outputs.last().is_none_or(|output| output.end() >= file_bytes) {
                let output = self.files.begin_copy(COLLECTED, 0)?;
                self.busy.hold().push(output.id());
                self.claimed.push(output.id());
                outputs.push(output);
            }
            let Some(output) = outputs.last_mut() else { continue };
            let to = output.append(&record)?;
            self.freed = self.freed.saturating_sub(u64::from(to.len));
            self.held.grow_by(size_of::<Moved>() + record.key.len());
            self.moved.push(Moved { key: record.key.into(), from, to });
        }
        Ok(())
    }

    /// Called when all moves are committed.
    #[must_use]
    pub fn then(mut self, act: impl FnOnce() + Send + 'static) -> Self {
        self.then = Some(Box::new(act));
        self
    }
}

impl GcRun for Relocation {
    fn advance(&mut self) -> Result<Option<Moves>> {
        if std::mem::replace(&mut self.is_done, true) {
            return Ok(None);
        }
        Ok(Some(Moves { moved: std::mem::take(&mut self.moved), check: true }))
    }

    fn refused(&mut self, moved: &Moved) {
        if let Some(output) = self.files.get(moved.to.file) {
            output.add_dead(u64::from(moved.to.len));
        }
    }

    fn committed(&mut self, last: SeqNo) {
        self.files.mark_drained(self.sources.iter().copied(), last);
        if let Some(act) = self.then.take() {
            act();
        }
    }

    fn freed(&self) -> u64 {
        self.freed
    }
}

impl Drop for Relocation {
    fn drop(&mut self) {
        self.busy.hold().retain(|id| !self.claimed.contains(id));
    }
}
