//! The work that writes leave, and when each piece of it is due: draining layers, checkpoints, reclaiming files, GC.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::atomic::Ordering::Relaxed,
};

use bifold_contract::{Error, FileId, Result, ValueEdit, planted};
use bifold_format::names::{self, FileKind};
use bifold_values::placement::{GcClaim, GcJob, SpacePressure};

use crate::{
    core::{Core, Upto, hold},
    gc::Verbs,
    health::failure,
    index::ForeignIndex,
};

/// Writers wait while so many layers wait for the index.
const SEALED_MAX: usize = 3;

/// Writers wait while garbage and tables take more than this multiple of what their target allows.
const FULLNESS_MAX: f64 = 1.3;

/// Drained files are deleted before the next GC run when they have this share of all bytes, and so many bytes.
const DRAINED_SHARE: u64 = 16;
const DRAINED_BYTES: u64 = 4 << 20;

impl<I: ForeignIndex> Core<I> {
    /// Does everything that is due.
    pub fn work_all(&self) -> Result<()> {
        while self.work()? {}
        Ok(())
    }

    /// Does one piece of work. Returns whether there was one.
    pub fn work(&self) -> Result<bool> {
        self.health.well()?;
        // Not in the condition below: the commit lock would be held there.
        let log_bytes = hold(&self.log).bytes();
        let worked = if self.layers.sealed() > 0 {
            self.drain(&mut hold(&self.manifest))?
        } else if log_bytes > self.options.log_bytes && self.has_news() {
            self.checkpoint_all()?;
            true
        } else {
            self.free_space()?
        };
        if worked {
            self.note_space();
            self.signal.notify();
        } else if self.counters.is_full.swap(false, Relaxed) {
            // Nothing more can be freed, so nobody need wait for it.
            self.signal.notify();
        }
        Ok(worked)
    }

    /// Whether there is anything that the index does not have for good.
    fn has_news(&self) -> bool {
        let manifest = hold(&self.manifest);
        manifest.applied > manifest.flushed || self.layers.newest().last() > 0
    }

    /// Everything committed so far goes to the index, and that is synced.
    pub fn checkpoint_all(&self) -> Result<()> {
        self.health.well()?;
        self.seal()?;
        let mut manifest = hold(&self.manifest);
        while self.drain(&mut manifest)? {}
        self.checkpoint(&mut manifest)
    }

    /// Deletes drained files, or collects garbage.
    fn free_space(&self) -> Result<bool> {
        let _alone = hold(&self.gc);
        let space = self.values.space();
        let many = space.drained_bytes >= DRAINED_BYTES.max(space.total_bytes / DRAINED_SHARE);
        if many && self.reclaim()? {
            return Ok(true);
        }
        match self.values.pick(&self.pressure(), &[]) {
            Some(job) => self.run(&*job).map(|()| true),
            None => self.reclaim(),
        }
    }

    /// Deletes drained files whose moves are durable and seen by all snapshots. Returns whether there were any.
    fn reclaim(&self) -> Result<bool> {
        if !self.values.can_reclaim(self.snapshots.oldest()) {
            return Ok(false);
        }
        let durable = if planted!("over_reclaims_unsynced") {
            self.values.begin_sync();
            self.values.synced();
            hold(&self.log).next() - 1
        } else {
            self.sync(Upto::Everything)?
        };
        let mut has_files = false;
        let change = || {
            // What is durable is known first: a snapshot opened after that sees the moves.
            let edit: ValueEdit = self.values.reclaim(durable, self.snapshots.oldest());
            has_files = !edit.is_empty();
            edit
        };
        self.install(change, || {})?;
        Ok(has_files)
    }

    /// Runs a GC job. What it cannot read is left out from then on, and stays.
    fn run(&self, job: &dyn GcJob) -> Result<()> {
        // The values of a commit under way are in files that no address leads to yet.
        drop(hold(&self.log));
        let left_out_before = self.values.left_out_of(job.claim());
        match job.run(&Verbs { core: self }) {
            Ok(_) => {
                self.counters.gc_jobs.fetch_add(1, Relaxed);
                Ok(())
            }
            Err(error) if error.is_unreadable() && self.leave_out((job.claim(), left_out_before), &error) => Ok(()),
            // Without a file to blame, the same job would be picked again and again.
            Err(error) => self.health.watch(Err(error)),
        }
    }

    /// Leaves out the value file that an error names, whether or not the job has taken it; or else all that it has
    /// taken, unless it has left out the file that it was about by itself. So many of its files were left out when it
    /// began. Returns whether anything was not left out before.
    fn leave_out(&self, (claim, before): (&GcClaim, usize), why: &Error) -> bool {
        let is_new = self.value_file_of(why).is_some_and(|id| self.values.leave_out(id, why));
        if is_new || self.values.left_out_of(claim) > before && !planted!("over_overlooks_left_out") {
            return true;
        }
        claim.files.iter().filter(|&&id| self.values.leave_out(id, why)).count() > 0
    }

    /// The value file in our directory that an error is about.
    fn value_file_of(&self, why: &Error) -> Option<FileId> {
        let path = why.path()?;
        let FileKind::Value(id) = names::parse(path.file_name()?.to_str()?) else { return None };
        (*path == *self.dir.file(&names::value(id))).then_some(id)
    }

    /// Collects all garbage, whatever the target, and waits for the end.
    pub fn collect_all(&self) -> Result<()> {
        let _alone = hold(&self.gc);
        let mut pressure = SpacePressure { all_before: Some(self.numbers.next()), ..self.pressure() };
        loop {
            self.health.well()?;
            // Moves fill layers, too.
            while self.layers.sealed() > 0 {
                self.drain(&mut hold(&self.manifest))?;
            }
            pressure.oldest_snapshot = self.snapshots.oldest();
            match self.values.pick(&pressure, &[]) {
                Some(job) => self.run(&*job)?,
                None => break,
            }
        }
        self.reclaim()?;
        self.values.left_out().into_iter().next().map_or(Ok(()), Err)
    }

    /// Notes whether writers must wait for space.
    pub fn note_space(&self) {
        let is_full = self.pressure().fullness(&self.values.space()) > FULLNESS_MAX;
        self.counters.is_full.store(is_full, Relaxed);
    }

    /// Whether writers must wait for work.
    pub fn is_behind(&self) -> bool {
        self.layers.sealed() >= SEALED_MAX || self.counters.is_full.load(Relaxed)
    }

    /// What the worker thread does until the store is closed.
    pub fn worker(&self) {
        while !self.signal.is_stopped() {
            let seen = self.signal.calls();
            // Writers must not wait for work that nobody does any more.
            let worked = panic::catch_unwind(AssertUnwindSafe(|| self.work()));
            let worked = worked.unwrap_or_else(|panicked| Err(failure("the worker of a store", panicked.as_ref())));
            match worked {
                Ok(true) => {}
                Ok(false) => self.signal.wait(seen, crate::core::Signal::PATIENCE),
                Err(error) => {
                    // Writers learn of it.
                    let _told = self.health.watch::<()>(Err(error));
                    self.signal.notify();
                    return;
                }
            }
        }
    }
}
