//! Serializable optimistic transactions.
//!
//! ```text
//!                 begin                                         commit
//!                   │                                             │
//!  snapshot ────────●  reads: own writes ─▶ snapshot              │
//!                   │    │                                        │
//!                   │    ├─▶ reads   keys and ranges read ────────┤  1. without the lock: did what was read
//!                   │    └─▶ writes  puts, deletes, range deletes │     change, as of the last commit `upto`?
//!                   │                                             │  ┌ commit lock ─────────────────────────┐
//!  index ───────────┼── commits of others ────────────────────────┼──┤ 2. did memtables get anything that   │
//!                   │                                             │  │    was read after `upto`?            │
//!                   │                                             │  │ log ─▶ memtables ─▶ visible          │
//!                   │                                             │  └──────────────────────────────────────┘
//! ```
//!
//! A transaction reads one snapshot and its own writes, and keeps its writes in memory. A commit takes effect if
//! everything that was read is still the same: then all of the transaction might as well have happened at that moment.
//! So the order of commits is a serial order. A transaction that writes nothing happened when its snapshot was taken.
//!
//! There is no list of recent commits. The index knows them: each version has the number of its commit, and an open
//! snapshot keeps what it sees. So a transaction may stay open for any time, and nothing is kept for those who have
//! none. Memtables and tables that are older than the snapshot are passed over.
//!
//! **Same means the same value.** GC writes a new address for a value that it has moved, with a new number. A newer
//! version alone is therefore no conflict; the answers then and now are compared ([`validate`]).
//!
//! | file | what it is |
//! |---|---|
//! | `handle` | [`Transaction`]: what users call |
//! | `begin` | how it begins, and [`Db::transact`](crate::Db::transact) with its retries |
//! | `reads` | what was read: keys and ranges |
//! | `intervals` | disjoint key ranges |
//! | `writes` | what is to be written; savepoints |
//! | `scan` | an iterator over the snapshot with the own writes in it |
//! | `validate` | the two steps of a commit |
//! | `write_cache` | [`WriteCache`]: writes gathered like those of a transaction, and committed when they are many |

mod begin;
mod handle;
mod intervals;
mod reads;
mod scan;
mod validate;
mod write_cache;
mod writes;

pub use begin::{Isolation, TransactionOptions};
pub use handle::Transaction;
pub use scan::TransactionRange;
pub use write_cache::WriteCache;
pub use writes::Savepoint;
