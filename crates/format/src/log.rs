//! The commit log: one record per commit. Page: `docs/formats/log.md`.
//!
//! ```text
//! record    the frame of `frame.rs`, numbered by the first operation's sequence number
//! payload   operation │ operation │ …          operation i has sequence number first + i
//! operation kind u8 │ keyspace varint │ key length varint │ [value length varint] │ key │ [value]
//! kind      1 put │ 2 put pointer │ 3 delete │ 4 delete range │ 5 delete range without end
//!           7 put until │ 8 put pointer until: the value begins with the instant, and the length counts it
//!           9 merge: the value is an operand
//!
//! marker    a record of no operation, with the number of the next one; payload  6 u8 │ commit number varint
//! ```
//!
//! A marker follows a sync and says up to which commit everything is durable. None of that can be a torn tail.

use bifold_contract::{
    Corruption, FileId, KeyspaceId, Millis, SeqNo,
    expiry::{self, INSTANT_BYTES},
};

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

/// The first bytes of the log `file`.
#[must_use]
pub fn header(file: FileId) -> [u8; FILE_HEADER_BYTES] {
    frame::file_header(MAGIC, VERSION, file)
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

    /// Gives a key an operand of the merge operator.
    pub fn merge(&mut self, keyspace: KeyspaceId, key: &[u8], operand: &[u8]) {
        self.key_and_value(MERGE, keyspace, key, operand);
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
    /// Sets a key to a separated value at an encoded address.
    Pointer { keyspace: KeyspaceId, key: &'a [u8], pointer: &'a [u8] },
    /// Sets a key to a value that expires.
    PutUntil { keyspace: KeyspaceId, key: &'a [u8], instant: Millis, value: &'a [u8] },
    /// Sets a key to a separated value that expires: the payload of the entry, and the address in it.
    PointerUntil { keyspace: KeyspaceId, key: &'a [u8], payload: &'a [u8], pointer: &'a [u8] },
    /// Gives a key an operand of the merge operator.
    Merge { keyspace: KeyspaceId, key: &'a [u8], operand: &'a [u8] },
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
        match self.payload.split_first() {
            Some((&DURABLE, rest)) => {
                let mut input = Input::new(rest, "log marker");
                let last = input.varint().and_then(|last| input.end().map(|()| last));
                last.map(|last| last.max(before)).map_err(|d| d.at(self.offset + HEADER_BYTES as u64))
            }
            _ => Ok(before),
        }
    }

    /// Its operations, in order. The payload's checksum matched, so an error here means that another release wrote it
    /// or that the writer has a bug.
    pub fn operations(&self) -> impl Iterator<Item = Result<Operation<'a>, Corruption>> + use<'a> {
        let base = self.offset + HEADER_BYTES as u64;
        let is_marker = self.payload.first() == Some(&DURABLE);
        let mut input = Input::new(if is_marker { &[] } else { self.payload }, "log operation");
        let mut failed = false;
        std::iter::from_fn(move || {
            if input.is_empty() || failed {
                return None;
            }
            let operation = operation(&mut input).map_err(|damage| damage.at(base));
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
        PUT | PUT_POINTER | DELETE_RANGE | PUT_UNTIL | PUT_POINTER_UNTIL | MERGE => {
            let value_len = input.varint32()? as usize;
            let (key, value) = (input.take(key_len)?, input.take(value_len)?);
            let has_instant = value_len >= INSTANT_BYTES;
            let (instant, rest) = expiry::split(value);
            match kind {
                PUT_UNTIL if has_instant => Operation::PutUntil { keyspace, key, instant, value: rest },
                PUT_POINTER_UNTIL if has_instant => {
                    Operation::PointerUntil { keyspace, key, payload: value, pointer: rest }
                }
                PUT_UNTIL | PUT_POINTER_UNTIL => {
                    return Err(start.damage("a value behind an instant of 6 bytes", format!("{value_len} bytes")));
                }
                PUT => Operation::Put { keyspace, key, value },
                MERGE => Operation::Merge { keyspace, key, operand: value },
                PUT_POINTER => Operation::Pointer { keyspace, key, pointer: value },
                _ => Operation::DeleteRange { keyspace, start: key, end: Some(value) },
            }
        }
        other => {
            return Err(
                start.damage("an operation of kind 1 to 5, or 7 to 9 (upgrade Bifold)", format!("kind {other}"))
            );
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(commits: &[(SeqNo, Vec<Operation<'_>>)]) -> Vec<u8> {
        let mut bytes = header(5).to_vec();
        for (first, operations) in commits {
            let offset = bytes.len() as u64;
            let mut encoder = LogEncoder::begin(&mut bytes, 5, offset, *first);
            for operation in operations {
                match *operation {
                    Operation::Put { keyspace, key, value } => encoder.put(keyspace, key, value),
                    Operation::Pointer { keyspace, key, pointer } => encoder.pointer(keyspace, key, pointer),
                    Operation::PutUntil { keyspace, key, instant, value } => {
                        encoder.put_until(keyspace, key, instant, value);
                    }
                    Operation::PointerUntil { keyspace, key, payload, .. } => {
                        encoder.pointer_until(keyspace, key, payload);
                    }
                    Operation::Merge { keyspace, key, operand } => encoder.merge(keyspace, key, operand),
                    Operation::Delete { keyspace, key } => encoder.delete(keyspace, key),
                    Operation::DeleteRange { keyspace, start, end } => encoder.delete_range(keyspace, start, end),
                }
            }
            encoder.finish(Before::Unsynced);
        }
        bytes
    }

    #[test]
    fn commits_come_back() {
        let commits = vec![
            (1, vec![Operation::Put { keyspace: 0, key: b"k", value: b"v" }]),
            (
                2,
                vec![
                    Operation::Delete { keyspace: 300, key: b"k" },
                    Operation::DeleteRange { keyspace: 1, start: b"", end: Some(b"m") },
                    Operation::DeleteRange { keyspace: 1, start: b"z", end: None },
                    Operation::Pointer { keyspace: 2, key: b"p", pointer: b"here" },
                ],
            ),
            (6, vec![Operation::Put { keyspace: 0, key: b"empty", value: b"" }]),
            (
                7,
                vec![
                    Operation::PutUntil { keyspace: 0, key: b"soon", instant: 1_764_000_000_000, value: b"v" },
                    Operation::PutUntil { keyspace: 0, key: b"empty", instant: 0, value: b"" },
                    Operation::PointerUntil { keyspace: 2, key: b"p", payload: b"instanthere", pointer: b"there" },
                ],
            ),
        ];
        let bytes = encode(&commits);
        let mut reader = LogReader::new(&bytes, 5).unwrap();
        for (first, operations) in &commits {
            let record = reader.next().unwrap().unwrap();
            assert_eq!(record.first_seqno, *first);
            assert_eq!(record.operations().collect::<Result<Vec<_>, _>>().unwrap(), *operations);
        }
        assert!(reader.next().is_none());
        assert_eq!(reader.tail(), Tail::Clean);
    }

    #[test]
    fn a_value_too_short_for_its_instant_is_damage() {
        for kind in [PUT_UNTIL, PUT_POINTER_UNTIL] {
            let payload = [kind, 1, 1, 5, b'k', 1, 2, 3, 4, 5];
            let record = LogRecord { offset: 0, first_seqno: 1, before: Before::Unsynced, payload: &payload };
            assert!(record.operations().next().is_some_and(|operation| operation.is_err()));
        }
    }

    #[test]
    fn a_marker_is_not_a_commit_and_says_what_is_durable() {
        let mut bytes = header(5).to_vec();
        for (number, before, marks) in
            [(8, Before::Unsynced, Some(7)), (8, Before::Synced, Some(3)), (8, Before::Synced, None)]
        {
            let offset = bytes.len() as u64;
            let mut encoder = LogEncoder::begin(&mut bytes, 5, offset, number);
            match marks {
                Some(last) => encoder.durable(last),
                None => encoder.delete(1, b"k"),
            }
            encoder.finish(before);
        }
        let records: Vec<_> = LogReader::new(&bytes, 5).unwrap().map(Result::unwrap).collect();
        let answers: Vec<_> =
            records.iter().map(|record| (record.durable().unwrap(), record.operations().count())).collect();
        assert_eq!(answers, [(7, 0), (7, 0), (7, 1)]);
        let bad = LogRecord { offset: 0, first_seqno: 1, before: Before::Unsynced, payload: &[DURABLE, 0x80] };
        assert!(bad.durable().is_err());
    }

    #[test]
    fn the_bytes_of_a_commit_are_the_documented_ones() {
        let bytes = encode(&[(7, vec![Operation::Put { keyspace: 1, key: b"key", value: b"value" }])]);
        let hex: Vec<String> = bytes[32..].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex[..13].concat(), "5b000c00000007000000000000".to_string());
        assert_eq!(hex[21..].concat(), "d7010103056b657976616c7565b1");
    }

    proptest! {
        #[test]
        fn no_payload_makes_the_decoder_panic(payload: Vec<u8>) {
            let record = LogRecord { offset: 0, first_seqno: 1, before: Before::Unsynced, payload: &payload };
            let _any_answer: Vec<_> = record.operations().collect();
        }
    }
}
