//! Walks the records of a file from front to back, in bounded memory, whatever the file contains.
//!
//! ```text
//! step ─▶ a whole record │ torn: left by a crash │ damaged: not left by a crash │ the end
//!                                                   └─ find_next ─▶ the next whole record
//! ```
//!
//! This crate does no I/O: the caller gives a function that reads. The memory taken is that of a chunk, or of the
//! longest record; a length is believed only as far as the file reaches.

use bifold_contract::FileId;

use crate::frame::{self, Broken, Frame, HEADER_BYTES, Step, TRAILER_BYTES};

/// Bytes per read, unless set otherwise.
pub const CHUNK_BYTES: usize = 256 << 10;

/// A walk between two offsets of a file.
#[derive(Debug)]
pub struct Walk {
    file: FileId,
    /// The current position in the file: where `buffer[passed..]` starts.
    position: u64,
    end: u64,
    buffer: Vec<u8>,
    /// How many bytes of the buffer the walk has passed, and how many are filled.
    passed: usize,
    filled: usize,
    chunk_bytes: usize,
}

/// What a walk finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met<'a> {
    /// A whole record and its length.
    Record(Frame<'a>, u32),
    /// The remains of a crash are at this offset. The valid content ends here if the walk ends where the file ends.
    Torn(u64),
    /// Damage that no crash leaves.
    Damaged {
        /// Where.
        offset: u64,
        /// What should be there.
        expected: &'static str,
        /// What is there.
        found: &'static str,
    },
    /// The end.
    End,
}

impl Walk {
    /// A walk from `start`, where a record starts, up to `end`.
    #[must_use]
    pub fn new(file: FileId, start: u64, end: u64) -> Self {
        Self { file, position: start, end, buffer: Vec::new(), passed: 0, filled: 0, chunk_bytes: CHUNK_BYTES }
    }

    /// The same walk, reading `bytes` bytes at a time.
    #[must_use]
    pub fn by_chunks_of(self, bytes: usize) -> Self {
        Self { chunk_bytes: bytes, ..self }
    }

    /// The offset of the next record.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Bytes from there to the end of the walk.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.end.saturating_sub(self.position)
    }

    /// Bytes of memory for the buffer.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// The next record, or what is in its place. The walk moves on only after a record.
    ///
    /// # Errors
    /// Those of `read`, which fills its buffer from an offset of the file.
    pub fn step<E>(&mut self, mut read: impl FnMut(&mut [u8], u64) -> Result<(), E>) -> Result<Met<'_>, E> {
        if self.position >= self.end {
            return Ok(Met::End);
        }
        // Its payload is borrowed again below, once the buffer no longer grows.
        let (number, before, len) = loop {
            match frame::step(&self.buffer[self.passed..self.filled], self.file, self.position) {
                Step::Record(record, len) => break (record.number, record.before, len),
                Step::Short(needed) if needed as u64 <= self.end - self.position => self.read_on(needed, &mut read)?,
                Step::Short(_) | Step::Damaged => return self.broken(&mut read),
            }
        };
        let (record, offset) = (&self.buffer[self.passed..self.passed + len], self.position);
        self.passed += len;
        self.position += len as u64;
        let payload = &record[HEADER_BYTES..len - TRAILER_BYTES];
        Ok(Met::Record(Frame { offset, number, before, payload }, len as u32))
    }

    fn broken<E>(&mut self, read: &mut impl FnMut(&mut [u8], u64) -> Result<(), E>) -> Result<Met<'static>, E> {
        loop {
            let have = self.filled - self.passed;
            let ends = have as u64 >= self.end - self.position;
            match frame::judge(&self.buffer[self.passed..self.filled], self.file, self.position, ends) {
                Broken::Torn => return Ok(Met::Torn(self.position)),
                Broken::Damaged { expected, found } => {
                    return Ok(Met::Damaged { offset: self.position, expected, found });
                }
                // A sector may end after the file does. Then all remaining bytes are enough.
                Broken::Needs(needed) => self.read_on(needed.max(have + 1), read)?,
            }
        }
    }

    /// Goes on behind what is torn or damaged: behind the record there if its header is sound, else at the next place
    /// where a whole record is. Answers where that is, if there is such a place.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn find_next<E>(&mut self, mut read: impl FnMut(&mut [u8], u64) -> Result<(), E>) -> Result<Option<u64>, E> {
        let span = frame::header_span(&self.buffer[self.passed..self.filled], self.file, self.position);
        if let Some(span) = span.filter(|&span| span <= self.left()) {
            self.skip(span);
            return Ok((self.left() > 0).then_some(self.position));
        }
        self.skip(1);
        while self.end.saturating_sub(self.position) >= HEADER_BYTES as u64 {
            if self.filled - self.passed < HEADER_BYTES {
                self.read_on(HEADER_BYTES, &mut read)?;
            }
            match frame::find_header(&self.buffer[self.passed..self.filled], self.file, self.position) {
                Some((at, span)) => {
                    self.skip(at as u64);
                    if span <= self.end - self.position && self.is_whole(span as usize, &mut read)? {
                        return Ok(Some(self.position));
                    }
                    self.skip(1);
                }
                // A header may start in the buffer and end after it.
                None => self.skip((self.filled - self.passed - (HEADER_BYTES - 1)) as u64),
            }
        }
        Ok(None)
    }

    fn is_whole<E>(&mut self, span: usize, read: &mut impl FnMut(&mut [u8], u64) -> Result<(), E>) -> Result<bool, E> {
        if self.filled - self.passed < span {
            self.read_on(span, read)?;
        }
        Ok(matches!(frame::step(&self.buffer[self.passed..self.filled], self.file, self.position), Step::Record(..)))
    }

    /// Goes on at `offset`, where a record begins. Answers whether that is not before the present position; else
    /// nothing changes.
    pub fn skip_to(&mut self, offset: u64) -> bool {
        let Some(ahead) = offset.checked_sub(self.position) else { return false };
        self.skip(ahead);
        true
    }

    fn skip(&mut self, bytes: u64) {
        let ahead = usize::try_from(bytes).unwrap_or(usize::MAX);
        if ahead <= self.filled - self.passed {
            self.passed += ahead;
        } else {
            (self.passed, self.filled) = (0, 0);
        }
        self.position += bytes;
    }

    /// Reads until `needed` bytes from the current position on are in the buffer, or all bytes up to the end.
    fn read_on<E>(&mut self, needed: usize, read: &mut impl FnMut(&mut [u8], u64) -> Result<(), E>) -> Result<(), E> {
        self.buffer.copy_within(self.passed..self.filled, 0);
        self.filled -= self.passed;
        self.passed = 0;
        let left = usize::try_from(self.end - self.position).unwrap_or(usize::MAX);
        let wanted = needed.max(self.chunk_bytes).min(left);
        self.buffer.resize(self.buffer.len().max(wanted), 0);
        let place = self.position + self.filled as u64;
        read(&mut self.buffer[self.filled..wanted], place)?;
        self.filled = wanted;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frame::Before;

    const FILE: FileId = 9;

    /// Records with these payloads, and where each starts.
    fn records(payloads: &[Vec<u8>]) -> (Vec<u8>, Vec<u64>) {
        let (mut bytes, mut starts) = (Vec::new(), Vec::new());
        for (number, payload) in payloads.iter().enumerate() {
            let start = frame::begin(&mut bytes);
            starts.push(start as u64);
            bytes.extend_from_slice(payload);
            frame::finish(&mut bytes, start, FILE, start as u64, number as u64, Before::Unsynced);
        }
        (bytes, starts)
    }

    /// What a walk finds, continuing after torn and damaged records: offset and kind.
    fn found(bytes: &[u8], chunk: usize) -> Vec<(u64, &'static str)> {
        let read = |buffer: &mut [u8], at: u64| {
            let at = at as usize;
            buffer.copy_from_slice(bytes.get(at..at + buffer.len()).ok_or("a read past the end")?);
            Ok::<(), &str>(())
        };
        let mut walk = Walk::new(FILE, 0, bytes.len() as u64).by_chunks_of(chunk);
        let mut found = Vec::new();
        loop {
            let (at, what) = match walk.step(read).unwrap() {
                Met::Record(frame, _) => (frame.offset, "record"),
                Met::Torn(at) => (at, "torn"),
                Met::Damaged { offset, .. } => (offset, "damaged"),
                Met::End => return found,
            };
            found.push((at, what));
            if what != "record" && walk.find_next(read).unwrap().is_none() {
                return found;
            }
        }
    }

    proptest! {
        #[test]
        fn one_flipped_bit_costs_one_record_and_is_damage(
            payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..1500), 2..6),
            bit in any::<u32>(), chunk in 1usize..3000,
        ) {
            let (mut bytes, starts) = records(&payloads);
            let bit = bit as usize % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let hit = starts.partition_point(|&start| start <= (bit / 8) as u64) - 1;
            let expected: Vec<_> =
                starts.iter().enumerate().map(|(n, &at)| (at, if n == hit { "damaged" } else { "record" })).collect();
            prop_assert_eq!(found(&bytes, chunk), expected);
        }

        #[test]
        fn a_file_truncated_anywhere_is_torn_there(
            payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..900), 1..5),
            end in any::<u32>(), chunk in 1usize..3000,
        ) {
            let (bytes, starts) = records(&payloads);
            let end = end as usize % bytes.len();
            let whole = starts.iter().skip(1).filter(|&&start| start <= end as u64).count();
            let mut expected: Vec<_> = starts[..whole].iter().map(|&at| (at, "record")).collect();
            if starts[whole] < end as u64 {
                expected.push((starts[whole], "torn"));
            }
            prop_assert_eq!(found(&bytes[..end], chunk), expected);
        }

        #[test]
        fn a_lost_sector_is_a_tear_and_records_after_it_are_found(
            payloads in proptest::collection::vec(proptest::collection::vec(1u8.., 300..900), 3..8),
            sector in any::<u32>(), chunk in 1usize..3000,
        ) {
            let (mut bytes, starts) = records(&payloads);
            let sector = sector as usize % (bytes.len() / 512);
            bytes[sector * 512..(sector + 1) * 512].fill(0);
            let found = found(&bytes, chunk);
            let lost: Vec<_> = starts.into_iter().filter(|&at| !found.contains(&(at, "record"))).collect();
            prop_assert!((1..=3).contains(&lost.len()), "{lost:?}");
            prop_assert_eq!(found.iter().find(|found| found.1 != "record"), Some(&(lost[0], "torn")));
        }

        #[test]
        fn no_bytes_make_a_walk_panic_or_go_on_for_ever(bytes: Vec<u8>, chunk in 1usize..100) {
            let _any_answer = found(&bytes, chunk);
        }
    }

    #[test]
    fn a_length_is_trusted_only_up_to_the_end_of_the_file() {
        let mut bytes = Vec::new();
        let start = frame::begin(&mut bytes);
        bytes.extend_from_slice(&vec![7; 4 << 20]);
        frame::finish(&mut bytes, start, FILE, 0, 1, Before::Unsynced);
        bytes.truncate(1000);
        let mut walk = Walk::new(FILE, 0, bytes.len() as u64);
        let read = |buffer: &mut [u8], at: u64| {
            buffer.copy_from_slice(&bytes[at as usize..at as usize + buffer.len()]);
            Ok::<(), ()>(())
        };
        assert_eq!(walk.step(read), Ok(Met::Torn(0)));
        assert!(walk.buffer_bytes() <= CHUNK_BYTES);
    }
}
