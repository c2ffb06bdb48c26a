//! The durability of writes, as equal in every store as each allows.

use std::fmt;

/// The events that an acknowledged write survives, and what each peer does for that:
///
/// | peer | [`Sync::EveryWrite`] | [`Sync::Never`] |
/// |---|---|---|
/// | RocksDB | the log is synced (`fdatasync`), several threads' writes at once | the log is written to the system |
/// | fjall | `PersistMode::SyncData`: the journal is synced for each write by itself | `PersistMode::Buffer` |
/// | redb | `Durability::Immediate`: one `fsync` for each commit | `Durability::None` |
/// | LMDB | no flags: pages are synced, then the page that points at them | `NO_SYNC`: pages are written |
///
/// With [`Sync::Never`] redb guarantees less than the others: a killed process loses everything since the last
/// [`flush`](super::Store::flush); redb 4 has nothing in between. After a power loss LMDB's file may be damaged, not
/// only old, where the file system reorders writes.
///
/// LMDB's `NO_META_SYNC` is between the two: no damage, the last commit may be lost, one of two syncs saved. No other
/// peer has that, so it is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Power loss.
    EveryWrite,
    /// A killed process.
    Never,
}

impl fmt::Display for Sync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EveryWrite => "every write",
            Self::Never => "never",
        })
    }
}
