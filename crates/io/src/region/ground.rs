//! What a region runs on: plain files, and one mapped file.
//!
//! | ground | |
//! |---|---|
//! | [`disk`](super::disk) | the operating system's files: an append is a copy into mapped memory, called directly |
//! | [`simulated`](super::simulated) | the simulated disk: a kill keeps every store, a power loss any mix of sectors |

use std::{fmt::Debug, fs::File, io, path::Path};

use bifold_contract::Result;

use super::writer::FullSlots;
use crate::fs::FileSystem;

/// See the module.
pub(crate) trait Ground: Debug + Send + Sync + Sized + 'static {
    /// A file being appended to.
    type File: GroundFile;
    /// The mapped file.
    type Map: GroundMap;

    /// The mapped file grows by this many slots.
    const GROWTH: usize;

    /// A slot is full with so many bytes: at most what it can hold.
    const FULL: usize;

    /// When full slots are written.
    fn writes_full_slots(&self) -> FullSlots;

    /// The file system for everything that the region does not change.
    fn fs(&self) -> &dyn FileSystem;

    /// Creates a new, empty file.
    fn create(&self, path: &Path) -> Result<Self::File>;

    /// Opens an existing file.
    fn open(&self, path: &Path) -> Result<Self::File>;

    /// Opens a file for mapped reads; `None` where reads are not mapped.
    fn open_mapped(&self, path: &Path) -> Result<Option<File>>;

    /// Creates the file `path` and maps `bytes` of it, more than it has yet. `None` where that is impossible, or
    /// where a store might not find its block.
    fn map(&self, path: &Path, bytes: usize) -> Option<Self::Map>;

    /// Frees the space of some bytes of a file, which are zeros from then on.
    fn give_back(&self, path: &Path, offset: u64, len: u64) -> io::Result<()>;
}

/// A file being appended to, by writes at an offset.
pub(crate) trait GroundFile: Debug + Send + Sync + 'static {
    fn len(&self) -> io::Result<u64>;
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// As [`ReadFile::read_once`](crate::fs::ReadFile::read_once).
    fn read_once_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }
    /// As [`ReadFile::read_past_cache`](crate::fs::ReadFile::read_past_cache).
    fn read_past_cache(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Truncates it and syncs it.
    fn truncate(&self, len: u64) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
    /// As [`WriteFile::start_writeback`](crate::fs::WriteFile::start_writeback).
    fn start_writeback(&self) {}
    fn will_need(&self, offset: u64, len: u64);
    /// As [`ReadFile::is_in_memory`](crate::fs::ReadFile::is_in_memory).
    fn is_in_memory(&self, offset: u64) -> bool;
    /// As [`ReadFile::expect_short_reads`](crate::fs::ReadFile::expect_short_reads).
    fn expect_short_reads(&self);
    /// The file to map for reads, where that is possible.
    fn mappable(&self) -> Option<&File>;
}

/// Where an append goes in a slot: its length precedes its checksum, which precedes its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AppendPlace {
    pub len: usize,
    pub checksum: usize,
    pub bytes: usize,
}

/// The mapped file. Whoever stores to a place, or reads what was stored there, has exclusive use of it.
pub(crate) trait GroundMap: Debug + Send + Sync + 'static {
    /// A number that no two mapped files share: the first epoch of its slots.
    fn epoch(&self) -> u64;

    /// How many bytes can still be written to its disk, where the system reports it.
    fn free_bytes(&self) -> Option<u64>;

    /// Extends the file by `len` bytes at `offset`, with their space on the disk, or does nothing and returns
    /// `false`.
    fn reserve(&self, offset: usize, len: usize) -> bool;

    /// Keeps some of it in memory from now on, if the system allows it.
    fn keep_in_memory(&self, offset: usize, len: usize);

    /// Stores bytes. If that fails, the map is broken.
    fn store(&self, at: usize, bytes: &[u8]);

    /// Stores a number, after everything stored before.
    fn store_number(&self, at: usize, number: u64);

    /// Stores an append: its slices one after another, their checksum, and last the length, which makes it count.
    fn store_append(&self, parts: &[&[u8]], place: AppendPlace, checksum: impl FnOnce(&[u8]) -> u64) {
        let mut at = place.bytes;
        for part in parts {
            self.store(at, part);
            at += part.len();
        }
        let len = at - place.bytes;
        self.store_number(place.checksum, self.with(place.bytes, len, checksum));
        self.store_number(place.len, len as u64);
    }

    /// Passes what was stored to `look`. In a broken map these may be zeros.
    fn with<T>(&self, at: usize, len: usize, look: impl FnOnce(&[u8]) -> T) -> T;

    /// Whether a store has failed: then nothing more is stored. What was stored before is in the file, unless another
    /// program has truncated it.
    fn is_broken(&self) -> bool;

    /// Like [`GroundMap::store_number`], by a call that can fail.
    fn write_number(&self, at: usize, number: u64) -> io::Result<()>;

    /// Makes what was stored durable.
    fn sync(&self) -> io::Result<()>;
}
