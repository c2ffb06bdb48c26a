//! The range tombstones of a memtable.
//!
//! Usually there are none, and a reader pays for one load. Otherwise the first reader after a write prepares them for
//! lookups, and the result is kept: n tombstones written in a row are prepared once, not n times.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use arc_swap::ArcSwapOption;
use bifold_contract::RangeTombstone;

use crate::range_tombstones::RangeTombstones;

/// A growing list of range tombstones.
pub(super) struct Ranges {
    count: AtomicUsize,
    all: Mutex<Vec<RangeTombstone>>,
    prepared: ArcSwapOption<Prepared>,
}

struct Prepared {
    count: usize,
    ranges: RangeTombstones,
}

impl Ranges {
    pub(super) fn new() -> Self {
        Self { count: AtomicUsize::new(0), all: Mutex::new(Vec::new()), prepared: ArcSwapOption::empty() }
    }

    #[inline]
    pub(super) fn get(&self) -> RangeTombstones {
        match self.count.load(Ordering::Acquire) {
            0 => RangeTombstones::default(),
            count => self.get_at_least(count),
        }
    }

    fn get_at_least(&self, count: usize) -> RangeTombstones {
        if let Some(prepared) = &*self.prepared.load()
            && prepared.count >= count
        {
            return prepared.ranges.clone();
        }
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let ranges = RangeTombstones::new(all.iter());
        // Stored under the lock, so that an older result never replaces a newer one.
        self.prepared.store(Some(Arc::new(Prepared { count: all.len(), ranges: ranges.clone() })));
        ranges
    }

    pub(super) fn push(&self, tombstone: RangeTombstone) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(tombstone);
        self.count.store(all.len(), Ordering::Release);
    }
}
