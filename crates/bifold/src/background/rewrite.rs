//! Rewrites of a key range: because a caller asks for one, or to move values that no merge reaches.
//!
//! A rewrite goes part by part into the deepest level. Each part is closed under overlap (see `parts` of
//! `bifold-index`). What a part replaces is deleted before the next part begins, so the directory grows by a part and
//! not by the range. Parts that are too large for the free space are cut first (`narrow.rs`).

use std::{collections::BTreeSet, ops::Bound, sync::Arc};

use bifold_contract::{CompactionJob, Error, FileId, JobShape, KeyspaceId, Levels, Result, RunId};
use bifold_index::compaction::{
    narrow::TableCut,
    parts::{self, Part, Place},
};
use bifold_io::remover::Remover;

use crate::{
    background::{
        alone::lacks_room,
        compact::{Compactor, Extra},
        flush::Flusher,
        narrow::{Narrowing, cut_job},
        outcome::{Outcomes, Took},
    },
    limits::{room::Means, waits::Waits},
    state::{
        health::Health,
        numbers::Numbers,
        snapshot::Snapshots,
        tree::{Tree, View},
        work::{Begun, Work, conflicts},
    },
    waiting::{signal::Signal, sync::LockExt},
};

/// Which parts of a key range to rewrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RewriteScope {
    /// All.
    All,
    /// Those that are not in the newest run of the deepest level, or have tombstones, or entries that only snapshots
    /// held which have ended, or expired ones. Once none is left, no entry is overwritten but for open snapshots.
    Due,
}

/// The outcome of a rewrite of a key range.
#[derive(Debug, Default)]
pub(crate) struct Rewritten {
    /// By how many bytes the value files have shrunk.
    pub freed: u64,
    /// The first thing that could not be read, if any.
    pub unreadable: Option<Error>,
}

/// Rewrites key ranges.
pub(crate) struct Rewrites {
    pub numbers: Numbers,
    pub signal: Arc<Signal>,
    pub health: Arc<Health>,
    pub work: Arc<Work>,
    /// With the thread that deletes what a part has replaced.
    pub remover: Arc<Remover>,
    pub waits: Arc<Waits>,
    pub outcomes: Arc<Outcomes>,
    pub flusher: Arc<Flusher>,
    pub compactor: Arc<Compactor>,
}

impl Rewrites {
    /// Merges everything in the key range, memtables included, into the deepest level that has data of it.
    ///
    /// # Errors
    /// I/O errors, and every reason not to take writes. If something cannot be read, the rest is merged first and
    /// then this is the error.
    pub fn compact_range(&self, tree: &Arc<Tree>, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Result<()> {
        self.flusher.flush(&[Arc::clone(tree)], Means::Reserve)?;
        let (start, end) = (bound_key(start), bound_key(end));
        // A filter is asked about all.
        let is_done = !tree.filter.is_set() && self.is_done(tree, (start, end))?;
        let which = if is_done { RewriteScope::Due } else { RewriteScope::All };
        let rewritten = self.rewrite_range(tree, (start, end), which, (&[], Means::Reserve))?;
        match rewritten.unreadable {
            Some(error) => Err(error),
            // It may have skipped values that had been found damaged before.
            None if tree.placement().profile().separates_at_rewrite => tree.report_left_out(),
            None => Ok(()),
        }
    }

    /// Whether no part of a key range is due. The view is dropped before parts are rewritten: it would keep the files
    /// that each of them replaces.
    fn is_done(&self, tree: &Tree, (start, end): (Option<&[u8]>, Option<&[u8]>)) -> Result<bool> {
        let view = tree.tables_to_hold();
        let levels = &tree.shape(&view).levels;
        let from = || start.map_or(Bound::Unbounded, Bound::Included);
        let is_in_place = |part: &Part| is_in_order(levels, part, &BTreeSet::new());
        if !parts::parts(levels, from(), end).all(|part| is_in_place(&part)) {
            return Ok(false);
        }
        self.look_at_found(tree, (start, end))?;
        let garbage = with_garbage(tree, &view, &self.compactor.snapshots);
        Ok(parts::parts(levels, from(), end).all(|part| is_in_order(levels, &part, &garbage)))
    }

    /// Reads tables of the key range that were written before this opening, where nothing else makes a rewrite due: see
    /// [`Tree::look_at_found`].
    fn look_at_found(&self, tree: &Tree, (start, end): (Option<&[u8]>, Option<&[u8]>)) -> Result<()> {
        if tree.found.hold().is_empty() {
            return Ok(());
        }
        let view = tree.tables_to_hold();
        let levels = &tree.shape(&view).levels;
        let parts = parts::parts(levels, start.map_or(Bound::Unbounded, Bound::Included), end);
        let in_place = parts.filter(|part| is_in_order(levels, part, &BTreeSet::new()));
        let tables: BTreeSet<FileId> = in_place.flat_map(|part| part.tables).map(|table| table.2).collect();
        tree.look_at_found(&view.version, &tables, || self.health.open())
    }

    /// Merges tables of the key range into the deepest level, one part after the other: what a part replaces is
    /// deleted before the next begins. The values in the files `moving` move. Parts with unreadable tables are
    /// skipped; of unreadable values only those stay where they are.
    ///
    /// # Errors
    /// As [`Rewrites::compact_range`].
    pub fn rewrite_range(
        &self,
        tree: &Arc<Tree>,
        (start, end): (Option<&[u8]>, Option<&[u8]>),
        which: RewriteScope,
        (moving, means): (&[FileId], Means),
    ) -> Result<Rewritten> {
        if which == RewriteScope::Due {
            self.look_at_found(tree, (start, end))?;
        }
        let (narrowing, rewritten) = (Narrowing::new(), Rewritten::default());
        let mut walk = Walk { tree, start, end, which, passed: None, narrowing, rewritten };
        loop {
            let rewrite = || self.rewrite_next(&mut walk, (moving, means));
            let Some(done) = self.waits.or_alone(means, rewrite, Done::lacks_room)?? else { break };
            if walk.is_at_end(done)? {
                break;
            }
        }
        Ok(walk.rewritten)
    }

    /// Rewrites the next part, or cuts a table of it. Returns `None` if none is left.
    fn rewrite_next(&self, walk: &mut Walk<'_>, (moving, means): (&[FileId], Means)) -> Result<Option<Done>> {
        let tree = walk.tree;
        let mut awaited = None;
        loop {
            let mut planned = None;
            let plan = || {
                let (job, aim) = walk.plan(&self.compactor.snapshots)?;
                planned = Some(aim);
                Some(job)
            };
            // Running compactions may hold the tables. When they end the plan has changed, so it is made again.
            let job = match self.work.try_begin(tree.keyspace, &self.numbers, plan) {
                Begun::NothingToDo => return Ok(None),
                Begun::Busy(job) => {
                    awaited.get_or_insert_with(|| Awaited::of(&self.work, tree));
                    self.wait_until_free(tree, &job)?;
                    continue;
                }
                Begun::Job(job) => job,
            };
            drop(awaited.take());
            let Some(aim) = planned else { unreachable!("each job has its aim") };
            let extra = match &aim {
                Aim::Cut(cut) => Extra { moving: &[], cuts: &cut.keys, means },
                Aim::Merge { .. } => Extra { moving, cuts: &[], means },
            };
            let tables_before = tree.view().version.tables().count();
            match self.rewrite_part(tree, &job, extra) {
                Err(error) if error.is_unreadable() => {
                    // Retries the same part, now without the values or tables that could not be read.
                    self.health.writable()?;
                    walk.rewritten.unreadable.get_or_insert(error);
                }
                outcome => return Ok(Some(Done { job, aim, tables_before, outcome })),
            }
        }
    }

    /// Runs the job that was begun for a part, and waits until what it has replaced is deleted.
    fn rewrite_part(&self, tree: &Arc<Tree>, job: &CompactionJob, extra: Extra<'_>) -> Result<u64> {
        let at_work = self.signal.working();
        let outcome = self.health.guard("a rewrite", || self.compactor.compact_with(tree, job, extra));
        let outcome = self.outcomes.end_of_job(tree, Took::Tables(job), outcome);
        self.outcomes.end_compaction(tree.keyspace, job);
        drop(at_work);
        self.remover.wait(None);
        outcome
    }

    fn wait_until_free(&self, tree: &Tree, job: &CompactionJob) -> Result<()> {
        let is_free = || !conflicts(&self.work.busy(tree.keyspace), job);
        self.waits.wait_until("a rewrite of a key range", "compactions of its tables to end", is_free)
    }
}

/// While this is held, workers begin no compaction in the keyspace. Otherwise two of them could relieve each other
/// again and again, and a rewrite that needs a moment without any of its keys would wait all the time.
struct Awaited<'a> {
    work: &'a Work,
    keyspace: KeyspaceId,
}

impl<'a> Awaited<'a> {
    fn of(work: &'a Work, tree: &Tree) -> Self {
        work.take(|state| state.awaited.push(tree.keyspace));
        Self { work, keyspace: tree.keyspace }
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.work.change(self.keyspace, |state| {
            let at = state.awaited.iter().position(|keyspace| *keyspace == self.keyspace);
            at.map(|at| state.awaited.swap_remove(at))
        });
    }
}

/// A walk through the parts of a key range.
struct Walk<'a> {
    tree: &'a Arc<Tree>,
    start: Option<&'a [u8]>,
    end: Option<&'a [u8]>,
    which: RewriteScope,
    /// The parts up to this key are rewritten.
    passed: Option<Box<[u8]>>,
    narrowing: Narrowing,
    rewritten: Rewritten,
}

/// What a job is for.
enum Aim {
    /// A table of the next part is cut, because the part is too large for the free space.
    Cut(TableCut),
    /// The next part is merged. The last one has no end.
    Merge { end: Option<Box<[u8]>> },
}

/// A job that has ended.
struct Done {
    job: CompactionJob,
    aim: Aim,
    tables_before: usize,
    outcome: Result<u64>,
}

impl Done {
    fn lacks_room(done: &Result<Option<Self>>) -> bool {
        matches!(done, Ok(Some(done)) if lacks_room(&done.outcome))
    }
}

impl Walk<'_> {
    /// The next job, if any part is left.
    fn plan(&mut self, snapshots: &Snapshots) -> Option<(CompactionJob, Aim)> {
        let view = self.tree.view_to_hold();
        let levels = &self.tree.shape(&view).levels;
        let garbage = match self.which {
            RewriteScope::All => BTreeSet::new(),
            RewriteScope::Due => with_garbage(self.tree, &view, snapshots),
        };
        let from = self.passed.as_deref().map(Bound::Excluded).or(self.start.map(Bound::Included));
        let is_due = |part: &Part| self.which == RewriteScope::All || !is_in_order(levels, part, &garbage);
        let part = parts::parts(levels, from.unwrap_or(Bound::Unbounded), self.end).find(|part| {
            let is_readable = !self.tree.unreadable.has(part.tables.iter().map(|table| table.2));
            if !is_readable && self.rewritten.unreadable.is_none() {
                self.rewritten.unreadable = self.tree.report_left_out().err();
            }
            is_readable && is_due(part)
        })?;
        if let Some(cut) = self.narrowing.cut(levels, &part) {
            return Some((cut_job(&cut), Aim::Cut(cut)));
        }
        let end = part.end.clone();
        Some((part_job(levels, part, view.settings.options.table_bytes), Aim::Merge { end }))
    }

    /// Notes what was done. Returns whether no part is left.
    ///
    /// # Errors
    /// Those of the job, unless its part is to be cut.
    fn is_at_end(&mut self, done: Done) -> Result<bool> {
        match done.aim {
            Aim::Cut(_) => {
                self.rewritten.freed += done.outcome?;
                let tables = self.tree.view().version.tables().count();
                self.narrowing.was_cut((done.tables_before, tables));
                Ok(false)
            }
            Aim::Merge { end } => {
                let merged = self.narrowing.merged(self.tree, &done.job, done.outcome)?;
                let Some(bytes) = merged else { return Ok(false) };
                self.rewritten.freed += bytes;
                self.passed = end;
                Ok(self.passed.is_none())
            }
        }
    }
}

fn bound_key(bound: Bound<&[u8]>) -> Option<&[u8]> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}

/// Where rewrites write to: the deepest level, and its newest run if there is one. Overlapping tables of that run are
/// inputs; its older runs stay older.
fn output(shape: &Levels) -> (u8, Option<RunId>) {
    let level = shape.deepest().max(1);
    (level, shape.levels.get(usize::from(level)).and_then(|level| level.runs.first()).map(|run| run.id))
}

/// The tables of a view from which a rewrite in their place may drop something now.
fn with_garbage(tree: &Tree, view: &View, snapshots: &Snapshots) -> BTreeSet<FileId> {
    tree.with_garbage(&view.version, &snapshots.seqnos(), snapshots.expired_to_all())
}

/// Whether a merge of these tables would gain nothing: they are where it would write to, without tombstones, and none
/// of them is among those with `garbage`. This takes one run for all parts: with several, each would count as possibly
/// overwriting entries of the others.
fn is_in_order(shape: &Levels, part: &Part, garbage: &BTreeSet<FileId>) -> bool {
    let output = output(shape);
    let is_in_order = |table: &Place| (table.0, Some(table.1)) == output && !garbage.contains(&table.2);
    part.tables.iter().all(is_in_order) && !part.has_tombstones
}

/// The job that merges a part of the tree into its deepest level. Pure.
fn part_job(shape: &Levels, part: Part, table_bytes: u64) -> CompactionJob {
    let (output_level, output_run) = output(shape);
    let keys = Some((part.start, part.end));
    CompactionJob {
        shape: JobShape::Merge,
        inputs: part.tables,
        output_level,
        output_run,
        keys,
        table_bytes,
        max_overlap_bytes: u64::MAX,
        reason: "a caller asked for it".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bifold_contract::{Expiring, Level, Run, TableMeta};

    use super::*;

    /// A table of one key, with the key as its id.
    fn table(key: u8) -> Arc<TableMeta> {
        Arc::new(TableMeta {
            id: key.into(),
            bytes: 1,
            entries: 1,
            tombstones: 0,
            range_tombstones: 0,
            smallest: [key].into(),
            largest: [key].into(),
            unbounded: false,
            min_seqno: 1,
            max_seqno: 1,
            expiring: Expiring::default(),
        })
    }

    /// The keys of the parts that are in order, if the runs of level 1 have these keys.
    fn in_order(runs: &[&[u8]]) -> Vec<u8> {
        let run =
            |(id, keys): (usize, &&[u8])| Run { id: 100 - id as u64, tables: keys.iter().map(|&k| table(k)).collect() };
        let level = Level { runs: runs.iter().enumerate().map(run).collect() };
        let shape = Levels { levels: vec![Level::default(), level], ..Levels::default() };
        let is_in_order = |part: &Part| is_in_order(&shape, part, &BTreeSet::new());
        let parts = parts::parts(&shape, Bound::Unbounded, None).filter(is_in_order);
        parts.flat_map(|part| part.end.expect("no table is unbounded").into_vec()).collect()
    }

    /// Otherwise a rewrite of overwritten entries would find nothing to do, and the older run would count as
    /// overwritten forever.
    #[test]
    fn runs_that_do_not_overlap_are_in_order_as_one_run_only() {
        assert_eq!(in_order(&[b"abc"]), b"abc");
        assert_eq!(in_order(&[b"ac", b"bd"]), b"ac");
        assert_eq!(in_order(&[b"ac", b"cd"]), b"a");
    }
}
