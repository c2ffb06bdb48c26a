//! Jobs that find something unreadable: they are given up, later jobs leave the unreadable file out, and everything
//! else goes on.
//!
//! ```text
//! a job reads ─▶ damage ─▶ given up: nothing of it is installed, nothing is deleted
//!                          └─▶ the file it names ─┬─ values: no GC run takes it, no merge moves its values,
//!                                                 │          space targets ignore it
//!                                                 └─ a table: no compaction takes it, and it adds no debt
//! ```
//!
//! Reading changes nothing, so there is no reason to refuse writes: unlike a failed write or sync, damage says
//! nothing about what is written next. A file that is left out stays, with everything that leads there, until nothing
//! does. Reads of its sound contents go on. The list is kept until the database is closed; the next session finds the
//! damage again. `docs/reliability.md` says which failures poison.
//!
//! **No job is retried without progress.** Each failure leaves out a file that was not left out before: the one that
//! the error names or, if that one already is, what the job has taken. GC that knows which of its files it was reading,
//! or asking about, leaves out that one instead. A failure that would leave out nothing poisons like any other. So does
//! an error that names no file of the keyspace: that file was just being written.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bifold_contract::{Busy, Error, FileId, Result};
use bifold_format::names::{self, FileKind};
use bifold_values::placement::GcClaim;

use crate::{state::tree::Tree, waiting::sync::LockExt};

/// The tables of one tree with something unreadable in them.
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

    /// Whether one of these tables is left out.
    pub fn has(&self, mut tables: impl Iterator<Item = FileId>) -> bool {
        self.any() && {
            let left_out = self.tables.hold();
            tables.any(|table| left_out.contains_key(&table))
        }
    }

    /// What running jobs hold, and the left-out tables.
    pub fn and(&self, busy: &Busy) -> Busy {
        let mut all = busy.clone();
        if self.any() {
            all.tables.extend(self.tables.hold().keys());
        }
        all
    }

    /// Returns whether it is new.
    pub fn add(&self, table: FileId, why: &Error) -> bool {
        let mut tables = self.tables.hold();
        let is_new = !tables.contains_key(&table);
        tables.entry(table).or_insert_with(|| why.clone());
        self.any.store(true, Relaxed);
        is_new
    }

    /// The errors of the tables that are `there`.
    fn errors(&self, there: &BTreeSet<FileId>) -> Vec<Error> {
        let tables = self.tables.hold();
        tables.iter().filter(|(id, _)| there.contains(id)).map(|(_, why)| why.clone()).collect()
    }
}

impl Tree {
    /// Why jobs leave out files: each reason once, those of value files first.
    pub fn left_out(&self) -> Vec<Error> {
        let mut errors = self.placement().left_out();
        let view = self.view();
        if self.unreadable.any() {
            let there = view.version.tables().map(|table| table.meta().id).collect();
            errors.extend(self.unreadable.errors(&there));
        }
        // Unless a job has left the same table out.
        let unindexed = view.version.unindexed();
        errors.extend(unindexed.filter(|why| errors.iter().all(|known| known.path() != why.path())).cloned());
        errors
    }

    /// The result of an explicit call that has done all it can.
    ///
    /// # Errors
    /// Why something of the keyspace was left out.
    pub fn report_left_out(&self) -> Result<()> {
        self.left_out().into_iter().next().map_or(Ok(()), Err)
    }

    /// Leaves out the file that an error names. Returns whether it was not left out before; `None` if it is no file
    /// of this tree.
    pub fn leave_out_named(&self, why: &Error) -> Option<bool> {
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

/// Leaves out all files that a GC run was to read and that still exist. Returns whether any was not left out before.
pub(crate) fn leave_out_values(tree: &Tree, claim: &GcClaim, why: &Error) -> bool {
    let values = tree.placement();
    let present = values.live_files();
    claim.files.iter().filter(|file| present.contains(file) && values.leave_out(**file, why)).count() > 0
}

/// Notes what a job's lookup could not read.
pub(crate) fn note_unreadable<T>(tree: &Tree, outcome: Result<T>) -> Result<T> {
    outcome.inspect_err(|error| {
        if error.is_unreadable() {
            let _is_new = tree.leave_out_named(error);
        }
    })
}
