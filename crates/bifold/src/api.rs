//! What users call.

pub(crate) mod backup;
pub(crate) mod batch;
pub(crate) mod changes;
pub(crate) mod checkpoint;
pub(crate) mod db;
pub(crate) mod expiry;
mod filter;
pub(crate) mod follow;
pub(crate) mod ingest;
pub(crate) mod keyspace;
pub(crate) mod large;
mod merge;
pub mod metrics;
pub mod salvage;
mod short_forms;
pub(crate) mod snapshot;
pub mod stats;
pub(crate) mod verify;
