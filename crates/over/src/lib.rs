//! Bifold's value store over somebody else's ordered index: keys and addresses are in an engine of yours, values are
//! in Bifold's value files, grouped by hash (HashKV) or in the order of arrival (WiscKey), with their GC.
//!
//! ```text
//! put ─▶ value file ─▶ log ─▶ layer in memory ─▶ (durable) ─▶ ForeignIndex::write: key → address
//! get ─▶ layers ─▶ ForeignIndex::get ─▶ address ─▶ value file
//! ```
//!
//! | file | what is in it |
//! |---|---|
//! | [`index`] | what a foreign engine must do, and what is stored in it |
//! | `store` | what users call |
//! | `core` | the parts of an open store, and how they hang together |
//! | `commit`, `batch` | the only path of writes; moves of GC take it, too |
//! | `packed` | the buffer of batches, and of changes of the index |
//! | `layers` | what is newer than the index |
//! | `log` | the commit log, and syncs |
//! | `read`, `snapshot` | gets, snapshots, scans |
//! | `work` | draining layers, checkpoints, reclaiming files, GC, and when each is due |
//! | `gc` | what a GC job asks of a store |
//! | `manifest` | the manifest, and what it says |
//! | `recover`, `found` | opening, and what logs hold |
//! | `adapters` | RocksDB and fjall |
//!
//! **Invariants.** An entry goes into the index when its value and its log record are durable: the index is never
//! ahead of the files. A log is deleted when the index was synced after it got all of that log. So the logs decide
//! what happened, and the index may lose whatever it was not asked to sync. See `docs/over.md` and decision 0054.
#![forbid(unsafe_code)]

pub mod adapters;
mod batch;
mod commit;
mod core;
mod found;
mod gc;
mod health;
pub mod index;
mod layers;
mod log;
mod manifest;
mod options;
mod packed;
mod read;
mod recover;
mod snapshot;
mod stats;
mod store;
mod work;

pub use bifold_contract::{Error, Result, Value};
pub use bifold_io::Env;
pub use bifold_values::placements::ValueOptions;

pub use self::{
    batch::Batch,
    index::{ForeignIndex, ForeignView},
    options::{Options, Placement, Workers},
    snapshot::{Scan, Snapshot},
    stats::Stats,
    store::Store,
};
