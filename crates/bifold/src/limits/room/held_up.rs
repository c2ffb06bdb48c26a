//! Work that waits for room.

use std::time::Duration;

use bifold_contract::{Error, Result, planted};

use super::Room;
use crate::{state::tree::Tree, waiting::sync::LockExt};

/// Work that found too little room is tried again after this time, if not before.
const RETRY: Duration = Duration::from_secs(1);

/// The kinds of work that can find too little room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Job {
    /// A flush.
    Flush,
    /// A compaction.
    Compact,
    /// A GC run.
    Gc,
}

/// Work that waits for room.
#[derive(Clone, Debug)]
pub(super) struct HeldUp {
    /// The room that it found: with more, it is tried again.
    left: u64,
    /// When that was. What a system reports as free need not change when there is more.
    since: Duration,
    why: Error,
}

impl HeldUp {
    /// How long until it is tried again.
    fn retry_in(&self, now: Duration) -> Duration {
        RETRY.saturating_sub(now.saturating_sub(self.since))
    }
}

impl Room {
    /// Does work and notes its outcome: work that found too little room waits for more.
    pub fn noting<T>(&self, tree: &Tree, job: Job, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let outcome = work();
        self.note(tree, job, outcome.as_ref().err());
        outcome
    }

    fn note(&self, tree: &Tree, job: Job, error: Option<&Error>) {
        let mut held_up = self.held_up.hold();
        match error {
            Some(why @ Error::Full { .. }) => {
                let left = self.dir.free_bytes().unwrap_or(u64::MAX);
                let since = self.clock.now();
                held_up.insert((tree.keyspace, job), HeldUp { left, since, why: why.clone() });
            }
            _ => drop(held_up.remove(&(tree.keyspace, job))),
        }
    }

    /// Work that found too little room is tried again now.
    pub fn try_again(&self) {
        self.held_up.hold().clear();
    }

    /// Why work of a keyspace waits for room, if it does.
    pub fn held_up(&self, tree: &Tree, job: Job) -> Option<Error> {
        let held_up = self.held_up.hold();
        let found = held_up.get(&(tree.keyspace, job))?;
        let is_as_before = self.dir.free_bytes().is_some_and(|free| free <= found.left);
        let is_fresh = !found.retry_in(self.clock.now()).is_zero();
        (is_as_before && is_fresh && !tree.is_dropped()).then(|| found.why.clone())
    }

    /// How long until work is tried again that found too little room; `None` if there is none. When that is zero, the
    /// caller makes all workers look: nobody else is told.
    pub fn retry_in(&self) -> Option<Duration> {
        let mut held_up = self.held_up.hold();
        let now = self.clock.now();
        let soonest = held_up.values().map(|held| held.retry_in(now)).min();
        // Each of them is told once: there may be no such work any more.
        held_up.retain(|_, held| !held.retry_in(now).is_zero());
        soonest.filter(|_| !planted!("held_up_until_asked"))
    }
}
