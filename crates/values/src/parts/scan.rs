//! A value file from front to back, in bounded memory.

use std::sync::Arc;

use bifold_contract::{Corruption, FileId, IoSource, Result};
use bifold_format::{
    frame::{self, Frame, Step},
    value::{self, ValueRecord},
};
use bifold_io::Reader;

use super::{
    buffers::{Buffers, Held},
    value_files::ValueFile,
};

/// Bytes read at a time, where there is memory for it.
const CHUNK_BYTES: usize = 256 << 10;

/// The least that is read at a time: a request for one page takes a device about as long.
const CHUNK_BYTES_MIN: usize = 8 << 10;

/// Walks the records of a file between two offsets.
pub struct Scan {
    file: FileId,
    reader: Reader,
    source: IoSource,
    /// What has been read and not been passed yet starts here in the file.
    position: u64,
    end: u64,
    buffer: Vec<u8>,
    /// How much of the buffer is passed, and how much has been read.
    passed: usize,
    filled: usize,
    chunk_bytes: usize,
    held: Option<Held>,
}

/// What a scan meets.
#[derive(Debug)]
pub enum Met<'a> {
    /// A whole record, and how long it is.
    Record(ValueRecord<'a>, u32),
    /// No whole record stands at this offset.
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
        Self {
            file,
            reader,
            source,
            position: start,
            end,
            buffer: Vec::new(),
            passed: 0,
            filled: 0,
            chunk_bytes: CHUNK_BYTES,
            held: None,
        }
    }

    /// The same with a buffer that is counted, and smaller where memory for such is short.
    #[must_use]
    pub fn within(self, buffers: &Arc<Buffers>) -> Self {
        let left = usize::try_from(self.end - self.position).unwrap_or(usize::MAX);
        let held = buffers.hold(CHUNK_BYTES_MIN.min(left), CHUNK_BYTES.min(left));
        Self { chunk_bytes: held.bytes(), held: Some(held), ..self }
    }

    /// The next record.
    ///
    /// # Errors
    /// I/O errors; a record that checks and cannot be decoded.
    pub fn step(&mut self) -> Result<Met<'_>> {
        if self.position >= self.end {
            return Ok(Met::End);
        }
        let (number, before, len) = loop {
            match frame::step(&self.buffer[self.passed..self.filled], self.file, self.position) {
                Step::Record(record, len) => break (record.number, record.before, len),
                Step::Short(needed) if needed as u64 <= self.end - self.position => self.read_on(needed)?,
                Step::Short(_) | Step::Damaged => return Ok(Met::Damage(self.position)),
            }
        };
        let record = &self.buffer[self.passed..self.passed + len];
        let payload = &record[frame::HEADER_BYTES..len - frame::TRAILER_BYTES];
        let record = Frame { offset: self.position, number, before, payload };
        self.position += len as u64;
        self.passed += len;
        let record = value::decode(record).map_err(|damage| damage.of(self.reader.path()))?;
        Ok(Met::Record(record, len as u32))
    }

    /// The next record of a part of the file that must be whole; `None` at its end.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn sound(&mut self) -> Result<Option<(ValueRecord<'_>, u32)>> {
        let path = self.reader.path_arc();
        match self.step()? {
            Met::Record(record, len) => Ok(Some((record, len))),
            Met::End => Ok(None),
            Met::Damage(offset) => {
                Err(Corruption::new(offset, "value record", "a whole record", "one that does not check").of(&*path))
            }
        }
    }

    /// Goes on at `offset`, where a record begins. Answers whether that is not before the present position; else nothing changes.
    pub fn skip_to(&mut self, offset: u64) -> bool {
        let Some(ahead) = offset.checked_sub(self.position) else { return false };
        let ahead = usize::try_from(ahead).unwrap_or(usize::MAX);
        if ahead <= self.filled - self.passed {
            self.passed += ahead;
        } else {
            (self.passed, self.filled) = (0, 0);
        }
        self.position = offset;
        true
    }

    /// Reads so much that `needed` bytes from the present position on are there.
    fn read_on(&mut self, needed: usize) -> Result<()> {
        self.buffer.copy_within(self.passed..self.filled, 0);
        self.filled -= self.passed;
        self.passed = 0;
        let left = usize::try_from(self.end - self.position).unwrap_or(usize::MAX);
        let wanted = needed.max(self.chunk_bytes).min(left);
        self.buffer.resize(self.buffer.len().max(wanted), 0);
        if let Some(held) = &mut self.held {
            held.grow_to(self.buffer.capacity());
        }
        let position = self.position + self.filled as u64;
        self.reader.read_at(&mut self.buffer[self.filled..wanted], position, self.source)?;
        self.filled = wanted;
        Ok(())
    }
}

impl std::fmt::Debug for Scan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scan").field("file", &self.file).field("position", &self.position).finish_non_exhaustive()
    }
}
