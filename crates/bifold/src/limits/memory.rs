//! How `memory_limit` is divided between its uses.
//!
//! ```text
//! memory_limit
//! ├─ memtables    one filling and up to two waiting to be written: at most 3 × memtable_bytes, at most 40 %
//! ├─ compaction   read and write buffers of every worker: about 3 MiB each, at most 10 %
//! ├─ appends      what commits have appended to logs and value files and no write has flushed yet: at most a sixteenth
//! ├─ metadata     indexes and filters outside the cache: up to 15 %; beyond that they go through the cache
//! ├─ filters      of groups of separated values: up to 5 %; the fuller, the fewer bits for each key
//! ├─ buffers      in which merges and GC move values: 16 MiB for each worker, at most a thirty-second; the fuller, the
//! │               smaller
//! └─ cache        the rest, or `cache_bytes`
//!    ├─ transactions   what open ones hold, lent by the cache: at most a sixteenth, or `transaction_bytes_max`
//!    └─ handles, rows  of `novkv` and `streams`, beyond their share of filters: at most a quarter of it is lent
//! ```
//!
//! `stats.memory.values` counts what placements hold: filters, buffers and open value files. Open files are counted
//! but not limited: each takes about 1200 bytes, so 1 TiB of values in files of 64 MiB takes 19 MiB. Buffers may
//! exceed their share by the minimum that each must have (8 KiB to read a file, 32 KiB to write one), by longer
//! records, and by the keys that running GC jobs of `wisckey` and of the logs of `diffkv` hold. The keys that GC of
//! `hashkv` and `novkv` holds are not counted at all. Nor is the page cache, from which value files may be mapped:
//! the system takes it back when it needs it. `mapped_bytes_max` bounds how much of it is the process's at once, and
//! `stats.memory.mapped` says how much that is.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bifold_index::table::TableContext;
use bifold_io::{
    fs::{self, APPEND_SLOT_BYTES as SLOT_BYTES, Appending},
    machine,
};
use bifold_values::parts::budget::{Lender, Memory};

use crate::settings::options::{Options, Reads, Workers};

/// Memtables that may exist at once: the one being filled and those waiting to be written.
pub(crate) const MEMTABLES_MAX: usize = 3;

/// Bytes for each use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    /// The limit on all of them together.
    pub limit: u64,
    /// A memtable is sealed at this size.
    pub memtable: u64,
    /// Indexes and filters outside the cache.
    pub metadata: u64,
    /// Filters of groups of separated values.
    pub filters: u64,
    /// Buffers that move values.
    pub buffers: u64,
    /// The block cache.
    pub cache: u64,
    /// What the cache and open transactions have together.
    pub rest: u64,
    /// What open transactions have at most.
    pub transactions: u64,
    /// Buffers of compactions.
    pub compaction: u64,
    /// Slots of the append region.
    pub appends: u64,
}

/// The most files with a slot in the append region: the groups of a keyspace and its log, with some to spare.
const APPENDED_FILES_MAX: u64 = 320;

/// A worker that merges values reads 64 files at once with full buffers of 256 KiB. In `diffkv` about
/// `max_sorted_run`, 10, files overlap at a key in each of a few levels.
const VALUE_BUFFERS_BYTES: u64 = 16 << 20;

/// More than there is. Below it no sum overflows.
pub(crate) const LIMIT_MAX: u64 = 1 << 60;

impl MemoryPlan {
    /// Divides `options.memory_limit`.
    pub fn of(options: &Options) -> Self {
        let limit = options.memory_limit.min(LIMIT_MAX);
        let workers = match options.workers {
            Workers::Threads(threads) => u64::from(threads.max(2)),
            Workers::Caller => 1,
        };
        let memtable = options.memtable_bytes.min(limit * 2 / 5 / MEMTABLES_MAX as u64);
        let compaction = (workers * (3 << 20)).min(limit / 10);
        let (metadata, filters) = (limit * 3 / 20, limit / 20);
        let buffers = (workers * VALUE_BUFFERS_BYTES).min(limit / 32);
        let appends = (limit / 16).min(APPENDED_FILES_MAX * SLOT_BYTES);
        let rest = limit - memtable * MEMTABLES_MAX as u64 - compaction - metadata - filters - buffers - appends;
        let cache = options.cache_bytes.map_or(rest, |bytes| bytes.min(rest));
        let transactions = options.transaction_bytes_max.unwrap_or(limit / 16).min(rest);
        Self { limit, memtable, metadata, filters, buffers, cache, rest, transactions, compaction, appends }
    }

    /// The block cache, and the budget for indexes and filters outside it.
    pub fn tables(&self) -> Arc<TableContext> {
        Arc::new(TableContext::new(self.cache, self.metadata).with_spare(self.rest - self.cache))
    }

    /// The memory of placements, which may borrow from the cache of `tables`.
    pub fn values(&self, tables: &Arc<TableContext>) -> Memory {
        let (tables, lent_max) = (Arc::clone(tables), self.cache / LENT_TO_VALUES);
        let lender = CacheLender { tables, lent: AtomicU64::new(0), lent_max };
        Memory::with_lender(self.filters, self.buffers, Arc::new(lender))
    }

    /// How many files have a slot in the append region, and how files are read.
    pub fn appending(&self, options: &Options) -> Appending {
        let reads = match options.reads {
            Reads::Auto => fs::Reads::Auto,
            Reads::Mapped => fs::Reads::Mapped,
            Reads::Called => fs::Reads::Called,
            Reads::Direct => fs::Reads::Direct,
        };
        let files_max = usize::try_from(self.appends / SLOT_BYTES).unwrap_or(usize::MAX);
        let mapped_bytes_max = options.mapped_bytes_max.unwrap_or_else(|| machine::memory_bytes() / 2);
        Appending { files_max, reads, mapped_bytes_max }
    }
}

/// The share of the cache that values may borrow.
const LENT_TO_VALUES: u64 = 4;

/// The block cache as a lender to placements.
#[derive(Debug)]
struct CacheLender {
    tables: Arc<TableContext>,
    lent: AtomicU64,
    lent_max: u64,
}

impl Lender for CacheLender {
    fn lend(&self, bytes: u64) -> bool {
        let grown = |lent: u64| lent.checked_add(bytes).filter(|&sum| sum <= self.lent_max);
        let is_lent = self.lent.fetch_update(Relaxed, Relaxed, grown).is_ok();
        if is_lent {
            self.tables.cache().lend(bytes);
        }
        is_lent
    }

    fn take_back(&self, bytes: u64) {
        self.lent.fetch_sub(bytes, Relaxed);
        self.tables.cache().take_back(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_never_exceed_the_limit() {
        for limit in [1 << 20, 10 << 20, 100 << 20, 512 << 20, 1 << 40] {
            for memtable_bytes in [4 << 10, 1 << 20, 64 << 20, 1 << 40] {
                let options = Options { memory_limit: limit, memtable_bytes, ..Options::default() };
                let plan = MemoryPlan::of(&options);
                let tables = plan.metadata + plan.cache + plan.compaction;
                let sum = plan.memtable * MEMTABLES_MAX as u64 + tables + plan.filters + plan.buffers + plan.appends;
                assert!(sum <= limit, "{plan:?}");
                assert!(plan.cache >= limit / 5, "a cache that starves: {plan:?}");
            }
        }
    }
}
