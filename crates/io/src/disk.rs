//! The real file system.
//!
//! One system call per append, read and sync; where that is too much, see [`crate::region`]. The kernel keeps the
//! offsets of appends (`O_APPEND`), so a file opened again after a crash continues at its true end.

mod direct;
mod hints;
mod sharing;

use std::{
    fs::{self, File, FileType, OpenOptions, TryLockError},
    io::{self, ErrorKind, IoSlice, Read, Seek, SeekFrom, Write},
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bifold_contract::{Error, Result};

pub(crate) use self::{
    direct::Opened,
    hints::{is_in_memory, read_exactly, read_once_at, will_need},
};
use crate::Opener;
#[cfg(target_os = "linux")]
use crate::fs::{AppendRegion, Appending, DirLock};
use crate::fs::{FileLock, FileSystem, LockMode, MappedRead, PathKind, ReadFile, WriteFile};

/// Bytes that are read and written again at a time.
const AGAIN_BYTES: usize = 1 << 20;

/// The operating system's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskFs;

impl FileSystem for DiskFs {
    fn create(&self, path: &Path) -> Result<Arc<dyn WriteFile>> {
        open_with("create", path, OpenOptions::new().append(true).create_new(true))
    }

    fn open_append(&self, path: &Path) -> Result<Arc<dyn WriteFile>> {
        open_with("open", path, OpenOptions::new().append(true))
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn ReadFile>> {
        let file = File::open(path).map_err(|e| Error::io("open", path, e))?;
        Ok(Arc::new(DiskFile { file: file.into(), path: path.into() }))
    }

    fn open_files_max(&self) -> Option<usize> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        limit.and_then(|files| usize::try_from(files).ok())
    }

    fn truncate(&self, path: &Path, len: u64) -> Result<()> {
        let truncate = || {
            let file = OpenOptions::new().write(true).open(path)?;
            retry_if_full(|| File::open(path), || file.set_len(len))?;
            file.sync_all()
        };
        truncate().map_err(|e| Error::io("truncate", path, e))
    }

    fn write_again(&self, path: &Path, from: u64) -> Result<u64> {
        let again = || {
            let mut file = OpenOptions::new().read(true).write(true).open(path)?;
            let (mut at, end) = (from, file.metadata()?.len());
            let mut buffer = vec![0; usize::try_from(end.saturating_sub(from)).unwrap_or(AGAIN_BYTES).min(AGAIN_BYTES)];
            while at < end {
                let step = usize::try_from(end - at).unwrap_or(AGAIN_BYTES).min(buffer.len());
                file.seek(SeekFrom::Start(at))?;
                file.read_exact(&mut buffer[..step])?;
                retry_if_full(
                    || File::open(path),
                    || {
                        file.seek(SeekFrom::Start(at))?;
                        file.write_all(&buffer[..step])
                    },
                )?;
                at += step as u64;
            }
            file.sync_all()?;
            Ok(end.saturating_sub(from))
        };
        again().map_err(|e| Error::io("write again", path, e))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        retry_if_full(|| File::open(from), || fs::rename(from, to)).map_err(|e| Error::io("rename", from, e))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        fs::remove_file(path).map_err(|e| Error::io("remove", path, e))
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        retry_if_full(|| File::open(from), || fs::hard_link(from, to)).map_err(|e| Error::io("link", to, e))
    }

    fn list(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        entries(dir, |kind| !kind.is_dir()).map_err(|e| Error::io("list", dir, e))
    }

    fn list_dirs(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        entries(dir, |kind| kind.is_dir()).map_err(|e| Error::io("list", dir, e))
    }

    fn len(&self, path: &Path) -> Result<Option<u64>> {
        match fs::metadata(path) {
            Ok(found) => Ok(Some(found.len())),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io("look up", path, e)),
        }
    }

    fn is_shared(&self, path: &Path) -> Result<bool> {
        let found = fs::metadata(path).map_err(|e| Error::io("look up", path, e))?;
        Ok(std::os::unix::fs::MetadataExt::nlink(&found) > 1)
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).map_err(|e| Error::io("create directory", dir, e))
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        fs::remove_dir(dir).map_err(|e| Error::io("remove directory", dir, e))
    }

    fn kind(&self, path: &Path) -> Result<Option<PathKind>> {
        match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() => Ok(Some(PathKind::Directory)),
            Ok(found) if found.is_symlink() => Ok(Some(PathKind::Link)),
            Ok(_) => Ok(Some(PathKind::File)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io("look up", path, e)),
        }
    }

    fn resolve(&self, path: &Path) -> Result<PathBuf> {
        fs::canonicalize(path).map_err(|e| Error::io("look up", path, e))
    }

    fn sync_files(&self, files: &[Arc<dyn WriteFile>]) -> Result<()> {
        sync_together(files)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        // Only Unix lets a directory be opened and synced; elsewhere its entries are the file system's business.
        if cfg!(unix) {
            File::open(dir).and_then(|d| d.sync_all()).map_err(|e| Error::io("sync directory", dir, e))?;
        }
        Ok(())
    }

    fn share_with_users_of(&self, dir: &Path, path: &Path) {
        // Whoever cannot read it says so.
        let _as_far_as_the_system_allows = sharing::share(dir, path);
    }

    fn free_bytes(&self, dir: &Path) -> Option<u64> {
        File::open(dir).ok().and_then(|dir| free_bytes(&dir))
    }

    fn change_bytes(&self, dir: &Path) -> u64 {
        let is_btrfs = File::open(dir).is_ok_and(|dir| is_of_kind(&dir, BTRFS));
        if is_btrfs { BTRFS_CHANGE_BYTES } else { 0 }
    }

    #[cfg(target_os = "linux")]
    fn finish_deletes(&self, dir: &Path) -> Result<()> {
        let finish = || {
            let opened = File::open(dir)?;
            // It ends a transaction; until then the blocks of the one before are in use.
            if is_of_kind(&opened, BTRFS) { Ok(rustix::fs::syncfs(&opened)?) } else { Ok(()) }
        };
        finish().map_err(|e| Error::io("finish deletes in", dir, e))
    }

    #[cfg(target_os = "linux")]
    fn reserve(&self, path: &Path, bytes: u64) -> Result<()> {
        let reserve = || {
            if bytes == 0 {
                fs::remove_file(path)?;
                // On copy-on-write file systems the file's space is only free after this.
                return Ok(rustix::fs::syncfs(File::open(path.parent().unwrap_or(Path::new(".")))?)?);
            }
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
            Ok(rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)?)
        };
        reserve().map_err(|e| Error::io("reserve space by", path, e))
    }

    fn lock(&self, path: &Path, mode: LockMode) -> Result<Box<dyn FileLock>> {
        let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = match open() {
            // A reader of a directory that it may not write to still takes part in locking.
            Err(e) if mode == LockMode::Shared && is_unwritable(&e) => File::open(path),
            other => other,
        }
        .map_err(|e| Error::io("open lock file", path, e))?;
        let taken = match mode {
            LockMode::Exclusive => file.try_lock(),
            LockMode::Shared => file.try_lock_shared(),
        };
        match taken {
            Ok(()) => Ok(Box::new(DiskLock { file, opener: Opener::this() })),
            Err(TryLockError::WouldBlock) => Err(Error::Locked { path: path.into() }),
            Err(TryLockError::Error(e)) => Err(Error::io("lock", path, e)),
        }
    }

    #[cfg(target_os = "linux")]
    fn append_region(&self, dir: &Path, lock: DirLock, how: Appending) -> Result<AppendRegion> {
        crate::region::RegionFs::open(crate::region::Disk::new(how.reads), dir, lock, how)
    }
}

/// Does `work`, which has changed nothing when it finds the disk full. On Btrfs it then syncs the file system, which
/// frees the space of overwritten and removed data, and tries once more.
pub(crate) fn retry_if_full<T>(
    on: impl FnOnce() -> io::Result<File>,
    mut work: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    match work() {
        Err(error) if is_full(&error) => {
            let file = on()?;
            if !is_of_kind(&file, BTRFS) {
                return Err(error);
            }
            sync_file_system(&file)?;
            work()
        }
        other => other,
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Syncs the file system that a file is on.
fn sync_file_system(file: &File) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    return Ok(rustix::fs::syncfs(file)?);
    #[cfg(not(target_os = "linux"))]
    file.sync_all()
}

/// What this process can still write. File systems reserve some space for the privileged, and ext4 and Btrfs some for
/// themselves that they report as free.
pub(crate) fn free_bytes(on: &File) -> Option<u64> {
    let system = rustix::fs::fstatvfs(on).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(system.f_frsize);
    let share = (bytes(system.f_blocks) / KEPT_SHARE).min(KEPT_BYTES);
    let is_root = || rustix::process::geteuid().is_root();
    Some(match () {
        () if is_of_kind(on, BTRFS) => bytes(system.f_bavail).saturating_sub(BTRFS_UNUSED_BYTES + share),
        () if !is_root() => bytes(system.f_bavail),
        () if is_of_kind(on, EXT4) => bytes(system.f_bfree).saturating_sub(share),
        () => bytes(system.f_bfree),
    })
}

/// What ext4 reserves for itself: its "reserved clusters", 2 % of a disk and at most 16 MiB. The same is deducted on
/// Btrfs, which does not count the metadata that a write needs: when nothing could be written, half a megabyte of 64
/// was reported as available.
const KEPT_SHARE: u64 = 50;
const KEPT_BYTES: u64 = 16 << 20;

/// What Btrfs needs free for a rename: 20 nodes of 4 KiB, twice on each of 8 levels. Nodes of other sizes are not
/// stored among data, so filling the disk with data does not take their space.
const BTRFS_CHANGE_BYTES: u64 = 3 << 19;

/// The first mebibyte of a device: Btrfs reports it as available but never uses it.
const BTRFS_UNUSED_BYTES: u64 = 1 << 20;

/// File systems, by `statfs` magic number.
const EXT4: u32 = 0xEF53;
const BTRFS: u32 = 0x9123_683E;

fn is_of_kind(file: &File, kind: u32) -> bool {
    #[cfg(target_os = "linux")]
    return rustix::fs::fstatfs(file).is_ok_and(|system| system.f_type as u32 == kind);
    #[cfg(not(target_os = "linux"))]
    {
        let _used_on_linux_only = (file, kind);
        false
    }
}

fn is_unwritable(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

/// The paths of the entries of a directory that are of some kind, sorted.
fn entries(dir: &Path, are_wanted: impl Fn(FileType) -> bool) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        match entry.file_type() {
            Ok(kind) if are_wanted(kind) => paths.push(entry.path()),
            Ok(_) => {}
            // Some file systems do not say what an entry is. Then it is looked up, and may be gone by now.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    paths.sort_unstable();
    Ok(paths)
}

fn open_with(op: &'static str, path: &Path, options: &mut OpenOptions) -> Result<Arc<dyn WriteFile>> {
    let dir = || File::open(path.parent().unwrap_or(Path::new(".")));
    let file = retry_if_full(dir, || options.open(path)).map_err(|e| Error::io(op, path, e))?;
    Ok(Arc::new(DiskFile { file: file.into(), path: path.into() }))
}

#[derive(Debug)]
pub(crate) struct DiskFile {
    pub file: Opened,
    pub path: PathBuf,
}

impl WriteFile for DiskFile {
    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        append_all(&self.file, parts).map_err(|e| Error::io("append to", &self.path, e))
    }

    fn sync(&self) -> Result<()> {
        // fdatasync: writes the data and what is needed to read it back, including the new length, but not the times.
        self.file.sync_data().map_err(|e| Error::io("sync", &self.path, e))
    }

    fn start_writeback(&self) {
        start_writeback(&self.file);
    }
}

/// Asks the system to begin writing out the dirty pages of a file.
pub(crate) fn start_writeback(file: &File) {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        // SAFETY: a call on an open file that changes no memory. If it fails, the next sync has more to write.
        let _hint = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}

/// Threads that sync many files. Concurrent syncs share the device's flushes: 256 files of 300 KB take a third to a
/// tenth of the time of syncing one after the other.
const SYNC_THREADS: usize = 8;

/// Fewer files per thread are not worth a thread.
const FILES_PER_THREAD: usize = 4;

pub(crate) fn sync_together(files: &[Arc<dyn WriteFile>]) -> Result<()> {
    let threads = (files.len() / FILES_PER_THREAD).min(SYNC_THREADS);
    if threads < 2 {
        return files.iter().try_for_each(|file| file.sync());
    }
    // So the device writes the last file while the first one is synced.
    files.iter().for_each(|file| file.start_writeback());
    let next = AtomicUsize::new(0);
    let sync_some =
        || std::iter::from_fn(|| files.get(next.fetch_add(1, Ordering::Relaxed))).try_for_each(|file| file.sync());
    std::thread::scope(|scope| {
        let started: Vec<_> =
            (1..threads).filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, sync_some).ok()).collect();
        let ended = sync_some();
        let others = started.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        others.fold(ended, |ended, other| ended.and(other))
    })
}

fn append_all(mut file: &File, parts: &[&[u8]]) -> io::Result<()> {
    if let [one] = parts {
        let mut left = *one;
        while !left.is_empty() {
            match retry_if_full(|| file.try_clone(), || file.write(left)) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => left = &left[written..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        return Ok(());
    }
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut left = &mut slices[..];
    // Empty slices at the front would make a complete write look like an end of file.
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match retry_if_full(|| file.try_clone(), || file.write_vectored(left)) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut left, written),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

impl ReadFile for DiskFile {
    fn len(&self) -> Result<u64> {
        self.file.metadata().map(|m| m.len()).map_err(|e| Error::io("look up", &self.path, e))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        read_exact_at(&self.file, buffer, offset).map_err(|e| Error::io("read", &self.path, e))
    }

    fn read_once(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        read_once_at(&self.file, buffer, offset).map_err(|e| Error::io("read", &self.path, e))
    }

    fn read_past_cache(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_past_cache(buffer, offset).map_err(|e| Error::io("read", &self.path, e))
    }

    fn prefetch(&self, offset: u64, len: u64) {
        will_need(&self.file, offset, len);
    }

    fn is_in_memory(&self, offset: u64) -> bool {
        is_in_memory(&self.file, offset)
    }

    fn expect_short_reads(&self) {
        read_exactly(&self.file);
    }

    fn mapped(&self) -> Option<Arc<dyn MappedRead>> {
        None
    }
}

#[cfg(unix)]
pub(crate) fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

#[cfg(not(unix))]
compile_error!("Bifold needs positioned reads, which this crate implements only for Unix systems so far");

#[derive(Debug)]
struct DiskLock {
    file: File,
    /// Who has taken it.
    opener: Opener,
}

impl FileLock for DiskLock {}

impl Drop for DiskLock {
    fn drop(&mut self) {
        // Closing the file would do, except while another thread starts a child: between fork and exec the child also
        // has the file open, and would hold the lock a moment longer. A forked child must not unlock: the lock is one
        // for both, and the parent goes on.
        if !self.opener.is_another() {
            let _closing_unlocks_too = self.file.unlock();
        }
    }
}
