//! From a batch to the log and the memtable: the only path of writes.

pub(crate) mod expiring;
pub(crate) mod ingest;
pub(crate) mod kept_large;
pub(crate) mod kept_logs;
pub(crate) mod large;
pub(crate) mod memory;
pub(crate) mod moves;
pub(crate) mod notices;
pub(crate) mod op;
pub(crate) mod overwrites;
pub(crate) mod pace;
pub(crate) mod room;
pub(crate) mod slow;
pub(crate) mod syncs;
pub(crate) mod wal;
pub(crate) mod write;
