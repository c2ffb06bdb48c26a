//! Background work in the threads of callers ([`Workers::Caller`](crate::Workers::Caller)).

use std::sync::Arc;

use super::{Scheduler, choice::Role};
use crate::{
    limits::{memory::MEMTABLES_MAX, room::Job, waits::DueWork},
    state::tree::Tree,
};

impl DueWork for Scheduler {
    fn run_due_work(&self) {
        self.health.guard("background work in a caller's thread", || {
            while self.health.writable().is_ok()
                && let Some(task) = self.take_task(Role::Alone)
            {
                self.do_task(task);
            }
        });
        self.tell();
    }

    fn flush_full(&self, tree: &Arc<Tree>) {
        let is_full = || tree.view().sealed.len() >= MEMTABLES_MAX - 1 && !tree.is_dropped();
        if self.health.writable().is_err() || !is_full() || self.room.held_up(tree, Job::Flush).is_some() {
            return;
        }
        let task = self.work.take(|state| {
            // Another thread may have written it by now, or be about to.
            let is_mine = !state.flushing.contains(&tree.keyspace) && is_full();
            is_mine.then(|| state.take_flush(tree))
        });
        if let Some(task) = task {
            self.do_task(task);
        }
    }

    fn tell(&self) {
        // A job waits here for a flush, say. A listener that waits for the end of the job would wait for itself.
        if self.events.are_told() && !self.signal.is_at_work() {
            self.events.tell();
        }
    }
}
