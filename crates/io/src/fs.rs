//! What Bifold asks of a file system, and what it assumes about crashes.
//!
//! **Process crash** (kill, panic): everything that [`WriteFile::append`] accepted is kept.
//!
//! **Power loss**: what was synced is kept. Of what was appended since the last sync, any subset of 512-byte sectors
//! may be there. The others read as zeros or, where the sector held older bytes of the same file, as those. The file
//! may be shorter than what was written. Directory entries (create, rename, remove, link) changed since the last
//! [`FileSystem::sync_dir`] may be there or not, each on its own. A sector is never half written. A rename replaces
//! its target in one step.
//!
//! **A failed sync** leaves the unsynced bytes in an unknown state for good: a later successful sync proves nothing.

use std::{
    fmt::Debug,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

use bifold_contract::{Error, Result};

/// A file system. All errors are [`Error::Io`], which names the operation and the path, unless a method says otherwise.
pub trait FileSystem: Send + Sync + Debug {
    /// Creates a new, empty file for appending. Fails when the file exists.
    ///
    /// # Errors
    /// The system's.
    fn create(&self, path: &Path) -> Result<Arc<dyn WriteFile>>;

    /// Opens an existing file for appending at its end.
    ///
    /// # Errors
    /// The system's.
    fn open_append(&self, path: &Path) -> Result<Arc<dyn WriteFile>>;

    /// Creates a new, empty file for many small appends, and opens it for reading.
    ///
    /// # Errors
    /// The system's.
    fn create_appended(&self, path: &Path) -> Result<Appended> {
        Ok(Appended { writer: self.create(path)?, reader: self.open(path)? })
    }

    /// Opens an existing file for many small appends at its end, and for reading.
    ///
    /// # Errors
    /// The system's.
    fn open_appended(&self, path: &Path) -> Result<Appended> {
        Ok(Appended { writer: self.open_append(path)?, reader: self.open(path)? })
    }

    /// Opens a file for reading at any offset, also while it is being appended to.
    ///
    /// # Errors
    /// The system's.
    fn open(&self, path: &Path) -> Result<Arc<dyn ReadFile>>;

    /// Opens a file for many short reads. Where these do not need the file to be open, [`ReadFile::mapped`] serves
    /// them.
    ///
    /// # Errors
    /// The system's.
    fn open_mapped(&self, path: &Path) -> Result<Arc<dyn ReadFile>> {
        self.open(path)
    }

    /// How many files this process may have open, if there is a limit.
    fn open_files_max(&self) -> Option<usize> {
        None
    }

    /// Truncates a file to `len` bytes and syncs it.
    ///
    /// # Errors
    /// The system's.
    fn truncate(&self, path: &Path, len: u64) -> Result<()>;

    /// Writes the bytes from `from` to the end of a file once more, in place, and syncs the file. The bytes do not
    /// change. What an earlier sync failed to write is only in the system's cache, and no later sync would write it;
    /// this does. Returns how many bytes that were.
    ///
    /// # Errors
    /// The system's.
    fn write_again(&self, path: &Path, from: u64) -> Result<u64>;

    /// Renames `from` to `to` in one step, replacing what was there.
    ///
    /// # Errors
    /// The system's.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Removes a file. Open readers can still read its contents.
    ///
    /// # Errors
    /// The system's.
    fn remove(&self, path: &Path) -> Result<()>;

    /// Makes `to` a hard link to the file `from`.
    ///
    /// # Errors
    /// The system's.
    fn link(&self, from: &Path, to: &Path) -> Result<()>;

    /// The names of the files in a directory, sorted, without directories.
    ///
    /// # Errors
    /// The system's.
    fn list(&self, dir: &Path) -> Result<Vec<PathBuf>>;

    /// The names of the directories in a directory, sorted. Symbolic links are none.
    ///
    /// # Errors
    /// The system's.
    fn list_dirs(&self, dir: &Path) -> Result<Vec<PathBuf>>;

    /// The length of a file, or `None` when there is no file of that name.
    ///
    /// # Errors
    /// The system's, other than "not found".
    fn len(&self, path: &Path) -> Result<Option<u64>>;

    /// Whether the file has other names (hard links). Under those it must not appear changed.
    ///
    /// # Errors
    /// The system's.
    fn is_shared(&self, path: &Path) -> Result<bool>;

    /// Creates a directory and its parents. It is no error if they exist.
    ///
    /// # Errors
    /// The system's.
    fn create_dir_all(&self, dir: &Path) -> Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// The system's, among them that the directory is not empty.
    fn remove_dir(&self, dir: &Path) -> Result<()>;

    /// What is at `path`; `None` when there is nothing. A symbolic link is reported as such, not followed.
    ///
    /// # Errors
    /// The system's, other than "not found".
    fn kind(&self, path: &Path) -> Result<Option<PathKind>>;

    /// The canonical path of `path`: absolute, without symbolic links, `.` and `..`.
    ///
    /// # Errors
    /// The system's.
    fn resolve(&self, path: &Path) -> Result<PathBuf>;

    /// Makes everything appended to these files durable, as [`WriteFile::sync`] does for one. Syncing them together
    /// may cost little more than syncing one.
    ///
    /// # Errors
    /// As [`WriteFile::sync`]; none of the files counts as synced then.
    fn sync_files(&self, files: &[Arc<dyn WriteFile>]) -> Result<()> {
        files.iter().try_for_each(|file| file.sync())
    }

    /// Makes the entries of a directory durable.
    ///
    /// # Errors
    /// The system's.
    fn sync_dir(&self, dir: &Path) -> Result<()>;

    /// Lets those who use the directory `dir` read `path` in it, a file or directory that this process has made, even
    /// if it belongs to another user or makes files that are private. A hint: there is nothing to do where files have
    /// no owners, and what the system refuses stays as it is.
    fn share_with_users_of(&self, _dir: &Path, _path: &Path) {}

    /// How many bytes can still be appended to files in the directory `dir`, where the system reports it. User quotas
    /// are not seen.
    fn free_bytes(&self, _dir: &Path) -> Option<u64> {
        None
    }

    /// Bytes of the files that are read through their mappings.
    fn mapped_bytes(&self) -> u64 {
        0
    }

    /// How many bytes must be free in the directory `dir` for its smallest change, beyond what the change itself
    /// writes. A copy-on-write file system needs them during a rename or an overwrite.
    fn change_bytes(&self, _dir: &Path) -> u64 {
        0
    }

    /// Makes the space of what was deleted or overwritten in the directory `dir` free. Only a copy-on-write file system
    /// has anything to do: it frees that space later, and until then does not report it as free.
    ///
    /// # Errors
    /// The system's.
    fn finish_deletes(&self, _dir: &Path) -> Result<()> {
        Ok(())
    }

    /// Makes the file `path`, which nothing reads, occupy this many bytes of the disk. The file is created if needed.
    /// With 0 it is removed, and its space is free when this returns.
    ///
    /// # Errors
    /// The system's; "unsupported" where a file system cannot reserve space. The file may still occupy what it did
    /// before.
    fn reserve(&self, path: &Path, _bytes: u64) -> Result<()> {
        Err(Error::io("reserve space by", path, ErrorKind::Unsupported.into()))
    }

    /// Takes a lock on `path`, creating the file if needed. The lock ends when the returned object is dropped or the
    /// process ends.
    ///
    /// # Errors
    /// [`Error::Locked`] when another holder excludes it; else the system's.
    fn lock(&self, path: &Path, mode: LockMode) -> Result<Box<dyn FileLock>>;

    /// The file system to use in the directory `dir` from now on, if it is another one: one where small appends cost
    /// no system call. Takes over what a killed process has appended. The caller has locked the directory. Everything
    /// appended is in its files when the returned lock ends.
    ///
    /// # Errors
    /// The system's.
    fn append_region(&self, _dir: &Path, lock: DirLock, _how: Appending) -> Result<AppendRegion> {
        Ok(AppendRegion { fs: None, lock: lock.lock, catch_up: None })
    }
}

/// What can be at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// A directory.
    Directory,
    /// A symbolic link, wherever it points.
    Link,
    /// A file of any other kind.
    File,
}

/// How files for many small appends are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appending {
    /// For how many files at once small appends are staged, each with [`APPEND_SLOT_BYTES`].
    pub files_max: usize,
    /// How these files' short reads are done.
    pub reads: Reads,
    /// Bytes of files that may be mapped and read at once. Files beyond that are read by calls, or others that were not
    /// read recently give their pages back.
    pub mapped_bytes_max: u64,
}

/// How short reads are done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reads {
    /// By system calls. Nothing is mapped, not for appends either, so there is no handler for `SIGBUS`.
    #[default]
    Called,
    /// From the file's pages, mapped into the process, where the system can do that: several times as fast when they
    /// are in memory. A failing disk is still an error, but the process has a handler for `SIGBUS`, and pages of
    /// files count as its (shared) resident memory.
    Mapped,
    /// Mapped while nearly all that is read is in memory, called while it is not: a call reads a record on two pages
    /// at once, and nothing stays mapped that is read once.
    Auto,
    /// By system calls that go past the system's cache and leave it as it was. Appends are mapped.
    Direct,
}

impl Reads {
    /// Whether anything may be mapped: files, or appends alone.
    #[must_use]
    pub fn may_map(self) -> bool {
        self != Self::Called
    }

    /// Whether files may be mapped.
    #[must_use]
    pub fn maps_files(self) -> bool {
        matches!(self, Self::Mapped | Self::Auto)
    }
}

/// The lock of a directory.
#[derive(Debug)]
pub struct DirLock {
    /// The lock.
    pub lock: Box<dyn FileLock>,
    /// What it is taken for.
    pub used: DirUse,
}

/// What a directory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirUse {
    /// Writing, by nobody else.
    Write,
    /// Reading while nobody writes.
    Read,
    /// Reading, perhaps while another process writes.
    Follow,
}

/// What a reader sees of the appends that a writing process has not yet written to their files.
pub trait CatchUp: Send + Sync + Debug {
    /// Looks again. From then on, the length and the contents of each file include all that was appended before this
    /// call.
    ///
    /// # Errors
    /// The system's; damage that a newer release would not cause.
    fn catch_up(&self) -> Result<()>;
}

/// See [`FileSystem::append_region`].
#[derive(Debug)]
pub struct AppendRegion {
    /// The file system to use, if it is another one.
    pub fs: Option<Arc<dyn FileSystem>>,
    /// Keep this as long as the directory is used.
    pub lock: Box<dyn FileLock>,
    /// For [`DirUse::Follow`].
    pub catch_up: Option<Arc<dyn CatchUp>>,
}

/// The name of an append region's file, in the directory that the region serves.
pub const APPENDS_NAME: &str = "APPENDS";

/// Memory that an append region needs for each file.
pub const APPEND_SLOT_BYTES: u64 = 36 << 10;

/// A file for small appends.
#[derive(Clone, Debug)]
pub struct Appended {
    /// To append.
    pub writer: Arc<dyn WriteFile>,
    /// To read, including what was just appended.
    pub reader: Arc<dyn ReadFile>,
}

/// Whether a lock allows other holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// No other holder.
    Exclusive,
    /// Other shared holders only.
    Shared,
}

/// A lock that ends when dropped.
pub trait FileLock: Send + Sync + Debug {}

/// A file being appended to. Several threads may sync while one appends.
pub trait WriteFile: Send + Sync + Debug {
    /// Appends the slices in order, as one piece. When this returns, the operating system has the bytes: a killed
    /// process loses none of them. After an error the file may end with some of them.
    ///
    /// # Errors
    /// The system's.
    fn append(&self, parts: &[&[u8]]) -> Result<()>;

    /// Makes everything appended before the call durable, and the file's length with it.
    ///
    /// # Errors
    /// The system's. The file must not be used for new data after a failed sync.
    fn sync(&self) -> Result<()>;

    /// Asks the system to start writing out what was appended so far, without waiting, so that a later sync is short.
    fn start_writeback(&self) {}
}

/// A file open for reading at any offset. Hints have no default: a file that passes on to another one and forgot a hint
/// would only be slow.
pub trait ReadFile: Send + Sync + Debug {
    /// The file's length, in bytes, at the time of the call.
    ///
    /// # Errors
    /// The system's.
    fn len(&self) -> Result<u64>;

    /// Whether the file is empty.
    ///
    /// # Errors
    /// The system's.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `buffer` with the bytes from `offset` on.
    ///
    /// # Errors
    /// The system's; "unexpected end of file" when the file ends before the buffer is full.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()>;

    /// As [`ReadFile::read_at`], for bytes that are read once, in order: where the system can do that, its cache has
    /// afterwards what it had before.
    ///
    /// # Errors
    /// As [`ReadFile::read_at`].
    fn read_once(&self, buffer: &mut [u8], offset: u64) -> Result<()>;

    /// As [`ReadFile::read_at`], for one of many short reads anywhere: where the system can do that, the bytes come
    /// from the device, and its cache has afterwards what it had before. What it has already is read from there.
    ///
    /// # Errors
    /// As [`ReadFile::read_at`].
    fn read_past_cache(&self, buffer: &mut [u8], offset: u64) -> Result<()>;

    /// Announces that `len` bytes from `offset` on will be read soon.
    fn prefetch(&self, offset: u64, len: u64);

    /// Whether the byte at `offset` can be read without the device, as far as is known.
    fn is_in_memory(&self, offset: u64) -> bool;

    /// Says that reads will be short and anywhere: the system should read no more than it is asked for.
    fn expect_short_reads(&self);

    /// A reader that also works after the file is closed, if there is one.
    fn mapped(&self) -> Option<Arc<dyn MappedRead>>;
}

/// A file, or the beginning of one, mapped into the process. Reading it does not need the file to be open.
pub trait MappedRead: Send + Sync + Debug {
    /// Whether the first `len` bytes are mapped and read that way now. Mapping may have been impossible, or they may be
    /// read by calls while much of what is read is not in memory.
    fn is_mapped(&self, len: u64) -> bool;

    /// Whether short reads are calls now, wherever they are.
    fn is_called(&self) -> bool;

    /// Fills `buffer` with the bytes from `offset` on if they are mapped and reading them this way is better.
    /// Otherwise returns `false`.
    fn read(&self, buffer: &mut [u8], offset: u64) -> bool;

    /// Announces that `len` bytes from `offset` on will be read soon, if they are mapped.
    fn prefetch(&self, offset: u64, len: u64) -> bool;

    /// Prefetches into the processor's caches what is in memory of `len` bytes from `offset` on, if they are mapped.
    fn touch(&self, offset: u64, len: u64);

    /// Whether a short read of `len` bytes from `offset` on needs no device access; `None` where they are not mapped.
    fn is_in_memory(&self, offset: u64, len: u64) -> Option<bool>;

    /// The same for a window of a scan, as far as is known without a system call for each.
    fn is_window_in_memory(&self, offset: u64, len: u64) -> Option<bool>;
}
