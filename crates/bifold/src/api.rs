//! What users call.

pub(crate) mod backup;
pub(crate) mod batch;
pub(crate) mod checkpoint;
pub(crate) mod db;
pub(crate) mod follow;
pub(crate) mod histogram;
pub(crate) mod keyspace;
pub mod options;
pub mod placement;
pub mod salvage;
pub(crate) mod snapshot;
pub mod stats;
pub(crate) mod verify;
