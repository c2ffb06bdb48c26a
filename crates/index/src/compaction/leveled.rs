//! Leveled compaction: below level 0 every level is one sorted run.
//!
//! Sizes are counted from the last level up, so that it always holds most of the data and space amplification stays about
//! `1 + 1/growth` whatever the amount of data: the target of a level is that of the next one divided by `growth`. Levels
//! whose target would be below `base_bytes` are left empty; level 0 is merged into the first that is not, the **base**.
//!
//! A job is chosen by how far a level is over its target: level 0 by its number of runs, others by bytes. In a level the
//! table with the least overlap below goes first. Tables that overlap nothing below are moved, not rewritten.

use std::sync::Arc;

use bifold_contract::{
    Busy, CompactionJob, CompactionPolicy, Error, FileId, JobShape, Level, Levels, Result, RunId, TableMeta,
};

/// A debt of deeper levels beyond this is not the writers' concern: it costs space and reads, not memory.
const LEVEL_DEBT_MAX: f64 = 2.0;

/// Options of [`Leveled`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeveledOptions {
    /// How many times larger each level is than the one above.
    pub growth: u32,
    /// How many levels there are, level 0 included.
    pub levels: u8,
    /// Compaction of level 0 is due when it has this many runs.
    pub level0_runs: u32,
    /// Smallest target of a sorted level, in bytes.
    pub base_bytes: u64,
    /// Tables are cut at about this size.
    pub table_bytes: u64,
    /// An output table overlaps at most this many times `table_bytes` of the level below it.
    pub max_overlap_tables: u32,
}

impl Default for LeveledOptions {
    fn default() -> Self {
        Self { growth: 10, levels: 7, level0_runs: 4, base_bytes: 256 << 20, table_bytes: 16 << 20, max_overlap_tables: 20 }
    }
}

/// The policy.
#[derive(Clone, Copy, Debug)]
pub struct Leveled {
    options: LeveledOptions,
}

/// The inputs of a job: level, run, table.
type Inputs = Vec<(u8, RunId, FileId)>;

impl Leveled {
    /// A policy with these options.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for fewer than two levels, a growth below 2, or no runs.
    pub fn new(options: LeveledOptions) -> Result<Self> {
        if options.levels < 2 || options.growth < 2 || options.level0_runs == 0 {
            return Err(Error::invalid("leveled compaction", "it needs 2 levels, growth 2 and 1 run at least"));
        }
        Ok(Self { options })
    }

    /// The first level below level 0 that is used, and the target of each level in bytes.
    fn targets(&self, levels: &Levels) -> (usize, Vec<u64>) {
        let last = usize::from(self.options.levels) - 1;
        let deepest = levels.levels.get(last).map_or(0, Level::bytes);
        let mut targets = vec![u64::MAX; last + 1];
        let mut base = last;
        targets[last] = deepest.max(self.options.base_bytes);
        while base > 1 && targets[base] > self.options.base_bytes {
            targets[base - 1] = targets[base] / u64::from(self.options.growth);
            base -= 1;
        }
        targets[base] = targets[base].max(self.options.base_bytes);
        // Data above the base (from options with more levels) sinks as soon as it can.
        targets[1..base].fill(0);
        (base, targets)
    }

    /// The level that level 0 is merged into: the base, or a level above it that still has data, which is newer.
    fn receiver(&self, levels: &Levels) -> usize {
        let (base, _) = self.targets(levels);
        let highest = (1..base).find(|&depth| levels.levels.get(depth).is_some_and(|level| !level.runs.is_empty()));
        highest.unwrap_or(base)
    }

    /// How urgent each level is; 1.0 is due.
    fn scores(&self, levels: &Levels) -> Vec<f64> {
        let (_, targets) = self.targets(levels);
        let last = targets.len() - 1;
        let score = |(depth, level): (usize, &Level)| match depth {
            0 => level.runs.len() as f64 / f64::from(self.options.level0_runs),
            _ if depth >= last || level.runs.is_empty() => 0.0,
            _ => level.bytes() as f64 / targets[depth].max(1) as f64,
        };
        levels.levels.iter().enumerate().map(score).collect()
    }

    fn level0(&self, levels: &Levels, busy: &Busy) -> Option<CompactionJob> {
        let base = self.receiver(levels);
        let level0 = levels.levels.first()?;
        let tables: Vec<_> = level0.runs.iter().flat_map(|run| run.tables.iter().map(|t| (run.id, t))).collect();
        if is_writing(busy, base) || tables.iter().any(|(_, t)| busy.tables.contains(&t.id)) {
            return None;
        }
        let below = |table: &TableMeta| overlapping(levels, base, table);
        // The oldest run may be moved if nothing in level 0 or below overlaps it: data that arrives in order.
        let oldest = level0.runs.last()?;
        let apart = |t: &Arc<TableMeta>| {
            tables.iter().all(|(run, other)| *run == oldest.id || !touch(other, t)) && below(t).is_empty()
        };
        let reason = format!("level 0 has {} runs", level0.runs.len());
        if oldest.tables.iter().all(apart) {
            let inputs = oldest.tables.iter().map(|t| (0, oldest.id, t.id)).collect();
            return Some(self.job(JobShape::Move, inputs, levels, base, reason));
        }
        let mut inputs: Inputs = tables.iter().map(|(run, t)| (0, *run, t.id)).collect();
        // Output tables may span the gaps between inputs, so whatever lies in the range of all of them takes part.
        let smallest = tables.iter().map(|(_, t)| &t.smallest).min()?;
        let largest = tables.iter().map(|(_, t)| &t.largest).max()?;
        let unbounded = tables.iter().any(|(_, t)| t.unbounded);
        inputs.extend(overlapping_range(levels, base, smallest, (!unbounded).then_some(&**largest)));
        let free = inputs.iter().all(|(_, _, id)| !busy.tables.contains(id));
        free.then(|| self.job(JobShape::Merge, inputs, levels, base, reason))
    }

    fn level(&self, depth: usize, levels: &Levels, busy: &Busy) -> Option<CompactionJob> {
        let (_, targets) = self.targets(levels);
        let output = depth + 1;
        if is_writing(busy, output) {
            return None;
        }
        let level = levels.levels.get(depth)?;
        let run = level.runs.last()?;
        let candidate = |table: &Arc<TableMeta>| {
            if busy.tables.contains(&table.id) {
                return None;
            }
            let lower = overlapping(levels, output, table);
            if lower.iter().any(|(_, _, id)| busy.tables.contains(id)) {
                return None;
            }
            let bytes: u64 = lower.iter().filter_map(|l| bytes_of(levels, l.2)).sum();
            // Tombstones save space below, so a table that is mostly tombstones may cost more.
            let live = 1.0 - 0.5 * table.tombstones as f64 / table.entries.max(1) as f64;
            Some((bytes as f64 / table.bytes.max(1) as f64 * live, table.id, lower))
        };
        let (_, id, lower) = run.tables.iter().filter_map(candidate).min_by(|a, b| a.0.total_cmp(&b.0))?;
        let shape = if lower.is_empty() { JobShape::Move } else { JobShape::Merge };
        let mut inputs = vec![(depth as u8, run.id, id)];
        inputs.extend(lower);
        let reason = format!("level {depth} has {} bytes, its target is {}", level.bytes(), targets[depth]);
        Some(self.job(shape, inputs, levels, output, reason))
    }

    fn job(&self, shape: JobShape, inputs: Inputs, levels: &Levels, output: usize, reason: String) -> CompactionJob {
        CompactionJob {
            shape,
            inputs,
            output_level: output as u8,
            output_run: levels.levels.get(output).and_then(|l| l.runs.first()).map(|run| run.id),
            table_bytes: self.options.table_bytes,
            max_overlap_bytes: self.options.table_bytes.saturating_mul(u64::from(self.options.max_overlap_tables)),
            reason,
        }
    }
}

impl CompactionPolicy for Leveled {
    fn choose(&self, levels: &Levels, busy: &Busy) -> Option<CompactionJob> {
        let mut scores: Vec<(usize, f64)> = self.scores(levels).into_iter().enumerate().filter(|s| s.1 >= 1.0).collect();
        scores.sort_by(|a, b| b.1.total_cmp(&a.1));
        scores.into_iter().find_map(|(depth, _)| match depth {
            0 => self.level0(levels, busy),
            _ => self.level(depth, levels, busy),
        })
    }

    fn debt(&self, levels: &Levels) -> f64 {
        let scores = self.scores(levels);
        let deeper = scores.iter().skip(1).copied().fold(0.0, f64::max).min(LEVEL_DEBT_MAX);
        scores.first().copied().unwrap_or(0.0).max(deeper)
    }

    fn name(&self) -> &'static str {
        "leveled"
    }
}

fn is_writing(busy: &Busy, level: usize) -> bool {
    busy.outputs.iter().any(|output| usize::from(output.0) == level)
}

fn touch(a: &TableMeta, b: &TableMeta) -> bool {
    a.overlaps(Some(&b.smallest), (!b.unbounded).then_some(&b.largest))
}

/// Tables of a level that overlap `table`.
fn overlapping(levels: &Levels, level: usize, table: &TableMeta) -> Inputs {
    overlapping_range(levels, level, &table.smallest, (!table.unbounded).then_some(&*table.largest))
}

/// Tables of a level that overlap `start..=end` (`None`: unbounded).
fn overlapping_range(levels: &Levels, level: usize, start: &[u8], end: Option<&[u8]>) -> Inputs {
    let runs = levels.levels.get(level).into_iter().flat_map(|l| &l.runs);
    let within = |t: &&Arc<TableMeta>| t.overlaps(Some(start), end);
    runs.flat_map(|run| run.tables.iter().filter(within).map(|t| (level as u8, run.id, t.id))).collect()
}

fn bytes_of(levels: &Levels, id: FileId) -> Option<u64> {
    levels.tables().find(|(_, _, t)| t.id == id).map(|(_, _, t)| t.bytes)
}
