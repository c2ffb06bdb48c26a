//! A sorted run: tables in key order that do not overlap, and a cursor over them.

use std::{cmp::Ordering, collections::HashSet, ops::Range, sync::Arc};

use bifold_contract::{Entry, Error, FileId, Result, RunId, SeqNo, Value};
use bifold_format::block::heads::{self, HEAD_BYTES, Rest, common_prefix, head};

use crate::{
    cursor::{Cursor, Direction},
    table::{ReadMode, Table, TableCursor, left_out::LeftOutBlocks},
};

/// Of longer common prefixes a run knows so much. It is in the run, so that a search touches no line of its own for it.
const PREFIX_BYTES_MAX: usize = 32;

/// A run of open tables.
#[derive(Debug)]
pub struct TableRun {
    id: RunId,
    tables: Vec<Arc<Table>>,
    /// Entries and bytes of all tables.
    size: (u64, u64),
    /// A common prefix of the smallest and the largest keys of all tables, and its length.
    prefix: ([u8; PREFIX_BYTES_MAX], usize),
    /// The heads of their smallest keys after the prefix.
    smallest_heads: Box<[[u8; HEAD_BYTES]]>,
    /// The heads of their largest keys; the largest number if a table is unbounded.
    largest_heads: Box<[u64]>,
}

impl TableRun {
    /// A run of these tables, given in any order.
    ///
    /// # Errors
    /// If two of them overlap; says which.
    pub(super) fn new(id: RunId, mut tables: Vec<Arc<Table>>) -> std::result::Result<Self, String> {
        tables.sort_by(|a, b| a.meta().smallest.cmp(&b.meta().smallest));
        for pair in tables.windows(2) {
            let (left, right) = (pair[0].meta(), pair[1].meta());
            let is_disjoint = match left.largest.cmp(&right.smallest) {
                _ if left.unbounded => false,
                Ordering::Less => true,
                // The end of a range tombstone is not in its range.
                Ordering::Equal => left.range_tombstones > 0 && left.smallest < right.smallest,
                Ordering::Greater => false,
            };
            if !is_disjoint {
                return Err(format!("tables {} and {} overlap", left.id, right.id));
            }
        }
        Ok(Self::of_disjoint(id, tables))
    }

    /// A run of these tables, which do not overlap and are in key order.
    fn of_disjoint(id: RunId, tables: Vec<Arc<Table>>) -> Self {
        let bounds = |table: &Arc<Table>| [table.meta().smallest.clone(), table.meta().largest.clone()];
        let keys: Vec<[Box<[u8]>; 2]> = tables.iter().map(bounds).collect();
        let prefix = keys.iter().flatten().fold(None, |prefix: Option<&[u8]>, key| match prefix {
            Some(prefix) => Some(&prefix[..common_prefix(prefix, key)]),
            None => Some(key),
        });
        let prefix = prefix.unwrap_or_default();
        let prefix = &prefix[..prefix.len().min(PREFIX_BYTES_MAX)];
        let smallest_heads = keys.iter().map(|[smallest, _]| head(&smallest[prefix.len()..]).to_le_bytes()).collect();
        let largest_head = |(table, [_, largest]): (&Arc<Table>, &[Box<[u8]>; 2])| {
            if table.meta().unbounded { u64::MAX } else { head(&largest[prefix.len()..]) }
        };
        let largest_heads = tables.iter().zip(&keys).map(largest_head).collect();
        let size = tables
            .iter()
            .map(|table| table.meta())
            .fold((0, 0), |(entries, bytes), meta| (entries + meta.entries, bytes + meta.bytes));
        let mut known = [0; PREFIX_BYTES_MAX];
        known[..prefix.len()].copy_from_slice(prefix);
        Self { id, size, smallest_heads, largest_heads, prefix: (known, prefix.len()), tables }
    }

    /// A run of those of its tables that are among `tables`, if there are any.
    pub(super) fn only(self: &Arc<Self>, tables: &HashSet<FileId>) -> Option<Arc<Self>> {
        let chosen: Vec<_> = self.tables.iter().filter(|table| tables.contains(&table.meta().id)).cloned().collect();
        match chosen.len() {
            0 => None,
            all if all == self.tables.len() => Some(Arc::clone(self)),
            _ => Some(Arc::new(Self::of_disjoint(self.id, chosen))),
        }
    }

    /// The table that may hold `key`. Compares heads, and reads tables only if heads tie.
    #[inline]
    #[must_use]
    pub fn find(&self, key: &[u8]) -> Option<&Arc<Table>> {
        let rest = match heads::rest(key, self.prefix()) {
            Rest::Before => return None,
            Rest::After => return self.tables.last().filter(|table| table.meta().unbounded),
            Rest::Of(rest) => head(rest),
        };
        let at = self.last_from(key, heads::equal(&self.smallest_heads, rest))?;
        let table = &self.tables[at];
        let ends_after = match self.largest_heads[at].cmp(&rest) {
            Ordering::Less => false,
            Ordering::Equal => table.meta().unbounded || *table.meta().largest >= *key,
            Ordering::Greater => true,
        };
        ends_after.then_some(table)
    }

    /// The last table that starts at or before `key`.
    #[inline]
    fn position(&self, key: &[u8]) -> Option<usize> {
        self.last_from(key, heads::search(&self.smallest_heads, self.prefix(), key))
    }

    /// The same, if tables before `open` start before it, tables after that do not, and those in between have to be
    /// compared.
    #[inline]
    fn last_from(&self, key: &[u8], open: Range<usize>) -> Option<usize> {
        let ties = match open.is_empty() {
            true => 0,
            false => self.tables[open.clone()].partition_point(|table| *table.meta().smallest <= *key),
        };
        (open.start + ties).checked_sub(1)
    }

    #[inline]
    fn prefix(&self) -> &[u8] {
        let (bytes, len) = &self.prefix;
        &bytes[..*len]
    }

    /// Its id: within a level, a larger id is newer.
    #[must_use]
    pub fn id(&self) -> RunId {
        self.id
    }

    /// Its tables in key order.
    #[inline]
    #[must_use]
    pub fn tables(&self) -> &[Arc<Table>] {
        &self.tables
    }

    /// Whether one of its tables may hold a key in `start..=end` (`None`: unbounded).
    #[must_use]
    pub fn overlaps(&self, start: Option<&[u8]>, end: Option<&[u8]>) -> bool {
        let from = start.and_then(|start| self.position(start)).unwrap_or(0);
        // The table found may end before the range; then the next one is the first that can overlap.
        self.tables[from..].iter().take(2).any(|table| table.meta().overlaps(start, end))
    }

    /// Its tables that may hold a key in `start..=end` (`None`: unbounded), in key order.
    pub fn overlapping<'a>(
        &'a self,
        start: Option<&'a [u8]>,
        end: Option<&'a [u8]>,
    ) -> impl Iterator<Item = &'a Arc<Table>> {
        let from = start.and_then(|start| self.position(start)).unwrap_or(0);
        let begins_in_time = move |table: &&Arc<Table>| end.is_none_or(|end| *table.meta().smallest <= *end);
        let tables = self.tables[from..].iter().take_while(begins_in_time);
        tables.filter(move |table| table.meta().overlaps(start, end))
    }

    /// A new cursor over its entries, not yet placed.
    #[must_use]
    pub fn cursor(self: &Arc<Self>, mode: ReadMode) -> RunCursor {
        RunCursor { run: Arc::clone(self), mode, left_out: None, at: None, failed: None }
    }
}

/// At most so many bytes of a run are announced at once: what a device reads in a fraction of a millisecond.
const ANNOUNCED_MAX: u64 = 256 << 10;

/// A position in a run. Reads one table at a time.
#[derive(Debug)]
pub struct RunCursor {
    run: Arc<TableRun>,
    mode: ReadMode,
    /// Where its tables' cursors note blocks that they leave out, if they do.
    left_out: Option<Arc<LeftOutBlocks>>,
    at: Option<(usize, TableCursor)>,
    failed: Option<Error>,
}

/// Announces that the next `entries` from `key` on in `direction` will be read from all of these runs together: from
/// each the share that it has of all entries. So the device reads their blocks concurrently. An index that cannot be
/// read is reported when it is used.
pub fn announce(runs: &mut [RunCursor], key: &[u8], direction: Direction, entries: u64) {
    let all: u64 = runs.iter().map(|cursor| cursor.run.size.0).sum();
    for cursor in runs {
        // A share of the entries is at most all of them.
        let bytes = u128::from(cursor.run.size.1) * u128::from(entries) / u128::from(all.max(1));
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX).min(ANNOUNCED_MAX);
        let table = cursor.table_at(key, direction);
        let _reported_later = table.map_or(Ok(()), |table| table.expect(key, direction, bytes));
    }
}

/// Whether the block of the largest run where a cursor begins that goes from `key` in `direction` must come from the
/// device, as far as is known.
pub fn is_cold(runs: &mut [RunCursor], key: &[u8], direction: Direction) -> bool {
    let largest = runs.iter_mut().max_by_key(|cursor| cursor.run.size.1);
    let table = largest.and_then(|cursor| cursor.table_at(key, direction));
    table.and_then(|table| table.is_cold(key, direction).ok().flatten()).unwrap_or(false)
}

impl RunCursor {
    /// From now on it leaves out blocks that cannot be read, and notes them. It must not have been placed.
    pub fn leave_out_damage(&mut self, noted: &Arc<LeftOutBlocks>) {
        self.left_out = Some(Arc::clone(noted));
    }

    fn open(&self, table: &Arc<Table>) -> TableCursor {
        let mut cursor = table.cursor(self.mode);
        if let Some(noted) = &self.left_out {
            cursor.leave_out_damage(noted);
        }
        cursor
    }

    /// The cursor of the table where one begins that goes from `key` in `direction`, before anything is read with it.
    fn table_at(&mut self, key: &[u8], direction: Direction) -> Option<&mut TableCursor> {
        let at = match direction {
            Direction::Forward => self.run.position(key).unwrap_or(0),
            Direction::Backward => self.run.position(key)?,
        };
        if self.at.as_ref().is_none_or(|(open_at, _)| *open_at != at) {
            self.at = Some((at, self.open(self.run.tables.get(at)?)));
        }
        self.at.as_mut().map(|(_, cursor)| cursor)
    }

    /// Turns to table `at` and takes up a position by `enter`; continues from table to table as long as that leads
    /// nowhere.
    fn place(
        &mut self,
        mut at: Option<usize>,
        direction: Direction,
        enter: impl Fn(&mut TableCursor) -> Result<()>,
    ) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        while let Some(table) = at.and_then(|at| self.run.tables.get(at)) {
            let at_now = at.unwrap_or_default();
            let mut cursor = match self.at.take() {
                Some((open_at, cursor)) if open_at == at_now => cursor,
                _ => self.open(table),
            };
            if let Err(error) = enter(&mut cursor) {
                self.failed = Some(error.clone());
                return Err(error);
            }
            if cursor.entry().is_some() {
                self.at = Some((at_now, cursor));
                return Ok(());
            }
            at = match direction {
                Direction::Forward => at_now.checked_add(1),
                Direction::Backward => at_now.checked_sub(1),
            };
        }
        self.at = None;
        Ok(())
    }

    /// Makes one step within the current table, or into its neighbour.
    #[inline]
    fn step(&mut self, direction: Direction, step: impl Fn(&mut TableCursor) -> Result<()>) -> Result<()> {
        let Some((at, cursor)) = &mut self.at else { return self.failed.clone().map_or(Ok(()), Err) };
        match step(cursor) {
            Ok(()) if cursor.entry().is_some() => Ok(()),
            Ok(()) => {
                let at = *at;
                match direction {
                    Direction::Forward => self.place(at.checked_add(1), direction, Cursor::first),
                    Direction::Backward => self.place(at.checked_sub(1), direction, Cursor::last),
                }
            }
            Err(error) => {
                self.at = None;
                self.failed = Some(error.clone());
                Err(error)
            }
        }
    }
}

impl Cursor for RunCursor {
    #[inline]
    fn entry(&self) -> Option<Entry<'_>> {
        self.at.as_ref()?.1.entry()
    }

    #[inline]
    fn payload(&self) -> Value {
        self.at.as_ref().map_or_else(|| Value::copy_of(&[]), |(_, cursor)| cursor.payload())
    }

    fn first(&mut self) -> Result<()> {
        self.place(Some(0), Direction::Forward, Cursor::first)
    }

    fn last(&mut self) -> Result<()> {
        self.place(self.run.tables.len().checked_sub(1), Direction::Backward, Cursor::last)
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        let at = self.run.position(key).unwrap_or(0);
        self.place(Some(at), Direction::Forward, |cursor| cursor.seek(key, seqno))
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        self.place(self.run.position(key), Direction::Backward, |cursor| cursor.seek_before(key))
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        self.step(Direction::Forward, Cursor::next)
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        self.step(Direction::Backward, Cursor::prev)
    }
}
