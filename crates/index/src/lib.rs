//! The ordered index of Bifold: it knows keys and sorted streams, and nothing of value files.
//!
//! | file | what it is |
//! |---|---|
//! | [`cursor`] | the trait of everything that can be walked in order |
//! | [`memtable`] | the newest entries, in memory: one writer, readers without locks |
//! | [`table`] | sorted tables on disk: writer, reader, cursor |
//! | [`cache`] | the block cache |
//! | [`range_tombstones`] | deleted key ranges, ready to be asked about a key |
//! | [`version`] | the immutable set of tables at one moment, and its successor under an edit |
//! | [`hash_index`] | which runs of level 0 may hold a key |
//! | [`lookup`] | one key in one version |
//! | [`merge`] | several sorted streams as one |
//! | [`visible`] | a merged stream as one snapshot sees it, both ways |
//! | [`compaction`] | which tables to rewrite (pure policies), and the one loop that rewrites them |

pub mod cache;
pub mod compaction;
pub mod cursor;
pub mod hash_index;
pub mod lookup;
pub mod memtable;
pub mod merge;
pub mod range_tombstones;
pub mod table;
pub mod version;
pub mod visible;
