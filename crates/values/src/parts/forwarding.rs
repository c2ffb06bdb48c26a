//! Where values have moved, for readers and rewrites that still have their old pointers.
//!
//! ```text
//! index: pointer into file 7 ─▶ 7 is deleted ─▶ forwards of 7: row of that offset ─▶ file 12 ─▶ its record
//!        merge finds the pointer ─────────────▶ writes the new one in its place, and counts the row as used up
//!        all rows of a unit are used up ──────▶ the edit that uses the last one deletes its forwarding file
//! ```
//!
//! A **unit** is what one GC run has moved: one forwarding file, with a table of rows for each source. Rows are ten
//! bytes on disk and 13 in memory. A value that has moved twice is found through two tables.
//!
//! **What is exact.** A row is used up when the version it is for leaves the index or is written with a newer pointer.
//! Both happen by an edit of the manifest, and so does the installation of a unit. Rows are counted as used when that
//! edit is recorded, under the manifest lock. Which rows a newer pointer uses up is known when it is written: they lead
//! from the old one to it. Which a dropped version uses up is decided when the edit is recorded.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use arc_swap::ArcSwap;
use bifold_contract::{Error, FileId, IoSource, Pointer, Result, planted};
use bifold_format::{
    forward::{self, ROW_BYTES, Row},
    value::ValueKind,
};

use super::{
    budget::{Budget, Granted},
    hash_map::HashMap,
    scan::Scan,
    sync::LockExt,
    value_files::ValueFile,
};

/// Where the values of one file have moved, by one GC run.
#[derive(Debug)]
struct ForwardingTable {
    /// The forwarding file.
    unit: FileId,
    /// The offset of the first row.
    first: u32,
    /// Parts of the offsets after it are as wide as this power of two.
    part_bits: u32,
    /// The first row of each part, and then how many rows there are.
    parts: Box<[u32]>,
    rows: Box<[Row]>,
    outputs: Box<[FileId]>,
}

/// Rows that are spread evenly have parts with so many of them, or up to twice as many: about one line of a cache.
const PART_ROWS: usize = 4;

/// What a row takes in memory: itself and its share of the parts.
const ROW_MEMORY_BYTES: u64 = (size_of::<Row>() + size_of::<u32>() / PART_ROWS) as u64;

impl ForwardingTable {
    fn of(unit: FileId, forwards: forward::Forwards) -> Self {
        let forward::Forwards { outputs, rows } = forwards;
        let first = rows.first().map_or(0, |row| row.from);
        let span = rows.last().map_or(0, |row| row.from) - first;
        let parts_max = (rows.len() / PART_ROWS).max(1) as u64;
        let part_bits = (0..u32::BITS).find(|&bits| u64::from(span >> bits) < parts_max).unwrap_or(u32::BITS - 1);
        let mut parts = Vec::with_capacity((span >> part_bits) as usize + 2);
        for (at, row) in (0..).zip(&rows) {
            parts.resize(parts.len().max(((row.from - first) >> part_bits) as usize + 1), at);
        }
        parts.push(rows.len() as u32);
        Self { unit, first, part_bits, parts: parts.into(), rows: rows.into(), outputs: outputs.into() }
    }

    fn next(&self, at: Pointer) -> Option<Pointer> {
        let Row { to, output, .. } = self.find(u32::try_from(at.offset).ok()?)?;
        Some(Pointer { file: self.outputs[usize::from(output)], offset: to.into(), ..at })
    }

    /// The row of an offset.
    fn find(&self, from: u32) -> Option<Row> {
        let part = (from.checked_sub(self.first)? >> self.part_bits) as usize;
        let (begin, end) = (*self.parts.get(part)?, *self.parts.get(part + 1)?);
        let rows = &self.rows[begin as usize..end as usize];
        rows.binary_search_by_key(&from, |row| row.from).ok().map(|at| rows[at])
    }

    fn memory_bytes(&self) -> u64 {
        (size_of_val(&*self.parts) + size_of_val(&*self.rows) + size_of_val(&*self.outputs)) as u64
    }
}

/// The tables of one file. Only a crash leads to more than one.
#[derive(Clone, Debug)]
struct MovedFile {
    table: Arc<ForwardingTable>,
    more: Vec<Arc<ForwardingTable>>,
}

impl MovedFile {
    fn tables(&self) -> impl Iterator<Item = &Arc<ForwardingTable>> {
        std::iter::once(&self.table).chain(&self.more)
    }
}

/// Tables by the file whose values have moved.
type Tables = HashMap<FileId, MovedFile>;

fn next(tables: &Tables, pointer: Pointer) -> Option<(Pointer, FileId)> {
    let next = |table: &Arc<ForwardingTable>| table.next(pointer).map(|next| (next, table.unit));
    tables.get(&pointer.file)?.tables().find_map(next)
}

fn follow(tables: &Tables, mut pointer: Pointer, mut used: impl FnMut(FileId)) -> Pointer {
    while let Some((there, unit)) = next(tables, pointer) {
        used(unit);
        pointer = there;
    }
    pointer
}

/// What one GC run has moved.
#[derive(Debug)]
struct ForwardingUnit {
    file: Arc<ValueFile>,
    sources: Vec<FileId>,
    rows: u64,
    /// Whether all of its rows could be read. Otherwise it is never used up: nobody knows how many there are.
    is_whole: bool,
    memory: Granted,
}

/// The units of a keyspace, by their files.
type Units = BTreeMap<FileId, ForwardingUnit>;

/// All units of a keyspace.
#[derive(Debug, Default)]
pub struct Forwarding {
    tables: ArcSwap<Tables>,
    units: Mutex<Units>,
}

/// Forwarding tables have this share of the memory for filters and indexes. What they need beyond it they borrow, as
/// long as there are no more rows than values: more would only lead readers from one to the next.
const MEMORY_SHARE: u64 = 2;

/// How much of a budget is for forwarding tables. With more it is time to renew all addresses.
#[must_use]
pub fn own_bytes_max(budget: &Budget) -> u64 {
    budget.bytes_max() / MEMORY_SHARE
}

/// Adds the tables of a forwarding file to `tables`, each with its source. Goes on behind damage.
///
/// # Errors
/// The first damage, once all other tables are there; I/O errors.
fn read_tables(file: &ValueFile, tables: &mut Vec<(FileId, forward::Forwards)>) -> Result<()> {
    let (mut scan, mut whole) = (Scan::new(file, file.start(), file.len(), IoSource::Recovery), Ok(()));
    loop {
        match scan.sound() {
            Ok(Some((record, _))) if record.kind == ValueKind::Forwards => {
                let at = record.offset;
                let forwards = forward::decode(record.body());
                tables.push((record.seqno, forwards.map_err(|damage| damage.at(at).of(file.reader().path()))?));
            }
            Ok(Some(_)) => {}
            Ok(None) => return whole,
            Err(error) => {
                whole = whole.and(Err(error));
                if scan.find_next()?.is_none() {
                    return whole;
                }
            }
        }
    }
}

fn own_bytes(units: &Units) -> u64 {
    units.values().map(|unit| unit.memory.own_bytes()).sum()
}

impl Forwarding {
    /// Reads a forwarding file of an earlier session, as far as it can be read. Returns why rows are missing, if some
    /// are.
    ///
    /// # Errors
    /// I/O errors that say nothing of what is stored.
    pub fn adopt(&self, file: &Arc<ValueFile>, budget: &Arc<Budget>, values: u64) -> Result<Option<Error>> {
        let mut tables = Vec::new();
        let unreadable = match read_tables(file, &mut tables) {
            Err(error) if !error.is_unreadable() => return Err(error),
            read => read.err(),
        };
        self.add_unit(file, tables, (budget, values), unreadable.is_none());
        Ok(unreadable)
    }

    /// Leads readers of these sources to where their values are now. The memory for it is of
    /// `budget` or borrowed; about so many `values` are live.
    pub fn add(
        &self,
        file: &Arc<ValueFile>,
        of_sources: Vec<(FileId, forward::Forwards)>,
        budget: &Arc<Budget>,
        values: u64,
    ) {
        self.add_unit(file, of_sources, (budget, values), true);
    }

    fn add_unit(
        &self,
        file: &Arc<ValueFile>,
        of_sources: Vec<(FileId, forward::Forwards)>,
        (budget, values): (&Arc<Budget>, u64),
        is_whole: bool,
    ) {
        let mut units = self.units.hold();
        let mut tables = HashMap::clone(&self.tables.load());
        let (mut rows, mut bytes, mut sources) = (0, 0, Vec::new());
        for (source, forwards) in of_sources {
            let table = Arc::new(ForwardingTable::of(file.id, forwards));
            rows += table.rows.len() as u64;
            bytes += table.memory_bytes();
            sources.push(source);
            match tables.get_mut(&source) {
                Some(moved) => moved.more.push(table),
                None => drop(tables.insert(source, MovedFile { table, more: Vec::new() })),
            }
        }
        let has_own = own_bytes(&units) + bytes <= own_bytes_max(budget);
        let may_borrow = !has_own && self.memory_bytes() + bytes <= values.saturating_mul(ROW_MEMORY_BYTES);
        let lent = if may_borrow { budget.borrow(bytes) } else { None };
        let memory = lent.map_or_else(|| Granted::Own(budget.take_anyway(bytes)), Granted::Lent);
        self.tables.store(Arc::new(tables));
        units.insert(file.id, ForwardingUnit { file: Arc::clone(file), sources, rows, is_whole, memory });
    }

    /// A unit was removed from the manifest: nothing in the index leads to it.
    pub fn remove(&self, unit: FileId) {
        let mut units = self.units.hold();
        let Some(ForwardingUnit { sources, .. }) = units.remove(&unit) else { return };
        let mut tables = HashMap::clone(&self.tables.load());
        for source in sources {
            let Some(moved) = tables.remove(&source) else { continue };
            let mut left = moved.tables().filter(|table| table.unit != unit).map(Arc::clone);
            if let Some(table) = left.next() {
                tables.insert(source, MovedFile { table, more: left.collect() });
            }
        }
        self.tables.store(Arc::new(tables));
    }

    /// Whether nothing has moved that the index does not know.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tables.load().is_empty()
    }

    /// Where the value at `pointer` has moved by one GC run, and that run's unit.
    #[must_use]
    pub fn next(&self, pointer: Pointer) -> Option<(Pointer, FileId)> {
        next(&self.tables.load(), pointer)
    }

    /// Where the value at `pointer` is now.
    #[must_use]
    pub fn resolve(&self, pointer: Pointer) -> Pointer {
        self.follow(pointer, |_| {})
    }

    /// The same. Calls `used` with the unit of each row on the way.
    #[must_use]
    pub fn follow(&self, pointer: Pointer, used: impl FnMut(FileId)) -> Pointer {
        follow(&self.tables.load(), pointer, used)
    }

    /// Where the values at these pointers are now, all at one moment.
    #[must_use]
    pub fn follow_all(&self, pointers: &[Pointer], mut used: impl FnMut(FileId)) -> Vec<Pointer> {
        let tables = self.tables.load();
        pointers.iter().map(|&at| follow(&tables, at, &mut used)).collect()
    }

    /// The units without a row that anything in the index needs, once these counts of used rows are added, each with
    /// its bytes.
    #[must_use]
    pub fn used_up(&self, garbage: &[(FileId, u64, u64)]) -> Vec<(FileId, u64)> {
        let units = self.units.hold();
        let spared = if planted!("forwards_go_early") { ROW_BYTES } else { 0 };
        let is_used_up = |&&(id, bytes, _): &&(FileId, u64, u64)| {
            let has_rows = |unit: &ForwardingUnit| unit.file.dead() + bytes + spared < unit.rows * ROW_BYTES;
            units.get(&id).is_some_and(|unit| unit.is_whole && !has_rows(unit))
        };
        garbage.iter().filter(is_used_up).map(|&(id, ..)| (id, units[&id].file.len())).collect()
    }

    /// Values that have moved and that the index still has at their old place.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        let units = self.units.hold();
        units.values().map(|unit| unit.rows.saturating_sub(unit.file.dead() / ROW_BYTES)).sum()
    }

    /// The files whose values have moved, that a unit knows of.
    #[must_use]
    pub fn sources(&self) -> Vec<FileId> {
        self.tables.load().keys().copied().collect()
    }

    /// Whether values of any of these files have moved.
    #[must_use]
    pub fn has_sources(&self, files: impl IntoIterator<Item = FileId>) -> bool {
        let tables = self.tables.load();
        files.into_iter().any(|file| tables.contains_key(&file))
    }

    /// Memory of all tables that is not borrowed.
    #[must_use]
    pub fn own_memory_bytes(&self) -> u64 {
        own_bytes(&self.units.hold())
    }

    /// Memory of all tables.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.tables.load().values().flat_map(MovedFile::tables).map(|table| table.memory_bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use bifold_format::forward::Forwards;
    use bifold_io::memory::MemoryFs;

    use super::*;
    use crate::parts::{
        budget::{Lender, Memory},
        value_files::{FORWARDS, ValueFiles, scratch::value_files},
    };

    fn at(file: FileId, offset: u64) -> Pointer {
        Pointer { file, epoch: 0, offset, len: 9 }
    }

    fn rows(offsets: &[(u32, u32)]) -> Forwards {
        let rows = offsets.iter().map(|&(from, to)| Row { from, to, output: 0 }).collect();
        Forwards { outputs: vec![70], rows }
    }

    /// A forwarding file with these tables.
    fn file(files: &ValueFiles, tables: &[(FileId, Forwards)]) -> Arc<ValueFile> {
        let mut copy = files.begin_copy(FORWARDS, 0).unwrap();
        for (source, forwards) in tables {
            copy.append_with(|out, place| forward::encode(out, place, *source, forwards)).unwrap();
        }
        let meta = files.finish_alone(copy).unwrap();
        files.get(meta.id).unwrap()
    }

    #[test]
    fn values_are_found_where_two_runs_have_moved_them() {
        let (files, budget, forwarding) =
            (value_files(&MemoryFs::new(), 100), Budget::new(1 << 20), Forwarding::default());
        let first = [(50, rows(&[(100, 8), (200, 16)]))];
        let second = [(70, rows(&[(16, 900)])), (60, rows(&[(1, 2)]))];
        let [first, second] = [&first[..], &second[..]].map(|tables| file(&files, tables));
        for unit in [&first, &second] {
            forwarding.adopt(unit, &budget, 0).unwrap();
        }
        assert_eq!(forwarding.resolve(at(50, 100)), at(70, 8));
        assert_eq!(forwarding.resolve(at(50, 200)), at(70, 900), "moved twice");
        assert_eq!(forwarding.resolve(at(50, 150)), at(50, 150), "it was dead");
        assert_eq!(forwarding.next(at(50, 200)), Some((at(70, 16), first.id)));
        assert_eq!((forwarding.waiting(), budget.used_bytes()), (4, forwarding.memory_bytes()));
        forwarding.remove(first.id);
        assert_eq!(forwarding.resolve(at(50, 100)), at(50, 100));
        assert_eq!(forwarding.resolve(at(70, 16)), at(70, 900));
        forwarding.remove(second.id);
        assert!(forwarding.is_empty() && budget.used_bytes() == 0);
    }

    /// Lends one table, and no more.
    #[derive(Debug, Default)]
    struct LendsOnce(std::sync::atomic::AtomicU64);

    impl Lender for LendsOnce {
        fn lend(&self, bytes: u64) -> bool {
            self.0.compare_exchange(0, bytes, Relaxed, Relaxed).is_ok()
        }

        fn take_back(&self, bytes: u64) {
            self.0.fetch_sub(bytes, Relaxed);
        }
    }

    #[test]
    fn rows_borrow_beyond_their_share_unless_there_are_more_than_values() {
        let (lender, files) = (Arc::new(LendsOnce::default()), value_files(&MemoryFs::new(), 100));
        let unit = |nth: u64| file(&files, &[(50 + nth, rows(&[(1, 1), (2, 2)]))]);
        let units = [0, 1, 2].map(unit);
        let one = {
            let (alone, budget) = (Forwarding::default(), Budget::new(1 << 20));
            alone.adopt(&units[0], &budget, 0).unwrap();
            alone.own_memory_bytes()
        };
        // The share is for one table.
        let budget = Memory::with_lender(one * MEMORY_SHARE, 0, Arc::clone(&lender) as Arc<dyn Lender>).filters;
        for (values, own_then) in [(0, [1, 2, 3]), (1000, [1, 1, 2])] {
            let forwarding = Forwarding::default();
            for (unit, own) in units.iter().zip(own_then) {
                forwarding.adopt(unit, &budget, values).unwrap();
                assert_eq!((forwarding.own_memory_bytes(), budget.used_bytes()), (own * one, own * one), "{values}");
            }
            assert_eq!(forwarding.memory_bytes(), 3 * one);
            assert_eq!(lender.0.load(Relaxed), if values == 0 { 0 } else { one });
            units.iter().for_each(|unit| forwarding.remove(unit.id));
            assert_eq!((forwarding.own_memory_bytes(), budget.used_bytes(), lender.0.load(Relaxed)), (0, 0, 0));
        }
    }

    #[test]
    fn each_row_is_found_however_unevenly_they_are_spread() {
        let spreads: [fn(u32) -> u32; 4] =
            [|n| 7 + n, |n| 1000 * n, |n| n * n, |n| if n < 900 { n } else { 1 << 30 | n }];
        for spread in spreads {
            for count in [0, 1, 2, 21, 1000] {
                let rows: Vec<Row> = (0..count).map(|n| Row { from: 2 * spread(n), to: n, output: 0 }).collect();
                let table = ForwardingTable::of(9, Forwards { outputs: vec![70], rows: rows.clone() });
                for row in &rows {
                    assert_eq!(table.find(row.from), Some(*row), "of {count}");
                    assert_eq!(table.find(row.from + 1), None, "of {count}");
                }
            }
        }
    }

    #[test]
    fn what_can_be_read_of_a_damaged_unit_is_used_and_never_used_up() {
        let fs = MemoryFs::new();
        let (files, budget) = (value_files(&fs, 100), Budget::new(1 << 20));
        let unit = file(&files, &[(50, rows(&[(1, 11)])), (51, rows(&[(2, 22)])), (52, rows(&[(3, 33)]))]);
        let record_bytes = (unit.len() - unit.start()) / 3;
        for damaged in 0..3 {
            let forwarding = Forwarding::default();
            let bit = (unit.start() + damaged * record_bytes + record_bytes / 2) * 8;
            fs.flip_bit(unit.reader().path(), bit);
            let error = forwarding.adopt(&unit, &budget, 0).unwrap().unwrap();
            assert_eq!(error.path(), Some(unit.reader().path()));
            let found = [at(50, 1), at(51, 2), at(52, 3)].map(|from| forwarding.next(from).is_some());
            assert_eq!(found, [0, 1, 2].map(|table| table != damaged));
            assert_eq!(forwarding.used_up(&[(unit.id, 2 * ROW_BYTES, 2)]), []);
            fs.flip_bit(unit.reader().path(), bit);
            forwarding.remove(unit.id);
        }
    }

    #[test]
    fn a_unit_is_used_up_when_its_last_row_is() {
        let (files, budget, forwarding) =
            (value_files(&MemoryFs::new(), 100), Budget::new(1 << 20), Forwarding::default());
        let unit = file(&files, &[(50, rows(&[(1, 1), (2, 2)])), (51, rows(&[(7, 7)]))]);
        forwarding.adopt(&unit, &budget, 0).unwrap();
        let used = |rows: u64| forwarding.used_up(&[(unit.id, rows * ROW_BYTES, rows), (3, 1 << 30, 1)]);
        assert_eq!(used(2), []);
        assert_eq!(used(3), [(unit.id, unit.len())]);
        unit.add_dead(2 * ROW_BYTES);
        assert_eq!((used(0), forwarding.waiting()), (vec![], 1));
        assert_eq!(used(1), [(unit.id, unit.len())]);
    }
}
