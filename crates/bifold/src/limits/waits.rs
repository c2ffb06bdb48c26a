//! Waiting for background work, and doing it in the meantime where callers do.

use std::{
    cell::Cell,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use bifold_contract::Result;
use bifold_io::{Clock, remover::Remover};

use crate::{
    limits::{
        pace::Pace,
        room::{Job, Room},
    },
    state::{health::Health, tree::Tree, work::Work},
    waiting::signal::{Signal, Vigil, Waiting, Woken},
};

/// How often a wait for idleness checks its condition.
const IDLE_LOOK: Duration = Duration::from_millis(20);

/// Why a wait is overdue.
const NOBODY_WORKS: &str = "nobody was at work and no change was notified";

/// Does all background work that is due, in the calling thread.
pub(crate) trait DueWork: Send + Sync {
    /// A job that fails poisons the database, and the next commit reports that.
    fn run_due_work(&self);

    /// Writes the oldest memtable of a tree if no more may wait to be written, unless another thread does or there is
    /// no room for it. A failure is noted as that of any flush: the next commit reports it.
    fn flush_full(&self, tree: &Arc<Tree>);

    /// Tells the listener what has happened, unless this thread is in the middle of a job.
    fn tell(&self);
}

/// How a thread waits for background work.
pub(crate) struct Waits {
    pub clock: Arc<dyn Clock>,
    pub signal: Arc<Signal>,
    pub health: Arc<Health>,
    pub work: Arc<Work>,
    pub pace: Arc<Pace>,
    pub room: Arc<Room>,
    /// With the thread that deletes files.
    pub remover: Arc<Remover>,
    /// Who does background work in a caller's thread, if callers do it. It holds this, so this does not hold it.
    pub in_caller: OnceLock<Weak<dyn DueWork>>,
}

impl Waits {
    /// Whether background work runs in the calling thread.
    pub fn works_in_caller(&self) -> bool {
        self.in_caller.get().is_some()
    }

    /// Does what is due in the calling thread, if callers do that: see [`DueWork::run_due_work`].
    pub fn run_due_work(&self) {
        if let Some(works) = self.in_caller.get().and_then(Weak::upgrade) {
            works.run_due_work();
        }
    }

    /// Tells what has happened in a call that ends, if callers do the work: no other thread would. The caller holds no
    /// lock.
    pub fn tell(&self) {
        if let Some(works) = self.in_caller.get().and_then(Weak::upgrade) {
            works.tell();
        }
    }

    /// Flushes a tree with too many memtables in the calling thread, if callers do that: see [`DueWork::flush_full`].
    /// The thread may be in a job of the tree, as other threads are where there are workers; it holds no lock.
    pub fn flush_full(&self, tree: &Arc<Tree>) {
        if let Some(works) = self.in_caller.get().and_then(Weak::upgrade) {
            works.flush_full(tree);
        }
    }

    /// Waits until `done`, which it checks after every change. `stats` reports `who` waits and `on` what.
    ///
    /// # Errors
    /// The failure that poisoned the database, or that it was closed.
    pub fn wait_until(&self, who: &'static str, on: &'static str, done: impl Fn() -> bool) -> Result<()> {
        let (mut waiting, mut vigil, mut unnotified) = (None, Vigil::default(), None);
        loop {
            let seen = self.signal.epoch();
            if done() {
                if unnotified == Some(seen) && !self.signal.changes_soon(seen) {
                    self.break_up(who, on, "that had come true and nobody notified");
                }
                return Ok(());
            }
            self.health.writable()?;
            if self.works_in_caller() {
                self.run_due_work();
                self.health.writable()?;
                let is_running = self.work.look(|state| state.running > 0);
                if !is_running && self.signal.epoch() == seen {
                    return Ok(());
                }
                // Another thread is working, or just was: with several callers, each does what is due.
                if !is_running {
                    continue;
                }
            }
            waiting.get_or_insert_with(|| self.signal.waiting(who, on, self.clock.now()));
            let woken = match self.works_in_caller() {
                true => self.signal.look_up(seen, IDLE_LOOK, &mut vigil),
                false => self.signal.sleep_past(seen),
            };
            // With work in callers' threads this checks so often that it may be early.
            unnotified = (woken == Woken::Patient && !self.works_in_caller()).then_some(seen);
            if woken == Woken::Overdue {
                self.break_up(who, on, NOBODY_WORKS);
            }
        }
    }

    /// This wait would never have ended. Recomputes everything that conditions depend on, and wakes everybody.
    fn break_up(&self, who: &'static str, on: &'static str, why: &'static str) {
        let words = self.signal.note_overdue(who, on, why);
        self.pace.update();
        self.work.look_everywhere();
        debug_assert!(false, "{words}");
    }

    /// Waits for memtables of some trees to be written, until `is_enough`, or until a flush of one has too little
    /// room. `stats` reports who waits on what.
    ///
    /// # Errors
    /// [`Error::Full`](bifold_contract::Error::Full), and those of [`Waits::wait_until`].
    pub fn wait_for_flush_of(
        &self,
        (who, on): (&'static str, &'static str),
        trees: impl Fn() -> Vec<Arc<Tree>>,
        is_enough: impl Fn() -> bool,
    ) -> Result<()> {
        // Kept here: a flush may no longer be held up by the time it is asked again, with nothing written.
        let full = Cell::new(None);
        self.wait_until(who, on, || {
            let is_enough = is_enough();
            let held_up = if is_enough { None } else { trees().iter().find_map(|p| self.room.held_up(p, Job::Flush)) };
            let is_over = is_enough || held_up.is_some();
            full.set(held_up);
            is_over
        })?;
        full.into_inner().map_or(Ok(()), Err)
    }

    /// Waits until `done`, which looks at everything and is not notified. `stats` reports `who` waits and `on` what,
    /// until what this returns is dropped.
    ///
    /// # Errors
    /// As [`Waits::wait_until`].
    pub fn look_until(&self, who: &'static str, on: &'static str, done: impl Fn() -> bool) -> Result<Waiting<'_>> {
        let waiting = self.signal.waiting(who, on, self.clock.now());
        let mut vigil = Vigil::default();
        while !done() {
            self.health.writable()?;
            if self.works_in_caller() {
                self.work.doubt();
                self.run_due_work();
                self.health.writable()?;
                break;
            }
            // This looks at all trees, so workers must look at all trees too.
            self.work.look_everywhere();
            vigil.own_changes += 1;
            if self.signal.look_up(self.signal.epoch(), IDLE_LOOK, &mut vigil) == Woken::Overdue {
                self.break_up(who, on, NOBODY_WORKS);
            }
        }
        Ok(waiting)
    }
}
