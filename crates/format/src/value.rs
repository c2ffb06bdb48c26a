//! Value files: separated values. Page: `docs/formats/value.md`.
//!
//! ```text
//! file      header (32 B) │ description │ record │ record │ …       records as in `frame.rs`
//! description   number 0, payload  class u8 │ keyspace varint │ group varint
//! record        number = the sequence number under which the key was written
//! payload   kind u8 │ method u8 │ key length varint │ key │ body
//! kind      1 value │ 2 delete │ 3 stub │ 4 delete range │ 5 delete range without end │ 6 tag
//!           7 drops │ 8 index │ 9 properties: nothing about a key, see `sorted.rs`
//!           10 forwards: nothing about a key, see `forward.rs`
//! body      value: the value, or when method is not 0 its length u32 and its compressed bytes
//!           delete range: the first key not deleted          tag: an address          others: nothing
//! ```
//!
//! Each record has its key, number and kind, so a file can be garbage-collected, verified and salvaged without
//! anything else (HashKV §3.1; ours is laid out like a log). A moved value keeps the number of the commit that wrote
//! it.

use std::{ops::Range, sync::Arc};

use bifold_contract::{Corruption, FileId, KeyspaceId, MAX_KEY_LEN, Pointer, SeqNo, Value};

pub use crate::frame::{FILE_HEADER_BYTES, HEADER_BYTES, TRAILER_BYTES};
use crate::{
    bytes::{Input, put_varint},
    compression::{Compressor, Method, decompress},
    frame::{self, Before, Frame},
    pointer,
};

const MAGIC: [u8; 8] = *b"bifldval";

/// The version this release writes, and the newest it reads.
pub const VERSION: u32 = 1;

/// The longest value a record may hold, in bytes.
const VALUE_BYTES_MAX: usize = 1 << 30;

/// What a record says about its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ValueKind {
    /// Its value.
    Value = 1,
    /// It was deleted.
    Delete = 2,
    /// Its newest version is elsewhere: inline, or in another file.
    Stub = 3,
    /// It and all keys up to another were deleted.
    DeleteRange = 4,
    /// It and all keys after it were deleted.
    DeleteRangeUnbounded = 5,
    /// Its value, written under the same number, was copied to another file (HashKV §3.4: "a tag in the metadata").
    Tag = 6,
    /// No key: values of another file that are no longer needed ([`crate::sorted`]).
    Drops = 7,
    /// No key: an index of the values in this file.
    Index = 8,
    /// No key: the properties of this file.
    Properties = 9,
    /// No key: where the values of another file have moved ([`crate::forward`]).
    Forwards = 10,
}

impl ValueKind {
    /// Whether a record of this kind has a key.
    #[must_use]
    pub fn has_key(self) -> bool {
        !matches!(self, Self::Drops | Self::Index | Self::Properties | Self::Forwards)
    }

    /// Whether what a record of this kind has is a key, not a bound of a range.
    fn is_of_one_key(self) -> bool {
        matches!(self, Self::Value | Self::Delete | Self::Stub | Self::Tag)
    }

    fn from_byte(byte: u8) -> Option<Self> {
        use ValueKind::{
            Delete, DeleteRange, DeleteRangeUnbounded, Drops, Forwards, Index, Properties, Stub, Tag, Value,
        };
        [Value, Delete, Stub, DeleteRange, DeleteRangeUnbounded, Tag, Drops, Index, Properties, Forwards]
            .into_iter()
            .find(|&kind| kind as u8 == byte)
    }
}

/// The description of a value file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// The kind of value file (the placement's own numbering).
    pub class: u8,
    /// The keyspace its values belong to.
    pub keyspace: KeyspaceId,
    /// The group of values (the placement's own numbering).
    pub group: u64,
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueRecord<'a> {
    /// Where it starts in its file.
    pub offset: u64,
    /// The sequence number under which the key was written.
    pub seqno: SeqNo,
    /// What it says.
    pub kind: ValueKind,
    /// The key.
    pub key: &'a [u8],
    method: Method,
    /// The value as stored, or other data that the kind needs.
    body: &'a [u8],
}

impl<'a> ValueRecord<'a> {
    /// The body as stored, for copying into another record.
    #[must_use]
    pub fn stored(&self) -> Stored<'a> {
        Stored { method: self.method, body: self.body }
    }

    /// The value, uncompressed.
    ///
    /// # Errors
    /// If it does not decompress.
    pub fn value(&self) -> Result<Value, Corruption> {
        match self.method {
            Method::Plain => Ok(Value::copy_of(self.body)),
            method => {
                let whole = decompress(method, self.body, VALUE_BYTES_MAX).map_err(|d| d.at(self.offset))?;
                let len = whole.len();
                Ok(Value::slice(whole, 0, len))
            }
        }
    }

    /// The body as stored.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// The address that a tag's value was copied to. The value may have moved again since, or be dead.
    ///
    /// # Errors
    /// If it is a tag and its body is not an address.
    pub fn tagged(&self) -> Result<Option<Pointer>, Corruption> {
        match self.kind {
            ValueKind::Tag => pointer::decode(self.body).map(Some).map_err(|damage| damage.at(self.offset)),
            _ => Ok(None),
        }
    }

    /// Checks what the checksum does not cover: that a value decompresses, and that a tag has an address.
    ///
    /// # Errors
    /// If that is not so.
    pub fn check(&self) -> Result<(), Corruption> {
        self.tagged()?;
        self.value().map(drop)
    }

    /// Keeps key and body in `buffer`, behind what it has.
    pub fn keep_in(&self, buffer: &mut Vec<u8>) -> KeptRecord {
        let key = buffer.len();
        buffer.extend_from_slice(self.key);
        let body = buffer.len();
        buffer.extend_from_slice(self.body);
        let Self { offset, seqno, kind, method, .. } = *self;
        KeptRecord { offset, seqno, kind, method, key: key..body, body: body..buffer.len() }
    }

    /// The first key that a range delete does not delete.
    #[must_use]
    pub fn range_end(&self) -> Option<&'a [u8]> {
        (self.kind == ValueKind::DeleteRange).then_some(self.body)
    }
}

/// A record whose key and body are in a buffer: see [`ValueRecord::keep_in`].
#[derive(Clone, Debug)]
pub struct KeptRecord {
    offset: u64,
    seqno: SeqNo,
    kind: ValueKind,
    method: Method,
    key: Range<usize>,
    body: Range<usize>,
}

impl KeptRecord {
    /// The record, in the buffer that it was kept in.
    #[must_use]
    pub fn record<'a>(&self, buffer: &'a [u8]) -> ValueRecord<'a> {
        let Self { offset, seqno, kind, method, key, body } = self.clone();
        ValueRecord { offset, seqno, kind, method, key: &buffer[key], body: &buffer[body] }
    }
}

/// A value as a record stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored<'a> {
    method: Method,
    body: &'a [u8],
}

impl Stored<'static> {
    /// For a record without a body.
    pub const NOTHING: Self = Self { method: Method::Plain, body: &[] };
}

impl<'a> Stored<'a> {
    /// Bytes as they are.
    #[must_use]
    pub fn plain(body: &'a [u8]) -> Self {
        Self { method: Method::Plain, body }
    }

    /// The same without the body, to be kept together with a copy of the body.
    #[must_use]
    pub fn emptied(self) -> Stored<'static> {
        Stored { method: self.method, body: &[] }
    }

    /// The reverse of [`Stored::emptied`]: `body` is the copy.
    #[must_use]
    pub fn with_body(self, body: &[u8]) -> Stored<'_> {
        Stored { method: self.method, body }
    }
}

/// The first bytes of the value file `file`, including its description.
#[must_use]
pub fn header(file: FileId, description: Description) -> Vec<u8> {
    let mut out = frame::file_header(MAGIC, VERSION, file).to_vec();
    let start = frame::begin(&mut out);
    out.push(description.class);
    put_varint(&mut out, u64::from(description.keyspace));
    put_varint(&mut out, description.group);
    frame::finish(&mut out, start, file, FILE_HEADER_BYTES as u64, 0, Before::Unsynced);
    out
}

/// The id and description of a value file, from its first bytes, and the offset of its first record.
///
/// # Errors
/// If they are not the start of a value file of this or an older version.
pub fn describe(bytes: &[u8]) -> Result<(FileId, Description, u64), Corruption> {
    let file = frame::file_id(bytes, MAGIC, VERSION)?;
    let (description, start) = describe_as(bytes, file)?;
    Ok((file, description, start))
}

/// As [`describe`], for a file with a known number. Ignores the header.
///
/// # Errors
/// If there is no whole description.
pub fn describe_as(bytes: &[u8], file: FileId) -> Result<(Description, u64), Corruption> {
    let start = FILE_HEADER_BYTES as u64;
    match frame::step(bytes.get(FILE_HEADER_BYTES..).unwrap_or_default(), file, start) {
        frame::Step::Record(record, len) => {
            let mut input = Input::new(record.payload, "description");
            let read = |input: &mut Input<'_>| {
                let description =
                    Description { class: input.u8()?, keyspace: input.varint32()?, group: input.varint()? };
                input.end()?;
                Ok(description)
            };
            let description = read(&mut input).map_err(|d: Corruption| d.at(start + HEADER_BYTES as u64))?;
            Ok((description, start + len as u64))
        }
        _ => Err(Corruption::new(start, "description", "a whole record", "none")),
    }
}

/// Whether the first bytes of the value file `file`, which [`describe`] refuses, are the remains of a crash: too few,
/// or never written. Else they were changed after they had been written.
#[must_use]
pub fn is_torn_beginning(bytes: &[u8], file: FileId) -> bool {
    let Some((header, rest)) = bytes.split_at_checked(FILE_HEADER_BYTES) else { return true };
    let ends = bytes.len() < DESCRIPTION_BYTES_MAX;
    bytes.iter().all(|&byte| byte == 0)
        || (frame::is_file_header(header)
            && frame::judge(rest, file, FILE_HEADER_BYTES as u64, ends) == frame::Broken::Torn)
}

/// The file number in a file's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The number in a whole header.
    Whole(FileId),
    /// The header is damaged; this is what the field of the number contains.
    Damaged(FileId),
}

/// The file number in the header of a value file, however damaged the header is.
///
/// # Errors
/// If the header is whole but belongs to another kind of file or has a newer version.
pub fn identify(bytes: &[u8]) -> Result<Identity, Corruption> {
    if frame::is_file_header(bytes) {
        return frame::file_id(bytes, MAGIC, VERSION).map(Identity::Whole);
    }
    let number = bytes.get(16..).and_then(|rest| rest.first_chunk());
    Ok(Identity::Damaged(number.map_or(0, |b| FileId::from_le_bytes(*b))))
}

/// The most bytes that [`describe`] needs.
pub const DESCRIPTION_BYTES_MAX: usize = FILE_HEADER_BYTES + HEADER_BYTES + 1 + 5 + 10 + TRAILER_BYTES;

/// Appends a record to `out`. It will be at `offset` of `file`.
pub fn encode(
    out: &mut Vec<u8>,
    (file, offset): (FileId, u64),
    kind: ValueKind,
    seqno: SeqNo,
    key: &[u8],
    stored: Stored<'_>,
) {
    let start = begin(out, kind, stored.method, key);
    out.extend_from_slice(stored.body);
    frame::finish(out, start, file, offset, seqno, Before::Unsynced);
}

/// Appends a tag: the value of `key`, written under `seqno`, is at `to`.
pub fn encode_tag(out: &mut Vec<u8>, (file, offset): (FileId, u64), seqno: SeqNo, key: &[u8], to: Pointer) {
    let start = begin(out, ValueKind::Tag, Method::Plain, key);
    pointer::encode(to, out);
    frame::finish(out, start, file, offset, seqno, Before::Unsynced);
}

/// Appends a record with `value`, compressed if that is at least an eighth shorter. It will be at `offset` of `file`.
pub fn encode_value(
    out: &mut Vec<u8>,
    (file, offset): (FileId, u64),
    seqno: SeqNo,
    key: &[u8],
    value: &[u8],
    compressor: &mut Compressor,
) {
    let start = begin(out, ValueKind::Value, Method::Plain, key);
    let body = out.len();
    out.extend_from_slice(value);
    out[start + HEADER_BYTES + 1] = compressor.compress(out, body) as u8;
    frame::finish(out, start, file, offset, seqno, Before::Unsynced);
}

fn begin(out: &mut Vec<u8>, kind: ValueKind, method: Method, key: &[u8]) -> usize {
    let start = frame::begin(out);
    out.extend_from_slice(&[kind as u8, method as u8]);
    put_varint(out, key.len() as u64);
    out.extend_from_slice(key);
    start
}

/// Decodes the record in a frame.
///
/// # Errors
/// If it is not a value record.
#[inline]
pub fn decode(frame: Frame<'_>) -> Result<ValueRecord<'_>, Corruption> {
    let mut input = Input::new(frame.payload, "value record");
    let read = |input: &mut Input<'_>| -> Result<(ValueKind, Method, usize), Corruption> {
        let start = *input;
        let kind = input.u8()?;
        let kind =
            ValueKind::from_byte(kind).ok_or_else(|| start.damage("a kind from 1 to 10", format!("kind {kind}")))?;
        let start = *input;
        let method = input.u8()?;
        let method = Method::from_byte(method)
            .ok_or_else(|| start.damage("a compression method from 0 to 2", format!("method {method}")))?;
        let (start, key_len) = (*input, input.varint32()? as usize);
        // Whoever moves a value writes its key again, and relies on it.
        if kind.is_of_one_key() && !(1..=MAX_KEY_LEN).contains(&key_len) {
            return Err(start.damage(format!("a key of 1 to {MAX_KEY_LEN} bytes"), format!("one of {key_len} bytes")));
        }
        Ok((kind, method, key_len))
    };
    let base = frame.offset + HEADER_BYTES as u64;
    let (kind, method, key_len) = read(&mut input).map_err(|d| d.at(base))?;
    let key = input.take(key_len).map_err(|d| d.at(base))?;
    Ok(ValueRecord { offset: frame.offset, seqno: frame.number, kind, key, method, body: input.rest() })
}

/// The frame of the one record in `bytes`, which are at `offset` of `file`.
///
/// # Errors
/// If they are not one whole record.
#[inline]
pub fn frame_at(bytes: &[u8], file: FileId, offset: u64) -> Result<Frame<'_>, Corruption> {
    match frame::step(bytes, file, offset) {
        frame::Step::Record(frame, len) if len == bytes.len() => Ok(frame),
        _ => {
            let expected = "a record that matches its checksums";
            Err(Corruption::new(offset, "value record", expected, "one that does not"))
        }
    }
}

/// The value of `key` in the bytes of one whole record. An uncompressed value is not copied.
///
/// # Errors
/// If they are not the record at `offset` of `file`, or are a record of another key.
pub fn read_value(bytes: Arc<[u8]>, file: FileId, offset: u64, key: &[u8]) -> Result<Value, Corruption> {
    read_version(bytes, file, offset, key).map(|found| found.1)
}

/// As [`read_value`], with the sequence number under which it was written.
///
/// # Errors
/// As [`read_value`].
#[inline]
pub fn read_version(bytes: Arc<[u8]>, file: FileId, offset: u64, key: &[u8]) -> Result<(SeqNo, Value), Corruption> {
    let record = record_of(&bytes, file, offset, key)?;
    if record.method != Method::Plain {
        return Ok((record.seqno, record.value()?));
    }
    let (seqno, len, end) = (record.seqno, record.body.len(), bytes.len() - TRAILER_BYTES);
    Ok((seqno, Value::slice(bytes, end - len, end)))
}

/// As [`read_value`], but `look` is shown the value; an uncompressed one is not copied.
///
/// # Errors
/// As there.
#[inline]
pub fn look_at_value<T>(
    bytes: &[u8],
    (file, at): (FileId, u64),
    key: &[u8],
    look: impl FnOnce(&[u8]) -> T,
) -> Result<T, Corruption> {
    let record = record_of(bytes, file, at, key)?;
    if record.method == Method::Plain { Ok(look(record.body)) } else { Ok(look(&record.value()?)) }
}

/// The record of a value of `key` in the bytes of one whole record.
#[inline]
fn record_of<'a>(bytes: &'a [u8], file: FileId, offset: u64, key: &[u8]) -> Result<ValueRecord<'a>, Corruption> {
    let record = decode(frame_at(bytes, file, offset)?)?;
    if record.key != key || record.kind != ValueKind::Value {
        let found = format!("{:?} of `{}`", record.kind, record.key.escape_ascii());
        return Err(Corruption::new(offset, "value record", format!("the value of `{}`", key.escape_ascii()), found));
    }
    Ok(record)
}

#[cfg(test)]
mod tests;
