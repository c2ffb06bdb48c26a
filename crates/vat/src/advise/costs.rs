//! What the engine's parts cost, as measured, and the sizes by which it works unless it is told otherwise.
//!
//! Times are of one processor of the machine that docs/cost-model.md names. Those of commits, background work and
//! collections were fitted to the processor time of 100 runs of eleven workloads, by least squares of the relative
//! error: they add up to that within a quarter in four of five runs. Those of reads and scans follow from two
//! workloads each. Another machine has other times: designs are compared by them, and their ratios differ less.

/// Levels grow by this much unless options say otherwise.
pub const GROWTH: u32 = 10;

/// About f* of merges by table at α = 0.5, the least traffic; see [`crate::Compaction::best_growth`].
pub const GROWTH_LEAST_TRAFFIC: u32 = 4;

/// By so much level 0 outgrows the bytes at which it is due, before its merge has ended.
pub const LEVEL0_LAG: f64 = 1.35;

/// Runs of a tiered level.
pub const TIERED_GROWTH: u32 = 4;

/// Values from this length on are apart unless options say otherwise.
pub const MIN_BYTES_DEFAULT: u64 = 192;

/// Values from this length on are in logs, where medium ones are in files by key.
pub const LARGE_BYTES: f64 = 8192.0;

/// No level but the last has less than this: about what level 0 holds when it is due.
pub const BASE_BYTES: f64 = (256 << 20) as f64;

/// Level 0 is due at half as many runs as it may have, when merging them is cheap.
pub const LEVEL0_RUNS: f64 = 4.0;

/// The unsorted layer of two.
pub const UNSORTED_BYTES: f64 = (1 << 30) as f64;

/// Runs of the unsorted layer that are left alone.
pub const SCAN_MERGE_RUNS: f64 = 8.0;

/// A memtable, at most, and the share of the memory limit that three of them have.
pub const MEMTABLE_BYTES: f64 = (64 << 20) as f64;
/// See [`MEMTABLE_BYTES`].
pub const MEMTABLES_SHARE: f64 = 0.4;

/// Of the memory limit, the share for indexes and filters, the hash index among them.
pub const INDEX_SHARE: f64 = 0.15;

/// Bytes of a hash index for each key.
pub const HASH_ENTRY: f64 = 10.0;

/// Bytes of an entry beside key and value: in a memtable, in a table, in the log, in a value file; and of an address.
pub const MEMTABLE_ENTRY: f64 = 40.0;
/// See [`MEMTABLE_ENTRY`].
pub const TABLE_ENTRY: f64 = 9.0;
/// See [`MEMTABLE_ENTRY`].
pub const LOG_RECORD: f64 = 27.0;
/// See [`MEMTABLE_ENTRY`].
pub const VALUE_RECORD: f64 = 22.0;
/// See [`MEMTABLE_ENTRY`].
pub const ADDRESS: f64 = 13.0;

/// Of a lower level, what merges of single tables touch, moves included (α; `bifold vat validate`).
pub const ALPHA: f64 = 0.5;

/// Collections leave so much of the target unused.
pub const SPACE_SLACK: f64 = 0.05;

/// Garbage is not collected below this share of what is live.
pub const GARBAGE_LEAST: f64 = 1.0 / 16.0;

/// µs of a commit.
pub const COMMIT: f64 = 0.68;
/// µs more where the group of a key is looked up.
pub const GROUP: f64 = 0.41;
/// µs for each KB that commits append.
pub const APPEND_KB: f64 = 0.79;
/// µs for each KB that background work writes.
pub const WRITE_KB: f64 = 0.61;
/// µs for each KB that it reads.
pub const READ_KB: f64 = 0.22;
/// µs for each entry that it merges.
pub const ENTRY: f64 = 0.16;
/// µs more for each entry of a layer under a hash index.
pub const INDEXED: f64 = 0.1;
/// µs for each value that merges move.
pub const MOVED: f64 = 0.7;
/// µs for each record that a collection reads.
pub const RECORD: f64 = 0.61;
/// µs for each question that a collection asks of the index.
pub const LOOKUP: f64 = 2.23;
/// µs of a read whose block is in the store's cache, and µs more for one whose is not, although it is in the system's
/// memory: of a block of 4 KiB, of a block of 1 KiB (mapped, so in no cache of the store's), of a block and a value
/// apart.
pub const GET_BLOCK: (f64, f64) = (0.70, 3.05);
/// See [`GET_BLOCK`].
pub const GET_SMALL_BLOCK: (f64, f64) = (0.83, 1.42);
/// See [`GET_BLOCK`].
pub const GET_APART: (f64, f64) = (1.10, 3.50);
/// About the block cache's share of the memory limit.
pub const CACHE_SHARE: f64 = 0.2;
/// µs more for each run of an unsorted layer that a read asks, where its hash index has no room.
pub const GET_RUN: f64 = 0.45;
/// µs for each KB that a read answers.
pub const GET_KB: f64 = 0.24;

/// Of two processors, one of which answers the program and the other works in the background, the busier one decides;
/// of the other's time this share is added, for they share caches and memory and wait for each other.
pub const OVERLAP_LOSS: f64 = 0.4;

/// The same where writers wait for collections that run one at a time (`novkv`): more than all of it, for both wait.
pub const WAITING_LOSS: f64 = 1.6;

/// µs for each run in which a scan looks for its first key.
pub const SEEK: f64 = 1.5;
/// µs for each pair of a scan, and for each KB of it.
pub const PAIR: f64 = 0.285;
/// See [`PAIR`].
pub const PAIR_KB: f64 = 0.206;
/// µs more for each pair whose value is apart: in the order of arrival, in the order of keys.
pub const PAIR_APART: f64 = 0.78;
/// See [`PAIR_APART`].
pub const PAIR_ORDERED: f64 = 0.59;
