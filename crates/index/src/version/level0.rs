//! The hash index of one version: an index shared with other versions, and the positions of its runs in this version.
//!
//! **Invariant:** an index that a version has knows every key of its level 0. Tables are added before there is a
//! version with them; what of that fails leaves entries of runs that no version has. While level 0 has a table whose
//! keys cannot be read, there is no new index: reads of that table report the damage, and all others go on.

use std::{collections::BTreeMap, sync::Arc};

use bifold_contract::{Error, FileId, Locator, Result, RunId, planted, policy::NewestFirst};

use super::TableRun;
use crate::{
    hash_index::{HashIndex, HashIndexOptions, HashIndexUse},
    table::{Table, TableContext},
};

/// The most runs gathered for one key. A key with more is searched in all runs.
const GATHERED_MAX: usize = 16;

/// A run that is not in this version.
const ABSENT: u32 = u32::MAX;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(super) struct Level0Index {
    options: HashIndexOptions,
    level0_bytes: Option<u64>,
    context: Arc<TableContext>,
    /// `None` if level 0 is empty, the memory budget is used up, or a table cannot be read: then all runs are searched.
    index: Option<Arc<HashIndex>>,
    /// The table that could not be read. While it is there, and until the next flush, none is read for a new index.
    unreadable: Option<Unread>,
    /// Tables of level 0.
    tables: usize,
    /// The position in level 0 of each run in the index, by its number there.
    positions: Box<[u32]>,
}

impl Level0Index {
    /// That of a version without tables.
    pub(super) fn new(options: HashIndexOptions, level0_bytes: Option<u64>, context: &Arc<TableContext>) -> Self {
        let (context, positions) = (Arc::clone(context), Box::default());
        Self { options, level0_bytes, context, index: None, unreadable: None, tables: 0, positions }
    }

    /// The same, where level 0 is expected to have at most so many bytes.
    pub(super) fn with_level0_bytes(&self, level0_bytes: Option<u64>) -> Self {
        Self { level0_bytes, ..self.clone() }
    }

    /// The index of a version with `runs` in level 0, where the tables in `added` are new, and with this number of
    /// partitions.
    ///
    /// # Errors
    /// I/O errors and corruption while reading the keys of new tables, which an index has not got yet.
    pub(super) fn after(
        &self,
        runs: &[Arc<TableRun>],
        added: &[(RunId, Arc<Table>)],
        partitions: usize,
    ) -> Result<Self> {
        let is_there = |id| runs.iter().flat_map(|run| run.tables()).any(|table| table.meta().id == id);
        let tables = runs.iter().map(|run| run.tables().len()).sum();
        // Merges may have made room for an index. What could not be read is reported until the next flush, at least.
        let is_tried = tables == self.tables || self.unreadable.is_some() || planted!("merges_bring_nothing_back");
        let (index, unreadable) = match &self.index {
            Some(index) if add_all(index, added).map_err(|unread| unread.why)? => (Some(Arc::clone(index)), None),
            None if (added.is_empty() && is_tried)
                || self.unreadable.as_ref().is_some_and(|unread| is_there(unread.table)) =>
            {
                (None, self.unreadable.clone())
            }
            _ => match self.build(runs, partitions) {
                Ok(index) => (index.map(Arc::new), None),
                Err(unread) if unread.why.is_unreadable() => (None, Some(unread)),
                Err(unread) => return Err(unread.why),
            },
        };
        let position_of: BTreeMap<RunId, u32> = runs.iter().map(|run| run.id()).zip(0..).collect();
        let known = index.as_ref().map(|index| index.runs()).unwrap_or_default();
        let positions = known.iter().map(|run| position_of.get(run).copied().unwrap_or(ABSENT)).collect();
        Ok(Self { index, unreadable, tables, positions, ..self.clone() })
    }

    /// Why there is no index, if a table could not be read.
    pub(super) fn unreadable(&self) -> Option<&Error> {
        self.unreadable.as_ref().map(|unread| &unread.why)
    }

    /// The usage of its index, if it has one.
    pub(super) fn usage(&self) -> Option<HashIndexUse> {
        self.index.as_ref().map(|index| index.usage())
    }

    /// A new index of all tables; `None` if there are none, the memory budget does not allow it, or it cannot tell so
    /// many runs.
    fn build(&self, runs: &[Arc<TableRun>], partitions: usize) -> std::result::Result<Option<HashIndex>, Unread> {
        if runs.is_empty() || runs.len() as u64 > self.options.runs_max() {
            return Ok(None);
        }
        let tables: Vec<_> =
            runs.iter().flat_map(|run| run.tables().iter().map(|t| (run.id(), Arc::clone(t)))).collect();
        let capacity = self.capacity(&tables, partitions);
        if let Some(index) = filled(HashIndex::with_room(capacity, &self.options, &self.context), &tables)? {
            return Ok(Some(index));
        }
        // Chains are longer than expected, as where the same keys are in many runs. More buckets do not shorten those.
        filled(HashIndex::with_long_chains(capacity, &self.options, &self.context), &tables)
    }

    /// For how many entries an index of these tables is to have room: twice as many, so that it is not made anew too
    /// often, but not more than level 0 will hold.
    fn capacity(&self, tables: &[(RunId, Arc<Table>)], partitions: usize) -> usize {
        let sum = |of: fn(&Table) -> u64| tables.iter().map(|(_, table)| of(table)).sum::<u64>();
        let (entries, bytes) = (sum(|table| table.meta().entries), sum(|table| table.meta().bytes));
        let most = self.level0_bytes.map_or(u64::MAX, |most| {
            let most = most.saturating_mul(partitions as u64);
            // Plus a sixteenth for the table that fills it.
            (most as f64 * 17.0 / 16.0 * entries as f64 / bytes.max(1) as f64) as u64
        });
        usize::try_from((entries * 2).min(most).max(entries + entries / 8)).unwrap_or(usize::MAX)
    }
}

/// A table whose keys could not be read.
#[derive(Clone, Debug)]
struct Unread {
    table: FileId,
    why: Error,
}

/// This index with the keys of all tables, if there is one and they fit.
fn filled(index: Option<HashIndex>, tables: &[(RunId, Arc<Table>)]) -> std::result::Result<Option<HashIndex>, Unread> {
    match index {
        Some(index) if add_all(&index, tables)? => Ok(Some(index)),
        _ => Ok(None),
    }
}

/// Adds the keys of all tables. Returns whether there was room.
fn add_all(index: &HashIndex, tables: &[(RunId, Arc<Table>)]) -> std::result::Result<bool, Unread> {
    for (run, table) in tables {
        if planted!("forget_merged_runs") && index.runs().contains(run) {
            continue;
        }
        let hashes = table.key_hashes().map_err(|why| Unread { table: table.meta().id, why })?;
        if !index.add(*run, &hashes) {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Locator for Level0Index {
    fn candidates(&self, key_hash: u64, runs: usize, visit: &mut dyn FnMut(usize) -> bool) {
        let Some(index) = &self.index else { return NewestFirst.candidates(key_hash, runs, visit) };
        let mut gathered = Gathered::default();
        index.find(key_hash, |run| {
            let position = self.positions.get(run as usize - 1).copied().unwrap_or(ABSENT);
            if position != ABSENT {
                gathered.add(position);
            }
        });
        match gathered.newest_first() {
            Some(positions) => {
                let _first_that_answers = positions.iter().all(|&position| visit(position as usize));
            }
            None => NewestFirst.candidates(key_hash, runs, visit),
        }
    }
}

/// Distinct positions of runs, ascending.
#[derive(Default)]
struct Gathered {
    positions: [u32; GATHERED_MAX],
    /// More than `GATHERED_MAX` if there are too many.
    len: usize,
}

impl Gathered {
    fn add(&mut self, position: u32) {
        let Some(gathered) = self.positions.get(..self.len) else { return };
        let at = gathered.partition_point(|&earlier| earlier < position || planted!("first_place_wins"));
        if gathered.get(at) == Some(&position) {
            return;
        }
        if self.len < GATHERED_MAX {
            self.positions.copy_within(at..self.len, at + 1);
            self.positions[at] = position;
        }
        self.len += 1;
    }

    fn newest_first(&self) -> Option<&[u32]> {
        self.positions.get(..self.len)
    }
}

#[cfg(test)]
mod tests;
