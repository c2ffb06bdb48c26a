//! A file for reading, opened when it is read.

use std::{
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use bifold_contract::{IoSource, Result};

use super::Dir;
use crate::{
    fs::{MappedRead, ReadFile},
    open_files::{Entry, Handle},
    remover::{BeingRemoved, Leaving},
};

/// A file for reading. Cheap to clone; clones share the open file. While nothing reads it, it may be closed to keep
/// within the directory's limit of open files; it is then opened again by its name.
#[derive(Clone, Debug)]
pub struct Reader {
    slot: Arc<SharedReader>,
    /// Serves reads that do not need the file to be open.
    mapped: Option<Arc<dyn MappedRead>>,
    len: u64,
}

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// From front to back, in large pieces: the system may read ahead.
    InOrder,
    /// By short reads anywhere. Whoever reads more of it in order announces that.
    Anywhere,
}

/// What all clones share.
#[derive(Debug)]
pub(super) struct SharedReader {
    dir: Dir,
    path: Arc<Path>,
    entry: Arc<Entry>,
    access: Access,
    /// Only those who have the file need it still.
    is_obsolete: AtomicBool,
    /// What counts the file's bytes while it is being removed.
    counts: OnceLock<(Arc<BeingRemoved>, u64)>,
}

impl Reader {
    /// Opens the file `path` with `open` now, and with [`FileSystem::open`](crate::FileSystem::open) later.
    pub(super) fn open(
        dir: &Dir,
        path: Arc<Path>,
        access: Access,
        open: impl FnOnce() -> Result<Handle>,
    ) -> Result<Self> {
        let entry = Entry::new();
        let file = dir.files.open(&entry, || open().inspect(|file| access.announce(&**file)))?;
        Self::new(SharedReader::new(dir, path, entry, access), &**file)
    }

    /// Reads through `file` until [`SharedReader::release`].
    pub(super) fn pinned(dir: &Dir, path: Arc<Path>, access: Access, file: Handle) -> Result<Self> {
        let entry = Entry::new();
        access.announce(&*file);
        dir.files.pin(&entry, Arc::clone(&file));
        Self::new(SharedReader::new(dir, path, entry, access), &*file)
    }

    fn new(slot: SharedReader, file: &dyn ReadFile) -> Result<Self> {
        Ok(Self { len: file.len()?, mapped: file.mapped(), slot: Arc::new(slot) })
    }

    pub(super) fn slot(&self) -> &Arc<SharedReader> {
        &self.slot
    }

    /// Fills `buffer` from `offset` on.
    ///
    /// # Errors
    /// The file system's, including those of opening the file; "unexpected end of file" when the file is too short.
    #[inline]
    pub fn read_at(&self, buffer: &mut [u8], offset: u64, source: IoSource) -> Result<()> {
        if self.mapped.as_ref().is_some_and(|mapped| mapped.read(buffer, offset)) {
            self.slot.dir.counters.count_read(source, buffer.len());
            return Ok(());
        }
        self.call_at(buffer, offset, source)
    }

    /// Fills `buffer` with the bytes from `offset` on by a call, even if they are mapped: where each page is read once,
    /// mapping it takes longer.
    ///
    /// # Errors
    /// As [`Reader::read_at`].
    pub fn call_at(&self, buffer: &mut [u8], offset: u64, source: IoSource) -> Result<()> {
        let SharedReader { dir, access, .. } = &*self.slot;
        let read = |file: &dyn ReadFile| match (dir.reads_directly, access) {
            (true, Access::Anywhere) => file.read_past_cache(buffer, offset),
            (true, Access::InOrder) => file.read_once(buffer, offset),
            (false, _) => file.read_at(buffer, offset),
        };
        self.slot.with(read)?;
        self.slot.dir.counters.count_read(source, buffer.len());
        Ok(())
    }

    /// Fills `buffer` with bytes that are read once, in order, by a call that leaves the system's cache as it was,
    /// where the system can do that: what others read stays there.
    ///
    /// # Errors
    /// As [`Reader::read_at`].
    pub fn read_once(&self, buffer: &mut [u8], offset: u64, source: IoSource) -> Result<()> {
        self.slot.with(|file| file.read_once(buffer, offset))?;
        self.slot.dir.counters.count_read(source, buffer.len());
        Ok(())
    }

    /// Whether the whole file is mapped and short reads go through its pages now, so that they need no system call.
    #[inline]
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.mapped.as_ref().is_some_and(|mapped| mapped.is_mapped(self.len))
    }

    /// Whether short reads are calls now: nothing is mapped, or much of what is read is not in memory.
    #[must_use]
    pub fn is_called(&self) -> bool {
        self.mapped.as_ref().is_none_or(|mapped| mapped.is_called())
    }

    /// Announces that `len` bytes from `offset` on will be read soon.
    pub fn prefetch(&self, offset: u64, len: u64) {
        if !self.mapped.as_ref().is_some_and(|mapped| mapped.prefetch(offset, len)) {
            // The read reports a file that cannot be opened.
            let _a_hint = self.slot.with(|file| {
                file.prefetch(offset, len);
                Ok(())
            });
        }
    }

    /// Prefetches into the processor's caches what is in memory of `len` bytes from `offset` on, if that needs no
    /// system call.
    pub fn touch(&self, offset: u64, len: u64) {
        if let Some(mapped) = &self.mapped {
            mapped.touch(offset, len);
        }
    }

    /// Whether a short read of `len` bytes from `offset` on needs no device access, as far as is known.
    #[must_use]
    pub fn is_in_memory(&self, offset: u64, len: u64) -> bool {
        let mapped = self.mapped.as_ref().and_then(|mapped| mapped.is_in_memory(offset, len));
        // The read reports a file that cannot be opened.
        mapped.unwrap_or_else(|| self.slot.with(|file| Ok(file.is_in_memory(offset))).unwrap_or(true))
    }

    /// Whether a window of a scan, `len` bytes from `offset` on, needs no device access. While all of them are in
    /// memory, only some are looked at.
    #[must_use]
    pub fn is_window_in_memory(&self, offset: u64, len: u64) -> bool {
        let mapped = self.mapped.as_ref().and_then(|mapped| mapped.is_window_in_memory(offset, len));
        mapped.unwrap_or_else(|| self.is_in_memory(offset, len))
    }

    /// Removes the file when the last clone is dropped, on the thread of [`Dir::remover`] if there is one. Until then
    /// it can be opened again. A failure is counted.
    pub fn remove_when_unused(&self) {
        self.slot.is_obsolete.store(true, Ordering::Release);
    }

    /// The same. Its `bytes` count as being removed from when nobody has it any more.
    pub fn remove_when_unused_counting(&self, being_removed: &Arc<BeingRemoved>, bytes: u64) {
        self.slot.counts.get_or_init(|| (Arc::clone(being_removed), bytes));
        self.remove_when_unused();
    }

    /// The file's length in bytes when it was first opened.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The file's length in bytes now: another process may have appended to it.
    ///
    /// # Errors
    /// The file system's.
    pub fn len_now(&self) -> Result<u64> {
        self.slot.with(|file| file.len())
    }

    /// Whether the file was empty when it was first opened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.slot.path
    }

    /// The file's path, shared.
    #[must_use]
    pub fn path_arc(&self) -> Arc<Path> {
        Arc::clone(&self.slot.path)
    }
}

impl Access {
    fn announce(self, file: &dyn ReadFile) {
        if self == Self::Anywhere {
            file.expect_short_reads();
        }
    }
}

impl SharedReader {
    fn new(dir: &Dir, path: Arc<Path>, entry: Arc<Entry>, access: Access) -> Self {
        let (is_obsolete, counts) = (AtomicBool::new(false), OnceLock::new());
        Self { dir: dir.clone(), path, entry, access, is_obsolete, counts }
    }

    /// Calls `act` with the file, opening it if needed.
    #[inline]
    fn with<T>(&self, act: impl FnOnce(&dyn ReadFile) -> Result<T>) -> Result<T> {
        match &*self.entry.get() {
            Some(file) => act(&***file),
            None => {
                let open = || self.dir.fs.open(&self.path).inspect(|file| self.access.announce(&**file));
                act(&**self.dir.files.reopen(&self.entry, open)?)
            }
        }
    }

    /// Reads through `file` from now on, until [`SharedReader::release`].
    pub(super) fn pin(&self, file: Handle) {
        self.access.announce(&*file);
        self.dir.files.pin(&self.entry, file);
    }

    /// Closes the file.
    pub(super) fn release(&self) {
        self.dir.files.release(&self.entry);
    }
}

impl Drop for SharedReader {
    fn drop(&mut self) {
        // The parent of a forked child may still read the file, and the thread that removes files is not here.
        if self.dir.is_in_child() {
            return;
        }
        if *self.is_obsolete.get_mut() {
            let (path, entry) = (Arc::clone(&self.path), Arc::clone(&self.entry));
            let counted = self.counts.get().map(|(of, bytes)| Leaving::new(of, *bytes));
            self.dir.remover.remove(Obsolete { dir: self.dir.clone(), path, entry, _counted: counted });
        } else {
            self.release();
        }
    }
}

impl Dir {
    /// Removes a file that nobody has opened as [`Dir::remove`] does, but on the thread that removes files, if there is
    /// one: what that takes is nothing for a caller that holds locks.
    pub fn remove_later(&self, name: &str) {
        let (dir, path, entry) = (self.clone(), self.file(name).into(), Entry::new());
        self.remover.remove(Obsolete { dir, path, entry, _counted: None });
    }
}

/// A file that nobody reads any more.
#[derive(Debug)]
pub(crate) struct Obsolete {
    dir: Dir,
    path: Arc<Path>,
    /// The open file, which has its mapping.
    entry: Arc<Entry>,
    _counted: Option<Leaving>,
}

impl Obsolete {
    /// Removes it. That it is closed afterwards frees the space, and takes the system longest.
    pub(crate) fn remove(self) {
        // A file that stays only takes space. The failure was counted, and recovery removes what the manifest does
        // not name.
        let _counted = self.dir.remove_path(&self.path);
        self.dir.files.release(&self.entry);
    }
}
