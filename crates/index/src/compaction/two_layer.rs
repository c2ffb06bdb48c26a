//! Two layers (UniKV §III): level 0, unsorted, takes what is flushed until it is large; then all of it is merged into
//! level 1, one sorted run.
//!
//! ```text
//! level 0    ▇ ▇ ▇▇▇ ▇▇▇▇▇▇        the unsorted store: runs as flushed, or merged with each other for scans
//! level 1    ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇    the sorted store
//! ```
//!
//! Every byte is written once into level 0 and once more for each time level 1 is merged, so level 1 must stay small:
//! UniKV splits the tree by key range before it grows (§III-D). Without a split, merges cost as much as the tree is
//! large.
//!
//! **Space** (ours). Entries that level 0 overwrites exist twice until it is merged. It is not known how many these
//! are: at most all entries that are not in the largest run. When they are more than `overwritten_share` of those,
//! level 0 is merged although it is not large.
//!
//! **Size-based merge** (§III-F): with more than `scan_merge_runs` runs in level 0, a scan reads too many of them.
//! Where a hash index finds the run of a key, only scans pay for the number of runs, and runs are merged only after a
//! scan has met too many. Elsewhere each read pays, and they are merged as soon as they are too many. Runs are merged
//! with each other, the newest first, up to the first that is larger than all before it: so each byte is rewritten at
//! most log2(unsorted / memtable) times.

use bifold_contract::{
    Busy, CompactionJob, CompactionPolicy, JobShape, Level, Levels, Result, RunId,
    option::{at_least, size, within},
};
use serde::{Deserialize, Serialize};

use super::shape::{self, Placed, Target};

/// Level 0 may have this share of its bytes whatever it overwrites.
const SMALL_SHARE: u64 = 64;

/// Options of two-layer compaction (UniKV §III-A). A value outside of its bounds is an error that names the option
/// ([`check`](Self::check)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TwoLayerOptions {
    /// The unsorted layer is merged into the sorted one at this size, in bytes: at least 1 KiB. Default: 1 GiB. With
    /// the placement `unikv` it is merged earlier if what it may overwrite is a fourth of what `values.space_target`
    /// leaves for garbage.
    #[serde(with = "size")]
    pub unsorted_bytes: u64,
    /// Runs of the unsorted layer are merged with each other when there are more than this: 2 to 1000. Default: 8. With
    /// a hash index they wait until a scan has met more, so a keyspace that is never scanned does not pay for it.
    pub scan_merge_runs: u32,
}

impl Default for TwoLayerOptions {
    fn default() -> Self {
        Self { unsorted_bytes: 1 << 30, scan_merge_runs: 8 }
    }
}

impl TwoLayerOptions {
    /// Checks the bounds; `at` is the dotted name of these options.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](bifold_contract::Error::InvalidArgument) naming the option.
    pub fn check(&self, at: &str) -> Result<()> {
        at_least(&format!("{at}.unsorted_bytes"), self.unsorted_bytes, 1 << 10)?;
        within(&format!("{at}.scan_merge_runs"), self.scan_merge_runs.into(), 2, 1000)
    }
}

/// The policy.
#[derive(Clone, Copy, Debug)]
pub struct TwoLayer {
    options: TwoLayerOptions,
    /// Level 0 is also merged when so many of the entries may be overwritten by others, as a share of those of the
    /// largest run. Infinite: any.
    overwritten_share: f64,
    /// Runs are merged with each other only once a scan has met too many.
    waits_for_scans: bool,
    /// Output tables end at about this size, in bytes.
    table_bytes: u64,
}

impl CompactionPolicy for TwoLayer {
    fn choose(&self, levels: &Levels, busy: &Busy) -> Option<CompactionJob> {
        let full = self.fullness(levels) >= 1.0;
        let down = || if full { self.merge_down(levels, busy) } else { None };
        let within = || if busy.scans_ask || !self.waits_for_scans { self.merge_within(levels, busy) } else { None };
        let deeper = || self.merge_leftovers(levels, busy);
        down().or_else(within).or_else(deeper)
    }

    fn debt(&self, levels: &Levels) -> f64 {
        let scans = if self.waits_for_scans { 0.0 } else { self.runs_for_scans(levels) };
        let leftovers = if has_leftovers(levels) { 1.0 } else { 0.0 };
        self.fullness(levels).max(scans).max(leftovers)
    }

    fn debt_to_scans(&self, levels: &Levels) -> f64 {
        if self.waits_for_scans { self.runs_for_scans(levels) } else { 0.0 }
    }

    fn name(&self) -> &'static str {
        "two-layer"
    }
}

impl TwoLayer {
    /// A policy with these options, which have been checked, and tables of about `table_bytes`.
    #[must_use]
    pub fn new(options: TwoLayerOptions, table_bytes: u64) -> Self {
        Self { options, overwritten_share: f64::INFINITY, waits_for_scans: false, table_bytes }
    }

    /// This policy for a tree whose point reads do not ask run after run: only scans pay for many runs.
    #[must_use]
    pub fn with_hash_index(self) -> Self {
        Self { waits_for_scans: true, ..self }
    }

    /// This policy, which also merges level 0 when so many of the entries may be overwritten by others, as a share
    /// (above 0) of those of the largest run.
    #[must_use]
    pub fn with_overwritten_share(self, overwritten_share: f64) -> Self {
        Self { overwritten_share, ..self }
    }

    /// All of level 0 into level 1: a group of overlapping tables at a time where they fall into groups.
    fn merge_down(&self, levels: &Levels, busy: &Busy) -> Option<CompactionJob> {
        let reason = match self.overwritten(levels) {
            share if share >= 1.0 => format!("level 0 may overwrite {} of the entries", self.overwritten_share),
            _ => format!("level 0 has reached {} bytes", self.options.unsorted_bytes),
        };
        let mut groups = shape::groups(levels, 0);
        groups.sort_by_key(|group| std::cmp::Reverse(shape::bytes(group)));
        groups.into_iter().find_map(|group| {
            let beneath = shape::beneath(levels, &group, 1);
            let moves = beneath.is_empty() && group.len() == 1;
            let shape = if moves { JobShape::Move } else { JobShape::Merge };
            self.job([group, beneath].concat(), busy, shape, 1, shape::newest_run(levels, 1), reason.clone())
        })
    }

    /// The newest runs of level 0 into one, in place of the newest.
    fn merge_within(&self, levels: &Levels, busy: &Busy) -> Option<CompactionJob> {
        let runs = &shape::level(levels, 0)?.runs;
        if runs.len() <= self.options.scan_merge_runs as usize {
            return None;
        }
        let mut inputs: Vec<Placed<'_>> = Vec::new();
        let mut count = 0;
        let free = runs.iter().skip_while(|run| is_busy(run, busy)).take_while(|run| !is_busy(run, busy));
        for run in free {
            if count >= 2 && run.bytes() > shape::bytes(&inputs) {
                break;
            }
            inputs.extend(shape::placed(levels, 0).filter(|placed| placed.run == run.id));
            count += 1;
        }
        let newest = inputs.first().filter(|_| count >= 2)?.run;
        let reason = format!("level 0 has {} runs, and a scan reads each", runs.len());
        self.job(inputs, busy, JobShape::Merge, 0, Some(newest), reason)
    }

    /// What another policy left: deeper levels, and several runs of level 1. All but level 0 becomes one run.
    fn merge_leftovers(&self, levels: &Levels, busy: &Busy) -> Option<CompactionJob> {
        if !has_leftovers(levels) {
            return None;
        }
        let depths = (1..=u8::MAX).take(levels.levels.len().saturating_sub(1));
        let inputs: Vec<Placed<'_>> = depths.flat_map(|depth| shape::placed(levels, depth)).collect();
        let reason = "the tree is not of two layers".to_owned();
        self.job(inputs, busy, JobShape::Merge, 1, shape::newest_run(levels, 1), reason)
    }

    fn job(
        &self,
        inputs: Vec<Placed<'_>>,
        busy: &Busy,
        shape: JobShape,
        level: u8,
        run: Option<RunId>,
        reason: String,
    ) -> Option<CompactionJob> {
        let table_bytes = self.table_bytes;
        let target = Target { shape, level, run, table_bytes, max_overlap_bytes: u64::MAX, reason };
        shape::is_free(busy, &inputs, level).then(|| shape::job(inputs, target))
    }

    /// The runs of level 0, of those that are too many.
    fn runs_for_scans(&self, levels: &Levels) -> f64 {
        let runs = shape::level(levels, 0).map_or(0, |level| level.runs.len());
        runs as f64 / (f64::from(self.options.scan_merge_runs) + 1.0)
    }

    fn fullness(&self, levels: &Levels) -> f64 {
        let bytes = shape::level_bytes(levels, 0) as f64 / self.options.unsorted_bytes as f64;
        bytes.max(self.overwritten(levels))
    }

    /// How many entries may be overwritten by others, of those that are allowed to.
    fn overwritten(&self, levels: &Levels) -> f64 {
        if shape::level_bytes(levels, 0) < self.options.unsorted_bytes / SMALL_SHARE {
            return 0.0;
        }
        let entries = |run: &bifold_contract::Run| run.tables.iter().map(|table| table.entries).sum::<u64>();
        let runs = || levels.levels.iter().flat_map(|level| &level.runs).map(entries);
        let largest = runs().max().unwrap_or(0);
        (runs().sum::<u64>() - largest) as f64 / (largest.max(1) as f64 * self.overwritten_share)
    }
}

fn has_leftovers(levels: &Levels) -> bool {
    let runs = |(depth, level): (usize, &Level)| level.runs.len() > if depth == 1 { 1 } else { 0 };
    levels.levels.iter().enumerate().skip(1).any(runs)
}

fn is_busy(run: &bifold_contract::Run, busy: &Busy) -> bool {
    run.tables.iter().any(|table| busy.tables.contains(&table.id))
}
