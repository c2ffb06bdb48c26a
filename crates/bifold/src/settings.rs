//! What users set and all other layers read: options, and code of theirs that the engine calls.

pub mod events;
pub(crate) mod filter;
pub(crate) mod merge;
pub mod options;
pub mod placement;
pub(crate) mod retain_changes;
