//! Blocks that a scan leaves out because they cannot be read, and the keys that may be missing because of them.
//!
//! The index has a fence for each block: no key of the block is above it, and none of the next block is below. So the
//! entries of block `n` lie between the fences of `n - 1` and `n`, both included, and nothing more is known of them.
//! One of them may be the newest version of its key, or a tombstone, while an older version lies in another table. So
//! whoever scans must leave out every key between the fences, wherever it is found.
//!
//! Invariant: a cursor notes a block before it is placed behind it. In a merge all cursors are at or behind the current
//! entry, so whichever blocks may have that key have been noted.

use std::sync::{Mutex, PoisonError};

use bifold_contract::{Error, IoSource, Result, Value};
use bifold_format::{
    block::search,
    table::{Place, index::Index},
};

use super::Table;

/// A block that was left out.
#[derive(Clone, Debug)]
pub struct LeftOutBlock {
    /// No key of it is below.
    pub first: Box<[u8]>,
    /// No key of it is above.
    pub last: Box<[u8]>,
    /// Where it starts, in bytes from the start of the file.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// Why it cannot be read, and its file.
    pub error: Error,
}

/// The blocks that the cursors of a scan have left out.
#[derive(Debug, Default)]
pub struct LeftOutBlocks(Mutex<Vec<LeftOutBlock>>);

impl LeftOutBlocks {
    /// Those noted since the last call. A cursor that is placed anew may note a block again.
    #[must_use]
    pub fn take(&self) -> Vec<LeftOutBlock> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn note(&self, block: LeftOutBlock) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(block);
    }
}

impl Table {
    /// Block `at` of `index`, which begins behind `fence` or with the table.
    pub(super) fn left_out(
        &self,
        (index, at): (&Index<'_>, usize),
        fence: Option<Vec<u8>>,
        (place, error): (Place, Error),
    ) -> LeftOutBlock {
        let meta = self.meta();
        let first = at.checked_sub(1).and_then(|before| index.fence(before)).or(fence);
        LeftOutBlock {
            first: first.map_or_else(|| meta.smallest.clone(), Into::into),
            last: index.fence(at).map_or_else(|| meta.largest.clone(), Into::into),
            offset: place.start,
            bytes: place.len(),
            error,
        }
    }

    /// A block of which every entry can be decoded.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub(super) fn sound_block(&self, place: Place) -> Result<Value> {
        let block = self.file.block(place, IoSource::Scan)?;
        search::check_entries(&block).map_err(|damage| self.damage(damage, place))?;
        Ok(block)
    }
}
