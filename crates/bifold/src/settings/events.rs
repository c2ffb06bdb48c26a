//! What a database tells while it works: implement [`EventListener`] and give it to
//! [`Options::listener`](crate::Options::listener).
//!
//! ```
//! use std::sync::{Arc, atomic::{AtomicU64, Ordering::Relaxed}};
//!
//! use bifold::{Db, Options, events::{EventListener, JobEnd, JobInfo, Listener}};
//!
//! #[derive(Default)]
//! struct CountFlushes(AtomicU64);
//!
//! impl EventListener for CountFlushes {
//!     fn flush_ended(&self, _flush: &JobInfo, end: &JobEnd) {
//!         self.0.fetch_add(u64::from(end.error.is_none()), Relaxed);
//!     }
//! }
//!
//! # let dir = std::env::temp_dir().join(format!("bifold-doc-events-{}", std::process::id()));
//! let flushes = Arc::new(CountFlushes::default());
//! let db = Db::open_with(&dir, Options { listener: Listener::new(flushes.clone()), ..Options::default() })?;
//! db.put("lorem", "ipsum")?;
//! db.flush()?;
//! db.close()?;                                       // tells what is still waiting to be told
//! assert_eq!(flushes.0.load(Relaxed), 1);
//! # std::fs::remove_dir_all(dir).ok();
//! # Ok::<(), bifold::Error>(())
//! ```

use std::{fmt, sync::Arc, time::Duration};

use bifold_contract::Error;

/// Learns what a database does. Every method has a default that does nothing.
///
/// Methods are called in the order of the events, one at a time, by a thread of their own that holds no lock: a slow
/// listener delays nothing, and it may call the database, even close it. With [`Workers::Caller`](crate::Workers), and
/// in a database that is only read, they are called at the end of the call in which the events happened; what happened
/// in a call that only reads is told with the next that does more. At most 4096 events wait; further ones are
/// [lost](EventListener::events_lost). A panic of a method ends that call of it only.
#[allow(unused_variables, reason = "the defaults do nothing")]
pub trait EventListener: Send + Sync {
    /// A memtable is being written as tables.
    fn flush_begun(&self, flush: &JobInfo) {}

    /// That has ended.
    fn flush_ended(&self, flush: &JobInfo, end: &JobEnd) {}

    /// Tables are being merged or moved.
    fn compaction_begun(&self, compaction: &JobInfo) {}

    /// That has ended.
    fn compaction_ended(&self, compaction: &JobInfo, end: &JobEnd) {}

    /// Separated values are being garbage-collected.
    fn gc_begun(&self, gc: &JobInfo) {}

    /// That has ended.
    fn gc_ended(&self, gc: &JobInfo, end: &JobEnd) {}

    /// Writers are made to wait, for `cause`: one of those of [`StallStats`](crate::stats::StallStats). Waits of single
    /// commits that follow each other are one stall.
    fn stall_begun(&self, cause: &'static str) {}

    /// A commit that did not have to wait, or waited for another cause, has ended the stall. It had lasted for `time`.
    fn stall_ended(&self, cause: &'static str, time: Duration) {}

    /// A file of the database was created, with this name in its directory.
    fn file_created(&self, name: &str) {}

    /// A file was removed.
    fn file_deleted(&self, name: &str) {}

    /// It cannot be found out which other processes read the database, for example because of the permissions of its
    /// directory `readers`. Until that is known again, no file is deleted that one of them might need. Told once.
    fn readers_unknown(&self, error: &Error) {}

    /// Opening, or a compaction or GC run of `keyspace`, could not read something, which later runs leave out
    /// ([`Db::left_out`](crate::Db::left_out)). Writes go on.
    fn left_out(&self, keyspace: &str, error: &Error) {}

    /// The database takes no more writes because of this failure. It is the last of its kind.
    fn poisoned(&self, error: &Error) {}

    /// So many events were lost here because the listener was too slow.
    fn events_lost(&self, count: u64) {}
}

/// A flush, compaction or GC run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobInfo {
    /// The same for beginning and end, and different for each job since the database was opened.
    pub number: u64,
    /// The keyspace.
    pub keyspace: String,
    /// Bytes that it takes as input: of the memtable, or of tables. 0 for a GC run, which finds out.
    pub input_bytes: u64,
}

/// How a job ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobEnd {
    /// How long it took.
    pub time: Duration,
    /// Why it failed, if it did. [`Full`](Error::Full): it is tried again when there is room.
    /// [`Closed`](Error::Closed): closing has cancelled it, and nothing is lost; what it would have written is written
    /// after the next opening.
    pub error: Option<Error>,
}

/// The listener of a database, or none, which is the default and costs nothing. Cheap to clone.
#[derive(Clone, Default)]
pub struct Listener(Option<Arc<dyn EventListener>>);

impl Listener {
    /// Tells `listener`.
    pub fn new(listener: Arc<dyn EventListener>) -> Self {
        Self(Some(listener))
    }

    pub(crate) fn get(&self) -> Option<&Arc<dyn EventListener>> {
        self.0.as_ref()
    }
}

/// Whether there is one.
impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(&self.0.is_some()).finish()
    }
}

/// Whether both are the same one.
impl PartialEq for Listener {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            (None, None) => true,
            _ => false,
        }
    }
}
