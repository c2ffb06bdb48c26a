//! A value file from front to back, in bounded memory.

use bifold_contract::{Corruption, FileId, IoSource, Result};
use bifold_format::{
    frame::{self, Step},
    value::{self, ValueRecord},
};
use bifold_io::Reader;

use super::value_files::ValueFile;

/// Bytes read at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// Walks the records of a file between two offsets.
pub struct Scan {
    file: FileId,
    reader: Reader,
    source: IoSource,
    /// What has been read and not been passed yet starts here in the file.
    position: u64,
    end: u64,
    buffer: Vec<u8>,
    /// How much of the buffer is passed.
    passed: usize,
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
        Self { file, reader, source, position: start, end, buffer: Vec::new(), passed: 0 }
    }

    /// The next record.
    ///
    /// # Errors
    /// I/O errors; a record that checks and cannot be decoded.
    pub fn step(&mut self) -> Result<Met<'_>> {
        if self.position >= self.end {
            return Ok(Met::End);
        }
        loop {
            let unread = &self.buffer[self.passed..];
            let span = frame::header_span(unread, self.file, self.position);
            let needed = match span.map(|span| usize::try_from(span).unwrap_or(usize::MAX)) {
                Some(span) if span <= unread.len() => break,
                Some(span) => span,
                None if unread.len() < frame::HEADER_BYTES => frame::HEADER_BYTES,
                None => return Ok(Met::Damage(self.position)),
            };
            if needed as u64 > self.end - self.position {
                return Ok(Met::Damage(self.position));
            }
            self.read_on(needed)?;
        }
        let Step::Record(record, len) = frame::step(&self.buffer[self.passed..], self.file, self.position) else {
            return Ok(Met::Damage(self.position));
        };
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

    /// Goes on at `offset`, where a record begins, not before the present position.
    pub fn skip_to(&mut self, offset: u64) {
        let ahead = usize::try_from(offset - self.position).unwrap_or(usize::MAX);
        if ahead <= self.buffer.len() - self.passed {
            self.passed += ahead;
        } else {
            self.buffer.clear();
            self.passed = 0;
        }
        self.position = offset;
    }

    /// Reads so much that `needed` bytes from the present position on are there.
    fn read_on(&mut self, needed: usize) -> Result<()> {
        self.buffer.drain(..self.passed);
        self.passed = 0;
        let have = self.buffer.len();
        let left = self.end - self.position - have as u64;
        let more = (needed.max(CHUNK_BYTES) - have).min(usize::try_from(left).unwrap_or(usize::MAX));
        self.buffer.resize(have + more, 0);
        self.reader.read_at(&mut self.buffer[have..], self.position + have as u64, self.source)
    }
}

impl std::fmt::Debug for Scan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scan").field("file", &self.file).field("position", &self.position).finish_non_exhaustive()
    }
}
