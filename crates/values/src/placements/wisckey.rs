//! `wisckey`: values in the order of arrival. GC starts from the oldest and asks the index. The baseline of the
//! papers (HashKV §2.2; DiffKV §2.2).
//!
//! ```text
//!   oldest ─▶ file │ file │ file │ … │ file ◀─ newest, appended to
//!             GC: each record is looked up in the index; those still current go to a new file
//! ```
//!
//! The paper's circular log is a sequence of files here, so that space is freed as files instead of holes.
//!
//! **When.** Flush and compaction report which addresses they drop, late and not all of them. So the index is also
//! asked about a sample of the log ([`GarbageEstimate`]): `pick` returns [`GcPick::Look`] when, by what was written
//! since the last look, as much may be dead as the space target allows. GC runs while values and tables together
//! exceed the space target and at least a sixteenth of the live bytes is dead. Data that is only written once is
//! sampled each time it has grown by about a third, and never copied.

use std::sync::{Arc, Mutex};

use bifold_contract::{FileId, Pointer, Result, Rewriter, SeqNo};

use super::Settings;
use crate::{
    parts::{
        dead_counts::CountDead,
        garbage_estimate::GarbageEstimate,
        relocation::Relocation,
        sync::LockExt,
        value_files::{ValueFile, ValueFiles},
        value_log::ValueLog,
    },
    placement::{
        Explained, GcPick, GcRun, IndexView, Placement, Profile, RewriteJob, Routed, SpacePressure, ValueSpace,
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
        let head = self.value_log.head();
        let busy = self.busy.hold();
        let mut files = self.files.in_use();
        let left_out = self.files.left_out_files();
        files.retain(|file| Some(file.id) != head && !busy.contains(&file.id) && !left_out.contains(&file.id));
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

    /// A pick of the oldest of these files.
    fn oldest(&self, files: &[Arc<ValueFile>]) -> Option<GcPick> {
        let mut bytes = 0;
        let enough = FILES_AT_ONCE * self.options.now().file_bytes;
        let before = |file: &Arc<ValueFile>| {
            bytes += file.len();
            bytes - file.len()
        };
        let few = files.iter().map(before).take_while(|&bytes| bytes < enough).count();
        let units: Vec<FileId> = files.iter().take(few).map(|file| file.id).collect();
        (!units.is_empty()).then_some(GcPick::Units(units))
    }
}

impl Placement for WiscKey {
    fn profile(&self) -> Profile {
        Profile {
            name: "wisckey",
            separates_from: Some(self.options.now().separates_from()),
            separates_at_rewrite: false,
            learns_from_rewrites: None,
        }
    }

    fn route(&self, op: Routed<'_>, seqno: SeqNo) -> Result<Option<Pointer>> {
        match op {
            Routed::Put { key, value } if value.len() >= self.options.now().separates_from() => {
                return self.append(seqno, key, value).map(Some);
            }
            // It hardly ever replaces a separated value: compaction will report it.
            Routed::Put { .. } => {}
            Routed::Delete { .. } => self.garbage.delete(),
            Routed::DeleteRange { .. } => self.garbage.change(self.files.sizes().1),
        }
        Ok(None)
    }

    fn rewriter(&self, _job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
        Ok(Box::new(CountDead::default()))
    }

    fn pick(&self, pressure: &SpacePressure) -> Option<GcPick> {
        let sealed = self.sealed();
        if let Some(before) = pressure.all_before {
            return self.oldest(&sealed[..sealed.partition_point(|file| file.id < before)]);
        }
        let space = self.space();
        if sealed.is_empty() || pressure.is_pinned(&space) {
            return None;
        }
        if self.look_is_due(pressure, &space) {
            return Some(GcPick::Look);
        }
        // With hardly anything dead, GC would only rewrite the log.
        let is_worth_it = pressure.excess(&space) > 0 && self.dead(&sealed) * DEAD_SHARE > space.live_bytes;
        if is_worth_it { self.oldest(&sealed) } else { None }
    }

    fn collect(&self, pick: &GcPick, view: &dyn IndexView) -> Result<Box<dyn GcRun>> {
        let GcPick::Units(units) = pick else {
            self.garbage.look(&self.sealed(), view)?;
            return Ok(Box::new(Relocation::of(&self.files, &self.busy, &[])));
        };
        let mut copies = Relocation::of(&self.files, &self.busy, units);
        let (read, freed) = copies.copy(self.options.now().file_bytes, view)?;
        let garbage = Arc::clone(&self.garbage);
        Ok(Box::new(copies.then(move || garbage.collect(read, freed))))
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
        let (next, reason) = match self.pick(pressure) {
            Some(GcPick::Units(units)) => (units, "older ones come first"),
            Some(_) => (Vec::new(), "the index must first be asked how much is dead"),
            None if pressure.excess(&space) == 0 || pressure.is_pinned(&space) => (Vec::new(), pressure.reason(&space)),
            None => (Vec::new(), "hardly anything is dead"),
        };
        // The estimated garbage, of unknown place, counts for all files alike.
        let known: u64 = files.iter().map(|file| file.dead()).sum();
        let rest = files.iter().map(|file| file.len()).sum::<u64>() - known;
        let live_share = 1.0 - self.dead(&files).saturating_sub(known) as f64 / rest.max(1) as f64;
        let newest = files.len();
        let explain = |(at, file): (usize, &Arc<ValueFile>)| Explained {
            unit: format!("file {}", file.id),
            files: vec![file.id],
            total_bytes: file.len(),
            live_bytes: ((file.len() - file.dead()) as f64 * live_share.max(0.0)) as u64,
            age_bytes: files[at..].iter().map(|later| later.len()).sum(),
            score: (newest - at) as f64,
            held: (!next.contains(&file.id)).then_some(reason),
        };
        files.iter().enumerate().map(explain).chain(self.files.explain_left_out()).collect()
    }

    fn seal(&self, _files: &ValueFiles) {
        self.value_log.seal();
    }
}
