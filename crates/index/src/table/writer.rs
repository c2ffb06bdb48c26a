//! Writes a table from front to back.
//!
//! Entries gather in blocks, blocks in one large buffer that is appended to the file when it is full. Filter and
//! index grow in memory meanwhile; they and the rest follow at the end. Then the file is synced, alone or with others
//! that one rewrite has written. Its name in the directory is made durable by whoever installs it.

use bifold_contract::{Entry, Error, Expiring, FileId, IoSource, Kind, RangeTombstone, Result, SeqNo, TableMeta};
use bifold_format::{
    block::{BlockBuilder, sealed::seal},
    compression::{Compression, Compressor},
    filter::{FilterBuilder, key_hash},
    names,
    table::{
        Footer, IndexForm,
        index::{IndexBuilder, separator},
        parts,
        properties::Properties,
        tombstones,
    },
};
use bifold_io::{Dir, Writer};

/// The buffer is appended to the file when it reaches this size, which is large enough that the system call does not
/// matter.
const APPEND_BYTES: usize = 512 << 10;

/// Writing out is begun each time so many bytes have been appended, so that the sync at the end finds little left to
/// do.
const WRITEBACK_BYTES: u64 = 4 << 20;

/// The approximate size of the sections and seals at the end, without filter and index.
const TAIL_BYTES: u64 = 256;

/// Index and filter have less than so many bytes together. Opening reads both at once, and what is read at once has
/// less than 4 GiB.
const METADATA_BYTES_MAX: u64 = u32::MAX as u64 / 2;

/// A block in which no entry has its value ends at this size, unless it is compressed: it has some twenty addresses.
/// A point read copies and verifies a whole block for one of them, and 2 bytes of index for an entry are little.
const ADDRESS_BLOCK_BYTES: usize = 1 << 10;

/// How a table is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableOptions {
    /// The approximate size of a data block, uncompressed.
    pub block_bytes: usize,
    /// In each block, every entry at this interval has its whole key.
    pub restart_interval: usize,
    /// Size of the filter; 0 for none; [`HASH_BITS`](bifold_format::filter::HASH_BITS) for the hashes of the keys
    /// instead.
    pub filter_bits_per_key: u32,
    /// How data blocks are compressed.
    pub compression: Compression,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self { block_bytes: 4096, restart_interval: 16, filter_bits_per_key: 10, compression: Compression::None }
    }
}

/// A table being written.
pub struct TableWriter {
    dir: Dir,
    id: FileId,
    writer: Writer,
    options: TableOptions,
    /// Bytes not appended to the file yet.
    out: Vec<u8>,
    writeback_bytes: u64,
    block: BlockBuilder,
    /// Whether an entry of the block has its value.
    has_values: bool,
    compressor: Compressor,
    /// The end of the last block, until the next key is known and the block's fence can be chosen.
    fenceless_end: Option<u64>,
    index: IndexBuilder,
    filter: FilterBuilder,
    tombstones: Vec<RangeTombstone>,
    first_key: Option<Box<[u8]>>,
    last_seqno: SeqNo,
    entries: u64,
    deletes: u64,
    expiring: Expiring,
    seqnos: Option<(SeqNo, SeqNo)>,
    block_bytes_max: usize,
}

impl TableWriter {
    /// Creates the file of table `id`.
    ///
    /// # Errors
    /// I/O errors.
    pub fn create(dir: &Dir, id: FileId, source: IoSource, options: &TableOptions) -> Result<Self> {
        let mut block = BlockBuilder::new(options.restart_interval);
        block.begin(&[]);
        Ok(Self {
            writer: dir.create(&names::table(id), source)?,
            dir: dir.clone(),
            id,
            options: *options,
            out: Vec::new(),
            writeback_bytes: 0,
            block,
            has_values: false,
            compressor: Compressor::new(options.compression),
            fenceless_end: None,
            index: IndexBuilder::default(),
            filter: FilterBuilder::default(),
            tombstones: Vec::new(),
            first_key: None,
            last_seqno: 0,
            entries: 0,
            deletes: 0,
            expiring: Expiring::default(),
            seqnos: None,
            block_bytes_max: 0,
        })
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// I/O errors. The table cannot be completed then: [`TableWriter::abandon`] it.
    ///
    /// # Panics
    /// If the entry does not follow the previous one in stream order.
    pub fn add(&mut self, entry: &Entry<'_>) -> Result<()> {
        let order = self.block.last_key().cmp(entry.key);
        let follows = order.is_lt() || order.is_eq() && entry.seqno < self.last_seqno;
        assert!(follows || self.entries == 0, "an entry that does not follow the previous one");
        if order.is_lt() && self.options.filter_bits_per_key > 0 {
            self.filter.add(key_hash(entry.key));
        }
        if self.block.is_full_before(entry, self.block_bytes(entry.kind), &self.out) {
            self.finish_block()?;
        }
        if self.block.is_empty() {
            if let Some(end) = self.fenceless_end.take() {
                self.index.add(separator(self.block.last_key(), entry.key), end);
            }
            self.block.begin(&self.out);
        }
        let block_bytes = self.block_bytes(entry.kind);
        self.has_values |= has_value(entry.kind);
        self.block.add(entry, &mut self.out);
        self.first_key.get_or_insert_with(|| entry.key.into());
        self.last_seqno = entry.seqno;
        self.entries += 1;
        self.deletes += u64::from(entry.kind == Kind::Delete);
        entry.expires_at().into_iter().for_each(|instant| self.expiring.add(instant));
        self.note_seqno(entry.seqno);
        if self.block.bytes(&self.out) >= block_bytes { self.finish_block() } else { Ok(()) }
    }

    /// At what size the present block ends if an entry of this kind is added.
    fn block_bytes(&self, kind: Kind) -> usize {
        let of_addresses = !self.has_values && !has_value(kind) && self.options.compression == Compression::None;
        self.options.block_bytes.min(if of_addresses { ADDRESS_BLOCK_BYTES } else { usize::MAX })
    }

    /// Adds a range tombstone, in any order.
    ///
    /// # Errors
    /// None so far. The signature allows an implementation that writes them early.
    ///
    /// # Panics
    /// If its range is empty.
    pub fn add_range_tombstone(&mut self, tombstone: &RangeTombstone) -> Result<()> {
        let has_range = tombstone.end.as_ref().is_none_or(|end| *end > tombstone.start);
        assert!(has_range, "a range tombstone with an empty range");
        self.note_seqno(tombstone.seqno);
        self.tombstones.push(tombstone.clone());
        Ok(())
    }

    /// The approximate size of the file if it were finished now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let tombstone = |t: &RangeTombstone| t.start.len() + t.end.as_ref().map_or(0, |end| end.len()) + 16;
        let tombstones: usize = self.tombstones.iter().map(tombstone).sum();
        self.offset() + self.metadata_bytes() + tombstones as u64 + TAIL_BYTES
    }

    /// The size of its index and its filter, at most, if it were finished now.
    #[must_use]
    pub fn metadata_bytes(&self) -> u64 {
        (self.index.bytes_max() + self.filter.bytes(self.options.filter_bits_per_key)) as u64
    }

    /// Entries added.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Whether neither an entry nor a range tombstone was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries == 0 && self.tombstones.is_empty()
    }

    /// Writes the rest and makes the file durable. The caller syncs the directory.
    ///
    /// # Errors
    /// I/O errors. The unfinished file then stays, and recovery removes it.
    ///
    /// # Panics
    /// If the table is empty.
    pub fn finish(self) -> Result<TableMeta> {
        let (meta, writer) = self.finish_unsynced()?;
        writer.sync()?;
        Ok(meta)
    }

    /// Writes the rest and has the system begin to write it out. The caller syncs the file by the returned writer, and
    /// the directory.
    ///
    /// # Errors
    /// As [`TableWriter::finish`].
    ///
    /// # Panics
    /// If the table is empty.
    pub fn finish_unsynced(mut self) -> Result<(TableMeta, Writer)> {
        assert!(!self.is_empty(), "an empty table");
        if !self.block.is_empty() {
            self.finish_block()?;
        }
        if let Some(end) = self.fenceless_end.take() {
            self.index.add(self.block.last_key(), end);
        }
        let data_bytes = self.offset();
        self.tombstones.sort_unstable_by(|a, b| a.start.cmp(&b.start).then(b.seqno.cmp(&a.seqno)));
        let bits_per_key = self.options.filter_bits_per_key;
        let filter_bytes = self.section(bits_per_key > 0 && self.entries > 0, |table, out| {
            table.filter.finish(bits_per_key, out);
        });
        let tombstones = !self.tombstones.is_empty();
        let tombstones_bytes = self.section(tombstones, |table, out| tombstones::encode(&table.tombstones, out));
        let (index_form, index_bytes) = if parts::are_due(&self.index) {
            (IndexForm::Parts, self.index_in_parts())
        } else {
            (IndexForm::Whole, self.section(self.index.blocks() > 0, |table, out| table.index.finish(out)))
        };
        let mut meta = self.meta();
        let properties = self.properties(meta.clone());
        let properties_bytes = self.section(true, |_, out| properties.encode(out));
        let file = self.id;
        let expires = meta.expiring.entries > 0;
        let sections =
            Footer { data_bytes, filter_bytes, tombstones_bytes, index_bytes, properties_bytes, ..Footer::default() };
        let footer = Footer { file, index_form, expires, ..sections };
        self.out.extend_from_slice(&footer.encode());
        self.append()?;
        self.writer.start_writeback();
        meta.bytes = self.writer.len();
        Ok((meta, self.writer))
    }

    /// Abandons the table and removes its file. Best effort: recovery removes what is left.
    pub fn abandon(self) {
        let _left_to_recovery = self.dir.remove(&names::table(self.id));
    }

    /// The offset of the next byte in the file.
    fn offset(&self) -> u64 {
        self.writer.len() + self.out.len() as u64
    }

    fn note_seqno(&mut self, seqno: SeqNo) {
        let (min, max) = self.seqnos.unwrap_or((seqno, seqno));
        self.seqnos = Some((min.min(seqno), max.max(seqno)));
    }

    fn finish_block(&mut self) -> Result<()> {
        let start = self.block.finish(&mut self.out);
        self.block_bytes_max = self.block_bytes_max.max(self.out.len() - start);
        let offset = self.writer.len() + start as u64;
        seal(&mut self.out, start, &mut self.compressor, self.id, offset);
        self.fenceless_end = Some(self.offset());
        self.block.begin(&self.out);
        self.has_values = false;
        check_metadata(self.metadata_bytes() + self.block.last_key().len() as u64)?;
        if self.out.len() >= APPEND_BYTES { self.append() } else { Ok(()) }
    }

    fn append(&mut self) -> Result<()> {
        self.writer.append(&[&self.out])?;
        self.writeback_bytes += self.out.len() as u64;
        self.out.clear();
        self.block.begin(&self.out);
        if self.writeback_bytes >= WRITEBACK_BYTES {
            self.writeback_bytes = 0;
            self.writer.start_writeback();
        }
        Ok(())
    }

    /// Appends a section to the buffer if `is_present`. Returns its length.
    fn section(&mut self, is_present: bool, encode: impl FnOnce(&Self, &mut Vec<u8>)) -> u64 {
        if !is_present {
            return 0;
        }
        // Nothing is appended to the file until all sections are in the buffer, so its offset does not change.
        let (mut out, offset) = (std::mem::take(&mut self.out), self.writer.len());
        let start = out.len();
        encode(self, &mut out);
        seal(&mut out, start, &mut Compressor::new(Compression::None), self.id, offset + start as u64);
        let bytes = (out.len() - start) as u64;
        self.out = out;
        bytes
    }

    /// Appends the index in parts to the buffer. Returns its length.
    fn index_in_parts(&mut self) -> u64 {
        let (mut out, offset) = (std::mem::take(&mut self.out), self.writer.len());
        let start = out.len();
        let mut append = |content: &[u8]| {
            let at = out.len();
            out.extend_from_slice(content);
            seal(&mut out, at, &mut Compressor::new(Compression::None), self.id, offset + at as u64);
            (out.len() - start) as u64
        };
        let mut parts_end = 0;
        let top = parts::split(&self.index, |part| {
            parts_end = append(part);
            parts_end
        });
        let top_bytes = (append(&top) - parts_end) as u32;
        out.extend_from_slice(&top_bytes.to_le_bytes());
        let bytes = (out.len() - start) as u64;
        self.out = out;
        bytes
    }

    fn meta(&self) -> TableMeta {
        let starts = self.tombstones.iter().map(|t| &*t.start);
        let ends = self.tombstones.iter().filter_map(|t| t.end.as_deref());
        let last_key = (self.entries > 0).then(|| self.block.last_key());
        let (min_seqno, max_seqno) = self.seqnos.unwrap_or_default();
        TableMeta {
            id: self.id,
            // Known when everything is written.
            bytes: 0,
            entries: self.entries,
            tombstones: self.deletes,
            range_tombstones: self.tombstones.len() as u64,
            smallest: starts.clone().chain(self.first_key.as_deref()).min().unwrap_or_default().into(),
            // An unbounded tombstone has no end; its start is a key it touches.
            largest: ends.chain(starts).chain(last_key).max().unwrap_or_default().into(),
            unbounded: self.tombstones.iter().any(|t| t.end.is_none()),
            min_seqno,
            max_seqno,
            expiring: self.expiring,
        }
    }

    fn properties(&self, meta: TableMeta) -> Properties {
        Properties {
            meta,
            blocks: self.index.blocks() as u64,
            block_bytes_max: self.block_bytes_max,
            restart_interval: self.options.restart_interval,
            filter_bits_per_key: self.options.filter_bits_per_key,
        }
    }
}

/// Refuses an index and a filter that could not be read again.
fn check_metadata(bytes: u64) -> Result<()> {
    if bytes < METADATA_BYTES_MAX {
        return Ok(());
    }
    let reason = "its index and filter have reached 2 GiB; write smaller tables, larger blocks, or fewer filter bits";
    Err(Error::invalid("table", reason))
}

/// Whether an entry of this kind has a payload of the user's.
fn has_value(kind: Kind) -> bool {
    matches!(kind.plain(), Kind::Inline | Kind::Operand)
}

#[cfg(test)]
mod tests {
    use bifold_format::filter::{HASH_BITS, bytes_for};

    use super::*;

    #[test]
    fn an_index_and_a_filter_that_are_too_long_together_are_refused() {
        let check = |index: u64, keys: usize, bits: u32| check_metadata(index + bytes_for(keys, bits) as u64);
        let gib = 1 << 30;
        check(gib, 1 << 29, 10).unwrap();
        check(0, 1 << 27, HASH_BITS).unwrap();
        // The first and the second have less than 2 GiB of each.
        for too_long in [check(gib, 1 << 30, 10), check(gib, 1 << 27, HASH_BITS), check(gib * 2, 0, 10)] {
            assert!(matches!(too_long, Err(Error::InvalidArgument { .. })), "{too_long:?}");
        }
        // 4 Gi keys: a filter of 5 GiB.
        assert!(check(0, u32::MAX as usize, 10).is_err());
    }
}
