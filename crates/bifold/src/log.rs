//! What is recorded: commits in the log, everything else in the manifest. The list of trees changes only under the
//! locks of both.

pub(crate) mod kept_large;
pub(crate) mod kept_logs;
pub(crate) mod manifest;
pub(crate) mod trees;
pub(crate) mod wal;
