//! Helpers for all policies: which tables overlap, and which must be in a job together.
//!
//! One rule is behind all of it: **upper levels, and newer runs of a level, hold the newer versions of every key**. A
//! job may therefore take a table down only together with every older table that overlaps it and would otherwise stay
//! above the output, and must merge it with all it overlaps at the output.

use bifold_contract::{Busy, BusyOutput, CompactionJob, FileId, JobShape, Level, Levels, Run, RunId, TableMeta};

/// A table with its level and run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed<'a> {
    pub level: u8,
    pub run: RunId,
    pub table: &'a TableMeta,
}

/// The key range of some tables, both ends inclusive (`None`: no upper bound).
#[derive(Clone, Copy, Debug)]
pub(super) struct Span<'a> {
    pub start: &'a [u8],
    pub end: Option<&'a [u8]>,
}

impl<'a> Span<'a> {
    pub(super) fn of_table(table: &'a TableMeta) -> Self {
        Self { start: &table.smallest, end: (!table.unbounded).then_some(&table.largest) }
    }

    pub(super) fn of(tables: &[Placed<'a>]) -> Option<Self> {
        tables.iter().map(|placed| Self::of_table(placed.table)).reduce(Self::union)
    }

    pub(super) fn union(self, other: Self) -> Self {
        let end = match (self.end, other.end) {
            (Some(a), Some(b)) => Some(a.max(b)),
            _ => None,
        };
        Self { start: self.start.min(other.start), end }
    }

    pub(super) fn overlaps(self, table: &TableMeta) -> bool {
        table.overlaps(Some(self.start), self.end)
    }
}

/// Level `depth`, if the tree is that deep.
pub(super) fn level(levels: &Levels, depth: u8) -> Option<&Level> {
    levels.levels.get(usize::from(depth))
}

/// The tables of a level, newest run first, in key order within a run.
pub(super) fn placed(levels: &Levels, depth: u8) -> impl Iterator<Item = Placed<'_>> {
    let runs = level(levels, depth).map_or(&[][..], |level| &level.runs);
    runs.iter().flat_map(move |run| of_run(run, depth))
}

/// The tables of a level that overlap `span`, newest run first.
pub(super) fn within<'a>(levels: &'a Levels, depth: u8, span: Span<'a>) -> impl Iterator<Item = Placed<'a>> {
    let runs = level(levels, depth).map_or(&[][..], |level| &level.runs);
    runs.iter().flat_map(move |run| {
        // Tables of a run ascend without overlap, and only the last can be unbounded.
        let first = run.tables.partition_point(|table| !table.unbounded && *table.largest < *span.start);
        let end = run.tables.partition_point(|table| span.end.is_none_or(|end| *table.smallest <= *end));
        of_run(run, depth).take(end).skip(first)
    })
}

fn of_run(run: &Run, level: u8) -> impl Iterator<Item = Placed<'_>> {
    run.tables.iter().map(move |table| Placed { level, run: run.id, table })
}

/// The bytes of a level.
pub(super) fn level_bytes(levels: &Levels, depth: u8) -> u64 {
    level(levels, depth).map_or(0, Level::bytes)
}

/// The bytes of some tables.
pub(super) fn bytes(tables: &[Placed<'_>]) -> u64 {
    tables.iter().map(|placed| placed.table.bytes).sum()
}

/// How many runs these tables are from. The tables are in the order of [`placed`].
pub(super) fn run_count(tables: &[Placed<'_>]) -> usize {
    tables.chunk_by(|a, b| a.run == b.run).count()
}

/// The tables of a level in groups: tables of different groups do not overlap, so each group can be compacted alone.
/// Each group is in the order of [`placed`].
pub(super) fn groups(levels: &Levels, depth: u8) -> Vec<Vec<Placed<'_>>> {
    let mut tables: Vec<(usize, Placed<'_>)> = placed(levels, depth).enumerate().collect();
    let one_run = level(levels, depth).is_some_and(|level| level.runs.len() == 1);
    tables.sort_by(|a, b| a.1.table.smallest.cmp(&b.1.table.smallest));
    let mut groups: Vec<Vec<(usize, Placed<'_>)>> = Vec::new();
    let mut reach: Option<Span<'_>> = None;
    for (at, table) in tables {
        let span = Span::of_table(table.table);
        match (&mut reach, groups.last_mut()) {
            // Tables of one run never hold the same key, even where the end of one touches the start of the next.
            (Some(reach), Some(group)) if !one_run && reach.overlaps(table.table) => {
                *reach = reach.union(span);
                group.push((at, table));
            }
            _ => {
                reach = Some(span);
                groups.push(vec![(at, table)]);
            }
        }
    }
    groups.into_iter().map(in_order).collect()
}

/// Restores the order in which a group's tables were given.
fn in_order(mut group: Vec<(usize, Placed<'_>)>) -> Vec<Placed<'_>> {
    group.sort_by_key(|&(at, _)| at);
    group.into_iter().map(|(_, table)| table).collect()
}

/// The tables further down, up to level `to`, that must be merged with `upper` because they overlap.
pub(super) fn beneath<'a>(levels: &'a Levels, upper: &[Placed<'a>], to: u8) -> Vec<Placed<'a>> {
    let (Some(mut span), Some(from)) = (Span::of(upper), upper.first().map(|table| table.level)) else {
        return Vec::new();
    };
    let mut taken: Vec<Placed<'a>> = Vec::new();
    for depth in from.saturating_add(1)..=to {
        let several_runs = level(levels, depth).is_some_and(|level| level.runs.len() > 1);
        let mut found: Vec<Placed<'a>>;
        loop {
            found = within(levels, depth, span).collect();
            let wider = Span::of(&found).map_or(span, |found| span.union(found));
            // With several runs, the tables found in one may overlap more of another. (With one run they may only
            // touch more.)
            let grew = several_runs && (wider.start != span.start || wider.end != span.end);
            span = wider;
            if !grew {
                break;
            }
        }
        taken.append(&mut found);
    }
    taken
}

/// Whether a job with these inputs and this output level conflicts with no running job.
pub(super) fn is_free(busy: &Busy, inputs: &[Placed<'_>], to: u8) -> bool {
    let Some(span) = Span::of(inputs) else { return true };
    // A job must not overtake the output of a running job further up. That output's range may be wider than its
    // inputs.
    let from = inputs.iter().map(|table| table.level).min().unwrap_or(to);
    let crosses = |level: u8| level == to || (level > from && level < to);
    let conflicts = |output: &BusyOutput| crosses(output.level) && output.overlaps(span.start, span.end);
    is_unused(busy, inputs) && !busy.outputs.iter().any(conflicts)
}

/// Whether no running job has any of these tables.
pub(super) fn is_unused(busy: &Busy, tables: &[Placed<'_>]) -> bool {
    !tables.iter().any(|placed| busy.tables.contains(&placed.table.id))
}

/// The run of level `to` that receives merges into it: its newest.
pub(super) fn newest_run(levels: &Levels, to: u8) -> Option<RunId> {
    level(levels, to)?.runs.first().map(|run| run.id)
}

/// A job without its inputs.
pub(super) struct Target {
    pub shape: JobShape,
    pub level: u8,
    pub run: Option<RunId>,
    pub table_bytes: u64,
    pub max_overlap_bytes: u64,
    pub reason: String,
}

/// The job that compacts `inputs` into `target`.
pub(super) fn job<'a>(inputs: impl IntoIterator<Item = Placed<'a>>, target: Target) -> CompactionJob {
    let placed: Vec<Placed<'_>> = inputs.into_iter().collect();
    let keys = Span::of(&placed).map(|span| (span.start.into(), span.end.map(Box::from)));
    let mut inputs: Vec<(u8, RunId, FileId)> =
        placed.iter().map(|placed| (placed.level, placed.run, placed.table.id)).collect();
    // Newest first; a stable sort keeps the key order within a run.
    inputs.sort_by_key(|&(level, run, _)| (level, std::cmp::Reverse(run)));
    CompactionJob {
        shape: target.shape,
        inputs,
        output_level: target.level,
        output_run: target.run,
        keys,
        table_bytes: target.table_bytes,
        max_overlap_bytes: target.max_overlap_bytes,
        reason: target.reason,
    }
}
