//! What users call.

pub(crate) mod backup;
pub(crate) mod batch;
pub(crate) mod checkpoint;
pub(crate) mod db;
pub(crate) mod expiry;
pub(crate) mod histogram;
pub(crate) mod keyspace;
pub mod options;
pub mod placement;
pub mod salvage;
pub mod stats;
pub(crate) mod verify;
