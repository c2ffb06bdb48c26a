//! What was read and written through a directory.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bifold_contract::IoSource;

use crate::striped::Striped;

/// Bytes and calls per [`IoSource`] since the directory was opened. All counters are atomic and may have several
/// writers.
#[derive(Debug, Default)]
pub struct IoCounters {
    read_bytes: Striped<{ IoSource::COUNT }>,
    written_bytes: [AtomicU64; IoSource::COUNT],
    reads: Striped<{ IoSource::COUNT }>,
    pub(super) syncs: AtomicU64,
    pub(super) failed_removals: AtomicU64,
}

/// A copy of [`IoCounters`] at one moment, indexed by `IoSource as usize`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoTotals {
    /// Bytes read.
    pub read_bytes: [u64; IoSource::COUNT],
    /// Bytes written.
    pub written_bytes: [u64; IoSource::COUNT],
    /// Read calls.
    pub reads: [u64; IoSource::COUNT],
    /// Sync calls on files.
    pub syncs: u64,
    /// Files that could not be removed. The next opening removes them.
    pub failed_removals: u64,
}

impl IoCounters {
    /// The current totals.
    pub fn totals(&self) -> IoTotals {
        IoTotals {
            read_bytes: std::array::from_fn(|i| self.read_bytes.sum(i)),
            written_bytes: std::array::from_fn(|i| self.written_bytes[i].load(Relaxed)),
            reads: std::array::from_fn(|i| self.reads.sum(i)),
            syncs: self.syncs.load(Relaxed),
            failed_removals: self.failed_removals.load(Relaxed),
        }
    }

    #[inline]
    pub(super) fn count_read(&self, source: IoSource, bytes: usize) {
        self.read_bytes.add(source as usize, bytes as u64);
        self.reads.add(source as usize, 1);
    }

    pub(super) fn count_written(&self, source: IoSource, bytes: u64) {
        self.written_bytes[source as usize].fetch_add(bytes, Relaxed);
    }
}
