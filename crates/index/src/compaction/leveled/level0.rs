//! Level 0 of a leveled tree: when and how its runs are merged down.
//!
//! Its tables fall into **groups** that overlap one another; a group goes down as one. Merging down rewrites all that
//! lies beneath: to bring 256 MiB down onto 1 GiB costs five bytes written per byte brought. So when a group is due,
//! and what is done then, depends on the bytes beneath it per byte of its own:
//!
//! | below | due at | action |
//! |---|---|---|
//! | less than 1 | half of `level0_runs` | merged down: a small tree has little dead data |
//! | up to `level0_overlap` | `level0_runs` | merged down |
//! | more | `level0_runs` | some runs are merged with each other, which costs one byte per byte |
//!
//! So level 0 is itself a small tiered tree (DiffKV §3.6 also merges level 0 selectively).
//!
//! Groups of one table that overlap nothing are moved as soon as there are half of `level0_runs` runs: keys that
//! arrive in order are never rewritten.

use bifold_contract::{Busy, CompactionJob, JobShape, Levels};

use super::Leveled;
use crate::compaction::shape::{self, Placed};

/// With this many times the trigger's runs, a read checks too many key ranges even if they do not overlap.
const CROWD: usize = 2;

/// Level 0 and the tables below it.
pub(super) struct Level0<'a> {
    policy: &'a Leveled,
    levels: &'a Levels,
    base: u8,
    groups: Vec<Group<'a>>,
    runs: usize,
}

/// Tables that overlap one another, and the tables they overlap down to the base.
struct Group<'a> {
    tables: Vec<Placed<'a>>,
    beneath: Vec<Placed<'a>>,
    /// The number of runs with a table in the group.
    depth: usize,
    /// Bytes rewritten below per byte merged down.
    cost: f64,
}

impl<'a> Level0<'a> {
    pub(super) fn of(policy: &'a Leveled, levels: &'a Levels, base: u8) -> Self {
        let group = |tables: Vec<Placed<'a>>| {
            let beneath = shape::beneath(levels, &tables, base);
            let cost = shape::bytes(&beneath) as f64 / shape::bytes(&tables).max(1) as f64;
            Group { depth: shape::run_count(&tables), tables, beneath, cost }
        };
        let mut groups: Vec<Group<'a>> = shape::groups(levels, 0).into_iter().map(group).collect();
        // The group with the most runs costs readers most; among equals the cheapest goes first.
        groups.sort_by(|a, b| b.depth.cmp(&a.depth).then(a.cost.total_cmp(&b.cost)));
        let runs = shape::level(levels, 0).map_or(0, |level| level.runs.len());
        Self { policy, levels, base, groups, runs }
    }

    /// The most useful job, if one is due.
    pub(super) fn job(&self, busy: &Busy) -> Option<CompactionJob> {
        self.moved(busy).or_else(|| {
            let due = self.groups.iter().filter(|group| self.runs >= self.crowd() || self.debt_of(group) >= 1.0);
            due.into_iter().find_map(|group| {
                let down = || self.merged_down(group, busy);
                let within = || self.merged_within(group, busy);
                if self.is_worth_it(group) { down().or_else(within) } else { within().or_else(down) }
            })
        })
    }

    /// The debt of level 0.
    pub(super) fn debt(&self) -> f64 {
        let deepest = self.groups.iter().map(|group| self.debt_of(group)).fold(0.0, f64::max);
        // Runs that do not overlap cost readers little and are moved without being read: that is due but never
        // urgent.
        let movable = if deepest < 1.0 && self.moved(&Busy::default()).is_some() { 1.0 } else { 0.0 };
        deepest.max(movable).max(self.runs as f64 / self.crowd() as f64)
    }

    fn moved(&self, busy: &Busy) -> Option<CompactionJob> {
        let move_down =
            |group: &Group<'_>| self.policy.move_down(&group.tables, &group.beneath, self.levels, busy, self.base);
        self.groups.iter().filter(|_| self.runs >= self.half_trigger()).find_map(move_down)
    }

    fn merged_down(&self, group: &Group<'_>, busy: &Busy) -> Option<CompactionJob> {
        let reason = format!("level 0 has {} overlapping runs", group.depth);
        self.policy.merge_down(&group.tables, &group.beneath, self.levels, busy, self.base, reason)
    }

    /// Merges some neighbouring runs of a group with each other: those with the fewest bytes per run saved.
    fn merged_within(&self, group: &Group<'_>, busy: &Busy) -> Option<CompactionJob> {
        let runs: Vec<&[Placed<'_>]> = group.tables.chunk_by(|a, b| a.run == b.run).collect();
        let mut best: Option<(u64, &[&[Placed<'_>]])> = None;
        for first in 0..runs.len() {
            let free = runs[first..].iter().take_while(|run| shape::is_unused(busy, run)).count();
            for count in 2..=free {
                let window = &runs[first..first + count];
                let cost = window.iter().map(|run| shape::bytes(run)).sum::<u64>() / (count as u64 - 1);
                if best.is_none_or(|(least, chosen)| (cost, chosen.len()) < (least, count)) {
                    best = Some((cost, window));
                }
            }
        }
        let (_, window) = best?;
        let inputs = window.concat();
        if !shape::is_free(busy, &inputs, 0) {
            return None;
        }
        // The output takes the place of the newest input: runs flushed meanwhile stay newer.
        let run = Some(inputs.first()?.run);
        let reason =
            format!("{} of {} runs of level 0 merge: merging down would rewrite too much", window.len(), group.depth);
        Some(self.policy.job(inputs, JobShape::Merge, 0, run, reason))
    }

    fn trigger(&self) -> usize {
        self.policy.options.level0_runs as usize
    }

    fn half_trigger(&self) -> usize {
        self.trigger().div_ceil(2)
    }

    fn crowd(&self) -> usize {
        self.trigger().saturating_mul(CROWD)
    }

    fn is_worth_it(&self, group: &Group<'_>) -> bool {
        group.cost <= f64::from(self.policy.options.level0_overlap)
    }

    /// 1.0 when the group is due; after that, each further half of the trigger's runs adds 1.
    fn debt_of(&self, group: &Group<'_>) -> f64 {
        let due = if group.cost < 1.0 { self.half_trigger() } else { self.trigger() } as f64;
        let depth = group.depth as f64;
        if depth < due { depth / due } else { 1.0 + (depth - due) / self.half_trigger() as f64 }
    }
}
