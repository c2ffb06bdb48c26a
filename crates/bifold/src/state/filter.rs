//! The compaction filter of a tree, and what it has done.

use std::sync::{Mutex, atomic::AtomicU64};

use crate::{settings::filter::CompactionFilter, waiting::sync::LockExt};

/// The filter of a tree.
#[derive(Debug, Default)]
pub(crate) struct TreeFilter {
    filter: Mutex<Option<CompactionFilter>>,
    pub counts: FilterCounts,
}

/// What a filter did since the database was opened.
#[derive(Debug, Default)]
pub(crate) struct FilterCounts {
    pub asked: AtomicU64,
    pub deleted: AtomicU64,
    pub replaced: AtomicU64,
    pub failed: AtomicU64,
}

impl TreeFilter {
    pub fn set(&self, filter: Option<CompactionFilter>) {
        *self.filter.hold() = filter;
    }

    pub fn is_set(&self) -> bool {
        self.filter.hold().is_some()
    }

    /// The filter, if there is one.
    pub fn get(&self) -> Option<CompactionFilter> {
        self.filter.hold().clone()
    }
}
