//! Commits that are visible at once and durable later: handles that say when.
//!
//! ```text
//! commit (Buffered) ─▶ visible ─▶ handle with the commit's number
//!                                      │ wanted := its number, and the thread is notified
//!                                      ▼
//! thread: group sync for all that is wanted ─▶ durable := what it covered ─▶ waiting threads and wakers are notified
//! ```
//!
//! A handle is a number: whether it is resolved follows from how far commits are durable and from the failure, if any.
//! So nothing is kept for a handle that nobody waits for, and dropping it costs nothing. One sync resolves all handles
//! of commits before its beginning; while it runs the next ones gather.
//!
//! With [`Workers::Caller`](crate::Workers) there is no thread, and whoever waits for or polls a handle syncs.
//!
//! **Invariants.** A handle is resolved as durable only after a sync that began after its commit. Every handle is
//! resolved at the latest when the database is closed. Wakers are cloned, called and dropped without a lock.

use std::{
    collections::BTreeMap,
    fmt, mem,
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker},
};

use bifold_contract::{Error, Result, SeqNo, planted};
use bifold_io::{Clock, threads::Threads};

use crate::{
    commit::syncs::Syncs,
    settings::options::Workers,
    state::{health::Health, work::Work},
    waiting::{
        signal::{PATIENCE, Signal},
        sync::{Condvar, LockExt, Mutex, MutexGuard, wait_for},
    },
};

/// A commit that will be durable: see [`Db::commit_async`](crate::Db::commit_async).
///
/// It is a [`Future`] for any executor, and a thread can [wait](CommitNotice::wait) for it. If it is dropped, the
/// commit becomes durable all the same. It does not keep the database open. When the database is closed, or its last
/// handle is dropped, everything is synced, and the notice has the outcome of that sync.
#[must_use = "without it nobody learns whether the commit became durable"]
pub struct CommitNotice {
    seqno: SeqNo,
    /// Distinguishes handles of one commit: those of empty batches.
    id: u64,
    notices: Arc<Notices>,
}

/// All handles of one database.
pub(crate) struct Notices {
    signal: Arc<Signal>,
    health: Arc<Health>,
    clock: Arc<dyn Clock>,
    workers: Workers,
    /// Weak, so that a handle keeps nothing of a closed database.
    syncs: Weak<Syncs>,
    state: Mutex<NoticeState>,
    changed: Condvar,
}

/// What handles are waiting for.
#[derive(Debug, Default)]
struct NoticeState {
    /// The last commit that has a handle.
    wanted: SeqNo,
    /// All commits up to this one are durable.
    durable: SeqNo,
    /// Why others up to a commit are not, and never will be known to be.
    failed: Option<(SeqNo, Error)>,
    /// Handles that were polled.
    wakers: BTreeMap<(SeqNo, u64), Waker>,
    next_id: u64,
    has_thread: bool,
    is_closed: bool,
}

impl NoticeState {
    fn outcome(&self, seqno: SeqNo) -> Option<Result<()>> {
        if seqno <= self.durable {
            return Some(Ok(()));
        }
        self.failed.as_ref().filter(|(upto, _)| seqno <= *upto).map(|(_, error)| Err(error.clone()))
    }

    /// No sync follows for commits up to this one. What was said of later ones stays: somebody may wait for them, and
    /// nobody would say it again.
    fn fail(&mut self, upto: SeqNo, error: Error) {
        if self.failed.as_ref().is_none_or(|(before, _)| *before < upto) || planted!("notices_go_back") {
            self.failed = Some((upto, error));
        }
    }
}

impl Notices {
    /// Handles of commits that `syncs` makes durable.
    pub fn new(syncs: &Arc<Syncs>, workers: Workers) -> Self {
        Self {
            signal: Arc::clone(&syncs.signal),
            health: Arc::clone(&syncs.health),
            clock: Arc::clone(&syncs.clock),
            workers,
            syncs: Arc::downgrade(syncs),
            state: Mutex::default(),
            changed: Condvar::default(),
        }
    }

    /// Makes sure that somebody resolves handles. Called before a commit that gets one. `work` waits for the thread
    /// when the database is closed.
    ///
    /// # Errors
    /// The system's, when it cannot start a thread.
    pub fn begin(self: &Arc<Self>, threads: &dyn Threads, work: &Work) -> Result<()> {
        let mut state = self.state.hold();
        if self.workers == Workers::Caller || state.has_thread || state.is_closed {
            return Ok(());
        }
        let this = Arc::clone(self);
        let serve = Box::new(move || this.health.guard("a sync for notices", || this.serve()));
        work.has_threads([threads.spawn("bifold-notices", serve)?]);
        state.has_thread = true;
        Ok(())
    }

    /// A handle of the commit with this number, which is visible.
    pub fn of(self: &Arc<Self>, seqno: SeqNo) -> CommitNotice {
        let mut state = self.state.hold();
        state.next_id += 1;
        let notice = CommitNotice { seqno, id: state.next_id, notices: Arc::clone(self) };
        if seqno > state.wanted {
            state.wanted = seqno;
            drop(state);
            self.changed.notify_all();
        }
        notice
    }

    /// The loop of the thread: syncs for all handles that are there, and once more for those that came meanwhile.
    fn serve(&self) {
        loop {
            let mut state = self.state.hold();
            while !state.is_closed && state.outcome(state.wanted).is_some() {
                state = wait_for(&self.changed, state, PATIENCE).0;
            }
            let (wanted, is_closed) = (state.wanted, state.is_closed);
            drop(state);
            if is_closed {
                return;
            }
            self.sync_for(wanted);
        }
    }

    /// Makes commits up to this one durable and resolves their handles: also if it panics.
    fn sync_for(&self, seqno: SeqNo) {
        let resolves = Resolves { notices: self, seqno };
        let outcome = match self.syncs.upgrade() {
            _ if planted!("notice_before_sync") => Ok(()),
            Some(syncs) => syncs.sync_upto(seqno),
            None => Err(closed()),
        };
        mem::forget(resolves);
        self.resolve(seqno, outcome);
    }

    /// Notes that a sync for commits up to this one has ended.
    fn resolve(&self, upto: SeqNo, outcome: Result<()>) {
        let durable = self.durable();
        let mut state = self.state.hold();
        state.durable = state.durable.max(durable);
        match outcome {
            Ok(()) => state.durable = state.durable.max(upto),
            // The failure that ended writes is the cause, whoever met it.
            Err(error) => match self.health.failure() {
                Some(cause) => state.fail(SeqNo::MAX, cause.clone()),
                None => state.fail(upto, error),
            },
        }
        self.wake(state);
    }

    /// Resolves everything when the database is closed. `synced` is the outcome of its last sync. What was committed
    /// after that sync began may be durable or not.
    pub fn close(&self, synced: &Result<()>) {
        let durable = self.durable();
        let mut state = self.state.hold();
        if mem::replace(&mut state.is_closed, true) {
            return;
        }
        state.durable = state.durable.max(durable);
        let failure = match synced {
            Ok(()) => closed(),
            Err(error) => self.health.failure().unwrap_or(error).clone(),
        };
        state.fail(SeqNo::MAX, failure);
        self.wake(state);
    }

    /// Notifies all that wait for what is resolved now.
    fn wake(&self, mut state: MutexGuard<'_, NoticeState>) {
        let failed = state.failed.as_ref().map_or(0, |(upto, _)| *upto);
        let later = match state.durable.max(failed).checked_add(1) {
            Some(next) => state.wakers.split_off(&(next, 0)),
            None => BTreeMap::new(),
        };
        let resolved = mem::replace(&mut state.wakers, later);
        drop(state);
        self.changed.notify_all();
        for waker in resolved.into_values() {
            // Code of others: nothing of ours depends on whether it panics.
            let _theirs = panic::catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }

    /// All commits up to this one are durable, by whatever sync.
    fn durable(&self) -> SeqNo {
        self.syncs.upgrade().map_or(0, |syncs| syncs.durable())
    }

    /// With the durability that other syncs have reached meanwhile.
    fn outcome(&self, seqno: SeqNo) -> Option<Result<()>> {
        let durable = self.durable();
        let mut state = self.state.hold();
        if durable > state.durable {
            // The thread would find nothing left to do.
            state.durable = durable;
            self.wake(state);
            state = self.state.hold();
        }
        state.outcome(seqno)
    }

    /// The outcome for who would wait otherwise. In a forked child it would wait for a thread of the parent.
    fn outcome_to_wait_for(&self, state: &NoticeState, seqno: SeqNo) -> Option<Result<()>> {
        state.outcome(seqno).or_else(|| self.health.is_in_child().then(|| self.health.writable()))
    }
}

fn closed() -> Error {
    Error::Closed { what: "the database".into() }
}

/// Resolves the handles of a sync that has panicked.
struct Resolves<'a> {
    notices: &'a Notices,
    seqno: SeqNo,
}

impl Drop for Resolves<'_> {
    fn drop(&mut self) {
        let panicked = Error::Panicked { what: "a sync", message: "see the thread that reported it".into() };
        self.notices.resolve(self.seqno, Err(panicked));
    }
}

impl CommitNotice {
    /// The number of the commit, as [`Snapshot::seqno`](crate::Snapshot::seqno) shows it.
    #[must_use]
    pub fn seqno(&self) -> SeqNo {
        self.seqno
    }

    /// Whether the commit survives a power loss. Does not wait; `false` after an error, too.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        matches!(self.notices.outcome(self.seqno), Some(Ok(())))
    }

    /// Waits until the commit survives a power loss. May be called again, and by several threads.
    ///
    /// # Errors
    /// The error of the sync, or whatever else ended writes before it. The commit stays visible; after a power loss it
    /// is there or not. [`Closed`](crate::Error::Closed) for a commit made while another thread closed the database,
    /// and in a forked child where the commit was not durable yet when the child began: its parent learns more.
    pub fn wait(&self) -> Result<()> {
        let notices = &self.notices;
        if notices.workers == Workers::Caller && notices.outcome(self.seqno).is_none() {
            notices.sync_for(self.seqno);
        }
        let mut waiting = None;
        let mut state = notices.state.hold();
        loop {
            if let Some(outcome) = notices.outcome_to_wait_for(&state, self.seqno) {
                return outcome;
            }
            let now = || notices.clock.now();
            waiting.get_or_insert_with(|| notices.signal.waiting("the holder of a commit notice", "its sync", now()));
            state = wait_for(&notices.changed, state, PATIENCE).0;
        }
    }
}

impl Future for CommitNotice {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let notices = &self.notices;
        if notices.workers == Workers::Caller && notices.outcome(self.seqno).is_none() {
            notices.sync_for(self.seqno);
        }
        // Code of others, which may call the database.
        let waker = context.waker().clone();
        let mut state = notices.state.hold();
        if let Some(outcome) = notices.outcome_to_wait_for(&state, self.seqno) {
            return Poll::Ready(outcome);
        }
        let replaced = state.wakers.insert((self.seqno, self.id), waker);
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for CommitNotice {
    fn drop(&mut self) {
        let waker = self.notices.state.hold().wakers.remove(&(self.seqno, self.id));
        drop(waker);
    }
}

impl fmt::Debug for CommitNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommitNotice").field("seqno", &self.seqno).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bifold_io::{Env, memory::MemoryFs};

    use super::*;
    use crate::{open::recover::recover, settings::options::Options};

    /// Notices without a commit, and the engine that they are of.
    fn notices() -> (Arc<crate::engine::Engine>, Arc<Notices>) {
        let env = Env { fs: Arc::new(MemoryFs::new()), ..Env::system() };
        let engine = recover(env, Path::new("/db"), Options::default()).unwrap();
        let notices = Arc::clone(&engine.notices);
        (engine, notices)
    }

    /// The thread waits for the sync of a `Sync` commit while another thread closes the database, and then finds it
    /// closed.
    #[test]
    fn a_sync_that_ends_after_the_close_leaves_no_later_notice_unresolved() {
        let (_engine, notices) = notices();
        notices.close(&Ok(()));
        notices.resolve(5, Err(closed()));
        assert!(matches!(notices.outcome(9), Some(Err(Error::Closed { .. }))));
        assert!(matches!(notices.of(9).wait(), Err(Error::Closed { .. })));
    }

    #[test]
    fn a_close_resolves_what_an_earlier_failure_has_left() {
        let (_engine, notices) = notices();
        notices.resolve(5, Err(Error::Full { free_bytes: 0, needed_bytes: 1, path: "/db".into() }));
        assert!(matches!(notices.outcome(5), Some(Err(Error::Full { .. }))));
        assert!(notices.outcome(9).is_none());
        notices.close(&Ok(()));
        assert!(matches!(notices.outcome(9), Some(Err(Error::Closed { .. }))));
    }
}
