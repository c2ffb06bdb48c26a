//! One file whose appends go through a slot of the region.

use std::{
    fs::File,
    io::{self, ErrorKind},
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
};

use bifold_contract::{Error, Result};

use super::{
    Region,
    pages::Pages,
    slots::{APPENDS_MAX, ROOM, Slot},
};
use crate::fs::{MappedRead, ReadFile, WriteFile};

/// Larger appends go to the file at once.
const STAGED_MAX: usize = ROOM / 2;

/// A file with its last appends in a slot.
#[derive(Debug)]
pub struct StagedFile {
    file: File,
    path: PathBuf,
    region: Arc<Region>,
    /// The file itself: what is written to it is read without the lock.
    pages: Arc<Pages>,
    staged: Mutex<Staged>,
}

#[derive(Debug, Default)]
struct Staged {
    slot: Option<Slot>,
    /// Appends and bytes in the slot.
    appends: usize,
    bytes: usize,
    /// Nothing is written any more: the file is closed, or a write has failed.
    ended: bool,
    /// Who appended has let go of it.
    is_closed: bool,
    /// It is closed, and the file holds everything.
    is_whole: bool,
}

impl StagedFile {
    pub(super) fn new(file: File, path: PathBuf, pages: Arc<Pages>, region: Arc<Region>) -> Arc<Self> {
        Arc::new(Self { file, path, region, pages, staged: Mutex::default() })
    }

    fn staged(&self) -> MutexGuard<'_, Staged> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn written(&self) -> u64 {
        self.pages.written()
    }

    /// Writes what is staged to the file.
    fn flush(&self, staged: &mut Staged) -> io::Result<()> {
        if staged.ended {
            return Err(io::Error::other("the file is closed, or an earlier write to it has failed"));
        }
        let Some(slot) = staged.slot.as_ref().filter(|_| staged.bytes > 0) else { return Ok(()) };
        let (base, bytes) = (self.written(), staged.bytes);
        self.file.write_all_at(slot.bytes(bytes), base).inspect_err(|_| staged.ended = true)?;
        self.pages.set_written(base + bytes as u64);
        slot.flushed(base + bytes as u64);
        (staged.bytes, staged.appends) = (0, 0);
        Ok(())
    }

    fn write_through(&self, staged: &mut Staged, parts: &[&[u8]]) -> io::Result<()> {
        self.flush(staged)?;
        let mut end = self.written();
        for part in parts {
            self.file.write_all_at(part, end).inspect_err(|_| staged.ended = true)?;
            end += part.len() as u64;
        }
        self.pages.set_written(end);
        staged.slot.iter().for_each(|slot| slot.flushed(end));
        Ok(())
    }

    /// An append that crosses a multiple of [`ROOM`] is cut there, so that whole slots are written where pages begin: the
    /// system then has one piece of memory for them instead of nine, a third less work.
    fn append(self: &Arc<Self>, parts: &[&[u8]]) -> io::Result<()> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let mut staged = self.staged();
        if bytes == 0 {
            return Ok(());
        }
        if bytes > STAGED_MAX || staged.ended {
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
    fn room(&self, staged: &Staged) -> usize {
        ROOM - ((self.written() + staged.bytes as u64) % ROOM as u64) as usize
    }

    /// Puts an append, or a part of one, into the slot. It does not cross a multiple of [`ROOM`].
    fn stage(self: &Arc<Self>, staged: &mut Staged, parts: &[&[u8]]) -> io::Result<()> {
        if staged.appends == APPENDS_MAX || self.room(staged) == ROOM {
            self.flush(staged)?;
        }
        if staged.slot.is_none() {
            staged.slot = self.region.take(self, &self.path, self.written());
        }
        let Some(slot) = &staged.slot else { return self.write_through(staged, parts) };
        slot.push(parts, staged.appends, staged.bytes, self.written() + staged.bytes as u64);
        staged.bytes += parts.iter().map(|part| part.len()).sum::<usize>();
        staged.appends += 1;
        Ok(())
    }

    /// Lets another file have the slot, unless this one is in use just now.
    pub(super) fn give_up_slot(&self) -> bool {
        match self.staged.try_lock() {
            Ok(mut staged) => self.flush(&mut staged).is_ok() && staged.slot.take().is_some(),
            Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => false,
        }
    }

    /// Writes out what is staged and gives back the slot; what cannot be written stays there, for the next opening. Nothing
    /// is appended any more.
    pub(super) fn close(&self) {
        let mut staged = self.staged();
        if staged.is_closed {
            return;
        }
        let written = self.flush(&mut staged);
        staged.is_whole = written.is_ok();
        match (staged.slot.take(), written) {
            (Some(slot), Ok(())) => slot.free(),
            (Some(slot), Err(_)) => slot.leave(),
            (None, _) => {}
        }
        (staged.ended, staged.is_closed) = (true, true);
        self.pages.map(&self.file);
    }

    /// Whether nobody appends to it any more.
    pub(super) fn is_closed(&self) -> bool {
        self.staged().is_closed
    }

    /// Bytes in the file and staged.
    pub(super) fn total(&self) -> u64 {
        let staged = self.staged();
        self.written() + staged.bytes as u64
    }

    /// Cuts the file, and goes on from there.
    pub(super) fn truncate(&self, len: u64) -> Result<()> {
        let mut staged = self.staged();
        let mut cut = || {
            self.flush(&mut staged)?;
            self.file.set_len(len)?;
            self.file.sync_data()?;
            // Offsets after the cut are used again: appends of before must not count there.
            staged.slot.take().into_iter().for_each(Slot::free);
            self.pages.set_written(len);
            Ok(())
        };
        cut().map_err(|e| Error::io("truncate", &self.path, e))
    }

    /// Has the file hold everything. One that is closed does so already, unless what was staged could not be written.
    pub(super) fn settle(&self) -> Result<()> {
        let mut staged = self.staged();
        if staged.is_whole && cfg!(not(planted = "settle_closed")) {
            return Ok(());
        }
        self.flush(&mut staged).map_err(|e| Error::io("append to", &self.path, e))
    }
}

/// The side that appends. When it is dropped the file holds everything.
#[derive(Debug)]
pub(super) struct StagedWriter(pub Arc<StagedFile>);

impl WriteFile for StagedWriter {
    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        self.0.append(parts).map_err(|e| Error::io("append to", &self.0.path, e))
    }

    fn sync(&self) -> Result<()> {
        self.0.settle()?;
        self.0.file.sync_data().map_err(|e| Error::io("sync", &self.0.path, e))
    }
}

impl Drop for StagedWriter {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl ReadFile for StagedFile {
    fn len(&self) -> Result<u64> {
        Ok(self.total())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let mut read = || {
            let end = offset + buffer.len() as u64;
            if end <= self.written() {
                let is_read = self.pages.read_or_map(&self.file, buffer, offset);
                return if is_read { Ok(()) } else { self.file.read_exact_at(buffer, offset) };
            }
            let staged = self.staged();
            let written = self.written();
            let in_file = usize::try_from(written.saturating_sub(offset)).map_or(buffer.len(), |n| n.min(buffer.len()));
            let (before, after) = buffer.split_at_mut(in_file);
            let from = usize::try_from((offset + in_file as u64).saturating_sub(written)).unwrap_or(usize::MAX);
            let bytes = staged.slot.as_ref().map_or(&[][..], |slot| slot.bytes(staged.bytes));
            let bytes = bytes.get(from..).and_then(|rest| rest.get(..after.len()));
            after.copy_from_slice(bytes.ok_or(ErrorKind::UnexpectedEof)?);
            self.file.read_exact_at(before, offset)
        };
        read().map_err(|e| Error::io("read", &self.path, e))
    }

    fn prefetch(&self, offset: u64, len: u64) {
        crate::disk::will_need(&self.file, offset, len);
    }

    fn mapped(&self) -> Option<Arc<dyn MappedRead>> {
        self.pages.is_mapped().then(|| Arc::clone(&self.pages) as Arc<dyn MappedRead>)
    }
}
