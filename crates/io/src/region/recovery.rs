//! Recovery: appends that a killed process has left in `APPENDS` are put back into their files.

use std::{
    io::ErrorKind,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
};

use bifold_contract::{Error, Result, planted};

use super::{
    Region,
    ground::{Ground, GroundFile},
    slots::{Left, SLOT_BYTES},
};
use crate::{
    fs::{APPENDS_NAME, MappedRead, ReadFile},
    own::own,
};

/// What a disk writes whole or not at all.
const SECTOR_BYTES: u64 = 512;

/// This many bytes at the end of every append are not all zeros.
const END_BYTES: usize = 8;

/// Takes over what a killed process has left.
impl<G: Ground> Region<G> {
    pub(super) fn path(&self) -> PathBuf {
        self.dir.join(APPENDS_NAME)
    }

    /// The contents of `APPENDS`, if it exists.
    pub(super) fn image(&self) -> Result<Option<Vec<u8>>> {
        let (path, fs) = (self.path(), self.ground.fs());
        let Some(len) = fs.len(&path)? else { return Ok(None) };
        let mut image =
            vec![0; usize::try_from(len).map_err(|_| Error::io("read", &path, ErrorKind::OutOfMemory.into()))?];
        fs.open(&path)?.read_at(&mut image, 0)?;
        Ok(Some(image))
    }

    /// Writes everything to its file. On a full disk it first frees the space of the empty slots (there is always
    /// one), and then that of each slot as soon as its contents are written out.
    pub(super) fn put_all_back(&self, all: &[Left], image_bytes: usize) -> Result<()> {
        let put_all = || all.iter().try_for_each(|left| self.put_back(left));
        let full = match put_all() {
            Err(error) if error.is_full() => error,
            other => return other,
        };
        if self.ground.fs().is_shared(&self.path())? {
            // All of it is needed under its other name.
            return Err(full);
        }
        let give_back = |slot: usize| {
            let offset = (slot * SLOT_BYTES) as u64;
            self.ground.give_back(&self.path(), offset, SLOT_BYTES as u64)
        };
        let is_free = |slot: &usize| !all.iter().any(|left| left.slots.iter().any(|(taken, _)| taken == slot));
        let freed = (0..image_bytes / SLOT_BYTES).filter(is_free).try_for_each(give_back);
        freed.map_err(|_| full)?;
        let give_back = |slot| give_back(slot).map_err(|e| Error::io("give back space of", self.path(), e));
        all.iter().try_for_each(|left| self.put_back_by_slots(left, give_back))
    }

    /// Writes the contents of slots to their file, if that file exists and is long enough. Otherwise the file's last
    /// writes are lost, and with them what came after.
    fn put_back(&self, left: &Left) -> Result<()> {
        let Some(target) = self.target(left)? else { return Ok(()) };
        self.put(left, &target, &left.bytes, left.base)
    }

    /// The same for one slot after the other, each of which is given back before the next one needs room. Whether they
    /// belong to the file is asked once, before the first. A kill in between does not lose what was put back, since it
    /// is in its file; and the next slot begins where that ends, so the next opening goes on with it.
    fn put_back_by_slots(&self, left: &Left, give_back: impl Fn(usize) -> Result<()>) -> Result<()> {
        if planted!("slots_go_back_at_once") {
            self.put_back(left)?;
        }
        let target = self.target(left)?;
        let (mut rest, mut at) = (&left.bytes[..], left.base);
        for &(slot, bytes) in &left.slots {
            let (piece, behind) = rest.split_at(bytes);
            if let Some(target) = &target {
                self.put(left, target, piece, at)?;
            }
            give_back(slot)?;
            (rest, at) = (behind, at + bytes as u64);
        }
        Ok(())
    }

    /// Where the contents of slots belong. `None` if their file does not exist or does not reach that far.
    fn target(&self, left: &Left) -> Result<Option<PutTarget<G::File>>> {
        let path = self.dir.join(&left.name);
        let file = match self.ground.open(&path) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let append_to = |e| Error::io("append to", &path, e);
        let read = |buffer: &mut [u8], at| file.read_exact_at(buffer, at);
        let len = file.len().map_err(append_to)?;
        if !follows(len, left.base, read).map_err(append_to)? {
            return Ok(None);
        }
        let is_copied = own(self.ground.fs(), &path, u64::MAX)?.is_some();
        let file = if is_copied { self.ground.open(&path)? } else { file };
        let read = |buffer: &mut [u8], at| file.read_exact_at(buffer, at);
        let is_torn = is_partly_there(&left.bytes, left.base, len, read).map_err(append_to)?;
        if is_torn {
            self.make_durable()?;
        }
        Ok(Some(PutTarget { file, is_torn }))
    }

    /// Writes `bytes`, some of those in the slots, at `at` of their file.
    fn put(&self, left: &Left, target: &PutTarget<G::File>, bytes: &[u8], at: u64) -> Result<()> {
        let written = target.file.write_all_at(bytes, at);
        // Behind a tear, also before their slot is given back: a power loss must leave them in one of the two.
        let done = written.and_then(|()| if target.is_torn { target.file.sync() } else { Ok(()) });
        done.map_err(|e| Error::io("append to", self.dir.join(&left.name), e))
    }

    /// Makes sure that a power loss from now on takes nothing that cannot be put back once more.
    fn make_durable(&self) -> Result<()> {
        let path = self.path();
        self.ground.open(&path)?.sync().map_err(|e| Error::io("sync", &path, e))?;
        self.ground.fs().sync_dir(&self.dir)
    }

    /// Whether the contents of a slot continue the file at its end. Changes nothing.
    pub(super) fn is_continued(&self, left: &Left) -> Result<bool> {
        let path = self.dir.join(&left.name);
        let Some(len) = self.ground.fs().len(&path)? else { return Ok(false) };
        let file = self.ground.fs().open(&path)?;
        follows(len, left.base, |buffer: &mut [u8], at| file.read_at(buffer, at))
    }

    pub(super) fn remove_file(&self) -> Result<()> {
        match self.ground.fs().remove(&self.path()) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(()),
            other => other.map(|()| self.may_come_back.store(true, Ordering::Release)),
        }
    }
}

/// The file to which the contents of slots are put back.
struct PutTarget<F> {
    file: F,
    /// It has a part of them already ([`is_partly_there`]): each write is synced.
    is_torn: bool,
}

/// Whether a file of `len` bytes has some of `bytes` at `base`, but not unchanged: a power loss has truncated the file
/// within a record. If the sector at that end is lost while the rest of the record, appended now, survives, the record
/// looks damaged, not torn.
fn is_partly_there<E>(
    bytes: &[u8],
    base: u64,
    len: u64,
    read: impl FnOnce(&mut [u8], u64) -> std::result::Result<(), E>,
) -> std::result::Result<bool, E> {
    let mut there = vec![0; usize::try_from(len.saturating_sub(base)).map_or(bytes.len(), |len| len.min(bytes.len()))];
    read(&mut there, base)?;
    Ok(!planted!("append_to_a_torn_sector") && !there.is_empty() && there != bytes)
}

/// Whether a file still holds what was right before `base`. A power loss may have taken that sector: then it reads as
/// zeros up to `base`, and what is appended next would conceal that. Every append ends with bytes other than zeros:
/// records end with a constant, file headers with a checksum.
fn follows<E>(
    len: u64,
    base: u64,
    read: impl FnOnce(&mut [u8], u64) -> std::result::Result<(), E>,
) -> std::result::Result<bool, E> {
    if len < base {
        return Ok(false);
    }
    let mut before = [0; END_BYTES];
    let end = usize::try_from(base % SECTOR_BYTES).map_or(END_BYTES, |in_sector| in_sector.min(END_BYTES));
    read(&mut before[..end], base - end as u64)?;
    Ok(end == 0 || before.iter().any(|&byte| byte != 0) || planted!("hide_lost_sector"))
}

/// A file that a killed process has appended to, read without changing it.
#[derive(Debug)]
pub(super) struct FileAndLeft {
    pub(super) file: Arc<dyn ReadFile>,
    pub(super) left: Arc<Left>,
}

impl ReadFile for FileAndLeft {
    fn len(&self) -> Result<u64> {
        Ok(self.file.len()?.max(self.left.end()))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let Left { base, bytes, .. } = &*self.left;
        let in_file = usize::try_from(base.saturating_sub(offset)).map_or(buffer.len(), |n| n.min(buffer.len()));
        let from = usize::try_from(offset.saturating_sub(*base)).unwrap_or(usize::MAX);
        match bytes.get(from..).and_then(|rest| rest.get(..buffer.len() - in_file)) {
            Some(rest) => {
                let (before, after) = buffer.split_at_mut(in_file);
                after.copy_from_slice(rest);
                if before.is_empty() { Ok(()) } else { self.file.read_at(before, offset) }
            }
            // Beyond what was left, the file itself is read.
            None => self.file.read_at(buffer, offset),
        }
    }

    fn read_once(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.read_at(buffer, offset)
    }

    fn read_past_cache(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.read_at(buffer, offset)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.file.prefetch(offset, len);
    }

    fn is_in_memory(&self, offset: u64) -> bool {
        offset >= self.left.base || self.file.is_in_memory(offset)
    }

    fn expect_short_reads(&self) {
        self.file.expect_short_reads();
    }

    fn mapped(&self) -> Option<Arc<dyn MappedRead>> {
        None
    }
}
