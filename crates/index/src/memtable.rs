//! The newest entries, in memory: one writer at a time, any number of lock-free readers.
//!
//! | file | what it is |
//! |---|---|
//! | `arena` | memory that is freed all at once |
//! | `entry` | the layout of keys and their versions in the arena |
//! | `order`, `node` | the nodes of the tree: search and insertion |
//! | `rewrite` | distributes the keys of a full node |
//! | `filter` | which keys it does not have |
//! | `tree` | descents and insertion, and why readers need no lock |
//! | `cursor` | the memtable as a sorted stream |
//! | `ranges` | its range tombstones |
//! | `versions` | the versions of one key |
//! | `steps` | what keys with many operands had at some of them |
//!
//! A write of a new key finds its leaf, copies key and payload into the arena and publishes one word. A write of a
//! key that is there pushes a version onto its list and changes no node.
//!
//! Invariants: sequence numbers ascend; nothing is ever removed; what a read returns is valid as long as the
//! memtable.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use bifold_contract::{Entry, Kind, MAX_KEY_LEN, MAX_VALUE_LEN, RangeTombstone, SeqNo, key::MAX_SEQNO, planted};
use bifold_format::filter::key_hash;

use self::{
    arena::Arena,
    filter::KeyFilter,
    ranges::Ranges,
    steps::Steps,
    tree::{Added, Tree},
};
pub use self::{
    cursor::MemtableCursor,
    ranges::MemtableRanges,
    steps::KeyStep,
    versions::{KeyVersion, KeyVersions},
};

/// Entries in key order, newest first within a key, and range tombstones.
pub struct Memtable {
    tree: Tree,
    filter: KeyFilter,
    ranges: Ranges,
    steps: Steps,
    counts: Counts,
    /// Owns everything that `tree` points at. The thread that holds the lock is the writer.
    arena: Mutex<Arena>,
}

/// Counters. Only the writer stores them. Others may read meanwhile, so each number is right by itself, but two
/// numbers may be from different moments.
#[derive(Default)]
struct Counts {
    keys: AtomicU64,
    entries: AtomicU64,
    tombstones: AtomicU64,
    min_seqno: AtomicU64,
    max_seqno: AtomicU64,
    allocated_bytes: AtomicUsize,
    used_bytes: AtomicUsize,
    range_bytes: AtomicUsize,
    prepared_bytes: AtomicUsize,
}

/// The right to write to a memtable. There is one at a time.
pub struct MemtableWriter<'m> {
    memtable: &'m Memtable,
    arena: MutexGuard<'m, Arena>,
}

impl Memtable {
    /// The newest version of `key` not newer than `snapshot`; it may be a tombstone. The caller checks range
    /// tombstones.
    #[inline]
    #[must_use]
    pub fn get(&self, key: &[u8], snapshot: SeqNo) -> Option<Entry<'_>> {
        self.get_hashed(key, key_hash(key), snapshot)
    }

    /// The same, given the key's [`key_hash`].
    #[inline]
    #[must_use]
    pub fn get_hashed(&self, key: &[u8], key_hash: u64, snapshot: SeqNo) -> Option<Entry<'_>> {
        if !self.filter.may_contain(key_hash) {
            return None;
        }
        let key = self.tree.find(key)?;
        key.at(snapshot).map(|version| version.entry(key))
    }

    /// The versions of `key` not newer than `snapshot`, from new to old, given the key's [`key_hash`]. The caller
    /// checks range tombstones.
    #[must_use]
    pub fn versions(&self, key: &[u8], key_hash: u64, snapshot: SeqNo) -> KeyVersions<'_> {
        let key = if self.filter.may_contain(key_hash) { self.tree.find(key) } else { None };
        let seen = if planted!("chain_begins_at_newest") { MAX_SEQNO } else { snapshot };
        KeyVersions::new(key.and_then(|key| Some((key, key.at(seen)?))), &self.steps)
    }

    /// Prefetches what tells most absent keys, such as one with this hash, in [`Memtable::get_hashed`].
    #[inline]
    pub fn expect(&self, key_hash: u64) {
        self.filter.expect(key_hash);
    }

    /// About which part of its keys is below `key`, from 0 to 1. One descent: nodes are taken for equally full.
    #[must_use]
    pub fn share_below(&self, key: &[u8]) -> f64 {
        self.tree.share_below(key)
    }

    /// A new cursor over all entries, not yet placed.
    #[must_use]
    pub fn cursor(self: &Arc<Self>) -> MemtableCursor {
        MemtableCursor::new(Arc::clone(self))
    }

    /// All range tombstones so far. Costs one load if there are none.
    #[inline]
    #[must_use]
    pub fn range_tombstones(&self) -> MemtableRanges {
        self.ranges.get()
    }

    /// Copies of all range tombstones so far, in the order of their numbers: for those who go through all of them once.
    /// Prepares nothing for lookups.
    #[must_use]
    pub fn range_tombstone_copies(&self) -> Vec<RangeTombstone> {
        self.ranges.copies()
    }

    /// The right to write. Blocks while another thread has it.
    pub fn writer(&self) -> MemtableWriter<'_> {
        // A writer panics only before it changes anything (see the assertions), so there is nothing to repair.
        MemtableWriter { memtable: self, arena: self.arena.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// An empty memtable. It takes no memory before the first write.
    #[must_use]
    pub fn new() -> Self {
        let (tree, filter, ranges, counts) = (Tree::new(), KeyFilter::new(), Ranges::new(), Counts::default());
        Self { tree, filter, ranges, steps: Steps::default(), counts, arena: Mutex::new(Arena::new()) }
    }

    /// Number of distinct keys.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.counts.keys.load(Relaxed)
    }

    /// Number of entries: all versions, including tombstones but not range tombstones.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.counts.entries.load(Relaxed)
    }

    /// Number of entries that are tombstones.
    #[must_use]
    pub fn tombstones(&self) -> u64 {
        self.counts.tombstones.load(Relaxed)
    }

    /// Whether nothing was ever written to it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.max_seqno.load(Relaxed) == 0
    }

    /// Memory in bytes, as counted against the memory limit.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let ranges = self.counts.range_bytes.load(Relaxed) + self.counts.prepared_bytes.load(Relaxed);
        self.counts.allocated_bytes.load(Relaxed) + ranges + self.steps.bytes()
    }

    /// How much of [`Memtable::bytes`] is in use: keys, payloads and the structure around them.
    #[must_use]
    pub fn data_bytes(&self) -> usize {
        self.counts.used_bytes.load(Relaxed) + self.counts.range_bytes.load(Relaxed)
    }

    /// The smallest sequence number written to it.
    #[must_use]
    pub fn min_seqno(&self) -> Option<SeqNo> {
        Some(self.counts.min_seqno.load(Relaxed)).filter(|&seqno| seqno > 0)
    }

    /// The largest sequence number written to it.
    #[must_use]
    pub fn max_seqno(&self) -> Option<SeqNo> {
        Some(self.counts.max_seqno.load(Relaxed)).filter(|&seqno| seqno > 0)
    }
}

impl MemtableWriter<'_> {
    /// Adds an entry. Readers may see it at once, unless their snapshot is older.
    ///
    /// # Panics
    /// When its sequence number is not above all earlier ones, or key or payload are longer than may be: the commit
    /// path has checked that.
    pub fn insert(&mut self, entry: &Entry<'_>) {
        assert!(
            (1..=MAX_KEY_LEN).contains(&entry.key.len()) && entry.payload.len() <= MAX_VALUE_LEN,
            "a key of {} bytes with a payload of {} bytes",
            entry.key.len(),
            entry.payload.len()
        );
        self.take_seqno(entry.seqno);
        if !planted!("key_not_in_filter") || !entry.seqno.is_multiple_of(64) {
            self.memtable.filter.add(key_hash(entry.key));
        }
        // SAFETY: this is the memtable's arena and lives as long as the tree; the mutable borrow makes us the only
        // writer.
        let added = unsafe { self.memtable.tree.insert(&mut self.arena, entry) };
        let counts = &self.memtable.counts;
        add(&counts.keys, u64::from(added == Added::Key));
        add(&counts.entries, 1);
        if added == Added::Step {
            self.memtable.steps.set_aside(entry::version_bytes(entry.payload.len()));
        }
        add(&counts.tombstones, u64::from(entry.kind == Kind::Delete));
        let filter_bytes = self.memtable.filter.bytes();
        counts.allocated_bytes.store(self.arena.allocated_bytes() + filter_bytes, Relaxed);
        counts.used_bytes.store(self.arena.used_bytes() + filter_bytes, Relaxed);
    }

    /// Adds a range tombstone.
    ///
    /// # Panics
    /// If its sequence number is not above all earlier ones.
    pub fn delete_range(&mut self, tombstone: RangeTombstone) {
        self.take_seqno(tombstone.seqno);
        let key_bytes = tombstone.start.len() + tombstone.end.as_ref().map_or(0, |end| end.len());
        let Counts { range_bytes, prepared_bytes, .. } = &self.memtable.counts;
        // Twice: as written and as a flush copies it.
        let bytes = 2 * (key_bytes + size_of::<RangeTombstone>());
        range_bytes.store(range_bytes.load(Relaxed) + bytes, Relaxed);
        // Counted whether somebody reads or not, so that reads do not decide when a memtable is full.
        let bytes = self.memtable.ranges.bytes_to_prepare_next();
        prepared_bytes.store(prepared_bytes.load(Relaxed) + bytes, Relaxed);
        self.memtable.ranges.push(tombstone);
    }

    fn take_seqno(&mut self, seqno: SeqNo) {
        let counts = &self.memtable.counts;
        let last = counts.max_seqno.load(Relaxed);
        assert!(last < seqno && seqno <= MAX_SEQNO, "number {seqno} after {last}");
        counts.max_seqno.store(seqno, Relaxed);
        if last == 0 {
            counts.min_seqno.store(seqno, Relaxed);
        }
    }
}

/// Adds to a number that only one thread at a time changes: a load and a store, not a locked instruction.
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Relaxed) + more, Relaxed);
}

impl Default for Memtable {
    fn default() -> Self {
        Self::new()
    }
}

mod arena;
mod cursor;
mod entry;
mod filter;
mod node;
mod order;
mod ranges;
mod rewrite;
mod steps;
mod tree;
mod versions;

#[cfg(test)]
mod tests;
