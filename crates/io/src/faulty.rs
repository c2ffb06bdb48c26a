//! A file system that fails chosen calls.
//!
//! All calls of the file system and of its files are counted together, including reads and look-ups, so a test can
//! run once to learn how many there are and then fail each in turn. Hints (`start_writeback`, `prefetch`) cannot fail
//! and are not counted. A failed call does nothing to the files below, with two exceptions: a short write writes half
//! of the bytes, and a sync that fails over a [`MemoryFs`] leaves the unsynced bytes as a failed sync does.

pub(crate) mod calls;
#[cfg(test)]
mod tests;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bifold_contract::{Error, Result};

use crate::{fs::FileSystem, memory::MemoryFs};

/// A planned failure of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which call: the first has number 1.
    pub at: u64,
    /// How it fails.
    pub kind: FaultKind,
    /// Whether later calls fail too.
    pub persistence: Persistence,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// With this error number of the operating system.
    Errno(i32),
    /// An append writes half of its bytes and fails with [`FaultKind::ENOSPC`]. Other calls succeed.
    ShortWrite,
}

/// How long a fault lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// One call fails.
    Once,
    /// That call and all later ones fail.
    Sticky,
    /// This many calls fail, beginning with that one. Code that retries succeeds in the end and can be observed,
    /// where [`Persistence::Sticky`] would keep it busy forever.
    Calls(u64),
}

/// A call about to be made, shown to the function of [`FaultyFs::decide_by`].
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Its number; the first is 1.
    pub number: u64,
    /// What it does, as in [`Error::Io`].
    pub op: &'static str,
    /// The file or directory it is about.
    pub path: &'a Path,
}

/// Decides for every call whether it fails.
pub type Decider = Box<Decide>;

type Decide = dyn Fn(&Call<'_>) -> Option<FaultKind> + Send + Sync;

impl FaultKind {
    /// Interrupted by a signal.
    pub const EINTR: Self = Self::Errno(4);
    /// The device failed.
    pub const EIO: Self = Self::Errno(5);
    /// Too many open files.
    pub const EMFILE: Self = Self::Errno(24);
    /// No space left.
    pub const ENOSPC: Self = Self::Errno(28);

    pub(crate) fn error(self) -> io::Error {
        match self {
            Self::Errno(number) => io::Error::from_raw_os_error(number),
            Self::ShortWrite => Self::ENOSPC.error(),
        }
    }
}

/// A file system that fails chosen calls. Clones share the files, the count and the plan.
#[derive(Clone)]
pub struct FaultyFs {
    inner: Arc<dyn FileSystem>,
    /// Set when the files below can model failed syncs.
    memory: Option<MemoryFs>,
    plan: Arc<Mutex<Plan>>,
}

#[derive(Default)]
struct Plan {
    calls: u64,
    faults: Vec<Fault>,
    decider: Option<Arc<Decide>>,
    injected: Vec<(u64, &'static str, PathBuf)>,
    is_cold: bool,
    announced: Vec<(PathBuf, u64, u64)>,
}

impl FaultyFs {
    /// Nothing fails until a fault is planned.
    #[must_use]
    pub fn new(inner: Arc<dyn FileSystem>) -> Self {
        Self { inner, memory: None, plan: Arc::default() }
    }

    /// As [`new`](Self::new), and a failed sync leaves the bytes unsynced for good.
    #[must_use]
    pub fn over_memory(memory: MemoryFs) -> Self {
        Self { inner: Arc::new(memory.clone()), memory: Some(memory), plan: Arc::default() }
    }

    /// Adds a fault to the plan.
    pub fn plan(&self, fault: Fault) {
        self.locked().faults.push(fault);
    }

    /// Removes all planned faults and the decider. The count continues.
    pub fn clear(&self) {
        let mut plan = self.locked();
        plan.faults.clear();
        plan.decider = None;
    }

    /// Asks `decider` about every call without a planned fault. It may block the calling thread; other threads
    /// continue. It must not use this file system.
    pub fn decide_by(&self, decider: Decider) {
        self.locked().decider = Some(Arc::from(decider));
    }

    /// From now on files seem to be on the device and not in memory, and reads that are announced are noted.
    pub fn seem_cold(&self) {
        self.locked().is_cold = true;
    }

    /// The reads announced since the last call: file, offset and length.
    #[must_use]
    pub fn take_announced(&self) -> Vec<(PathBuf, u64, u64)> {
        std::mem::take(&mut self.locked().announced)
    }

    fn seems_cold(&self) -> bool {
        self.locked().is_cold
    }

    fn note_announced(&self, path: &Path, offset: u64, len: u64) {
        let mut plan = self.locked();
        if plan.is_cold {
            plan.announced.push((path.into(), offset, len));
        }
    }

    /// The number of calls so far, including failed ones.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.locked().calls
    }

    /// The calls that were made to fail: number, operation, path.
    #[must_use]
    pub fn injected(&self) -> Vec<(u64, &'static str, PathBuf)> {
        self.locked().injected.clone()
    }

    fn locked(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call and returns how it must fail, if it must.
    pub(crate) fn next_fault(&self, op: &'static str, path: &Path) -> Option<FaultKind> {
        let (number, planned, decider) = {
            let mut plan = self.locked();
            plan.calls += 1;
            let number = plan.calls;
            let planned = plan.faults.iter().find(|fault| fault.hits(number)).map(|fault| fault.kind);
            (number, planned, plan.decider.clone())
        };
        let kind = planned.or_else(|| decider?(&Call { number, op, path }))?;
        if kind == FaultKind::ShortWrite && op != calls::APPEND {
            return None;
        }
        self.locked().injected.push((number, op, path.into()));
        Some(kind)
    }

    /// Counts a call and fails it if that is planned.
    pub(crate) fn pass(&self, op: &'static str, path: &Path) -> Result<()> {
        self.next_fault(op, path).map_or(Ok(()), |kind| Err(Error::io(op, path, kind.error())))
    }
}

impl Fault {
    fn hits(&self, number: u64) -> bool {
        match self.persistence {
            Persistence::Once => number == self.at,
            Persistence::Sticky => number >= self.at,
            Persistence::Calls(calls) => (self.at..self.at.saturating_add(calls)).contains(&number),
        }
    }
}

impl fmt::Debug for FaultyFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyFs").field("inner", &self.inner).field("calls", &self.calls()).finish_non_exhaustive()
    }
}
