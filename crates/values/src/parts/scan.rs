//! A value file from front to back, in bounded memory.

use std::sync::Arc;

use bifold_contract::{Corruption, FileId, IoSource, Result};
use bifold_format::{
    value::{self, ValueRecord},
    walk::{self, CHUNK_BYTES, Walk},
};
use bifold_io::Reader;

use super::{
    buffers::{Buffers, Held},
    value_files::ValueFile,
};

/// The least that is read at a time: a request for one page takes a device about as long.
const CHUNK_BYTES_MIN: usize = 8 << 10;

/// Walks the records of a file between two offsets.
pub struct Scan {
    walk: Walk,
    reader: Reader,
    source: IoSource,
    held: Option<Held>,
    /// Another scan of the file follows at once.
    is_first: bool,
}

/// What a scan finds.
#[derive(Debug)]
pub enum Met<'a> {
    /// A whole record, and how long it is.
    Record(ValueRecord<'a>, u32),
    /// A torn record, left by a crash, is at this offset.
    Torn(u64),
    /// There is damage at this offset that no crash explains.
    Damage(u64),
    /// The end.
    End,
}

impl Scan {
    /// Walks `file` from `start` up to `end`, where records begin.
    #[must_use]
    pub fn new(file: &ValueFile, start: u64, end: u64, source: IoSource) -> Self {
        Self::of(file.id, file.reader().clone(), start, end, source)
    }

    /// Walks the file number `file`, open as `reader`.
    #[must_use]
    pub fn of(file: FileId, reader: Reader, start: u64, end: u64, source: IoSource) -> Self {
        Self { walk: Walk::new(file, start, end), reader, source, held: None, is_first: false }
    }

    /// The same as the first of two scans: the system is to keep in its page cache what this one reads. Without that,
    /// where data exceed memory, the second one waits for the device again.
    #[must_use]
    pub fn first_of_two(self) -> Self {
        Self { is_first: true, ..self }
    }

    /// The same with a buffer that is counted, and smaller where memory for buffers is short.
    #[must_use]
    pub fn within(self, buffers: &Arc<Buffers>) -> Self {
        let left = usize::try_from(self.walk.left()).unwrap_or(usize::MAX);
        let held = buffers.hold(CHUNK_BYTES_MIN.min(left), CHUNK_BYTES.min(left));
        Self { walk: self.walk.by_chunks_of(held.bytes()), held: Some(held), ..self }
    }

    /// The next record. A torn record is distinguished from damage only at the end of a file.
    ///
    /// # Errors
    /// I/O errors; a record that checks and cannot be decoded.
    pub fn step(&mut self) -> Result<Met<'_>> {
        let Self { walk, reader, source, held, is_first } = self;
        let read = |buffer: &mut [u8], at: u64| {
            if let Some(held) = held {
                held.grow_to(buffer.len());
            }
            if *is_first {
                return reader.call_at(buffer, at, *source);
            }
            // A file that is walked is read once, and often removed then: it must not push out what others read.
            reader.read_once(buffer, at, *source)
        };
        match walk.step(read)? {
            walk::Met::Record(frame, len) => {
                let record = value::decode(frame).map_err(|damage| damage.of(reader.path()))?;
                Ok(Met::Record(record, len))
            }
            walk::Met::Torn(offset) => Ok(Met::Torn(offset)),
            walk::Met::Damaged { offset, .. } => Ok(Met::Damage(offset)),
            walk::Met::End => Ok(Met::End),
        }
    }

    /// Skips damage to the next whole record. Returns where that is, if there is one.
    ///
    /// # Errors
    /// I/O errors.
    pub fn find_next(&mut self) -> Result<Option<u64>> {
        let Self { walk, reader, source, .. } = self;
        walk.find_next(|buffer, at| reader.read_once(buffer, at, *source))
    }

    /// The next record of a section of the file that must be whole; `None` at its end.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn sound(&mut self) -> Result<Option<(ValueRecord<'_>, u32)>> {
        let path = self.reader.path_arc();
        match self.step()? {
            Met::Record(record, len) => Ok(Some((record, len))),
            Met::End => Ok(None),
            Met::Torn(offset) | Met::Damage(offset) => Err(no_record(offset).of(&*path)),
        }
    }

    /// Skips to `offset`, where a record begins. Returns whether that is not before the present position; otherwise
    /// nothing changes.
    pub fn skip_to(&mut self, offset: u64) -> bool {
        self.walk.skip_to(offset)
    }
}

/// The error where a whole record should stand.
#[must_use]
pub fn no_record(offset: u64) -> Corruption {
    Corruption::new(offset, "value record", "a whole record", "one that fails its checks")
}

impl std::fmt::Debug for Scan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scan")
            .field("file", &self.reader.path())
            .field("position", &self.walk.position())
            .finish_non_exhaustive()
    }
}
