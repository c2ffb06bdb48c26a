//! The bytes of a file from some offset on, in bounded memory, whatever the disk says.

use bifold_contract::IoSource;
use bifold_io::Reader;

/// Bytes read at a time.
const CHUNK_BYTES: u64 = 256 << 10;

/// When a read fails, so many bytes are tried at a time: a block of most file systems.
const PIECE_BYTES: usize = 4 << 10;

/// A part of a file that moves forward.
#[derive(Debug)]
pub(super) struct Window {
    reader: Reader,
    source: IoSource,
    /// Where the buffer starts in the file.
    base: u64,
    buffer: Vec<u8>,
    /// Where the disk gave nothing, from where to where, not before the buffer; and what it said last.
    unreadable: Vec<(u64, u64)>,
    said: String,
}

impl Window {
    pub fn new(reader: Reader, source: IoSource) -> Self {
        Self { reader, source, base: 0, buffer: Vec::new(), unreadable: Vec::new(), said: String::new() }
    }

    /// Where the file ends.
    pub fn end(&self) -> u64 {
        self.reader.len()
    }

    /// The bytes from `offset` on: `needed` at least, unless the file ends before. What the disk does not give reads as
    /// zeros, which no check matches.
    pub fn at(&mut self, offset: u64, needed: u64) -> &[u8] {
        let left = self.end().saturating_sub(offset);
        let have = self.base + self.buffer.len() as u64;
        if offset < self.base || offset + needed.min(left) > have {
            self.read_on(offset, needed.max(CHUNK_BYTES).min(left));
        }
        usize::try_from(offset - self.base).ok().and_then(|from| self.buffer.get(from..)).unwrap_or_default()
    }

    /// Why part of a stretch could not be read, if that is so.
    pub fn unreadable(&self, start: u64, end: u64) -> Option<String> {
        let lost: u64 = self.unreadable.iter().map(|&(from, to)| to.min(end).saturating_sub(from.max(start))).sum();
        (lost > 0).then(|| format!("{lost} bytes that cannot be read: {}", self.said))
    }

    /// Moves the buffer so that it has `wanted` bytes from `offset` on.
    fn read_on(&mut self, offset: u64, wanted: u64) {
        match usize::try_from(offset.wrapping_sub(self.base)) {
            Ok(passed) if offset >= self.base && passed <= self.buffer.len() => drop(self.buffer.drain(..passed)),
            _ => self.buffer.clear(),
        }
        self.base = offset;
        let have = self.buffer.len();
        self.buffer.resize(usize::try_from(wanted).unwrap_or(have).max(have), 0);
        let place = offset + have as u64;
        if self.reader.read_at(&mut self.buffer[have..], place, self.source).is_err() {
            self.read_pieces(have);
        }
    }

    /// Reads what it can of the buffer from `have` on.
    fn read_pieces(&mut self, have: usize) {
        let mut place = self.base + have as u64;
        for piece in self.buffer[have..].chunks_mut(PIECE_BYTES) {
            let end = place + piece.len() as u64;
            if let Err(error) = self.reader.read_at(piece, place, self.source) {
                piece.fill(0);
                self.said = error.to_string();
                match self.unreadable.last_mut() {
                    Some(last) if last.1 == place => last.1 = end,
                    _ => self.unreadable.push((place, end)),
                }
            }
            place = end;
        }
    }
}
