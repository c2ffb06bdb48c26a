//! A file system that counts open files.
//!
//! A handle counts from the call that returns it until it is dropped. The writer and the reader of a file for small
//! appends count as one: with an append region they are one handle.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bifold_contract::Result;

use crate::fs::{
    AppendRegion, Appended, Appending, DirLock, FileLock, FileSystem, LockMode, MappedRead, PathKind, ReadFile,
    WriteFile,
};

/// A file system that counts open files. Clones share the files and the counts.
#[derive(Clone)]
pub struct CountingFs {
    inner: Arc<dyn FileSystem>,
    counts: Arc<Mutex<Counts>>,
    /// See [`CountingFs::over_max`].
    max: usize,
}

#[derive(Default)]
struct Counts {
    open: usize,
    written: usize,
    over_max: usize,
}

impl CountingFs {
    /// Counts the open files of `inner`; at most `max` are expected.
    #[must_use]
    pub fn new(inner: Arc<dyn FileSystem>, max: usize) -> Self {
        Self { inner, counts: Arc::default(), max }
    }

    /// How many files are open.
    #[must_use]
    pub fn open_files(&self) -> usize {
        self.counts().open
    }

    /// By how many the open files have ever exceeded the maximum, or the number of files being written if that was
    /// larger.
    #[must_use]
    pub fn over_max(&self) -> usize {
        self.counts().over_max
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, written: usize) -> Arc<Counted> {
        let mut counts = self.counts();
        counts.open += 1;
        counts.written += written;
        let over = counts.open.saturating_sub(self.max.max(counts.written));
        counts.over_max = counts.over_max.max(over);
        drop(counts);
        Arc::new(Counted { fs: self.clone(), written })
    }

    fn reader(&self, inner: Arc<dyn ReadFile>) -> Arc<dyn ReadFile> {
        Arc::new(CountedFile { inner, _counted: self.count(0) })
    }

    fn writer(&self, inner: Arc<dyn WriteFile>) -> Arc<dyn WriteFile> {
        Arc::new(CountedFile { inner, _counted: self.count(1) })
    }

    fn appended(&self, file: Appended) -> Appended {
        let counted = self.count(1);
        Appended {
            writer: Arc::new(CountedFile { inner: file.writer, _counted: Arc::clone(&counted) }),
            reader: Arc::new(CountedFile { inner: file.reader, _counted: counted }),
        }
    }
}

/// Counts while it lives.
struct Counted {
    fs: CountingFs,
    written: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.fs.counts();
        counts.open -= 1;
        counts.written -= self.written;
    }
}

struct CountedFile<F: ?Sized> {
    // First, so that it is closed before it is no longer counted.
    inner: Arc<F>,
    _counted: Arc<Counted>,
}

impl FileSystem for CountingFs {
    fn create(&self, path: &Path) -> Result<Arc<dyn WriteFile>> {
        Ok(self.writer(self.inner.create(path)?))
    }

    fn open_append(&self, path: &Path) -> Result<Arc<dyn WriteFile>> {
        Ok(self.writer(self.inner.open_append(path)?))
    }

    fn create_appended(&self, path: &Path) -> Result<Appended> {
        Ok(self.appended(self.inner.create_appended(path)?))
    }

    fn open_appended(&self, path: &Path) -> Result<Appended> {
        Ok(self.appended(self.inner.open_appended(path)?))
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn ReadFile>> {
        Ok(self.reader(self.inner.open(path)?))
    }

    fn open_mapped(&self, path: &Path) -> Result<Arc<dyn ReadFile>> {
        Ok(self.reader(self.inner.open_mapped(path)?))
    }

    fn truncate(&self, path: &Path, len: u64) -> Result<()> {
        self.inner.truncate(path, len)
    }

    fn write_again(&self, path: &Path, from: u64) -> Result<u64> {
        self.inner.write_again(path, from)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.inner.remove(path)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.link(from, to)
    }

    fn list(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        self.inner.list(dir)
    }

    fn list_dirs(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        self.inner.list_dirs(dir)
    }

    fn len(&self, path: &Path) -> Result<Option<u64>> {
        self.inner.len(path)
    }

    fn is_shared(&self, path: &Path) -> Result<bool> {
        self.inner.is_shared(path)
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.inner.create_dir_all(dir)
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.inner.remove_dir(dir)
    }

    fn kind(&self, path: &Path) -> Result<Option<PathKind>> {
        self.inner.kind(path)
    }

    fn resolve(&self, path: &Path) -> Result<PathBuf> {
        self.inner.resolve(path)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
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
        self.inner.finish_deletes(dir)
    }

    fn reserve(&self, path: &Path, bytes: u64) -> Result<()> {
        self.inner.reserve(path, bytes)
    }

    fn lock(&self, path: &Path, mode: LockMode) -> Result<Box<dyn FileLock>> {
        self.inner.lock(path, mode)
    }

    fn mapped_bytes(&self) -> u64 {
        self.inner.mapped_bytes()
    }

    fn append_region(&self, dir: &Path, lock: DirLock, how: Appending) -> Result<AppendRegion> {
        let region = self.inner.append_region(dir, lock, how)?;
        let counted = |inner| Arc::new(Self { inner, ..self.clone() }) as Arc<dyn FileSystem>;
        Ok(AppendRegion { fs: region.fs.map(counted), ..region })
    }
}

impl ReadFile for CountedFile<dyn ReadFile> {
    fn len(&self) -> Result<u64> {
        self.inner.len()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.inner.read_at(buffer, offset)
    }

    fn read_once(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.inner.read_once(buffer, offset)
    }

    fn read_past_cache(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.inner.read_past_cache(buffer, offset)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.inner.prefetch(offset, len);
    }

    fn is_in_memory(&self, offset: u64) -> bool {
        self.inner.is_in_memory(offset)
    }

    fn expect_short_reads(&self) {
        self.inner.expect_short_reads();
    }

    fn mapped(&self) -> Option<Arc<dyn MappedRead>> {
        self.inner.mapped()
    }
}

impl WriteFile for CountedFile<dyn WriteFile> {
    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        self.inner.append(parts)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn start_writeback(&self) {
        self.inner.start_writeback();
    }
}

impl<F: ?Sized + fmt::Debug> fmt::Debug for CountedFile<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CountedFile").field(&self.inner).finish()
    }
}

impl fmt::Debug for CountingFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountingFs").field("inner", &self.inner).field("open", &self.open_files()).finish()
    }
}
