//! The immutable set of tables at one moment, and how an edit produces the next one.
//!
//! ```text
//! level 0   run 41  run 38  …       newest first; for every key, entries further up or left are newer
//! level 1   run 30
//! ```
//!
//! Readers may hold a version for any time. Its tables and their files live as long.
//!
//! Invariants, checked by [`Version::apply`]: the runs of a level descend by id; the tables of a run ascend and do
//! not overlap; no table is in two places; no run is empty.

mod estimate;
mod level0;
pub mod run;
mod streams;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{Arc, OnceLock},
};

use bifold_contract::{
    Error, FileId, Level, LevelEdit, Levels, Locator, Result, Run, RunId, SeqNo, TableMeta, edit::TableRemoved,
    policy::NewestFirst,
};
pub use estimate::RangeEstimate;
use level0::Level0Index;
pub use run::{RunCursor, TableRun};

use crate::{
    hash_index::{HashIndexOptions, HashIndexUse},
    table::{ReadMode, Table, TableContext},
};

/// Opens a table that an edit adds.
pub type Open<'a> = dyn FnMut(&Arc<TableMeta>) -> Result<Arc<Table>> + 'a;

/// The tables of one tree.
#[derive(Clone, Debug, Default)]
pub struct Version {
    /// Runs, newest first, by level.
    levels: Vec<Vec<Arc<TableRun>>>,
    has_range_tombstones: bool,
    /// The keys at which it is split, ascending.
    boundaries: Arc<[Box<[u8]>]>,
    /// The hash index of level 0, if it is configured.
    level0: Option<Level0Index>,
    /// The streams of each level for scans, computed by the first scan.
    streams: OnceLock<Vec<Vec<Arc<TableRun>>>>,
}

impl Version {
    /// A version without tables, whose successors have a hash index over level 0, within the budget of `context`. The
    /// options have been checked. `level0_bytes` is what level 0 of a partition has at most, as far as known: the
    /// index is not made larger than that needs.
    #[must_use]
    pub fn with_hash_index(options: HashIndexOptions, level0_bytes: Option<u64>, context: &Arc<TableContext>) -> Self {
        Self { level0: Some(Level0Index::new(options, level0_bytes, context)), ..Self::default() }
    }

    /// The same version. If it has a hash index, the next index that is built expects level 0 of a partition to have at
    /// most `level0_bytes`.
    #[must_use]
    pub fn with_level0_bytes(&self, level0_bytes: Option<u64>) -> Self {
        let level0 = self.level0.as_ref().map(|index| index.with_level0_bytes(level0_bytes));
        Self { level0, ..self.clone() }
    }

    /// This version with the tables of `edit` removed and added. Tables that only move keep what they have open;
    /// others are opened by `open`.
    ///
    /// # Errors
    /// If the edit does not fit this version, or a table does not open. This version never changes.
    pub fn apply(&self, edit: &LevelEdit, open: &mut Open<'_>) -> Result<Self> {
        let mut change = VersionChange::of(self);
        edit.removed.iter().try_for_each(|removed| change.remove(removed))?;
        for added in &edit.added {
            let id = added.table.id;
            if change.places.contains_key(&id) {
                return Err(unfit(format!("table {id} is added but already exists")));
            }
            let table = match change.removed.get(&id) {
                Some(moved) => Arc::clone(moved),
                None => open(&added.table)?,
            };
            change.places.insert(id, ());
            if added.level == 0 {
                change.new_in_level0.push((added.run, Arc::clone(&table)));
            }
            change.runs.entry((added.level, added.run)).or_default().insert(0, table);
            change.touched.insert((added.level, added.run), ());
        }
        let boundaries = with_boundaries(&self.boundaries, &edit.boundaries);
        let new_in_level0 = std::mem::take(&mut change.new_in_level0);
        let next = change.finish(self)?;
        let runs = next.levels.first().map_or(&[][..], |runs| runs);
        let level0 = self.level0.as_ref().map(|index| index.after(runs, &new_in_level0, boundaries.len() + 1));
        Ok(Self { level0: level0.transpose()?, boundaries, ..next })
    }

    /// Finds the level-0 runs that may hold a key.
    #[inline]
    #[must_use]
    pub fn locator(&self) -> &dyn Locator {
        self.level0.as_ref().map_or(&NewestFirst, |index| index)
    }

    /// The usage of its hash index, if it has one.
    #[must_use]
    pub fn hash_index(&self) -> Option<HashIndexUse> {
        self.level0.as_ref().and_then(Level0Index::usage)
    }

    /// Why level 0 has no hash index though it is to have one, if that is because a table could not be read.
    #[must_use]
    pub fn unindexed(&self) -> Option<&Error> {
        self.level0.as_ref().and_then(Level0Index::unreadable)
    }

    /// Its tables as plain data.
    #[must_use]
    pub fn shape(&self) -> Levels {
        let metas = |run: &Arc<TableRun>| run.tables().iter().map(|table| Arc::clone(table.meta())).collect();
        let run = |run: &Arc<TableRun>| Run { id: run.id(), tables: metas(run) };
        let levels = self.levels.iter().map(|runs| Level { runs: runs.iter().map(run).collect() }).collect();
        Levels { levels, boundaries: Arc::clone(&self.boundaries) }
    }

    /// The keys at which it is split, ascending: see [`Levels::partitions`].
    #[must_use]
    pub fn boundaries(&self) -> &[Box<[u8]>] {
        &self.boundaries
    }

    /// Every table, newest data first.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.levels.iter().flatten().flat_map(|run| run.tables())
    }

    /// A cursor for each run that has some of these tables, over these alone, newest data first. At most one table of
    /// each is read at a time, so their buffers do not grow with the number of tables.
    #[must_use]
    pub fn cursors(&self, tables: &HashSet<FileId>, mode: ReadMode) -> Vec<RunCursor> {
        self.levels.iter().flatten().filter_map(|run| run.only(tables)).map(|run| run.cursor(mode)).collect()
    }

    /// The tables that may hold a key in `start..=end` (`None`: unbounded), newest data first.
    pub fn overlapping<'a>(
        &'a self,
        start: Option<&'a [u8]>,
        end: Option<&'a [u8]>,
    ) -> impl Iterator<Item = &'a Arc<Table>> {
        self.tables().filter(move |table| table.meta().overlaps(start, end))
    }

    /// The tables that may hold a key in `start..=end` (`None`: unbounded) and have a number above `after`, newest data
    /// first.
    pub fn newer<'a>(
        &'a self,
        start: Option<&'a [u8]>,
        end: Option<&'a [u8]>,
        after: SeqNo,
    ) -> impl Iterator<Item = &'a Arc<Table>> {
        let tables = self.levels.iter().flatten().flat_map(move |run| run.overlapping(start, end));
        tables.filter(move |table| table.meta().max_seqno > after)
    }

    /// As few sorted streams as can be of all tables that may hold a key in `start..=end` (`None`: unbounded), and of
    /// others, the newest level first.
    pub fn streams_overlapping<'a>(
        &'a self,
        start: Option<&'a [u8]>,
        end: Option<&'a [u8]>,
    ) -> impl Iterator<Item = &'a Arc<TableRun>> {
        let of_level = |runs: &Vec<Arc<TableRun>>| if runs.len() > 1 { streams::of_runs(runs) } else { runs.clone() };
        let levels = self.streams.get_or_init(|| self.levels.iter().map(of_level).collect());
        levels.iter().flatten().filter(move |stream| stream.overlaps(start, end))
    }

    /// Whether any table has range tombstones.
    #[inline]
    #[must_use]
    pub fn has_range_tombstones(&self) -> bool {
        self.has_range_tombstones
    }

    /// The runs of each level, newest first.
    #[inline]
    pub(crate) fn levels(&self) -> &[Vec<Arc<TableRun>>] {
        &self.levels
    }
}

/// The old boundaries and the new ones.
fn with_boundaries(old: &Arc<[Box<[u8]>]>, new: &[Box<[u8]>]) -> Arc<[Box<[u8]>]> {
    if new.is_empty() {
        return Arc::clone(old);
    }
    old.iter().chain(new).collect::<BTreeSet<_>>().into_iter().cloned().collect()
}

/// A version being changed.
#[derive(Default)]
struct VersionChange {
    runs: BTreeMap<(u8, RunId), Vec<Arc<Table>>>,
    /// The tables that exist now.
    places: BTreeMap<FileId, ()>,
    removed: BTreeMap<FileId, Arc<Table>>,
    new_in_level0: Vec<(RunId, Arc<Table>)>,
    touched: BTreeMap<(u8, RunId), ()>,
}

impl VersionChange {
    fn of(version: &Version) -> Self {
        let mut change = Self::default();
        for (level, runs) in (0..=u8::MAX).zip(&version.levels) {
            for run in runs {
                change.runs.insert((level, run.id()), run.tables().to_vec());
                change.places.extend(run.tables().iter().map(|table| (table.meta().id, ())));
            }
        }
        change
    }

    fn remove(&mut self, removed: &TableRemoved) -> Result<()> {
        let TableRemoved { level, run, table: id } = *removed;
        let tables = self.runs.get_mut(&(level, run));
        let at = tables.as_ref().and_then(|tables| tables.iter().position(|table| table.meta().id == id));
        let (Some(tables), Some(at)) = (tables, at) else {
            return Err(unfit(format!("table {id} is removed from level {level}, run {run}, but is not there")));
        };
        self.removed.insert(id, tables.remove(at));
        self.places.remove(&id);
        self.touched.insert((level, run), ());
        Ok(())
    }

    fn finish(mut self, old: &Version) -> Result<Version> {
        let mut version = Version::default();
        self.runs.retain(|_, tables| !tables.is_empty());
        // Newest first within a level: larger ids come first.
        for ((level, id), tables) in self.runs.into_iter().rev() {
            let level_at = usize::from(level);
            let run = if self.touched.contains_key(&(level, id)) {
                Arc::new(
                    TableRun::new(id, tables).map_err(|reason| unfit(format!("level {level}, run {id}: {reason}")))?,
                )
            } else {
                let same = old.levels.get(level_at).and_then(|runs| runs.iter().find(|run| run.id() == id));
                same.cloned().ok_or_else(|| unfit(format!("run {id} of level {level} does not exist")))?
            };
            version.has_range_tombstones |= run.tables().iter().any(|table| table.meta().range_tombstones > 0);
            if version.levels.len() <= level_at {
                version.levels.resize_with(level_at + 1, Vec::new);
            }
            version.levels[level_at].push(run);
        }
        Ok(version)
    }
}

#[cold]
fn unfit(reason: String) -> Error {
    Error::invalid("change of tables", reason)
}

#[cfg(test)]
mod tests;
