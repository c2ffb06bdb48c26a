//! A database directory: files by name, every byte counted by its [`IoSource`].

mod counters;
mod creation;
mod observer;
mod reader;
mod removal;
mod syncs;
mod writer;

use std::{
    fmt,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bifold_contract::{Error, IoSource, Result};

pub(crate) use self::reader::Obsolete;
pub use self::{
    counters::{IoCounters, IoTotals},
    creation::above,
    observer::FileObserver,
    reader::Reader,
    writer::{Together, Writer},
};
use self::{observer::Observed, reader::Access, syncs::Syncs};
use crate::{
    Opener,
    fs::{Appending, CatchUp, DirLock, DirUse, FileLock, FileSystem, LockMode, PathKind, WriteFile},
    open_files::{OpenFiles, OpenFilesTotals, Written},
    own::own,
    pins::Pins,
    remover::Remover,
};

/// Open files without any other limit: what Linux allows a process at most by default.
const OPEN_MAX: usize = 1 << 20;

/// One directory. Cheap to clone.
#[derive(Clone)]
pub struct Dir {
    fs: Arc<dyn FileSystem>,
    path: Arc<Path>,
    counters: Arc<IoCounters>,
    files: Arc<OpenFiles>,
    syncs: Arc<Syncs>,
    observed: Arc<Observed>,
    /// Asked before a file is removed.
    pins: Option<Arc<Pins>>,
    remover: Arc<Remover>,
    opener: Opener,
    /// Reads by calls go past the system's cache.
    reads_directly: bool,
}

impl Dir {
    /// The directory `path` of `fs`, which need not exist yet. At most half as many files as the process may have are
    /// open.
    #[must_use]
    pub fn new(fs: Arc<dyn FileSystem>, path: &Path) -> Self {
        let files = OpenFiles::new(fs.open_files_max().map_or(OPEN_MAX, |max| (max / 2).clamp(2, OPEN_MAX)));
        Self {
            fs,
            path: Arc::from(path),
            counters: Arc::default(),
            files,
            syncs: Arc::default(),
            observed: Arc::default(),
            pins: None,
            remover: Arc::default(),
            opener: Opener::this(),
            reads_directly: false,
        }
    }

    /// The same directory, in which no file is removed that a reader has pinned.
    #[must_use]
    pub fn with_pins(self, pins: Arc<Pins>) -> Self {
        Self { pins: Some(pins), ..self }
    }

    /// The same directory, whose files are read by calls that go past the system's cache, where the system can do that.
    /// Each of them is opened twice for that, so half as many may be open.
    #[must_use]
    pub fn reading_directly(self) -> Self {
        let max = self.files.totals().max;
        Self { files: OpenFiles::new((max / 2).max(2)), reads_directly: true, ..self }
    }

    /// Whether files are read by calls that go past the system's cache.
    #[must_use]
    pub fn reads_directly(&self) -> bool {
        self.reads_directly
    }

    /// The pins of readers, if they are asked before files are removed.
    #[must_use]
    pub fn pins(&self) -> Option<&Arc<Pins>> {
        self.pins.as_ref()
    }

    /// Removes files of this directory and its clones that nobody reads any more.
    #[must_use]
    pub fn remover(&self) -> &Arc<Remover> {
        &self.remover
    }

    pub(crate) fn file_system(&self) -> &Arc<dyn FileSystem> {
        &self.fs
    }

    /// The same directory with at most `max` open files, but no more than the process may have.
    #[must_use]
    pub fn with_open_files_max(self, max: usize) -> Self {
        let max = self.fs.open_files_max().map_or(max, |process| process.min(max));
        let max = if self.reads_directly { (max / 2).max(2) } else { max };
        Self { files: OpenFiles::new(max), ..self }
    }

    /// Bytes of files that are read through their mappings.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        self.fs.mapped_bytes()
    }

    /// How many files of this directory and its clones are open.
    #[must_use]
    pub fn open_files(&self) -> OpenFilesTotals {
        self.files.totals()
    }

    /// Whether files being written take more than half of the open files: those that can wait should be closed.
    #[must_use]
    pub fn is_crowded_by_writers(&self) -> bool {
        self.files.is_crowded_by_writers()
    }

    /// The directory's path.
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

    /// Creates the directory if needed.
    ///
    /// # Errors
    /// The file system's.
    pub fn create_dir(&self) -> Result<()> {
        self.fs.create_dir_all(&self.path)
    }

    /// Creates a new file for appending.
    ///
    /// # Errors
    /// The file system's, among them that the file exists.
    pub fn create(&self, name: &str, source: IoSource) -> Result<Writer> {
        let (path, counted) = (self.file(name), self.files.write());
        let created = self.fs.create(&path)?;
        self.observed.created(&path);
        Ok(self.writer(created, path, (0, source), (Weak::new(), counted)))
    }

    /// Opens a file for appending at its end.
    ///
    /// # Errors
    /// The file system's.
    pub fn open_append(&self, name: &str, source: IoSource) -> Result<Writer> {
        let path = self.file(name);
        let len = self.fs.len(&path)?.ok_or_else(|| Error::io("open", &path, ErrorKind::NotFound.into()))?;
        let counted = self.files.write();
        Ok(self.writer(self.fs.open_append(&path)?, path, (len, source), (Weak::new(), counted)))
    }

    /// Creates a new file for many small appends, which can be read at once.
    ///
    /// # Errors
    /// The file system's, among them that the file exists. After any other error there is no such file.
    pub fn create_appended(&self, name: &str, source: IoSource) -> Result<(Writer, Reader)> {
        let (path, counted) = (self.file(name), self.files.write());
        let made = self.fs.create_appended(&path).and_then(|file| {
            let reader = Reader::pinned(self, Arc::from(&*path), Access::Anywhere, file.reader)?;
            Ok((file.writer, reader))
        });
        let (writer, reader) = made.inspect_err(|error| {
            let is_of_another = matches!(error, Error::Io { source, .. } if source.kind() == ErrorKind::AlreadyExists);
            if !is_of_another {
                let _counted = self.remove(name);
            }
        })?;
        self.observed.created(&path);
        let readers = Arc::downgrade(reader.slot());
        Ok((self.writer(writer, path, (reader.len(), source), (readers, counted)), reader))
    }

    /// Opens the file of `reader` for many small appends at its end, which `reader` can read at once.
    ///
    /// # Errors
    /// The file system's.
    pub fn append_to(&self, reader: &Reader, source: IoSource) -> Result<Writer> {
        let counted = self.files.write();
        let file = self.fs.open_appended(reader.path())?;
        let len = file.reader.len()?;
        reader.slot().pin(file.reader);
        let readers = Arc::downgrade(reader.slot());
        Ok(self.writer(file.writer, reader.path().into(), (len, source), (readers, counted)))
    }

    fn writer(
        &self,
        file: Arc<dyn WriteFile>,
        path: PathBuf,
        (len, source): (u64, IoSource),
        (readers, _counted): (Weak<reader::SharedReader>, Written),
    ) -> Writer {
        let counters = Arc::clone(&self.counters);
        Writer { file, path, len: AtomicU64::new(len), source, counters, readers, syncs: Syncs::default(), _counted }
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// The file system's.
    pub fn open(&self, name: &str) -> Result<Reader> {
        let path = self.file(name);
        Reader::open(self, Arc::from(&*path), Access::InOrder, || self.fs.open(&path))
    }

    /// Opens a file that stays open as long as the reader lives, so that its name may be removed meanwhile.
    ///
    /// # Errors
    /// The file system's.
    pub fn open_held(&self, name: &str) -> Result<Reader> {
        let path = self.file(name);
        Reader::pinned(self, Arc::from(&*path), Access::InOrder, self.fs.open(&path)?)
    }

    /// Opens a file for many short reads ([`FileSystem::open_mapped`]).
    ///
    /// # Errors
    /// The file system's.
    pub fn open_mapped(&self, name: &str) -> Result<Reader> {
        let path = self.file(name);
        Reader::open(self, Arc::from(&*path), Access::Anywhere, || self.fs.open_mapped(&path))
    }

    /// Makes everything durable that these writers appended before the call.
    ///
    /// # Errors
    /// The file system's, or that of an earlier sync of one of them; then none of the files counts as synced.
    pub fn sync_files<'a>(&self, writers: impl IntoIterator<Item = &'a Writer>) -> Result<()> {
        let (files, syncs): (Vec<_>, Vec<_>) =
            writers.into_iter().map(|writer| (Arc::clone(&writer.file), &writer.syncs)).unzip();
        self.counters.syncs.fetch_add(files.len() as u64, Relaxed);
        Syncs::sync_all(syncs, || self.fs.sync_files(&files))
    }

    /// The length of a file, or `None` when it does not exist.
    ///
    /// # Errors
    /// The file system's.
    pub fn len(&self, name: &str) -> Result<Option<u64>> {
        self.fs.len(&self.file(name))
    }

    /// Whether the file has other names (hard links).
    ///
    /// # Errors
    /// The file system's.
    pub fn is_shared(&self, name: &str) -> Result<bool> {
        self.fs.is_shared(&self.file(name))
    }

    /// What is at the directory's path; `None` when there is nothing. A symbolic link is not followed.
    ///
    /// # Errors
    /// The file system's.
    pub fn kind(&self) -> Result<Option<PathKind>> {
        self.fs.kind(&self.path)
    }

    /// The canonical path: absolute, without symbolic links, `.` and `..`.
    ///
    /// # Errors
    /// The file system's.
    pub fn resolved(&self) -> Result<PathBuf> {
        self.fs.resolve(&self.path)
    }

    /// Removes the directory, which must be empty.
    ///
    /// # Errors
    /// The file system's.
    pub fn remove_dir(&self) -> Result<()> {
        self.fs.remove_dir(&self.path)
    }

    /// The names of all files, sorted.
    ///
    /// # Errors
    /// The file system's.
    pub fn list(&self) -> Result<Vec<String>> {
        let names = self.fs.list(&self.path)?;
        Ok(names.iter().filter_map(|p| p.file_name()?.to_str().map(str::to_owned)).collect())
    }

    /// The names of all directories in it, sorted, as they can be shown.
    ///
    /// # Errors
    /// The file system's.
    pub fn list_dirs(&self) -> Result<Vec<String>> {
        let names = self.fs.list_dirs(&self.path)?;
        Ok(names.iter().filter_map(|p| Some(p.file_name()?.to_string_lossy().into_owned())).collect())
    }

    /// Truncates a file to `len` bytes and syncs it. If it has other names, those keep the file as it is and this
    /// name gets a copy.
    ///
    /// # Errors
    /// The file system's.
    pub fn truncate(&self, name: &str, len: u64) -> Result<()> {
        let path = self.file(name);
        if let Some(copied_bytes) = own(&*self.fs, &path, len)? {
            self.counters.count_written(IoSource::Recovery, copied_bytes);
        }
        // Also for a copy: what is staged for the file must not be written back behind its end.
        self.fs.truncate(&path, len)
    }

    /// Writes the bytes from `from` to the end of a file once more, in place, and syncs it. What an earlier sync
    /// failed to write would otherwise be lost with the system's cache.
    ///
    /// # Errors
    /// The file system's.
    pub fn write_again(&self, name: &str, from: u64) -> Result<()> {
        let bytes = self.fs.write_again(&self.file(name), from)?;
        self.counters.count_written(IoSource::Recovery, bytes);
        Ok(())
    }

    /// Renames a file within the directory, replacing the target in one step.
    ///
    /// # Errors
    /// The file system's.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.fs.rename(&self.file(from), &self.file(to))
    }

    /// Whether this is a forked child of the process that opened the directory.
    fn is_in_child(&self) -> bool {
        self.opener.is_another()
    }

    /// Makes the file `name` also available in `other` (a hard link).
    ///
    /// # Errors
    /// The file system's.
    pub fn link_into(&self, other: &Self, name: &str) -> Result<()> {
        self.fs.link(&self.file(name), &other.file(name))
    }

    /// Another directory of the same file system, with its own counters. The open files of both count together.
    #[must_use]
    pub fn sibling(&self, path: &Path) -> Self {
        Self {
            fs: Arc::clone(&self.fs),
            path: Arc::from(path),
            counters: Arc::default(),
            files: Arc::clone(&self.files),
            syncs: Arc::default(),
            observed: Arc::default(),
            pins: None,
            remover: Arc::default(),
            opener: self.opener,
            reads_directly: self.reads_directly,
        }
    }

    /// Makes creations, renames and removals durable.
    ///
    /// # Errors
    /// The file system's, or that of an earlier sync.
    pub fn sync(&self) -> Result<()> {
        self.syncs.sync(|| self.fs.sync_dir(&self.path))
    }

    /// How many bytes can still be written here, where the system reports it.
    #[must_use]
    pub fn free_bytes(&self) -> Option<u64> {
        self.fs.free_bytes(&self.path)
    }

    /// How many bytes must be free for the smallest change ([`FileSystem::change_bytes`]).
    #[must_use]
    pub fn change_bytes(&self) -> u64 {
        self.fs.change_bytes(&self.path)
    }

    /// Waits until files that are no longer needed are removed, and makes the space of what was deleted or overwritten
    /// free ([`FileSystem::finish_deletes`]).
    ///
    /// # Errors
    /// The file system's.
    pub fn finish_deletes(&self) -> Result<()> {
        self.remover.wait(None);
        self.fs.finish_deletes(&self.path)
    }

    /// Makes the file `name`, which nothing reads, occupy this many bytes of the disk ([`FileSystem::reserve`]).
    ///
    /// # Errors
    /// The file system's.
    pub fn reserve(&self, name: &str, bytes: u64) -> Result<()> {
        self.fs.reserve(&self.file(name), bytes)
    }

    /// Locks the file `name` to use the directory. Returns the directory to use while the lock lasts: small appends
    /// to some files cost no system call there, where the file system can do that ([`FileSystem::append_region`]).
    ///
    /// # Errors
    /// Those of [`Dir::lock`], and the file system's.
    pub fn lock_for_use(self, name: &str, mode: LockMode, how: Appending) -> Result<(Self, Box<dyn FileLock>)> {
        let lock = self.lock(name, mode)?;
        let used = if mode == LockMode::Exclusive { DirUse::Write } else { DirUse::Read };
        let region = self.fs.append_region(&self.path, DirLock { lock, used }, how)?;
        let fs = region.fs.unwrap_or(self.fs);
        Ok((Self { fs, ..self }, region.lock))
    }

    /// The directory as a reader without a lock sees it while another process writes. [`CatchUp::catch_up`] shows what
    /// was appended since.
    ///
    /// # Errors
    /// The file system's.
    pub fn follow(self) -> Result<(Self, Arc<dyn CatchUp>)> {
        let lock = DirLock { lock: Box::new(NothingStaged), used: DirUse::Follow };
        let region = self.fs.append_region(&self.path, lock, Appending::default())?;
        let fs = region.fs.unwrap_or(self.fs);
        Ok((Self { fs, ..self }, region.catch_up.unwrap_or_else(|| Arc::new(NothingStaged))))
    }

    /// Locks the file `name`.
    ///
    /// # Errors
    /// [`Error::Locked`] when another holder excludes it; else the file system's.
    pub fn lock(&self, name: &str, mode: LockMode) -> Result<Box<dyn FileLock>> {
        self.fs.lock(&self.file(name), mode)
    }
}

/// Appends go to their files at once, and nothing is locked.
#[derive(Debug)]
struct NothingStaged;

impl FileLock for NothingStaged {}

impl CatchUp for NothingStaged {
    fn catch_up(&self) -> Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Dir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Dir").field(&self.path).finish()
    }
}
