//! Tiered compaction: a level gathers `growth` runs, which are then merged into one run of the next level.
//!
//! Every entry is written once a level, so writing is least; reads meet up to `growth` runs a level. The last level is
//! merged in place, or it would never let go of old versions.

use bifold_contract::{Busy, CompactionJob, CompactionPolicy, Error, JobShape, Level, Levels, Result};

/// Options of [`Tiered`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TieredOptions {
    /// Runs of a level that are merged into one run of the next.
    pub growth: u32,
    /// How many levels there are, level 0 included.
    pub levels: u8,
    /// Tables are cut at about this size.
    pub table_bytes: u64,
}

impl Default for TieredOptions {
    fn default() -> Self {
        Self { growth: 4, levels: 7, table_bytes: 16 << 20 }
    }
}

/// The policy.
#[derive(Clone, Copy, Debug)]
pub struct Tiered {
    options: TieredOptions,
}

impl Tiered {
    /// A policy with these options.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for fewer than two levels or a growth below 2.
    pub fn new(options: TieredOptions) -> Result<Self> {
        if options.levels < 2 || options.growth < 2 {
            return Err(Error::invalid("tiered compaction", "it needs 2 levels and growth 2 at least"));
        }
        Ok(Self { options })
    }

    fn score(&self, level: &Level) -> f64 {
        level.runs.len() as f64 / f64::from(self.options.growth)
    }

    /// All runs of the level that no job holds, if they are the oldest and at least `growth`.
    fn merge(&self, depth: usize, levels: &Levels, busy: &Busy) -> Option<CompactionJob> {
        let level = levels.levels.get(depth)?;
        let last = usize::from(self.options.levels) - 1;
        let output = (depth + 1).min(last);
        let is_busy = |run: &&bifold_contract::Run| run.tables.iter().any(|t| busy.tables.contains(&t.id));
        // Two jobs into one level could finish in the wrong order, and a newer run must have the larger id.
        if busy.outputs.iter().any(|o| usize::from(o.0) == output) || level.runs.iter().any(|run| is_busy(&run)) {
            return None;
        }
        let oldest = level.runs.last()?;
        let inputs = level.runs.iter().flat_map(|run| run.tables.iter().map(|t| (depth as u8, run.id, t.id))).collect();
        Some(CompactionJob {
            shape: JobShape::Merge,
            inputs,
            output_level: output as u8,
            output_run: (output == depth).then_some(oldest.id),
            table_bytes: self.options.table_bytes,
            max_overlap_bytes: u64::MAX,
            reason: format!("level {depth} has {} runs", level.runs.len()),
        })
    }
}

impl CompactionPolicy for Tiered {
    fn choose(&self, levels: &Levels, busy: &Busy) -> Option<CompactionJob> {
        let mut due: Vec<(usize, f64)> =
            levels.levels.iter().map(|level| self.score(level)).enumerate().filter(|d| d.1 >= 1.0).collect();
        due.sort_by(|a, b| b.1.total_cmp(&a.1));
        due.into_iter().find_map(|(depth, _)| self.merge(depth, levels, busy))
    }

    fn debt(&self, levels: &Levels) -> f64 {
        levels.levels.iter().map(|level| self.score(level)).fold(0.0, f64::max)
    }

    fn name(&self) -> &'static str {
        "tiered"
    }
}
