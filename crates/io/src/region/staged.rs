//! One file whose appends are staged in slots of the region.

use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
};

use bifold_contract::{Error, Result, planted};

use super::{
    Region,
    ground::{Ground, GroundFile},
    pages::Pages,
    slots::{APPENDS_MAX, Slot, Taking},
};
use crate::fs::WriteFile;

mod reads;

/// File systems allocate space in blocks of this size or smaller.
const BLOCK_BYTES: u64 = 4096;

/// A file has at most so many full slots that wait to be written. Then appends wait, too.
const FULL_MAX: usize = 8;

/// A file and its last appends, which are in slots.
///
/// ```text
/// the file: everything up to `written` │ full slots, oldest first │ the slot that appends go to
/// ```
///
/// Appends come one at a time; reads, syncs and threads that write full slots may run meanwhile. An append waits for a
/// write to the file only where slots are scarce.
#[derive(Debug)]
pub struct StagedFile<G: Ground> {
    file: G::File,
    path: PathBuf,
    region: Arc<Region<G>>,
    /// The file itself: what is written to it is read without the lock.
    pages: Arc<Pages>,
    /// Held by whoever writes to the file. Taken before `staged`.
    writing: Mutex<()>,
    staged: Mutex<Staged<G>>,
}

#[derive(Debug)]
struct Staged<G: Ground> {
    full: VecDeque<Full<G>>,
    slot: Option<Slot<G>>,
    /// Appends and bytes in the slot.
    appends: usize,
    bytes: usize,
    /// The writer was dropped: nothing is appended any more.
    is_closed: bool,
}

/// A slot that nothing is added to.
#[derive(Debug)]
struct Full<G: Ground> {
    slot: Arc<Slot<G>>,
    appends: usize,
    bytes: usize,
}

impl<G: Ground> Staged<G> {
    /// Bytes in full slots.
    fn full_bytes(&self) -> usize {
        self.full.iter().map(|full| full.bytes).sum()
    }

    /// Nothing is added to the present slot any more.
    fn end_slot(&mut self) {
        if self.bytes > 0
            && let Some(slot) = self.slot.take()
        {
            self.full.push_back(Full { slot: Arc::new(slot), appends: self.appends, bytes: self.bytes });
            (self.bytes, self.appends) = (0, 0);
        }
    }

    /// Appends go on in the newest full slot, which cannot be written now.
    fn resume_slot(&mut self) {
        if self.slot.is_some() {
            return;
        }
        if let Some(Full { slot, appends, bytes }) = self.full.pop_back() {
            match Arc::try_unwrap(slot) {
                Ok(slot) => (self.slot, self.appends, self.bytes) = (Some(slot), appends, bytes),
                Err(slot) => self.full.push_back(Full { slot, appends, bytes }),
            }
        }
    }
}

impl<G: Ground> StagedFile<G> {
    pub(super) fn new(file: G::File, path: PathBuf, pages: Arc<Pages>, region: Arc<Region<G>>) -> Arc<Self> {
        let staged = Staged { full: VecDeque::new(), slot: None, appends: 0, bytes: 0, is_closed: false };
        Arc::new(Self { file, path, region, pages, writing: Mutex::default(), staged: Mutex::new(staged) })
    }

    fn staged(&self) -> MutexGuard<'_, Staged<G>> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is staged, unless nothing may be appended any more.
    fn open(&self) -> io::Result<MutexGuard<'_, Staged<G>>> {
        self.is_ours()?;
        let staged = self.staged();
        if staged.is_closed { Err(io::Error::other("the file is closed")) } else { Ok(staged) }
    }

    /// A forked child shares slots and files with its parent, which goes on appending there.
    fn is_ours(&self) -> io::Result<()> {
        if self.region.is_in_child() {
            return Err(io::Error::other("the process that opened it has forked this one: open the database here"));
        }
        Ok(())
    }

    fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn written(&self) -> u64 {
        self.pages.written()
    }

    /// Whether some of these bytes are not in the file yet.
    fn is_staged(&self, len: usize, offset: u64) -> bool {
        offset + len as u64 > self.written()
    }

    /// Where the next append belongs.
    fn end(&self, staged: &Staged<G>) -> u64 {
        self.written() + (staged.full_bytes() + staged.bytes) as u64
    }

    /// The space that staged bytes may take on the disk, in whole blocks.
    pub(super) fn staged_space(&self) -> u64 {
        let staged = self.staged();
        match (staged.full_bytes() + staged.bytes) as u64 {
            0 => 0,
            bytes => bytes + BLOCK_BYTES,
        }
    }

    /// Writes the oldest full slot to the file and frees it; `false` where there is none. What cannot be written stays,
    /// and a killed process does not lose it there either; a later attempt writes it to the same place.
    fn write_oldest(&self, _held: &MutexGuard<'_, ()>) -> io::Result<bool> {
        self.is_ours()?;
        let (slot, bytes, base) = match self.staged().full.front() {
            Some(full) => (Arc::clone(&full.slot), full.bytes, self.written()),
            None => return Ok(false),
        };
        if planted!("free_unwritten_slots") {
            slot.free();
        }
        let written = slot.with(bytes, |bytes| self.file.write_all_at(bytes, base));
        let mut staged = self.staged();
        if let Err(error) = written.and_then(|written| written) {
            drop(slot);
            staged.resume_slot();
            return Err(error);
        }
        self.pages.set_written(base + bytes as u64);
        staged.full.pop_front();
        slot.free();
        Ok(true)
    }

    /// Writes all full slots.
    fn write_full(&self, held: &MutexGuard<'_, ()>) -> io::Result<()> {
        while self.write_oldest(held)? {}
        Ok(())
    }

    /// Writes the oldest full slot. What fails is reported by the next sync.
    pub(super) fn write_full_slot(&self) {
        let _tried_again = self.write_oldest(&self.writing());
    }

    /// Writes all full slots, unless somebody else is writing to the file. If they do not see the last slot any more,
    /// it waits for the next one. When the file is closed, the directory may soon belong to another process.
    pub(super) fn write_full_slots(&self) {
        if let Ok(held) = self.writing.try_lock()
            && !self.is_closed()
        {
            let _tried_again = self.write_full(&held);
        }
    }

    /// Writes everything staged to the file.
    fn flush(&self, held: &MutexGuard<'_, ()>) -> io::Result<()> {
        self.is_ours()?;
        self.staged().end_slot();
        self.write_full(held)
    }

    /// Appends without a slot.
    fn write_through(&self, parts: &[&[u8]]) -> io::Result<()> {
        let held = self.writing();
        self.flush(&held)?;
        let mut staged = self.open()?;
        // Once a store has failed, appends are plain ones.
        staged.slot.take_if(|slot| slot.is_broken()).iter().for_each(Slot::free);
        let mut end = self.written();
        for part in parts {
            self.file.write_all_at(part, end)?;
            end += part.len() as u64;
        }
        self.pages.set_written(end);
        staged.slot.iter().for_each(|slot| slot.flushed(end));
        Ok(())
    }

    /// An append that crosses a multiple of [`Ground::FULL`] is split there, so that whole slots are written at page
    /// boundaries: the system then has one piece of memory for them instead of nine, a third less work.
    fn append(self: &Arc<Self>, parts: &[&[u8]]) -> io::Result<()> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes == 0 {
            return Ok(());
        }
        let room = self.room(&*self.open()?);
        // Large ones go directly to the file.
        if bytes > G::FULL / 2 {
            return self.write_through(parts);
        }
        if bytes <= room {
            return self.stage(parts, bytes);
        }
        let whole = parts.concat();
        let (before, behind) = whole.split_at(room);
        self.stage(&[before], before.len())?;
        self.stage(&[behind], behind.len())
    }

    /// Bytes up to the next multiple of [`Ground::FULL`].
    fn room(&self, staged: &Staged<G>) -> usize {
        G::FULL - (self.end(staged) % G::FULL as u64) as usize
    }

    /// Whether the present slot may hold so many bytes more. It ends at a multiple of [`Ground::FULL`].
    fn fits(&self, staged: &Staged<G>, bytes: usize) -> bool {
        let base = self.end(staged) - staged.bytes as u64;
        let room = G::FULL - (base % G::FULL as u64) as usize;
        staged.appends < APPENDS_MAX && staged.bytes + bytes <= room
    }

    /// Puts an append, or a piece of one, into a slot. It does not cross a multiple of [`Ground::FULL`].
    fn stage(self: &Arc<Self>, parts: &[&[u8]], bytes: usize) -> io::Result<()> {
        if self.try_stage(parts, bytes)? {
            return Ok(());
        }
        // Slots are scarce: those that are full are written now and serve again.
        self.write_full(&self.writing())?;
        if self.try_stage(parts, bytes)? { Ok(()) } else { self.write_through(parts) }
    }

    /// The same if there is a slot for it.
    fn try_stage(self: &Arc<Self>, parts: &[&[u8]], bytes: usize) -> io::Result<bool> {
        let mut staged = self.open()?;
        if staged.appends == APPENDS_MAX || staged.bytes > 0 && self.room(&staged) == G::FULL {
            staged.end_slot();
            drop(staged);
            self.region.has_full_slot(self);
            staged = self.open()?;
        }
        if !self.fits(&staged, bytes) {
            // A write has failed meanwhile, and the slot that was ended is the present one again.
            return Ok(false);
        }
        let end = self.end(&staged);
        if staged.slot.is_none() && staged.full.len() < FULL_MAX {
            let from = if staged.full.is_empty() { Taking::FromOthers } else { Taking::Free };
            staged.slot = self.region.take(self, &self.path, end, from);
        }
        let Staged { slot, appends, bytes: there, .. } = &mut *staged;
        let is_staged = slot.as_ref().is_some_and(|slot| slot.push(parts, *appends, *there, end));
        if is_staged {
            *there += bytes;
            *appends += 1;
        }
        Ok(is_staged)
    }

    /// Gives the slot to another file, unless this one is in use now.
    ///
    /// # Errors
    /// When the slot's contents cannot be written: then the file keeps the slot.
    pub(super) fn give_up_slot(&self) -> io::Result<bool> {
        self.is_ours()?;
        let Ok(held) = self.writing.try_lock() else { return Ok(false) };
        match self.staged.try_lock() {
            Ok(mut staged) => staged.end_slot(),
            Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => return Ok(false),
        }
        let written = self.write_full(&held);
        let mut staged = self.staged();
        if planted!("swallow_full_disk") && written.is_err() {
            staged.is_closed = true;
            return Ok(false);
        }
        written?;
        if staged.bytes == 0 {
            staged.slot.take().iter().for_each(Slot::free);
        }
        Ok(true)
    }

    /// Writes out what is staged and frees the slots. What cannot be written stays in them for the next opening.
    /// Nothing is appended after this.
    pub(super) fn close(self: &Arc<Self>) {
        if self.region.is_in_child() {
            return;
        }
        let held = self.writing();
        if std::mem::replace(&mut self.staged().is_closed, true) {
            return;
        }
        let flushed = self.flush(&held);
        let mut staged = self.staged();
        if flushed.is_err() {
            staged.end_slot();
            staged.full.iter().for_each(|full| full.slot.leave());
            self.region.keep_unwritten(self);
        }
        staged.slot.take().iter().for_each(Slot::free);
        drop((staged, held));
        if flushed.is_err() {
            self.region.forget_if_removed(&self.path);
        }
        if let Some(file) = self.file.mappable() {
            self.pages.map(file);
        }
    }

    /// Forgets what is staged: the closed file has no name any more.
    pub(super) fn forget_staged(&self) {
        let _held = self.writing();
        let mut staged = self.staged();
        staged.end_slot();
        staged.full.drain(..).for_each(|full| full.slot.free());
    }

    /// Whether it is the file of this name.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        *self.path == *path
    }

    /// Whether nothing is appended to it any more.
    pub(super) fn is_closed(&self) -> bool {
        self.staged().is_closed
    }

    /// Bytes in the file and staged.
    pub(super) fn total(&self) -> u64 {
        self.end(&self.staged())
    }

    /// Truncates the file and continues from there.
    pub(super) fn truncate(&self, len: u64) -> Result<()> {
        let held = self.writing();
        let truncate = || {
            self.flush(&held)?;
            let mut staged = self.staged();
            // Offsets beyond the new end are used again: earlier appends must not count there.
            staged.slot.take().iter().for_each(Slot::free);
            self.region.forget_written()?;
            self.file.truncate(len)?;
            self.pages.set_written(len);
            Ok(())
        };
        truncate().map_err(|e| Error::io("truncate", &self.path, e))
    }

    /// Writes out everything staged. For a closed file this has been done already, unless it failed.
    pub(super) fn write_out(&self) -> Result<()> {
        let held = self.writing();
        if planted!("write_out_of_closed") && self.is_closed() {
            return Err(Error::io("append to", &self.path, io::Error::other("the file is closed")));
        }
        self.flush(&held).map_err(|e| Error::io("append to", &self.path, e))
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
        self.0.file.sync().map_err(|e| Error::io("sync", &self.0.path, e))
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
