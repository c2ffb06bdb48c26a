//! What a file system in memory holds: directories of names, names of nodes, nodes with bytes; and of each, what is
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

/// A sector is written wholly or not at all.
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

/// A directory. Directories themselves are durable as soon as they are made; only their entries can be lost.
#[derive(Default)]
pub(super) struct Directory {
    /// As seen by callers.
    pub(super) names: Names,
    /// As of the last sync.
    pub(super) durable: Names,
    /// What was done since, in order. Applied to `durable` in order, any subset is what a power loss may leave.
    pub(super) pending: Vec<Change>,
}

/// One step of changing a directory: it is there wholly or not at all.
pub(super) struct Change {
    pub(super) op: u64,
    /// Names and what they stand for from then on; `None`: nothing.
    pub(super) edits: Vec<(Name, Option<Arc<Node>>)>,
}

impl Directory {
    pub(super) fn change(&mut self, op: u64, edits: Vec<(Name, Option<Arc<Node>>)>) {
        let change = Change { op, edits };
        change.apply(&mut self.names);
        self.pending.push(change);
    }

    pub(super) fn sync(&mut self) {
        // Not a copy of `names`: changes that a failed sync met are in neither.
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

/// A file, under however many names.
pub(super) struct Node {
    pub(super) id: u64,
    data: Mutex<Data>,
}

/// The bytes of a file. They are appended and cut, so the durable bytes are the first `durable_len`, but for those that
/// a failed sync doomed, those that were written over, and those of a mapped file.
#[derive(Clone, Default)]
pub(super) struct Data {
    pub(super) content: Content,
    pub(super) durable_len: u64,
    /// Appends since the last sync, in order.
    pub(super) pending: Vec<Append>,
    /// Bytes that a failed sync left in the cache only: read until power is lost, zeros from then on.
    pub(super) doomed: Vec<Range<u64>>,
    /// What stood where something was written since the last sync, in order.
    pub(super) overwritten: Vec<Overwritten>,
    /// Of those, what a failed sync left in the cache only.
    pub(super) overwritten_for_now: Vec<Overwritten>,
    /// Of a mapped file: what it was at some earlier moments, the durable state first. Nobody says when the system
    /// writes out which of its sectors.
    pub(super) earlier: Vec<Moment>,
    /// The call that changed a mapped file last.
    pub(super) stored: u64,
    /// Bytes whose space was given back.
    pub(super) given_back: u64,
}

/// Bytes within a sector before they were written over.
#[derive(Clone)]
pub(super) struct Overwritten {
    pub(super) op: u64,
    pub(super) offset: u64,
    pub(super) before: Vec<u8>,
}

/// What a mapped file was, since a call.
#[derive(Clone)]
pub(super) struct Moment {
    pub(super) op: u64,
    pub(super) content: Content,
}

/// Moments of a mapped file that are remembered.
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

    /// Writes over what is there and appends the rest, as much of it as there is room for.
    pub(super) fn write_at(&mut self, op: u64, bytes: &[u8], offset: u64, room: u64) {
        let over = (self.content.len() - offset).min(bytes.len() as u64) as usize;
        let (over, behind) = bytes.split_at(over);
        let mut at = offset;
        for piece in in_sectors(offset, over) {
            let mut before = vec![0; piece.len()];
            let is_there = self.content.read(at, &mut before);
            debug_assert!(is_there.is_some(), "only what is there is written over");
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

    /// From now on it is mapped.
    pub(super) fn map(&mut self) {
        self.earlier = vec![Moment { op: 0, content: self.content.clone() }];
    }

    /// A mapped file changes.
    pub(super) fn store(&mut self, op: u64, change: impl FnOnce(&mut Content)) {
        if self.earlier.len() == MOMENTS_MAX {
            // Some early ones and some late ones stay; the first is what is durable.
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

    /// Cuts and syncs.
    pub(super) fn truncate(&mut self, len: u64) {
        self.content.set_len(len);
        for doomed in &mut self.doomed {
            doomed.end = doomed.end.min(len);
        }
        self.doomed.retain(|doomed| !doomed.is_empty());
        self.sync();
    }
}

/// Bytes that belong at `offset`, cut where sectors begin.
fn in_sectors(offset: u64, mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut room = (SECTOR_BYTES - offset % SECTOR_BYTES) as usize;
    std::iter::from_fn(move || {
        let (piece, rest) = bytes.split_at(room.min(bytes.len()));
        (bytes, room) = (rest, SECTOR_BYTES as usize);
        (!piece.is_empty()).then_some(piece)
    })
}

impl State {
    /// With only the directories that are always there: the root, and the one relative paths start from.
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
            return Ok(()); // Two names of one file: POSIX asks for nothing to be done.
        }
        let (gone, there) = ((from_name.into(), None), (to_name.into(), Some(node)));
        if from_dir == to_dir {
            self.directory(to_dir)?.change(op, vec![gone, there]);
        } else {
            // Across directories each half is durable by its own directory's sync.
            self.directory(to_dir)?.change(op, vec![there]);
            self.directory(from_dir)?.change(op, vec![gone]);
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

    /// Removes a directory at once and for good, as one is made.
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

/// The directory a path is in and its name there.
fn split(path: &Path) -> io::Result<(&Path, &OsStr)> {
    match (path.parent(), path.file_name()) {
        (Some(dir), Some(name)) => Ok((dir, name)),
        _ => Err(ErrorKind::InvalidInput.into()),
    }
}
