//! Jobs that meet something they cannot read: they are given up, what cannot be read is left out of later ones, and all else goes on.
//!
//! ```text
//! a job reads ─▶ damage ─▶ given up: nothing is in force of it, nothing has gone
//!                          └─▶ the file it names ─┬─ values: no collection takes it, no merge moves what it holds, space is reckoned without
//!                                                 └─ a table: no compaction takes it, and it counts for no debt
//! ```
//!
//! Who only reads changes nothing, so there is no reason to refuse writes: unlike a failed write or sync, damage says nothing about what
//! is written next. A file that is left out stays, with everything that leads there, until nothing does: reads of what is sound in it
//! go on. It is known until the database is closed; the next session finds out anew. RewriteScope failures poison stands in
//! `docs/reliability.md`.
//!
//! **No job is tried again for nothing.** Each failure leaves out a file that was not left out before: the one that the error names or,
//! where that is no pending_edit, what the job has taken. A failure that would leave out nothing poisons like any other, and so does one that
//! names no file of the keyspace: that one was just being written.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bifold_contract::{Busy, CompactionJob, Error, FileId, Result, planted};
use bifold_format::names::{self, FileKind};
use bifold_values::placement::GcPick;

use crate::{engine::Engine, schedule::Task, sync::LockExt, tree::Tree};

/// Tables of one tree in which something cannot be read.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    tables: Mutex<BTreeMap<FileId, Error>>,
    any: AtomicBool,
}

impl LeftOut {
    /// Whether there are any.
    pub fn any(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Whether one of these is among them.
    pub fn has(&self, mut tables: impl Iterator<Item = FileId>) -> bool {
        self.any() && {
            let left_out = self.tables.hold();
            tables.any(|table| left_out.contains_key(&table))
        }
    }

    /// What running jobs hold, and these.
    pub fn and(&self, busy: &Busy) -> Busy {
        let mut all = busy.clone();
        all.tables.extend(self.tables.hold().keys());
        all
    }

    /// Answers whether it is new.
    fn add(&self, table: FileId, why: &Error) -> bool {
        let mut tables = self.tables.hold();
        let is_new = !tables.contains_key(&table);
        tables.entry(table).or_insert_with(|| why.clone());
        self.any.store(true, Relaxed);
        is_new
    }

    /// Why, of those that are `there`.
    fn errors(&self, there: &BTreeSet<FileId>) -> Vec<Error> {
        let tables = self.tables.hold();
        tables.iter().filter(|(id, _)| there.contains(id)).map(|(_, why)| why.clone()).collect()
    }
}

/// What a job has read from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Took<'a> {
    /// These tables, and values that they lead to.
    Tables(&'a CompactionJob),
    /// These values, and tables that lead to them.
    Values(&'a GcPick),
}

impl Tree {
    /// What jobs leave out since it cannot be read: of each file why, in the order of their numbers.
    pub fn left_out(&self) -> Vec<Error> {
        let mut errors = self.placement().left_out();
        if self.unreadable.any() {
            let there = self.view().version.tables().map(|table| table.meta().id).collect();
            errors.extend(self.unreadable.errors(&there));
        }
        errors
    }

    /// Leaves out the file that an error names. Answers whether it was not left out before; `None` if it is none of this tree's.
    fn leave_out_named(&self, why: &Error) -> Option<bool> {
        let name = why.path()?.file_name()?.to_str()?;
        match names::parse(name) {
            FileKind::Value(id) => {
                let values = self.placement();
                values.live_files().contains(&id).then(|| values.leave_out(id, why))
            }
            FileKind::Table(id) => {
                let is_there = self.view().version.tables().any(|table| table.meta().id == id);
                is_there.then(|| self.unreadable.add(id, why))
            }
            _ => None,
        }
    }
}

impl Engine {
    /// Passes on how a worker's task has ended. Whose memtables cannot be written, or whose emptied files cannot go, takes no more
    /// writes; other tasks leave out what they cannot read.
    ///
    /// # Errors
    /// Those of the task.
    pub fn end_of_task(&self, task: &Task, outcome: Result<()>) -> Result<()> {
        match task {
            Task::Flush(_) | Task::Retire(_) => self.watch(outcome),
            Task::Compact(tree, job) => self.end_of_job(tree, Took::Tables(job), outcome),
            Task::Collect(tree, pick) => self.end_of_job(tree, Took::Values(pick), outcome),
        }
    }

    /// Passes on how a job has ended. If it could not read something, that is left out from now on; if it has failed otherwise, no more
    /// writes are taken.
    ///
    /// # Errors
    /// Those of the job.
    pub fn end_of_job<T>(&self, tree: &Tree, took: Took<'_>, outcome: Result<T>) -> Result<T> {
        match outcome {
            Err(error) if error.is_unreadable() && leave_out(tree, took, &error) => {
                // What slows writers may be nobody's work any more.
                self.update_pace_of(&[tree.keyspace]);
                Err(error)
            }
            other => self.watch(other),
        }
    }

    /// What an explicit call answers that has done all it can.
    ///
    /// # Errors
    /// Why something of the keyspace was left out.
    pub fn report_left_out(&self, tree: &Tree) -> Result<()> {
        tree.left_out().into_iter().next().map_or(Ok(()), Err)
    }

    /// Does the same for each of some keyspaces. What cannot be read in one keeps none of the others from it.
    ///
    /// # Errors
    /// The first of something that cannot be read; any other at once.
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

/// Leaves out what an error names or, where that is no pending_edit, all that the job has taken. Answers whether anything is left out now that
/// was not before.
fn leave_out(tree: &Tree, took: Took<'_>, why: &Error) -> bool {
    if planted!("damage_poisons") {
        return false;
    }
    match (tree.leave_out_named(why), took) {
        (None, _) => false,
        (Some(true), _) => true,
        (_, Took::Tables(job)) => job.inputs.iter().filter(|input| tree.unreadable.add(input.2, why)).count() > 0,
        (_, Took::Values(pick)) => leave_out_values(tree, pick, why),
    }
}

/// Leaves out all files that a collection was to read and that are there still. Answers whether there are any that were not before.
pub(crate) fn leave_out_values(tree: &Tree, pick: &GcPick, why: &Error) -> bool {
    let values = tree.placement();
    values.files_of(pick).into_iter().filter(|&file| values.leave_out(file, why)).count() > 0
}

/// Notes what a lookup for a job could not read.
pub(crate) fn note_unreadable<T>(tree: &Tree, outcome: Result<T>) -> Result<T> {
    outcome.inspect_err(|error| {
        if error.is_unreadable() {
            let _is_new = tree.leave_out_named(error);
        }
    })
}
