//! The commit log: one record per commit. Page: `docs/formats/log.md`.
//!
//! ```text
//! record    the frame of `frame.rs`, numbered by the first operation's sequence number
//! payload   operation │ operation │ …          operation i has sequence number first + i
//! operation kind u8 │ keyspace varint │ key length varint │ [value length varint] │ key │ [value]
//! kind      1 put │ 2 put pointer │ 3 delete │ 4 delete range │ 5 delete range without end
//!           7 put until │ 8 put pointer until: the value begins with the instant, and the length counts it
//!           9 merge: the value is an operand
//!           10 put pointer, with the value │ 11 put pointer until, with the value
//!              the value here is: length u8 of what kind 2 or 8 has │ that │ the value itself
//!           12 put large: the value is what the entry says of the file that has it
//!
//! marker    a record of no operation, with the number of the next one; payload  6 u8 │ commit number varint
//! skip      a record of no operation, with the number of the next one; payload  16 u8 │ the number after it varint
//! changes   the first record of a log; payload  17 u8 │ bytes varint │ milliseconds varint │ log varint │ end varint
//! floor     a record of no operation, with the number of the next one; payload  18 u8 │ log varint
//! announced a skip that says more; payload  19 u8 │ the number after it varint │ file varint │ its bytes varint
//! large     the second record of a log; payload  20 u8 │ file varint │ bytes varint │ file varint │ …
//! ```
//!
//! A marker follows a sync and says up to which commit everything is durable. None of that can be a torn tail. A skip
//! says that no operation has the numbers in between: an ingest has them, or nobody (`log/ingest.rs`). A log that
//! begins with a record of changes has each value that a commit puts: it is kept for the change feed, within these
//! limits. In such logs, a floor says that MANIFEST needs no log before that one any more. A record `large` lists the
//! files of large values that commits name in the log which the record of changes names: the feed needs them as long as
//! that log. What an ingest has for the feed is in a file of its own, which is a log of puts.

use bifold_contract::{
    Corruption, FileId, KeyspaceId, Millis, SeqNo,
    expiry::{self, INSTANT_BYTES},
    key::MAX_SEQNO,
};

pub use self::ingest::LoggedIngest;
pub use crate::frame::{Before, Tail};
use crate::{
    bytes::{Input, put_varint},
    frame::{self, FILE_HEADER_BYTES, Frame, Frames, HEADER_BYTES},
};

const MAGIC: [u8; 8] = *b"bifldlog";

/// The version this release writes, and the newest it reads.
pub const VERSION: u32 = 1;

const PUT: u8 = 1;
const PUT_POINTER: u8 = 2;
const DELETE: u8 = 3;
const DELETE_RANGE: u8 = 4;
const DELETE_RANGE_UNBOUNDED: u8 = 5;
const DURABLE: u8 = 6;
const PUT_UNTIL: u8 = 7;
const PUT_POINTER_UNTIL: u8 = 8;
const MERGE: u8 = 9;
const PUT_POINTER_AND_VALUE: u8 = 10;
const PUT_POINTER_AND_VALUE_UNTIL: u8 = 11;
const PUT_LARGE: u8 = 12;
const SKIP: u8 = 16;
const CHANGES: u8 = 17;
const FLOOR: u8 = 18;
const ANNOUNCED: u8 = 19;
const LARGE_BEFORE: u8 = 20;

/// The first bytes of the log `file`.
#[must_use]
pub fn header(file: FileId) -> [u8; FILE_HEADER_BYTES] {
    frame::file_header(MAGIC, VERSION, file)
}

/// What the first record of a log says that is kept for the change feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// So many bytes of logs are kept that replay does not need.
    pub bytes: u64,
    /// For so many milliseconds; 0: however old they are.
    pub millis: u64,
    /// The last kept log before this one that has commits; 0: there is none.
    pub previous: FileId,
    /// Where its last commit ends.
    pub previous_end: u64,
}

/// Encodes one commit at the end of a buffer.
#[derive(Debug)]
pub struct LogEncoder<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    file: FileId,
    offset: u64,
    first: SeqNo,
}

impl<'a> LogEncoder<'a> {
    /// Starts a record that will be at `offset` of the log `file`.
    pub fn begin(out: &'a mut Vec<u8>, file: FileId, offset: u64, first: SeqNo) -> Self {
        let start = frame::begin(out);
        Self { out, start, file, offset, first }
    }

    /// Sets a key to a value.
    pub fn put(&mut self, keyspace: KeyspaceId, key: &[u8], value: &[u8]) {
        self.key_and_value(PUT, keyspace, key, value);
    }

    /// Sets a key to a separated value at an encoded address.
    pub fn pointer(&mut self, keyspace: KeyspaceId, key: &[u8], pointer: &[u8]) {
        self.key_and_value(PUT_POINTER, keyspace, key, pointer);
    }

    /// Sets a key to a value that expires.
    pub fn put_until(&mut self, keyspace: KeyspaceId, key: &[u8], instant: Millis, value: &[u8]) {
        self.key_and_parts(PUT_UNTIL, keyspace, key, &[&expiry::encode(instant), value]);
    }

    /// Sets a key to a separated value that expires; `payload` is the instant and an encoded address.
    pub fn pointer_until(&mut self, keyspace: KeyspaceId, key: &[u8], payload: &[u8]) {
        self.key_and_value(PUT_POINTER_UNTIL, keyspace, key, payload);
    }

    /// As [`LogEncoder::pointer`], with the value itself for those who read changes.
    pub fn pointer_and_value(&mut self, keyspace: KeyspaceId, key: &[u8], pointer: &[u8], value: &[u8]) {
        self.key_and_parts(PUT_POINTER_AND_VALUE, keyspace, key, &[&[pointer.len() as u8], pointer, value]);
    }

    /// As [`LogEncoder::pointer_until`], with the value itself.
    pub fn pointer_and_value_until(&mut self, keyspace: KeyspaceId, key: &[u8], payload: &[u8], value: &[u8]) {
        self.key_and_parts(PUT_POINTER_AND_VALUE_UNTIL, keyspace, key, &[&[payload.len() as u8], payload, value]);
    }

    /// Gives a key an operand of the merge operator.
    pub fn merge(&mut self, keyspace: KeyspaceId, key: &[u8], operand: &[u8]) {
        self.key_and_value(MERGE, keyspace, key, operand);
    }

    /// Sets a key to a large value, given by the encoded [`LargeRef`](bifold_contract::LargeRef).
    pub fn large(&mut self, keyspace: KeyspaceId, key: &[u8], named: &[u8]) {
        self.key_and_value(PUT_LARGE, keyspace, key, named);
    }

    /// Deletes a key.
    pub fn delete(&mut self, keyspace: KeyspaceId, key: &[u8]) {
        self.key_only(DELETE, keyspace, key);
    }

    /// Deletes the keys from `start` up to but not including `end`; without `end`, all keys from `start` on.
    pub fn delete_range(&mut self, keyspace: KeyspaceId, start: &[u8], end: Option<&[u8]>) {
        match end {
            Some(end) => self.key_and_value(DELETE_RANGE, keyspace, start, end),
            None => self.key_only(DELETE_RANGE_UNBOUNDED, keyspace, start),
        }
    }

    /// Makes the record a marker: all commits up to `last` are durable. A marker has no other content.
    pub fn durable(&mut self, last: SeqNo) {
        self.out.push(DURABLE);
        put_varint(self.out, last);
    }

    /// Makes the record the first one of a log that is kept for the change feed.
    pub fn kept(&mut self, kept: Kept) {
        self.out.push(CHANGES);
        put_varint(self.out, kept.bytes);
        put_varint(self.out, kept.millis);
        put_varint(self.out, kept.previous);
        put_varint(self.out, kept.previous_end);
    }

    /// Makes the record a floor: no log before this one is needed for replay. A floor has no other content.
    pub fn floor(&mut self, log: FileId) {
        self.out.push(FLOOR);
        put_varint(self.out, log);
    }

    /// Makes the record the list of large values that commits name in the kept log before this one: the number and the
    /// bytes of each file. The list has no other content.
    pub fn large_before(&mut self, files: impl IntoIterator<Item = (FileId, u64)>) {
        self.out.push(LARGE_BEFORE);
        for (file, bytes) in files {
            put_varint(self.out, file);
            put_varint(self.out, bytes);
        }
    }

    fn key_only(&mut self, kind: u8, keyspace: KeyspaceId, key: &[u8]) {
        self.out.push(kind);
        put_varint(self.out, u64::from(keyspace));
        put_varint(self.out, key.len() as u64);
        self.out.extend_from_slice(key);
    }

    #[inline]
    fn key_and_value(&mut self, kind: u8, keyspace: KeyspaceId, key: &[u8], value: &[u8]) {
        self.key_and_parts(kind, keyspace, key, &[value]);
    }

    #[inline]
    fn key_and_parts(&mut self, kind: u8, keyspace: KeyspaceId, key: &[u8], value: &[&[u8]]) {
        let value_bytes: usize = value.iter().map(|part| part.len()).sum();
        self.out.reserve(32 + key.len() + value_bytes);
        self.out.push(kind);
        put_varint(self.out, u64::from(keyspace));
        put_varint(self.out, key.len() as u64);
        put_varint(self.out, value_bytes as u64);
        self.out.extend_from_slice(key);
        value.iter().for_each(|part| self.out.extend_from_slice(part));
    }

    /// Completes the record.
    pub fn finish(self, before: Before) {
        frame::finish(self.out, self.start, self.file, self.offset, self.first, before);
    }
}

/// Reads the commits of a whole log.
#[derive(Clone, Debug)]
pub struct LogReader<'a> {
    frames: Frames<'a>,
}

/// One commit.
#[derive(Clone, Copy, Debug)]
pub struct LogRecord<'a> {
    /// Where it starts in the log.
    pub offset: u64,
    /// The sequence number of its first operation.
    pub first_seqno: SeqNo,
    /// Whether everything before it in the log, and all older logs, were synced when it was appended.
    pub before: Before,
    payload: &'a [u8],
}

/// One operation of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the operands")]
pub enum Operation<'a> {
    /// Sets a key to a value.
    Put { keyspace: KeyspaceId, key: &'a [u8], value: &'a [u8] },
    /// Sets a key to a separated value at an encoded address. The value itself is there for those who read changes, but
    /// not where GC has moved it.
    Pointer { keyspace: KeyspaceId, key: &'a [u8], pointer: &'a [u8], value: Option<&'a [u8]> },
    /// Sets a key to a value that expires.
    PutUntil { keyspace: KeyspaceId, key: &'a [u8], instant: Millis, value: &'a [u8] },
    /// Sets a key to a separated value that expires: the payload of the entry, and the address in it.
    PointerUntil { keyspace: KeyspaceId, key: &'a [u8], payload: &'a [u8], pointer: &'a [u8], value: Option<&'a [u8]> },
    /// Gives a key an operand of the merge operator.
    Merge { keyspace: KeyspaceId, key: &'a [u8], operand: &'a [u8] },
    /// Sets a key to a large value: the encoded [`LargeRef`](bifold_contract::LargeRef).
    Large { keyspace: KeyspaceId, key: &'a [u8], named: &'a [u8] },
    /// Deletes a key.
    Delete { keyspace: KeyspaceId, key: &'a [u8] },
    /// Deletes the keys from `start` up to but not including `end`; without `end`, all keys from `start` on.
    DeleteRange { keyspace: KeyspaceId, start: &'a [u8], end: Option<&'a [u8]> },
}

impl<'a> Operation<'a> {
    /// The encoded address of a separated value that it sets.
    #[must_use]
    pub fn pointer(&self) -> Option<&'a [u8]> {
        match *self {
            Self::Pointer { pointer, .. } | Self::PointerUntil { pointer, .. } => Some(pointer),
            _ => None,
        }
    }

    /// The keyspace it applies to.
    #[must_use]
    pub fn keyspace(&self) -> KeyspaceId {
        match *self {
            Self::Put { keyspace, .. }
            | Self::Pointer { keyspace, .. }
            | Self::PutUntil { keyspace, .. }
            | Self::PointerUntil { keyspace, .. }
            | Self::Merge { keyspace, .. }
            | Self::Large { keyspace, .. }
            | Self::Delete { keyspace, .. }
            | Self::DeleteRange { keyspace, .. } => keyspace,
        }
    }
}

impl<'a> LogReader<'a> {
    /// Reads `bytes`, the content of log `file`.
    ///
    /// # Errors
    /// If its header is damaged. A header that a crash left incomplete makes an empty log.
    pub fn new(bytes: &'a [u8], file: FileId) -> Result<Self, Corruption> {
        Ok(Self { frames: Frames::new(bytes, MAGIC, VERSION, Some(file), "log record")? })
    }

    /// How the log ends, as far as it has been read.
    #[must_use]
    pub fn tail(&self) -> Tail {
        self.frames.tail()
    }
}

impl<'a> Iterator for LogReader<'a> {
    type Item = Result<LogRecord<'a>, Corruption>;

    fn next(&mut self) -> Option<Self::Item> {
        let frame = self.frames.next()?;
        Some(frame.map(LogRecord::of))
    }
}

/// Checks that the first bytes of a log are those of log `file`. Returns `false` for a header that a crash left
/// incomplete, which makes an empty log.
///
/// # Errors
/// When they are those of another file, of a newer version, or damaged. A header cut short by a crash makes an empty
/// log: `false`.
pub fn check_header(bytes: &[u8], file: FileId) -> Result<bool, Corruption> {
    let frames = Frames::new(bytes, MAGIC, VERSION, Some(file), "log")?;
    Ok(frames.tail() == Tail::Clean)
}

impl<'a> LogRecord<'a> {
    /// The record in a frame of a log.
    #[must_use]
    pub fn of(frame: Frame<'a>) -> Self {
        Self { offset: frame.offset, first_seqno: frame.number, before: frame.before, payload: frame.payload }
    }

    /// The last commit up to which everything is known to have been durable when the record was appended.
    ///
    /// # Errors
    /// If it is a marker that cannot be decoded.
    pub fn durable(&self) -> Result<SeqNo, Corruption> {
        let before = if self.before == Before::Synced { self.first_seqno.saturating_sub(1) } else { 0 };
        match self.number_behind(DURABLE, "log marker")? {
            Some(last) if last > MAX_SEQNO => {
                let (at, expected) = (self.offset + HEADER_BYTES as u64, format!("a number up to {MAX_SEQNO}"));
                Err(Corruption::new(at, "log marker", expected, last.to_string()))
            }
            last => Ok(last.unwrap_or(0).max(before)),
        }
    }

    /// The number of the next operation, if the record is a skip, which may announce an ingest.
    ///
    /// # Errors
    /// If it is a skip that cannot be decoded.
    pub fn skips_to(&self) -> Result<Option<SeqNo>, Corruption> {
        if let Some(ingest) = self.announced()? {
            return Ok(Some(ingest.next));
        }
        let next = self.number_behind(SKIP, "log skip")?;
        match next {
            Some(next) if next <= self.first_seqno || next > MAX_SEQNO => {
                let expected = format!("a number from {} to {MAX_SEQNO}", self.first_seqno + 1);
                Err(Corruption::new(self.offset + HEADER_BYTES as u64, "log skip", expected, next.to_string()))
            }
            next => Ok(next),
        }
    }

    /// What the record says about keeping the log for the change feed, if it is one that does.
    ///
    /// # Errors
    /// If it cannot be decoded.
    pub fn kept(&self) -> Result<Option<Kept>, Corruption> {
        match self.payload.split_first() {
            Some((&CHANGES, rest)) => {
                let mut input = Input::new(rest, "log record of changes");
                let mut kept = || {
                    let (bytes, millis) = (input.varint()?, input.varint()?);
                    let kept = Kept { bytes, millis, previous: input.varint()?, previous_end: input.varint()? };
                    input.end().map(|()| kept)
                };
                kept().map(Some).map_err(|d: Corruption| d.at(self.offset + HEADER_BYTES as u64))
            }
            _ => Ok(None),
        }
    }

    /// The first log that is needed for replay, if the record is a floor.
    ///
    /// # Errors
    /// If it is a floor that cannot be decoded.
    pub fn floor(&self) -> Result<Option<FileId>, Corruption> {
        self.number_behind(FLOOR, "log floor")
    }

    /// The number and the bytes of each file of a large value that commits name in the kept log before this one, if the
    /// record is their list.
    ///
    /// # Errors
    /// If it is a list that cannot be decoded.
    pub fn large_before(&self) -> Result<Option<Vec<(FileId, u64)>>, Corruption> {
        let Some((&LARGE_BEFORE, rest)) = self.payload.split_first() else { return Ok(None) };
        let mut input = Input::new(rest, "log record of large values");
        let mut files = Vec::new();
        let mut read = || {
            while !input.is_empty() {
                files.push((input.varint()?, input.varint()?));
            }
            Ok(())
        };
        read().map_err(|damage: Corruption| damage.at(self.offset + HEADER_BYTES as u64))?;
        Ok(Some(files))
    }

    /// The number that is all there is behind a first byte of this `kind`.
    fn number_behind(&self, kind: u8, what: &'static str) -> Result<Option<SeqNo>, Corruption> {
        match self.payload.split_first() {
            Some((&first, rest)) if first == kind => {
                let mut input = Input::new(rest, what);
                let number = input.varint().and_then(|number| input.end().map(|()| number));
                number.map(Some).map_err(|d| d.at(self.offset + HEADER_BYTES as u64))
            }
            _ => Ok(None),
        }
    }

    /// Its operations, in order. The payload's checksum matched, so an error here means that another release wrote it
    /// or that the writer has a bug.
    pub fn operations(&self) -> impl Iterator<Item = Result<Operation<'a>, Corruption>> + use<'a> {
        let base = self.offset + HEADER_BYTES as u64;
        let has_none =
            matches!(self.payload.first(), Some(&(DURABLE | SKIP | CHANGES | FLOOR | ANNOUNCED | LARGE_BEFORE)));
        let mut input = Input::new(if has_none { &[] } else { self.payload }, "log operation");
        let mut failed = false;
        std::iter::from_fn(move || {
            if input.is_empty() || failed {
                return None;
            }
            let start = input;
            let operation = operation(&mut input).and_then(|operation| sizes::checked(operation, &start));
            let operation = operation.map_err(|damage| damage.at(base));
            failed = operation.is_err();
            Some(operation)
        })
    }
}

fn operation<'a>(input: &mut Input<'a>) -> Result<Operation<'a>, Corruption> {
    let start = *input;
    let kind = input.u8()?;
    let keyspace = input.varint32()?;
    let key_len = input.varint32()? as usize;
    Ok(match kind {
        DELETE => Operation::Delete { keyspace, key: input.take(key_len)? },
        DELETE_RANGE_UNBOUNDED => Operation::DeleteRange { keyspace, start: input.take(key_len)?, end: None },
        PUT_POINTER_AND_VALUE | PUT_POINTER_AND_VALUE_UNTIL => {
            let value_len = input.varint32()? as usize;
            let (key, both) = (input.take(key_len)?, input.take(value_len)?);
            let parts = both.split_first().and_then(|(&len, rest)| rest.split_at_checked(len.into()));
            let damaged = || start.damage("an address, and a value behind it", format!("{value_len} bytes"));
            let (payload, value) = parts.ok_or_else(damaged)?;
            let value = Some(value);
            match kind {
                PUT_POINTER_AND_VALUE => Operation::Pointer { keyspace, key, pointer: payload, value },
                _ if payload.len() < INSTANT_BYTES => return Err(damaged()),
                _ => Operation::PointerUntil { keyspace, key, payload, pointer: expiry::split(payload).1, value },
            }
        }
        PUT | PUT_POINTER | DELETE_RANGE | PUT_UNTIL | PUT_POINTER_UNTIL | MERGE | PUT_LARGE => {
            let value_len = input.varint32()? as usize;
            let (key, value) = (input.take(key_len)?, input.take(value_len)?);
            let has_instant = value_len >= INSTANT_BYTES;
            let (instant, rest) = expiry::split(value);
            match kind {
                PUT_UNTIL if has_instant => Operation::PutUntil { keyspace, key, instant, value: rest },
                PUT_POINTER_UNTIL if has_instant => {
                    Operation::PointerUntil { keyspace, key, payload: value, pointer: rest, value: None }
                }
                PUT_UNTIL | PUT_POINTER_UNTIL => {
                    return Err(start.damage("a value behind an instant of 6 bytes", format!("{value_len} bytes")));
                }
                PUT => Operation::Put { keyspace, key, value },
                MERGE => Operation::Merge { keyspace, key, operand: value },
                PUT_LARGE => Operation::Large { keyspace, key, named: value },
                PUT_POINTER => Operation::Pointer { keyspace, key, pointer: value, value: None },
                _ => Operation::DeleteRange { keyspace, start: key, end: Some(value) },
            }
        }
        other => {
            return Err(
                start.damage("an operation of kind 1 to 5, or 7 to 12 (upgrade Bifold)", format!("kind {other}"))
            );
        }
    })
}

mod ingest;
mod sizes;
#[cfg(test)]
mod tests;
