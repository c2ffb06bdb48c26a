//! The block cache: decompressed, checked blocks by file and offset, within a fixed number of bytes.
//!
//! Readers share a block by its reference count, so a value read from it needs no copy and evicting it frees nothing that
//! is still in use. Blocks of deleted files are not purged: file ids are never used again, so they are simply never asked
//! for and age out.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bifold_contract::FileId;
use quick_cache::{Weighter, sync::Cache};

/// Memory an entry takes beside its bytes: its key, its place in the cache's tables and its reference counts.
const ENTRY_OVERHEAD_BYTES: u64 = 64;

/// A typical block, by which the cache's tables are sized at first.
const BLOCK_BYTES_TYPICAL: u64 = 4096;

/// What the cache holds.
#[derive(Clone, Debug)]
pub enum Cached<M> {
    /// A data block.
    Block(Arc<[u8]>),
    /// Index and filter of a table, where the budget for holding them outside the cache is used up.
    Metadata(Arc<M>, u64),
}

#[derive(Clone, Debug)]
struct ByBytes;

impl<M> Weighter<(FileId, u64), Cached<M>> for ByBytes {
    fn weight(&self, _key: &(FileId, u64), value: &Cached<M>) -> u64 {
        ENTRY_OVERHEAD_BYTES
            + match value {
                Cached::Block(bytes) => bytes.len() as u64,
                Cached::Metadata(_, bytes) => *bytes,
            }
    }
}

/// A cache of blocks, and of the metadata `M` of tables.
#[derive(Debug)]
pub struct BlockCache<M> {
    /// `None` when nothing is to be cached.
    cache: Option<Cache<(FileId, u64), Cached<M>, ByBytes>>,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl<M> BlockCache<M> {
    /// A cache of so many bytes; 0 caches nothing.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        let items = usize::try_from(capacity_bytes / BLOCK_BYTES_TYPICAL).unwrap_or(usize::MAX).max(16);
        let cache = (capacity_bytes > 0).then(|| Cache::with_weighter(items, capacity_bytes, ByBytes));
        Self { cache, hits: AtomicU64::new(0), misses: AtomicU64::new(0) }
    }

    /// What is cached for this place, counted as a hit or a miss.
    #[must_use]
    pub fn get(&self, file: FileId, offset: u64) -> Option<Cached<M>> {
        let found = self.cache.as_ref()?.get(&(file, offset));
        if found.is_some() { &self.hits } else { &self.misses }.fetch_add(1, Relaxed);
        found
    }

    /// Caches something for this place.
    pub fn insert(&self, file: FileId, offset: u64, value: Cached<M>) {
        if let Some(cache) = &self.cache {
            cache.insert((file, offset), value);
        }
    }

    /// Bytes it holds.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.cache.as_ref().map_or(0, Cache::weight)
    }

    /// Questions it could answer.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.hits.load(Relaxed)
    }

    /// Questions it could not.
    #[must_use]
    pub fn misses(&self) -> u64 {
        self.misses.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_keeps_within_its_bytes() {
        let cache: BlockCache<()> = BlockCache::new(100_000);
        for offset in 0..1000 {
            cache.insert(1, offset, Cached::Block(vec![0; 1000].into()));
            assert!(cache.bytes() <= 100_000);
        }
        assert!(cache.bytes() > 50_000, "most of it is used: {}", cache.bytes());
        let kept = (0..1000).filter(|&offset| cache.get(1, offset).is_some()).count() as u64;
        assert_eq!((cache.hits(), cache.misses()), (kept, 1000 - kept));
    }

    #[test]
    fn a_cache_of_no_bytes_holds_nothing() {
        let cache: BlockCache<()> = BlockCache::new(0);
        cache.insert(1, 0, Cached::Block(vec![0].into()));
        assert!(cache.get(1, 0).is_none());
        assert_eq!(cache.bytes(), 0);
    }
}
