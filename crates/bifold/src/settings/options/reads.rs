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
    /// By system calls that go past the system's page cache and leave it as it was (`O_DIRECT`). For data that exceed
    /// memory: give the block cache most of the memory that the page cache would have had, with a `memory_limit` that
    /// has room for it. The cache holds values by themselves, where a page also holds those next to them, and gets are
    /// up to 1.2 times as fast as with `auto`. With a small cache they are slower: nothing else holds what is read.
    /// What the page cache has anyway is read from there: what was just written, and what scans announce to the
    /// device. Each file is opened twice. Where the file system cannot do it, reads leave the page cache as it was by
    /// other means (Linux 6.14) or are as with `called`. Small appends are mapped, with a handler for `SIGBUS`.
    Direct,
}
