//! The ordered index of Bifold. It handles keys and sorted streams and knows nothing about value files.
//!
//! | file | what it is |
//! |---|---|
//! | [`cursor`] | the trait of ordered streams |
//! | [`memtable`] | the newest entries, in memory: one writer, lock-free readers |
//! | [`table`] | sorted tables on disk: writer, reader, cursor |
//! | [`cache`] | the block cache |
//! | [`range_tombstones`] | deleted key ranges, for lookups by key |
//! | [`version`] | the immutable set of tables at one moment, and how an edit produces the next one |
//! | [`hash_index`] | finds the level-0 runs that may hold a key |
//! | [`lookup`] | looks up one key in one version |
//! | [`entries`] | entries in key order that an ingest has gathered |
//! | [`merge`] | merges several sorted streams |
//! | [`visible`] | a merged stream as one snapshot sees it, in both directions |
//! | `cpu` | prefetching into the processor's caches |
//! | [`compaction`] | which tables to rewrite (pure policies), and the loop that rewrites them |

pub mod cache;
pub mod compaction;
pub mod cursor;
pub mod entries;
pub mod hash_index;
pub mod lookup;
pub mod memtable;
pub mod merge;
pub mod range_tombstones;
pub mod table;
pub mod version;
pub mod visible;

mod cpu;
