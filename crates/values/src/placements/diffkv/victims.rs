//! What GC picks: logs, by the index, and vTables that no merge reads (DiffKV §3.5, §4.2).
//!
//! The paper's *gc_threshold* decides what is worth it; space decides when, as for all placements. The next merge
//! that reads a vTable with a GC tag drains it. Such a merge is requested only past the space target.
//!
//! **Concurrent GC** (§4.2, "multiple GC threads"). GC runs on different logs are independent: each move is checked
//! against the index by itself. Rewrites share tables, so there is one at a time, concurrent with any number of
//! those. The next pick counts running jobs as done.

use std::sync::{Arc, Mutex};

use bifold_contract::{FileId, Result};

use super::{DiffKv, Shared, order};
use crate::{
    parts::{
        relocation::relocate,
        stale_estimate::RewriteCase,
        sync::LockExt,
        value_files::{ORDERED, ValueFile},
    },
    placement::{
        Explained, GcClaim, GcContext, GcJob, GcOutcome, Placement, RewrittenTables, SpacePressure, ValueSpace,
    },
};

/// One GC run on logs takes as many bytes as so many full files.
const FILES_AT_ONCE: u64 = 4;

/// If the valid shares of all files were this divided by the space target, files would be as large as the target
/// allows, and a little larger.
const TARGET_SLACK: f64 = 1.05;

/// Files with a larger valid share are not worth it, however tight space is: ten bytes would be copied for each byte
/// freed.
const WORTH_IT_MAX: f64 = 0.9;

/// What GC does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Moves what is live out of these logs.
    Logs(Vec<FileId>),
    /// Rewrites the tables of a key range, so that the values in the files `moving` move.
    Move { smallest: Box<[u8]>, largest: Box<[u8]>, moving: Vec<FileId> },
    /// Rewrites tables to find out what is dead.
    Search,
}

/// A choice, to be run.
pub(super) struct Job {
    claim: GcClaim,
    choice: Choice,
    shared: Arc<Shared>,
    busy: Arc<Mutex<Vec<FileId>>>,
}

impl Job {
    pub fn new(placement: &DiffKv, choice: Choice) -> Self {
        let claim = match &choice {
            Choice::Logs(files) => GcClaim::of(files.clone()),
            Choice::Move { moving, .. } => GcClaim { rewrites: true, ..GcClaim::of(moving.clone()) },
            Choice::Search => GcClaim { rewrites: true, ..GcClaim::alone(Vec::new()) },
        };
        Self { claim, choice, shared: Arc::clone(&placement.shared), busy: Arc::clone(&placement.busy) }
    }
}

impl GcJob for Job {
    fn claim(&self) -> &GcClaim {
        &self.claim
    }

    fn run(&self, gc: &dyn GcContext) -> Result<GcOutcome> {
        let tables = match &self.choice {
            Choice::Logs(logs) => {
                let (files, file_bytes) = (&self.shared.files, self.shared.options.now().file_bytes);
                let live_bytes = |&id: &FileId| files.get(id).map_or(0, |file| file.len() - file.dead());
                let live_bytes: Vec<u64> = logs.iter().map(live_bytes).collect();
                let sources = &logs[..gc.fit(&live_bytes)?];
                let done = relocate(files, &self.busy, (sources, file_bytes), gc)?;
                return Ok(GcOutcome::freed(done.map_or(0, |done| done.freed_bytes)));
            }
            Choice::Move { smallest, largest, moving } => {
                RewrittenTables::Range { start: smallest, end: largest, moving }
            }
            Choice::Search => RewrittenTables::Overwritten,
        };
        gc.rewrite(tables).map(GcOutcome::freed)
    }
}

/// All files that GC may pick, the smallest valid share first: the *GC queue* of §4.2.
pub(super) struct GarbageFirst<'a> {
    placement: &'a DiffKv,
    files: Vec<Arc<ValueFile>>,
    /// What the running GC jobs will free; `None` when there are none.
    promised_bytes: Option<u64>,
}

impl<'a> GarbageFirst<'a> {
    pub fn of(placement: &'a DiffKv) -> Self {
        let head = placement.value_log.head();
        let mut files = placement.value_files().in_use();
        {
            let busy = placement.busy.hold();
            let left_out = placement.value_files().left_out_files();
            let is_free = |id: FileId| Some(id) != head && !busy.contains(&id) && !left_out.contains(&id);
            files.retain(|file| file.is_known() && is_free(file.id));
        }
        // Each share is read once: merges of other threads change it. The bits of floats from 0 on are in their
        // order.
        files.sort_by_cached_key(|file| (file.valid_share().to_bits(), file.id));
        Self { placement, files, promised_bytes: None }
    }

    /// Those that GC may pick concurrently with the `running` jobs.
    pub fn concurrent_with(placement: &'a DiffKv, running: &[GcClaim]) -> Self {
        let queue = Self::of(placement);
        if running.is_empty() {
            return queue;
        }
        let is_taken = |file: &Arc<ValueFile>| running.iter().any(|claim| claim.files.contains(&file.id));
        let is_rewritten = running.iter().any(|claim| claim.rewrites);
        let in_use = placement.value_files().in_use();
        let promised = in_use.iter().filter(|file| is_taken(file)).map(|file| file.dead()).sum();
        let mut files = queue.files;
        files.retain(|file| !(is_taken(file) || is_rewritten && is_ordered(file)));
        Self { placement, files, promised_bytes: Some(promised) }
    }

    pub fn pick(&self, pressure: &SpacePressure) -> Option<Choice> {
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
        let file_bytes = self.placement.shared.options.now().file_bytes;
        let is_alone = self.promised_bytes.is_none();
        let look = RewriteCase { stale, known, valid, is_idle: is_alone && victims.is_empty(), file_bytes };
        if look.is_due(pressure, threshold) {
            // Waits for what runs, and begins nothing more.
            return is_alone.then_some(Choice::Search);
        }
        self.pick_with(&victims)
    }

    /// With the stale estimate, and how much that is.
    fn space(&self, pressure: &SpacePressure) -> (ValueSpace, u64) {
        // Read once: merges of other threads count what they drop meanwhile.
        let space = self.placement.space();
        let stale = self.placement.shared.stale.below(pressure.stale_at_most(space.live_bytes));
        (ValueSpace { live_bytes: space.live_bytes - stale, ..space }, stale)
    }

    /// A file with a larger valid share than this is not worth it. If space asks for more than *gc_threshold* allows,
    /// space decides: what the target leaves for files next to the tables.
    fn threshold(&self, pressure: &SpacePressure, space: &ValueSpace) -> f64 {
        let by_space = TARGET_SLACK * space.live_bytes as f64 / pressure.allowed_for_files(space).max(1.0);
        self.placement.shared.sorted().gc_threshold.max(by_space.min(WORTH_IT_MAX))
    }

    /// Everything that has garbage. First the index says what is dead.
    fn all_before(&self, before: FileId, pressure: &SpacePressure) -> Option<Choice> {
        if pressure.entries_above + pressure.overwritten > 0.0 {
            return Some(Choice::Search);
        }
        let victims: Vec<_> = self.files.iter().filter(|file| file.id < before && file.dead() > 0).collect();
        self.pick_with(&victims)
    }

    /// A pick of the first of these files and of those that go with it: the next best logs, or the vTables with keys
    /// of the same range.
    fn pick_with(&self, victims: &[&Arc<ValueFile>]) -> Option<Choice> {
        let first = *victims.first()?;
        let Some(extent) = first.extent() else {
            let mut bytes = 0;
            let enough = FILES_AT_ONCE * self.placement.shared.options.now().file_bytes;
            let has_room = |file: &&&Arc<ValueFile>| {
                bytes += file.len();
                bytes - file.len() < enough
            };
            let logs = victims.iter().filter(|file| !is_ordered(file)).take_while(has_room);
            return Some(Choice::Logs(logs.map(|file| file.id).collect()));
        };
        let overlaps = |file: &&&Arc<ValueFile>| {
            order::range_of(file).is_some_and(|range| range.0 <= &*extent.largest && range.1 >= &*extent.smallest)
        };
        Some(Choice::Move {
            smallest: extent.smallest.clone(),
            largest: extent.largest.clone(),
            moving: victims.iter().filter(overlaps).map(|file| file.id).collect(),
        })
    }

    pub fn explain(&self, pressure: &SpacePressure) -> Vec<Explained> {
        let next = match self.pick(pressure) {
            Some(Choice::Logs(files)) => files,
            Some(Choice::Move { moving, .. }) => moving,
            Some(Choice::Search) | None => Vec::new(),
        };
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
        self.files.iter().map(explain).chain(self.placement.value_files().explain_left_out()).collect()
    }
}

fn is_ordered(file: &ValueFile) -> bool {
    file.description.class == ORDERED
}
