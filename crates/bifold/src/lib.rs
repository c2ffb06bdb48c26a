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
//! # Features
//!
//! None is on by default.
//!
//! | feature | what it adds |
//! |---|---|
//! | `metrics` | `metrics::MetricsRecorder` and `metrics::MetricsListener`, for the crate of that name |
//! | `tracing` | `metrics::TracingListener`, which writes events of the crate `tracing` |
//!
//! # What may change
//!
//! Statistics, reports, events and errors may get fields, variants and methods in any release; they are marked
//! `non_exhaustive`. Options ([`Options`], [`KeyspaceOptions`], [`TransactionOptions`], [`salvage::SalvageOptions`] and
//! those of [`options`]) are plain data and may get fields as well: write them with `..Options::default()`.
//! Enumerations without the mark, such as [`Durability`] and [`Workers`], change in major releases only. The crates
//! `bifold-contract`, `bifold-io`, `bifold-format`, `bifold-index` and `bifold-values` have no promise of their own;
//! what this crate exports of them has.
//!
//! # How the code flows
//!
//! Each module of the root imports only from those that `ARCHITECTURE.md` lists below it.
//!
//! | path | module |
//! |---|---|
//! | transactions: their reads and writes, the check at their commit | `transaction` |
//! | what users call | `api` |
//! | opening after a stop or a crash; reading what another process writes | `open` |
//! | which background work runs next, on which thread | `schedule` |
//! | sorted entries without the log | `ingest` |
//! | flush, compaction, GC | `background` |
//! | commit: log, memtable, visibility | `commit` |
//! | every change of trees and of the manifest | `install` |
//! | memory, room, space; how fast writers go | `limits` |
//! | the log, the manifest, the list of trees | `log` |
//! | point reads and iterators | `read` |
//! | trees, snapshots, operations, running work | `state` |
//! | what users set | `settings` |
//! | waiting and notification | `waiting` |
//! | reading damaged databases, or value files when everything else is lost | [`salvage`] |
//! | placements of your own | [`placement`] |
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

/// Makes `cargo test` compile the README's example.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// And that of the page about followers.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/followers.md")]
struct FollowersPage;

/// And that of the page about the change feed.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/changes.md")]
struct ChangesPage;

mod api;
mod background;
mod commit;
mod counts;
mod engine;
mod ingest;
mod install;
mod limits;
mod log;
mod open;
mod read;
mod schedule;
mod settings;
mod state;
mod transaction;
mod waiting;

pub use api::{
    backup::{Backup, BackupOptions, BackupProgress, Generation, PruneReport},
    batch::Batch,
    changes::{Change, ChangeKind, Changes, LargeValue},
    checkpoint::CheckpointProgress,
    db::{DEFAULT_KEYSPACE, Db},
    expiry::TimeToLive,
    follow::Refreshed,
    ingest::Ingest,
    keyspace::{Keyspace, Swap},
    large::ValueReader,
    metrics, salvage,
    snapshot::Snapshot,
    stats::{self, Stats},
    verify::{VerifyProgress, VerifyReport, verify, verify_in},
};
pub use bifold_contract::{Corruption, Error, IoSource, MAX_KEY_LEN, MAX_VALUE_LEN, Result, SeqNo, Value};
pub use bifold_io::{Env, give_back_freed_memory};
pub use commit::notices::CommitNotice;
pub use ingest::IngestReport;
pub use read::{
    estimate::RangeSize,
    keys::Keys,
    pair::Pair,
    scan::Range,
    undamaged::{DamagedBlock, Undamaged},
};
pub use settings::{
    events,
    filter::{CompactionFilter, FilterEntry, Verdict},
    merge::{Combine, MergeOperator, MergeOperators},
    options::{
        self, Access, CachedValues, Compaction, Compression, Durability, IfMissing, KeyspaceOptions, Options,
        PlacementKind, Reads, Workers,
    },
    placement,
    retain_changes::RetainChanges,
};
pub use transaction::{Isolation, Savepoint, Transaction, TransactionOptions, TransactionRange, WriteCache};
