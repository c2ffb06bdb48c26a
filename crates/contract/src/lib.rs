//! **Read this first.** The nouns of Bifold and the interfaces between its crates. Nothing here does I/O.
//!
//! | file | what it defines |
//! |---|---|
//! | [`key`] | sequence numbers, file and keyspace ids, limits on keys and values |
//! | [`entry`] | one version of one key as every sorted stream carries it |
//! | [`mod@expiry`] | when entries expire |
//! | [`value`] | a value as a reader receives it, not copied where possible |
//! | [`mod@pointer`] | where a separated value lives |
//! | [`levels`] | the shape of an LSM-tree as plain data: levels, runs, tables |
//! | [`edit`] | one atomic change to the database: tables and value files together |
//! | [`error`] | everything that can go wrong, with file, offset and what to do |
//! | [`option`] | options as users write them: sizes, bounds |
//! | [`mod@planted`] | bugs planted on purpose, to test the tests |
//! | [`policy`] | interfaces: which tables to compact, which level-0 tables may hold a key |
//! | [`rewrite`] | interface: what happens to the entries and values of a stream that is rewritten |
//! | [`source`] | on whose behalf bytes are read and written, for the statistics |
//!
//! `index` and `values` both depend on this crate and never on each other; the engine crate `bifold` joins them.
#![forbid(unsafe_code)]

pub mod edit;
pub mod entry;
pub mod error;
pub mod expiry;
pub mod key;
pub mod levels;
pub mod option;
pub mod planted;
pub mod pointer;
pub mod policy;
pub mod rewrite;
pub mod source;
pub mod value;

pub use edit::{
    Edit, KeyspaceEdit, LargeEdit, LargeFileMeta, LevelEdit, LogFloor, PointerChanges, TableAdded, TableRemoved,
    ValueEdit, ValueFileMeta,
};
pub use entry::{Entry, Kind, RangeTombstone};
pub use error::{Corruption, Error, Result};
pub use expiry::{Expiring, Millis};
pub use key::{FileId, KeyspaceId, MAX_KEY_LEN, MAX_VALUE_LEN, RunId, SeqNo};
pub use levels::{Level, Levels, Run, TableMeta};
pub use pointer::{LargeRef, Pointer};
pub use policy::{Busy, BusyOutput, CompactionJob, CompactionPolicy, JobShape, Locator};
pub use rewrite::{Kept, RewriteJob, Rewriter};
pub use source::IoSource;
pub use value::Value;
