//! How a file is read whose last bytes are staged.

use std::{
    io::{self, ErrorKind},
    sync::Arc,
};

use bifold_contract::{Error, Result, planted};

use super::{Ground, GroundFile, Staged, StagedFile};
use crate::fs::{MappedRead, ReadFile};

impl<G: Ground> ReadFile for StagedFile<G> {
    fn len(&self) -> Result<u64> {
        Ok(self.total())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let mut read = || {
            let end = offset + buffer.len() as u64;
            if end <= self.written() {
                let read_mapped = |file| self.pages.read_or_map(file, buffer, offset);
                return if self.file.mappable().is_some_and(read_mapped) {
                    Ok(())
                } else {
                    self.file.read_exact_at(buffer, offset)
                };
            }
            if self.region.is_in_child() {
                self.read_in_child(buffer, offset)
            } else {
                self.read_staged(buffer, offset)
            }
        };
        read().map_err(|e: io::Error| Error::io("read", &self.path, e))
    }

    fn read_once(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        if self.is_staged(buffer.len(), offset) && !planted!("read_once_unstaged") {
            return self.read_at(buffer, offset);
        }
        self.file.read_once_at(buffer, offset).map_err(|e| Error::io("read", &self.path, e))
    }

    fn read_past_cache(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        if self.is_staged(buffer.len(), offset) && !planted!("read_past_cache_unstaged") {
            return self.read_at(buffer, offset);
        }
        self.file.read_past_cache(buffer, offset).map_err(|e| Error::io("read", &self.path, e))
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.file.will_need(offset, len);
    }

    fn is_in_memory(&self, offset: u64) -> bool {
        offset >= self.written() || self.file.is_in_memory(offset) || planted!("written_is_in_memory")
    }

    fn expect_short_reads(&self) {
        self.file.expect_short_reads();
    }

    fn mapped(&self) -> Option<Arc<dyn MappedRead>> {
        self.pages.may_be_mapped().then(|| Arc::clone(&self.pages) as Arc<dyn MappedRead>)
    }
}

impl<G: Ground> StagedFile<G> {
    /// Reads bytes of which some are staged.
    fn read_staged(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let staged = self.staged();
        let written = self.written();
        let (before, after) = buffer.split_at_mut(bytes_below(written, offset, buffer.len()));
        let from = (offset + before.len() as u64).saturating_sub(written);
        Self::copy_staged(&staged, usize::try_from(from).unwrap_or(usize::MAX), after)?;
        if before.is_empty() { Ok(()) } else { self.file.read_exact_at(before, offset) }
    }

    /// The same in a forked child. Its parent has written more since, and uses the slots again: what a slot had counts
    /// only if it is still not in the file afterwards.
    fn read_in_child(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let read = self.read_staged(buffer, offset);
        match bytes_below(self.file.len()?, offset, buffer.len()) {
            0 => read,
            all if all == buffer.len() => self.file.read_exact_at(buffer, offset),
            some => read.and_then(|()| self.file.read_exact_at(&mut buffer[..some], offset)),
        }
    }

    /// Copies staged bytes, from the one at `from` on.
    fn copy_staged(staged: &Staged<G>, mut from: usize, mut buffer: &mut [u8]) -> io::Result<()> {
        let full = staged.full.iter().map(|full| (&*full.slot, full.bytes));
        for (slot, bytes) in full.chain(staged.slot.iter().map(|slot| (slot, staged.bytes))) {
            let here = bytes.saturating_sub(from).min(buffer.len());
            let (now, later) = std::mem::take(&mut buffer).split_at_mut(here);
            if here > 0 {
                slot.with(bytes, |bytes| now.copy_from_slice(&bytes[from..from + here]))?;
            }
            (from, buffer) = (from.saturating_sub(bytes), later);
        }
        if buffer.is_empty() { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
    }
}

/// How many of `len` bytes at `offset` are in a file of `file_bytes`.
fn bytes_below(file_bytes: u64, offset: u64, len: usize) -> usize {
    usize::try_from(file_bytes.saturating_sub(offset)).map_or(len, |bytes| bytes.min(len))
}
