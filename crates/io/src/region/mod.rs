//! The append region: many small appends to many files, without a system call for each.
//!
//! ```text
//! append ──▶ copied into a slot of APPENDS, a mapped file                 0.1 µs per KiB and a checksum
//!            ├─ slot full ──▶ a thread writes it to the file, 0.3 µs per KiB; appends go to another slot
//!            └─ sync, or the file is closed ──▶ what is in its slots is written now
//!
//! open  ──▶ what a killed process has left in slots is written to its files, then APPENDS is removed
//! ```
//!
//! The promise is that of plain appends ([`crate::fs`]). **A killed process** loses nothing: the system owns the
//! mapped pages, as it owns the pages of a written file. **A power loss** may take any part of what was not synced,
//! from the files and from `APPENDS`; an append counts only if its checksum, seeded with its place, holds. **A full
//! disk** is found when a slot is written out, at the latest by a sync. The bytes then stay in `APPENDS`, whose space
//! was reserved, and a later attempt or the next opening writes them, unless their file is removed. **A store that
//! fails** (`guard.rs`) ends the region: every file is written out and continues with plain appends. Where `APPENDS`
//! must not be mapped (`disk.rs`), all appends are plain.
//!
//! All of this runs on a `Ground`: real files, or those of the simulated disk.
//!
//! Costs measured against plain appends are in `docs/decisions/0005-append-region.md`.

mod budget;
mod calls;
mod disk;
#[cfg(test)]
mod fault_tests;
mod followed;
mod ground;
mod guard;
mod mapped;
mod pages;
mod recovery;
mod residency;
mod simulated;
mod slots;
mod staged;
#[cfg(test)]
mod tests;
mod writer;

use std::{
    collections::{BTreeMap, HashMap},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use bifold_contract::{Error, Result, planted};

use self::{
    budget::MappedBudget,
    followed::{Follows, Seen},
    ground::{Ground, GroundFile},
    pages::Pages,
    residency::Known,
    slots::{Left, Slot, Slots, Taking},
    staged::{StagedFile, StagedWriter},
    writer::SlotWriter,
};
pub(crate) use self::{disk::Disk, simulated::Simulated};
use crate::Opener;
use crate::fs::{AppendRegion, Appended, Appending, CatchUp, DirLock, DirUse, FileLock, FileSystem};

/// A file system with an append region for one directory.
#[derive(Debug)]
pub(crate) struct RegionFs<G: Ground> {
    region: Arc<Region<G>>,
}

/// Which files have staged appends.
#[derive(Debug)]
pub(super) struct Region<G: Ground> {
    ground: G,
    dir: PathBuf,
    how: Appending,
    /// The process that opened it.
    opener: Opener,
    /// Created by the first append; `None` where the system does not support it.
    slots: OnceLock<Option<Arc<Slots<G>>>>,
    files: Mutex<BTreeMap<PathBuf, Weak<StagedFile<G>>>>,
    /// Writes full slots.
    writer: SlotWriter<G>,
    /// Closed files that could not be written out completely: they are read through their slots.
    unwritten: Mutex<Vec<Arc<StagedFile<G>>>>,
    /// The pages of files that are read through their mapping, open or not.
    pages: Mutex<HashMap<PathBuf, Weak<Pages>>>,
    /// Whether what is read is in memory.
    known: Known,
    /// How many bytes may be mapped and read.
    budget: Arc<MappedBudget>,
    /// What a killed process has left, when nothing may be written.
    left: HashMap<PathBuf, Arc<Left>>,
    /// What a writing process has in slots, as last seen, if the directory is followed.
    seen: Option<Seen>,
    /// Whether a file `APPENDS` was removed that a power loss may bring back.
    may_come_back: AtomicBool,
}

impl<G: Ground> RegionFs<G> {
    /// Takes over the directory `dir`, which the caller has locked. The region ends with the lock.
    ///
    /// # Errors
    /// I/O errors.
    pub fn open(ground: G, dir: &Path, lock: DirLock, how: Appending) -> Result<AppendRegion> {
        let mut region = Region {
            ground,
            dir: dir.into(),
            how,
            opener: Opener::this(),
            slots: OnceLock::new(),
            files: Mutex::default(),
            writer: SlotWriter::default(),
            unwritten: Mutex::default(),
            pages: Mutex::default(),
            known: Known::default(),
            budget: Arc::new(MappedBudget::new(how.mapped_bytes_max)),
            left: HashMap::new(),
            seen: None,
            may_come_back: AtomicBool::new(false),
        };
        if lock.used == DirUse::Follow {
            return Self::follow(region, lock.lock);
        }
        let image = region.image()?;
        let parsed = image.as_deref().map_or(Ok(Vec::new()), slots::parse);
        let left = parsed.map_err(|damage| damage.of(region.path()))?;
        if lock.used == DirUse::Read {
            for left in left {
                if region.is_continued(&left)? {
                    region.left.insert(dir.join(&left.name), Arc::new(left));
                }
            }
        } else if let Some(image) = image {
            if !planted!("skip_region") {
                region.put_all_back(&left, image.len())?;
            }
            region.remove_file()?;
        }
        let region = Arc::new(region);
        Ok(AppendRegion {
            fs: Some(Arc::new(Self { region: Arc::clone(&region) })),
            lock: Box::new(RegionLock { region, _released_last: lock.lock }),
            catch_up: None,
        })
    }

    fn follow(mut region: Region<G>, lock: Box<dyn FileLock>) -> Result<AppendRegion> {
        region.seen = Some(Seen::default());
        let region = Arc::new(region);
        let follows = Follows(Arc::clone(&region));
        follows.catch_up()?;
        Ok(AppendRegion { fs: Some(Arc::new(Self { region })), lock, catch_up: Some(Arc::new(follows)) })
    }
}

impl<G: Ground> Region<G> {
    fn files(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Weak<StagedFile<G>>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn staged(&self, path: &Path) -> Option<Arc<StagedFile<G>>> {
        self.files().get(path).and_then(Weak::upgrade)
    }

    fn all_pages(&self) -> MutexGuard<'_, HashMap<PathBuf, Weak<Pages>>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pages of a file of `len` bytes, shared by everyone who opens it or has read it before.
    fn pages(&self, path: &Path, len: u64) -> Arc<Pages> {
        let mut all = self.all_pages();
        if let Some(pages) = all.get(path).and_then(Weak::upgrade) {
            pages.set_written(len);
            return pages;
        }
        // Only when the map is about to grow, so that it costs little.
        if all.len() == all.capacity() {
            all.retain(|_, pages| pages.strong_count() > 0);
        }
        let pages = Pages::new(len, self.how.reads, &self.known, &self.budget);
        all.insert(path.into(), Arc::downgrade(&pages));
        pages
    }

    pub(super) fn take(&self, holder: &Arc<StagedFile<G>>, path: &Path, base: u64, from: Taking) -> Option<Slot<G>> {
        let slots = self.slots.get_or_init(|| self.make_slots()).as_ref()?;
        slots.take(holder, (path.file_name()?.to_str()?, base), from)
    }

    /// Whether this is a forked child: it has nothing to write, and threads that it does not have may have held locks.
    pub(super) fn is_in_child(&self) -> bool {
        self.opener.is_another()
    }

    /// A full slot of a file is to be written.
    pub(super) fn has_full_slot(&self, file: &Arc<StagedFile<G>>) {
        self.writer.write(file, self.ground.writes_full_slots());
    }

    fn make_slots(&self) -> Option<Arc<Slots<G>>> {
        let slots_max = self.how.files_max;
        if slots_max == 0 {
            return None;
        }
        let map = self.ground.map(&self.path(), slots::mapped_bytes(slots_max))?;
        Some(Slots::new(map, slots_max))
    }

    /// Keeps a closed file as long as the region lasts.
    pub(super) fn keep_unwritten(&self, file: &Arc<StagedFile<G>>) {
        let mut all = self.unwritten.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.iter().any(|other| Arc::ptr_eq(other, file)) {
            all.push(Arc::clone(file));
        }
    }

    /// A file has been removed. What could not be written to it keeps no slots any more, and does not keep the file
    /// open, with the space of all that could.
    pub(super) fn forget_removed(&self, path: &Path) {
        if planted!("removed_files_keep_slots") {
            return;
        }
        let mut all = self.unwritten.lock().unwrap_or_else(PoisonError::into_inner);
        let removed: Vec<_> = all.extract_if(.., |file| file.is_at(path)).collect();
        drop(all);
        removed.iter().for_each(|file| file.forget_staged());
    }

    /// The same, if it was removed before it was closed.
    pub(super) fn forget_if_removed(&self, path: &Path) {
        if matches!(self.ground.fs().len(path), Ok(None)) {
            self.forget_removed(path);
        }
    }

    /// Makes sure that nothing written out so far is put back once more, now or after a power loss. The caller
    /// truncates a file, so other bytes will follow there.
    pub(super) fn forget_written(&self) -> io::Result<()> {
        if planted!("remember_cut_appends") {
            return Ok(());
        }
        if self.may_come_back.load(Ordering::Acquire) {
            self.ground.fs().sync_dir(&self.dir).map_err(io::Error::other)?;
            self.may_come_back.store(false, Ordering::Release);
        }
        let slots = self.slots.get().and_then(Option::as_ref);
        if slots.map_or(Ok(true), |slots| slots.forget_written())? {
            return Ok(());
        }
        Err(io::Error::other("appends staged in APPENDS cannot be cleared: reopen the database"))
    }
}

/// The lock of a directory with an append region. When it ends, every file holds what was appended to it. Readers
/// continue to work.
#[derive(Debug)]
struct RegionLock<G: Ground> {
    region: Arc<Region<G>>,
    _released_last: Box<dyn FileLock>,
}

impl<G: Ground> FileLock for RegionLock<G> {}

impl<G: Ground> Drop for RegionLock<G> {
    fn drop(&mut self) {
        if self.region.is_in_child() {
            return;
        }
        let files = std::mem::take(&mut *self.region.files());
        files.values().filter_map(Weak::upgrade).for_each(|file| file.close());
        self.region.writer.end();
        let slots = self.region.slots.get_or_init(|| None);
        if slots.as_ref().is_some_and(|slots| !slots.any_left()) {
            let _removed_by_the_next_opening = self.region.remove_file();
        }
        self.region.unwritten.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl<G: Ground> RegionFs<G> {
    fn fs(&self) -> &dyn FileSystem {
        self.region.ground.fs()
    }

    fn appended(&self, op: &'static str, path: &Path, open: impl FnOnce() -> Result<G::File>) -> Result<Appended> {
        let mut files = self.region.files();
        files.retain(|_, file| file.strong_count() > 0);
        if let Some(before) = files.get(path).and_then(Weak::upgrade) {
            // A closed file is only read, but what could not be written before must be written first.
            if !before.is_closed() {
                return Err(Error::io(op, path, io::Error::other("it is being appended to already")));
            }
            before.write_out()?;
        }
        let file = open()?;
        let len = file.len().map_err(|e| Error::io(op, path, e))?;
        let pages = self.region.pages(path, len);
        let staged = StagedFile::new(file, path.into(), pages, Arc::clone(&self.region));
        files.insert(path.into(), Arc::downgrade(&staged));
        Ok(Appended { writer: Arc::new(StagedWriter(Arc::clone(&staged))), reader: staged })
    }
}
