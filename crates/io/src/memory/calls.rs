//! The calls of [`FileSystem`] on files in memory.

use std::{
    fmt,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::Arc,
};

use bifold_contract::{Error, Result};

use super::{MemoryFs, OpKind, tree::Node};
#[cfg(target_os = "linux")]
use crate::fs::{AppendRegion, Appending, DirLock, DirUse};
use crate::fs::{FileLock, FileSystem, LockMode, MappedRead, PathKind, ReadFile, WriteFile};

/// "No space left on device", so that the error reads as a real disk's would.
const ENOSPC: i32 = 28;

impl FileSystem for MemoryFs {
    fn create(&self, path: &Path) -> Result<Arc<dyn WriteFile>> {
        Ok(self.create_file(path)?)
    }

    fn open_append(&self, path: &Path) -> Result<Arc<dyn WriteFile>> {
        Ok(self.open_file(path)?)
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn ReadFile>> {
        Ok(self.open_file(path)?)
    }

    fn truncate(&self, path: &Path, len: u64) -> Result<()> {
        let truncated = self.change(OpKind::Truncate, path, len, |state, _| {
            state.node(path)?.data().truncate(len);
            Ok(())
        });
        truncated.map_err(|e| Error::io("truncate", path, e))
    }

    fn write_again(&self, path: &Path, from: u64) -> Result<u64> {
        let again = self.change(OpKind::WriteAgain, path, from, |state, _| {
            let node = state.node(path)?;
            let mut data = node.data();
            data.write_again(from);
            Ok(data.content.len().saturating_sub(from))
        });
        again.map_err(|e| Error::io("write again", path, e))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let renamed = self.change(OpKind::Rename, to, 0, |state, op| state.rename(from, to, op));
        renamed.map_err(|e| Error::io("rename", from, e))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let removed = self.change(OpKind::Remove, path, 0, |state, op| state.remove(path, op));
        removed.map_err(|e| Error::io("remove", path, e))
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        let linked = self.change(OpKind::Link, to, 0, |state, op| state.link(from, to, op));
        linked.map_err(|e| Error::io("link", to, e))
    }

    fn list(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        self.trace("list", dir, 0);
        let mut state = self.state();
        let directory = state.directory(dir).map_err(|e| Error::io("list", dir, e))?;
        Ok(directory.names.keys().map(|name| dir.join(&**name)).collect())
    }

    fn list_dirs(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        self.trace("list", dir, 0);
        let mut state = self.state();
        state.directory(dir).map_err(|e| Error::io("list", dir, e))?;
        let paths = state.directories.keys().filter(|path| path.parent() == Some(dir));
        Ok(paths.map(|path| path.to_path_buf()).collect())
    }

    fn len(&self, path: &Path) -> Result<Option<u64>> {
        self.trace("look up", path, 0);
        let node = self.state().node(path);
        Ok(node.ok().map(|node| node.data().content.len()))
    }

    fn is_shared(&self, path: &Path) -> Result<bool> {
        self.trace("look up", path, 0);
        let state = self.state();
        let node = state.node(path).map_err(|e| Error::io("look up", path, e))?;
        let names = state.directories.values().flat_map(|directory| directory.names.values());
        Ok(names.filter(|other| Arc::ptr_eq(other, &node)).count() > 1)
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        let made = self.change(OpKind::CreateDir, dir, 0, |state, _| state.create_dir_all(dir));
        made.map_err(|e| Error::io("create directory", dir, e))
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        let removed = self.change(OpKind::RemoveDir, dir, 0, |state, _| state.remove_dir(dir));
        removed.map_err(|e| Error::io("remove directory", dir, e))
    }

    fn kind(&self, path: &Path) -> Result<Option<PathKind>> {
        self.trace("look up", path, 0);
        let state = self.state();
        let file = state.node(path).is_ok().then_some(PathKind::File);
        Ok(if state.directories.contains_key(path) { Some(PathKind::Directory) } else { file })
    }

    fn resolve(&self, path: &Path) -> Result<PathBuf> {
        match self.kind(path)? {
            Some(_) => Ok(path.into()),
            None => Err(Error::io("look up", path, ErrorKind::NotFound.into())),
        }
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        let synced = self.change(OpKind::SyncDir, dir, 0, |state, _| {
            state.directory(dir)?.sync();
            Ok(())
        });
        synced.map_err(|e| Error::io("sync directory", dir, e))
    }

    fn free_bytes(&self, _dir: &Path) -> Option<u64> {
        let state = self.state();
        state.capacity.map(|_| state.room())
    }

    fn reserve(&self, path: &Path, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return self.remove(path);
        }
        let known = self.state().node(path);
        let file = known.map_or_else(|_| self.create_file(path), |node| Ok(self.handle(path, node)))?;
        let reserved = self.change(OpKind::Reserve, path, bytes, |state, op| {
            let (room, mut data) = (state.room(), file.node.data());
            let more = bytes.saturating_sub(data.content.len());
            if more > room {
                return Err(io::Error::from_raw_os_error(ENOSPC));
            }
            data.append(op, &[&vec![0; usize::try_from(more).unwrap_or(usize::MAX)]], room);
            Ok(())
        });
        reserved.map_err(|e| Error::io("reserve space by", path, e))
    }

    fn lock(&self, path: &Path, mode: LockMode) -> Result<Box<dyn FileLock>> {
        self.trace("lock", path, 0);
        if self.state().node(path).is_err() {
            match self.create_file(path) {
                // Someone else created it in between.
                Err(Error::Io { source, .. }) if source.kind() == ErrorKind::AlreadyExists => {}
                other => drop(other?),
            }
        }
        if self.state().lock(path, mode) {
            Ok(Box::new(MemoryLock { fs: self.clone(), path: path.into() }))
        } else {
            Err(Error::Locked { path: path.into() })
        }
    }

    #[cfg(target_os = "linux")]
    fn append_region(&self, dir: &Path, lock: DirLock, how: Appending) -> Result<AppendRegion> {
        if !self.has_append_region() && lock.used != DirUse::Follow {
            return Ok(AppendRegion { fs: None, lock: lock.lock, catch_up: None });
        }
        let ground = crate::region::Simulated::new(self.clone(), None);
        crate::region::RegionFs::open(ground, dir, lock, how)
    }
}

impl MemoryFs {
    pub(crate) fn create_file(&self, path: &Path) -> Result<Arc<MemoryFile>> {
        let node = self.change(OpKind::Create, path, 0, |state, op| state.create(path, op));
        Ok(self.handle(path, node.map_err(|e| Error::io("create", path, e))?))
    }

    pub(crate) fn open_file(&self, path: &Path) -> Result<Arc<MemoryFile>> {
        self.trace("open", path, 0);
        let node = self.state().node(path).map_err(|e| Error::io("open", path, e))?;
        Ok(self.handle(path, node))
    }

    pub(crate) fn has_append_region(&self) -> bool {
        self.state().append_region
    }

    pub(super) fn handle(&self, path: &Path, node: Arc<Node>) -> Arc<MemoryFile> {
        Arc::new(MemoryFile { fs: self.clone(), node, path: path.into() })
    }
}

/// An open file.
#[derive(Clone)]
pub(crate) struct MemoryFile {
    fs: MemoryFs,
    node: Arc<Node>,
    path: PathBuf,
}

impl MemoryFile {
    /// A sync that fails: what is unsynced never becomes durable, whatever later syncs report.
    pub(crate) fn break_sync(&self) {
        let broken = self.fs.change(OpKind::Sync, &self.path, 0, |_, _| {
            self.node.data().break_sync();
            Ok(())
        });
        debug_assert!(broken.is_ok(), "breaking a sync cannot fail");
    }
}

/// The operations of an append region.
#[cfg(target_os = "linux")]
impl MemoryFile {
    pub(crate) fn id(&self) -> u64 {
        self.node.id
    }

    /// Writes within the file or at its end. A full disk takes what fits and then fails.
    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.fs.trace_bytes(&[bytes]);
        let done = self.fs.change(OpKind::Write, &self.path, offset, |state, op| {
            let (room, mut data) = (state.room(), self.node.data());
            if offset > data.content.len() {
                return Err(ErrorKind::InvalidInput.into());
            }
            let behind = (offset + bytes.len() as u64).saturating_sub(data.content.len());
            data.write_at(op, bytes, offset, room);
            Ok(if behind <= room { Ok(()) } else { Err(io::Error::from_raw_os_error(ENOSPC)) })
        });
        done.flatten()
    }

    pub(crate) fn truncate(&self, len: u64) -> io::Result<()> {
        self.fs.change(OpKind::Truncate, &self.path, len, |_, _| {
            self.node.data().truncate(len);
            Ok(())
        })
    }

    /// From now on each of its sectors may become durable at any time.
    pub(crate) fn map(&self) {
        self.node.data().map();
    }

    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let state = self.fs.state();
        state.capacity.map(|_| state.room())
    }

    /// Extends a mapped file with zeros, for which there must be room.
    pub(crate) fn reserve(&self, len: u64) -> io::Result<()> {
        self.fs.change(OpKind::Store, &self.path, len, |state, op| {
            let (room, mut data) = (state.room(), self.node.data());
            if len.saturating_sub(data.content.len()) > room {
                return Err(io::Error::from_raw_os_error(ENOSPC));
            }
            data.store(op, |content| content.set_len(len));
            Ok(())
        })
    }

    /// Stores bytes into a mapped file.
    pub(crate) fn store(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.fs.trace_bytes(&[bytes]);
        self.fs.change(OpKind::Store, &self.path, offset, |_, op| {
            self.node.data().store(op, |content| content.write(offset, bytes));
            Ok(())
        })
    }

    /// Zeros some bytes and frees their space.
    pub(crate) fn give_back(&self, offset: u64, len: u64) -> io::Result<()> {
        self.fs.change(OpKind::GiveBack, &self.path, offset, |_, _| {
            let mut data = self.node.data();
            data.content.zero(offset..offset + len);
            data.given_back = (data.given_back + len).min(data.content.len());
            Ok(())
        })
    }
}

impl WriteFile for MemoryFile {
    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        let len = parts.iter().map(|part| part.len() as u64).sum::<u64>();
        self.fs.trace_bytes(parts);
        let appended = self.fs.change(OpKind::Append, &self.path, len, |state, op| {
            let room = state.room();
            self.node.data().append(op, parts, room);
            // A full disk takes what fits and then fails: the file has changed either way.
            Ok(if len <= room { Ok(()) } else { Err(io::Error::from_raw_os_error(ENOSPC)) })
        });
        appended.flatten().map_err(|e| Error::io("append to", &self.path, e))
    }

    fn sync(&self) -> Result<()> {
        let synced = self.fs.change(OpKind::Sync, &self.path, 0, |_, _| {
            self.node.data().sync();
            Ok(())
        });
        synced.map_err(|e| Error::io("sync", &self.path, e))
    }
}

impl ReadFile for MemoryFile {
    fn len(&self) -> Result<u64> {
        self.fs.trace("look up", &self.path, 0);
        Ok(self.node.data().content.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.fs.trace("read", &self.path, offset ^ (buffer.len() as u64) << 40);
        let read = self.node.data().content.read(offset, buffer);
        read.ok_or_else(|| Error::io("read", &self.path, ErrorKind::UnexpectedEof.into()))
    }

    fn read_once(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.read_at(buffer, offset)
    }

    fn read_past_cache(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.read_at(buffer, offset)
    }

    fn prefetch(&self, _offset: u64, _len: u64) {}

    fn is_in_memory(&self, _offset: u64) -> bool {
        true
    }

    fn expect_short_reads(&self) {}

    fn mapped(&self) -> Option<Arc<dyn MappedRead>> {
        None
    }
}

impl fmt::Debug for MemoryFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemoryFile").field(&self.path).finish()
    }
}

/// An entry of the file system's table of locks.
#[derive(Debug)]
struct MemoryLock {
    fs: MemoryFs,
    path: PathBuf,
}

impl FileLock for MemoryLock {}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        self.fs.state().unlock(&self.path);
    }
}
