//! Looks up one key in one version.
//!
//! Layers are asked from the newest to the oldest: level 0 in the order of a [`Locator`], then one run after the other.
//! The first layer that knows the key decides, because upper layers hold the newer versions of every key. A range
//! tombstone that spans the key is such knowledge: everything about the key that is older is deleted, so the search
//! ends there too, unless the same table has a version that is newer than the tombstone.

use std::sync::Arc;

use bifold_contract::{IoSource, Locator, Result, SeqNo, key::MAX_SEQNO, planted};
use bifold_io::striped::Striped;

use crate::{
    table::{FoundEntry, Table},
    version::{TableRun, Version},
};

/// A point lookup.
#[derive(Clone, Copy, Debug)]
pub struct Lookup<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its [`key_hash`](bifold_format::filter::key_hash).
    pub key_hash: u64,
    /// Versions newer than this are not visible.
    pub snapshot: SeqNo,
    /// The largest number, not above `snapshot`, of a range tombstone in a newer layer (a memtable) that spans the
    /// key; 0 when there is none.
    pub covered_by: SeqNo,
    /// Only what is newer than this counts: tables without it are not asked, and older range tombstones delete nothing.
    /// An older version may be found, in a table that has something newer. 0: everything counts.
    pub after: SeqNo,
    /// Counts the bytes that it reads: `Get` for what a user waits for, `Gc` for questions of GC's own.
    pub source: IoSource,
    /// Finds the level-0 runs that may hold the key.
    pub locator: &'a dyn Locator,
}

/// The newest version of a key above the last run that may have it.
#[derive(Debug)]
pub enum Above {
    /// This one.
    Found(FoundEntry),
    /// A range tombstone deletes the key.
    Deleted,
    /// None: what the index has of the key is in that run.
    Nothing,
}

/// The result from one layer.
enum Layer {
    /// The newest visible version.
    Found(FoundEntry),
    /// The key is deleted by a range tombstone.
    Deleted,
    /// Nothing.
    Unknown,
}

impl Version {
    /// The newest version of a key that its snapshot sees. A tombstone is returned like any other version, with
    /// [`Kind::Delete`](bifold_contract::Kind::Delete). A version that a range tombstone covers is not returned.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn get(&self, lookup: &Lookup<'_>, counters: &LookupCounters) -> Result<Option<FoundEntry>> {
        let mut tally = Tally::default();
        let answer = self.search(lookup, &mut tally);
        counters.add(&tally);
        answer
    }

    /// Shows the versions of a key that its snapshot sees to `see`, from new to old, as long as that wants more. Those
    /// that a range tombstone covers are none. One search, which goes on where it has found something.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn walk(
        &self,
        lookup: &Lookup<'_>,
        counters: &LookupCounters,
        see: &mut dyn FnMut(FoundEntry) -> bool,
    ) -> Result<()> {
        let mut tally = Tally::default();
        let ended = self.walk_down(lookup, &mut tally, see);
        counters.add(&tally);
        ended
    }

    fn walk_down(&self, lookup: &Lookup<'_>, tally: &mut Tally, see: &mut dyn FnMut(FoundEntry) -> bool) -> Result<()> {
        let Some((level0, deeper)) = self.levels().split_first().filter(|_| lookup.covered_by == 0) else {
            return Ok(());
        };
        // As in `search_level0`.
        let (mut passed, mut goes_on) = (0, Ok(true));
        lookup.locator.candidates(lookup.key_hash, level0.len(), &mut |at| {
            let Some(run) = level0.get(at) else { return true };
            let covered = self.is_covered_by(level0.get(passed..at).unwrap_or_default(), lookup);
            passed = at + 1;
            goes_on = if covered { Ok(false) } else { walk_run(run, lookup, tally, see) };
            matches!(goes_on, Ok(true))
        });
        if !goes_on? || self.is_covered_by(&level0[passed..], lookup) {
            return Ok(());
        }
        for run in deeper.iter().flatten() {
            if !walk_run(run, lookup, tally, see)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// As [`Version::get`], without a look at the last run that may have the key, unless that is in level 0. A version
    /// older than [`Lookup::after`] is none: the one with that number, which is newer, may be in a table that was not
    /// asked.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn get_above_last(&self, lookup: &Lookup<'_>, counters: &LookupCounters) -> Result<Above> {
        let mut tally = Tally::default();
        let layer = self.search_above_last(lookup, &mut tally);
        counters.add(&tally);
        Ok(match layer? {
            Layer::Found(entry) if entry.seqno < lookup.after && !planted!("older_is_newer") => Above::Nothing,
            Layer::Found(entry) => Above::Found(entry),
            Layer::Deleted => Above::Deleted,
            Layer::Unknown => Above::Nothing,
        })
    }

    fn search_above_last(&self, lookup: &Lookup<'_>, tally: &mut Tally) -> Result<Layer> {
        if lookup.covered_by > 0 {
            return Ok(Layer::Deleted);
        }
        let Some((level0, deeper)) = self.levels().split_first() else { return Ok(Layer::Unknown) };
        let layer = self.search_level0(level0, lookup, tally)?;
        if !matches!(layer, Layer::Unknown) {
            return Ok(layer);
        }
        for table in above_last(deeper, lookup.key) {
            let layer = search_table(table, lookup, tally)?;
            if !matches!(layer, Layer::Unknown) {
                return Ok(layer);
            }
        }
        Ok(Layer::Unknown)
    }

    /// Prefetches the filters that [`Version::get_above_last`] will ask: those of several keys come from memory at
    /// the same time.
    pub fn expect_above_last(&self, lookup: &Lookup<'_>) {
        let Some((level0, deeper)) = self.levels().split_first() else { return };
        let expect = |table: &Arc<Table>| {
            if table.meta().max_seqno > lookup.after {
                table.expect_filter(lookup.key_hash);
            }
        };
        level0.iter().filter_map(|run| run.find(lookup.key)).for_each(expect);
        above_last(deeper, lookup.key).for_each(expect);
    }

    /// Whether a table has a version of `key`, or a range tombstone over it, with a number above `after`. Tables
    /// without such numbers are not asked.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn has_newer(&self, key: &[u8], key_hash: u64, after: SeqNo) -> Result<bool> {
        let tables = self.levels().iter().flatten().filter_map(|run| run.find(key));
        for table in tables.filter(|table| table.meta().max_seqno > after) {
            if table.covering(key, MAX_SEQNO) > after {
                return Ok(true);
            }
            let found = table.get(key, key_hash, MAX_SEQNO, IoSource::Get)?;
            if found.is_some_and(|found| found.seqno > after) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a table may have a version of a key with this hash, by what is held in memory: tables whose filters
    /// are not may have it. Range tombstones are not looked at.
    #[must_use]
    pub fn may_contain_as_held(&self, key: &[u8], key_hash: u64) -> bool {
        let may_contain = |run: &Arc<TableRun>| run.find(key).is_some_and(|table| table.may_contain_as_held(key_hash));
        let Some((level0, deeper)) = self.levels().split_first() else { return false };
        let mut is_above = false;
        self.locator().candidates(key_hash, level0.len(), &mut |at| {
            is_above = level0.get(at).is_some_and(may_contain);
            !is_above
        });
        is_above || deeper.iter().flatten().any(may_contain)
    }

    /// Announces the block in which [`Version::get`] will look for the key first, as far as filters and indexes in
    /// memory tell. Where blocks are mapped, it is prefetched into the processor's caches.
    pub fn expect(&self, lookup: &Lookup<'_>) {
        let table_in = |run: &Arc<TableRun>| -> bool {
            let table = run.find(lookup.key).filter(|table| table.may_contain_as_held(lookup.key_hash));
            table.inspect(|table| table.expect(lookup.key)).is_some()
        };
        let Some((level0, deeper)) = self.levels().split_first() else { return };
        let mut is_found = lookup.covered_by > 0;
        lookup.locator.candidates(lookup.key_hash, level0.len(), &mut |at| {
            is_found = is_found || level0.get(at).is_some_and(table_in);
            !is_found
        });
        let _first_that_may = is_found || deeper.iter().flatten().any(table_in);
    }

    fn search(&self, lookup: &Lookup<'_>, tally: &mut Tally) -> Result<Option<FoundEntry>> {
        if lookup.covered_by > 0 {
            return Ok(None);
        }
        let Some((level0, deeper)) = self.levels().split_first() else { return Ok(None) };
        match self.search_level0(level0, lookup, tally)? {
            Layer::Found(entry) => return Ok(Some(entry)),
            Layer::Deleted => return Ok(None),
            Layer::Unknown => {}
        }
        for run in deeper.iter().flatten() {
            match search_run(run, lookup, tally)? {
                Layer::Found(entry) => return Ok(Some(entry)),
                Layer::Deleted => return Ok(None),
                Layer::Unknown => {}
            }
        }
        Ok(None)
    }

    fn search_level0(&self, runs: &[Arc<TableRun>], lookup: &Lookup<'_>, tally: &mut Tally) -> Result<Layer> {
        let mut answer = Ok(Layer::Unknown);
        // A locator knows keys, not ranges, so the range tombstones of the runs it skips are checked here.
        let mut passed = 0;
        lookup.locator.candidates(lookup.key_hash, runs.len(), &mut |at| {
            let Some(run) = runs.get(at) else { return true };
            let covered = self.is_covered_by(runs.get(passed..at).unwrap_or_default(), lookup);
            passed = at + 1;
            answer = if covered { Ok(Layer::Deleted) } else { search_run(run, lookup, tally) };
            matches!(answer, Ok(Layer::Unknown))
        });
        match answer {
            Ok(Layer::Unknown) if self.is_covered_by(&runs[passed..], lookup) => Ok(Layer::Deleted),
            answer => answer,
        }
    }

    fn is_covered_by(&self, runs: &[Arc<TableRun>], lookup: &Lookup<'_>) -> bool {
        self.has_range_tombstones() && runs.iter().any(|run| covering(run, lookup) > lookup.after)
    }
}

/// The tables that may have a key, in each of these runs but the last that has such a table.
fn above_last<'v>(runs: &'v [Vec<Arc<TableRun>>], key: &'v [u8]) -> impl Iterator<Item = &'v Arc<Table>> {
    let mut last = None;
    runs.iter().flatten().filter_map(move |run| run.find(key)).filter_map(move |table| last.replace(table))
}

fn covering(run: &TableRun, lookup: &Lookup<'_>) -> SeqNo {
    run.find(lookup.key).map_or(0, |table| table.covering(lookup.key, lookup.snapshot))
}

fn search_run(run: &TableRun, lookup: &Lookup<'_>, tally: &mut Tally) -> Result<Layer> {
    match run.find(lookup.key) {
        Some(table) => search_table(table, lookup, tally),
        None => Ok(Layer::Unknown),
    }
}

/// Shows the versions of a key in one run. Returns whether older ones count.
fn walk_run(
    run: &TableRun,
    lookup: &Lookup<'_>,
    tally: &mut Tally,
    see: &mut dyn FnMut(FoundEntry) -> bool,
) -> Result<bool> {
    let Some(table) = run.find(lookup.key) else { return Ok(true) };
    let covered_by = if planted!("walk_forgets_deletes") { 0 } else { table.covering(lookup.key, lookup.snapshot) };
    let mut found = find_in(table, lookup, tally)?;
    while let Some(entry) = found.filter(|entry| entry.seqno >= covered_by) {
        let older = entry.seqno.saturating_sub(1);
        if !see(entry) {
            return Ok(false);
        }
        found = match planted!("walk_sees_one_of_a_run") {
            true => None,
            false => table.find(lookup.key, older, lookup.source)?,
        };
    }
    Ok(covered_by == 0)
}

#[inline]
fn search_table(table: &Table, lookup: &Lookup<'_>, tally: &mut Tally) -> Result<Layer> {
    if lookup.after > 0 && table.meta().max_seqno <= lookup.after {
        return Ok(Layer::Unknown);
    }
    let covered_by = Some(table.covering(lookup.key, lookup.snapshot)).filter(|&by| by > lookup.after).unwrap_or(0);
    let found = find_in(table, lookup, tally)?;
    Ok(match found {
        Some(entry) if entry.seqno >= covered_by => Layer::Found(entry),
        None if covered_by == 0 => Layer::Unknown,
        _ => Layer::Deleted,
    })
}

#[inline]
fn find_in(table: &Table, lookup: &Lookup<'_>, tally: &mut Tally) -> Result<Option<FoundEntry>> {
    if !table.has_entries() {
        return Ok(None);
    }
    let has_filter = table.has_filter();
    tally.filters_asked += u64::from(has_filter);
    if !table.may_contain(lookup.key_hash)? {
        tally.filters_denied += 1;
        return Ok(None);
    }
    tally.tables_searched += 1;
    let found = table.find(lookup.key, lookup.snapshot, lookup.source)?;
    tally.false_positives += u64::from(has_filter && found.is_none());
    Ok(found)
}

/// The counts of one search, added to the shared counters once at its end.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    filters_asked: u64,
    filters_denied: u64,
    false_positives: u64,
    tables_searched: u64,
}

/// The counts of all searches since the counters were created.
#[derive(Debug, Default)]
pub struct LookupCounters {
    counts: Striped<4>,
}

/// Counters of [`LookupCounters`].
const FILTERS_ASKED: usize = 0;
const FILTERS_DENIED: usize = 1;
const FALSE_POSITIVES: usize = 2;
const TABLES_SEARCHED: usize = 3;

impl LookupCounters {
    fn add(&self, tally: &Tally) {
        let add = |counter: usize, count: u64| {
            // An atomic addition costs some 5 ns even if it adds nothing.
            if count > 0 {
                self.counts.add(counter, count);
            }
        };
        add(FILTERS_ASKED, tally.filters_asked);
        add(FILTERS_DENIED, tally.filters_denied);
        add(FALSE_POSITIVES, tally.false_positives);
        add(TABLES_SEARCHED, tally.tables_searched);
    }

    /// Filters queried.
    #[must_use]
    pub fn filters_asked(&self) -> u64 {
        self.counts.sum(FILTERS_ASKED)
    }

    /// Filters that excluded the key: each saved a search and perhaps a read.
    #[must_use]
    pub fn filters_denied(&self) -> u64 {
        self.counts.sum(FILTERS_DENIED)
    }

    /// Searches that a filter allowed and that found nothing.
    #[must_use]
    pub fn false_positives(&self) -> u64 {
        self.counts.sum(FALSE_POSITIVES)
    }

    /// Tables searched after their filter did not exclude the key.
    #[must_use]
    pub fn tables_searched(&self) -> u64 {
        self.counts.sum(TABLES_SEARCHED)
    }
}

#[cfg(test)]
mod tests;
