//! Measured costs of the engine's operations, and its default sizes.
//!
//! Times are of one processor of the machine that docs/cost-model.md names. Those of commits, background work and GC
//! were fitted to the processor time of 100 runs of eleven workloads, by least squares of the relative error: their
//! sum is within a quarter of the measured time in four of five runs. Those of reads and scans follow from two
//! workloads each. Another machine has other times; designs are compared by their ratios, which differ less.

/// The default size ratio of levels.
pub const GROWTH: u32 = 10;

/// About f* of per-table merges at α = 0.5, where traffic is least; see [`crate::Compaction::best_growth`].
pub const GROWTH_LEAST_TRAFFIC: u32 = 4;

/// How far level 0 outgrows the size at which a merge is due, before that merge has ended.
pub const LEVEL0_LAG: f64 = 1.35;

/// Runs of a tiered level.
pub const TIERED_GROWTH: u32 = 4;

/// The default threshold for separation.
pub const MIN_BYTES_DEFAULT: u64 = 192;

/// Values of at least this length go to logs; medium ones go to files by key.
pub const LARGE_BYTES: f64 = 8192.0;

/// The smallest size of a level other than the last: about what level 0 holds when it is due.
pub const BASE_BYTES: f64 = (256 << 20) as f64;

/// Level 0 is due at half of its maximum number of runs if merging them is cheap.
pub const LEVEL0_RUNS: f64 = 4.0;

/// The size of the unsorted layer in a two-layer tree.
pub const UNSORTED_BYTES: f64 = (1 << 30) as f64;

/// Runs of the unsorted layer that are not merged.
pub const SCAN_MERGE_RUNS: f64 = 8.0;

/// The largest memtable, and the share of the memory limit for three of them.
pub const MEMTABLE_BYTES: f64 = (64 << 20) as f64;
/// See [`MEMTABLE_BYTES`].
pub const MEMTABLES_SHARE: f64 = 0.4;

/// The share of the memory limit for indexes and filters, including the hash index.
pub const INDEX_SHARE: f64 = 0.15;

/// Bytes of the hash index per key.
pub const HASH_ENTRY: f64 = 10.0;

/// Bytes of the row of a value that has moved, until merges have met it: after so many updates per key.
pub const ROW: f64 = 12.0;
/// See [`ROW`].
pub const ROWS_WAIT: f64 = 0.4;

/// Bytes of an entry in addition to key and value: in a memtable, in a table, in the log, in a value file; and of an
/// address.
pub const MEMTABLE_ENTRY: f64 = 40.0;
/// See [`MEMTABLE_ENTRY`].
pub const TABLE_ENTRY: f64 = 9.0;
/// See [`MEMTABLE_ENTRY`].
pub const LOG_RECORD: f64 = 27.0;
/// See [`MEMTABLE_ENTRY`].
pub const VALUE_RECORD: f64 = 22.0;
/// See [`MEMTABLE_ENTRY`].
pub const ADDRESS: f64 = 13.0;

/// The share of the lower level that per-table merges touch, moves included (α; `bifold vat validate`).
pub const ALPHA: f64 = 0.5;

/// How much of the space target GC leaves unused, in bytes per live byte.
pub const SPACE_SLACK: f64 = 0.05;

/// GC does not run while garbage is below this share of live data.
pub const GARBAGE_LEAST: f64 = 1.0 / 16.0;

/// µs of a commit.
pub const COMMIT: f64 = 0.68;
/// µs more where a commit looks up the group of a key.
pub const GROUP: f64 = 0.41;
/// µs for each KB that commits append.
pub const APPEND_KB: f64 = 0.79;
/// µs for each KB that background work writes.
pub const WRITE_KB: f64 = 0.61;
/// µs for each KB that background work reads.
pub const READ_KB: f64 = 0.22;
/// µs for each entry that background work merges.
pub const ENTRY: f64 = 0.16;
/// µs more for each entry of a layer under a hash index.
pub const INDEXED: f64 = 0.1;
/// µs for each value that merges move.
pub const MOVED: f64 = 0.7;
/// µs for each record that GC reads.
pub const RECORD: f64 = 0.61;
/// µs for each index lookup by GC.
pub const LOOKUP: f64 = 2.23;
/// Index lookups by GC for each record that it reads, where it asks only what is above the last run.
pub const LOOKUPS_ABOVE: f64 = 0.25;
/// µs of a read whose block is in the store's cache, and µs more for a block that is only in the system's memory: for
/// a block of 4 KiB; for a block of 1 KiB, which is mapped and in no cache of the store; for a block and a separated
/// value.
pub const GET_BLOCK: (f64, f64) = (0.70, 3.05);
/// See [`GET_BLOCK`].
pub const GET_SMALL_BLOCK: (f64, f64) = (0.83, 1.42);
/// See [`GET_BLOCK`].
pub const GET_SEPARATED: (f64, f64) = (1.10, 3.50);
/// The approximate share of the block cache in the memory limit.
pub const CACHE_SHARE: f64 = 0.2;
/// µs more for each run of an unsorted layer that a read searches when the hash index lacks room.
pub const GET_RUN: f64 = 0.45;
/// µs for each KB that a read returns.
pub const GET_KB: f64 = 0.24;

/// Of two processors, one serves the program and the other works in the background. The busier one decides, plus this
/// share of the other's time, because they share caches and memory and wait for each other.
pub const OVERLAP_LOSS: f64 = 0.4;

/// The same where writers wait for GC runs that run one at a time (`novkv`): above 1, because both wait.
pub const WAITING_LOSS: f64 = 1.6;

/// µs for each run in which a scan seeks its first key.
pub const SEEK: f64 = 1.5;
/// µs for each entry of a scan, and for each KB of it.
pub const SCAN_ENTRY: f64 = 0.285;
/// See [`SCAN_ENTRY`].
pub const SCAN_KB: f64 = 0.206;
/// µs more for each entry whose value is separated: in the order of arrival, in the order of keys.
pub const ENTRY_SEPARATED: f64 = 0.78;
/// See [`ENTRY_SEPARATED`].
pub const ENTRY_ORDERED: f64 = 0.59;
