//! Leveled compaction: from level 1 on, one sorted run a level, each `size_ratio` times the one above.
//!
//! ```text
//! level 0    ▇ ▇ ▇ ▇                 runs as flushed, merged down together
//! …          (empty)
//! level 5    ▇▇                      the base: a tenth of the level below it
//! level 6    ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇    the last: about nine tenths of all data
//! ```
//!
//! **Targets** follow the actual size of the last level (RocksDB calls this dynamic level bytes): a target is that of
//! the level below divided by `size_ratio`, up to the last one that is no less than `base_bytes`. That level is the
//! base; level 0 merges into it, and those between are empty: a level smaller than what level 0 brings at once would
//! only be written in passing. So dead data between level 0 and the last level is at most about `1/size_ratio` of it,
//! whatever the size of the tree.
//!
//! **Level 0** is due at some number of overlapping runs; see `level0`. **Deeper levels** are due at their target; the
//! table with the least overlap below it per byte goes down, tombstones counting as bytes gained, and of equals the one
//! with the oldest data. What overlaps nothing below is moved without being read.
//!
//! When not to use it: where writes outweigh reads by far and space is cheap, [`tiered`](super::tiered) writes less.

mod level0;

use bifold_contract::{
    Busy, CompactionJob, CompactionPolicy, JobShape, Levels, Result, TableMeta,
    option::{at_least, size, within},
};
use serde::{Deserialize, Serialize};

use self::level0::Level0;
use super::shape::{self, Placed, Target};

/// Deepest tree there may be.
const LEVELS_MAX: u8 = 16;

/// Options of leveled compaction. A value outside of its bounds is an error that names the option
/// ([`check`](Self::check)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeveledOptions {
    /// How many times larger each level is than the one above: 2 to 1000. Default: 10.
    pub size_ratio: u32,
    /// How many levels there are, level 0 included: 2 to 16. Default: 7. A tree that is deeper keeps its levels.
    pub levels: u8,
    /// Level 0 is due when so many of its runs overlap, or half as many if merging them down rewrites fewer bytes than
    /// come down: 1 to 1000. Default: 8. With twice as many runs it is due even if they do not overlap.
    pub level0_runs: u32,
    /// Merging level 0 down is worth its cost if it rewrites at most so many times the bytes that come down: 1 to 1000.
    /// Default: 2. Otherwise runs of level 0 are merged with each other.
    pub level0_overlap: u32,
    /// No level but the last has a target below this, in bytes: about what level 0 holds when it is due. At least 1
    /// KiB. Default: 256 MiB.
    #[serde(with = "size")]
    pub base_bytes: u64,
    /// An output table ends before it overlaps more than so many times `table_bytes` of the level below it: 1 to 1000.
    /// Default: 25.
    pub overlap_tables: u32,
}

impl Default for LeveledOptions {
    fn default() -> Self {
        Self { size_ratio: 10, levels: 7, level0_runs: 8, level0_overlap: 2, base_bytes: 256 << 20, overlap_tables: 25 }
    }
}

impl LeveledOptions {
    /// Checks the bounds; `at` is the dotted name of these options.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](bifold_contract::Error::InvalidArgument) naming the option.
    pub fn check(&self, at: &str) -> Result<()> {
        within(&format!("{at}.size_ratio"), self.size_ratio.into(), 2, 1000)?;
        within(&format!("{at}.levels"), self.levels.into(), 2, LEVELS_MAX.into())?;
        within(&format!("{at}.level0_runs"), self.level0_runs.into(), 1, 1000)?;
        within(&format!("{at}.level0_overlap"), self.level0_overlap.into(), 1, 1000)?;
        within(&format!("{at}.overlap_tables"), self.overlap_tables.into(), 1, 1000)?;
        at_least(&format!("{at}.base_bytes"), self.base_bytes, 1 << 10)
    }
}

/// The policy.
#[derive(Clone, Copy, Debug)]
pub struct Leveled {
    options: LeveledOptions,
    /// Output tables end at about this size, in bytes.
    table_bytes: u64,
}

impl CompactionPolicy for Leveled {
    fn choose(&self, levels: &Levels, busy: &Busy) -> Option<CompactionJob> {
        let targets = self.targets(levels);
        let mut full: Vec<(f64, u8)> =
            targets.upper_levels().map(|depth| (targets.fullness(levels, depth), depth)).collect();
        full.retain(|&(fullness, _)| fullness >= 1.0);
        full.sort_by(|a, b| b.0.total_cmp(&a.0));
        let deeper = || full.iter().find_map(|&(_, depth)| self.deeper_job(levels, busy, depth));
        let level0 = Level0::of(self, levels, targets.base).job(busy);
        level0.or_else(deeper).or_else(|| self.unite_runs(levels, busy))
    }

    fn debt(&self, levels: &Levels) -> f64 {
        let targets = self.targets(levels);
        let deeper = targets.upper_levels().map(|depth| {
            let (bytes, target) = (shape::level_bytes(levels, depth) as f64, targets.of(depth) as f64);
            // One merge of level 0 may bring many times a small target: that is due, but not urgent.
            let unit = target.max(self.options.base_bytes as f64);
            if bytes < target { bytes / target } else { 1.0 + (bytes - target) / unit }
        });
        let several_runs = if split_levels(levels).next().is_some() { 1.0 } else { 0.0 };
        deeper.fold(Level0::of(self, levels, targets.base).debt().max(several_runs), f64::max)
    }

    fn name(&self) -> &'static str {
        "leveled"
    }
}

impl Leveled {
    /// A policy with these options, which have been checked, and tables of about `table_bytes`.
    #[must_use]
    pub fn new(options: LeveledOptions, table_bytes: u64) -> Self {
        Self { options, table_bytes }
    }

    /// The most useful job of a level from 1 on. In a level of one run every table is a group of its own.
    fn deeper_job(&self, levels: &Levels, busy: &Busy, depth: u8) -> Option<CompactionJob> {
        let to = depth + 1;
        let mut picks: Vec<(f64, u64, Vec<Placed<'_>>)> = shape::groups(levels, depth)
            .into_iter()
            .filter(|group| shape::is_unused(busy, group))
            .map(|group| {
                let overlap = shape::bytes(&shape::beneath(levels, &group, to)) as f64 / bytes_gained(&group);
                let age = group.iter().map(|placed| placed.table.max_seqno).min().unwrap_or(0);
                (overlap, age, group)
            })
            .collect();
        picks.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let reason = format!("level {depth} is over its target");
        picks.iter().find_map(|(_, _, group)| {
            let beneath = shape::beneath(levels, group, to);
            let moved = self.move_down(group, &beneath, levels, busy, to);
            moved.or_else(|| self.merge_down(group, &beneath, levels, busy, to, reason.clone()))
        })
    }

    /// Makes one run of a level that has several, which another policy left: overlapping tables are merged where they
    /// are, then the others are moved to the newest run.
    fn unite_runs(&self, levels: &Levels, busy: &Busy) -> Option<CompactionJob> {
        split_levels(levels).find_map(|depth| {
            let newest = shape::newest_run(levels, depth);
            let mut groups = shape::groups(levels, depth);
            groups.sort_by_key(|group| std::cmp::Reverse(shape::run_count(group)));
            let overlapping = groups.iter().take_while(|group| shape::run_count(group) > 1);
            let (shape, inputs) = match overlapping.clone().find(|group| shape::is_free(busy, group, depth)) {
                Some(group) => (JobShape::Merge, group.clone()),
                None if overlapping.count() > 0 => return None,
                None => (JobShape::Move, shape::placed(levels, depth).filter(|p| Some(p.run) != newest).collect()),
            };
            let reason = format!("level {depth} has more than one run");
            shape::is_free(busy, &inputs, depth).then(|| self.job(inputs, shape, depth, newest, reason))
        })
    }

    /// The job that moves a single table without reading it, unless it overlaps something, or has tombstones that
    /// would be dropped if it were read, or would make its next merge too large.
    fn move_down(
        &self,
        tables: &[Placed<'_>],
        beneath: &[Placed<'_>],
        levels: &Levels,
        busy: &Busy,
        to: u8,
    ) -> Option<CompactionJob> {
        let [table] = *tables else { return None };
        let sheds = table.table.tombstones + table.table.range_tombstones > 0 && to >= self.last_level(levels);
        let there = [Placed { level: to, ..table }];
        let grandparents_bytes = shape::bytes(&shape::beneath(levels, &there, to.saturating_add(1)));
        let fits = beneath.is_empty() && !sheds && grandparents_bytes <= self.overlap_bytes();
        let reason = || "overlaps nothing below".to_owned();
        (fits && shape::is_free(busy, tables, to))
            .then(|| self.job([table], JobShape::Move, to, shape::newest_run(levels, to), reason()))
    }

    fn merge_down(
        &self,
        tables: &[Placed<'_>],
        beneath: &[Placed<'_>],
        levels: &Levels,
        busy: &Busy,
        to: u8,
        reason: String,
    ) -> Option<CompactionJob> {
        let inputs = [tables, beneath].concat();
        let run = shape::newest_run(levels, to);
        shape::is_free(busy, &inputs, to).then(|| self.job(inputs, JobShape::Merge, to, run, reason))
    }

    fn job<'a>(
        &self,
        inputs: impl IntoIterator<Item = Placed<'a>>,
        shape: JobShape,
        level: u8,
        run: Option<u64>,
        reason: String,
    ) -> CompactionJob {
        let table_bytes = self.table_bytes;
        shape::job(inputs, Target { shape, level, run, table_bytes, max_overlap_bytes: self.overlap_bytes(), reason })
    }

    fn overlap_bytes(&self) -> u64 {
        self.table_bytes.saturating_mul(u64::from(self.options.overlap_tables))
    }

    /// The deepest level, be it by options or because the tree was once deeper.
    fn last_level(&self, levels: &Levels) -> u8 {
        let filled = levels.levels.iter().rposition(|level| !level.runs.is_empty()).unwrap_or(0);
        u8::try_from(filled).unwrap_or(u8::MAX).max(self.options.levels - 1)
    }

    fn targets(&self, levels: &Levels) -> Targets {
        let last = self.last_level(levels);
        let bytes = |depth| shape::level_bytes(levels, depth);
        let largest = (1..=last).map(bytes).max().unwrap_or(0);
        let size_ratio = u64::from(self.options.size_ratio);
        let (mut base, mut target) = (last, largest);
        while base > 1 && target / size_ratio >= self.options.base_bytes {
            base -= 1;
            target /= size_ratio;
        }
        // What is above the base (the tree was larger once) must still be passed on its way down.
        let first_filled = (1..=last).find(|&depth| bytes(depth) > 0).unwrap_or(last);
        Targets { base: base.min(first_filled), last, last_bytes: largest.max(self.options.base_bytes), size_ratio }
    }
}

/// Where data belongs.
struct Targets {
    /// The level that level 0 merges into.
    base: u8,
    last: u8,
    last_bytes: u64,
    size_ratio: u64,
}

impl Targets {
    /// The target of a level from 1 on, in bytes; at least 1.
    fn of(&self, depth: u8) -> u64 {
        (depth..self.last).fold(self.last_bytes, |bytes, _| bytes / self.size_ratio).max(1)
    }

    /// The levels from 1 on that can be too large: all but the last.
    fn upper_levels(&self) -> std::ops::Range<u8> {
        self.base..self.last
    }

    fn fullness(&self, levels: &Levels, depth: u8) -> f64 {
        shape::level_bytes(levels, depth) as f64 / self.of(depth) as f64
    }
}

/// The levels from 1 on that have more than one run.
fn split_levels(levels: &Levels) -> impl Iterator<Item = u8> {
    (1..=u8::MAX).zip(levels.levels.iter().skip(1)).filter(|(_, level)| level.runs.len() > 1).map(|(depth, _)| depth)
}

/// Bytes that go down, and those that tombstones will free there: a table half of tombstones counts one and a half
/// times.
fn bytes_gained(tables: &[Placed<'_>]) -> f64 {
    let share = |table: &TableMeta| table.tombstones as f64 / table.entries.max(1) as f64;
    tables.iter().map(|placed| placed.table.bytes as f64 * (1.0 + share(placed.table))).sum::<f64>().max(1.0)
}
