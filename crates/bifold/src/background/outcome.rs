//! How a job ends: what it took is given back. Damage that it has met is [left out](crate::state::left_out) of
//! later jobs, and any other failure ends writes.

use std::sync::Arc;

use bifold_contract::{CompactionJob, Error, KeyspaceId, Result, planted};
use bifold_values::placement::GcClaim;

use crate::{
    limits::pace::Pace,
    state::{
        health::Health,
        left_out::leave_out_values,
        telling::Events,
        tree::Tree,
        work::{Work, WorkState, unmark},
    },
};

/// What a job has read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Took<'a> {
    /// These tables, and values that they point at.
    Tables(&'a CompactionJob),
    /// These values, and tables that point at them. So many of the files were left out when the job began.
    Values(&'a GcClaim, usize),
}

/// Ends jobs.
pub(crate) struct Outcomes {
    pub health: Arc<Health>,
    pub pace: Arc<Pace>,
    pub work: Arc<Work>,
    pub events: Arc<Events>,
}

impl Outcomes {
    /// Passes on the outcome of a job. If it could not read something, later jobs leave that out; after any other
    /// failure no more writes are taken.
    ///
    /// # Errors
    /// The job's errors.
    pub fn end_of_job<T>(&self, tree: &Tree, took: Took<'_>, outcome: Result<T>) -> Result<T> {
        match outcome {
            Err(error) if error.is_unreadable() && leave_out(tree, took, &error) => {
                self.events.left_out(&tree.name, &error);
                // What slows writers may no longer be anybody's work.
                self.pace.update_of(&[tree.keyspace]);
                Err(error)
            }
            other => self.health.watch(other),
        }
    }

    /// Gives back what [`Work::try_begin`] or a worker took for `job`.
    pub fn end_compaction(&self, keyspace: KeyspaceId, job: &CompactionJob) {
        self.end_work(keyspace, |state, keyspace| {
            if let Some(busy) = state.busy.get_mut(&keyspace) {
                unmark(busy, job);
            }
        });
    }

    /// Gives back what a worker or [`Work::try_gc`] took.
    pub fn end_gc(&self, keyspace: KeyspaceId, claim: Option<&GcClaim>) {
        self.end_work(keyspace, |state, keyspace| {
            let gc = state.gc.entry(keyspace).or_default();
            match claim.and_then(|claim| gc.running.iter().position(|running| running == claim)) {
                Some(at) => drop(gc.running.swap_remove(at)),
                None => gc.by_caller = false,
            }
        });
    }

    /// Gives back what a job took of a keyspace, and notifies.
    pub fn end_work(&self, keyspace: KeyspaceId, give_back: impl FnOnce(&mut WorkState, KeyspaceId)) {
        self.work.change(keyspace, |state| {
            give_back(state, keyspace);
            state.running -= 1;
        });
        self.pace.update_of(&[keyspace]);
        self.work.look_at(&[keyspace]);
    }
}

/// Does the same for each of some trees. Something unreadable in one does not keep it from the others.
///
/// # Errors
/// The first error about something unreadable; any other error at once.
pub(crate) fn for_each_tree(trees: &[Arc<Tree>], act: impl Fn(&Arc<Tree>) -> Result<()>) -> Result<()> {
    let mut unreadable = Ok(());
    for tree in trees {
        match act(tree) {
            Err(error) if error.is_unreadable() => unreadable = unreadable.and(Err(error)),
            other => other?,
        }
    }
    unreadable
}

/// Leaves out what an error names or, if that is left out already, all that the job has taken, unless the job has left
/// out the file that it was about. Returns whether anything was not left out before.
fn leave_out(tree: &Tree, took: Took<'_>, why: &Error) -> bool {
    if planted!("damage_poisons") {
        return false;
    }
    match (tree.leave_out_named(why), took) {
        (None, _) => false,
        (Some(true), _) => true,
        (_, Took::Tables(job)) => job.inputs.iter().filter(|input| tree.unreadable.add(input.2, why)).count() > 0,
        // The job knows which of its files it was about, and the next one does not take that.
        (_, Took::Values(claim, before)) if tree.placement().left_out_of(claim) > before => true,
        (_, Took::Values(claim, _)) => leave_out_values(tree, claim, why),
    }
}
