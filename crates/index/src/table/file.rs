//! A table's file: its blocks, verified when they are read.
//!
//! Opening takes two reads: the footer, then everything from the filter to the footer at once. Blocks that are not long
//! are read through mapped pages, as short values are: without a system call, while they are in memory.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use bifold_contract::{Corruption, Error, FileId, IoSource, RangeTombstone, Result, Value};
use bifold_format::{
    block::sealed::{BLOCK_BYTES_MAX, SEAL_BYTES, check, unseal},
    compression::{Method, zeroed},
    filter::Filter,
    names,
    table::{
        FOOTER_BYTES, Footer, IndexForm, Place,
        index::Index,
        parts::{self, TRAILER_BYTES},
        properties::Properties,
        tombstones,
    },
};
use bifold_io::{Dir, Reader, SCRATCH_BYTES, with_scratch};

/// Blocks of at most so many bytes, uncompressed, are read through mapped pages: those of the default size, too. Longer
/// ones are read by calls.
const MAPPED_BLOCK_BYTES_MAX: usize = 8 << 10;

/// What is read at once has at most so many bytes. Writers keep below: index and filter have less than 2 GiB together.
const READ_BYTES_MAX: u64 = u32::MAX as u64;

/// An open file.
#[derive(Debug)]
pub(super) struct TableFile {
    id: FileId,
    dir: Dir,
    pub(super) reader: Reader,
    pub(super) footer: Footer,
    /// Bytes of the largest block, uncompressed.
    block_bytes_max: usize,
    /// Whether its blocks may be read through mapped pages: they are not long and, as far as was seen, not compressed.
    may_be_mapped: AtomicBool,
}

/// The sections after the data blocks, verified.
#[derive(Debug)]
pub(super) struct Tail {
    /// Not the key hashes that may be in its place: those are read on request.
    pub(super) filter: Option<Value>,
    /// The whole index, also where it is stored in parts.
    pub(super) index: Option<Value>,
    /// Where it is, the index of the parts, and its place.
    pub(super) top: Option<(Value, Place)>,
    pub(super) tombstones: Vec<RangeTombstone>,
    pub(super) properties: Properties,
}

/// An index that is stored in parts.
pub(super) struct IndexOfParts {
    /// The whole index.
    pub(super) whole: Value,
    /// The index of the parts, and its place.
    pub(super) top: Value,
    pub(super) place: Place,
    /// The parts.
    pub(super) parts: Vec<Value>,
}

impl TableFile {
    /// Opens the table `id`.
    pub(super) fn open(dir: &Dir, id: FileId) -> Result<(Self, Tail)> {
        let mut file = Self::open_footer(dir, id)?;
        let tail = file.read_tail()?;
        file.block_bytes_max = tail.properties.block_bytes_max;
        if file.block_bytes_max <= MAPPED_BLOCK_BYTES_MAX {
            file.reader = dir.open_mapped(&names::table(id))?;
            file.may_be_mapped = AtomicBool::new(true);
        }
        Ok((file, tail))
    }

    /// Opens the table `id` and reads only the footer.
    pub(super) fn open_footer(dir: &Dir, id: FileId) -> Result<Self> {
        let reader = dir.open(&names::table(id))?;
        let footer = read_footer(&reader, id)?;
        Ok(Self {
            id,
            dir: dir.clone(),
            reader,
            footer,
            block_bytes_max: BLOCK_BYTES_MAX,
            may_be_mapped: AtomicBool::new(false),
        })
    }

    /// Whether its blocks are read through mapped pages now. If not, they are cached.
    #[inline]
    pub(super) fn is_mapped(&self) -> bool {
        self.may_be_mapped.load(Relaxed) && self.reader.is_mapped()
    }

    /// A block that was read through mapped pages; `None` if it is compressed. Blocks of this table are cached from
    /// then on: decompressing one takes longer than finding it in the cache.
    #[inline]
    pub(super) fn plain_block(&self, place: Place, source: IoSource) -> Result<Option<Value>> {
        let block = self.block(place, source)?;
        if block.len() + SEAL_BYTES == place.len() as usize {
            return Ok(Some(block));
        }
        self.may_be_mapped.store(false, Relaxed);
        Ok(None)
    }

    /// Shows `look` a block that is mapped, in a buffer of the thread: copied there and verified, as on every read.
    /// `None` as for [`TableFile::plain_block`], and for a place that is too long for that.
    #[inline]
    pub(super) fn look_at_plain_block<T>(
        &self,
        place: Place,
        source: IoSource,
        look: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<Option<T>> {
        let len = place.len() as usize;
        if len > SCRATCH_BYTES {
            return Ok(None);
        }
        with_scratch(len, |buffer| {
            self.reader.read_at(buffer, place.start, source)?;
            match check(buffer, self.id, place.start).map_err(|damage| self.error(damage))? {
                Method::Plain => look(&buffer[..len - SEAL_BYTES]).map(Some),
                _ => {
                    self.may_be_mapped.store(false, Relaxed);
                    Ok(None)
                }
            }
        })
    }

    fn read_tail(&self) -> Result<Tail> {
        let place = Place { start: self.footer.filter().start, end: self.footer.properties().end };
        let buffer = self.read(place, IoSource::Metadata)?;
        let start = place.start;
        let section = |place: Place| {
            if place.is_empty() {
                return Ok(None);
            }
            let (from, to) = ((place.start - start) as usize, (place.end - start) as usize);
            unseal(Arc::clone(&buffer), (from, to), (self.id, place.start), 0)
                .map(Some)
                .map_err(|damage| self.error(damage))
        };
        let properties = self.decode_properties(section(self.footer.properties())?)?;
        let tombstones = self.decode_tombstones(section(self.footer.tombstones())?)?;
        let filter = if properties.has_key_hashes() { None } else { section(self.footer.filter())? };
        let (index, top) = match self.footer.index_form {
            IndexForm::Whole => (section(self.footer.index())?, None),
            IndexForm::Parts => {
                let found = self.index_of_parts(&buffer, start)?;
                (Some(found.whole), Some((found.top, found.place)))
            }
        };
        let tail = Tail { filter, index, top, tombstones, properties };
        self.check(&tail)?;
        Ok(tail)
    }

    /// The index of a table that stores it in parts, from a buffer that was read from `start` of the file on.
    pub(super) fn index_of_parts(&self, buffer: &Arc<[u8]>, start: u64) -> Result<IndexOfParts> {
        let section = self.footer.index();
        let unsealed = |place: Place| {
            let range = ((place.start - start) as usize, (place.end - start) as usize);
            unseal(Arc::clone(buffer), range, (self.id, place.start), 0).map_err(|damage| self.error(damage))
        };
        let bytes = &buffer[(section.start - start) as usize..(section.end - start) as usize];
        let place = self.top_place(bytes)?;
        let top = unsealed(place)?;
        let index = Index::parse(&top).map_err(|damage| self.error(damage.at(place.start)))?;
        let mut contents = Vec::with_capacity(index.blocks());
        for at in 0..index.blocks() {
            contents.push(unsealed(self.part_place(&index, place, at)?)?);
        }
        let ends = index.place(index.blocks() - 1).map(|last| last.end);
        if ends != Some(place.start - section.start) {
            let (expected, found) = (format!("parts that end at {}", place.start - section.start), format!("{ends:?}"));
            return Err(self.error(Corruption::new(place.start, "table index", expected, found)));
        }
        let whole = parts::whole(contents.iter().map(|part| &part[..]))
            .map_err(|damage| self.error(damage.at(section.start)))?;
        Ok(IndexOfParts { whole: whole.into(), top, place, parts: contents })
    }

    /// Where the index of the parts is.
    fn top_place(&self, section: &[u8]) -> Result<Place> {
        let place = self.footer.index();
        let end = place.end.saturating_sub(TRAILER_BYTES as u64);
        let bytes = section.last_chunk::<TRAILER_BYTES>().map(|bytes| u64::from(u32::from_le_bytes(*bytes)));
        let top = bytes.and_then(|bytes| Some(Place { start: end.checked_sub(bytes)?, end }));
        top.filter(|top| top.start >= place.start && top.len() >= SEAL_BYTES as u64).ok_or_else(|| {
            let (expected, found) = ("the length of the index of its parts".to_owned(), format!("{bytes:?}"));
            self.error(Corruption::new(end, "table index", expected, found))
        })
    }

    /// The place of a part in the file, checked to be before that of the top.
    pub(super) fn part_place(&self, top: &Index<'_>, top_place: Place, part: usize) -> Result<Place> {
        let start = self.footer.index().start;
        let place = top.place(part).map(|place| (start.checked_add(place.start), start.checked_add(place.end)));
        match place {
            Some((Some(start), Some(end))) if end <= top_place.start && end - start >= SEAL_BYTES as u64 => {
                Ok(Place { start, end })
            }
            other => {
                let expected = format!("a place of part {part} before {}", top_place.start);
                Err(self.error(Corruption::new(top_place.start, "table index", expected, format!("{other:?}"))))
            }
        }
    }

    pub(super) fn decode_properties(&self, section: Option<Value>) -> Result<Properties> {
        let content = section.as_deref().unwrap_or_default();
        let decoded = Properties::decode(content, self.id, self.reader.len());
        decoded.map_err(|damage| self.error(damage.at(self.footer.properties().start)))
    }

    pub(super) fn decode_tombstones(&self, section: Option<Value>) -> Result<Vec<RangeTombstone>> {
        let Some(content) = section else { return Ok(Vec::new()) };
        tombstones::decode(&content).map_err(|damage| self.error(damage.at(self.footer.tombstones().start)))
    }

    /// Checks that the sections agree with each other, so that reads need not check again.
    fn check(&self, tail: &Tail) -> Result<()> {
        if let Some(filter) = &tail.filter {
            Filter::parse(filter).map_err(|damage| self.error(damage.at(self.footer.filter().start)))?;
        }
        let at = self.footer.index().start;
        let (blocks, end) = match &tail.index {
            None => (0, 0),
            Some(index) => {
                let index = Index::parse(index).map_err(|damage| self.error(damage.at(at)))?;
                (index.blocks(), index.place(index.blocks() - 1).map_or(0, |last| last.end))
            }
        };
        let (expected, found) = ((tail.properties.blocks, self.footer.data_bytes), (blocks as u64, end));
        let damage =
            |expected: String, found: String| Err(self.error(Corruption::new(at, "table index", expected, found)));
        if expected != found {
            let text = |(blocks, end)| format!("{blocks} blocks that end at {end}");
            return damage(text(expected), text(found));
        }
        let meta = &tail.properties.meta;
        let (expected, found) = (meta.range_tombstones, tail.tombstones.len() as u64);
        if expected != found {
            return damage(format!("{expected} range tombstones"), format!("{found}"));
        }
        // Else a merge would write tables that overlap others of their level.
        let is_within = |tombstone: &RangeTombstone| {
            let ends_within = tombstone.end.as_ref().map_or(meta.unbounded, |end| *end <= meta.largest);
            ends_within && meta.smallest <= tombstone.start && tombstone.start <= meta.largest
        };
        match tail.tombstones.iter().find(|tombstone| !is_within(tombstone)) {
            Some(outside) => damage("range tombstones within the keys of the table".into(), format!("{outside:?}")),
            None => Ok(()),
        }
    }

    /// A data block.
    #[inline]
    pub(super) fn block(&self, place: Place, source: IoSource) -> Result<Value> {
        self.sealed(place, source, self.block_bytes_max)
    }

    /// A section, which is never compressed; `None` if it is missing.
    pub(super) fn section(&self, place: Place, source: IoSource) -> Result<Option<Value>> {
        if place.is_empty() { Ok(None) } else { self.sealed(place, source, 0).map(Some) }
    }

    #[inline]
    fn sealed(&self, place: Place, source: IoSource, size_max: usize) -> Result<Value> {
        let buffer = self.read(place, source)?;
        let len = buffer.len();
        unseal(buffer, (0, len), (self.id, place.start), size_max).map_err(|damage| self.error(damage))
    }

    /// The bytes at a place within the file. Places come from [`Footer`] and [`TableFile::place`], so they are no
    /// longer than the file. That may have holes, and be any length.
    pub(super) fn read(&self, place: Place, source: IoSource) -> Result<Arc<[u8]>> {
        if place.len() > READ_BYTES_MAX {
            let (expected, found) = (format!("at most {READ_BYTES_MAX} bytes"), format!("{} bytes", place.len()));
            return Err(self.error(Corruption::new(place.start, "table section", expected, found)));
        }
        let mut buffer = zeroed(place.len() as usize);
        if let Some(free) = Arc::get_mut(&mut buffer) {
            self.reader.read_at(free, place.start, source)?;
        }
        Ok(buffer)
    }

    /// The block at `place`. It is in `buffer`, which was read from `start` of the file.
    pub(super) fn block_in(&self, buffer: &Arc<[u8]>, start: u64, place: Place) -> Result<Value> {
        let range = ((place.start - start) as usize, (place.end - start) as usize);
        unseal(Arc::clone(buffer), range, (self.id, place.start), self.block_bytes_max)
            .map_err(|damage| self.error(damage))
    }

    /// The place of a block from the index, checked to be within the data, and no longer than the longest block is: it
    /// is read into memory before its checksum is known.
    #[inline]
    pub(super) fn place(&self, index: &Index<'_>, block: usize) -> Result<Place> {
        let sealed_max = (self.block_bytes_max + SEAL_BYTES) as u64;
        let is_possible = |place: &Place| place.end <= self.footer.data_bytes && place.len() <= sealed_max;
        index.place(block).filter(is_possible).ok_or_else(|| {
            let data_bytes = self.footer.data_bytes;
            let expected = format!("a place of at most {sealed_max} bytes in {data_bytes} of data for block {block}");
            let found = format!("{:?}", index.place(block));
            self.error(Corruption::new(self.footer.index().start, "table index", expected, found))
        })
    }

    /// Damage in this file as an error.
    #[cold]
    pub(super) fn error(&self, damage: Corruption) -> Error {
        damage.of(self.reader.path())
    }

    /// The same file for whoever reads all of it.
    pub(super) fn open_in_order(&self) -> Result<Reader> {
        self.dir.open(&names::table(self.id))
    }

    /// Its directory.
    pub(super) fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Removes the file when nobody reads it any more.
    pub(super) fn remove_when_unused(&self) {
        self.reader.remove_when_unused();
    }
}

fn read_footer(reader: &Reader, id: FileId) -> Result<Footer> {
    let damage = |expected: String, found: String| Corruption::new(0, "table", expected, found).of(reader.path());
    let Some(start) = reader.len().checked_sub(FOOTER_BYTES as u64) else {
        return Err(damage(
            format!("at least the {FOOTER_BYTES} bytes of a footer"),
            format!("{} bytes", reader.len()),
        ));
    };
    let mut bytes = [0; FOOTER_BYTES];
    reader.read_at(&mut bytes, start, IoSource::Metadata)?;
    let footer = Footer::decode(&bytes, reader.len()).map_err(|damage| damage.of(reader.path()))?;
    if footer.file != id {
        return Err(damage(format!("the table with id {id}"), format!("the one with id {}", footer.file)));
    }
    Ok(footer)
}
