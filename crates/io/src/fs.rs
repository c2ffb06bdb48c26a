//! What Bifold asks of a file system, and what it believes about crashes.
//!
//! **Process crash** (kill, panic): everything that [`WriteFile::append`] accepted stays.
//!
//! **Power loss**: what was synced stays. Of what was appended since the last sync, any subset of 512-byte sectors may
//! be there; the others read as zeros or, where the sector held older bytes of the same file, as those; the file may be
//! shorter than was written. Entries of a directory (create, rename, remove, link) changed since its last
//! [`FileSystem::sync_dir`] may be there or not, each on its own. A sector is never half written. A rename replaces its
//! target as one step.
//!
//! **A failed sync** leaves the unsynced bytes in an unknown state for good: a later sync that succeeds proves nothing.

use std::{
    fmt::Debug,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

use bifold_contract::{Error, Result};

/// A file system. All errors are [`Error::Io`] and name the operation and the path.
pub trait FileSystem: Send + Sync + Debug {
    /// Makes a new, empty file for appending. Fails when it is there already.
    ///
    /// # Errors
    /// The system's.
    fn create(&self, path: &Path) -> Result<Arc<dyn WriteFile>>;

    /// Opens an existing file for appending at its end.
    ///
    /// # Errors
    /// The system's.
    fn open_append(&self, path: &Path) -> Result<Arc<dyn WriteFile>>;

    /// Makes a new, empty file for many small appends, and to read what they bring.
    ///
    /// # Errors
    /// The system's.
    fn create_appended(&self, path: &Path) -> Result<Appended> {
        Ok(Appended { writer: self.create(path)?, reader: self.open(path)? })
    }

    /// Opens an existing file for many small appends at its end, and to read it.
    ///
    /// # Errors
    /// The system's.
    fn open_appended(&self, path: &Path) -> Result<Appended> {
        Ok(Appended { writer: self.open_append(path)?, reader: self.open(path)? })
    }

    /// Opens a file for reading at any place, also while it is being appended to.
    ///
    /// # Errors
    /// The system's.
    fn open(&self, path: &Path) -> Result<Arc<dyn ReadFile>>;

    /// Opens a file for many short reads: where they can do without the file being open, [`ReadFile::mapped`] says how.
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

    /// Cuts a file to `len` bytes and syncs it.
    ///
    /// # Errors
    /// The system's.
    fn truncate(&self, path: &Path, len: u64) -> Result<()>;

    /// Writes what stands from `from` to the end of a file once more, in place, and syncs the file. The bytes stay as they are. What
    /// an earlier sync has failed to write is in the system's cache only, and no later sync would write it; this does.
    ///
    /// # Errors
    /// The system's.
    fn write_again(&self, path: &Path, from: u64) -> Result<()>;

    /// Makes `from` known as `to`, replacing what was there, in one step.
    ///
    /// # Errors
    /// The system's.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Removes a file. Open readers keep their contents.
    ///
    /// # Errors
    /// The system's.
    fn remove(&self, path: &Path) -> Result<()>;

    /// Makes `to` a second name (a hard link) of the file `from`.
    ///
    /// # Errors
    /// The system's.
    fn link(&self, from: &Path, to: &Path) -> Result<()>;

    /// The names of the files in a directory, sorted; directories are left out.
    ///
    /// # Errors
    /// The system's.
    fn list(&self, dir: &Path) -> Result<Vec<PathBuf>>;

    /// The length of a file, or `None` when there is no file of that name.
    ///
    /// # Errors
    /// The system's, other than "not found".
    fn len(&self, path: &Path) -> Result<Option<u64>>;

    /// Whether the file has other names, too: whoever knows those must not find it changed.
    ///
    /// # Errors
    /// The system's.
    fn is_shared(&self, path: &Path) -> Result<bool>;

    /// Makes a directory and those above it; fine when it is there.
    ///
    /// # Errors
    /// The system's.
    fn create_dir_all(&self, dir: &Path) -> Result<()>;

    /// Removes a directory that holds nothing.
    ///
    /// # Errors
    /// The system's; it is an error when something is in it.
    fn remove_dir(&self, dir: &Path) -> Result<()>;

    /// What stands at `path`, `None` when nothing does. A symbolic link is told as such, not followed.
    ///
    /// # Errors
    /// The system's, other than "not found".
    fn kind(&self, path: &Path) -> Result<Option<PathKind>>;

    /// The one path of what stands at `path`: absolute, without symbolic links, `.` and `..`.
    ///
    /// # Errors
    /// The system's.
    fn resolve(&self, path: &Path) -> Result<PathBuf>;

    /// Makes everything durable that was appended to these files, as [`WriteFile::sync`] does for one; together it may cost
    /// little more than for one.
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

    /// How many bytes can still be appended to files in the directory `dir`, where the system says. Quotas of users are not seen.
    fn free_bytes(&self, _dir: &Path) -> Option<u64> {
        None
    }

    /// How many bytes must be free in the directory `dir` for its smallest change, beyond what that writes: a file system that copies what it
    /// changes wants them for the time of a rename, or of a write over what is there.
    fn change_bytes(&self, _dir: &Path) -> u64 {
        0
    }

    /// Has the file `path`, which nobody reads, take so many bytes of the disk. It is made if it is not there. With 0 it is removed,
    /// and others can have its space when this returns.
    ///
    /// # Errors
    /// The system's; "unsupported" where a file system cannot promise space. What the file took before it may take still.
    fn reserve(&self, path: &Path, _bytes: u64) -> Result<()> {
        Err(Error::io("reserve space by", path, ErrorKind::Unsupported.into()))
    }

    /// Takes a lock on `path`, making the file if needed. The lock ends with the returned object or the process.
    ///
    /// # Errors
    /// [`Error::Locked`] when another holder excludes it; else the system's.
    fn lock(&self, path: &Path, mode: LockMode) -> Result<Box<dyn FileLock>>;

    /// The file system to use in the directory `dir` from now on, if it is another one: there, small appends cost no
    /// system call. Takes over what a killed process has appended. Called by who has locked the directory; everything
    /// appended is in its files when the lock that is returned ends.
    ///
    /// # Errors
    /// The system's.
    fn append_region(&self, _dir: &Path, lock: DirLock, _how: Appending) -> Result<AppendRegion> {
        Ok(AppendRegion { fs: None, lock: lock.lock })
    }
}

/// What may stand at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// A directory.
    Directory,
    /// A symbolic link, wherever it leads.
    Link,
    /// A file of any other kind.
    File,
}

/// How files for many small appends are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appending {
    /// For how many files at once small appends are staged, [`APPEND_SLOT_BYTES`] each.
    pub files_max: usize,
    /// How short reads of them are done.
    pub reads: Reads,
}

/// How short reads are done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reads {
    /// By system calls. Nothing is mapped then, for appends neither: there is no handler for `SIGBUS`.
    #[default]
    Called,
    /// From the file's pages, mapped into the process, where the system can do that: several times as fast when they
    /// are in memory. A failing disk is an error all the same, but the process has a handler for `SIGBUS` then, and
    /// pages of files count as its resident memory, as shared ones.
    Mapped,
}

/// The lock of a directory.
#[derive(Debug)]
pub struct DirLock {
    /// The lock.
    pub lock: Box<dyn FileLock>,
    /// Whether it excludes others.
    pub mode: LockMode,
}

/// See [`FileSystem::append_region`].
#[derive(Debug)]
pub struct AppendRegion {
    /// The file system to use, if it is another one.
    pub fs: Option<Arc<dyn FileSystem>>,
    /// To be kept as long as the directory is used.
    pub lock: Box<dyn FileLock>,
}

/// The file of an append region, in the directory that it is for.
pub const APPENDS_NAME: &str = "APPENDS";

/// Memory that an append region needs for each file.
pub const APPEND_SLOT_BYTES: u64 = 36 << 10;

/// A file for small appends.
#[derive(Clone, Debug)]
pub struct Appended {
    /// To append.
    pub writer: Arc<dyn WriteFile>,
    /// To read, what was just appended included.
    pub reader: Arc<dyn ReadFile>,
}

/// Whether a lock admits other holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// No other holder at all.
    Exclusive,
    /// Other shared holders.
    Shared,
}

/// A lock that ends when dropped.
pub trait FileLock: Send + Sync + Debug {}

/// A file being appended to. Several threads may sync while one appends.
pub trait WriteFile: Send + Sync + Debug {
    /// Appends the parts, in order, as one piece. When it returns the bytes are with the operating system: a killed
    /// process loses none of them. After an error the file may end in part of them.
    ///
    /// # Errors
    /// The system's.
    fn append(&self, parts: &[&[u8]]) -> Result<()>;

    /// Makes everything appended before the call durable, and the file's length with it.
    ///
    /// # Errors
    /// The system's. The file must not be used for new data after a failed sync.
    fn sync(&self) -> Result<()>;

    /// Asks the system to begin writing out what was appended so far, without waiting, so that a later sync is short.
    fn start_writeback(&self) {}
}

/// A file open for reading at any place.
pub trait ReadFile: Send + Sync + Debug {
    /// The file's length, in bytes, at the time of the call.
    ///
    /// # Errors
    /// The system's.
    fn len(&self) -> Result<u64>;

    /// Whether the file holds nothing.
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

    /// Announces that `len` bytes from `offset` on will be read soon.
    fn prefetch(&self, _offset: u64, _len: u64) {}

    /// What can be read of the file after it is closed, if anything.
    fn mapped(&self) -> Option<Arc<dyn MappedRead>> {
        None
    }
}

/// A file that is mapped into the process, or parts of it: these need nobody to have it open.
pub trait MappedRead: Send + Sync + Debug {
    /// Whether the first `len` bytes are mapped now: it may have been impossible.
    fn is_mapped(&self, len: u64) -> bool;

    /// Fills `buffer` with the bytes from `offset` on, if they are mapped and that is the better way.
    fn read(&self, buffer: &mut [u8], offset: u64) -> bool;

    /// Announces that `len` bytes from `offset` on will be read soon, if they are mapped.
    fn prefetch(&self, offset: u64, len: u64) -> bool;

    /// Has the processor fetch what is in memory of `len` bytes from `offset` on, if they are mapped.
    fn touch(&self, offset: u64, len: u64);

    /// Whether a short read of `len` bytes from `offset` on can do without the device, as far as is known.
    fn is_in_memory(&self, offset: u64, len: u64) -> bool;
}
