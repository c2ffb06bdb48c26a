//! What can be read of a file through its mapping: everything written to it, but not staged appends.
//!
//! It outlives the open file: its readers keep it, and opening the file again finds it.

use std::{
    fs::File,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{mapped::Mapped, residency::Residency};
use crate::fs::{MappedRead, Reads};

/// The pages of one file.
#[derive(Debug)]
pub(super) struct Pages {
    /// Bytes in the file itself.
    written: AtomicU64,
    /// `None` where short reads are done by calls.
    mapped: Option<Mapped>,
    /// Decides how they are done; `None` where that is fixed.
    residency: Option<Arc<Residency>>,
}

impl Pages {
    /// The pages of a file with `written` bytes.
    pub fn new(written: u64, reads: Reads, residency: &Arc<Residency>) -> Self {
        Self {
            written: AtomicU64::new(written),
            mapped: reads.may_map().then(Mapped::default),
            residency: (reads == Reads::Auto).then(|| Arc::clone(residency)),
        }
    }

    /// Bytes in the file itself, which are read without a lock.
    #[inline]
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// From now on the file has `bytes` bytes.
    pub fn set_written(&self, bytes: u64) {
        self.written.store(bytes, Ordering::Release);
    }

    pub fn is_mapped(&self) -> bool {
        self.mapped.is_some()
    }

    /// Fills `buffer` with what is written at `offset`, mapping it first if needed.
    pub fn read_or_map(&self, file: &File, buffer: &mut [u8], offset: u64) -> bool {
        self.mapped.as_ref().is_some_and(|mapped| self.read_mapped(mapped, Some(file), buffer, offset))
    }

    #[inline]
    fn read_mapped(&self, mapped: &Mapped, file: Option<&File>, buffer: &mut [u8], offset: u64) -> bool {
        let look = || mapped.look(offset, buffer.len() as u64);
        let is_cold = self.residency.as_ref().is_some_and(|residency| residency.is_cold(look));
        !is_cold && mapped.read(file, buffer, offset)
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

impl MappedRead for Pages {
    fn is_mapped(&self, len: u64) -> bool {
        self.mapped_up_to(len).is_some_and(|mapped| mapped.reaches(len))
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

    fn is_in_memory(&self, offset: u64, len: u64) -> bool {
        self.mapped_up_to(offset + len).is_none_or(|mapped| mapped.is_in_memory(offset, len))
    }
}
