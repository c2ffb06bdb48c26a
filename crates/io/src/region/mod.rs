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
//! system's, as the pages of a written file are. **A power loss** may take any part of what was not synced, from the files
//! and from `APPENDS`; an append counts only if its checksum, seeded with its place, holds. **A full disk** is met when a slot
//! is written out, at the latest by a sync: the bytes then stay in `APPENDS`, whose space was taken beforehand, and the
//! next opening writes them.
//!
//! Costs measured beside plain appends are in `docs/decisions/0005-append-region.md`.

mod mapped;
mod pages;
mod slots;
mod staged;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::ErrorKind,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
};

use bifold_contract::{Error, Result};

use self::{
    pages::Pages,
    slots::{Left, Slot, Slots},
    staged::{StagedFile, StagedWriter},
};
use crate::{
    disk::{DiskFile, DiskFs},
    fs::{
        APPENDS_NAME, AppendRegion, Appended, Appending, DirLock, FileLock, FileSystem, LockMode, MappedRead, PathKind,
        ReadFile, Reads, WriteFile,
    },
};

/// The real file system, with an append region for one directory.
#[derive(Debug)]
pub struct RegionFs {
    region: Arc<Region>,
}

/// Which files have something staged.
#[derive(Debug)]
pub(super) struct Region {
    path: PathBuf,
    how: Appending,
    /// Made by the first append; `None` where the system cannot do it.
    slots: OnceLock<Option<Arc<Slots>>>,
    files: Mutex<HashMap<PathBuf, Weak<StagedFile>>>,
    /// Of files that are read through their mapping, open or not.
    pages: Mutex<HashMap<PathBuf, Weak<Pages>>>,
    /// What a killed process has left, when nothing may be written.
    left: HashMap<PathBuf, Arc<Left>>,
}

impl RegionFs {
    /// Takes over the directory `dir`, which the caller has locked in `mode`. The region ends with the lock.
    ///
    /// # Errors
    /// I/O errors.
    pub fn open(dir: &Path, lock: DirLock, how: Appending) -> Result<AppendRegion> {
        let path = dir.join(APPENDS_NAME);
        let left = match fs::read(&path) {
            Ok(image) => slots::parse(&image).map_err(|damage| damage.of(&path))?,
            Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(Error::io("read", &path, e)),
        };
        let (slots, files, pages) = (OnceLock::new(), Mutex::default(), Mutex::default());
        let mut region = Region { path, how, slots, files, pages, left: HashMap::new() };
        if lock.mode == LockMode::Shared {
            region.left = left.into_iter().map(|left| (dir.join(&left.name), Arc::new(left))).collect();
        } else {
            if cfg!(not(planted = "skip_region")) {
                left.iter().try_for_each(|left| put_back(&dir.join(&left.name), left))?;
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

/// Writes what a slot has held to its file, if that file is there and reaches that far: else its last writes are lost, and
/// what came after them with them.
fn put_back(path: &Path, left: &Left) -> Result<()> {
    let put = || match OpenOptions::new().write(true).open(path) {
        Ok(file) if file.metadata()?.len() >= left.base => file.write_all_at(&left.bytes, left.base),
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    };
    put().map_err(|e| Error::io("append to", path, e))
}

impl Region {
    fn files(&self) -> MutexGuard<'_, HashMap<PathBuf, Weak<StagedFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn staged(&self, path: &Path) -> Option<Arc<StagedFile>> {
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

    pub(super) fn take(&self, holder: &Arc<StagedFile>, path: &Path, base: u64) -> Option<Slot> {
        let slots = self.slots.get_or_init(|| Slots::create(&self.path, self.how.files_max)).as_ref()?;
        slots.take(holder, path.file_name()?.to_str()?, base)
    }

    fn remove_file(&self) -> Result<()> {
        match fs::remove_file(&self.path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::io("remove", &self.path, e)),
            _ => Ok(()),
        }
    }
}

/// The lock of a directory with an append region: when it ends, every file holds what was appended to it. Whoever still
/// reads goes on reading.
#[derive(Debug)]
struct RegionLock {
    region: Arc<Region>,
    _released_last: Box<dyn FileLock>,
}

impl FileLock for RegionLock {}

impl Drop for RegionLock {
    fn drop(&mut self) {
        let files = std::mem::take(&mut *self.region.files());
        files.values().filter_map(Weak::upgrade).for_each(|file| file.close());
        let slots = self.region.slots.get_or_init(|| None);
        if slots.as_ref().is_some_and(|slots| !slots.any_left()) {
            let _removed_by_the_next_opening = self.region.remove_file();
        }
    }
}

impl RegionFs {
    fn appended(&self, op: &'static str, path: &Path, options: &mut OpenOptions) -> Result<Appended> {
        let mut opened = || {
            let file = options.read(true).write(true).open(path)?;
            Ok((file.metadata()?.len(), file))
        };
        let (len, file) = opened().map_err(|e| Error::io(op, path, e))?;
        let mut files = self.region.files();
        files.retain(|_, file| file.strong_count() > 0);
        // One that is closed is only read.
        let is_open = files.get(path).and_then(Weak::upgrade).is_some_and(|file| !file.is_closed());
        if is_open && cfg!(not(planted = "append_to_any")) {
            return Err(Error::io(op, path, std::io::Error::other("it is being appended to already")));
        }
        let pages = if cfg!(planted = "append_to_any") {
            // Each of the two places believes in a length of its own.
            Arc::new(Pages::new(len, self.region.how.reads))
        } else {
            self.region.pages(path, len)
        };
        let staged = StagedFile::new(file, path.into(), pages, Arc::clone(&self.region));
        files.insert(path.into(), Arc::downgrade(&staged));
        Ok(Appended { writer: Arc::new(StagedWriter(Arc::clone(&staged))), reader: staged })
    }
}

impl FileSystem for RegionFs {
    fn create(&self, path: &Path) -> Result<Arc<dyn WriteFile>> {
        DiskFs.create(path)
    }

    fn open_append(&self, path: &Path) -> Result<Arc<dyn WriteFile>> {
        DiskFs.open_append(path)
    }

    fn create_appended(&self, path: &Path) -> Result<Appended> {
        self.appended("create", path, OpenOptions::new().create_new(true))
    }

    fn open_appended(&self, path: &Path) -> Result<Appended> {
        self.appended("open", path, &mut OpenOptions::new())
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn ReadFile>> {
        if let Some(left) = self.region.left.get(path) {
            let file = File::open(path).map_err(|e| Error::io("open", path, e))?;
            return Ok(Arc::new(FileAndLeft { file, path: path.into(), left: Arc::clone(left) }));
        }
        match self.region.staged(path) {
            Some(staged) => Ok(staged),
            None => DiskFs.open(path),
        }
    }

    fn open_mapped(&self, path: &Path) -> Result<Arc<dyn ReadFile>> {
        let is_plain = self.region.how.reads == Reads::Called || self.region.left.contains_key(path);
        if is_plain || self.region.staged(path).is_some() {
            return self.open(path);
        }
        let opened = || {
            let file = File::open(path)?;
            Ok((file.metadata()?.len(), file))
        };
        let (len, file) = opened().map_err(|e| Error::io("open", path, e))?;
        let pages = self.region.pages(path, len);
        pages.map(&file);
        Ok(Arc::new(MappedFile { file: DiskFile { file, path: path.into() }, pages }))
    }

    fn open_files_max(&self) -> Option<usize> {
        DiskFs.open_files_max()
    }

    fn truncate(&self, path: &Path, len: u64) -> Result<()> {
        if let Some(staged) = self.region.staged(path).filter(|staged| !staged.is_closed()) {
            return staged.truncate(len);
        }
        if let Some(pages) = self.region.all_pages().get(path).and_then(Weak::upgrade) {
            pages.set_written(len.min(pages.written()));
        }
        DiskFs.truncate(path, len)
    }

    fn write_again(&self, path: &Path, from: u64) -> Result<()> {
        self.region.staged(path).map_or(Ok(()), |staged| staged.settle())?;
        DiskFs.write_again(path, from)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        DiskFs.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        DiskFs.remove(path)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        if self.region.left.contains_key(from) {
            // Part of it stands in `APPENDS`, which stays as it is: the file alone is not what it is read as.
            return Err(Error::io("link", to, ErrorKind::Unsupported.into()));
        }
        self.region.staged(from).map_or(Ok(()), |staged| staged.settle())?;
        DiskFs.link(from, to)
    }

    fn list(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        DiskFs.list(dir)
    }

    fn len(&self, path: &Path) -> Result<Option<u64>> {
        let in_file = DiskFs.len(path)?;
        let left = self.region.left.get(path).map(|left| left.base + left.bytes.len() as u64);
        let staged = self.region.staged(path).map(|staged| staged.total());
        Ok(in_file.map(|len| len.max(left.or(staged).unwrap_or(0))))
    }

    fn is_shared(&self, path: &Path) -> Result<bool> {
        DiskFs.is_shared(path)
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        DiskFs.create_dir_all(dir)
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        DiskFs.remove_dir(dir)
    }

    fn kind(&self, path: &Path) -> Result<Option<PathKind>> {
        DiskFs.kind(path)
    }

    fn resolve(&self, path: &Path) -> Result<PathBuf> {
        DiskFs.resolve(path)
    }

    fn sync_files(&self, files: &[Arc<dyn WriteFile>]) -> Result<()> {
        DiskFs.sync_files(files)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        DiskFs.sync_dir(dir)
    }

    fn lock(&self, path: &Path, mode: LockMode) -> Result<Box<dyn FileLock>> {
        DiskFs.lock(path, mode)
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
    file: File,
    path: PathBuf,
    left: Arc<Left>,
}

impl ReadFile for FileAndLeft {
    fn len(&self) -> Result<u64> {
        let in_file = self.file.metadata().map_err(|e| Error::io("look up", &self.path, e))?.len();
        let end = self.left.base + self.left.bytes.len() as u64;
        Ok(if in_file < self.left.base { in_file } else { in_file.max(end) })
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let Left { base, bytes, .. } = &*self.left;
        let in_file = usize::try_from(base.saturating_sub(offset)).map_or(buffer.len(), |n| n.min(buffer.len()));
        let from = usize::try_from(offset.saturating_sub(*base)).unwrap_or(usize::MAX);
        let rest = bytes.get(from..).and_then(|rest| rest.get(..buffer.len() - in_file));
        let read = |buffer: &mut [u8]| match rest {
            Some(rest) => {
                let (before, after) = buffer.split_at_mut(in_file);
                after.copy_from_slice(rest);
                self.file.read_exact_at(before, offset)
            }
            // Beyond what was left: as it stands in the file.
            None => self.file.read_exact_at(buffer, offset),
        };
        read(buffer).map_err(|e| Error::io("read", &self.path, e))
    }
}
