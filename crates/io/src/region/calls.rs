//! The calls of [`FileSystem`] in a directory with an append region.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

use bifold_contract::{Error, Result};

use super::{RegionFs, followed::FollowedFile, ground::Ground, pages::Pages, recovery::FileAndLeft};
use crate::{
    disk::DiskFile,
    fs::{Appended, FileLock, FileSystem, LockMode, MappedRead, PathKind, ReadFile, WriteFile},
};

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
        if self.region.seen.is_some() {
            return Ok(Arc::new(FollowedFile::open(&self.region, path)?));
        }
        if let Some(left) = self.region.left.get(path) {
            let file = self.fs().open(path)?;
            // As when taking over: a file that is too short has lost its last writes, and these with them.
            let reaches = file.len()? >= left.base;
            return Ok(if reaches { Arc::new(FileAndLeft { file, left: Arc::clone(left) }) } else { file });
        }
        match self.region.staged(path) {
            Some(staged) => Ok(staged),
            None => self.fs().open(path),
        }
    }

    fn open_mapped(&self, path: &Path) -> Result<Arc<dyn ReadFile>> {
        if self.region.seen.is_some() || self.region.left.contains_key(path) || self.region.staged(path).is_some() {
            return self.open(path);
        }
        let Some(file) = self.region.ground.open_mapped(path)? else { return self.open(path) };
        let len = file.metadata().map_err(|e| Error::io("open", path, e))?.len();
        let pages = self.region.pages(path, len);
        pages.map(&file);
        Ok(Arc::new(MappedFile { file: DiskFile { file: file.into(), path: path.into() }, pages }))
    }

    fn mapped_bytes(&self) -> u64 {
        self.region.budget.bytes()
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

    fn write_again(&self, path: &Path, from: u64) -> Result<u64> {
        self.region.staged(path).map_or(Ok(()), |staged| staged.write_out())?;
        self.fs().write_again(path, from)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.fs().rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.fs().remove(path)?;
        self.region.forget_removed(path);
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        if self.region.left.contains_key(from) || self.region.seen_end(from)? > 0 {
            // Some of it is in `APPENDS`, which must not change: the file alone is not complete.
            return Err(Error::io("link", to, ErrorKind::Unsupported.into()));
        }
        self.region.staged(from).map_or(Ok(()), |staged| staged.write_out())?;
        self.fs().link(from, to)
    }

    fn list(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        self.fs().list(dir)
    }

    fn list_dirs(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        self.fs().list_dirs(dir)
    }

    fn len(&self, path: &Path) -> Result<Option<u64>> {
        let Some(in_file) = self.region.len_in_file(path)? else { return Ok(None) };
        let in_file = in_file.max(self.region.seen_end(path)?);
        let left = self.region.left.get(path).filter(|left| left.base <= in_file);
        let left = left.map(|left| left.end());
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

    fn share_with_users_of(&self, dir: &Path, path: &Path) {
        self.fs().share_with_users_of(dir, path);
    }

    fn free_bytes(&self, dir: &Path) -> Option<u64> {
        // What is staged takes up space on the disk when it is written out.
        let files = self.region.files();
        let staged: u64 = files.values().filter_map(Weak::upgrade).map(|file| file.staged_space()).sum();
        self.fs().free_bytes(dir).map(|free| free.saturating_sub(staged))
    }

    fn change_bytes(&self, dir: &Path) -> u64 {
        self.fs().change_bytes(dir)
    }

    fn finish_deletes(&self, dir: &Path) -> Result<()> {
        self.fs().finish_deletes(dir)
    }

    fn reserve(&self, path: &Path, bytes: u64) -> Result<()> {
        self.fs().reserve(path, bytes)
    }

    fn lock(&self, path: &Path, mode: LockMode) -> Result<Box<dyn FileLock>> {
        self.fs().lock(path, mode)
    }
}

/// A mapped file that nobody appends to.
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

    fn read_once(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_once(buffer, offset)
    }

    fn read_past_cache(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_past_cache(buffer, offset)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.file.prefetch(offset, len);
    }

    fn is_in_memory(&self, offset: u64) -> bool {
        self.file.is_in_memory(offset)
    }

    fn expect_short_reads(&self) {
        self.file.expect_short_reads();
    }

    fn mapped(&self) -> Option<Arc<dyn MappedRead>> {
        Some(Arc::clone(&self.pages) as Arc<dyn MappedRead>)
    }
}
