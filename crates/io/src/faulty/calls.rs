//! The calls of [`FileSystem`], each counted, and failed when that is planned.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use bifold_contract::{Error, Result};

use super::{FaultKind, FaultyFs};
#[cfg(target_os = "linux")]
use crate::fs::{AppendRegion, Appending, DirLock, DirUse};
use crate::{
    fs::{FileLock, FileSystem, LockMode, MappedRead, PathKind, ReadFile, WriteFile},
    memory::MemoryFile,
};

pub(crate) const APPEND: &str = "append to";

impl FileSystem for FaultyFs {
    fn create(&self, path: &Path) -> Result<Arc<dyn WriteFile>> {
        self.pass("create", path)?;
        match &self.memory {
            Some(memory) => Ok(self.over_memory_file(path, memory.create_file(path)?)),
            None => Ok(self.over_file(path, self.inner.create(path)?)),
        }
    }

    fn open_append(&self, path: &Path) -> Result<Arc<dyn WriteFile>> {
        self.pass("open", path)?;
        match &self.memory {
            Some(memory) => Ok(self.over_memory_file(path, memory.open_file(path)?)),
            None => Ok(self.over_file(path, self.inner.open_append(path)?)),
        }
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn ReadFile>> {
        self.pass("open", path)?;
        Ok(Arc::new(FaultyReader { fs: self.clone(), inner: self.inner.open(path)?, path: path.into() }))
    }

    fn mapped_bytes(&self) -> u64 {
        self.inner.mapped_bytes()
    }

    fn open_files_max(&self) -> Option<usize> {
        self.inner.open_files_max()
    }

    fn truncate(&self, path: &Path, len: u64) -> Result<()> {
        self.pass("truncate", path)?;
        self.inner.truncate(path, len)
    }

    fn write_again(&self, path: &Path, from: u64) -> Result<u64> {
        self.pass("write again", path)?;
        self.inner.write_again(path, from)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.pass("rename", from)?;
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.pass("remove", path)?;
        self.inner.remove(path)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.pass("link", to)?;
        self.inner.link(from, to)
    }

    fn list(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        self.pass("list", dir)?;
        self.inner.list(dir)
    }

    fn list_dirs(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        self.pass("list", dir)?;
        self.inner.list_dirs(dir)
    }

    fn len(&self, path: &Path) -> Result<Option<u64>> {
        self.pass("look up", path)?;
        self.inner.len(path)
    }

    fn is_shared(&self, path: &Path) -> Result<bool> {
        self.pass("look up", path)?;
        self.inner.is_shared(path)
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.pass("create directory", dir)?;
        self.inner.create_dir_all(dir)
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.pass("remove directory", dir)?;
        self.inner.remove_dir(dir)
    }

    fn kind(&self, path: &Path) -> Result<Option<PathKind>> {
        self.pass("look up", path)?;
        self.inner.kind(path)
    }

    fn resolve(&self, path: &Path) -> Result<PathBuf> {
        self.pass("look up", path)?;
        self.inner.resolve(path)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        let passed = self.pass("sync directory", dir);
        if let (Err(_), Some(memory)) = (&passed, &self.memory) {
            memory.break_sync(dir);
        }
        passed?;
        self.inner.sync_dir(dir)
    }

    fn share_with_users_of(&self, dir: &Path, path: &Path) {
        self.inner.share_with_users_of(dir, path);
    }

    fn free_bytes(&self, dir: &Path) -> Option<u64> {
        self.inner.free_bytes(dir)
    }

    fn change_bytes(&self, dir: &Path) -> u64 {
        self.inner.change_bytes(dir)
    }

    fn finish_deletes(&self, dir: &Path) -> Result<()> {
        self.pass("finish deletes in", dir)?;
        self.inner.finish_deletes(dir)
    }

    fn reserve(&self, path: &Path, bytes: u64) -> Result<()> {
        self.pass("reserve space by", path)?;
        self.inner.reserve(path, bytes)
    }

    fn lock(&self, path: &Path, mode: LockMode) -> Result<Box<dyn FileLock>> {
        self.pass("lock", path)?;
        self.inner.lock(path, mode)
    }

    #[cfg(target_os = "linux")]
    fn append_region(&self, dir: &Path, lock: DirLock, how: Appending) -> Result<AppendRegion> {
        let follows = lock.used == DirUse::Follow;
        let Some(memory) = self.memory.as_ref().filter(|memory| memory.has_append_region() || follows) else {
            return Ok(AppendRegion { fs: None, lock: lock.lock, catch_up: None });
        };
        let ground = crate::region::Simulated::new(memory.clone(), Some(self.clone()));
        crate::region::RegionFs::open(ground, dir, lock, how)
    }
}

impl FaultyFs {
    fn over_file(&self, path: &Path, inner: Arc<dyn WriteFile>) -> Arc<dyn WriteFile> {
        Arc::new(FaultyWriter { fs: self.clone(), inner, memory: None, path: path.into() })
    }

    fn over_memory_file(&self, path: &Path, file: Arc<MemoryFile>) -> Arc<dyn WriteFile> {
        let inner = Arc::clone(&file);
        Arc::new(FaultyWriter { fs: self.clone(), inner, memory: Some(file), path: path.into() })
    }
}

#[derive(Debug)]
struct FaultyWriter {
    fs: FaultyFs,
    inner: Arc<dyn WriteFile>,
    /// The same file as `inner`, when its syncs can be made to fail. Not looked up by path: the file may have been
    /// renamed.
    memory: Option<Arc<MemoryFile>>,
    path: PathBuf,
}

impl WriteFile for FaultyWriter {
    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        let Some(kind) = self.fs.next_fault(APPEND, &self.path) else { return self.inner.append(parts) };
        if kind == FaultKind::ShortWrite {
            let bytes = parts.concat();
            self.inner.append(&[&bytes[..bytes.len() / 2]])?;
        }
        Err(Error::io(APPEND, &self.path, kind.error()))
    }

    fn sync(&self) -> Result<()> {
        let passed = self.fs.pass("sync", &self.path);
        if let (Err(_), Some(memory)) = (&passed, &self.memory) {
            memory.break_sync();
        }
        passed?;
        self.inner.sync()
    }

    fn start_writeback(&self) {
        self.inner.start_writeback();
    }
}

#[derive(Debug)]
struct FaultyReader {
    fs: FaultyFs,
    inner: Arc<dyn ReadFile>,
    path: PathBuf,
}

impl ReadFile for FaultyReader {
    fn len(&self) -> Result<u64> {
        self.fs.pass("look up", &self.path)?;
        self.inner.len()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.fs.pass("read", &self.path)?;
        self.inner.read_at(buffer, offset)
    }

    fn read_once(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.fs.pass("read", &self.path)?;
        self.inner.read_once(buffer, offset)
    }

    fn read_past_cache(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.fs.pass("read", &self.path)?;
        self.inner.read_past_cache(buffer, offset)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.fs.note_announced(&self.path, offset, len);
        self.inner.prefetch(offset, len);
    }

    fn is_in_memory(&self, offset: u64) -> bool {
        !self.fs.seems_cold() && self.inner.is_in_memory(offset)
    }

    fn expect_short_reads(&self) {
        self.inner.expect_short_reads();
    }

    /// Mapped reads are no calls, so none of them could fail.
    fn mapped(&self) -> Option<Arc<dyn MappedRead>> {
        None
    }
}
