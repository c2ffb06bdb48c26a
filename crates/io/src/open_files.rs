//! Which files are open for reading, within a limit.
//!
//! ```text
//! read ──▶ the file is open: it is marked as used                        one load, and a store if it was not marked
//!          └─ it is not ──▶ room is made (clock: a marked file gets another round) ──▶ opened ──▶ into the ring
//! write ──▶ the file counts, and stays open; readers' files make room
//! ```
//!
//! * At most `max` files are open, including those being written. Only if the latter alone are as many, more are
//!   open: they, and one that is read.
//! * A file that is closed while it is being read stays open until that read ends, so each read in progress may add
//!   one.
//! * A closed file is opened again by its name: code that removes or renames a file must know that nothing will read it
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
    /// For reading and writing.
    pub open: usize,
    /// Of these, for writing.
    pub written: usize,
    /// How many may be open, not counting those being written.
    pub max: usize,
    /// How often a file was opened again.
    pub reopened: u64,
}

/// The files that can be closed, in the order in which the hand passes them.
#[derive(Debug, Default)]
struct Ring {
    entries: Vec<Arc<Entry>>,
    hand: usize,
    /// Being opened now.
    opening: usize,
    /// Being written.
    writing: usize,
}

/// A file that may be open.
pub(crate) struct Entry {
    file: ArcSwapOption<Handle>,
    /// Read since the hand last passed.
    used: AtomicBool,
    /// Its index in the ring. Only changed by whoever has locked the ring.
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

    /// Whether files being written are more than half of those that may be open.
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
        // Another thread was faster: the file just opened is closed, after the ring is unlocked.
        if let Some(open) = entry.file.load_full() {
            drop(ring);
            return Ok(open);
        }
        entry.used.store(true, Relaxed);
        entry.file.store(Some(Arc::clone(&opened)));
        ring.add(entry);
        Ok(opened)
    }

    /// Like [`OpenFiles::open`], for a file that was open before.
    #[cold]
    pub fn reopen(&self, entry: &Arc<Entry>, open: impl FnOnce() -> Result<Handle>) -> Result<Arc<Handle>> {
        self.reopened.fetch_add(1, Relaxed);
        self.open(entry, open)
    }

    /// Reads the file through `file` until it is released. Its writer counts for it.
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

    /// Counts a file that is being written while the returned value lives.
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

    /// Removes files from the ring until at most `max` are open. The caller closes them by dropping the returned
    /// handles.
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

    /// The file, if it is open. It is not closed while the returned guard lives.
    #[inline]
    pub fn get(&self) -> Guard<Option<Arc<Handle>>> {
        let file = self.file.load();
        // Stored only if it is not set yet, so that readers of a busy file do not contend for its cache line.
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
