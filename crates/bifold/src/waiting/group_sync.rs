//! Group commit: the first thread to come syncs for all that wait.
//!
//! ```text
//! wait while somebody syncs ─▶ durable by now? ─▶ no: sync for all ─▶ durable := what that sync covers ─▶ wake all
//! ```
//!
//! **Invariant.** The sync itself decides what it covers, when it begins. A caller passes how to sync, not a list of
//! what to sync: such a list is older than the wait and would lack what was made meanwhile.
//!
//! The file is compiled twice: here, and over the primitives of `shuttle` in `tests/all/waiting_model.rs`.

use std::time::Duration;

use bifold_contract::{Result, SeqNo};

use super::{
    signal::{PATIENCE, Signal},
    sync::{Condvar, LockExt, Mutex, wait_for},
};

/// Syncs that threads share.
#[derive(Debug, Default)]
pub(crate) struct GroupSync {
    progress: Mutex<SyncProgress>,
    changed: Condvar,
}

/// How much is to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncTarget {
    /// All commits up to this one, with their values.
    Commit(SeqNo),
    /// Everything in the files, including copies of values that belong to no commit.
    Everything,
}

#[derive(Debug, Default)]
struct SyncProgress {
    durable: SeqNo,
    running: bool,
}

impl GroupSync {
    /// All operations up to this one are durable.
    pub fn durable(&self) -> SeqNo {
        self.progress.hold().durable
    }

    /// Returns when everything up to `upto` is durable, by a `sync` of this thread or of another. `may` says whether
    /// a sync is still allowed. `sync` returns the last durable commit. `now` is the time from which a wait counts.
    ///
    /// # Errors
    /// Those of `may` and `sync`. A failed sync is never retried: the system may have dropped what it could not write.
    pub fn sync(
        &self,
        upto: SyncTarget,
        (signal, now): (&Signal, Duration),
        may: impl Fn() -> Result<()>,
        sync: impl FnOnce() -> Result<SeqNo>,
    ) -> Result<()> {
        let mut progress = self.progress.hold();
        let mut waiting = None;
        loop {
            if matches!(upto, SyncTarget::Commit(seqno) if progress.durable >= seqno) {
                return Ok(());
            }
            may()?;
            if !progress.running {
                break;
            }
            waiting.get_or_insert_with(|| signal.waiting("a sync", "the sync that runs", now));
            // The end of the running sync wakes this thread. If that ever fails, this looks again after a while all
            // the same.
            progress = wait_for(&self.changed, progress, PATIENCE).0;
        }
        progress.running = true;
        drop((progress, waiting));

        let _ends = Syncing(self);
        let _at_work = signal.working();
        let upto = sync()?;
        let mut progress = self.progress.hold();
        progress.durable = progress.durable.max(upto);
        Ok(())
    }
}

/// A running sync. It ends when this is dropped, also by a panic: waiting threads must not wait forever.
struct Syncing<'a>(&'a GroupSync);

impl Drop for Syncing<'_> {
    fn drop(&mut self) {
        self.0.progress.hold().running = false;
        self.0.changed.notify_all();
    }
}
