//! How a database is found again: opening after a stop or a crash, and reading what another process writes.

pub(crate) mod follow;
pub(crate) mod recover;
