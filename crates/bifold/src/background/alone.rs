//! A caller's work that finds too little room is done once more, alone.
//!
//! ```text
//! work ─▶ Full, and a worker had a task meanwhile ─▶ workers begin no merge and no GC ─▶ their tasks end ─▶ work
//! ```
//!
//! A job has its copies on the disk, and what they replace, until it ends. So on a full disk a compaction may find no
//! room only because a job of a worker has it just then. The caller could not know: its disk has room for one of the
//! two.
//!
//! Flushes go on, because writers wait for them. Callers do not wait for one another: two that compact a full disk at
//! once may both find too little room.

use bifold_contract::{Error, Result, planted};

use crate::{
    limits::{room::Means, waits::Waits},
    state::work::Work,
};

/// While this is held, workers begin no compaction and no GC run.
struct HeldOff<'a>(&'a Work);

impl Drop for HeldOff<'_> {
    fn drop(&mut self) {
        self.0.take(|state| state.held_off -= 1);
        self.0.look_everywhere();
    }
}

impl Waits {
    /// Does `work`. If it `lacks_room` and is a caller's ([`Means::Reserve`]), does it again with no task of a worker
    /// under way, unless there was none. It must have changed nothing then.
    ///
    /// The calling thread must not be doing a worker's task: it would wait for itself.
    ///
    /// # Errors
    /// The failure that poisoned the database, or that it was closed.
    pub fn or_alone<T>(&self, means: Means, mut work: impl FnMut() -> T, lacks_room: impl Fn(&T) -> bool) -> Result<T> {
        let tasks = || self.work.look(|state| state.tasks);
        let before = tasks();
        let outcome = work();
        let was_alone = before.under_way() == 0 && tasks() == before;
        if means == Means::Free || was_alone || !lacks_room(&outcome) || planted!("refused_for_a_job") {
            return Ok(outcome);
        }
        let _held_off = self.hold_off()?;
        Ok(work())
    }

    /// Holds off compactions and GC of workers, and waits until the tasks under way have ended and what they have
    /// replaced is deleted.
    fn hold_off(&self) -> Result<HeldOff<'_>> {
        self.work.take(|state| state.held_off += 1);
        let held_off = HeldOff(&self.work);
        let is_alone = || self.work.look(|state| state.tasks.under_way() == 0);
        self.wait_until("work that found too little room", "jobs of workers to end", is_alone)?;
        self.remover.wait(None);
        self.room.try_again();
        // Where the work is a flush, a worker does it.
        self.work.look_everywhere();
        Ok(held_off)
    }
}

/// Whether work has found too little room.
pub(crate) fn lacks_room<T>(outcome: &Result<T>) -> bool {
    matches!(outcome, Err(Error::Full { .. }))
}
