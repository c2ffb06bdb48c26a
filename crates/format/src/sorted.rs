//! What value files contain that is no value: drop-keys, and the index of a sorted table. Page:
//! `docs/formats/value.md`.
//!
//! ```text
//! sorted table    header │ description │ values by key, newest version first │ index │ properties   (NovKV's SVTable)
//! drop file       header │ description │ drop block of one value file │ drop block of another │ …
//!
//! drop block      a record; its number is that of the value file, its body:
//!                 bytes varint │ count varint │ smallest number varint │ distances to the next ones varint…
//! index           a record; its body:
//!                 count u32 │ count × position u32 │ count × (key length varint │ key │ number varint │ offset varint)
//! properties      a record, the last of its file; its body:
//!                 epoch varint │ end of the values varint
//!                 │ count varint │ count × (file varint │ bytes varint)    the numbers that lead here, and their bytes
//!                 │ count varint │ count × (drop file varint)              the drop files that are counted already
//!                 │ length of the whole record u32
//! ```
//!
//! A drop-key is the **number** of the version that was dropped, not its key (NovKV §III-B records keys): of two
//! versions of one key in one file it must be known which one is dropped, and numbers take a byte or two where keys
//! take thirty. The index has an entry for each 8 KiB of values: which version begins that stretch. A
//! search reads the index and one stretch. There is no filter, because only what exists is searched for (NovKV
//! §III-A.2).

use bifold_contract::{Corruption, FileId, SeqNo};

use crate::{
    bytes::{Input, put_slice, put_varint},
    frame::{HEADER_BYTES, TRAILER_BYTES},
    value::{self, Stored, ValueKind},
};

/// Versions in one value file that are no longer needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Their sequence numbers.
    pub seqnos: Vec<SeqNo>,
    /// Bytes of their records.
    pub bytes: u64,
}

/// The totals of a drop block, from its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropTotals {
    /// Versions.
    pub count: u64,
    /// Bytes of their records.
    pub bytes: u64,
}

/// Appends the drop block of `file` to `out`. Sorts `dropped`.
pub fn encode_drops(out: &mut Vec<u8>, place: (FileId, u64), file: FileId, dropped: &mut Dropped) {
    dropped.seqnos.sort_unstable();
    let mut body = Vec::with_capacity(20 + 2 * dropped.seqnos.len());
    put_varint(&mut body, dropped.bytes);
    put_varint(&mut body, dropped.seqnos.len() as u64);
    let mut last = 0;
    for &seqno in &dropped.seqnos {
        put_varint(&mut body, seqno - last);
        last = seqno;
    }
    value::encode(out, place, ValueKind::Drops, file, &[], Stored::plain(&body));
}

/// The totals of a drop block.
///
/// # Errors
/// If `body` is not that of a drop block.
pub fn drop_totals(body: &[u8]) -> Result<DropTotals, Corruption> {
    totals(&mut Input::new(body, "drop block"))
}

fn totals(input: &mut Input<'_>) -> Result<DropTotals, Corruption> {
    Ok(DropTotals { bytes: input.varint()?, count: input.varint()? })
}

/// Calls `visit` with each number in a drop block, ascending.
///
/// # Errors
/// If `body` is not that of a drop block.
pub fn decode_drops(body: &[u8], mut visit: impl FnMut(SeqNo)) -> Result<(), Corruption> {
    let mut input = Input::new(body, "drop block");
    let mut seqno: SeqNo = 0;
    for _ in 0..totals(&mut input)?.count {
        let at = input;
        let distance = input.varint()?;
        seqno = seqno.checked_add(distance).ok_or_else(|| at.damage("a number", "one beyond 64 bits"))?;
        visit(seqno);
    }
    input.end()
}

/// The properties of a sorted table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SortedProperties {
    /// How many times its content has been rewritten. The offset of a pointer with another epoch is not valid here.
    pub epoch: u32,
    /// Where the values end and the index begins.
    pub values_end: u64,
    /// The file numbers that lead here, ascending, with the bytes of records of each.
    pub aliases: Vec<(FileId, u64)>,
    /// The drop files that were taken into account for these files when the table was written.
    pub regarded: Vec<FileId>,
}

/// Appends the properties to `out`: the last record of a table.
pub fn encode_properties(out: &mut Vec<u8>, place: (FileId, u64), properties: &SortedProperties) {
    let mut body = Vec::new();
    put_varint(&mut body, u64::from(properties.epoch));
    put_varint(&mut body, properties.values_end);
    put_varint(&mut body, properties.aliases.len() as u64);
    for &(file, bytes) in &properties.aliases {
        put_varint(&mut body, file);
        put_varint(&mut body, bytes);
    }
    put_varint(&mut body, properties.regarded.len() as u64);
    properties.regarded.iter().for_each(|&file| put_varint(&mut body, file));
    let len = body.len() + size_of::<u32>() + HEADER_BYTES + RECORD_START_BYTES + TRAILER_BYTES;
    body.extend_from_slice(&(len as u32).to_le_bytes());
    value::encode(out, place, ValueKind::Properties, 0, &[], Stored::plain(&body));
}

/// Kind, method and key length of a record without a key.
const RECORD_START_BYTES: usize = 3;

/// Bytes at the end of a sorted table that give the length of the properties.
pub const PROPERTIES_END_BYTES: usize = size_of::<u32>() + TRAILER_BYTES;

/// The length of the properties, from the last [`PROPERTIES_END_BYTES`] of a table; `None` if it is impossible.
#[must_use]
pub fn properties_len(last: &[u8], file_len: u64) -> Option<u64> {
    let len = u64::from(u32::from_le_bytes(*last.first_chunk()?));
    (len >= (HEADER_BYTES + RECORD_START_BYTES + PROPERTIES_END_BYTES) as u64 && len <= file_len).then_some(len)
}

/// The properties in `bytes`, which are at `offset` of `file` and reach to its end.
///
/// # Errors
/// If they are not whole.
pub fn decode_properties(bytes: &[u8], file: FileId, offset: u64) -> Result<SortedProperties, Corruption> {
    properties(structure(bytes, (file, offset), ValueKind::Properties)?)
}

/// The properties in the body of their record.
///
/// # Errors
/// If `body` does not contain properties.
pub fn properties(body: &[u8]) -> Result<SortedProperties, Corruption> {
    let mut input = Input::new(body, "properties");
    let epoch = input.varint32()?;
    let values_end = input.varint()?;
    let mut properties = SortedProperties { epoch, values_end, ..SortedProperties::default() };
    for _ in 0..input.varint()? {
        properties.aliases.push((input.varint()?, input.varint()?));
    }
    for _ in 0..input.varint()? {
        properties.regarded.push(input.varint()?);
    }
    input.u32()?;
    input.end()?;
    Ok(properties)
}

/// The body of the one record in `bytes`, which must be of this kind.
fn structure(bytes: &[u8], (file, offset): (FileId, u64), kind: ValueKind) -> Result<&[u8], Corruption> {
    let record = value::decode(value::frame_at(bytes, file, offset)?)?;
    if record.kind == kind {
        return Ok(record.body());
    }
    Err(Corruption::new(offset, "value record", format!("{kind:?}"), format!("{:?}", record.kind)))
}

/// Builds the index of a sorted table.
#[derive(Debug, Default)]
pub struct SortedIndexBuilder {
    positions: Vec<u32>,
    entries: Vec<u8>,
}

impl SortedIndexBuilder {
    /// Adds a stretch that starts with this version, at this offset.
    pub fn add(&mut self, key: &[u8], seqno: SeqNo, offset: u64) {
        self.positions.push(self.entries.len() as u32);
        put_slice(&mut self.entries, key);
        put_varint(&mut self.entries, seqno);
        put_varint(&mut self.entries, offset);
    }

    /// Appends the index to `out`.
    pub fn finish(self, out: &mut Vec<u8>, place: (FileId, u64)) {
        let mut body = Vec::with_capacity(4 + 4 * self.positions.len() + self.entries.len());
        body.extend_from_slice(&(self.positions.len() as u32).to_le_bytes());
        self.positions.iter().for_each(|position| body.extend_from_slice(&position.to_le_bytes()));
        body.extend_from_slice(&self.entries);
        value::encode(out, place, ValueKind::Index, 0, &[], Stored::plain(&body));
    }
}

/// The index of a sorted table, searched in its encoded form.
#[derive(Debug)]
pub struct SortedIndex {
    /// The whole record.
    bytes: Box<[u8]>,
    /// Where the positions start in `bytes`, and where the entries start.
    positions: usize,
    entries: usize,
    count: usize,
}

impl SortedIndex {
    /// The index in `bytes`, which are at `offset` of `file`.
    ///
    /// # Errors
    /// If it is not whole.
    pub fn new(bytes: Box<[u8]>, file: FileId, offset: u64) -> Result<Self, Corruption> {
        let body = structure(&bytes, (file, offset), ValueKind::Index)?;
        let mut input = Input::new(body, "index");
        let count = input.u32()? as usize;
        input.take(count.saturating_mul(size_of::<u32>()))?;
        let entries = bytes.len() - TRAILER_BYTES - input.rest().len();
        Ok(Self { positions: entries - count * size_of::<u32>(), entries, count, bytes })
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Where the stretch begins that version `seqno` of `key` is in, if it is there, and where the next one begins
    /// (`None`: it is the last).
    ///
    /// # Errors
    /// If an entry cannot be decoded.
    pub fn find(&self, key: &[u8], seqno: SeqNo) -> Result<Option<(u64, Option<u64>)>, Corruption> {
        let (mut below, mut above) = (0, self.count);
        while below < above {
            let middle = below + (above - below) / 2;
            let (first, first_seqno, _) = self.entry(middle)?;
            if (first, std::cmp::Reverse(first_seqno)) <= (key, std::cmp::Reverse(seqno)) {
                below = middle + 1;
            } else {
                above = middle;
            }
        }
        let Some(at) = below.checked_sub(1) else { return Ok(None) };
        let next = if below < self.count { Some(self.entry(below)?.2) } else { None };
        Ok(Some((self.entry(at)?.2, next)))
    }

    fn entry(&self, at: usize) -> Result<(&[u8], SeqNo, u64), Corruption> {
        let position =
            self.bytes[self.positions + at * size_of::<u32>()..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
        let entries = &self.bytes[self.entries..self.bytes.len() - TRAILER_BYTES];
        let mut input = Input::new(entries.get(position as usize..).unwrap_or_default(), "index entry");
        let len = input.varint32()? as usize;
        Ok((input.take(len)?, input.varint()?, input.varint()?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLACE: (FileId, u64) = (9, 4000);

    proptest! {
        #[test]
        fn drop_blocks_come_back(
            mut seqnos in proptest::collection::btree_set(0..1u64 << 56, 0..50),
            bytes: u64,
            file in 0..1u64 << 56,
        ) {
            let mut out = Vec::new();
            let mut dropped = Dropped { seqnos: seqnos.iter().rev().copied().collect(), bytes };
            encode_drops(&mut out, PLACE, file, &mut dropped);
            let record = value::decode(value::frame_at(&out, PLACE.0, PLACE.1).unwrap()).unwrap();
            prop_assert_eq!((record.kind, record.seqno), (ValueKind::Drops, file));
            let totals = drop_totals(record.body()).unwrap();
            prop_assert_eq!(totals, DropTotals { count: seqnos.len() as u64, bytes });
            decode_drops(record.body(), |seqno| assert!(seqnos.remove(&seqno))).unwrap();
            prop_assert!(seqnos.is_empty());
        }

        #[test]
        fn properties_come_back(epoch: u32, values_end: u64, aliases: Vec<(u64, u64)>, regarded: Vec<u64>) {
            let properties = SortedProperties { epoch, values_end, aliases, regarded };
            let mut out = vec![7; 100];
            encode_properties(&mut out, PLACE, &properties);
            let last = &out[out.len() - PROPERTIES_END_BYTES..];
            let len = properties_len(last, out.len() as u64).unwrap();
            prop_assert_eq!(len, out.len() as u64 - 100);
            prop_assert_eq!(decode_properties(&out[100..], PLACE.0, PLACE.1), Ok(properties));
            prop_assert!(decode_properties(&out[100..out.len() - 1], PLACE.0, PLACE.1).is_err());
        }

        #[test]
        fn a_stretch_is_found_by_any_version_in_it(
            versions in proptest::collection::btree_set((proptest::collection::vec(0u8..3, 0..4), 0u64..9), 1..60),
            every in 1usize..7,
        ) {
            let mut versions: Vec<_> = versions.into_iter().collect();
            versions.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
            let mut builder = SortedIndexBuilder::default();
            for (at, (key, seqno)) in versions.iter().enumerate().step_by(every) {
                builder.add(key, *seqno, at as u64);
            }
            let mut out = Vec::new();
            builder.finish(&mut out, PLACE);
            let index = SortedIndex::new(out.into(), PLACE.0, PLACE.1).unwrap();
            for (at, (key, seqno)) in versions.iter().enumerate() {
                let begin = at / every * every;
                let end = Some((begin + every) as u64).filter(|&end| end < versions.len() as u64);
                prop_assert_eq!(index.find(key, *seqno), Ok(Some((begin as u64, end))));
            }
        }

        #[test]
        fn no_bytes_make_the_decoders_panic(bytes: Vec<u8>, key: Vec<u8>) {
            let _any_answer = drop_totals(&bytes);
            let _any_answer = decode_drops(&bytes, |_| ());
            for kind in [ValueKind::Index, ValueKind::Properties] {
                let mut record = Vec::new();
                value::encode(&mut record, PLACE, kind, 0, &[], Stored::plain(&bytes));
                let _any_answer = decode_properties(&record, PLACE.0, PLACE.1);
                let index = SortedIndex::new(record.into(), PLACE.0, PLACE.1);
                let _any_answer = index.map(|index| index.find(&key, 7).is_ok());
            }
        }
    }
}
