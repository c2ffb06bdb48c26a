//! `wisckey`: values in the order of arrival. GC starts from the oldest and looks each up in the index. The baseline of
//! the papers (HashKV §2.2; DiffKV §2.2).
//!
//! ```text
//!   oldest ─▶ file │ file │ file │ … │ file ◀─ newest, appended to
//!             GC: each record is looked up in the index; those still current go to a new file
//! ```
//!
//! The paper's circular log is a sequence of files here, so that space is freed as files instead of holes.
//!
//! **When.** Flush and compaction report which addresses they drop, late and not all of them. So a sample of the log is
//! also looked up in the index ([`GarbageEstimate`]): `pick` returns a `SampleJob` when, by what was written since the
//! last look, as much may be dead as the space target allows. GC runs while values and tables together take most of
//! what the space target allows beyond live values, and at least a sixteenth of the live bytes is dead. Data that is
//! only written once is sampled each time it has grown by about a third, and never copied.

use std::sync::{Arc, Mutex};

use bifold_contract::{FileId, Pointer, Result, Rewriter, SeqNo};

use super::Settings;
use crate::{
    parts::{
        dead_counts::CountDead,
        garbage_estimate::GarbageEstimate,
        ingested::{IngestedFiles, IngestedLog},
        relocation::relocate,
        sync::LockExt,
        value_files::{ValueFile, ValueFiles},
        value_log::ValueLog,
    },
    placement::{
        Explained, GcClaim, GcContext, GcJob, GcOutcome, Placement, Profile, RewriteJob, SpacePressure, ValueSpace,
        WriteOp,
    },
};

/// A GC run takes as many bytes as so many full files: enough to be worth a sync.
const FILES_AT_ONCE: u64 = 4;

/// GC does not run while less than this share of the live values is dead, which bounds the bytes copied for each byte
/// freed.
const DEAD_SHARE: u64 = 16;

/// No new look before this share of the log has changed.
const LOOK_SHARE: u64 = 64;

/// And this share of a file has changed.
const LOOK_FILE_SHARE: u64 = 16;

/// Values in the order of arrival.
pub struct WiscKey {
    options: Settings,
    files: Arc<ValueFiles>,
    value_log: ValueLog,
    /// Files that GC is copying.
    busy: Arc<Mutex<Vec<FileId>>>,
    garbage: Arc<GarbageEstimate>,
}

impl WiscKey {
    /// Opens it with the existing files.
    #[must_use]
    pub fn open(files: &Arc<ValueFiles>, options: &Settings) -> Self {
        let value_log = ValueLog::new(Arc::clone(files), options);
        let garbage = Arc::new(GarbageEstimate::of_unknown(files.sizes().1));
        Self { options: options.clone(), files: Arc::clone(files), value_log, busy: Arc::default(), garbage }
    }

    fn append(&self, seqno: SeqNo, key: &[u8], value: &[u8]) -> Result<Pointer> {
        let pointer = self.value_log.append(seqno, key, value)?;
        self.garbage.change(u64::from(pointer.len));
        Ok(pointer)
    }

    /// The files that GC may pick, oldest first.
    fn sealed(&self) -> Vec<Arc<ValueFile>> {
        let busy = self.busy.hold();
        let mut files = self.value_log.sealed();
        let left_out = self.files.left_out_files();
        files.retain(|file| !busy.contains(&file.id) && !left_out.contains(&file.id));
        files
    }

    /// Dead bytes of these files: known or, if that is more, estimated.
    fn dead(&self, files: &[Arc<ValueFile>]) -> u64 {
        files.iter().map(|file| file.dead()).sum::<u64>().max(self.garbage.dead())
    }

    /// Whether a new look is needed: space would exceed its target if everything written since the last look had
    /// replaced something.
    fn look_is_due(&self, pressure: &SpacePressure, space: &ValueSpace) -> bool {
        let in_use = space.total_bytes - space.drained_bytes;
        let live_bytes = space.live_bytes.min(in_use.saturating_sub(self.garbage.dead_at_most()));
        let least = (in_use / LOOK_SHARE).max(self.options.now().file_bytes / LOOK_FILE_SHARE);
        self.garbage.changed() >= least && pressure.excess(&ValueSpace { live_bytes, ..*space }) > 0
    }

    /// The oldest of these files: as many as one GC run takes.
    fn oldest<'a>(&self, files: &'a [Arc<ValueFile>]) -> &'a [Arc<ValueFile>] {
        let mut bytes = 0;
        let enough = FILES_AT_ONCE * self.options.now().file_bytes;
        let before = |file: &Arc<ValueFile>| {
            bytes += file.len();
            bytes - file.len()
        };
        let few = files.iter().map(before).take_while(|&bytes| bytes < enough).count();
        &files[..few]
    }

    /// What GC does next to these files, which are all that it may pick.
    fn next(&self, pressure: &SpacePressure, sealed: &[Arc<ValueFile>]) -> Next {
        if let Some(before) = pressure.all_before {
            return Next::of(self.oldest(&sealed[..sealed.partition_point(|file| file.id < before)]));
        }
        let space = self.space();
        if sealed.is_empty() || pressure.is_pinned(&space) {
            return Next::Nothing;
        }
        if self.look_is_due(pressure, &space) {
            return Next::Look;
        }
        // With hardly anything dead, GC would only rewrite the log.
        let is_worth_it = pressure.excess(&space) > 0 && self.dead(sealed) * DEAD_SHARE > space.live_bytes;
        if is_worth_it { Next::of(self.oldest(sealed)) } else { Next::Nothing }
    }

    /// Live bytes of each of these files. Garbage of unknown place counts for all of them alike.
    fn live_bytes<'a>(&self, files: &'a [Arc<ValueFile>]) -> impl Iterator<Item = u64> + 'a {
        let known: u64 = files.iter().map(|file| file.dead()).sum();
        let rest = files.iter().map(|file| file.len()).sum::<u64>() - known;
        let live_share = 1.0 - self.dead(files).saturating_sub(known) as f64 / rest.max(1) as f64;
        files.iter().map(move |file| ((file.len() - file.dead()) as f64 * live_share.max(0.0)) as u64)
    }
}

/// What GC does next.
enum Next {
    Nothing,
    Look,
    /// Moves what is live out of so many of the oldest files.
    Relocate(usize),
}

impl Next {
    fn of(files: &[Arc<ValueFile>]) -> Self {
        if files.is_empty() { Self::Nothing } else { Self::Relocate(files.len()) }
    }
}

/// Asks the index about a sample of the log.
struct SampleJob {
    claim: GcClaim,
    sealed: Vec<Arc<ValueFile>>,
    garbage: Arc<GarbageEstimate>,
}

impl GcJob for SampleJob {
    fn claim(&self) -> &GcClaim {
        &self.claim
    }

    fn run(&self, gc: &dyn GcContext) -> Result<GcOutcome> {
        self.garbage.look(&self.sealed, gc)?;
        Ok(GcOutcome::Looked)
    }
}

/// Moves what is live out of the oldest files.
struct Relocate {
    claim: GcClaim,
    /// Live bytes of each file, as far as known or estimated.
    live_bytes: Vec<u64>,
    file_bytes: u64,
    files: Arc<ValueFiles>,
    busy: Arc<Mutex<Vec<FileId>>>,
    garbage: Arc<GarbageEstimate>,
}

impl GcJob for Relocate {
    fn claim(&self) -> &GcClaim {
        &self.claim
    }

    fn run(&self, gc: &dyn GcContext) -> Result<GcOutcome> {
        let sources = &self.claim.files[..gc.fit(&self.live_bytes)?];
        let done = relocate(&self.files, &self.busy, (sources, self.file_bytes), gc)?;
        Ok(GcOutcome::freed(done.map_or(0, |done| {
            self.garbage.collect(done.read_bytes, done.freed_bytes);
            done.freed_bytes
        })))
    }
}

impl Placement for WiscKey {
    fn profile(&self) -> Profile {
        Profile {
            name: "wisckey",
            separates_from: Some(self.options.now().separates_from()),
            hears_of_short_values: false,
            separates_at_rewrite: false,
            learns_from_rewrites: None,
            finds_overwritten: false,
            reads_by_address: true,
            copies_percent: Profile::COPIES_PERCENT,
        }
    }

    fn write(&self, op: WriteOp<'_>, seqno: SeqNo) -> Result<Option<Pointer>> {
        match op {
            WriteOp::Put { key, value } if value.len() >= self.options.now().separates_from() => {
                return self.append(seqno, key, value).map(Some);
            }
            // It hardly ever replaces a separated value: compaction will report it.
            WriteOp::Put { .. } => {}
            WriteOp::Delete { .. } => self.garbage.delete(),
            WriteOp::DeleteRange { .. } => self.garbage.may_cover(self.files.sizes().1),
        }
        Ok(None)
    }

    fn rewriter(&self, _job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
        Ok(Box::new(CountDead::default()))
    }

    fn ingester(&self, _job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
        let (options, garbage) = (self.options.now(), Arc::clone(&self.garbage));
        let files = IngestedFiles::new(&self.files, options.file_bytes, options.compression);
        // It may overwrite as much.
        Ok(Box::new(IngestedLog::new(files, options.separates_from(), move |bytes| garbage.change(bytes))))
    }

    fn pick(&self, pressure: &SpacePressure, _running: &[GcClaim]) -> Option<Box<dyn GcJob>> {
        let sealed = self.sealed();
        match self.next(pressure, &sealed) {
            Next::Nothing => None,
            Next::Look => {
                let (claim, garbage) = (GcClaim::alone(Vec::new()), Arc::clone(&self.garbage));
                Some(Box::new(SampleJob { claim, sealed, garbage }))
            }
            Next::Relocate(oldest) => Some(Box::new(Relocate {
                claim: GcClaim::alone(sealed[..oldest].iter().map(|file| file.id).collect()),
                live_bytes: self.live_bytes(&sealed).take(oldest).collect(),
                file_bytes: self.options.now().file_bytes,
                files: Arc::clone(&self.files),
                busy: Arc::clone(&self.busy),
                garbage: Arc::clone(&self.garbage),
            })),
        }
    }

    fn space(&self) -> ValueSpace {
        let (files, total_bytes, drained_bytes) = self.files.sizes();
        let dead = self.files.dead_bytes().max(self.garbage.dead());
        let left_out_bytes = self.files.left_out_bytes();
        let live_bytes = (total_bytes - drained_bytes).saturating_sub(dead).max(left_out_bytes);
        ValueSpace { files, total_bytes, live_bytes, drained_bytes, left_out_bytes }
    }

    /// What may have died since a look that is due again: writers wait for the look rather than for what it would
    /// find too late.
    fn stale_bytes(&self, pressure: &SpacePressure) -> u64 {
        let is_due = self.look_is_due(pressure, &self.space());
        if is_due { self.garbage.dead_at_most().saturating_sub(self.garbage.dead()) } else { 0 }
    }

    fn explain(&self, pressure: &SpacePressure) -> Vec<Explained> {
        let (files, space) = (self.sealed(), self.space());
        let (next, reason) = match self.next(pressure, &files) {
            Next::Relocate(oldest) => (oldest, "older ones come first"),
            Next::Look => (0, "a sample must first show how much is dead"),
            Next::Nothing if pressure.excess(&space) == 0 || pressure.is_pinned(&space) => (0, pressure.reason(&space)),
            Next::Nothing => (0, "hardly anything is dead"),
        };
        let newest = files.len();
        let explain = |(at, (file, live_bytes)): (usize, (&Arc<ValueFile>, u64))| Explained {
            unit: format!("file {}", file.id),
            files: vec![file.id],
            total_bytes: file.len(),
            live_bytes,
            age_bytes: files[at..].iter().map(|later| later.len()).sum(),
            score: (newest - at) as f64,
            held: (at >= next).then_some(reason),
        };
        let live_bytes = self.live_bytes(&files);
        files.iter().zip(live_bytes).enumerate().map(explain).chain(self.files.explain_left_out()).collect()
    }

    fn seal(&self, _files: &ValueFiles) {
        self.value_log.seal();
    }
}
