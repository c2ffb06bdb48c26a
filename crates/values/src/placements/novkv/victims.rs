//! Which files GC picks (NovKV §III-C), and whether compaction must look for garbage first.
//!
//! The paper collects every file with a *valid_rate* under *gc_threshold* as soon as a compaction has ended. Here the
//! threshold decides what is worth it, and space decides when. While a file waits, more of it dies, so less is copied
//! for each byte freed.
//!
//! What compaction has not read yet may be dead without any drop-key naming it. How much that is, is estimated as it
//! happens ([`StaleEstimate`](crate::parts::stale_estimate::StaleEstimate)). When it is much, or nothing else is
//! worth collecting, the key range is rewritten ([`RewriteCase`]). That is little data where values are separated,
//! and then everything is known.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use bifold_contract::{FileId, Result};

use super::{NovKv, NovKvShared, rebuild};
use crate::{
    parts::{
        stale_estimate::RewriteCase,
        sync::LockExt,
        value_files::{DROPS, UNREADABLE, ValueFile},
    },
    placement::{Explained, GcClaim, GcContext, GcJob, GcOutcome, RewrittenTables, SpacePressure, ValueSpace},
};

/// One GC run merges at most so many files.
const FILES_AT_ONCE: usize = 16;

/// At most so many files without any valid value are removed at once.
const DELETED_AT_ONCE: usize = 256;

/// A file whose values are less than this share of a full one is small.
const SMALL_SHARE: u64 = 4;

/// The largest number of small files.
const SMALL_FILES_MAX: usize = 8;

/// The largest number of drop files.
const DROP_FILES_MAX: usize = 8;

/// A file is not worth GC if less than this share of it is dead, however much space is wanted.
const DEAD_SHARE: u64 = 16;

/// If the valid rates of all files were this divided by the space target, files would be as large as the target
/// allows, and a little larger.
const TARGET_SLACK: f64 = 1.05;

/// What GC does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Makes one table of what is live in these files: each with its live bytes.
    Rebuild(Vec<(FileId, u64)>),
    /// Makes one drop file of these.
    MergeDrops(Vec<FileId>),
    /// Rewrites tables to find out what is dead.
    Search,
    /// Writes memtables to tables and rewrites all of them, so that the index takes the repaired handles over.
    TakeOver,
}

/// A choice, to be run.
pub(super) struct Job {
    claim: GcClaim,
    choice: Choice,
    shared: Arc<NovKvShared>,
}

impl Job {
    pub fn new(shared: &Arc<NovKvShared>, choice: Choice) -> Self {
        let files = match &choice {
            Choice::Rebuild(units) => units.iter().map(|&(file, _)| file).collect(),
            Choice::MergeDrops(files) => files.clone(),
            Choice::Search | Choice::TakeOver => Vec::new(),
        };
        let rewrites = matches!(choice, Choice::Search | Choice::TakeOver);
        let claim = GcClaim { rewrites, ..GcClaim::alone(files) };
        Self { claim, choice, shared: Arc::clone(shared) }
    }
}

impl GcJob for Job {
    fn claim(&self) -> &GcClaim {
        &self.claim
    }

    fn run(&self, gc: &dyn GcContext) -> Result<GcOutcome> {
        match &self.choice {
            Choice::Rebuild(units) => {
                let live_bytes: Vec<u64> = units.iter().map(|&(_, live_bytes)| live_bytes).collect();
                rebuild::rebuild(&self.shared, &self.claim.files[..gc.fit(&live_bytes)?], gc)
            }
            Choice::MergeDrops(files) => {
                rebuild::merge_drops(&self.shared, &files[..gc.fit(&vec![0; files.len()])?], gc)
            }
            Choice::Search => gc.rewrite(RewrittenTables::Overwritten).map(GcOutcome::freed),
            Choice::TakeOver => {
                self.shared.handles.set_aside();
                // Memtables may have stale pointers, too: readers of those would ask for this again and again.
                let freed = gc.rewrite(RewrittenTables::Everything)?;
                self.shared.handles.forget();
                Ok(GcOutcome::freed(freed))
            }
        }
    }
}

/// A file that GC may pick.
#[derive(Clone, Debug)]
pub(super) struct VictimFile {
    file: Arc<ValueFile>,
    /// Bytes of its records, and of those that drop-keys name.
    value_bytes: u64,
    dropped_bytes: u64,
    numbers: usize,
    /// Nothing is appended to it any more, and all of it is recorded.
    is_complete: bool,
    /// Something in it, or in its drop-keys, cannot be read. It is removed when all of it is dropped.
    is_stuck: bool,
}

impl VictimFile {
    /// Bytes that are needed, or cannot be freed.
    pub fn needed_bytes(&self) -> u64 {
        if self.is_stuck { self.file.len() } else { self.live_bytes() }
    }

    pub fn stuck_bytes(&self) -> u64 {
        if self.is_stuck { self.file.len() } else { 0 }
    }

    /// Whether what survives of it can be copied.
    fn can_be_copied(&self) -> bool {
        self.is_complete && !self.is_stuck
    }

    pub fn live_bytes(&self) -> u64 {
        self.value_bytes.saturating_sub(self.dropped_bytes)
    }

    /// *valid_rate*, by bytes.
    fn valid_rate(&self) -> f64 {
        self.live_bytes() as f64 / self.value_bytes.max(1) as f64
    }
}

impl NovKv {
    /// All files with values, the smallest valid rate first.
    pub(super) fn units(&self) -> Vec<VictimFile> {
        let shared = &self.shared;
        let files = shared.files.in_use();
        let head = self.value_log.head();
        let drops = shared.drops.hold();
        let left_out = shared.files.left_out_files();
        let unit = |file: Arc<ValueFile>| {
            let numbers = shared.numbers_of(&file);
            let mut drop_files =
                numbers.iter().flat_map(|&(number, _)| drops.about(number)).map(|block| block.drop_file);
            let is_stuck = !left_out.is_empty()
                && (left_out.contains(&file.id) || drop_files.any(|drop_file| left_out.contains(&drop_file)));
            let is_complete = Some(file.id) != head && file.is_recorded();
            VictimFile {
                value_bytes: numbers.iter().map(|(_, bytes)| bytes).sum(),
                dropped_bytes: numbers.iter().map(|&(number, _)| drops.dropped_bytes(number)).sum(),
                numbers: numbers.len(),
                is_complete,
                is_stuck,
                file,
            }
        };
        let mut units: Vec<VictimFile> =
            files.into_iter().filter(|file| file.description.class != DROPS).map(unit).collect();
        units.sort_by(|a, b| a.valid_rate().total_cmp(&b.valid_rate()).then(a.file.id.cmp(&b.file.id)));
        units
    }

    pub(super) fn choose(&self, pressure: &SpacePressure) -> Option<Choice> {
        // No choice depends on it: readers compare their handles with it.
        self.shared.index_bytes.store(pressure.index_bytes, Relaxed);
        let units = self.units();
        let complete: Vec<&VictimFile> = units.iter().filter(|unit| unit.is_complete).collect();
        if let Some(before) = pressure.all_before {
            if pressure.entries_above + pressure.overwritten > 0.0 {
                return Some(Choice::Search);
            }
            let is_old = |unit: &&VictimFile| unit.file.id < before && (unit.can_be_copied() || unit.live_bytes() == 0);
            let mut old: Vec<&VictimFile> = complete.into_iter().filter(is_old).collect();
            if old.iter().any(|unit| unit.is_stuck) {
                // Without any valid value, so they come first; together with others they would be read.
                old.retain(|unit| unit.live_bytes() == 0);
            }
            return self.fitting(&old);
        }
        let is_drained = |unit: &&&VictimFile| unit.live_bytes() == 0;
        let drained: Vec<_> =
            complete.iter().filter(is_drained).take(DELETED_AT_ONCE).map(|unit| (unit.file.id, 0)).collect();
        if !drained.is_empty() {
            return Some(Choice::Rebuild(drained));
        }
        self.drop_files_to_merge()
            .or_else(|| self.small_files(&complete))
            .or_else(|| self.for_space(pressure, &units))
            .or_else(|| self.shared.handles.are_due(pressure.index_bytes).then_some(Choice::TakeOver))
    }

    /// As many files, from the first on, as make one table.
    fn fitting(&self, units: &[&VictimFile]) -> Option<Choice> {
        let mut live = 0;
        let fits = |unit: &&&VictimFile| {
            live += unit.live_bytes();
            live <= self.options.now().file_bytes
        };
        let fitting = units.iter().take(FILES_AT_ONCE).take_while(fits).count().max(1);
        let units: Vec<_> = units.iter().take(fitting).map(|unit| (unit.file.id, unit.live_bytes())).collect();
        (!units.is_empty()).then_some(Choice::Rebuild(units))
    }

    /// Drop files of about one size, from the youngest on: so each drop-key is copied about as often as their number
    /// has digits.
    fn drop_files_to_merge(&self) -> Option<Choice> {
        let drops = self.shared.drops.hold();
        let left_out = self.shared.files.left_out_files();
        let files: Vec<FileId> = drops.files().keys().copied().filter(|id| !left_out.contains(id)).collect();
        if files.len() <= DROP_FILES_MAX {
            return None;
        }
        let len = |id: FileId| self.shared.files.get(id).map_or(0, |file| file.len());
        let mut bytes = 0;
        let mut taken = Vec::new();
        for &id in files.iter().rev() {
            if taken.len() >= 2 && len(id) > 2 * bytes {
                break;
            }
            bytes += len(id);
            taken.push(id);
        }
        Some(Choice::MergeDrops(taken))
    }

    fn small_files(&self, complete: &[&VictimFile]) -> Option<Choice> {
        let is_small = |unit: &&&VictimFile| {
            unit.can_be_copied() && unit.live_bytes() < self.options.now().file_bytes / SMALL_SHARE
        };
        let mut small: Vec<&VictimFile> = complete.iter().filter(is_small).copied().collect();
        small.sort_by_key(|unit| unit.live_bytes());
        if small.len() > SMALL_FILES_MAX { self.fitting(&small) } else { None }
    }

    fn for_space(&self, pressure: &SpacePressure, units: &[VictimFile]) -> Option<Choice> {
        let (_, total_bytes, _) = self.shared.files.sizes();
        let known: u64 = units.iter().map(VictimFile::needed_bytes).sum();
        let left_out_bytes = units.iter().map(VictimFile::stuck_bytes).sum();
        let stale = self.shared.stale.below(pressure.stale_at_most(known));
        let space = ValueSpace { files: 0, total_bytes, live_bytes: known - stale, drained_bytes: 0, left_out_bytes };
        if pressure.excess(&space) == 0 {
            return None;
        }
        let threshold = self.threshold(pressure);
        let is_worth = |unit: &&VictimFile| {
            let wanted = unit.dropped_bytes * DEAD_SHARE >= unit.value_bytes;
            unit.can_be_copied() && wanted && unit.valid_rate() < threshold
        };
        let worth: Vec<&VictimFile> = units.iter().filter(is_worth).collect();
        let valid = units.iter().filter(|unit| !unit.is_stuck).map(VictimFile::valid_rate).fold(1.0, f64::min);
        let look =
            RewriteCase { stale, known, valid, is_idle: worth.is_empty(), file_bytes: self.options.now().file_bytes };
        if look.is_due(pressure, threshold) {
            return Some(Choice::Search);
        }
        self.fitting(&worth)
    }

    /// The *gc_threshold*. If space asks for more than it allows, space decides.
    fn threshold(&self, pressure: &SpacePressure) -> f64 {
        self.options.now().novkv.gc_threshold.max(TARGET_SLACK / pressure.target)
    }

    pub(super) fn explain_units(&self, pressure: &SpacePressure) -> Vec<Explained> {
        let (next, rewrites) = match self.choose(pressure) {
            Some(Choice::Rebuild(units)) => (units.into_iter().map(|(file, _)| file).collect(), false),
            choice => (Vec::new(), choice == Some(Choice::Search)),
        };
        let threshold = self.threshold(pressure);
        let units = self.units();
        let later = |id: FileId| units.iter().filter(|u| u.file.id >= id).map(|u| u.file.len()).sum();
        let held = |unit: &VictimFile| match unit {
            unit if next.contains(&unit.file.id) => None,
            unit if unit.is_stuck => Some(UNREADABLE),
            unit if !unit.is_complete => Some("it is still being written, or not durable yet"),
            unit if unit.valid_rate() >= threshold => Some("too little of it is dead: gc_threshold"),
            _ if rewrites => Some("compaction looks for more garbage first"),
            _ => Some(pressure.reason(&crate::placement::Placement::space(self))),
        };
        let name = |unit: &VictimFile| match unit.numbers {
            1 => format!("file {}", unit.file.id),
            numbers => format!("file {} ({numbers} numbers)", unit.file.id),
        };
        let explain = |unit: &VictimFile| Explained {
            unit: name(unit),
            files: vec![unit.file.id],
            total_bytes: unit.file.len(),
            live_bytes: unit.live_bytes(),
            age_bytes: later(unit.file.id),
            score: 1.0 - unit.valid_rate(),
            held: held(unit),
        };
        units.iter().map(explain).collect()
    }
}
