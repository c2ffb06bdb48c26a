//! The block cache: uncompressed, verified blocks by file and offset, within a fixed number of bytes.
//!
//! Readers share a block by its reference count, so a value read from one needs no copy, and evicting a block frees
//! nothing that is still in use. Blocks of deleted files are not purged: file ids are never used again, so nobody
//! asks for them and they age out.
//!
//! Others may have some of its memory while they need it more ([`BlockCache::lend`]): open transactions, write caches,
//! and what placements know of values that have moved (repaired handles, rows of forwarding files).

use std::sync::{
    Mutex, PoisonError,
    atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire},
    },
};

use bifold_contract::{FileId, Value, planted};
use bifold_io::striped::Striped;
use quick_cache::{OptionsBuilder, Weighter, sync::Cache};

/// Memory that a block takes in addition to its bytes: key and entry in the cache's tables (about 80 B), reference
/// counts, seal and what the allocator rounds up.
const ENTRY_OVERHEAD_BYTES: u64 = 128;

/// A typical block size; sets the initial size of the cache's tables.
const BLOCK_BYTES_TYPICAL: u64 = 4096;

/// The smallest shard, in bytes; each shard has its own lock. A block larger than a shard is not cached, and table
/// indexes outside the metadata budget go through this cache: about 100 KiB for 16 MiB of small values.
const SHARD_BYTES_MIN: u64 = 1 << 20;

/// More shards than this only cost memory: the lock is held for some 50 ns.
const SHARDS_MAX: u64 = 32;

#[derive(Clone, Debug)]
struct ByBytes;

impl Weighter<(FileId, u64), Value> for ByBytes {
    fn weight(&self, _place: &(FileId, u64), block: &Value) -> u64 {
        block.len() as u64 + ENTRY_OVERHEAD_BYTES
    }
}

/// It changes its size in steps of a sixty-fourth, because each change locks every shard.
const STEPS: u64 = 64;

/// A cache of blocks.
#[derive(Debug)]
pub struct BlockCache {
    /// `None` if nothing is cached.
    blocks: Option<Cache<(FileId, u64), Value, ByBytes>>,
    counts: Striped<2>,
    /// What it has while it lends nothing.
    capacity_bytes: u64,
    /// What it may lend without becoming smaller.
    spare_bytes: u64,
    lent_bytes: AtomicU64,
    /// By how many steps it is smaller.
    smaller: Mutex<u64>,
}

/// Counters of the cache.
const HITS: usize = 0;
const MISSES: usize = 1;

impl BlockCache {
    /// A cache of `capacity_bytes`; 0 caches nothing.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        let items = usize::try_from(capacity_bytes / BLOCK_BYTES_TYPICAL).unwrap_or(usize::MAX).max(32);
        let shards = (capacity_bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        let options = OptionsBuilder::new()
            .estimated_items_capacity(items)
            .weight_capacity(capacity_bytes)
            .shards(1 << shards.ilog2())
            .build();
        let blocks = options.ok().filter(|_| capacity_bytes > 0).map(|options| {
            Cache::with_options(options, ByBytes, quick_cache::DefaultHashBuilder::default(), Default::default())
        });
        Self {
            blocks,
            counts: Striped::default(),
            capacity_bytes,
            spare_bytes: 0,
            lent_bytes: AtomicU64::new(0),
            smaller: Mutex::default(),
        }
    }

    /// The same, with so many bytes that it may lend without becoming smaller.
    #[must_use]
    pub fn with_spare(self, spare_bytes: u64) -> Self {
        Self { spare_bytes, ..self }
    }

    /// The block at this offset, if cached. Counts a hit or a miss.
    #[inline]
    #[must_use]
    pub fn get(&self, file: FileId, offset: u64) -> Option<Value> {
        let found = self.blocks.as_ref().and_then(|blocks| blocks.get(&place(file, offset)));
        self.counts.add(if found.is_some() { HITS } else { MISSES }, 1);
        found
    }

    /// Whether the block at this offset is cached. Neither counts nor uses it.
    #[must_use]
    pub fn has(&self, file: FileId, offset: u64) -> bool {
        self.blocks.as_ref().is_some_and(|blocks| blocks.contains_key(&place(file, offset)))
    }

    /// Caches the block at this offset. Evicts blocks that were not used recently.
    pub fn insert(&self, file: FileId, offset: u64, block: Value) {
        if let Some(blocks) = &self.blocks {
            blocks.insert(place(file, offset), block);
        }
    }

    /// Does without so many bytes until [`BlockCache::take_back`]. The borrowers bound what they take.
    pub fn lend(&self, bytes: u64) {
        let before = self.lent_bytes.fetch_add(bytes, AcqRel);
        self.fit(before, before.saturating_add(bytes));
    }

    /// Has so many bytes again.
    pub fn take_back(&self, bytes: u64) {
        let before = self.lent_bytes.fetch_sub(bytes, AcqRel);
        self.fit(before, before.saturating_sub(bytes));
    }

    /// Changes its size, if these two numbers are in different steps.
    fn fit(&self, before: u64, after: u64) {
        let step = (self.capacity_bytes / STEPS).max(1);
        let steps = |lent: u64| lent.saturating_sub(self.spare_bytes).div_ceil(step);
        if steps(before) == steps(after) {
            return;
        }
        let mut smaller = self.smaller.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been here since, so the number of now decides.
        let now = steps(self.lent_bytes.load(Acquire));
        if let Some(blocks) = &self.blocks
            && now != *smaller
        {
            blocks.set_capacity(self.capacity_bytes.saturating_sub(now * step));
            *smaller = now;
        }
    }

    /// Bytes in use.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks.as_ref().map_or(0, Cache::weight)
    }

    /// Number of requests that found their block.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.counts.sum(HITS)
    }

    /// Number of requests that did not.
    #[must_use]
    pub fn misses(&self) -> u64 {
        self.counts.sum(MISSES)
    }
}

#[inline]
fn place(file: FileId, offset: u64) -> (FileId, u64) {
    (if planted!("stale_cache") { 0 } else { file }, offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_stays_within_its_capacity() {
        for capacity in [100_000, 10 << 20] {
            let cache = BlockCache::new(capacity);
            let blocks = capacity / 100;
            for offset in 0..blocks {
                cache.insert(1, offset, vec![0; 1000].into());
                assert!(cache.bytes() <= capacity);
            }
            assert!(cache.bytes() > capacity / 2, "most of it is used: {}", cache.bytes());
            let kept = (0..blocks).filter(|&offset| cache.get(1, offset).is_some()).count() as u64;
            assert_eq!((cache.hits(), cache.misses()), (kept, blocks - kept));
        }
    }

    #[test]
    fn a_cache_lends_memory_and_has_it_again() {
        let cache = BlockCache::new(4 << 20).with_spare(2 << 20);
        let fill = || (0..8000).for_each(|offset| cache.insert(1, offset, vec![0; 1000].into()));
        fill();
        cache.lend(2 << 20);
        fill();
        assert!(cache.bytes() > 3 << 20, "only what it had to spare: {}", cache.bytes());
        cache.lend(2 << 20);
        cache.lend(1 << 20);
        assert!(cache.bytes() <= 1 << 20, "{}", cache.bytes());
        fill();
        assert!(cache.bytes() <= 1 << 20, "{}", cache.bytes());
        cache.take_back(5 << 20);
        fill();
        assert!(cache.bytes() > 3 << 20, "{}", cache.bytes());
    }

    #[test]
    fn blocks_of_two_files_at_one_offset_are_two_blocks() {
        let cache = BlockCache::new(1 << 20);
        cache.insert(1, 0, vec![1].into());
        cache.insert(2, 0, vec![2].into());
        assert_eq!(cache.get(1, 0).unwrap(), [1]);
        assert_eq!(cache.get(2, 0).unwrap(), [2]);
    }

    #[test]
    fn a_cache_of_no_bytes_holds_nothing() {
        let cache = BlockCache::new(0);
        cache.insert(1, 0, vec![0].into());
        assert!(cache.get(1, 0).is_none());
        assert_eq!((cache.bytes(), cache.misses()), (0, 1));
    }
}
