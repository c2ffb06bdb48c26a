//! A file system in memory that can be copied as it might look after a power loss.
//!
//! It follows the rules at the top of [`fs`](crate::fs) exactly: it knows how much of every file is durable, which
//! entries of every directory are, and what was done since. [`MemoryFs::power_loss`] makes an independent file system
//! of that. Bytes are shared until written to, so this is cheap and a test can look at thousands of them. Directories
//! themselves are durable as soon as they are created: the rules only cover entries for files.

mod calls;
mod content;
mod crash;
mod fork;
#[cfg(test)]
mod tests;
mod tree;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

pub(crate) use calls::MemoryFile;
use content::Content;
pub use crash::Fate;
use tree::{Node, State};

use crate::random::mix;

/// Called with the number of a call that changed something, its kind, and the path (for a rename or a link, the new
/// one); see [`MemoryFs::set_hook`].
pub type Hook = Arc<dyn Fn(u64, OpKind, &Path) + Send + Sync>;

/// The calls that change a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// A file was created, by `create` or for a lock.
    Create,
    /// Bytes were appended, perhaps not all of them if the disk was full.
    Append,
    /// A file was synced.
    Sync,
    /// A file was truncated and synced.
    Truncate,
    /// The end of a file was written once more and synced.
    WriteAgain,
    /// A file was renamed.
    Rename,
    /// A name was removed.
    Remove,
    /// A hard link was made.
    Link,
    /// A directory's entries were synced.
    SyncDir,
    /// A directory was created, or existed already.
    CreateDir,
    /// A directory was removed.
    RemoveDir,
    /// Bytes were written at an offset, some of them over others.
    Write,
    /// Bytes were stored into a mapped file, or it was given more space.
    Store,
    /// Space of a file was given back.
    GiveBack,
    /// A file that nothing reads has reserved space.
    Reserve,
}

/// A handle of a file system in memory. Clones share the files; [`MemoryFs::power_loss`] and [`MemoryFs::fork`] make
/// independent ones.
#[derive(Clone)]
pub struct MemoryFs {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    trace: AtomicU64,
}

impl MemoryFs {
    /// An empty file system, with the root directory and the one that relative paths start from.
    #[must_use]
    pub fn new() -> Self {
        Self::of(State::new())
    }

    fn of(state: State) -> Self {
        Self { shared: Arc::new(Shared { state: Mutex::new(state), trace: AtomicU64::new(0) }) }
    }

    /// An independent file system as it might be found after losing power now. Everything in it is durable, no lock
    /// is held, calls are counted from 0, and there is no hook. Files without a name do not exist any more.
    #[must_use]
    pub fn power_loss(&self, fate: Fate) -> Self {
        Self::of(crash::after(&self.state(), fate))
    }

    /// An independent file system in the same state: what is unsynced here is unsynced there and can be lost later. A
    /// killed process leaves this. No lock is held in it and there is no hook; the count of calls continues.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::of(fork::copy(&self.state()))
    }

    /// Ends all locks on files of `dir`, as the end of the processes that hold them does.
    pub fn end_locks_in(&self, dir: &Path) {
        self.state().locks.retain(|path, _| path.parent() != Some(dir));
    }

    /// How many calls have changed something, or could have: create, append, sync, truncate, rename, remove, link,
    /// `sync_dir`, `create_dir_all`. Calls that failed without a change do not count.
    #[must_use]
    pub fn ops(&self) -> u64 {
        self.state().ops
    }

    /// Calls `hook` after every call that [`ops`](Self::ops) counts (the first has number 1), after it takes effect
    /// and before it returns. A power loss *before* a call would leave the same as one *after* the previous call, so
    /// the hook sees every state there is. No lock is held meanwhile: the hook may call
    /// [`power_loss`](Self::power_loss). A hook that owns a handle of this file system keeps it alive until the hook
    /// is removed with `None`.
    pub fn set_hook(&self, hook: Option<Hook>) {
        self.state().hook = hook;
    }

    /// A number that depends on all calls so far, including reads: their order, kinds, paths, lengths and appended
    /// bytes.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.shared.trace.load(Relaxed)
    }

    /// The bytes of a file.
    #[must_use]
    pub fn read(&self, path: &Path) -> Option<Vec<u8>> {
        let node = self.state().node(path).ok()?;
        Some(node.data().content.to_vec())
    }

    /// Creates or replaces a file. The file, its directory entry and all earlier changes of that directory are
    /// durable at once. Does not count as a call.
    ///
    /// # Panics
    /// When the path cannot be that of a file.
    pub fn write_durable(&self, path: &Path, bytes: &[u8]) {
        let mut content = Content::default();
        content.append(bytes);
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            panic!("{} cannot be the path of a file", path.display())
        };
        let mut state = self.state();
        let (op, id) = (state.ops, state.next_id);
        state.next_id += 1;
        let made = state.create_dir_all(dir).and_then(|()| {
            let directory = state.directory(dir)?;
            directory.change(op, vec![(name.into(), Some(Node::new(id, content)))]);
            directory.sync();
            Ok(())
        });
        assert!(made.is_ok(), "{} is a file", dir.display());
    }

    /// Every file's path, sorted.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let state = self.state();
        let paths =
            state.directories.iter().flat_map(|(dir, entries)| entries.names.keys().map(|name| dir.join(&**name)));
        let mut paths: Vec<_> = paths.collect();
        paths.sort_unstable();
        paths
    }

    /// Flips a bit of a file, in memory and "on disk". Bit 0 is the lowest of the first byte.
    ///
    /// # Panics
    /// When the file does not exist or is too short.
    pub fn flip_bit(&self, path: &Path, bit: u64) {
        let node = self.state().node(path);
        let mut byte = [0];
        let found = node.ok().and_then(|node| {
            let mut data = node.data();
            data.content.read(bit / 8, &mut byte)?;
            data.content.write(bit / 8, &[byte[0] ^ 1 << (bit % 8)]);
            Some(())
        });
        assert!(found.is_some(), "{} has no bit {bit}", path.display());
    }

    /// Does to a file or directory what a failed sync does: what is unsynced now can still be read but never becomes
    /// durable, whatever later syncs report. Does nothing if there is no such path.
    pub fn break_sync(&self, path: &Path) {
        let mut state = self.state();
        if let Ok(directory) = state.directory(path) {
            directory.break_sync();
        } else if let Ok(node) = state.node(path) {
            node.data().break_sync();
        }
    }

    /// The total length of all files that have a name.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.state().used_bytes()
    }

    /// How many bytes all files may have together. An append beyond that writes what fits and fails with "storage
    /// full".
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    /// Whether directories that are locked for use get an append region from now on, here and in copies made of this.
    pub fn set_append_region(&self, append_region: bool) {
        self.state().append_region = append_region;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a call that changes something, counts it, and calls the hook. A call that fails has changed nothing.
    fn change<T>(
        &self,
        kind: OpKind,
        path: &Path,
        len: u64,
        call: impl FnOnce(&mut State, u64) -> io::Result<T>,
    ) -> io::Result<T> {
        self.trace(kind.name(), path, len);
        let mut state = self.state();
        let op = state.ops + 1;
        let done = call(&mut state, op)?;
        state.ops = op;
        let hook = state.hook.clone();
        drop(state);
        if let Some(hook) = hook {
            hook(op, kind, path);
        }
        Ok(done)
    }

    fn trace(&self, op: &str, path: &Path, len: u64) {
        self.fold_trace(hash(hash(len, op.as_bytes()), path.as_os_str().as_encoded_bytes()));
    }

    fn trace_bytes(&self, parts: &[&[u8]]) {
        self.fold_trace(parts.iter().fold(0, |so_far, part| hash(so_far, part)));
    }

    fn fold_trace(&self, call: u64) {
        let next = |so_far: u64| Some(mix(so_far.rotate_left(1) ^ call));
        let folded = self.shared.trace.fetch_update(Relaxed, Relaxed, next);
        debug_assert!(folded.is_ok(), "there is always a next trace");
    }
}

impl Default for MemoryFs {
    fn default() -> Self {
        Self::new()
    }
}

impl OpKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Append => "append",
            Self::Sync => "sync",
            Self::Truncate => "truncate",
            Self::WriteAgain => "write again",
            Self::Rename => "rename",
            Self::Remove => "remove",
            Self::Link => "link",
            Self::SyncDir => "sync directory",
            Self::CreateDir => "create directory",
            Self::RemoveDir => "remove directory",
            Self::Write => "write to",
            Self::Store => "store to",
            Self::GiveBack => "give back space of",
            Self::Reserve => "reserve space by",
        }
    }
}

fn hash(seed: u64, bytes: &[u8]) -> u64 {
    // One multiplication per 8 bytes: the trace of an append must cost less than the append.
    let step = |h: u64, word: u64| (h ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25).rotate_left(29);
    let (words, rest) = bytes.as_chunks::<8>();
    let whole = words.iter().fold(seed ^ bytes.len() as u64, |h, word| step(h, u64::from_le_bytes(*word)));
    mix(rest.iter().fold(whole, |h, byte| step(h, u64::from(*byte))))
}

impl fmt::Debug for MemoryFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryFs").field("files", &self.files()).finish_non_exhaustive()
    }
}
