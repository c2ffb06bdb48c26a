//! One file whose appends are staged in a slot of the region.

use std::{
    io::{self, ErrorKind},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
};

use bifold_contract::{Error, Result, planted};

use super::{
    Begin, Region,
    ground::{Ground, GroundFile},
    pages::Pages,
    slots::{APPENDS_MAX, ROOM, Slot},
};
use crate::fs::{MappedRead, ReadFile, WriteFile};

/// Larger appends go directly to the file.
const STAGED_MAX: usize = ROOM / 2;

/// File systems allocate space in blocks of this size or smaller.
const BLOCK_BYTES: u64 = 4096;

/// A file and its last appends, which are in a slot.
#[derive(Debug)]
pub struct StagedFile<G: Ground> {
    file: G::File,
    path: PathBuf,
    begin: Begin,
    region: Arc<Region<G>>,
    /// The file itself: what is written to it is read without the lock.
    pages: Arc<Pages>,
    staged: Mutex<Staged<G>>,
}

#[derive(Debug)]
struct Staged<G: Ground> {
    slot: Option<Slot<G>>,
    /// Appends and bytes in the slot.
    appends: usize,
    bytes: usize,
    /// What the file had before it was written again is gone.
    is_cut: bool,
    /// The writer was dropped: nothing is appended any more.
    is_closed: bool,
}

impl<G: Ground> StagedFile<G> {
    pub(super) fn new(
        (file, begin): (G::File, Begin),
        path: PathBuf,
        pages: Arc<Pages>,
        region: Arc<Region<G>>,
    ) -> Arc<Self> {
        let staged = Mutex::new(Staged { slot: None, appends: 0, bytes: 0, is_cut: false, is_closed: false });
        Arc::new(Self { file, path, begin, region, pages, staged })
    }

    fn staged(&self) -> MutexGuard<'_, Staged<G>> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn written(&self) -> u64 {
        self.pages.written()
    }

    /// The space that staged bytes may take on the disk, in whole blocks.
    pub(super) fn staged_space(&self) -> u64 {
        match self.staged().bytes as u64 {
            0 => 0,
            bytes => bytes + BLOCK_BYTES,
        }
    }

    /// Writes what is staged to the file. What cannot be written stays in the slot, where a killed process does not
    /// lose it either; a later attempt writes it to the same place.
    fn flush(&self, staged: &mut Staged<G>) -> io::Result<()> {
        let Some(slot) = staged.slot.as_ref().filter(|_| staged.bytes > 0) else { return Ok(()) };
        let (base, bytes) = (self.written(), staged.bytes);
        slot.with(bytes, |bytes| self.file.write_all_at(bytes, base))??;
        self.pages.set_written(base + bytes as u64);
        slot.flushed(base + bytes as u64);
        (staged.bytes, staged.appends) = (0, 0);
        Ok(())
    }

    fn write_through(&self, staged: &mut Staged<G>, parts: &[&[u8]]) -> io::Result<()> {
        self.flush(staged)?;
        // Once a store has failed, appends are plain ones.
        staged.slot.take_if(|slot| slot.is_broken()).into_iter().for_each(Slot::free);
        let mut end = self.written();
        for part in parts {
            self.file.write_all_at(part, end)?;
            end += part.len() as u64;
        }
        self.pages.set_written(end);
        staged.slot.iter().for_each(|slot| slot.flushed(end));
        Ok(())
    }

    /// An append that crosses a multiple of [`ROOM`] is split there, so that whole slots are written at page
    /// boundaries: the system then has one piece of memory for them instead of nine, a third less work.
    fn append(self: &Arc<Self>, parts: &[&[u8]]) -> io::Result<()> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let mut staged = self.staged();
        if bytes == 0 {
            return Ok(());
        }
        if staged.is_closed {
            return Err(io::Error::other("the file is closed"));
        }
        if bytes > STAGED_MAX {
            return self.write_through(&mut staged, parts);
        }
        let room = self.room(&staged);
        if bytes <= room {
            return self.stage(&mut staged, parts);
        }
        let whole = parts.concat();
        let (before, behind) = whole.split_at(room);
        self.stage(&mut staged, &[before])?;
        self.flush(&mut staged)?;
        self.stage(&mut staged, &[behind])
    }

    /// Bytes up to the next multiple of [`ROOM`].
    fn room(&self, staged: &Staged<G>) -> usize {
        ROOM - ((self.written() + staged.bytes as u64) % ROOM as u64) as usize
    }

    /// Puts an append, or a piece of one, into the slot. It does not cross a multiple of [`ROOM`].
    fn stage(self: &Arc<Self>, staged: &mut Staged<G>, parts: &[&[u8]]) -> io::Result<()> {
        if staged.appends == APPENDS_MAX || self.room(staged) == ROOM {
            self.flush(staged)?;
        }
        if staged.slot.is_none() {
            staged.slot = self.region.take(self, &self.path, self.written());
        }
        let Some(slot) = &staged.slot else { return self.write_through(staged, parts) };
        if !slot.push(parts, staged.appends, staged.bytes, self.written() + staged.bytes as u64) {
            return self.write_through(staged, parts);
        }
        staged.bytes += parts.iter().map(|part| part.len()).sum::<usize>();
        staged.appends += 1;
        Ok(())
    }

    /// Gives the slot to another file, unless this one is in use now.
    ///
    /// # Errors
    /// When the slot's contents cannot be written: then the file keeps the slot.
    pub(super) fn give_up_slot(&self) -> io::Result<bool> {
        match self.staged.try_lock() {
            Ok(mut staged) => {
                let flushed = self.flush(&mut staged);
                if planted!("swallow_full_disk") && flushed.is_err() {
                    staged.is_closed = true;
                    return Ok(false);
                }
                flushed.map(|()| staged.slot.take().is_some())
            }
            Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => Ok(false),
        }
    }

    /// Writes out what is staged and frees the slot. What cannot be written stays in it for the next opening. Nothing
    /// is appended after this.
    pub(super) fn close(self: &Arc<Self>) {
        let mut staged = self.staged();
        if staged.is_closed {
            return;
        }
        match self.flush(&mut staged) {
            Ok(()) => staged.slot.take().into_iter().for_each(Slot::free),
            Err(_) => {
                staged.slot.iter().for_each(Slot::leave);
                self.region.keep_unwritten(self);
            }
        }
        staged.is_closed = true;
        if let Some(file) = self.file.mappable() {
            self.pages.map(file);
        }
    }

    /// Whether nothing is appended to it any more.
    pub(super) fn is_closed(&self) -> bool {
        self.staged().is_closed
    }

    /// Bytes in the file and staged.
    pub(super) fn total(&self) -> u64 {
        let staged = self.staged();
        self.written() + staged.bytes as u64
    }

    /// Truncates the file and continues from there.
    pub(super) fn truncate(&self, len: u64) -> Result<()> {
        let mut staged = self.staged();
        let mut truncate = || {
            self.flush(&mut staged)?;
            // Offsets beyond the new end are used again: earlier appends must not count there.
            staged.slot.take().into_iter().for_each(Slot::free);
            self.region.forget_written()?;
            self.file.truncate(len)?;
            self.pages.set_written(len);
            Ok(())
        };
        truncate().map_err(|e| Error::io("truncate", &self.path, e))
    }

    /// Makes the file durable, and cuts it if it was longer before it was written again.
    fn sync(&self) -> io::Result<()> {
        if self.begin == Begin::Again {
            // With the lock: what is appended meanwhile must not be cut.
            let mut staged = self.staged();
            let written = self.written();
            if !staged.is_cut && self.file.len()? > written {
                self.file.truncate(written)?;
            }
            staged.is_cut = true;
        }
        self.file.sync()
    }

    /// Writes out everything staged. For a closed file this has been done already, unless it failed.
    pub(super) fn write_out(&self) -> Result<()> {
        let mut staged = self.staged();
        if staged.is_closed && planted!("write_out_of_closed") {
            return Err(Error::io("append to", &self.path, io::Error::other("the file is closed")));
        }
        self.flush(&mut staged).map_err(|e| Error::io("append to", &self.path, e))
    }
}

/// The writer. When it is dropped, the file holds everything.
#[derive(Debug)]
pub(super) struct StagedWriter<G: Ground>(pub Arc<StagedFile<G>>);

impl<G: Ground> WriteFile for StagedWriter<G> {
    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        self.0.append(parts).map_err(|e| Error::io("append to", &self.0.path, e))
    }

    fn sync(&self) -> Result<()> {
        if !planted!("sync_staged_bytes_not") {
            self.0.write_out()?;
        }
        self.0.sync().map_err(|e| Error::io("sync", &self.0.path, e))
    }

    fn start_writeback(&self) {
        // What cannot be written stays in the slot, and the next append or sync reports it.
        if self.0.write_out().is_ok() {
            self.0.file.start_writeback();
        }
    }
}

impl<G: Ground> Drop for StagedWriter<G> {
    fn drop(&mut self) {
        self.0.close();
    }
}

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
            let staged = self.staged();
            let written = self.written();
            let in_file = usize::try_from(written.saturating_sub(offset)).map_or(buffer.len(), |n| n.min(buffer.len()));
            let (before, after) = buffer.split_at_mut(in_file);
            let from = usize::try_from((offset + in_file as u64).saturating_sub(written)).unwrap_or(usize::MAX);
            // If everything was written out meanwhile, there may be no slot any more.
            if !after.is_empty() {
                let slot = staged.slot.as_ref().ok_or(ErrorKind::UnexpectedEof)?;
                slot.with(staged.bytes, |bytes| {
                    let there = bytes.get(from..).and_then(|rest| rest.get(..after.len()));
                    there.map(|there| after.copy_from_slice(there)).ok_or(ErrorKind::UnexpectedEof)
                })??;
            }
            if before.is_empty() { Ok(()) } else { self.file.read_exact_at(before, offset) }
        };
        read().map_err(|e: io::Error| Error::io("read", &self.path, e))
    }

    fn read_once(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let is_staged = offset + buffer.len() as u64 > self.written();
        if is_staged && !planted!("read_once_unstaged") {
            return self.read_at(buffer, offset);
        }
        self.file.read_once_at(buffer, offset).map_err(|e| Error::io("read", &self.path, e))
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.file.will_need(offset, len);
    }

    fn expect_short_reads(&self) {
        self.file.expect_short_reads();
    }

    fn mapped(&self) -> Option<Arc<dyn MappedRead>> {
        self.pages.may_be_mapped().then(|| Arc::clone(&self.pages) as Arc<dyn MappedRead>)
    }
}
