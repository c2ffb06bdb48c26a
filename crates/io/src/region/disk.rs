//! The operating system's files under a region.
//!
//! `APPENDS` is mapped on file systems that write in place: there a store always finds the block that `fallocate` has
//! reserved. Other file systems need a new block for every change of an old one and have none on a full disk; the
//! store then raises `SIGBUS`. Every store is guarded even so (`guard.rs`): XFS also needs new blocks when a copy of
//! the file shares its blocks, and another program may truncate the file.

use std::{
    fs::{File, OpenOptions},
    hash::{BuildHasher, RandomState},
    io,
    os::{fd::AsRawFd, unix::fs::FileExt},
    path::Path,
    ptr::{self, NonNull},
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use bifold_contract::{Error, Result, planted};
use rustix::{
    fs::FallocateFlags,
    mm::{Advice, MapFlags, ProtFlags},
};

use super::{
    ground::{AppendPlace, Ground, GroundFile, GroundMap},
    guard::{self, Stores},
    slots::ROOM,
    writer::FullSlots,
};
use crate::{
    disk::{DiskFs, Opened, is_in_memory, read_exactly, retry_if_full, will_need},
    fs::{FileSystem, Reads},
};

/// File systems that write a changed block in place, by `statfs` magic number. Others may do so too, but overlays and
/// network file systems do not report what is beneath them.
const IN_PLACE: [u64; 3] = [EXT, XFS, TMPFS];

/// ext2, ext3 and ext4.
pub(super) const EXT: u64 = 0xEF53;
const XFS: u64 = 0x5846_5342;
const TMPFS: u64 = 0x0102_1994;

/// Real files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disk {
    reads: Reads,
    /// The kind of file system, if it is not to be queried.
    kind: Option<u64>,
}

impl Disk {
    /// Where reads are done by calls there is no handler for `SIGBUS`, and so no mapped appends.
    pub fn new(reads: Reads) -> Self {
        Self { reads, kind: None }
    }

    /// Assumes a file system of this kind.
    #[cfg(test)]
    pub fn of_kind(kind: u64) -> Self {
        Self { reads: Reads::Mapped, kind: Some(kind) }
    }

    fn may_map(self, path: &Path) -> bool {
        let asked = || rustix::fs::statfs(path.parent()?).ok().map(|found| (found.f_type as u64) & 0xFFFF_FFFF);
        let is_in_place = || self.kind.or_else(asked).is_some_and(|kind| IN_PLACE.contains(&kind));
        self.reads.may_map() && (planted!("map_any_file_system") || is_in_place()) && guard::is_set()
    }
}

impl Ground for Disk {
    type File = Opened;
    type Map = DiskMap;

    const GROWTH: usize = 16;
    const FULL: usize = ROOM;

    /// Tests copy the files of a region, which must not change meanwhile.
    fn writes_full_slots(&self) -> FullSlots {
        if self.kind.is_none() { FullSlots::ByThreads } else { FullSlots::ByNextAppend }
    }

    fn fs(&self) -> &dyn FileSystem {
        &DiskFs
    }

    fn create(&self, path: &Path) -> Result<Opened> {
        let dir = || File::open(path.parent().unwrap_or(Path::new(".")));
        let create = || OpenOptions::new().read(true).write(true).create_new(true).open(path);
        retry_if_full(dir, create).map(Opened::from).map_err(|e| Error::io("create", path, e))
    }

    fn open(&self, path: &Path) -> Result<Opened> {
        OpenOptions::new().read(true).write(true).open(path).map(Opened::from).map_err(|e| Error::io("open", path, e))
    }

    fn open_mapped(&self, path: &Path) -> Result<Option<File>> {
        if !self.reads.maps_files() {
            return Ok(None);
        }
        File::open(path).map(Some).map_err(|e| Error::io("open", path, e))
    }

    fn map(&self, path: &Path, bytes: usize) -> Option<DiskMap> {
        if self.may_map(path) { DiskMap::create(path, bytes) } else { None }
    }

    fn give_back(&self, path: &Path, offset: u64, len: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(path)?;
        Ok(rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)?)
    }
}

impl GroundFile for Opened {
    fn len(&self) -> io::Result<u64> {
        self.metadata().map(|found| found.len())
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(&**self, buffer, offset)
    }

    #[cfg(target_os = "linux")]
    fn read_once_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        crate::disk::read_once_at(self, buffer, offset)
    }

    fn read_past_cache(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_past_cache(buffer, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        retry_if_full(|| self.try_clone(), || FileExt::write_all_at(&**self, bytes, offset))
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        retry_if_full(|| self.try_clone(), || self.set_len(len))?;
        self.sync_data()
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn start_writeback(&self) {
        crate::disk::start_writeback(self);
    }

    fn will_need(&self, offset: u64, len: u64) {
        will_need(self, offset, len);
    }

    fn is_in_memory(&self, offset: u64) -> bool {
        is_in_memory(self, offset)
    }

    fn expect_short_reads(&self) {
        read_exactly(self);
    }

    fn mappable(&self) -> Option<&File> {
        Some(self)
    }
}

/// The file `APPENDS`, mapped.
#[derive(Debug)]
pub(crate) struct DiskMap {
    file: File,
    start: NonNull<u8>,
    bytes: usize,
    /// How far the file reaches.
    reserved: AtomicUsize,
    epoch: u64,
    broken: AtomicBool,
}

// SAFETY: it is plain memory, and whoever stores to a place has exclusive use of it.
unsafe impl Send for DiskMap {}
// SAFETY: as above.
unsafe impl Sync for DiskMap {}

impl Drop for DiskMap {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `create` has mapped; whoever stores to it or reads it borrows it.
        let _fails_for_bad_arguments_only = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

impl DiskMap {
    fn create(path: &Path, bytes: usize) -> Option<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).ok()?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at an address that the system chooses; nobody else has it.
        let start = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, access, flags, &file, 0) }.ok()?;
        let start = NonNull::new(start.cast())?;
        let epoch = RandomState::new().hash_one(path);
        Some(Self { file, start, bytes, reserved: AtomicUsize::new(0), epoch, broken: AtomicBool::new(false) })
    }

    /// Lets `copy` use the `len` bytes at `at`.
    #[inline]
    fn guarded<T>(&self, at: usize, len: usize, copy: impl FnOnce(*mut u8) -> T) -> T {
        assert!(at + len <= self.bytes, "slots are within the mapping");
        // SAFETY: within the mapping, as asserted.
        let place = unsafe { self.start.as_ptr().add(at) };
        let to = Stores { file: self.file.as_raw_fd(), origin: self.start.as_ptr(), broken: &self.broken };
        guard::storing(to, place, len, || copy(place))
    }
}

impl GroundMap for DiskMap {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn free_bytes(&self) -> Option<u64> {
        crate::disk::free_bytes(&self.file)
    }

    fn reserve(&self, offset: usize, len: usize) -> bool {
        // If another program has truncated the file, the missing bytes would come back as zeros.
        let is_whole =
            self.file.metadata().is_ok_and(|found| found.len() == self.reserved.load(Ordering::Relaxed) as u64);
        if !is_whole || offset + len > self.bytes {
            return false;
        }
        if rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset as u64, len as u64).is_err() {
            // Some file systems keep what they could allocate.
            let _best_effort = self.file.set_len(offset as u64);
            return false;
        }
        self.reserved.store(offset + len, Ordering::Relaxed);
        true
    }

    fn keep_in_memory(&self, offset: usize, len: usize) {
        assert!(offset + len <= self.bytes, "slots are within the mapping");
        // SAFETY: within the mapping, as asserted; neither changes what is there.
        unsafe {
            let start = self.start.as_ptr().add(offset).cast();
            // Both are hints. Memory that stays in place is never read back from a disk that may fail.
            let _slower = rustix::mm::madvise(start, len, Advice::LinuxPopulateWrite);
            let _evictable = rustix::mm::mlock(start, len);
        }
    }

    #[inline]
    fn store(&self, at: usize, bytes: &[u8]) {
        self.guarded(at, bytes.len(), |place| {
            // SAFETY: within the mapping; nobody else uses this place.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) }
        });
    }

    #[inline]
    fn store_number(&self, at: usize, number: u64) {
        debug_assert!(at.is_multiple_of(8));
        self.guarded(at, 8, |place| {
            // SAFETY: within the mapping, aligned as the mapping is; numbers are stored as atomics only.
            unsafe { AtomicU64::from_ptr(place.cast()) }.store(number.to_le(), Ordering::Release);
        });
    }

    /// As in the default implementation, but guarded once: a guard costs as much as a short copy.
    #[inline]
    fn store_append(&self, parts: &[&[u8]], place: AppendPlace, checksum: impl FnOnce(&[u8]) -> u64) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let (checksum_at, bytes_at) = (place.checksum - place.len, place.bytes - place.len);
        assert!(place.len.is_multiple_of(8) && checksum_at == 8 && bytes_at >= 16, "entries precede bytes");
        self.guarded(place.len, bytes_at + len, |entry| {
            // SAFETY: all of it is within the guarded range, which is within the mapping, and nobody else uses this
            // place; numbers are aligned, as asserted, and only stored as atomics.
            unsafe {
                let mut to = entry.add(bytes_at);
                for part in parts {
                    ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
                    to = to.add(part.len());
                }
                let checksum = checksum(std::slice::from_raw_parts(entry.add(bytes_at), len));
                AtomicU64::from_ptr(entry.add(checksum_at).cast()).store(checksum.to_le(), Ordering::Release);
                AtomicU64::from_ptr(entry.cast()).store((len as u64).to_le(), Ordering::Release);
            }
        });
    }

    #[inline]
    fn with<T>(&self, at: usize, len: usize, look: impl FnOnce(&[u8]) -> T) -> T {
        self.guarded(at, len, |place| {
            // SAFETY: within the mapping, initialised (a file's bytes always are), and nobody stores to this place.
            look(unsafe { std::slice::from_raw_parts(place, len) })
        })
    }

    #[inline]
    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    fn write_number(&self, at: usize, number: u64) -> io::Result<()> {
        FileExt::write_all_at(&self.file, &number.to_le_bytes(), at as u64)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
