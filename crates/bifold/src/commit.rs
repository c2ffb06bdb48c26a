//! From a batch to the log and the memtable: the only path of writes.

pub(crate) mod expiring;
pub(crate) mod large;
pub(crate) mod moves;
pub(crate) mod notices;
pub(crate) mod syncs;
pub(crate) mod write;
