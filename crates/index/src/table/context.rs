//! The resources that the tables of a database share.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::cache::BlockCache;

/// The block cache, and the budget for indexes and filters held outside it.
///
/// Tables opened when the budget is used up read their index and filter through the cache until it has room: slower,
/// but memory stays capped.
#[derive(Debug)]
pub struct TableContext {
    cache: BlockCache,
    metadata_capacity_bytes: u64,
    metadata_bytes: AtomicU64,
}

impl TableContext {
    /// A cache of `cache_bytes`, and a budget of `metadata_bytes` for indexes and filters.
    #[must_use]
    pub fn new(cache_bytes: u64, metadata_bytes: u64) -> Self {
        Self {
            cache: BlockCache::new(cache_bytes),
            metadata_capacity_bytes: metadata_bytes,
            metadata_bytes: AtomicU64::new(0),
        }
    }

    /// The same; the cache may lend `spare_bytes` without becoming smaller.
    #[must_use]
    pub fn with_spare(self, spare_bytes: u64) -> Self {
        Self { cache: self.cache.with_spare(spare_bytes), ..self }
    }

    /// The block cache.
    #[inline]
    #[must_use]
    pub fn cache(&self) -> &BlockCache {
        &self.cache
    }

    /// Bytes of indexes and filters held outside the cache.
    #[must_use]
    pub fn metadata_bytes(&self) -> u64 {
        self.metadata_bytes.load(Relaxed)
    }

    /// Whether the budget has room for `bytes` now. Costs one load.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        bytes <= self.metadata_capacity_bytes.saturating_sub(self.metadata_bytes())
    }

    /// Takes `bytes` from the budget if there is room.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let grown = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.metadata_capacity_bytes);
        self.metadata_bytes.fetch_update(Relaxed, Relaxed, grown).is_ok()
    }

    /// Returns bytes from [`TableContext::take`] to the budget.
    pub(crate) fn give_back(&self, bytes: u64) {
        self.metadata_bytes.fetch_sub(bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_never_exceeded_and_comes_back() {
        let context = TableContext::new(0, 100);
        assert!(context.take(60));
        assert!(!context.take(41));
        assert!(context.take(40));
        assert_eq!(context.metadata_bytes(), 100);
        context.give_back(60);
        assert!(context.take(1));
        assert!(!context.take(u64::MAX));
    }
}
