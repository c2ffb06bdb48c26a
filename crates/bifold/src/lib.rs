//! **Bifold**: an embedded, persistent, ordered key-value store.
//!
//! Keys live in an LSM-tree; values live where the chosen *placement* puts them. Space and memory are bounded, a
//! checksum covers every byte, and what a commit survives is stated and tested.
//!
//! ```
//! use bifold::{Db, Durability, KeyspaceOptions};
//! # let path = std::env::temp_dir().join(format!("bifold-lib-{}", std::process::id()));
//! let db = Db::open(&path)?;
//! let users = db.keyspace("users", KeyspaceOptions::default())?;
//!
//! users.put("ada", "first")?;                       // survives a killed process
//! let mut batch = db.batch();
//! batch.put(&users, "grace", "second")?.delete(&users, "ada")?;
//! db.commit_with(batch, Durability::Sync)?;         // all or nothing, survives power loss
//!
//! for pair in users.range("a".."m").rev() {
//!     let (key, value) = pair?.into_parts()?;
//!     assert_eq!((&key[..], &value[..]), (&b"grace"[..], &b"second"[..]));
//! }
//! # drop((db, users)); std::fs::remove_dir_all(path).ok();
//! # Ok::<(), bifold::Error>(())
//! ```
//!
//! # How the code flows
//!
//! | path | file |
//! |---|---|
//! | commit: log, memtable, visibility | `write`, `wal` |
//! | point read | `read` |
//! | iterators | `scan` |
//! | memtable to tables | `flush` |
//! | tables to tables | `compact` |
//! | which work runs next, on which thread, how fast writers go | `schedule`, `work`, `pace` |
//! | waiting and notification | `signal`, `group_sync` |
//! | every change of state | `install`, `manifest` |
//! | options of a keyspace that change | `configure` |
//! | opening after a stop or a crash | `recover` |
//! | reading value files when everything else is lost | [`salvage`] |
#![forbid(unsafe_code)]

/// Makes `cargo test` compile the README's example.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

mod batch;
mod checkpoint;
mod compact;
mod configure;
mod db;
mod engine;
mod flush;
mod gc;
mod group_sync;
mod health;
mod histogram;
mod install;
mod keyspace;
mod left_out;
mod manifest;
mod memory;
mod narrow;
pub mod options;
mod overwrites;
mod pace;
mod places;
mod presets;
mod read;
mod recover;
mod rewrite;
mod room;
pub mod salvage;
mod scan;
mod schedule;
mod signal;
#[cfg(test)]
mod signal_tests;
mod snapshot;
mod split;
pub mod stats;
mod sync;
mod tree;
mod verify;
mod wal;
mod work;
mod write;

pub use batch::Batch;
pub use bifold_contract::{Corruption, Error, IoSource, MAX_KEY_LEN, MAX_VALUE_LEN, Result, SeqNo, Value};
pub use bifold_io::Env;
pub use checkpoint::CheckpointProgress;
pub use db::{DEFAULT_KEYSPACE, Db, Snapshot};
pub use keyspace::{Keyspace, Swap};
pub use options::{
    Access, CachedValues, Compaction, Compression, Durability, IfMissing, KeyspaceOptions, Options, Placement, Reads,
    Workers,
};
pub use scan::{Pair, Range};
pub use stats::Stats;
pub use verify::{VerifyProgress, VerifyReport, verify, verify_in};
