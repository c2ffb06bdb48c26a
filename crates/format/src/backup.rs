//! The record of one generation of a backup, and the names of a repository's files. Page: `docs/formats/backup.md`.
//!
//! ```text
//! file    header (32 B) │ field │ field │ … │ sum (16 B) of everything before
//! field   tag varint │ length varint │ body
//! ```
//!
//! A record is written once, synced, and gets its name after that. So there is no torn record: whatever does not check
//! is damaged. A reader must stop at an unknown odd tag and may skip an unknown even tag.

use std::sync::Arc;

use bifold_contract::{Corruption, FileId};
use xxhash_rust::xxh3::{xxh3_128, xxh3_128_with_seed};

use crate::{
    bytes::{Input, put_slice, put_varint},
    frame::{self, FILE_HEADER_BYTES},
    names::{self, FileKind, NUMBER_MAX},
};

const MAGIC: [u8; 8] = *b"bifldbak";

/// The version this release writes, and the newest it reads.
pub const VERSION: u32 = 1;

/// A stored file has one sum for each so many bytes. 16 bytes a MiB are 0.0015 %, and damage is located to a MiB.
pub const CHUNK_BYTES: u64 = 1 << 20;

/// Bytes of a sum.
const SUM_BYTES: usize = 16;

/// Tags of fields.
mod tag {
    pub const NUMBER: u64 = 1;
    pub const TAKEN_AT: u64 = 2;
    pub const SOURCE: u64 = 4;
    pub const NEW_BYTES: u64 = 6;
    pub const FILE: u64 = 3;
    pub const MANIFEST: u64 = 5;
    pub const DELETED_UPTO: u64 = 7;
    pub const NOT_DELETED: u64 = 9;
}

/// One generation: all that it takes to restore a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GenerationRecord {
    /// Its number in the repository. Numbers grow.
    pub number: u64,
    /// The id of the database.
    pub database_id: u64,
    /// When the backup began, in seconds since 1970; 0 if unknown.
    pub taken_at: u64,
    /// Where the database was.
    pub source: String,
    /// Bytes of the files that were copied for this generation. The others were there.
    pub new_bytes: u64,
    /// Its tables, value files and logs.
    pub files: Vec<StoredFile>,
    /// Its manifest, byte by byte.
    pub manifest: Vec<u8>,
}

/// Which generations are deleted, whatever the directory says: a power loss may bring back a record that was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Generations with larger numbers are not.
    pub upto: u64,
    /// Nor are these, in ascending order. All others are.
    pub but: Vec<u64>,
}

impl Deleted {
    /// Whether the generation with this number is deleted.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        number <= self.upto && self.but.binary_search(&number).is_err()
    }
}

/// The name of the file that says which generations are deleted.
pub const DELETED: &str = "DELETED";

/// The same file while it is being written.
pub const DELETED_TEMPORARY: &str = "DELETED.tmp";

/// One file of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFile {
    /// Its name in the database.
    pub name: String,
    /// The generation it was copied for, which may be an older one.
    pub stored_by: u64,
    /// Its length.
    pub bytes: u64,
    /// The sum of each chunk of [`CHUNK_BYTES`]; the last chunk may be shorter.
    pub sums: Arc<[u128]>,
}

impl StoredFile {
    /// Its name in the directory `files` of the repository.
    #[must_use]
    pub fn stored_name(&self) -> String {
        stored_name(self.stored_by, &self.name)
    }
}

/// The name of a generation's record.
#[must_use]
pub fn record_name(number: u64) -> String {
    format!("{number:06}.gen")
}

/// The name of a record that is being written.
#[must_use]
pub fn unfinished_record_name(number: u64) -> String {
    format!("{number:06}.tmp")
}

/// The number in the name of a record.
#[must_use]
pub fn parse_record(name: &str) -> Option<u64> {
    numbered(name.strip_suffix(".gen")?).filter(|&number| record_name(number) == name)
}

/// Whether this is the name of a record that is being written.
#[must_use]
pub fn is_unfinished_record(name: &str) -> bool {
    let number = name.strip_suffix(".tmp").and_then(numbered);
    number.is_some_and(|number| unfinished_record_name(number) == name)
}

/// The name of a stored file: `000003-000012.tbl` is table 12 of a database, copied for generation 3.
#[must_use]
pub fn stored_name(stored_by: u64, name: &str) -> String {
    format!("{stored_by:06}-{name}")
}

/// The generation for which a stored file was copied, by its name.
#[must_use]
pub fn parse_stored(stored: &str) -> Option<u64> {
    let (number, name) = stored.split_once('-')?;
    numbered(number).filter(|&number| stored_name(number, name) == stored && is_kept(name))
}

fn numbered(text: &str) -> Option<u64> {
    text.parse().ok().filter(|&number| number <= NUMBER_MAX)
}

/// Whether a backup has files of this name.
fn is_kept(name: &str) -> bool {
    matches!(names::parse(name), FileKind::Log(_) | FileKind::Table(_) | FileKind::Value(_) | FileKind::Large(_))
}

/// The sum of a chunk that begins at `offset` of its file.
#[must_use]
pub fn chunk_sum(chunk: &[u8], offset: u64) -> u128 {
    xxh3_128_with_seed(chunk, offset)
}

/// How many sums a file of this length has.
#[must_use]
pub const fn chunks(bytes: u64) -> u64 {
    bytes.div_ceil(CHUNK_BYTES)
}

/// The bytes of a record.
#[must_use]
pub fn encode(record: &GenerationRecord) -> Vec<u8> {
    let mut out = frame::file_header(MAGIC, VERSION, record.database_id).to_vec();
    let mut body = Vec::new();
    let mut field = |tag: u64, fill: &dyn Fn(&mut Vec<u8>)| {
        body.clear();
        fill(&mut body);
        put_varint(&mut out, tag);
        put_slice(&mut out, &body);
    };
    field(tag::NUMBER, &|b| put_varint(b, record.number));
    field(tag::TAKEN_AT, &|b| put_varint(b, record.taken_at));
    field(tag::SOURCE, &|b| b.extend_from_slice(record.source.as_bytes()));
    field(tag::NEW_BYTES, &|b| put_varint(b, record.new_bytes));
    for file in &record.files {
        field(tag::FILE, &|b| encode_file(file, b));
    }
    field(tag::MANIFEST, &|b| b.extend_from_slice(&record.manifest));
    sealed(out)
}

/// The bytes of the file [`DELETED`].
#[must_use]
pub fn encode_deleted(deleted: &Deleted) -> Vec<u8> {
    let mut out = frame::file_header(MAGIC, VERSION, 0).to_vec();
    for (tag, number) in [(tag::DELETED_UPTO, deleted.upto)]
        .into_iter()
        .chain(deleted.but.iter().map(|&number| (tag::NOT_DELETED, number)))
    {
        let mut body = Vec::new();
        put_varint(&mut body, number);
        put_varint(&mut out, tag);
        put_slice(&mut out, &body);
    }
    sealed(out)
}

/// Decodes the file [`DELETED`].
///
/// # Errors
/// If it is damaged, or was written by a newer release.
pub fn decode_deleted(bytes: &[u8]) -> Result<Deleted, Corruption> {
    let (fields, _) = checked(bytes)?;
    let mut deleted = Deleted::default();
    each_field(fields, &mut |tag, body, field| {
        match tag {
            tag::DELETED_UPTO => deleted.upto = body.varint_up_to(NUMBER_MAX)?,
            tag::NOT_DELETED => deleted.but.push(body.varint_up_to(NUMBER_MAX)?),
            other => skip(other, body, field)?,
        }
        body.end()
    })
    .map_err(|damage| damage.at(FILE_HEADER_BYTES as u64))?;
    deleted.but.sort_unstable();
    Ok(deleted)
}

/// Header and fields of a record, with the sum behind them.
#[must_use]
pub fn sealed(mut record: Vec<u8>) -> Vec<u8> {
    let sum = xxh3_128(&record);
    record.extend_from_slice(&sum.to_le_bytes());
    record
}

fn encode_file(file: &StoredFile, out: &mut Vec<u8>) {
    put_slice(out, file.name.as_bytes());
    put_varint(out, file.stored_by);
    put_varint(out, file.bytes);
    file.sums.iter().for_each(|sum| out.extend_from_slice(&sum.to_le_bytes()));
}

/// Decodes a record.
///
/// # Errors
/// If it is damaged, or was written by a newer release.
pub fn decode(bytes: &[u8]) -> Result<GenerationRecord, Corruption> {
    let (fields, database_id) = checked(bytes)?;
    decode_fields(fields, database_id).map_err(|damage| damage.at(FILE_HEADER_BYTES as u64))
}

/// The fields of a record that matches its sum, and the id in its header.
fn checked(bytes: &[u8]) -> Result<(&[u8], u64), Corruption> {
    // Before the sum: a newer version may have another one.
    let database_id = frame::file_id(bytes, MAGIC, VERSION)?;
    let end = bytes.len().checked_sub(SUM_BYTES).filter(|&end| end >= FILE_HEADER_BYTES);
    let Some((said, sum)) = end.map(|end| bytes.split_at(end)) else {
        return Err(Corruption::new(bytes.len() as u64, WHAT, "its sum", "the end of the file"));
    };
    if xxh3_128(said).to_le_bytes() != sum {
        let expected = "a record that matches its sum";
        return Err(Corruption::new(FILE_HEADER_BYTES as u64, WHAT, expected, "one that does not"));
    }
    Ok((&said[FILE_HEADER_BYTES..], database_id))
}

/// Takes the tag, the body and the whole of a field.
type TakeField<'f> = &'f mut dyn FnMut(u64, &mut Input<'_>, &Input<'_>) -> Result<(), Corruption>;

fn each_field(fields: &[u8], take: TakeField<'_>) -> Result<(), Corruption> {
    let mut input = Input::new(fields, WHAT);
    while !input.is_empty() {
        let field = input;
        let (tag, body) = (input.varint()?, input.slice()?);
        let base = (input.position() - body.len()) as u64;
        take(tag, &mut Input::new(body, WHAT), &field).map_err(|damage| damage.at(base))?;
    }
    Ok(())
}

fn decode_fields(fields: &[u8], database_id: u64) -> Result<GenerationRecord, Corruption> {
    let mut record = GenerationRecord { database_id, ..GenerationRecord::default() };
    each_field(fields, &mut |tag, body, field| decode_field(tag, body, field, &mut record))?;
    if record.number == 0 || record.manifest.is_empty() {
        let found = "the end of the record";
        return Err(Corruption::new(fields.len() as u64, WHAT, "a number and a manifest", found));
    }
    Ok(record)
}

/// The name of a record in errors.
const WHAT: &str = "generation record";

fn decode_field(
    tag: u64,
    body: &mut Input<'_>,
    field: &Input<'_>,
    record: &mut GenerationRecord,
) -> Result<(), Corruption> {
    match tag {
        tag::NUMBER => record.number = body.varint_up_to(NUMBER_MAX)?,
        tag::TAKEN_AT => record.taken_at = body.varint()?,
        tag::SOURCE => record.source = String::from_utf8_lossy(take_all(body)?).into_owned(),
        tag::NEW_BYTES => record.new_bytes = body.varint()?,
        tag::FILE => record.files.push(decode_file(body, record.files.last().map(|file| &*file.name))?),
        tag::MANIFEST => record.manifest = take_all(body)?.to_vec(),
        other => skip(other, body, field)?,
    }
    body.end()
}

/// Skips an unknown field.
fn skip(tag: u64, body: &mut Input<'_>, field: &Input<'_>) -> Result<(), Corruption> {
    if tag % 2 == 1 {
        return Err(field.damage("a field this release knows (upgrade Bifold)", format!("field {tag}")));
    }
    take_all(body).map(drop)
}

fn take_all<'a>(body: &mut Input<'a>) -> Result<&'a [u8], Corruption> {
    body.take(body.rest().len())
}

/// Decodes a file. Its name comes after that of the file before, `last`: none comes twice.
fn decode_file(body: &mut Input<'_>, last: Option<&str>) -> Result<StoredFile, Corruption> {
    let at = *body;
    let name = std::str::from_utf8(body.slice()?).ok().filter(|name| is_kept(name));
    let name: String = name.ok_or_else(|| at.damage("the name of a table, value file or log", "another name"))?.into();
    if last.is_some_and(|last| last >= &*name) {
        return Err(at.damage("names in ascending order", format!("{name} behind {}", last.unwrap_or_default())));
    }
    let stored_by: FileId = body.varint_up_to(NUMBER_MAX)?;
    let length = *body;
    let bytes = body.varint()?;
    let sums = body.rest();
    if chunks(bytes).checked_mul(SUM_BYTES as u64) != Some(sums.len() as u64) {
        let found = format!("{} bytes of sums", sums.len());
        return Err(length.damage(format!("{} sums of {SUM_BYTES} bytes", chunks(bytes)), found));
    }
    let sum = |sum: &[u8]| sum.first_chunk().map_or(0, |sum| u128::from_le_bytes(*sum));
    let sums = take_all(body)?.chunks_exact(SUM_BYTES).map(sum).collect();
    Ok(StoredFile { name, stored_by, bytes, sums })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> GenerationRecord {
        let file = |name: &str, stored_by, bytes| StoredFile {
            name: name.into(),
            stored_by,
            bytes,
            sums: (0..chunks(bytes)).map(|n| chunk_sum(name.as_bytes(), n)).collect(),
        };
        GenerationRecord {
            number: 3,
            database_id: 0xB1F0,
            taken_at: 1_795_000_000,
            source: "/data/my.db".into(),
            new_bytes: 12,
            files: vec![file("000002.log", 3, 12), file("000007.tbl", 1, CHUNK_BYTES + 1), file("000009.val", 2, 0)],
            manifest: b"manifest".to_vec(),
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        assert_eq!(decode(&encode(&sample())), Ok(sample()));
    }

    #[test]
    fn deleted_generations_are_those_up_to_a_number_but_some() {
        let deleted = Deleted { upto: 6, but: vec![3, 5] };
        assert_eq!(decode_deleted(&encode_deleted(&deleted)), Ok(deleted.clone()));
        assert_eq!((1..9).filter(|&number| deleted.contains(number)).collect::<Vec<_>>(), [1, 2, 4, 6]);
        assert!(!Deleted::default().contains(1));
        assert!(decode(&encode_deleted(&deleted)).is_err(), "it is no record of a generation");
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_damage() {
        let bytes = encode(&sample());
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged).is_err(), "bit {bit}");
        }
        for end in 0..bytes.len() {
            assert!(decode(&bytes[..end]).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn a_record_with_names_that_are_no_files_of_a_database_is_refused() {
        for name in ["", "MANIFEST", "../000001.tbl", "000001.tbl/x", "notes.txt"] {
            let mut record = sample();
            record.files[0].name = name.into();
            assert!(decode(&encode(&record)).is_err(), "{name}");
        }
        let mut record = sample();
        record.files.swap(0, 1);
        assert!(decode(&encode(&record)).is_err(), "names in order");
    }

    #[test]
    fn names_of_a_repository_are_recognised_again() {
        for number in [1, 999_999, 1_000_000, NUMBER_MAX] {
            assert_eq!(parse_record(&record_name(number)), Some(number));
            assert!(is_unfinished_record(&unfinished_record_name(number)));
            assert_eq!(parse_stored(&stored_name(number, "000012.tbl")), Some(number));
        }
        for name in ["12-000012.tbl", "000001-x", "000001-MANIFEST", "000012.tbl", "000001", "1.gen", "x.gen"] {
            assert_eq!((parse_stored(name), parse_record(name)), (None, None), "{name}");
            assert!(!is_unfinished_record(name));
        }
    }
}
