//! What every fuzz target does with its bytes: decodes them, walks through the result, and checks what must hold for
//! any bytes. It must not panic, hang, or take memory out of proportion to the bytes.
//!
//! The test `mangled` in `bifold-format` runs the same functions on damaged encodings, without a fuzzer.

use std::{hint::black_box, sync::Arc};

use bifold_contract::Value;
use bifold_format::{
    backup,
    block::{self, BlockCursor, heads, sealed, search},
    checksum::checksum,
    filter::{Filter, key_hash, key_hashes},
    forward,
    frame::{self, Before},
    large,
    log::{self, LogReader, Tail},
    manifest::{self, ManifestReader},
    pointer,
    sorted::{self, Dropped, PROPERTIES_END_BYTES},
    table::{FOOTER_BYTES, Footer, index::Index, parts, properties::Properties, tombstones},
    value::{self, Stored, ValueKind},
};

/// Uncompressed blocks in these tests are at most this long, in bytes.
pub const BLOCK_BYTES_MAX: usize = 1 << 16;

/// A whole log, with the number 5, as in the tests.
pub fn log(bytes: &[u8]) {
    let Ok(mut reader) = LogReader::new(bytes, 5) else { return };
    let mut end = 0;
    let mut failed = false;
    for record in reader.by_ref() {
        assert!(!failed, "a reader continues behind damage");
        let Ok(record) = record else {
            failed = true;
            continue;
        };
        assert!(record.offset >= end && record.offset < bytes.len() as u64, "record at {}", record.offset);
        end = record.offset + 1;
        record.operations().for_each(drop);
        let (_what_else, _it_says) = (record.kept(), record.large_before());
    }
    if let Tail::Torn { offset } = reader.tail() {
        assert!(offset <= bytes.len() as u64, "a tail at {offset}");
    }
}

/// The operations of one commit, in an otherwise sound log: this gets past the checksums.
pub fn log_payload(payload: &[u8]) {
    log(&framed(log::header(5), payload));
}

/// The file of a large value: its parts as they are, and where what an entry says of it leads.
pub fn large(bytes: &[u8]) {
    if let Ok(named) = large::decode(bytes) {
        let mut again = Vec::new();
        large::encode(named, &mut again);
        assert_eq!(large::decode(&again).as_ref(), Ok(&named));
    }
    let Ok(said) = large::described(bytes) else { return };
    assert!(!said.key.is_empty() && said.key.len() < bytes.len());
    let Some(trailer_at) = bytes.len().checked_sub(large::TRAILER_BYTES as usize) else { return };
    let Ok(named) = large::named(&bytes[trailer_at..], said.file, trailer_at as u64) else { return };
    let layout = large::LargeLayout::of(said.key.len(), named.len);
    assert!(layout.file_bytes() > named.len);
    if layout.file_bytes() != bytes.len() as u64 {
        return;
    }
    let mut len = 0;
    for index in 0..layout.chunks() {
        let (at, chunk) = layout.chunk(index);
        if let Ok((chunk, _)) = large::checked(&bytes[at as usize..at as usize + chunk + 8], said.file, at) {
            black_box(chunk);
        }
        len += chunk as u64;
    }
    assert_eq!((len, layout.trailer_at()), (named.len, trailer_at as u64));
}

/// The record of a generation of a backup: as it is, and with a sum that matches, so that its fields are decoded.
pub fn generation(bytes: &[u8]) {
    let _refused = (backup::decode(bytes), backup::decode_deleted(bytes));
    let Some(end) = bytes.len().checked_sub(16) else { return };
    let sealed = backup::sealed(bytes[..end].to_vec());
    if let Ok(deleted) = backup::decode_deleted(&sealed) {
        assert_eq!(backup::decode_deleted(&backup::encode_deleted(&deleted)), Ok(deleted));
    }
    if let Ok(record) = backup::decode(&sealed) {
        assert_eq!(backup::decode(&backup::encode(&record)), Ok(record), "an encoded record reads as it was");
    }
}

/// A whole manifest.
pub fn manifest(bytes: &[u8]) {
    let Ok(reader) = ManifestReader::new(bytes) else { return };
    let id = reader.database_id();
    for record in reader.flatten() {
        // What was decoded can be encoded and decoded again without loss.
        let mut again = manifest::header(id).to_vec();
        let encoded = manifest::encode_record(&record.edit, id, again.len() as u64);
        again.extend_from_slice(&encoded);
        let read = ManifestReader::new(&again).map(|mut reader| reader.next());
        assert!(matches!(read, Ok(Some(Ok(read))) if read.edit == record.edit), "an edit is not decoded again");
    }
}

/// The fields of one edit, in an otherwise sound manifest.
pub fn manifest_payload(payload: &[u8]) {
    manifest(&framed(manifest::header(5), payload));
}

fn framed(header: [u8; frame::FILE_HEADER_BYTES], payload: &[u8]) -> Vec<u8> {
    let mut bytes = header.to_vec();
    let start = frame::begin(&mut bytes);
    bytes.extend_from_slice(payload);
    frame::finish(&mut bytes, start, 5, start as u64, 1, Before::Unsynced);
    bytes
}

/// The beginning of a value file, and a record anywhere in it.
pub fn value(bytes: &[u8]) {
    let _any_answer = (value::describe(bytes), value::identify(bytes), frame::find_header(bytes, 7, 0));
    let _any_answer = value::read_value(Arc::from(bytes), 7, 64, b"key");
    if let frame::Step::Record(record, len) = frame::step(bytes, 7, 64) {
        assert!(len <= bytes.len());
        if let Ok(record) = value::decode(record) {
            let _any_answer = (record.value(), record.range_end(), record.check());
        }
    }
}

/// The place of the records below: file and offset.
const PLACE: (u64, u64) = (9, 4000);

/// The only record in `bytes`, which is at [`PLACE`].
fn record(bytes: &[u8]) -> value::ValueRecord<'_> {
    let frame = value::frame_at(bytes, PLACE.0, PLACE.1);
    let Ok(Ok(record)) = frame.map(value::decode) else { panic!("a record is not decoded again") };
    record
}

/// The body of a drop block.
pub fn drop_block(body: &[u8]) {
    let mut seqnos = Vec::new();
    let read = sorted::decode_drops(body, |seqno| seqnos.push(seqno));
    assert!(seqnos.len() <= body.len() && seqnos.is_sorted(), "{} numbers of {} bytes", seqnos.len(), body.len());
    if read.is_err() {
        return;
    }
    let Ok(totals) = sorted::drop_totals(body) else { panic!("numbers have no totals") };
    assert_eq!(totals.count, seqnos.len() as u64);
    // What was decoded can be encoded and decoded again without loss.
    let mut again = Vec::new();
    sorted::encode_drops(&mut again, PLACE, 14, &mut Dropped { seqnos: seqnos.clone(), bytes: totals.bytes });
    let record = record(&again);
    assert_eq!((record.kind, record.seqno, sorted::drop_totals(record.body())), (ValueKind::Drops, 14, Ok(totals)));
    let mut read = Vec::new();
    assert_eq!((sorted::decode_drops(record.body(), |seqno| read.push(seqno)), read), (Ok(()), seqnos));
}

/// The body of a record of forwards.
pub fn forwards(body: &[u8]) {
    let Ok(forwards) = forward::decode(body) else { return };
    assert!(forwards.outputs.len() + forwards.rows.len() <= body.len(), "more elements than bytes");
    let mut again = Vec::new();
    forward::encode(&mut again, PLACE, 14, &forwards);
    let record = record(&again);
    assert_eq!((record.kind, record.seqno), (ValueKind::Forwards, 14));
    assert_eq!(forward::decode(record.body()), Ok(forwards));
}

/// The body of a sorted table's properties.
pub fn sorted_properties(body: &[u8]) {
    black_box(sorted::properties_len(body, body.len() as u64));
    let Ok(found) = sorted::properties(body) else { return };
    assert!(found.aliases.len() + found.regarded.len() <= body.len(), "more elements than bytes");
    // They are found from the end of a file, whatever precedes them.
    let mut file = vec![7; 30];
    sorted::encode_properties(&mut file, PLACE, &found);
    let end = &file[file.len() - PROPERTIES_END_BYTES..];
    assert_eq!(sorted::properties_len(end, file.len() as u64), Some(file.len() as u64 - 30));
    assert_eq!(sorted::decode_properties(&file[30..], PLACE.0, PLACE.1), Ok(found));
}

/// The body of a sorted table's index: searched for what may be in it, pieces of itself.
pub fn sorted_index(body: &[u8]) {
    let mut record = Vec::new();
    value::encode(&mut record, PLACE, ValueKind::Index, 0, &[], Stored::plain(body));
    let Ok(index) = sorted::SortedIndex::new(record.into(), PLACE.0, PLACE.1) else { return };
    let half = &body[body.len() / 2..];
    let pieces = [body, half, &half[..half.len().min(5)], &half[..half.len().min(7)], b"key0005", b"", b"\xff\xff"];
    for (key, seqno) in pieces.iter().flat_map(|piece| [(piece, 0), (piece, 7), (piece, u64::MAX)]) {
        black_box(index.find(key, seqno).is_ok());
    }
}

/// An encoded pointer.
pub fn pointer(bytes: &[u8]) {
    if let Ok(found) = pointer::decode(bytes) {
        let mut again = Vec::new();
        pointer::encode(found, &mut again);
        assert!(again.len() <= pointer::POINTER_BYTES_MAX);
        assert_eq!(pointer::decode(&again), Ok(found));
    }
}

/// A data block, uncompressed and unsealed: searched, and walked in both directions.
pub fn block(bytes: &[u8]) {
    let block = Value::copy_of(bytes);
    // Searches for what may be in it: pieces of itself.
    let key = &bytes[..bytes.len().min(9)];
    for sought in [key, key.get(3..).unwrap_or_default(), b"key0005", b"", b"\xff\xff"] {
        black_box(block::get(&block, sought, u64::MAX >> 8).is_ok());
    }
    let mut cursor = BlockCursor::default();
    if cursor.set_block(block).is_err() {
        return;
    }
    // No entry is shorter than 11 bytes, so a walk with more steps loops.
    let steps_max = bytes.len();
    walk(&mut cursor, BlockCursor::first, BlockCursor::next, steps_max);
    walk(&mut cursor, BlockCursor::last, BlockCursor::prev, steps_max);
    walk(&mut cursor, |cursor| cursor.seek(key, 7), BlockCursor::next, steps_max);
    walk(&mut cursor, |cursor| cursor.seek_before(key), BlockCursor::prev, steps_max);
}

type Step = Result<(), bifold_contract::Corruption>;

fn walk(
    cursor: &mut BlockCursor,
    begin: impl Fn(&mut BlockCursor) -> Step,
    step: impl Fn(&mut BlockCursor) -> Step,
    steps_max: usize,
) {
    let mut steps = 0;
    let mut place = begin(cursor);
    while place.is_ok() && cursor.is_placed() {
        assert!(cursor.entry().is_none_or(|entry| entry.key.len() <= steps_max), "a key is longer than its block");
        assert!(cursor.payload().is_none_or(|payload| payload.len() <= steps_max));
        steps += 1;
        assert!(steps <= steps_max, "the walk loops");
        place = step(cursor);
    }
}

/// A block as it is stored in a file.
pub fn sealed(bytes: &[u8]) {
    let len = bytes.len();
    let read = sealed::unseal(bytes.into(), (0, len), (5, 4096), BLOCK_BYTES_MAX);
    assert!(read.map_or(0, |block| block.len()) <= BLOCK_BYTES_MAX.max(len), "a block is larger than requested");
    let found = search::block_at(bytes, (5, 4096));
    assert!(found.is_none_or(|(_, end)| end <= len), "a block is longer than the bytes it was found in");
}

/// The body and method of an otherwise sound block: this gets past the checksum to the decompressors.
pub fn sealed_body(bytes: &[u8]) {
    let check = checksum(bytes, 5, 4096).to_le_bytes();
    sealed(&[bytes, &check].concat());
}

/// The footer of a table.
pub fn footer(bytes: &[u8]) {
    for file_bytes in [0, FOOTER_BYTES as u64, 1 << 20, u64::MAX] {
        let Some(Ok(footer)) = bytes.first_chunk().map(|bytes| Footer::decode(bytes, file_bytes)) else { continue };
        for place in [footer.filter(), footer.tombstones(), footer.index(), footer.properties()] {
            assert!(place.start <= place.end && place.end <= file_bytes, "{place:?} of {file_bytes} bytes");
        }
    }
}

/// The index of a table.
pub fn index(bytes: &[u8]) {
    let (front, back) = bytes.split_at(bytes.len() / 2);
    if let Ok(whole) = parts::whole([front, back]).and(parts::whole([bytes])) {
        assert!(whole.is_empty() || Index::parse(&whole).is_ok_and(|index| index.heads_match()));
    }
    let Ok(index) = Index::parse(bytes) else { return };
    assert!(index.blocks() <= bytes.len());
    let piece = &bytes[bytes.len() / 2..];
    let pieces = [bytes, piece, &piece[..piece.len().min(5)], b"", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"];
    let fences = (0..index.blocks().min(64)).filter_map(|block| index.fence(block));
    for key in pieces.iter().map(|piece| piece.to_vec()).chain(fences) {
        assert!(index.find(&key) <= index.blocks());
        black_box(heads::head(&key));
    }
    assert!((0..index.blocks()).filter_map(|block| index.place(block)).all(|place| place.start < place.end));
    black_box(index.heads_match());
}

/// The filter of a table, or the hashes stored instead.
pub fn filter(bytes: &[u8]) {
    if let Ok(hashes) = key_hashes(bytes) {
        let again: Vec<u8> = hashes.iter().flat_map(|hash| hash.to_le_bytes()).chain([0]).collect();
        assert_eq!(again, bytes);
    }
    if let Ok(filter) = Filter::parse(bytes) {
        for hash in [0, u64::MAX, key_hash(bytes), key_hash(b"key")] {
            black_box(filter.may_contain(hash));
        }
    }
}

/// The small sections of a table: range tombstones and properties.
pub fn sections(bytes: &[u8]) {
    if let Ok(found) = tombstones::decode(bytes) {
        let mut again = Vec::new();
        tombstones::encode(&found, &mut again);
        assert_eq!(tombstones::decode(&again), Ok(found));
    }
    if let Ok(found) = Properties::decode(bytes, 5, 1000) {
        let mut again = Vec::new();
        found.encode(&mut again);
        assert_eq!(Properties::decode(&again, 5, 1000), Ok(found));
    }
}
