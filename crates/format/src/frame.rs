//! Records of append-only files, and how a torn record differs from a damaged one.
//!
//! ```text
//! file    header (32 B) │ record │ record │ …
//! header  magic 8 │ version u32 │ 0 u32 │ file id u64 │ checksum u64
//!
//! record  0x5B │ flags u8 │ length u32 │ number u56 │ payload check u32 │ header check u32 │ 0xD7 │ payload │ 0xB1
//!         0      1          2            6            13                  17                 21     22
//! ```
//!
//! A crash leaves the last records of such a file half written; a failing disk damages records anywhere. The first is
//! normal, and the tail is truncated. The second must never be mistaken for the first: that would drop commits
//! silently. They can be distinguished because these files are written once, front to back, each record by one
//! append, and never recycled:
//!
//! * After a kill the file simply **ends early**.
//! * After a power loss, 512-byte sectors that were not yet on the disk read as **zeros to their end** (from their
//!   start, or from where older records in them ended).
//! * Bit rot does neither. The first and the last byte of header and record are constants with several bits set, so no
//!   single flipped bit makes the part of a record in some sector all zeros.
//!
//! So a record that fails its checks is a **torn tail** if the file ends inside it or one of its sectors is all zeros;
//! otherwise it is **corruption**. Two refinements: values may themselves contain zero sectors, so the flags count them
//! and only *additional* ones prove a tear; and a record whose flag says that everything before it had been synced
//! proves that damage before it is corruption, whatever it looks like.

use bifold_contract::{Corruption, FileId};

use crate::checksum::checksum;

/// Bytes of a file header.
pub const FILE_HEADER_BYTES: usize = 32;

/// Bytes of a record before its payload.
pub const HEADER_BYTES: usize = 22;

/// Bytes of a record after its payload.
pub const TRAILER_BYTES: usize = 1;

/// Longest payload, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = (2 << 30) - 1;

const FIRST: u8 = 0x5B;
const HEADER_LAST: u8 = 0xD7;
const LAST: u8 = 0xB1;

/// Flag: everything before this record was synced when it was appended.
const AFTER_SYNC: u8 = 0x80;

/// The other seven bits count sectors of the payload with at most one bit set, up to this many.
const ZERO_SECTORS_MAX: u8 = 0x7F;

/// The unit a disk writes whole or not at all.
const SECTOR: usize = 512;

/// Whether everything before a record was synced before the record was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// It may be lost together with the record.
    Unsynced,
    /// It is durable.
    Synced,
}

/// How a file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// With a whole record.
    Clean,
    /// With remains of records that a crash left incomplete.
    Torn {
        /// Where the last whole record ends.
        offset: u64,
    },
}

/// A whole record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Where it starts in its file.
    pub offset: u64,
    /// Its number. Its meaning depends on the kind of file.
    pub number: u64,
    /// Whether everything before it in the file was synced when it was appended.
    pub before: Before,
    /// Its content.
    pub payload: &'a [u8],
}

/// What the bytes at some position of a file are. They may be only a piece of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// A whole record and its length in bytes.
    Record(Frame<'a>, usize),
    /// Apparently a record, but at least this many bytes are needed.
    Short(usize),
    /// Not a record: torn or damaged.
    Damaged,
}

/// Reads the record at the start of `bytes`, which are at `offset` of `file`.
#[must_use]
#[inline]
pub fn step(bytes: &[u8], file: FileId, offset: u64) -> Step<'_> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return Step::Short(HEADER_BYTES) };
    if !is_header(header, file, offset) {
        return Step::Damaged;
    }
    let span = HEADER_BYTES + payload_len(header) + TRAILER_BYTES;
    let Some(record) = bytes.get(..span) else { return Step::Short(span) };
    let (payload, last) = record[HEADER_BYTES..].split_at(span - HEADER_BYTES - TRAILER_BYTES);
    if checksum(payload, file, offset) as u32 != payload_check(header) || last != [LAST] {
        return Step::Damaged;
    }
    Step::Record(Frame { offset, number: number(header), before: before(header), payload }, span)
}

/// The number and the length of the record at the start of `bytes`, which are at `offset` of `file`, by its header
/// alone; `None` if that is damaged or not whole. The payload is not looked at: for walking past records that nobody
/// wants.
#[must_use]
pub fn peek(bytes: &[u8], file: FileId, offset: u64) -> Option<(u64, usize)> {
    let header = bytes.first_chunk::<HEADER_BYTES>().filter(|header| is_header(header, file, offset))?;
    Some((number(header), HEADER_BYTES + payload_len(header) + TRAILER_BYTES))
}

/// Why there is no whole record at some position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A crash left it: the file ends inside the record, or one of its sectors was never written.
    Torn,
    /// No crash leaves this: bytes changed after they had been written.
    Damaged {
        /// What should be there.
        expected: &'static str,
        /// What is there.
        found: &'static str,
    },
    /// This many bytes from `offset` on are needed to decide.
    Needs(usize),
}

/// Tells a torn tail from damage where [`step`] has found no whole record: by the rules that the head of this file
/// explains. `bytes` stand at `offset` of the file `file`; `ends` says whether the file ends with them.
#[must_use]
pub fn judge(bytes: &[u8], file: FileId, offset: u64, ends: bool) -> Broken {
    let to_sector_end = |len: usize| {
        let in_sector = ((offset + len as u64) % SECTOR as u64) as usize;
        len + if in_sector == 0 { 0 } else { SECTOR - in_sector }
    };
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
        return if ends { Broken::Torn } else { Broken::Needs(HEADER_BYTES) };
    };
    let needed = to_sector_end(HEADER_BYTES);
    if !is_header(header, file, offset) {
        return match sectors(offset, HEADER_BYTES, bytes).any(is_zero) {
            _ if bytes.len() < needed && !ends => Broken::Needs(needed),
            true => Broken::Torn,
            false => Broken::Damaged { expected: "a valid header", found: "one with a wrong checksum" },
        };
    }
    let span = HEADER_BYTES + payload_len(header) + TRAILER_BYTES;
    let needed = to_sector_end(span);
    if bytes.len() < needed && !ends {
        return Broken::Needs(needed);
    }
    if bytes.len() < span {
        return Broken::Torn;
    }
    let zeros = sectors(offset, span, bytes).filter(|sector| is_zero(sector)).count();
    if zeros > usize::from(header[1] & ZERO_SECTORS_MAX) {
        Broken::Torn
    } else {
        Broken::Damaged { expected: "a payload that matches its checksum", found: "one that does not" }
    }
}

/// The first place in `bytes`, which stand at `offset` of the file `file`, where a record's header checks, and how
/// many bytes that record says it has. For whoever continues behind damage: a header proves itself by 48 bits, a whole
/// record by 88.
#[must_use]
pub fn find_header(bytes: &[u8], file: FileId, offset: u64) -> Option<(usize, u64)> {
    let headers = bytes.windows(HEADER_BYTES).enumerate().filter(|(_, window)| window[0] == FIRST);
    let mut sound = headers.filter_map(|(at, window)| {
        let header = window.first_chunk()?;
        is_header(header, file, offset + at as u64).then(|| (at, span(header)))
    });
    sound.next()
}

/// The length in bytes that the record at the start of `bytes` states; `None` if its header is not valid.
#[must_use]
pub fn header_span(bytes: &[u8], file: FileId, offset: u64) -> Option<u64> {
    find_header(bytes.get(..HEADER_BYTES)?, file, offset).map(|(_, span)| span)
}

fn span(header: &[u8; HEADER_BYTES]) -> u64 {
    HEADER_BYTES as u64 + u64::from(word(header, 2)) + TRAILER_BYTES as u64
}

fn is_header(header: &[u8; HEADER_BYTES], file: FileId, offset: u64) -> bool {
    header[0] == FIRST
        && header[21] == HEADER_LAST
        && header_check(header, file, offset).to_le_bytes() == header[17..21]
}

fn word(header: &[u8; HEADER_BYTES], at: usize) -> u32 {
    header[at..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b))
}

fn payload_len(header: &[u8; HEADER_BYTES]) -> usize {
    word(header, 2) as usize
}

fn payload_check(header: &[u8; HEADER_BYTES]) -> u32 {
    word(header, 13)
}

fn number(header: &[u8; HEADER_BYTES]) -> u64 {
    let mut number = [0; 8];
    number[..7].copy_from_slice(&header[6..13]);
    u64::from_le_bytes(number)
}

fn before(header: &[u8; HEADER_BYTES]) -> Before {
    if header[1] & AFTER_SYNC == 0 { Before::Unsynced } else { Before::Synced }
}

/// The id in a file's header, if the header is whole and has this magic and this or an older version.
///
/// # Errors
/// If it is anything else.
pub fn file_id(bytes: &[u8], magic: [u8; 8], version: u32) -> Result<FileId, Corruption> {
    let whole = bytes.get(..FILE_HEADER_BYTES);
    let frames = Frames::new(whole.unwrap_or(bytes), magic, version, None, "file header")?;
    if frames.done {
        return Err(Corruption::new(0, "file header", "a whole header", "one that a crash left incomplete"));
    }
    Ok(frames.file)
}

/// Whether the header of a file matches its checksum, whatever its content.
#[must_use]
pub fn is_file_header(bytes: &[u8]) -> bool {
    let word = |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk()).map(|b| u64::from_le_bytes(*b));
    bytes.get(..24).is_some_and(|said| word(24) == Some(checksum(said, 0, 0)))
}

/// The first bytes of a file.
#[must_use]
pub fn file_header(magic: [u8; 8], version: u32, file: FileId) -> [u8; FILE_HEADER_BYTES] {
    let mut header = [0; FILE_HEADER_BYTES];
    header[..8].copy_from_slice(&magic);
    header[8..12].copy_from_slice(&version.to_le_bytes());
    header[16..24].copy_from_slice(&file.to_le_bytes());
    let check = checksum(&header[..24], 0, 0);
    header[24..].copy_from_slice(&check.to_le_bytes());
    header
}

/// Reserves space for a record's header at the end of `out`. Returns where the record starts in `out`.
pub fn begin(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    start
}

/// Completes the record that starts at `start` of `out`. Its payload is everything after its header. It will be at
/// `offset` of `file`.
///
/// # Panics
/// If the payload is longer than [`PAYLOAD_BYTES_MAX`]. Callers check this.
pub fn finish(out: &mut Vec<u8>, start: usize, file: FileId, offset: u64, number: u64, before: Before) {
    let payload = &out[start + HEADER_BYTES..];
    let len = u32::try_from(payload.len()).ok().filter(|&n| n as usize <= PAYLOAD_BYTES_MAX);
    let Some(len) = len else { panic!("a payload of {} bytes", payload.len()) };
    let mut header = [0; HEADER_BYTES];
    header[0] = FIRST;
    header[1] = near_zero_sectors(payload, offset + HEADER_BYTES as u64);
    if before == Before::Synced {
        header[1] |= AFTER_SYNC;
    }
    header[2..6].copy_from_slice(&len.to_le_bytes());
    header[6..13].copy_from_slice(&number.to_le_bytes()[..7]);
    header[13..17].copy_from_slice(&(checksum(payload, file, offset) as u32).to_le_bytes());
    let check = header_check(&header, file, offset);
    header[17..21].copy_from_slice(&check.to_le_bytes());
    header[21] = HEADER_LAST;
    out[start..start + HEADER_BYTES].copy_from_slice(&header);
    out.push(LAST);
}

fn header_check(header: &[u8; HEADER_BYTES], file: FileId, offset: u64) -> u32 {
    // Domain separation: the check of a header never equals that of a payload with the same bytes.
    let mut checked = *b"header-----------------";
    checked[6..].copy_from_slice(&header[..17]);
    (checksum(&checked, file, offset) >> 32) as u32
}

/// The number of sectors that are entirely in `payload`, which starts at `offset` of the file, and have at most one
/// bit set.
fn near_zero_sectors(payload: &[u8], offset: u64) -> u8 {
    let skip = (SECTOR - (offset % SECTOR as u64) as usize) % SECTOR;
    let whole = payload.get(skip..).unwrap_or_default().chunks_exact(SECTOR);
    let near_zero = |sector: &&[u8]| {
        let mut bits = 0;
        sector.iter().all(|byte| {
            bits += byte.count_ones();
            bits <= 1
        })
    };
    u8::try_from(whole.filter(near_zero).count()).unwrap_or(u8::MAX).min(ZERO_SECTORS_MAX)
}

/// Reads the records of a whole file.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    bytes: &'a [u8],
    position: usize,
    file: FileId,
    /// The name of a record in errors.
    what: &'static str,
    tail: Tail,
    done: bool,
}

impl<'a> Frames<'a> {
    /// Reads `bytes`, the content of a file with this magic. `file` is the id it must carry; `None` accepts any.
    ///
    /// # Errors
    /// If the header is damaged, belongs to another kind of file, or has a newer version.
    pub fn new(
        bytes: &'a [u8],
        magic: [u8; 8],
        version: u32,
        file: Option<FileId>,
        what: &'static str,
    ) -> Result<Self, Corruption> {
        let torn = Self { bytes, position: 0, file: 0, what, tail: Tail::Torn { offset: 0 }, done: true };
        let Some(header) = bytes.first_chunk::<FILE_HEADER_BYTES>() else {
            return Ok(torn);
        };
        let word = |at: usize| header[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        let (found_magic, found_version, id) = (word(0).to_le_bytes(), word(8) as u32, word(16));
        if checksum(&header[..24], 0, 0) != word(24) {
            if sectors(0, FILE_HEADER_BYTES, bytes).any(is_zero) {
                return Ok(torn);
            }
            return Err(Corruption::new(0, "file header", "a header that matches its checksum", "one that does not"));
        }
        if found_magic != magic {
            let found = found_magic.escape_ascii().to_string();
            return Err(Corruption::new(0, "file header", format!("magic {}", magic.escape_ascii()), found));
        }
        if found_version > version {
            let expected = format!("a version up to {version} (upgrade Bifold to read newer ones)");
            return Err(Corruption::new(8, "file header", expected, format!("version {found_version}")));
        }
        if let Some(expected) = file.filter(|&expected| expected != id) {
            return Err(Corruption::new(16, "file header", format!("file id {expected}"), format!("file id {id}")));
        }
        Ok(Self { bytes, position: FILE_HEADER_BYTES, file: id, what, tail: Tail::Clean, done: false })
    }

    /// The id in the file's header; 0 if the header is torn.
    #[must_use]
    pub fn file(&self) -> FileId {
        self.file
    }

    /// Where the last record ends that was read.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position as u64
    }

    /// How the file ends, as far as it has been read.
    #[must_use]
    pub fn tail(&self) -> Tail {
        self.tail
    }

    /// The record at the current position, or what is wrong with it.
    fn read(&self) -> Result<Frame<'a>, Damage> {
        let (rest, offset) = (&self.bytes[self.position..], self.position as u64);
        match step(rest, self.file, offset) {
            Step::Record(frame, _) => Ok(frame),
            Step::Short(_) | Step::Damaged => Err(match judge(rest, self.file, offset, true) {
                Broken::Damaged { expected, found } => {
                    Damage::Corrupt(Corruption::new(offset, self.what, expected, found))
                }
                Broken::Torn | Broken::Needs(_) => Damage::Torn,
            }),
        }
    }

    /// The first later record that was appended after everything before it had been synced.
    fn synced_record_after(&self, position: usize) -> Option<usize> {
        (position + 1..self.bytes.len()).find(|&at| {
            self.bytes[at] == FIRST
                && self.bytes[at..].first_chunk().is_some_and(|header: &[u8; HEADER_BYTES]| {
                    before(header) == Before::Synced && is_header(header, self.file, at as u64)
                })
        })
    }
}

enum Damage {
    Torn,
    Corrupt(Corruption),
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, Corruption>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done || self.position == self.bytes.len() {
            return None;
        }
        match self.read() {
            Ok(frame) => {
                self.position += HEADER_BYTES + frame.payload.len() + TRAILER_BYTES;
                Some(Ok(frame))
            }
            Err(Damage::Corrupt(corruption)) => {
                self.done = true;
                Some(Err(corruption))
            }
            Err(Damage::Torn) => {
                self.done = true;
                self.tail = Tail::Torn { offset: self.position as u64 };
                self.synced_record_after(self.position).map(|later| {
                    let expected =
                        format!("a whole record: it was synced before the one at offset {later} was written");
                    Err(Corruption::new(self.position as u64, self.what, expected, "lost sectors"))
                })
            }
        }
    }
}

/// The parts of the sectors that the first `len` of `bytes` touch, which stand at `offset` of their file: each from
/// `offset` or the sector's start to the end of the sector or of `bytes`.
fn sectors(offset: u64, len: usize, bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let first = SECTOR - (offset % SECTOR as u64) as usize;
    let end = len.min(bytes.len());
    let starts = std::iter::once(0).chain((first..end).step_by(SECTOR)).take_while(move |&start| start < end);
    starts.map(move |start| {
        let sector_end = if start == 0 { first } else { start + SECTOR };
        &bytes[start..sector_end.min(bytes.len())]
    })
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

#[cfg(test)]
mod tests;
