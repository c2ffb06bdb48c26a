//! Numbers for files, runs and keyspaces.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use bifold_contract::FileId;

/// The numbers of files, runs and keyspaces: one sequence for all.
#[derive(Clone, Debug)]
pub(crate) struct Numbers(Arc<AtomicU64>);

impl Numbers {
    /// Numbers from this one on.
    pub fn from(first: u64) -> Self {
        Self(Arc::new(AtomicU64::new(first)))
    }

    /// A number that is larger than all earlier ones.
    pub fn take(&self) -> FileId {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    /// The number that [`Numbers::take`] returns next.
    pub fn next(&self) -> FileId {
        self.0.load(Ordering::Relaxed)
    }

    /// Only numbers above this one are given out from now on.
    pub fn raise_above(&self, used: FileId) {
        self.0.fetch_max(used.saturating_add(1), Ordering::Relaxed);
    }
}
