//! Walks the records of a file from front to back, in bounded memory, whatever the file holds.
//!
//! ```text
//! step ─▶ a whole record │ torn: a crash left it │ damaged: no crash did │ the end
//!                                                   └─ find_next ─▶ the next place where a whole record stands
//! ```
//!
//! This crate does no I/O: the caller gives a function that reads. The memory taken is that of a chunk, or of the
//! longest record; a length is believed only as far as the file reaches.

use bifold_contract::FileId;

use crate::frame::{self, Broken, Frame, HEADER_BYTES, Step, TRAILER_BYTES};

/// Bytes read at a time, unless another size is asked for.
pub const CHUNK_BYTES: usize = 256 << 10;

/// A walk between two offsets of a file.
#[derive(Debug)]
pub struct Walk {
    file: FileId,
    /// What has been read and not been passed yet starts here in the file.
    position: u64,
    end: u64,
    buffer: Vec<u8>,
    /// How much of the buffer is passed, and how much has been read.
    passed: usize,
    filled: usize,
    chunk_bytes: usize,
}

/// What a walk meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met<'a> {
    /// A whole record, and how long it is.
    Record(Frame<'a>, u32),
    /// At this offset stand the remains of a crash: the end of what counts, if the walk's end is that of the file.
    Torn(u64),
    /// At this offset stands what no crash leaves.
    Damaged {
        /// Where.
        offset: u64,
        /// What should stand there.
        expected: &'static str,
        /// What does.
        found: &'static str,
    },
    /// The end.
    End,
}

impl Walk {
    /// From `start`, where a record begins, up to `end`.
    #[must_use]
    pub fn new(file: FileId, start: u64, end: u64) -> Self {
        Self { file, position: start, end, buffer: Vec::new(), passed: 0, filled: 0, chunk_bytes: CHUNK_BYTES }
    }

    /// The same, reading so many bytes at a time.
    #[must_use]
    pub fn by_chunks_of(self, bytes: usize) -> Self {
        Self { chunk_bytes: bytes, ..self }
    }

    /// Where the next record is looked for.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Bytes from there to the end.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.end.saturating_sub(self.position)
    }

    /// Bytes of memory that the buffer takes.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// The next record, or what stands in its place. After anything but a record the walk stays where it is.
    ///
    /// # Errors
    /// Those of `read`, which fills its buffer from an offset of the file on.
    pub fn step<E>(&mut self, mut read: impl FnMut(&mut [u8], u64) -> Result<(), E>) -> Result<Met<'_>, E> {
        if self.position >= self.end {
            return Ok(Met::End);
        }
        // Its payload is borrowed again below, when the buffer grows no more.
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
                // A sector's end may lie behind the file's: then all that is left is enough.
                Broken::Needs(needed) => self.read_on(needed.max(have + 1), read)?,
            }
        }
    }

    /// Goes on behind what is torn or damaged: behind the record there if its header is sound, else at the next place
    /// where a whole record stands. Answers where that is, if there is such a place.
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
                // A header may begin in what has been read and end behind it.
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

    /// Reads so much that `needed` bytes from the present position on are there, or all up to the end.
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

    /// Records with these payloads, and where each begins.
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

    /// What a walk meets, going on behind what is broken: offset, and the record's number if there is one.
    fn met(bytes: &[u8], chunk: usize) -> Vec<(u64, &'static str)> {
        let read = |buffer: &mut [u8], at: u64| {
            let at = at as usize;
            buffer.copy_from_slice(bytes.get(at..at + buffer.len()).ok_or("a read behind the end")?);
            Ok::<(), &str>(())
        };
        let mut walk = Walk::new(FILE, 0, bytes.len() as u64).by_chunks_of(chunk);
        let mut met = Vec::new();
        loop {
            let (at, what) = match walk.step(read).unwrap() {
                Met::Record(frame, _) => (frame.offset, "record"),
                Met::Torn(at) => (at, "torn"),
                Met::Damaged { offset, .. } => (offset, "damaged"),
                Met::End => return met,
            };
            met.push((at, what));
            if what != "record" && walk.find_next(read).unwrap().is_none() {
                return met;
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
            prop_assert_eq!(met(&bytes, chunk), expected);
        }

        #[test]
        fn a_file_cut_anywhere_is_torn_there(
            payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..900), 1..5),
            cut in any::<u32>(), chunk in 1usize..3000,
        ) {
            let (bytes, starts) = records(&payloads);
            let cut = cut as usize % bytes.len();
            let whole = starts.iter().skip(1).filter(|&&end| end <= cut as u64).count();
            let mut expected: Vec<_> = starts[..whole].iter().map(|&at| (at, "record")).collect();
            if starts[whole] < cut as u64 {
                expected.push((starts[whole], "torn"));
            }
            prop_assert_eq!(met(&bytes[..cut], chunk), expected);
        }

        #[test]
        fn a_lost_sector_is_a_tear_and_what_stands_behind_it_is_found(
            payloads in proptest::collection::vec(proptest::collection::vec(1u8.., 300..900), 3..8),
            sector in any::<u32>(), chunk in 1usize..3000,
        ) {
            let (mut bytes, starts) = records(&payloads);
            let sector = sector as usize % (bytes.len() / 512);
            bytes[sector * 512..(sector + 1) * 512].fill(0);
            let met = met(&bytes, chunk);
            let lost: Vec<_> = starts.into_iter().filter(|&at| !met.contains(&(at, "record"))).collect();
            prop_assert!((1..=3).contains(&lost.len()), "{lost:?}");
            prop_assert_eq!(met.iter().find(|met| met.1 != "record"), Some(&(lost[0], "torn")));
        }

        #[test]
        fn no_bytes_make_a_walk_panic_or_go_on_for_ever(bytes: Vec<u8>, chunk in 1usize..100) {
            let _any_answer = met(&bytes, chunk);
        }
    }

    #[test]
    fn a_length_is_believed_only_as_far_as_the_file_reaches() {
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
