//! A database directory: files by name, every byte counted by the part of the engine that moved it.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bifold_contract::{Error, IoSource, Result};

use crate::fs::{Appended, Appending, DirLock, FileLock, FileSystem, LockMode, ReadFile, WriteFile};

/// Bytes and calls per [`IoSource`] since the directory was opened. One writer per counter is not needed: all are atomic.
#[derive(Debug, Default)]
pub struct IoCounters {
    read_bytes: [AtomicU64; IoSource::COUNT],
    written_bytes: [AtomicU64; IoSource::COUNT],
    reads: [AtomicU64; IoSource::COUNT],
    syncs: AtomicU64,
    failed_removals: AtomicU64,
}

/// A copy of [`IoCounters`] at one moment, indexed by `IoSource as usize`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoTotals {
    /// Bytes read.
    pub read_bytes: [u64; IoSource::COUNT],
    /// Bytes written.
    pub written_bytes: [u64; IoSource::COUNT],
    /// Read calls.
    pub reads: [u64; IoSource::COUNT],
    /// Sync calls on files.
    pub syncs: u64,
    /// Files that could not be removed: leftovers, which the next opening removes.
    pub failed_removals: u64,
}

impl IoCounters {
    /// The totals now.
    pub fn totals(&self) -> IoTotals {
        let copy = |from: &[AtomicU64; IoSource::COUNT]| std::array::from_fn(|i| from[i].load(Relaxed));
        IoTotals {
            read_bytes: copy(&self.read_bytes),
            written_bytes: copy(&self.written_bytes),
            reads: copy(&self.reads),
            syncs: self.syncs.load(Relaxed),
            failed_removals: self.failed_removals.load(Relaxed),
        }
    }

    fn count_read(&self, source: IoSource, bytes: usize) {
        self.read_bytes[source as usize].fetch_add(bytes as u64, Relaxed);
        self.reads[source as usize].fetch_add(1, Relaxed);
    }

    fn count_written(&self, source: IoSource, bytes: usize) {
        self.written_bytes[source as usize].fetch_add(bytes as u64, Relaxed);
    }
}

/// One directory. Cheap to clone.
#[derive(Clone)]
pub struct Dir {
    fs: Arc<dyn FileSystem>,
    path: Arc<Path>,
    counters: Arc<IoCounters>,
}

impl Dir {
    /// The directory `path` of `fs`, which need not exist yet.
    #[must_use]
    pub fn new(fs: Arc<dyn FileSystem>, path: &Path) -> Self {
        Self { fs, path: Arc::from(path), counters: Arc::default() }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The full path of the file `name`.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// What was read and written through this directory and its clones.
    #[must_use]
    pub fn totals(&self) -> IoTotals {
        self.counters.totals()
    }

    /// Makes the directory if needed.
    ///
    /// # Errors
    /// The file system's.
    pub fn create_dir(&self) -> Result<()> {
        self.fs.create_dir_all(&self.path)
    }

    /// Makes a new file for appending.
    ///
    /// # Errors
    /// The file system's; it is an error when the file is there.
    pub fn create(&self, name: &str, source: IoSource) -> Result<Writer> {
        Ok(self.writer(self.fs.create(&self.file(name))?, name, 0, source))
    }

    /// Opens a file for appending at its end.
    ///
    /// # Errors
    /// The file system's.
    pub fn open_append(&self, name: &str, source: IoSource) -> Result<Writer> {
        let path = self.file(name);
        let len = self.fs.len(&path)?.ok_or_else(|| Error::io("open", &path, std::io::ErrorKind::NotFound.into()))?;
        Ok(self.writer(self.fs.open_append(&path)?, name, len, source))
    }

    /// Makes a new file for many small appends, which can be read at once.
    ///
    /// # Errors
    /// The file system's; it is an error when the file is there.
    pub fn create_appended(&self, name: &str, source: IoSource) -> Result<(Writer, Reader)> {
        self.appended(self.fs.create_appended(&self.file(name))?, name, source)
    }

    /// Opens a file for many small appends at its end, and for reading.
    ///
    /// # Errors
    /// The file system's.
    pub fn open_appended(&self, name: &str, source: IoSource) -> Result<(Writer, Reader)> {
        self.appended(self.fs.open_appended(&self.file(name))?, name, source)
    }

    fn appended(&self, file: Appended, name: &str, source: IoSource) -> Result<(Writer, Reader)> {
        let reader = self.reader(file.reader, name)?;
        Ok((self.writer(file.writer, name, reader.len(), source), reader))
    }

    fn reader(&self, file: Arc<dyn ReadFile>, name: &str) -> Result<Reader> {
        let path = Arc::from(self.file(name));
        Ok(Reader { len: file.len()?, file, path, counters: Arc::clone(&self.counters) })
    }

    fn writer(&self, file: Arc<dyn WriteFile>, name: &str, len: u64, source: IoSource) -> Writer {
        Writer { file, path: self.file(name), len: AtomicU64::new(len), source, counters: Arc::clone(&self.counters) }
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// The file system's.
    pub fn open(&self, name: &str) -> Result<Reader> {
        self.reader(self.fs.open(&self.file(name))?, name)
    }

    /// Makes everything durable that these writers appended before the call.
    ///
    /// # Errors
    /// The file system's; none of the files counts as synced then.
    pub fn sync_files<'a>(&self, writers: impl IntoIterator<Item = &'a Writer>) -> Result<()> {
        let files: Vec<_> = writers.into_iter().map(|writer| Arc::clone(&writer.file)).collect();
        self.counters.syncs.fetch_add(files.len() as u64, Relaxed);
        self.fs.sync_files(&files)
    }

    /// The length of a file, or `None` when it is not there.
    ///
    /// # Errors
    /// The file system's.
    pub fn len(&self, name: &str) -> Result<Option<u64>> {
        self.fs.len(&self.file(name))
    }

    /// Whether the file has other names, too.
    ///
    /// # Errors
    /// The file system's.
    pub fn is_shared(&self, name: &str) -> Result<bool> {
        self.fs.is_shared(&self.file(name))
    }

    /// The names of all files, sorted.
    ///
    /// # Errors
    /// The file system's.
    pub fn list(&self) -> Result<Vec<String>> {
        let names = self.fs.list(&self.path)?;
        Ok(names.iter().filter_map(|p| p.file_name()?.to_str().map(str::to_owned)).collect())
    }

    /// Cuts a file to `len` bytes and syncs it.
    ///
    /// # Errors
    /// The file system's.
    pub fn truncate(&self, name: &str, len: u64) -> Result<()> {
        self.fs.truncate(&self.file(name), len)
    }

    /// Renames a file within the directory, replacing the target in one step.
    ///
    /// # Errors
    /// The file system's.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.fs.rename(&self.file(from), &self.file(to))
    }

    /// Removes a file; fine when it is gone already. A failure is counted too, since callers that only tidy up go on
    /// without it.
    ///
    /// # Errors
    /// The file system's.
    pub fn remove(&self, name: &str) -> Result<()> {
        match self.fs.remove(&self.file(name)) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => {
                self.counters.failed_removals.fetch_add(1, Relaxed);
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    /// Makes the file `name` also known in `other` (a hard link).
    ///
    /// # Errors
    /// The file system's.
    pub fn link_into(&self, other: &Self, name: &str) -> Result<()> {
        self.fs.link(&self.file(name), &other.file(name))
    }

    /// Another directory of the same file system, with counters of its own.
    #[must_use]
    pub fn sibling(&self, path: &Path) -> Self {
        Self::new(Arc::clone(&self.fs), path)
    }

    /// Makes creations, renames and removals durable.
    ///
    /// # Errors
    /// The file system's.
    pub fn sync(&self) -> Result<()> {
        self.fs.sync_dir(&self.path)
    }

    /// Locks the file `name` for using the directory, and the directory to use as long as the lock lasts: small appends to
    /// some files cost no system call, where the file system can do that ([`FileSystem::append_region`]).
    ///
    /// # Errors
    /// Those of [`Dir::lock`], and the file system's.
    pub fn lock_for_use(self, name: &str, mode: LockMode, how: Appending) -> Result<(Self, Box<dyn FileLock>)> {
        let lock = self.lock(name, mode)?;
        let region = self.fs.append_region(&self.path, DirLock { lock, mode }, how)?;
        let fs = region.fs.unwrap_or(self.fs);
        Ok((Self { fs, ..self }, region.lock))
    }

    /// Locks the file `name`.
    ///
    /// # Errors
    /// [`Error::Locked`] when another holder excludes it; else the file system's.
    pub fn lock(&self, name: &str, mode: LockMode) -> Result<Box<dyn FileLock>> {
        self.fs.lock(&self.file(name), mode)
    }
}

impl fmt::Debug for Dir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Dir").field(&self.path).finish()
    }
}

/// A file being appended to.
#[derive(Debug)]
pub struct Writer {
    file: Arc<dyn WriteFile>,
    path: PathBuf,
    len: AtomicU64,
    source: IoSource,
    counters: Arc<IoCounters>,
}

impl Writer {
    /// Appends `parts` in order as one piece; see [`WriteFile::append`]. Appends must not run concurrently.
    ///
    /// # Errors
    /// The file system's.
    pub fn append(&self, parts: &[&[u8]]) -> Result<()> {
        self.file.append(parts)?;
        let bytes = parts.iter().map(|p| p.len()).sum::<usize>();
        self.len.fetch_add(bytes as u64, Relaxed);
        self.counters.count_written(self.source, bytes);
        Ok(())
    }

    /// Makes everything appended before the call durable.
    ///
    /// # Errors
    /// The file system's.
    pub fn sync(&self) -> Result<()> {
        self.counters.syncs.fetch_add(1, Relaxed);
        self.file.sync()
    }

    /// Asks the system to begin writing out what was appended, without waiting.
    pub fn start_writeback(&self) {
        self.file.start_writeback();
    }

    /// Bytes in the file, counting all that was appended.
    pub fn len(&self) -> u64 {
        self.len.load(Relaxed)
    }

    /// Whether nothing was appended.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A file open for reading. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Reader {
    file: Arc<dyn ReadFile>,
    path: Arc<Path>,
    len: u64,
    counters: Arc<IoCounters>,
}

impl Reader {
    /// Fills `buffer` from `offset` on.
    ///
    /// # Errors
    /// The file system's; "unexpected end of file" when the file is too short.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64, source: IoSource) -> Result<()> {
        self.file.read_at(buffer, offset)?;
        self.counters.count_read(source, buffer.len());
        Ok(())
    }

    /// Announces that `len` bytes from `offset` on will be read soon.
    pub fn prefetch(&self, offset: u64, len: u64) {
        self.file.prefetch(offset, len);
    }

    /// Has the processor fetch what is in memory of `len` bytes from `offset` on, if that needs no system call.
    pub fn touch(&self, offset: u64, len: u64) {
        self.file.touch(offset, len);
    }

    /// Whether a short read of `len` bytes from `offset` on can do without the device, as far as is known.
    #[must_use]
    pub fn is_in_memory(&self, offset: u64, len: u64) -> bool {
        self.file.is_in_memory(offset, len)
    }

    /// The file's length, in bytes, when it was opened.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file held nothing when it was opened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the file is, to keep.
    #[must_use]
    pub fn path_arc(&self) -> Arc<Path> {
        Arc::clone(&self.path)
    }
}
