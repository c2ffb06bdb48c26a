//! Reading a directory while another process appends to its files.
//!
//! ```text
//! catch up   read APPENDS ─▶ what each slot holds          (checksums: an append counts if all of it was seen)
//! read       is it in what was seen in the file's slots? ─▶ from there       else ─▶ from the file
//! ```
//!
//! The writer writes a slot's contents to the file before it uses the slot again. So whatever was appended before a
//! look at `APPENDS` is in what was seen there or, from then on, in the file. An append that the look caught halfway
//! does not match its checksum: either it was made during the look, or what it replaces is in the file already.

use std::{
    collections::HashMap,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;
use bifold_contract::{Error, Result};

use super::{
    Region,
    ground::Ground,
    slots::{self, Left},
};
use crate::fs::{CatchUp, MappedRead, ReadFile};

/// Between the look at the length of `APPENDS` and the read, the file may be removed: a session ends, another begins.
const TRIES: usize = 16;

/// The second name that a file has for a moment while a recovery makes its name durable.
const AGAIN: &str = ".again";

/// What was seen in slots, by file, in the order of their places.
pub(super) type Seen = ArcSwap<HashMap<PathBuf, Vec<SeenSlots>>>;

/// What was seen in slots that follow each other.
#[derive(Debug)]
pub(super) struct SeenSlots {
    left: Arc<Left>,
    /// Whether it continues the file. After a power loss it may not.
    continues: OnceLock<bool>,
}

/// Catches up with the writer.
#[derive(Debug)]
pub(super) struct Follows<G: Ground>(pub Arc<Region<G>>);

impl<G: Ground> CatchUp for Follows<G> {
    fn catch_up(&self) -> Result<()> {
        let Some(seen) = &self.0.seen else { return Ok(()) };
        let image = self.0.image_of_writer()?;
        let slots = image.as_deref().map_or(Ok(Vec::new()), slots::parse).map_err(|e| e.of(self.0.path()))?;
        let mut of_files: HashMap<PathBuf, Vec<SeenSlots>> = HashMap::new();
        for left in slots {
            let of_file = of_files.entry(self.0.dir.join(&left.name)).or_default();
            of_file.push(SeenSlots { left: Arc::new(left), continues: OnceLock::new() });
        }
        seen.store(Arc::new(of_files));
        Ok(())
    }
}

impl<G: Ground> Region<G> {
    fn image_of_writer(&self) -> Result<Option<Vec<u8>>> {
        let mut tries = 0;
        loop {
            match self.image() {
                Err(Error::Io { source, .. }) if is_in_change(source.kind()) && tries < TRIES => tries += 1,
                other => return other,
            }
        }
    }

    /// What was seen in slots of this file and continues it. If a slot was filled while the next one was looked at
    /// already, something between them was not seen: then the file has it before it has what follows.
    fn seen_of(&self, path: &Path) -> Result<Option<Arc<Left>>> {
        let Some(seen) = &self.seen else { return Ok(None) };
        let seen = seen.load();
        for slots in seen.get(path).into_iter().flatten().rev() {
            let continues = match slots.continues.get() {
                Some(&known) => known,
                None => {
                    let continues = self.is_continued(&slots.left)?;
                    *slots.continues.get_or_init(|| continues)
                }
            };
            if continues {
                return Ok(Some(Arc::clone(&slots.left)));
            }
        }
        Ok(None)
    }

    /// Where the appends end that were seen in slots of this file; 0 if there are none.
    pub(super) fn seen_end(&self, path: &Path) -> Result<u64> {
        Ok(self.seen_of(path)?.map_or(0, |left| left.end()))
    }
}

impl<G: Ground> Region<G> {
    /// The length of a file. While another process recovers the database, it may have its second name.
    pub(super) fn len_in_file(&self, path: &Path) -> Result<Option<u64>> {
        let fs = self.ground.fs();
        match fs.len(path)? {
            None if self.seen.is_some() => match fs.len(&again(path))? {
                None => fs.len(path),
                there => Ok(there),
            },
            other => Ok(other),
        }
    }
}

fn again(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(AGAIN);
    name.into()
}

fn is_in_change(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::UnexpectedEof)
}

/// A file that another process may be appending to.
#[derive(Debug)]
pub(super) struct FollowedFile<G: Ground> {
    file: Arc<dyn ReadFile>,
    path: PathBuf,
    region: Arc<Region<G>>,
    /// So much is in the file itself: it is read without a look at slots.
    in_file: AtomicU64,
}

impl<G: Ground> FollowedFile<G> {
    pub fn open(region: &Arc<Region<G>>, path: &Path) -> Result<Self> {
        let fs = region.ground.fs();
        let file = match fs.open(path) {
            // A recovery may just be giving it its name again.
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                fs.open(&again(path)).or_else(|_| fs.open(path))?
            }
            other => other?,
        };
        Ok(Self { in_file: AtomicU64::new(file.len()?), file, path: path.into(), region: Arc::clone(region) })
    }

    /// Whether the file itself has everything up to `end`.
    fn has(&self, end: u64) -> Result<bool> {
        if end <= self.in_file.load(Relaxed) {
            return Ok(true);
        }
        let len = self.file.len()?;
        self.in_file.fetch_max(len, Relaxed);
        Ok(end <= len)
    }

    fn read(&self, buffer: &mut [u8], offset: u64, read: impl Fn(&mut [u8], u64) -> Result<()>) -> Result<()> {
        let end = offset.saturating_add(buffer.len() as u64);
        if self.has(end)? {
            return read(buffer, offset);
        }
        let seen = self.region.seen_of(&self.path)?;
        let Some(Left { base, bytes, .. }) = seen.as_deref() else { return read(buffer, offset) };
        let in_file = usize::try_from(base.saturating_sub(offset)).map_or(buffer.len(), |n| n.min(buffer.len()));
        let from = usize::try_from(offset.saturating_sub(*base)).unwrap_or(usize::MAX);
        match bytes.get(from..).and_then(|rest| rest.get(..buffer.len() - in_file)) {
            Some(rest) => {
                let (before, after) = buffer.split_at_mut(in_file);
                after.copy_from_slice(rest);
                if before.is_empty() { Ok(()) } else { read(before, offset) }
            }
            None => read(buffer, offset),
        }
    }
}

impl<G: Ground> ReadFile for FollowedFile<G> {
    fn len(&self) -> Result<u64> {
        let in_file = self.file.len()?;
        self.in_file.fetch_max(in_file, Relaxed);
        Ok(in_file.max(self.region.seen_end(&self.path)?))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.read(buffer, offset, |buffer, offset| self.file.read_at(buffer, offset))
    }

    fn read_once(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.read(buffer, offset, |buffer, offset| self.file.read_once(buffer, offset))
    }

    fn read_past_cache(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.read(buffer, offset, |buffer, offset| self.file.read_past_cache(buffer, offset))
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.file.prefetch(offset, len);
    }

    fn is_in_memory(&self, offset: u64) -> bool {
        offset >= self.in_file.load(Relaxed) || self.file.is_in_memory(offset)
    }

    fn expect_short_reads(&self) {
        self.file.expect_short_reads();
    }

    fn mapped(&self) -> Option<Arc<dyn MappedRead>> {
        None
    }
}
