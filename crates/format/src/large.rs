//! Files of large values. Page: `docs/formats/large.md`.
//!
//! ```text
//! file         header │ description │ chunk │ chunk │ … │ trailer
//! description  keyspace u32 │ key length u32 │ key │ check u64
//! chunk        256 KiB of the value, the last one the rest of it │ check u64
//! trailer      value length u64 │ sum u64 │ check u64                  sum: over the checks of all chunks, in order
//!
//! entry        file varint │ value length varint │ sum u64             in log, memtable and table
//! ```
//!
//! Where each part is follows from the lengths of key and value, so a reader finds any byte without reading others.
//! Each check is bound to the file and the offset. The sum, which the entry repeats, binds the file to its entry.

use bifold_contract::{Corruption, FileId, KeyspaceId, LargeRef, MAX_KEY_LEN, MAX_VALUE_LEN};

use crate::{
    bytes::{Input, put_varint},
    checksum::checksum,
    frame::{self, FILE_HEADER_BYTES},
    names::NUMBER_MAX,
};

const MAGIC: [u8; 8] = *b"bifldlrg";

/// The version this release writes, and the newest it reads.
pub const VERSION: u32 = 1;

/// Bytes of the value in each chunk but the last.
pub const CHUNK_BYTES: u64 = 256 << 10;

const CHECK_BYTES: u64 = 8;

/// Bytes of the trailer.
pub const TRAILER_BYTES: u64 = 24;

/// Appends the encoded form of what an entry says.
pub fn encode(named: LargeRef, out: &mut Vec<u8>) {
    put_varint(out, named.file);
    put_varint(out, named.len);
    out.extend_from_slice(&named.sum.to_le_bytes());
}

/// Decodes a whole payload.
///
/// # Errors
/// If it is not exactly that, or its file number or length is too large.
pub fn decode(bytes: &[u8]) -> Result<LargeRef, Corruption> {
    let mut input = Input::new(bytes, "large value");
    let named = decode_from(&mut input)?;
    input.end()?;
    Ok(named)
}

/// Decodes what [`encode`] wrote.
///
/// # Errors
/// As [`decode`].
pub fn decode_from(input: &mut Input<'_>) -> Result<LargeRef, Corruption> {
    let file = input.varint_up_to(NUMBER_MAX)?;
    let at = *input;
    let len = input.varint_up_to(MAX_VALUE_LEN as u64)?;
    if len == 0 {
        return Err(at.damage("the length of a large value, 1 or more", "0"));
    }
    Ok(LargeRef { file, len, sum: input.u64()? })
}

/// Where the parts of a file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeLayout {
    /// Where the first chunk begins.
    start: u64,
    /// Bytes of the value.
    len: u64,
}

impl LargeLayout {
    /// The file of a value of `len` bytes, whose key has `key_len`.
    #[must_use]
    pub fn of(key_len: usize, len: u64) -> Self {
        Self { start: FILE_HEADER_BYTES as u64 + 8 + key_len as u64 + CHECK_BYTES, len }
    }

    /// Bytes before the first chunk.
    #[must_use]
    pub fn head_bytes(&self) -> usize {
        self.start as usize
    }

    /// How many chunks there are.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.len.div_ceil(CHUNK_BYTES)
    }

    /// Where the chunk with this index begins, and how many bytes of the value it has. Beyond the last one it has none.
    #[must_use]
    pub fn chunk(&self, index: u64) -> (u64, usize) {
        let before = index.saturating_mul(CHUNK_BYTES);
        let bytes = self.len.saturating_sub(before).min(CHUNK_BYTES);
        (self.start + index.min(self.chunks()) * (CHUNK_BYTES + CHECK_BYTES), bytes as usize)
    }

    /// Where the trailer begins.
    #[must_use]
    pub fn trailer_at(&self) -> u64 {
        self.start + self.len + self.chunks() * CHECK_BYTES
    }

    /// Bytes in the file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.trailer_at() + TRAILER_BYTES
    }
}

/// The first bytes of the file: header and description.
#[must_use]
pub fn head(file: FileId, keyspace: KeyspaceId, key: &[u8]) -> Vec<u8> {
    let mut out = frame::file_header(MAGIC, VERSION, file).to_vec();
    out.extend_from_slice(&keyspace.to_le_bytes());
    out.extend_from_slice(&(key.len() as u32).to_le_bytes());
    out.extend_from_slice(key);
    let check = checksum(&out[FILE_HEADER_BYTES..], file, FILE_HEADER_BYTES as u64);
    out.extend_from_slice(&check.to_le_bytes());
    out
}

/// What a file says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Its number.
    pub file: FileId,
    /// The keyspace of its entry.
    pub keyspace: KeyspaceId,
    /// The key of its entry.
    pub key: Box<[u8]>,
}

/// Bytes that are enough to read header and description of any file.
pub const HEAD_BYTES_MAX: usize = FILE_HEADER_BYTES + 8 + MAX_KEY_LEN + CHECK_BYTES as usize;

/// Decodes header and description at the start of `bytes`.
///
/// # Errors
/// If they are cut short, damaged, or of a newer version.
pub fn described(bytes: &[u8]) -> Result<Described, Corruption> {
    let file = frame::file_id(bytes, MAGIC, VERSION)?;
    let rest = bytes.get(FILE_HEADER_BYTES..).unwrap_or_default();
    let mut input = Input::new(rest, "description of a large value");
    let start = input;
    let mut read = || {
        let keyspace = input.u32()?;
        let at = input;
        let key_len = input.u32()? as usize;
        if key_len == 0 || key_len > MAX_KEY_LEN {
            return Err(at.damage(format!("a key of 1 to {MAX_KEY_LEN} bytes"), key_len.to_string()));
        }
        let key = input.take(key_len)?.into();
        let said = &rest[..input.position()];
        if input.u64()? != checksum(said, file, FILE_HEADER_BYTES as u64) {
            return Err(start.damage("the check of the description", "another one"));
        }
        Ok(Described { file, keyspace, key })
    };
    read().map_err(|damage| damage.at(FILE_HEADER_BYTES as u64))
}

/// The check that follows a chunk at `offset`.
#[must_use]
pub fn chunk_check(chunk: &[u8], file: FileId, offset: u64) -> u64 {
    checksum(chunk, file, offset)
}

/// The sum over the checks of chunks, of which `check` is the next one.
#[must_use]
pub fn sum_with(sum: u64, check: u64) -> u64 {
    let both = (u128::from(sum) << 64 | u128::from(check)).to_le_bytes();
    checksum(&both, 0, 0)
}

/// Takes the bytes of a chunk, which are at `offset` of `file`, from `bytes`, where its check follows. Returns them and
/// the check.
///
/// # Errors
/// If the check does not match.
pub fn checked(bytes: &[u8], file: FileId, offset: u64) -> Result<(&[u8], u64), Corruption> {
    let damage =
        |found: &str| Corruption::new(offset, "chunk of a large value", "a chunk that matches its check", found);
    let (chunk, check) = bytes.split_last_chunk::<8>().ok_or_else(|| damage("too few bytes"))?;
    let check = u64::from_le_bytes(*check);
    if check != chunk_check(chunk, file, offset) {
        return Err(damage("one that does not"));
    }
    Ok((chunk, check))
}

/// The last bytes of the file.
#[must_use]
pub fn trailer(named: LargeRef, key_len: usize) -> [u8; TRAILER_BYTES as usize] {
    let mut out = [0; TRAILER_BYTES as usize];
    out[..8].copy_from_slice(&named.len.to_le_bytes());
    out[8..16].copy_from_slice(&named.sum.to_le_bytes());
    let check = checksum(&out[..16], named.file, LargeLayout::of(key_len, named.len).trailer_at());
    out[16..].copy_from_slice(&check.to_le_bytes());
    out
}

/// Decodes the trailer, which is at `offset` of `file`: what the entry says.
///
/// # Errors
/// If it is damaged.
pub fn named(bytes: &[u8], file: FileId, offset: u64) -> Result<LargeRef, Corruption> {
    let mut input = Input::new(bytes, "trailer of a large value");
    let start = input;
    let mut read = || {
        let (len, sum) = (input.u64()?, input.u64()?);
        if input.u64()? != checksum(&bytes[..16], file, offset) || len == 0 || len > MAX_VALUE_LEN as u64 {
            return Err(start.damage("the check of the trailer", "another one"));
        }
        input.end()?;
        Ok(LargeRef { file, len, sum })
    };
    read().map_err(|damage| damage.at(offset))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A file as a writer makes it.
    fn file_of(file: FileId, key: &[u8], value: &[u8]) -> (Vec<u8>, LargeRef) {
        let (mut out, mut sum) = (head(file, 3, key), 0);
        for chunk in value.chunks(CHUNK_BYTES as usize) {
            let check = chunk_check(chunk, file, out.len() as u64);
            sum = sum_with(sum, check);
            out.extend_from_slice(chunk);
            out.extend_from_slice(&check.to_le_bytes());
        }
        let named = LargeRef { file, len: value.len() as u64, sum };
        out.extend_from_slice(&trailer(named, key.len()));
        (out, named)
    }

    fn value_of(bytes: &[u8], key_len: usize, said: LargeRef) -> Result<Vec<u8>, Corruption> {
        let layout = LargeLayout::of(key_len, said.len);
        let mut value = Vec::new();
        for index in 0..layout.chunks() {
            let (at, len) = layout.chunk(index);
            value.extend_from_slice(checked(&bytes[at as usize..at as usize + len + 8], said.file, at)?.0);
        }
        Ok(value)
    }

    #[test]
    fn parts_are_where_the_layout_says() {
        for len in [1, 100, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 17] {
            let value: Vec<u8> = (0..len).map(|n| ((n * 31) >> 3) as u8).collect();
            let (bytes, said) = file_of(9, b"the key", &value);
            let layout = LargeLayout::of(7, len);
            assert_eq!(layout.file_bytes(), bytes.len() as u64, "{len}");
            assert_eq!(named(&bytes[layout.trailer_at() as usize..], 9, layout.trailer_at()), Ok(said));
            let is = described(&bytes).unwrap();
            assert_eq!((is.file, is.keyspace, &*is.key), (9, 3, &b"the key"[..]));
            assert_eq!(value_of(&bytes, 7, said).unwrap(), value);
            assert_eq!(layout.chunk(layout.chunks()).1, 0, "there is no further chunk");
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let value = [7; 300];
        let (bytes, said) = file_of(9, b"key", &value);
        let layout = LargeLayout::of(3, 300);
        for at in 0..bytes.len() {
            // The reserved bytes of the header are part of its check as well.
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                let trailer_at = layout.trailer_at();
                let is_found = described(&damaged).is_err()
                    || value_of(&damaged, 3, said).is_err()
                    || named(&damaged[trailer_at as usize..], 9, trailer_at).is_err();
                assert!(is_found, "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn chunks_of_other_places_do_not_match() {
        let (bytes, _) = file_of(9, b"key", &vec![7; 2 * CHUNK_BYTES as usize]);
        let layout = LargeLayout::of(3, 2 * CHUNK_BYTES);
        let ((first, len), (second, _)) = (layout.chunk(0), layout.chunk(1));
        let chunk = &bytes[first as usize..first as usize + len + 8];
        assert!(checked(chunk, 9, first).is_ok());
        assert!(checked(chunk, 9, second).is_err() && checked(chunk, 8, first).is_err());
    }

    proptest! {
        #[test]
        fn what_entries_say_comes_back(file in 0..=NUMBER_MAX, len in 1..=MAX_VALUE_LEN as u64, sum: u64) {
            let said = LargeRef { file, len, sum };
            let mut bytes = Vec::new();
            encode(said, &mut bytes);
            prop_assert_eq!(decode(&bytes), Ok(said));
            prop_assert!(decode(&bytes[..bytes.len() - 1]).is_err());
            bytes.push(0);
            prop_assert!(decode(&bytes).is_err());
        }

        #[test]
        fn impossible_numbers_are_refused(file in NUMBER_MAX + 1.., len in MAX_VALUE_LEN as u64 + 1..) {
            for (file, len) in [(file, 1), (1, len), (1, 0)] {
                let mut bytes = Vec::new();
                encode(LargeRef { file, len, sum: 0 }, &mut bytes);
                prop_assert!(decode(&bytes).is_err());
            }
        }

        #[test]
        fn no_bytes_make_a_decoder_panic(bytes: Vec<u8>, at: u64) {
            let _any_answer = (decode(&bytes), described(&bytes), named(&bytes, 1, at), checked(&bytes, 1, at));
        }
    }
}
