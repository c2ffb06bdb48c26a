//! Waiting for changes of shared state: the one way to notify of a change, and the one way to wait for it.
//!
//! ```text
//! a change of health, background work or trees ─▶ tell ─▶ the epoch grows; all waiters wake and check their conditions
//! ```
//!
//! * **No change is slept through**: a waiter reads the epoch first and its condition after it, and sleeps only while
//!   the epoch has not changed.
//! * **Nobody notifies by hand**, which would be easy to forget: [`Health`](crate::state::health::Health),
//!   [`Work`](crate::state::work::Work) and [`Changing`](crate::state::changing::Changing) notify whenever they
//!   change. The table is in `ARCHITECTURE.md`.
//! * **The watchdog**: after each [`PATIENCE`] without a notification, a waiter checks its condition. If it is true,
//!   some code forgot to notify. If it is not, and every thread that does background work waits as well, it will
//!   never be true. Both are noted for `stats`, everything that conditions depend on is recomputed, and a build with
//!   debug assertions panics. A disk that takes minutes for one call is not such a case: a thread that waits for the
//!   disk counts as working.
//!
//! This file is compiled twice: here, and over the primitives of `shuttle` in `tests/all/waiting_model.rs`.

use std::{collections::BTreeMap, time::Duration};

use super::sync::{Condvar, LockExt, Mutex, MutexGuard, ThreadId, thread_id, wait_for};

/// How long nothing may happen. Longer than any pause of a healthy system in which a woken thread does not run.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Code that changes something notifies within this time.
const SOON: Duration = Duration::from_secs(1);

/// The number of overdue waits with a description; the others are only counted.
const DESCRIBED_MAX: usize = 16;

/// The changes and their waiters.
#[derive(Debug)]
pub(crate) struct Signal {
    state: Mutex<SignalState>,
    changed: Condvar,
    patience: Duration,
}

#[derive(Debug, Default)]
struct SignalState {
    /// Grows with every change.
    epoch: u64,
    stopping: bool,
    /// The threads that do background work, or a sync for others. A thread that does several is in the list as often.
    working: Vec<ThreadId>,
    /// Grows whenever one of these threads begins or ends its work or a wait.
    steps: u64,
    waits: BTreeMap<u64, Wait>,
    next_wait: u64,
    overdue: Overdue,
}

/// Waits that would never have ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overdue {
    /// How many.
    pub count: u64,
    /// Descriptions of the first of them.
    pub described: Vec<String>,
}

/// A wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// Who waits.
    pub who: &'static str,
    /// What for.
    pub on: &'static str,
    /// Since when, on the engine's clock.
    pub since: Duration,
    thread: ThreadId,
}

/// What a thread that polls has seen so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Vigil {
    steps: u64,
    epoch: u64,
    /// Changes that this thread notified only to make others look.
    pub own_changes: u64,
    /// How long nothing has happened.
    idle: Duration,
}

/// Why a sleep has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// Something has changed, or all waits are to end.
    Changed,
    /// Nothing has changed for long, but some thread is working.
    Patient,
    /// Nothing has changed for long and no thread is working: nothing ever will.
    Overdue,
}

impl Default for Signal {
    fn default() -> Self {
        Self::with_patience(PATIENCE)
    }
}

impl Signal {
    /// With this patience.
    pub fn with_patience(patience: Duration) -> Self {
        Self { state: Mutex::default(), changed: Condvar::default(), patience }
    }

    /// Notifies: something that others may wait for has changed. The caller may hold the lock of the changed state.
    pub fn notify(&self) {
        let mut state = self.state.hold();
        state.epoch += 1;
        self.changed.notify_all();
    }

    /// Ends all waits.
    pub fn stop(&self) {
        let mut state = self.state.hold();
        state.stopping = true;
        self.changed.notify_all();
    }

    /// The number of changes so far. Read it before the condition to wait for.
    pub fn epoch(&self) -> u64 {
        self.state.hold().epoch
    }

    /// Whether all waits are to end.
    pub fn is_stopping(&self) -> bool {
        self.state.hold().stopping
    }

    /// The calling thread does work that others wait for, until the returned guard is dropped.
    pub fn working(&self) -> Working<'_> {
        let mut state = self.state.hold();
        state.working.push(thread_id());
        state.steps += 1;
        Working(self)
    }

    /// Whether the calling thread does such work.
    pub fn is_at_work(&self) -> bool {
        self.state.hold().working.contains(&thread_id())
    }

    /// The calling thread waits, until the returned guard is dropped.
    pub fn waiting(&self, who: &'static str, on: &'static str, since: Duration) -> Waiting<'_> {
        let mut state = self.state.hold();
        let (ticket, thread) = (state.next_wait, thread_id());
        state.next_wait += 1;
        state.note_step_of(thread);
        state.waits.insert(ticket, Wait { who, on, since, thread });
        Waiting { signal: self, ticket }
    }

    /// Sleeps until there have been more than `seen` changes, or until patience ends.
    pub fn sleep_past(&self, seen: u64) -> Woken {
        let state = self.state.hold();
        if state.epoch != seen || state.stopping {
            return Woken::Changed;
        }
        let steps = state.steps;
        let (state, has_lasted) = self.sleep(state, seen, self.patience);
        match () {
            () if !has_lasted => Woken::Changed,
            () if state.steps == steps && state.nobody_works() => Woken::Overdue,
            () => Woken::Patient,
        }
    }

    /// The flag is true if `time` has passed without a change.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, SignalState>,
        seen: u64,
        time: Duration,
    ) -> (MutexGuard<'a, SignalState>, bool) {
        while state.epoch == seen && !state.stopping {
            let (again, is_over) = wait_for(&self.changed, state, time);
            state = again;
            if is_over && state.epoch == seen && !state.stopping {
                return (state, true);
            }
        }
        (state, false)
    }

    /// Sleeps as [`Signal::sleep_past`], but wakes at least `every` so often: for a thread that is not notified of
    /// everything.
    pub fn look_up(&self, seen: u64, every: Duration, vigil: &mut Vigil) -> Woken {
        let (state, has_lasted) = self.sleep(self.state.hold(), seen, every);
        let is_same =
            state.nobody_works() && state.steps == vigil.steps && state.epoch - vigil.own_changes == vigil.epoch;
        *vigil = Vigil {
            steps: state.steps,
            epoch: state.epoch - vigil.own_changes,
            idle: if is_same { vigil.idle + every } else { Duration::ZERO },
            ..*vigil
        };
        match () {
            () if vigil.idle >= self.patience => {
                vigil.idle = Duration::ZERO;
                Woken::Overdue
            }
            () if has_lasted => Woken::Patient,
            () => Woken::Changed,
        }
    }

    /// Whether there are more than `seen` changes within a moment.
    pub fn changes_soon(&self, seen: u64) -> bool {
        !self.sleep(self.state.hold(), seen, SOON.min(self.patience)).1
    }

    /// Notes a wait that would never have ended. Returns its description.
    pub fn note_overdue(&self, who: &str, on: &str, why: &str) -> String {
        let mut state = self.state.hold();
        let others: Vec<String> = state.waits.values().map(|w| format!("{} for {}", w.who, w.on)).collect();
        let others = others.join("; ");
        let words = format!("{who} waited for {on} although {why}; waiting: {others}");
        state.overdue.count += 1;
        if state.overdue.described.len() < DESCRIBED_MAX {
            state.overdue.described.push(words.clone());
        }
        words
    }

    /// The current waits, the longest first.
    pub fn waits(&self) -> Vec<Wait> {
        self.state.hold().waits.values().copied().collect()
    }

    /// Waits that would never have ended.
    pub fn overdue(&self) -> Overdue {
        self.state.hold().overdue.clone()
    }
}

impl SignalState {
    fn nobody_works(&self) -> bool {
        self.working.iter().all(|thread| self.waits.values().any(|wait| wait.thread == *thread))
    }

    fn note_step_of(&mut self, thread: ThreadId) {
        self.steps += u64::from(self.working.contains(&thread));
    }
}

/// See [`Signal::working`].
pub(crate) struct Working<'a>(&'a Signal);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.hold();
        let me = thread_id();
        if let Some(at) = state.working.iter().position(|thread| *thread == me) {
            state.working.swap_remove(at);
        }
        state.steps += 1;
    }
}

/// See [`Signal::waiting`].
pub(crate) struct Waiting<'a> {
    signal: &'a Signal,
    ticket: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.signal.state.hold();
        if let Some(wait) = state.waits.remove(&self.ticket) {
            state.note_step_of(wait.thread);
        }
    }
}
