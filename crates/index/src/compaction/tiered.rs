//! Size-tiered compaction: a level gathers `growth` runs, which are then merged into one run of the next level.
//!
//! ```text
//! level 0    ▇ ▇ ▇                runs as flushed
//! level 1    ▇▇▇▇ ▇▇▇▇            each the merge of `growth` runs of level 0
//! level 2    ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇
//! ```
//!
//! Every byte is written once a level: log(data / memtable) / log(growth) times. The price: up to `growth - 1` runs a level
//! to read, and space, because dead data waits until its level is full. `space_percent` bounds that: when all that is newer
//! than the oldest run exceeds that share of it, everything is merged into one run.
//!
//! A merge takes **all** runs of its level, so its output is older than whatever is flushed or merged there later, and newer
//! than all runs of the next level. The last level merges in place.
//!
//! When to use it: writes outweigh reads and space by far. Otherwise [`leveled`](super::leveled).

use bifold_contract::{Busy, CompactionJob, CompactionPolicy, Error, JobShape, Levels, Result, RunId};

use super::shape::{self, Placed, Target};

/// Deepest tree there may be.
const LEVELS_MAX: u8 = 16;

/// Options of [`Tiered`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TieredOptions {
    /// Runs of a level that are merged into one run of the next; at least 2.
    pub growth: u32,
    /// How many levels there are, level 0 included: 2 to 16.
    pub levels: u8,
    /// Output tables are cut at about this size, in bytes.
    pub table_bytes: u64,
    /// Everything is merged when all newer runs together exceed this share of the oldest, in percent.
    pub space_percent: u32,
}

impl Default for TieredOptions {
    fn default() -> Self {
        Self { growth: 4, levels: 7, table_bytes: 16 << 20, space_percent: 200 }
    }
}

/// The policy.
#[derive(Clone, Copy, Debug)]
pub struct Tiered {
    options: TieredOptions,
}

impl CompactionPolicy for Tiered {
    fn choose(&self, levels: &Levels, busy: &Busy) -> Option<CompactionJob> {
        if self.space_debt(levels) >= 1.0
            && let Some(job) = self.merge_everything(levels, busy)
        {
            return Some(job);
        }
        let mut full: Vec<(usize, u8)> = depths(levels).map(|depth| (run_count(levels, depth), depth)).collect();
        full.retain(|&(runs, _)| runs >= self.options.growth as usize);
        // The fullest first; of equals the uppermost, where merges are short.
        full.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        full.into_iter().find_map(|(runs, depth)| self.merge_level(levels, busy, depth, runs))
    }

    fn debt(&self, levels: &Levels) -> f64 {
        let growth = f64::from(self.options.growth);
        let runs = depths(levels).map(|depth| run_count(levels, depth) as f64 / growth);
        // Space alone is never urgent: merging everything takes long, and writers are not to wait for it.
        runs.fold(self.space_debt(levels).min(1.0), f64::max)
    }

    fn name(&self) -> &'static str {
        "tiered"
    }
}

impl Tiered {
    /// A policy with these options.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for options out of their range.
    pub fn new(options: TieredOptions) -> Result<Self> {
        let bad = |what: &str, reason: &str| Err(Error::invalid(format!("tiered compaction: {what}"), reason));
        match options {
            o if o.growth < 2 => bad("growth", "a merge needs at least two runs"),
            o if !(2..=LEVELS_MAX).contains(&o.levels) => bad("levels", "there must be 2 to 16 levels"),
            o if o.table_bytes == 0 => bad("table_bytes", "a table must have room for something"),
            o if o.space_percent == 0 => bad("space_percent", "0 would merge everything at every flush"),
            options => Ok(Self { options }),
        }
    }

    /// All runs of a level as one run of the next, or in the last level as one run in place of the newest of them.
    fn merge_level(&self, levels: &Levels, busy: &Busy, depth: u8, runs: usize) -> Option<CompactionJob> {
        let inputs: Vec<Placed<'_>> = shape::placed(levels, depth).collect();
        let last = self.last_level(levels);
        let (to, run) = if depth < last { (depth + 1, None) } else { (last, shape::newest_run(levels, last)) };
        let moves = depth < last && are_apart(levels, depth);
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
        let table_bytes = self.options.table_bytes;
        let target = Target { shape, level, run, table_bytes, max_overlap_bytes: u64::MAX, reason };
        (shape::is_unused(busy, &inputs)).then(|| shape::job(inputs, target))
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
fn are_apart(levels: &Levels, depth: u8) -> bool {
    shape::groups(levels, depth).iter().all(|group| group.len() == 1)
}
