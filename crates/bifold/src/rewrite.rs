//! A key range is rewritten: because somebody asks for it, or because values are to move that no merge meets.
//!
//! Part after part, each closed under overlap (see `parts` of `bifold-index`), into the deepest level: what a part replaces is gone
//! before the next begins, so that the directory grows by a part and not by the range.

use std::{ops::Bound, sync::Arc};

use bifold_contract::{CompactionJob, FileId, JobShape, Levels, Result};
use bifold_index::compaction::parts::{self, Part};

use crate::{engine::Engine, partition::Partition, schedule::Begun};

/// Which parts of a key range to rewrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// All.
    All,
    /// Those that are not one run of the deepest level without tombstones.
    Due,
}

impl Engine {
    /// Merges everything in the key range, memtables included, into the deepest level that has data of it.
    ///
    /// # Errors
    /// I/O errors, corruption, and every reason not to take writes.
    pub fn compact_range(&self, partition: &Arc<Partition>, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Result<()> {
        self.flush(&[Arc::clone(partition)])?;
        let (start, end) = (bound_key(start), bound_key(end));
        let shape = partition.view().version.shape();
        let parts = parts::parts(&shape, start.map_or(Bound::Unbounded, Bound::Included), end);
        // What is not in order may have been so because of a snapshot: then older versions stand in all parts.
        let which = if parts.into_iter().all(|part| is_in_order(&shape, &part)) { Which::Due } else { Which::All };
        self.rewrite_range(partition, (start, end), which, &[]).map(drop)
    }

    /// Merges tables of the key range into the deepest level, one part after the other: what a part replaces is gone before the
    /// next begins. The values in the files `moving` move. Answers by how many bytes the value files have become smaller.
    ///
    /// # Errors
    /// As [`Engine::compact_range`].
    pub fn rewrite_range(
        &self,
        partition: &Arc<Partition>,
        (start, end): (Option<&[u8]>, Option<&[u8]>),
        which: Which,
        moving: &[FileId],
    ) -> Result<u64> {
        let mut freed = 0;
        let mut passed: Option<Box<[u8]>> = None;
        loop {
            let mut part_end = None;
            let plan = || {
                let shape = partition.view().version.shape();
                let from = passed.as_deref().map(Bound::Excluded).or(start.map(Bound::Included));
                let is_due = |part: &Part| which == Which::All || !is_in_order(&shape, part);
                let part = parts::parts(&shape, from.unwrap_or(Bound::Unbounded), end).find(is_due)?;
                part_end.clone_from(&part.end);
                Some(part_job(&shape, part, partition.options.table_bytes))
            };
            // Running compactions may hold the tables: their end changes the plan, so it is made anew.
            let job = match self.work.try_begin(partition.keyspace, plan) {
                Begun::NothingToDo => return Ok(freed),
                Begun::Busy => {
                    self.wait_until_free(partition)?;
                    continue;
                }
                Begun::Job(job) => job,
            };
            let outcome = self.compact_moving(partition, &job, moving);
            self.end_compaction(partition.keyspace, &job);
            self.tables.remover().wait();
            freed += self.watch(outcome)?;
            passed = match part_end {
                Some(end) => Some(end),
                None => return Ok(freed),
            };
        }
    }

    fn wait_until_free(&self, partition: &Partition) -> Result<()> {
        self.wait_until(|| {
            let busy = self.work.busy(partition.keyspace);
            busy.tables.is_empty() && busy.outputs.is_empty()
        })
    }
}

fn bound_key(bound: Bound<&[u8]>) -> Option<&[u8]> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}

/// Whether a merge of these tables would gain nothing, unless a snapshot is gone that one had to heed: they are one run without
/// tombstones.
fn is_in_order(shape: &Levels, part: &Part) -> bool {
    let deepest = shape.deepest().max(1);
    let is_one_run = part.tables.iter().all(|table| (table.0, table.1) == (deepest, part.tables[0].1));
    is_one_run && !part.has_tombstones
}

/// The job that merges a part of the tree into its deepest level. Pure.
fn part_job(shape: &Levels, part: Part, table_bytes: u64) -> CompactionJob {
    let output_level = shape.deepest().max(1);
    // Into the newest run of that level, whose overlapping tables are inputs; older runs there stay older.
    let output_run = shape.levels.get(usize::from(output_level)).and_then(|l| l.runs.first()).map(|r| r.id);
    CompactionJob {
        shape: JobShape::Merge,
        inputs: part.tables,
        output_level,
        output_run,
        table_bytes,
        max_overlap_bytes: u64::MAX,
        reason: "asked for".into(),
    }
}
