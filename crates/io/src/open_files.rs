//! Which files are open for reading: as many as there may be.
//!
//! ```text
//! read ──▶ the file is open: a mark that it was used                    one load, and a store if it had none
//!          └─ it is not ──▶ room is made (clock: a mark gives another round) ──▶ opened ──▶ into the ring
//! write ──▶ the file counts, and stays open; readers' files make room
//! ```
//!
//! * Open are at most `max` files, those being written included. Only when those alone are as many, there are more: they, and one
//!   that is read.
//! * A file that is closed while somebody reads it stays open until that read ends, so each read under way may add one.
//! * A closed file is opened again by its name: whoever removes or renames a file must know that nobody will read it
//!   ([`Reader::remove_when_unused`](crate::Reader::remove_when_unused)).

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use arc_swap::{ArcSwapOption, Guard};
use bifold_contract::Result;

use crate::fs::ReadFile;

/// An open file.
pub(crate) type Handle = Arc<dyn ReadFile>;

/// The place of an entry that is not in the ring.
const NOWHERE: usize = usize::MAX;

/// The open files of a directory.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    max: usize,
    ring: Mutex<Ring>,
    reopened: AtomicU64,
}

/// How many files are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFilesTotals {
    /// For reading and for writing.
    pub open: usize,
    /// For writing, of these.
    pub written: usize,
    /// How many there may be, but for those being written.
    pub max: usize,
    /// Times that one was opened again.
    pub reopened: u64,
}

/// Those that can be closed, in the order in which the hand passes them.
#[derive(Debug, Default)]
struct Ring {
    entries: Vec<Arc<Entry>>,
    hand: usize,
    /// Being opened just now.
    opening: usize,
    /// Being written.
    writing: usize,
}

/// A file that may be open.
pub(crate) struct Entry {
    file: ArcSwapOption<Handle>,
    /// Read since the hand has passed.
    used: AtomicBool,
    /// Where it stands in the ring. Changed by who holds the ring.
    place: AtomicUsize,
}

impl OpenFiles {
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, ring: Mutex::default(), reopened: AtomicU64::new(0) })
    }

    pub fn totals(&self) -> OpenFilesTotals {
        let ring = self.ring();
        OpenFilesTotals {
            open: ring.open(),
            written: ring.writing,
            max: self.max,
            reopened: self.reopened.load(Relaxed),
        }
    }

    /// Whether those being written are more than half of what may be open.
    pub fn is_crowded_by_writers(&self) -> bool {
        self.ring().writing > self.max / 2
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a file that was not open before.
    pub fn open(&self, entry: &Arc<Entry>, open: impl FnOnce() -> Result<Handle>) -> Result<Arc<Handle>> {
        let mut ring = self.ring();
        ring.opening += 1;
        let closed = ring.make_room(self.max);
        drop(ring);
        drop(closed);
        let opened = open();
        let mut ring = self.ring();
        ring.opening -= 1;
        let opened = Arc::new(opened?);
        // Somebody else was faster: the one just opened is closed, after the ring is let go of.
        if let Some(open) = entry.file.load_full() {
            drop(ring);
            return Ok(open);
        }
        entry.used.store(true, Relaxed);
        entry.file.store(Some(Arc::clone(&opened)));
        ring.add(entry);
        Ok(opened)
    }

    /// As [`OpenFiles::open`], of a file that was open before.
    #[cold]
    pub fn reopen(&self, entry: &Arc<Entry>, open: impl FnOnce() -> Result<Handle>) -> Result<Arc<Handle>> {
        self.reopened.fetch_add(1, Relaxed);
        self.open(entry, open)
    }

    /// The file is read through `file` until it is released. That counts with who writes it.
    pub fn pin(&self, entry: &Entry, file: Handle) {
        let mut ring = self.ring();
        ring.take_out(entry);
        let before = entry.file.swap(Some(Arc::new(file)));
        drop(ring);
        drop(before);
    }

    /// Closes the file.
    pub fn release(&self, entry: &Entry) {
        let mut ring = self.ring();
        ring.take_out(entry);
        let closed = entry.file.swap(None);
        drop(ring);
        drop(closed);
    }

    /// Counts a file that is being written, as long as what is returned lives.
    pub fn write(self: &Arc<Self>) -> Written {
        let mut ring = self.ring();
        ring.writing += 1;
        let closed = ring.make_room(self.max);
        drop(ring);
        drop(closed);
        Written { files: Arc::clone(self) }
    }
}

/// See [`OpenFiles::write`].
#[derive(Debug)]
pub(crate) struct Written {
    files: Arc<OpenFiles>,
}

impl Drop for Written {
    fn drop(&mut self) {
        self.files.ring().writing -= 1;
    }
}

impl Ring {
    fn open(&self) -> usize {
        self.entries.len() + self.opening + self.writing
    }

    fn add(&mut self, entry: &Arc<Entry>) {
        entry.place.store(self.entries.len(), Relaxed);
        self.entries.push(Arc::clone(entry));
    }

    fn take_out(&mut self, entry: &Entry) {
        let place = entry.place.swap(NOWHERE, Relaxed);
        if place == NOWHERE {
            return;
        }
        self.entries.swap_remove(place);
        if let Some(moved) = self.entries.get(place) {
            moved.place.store(place, Relaxed);
        }
    }

    /// Takes files out until there are `max`; the caller closes them by letting go of what is returned.
    fn make_room(&mut self, max: usize) -> Vec<Arc<Handle>> {
        let mut closed = Vec::new();
        while self.open() > max && !self.entries.is_empty() {
            self.hand = if self.hand < self.entries.len() { self.hand } else { 0 };
            let entry = Arc::clone(&self.entries[self.hand]);
            if entry.used.swap(false, Relaxed) {
                self.hand += 1;
            } else {
                self.take_out(&entry);
                closed.extend(entry.file.swap(None));
            }
        }
        closed
    }
}

impl Entry {
    /// A file that is not open.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { file: ArcSwapOption::empty(), used: AtomicBool::new(false), place: AtomicUsize::new(NOWHERE) })
    }

    /// The file, if it is open. It is not closed as long as the answer lives.
    #[inline]
    pub fn get(&self) -> Guard<Option<Arc<Handle>>> {
        let file = self.file.load();
        // Only looked at where it is set already, so that readers of a much used file do not take its line from each other.
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
        file
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Entry").field(&self.file.load().as_deref()).finish()
    }
}

#[cfg(test)]
mod tests;
