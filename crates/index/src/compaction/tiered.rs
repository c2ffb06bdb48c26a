//! Size-tiered compaction: a level gathers `size_ratio` runs, which are then merged into one run of the next level.
//!
//! ```text
//! level 0    ▇ ▇ ▇                runs as flushed
//! level 1    ▇▇▇▇ ▇▇▇▇            each the merge of `size_ratio` runs of level 0
//! level 2    ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇
//! ```
//!
//! Every byte is written once a level: log(data / memtable) / log(size ratio) times. The price: up to
//! `size_ratio - 1` runs a level to read, and space, because dead data waits until its level is full. `space_percent`
//! bounds that: when all that is newer than the oldest run has that share of its bytes, everything is merged into one
//! run.
//!
//! A merge takes **all** runs of its level, so its output is older than whatever is flushed or merged there later,
//! and newer than all runs of the next level. The last level merges in place.
//!
//! When to use it: writes outweigh reads and space by far. Otherwise [`leveled`](super::leveled).

use bifold_contract::{
    Busy, CompactionJob, CompactionPolicy, JobShape, Levels, Result, RunId, option::within, planted,
};
use serde::{Deserialize, Serialize};

use super::shape::{self, Placed, Target};

/// Deepest tree there may be.
const LEVELS_MAX: u8 = 16;

/// Options of tiered compaction. A value outside of its bounds is an error that names the option
/// ([`check`](Self::check)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TieredOptions {
    /// Runs of a level that are merged into one run of the next: 2 to 1000. Default: 4.
    pub size_ratio: u32,
    /// How many levels there are, level 0 included: 2 to 16. Default: 7. A tree that is deeper keeps its levels.
    pub levels: u8,
    /// Everything is merged into one run when all newer runs together have this share of the oldest run's bytes, in
    /// percent: 1 to 1 000 000. Default: 200. While only level 0 has runs, this does not count.
    pub space_percent: u32,
}

impl Default for TieredOptions {
    fn default() -> Self {
        Self { size_ratio: 4, levels: 7, space_percent: 200 }
    }
}

impl TieredOptions {
    /// Checks the bounds; `at` is the dotted name of these options.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](bifold_contract::Error::InvalidArgument) naming the option.
    pub fn check(&self, at: &str) -> Result<()> {
        within(&format!("{at}.size_ratio"), self.size_ratio.into(), 2, 1000)?;
        within(&format!("{at}.levels"), self.levels.into(), 2, LEVELS_MAX.into())?;
        within(&format!("{at}.space_percent"), self.space_percent.into(), 1, 1_000_000)
    }
}

/// The policy.
#[derive(Clone, Copy, Debug)]
pub struct Tiered {
    options: TieredOptions,
    /// Output tables end at about this size, in bytes.
    table_bytes: u64,
}

impl CompactionPolicy for Tiered {
    fn choose(&self, levels: &Levels, busy: &Busy) -> Option<CompactionJob> {
        if self.space_debt(levels) >= 1.0
            && let Some(job) = self.merge_everything(levels, busy)
        {
            return Some(job);
        }
        let mut full: Vec<(usize, u8)> = depths(levels).map(|depth| (run_count(levels, depth), depth)).collect();
        full.retain(|&(runs, _)| runs >= self.options.size_ratio as usize);
        // The fullest first; of equals the uppermost, where merges are short.
        full.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        full.into_iter().find_map(|(runs, depth)| self.merge_level(levels, busy, depth, runs))
    }

    fn debt(&self, levels: &Levels) -> f64 {
        let size_ratio = f64::from(self.options.size_ratio);
        let runs = depths(levels).map(|depth| run_count(levels, depth) as f64 / size_ratio);
        // Space alone is never urgent: merging everything takes long, and writers are not to wait for it.
        runs.fold(self.space_debt(levels).min(1.0), f64::max)
    }

    fn name(&self) -> &'static str {
        "tiered"
    }
}

impl Tiered {
    /// A policy with these options, which have been checked, and tables of about `table_bytes`.
    #[must_use]
    pub fn new(options: TieredOptions, table_bytes: u64) -> Self {
        Self { options, table_bytes }
    }

    /// All runs of a level as one run of the next, or in the last level as one run in place of the newest of them.
    fn merge_level(&self, levels: &Levels, busy: &Busy, depth: u8, runs: usize) -> Option<CompactionJob> {
        let inputs: Vec<Placed<'_>> = shape::placed(levels, depth).collect();
        let last = self.last_level(levels);
        let (to, run) = if depth < last { (depth + 1, None) } else { (last, shape::newest_run(levels, last)) };
        let moves = depth < last && are_disjoint(levels, depth);
        let shape = if moves { JobShape::Move } else { JobShape::Merge };
        let reason = format!("level {depth} has {runs} runs");
        self.job(inputs, busy, shape, to, run, reason)
    }

    fn merge_everything(&self, levels: &Levels, busy: &Busy) -> Option<CompactionJob> {
        let inputs: Vec<Placed<'_>> = depths(levels).flat_map(|depth| shape::placed(levels, depth)).collect();
        let to = self.last_level(levels);
        let reason = format!("newer runs exceed {} % of the oldest", self.options.space_percent);
        self.job(inputs, busy, JobShape::Merge, to, shape::newest_run(levels, to), reason)
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
        // A new run of a running job may come to stand below the run that is merged in place, because it began
        // earlier: where both hold a key, that run would then hold older data above it. Two new runs stand in the order
        // in which their jobs were taken.
        let may_run = match run {
            Some(_) if !planted!("merge_in_place_anyway") => shape::is_free(busy, &inputs, level),
            _ => shape::is_unused(busy, &inputs),
        };
        may_run.then(|| shape::job(inputs, target))
    }

    /// How much of the allowed space the newer runs take; 1.0 is all of it.
    fn space_debt(&self, levels: &Levels) -> f64 {
        let oldest = levels.levels.iter().rev().find_map(|level| level.runs.last());
        let Some(oldest_bytes) = oldest.map(bifold_contract::Run::bytes) else { return 0.0 };
        let newer_bytes = levels.bytes() - oldest_bytes;
        // A single level of few runs is not worth merging for space, however small its oldest run.
        let deepest_is_0 = depths(levels).all(|depth| depth == 0 || run_count(levels, depth) == 0);
        if deepest_is_0 {
            return 0.0;
        }
        newer_bytes as f64 * 100.0 / (oldest_bytes.max(1) as f64 * f64::from(self.options.space_percent))
    }

    /// The deepest level, be it by options or because the tree was once deeper.
    fn last_level(&self, levels: &Levels) -> u8 {
        let filled = depths(levels).filter(|&depth| run_count(levels, depth) > 0).last().unwrap_or(0);
        filled.max(self.options.levels - 1)
    }
}

fn depths(levels: &Levels) -> impl Iterator<Item = u8> {
    (0..=u8::MAX).take(levels.levels.len())
}

fn run_count(levels: &Levels, depth: u8) -> usize {
    shape::level(levels, depth).map_or(0, |level| level.runs.len())
}

/// Whether no two tables of a level overlap: its runs are one run already.
fn are_disjoint(levels: &Levels, depth: u8) -> bool {
    shape::groups(levels, depth).iter().all(|group| group.len() == 1)
}
