//! Sorted tables: written once, then only read.
//!
//! | file | what it is |
//! |---|---|
//! | [`writer`] | writes a table |
//! | `file` | reads and verifies its blocks |
//! | [`cursor`] | iterates over a table |
//! | [`left_out`] | blocks that cannot be read, and the keys that may be missing because of them |
//! | [`salvage`] | the whole blocks of a table of which anything may be damaged |
//! | `held` | filter and index in memory |
//! | `in_parts` | finds an entry by one part of a long index |
//! | `read_ahead` | reads several blocks at once, for cursors |
//! | `estimate` | how much of a table lies in a key range |
//! | [`verify`] | reads every byte and reports all damage |
//! | [`context`] | shared by tables: the cache and the budget for indexes and filters |
//!
//! A point read asks the filter (one cache line), finds the block in the index (heads of its fences, adjacent ones),
//! takes the block from the cache or reads it, and finds the key in it.
//!
//! A table that is no longer needed is marked obsolete, and its file is removed when the last reference is dropped.
//! So versions and iterators keep the files they read.

pub mod context;
pub mod cursor;
mod estimate;
pub mod left_out;
pub mod salvage;
pub mod verify;
pub mod writer;

mod file;
mod held;
mod in_parts;
mod read_ahead;

use std::{
    ops::{Deref, Range},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bifold_contract::{Corruption, IoSource, Kind, RangeTombstone, Result, SeqNo, TableMeta, Value};
use bifold_format::{
    block::{self, Answer, Found},
    filter::{self, Filter},
    table::{Place, index::Index},
};
pub use context::TableContext;
pub use cursor::{ReadMode, TableCursor};
use file::TableFile;
use held::HeldMemory;
pub use writer::{TableOptions, TableWriter};

use crate::{cpu::prefetch_lines, cursor::Cursor, memtable::MemtableRanges};

/// A version of a key found in a table.
#[derive(Clone, Debug)]
pub struct FoundEntry {
    /// Its sequence number.
    pub seqno: SeqNo,
    /// Its kind.
    pub kind: Kind,
    /// The value, an encoded pointer, or nothing. It shares the block, if that is cached.
    pub payload: Value,
}

/// An open table.
#[derive(Debug)]
pub struct Table {
    meta: Arc<TableMeta>,
    file: TableFile,
    context: Arc<TableContext>,
    /// The place of its filter; empty if it has none.
    filter: Place,
    /// Filter and index, if the budget had room for them.
    held: HeldMemory,
    /// The place of that top; empty if the index is in one piece.
    top: Place,
    tombstones: Vec<RangeTombstone>,
    covering: MemtableRanges,
    obsolete: AtomicBool,
}

/// What a block, or several in a row, have to say about a version of a key.
enum InBlock {
    Found(FoundEntry),
    Absent,
    EndsInKey,
}

/// [`InBlock`] of an [`Answer`].
trait IntoEntry {
    fn into_entry(self, payload: impl FnOnce(Range<usize>) -> Value) -> InBlock;
}

impl IntoEntry for Answer {
    #[inline]
    fn into_entry(self, payload: impl FnOnce(Range<usize>) -> Value) -> InBlock {
        match self {
            Answer::Found(Found { seqno, kind, payload: range }) => {
                InBlock::Found(FoundEntry { seqno, kind, payload: payload(range) })
            }
            Answer::Absent => InBlock::Absent,
            Answer::EndsInKey => InBlock::EndsInKey,
        }
    }
}

/// A section, held or just loaded.
enum Section<'a> {
    Held(&'a Value),
    Loaded(Value),
}

impl Deref for Section<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Section::Held(bytes) => bytes,
            Section::Loaded(bytes) => bytes,
        }
    }
}

impl Table {
    /// Opens the table that `meta` describes and checks that the file matches.
    ///
    /// # Errors
    /// I/O errors, and corruption of anything except data blocks, which are verified when they are read.
    pub fn open(dir: &bifold_io::Dir, meta: Arc<TableMeta>, context: &Arc<TableContext>) -> Result<Arc<Self>> {
        let (file, tail) = TableFile::open(dir, meta.id)?;
        if tail.properties.meta != *meta {
            let (expected, found) = (format!("{meta:?}"), format!("{:?}", tail.properties.meta));
            return Err(file.error(Corruption::new(0, "table", expected, found)));
        }
        let covering = MemtableRanges::of_table(&tail.tombstones);
        let held = HeldMemory::open(&tail, context);
        let top = tail.top.map_or_else(Place::default, |(_, place)| place);
        let filter = if tail.properties.has_key_hashes() { Place::default() } else { file.footer.filter() };
        let (context, obsolete) = (Arc::clone(context), AtomicBool::new(false));
        let tombstones = tail.tombstones;
        Ok(Arc::new(Self { meta, file, context, filter, held, top, tombstones, covering, obsolete }))
    }

    /// The metadata in the file of table `id`: for salvage without a manifest.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn read_meta(dir: &bifold_io::Dir, id: bifold_contract::FileId) -> Result<TableMeta> {
        Ok(TableFile::open(dir, id)?.1.properties.meta)
    }

    /// The newest version of `key` that is not newer than `snapshot`. Ignores range tombstones; see
    /// [`Table::covering`].
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn get(&self, key: &[u8], key_hash: u64, snapshot: SeqNo, source: IoSource) -> Result<Option<FoundEntry>> {
        if self.may_contain(key_hash)? { self.find(key, snapshot, source) } else { Ok(None) }
    }

    /// As [`Table::get`], without the filter.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn find(&self, key: &[u8], snapshot: SeqNo, source: IoSource) -> Result<Option<FoundEntry>> {
        if self.is_read_in_parts() {
            return self.find_in_parts(key, snapshot, source);
        }
        let Some(index) = self.index()? else { return Ok(None) };
        match self.find_in(&self.parse(&index)?, key, snapshot, source)? {
            InBlock::Found(found) => Ok(Some(found)),
            InBlock::Absent | InBlock::EndsInKey => Ok(None),
        }
    }

    /// Looks for a version of `key` in the blocks of `index`, all blocks of the table or those of a part of its index.
    #[inline]
    fn find_in(&self, index: &Index<'_>, key: &[u8], snapshot: SeqNo, source: IoSource) -> Result<InBlock> {
        for at in index.find(key)..index.blocks() {
            match self.find_at(self.file.place(index, at)?, key, snapshot, source)? {
                InBlock::EndsInKey => {}
                found => return Ok(found),
            }
        }
        Ok(InBlock::EndsInKey)
    }

    /// Looks for a version of `key` in one block. Of a block that is mapped, only the payload is copied into memory
    /// of its own.
    #[inline]
    fn find_at(&self, place: Place, key: &[u8], snapshot: SeqNo, source: IoSource) -> Result<InBlock> {
        let search = |block: &[u8]| block::get(block, key, snapshot).map_err(|damage| self.damage(damage, place));
        if self.file.is_mapped() {
            let found = self.file.look_at_plain_block(place, source, |block| {
                Ok(search(block)?.into_entry(|payload| Value::copy_of(&block[payload])))
            })?;
            if let Some(found) = found {
                return Ok(found);
            }
        }
        let block = self.block(place, source)?;
        Ok(search(&block)?.into_entry(|payload| block.part(payload.start, payload.end)))
    }

    /// Announces the block in which [`Table::find`] will look for `key`, if the index is held in memory.
    pub fn expect(&self, key: &[u8]) {
        let index = self.held.whole().and_then(|held| held.index.as_ref());
        let Some(index) = index.and_then(|index| self.parse(index).ok()) else { return };
        // Damage is reported when the key is looked up.
        let Ok(place) = self.file.place(&index, index.find(key).min(index.blocks() - 1)) else { return };
        if self.file.is_mapped() {
            self.file.reader.touch(place.start, place.len());
        } else if !self.context.cache().has(self.meta.id, place.start)
            && !self.file.reader.is_in_memory(place.start, place.len())
        {
            self.file.reader.prefetch(place.start, place.len());
        }
    }

    /// Whether a key with this hash may be in the table. Always true without a filter.
    ///
    /// # Errors
    /// I/O errors and corruption, if the filter is not in memory.
    #[inline]
    pub fn may_contain(&self, key_hash: u64) -> Result<bool> {
        let filter = match self.held.whole() {
            Some(held) => held.filter.as_ref().map(Section::Held),
            None => match self.held.top() {
                Some(held) => held.filter.as_ref().map(Section::Held),
                None => self.load(self.filter)?,
            },
        };
        let Some(filter) = filter else { return Ok(true) };
        let filter = Filter::parse(&filter).map_err(|damage| self.damage(damage, self.filter))?;
        Ok(filter.may_contain(key_hash))
    }

    /// As [`Table::may_contain`], but without I/O: true for any table with entries if the filter is not in memory.
    #[inline]
    #[must_use]
    pub fn may_contain_as_held(&self, key_hash: u64) -> bool {
        self.has_entries() && self.held_filter().is_none_or(|filter| filter.may_contain(key_hash))
    }

    /// Prefetches into the processor's caches what [`Table::may_contain`] will look at, if the filter is in memory.
    #[inline]
    pub fn expect_filter(&self, key_hash: u64) {
        if let Some(filter) = self.held_filter() {
            prefetch_lines(filter.line(key_hash).as_ptr(), 1);
        }
    }

    /// The filter, if it is in memory.
    #[inline]
    fn held_filter(&self) -> Option<Filter<'_>> {
        let held = self.held.whole().or_else(|| self.held.top());
        Filter::parse(held?.filter.as_ref()?).ok()
    }

    /// The hashes of its keys, each once, in any order. They stand in the file where there is to be a hash index;
    /// where they do not, or cannot be read, all entries are read.
    ///
    /// # Errors
    /// I/O errors and corruption of entries.
    pub fn key_hashes(self: &Arc<Self>) -> Result<Vec<u64>> {
        if self.has_filter() {
            return self.hashes_of_entries();
        }
        match self.file.section(self.file.footer.filter(), IoSource::Metadata) {
            Ok(Some(section)) => filter::key_hashes(&section).or_else(|_damaged| self.hashes_of_entries()),
            Ok(None) => self.hashes_of_entries(),
            Err(error) if error.is_corruption() => self.hashes_of_entries(),
            Err(error) => Err(error),
        }
    }

    fn hashes_of_entries(self: &Arc<Self>) -> Result<Vec<u64>> {
        let mut hashes = Vec::new();
        let mut last: Option<Vec<u8>> = None;
        let mut cursor = self.cursor(ReadMode::Compaction);
        cursor.first()?;
        while let Some(entry) = cursor.entry() {
            if last.as_deref() != Some(entry.key) {
                hashes.push(filter::key_hash(entry.key));
                let last = last.get_or_insert_default();
                last.clear();
                last.extend_from_slice(entry.key);
            }
            cursor.next()?;
        }
        Ok(hashes)
    }

    /// Whether it has a filter.
    #[inline]
    #[must_use]
    pub fn has_filter(&self) -> bool {
        !self.filter.is_empty()
    }

    /// Whether it has entries, not only range tombstones.
    #[inline]
    #[must_use]
    pub fn has_entries(&self) -> bool {
        self.file.footer.data_bytes > 0
    }

    /// The largest number, not above `snapshot`, of a range tombstone of this table that spans `key`; 0 when there is
    /// none.
    #[inline]
    #[must_use]
    pub fn covering(&self, key: &[u8], snapshot: SeqNo) -> SeqNo {
        self.covering.covering(key, snapshot)
    }

    /// Its metadata, as in the manifest.
    #[inline]
    #[must_use]
    pub fn meta(&self) -> &Arc<TableMeta> {
        &self.meta
    }

    /// Its range tombstones, by start, then newest first.
    #[must_use]
    pub fn range_tombstones(&self) -> &[RangeTombstone] {
        &self.tombstones
    }

    /// A new cursor over its entries, not yet placed.
    #[must_use]
    pub fn cursor(self: &Arc<Self>, mode: ReadMode) -> TableCursor {
        TableCursor::new(Arc::clone(self), mode)
    }

    /// Reads every byte and reports all damage.
    #[must_use]
    pub fn verify(&self) -> Vec<bifold_contract::Error> {
        verify::verify(self.file.dir(), &self.meta)
    }

    /// Removes the file when the last reference to the table is dropped.
    pub fn mark_obsolete(&self) {
        self.obsolete.store(true, Ordering::Release);
    }

    /// The index; `None` if there are no entries.
    fn index(&self) -> Result<Option<Section<'_>>> {
        match self.held.whole() {
            Some(held) => Ok(held.index.as_ref().map(Section::Held)),
            None => self.load(self.file.footer.index()),
        }
    }

    /// The index in `bytes`, which are those of [`Table::index`].
    #[inline]
    fn parse<'a>(&self, bytes: &'a [u8]) -> Result<Index<'a>> {
        let index = match self.held.whole().and_then(|held| held.layout) {
            Some(layout) => layout.index(bytes),
            None => Index::parse(bytes),
        };
        index.map_err(|damage| self.damage(damage, self.file.footer.index()))
    }

    /// The index, owned, for a cursor.
    fn index_to_hold(&self) -> Result<Option<Value>> {
        Ok(self.index()?.map(|section| match section {
            Section::Held(index) => index.clone(),
            Section::Loaded(index) => index,
        }))
    }

    /// A section, read through the cache; `None` if it is missing.
    #[cold]
    fn load(&self, place: Place) -> Result<Option<Section<'_>>> {
        if place.is_empty() {
            return Ok(None);
        }
        let cached = self.context.cache().get(self.meta.id, place.start);
        let section = match cached {
            Some(section) => section,
            None => {
                let Some(section) = self.file.section(place, IoSource::Metadata)? else { return Ok(None) };
                self.context.cache().insert(self.meta.id, place.start, section.clone());
                section
            }
        };
        self.hold_more();
        Ok(Some(Section::Loaded(section)))
    }

    /// A data block in the cache.
    #[inline]
    fn cached_block(&self, place: Place) -> Option<Value> {
        if self.file.is_mapped() { None } else { self.context.cache().get(self.meta.id, place.start) }
    }

    /// A data block, from the cache or from the file. One that is mapped takes no room in the cache: it would be
    /// twice in memory, and a copy with its checksum takes less than finding it there (decision 0006).
    #[inline]
    fn block(&self, place: Place, source: IoSource) -> Result<Value> {
        if self.file.is_mapped()
            && let Some(block) = self.file.plain_block(place, source)?
        {
            return Ok(block);
        }
        if let Some(block) = self.context.cache().get(self.meta.id, place.start) {
            return Ok(block);
        }
        let block = self.file.block(place, source)?;
        self.context.cache().insert(self.meta.id, place.start, block.clone());
        Ok(block)
    }

    /// Damage within the block at `place` as an error.
    #[cold]
    fn damage(&self, damage: Corruption, place: Place) -> bifold_contract::Error {
        self.file.error(damage.at(place.start))
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.context.give_back(self.held.bytes());
        if self.obsolete.load(Ordering::Acquire) {
            self.file.remove_when_unused();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
