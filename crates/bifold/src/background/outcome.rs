//! What follows from the outcome of a job: damage that it has met is [left out](crate::background::left_out) of later
//! ones, and any other failure ends writes.

use std::sync::Arc;

use bifold_contract::{CompactionJob, Error, Result, planted};
use bifold_values::placement::GcClaim;

use crate::{
    background::{left_out::leave_out_values, schedule::Task},
    engine::Engine,
    state::tree::Tree,
};

/// What a job has read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Took<'a> {
    /// These tables, and values that they point at.
    Tables(&'a CompactionJob),
    /// These values, and tables that point at them.
    Values(&'a GcClaim),
}

impl Engine {
    /// Passes on the outcome of a worker's task. If memtables cannot be written or drained files cannot be reclaimed,
    /// no more writes are taken; other tasks leave out what they cannot read.
    ///
    /// # Errors
    /// The task's errors.
    pub fn end_of_task(&self, task: &Task, outcome: Result<()>) -> Result<()> {
        match task {
            Task::Flush(_) | Task::FlushRange(_) | Task::Reclaim(_) => self.watch(outcome),
            Task::Compact(tree, job) => self.end_of_job(tree, Took::Tables(job), outcome),
            Task::Gc(tree, job) => self.end_of_job(tree, Took::Values(job.claim()), outcome),
        }
    }

    /// Passes on the outcome of a job. If it could not read something, later jobs leave that out; after any other
    /// failure no more writes are taken.
    ///
    /// # Errors
    /// The job's errors.
    pub fn end_of_job<T>(&self, tree: &Tree, took: Took<'_>, outcome: Result<T>) -> Result<T> {
        match outcome {
            Err(error) if error.is_unreadable() && leave_out(tree, took, &error) => {
                // What slows writers may no longer be anybody's work.
                self.pace.update_of(&[tree.keyspace]);
                Err(error)
            }
            other => self.watch(other),
        }
    }

    /// The result of an explicit call that has done all it can.
    ///
    /// # Errors
    /// Why something of the keyspace was left out.
    pub fn report_left_out(&self, tree: &Tree) -> Result<()> {
        tree.left_out().into_iter().next().map_or(Ok(()), Err)
    }

    /// Does the same for each of some keyspaces. Something unreadable in one does not keep it from the others.
    ///
    /// # Errors
    /// The first error about something unreadable; any other error at once.
    pub fn for_each_tree(&self, trees: &[Arc<Tree>], act: impl Fn(&Arc<Tree>) -> Result<()>) -> Result<()> {
        let mut unreadable = Ok(());
        for tree in trees {
            match act(tree) {
                Err(error) if error.is_unreadable() => unreadable = unreadable.and(Err(error)),
                other => other?,
            }
        }
        unreadable
    }
}

/// Leaves out what an error names or, if that is left out already, all that the job has taken. Returns whether
/// anything was not left out before.
fn leave_out(tree: &Tree, took: Took<'_>, why: &Error) -> bool {
    if planted!("damage_poisons") {
        return false;
    }
    match (tree.leave_out_named(why), took) {
        (None, _) => false,
        (Some(true), _) => true,
        (_, Took::Tables(job)) => job.inputs.iter().filter(|input| tree.unreadable.add(input.2, why)).count() > 0,
        (_, Took::Values(claim)) => leave_out_values(tree, claim, why),
    }
}
