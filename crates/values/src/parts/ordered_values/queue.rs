//! The GC queue (DiffKV §3.5, §4.2): files with most garbage first.
//!
//! The paper's *gc_threshold* decides what is worth it; space decides when, as for all placements. The next merge
//! that reads a sorted file with too much garbage drains it. Such a merge is requested only past the space target.
//!
//! Rewrites share tables, so one runs at a time. The next pick counts running jobs as done.

use std::sync::Arc;

use bifold_contract::{FileId, Result};

use super::{OrderedValues, is_ordered, order};
use crate::{
    parts::{stale_estimate::RewriteCase, value_files::ValueFile},
    placement::{Explained, GcClaim, GcContext, GcJob, GcOutcome, RewrittenTables, SpacePressure, ValueSpace},
};

/// If the valid shares of all files were this divided by the space target, files would be as large as the target
/// allows, and a little larger.
const TARGET_SLACK: f64 = 1.05;

/// Files with a larger valid share are not worth it, however tight space is: ten bytes would be copied for each byte
/// freed.
const WORTH_IT_MAX: f64 = 0.9;

/// What is due.
pub enum Due<'a> {
    /// A rewrite of tables, to find out what is dead.
    Search,
    /// GC of the first of these files, and of those that go with it. There is at least one.
    Victims(Vec<&'a Arc<ValueFile>>),
}

/// A rewrite of tables for the sake of their values.
pub struct Rewrite {
    claim: GcClaim,
    /// The smallest and the largest key; `None`: of all tables, to find out what is dead.
    keys: Option<[Box<[u8]>; 2]>,
}

impl Rewrite {
    /// Of all tables with entries that may be overwritten. It must run alone.
    #[must_use]
    pub fn search() -> Self {
        Self { claim: GcClaim { rewrites: true, ..GcClaim::alone(Vec::new()) }, keys: None }
    }

    /// Of the keys of the first of these files, which moves its values and those of the others with keys of its range.
    /// `None` when the first is not sorted.
    #[must_use]
    pub fn of(victims: &[&Arc<ValueFile>]) -> Option<Self> {
        let extent = victims.first()?.extent()?;
        let overlaps = |file: &&&Arc<ValueFile>| {
            order::range_of(file).is_some_and(|range| range.0 <= &*extent.largest && range.1 >= &*extent.smallest)
        };
        let moving = victims.iter().filter(overlaps).map(|file| file.id).collect();
        let claim = GcClaim { rewrites: true, ..GcClaim::of(moving) };
        Some(Self { claim, keys: Some([extent.smallest.clone(), extent.largest.clone()]) })
    }
}

impl GcJob for Rewrite {
    fn claim(&self) -> &GcClaim {
        &self.claim
    }

    fn run(&self, gc: &dyn GcContext) -> Result<GcOutcome> {
        let tables = match &self.keys {
            Some([start, end]) => RewrittenTables::Range { start, end, moving: &self.claim.files },
            None => RewrittenTables::Overwritten,
        };
        gc.rewrite(tables).map(GcOutcome::freed)
    }
}

/// All files that GC may pick, the smallest valid share first: the *GC queue* of §4.2.
pub struct Queue<'a> {
    values: &'a OrderedValues,
    files: Vec<Arc<ValueFile>>,
    /// What the running GC jobs will free; `None` when there are none.
    promised_bytes: Option<u64>,
}

impl<'a> Queue<'a> {
    /// The files that are free, while these jobs are running.
    pub fn new(values: &'a OrderedValues, running: &[GcClaim], is_free: impl Fn(FileId) -> bool) -> Self {
        let left_out = values.files().left_out_files();
        let is_taken = |file: &Arc<ValueFile>| running.iter().any(|claim| claim.files.contains(&file.id));
        let is_rewritten = running.iter().any(|claim| claim.rewrites);
        let mut files = values.files().in_use();
        let promised: u64 = files.iter().filter(|file| is_taken(file)).map(|file| file.dead()).sum();
        files.retain(|file| {
            let is_another_jobs = is_taken(file) || is_rewritten && is_ordered(file);
            file.is_known() && !is_another_jobs && is_free(file.id) && !left_out.contains(&file.id)
        });
        // Each share is read once: merges of other threads change it. The bits of floats from 0 on are in their
        // order.
        files.sort_by_cached_key(|file| (file.valid_share().to_bits(), file.id));
        Self { values, files, promised_bytes: (!running.is_empty()).then_some(promised) }
    }

    /// What is due next.
    #[must_use]
    pub fn due(&self, pressure: &SpacePressure) -> Option<Due<'_>> {
        if let Some(before) = pressure.all_before {
            return self.all_before(before, pressure);
        }
        let (space, stale) = self.space(pressure);
        if pressure.excess(&space) <= self.promised_bytes.unwrap_or(0) {
            return None;
        }
        let threshold = self.threshold(pressure, &space);
        let is_worth_it = |file: &&Arc<ValueFile>| {
            file.valid_share() < threshold && (is_ordered(file) || !pressure.is_pinned(&space))
        };
        let victims: Vec<&Arc<ValueFile>> = self.files.iter().filter(is_worth_it).collect();
        let known = space.live_bytes + stale;
        let valid = self.files.first().map_or(1.0, |file| file.valid_share());
        let file_bytes = self.values.options().now().file_bytes;
        let is_alone = self.promised_bytes.is_none();
        let look = RewriteCase { stale, known, valid, is_idle: is_alone && victims.is_empty(), file_bytes };
        if look.is_due(pressure, threshold) {
            // Waits for what runs, and begins nothing more.
            return is_alone.then_some(Due::Search);
        }
        due(victims)
    }

    /// A rewrite of the partition with most garbage in these files, from which all values move (UniKV §III-C, which
    /// takes the partition with most entries).
    ///
    /// A file that a split has left to two partitions counts for the first one, and is rewritten as a whole: otherwise
    /// what is left of it would be picked again.
    #[must_use]
    pub fn worst_partition(&self, victims: &[&Arc<ValueFile>], boundaries: &[Box<[u8]>]) -> Option<Rewrite> {
        let partition_of = |key: &[u8]| boundaries.partition_point(|boundary| **boundary <= *key);
        let mut dead = vec![0; boundaries.len() + 1];
        for (file, extent) in victims.iter().filter_map(|file| Some((file, file.extent()?))) {
            dead[partition_of(&extent.smallest)] += file.dead();
        }
        let (worst, _) = dead.iter().enumerate().filter(|&(_, &dead)| dead > 0).max_by_key(|&(_, &dead)| dead)?;
        let begins_there =
            |file: &&Arc<ValueFile>| file.extent().is_some_and(|extent| partition_of(&extent.smallest) == worst);
        let files: Vec<&Arc<ValueFile>> = self.files.iter().filter(begins_there).collect();
        let extents = || files.iter().filter_map(|file| file.extent());
        let (start, end) = (extents().map(|e| &e.smallest).min()?, extents().map(|e| &e.largest).max()?);
        let claim = GcClaim { rewrites: true, ..GcClaim::of(files.iter().map(|file| file.id).collect()) };
        Some(Rewrite { claim, keys: Some([start.clone(), end.clone()]) })
    }

    /// With the stale estimate, and how much that is.
    fn space(&self, pressure: &SpacePressure) -> (ValueSpace, u64) {
        // Read once: merges of other threads count what they drop meanwhile.
        let space = self.values.space();
        let stale = self.values.stale().below(pressure.stale_at_most(space.live_bytes));
        (ValueSpace { live_bytes: space.live_bytes - stale, ..space }, stale)
    }

    /// A file with a larger valid share than this is not worth it. If space asks for more than *gc_threshold* allows,
    /// space decides: what the target leaves for files next to the tables.
    fn threshold(&self, pressure: &SpacePressure, space: &ValueSpace) -> f64 {
        let by_space = TARGET_SLACK * space.live_bytes as f64 / pressure.allowed_for_files(space).max(1.0);
        self.values.shared.rules().gc_threshold.max(by_space.min(WORTH_IT_MAX))
    }

    /// Everything that has garbage. First the index says what is dead.
    fn all_before(&self, before: FileId, pressure: &SpacePressure) -> Option<Due<'_>> {
        if pressure.entries_above + pressure.overwritten > 0.0 {
            return Some(Due::Search);
        }
        let victims: Vec<_> = self.files.iter().filter(|file| file.id < before && file.dead() > 0).collect();
        due(victims)
    }

    /// Each file: what is in it, whether it is among the `next`, and why not.
    #[must_use]
    pub fn explain(&self, pressure: &SpacePressure, next: &[FileId]) -> Vec<Explained> {
        let (space, _) = self.space(pressure);
        let threshold = self.threshold(pressure, &space);
        let mut later: u64 = 0;
        let mut ages: Vec<(FileId, u64)> = self.files.iter().map(|file| (file.id, file.len())).collect();
        ages.sort_unstable_by_key(|&(id, _)| std::cmp::Reverse(id));
        for (_, bytes) in &mut ages {
            later += *bytes;
            *bytes = later;
        }
        let age_of = |id: FileId| ages.iter().find(|&&(file, _)| file == id).map_or(0, |&(_, bytes)| bytes);
        let held = |file: &ValueFile| match file {
            file if next.contains(&file.id) => None,
            file if file.valid_share() >= threshold => Some("too little of it is dead: gc_threshold"),
            file if is_ordered(file) => Some("its values move with the next merge that reads them"),
            _ => Some(pressure.reason(&space)),
        };
        let name = |file: &ValueFile| match file.extent() {
            Some(extent) => format!("vTable {} of level {}, group {}", file.id, extent.level, file.description.group),
            None => format!("log file {}", file.id),
        };
        let explain = |file: &Arc<ValueFile>| Explained {
            unit: name(file),
            files: vec![file.id],
            total_bytes: file.len(),
            live_bytes: file.len() - file.dead(),
            age_bytes: age_of(file.id),
            score: 1.0 - file.valid_share(),
            held: held(file),
        };
        self.files.iter().map(explain).chain(self.values.files().explain_left_out()).collect()
    }
}

fn due(victims: Vec<&Arc<ValueFile>>) -> Option<Due<'_>> {
    (!victims.is_empty()).then_some(Due::Victims(victims))
}
