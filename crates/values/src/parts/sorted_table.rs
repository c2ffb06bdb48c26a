//! A sorted table: values by key, found by an index of their stretches (NovKV §III-A.2, SVTable).
//!
//! Written once, durable before any edit names it, never appended to. The index is read when the first value is
//! searched for, and freed when other tables need the memory more. The same holds for what searches have found out
//! about where records begin (`places`): the second search in a stretch reads one record.

mod places;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwapOption;
use bifold_contract::{Corruption, Error, FileId, IoSource, Pointer, Result, SeqNo, Value, ValueFileMeta};
use bifold_format::{
    frame::{self, HEADER_BYTES, Step},
    sorted::{self, PROPERTIES_END_BYTES, SortedIndex, SortedIndexBuilder, SortedProperties},
    value::{self, Stored, ValueKind},
};

use self::places::{StretchNumber, StretchPlaces};
use super::{
    budget::{Budget, Taken},
    sync::LockExt,
    value_files::{Copy, ReadBy, SORTED, ValueFile, ValueFiles},
};

/// The index has an entry for so many bytes of values. The first search in such a stretch reads all of it.
const STRETCH_BYTES: u64 = 8 << 10;

/// The share of the budget that lists of places may have, as much as repaired handles.
const PLACES_SHARE: u64 = 4;

/// When there is no memory for a list, so many tables are asked for some: a search must not take long.
const TABLES_ASKED: usize = 4;

/// Tables that are gone are not looked for among fewer than so many.
const TIDIED_AT_MIN: usize = 16;

/// One sorted table.
#[derive(Debug)]
pub struct SortedTable {
    /// The file it is in.
    pub file: Arc<ValueFile>,
    /// What it says about itself.
    pub properties: SortedProperties,
    /// Where the index ends, which begins where the values end.
    index_end: u64,
    index: ArcSwapOption<Loaded>,
    /// Searched since its memory was last considered for eviction.
    is_in_use: AtomicBool,
}

/// An index in memory.
#[derive(Debug)]
struct Loaded {
    index: SortedIndex,
    /// Lock order: after that of [`Indexes`].
    places: Mutex<StretchPlaces>,
    /// `None`: there was no memory for it, so it is not kept.
    taken: Option<Taken>,
}

/// A version that is searched for.
#[derive(Clone, Copy, Debug)]
pub struct Sought<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its number. No other version has it.
    pub seqno: SeqNo,
    /// The length of its record, which is the same wherever the record is.
    pub len: u32,
}

impl SortedTable {
    /// Reads what `file` says about itself.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn open(file: Arc<ValueFile>) -> Result<Self> {
        let read = |offset: u64, len: u64| {
            let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
            file.reader().read_at(&mut bytes, offset, IoSource::Recovery)?;
            Ok(bytes)
        };
        let last = read(file.len().saturating_sub(PROPERTIES_END_BYTES as u64), PROPERTIES_END_BYTES as u64)?;
        let Some(len) = sorted::properties_len(&last, file.len()) else {
            let damage = Corruption::new(file.len(), "sorted table", "properties at its end", "none");
            return Err(damage.of(file.reader().path()));
        };
        let start = file.len() - len;
        let properties =
            sorted::decode_properties(&read(start, len)?, file.id, start).map_err(|d| d.of(file.reader().path()))?;
        if properties.values_end < file.start() || properties.values_end > start {
            let (expected, found) = (format!("values that end before {start}"), properties.values_end.to_string());
            return Err(Corruption::new(start, "sorted table", expected, found).of(file.reader().path()));
        }
        Ok(Self::new(file, properties, start))
    }

    fn new(file: Arc<ValueFile>, properties: SortedProperties, index_end: u64) -> Self {
        Self { file, properties, index_end, index: ArcSwapOption::empty(), is_in_use: AtomicBool::new(false) }
    }

    /// Bytes of the records that `number` leads to here.
    #[must_use]
    pub fn bytes_of(&self, number: FileId) -> u64 {
        let aliases = &self.properties.aliases;
        aliases.binary_search_by_key(&number, |alias| alias.0).map_or(0, |at| aliases[at].1)
    }

    /// Where a version stands, and its value; `None` when it is not there.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn search(
        self: &Arc<Self>,
        sought: Sought<'_>,
        indexes: &Indexes,
        source: IoSource,
    ) -> Result<Option<(u64, Value)>> {
        let Sought { key, seqno, len } = sought;
        let loaded = match &*self.index.load() {
            Some(loaded) => Arc::clone(loaded),
            None => indexes.load(self, source)?,
        };
        self.is_in_use.store(true, Relaxed);
        let stretch = loaded.index.find(key, seqno).map_err(|damage| damage.of(self.file.reader().path()))?;
        let Some((start, end)) = stretch else { return Ok(None) };
        let number = StretchNumber::new(start, self.properties.values_end);
        let place = loaded.places.hold().find(number, seqno);
        if let Some(place) = place {
            let at = Pointer { file: self.file.id, epoch: self.properties.epoch, offset: start + place, len };
            let found = self.read_at(key, at, source, ReadBy::AnyWay)?;
            if let Some((_, value)) = found.filter(|(written, _)| *written == seqno) {
                return Ok(Some((at.offset, value)));
            }
        }
        let bytes = self.read_stretch(start, end.unwrap_or(self.properties.values_end), source)?;
        let found = self.search_stretch((key, seqno), &bytes, start)?;
        if found.is_some() && loaded.taken.is_some() {
            indexes.keep_places(&loaded, number, || places::list_of(&bytes, self.file.id, start));
        }
        Ok(found)
    }

    /// The number and the value of the record at a place, if a whole record of `key` is there.
    ///
    /// # Errors
    /// I/O errors.
    pub fn read_at(&self, key: &[u8], at: Pointer, source: IoSource, by: ReadBy) -> Result<Option<(SeqNo, Value)>> {
        if at.offset + u64::from(at.len) > self.properties.values_end {
            return Ok(None);
        }
        let bytes = self.file.read_bytes(at, source, by)?;
        Ok(value::read_version(bytes, self.file.id, at.offset, key).ok())
    }

    /// The number of the record at a place, by its header alone; `None` if none of that length begins there.
    ///
    /// # Errors
    /// I/O errors.
    pub fn number_at(&self, at: Pointer, source: IoSource) -> Result<Option<SeqNo>> {
        let mut header = [0; HEADER_BYTES];
        if (at.len as usize) < HEADER_BYTES || at.offset + u64::from(at.len) > self.properties.values_end {
            return Ok(None);
        }
        self.file.reader().read_at(&mut header, at.offset, source)?;
        let record = frame::peek(&header, self.file.id, at.offset);
        Ok(record.filter(|&(_, len)| len == at.len as usize).map(|(number, _)| number))
    }

    fn damage(&self, at: u64) -> Error {
        let damage = Corruption::new(at, "value record", "a whole record", "one that fails its checks");
        damage.of(self.file.reader().path())
    }

    fn read_stretch(&self, start: u64, end: u64, source: IoSource) -> Result<Vec<u8>> {
        let is_inside = |_: &u64| end <= self.properties.values_end;
        let len = end.checked_sub(start).filter(is_inside).ok_or_else(|| self.damage(start))?;
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        self.file.reader().read_at(&mut bytes, start, source)?;
        Ok(bytes)
    }

    fn search_stretch(&self, version: (&[u8], SeqNo), bytes: &[u8], start: u64) -> Result<Option<(u64, Value)>> {
        let damage = |at: u64| self.damage(at);
        let mut at = 0;
        while at < bytes.len() {
            let offset = start + at as u64;
            // Headers have a check of their own, so only the record that is wanted is checked as a whole.
            let (number, len) = frame::peek(&bytes[at..], self.file.id, offset).ok_or_else(|| damage(offset))?;
            if number != version.1 {
                at += len;
                continue;
            }
            let Step::Record(frame, _) = frame::step(&bytes[at..], self.file.id, offset) else {
                return Err(damage(offset));
            };
            let record = value::decode(frame).map_err(|damage| damage.of(self.file.reader().path()))?;
            if (record.key, record.seqno) == version && record.kind == ValueKind::Value {
                let value = record.value().map_err(|damage| damage.of(self.file.reader().path()))?;
                return Ok(Some((offset, value)));
            }
            at += len;
        }
        Ok(None)
    }

    fn read_index(&self, source: IoSource) -> Result<SortedIndex> {
        let start = self.properties.values_end;
        let mut bytes = vec![0; usize::try_from(self.index_end - start).unwrap_or(usize::MAX)].into_boxed_slice();
        self.file.reader().read_at(&mut bytes, start, source)?;
        SortedIndex::new(bytes, self.file.id, start).map_err(|damage| damage.of(self.file.reader().path()))
    }
}

/// The indexes in memory, of all tables of one keyspace.
#[derive(Debug)]
pub struct Indexes {
    budget: Arc<Budget>,
    /// What lists of places may have of it.
    share: Arc<Budget>,
    loaded: Mutex<LoadedTables>,
}

/// The tables whose indexes are in memory, each once, and some that are gone.
#[derive(Debug, Default)]
struct LoadedTables {
    tables: VecDeque<Weak<SortedTable>>,
    /// Those that are gone are removed when there are so many.
    tidied_at: usize,
}

impl LoadedTables {
    fn add(&mut self, table: &Arc<SortedTable>) {
        if self.tables.len() >= self.tidied_at {
            self.tables.retain(|table| table.strong_count() > 0);
            self.tidied_at = TIDIED_AT_MIN.max(2 * self.tables.len());
        }
        self.tables.push_back(Arc::downgrade(table));
    }
}

impl Indexes {
    /// No indexes yet.
    #[must_use]
    pub fn new(budget: Arc<Budget>) -> Self {
        Self { share: Budget::new(budget.bytes_max() / PLACES_SHARE), budget, loaded: Mutex::default() }
    }

    /// Reads the index of a table, and keeps it if there is memory for it, or if tables not searched recently free
    /// enough.
    fn load(&self, table: &Arc<SortedTable>, source: IoSource) -> Result<Arc<Loaded>> {
        let index = table.read_index(source)?;
        let taken = self.room_for(index.memory_bytes());
        let is_kept = taken.is_some();
        let loaded = Arc::new(Loaded { index, places: Mutex::default(), taken });
        if is_kept {
            let mut known = self.loaded.hold();
            // Others may have read it meanwhile, and then it is among them.
            if table.index.swap(Some(Arc::clone(&loaded))).is_none() {
                known.add(table);
            }
        }
        Ok(loaded)
    }

    /// A table that was searched since its last visit here is spared once.
    fn room_for(&self, bytes: u64) -> Option<Taken> {
        let mut known = self.loaded.hold();
        let loaded = &mut known.tables;
        for _ in 0..=2 * loaded.len() {
            if let Some(taken) = self.budget.take(bytes) {
                return Some(taken);
            }
            let Some(table) = loaded.pop_front()?.upgrade() else { continue };
            if table.is_in_use.swap(false, Relaxed) {
                loaded.push_back(Arc::downgrade(&table));
            } else {
                table.index.store(None);
            }
        }
        None
    }

    /// Keeps where the records of a stretch begin, if there is memory for that.
    fn keep_places(&self, loaded: &Loaded, stretch: StretchNumber, list: impl FnOnce() -> Vec<u32>) {
        let has_list = loaded.places.hold().has(stretch);
        let list = if has_list { Vec::new() } else { list() };
        if list.is_empty() {
            return;
        }
        let needed = loaded.places.hold().growth(stretch, &list);
        if let Some(memory) = self.room_for_places(needed) {
            loaded.places.hold().keep(stretch, &list, memory);
        }
    }

    /// As for indexes, a table that was searched since its last visit here is spared once. Others lose their lists.
    fn room_for_places(&self, bytes: u64) -> Option<[Taken; 2]> {
        let take = || Some([self.share.take(bytes)?, self.budget.take(bytes)?]);
        if let Some(taken) = take() {
            return Some(taken);
        }
        let mut known = self.loaded.hold();
        for _ in 0..TABLES_ASKED.min(known.tables.len()) {
            let Some(table) = known.tables.pop_front()?.upgrade() else { continue };
            known.tables.push_back(Arc::downgrade(&table));
            let is_in_use = table.is_in_use.swap(false, Relaxed);
            if let Some(loaded) = table.index.load_full().filter(|_| !is_in_use) {
                *loaded.places.hold() = StretchPlaces::default();
            }
            if let Some(taken) = take() {
                return Some(taken);
            }
        }
        None
    }

    /// Memory for them, and for what is known of where records begin.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let loaded = self.loaded.hold();
        let tables = loaded.tables.iter().filter_map(Weak::upgrade);
        let indexes = tables.filter_map(|table| table.index.load_full());
        indexes.map(|loaded| loaded.index.memory_bytes() + loaded.places.hold().memory_bytes()).sum()
    }
}

/// Writes a sorted table.
#[derive(Debug)]
pub struct SortedWriter {
    copy: Copy,
    index: SortedIndexBuilder,
    /// The end of the stretch that is being written.
    stretch_end: u64,
}

impl SortedWriter {
    /// Begins a table.
    ///
    /// # Errors
    /// I/O errors.
    pub fn begin(files: &ValueFiles) -> Result<Self> {
        Ok(Self { copy: files.begin_copy(SORTED, 0)?, index: SortedIndexBuilder::default(), stretch_end: 0 })
    }

    /// Appends a version. Versions come by key, and those of one key by number, the newest first.
    ///
    /// # Errors
    /// I/O errors.
    pub fn add(&mut self, key: &[u8], seqno: SeqNo, stored: Stored<'_>) -> Result<()> {
        let append = |out: &mut Vec<u8>, place| value::encode(out, place, ValueKind::Value, seqno, key, stored);
        let at = self.copy.append_with(append)?.offset;
        if at >= self.stretch_end {
            self.index.add(key, seqno, at);
            self.stretch_end = at + STRETCH_BYTES;
        }
        Ok(())
    }

    /// Completes the table, durable except for its name.
    ///
    /// # Errors
    /// I/O errors; nothing is left then.
    pub fn finish(
        mut self,
        files: &ValueFiles,
        mut properties: SortedProperties,
    ) -> Result<(ValueFileMeta, SortedTable)> {
        properties.values_end = self.copy.end();
        let index = self.index;
        self.copy.append_with(|out, place| index.finish(out, place))?;
        let index_end = self.copy.append_with(|out, place| sorted::encode_properties(out, place, &properties))?.offset;
        let meta = files.finish_alone(self.copy)?;
        let file = files.get(meta.id).unwrap_or_else(|| unreachable!("finished right now"));
        Ok((meta, SortedTable::new(file, properties, index_end)))
    }
}

#[cfg(test)]
mod tests {
    use bifold_io::memory::MemoryFs;

    use super::*;
    use crate::parts::value_files::scratch::value_files;

    /// A table with one version of one key.
    fn table(files: &ValueFiles) -> Arc<SortedTable> {
        let mut writer = SortedWriter::begin(files).unwrap();
        writer.add(b"key", 7, Stored::plain(b"value")).unwrap();
        Arc::new(writer.finish(files, SortedProperties::default()).unwrap().1)
    }

    #[test]
    fn tables_that_are_gone_are_not_remembered() {
        let files = value_files(&MemoryFs::new(), 100);
        let indexes = Indexes::new(Budget::new(1 << 20));
        let stays = table(&files);
        for n in 0..100 {
            let of = if n == 0 { Arc::clone(&stays) } else { table(&files) };
            let sought = Sought { key: b"key", seqno: 7, len: 34 };
            let (_, value) = of.search(sought, &indexes, IoSource::Get).unwrap().unwrap();
            assert_eq!(value, &b"value"[..]);
        }
        let known = indexes.loaded.hold().tables.len();
        assert!(known <= TIDIED_AT_MIN, "{known} tables, of which one is left");
        let is_there = |table: &Weak<SortedTable>| Weak::ptr_eq(table, &Arc::downgrade(&stays));
        assert!(indexes.loaded.hold().tables.iter().any(is_there));
        assert_eq!(indexes.memory_bytes(), indexes.budget.used_bytes(), "that of one index");
    }

    /// Two threads may read it at the same time, since reading needs no lock.
    #[test]
    fn an_index_that_is_read_twice_counts_once() {
        let files = value_files(&MemoryFs::new(), 100);
        let indexes = Indexes::new(Budget::new(1 << 20));
        let table = table(&files);
        for _ in 0..2 {
            drop(indexes.load(&table, IoSource::Get).unwrap());
        }
        assert_eq!(indexes.loaded.hold().tables.len(), 1);
        assert!(indexes.memory_bytes() > 0);
        assert_eq!(indexes.memory_bytes(), indexes.budget.used_bytes());
    }
}
