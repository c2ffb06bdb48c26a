//! What can be read of a file through its mapping: everything written to it, but not staged appends.
//!
//! It outlives the open file: its readers keep it, and opening the file again finds it.

use std::{
    fs::File,
    sync::{
        Arc, Weak,
        atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, Ordering::Relaxed},
    },
};

use super::{
    budget::MappedBudget,
    mapped::Mapped,
    residency::{Known, Residency},
};
use crate::fs::{MappedRead, Reads};

/// Where there is no room for more mapped files, a file is read so often by calls before others give back for it: their
/// pages cost a tenth of a millisecond to give back, a call costs a microsecond more than a mapped read.
const READS_BEFORE_ROOM: u32 = 256;

/// It does not count as mapped.
const FREE: u8 = 0;
/// It counts, and was not read since the budget last looked.
const IDLE: u8 = 1;
/// It counts, and was read.
const READ: u8 = 2;

/// The pages of one file.
#[derive(Debug)]
pub(super) struct Pages {
    /// Bytes in the file itself.
    written: AtomicU64,
    /// `None` where short reads are done by calls.
    mapped: Option<Mapped>,
    /// Decides how they are done; `None` where that is fixed.
    residency: Option<Arc<Residency>>,
    /// Knows whether windows of scans are in memory.
    windows: Arc<Residency>,
    budget: Arc<MappedBudget>,
    this: Weak<Self>,
    /// [`FREE`], [`IDLE`] or [`READ`].
    state: AtomicU8,
    /// Bytes that count in the budget.
    counted: AtomicU64,
    /// Reads by calls while there was no room.
    refused: AtomicU32,
}

impl Pages {
    /// The pages of a file with `written` bytes.
    pub fn new(written: u64, reads: Reads, known: &Known, budget: &Arc<MappedBudget>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            written: AtomicU64::new(written),
            mapped: reads.maps_files().then(Mapped::default),
            residency: (reads == Reads::Auto).then(|| Arc::clone(&known.reads)),
            windows: Arc::clone(&known.windows),
            budget: Arc::clone(budget),
            this: Weak::clone(this),
            state: AtomicU8::new(FREE),
            counted: AtomicU64::new(0),
            refused: AtomicU32::new(0),
        })
    }

    /// Bytes in the file itself, which are read without a lock.
    #[inline]
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// From now on the file has `bytes` bytes.
    pub fn set_written(&self, bytes: u64) {
        self.written.store(bytes, Ordering::Release);
        let counts = |counted| (counted > 0 && counted != bytes).then_some(bytes);
        if let Ok(counted) = self.counted.fetch_update(Relaxed, Relaxed, counts) {
            match bytes.checked_sub(counted) {
                Some(more) => self.budget.grow(more),
                None => self.budget.give_back(counted - bytes),
            }
        }
    }

    /// Whether it may be read through a mapping at all.
    pub fn may_be_mapped(&self) -> bool {
        self.mapped.is_some()
    }

    /// Fills `buffer` with what is written at `offset`, mapping it first if needed.
    pub fn read_or_map(&self, file: &File, buffer: &mut [u8], offset: u64) -> bool {
        self.mapped.as_ref().is_some_and(|mapped| self.read_mapped(mapped, Some(file), buffer, offset))
    }

    #[inline]
    fn read_mapped(&self, mapped: &Mapped, file: Option<&File>, buffer: &mut [u8], offset: u64) -> bool {
        let look = || mapped.is_in_memory(offset, buffer.len() as u64);
        let is_cold = self.residency.as_ref().is_some_and(|residency| residency.is_cold(look));
        if is_cold {
            return false;
        }
        // Written only when it changes: readers share the line.
        if self.state.load(Relaxed) != READ && !self.count() {
            return false;
        }
        mapped.read(file, buffer, offset)
    }

    /// Counts the file as mapped, if there is room or will be soon.
    #[cold]
    fn count(&self) -> bool {
        if self.state.compare_exchange(IDLE, READ, Relaxed, Relaxed).is_ok() {
            return true;
        }
        let must = self.refused.fetch_add(1, Relaxed) >= READS_BEFORE_ROOM;
        let Some(this) = self.this.upgrade() else { return false };
        // Taken before the budget is asked: two threads must not count it twice.
        if self.state.compare_exchange(FREE, READ, Ordering::Acquire, Relaxed).is_err() {
            return true;
        }
        let bytes = self.written();
        self.counted.store(bytes, Relaxed);
        let counts = self.budget.take(&this, bytes, must);
        if counts {
            self.refused.store(0, Relaxed);
        } else {
            // It may have grown meanwhile, which was counted.
            self.budget.give_back(self.counted.swap(0, Relaxed).wrapping_sub(bytes));
            self.state.store(FREE, Relaxed);
        }
        counts
    }

    /// Whether it was read since this was last asked.
    pub fn was_read(&self) -> bool {
        self.state.compare_exchange(READ, IDLE, Relaxed, Relaxed).is_ok()
    }

    /// Gives its pages back. They stay in the page cache, and reads of them are as right as before.
    pub fn unmap(&self) {
        if let Some(mapped) = &self.mapped {
            mapped.give_back();
        }
        self.budget.give_back(self.counted.swap(0, Relaxed));
        // Last: from here on it may be counted again.
        self.state.store(FREE, Ordering::Release);
    }

    /// Maps what is written, so that it can be read when the file is closed.
    pub fn map(&self, file: &File) {
        if let Some(mapped) = self.mapped.as_ref().filter(|_| self.written() > 0) {
            mapped.map(file, self.written());
        }
    }

    #[inline]
    fn mapped_up_to(&self, end: u64) -> Option<&Mapped> {
        self.mapped.as_ref().filter(|_| end <= self.written())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.budget.give_back(*self.counted.get_mut());
    }
}

impl MappedRead for Pages {
    fn is_mapped(&self, len: u64) -> bool {
        let is_cold = self.residency.as_ref().is_some_and(|residency| residency.was_cold());
        let has_room = self.state.load(Relaxed) != FREE || self.refused.load(Relaxed) == 0;
        !is_cold && has_room && self.mapped_up_to(len).is_some_and(|mapped| mapped.reaches(len))
    }

    fn is_called(&self) -> bool {
        self.mapped.is_none() || self.residency.as_ref().is_some_and(|residency| residency.was_cold())
    }

    #[inline]
    fn read(&self, buffer: &mut [u8], offset: u64) -> bool {
        let end = offset + buffer.len() as u64;
        self.mapped_up_to(end).is_some_and(|mapped| self.read_mapped(mapped, None, buffer, offset))
    }

    fn prefetch(&self, offset: u64, len: u64) -> bool {
        self.mapped_up_to(offset + len).is_some_and(|mapped| mapped.prefetch(offset, len))
    }

    fn touch(&self, offset: u64, len: u64) {
        if let Some(mapped) = self.mapped_up_to(offset + len) {
            mapped.touch(offset, len);
        }
    }

    fn is_in_memory(&self, offset: u64, len: u64) -> Option<bool> {
        self.mapped_up_to(offset + len)?.is_in_memory(offset, len)
    }

    fn is_window_in_memory(&self, offset: u64, len: u64) -> Option<bool> {
        let mapped = self.mapped_up_to(offset + len)?;
        self.windows.is_window_in_memory(|| mapped.is_in_memory(offset, len))
    }
}
