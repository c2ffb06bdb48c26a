//! What a region stands on: plain files, and one file that is mapped.
//!
//! | ground | |
//! |---|---|
//! | [`disk`](super::disk) | the operating system's files: an append is a copy into mapped memory, called directly |
//! | [`simulated`](super::simulated) | the simulated disk: a killed process leaves every store, a power loss any mix of sectors |

use std::{fmt::Debug, fs::File, io, path::Path};

use bifold_contract::Result;

use crate::fs::FileSystem;

/// See the module.
pub(crate) trait Ground: Debug + Send + Sync + Sized + 'static {
    /// A file being appended to.
    type File: GroundFile;
    /// The mapped file.
    type Map: GroundMap;

    /// The mapped file grows by so many slots.
    const GROWTH: usize;

    /// All that a region leaves as it is.
    fn fs(&self) -> &dyn FileSystem;

    /// Makes a new, empty file.
    fn create(&self, path: &Path) -> Result<Self::File>;

    /// Opens a file that is there.
    fn open(&self, path: &Path) -> Result<Self::File>;

    /// Opens a file whose reads may be mapped; `None` where none are.
    fn open_mapped(&self, path: &Path) -> Result<Option<File>>;

    /// Makes the file `path` and maps `bytes` of it, which it does not have yet. `None` where that cannot be done, or
    /// where a store might not find its block.
    fn map(&self, path: &Path, bytes: usize) -> Option<Self::Map>;

    /// Gives back the space of some bytes of a file, which are zeros from then on.
    fn give_back(&self, path: &Path, offset: u64, len: u64) -> io::Result<()>;
}

/// A file being appended to, by writes at a place.
pub(crate) trait GroundFile: Debug + Send + Sync + 'static {
    fn len(&self) -> io::Result<u64>;
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Cuts it and syncs it.
    fn truncate(&self, len: u64) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
    fn will_need(&self, offset: u64, len: u64);
    /// To map it for reads, where that can be done.
    fn mappable(&self) -> Option<&File>;
}

/// Where an append goes, in one slot: its length is before its checksum, which is before its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AppendPlace {
    pub len: usize,
    pub checksum: usize,
    pub bytes: usize,
}

/// The mapped file. Who stores to a place, or looks at what was stored there, is alone with it.
pub(crate) trait GroundMap: Debug + Send + Sync + 'static {
    /// Another number for every file that is ever mapped.
    fn epoch(&self) -> u64;

    /// How many bytes can still be written to its disk, where the system says.
    fn free_bytes(&self) -> Option<u64>;

    /// Gives the file `len` bytes more, at `offset`, with their space on the disk; or does nothing.
    fn reserve(&self, offset: usize, len: usize) -> bool;

    /// Has some of it in memory from now on, if the system allows it.
    fn keep_in_memory(&self, offset: usize, len: usize);

    /// Stores bytes. When some could not be, the map is broken.
    fn store(&self, at: usize, bytes: &[u8]);

    /// Stores a number, after all that was stored before.
    fn store_number(&self, at: usize, number: u64);

    /// Stores an append: its parts one after another, their checksum, and last the length that makes it count.
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

    /// Shows what was stored. In a broken map that may be zeros.
    fn with<T>(&self, at: usize, len: usize, look: impl FnOnce(&[u8]) -> T) -> T;

    /// Whether something could not be stored: nothing more is stored then. What was stored before is in the file,
    /// unless somebody else has cut it.
    fn is_broken(&self) -> bool;

    /// As [`GroundMap::store_number`], by a call that can fail.
    fn write_number(&self, at: usize, number: u64) -> io::Result<()>;

    /// Makes what was stored durable.
    fn sync(&self) -> io::Result<()>;
}
