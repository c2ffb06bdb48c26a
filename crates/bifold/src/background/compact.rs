//! Compaction: merges tables of one tree into tables of a deeper level, or only changes their place.
//!
//! A pure policy has made the plan. This file carries it out with the one merge loop of `bifold-index` and installs
//! the result.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bifold_contract::{
    CompactionJob, FileId, IoSource, JobShape, LevelEdit, Levels, Result, TableMeta, ValueEdit,
    edit::{TableAdded, TableRemoved},
    planted,
};
use bifold_index::{
    compaction::{
        parts,
        run::{self, Held, RewritePlan, Times},
    },
    merge::{MergeCursor, Source},
    range_tombstones::RangeTombstones,
    table::{ReadMode, Table},
    version::Version,
};
use bifold_io::{Clock, Dir};
use bifold_values::placement::RewriteJob;

use crate::{
    background::{filter, split::split_large},
    commit::moves::MoveCommits,
    counts::counters::Counters,
    install::State,
    limits::{
        pace::Pace,
        room::{Means, Room},
    },
    state::{
        health::Health,
        numbers::Numbers,
        snapshot::{SnapshotCut, Snapshots},
        telling::{Events, JobKind},
        tree::{Tree, View},
    },
    waiting::sync::LockExt,
};

/// Level 0 is cut into at most this many parts. While one is merged, what it replaces is on disk together with its
/// output: a sixteenth.
const PARTS_MAX: u64 = 16;

/// Where merges move values, the values that one table points at have at most the bytes of this many tables.
const REACH_TABLES: u64 = 4;

/// What a merge does beyond its plan.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extra<'a> {
    /// The merge moves the values in these files.
    pub moving: &'a [FileId],
    /// Tables also end before these keys, in ascending order.
    pub cuts: &'a [Box<[u8]>],
    /// The space it may use.
    pub means: Means,
}

/// Carries out compactions.
pub(crate) struct Compactor {
    pub clock: Arc<dyn Clock>,
    pub dir: Dir,
    pub numbers: Numbers,
    pub snapshots: Arc<Snapshots>,
    pub health: Arc<Health>,
    pub counters: Arc<Counters>,
    pub room: Arc<Room>,
    pub pace: Arc<Pace>,
    pub state: Arc<State>,
    pub events: Arc<Events>,
    /// For what a compaction filter decides.
    pub moves: Arc<MoveCommits>,
    /// A memtable is full with so many bytes.
    pub memtable_bytes: u64,
}

impl Compactor {
    /// Runs one planned job.
    ///
    /// # Errors
    /// I/O errors and corruption. The inputs then stay in force and no output is left behind.
    pub fn compact_job(&self, tree: &Arc<Tree>, job: &CompactionJob) -> Result<()> {
        let begin = self.clock.now();
        let freed = self.compact_with(tree, job, Extra::default())?;
        // A merge that frees nothing says nothing about how fast merges free space.
        if freed > 0 {
            self.pace.freed(freed, self.clock.now().saturating_sub(begin));
        }
        Ok(())
    }

    /// Runs one planned job with `extra`. Returns by how many bytes the value files have shrunk.
    ///
    /// # Errors
    /// As [`Compactor::compact_job`].
    pub fn compact_with(&self, tree: &Arc<Tree>, job: &CompactionJob, extra: Extra<'_>) -> Result<u64> {
        let input = || inputs(&tree.view().version, job).map(|table| table.meta().bytes).sum();
        let describe = || (tree.name.clone(), input());
        self.events.around(JobKind::Compaction, describe, || self.compact_told(tree, job, extra))
    }

    fn compact_told(&self, tree: &Arc<Tree>, job: &CompactionJob, extra: Extra<'_>) -> Result<u64> {
        let begin = self.clock.now();
        let view = tree.tables_to_hold();
        let version = &view.version;
        debug_assert!(job.output_run.is_some(), "whoever takes a job numbers its run: {job:?}");
        let output_run = job.output_run.unwrap_or_else(|| self.numbers.take());
        let removed = job.inputs.iter().map(|&(level, run, table)| TableRemoved { level, run, table }).collect();
        let moves = job.shape == JobShape::Move && may_move(tree, job);
        let (tables, values, held) = if moves {
            (inputs(version, job).map(|t| Arc::clone(t.meta())).collect(), ValueEdit::default(), Vec::new())
        } else {
            self.room.with_room(extra.means, || self.merge(tree, &view, job, extra))?
        };
        let added =
            tables.into_iter().map(|table| TableAdded { level: job.output_level, run: output_run, table }).collect();
        let change = LevelEdit { keyspace: tree.keyspace, removed, added, ..LevelEdit::default() };
        let moved_values = !values.added.is_empty();
        let moved_bytes: u64 = values.added.iter().map(|file| file.bytes).sum();
        if !extra.moving.is_empty() {
            self.counters.gc.moved_bytes.fetch_add(moved_bytes, Relaxed);
        }
        // Before others see the tables: a compaction that is asked for then would find nothing to drop there.
        tree.note_held(held);
        let freed = self.state.install(tree, change, values, None)?.saturating_sub(moved_bytes);
        if !moves {
            tree.forget_held(&job.inputs);
        }
        let mut history = tree.history.hold();
        if let Some(Alpha { alpha, bytes }) = alpha(&tree.shape(&view).levels, job) {
            history.alpha_sum += alpha * bytes as f64;
            history.alpha_bytes += bytes;
        }
        if moves {
            history.moves += 1;
        } else {
            history.merges += 1;
            if moved_values {
                history.value_merges += 1;
                history.value_merge_time += self.clock.now().saturating_sub(begin);
            }
        }
        drop(history);
        split_large(&self.state, tree)?;
        Ok(freed)
    }

    fn merge(
        &self,
        tree: &Arc<Tree>,
        view: &View,
        job: &CompactionJob,
        extra: Extra<'_>,
    ) -> Result<(Vec<Arc<TableMeta>>, ValueEdit, Vec<Held>)> {
        let levels = &tree.shape(view).levels;
        let inputs: Vec<&Arc<Table>> = inputs(&view.version, job).collect();
        let ids = job.inputs.iter().map(|&(_, _, id)| id).collect();
        let sources = view.version.cursors(&ids, ReadMode::Compaction).into_iter().map(Source::Run).collect();
        let from = job.inputs.iter().map(|i| i.0).min();
        // Older data of a key lies below the output, or in runs of the inputs' levels that are not inputs.
        let older = |start: &[u8], end: Option<&[u8]>| older_data(levels, job, start, end);
        let grandparents: Vec<Arc<TableMeta>> = levels
            .levels
            .get(usize::from(job.output_level) + 1)
            .map(|level| level.runs.iter().flat_map(|run| run.tables.iter().cloned()).collect())
            .unwrap_or_default();
        // An ingest is in the view before readers see it. Snapshots opened in between need what it overwrites.
        if view.ingested > self.state.visible() && !planted!("merge_unseen_ingests") {
            self.moves.wait_for_commit();
        }
        let whole_bottom = planted!("drop_tombstone_early");
        let ignores = planted!("ignore_snapshot_in_compaction");
        let cut = if ignores { SnapshotCut::default() } else { self.snapshots.cut() };
        // As in a flush: of n runs with ranges that overlap, lists of all numbers would be n times as long.
        let deleted = inputs.iter().flat_map(|table| table.range_tombstones());
        let tombstones = RangeTombstones::for_rewrite(deleted, &cut.seqnos);
        let to = job.output_level;
        let (deepest, moving) = (levels.deepest().max(to), extra.moving.to_vec());
        let rewrite = RewriteJob { from, to, deepest, moving };
        // So that what lies under a part of level 0 ends where it ends.
        let mut cuts = parts::cuts_of_merges(levels, count_of_parts(tree, self.memtable_bytes));
        cuts.extend_from_slice(extra.cuts);
        cuts.sort_unstable();
        let unlooked = Arc::<AtomicU64>::default();
        self.room.look(&unlooked, 0, extra.means)?;
        let for_commits = (&unlooked, extra.means);
        let rewriter = filter::asking(tree, &self.moves, for_commits, &tombstones, view.values.rewriter(&rewrite)?);
        let output = run::rewrite(
            MergeCursor::new(sources),
            tombstones,
            &RewritePlan {
                combine: &|key, older, newer| view.combine(key, older, newer),
                keys: (None, None),
                snapshots: &cut.seqnos,
                times: Times { now: cut.now, of_snapshots: &cut.times },
                bottom: &|start, end| whole_bottom || !older(start, end),
                table_bytes: job.table_bytes,
                reach_bytes: reach_bytes(tree),
                max_overlap_bytes: job.max_overlap_bytes,
                grandparents: &grandparents,
                cuts: &cuts,
                source: IoSource::Compaction,
                table: tree.table_options(to),
                progress: &|bytes| {
                    self.health.open()?;
                    self.room.look(&unlooked, bytes, extra.means)?;
                    self.pace.budget.acquire(bytes, || self.health.open())
                },
            },
            rewriter,
            &mut || self.numbers.take(),
            &self.dir,
        )?;
        let mut history = tree.history.hold();
        history.entries_in += output.entries_in;
        history.entries_out += output.entries_out;
        Ok((output.tables.into_iter().map(Arc::new).collect(), output.values, output.held))
    }
}

/// The tables of a job, newest first.
fn inputs<'a>(version: &'a Version, job: &'a CompactionJob) -> impl Iterator<Item = &'a Arc<Table>> {
    job.inputs.iter().filter_map(|&(_, _, id)| version.tables().find(|t| t.meta().id == id))
}

/// The largest number of parts level 0 is cut into with memtables of this many bytes. Each part has at least a
/// quarter of a table's bytes: smaller files cost more to make durable than they gain. Where commits separate values
/// and rewrites free none, tables are a small part of all space, and parts are as large as tables.
pub(crate) fn count_of_parts(tree: &Tree, memtable_bytes: u64) -> usize {
    let profile = tree.placement().profile();
    let frees_nothing = profile.separates_from.is_some() && profile.learns_from_rewrites.is_none();
    let table_bytes = tree.view().settings.options.table_bytes;
    let bytes = if frees_nothing { table_bytes } else { table_bytes / 4 };
    (memtable_bytes / bytes.max(1)).clamp(1, PARTS_MAX) as usize
}

/// The most bytes of values one table may point at. Where merges move values, a part of the tree takes this space
/// twice during its merge.
fn reach_bytes(tree: &Tree) -> u64 {
    let moves = tree.placement().profile().separates_at_rewrite;
    if moves { tree.view().settings.options.table_bytes.saturating_mul(REACH_TABLES) } else { u64::MAX }
}

fn may_move(tree: &Tree, job: &CompactionJob) -> bool {
    job.inputs.iter().all(|&(level, _, _)| tree.placement().may_move(level, job.output_level))
}

/// Whether tables that are older than the output, and are not inputs, may hold a key of the range (`end` inclusive).
fn older_data(levels: &Levels, job: &CompactionJob, start: &[u8], end: Option<&[u8]>) -> bool {
    let from = job.inputs.iter().map(|i| i.0).min().unwrap_or(0);
    let is_input = |id| job.inputs.iter().any(|i| i.2 == id);
    let newest_run = |level: u8| job.inputs.iter().filter(|i| i.0 == level).map(|i| i.1).max();
    levels.tables().any(|(level, run, table)| {
        let older = level > from || (level == from && newest_run(level).is_some_and(|newest| run < newest));
        older && !is_input(table.id) && table.overlaps(Some(start), end)
    })
}

/// What the cost model needs to know about a compaction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Alpha {
    /// The share of the lower level's bytes that took part over the share of the upper level's that did (VAT §3: α).
    pub alpha: f64,
    /// The upper level's bytes that took part.
    pub bytes: u64,
}

/// The α of a compaction between two different levels. `None` if either level is empty.
pub(crate) fn alpha(shape: &Levels, job: &CompactionJob) -> Option<Alpha> {
    let upper = job.inputs.iter().map(|i| i.0).min()?;
    let inputs: HashSet<FileId> = job.inputs.iter().map(|i| i.2).collect();
    let bytes = |level: u8| {
        let tables = || shape.levels.get(usize::from(level)).into_iter().flat_map(|l| &l.runs).flat_map(|r| &r.tables);
        let all: u64 = tables().map(|t| t.bytes).sum();
        let taken: u64 = tables().filter(|t| inputs.contains(&t.id)).map(|t| t.bytes).sum();
        (all > 0).then_some((taken, taken as f64 / all as f64))
    };
    if upper == job.output_level {
        return None;
    }
    let ((_, below), (bytes, above)) = (bytes(job.output_level)?, bytes(upper)?);
    Some(Alpha { alpha: below / above, bytes })
}

#[cfg(test)]
mod tests {
    use bifold_contract::{Expiring, FileId, Level, Run, TableMeta};

    use super::*;
    use crate::{background::bed::Bed, settings::options::KeyspaceOptions};

    #[test]
    fn what_a_job_holds_keeps_no_memtable_in_memory() {
        let bed = Bed::new(KeyspaceOptions::default());
        bed.fill((0..10).map(|n| (n, vec![0; 100])));
        let memtable = Arc::downgrade(&bed.tree.view().sealed[0]);
        let held = bed.tree.tables_to_hold();
        bed.flush().unwrap();
        assert!(memtable.upgrade().is_none(), "it was written while the job ran");
        assert_eq!(held.version.tables().count(), 0, "the tables are those of before");
    }

    fn run(id: u64, tables: std::ops::Range<FileId>) -> Run {
        let (smallest, largest): (Box<[u8]>, Box<[u8]>) = (b"a"[..].into(), b"z"[..].into());
        let table = |id| TableMeta {
            id,
            bytes: 100,
            entries: 1,
            tombstones: 0,
            range_tombstones: 0,
            smallest: smallest.clone(),
            largest: largest.clone(),
            unbounded: false,
            min_seqno: 1,
            max_seqno: 1,
            expiring: Expiring::default(),
        };
        Run { id, tables: tables.map(|id| Arc::new(table(id))).collect() }
    }

    #[test]
    fn alpha_is_the_share_taken_below_over_the_share_taken_above() {
        let levels = [vec![run(9, 40..42), run(8, 42..44)], vec![run(7, 30..40)], vec![]];
        let shape = Levels { levels: levels.map(|runs| Level { runs }).into(), ..Levels::default() };
        let job = |above: &[FileId], below: std::ops::Range<FileId>, output_level: u8| CompactionJob {
            shape: JobShape::Merge,
            inputs: above.iter().map(|&id| (0, 9, id)).chain(below.map(|id| (1, 7, id))).collect(),
            output_level,
            output_run: None,
            keys: None,
            table_bytes: 100,
            max_overlap_bytes: u64::MAX,
            reason: String::new(),
        };
        let of = |alpha, bytes| Some(Alpha { alpha, bytes });
        assert_eq!(alpha(&shape, &job(&[40], 30..35, 1)), of((5.0 / 10.0) / (1.0 / 4.0), 100));
        assert_eq!(alpha(&shape, &job(&[40, 41, 42, 43], 30..40, 1)), of(1.0, 400));
        assert_eq!(alpha(&shape, &job(&[40, 42], 0..0, 1)), of(0.0, 200), "only moved");
        assert_eq!(alpha(&shape, &job(&[40, 42], 0..0, 0)), None, "there is no lower level");
        assert_eq!(alpha(&shape, &job(&[], 30..32, 2)), None, "the lower level is empty");
    }
}
