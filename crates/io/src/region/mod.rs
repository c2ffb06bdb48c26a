//! The append region: many small appends to many files, without a system call for each.
//!
//! ```text
//! append ──▶ copied into the file's slot of APPENDS, a mapped file        0.1 µs per KiB and a checksum
//!            └─ slot full, sync, or the file is closed ──▶ one write to the file itself, 0.3 µs per KiB
//!
//! open  ──▶ what a killed process has left in slots is written to its files, then APPENDS is removed
//! ```
//!
//! The promise is that of plain appends ([`crate::fs`]). **A killed process** loses nothing: the mapped pages are the
//! system's, as the pages of a written file are. **A power loss** may take any part of what was not synced, from the
//! files and from `APPENDS`; an append counts only if its checksum, seeded with its place, holds. **A full disk** is
//! met when a slot is written out, at the latest by a sync: the bytes then stay in `APPENDS`, whose space was taken
//! beforehand, and a later try, or the next opening, writes them. **A store that fails** (`guard.rs`) ends the region:
//! every file is written out and goes on with plain appends, which are also all there is where `APPENDS` is not to be
//! mapped (`disk.rs`).
//!
//! All of this stands on a `Ground`: real files, or those of the simulated disk.
//!
//! Costs measured beside plain appends are in `docs/decisions/0005-append-region.md`.

mod disk;
#[cfg(test)]
mod fault_tests;
mod ground;
mod guard;
mod mapped;
mod pages;
mod simulated;
mod slots;
mod staged;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use bifold_contract::{Error, Result, planted};

pub(crate) use self::{disk::Disk, simulated::Simulated};
use self::{
    ground::{Ground, GroundFile},
    pages::Pages,
    slots::{Left, SLOT_BYTES, Slot, Slots},
    staged::{StagedFile, StagedWriter},
};
use crate::{
    disk::DiskFile,
    fs::{
        APPENDS_NAME, AppendRegion, Appended, Appending, DirLock, FileLock, FileSystem, LockMode, MappedRead, PathKind,
        ReadFile, WriteFile,
    },
    own::own,
};

/// A file system with an append region for one directory.
#[derive(Debug)]
pub(crate) struct RegionFs<G: Ground> {
    region: Arc<Region<G>>,
}

/// What a disk writes whole or not at all.
const SECTOR_BYTES: u64 = 512;

/// So many bytes at the end of what was appended are not all zeros.
const END_BYTES: usize = 8;

/// Which files have something staged.
#[derive(Debug)]
pub(super) struct Region<G: Ground> {
    ground: G,
    dir: PathBuf,
    how: Appending,
    /// Made by the first append; `None` where the system cannot do it.
    slots: OnceLock<Option<Arc<Slots<G>>>>,
    files: Mutex<BTreeMap<PathBuf, Weak<StagedFile<G>>>>,
    /// Closed files of which something could not be written: they are read through their slots.
    unwritten: Mutex<Vec<Arc<StagedFile<G>>>>,
    /// Of files that are read through their mapping, open or not.
    pages: Mutex<HashMap<PathBuf, Weak<Pages>>>,
    /// What a killed process has left, when nothing may be written.
    left: HashMap<PathBuf, Arc<Left>>,
    /// Whether a file `APPENDS` was removed whose name a power loss may bring back.
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
            slots: OnceLock::new(),
            files: Mutex::default(),
            unwritten: Mutex::default(),
            pages: Mutex::default(),
            left: HashMap::new(),
            may_come_back: AtomicBool::new(false),
        };
        let image = region.image()?;
        let parsed = image.as_deref().map_or(Ok(Vec::new()), slots::parse);
        let left = parsed.map_err(|damage| damage.of(region.path()))?;
        if lock.mode == LockMode::Shared {
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
        })
    }
}

/// Taking over what a killed process has left.
impl<G: Ground> Region<G> {
    fn path(&self) -> PathBuf {
        self.dir.join(APPENDS_NAME)
    }

    /// What stands in the file, if there is one.
    fn image(&self) -> Result<Option<Vec<u8>>> {
        let (path, fs) = (self.path(), self.ground.fs());
        let Some(len) = fs.len(&path)? else { return Ok(None) };
        let mut image =
            vec![0; usize::try_from(len).map_err(|_| Error::io("read", &path, ErrorKind::OutOfMemory.into()))?];
        fs.open(&path)?.read_at(&mut image, 0)?;
        Ok(Some(image))
    }

    /// Writes everything to its file. A disk that is full gets the space of the slots that hold nothing, one of which
    /// there always is; and then that of each slot that was written out.
    fn put_all_back(&self, all: &[Left], image_bytes: usize) -> Result<()> {
        let put_all = || all.iter().try_for_each(|left| self.put_back(left));
        let full = match put_all() {
            Err(error) if error.is_full() => error,
            other => return other,
        };
        if self.ground.fs().is_shared(&self.path())? {
            // Whoever knows it by another name needs all of it.
            return Err(full);
        }
        let give_back = |slot: usize| {
            let offset = (slot * SLOT_BYTES) as u64;
            self.ground.give_back(&self.path(), offset, SLOT_BYTES as u64)
        };
        let is_free = |slot: &usize| all.iter().all(|left| left.slot != *slot);
        let freed = (0..image_bytes / SLOT_BYTES).filter(is_free).try_for_each(give_back);
        freed.map_err(|_| full)?;
        all.iter().try_for_each(|left| {
            self.put_back(left)?;
            // What was put back is safe from a kill in its file.
            give_back(left.slot).map_err(|e| Error::io("give back space of", self.path(), e))
        })
    }

    /// Writes what a slot has held to its file, if that file is there and reaches that far: else its last writes are
    /// lost, and what came after them with them.
    fn put_back(&self, left: &Left) -> Result<()> {
        let path = self.dir.join(&left.name);
        let file = match self.ground.open(&path) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        let append_to = |e| Error::io("append to", &path, e);
        let read = |buffer: &mut [u8], at| file.read_exact_at(buffer, at);
        let len = file.len().map_err(append_to)?;
        if !follows(len, left.base, read).map_err(append_to)? {
            return Ok(());
        }
        let file = if own(self.ground.fs(), &path, u64::MAX)? { self.ground.open(&path)? } else { file };
        let read = |buffer: &mut [u8], at| file.read_exact_at(buffer, at);
        let is_partly_there = is_partly_there(&left.bytes, left.base, len, read).map_err(append_to)?;
        if is_partly_there {
            self.make_durable()?;
        }
        file.write_all_at(&left.bytes, left.base).map_err(append_to)?;
        if is_partly_there { file.sync().map_err(append_to) } else { Ok(()) }
    }

    /// What a power loss now takes from the files is put back once more.
    fn make_durable(&self) -> Result<()> {
        let path = self.path();
        self.ground.open(&path)?.sync().map_err(|e| Error::io("sync", &path, e))?;
        self.ground.fs().sync_dir(&self.dir)
    }

    /// Whether what a slot has held goes on where its file ends. Only looks.
    fn is_continued(&self, left: &Left) -> Result<bool> {
        let path = self.dir.join(&left.name);
        let Some(len) = self.ground.fs().len(&path)? else { return Ok(false) };
        let file = self.ground.fs().open(&path)?;
        follows(len, left.base, |buffer: &mut [u8], at| file.read_at(buffer, at))
    }

    fn remove_file(&self) -> Result<()> {
        match self.ground.fs().remove(&self.path()) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(()),
            other => other.map(|()| self.may_come_back.store(true, Ordering::Release)),
        }
    }
}

/// Whether a file of `len` bytes has some of `bytes` at `base`, but not as they are: a power loss has cut the file within a record. A
/// sector with a part of a record that is lost when the rest is appended looks damaged, not torn.
fn is_partly_there<E>(
    bytes: &[u8],
    base: u64,
    len: u64,
    read: impl FnOnce(&mut [u8], u64) -> std::result::Result<(), E>,
) -> std::result::Result<bool, E> {
    let mut there = vec![0; usize::try_from(len.saturating_sub(base)).map_or(bytes.len(), |len| len.min(bytes.len()))];
    read(&mut there, base)?;
    Ok(!planted!("append_to_a_torn_sector") && !there.is_empty() && there != bytes)
}

/// Whether a file holds what stands right before `base`. A power loss may have taken the sector it is in: it reads as zeros up to
/// there then, and what was appended next would hide that. Whatever is appended has other bytes than zeros at its end: records
/// end with a constant, file headers with a checksum.
fn follows<E>(
    len: u64,
    base: u64,
    read: impl FnOnce(&mut [u8], u64) -> std::result::Result<(), E>,
) -> std::result::Result<bool, E> {
    if len < base {
        return Ok(false);
    }
    let mut before = [0; END_BYTES];
    let end = usize::try_from(base % SECTOR_BYTES).map_or(END_BYTES, |in_sector| in_sector.min(END_BYTES));
    read(&mut before[..end], base - end as u64)?;
    Ok(end == 0 || before.iter().any(|&byte| byte != 0) || planted!("hide_lost_sector"))
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

    /// The pages of a file that has `len` bytes, for whoever opens it and for who has read it before.
    fn pages(&self, path: &Path, len: u64) -> Arc<Pages> {
        let mut all = self.all_pages();
        if let Some(pages) = all.get(path).and_then(Weak::upgrade) {
            pages.set_written(len);
            return pages;
        }
        // Now and then, so that it costs little: when as many have come as there are.
        if all.len() == all.capacity() {
            all.retain(|_, pages| pages.strong_count() > 0);
        }
        let pages = Arc::new(Pages::new(len, self.how.reads));
        all.insert(path.into(), Arc::downgrade(&pages));
        pages
    }

    pub(super) fn take(&self, holder: &Arc<StagedFile<G>>, path: &Path, base: u64) -> Option<Slot<G>> {
        self.slots.get_or_init(|| self.make_slots()).as_ref()?.take(holder, path.file_name()?.to_str()?, base)
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

    /// Makes sure that nothing that was written out so far is put back once more, now or after a power loss: whoever
    /// calls cuts a file, so that other bytes will stand there.
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
        Err(io::Error::other(
            "what was staged for a file in APPENDS cannot be cleared: the database must be opened again",
        ))
    }
}

/// The lock of a directory with an append region: when it ends, every file holds what was appended to it. Whoever still
/// reads goes on reading.
#[derive(Debug)]
struct RegionLock<G: Ground> {
    region: Arc<Region<G>>,
    _released_last: Box<dyn FileLock>,
}

impl<G: Ground> FileLock for RegionLock<G> {}

impl<G: Ground> Drop for RegionLock<G> {
    fn drop(&mut self) {
        let files = std::mem::take(&mut *self.region.files());
        files.values().filter_map(Weak::upgrade).for_each(|file| file.close());
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
            // One that is closed is only read; but what could not be written then must be, first.
            if !before.is_closed() {
                return Err(Error::io(op, path, io::Error::other("it is being appended to already")));
            }
            before.settle()?;
        }
        let file = open()?;
        let len = file.len().map_err(|e| Error::io(op, path, e))?;
        let pages = self.region.pages(path, len);
        let staged = StagedFile::new(file, path.into(), pages, Arc::clone(&self.region));
        files.insert(path.into(), Arc::downgrade(&staged));
        Ok(Appended { writer: Arc::new(StagedWriter(Arc::clone(&staged))), reader: staged })
    }
}

impl<G: Ground> FileSystem for RegionFs<G> {
    fn create(&self, path: &Path) -> Result<Arc<dyn WriteFile>> {
        self.fs().create(path)
    }

    fn open_append(&self, path: &Path) -> Result<Arc<dyn WriteFile>> {
        self.fs().open_append(path)
    }

    fn create_appended(&self, path: &Path) -> Result<Appended> {
        self.appended("create", path, || self.region.ground.create(path))
    }

    fn open_appended(&self, path: &Path) -> Result<Appended> {
        self.appended("open", path, || self.region.ground.open(path))
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn ReadFile>> {
        if let Some(left) = self.region.left.get(path) {
            let file = self.fs().open(path)?;
            // As at a taking over: what does not reach that far has lost its last writes, and these with them.
            let reaches = file.len()? >= left.base;
            return Ok(if reaches { Arc::new(FileAndLeft { file, left: Arc::clone(left) }) } else { file });
        }
        match self.region.staged(path) {
            Some(staged) => Ok(staged),
            None => self.fs().open(path),
        }
    }

    fn open_mapped(&self, path: &Path) -> Result<Arc<dyn ReadFile>> {
        if self.region.left.contains_key(path) || self.region.staged(path).is_some() {
            return self.open(path);
        }
        let Some(file) = self.region.ground.open_mapped(path)? else { return self.open(path) };
        let len = file.metadata().map_err(|e| Error::io("open", path, e))?.len();
        let pages = self.region.pages(path, len);
        pages.map(&file);
        Ok(Arc::new(MappedFile { file: DiskFile { file, path: path.into() }, pages }))
    }

    fn open_files_max(&self) -> Option<usize> {
        self.fs().open_files_max()
    }

    fn truncate(&self, path: &Path, len: u64) -> Result<()> {
        if let Some(staged) = self.region.staged(path) {
            return staged.truncate(len);
        }
        if let Some(pages) = self.region.all_pages().get(path).and_then(Weak::upgrade) {
            pages.set_written(len.min(pages.written()));
        }
        self.region.forget_written().map_err(|e| Error::io("truncate", path, e))?;
        self.fs().truncate(path, len)
    }

    fn write_again(&self, path: &Path, from: u64) -> Result<()> {
        self.region.staged(path).map_or(Ok(()), |staged| staged.settle())?;
        self.fs().write_again(path, from)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.fs().rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.fs().remove(path)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        if self.region.left.contains_key(from) {
            // Part of it stands in `APPENDS`, which stays as it is: the file alone is not what it is read as.
            return Err(Error::io("link", to, ErrorKind::Unsupported.into()));
        }
        self.region.staged(from).map_or(Ok(()), |staged| staged.settle())?;
        self.fs().link(from, to)
    }

    fn list(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        self.fs().list(dir)
    }

    fn len(&self, path: &Path) -> Result<Option<u64>> {
        let Some(in_file) = self.fs().len(path)? else { return Ok(None) };
        let left = self.region.left.get(path).filter(|left| left.base <= in_file);
        let left = left.map(|left| left.base + left.bytes.len() as u64);
        let staged = self.region.staged(path).map(|staged| staged.total());
        Ok(Some(in_file.max(left.or(staged).unwrap_or(0))))
    }

    fn is_shared(&self, path: &Path) -> Result<bool> {
        self.fs().is_shared(path)
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.fs().create_dir_all(dir)
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.fs().remove_dir(dir)
    }

    fn kind(&self, path: &Path) -> Result<Option<PathKind>> {
        self.fs().kind(path)
    }

    fn resolve(&self, path: &Path) -> Result<PathBuf> {
        self.fs().resolve(path)
    }

    fn sync_files(&self, files: &[Arc<dyn WriteFile>]) -> Result<()> {
        self.fs().sync_files(files)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.fs().sync_dir(dir)
    }

    fn free_bytes(&self, dir: &Path) -> Option<u64> {
        // What is staged takes its place on the disk when it is written out.
        let files = self.region.files();
        let staged: u64 = files.values().filter_map(Weak::upgrade).map(|file| file.staged_space()).sum();
        self.fs().free_bytes(dir).map(|free| free.saturating_sub(staged))
    }

    fn change_bytes(&self, dir: &Path) -> u64 {
        self.fs().change_bytes(dir)
    }

    fn reserve(&self, path: &Path, bytes: u64) -> Result<()> {
        self.fs().reserve(path, bytes)
    }

    fn lock(&self, path: &Path, mode: LockMode) -> Result<Box<dyn FileLock>> {
        self.fs().lock(path, mode)
    }
}

/// A file that nobody appends to, mapped.
#[derive(Debug)]
struct MappedFile {
    file: DiskFile,
    pages: Arc<Pages>,
}

impl ReadFile for MappedFile {
    fn len(&self) -> Result<u64> {
        ReadFile::len(&self.file)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_at(buffer, offset)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.file.prefetch(offset, len);
    }

    fn mapped(&self) -> Option<Arc<dyn MappedRead>> {
        Some(Arc::clone(&self.pages) as Arc<dyn MappedRead>)
    }
}

/// A file that a killed process has appended to, read without being changed.
#[derive(Debug)]
struct FileAndLeft {
    file: Arc<dyn ReadFile>,
    left: Arc<Left>,
}

impl ReadFile for FileAndLeft {
    fn len(&self) -> Result<u64> {
        Ok(self.file.len()?.max(self.left.base + self.left.bytes.len() as u64))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let Left { base, bytes, .. } = &*self.left;
        let in_file = usize::try_from(base.saturating_sub(offset)).map_or(buffer.len(), |n| n.min(buffer.len()));
        let from = usize::try_from(offset.saturating_sub(*base)).unwrap_or(usize::MAX);
        match bytes.get(from..).and_then(|rest| rest.get(..buffer.len() - in_file)) {
            Some(rest) => {
                let (before, after) = buffer.split_at_mut(in_file);
                after.copy_from_slice(rest);
                if before.is_empty() { Ok(()) } else { self.file.read_at(before, offset) }
            }
            // Beyond what was left: as it stands in the file.
            None => self.file.read_at(buffer, offset),
        }
    }
}
