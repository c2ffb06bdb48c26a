//! What a file system in memory holds: directories of names, names of nodes, nodes with bytes; and for each, what is
//! durable and what is not yet.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io::{self, ErrorKind},
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{Hook, content::Content};
use crate::{fs::LockMode, random::mix};

/// A sector is written whole or not at all.
pub(super) const SECTOR_BYTES: u64 = 512;

/// A name within a directory.
pub(super) type Name = Arc<OsStr>;
/// The entries of a directory.
pub(super) type Names = BTreeMap<Name, Arc<Node>>;

/// Everything but the bytes of the files. Locked before any [`Node`].
#[derive(Default)]
pub(super) struct State {
    /// Number of calls so far that changed something.
    pub(super) ops: u64,
    pub(super) directories: BTreeMap<Arc<Path>, Directory>,
    pub(super) locks: BTreeMap<PathBuf, Held>,
    pub(super) capacity: Option<u64>,
    /// Whether directories get an append region.
    pub(super) append_region: bool,
    pub(super) hook: Option<Hook>,
    pub(super) next_id: u64,
}

/// Who holds the lock of a path.
pub(super) struct Held {
    pub(super) mode: LockMode,
    pub(super) holders: u64,
}

/// A directory. Directories themselves are durable as soon as they are created; only their entries can be lost.
#[derive(Default)]
pub(super) struct Directory {
    /// As seen by callers.
    pub(super) names: Names,
    /// As of the last sync.
    pub(super) durable: Names,
    /// What was done since, in order. A power loss may leave any subset of it, applied to `durable` in order.
    pub(super) pending: Vec<Change>,
}

/// One step of changing a directory: it is kept or lost as a whole.
pub(super) struct Change {
    pub(super) op: u64,
    /// Names and what they refer to from then on; `None`: nothing.
    pub(super) edits: Vec<(Name, Option<Arc<Node>>)>,
}

impl Directory {
    pub(super) fn change(&mut self, op: u64, edits: Vec<(Name, Option<Arc<Node>>)>) {
        let change = Change { op, edits };
        change.apply(&mut self.names);
        self.pending.push(change);
    }

    pub(super) fn sync(&mut self) {
        // Not a copy of `names`: changes that a failed sync covered are in neither.
        for change in self.pending.drain(..) {
            change.apply(&mut self.durable);
        }
    }

    /// What a failed sync does: what was pending never becomes durable.
    pub(super) fn break_sync(&mut self) {
        self.pending.clear();
    }
}

impl Change {
    pub(super) fn apply(&self, names: &mut Names) {
        for (name, node) in &self.edits {
            match node {
                Some(node) => names.insert(Arc::clone(name), Arc::clone(node)),
                None => names.remove(name),
            };
        }
    }
}

/// A file, under any number of names.
pub(super) struct Node {
    pub(super) id: u64,
    data: Mutex<Data>,
}

/// The bytes of a file. Files are appended to and truncated, so the durable bytes are the first `durable_len`, except
/// those that a failed sync doomed, those that were overwritten, and those of a mapped file.
#[derive(Clone, Default)]
pub(super) struct Data {
    pub(super) content: Content,
    pub(super) durable_len: u64,
    /// Appends since the last sync, in order.
    pub(super) pending: Vec<Append>,
    /// Bytes that a failed sync left only in the cache: they can be read until power is lost and are zeros from then
    /// on.
    pub(super) doomed: Vec<Range<u64>>,
    /// What was overwritten since the last sync, in order.
    pub(super) overwritten: Vec<Overwritten>,
    /// The part of that which a failed sync left only in the cache.
    pub(super) overwritten_for_now: Vec<Overwritten>,
    /// For a mapped file: its contents at some earlier moments, the durable state first. The system may write out any
    /// of its sectors at any time.
    pub(super) earlier: Vec<Moment>,
    /// The last call that changed a mapped file.
    pub(super) stored: u64,
    /// Bytes whose space was given back.
    pub(super) given_back: u64,
}

/// Bytes within a sector before they were overwritten.
#[derive(Clone)]
pub(super) struct Overwritten {
    pub(super) op: u64,
    pub(super) offset: u64,
    pub(super) before: Vec<u8>,
}

/// The contents of a mapped file, since a call.
#[derive(Clone)]
pub(super) struct Moment {
    pub(super) op: u64,
    pub(super) content: Content,
}

/// How many moments of a mapped file are kept.
const MOMENTS_MAX: usize = 8;

/// Bytes that one call appended.
#[derive(Clone)]
pub(super) struct Append {
    pub(super) op: u64,
    pub(super) range: Range<u64>,
}

impl Node {
    pub(super) fn new(id: u64, content: Content) -> Arc<Self> {
        let durable_len = content.len();
        Arc::new(Self { id, data: Mutex::new(Data { content, durable_len, ..Data::default() }) })
    }

    /// The same file in another file system.
    pub(super) fn copy(&self) -> Arc<Self> {
        Arc::new(Self { id: self.id, data: Mutex::new(self.data().clone()) })
    }

    pub(super) fn data(&self) -> MutexGuard<'_, Data> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Data {
    /// Appends as many of the bytes as there is room for.
    pub(super) fn append(&mut self, op: u64, parts: &[&[u8]], mut room: u64) {
        let from = self.content.len();
        for part in parts {
            let fits = room.min(part.len() as u64);
            self.content.append(&part[..fits as usize]);
            room -= fits;
        }
        self.pending.push(Append { op, range: from..self.content.len() });
    }

    /// Overwrites existing bytes and appends the rest, as much of it as there is room for.
    pub(super) fn write_at(&mut self, op: u64, bytes: &[u8], offset: u64, room: u64) {
        let over = (self.content.len() - offset).min(bytes.len() as u64) as usize;
        let (over, behind) = bytes.split_at(over);
        let mut at = offset;
        for piece in in_sectors(offset, over) {
            let mut before = vec![0; piece.len()];
            let is_there = self.content.read(at, &mut before);
            debug_assert!(is_there.is_some(), "only existing bytes are overwritten");
            if before != piece {
                self.overwritten.push(Overwritten { op, offset: at, before });
            }
            at += piece.len() as u64;
        }
        self.content.write(offset, over);
        if !behind.is_empty() || bytes.is_empty() {
            self.append(op, &[behind], room);
        }
    }

    /// From now on the file is mapped.
    pub(super) fn map(&mut self) {
        self.earlier = vec![Moment { op: 0, content: self.content.clone() }];
    }

    /// Changes a mapped file.
    pub(super) fn store(&mut self, op: u64, change: impl FnOnce(&mut Content)) {
        if self.earlier.len() == MOMENTS_MAX {
            // Some early and some late moments stay; the first is the durable one.
            self.earlier.remove(1 + (mix(op) % (MOMENTS_MAX as u64 - 1)) as usize);
        }
        self.earlier.push(Moment { op: self.stored, content: self.content.clone() });
        change(&mut self.content);
        self.stored = op;
    }

    pub(super) fn sync(&mut self) {
        self.durable_len = self.content.len();
        self.pending.clear();
        self.overwritten.clear();
        if !self.earlier.is_empty() {
            self.map();
        }
    }

    pub(super) fn break_sync(&mut self) {
        self.doomed.push(self.durable_len..self.content.len());
        self.pending.clear();
        self.overwritten_for_now.append(&mut self.overwritten);
    }

    /// Writes the bytes from `from` on once more, and syncs.
    pub(super) fn write_again(&mut self, from: u64) {
        for doomed in &mut self.doomed {
            doomed.end = doomed.end.min(from);
        }
        self.doomed.retain(|doomed| !doomed.is_empty());
        for overwritten in &mut self.overwritten_for_now {
            overwritten.before.truncate(usize::try_from(from.saturating_sub(overwritten.offset)).unwrap_or(usize::MAX));
        }
        self.overwritten_for_now.retain(|overwritten| !overwritten.before.is_empty());
        self.sync();
    }

    /// Truncates and syncs.
    pub(super) fn truncate(&mut self, len: u64) {
        self.content.set_len(len);
        for doomed in &mut self.doomed {
            doomed.end = doomed.end.min(len);
        }
        self.doomed.retain(|doomed| !doomed.is_empty());
        self.sync();
    }
}

/// The bytes, which belong at `offset`, split at sector boundaries.
fn in_sectors(offset: u64, mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut room = (SECTOR_BYTES - offset % SECTOR_BYTES) as usize;
    std::iter::from_fn(move || {
        let (piece, rest) = bytes.split_at(room.min(bytes.len()));
        (bytes, room) = (rest, SECTOR_BYTES as usize);
        (!piece.is_empty()).then_some(piece)
    })
}

impl State {
    /// With only the directories that always exist: the root, and the one that relative paths start from.
    pub(super) fn new() -> Self {
        let mut state = Self::default();
        for root in ["", "/"] {
            state.directories.insert(Arc::from(Path::new(root)), Directory::default());
        }
        state
    }

    pub(super) fn directory(&mut self, path: &Path) -> io::Result<&mut Directory> {
        self.directories.get_mut(path).ok_or_else(|| ErrorKind::NotFound.into())
    }

    pub(super) fn node(&self, path: &Path) -> io::Result<Arc<Node>> {
        let (dir, name) = split(path)?;
        let found = self.directories.get(dir).and_then(|dir| dir.names.get(name));
        found.cloned().ok_or_else(|| ErrorKind::NotFound.into())
    }

    pub(super) fn create(&mut self, path: &Path, op: u64) -> io::Result<Arc<Node>> {
        let (dir, name) = split(path)?;
        if self.directories.contains_key(path) || self.node(path).is_ok() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let node = Node::new(self.next_id, Content::default());
        self.directory(dir)?.change(op, vec![(name.into(), Some(Arc::clone(&node)))]);
        self.next_id += 1;
        Ok(node)
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path, op: u64) -> io::Result<()> {
        let ((from_dir, from_name), (to_dir, to_name)) = (split(from)?, split(to)?);
        let node = self.node(from)?;
        if self.directories.contains_key(to) {
            return Err(ErrorKind::IsADirectory.into());
        }
        if self.node(to).is_ok_and(|there| there.id == node.id) {
            return Ok(()); // Two names of one file: POSIX requires that nothing is done.
        }
        let (removed, there) = ((from_name.into(), None), (to_name.into(), Some(node)));
        if from_dir == to_dir {
            self.directory(to_dir)?.change(op, vec![removed, there]);
        } else {
            // Across directories, each half becomes durable with its own directory's sync.
            self.directory(to_dir)?.change(op, vec![there]);
            self.directory(from_dir)?.change(op, vec![removed]);
        }
        Ok(())
    }

    pub(super) fn link(&mut self, from: &Path, to: &Path, op: u64) -> io::Result<()> {
        let node = self.node(from)?;
        let (dir, name) = split(to)?;
        if self.directories.contains_key(to) || self.node(to).is_ok() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.directory(dir)?.change(op, vec![(name.into(), Some(node))]);
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &Path, op: u64) -> io::Result<()> {
        let (dir, name) = split(path)?;
        self.node(path)?;
        self.directory(dir)?.change(op, vec![(name.into(), None)]);
        Ok(())
    }

    pub(super) fn create_dir_all(&mut self, dir: &Path) -> io::Result<()> {
        for dir in dir.ancestors() {
            if self.directories.contains_key(dir) {
                break;
            }
            if self.node(dir).is_ok() {
                return Err(ErrorKind::NotADirectory.into());
            }
            self.directories.insert(dir.into(), Directory::default());
        }
        Ok(())
    }

    /// Removes a directory at once and durably, as one is created.
    pub(super) fn remove_dir(&mut self, dir: &Path) -> io::Result<()> {
        if !self.directory(dir)?.names.is_empty() || self.directories.keys().any(|path| path.parent() == Some(dir)) {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        self.directories.remove(dir);
        Ok(())
    }

    /// The files that have a name, each once.
    pub(super) fn nodes(&self) -> BTreeMap<u64, &Arc<Node>> {
        self.directories.values().flat_map(|dir| dir.names.values()).map(|node| (node.id, node)).collect()
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.nodes().values().map(|node| node.data()).map(|data| data.content.len() - data.given_back).sum()
    }

    /// How many more bytes the file system takes.
    pub(super) fn room(&self) -> u64 {
        self.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(self.used_bytes()))
    }

    pub(super) fn lock(&mut self, path: &Path, mode: LockMode) -> bool {
        match self.locks.get_mut(path) {
            None => {
                self.locks.insert(path.into(), Held { mode, holders: 1 });
                true
            }
            Some(held) if held.mode == LockMode::Shared && mode == LockMode::Shared => {
                held.holders += 1;
                true
            }
            Some(_) => false,
        }
    }

    pub(super) fn unlock(&mut self, path: &Path) {
        if let Some(held) = self.locks.get_mut(path) {
            held.holders -= 1;
            if held.holders == 0 {
                self.locks.remove(path);
            }
        }
    }
}

/// The directory that a path is in, and its name there.
fn split(path: &Path) -> io::Result<(&Path, &OsStr)> {
    match (path.parent(), path.file_name()) {
        (Some(dir), Some(name)) => Ok((dir, name)),
        _ => Err(ErrorKind::InvalidInput.into()),
    }
}
