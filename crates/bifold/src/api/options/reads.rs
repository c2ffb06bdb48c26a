//! How short reads are done.

use serde::{Deserialize, Serialize};

/// How separated values and blocks of tables of up to 8 KiB are read. What is longer is read by calls, and compressed
/// blocks are, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reads {
    /// From mapped pages while nearly all that is read is in memory, by calls while it is not. One read in 61 is looked
    /// at to find out. Where data exceed memory, a call takes one read of the device for a value on two pages, where
    /// mapped pages take two, and the block cache holds blocks of tables. Mapped blocks are not cached: they would be
    /// twice in memory, and copying one takes less time than finding it in the cache.
    #[default]
    Auto,
    /// From the pages of their files, mapped into the process, where the system can do that: several times as fast when
    /// they are in memory. A disk that fails is an error as ever. The process has a handler for `SIGBUS`, and its
    /// resident memory counts what the system's page cache shares with it.
    Mapped,
    /// By a system call for each. Nothing is mapped, and no handler is installed; small appends cost a system call each
    /// then, too.
    Called,
    /// By system calls that leave the system's page cache as it was: what is read once pushes out nothing that others
    /// use. Only the block cache holds what is read again, so give it more memory, and set `values.cache = "gets"`. It
    /// is for machines whose page cache belongs to others: where it does not, gets are slower. Linux 6.14 and newer can
    /// do this on most file systems (`RWF_DONTCACHE`); elsewhere it is as `called`. Small appends are mapped, and a
    /// handler for `SIGBUS` is installed for these. What scans announce to the device stays in the page cache.
    Direct,
}
