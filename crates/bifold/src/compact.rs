//! Compaction: tables of one tree are merged into tables of a deeper level, or merely change their place.
//!
//! What to do was planned by a pure policy; here it is done, by the one merge loop of `bifold-index`, and installed.

use std::{ops::Bound, sync::Arc};

use bifold_contract::{
    CompactionJob, FileId, IoSource, JobShape, LevelEdit, Levels, Result, Run, TableMeta, ValueEdit,
    edit::{TableAdded, TableRemoved},
    placement::RewriteJob,
};
use bifold_index::{
    compaction::run::{self, RewritePlan},
    merge::{MergeCursor, Source},
    range_tombstones::RangeTombstones,
    table::{ReadMode, Table},
    version::Version,
};

use crate::{engine::Engine, partition::Partition, schedule::Begun, sync::LockExt};

impl Engine {
    /// Does one planned job.
    ///
    /// # Errors
    /// I/O errors and corruption; the inputs then stay in force and nothing is left behind.
    pub fn compact_job(&self, partition: &Arc<Partition>, job: &CompactionJob) -> Result<()> {
        self.compact_moving(partition, job, &[])
    }

    /// Does one planned job. The values in the files `moving` move.
    fn compact_moving(&self, partition: &Arc<Partition>, job: &CompactionJob, moving: &[FileId]) -> Result<()> {
        let begin = self.env.clock.now();
        let version = Arc::clone(&partition.view().version);
        let shape = version.shape();
        let output_run = job.output_run.unwrap_or_else(|| self.new_file_id());
        let removed = job.inputs.iter().map(|&(level, run, table)| TableRemoved { level, run, table }).collect();
        let moves = job.shape == JobShape::Move && may_move(partition, job);
        let (tables, values) = if moves {
            (inputs(&version, job).map(|t| Arc::clone(t.meta())).collect(), ValueEdit::default())
        } else {
            self.merge(partition, &version, job, moving)?
        };
        let added =
            tables.into_iter().map(|table| TableAdded { level: job.output_level, run: output_run, table }).collect();
        let change = LevelEdit { keyspace: partition.keyspace, partition: partition.id, removed, added };
        let moved_values = !values.added.is_empty();
        self.install(partition, change, values, None)?;
        let mut history = partition.history.hold();
        if moves {
            history.moves += 1;
        } else {
            history.merges += 1;
            if moved_values {
                history.value_merges += 1;
                history.value_merge_time += self.env.clock.now().saturating_sub(begin);
            }
            if let Some(alpha) = alpha(&shape, job) {
                history.alpha_sum += alpha;
                history.alpha_count += 1;
            }
        }
        Ok(())
    }

    fn merge(
        &self,
        partition: &Arc<Partition>,
        version: &Version,
        job: &CompactionJob,
        moving: &[FileId],
    ) -> Result<(Vec<Arc<TableMeta>>, ValueEdit)> {
        let inputs: Vec<&Arc<Table>> = inputs(version, job).collect();
        let tombstones = RangeTombstones::new(inputs.iter().flat_map(|t| t.range_tombstones()));
        let sources = inputs.iter().map(|t| Source::Table(t.cursor(ReadMode::Compaction))).collect();
        let from = job.inputs.iter().map(|i| i.0).min();
        // Older data of a key lies below the output, or in runs of the inputs' levels that are not inputs.
        let older = |start: &[u8], end: Option<&[u8]>| older_data(version, job, start, end);
        let grandparents: Vec<Arc<TableMeta>> = version
            .shape()
            .levels
            .get(usize::from(job.output_level) + 1)
            .map(|level| level.runs.iter().flat_map(|run| run.tables.iter().cloned()).collect())
            .unwrap_or_default();
        let whole_bottom = cfg!(planted = "drop_tombstone_early");
        let snapshots =
            if cfg!(planted = "ignore_snapshot_in_compaction") { Vec::new() } else { self.snapshots.seqnos() };
        let (keyspace, to) = (partition.keyspace, job.output_level);
        let (deepest, moving) = (version.shape().deepest().max(to), moving.to_vec());
        let rewrite = RewriteJob { keyspace, from, to, bottom: false, deepest, moving };
        let output = run::rewrite(
            MergeCursor::new(sources),
            tombstones,
            &RewritePlan {
                snapshots: &snapshots,
                bottom: &|start, end| whole_bottom || !older(start, end),
                table_bytes: job.table_bytes,
                max_overlap_bytes: job.max_overlap_bytes,
                grandparents: &grandparents,
                source: IoSource::Compaction,
                table: partition.table_options(),
                progress: &|bytes| {
                    self.health.open()?;
                    self.pace.budget.acquire(bytes);
                    Ok(())
                },
            },
            partition.placement.rewriter(&rewrite)?,
            &mut || self.new_file_id(),
            &self.dir,
        )?;
        let mut history = partition.history.hold();
        history.entries_in += output.entries_in;
        history.entries_out += output.entries_out;
        Ok((output.tables.into_iter().map(Arc::new).collect(), output.values))
    }

    /// Merges everything in the key range, memtables included, into the deepest level that has data of it.
    ///
    /// # Errors
    /// I/O errors, corruption, and every reason not to take writes.
    pub fn compact_range(&self, partition: &Arc<Partition>, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Result<()> {
        self.flush(&[Arc::clone(partition)])?;
        self.rewrite_range(partition, (bound_key(start), bound_key(end)), &[])
    }

    /// Merges all tables of the key range into the deepest level that has data of it. The values in the files `moving` move; if
    /// there are none, tables that are as they should be stay as they are.
    ///
    /// # Errors
    /// As [`Engine::compact_range`].
    pub fn rewrite_range(
        &self,
        partition: &Arc<Partition>,
        (start, end): (Option<&[u8]>, Option<&[u8]>),
        moving: &[FileId],
    ) -> Result<()> {
        let plan = || {
            let shape = partition.view().version.shape();
            let job = whole_range(&shape, partition.options.table_bytes, start, end)?;
            (!moving.is_empty() || !is_in_order(&shape, &job)).then_some(job)
        };
        loop {
            // Running compactions may hold the tables: their end changes the plan, so it is made anew.
            match self.work.try_begin(partition.keyspace, plan) {
                Begun::NothingToDo => return Ok(()),
                Begun::Job(job) => {
                    let outcome = self.compact_moving(partition, &job, moving);
                    self.end_compaction(partition.keyspace, &job);
                    self.tables.remover().wait();
                    return self.watch(outcome);
                }
                Begun::Busy => self.wait_until_free(partition)?,
            }
        }
    }

    fn wait_until_free(&self, partition: &Partition) -> Result<()> {
        self.wait_until(|| {
            let busy = self.work.busy(partition.keyspace);
            busy.tables.is_empty() && busy.outputs.is_empty()
        })
    }

    /// Writes all memtables of `trees` as tables and waits for that.
    ///
    /// # Errors
    /// I/O errors, and every reason not to take writes.
    pub fn flush(&self, trees: &[Arc<Partition>]) -> Result<()> {
        {
            let mut wal = self.wal.hold();
            self.writable()?;
            let filled: Vec<_> =
                trees.iter().filter(|p| !p.view().active.memtable.is_empty()).map(Arc::clone).collect();
            if !filled.is_empty() {
                self.watch(self.seal(&mut wal, &filled))?;
            }
        }
        self.wait_until(|| trees.iter().all(|p| p.view().sealed.is_empty() || p.is_dropped()))
    }
}

/// The tables of a job, newest first.
fn inputs<'a>(version: &'a Version, job: &'a CompactionJob) -> impl Iterator<Item = &'a Arc<Table>> {
    job.inputs.iter().filter_map(|&(_, _, id)| version.tables().find(|t| t.meta().id == id))
}

/// How many entries there are in each run.
pub(crate) fn entries_of_runs(version: &Version) -> Vec<u64> {
    let shape = version.shape();
    let runs = shape.levels.iter().flat_map(|level| &level.runs);
    runs.map(|run: &Run| run.tables.iter().map(|table| table.entries).sum()).collect()
}

/// The entries outside the largest of several sorted runs: no more can hide others, or be hidden.
pub(crate) fn beside_largest(runs: Vec<u64>) -> u64 {
    runs.iter().sum::<u64>() - runs.iter().max().unwrap_or(&0)
}

fn may_move(partition: &Partition, job: &CompactionJob) -> bool {
    job.inputs.iter().all(|&(level, _, _)| partition.placement.may_move(level, job.output_level))
}

/// Whether tables that are older than the output and not inputs may hold a key of the range (`end` inclusive).
fn older_data(version: &Version, job: &CompactionJob, start: &[u8], end: Option<&[u8]>) -> bool {
    let from = job.inputs.iter().map(|i| i.0).min().unwrap_or(0);
    let is_input = |id| job.inputs.iter().any(|i| i.2 == id);
    let newest_run = |level: u8| job.inputs.iter().filter(|i| i.0 == level).map(|i| i.1).max();
    version.shape().tables().any(|(level, run, table)| {
        let older = level > from || (level == from && newest_run(level).is_some_and(|newest| run < newest));
        older && !is_input(table.id) && table.overlaps(Some(start), end)
    })
}

/// The share of the lower level's tables that took part over the share of the upper level's that did (VAT §3: α).
pub(crate) fn alpha(shape: &Levels, job: &CompactionJob) -> Option<f64> {
    let upper = job.inputs.iter().map(|i| i.0).min()?;
    let share = |level: u8| {
        let all: usize = shape.levels.get(usize::from(level))?.runs.iter().map(|r| r.tables.len()).sum();
        let taken = job.inputs.iter().filter(|i| i.0 == level).count();
        (all > 0).then(|| taken as f64 / all as f64)
    };
    if upper == job.output_level {
        return None;
    }
    Some(share(job.output_level)? / share(upper)?)
}

fn bound_key(bound: Bound<&[u8]>) -> Option<&[u8]> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}

/// Whether a merge of these tables would gain nothing: they are one run without tombstones.
fn is_in_order(shape: &Levels, job: &CompactionJob) -> bool {
    let is_input = |id| job.inputs.iter().any(|input| input.2 == id);
    let is_one_run = job.inputs.iter().all(|input| (input.0, input.1) == (job.output_level, job.inputs[0].1));
    let mut inputs = shape.tables().filter(|(_, _, table)| is_input(table.id));
    is_one_run && inputs.all(|(_, _, table)| table.tombstones == 0 && table.range_tombstones == 0)
}

/// One job that merges every table of the range, closed under overlap. `None` when there is none. Pure.
fn whole_range(shape: &Levels, table_bytes: u64, start: Option<&[u8]>, end: Option<&[u8]>) -> Option<CompactionJob> {
    let (mut start, mut end) = (start.map(<[u8]>::to_vec), end.map(<[u8]>::to_vec));
    let mut taken: Vec<_> = Vec::new();
    loop {
        let before = taken.len();
        taken = shape.tables().filter(|(_, _, t)| t.overlaps(start.as_deref(), end.as_deref())).collect();
        // The output covers all its inputs, so whatever overlaps any of them must take part too.
        for (_, _, table) in &taken {
            start = start.map(|s| s.min(table.smallest.to_vec()));
            end = if table.unbounded { None } else { end.map(|e| e.max(table.largest.to_vec())) };
        }
        if taken.len() == before {
            break;
        }
    }
    let output_level = taken.iter().map(|t| t.0).max()?.max(1);
    // Into the newest run of that level, whose overlapping tables are inputs; older runs there stay older.
    let output_run = shape.levels.get(usize::from(output_level)).and_then(|l| l.runs.first()).map(|r| r.id);
    Some(CompactionJob {
        shape: JobShape::Merge,
        inputs: taken.iter().map(|(level, run, table)| (*level, *run, table.id)).collect(),
        output_level,
        output_run,
        table_bytes,
        max_overlap_bytes: u64::MAX,
        reason: "asked for".into(),
    })
}

#[cfg(test)]
mod tests {
    use bifold_contract::{FileId, Level, TableMeta};

    use super::*;

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
        };
        Run { id, tables: tables.map(|id| Arc::new(table(id))).collect() }
    }

    #[test]
    fn alpha_is_the_share_taken_below_over_the_share_taken_above() {
        let levels = [vec![run(9, 40..42), run(8, 42..44)], vec![run(7, 30..40)], vec![]];
        let shape = Levels { levels: levels.map(|runs| Level { runs }).into() };
        let job = |above: &[FileId], below: std::ops::Range<FileId>, output_level: u8| CompactionJob {
            shape: JobShape::Merge,
            inputs: above.iter().map(|&id| (0, 9, id)).chain(below.map(|id| (1, 7, id))).collect(),
            output_level,
            output_run: None,
            table_bytes: 100,
            max_overlap_bytes: u64::MAX,
            reason: String::new(),
        };
        assert_eq!(alpha(&shape, &job(&[40], 30..35, 1)), Some((5.0 / 10.0) / (1.0 / 4.0)));
        assert_eq!(alpha(&shape, &job(&[40, 41, 42, 43], 30..40, 1)), Some(1.0));
        assert_eq!(alpha(&shape, &job(&[40, 42], 0..0, 0)), None, "there is no lower level");
        assert_eq!(alpha(&shape, &job(&[], 30..32, 2)), None, "the lower level is empty");
    }
}
