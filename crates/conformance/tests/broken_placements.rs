//! The battery notices what it is for: the example of the crate `bifold`, broken on purpose, fails a row, and passes it
//! whole.

use std::sync::{Arc, Mutex, PoisonError};

use bifold::{
    Result, SeqNo,
    placement::{
        COLLECTED, Explained, FileId, GcClaim, GcContext, GcJob, GcOutcome, IoSource, Moved, Placement, Pointer,
        Profile, RewriteJob, Rewriter, Scan, Settings, SpacePressure, ValueFile, ValueFiles, ValueKind, ValueSpace,
        WriteOp, relocate,
    },
};
use bifold_conformance::{Case, jobs, moves};

#[allow(dead_code, reason = "its `main` is another program")]
#[path = "../../bifold/examples/own_placement.rs"]
mod example;

#[test]
fn a_whole_placement_passes() {
    moves::a05_nothing_is_appended_to_the_files_of_a_checkpoint(&case(None));
    jobs::a04_concurrent_jobs_take_no_file_twice(&case(None));
}

#[test]
#[should_panic(expected = "the origin changed files of the checkpoint")]
fn a_placement_that_seals_nothing_is_caught() {
    moves::a05_nothing_is_appended_to_the_files_of_a_checkpoint(&case(Some(Fault::SealsNothing)));
}

#[test]
#[should_panic(expected = "GC of the origin changed files of the checkpoint")]
fn gc_that_goes_on_in_linked_files_is_caught() {
    moves::a05_nothing_is_appended_to_the_files_of_a_checkpoint(&case(Some(Fault::GoesOnInCopies)));
}

#[test]
#[should_panic(expected = "two jobs took one file")]
fn a_placement_that_picks_busy_files_is_caught() {
    jobs::a04_concurrent_jobs_take_no_file_twice(&case(Some(Fault::PicksBusyFiles)));
}

/// What is broken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Commits go on appending to files that a checkpoint has linked.
    SealsNothing,
    /// GC appends to files that it has written before, also when a checkpoint has linked them.
    GoesOnInCopies,
    /// `pick` looks neither at the claims of running jobs nor at the files that these copy.
    PicksBusyFiles,
}

fn case(fault: Option<Fault>) -> Case {
    let open = move |files: &Arc<ValueFiles>, options: &Settings| {
        let inner = example::AppendOnly::open(files, options)?;
        let (files, options) = (Arc::clone(files), options.clone());
        Ok(Box::new(Concurrent { inner, files, options, busy: Arc::default(), fault }) as Box<dyn Placement>)
    };
    Case::own(example::NAME, open).with_concurrent_jobs()
}

/// The example, with GC jobs of one file each that run at the same time.
struct Concurrent {
    inner: Box<dyn Placement>,
    files: Arc<ValueFiles>,
    options: Settings,
    /// Files that GC reads or writes now.
    busy: Arc<Mutex<Vec<FileId>>>,
    fault: Option<Fault>,
}

impl Placement for Concurrent {
    fn profile(&self) -> Profile {
        self.inner.profile()
    }

    fn write(&self, op: WriteOp<'_>, seqno: SeqNo) -> Result<Option<Pointer>> {
        self.inner.write(op, seqno)
    }

    fn rewriter(&self, job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
        self.inner.rewriter(job)
    }

    fn pick(&self, pressure: &SpacePressure, running: &[GcClaim]) -> Option<Box<dyn GcJob>> {
        let is_broken = self.fault == Some(Fault::PicksBusyFiles);
        let job = self.inner.pick(pressure, running)?;
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let is_taken = |file: &FileId| busy.contains(file) || running.iter().any(|claim| claim.files.contains(file));
        let (mut best, mut taken) = (job.claim().files.iter(), running.iter().flat_map(|claim| &claim.files));
        // Merges change which file is best. A broken one takes what another job has whenever there is one, so that the
        // outcome is always the same.
        let file = if is_broken { taken.next().or_else(|| best.next()) } else { best.find(|file| !is_taken(file)) }?;
        // A broken one does not know what other jobs do, so each of its jobs has a list of its own.
        let busy = if is_broken { Arc::default() } else { Arc::clone(&self.busy) };
        let (files, options) = (Arc::clone(&self.files), self.options.clone());
        Some(Box::new(Relocate { claim: GcClaim::of(vec![*file]), files, options, busy, fault: self.fault }))
    }

    fn space(&self) -> ValueSpace {
        self.inner.space()
    }

    fn explain(&self, pressure: &SpacePressure) -> Vec<Explained> {
        self.inner.explain(pressure)
    }

    fn seal(&self, files: &ValueFiles) {
        if self.fault != Some(Fault::SealsNothing) {
            self.inner.seal(files);
        }
    }
}

/// Moves what is current out of one file.
struct Relocate {
    claim: GcClaim,
    files: Arc<ValueFiles>,
    options: Settings,
    busy: Arc<Mutex<Vec<FileId>>>,
    fault: Option<Fault>,
}

impl Relocate {
    /// Moves what is current to the end of another file that GC has written, if it has written two.
    fn go_on(&self, gc: &dyn GcContext) -> Result<GcOutcome> {
        let is_copy = |file: &Arc<ValueFile>| file.description.class == COLLECTED;
        let copies: Vec<_> = self.files.in_use().into_iter().filter(is_copy).collect();
        let other = copies.iter().find(|file| copies.len() > 1 && !self.claim.files.contains(&file.id));
        let mut copy = match other {
            Some(file) => self.files.go_on_with(file)?,
            None => self.files.begin_copy(COLLECTED, 0)?,
        };
        let mut moves = Vec::new();
        for source in self.claim.files.iter().filter_map(|&id| self.files.get(id)) {
            let mut scan = Scan::new(&source, source.start(), source.len(), IoSource::Gc);
            while let Some((record, len)) = scan.sound()? {
                let from = Pointer { file: source.id, epoch: 0, offset: record.offset, len };
                if record.kind == ValueKind::Value && gc.look_up(record.key)? == Some(from) {
                    moves.push(Moved { key: record.key.into(), from, to: copy.append(&record)? });
                }
            }
        }
        self.files.finish_copies(vec![copy])?;
        if let Some(last) = gc.relocate(&moves, &mut |_| {})? {
            self.files.mark_drained(self.claim.files.iter().copied(), last);
        }
        Ok(GcOutcome::freed(0))
    }
}

impl GcJob for Relocate {
    fn claim(&self) -> &GcClaim {
        &self.claim
    }

    fn run(&self, gc: &dyn GcContext) -> Result<GcOutcome> {
        if self.fault == Some(Fault::GoesOnInCopies) {
            return self.go_on(gc);
        }
        let sources = (&self.claim.files[..], self.options.now().file_bytes);
        let done = relocate(&self.files, &self.busy, sources, gc)?;
        Ok(GcOutcome::freed(done.map_or(0, |done| done.freed_bytes)))
    }
}
