//! Decoders survive mangled input: sound encodings of every kind, damaged at random, go through the same functions as
//! in the fuzz targets (`fuzz/drive.rs`), so that these are exercised wherever the tests run.

#[path = "../../../../fuzz/drive.rs"]
mod drive;

use bifold_contract::{
    Edit, Entry, Expiring, KeyspaceEdit, LargeRef, LevelEdit, Pointer, RangeTombstone, TableMeta, ValueEdit,
};
use bifold_format::{
    backup::{self, GenerationRecord, StoredFile},
    block::{BlockBuilder, sealed},
    compression::{Compression, Compressor},
    filter::{FilterBuilder, HASH_BITS, key_hash},
    forward::{self, Forwards, Row},
    frame::{FILE_HEADER_BYTES, HEADER_BYTES, TRAILER_BYTES},
    large,
    log::{self, Before, LogEncoder},
    manifest, pointer,
    sorted::{self, Dropped},
    table::{Footer, IndexForm, index::IndexBuilder, parts, properties::Properties, tombstones},
    value,
};

/// Rounds per kind: some 10 ms each in a debug build. `BIFOLD_FUZZ_ROUNDS` overrides the number.
const ROUNDS: u64 = 1500;

fn rounds() -> u64 {
    std::env::var("BIFOLD_FUZZ_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS)
}

/// A seeded generator, so that a failure repeats.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// Damages `bytes` in one of the ways that break decoders.
    fn mangle(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len());
        let len = self.below(bytes.len() - at).min(64);
        match self.below(8) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
            1 if !bytes.is_empty() => bytes[at] = [0, 1, 0x7F, 0x80, 0xFF][self.below(5)],
            2 => bytes.truncate(at),
            3 => bytes[at..at + len].fill(0xFF),
            4 => drop(bytes.drain(at..at + len)),
            5 => bytes.extend_from_within(at..at + len),
            6 => {
                let piece = bytes[at..at + len].to_vec();
                let to = self.below(bytes.len());
                bytes.splice(to..to, piece);
            }
            // A length or count that is far too large, or just too large.
            _ if bytes.len() >= at + 4 => {
                let number = [u32::MAX, 1 << 31, bytes.len() as u32, bytes.len() as u32 + 1][self.below(4)];
                bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
            }
            _ => bytes.push(self.next() as u8),
        }
    }
}

/// Runs `decode` on `valid` and on many damaged variants of it, with one to four kinds of damage at a time.
#[track_caller]
fn survive(valid: &[u8], decode: impl Fn(&[u8])) {
    decode(valid);
    decode(&[]);
    for seed in 0..rounds() {
        let mut random = Random(seed);
        let mut bytes = valid.to_vec();
        for _ in 0..=random.below(4) {
            random.mangle(&mut bytes);
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| decode(&bytes)));
        assert!(outcome.is_ok(), "seed {seed} makes the decoder panic; its {} bytes: {bytes:02x?}", bytes.len());
    }
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    println!("fuzz: {test}: {} executions, 0 failures", rounds() + 2);
}

fn sample_large() -> Vec<u8> {
    let (mut bytes, mut sum) = (large::head(9, 3, b"the key"), 0);
    for chunk in vec![7; large::CHUNK_BYTES as usize + 100].chunks(large::CHUNK_BYTES as usize) {
        let check = large::chunk_check(chunk, 9, bytes.len() as u64);
        sum = large::sum_with(sum, check);
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(&check.to_le_bytes());
    }
    let named = LargeRef { file: 9, len: large::CHUNK_BYTES + 100, sum };
    bytes.extend_from_slice(&large::trailer(named, 7));
    bytes
}

#[test]
fn large_values() {
    survive(&sample_large(), drive::large);
    let mut entry = Vec::new();
    large::encode(LargeRef { file: 1 << 40, len: 1 << 29, sum: u64::MAX }, &mut entry);
    survive(&entry, drive::large);
}

fn sample_log() -> Vec<u8> {
    let mut bytes = log::header(5).to_vec();
    for first in [1, 5, 9] {
        let offset = bytes.len() as u64;
        let mut commit = LogEncoder::begin(&mut bytes, 5, offset, first);
        commit.put(1, b"key", &[7; 300]);
        commit.pointer(200, b"other key", b"\x01\x02\x03\x04");
        commit.large(1, b"large", b"\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a");
        commit.delete(1, b"key");
        commit.delete_range(1, b"a", Some(b"b"));
        commit.delete_range(1, b"c", None);
        commit.finish(if first == 9 { Before::Synced } else { Before::Unsynced });
    }
    let offset = bytes.len() as u64;
    let mut listed = LogEncoder::begin(&mut bytes, 5, offset, 14);
    listed.large_before([(7, 70_000), (1 << 40, 1 << 30)]);
    listed.finish(Before::Unsynced);
    bytes
}

fn sample_edit() -> Edit {
    let table = TableMeta { id: 9, bytes: 4096, entries: 3, ..sample_properties().meta };
    let added = bifold_contract::TableAdded { level: 1, run: 2, table: table.into() };
    Edit {
        next_file: Some(300),
        keyspaces: vec![
            KeyspaceEdit::Created { id: 1, name: "default".into(), options: "x = 1".into() },
            KeyspaceEdit::Flushed { id: 1, seqno: 1 << 30 },
        ],
        levels: vec![LevelEdit { keyspace: 1, added: vec![added], ..LevelEdit::default() }],
        values: ValueEdit { removed: vec![7], garbage: vec![(8, 1000, 3)], ..ValueEdit::default() },
        ..Edit::default()
    }
}

fn sample_properties() -> Properties {
    let meta = TableMeta {
        id: 5,
        bytes: 1000,
        entries: 40,
        tombstones: 3,
        range_tombstones: 1,
        smallest: b"key0001"[..].into(),
        largest: b"key0040"[..].into(),
        unbounded: false,
        min_seqno: 1,
        max_seqno: 99,
        expiring: Expiring::default(),
    };
    Properties { meta, blocks: 3, block_bytes_max: 4096, restart_interval: 16, filter_bits_per_key: 10 }
}

fn sample_block() -> Vec<u8> {
    let mut out = Vec::new();
    let mut builder = BlockBuilder::new(4);
    builder.begin(&out);
    for number in 0..40 {
        let key = format!("key{:04}", number / 2);
        let value = vec![number as u8; number % 7 * 9];
        builder.add(&Entry::inline(key.as_bytes(), 100 - number as u64 % 2, &value), &mut out);
    }
    builder.finish(&mut out);
    out
}

#[test]
fn logs() {
    survive(&sample_log(), drive::log);
    let commit = &sample_log()[FILE_HEADER_BYTES + HEADER_BYTES..];
    survive(&commit[..commit.len() / 3 - TRAILER_BYTES], drive::log_payload);
}

#[test]
fn generations() {
    let file =
        |name: &str, bytes, sums: &[u128]| StoredFile { name: name.into(), stored_by: 2, bytes, sums: sums.into() };
    let record = GenerationRecord {
        number: 7,
        database_id: 5,
        taken_at: 1_795_595_400,
        source: "/data/db".into(),
        new_bytes: 300,
        files: vec![file("000002.log", 300, &[7]), file("000009.tbl", 2 << 20, &[1, u128::MAX])],
        manifest: vec![3; 90],
    };
    survive(&backup::encode(&record), drive::generation);
}

#[test]
fn manifests() {
    let mut bytes = manifest::header(5).to_vec();
    let record = manifest::encode_record(&sample_edit(), 5, bytes.len() as u64);
    bytes.extend_from_slice(&record);
    survive(&bytes, drive::manifest);
    survive(&record[HEADER_BYTES..record.len() - TRAILER_BYTES], drive::manifest_payload);
}

#[test]
fn value_files() {
    let description = value::Description { class: 1, keyspace: 3, group: 1 << 20 };
    survive(&value::header(7, description), drive::value);
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        let (mut bytes, mut compressor) = (Vec::new(), Compressor::new(compression));
        value::encode_value(&mut bytes, (7, 64), 900, b"key", &b"value ".repeat(50), &mut compressor);
        survive(&bytes, drive::value);
    }
}

/// The bodies of records without a key: kind, method and a key length of one byte come before them.
#[test]
fn drop_files_forwards_and_sorted_tables() {
    let body = |record: &[u8]| record[HEADER_BYTES + 3..record.len() - TRAILER_BYTES].to_vec();
    let mut bytes = Vec::new();
    let seqnos = (0..40).map(|n| 1000 + n * n * n).chain([1 << 55]).collect();
    sorted::encode_drops(&mut bytes, (9, 4000), 14, &mut Dropped { seqnos, bytes: 40_000 });
    survive(&body(&bytes), drive::drop_block);

    let mut bytes = Vec::new();
    let aliases = (1..20).map(|n| (n * n, n * 10_000)).collect();
    let properties =
        sorted::SortedProperties { epoch: 3, values_end: 1 << 24, aliases, regarded: vec![17, 400, 1 << 40] };
    sorted::encode_properties(&mut bytes, (9, 4000), &properties);
    survive(&body(&bytes), drive::sorted_properties);

    let mut bytes = Vec::new();
    let rows = (0..40).map(|n| Row { from: n * 1000, to: 40_000 - n * 100, output: (n % 3) as u16 }).collect();
    forward::encode(&mut bytes, (9, 4000), 14, &Forwards { outputs: vec![15, 16, 1 << 40], rows });
    survive(&body(&bytes), drive::forwards);

    let mut builder = sorted::SortedIndexBuilder::default();
    (1..20u64).for_each(|n| builder.add(format!("key{n:04}").as_bytes(), 1000 - n, n * 8192));
    let mut bytes = Vec::new();
    builder.finish(&mut bytes, (9, 4000));
    survive(&body(&bytes), drive::sorted_index);
}

#[test]
fn pointers() {
    let mut bytes = Vec::new();
    pointer::encode(Pointer { file: 1 << 40, epoch: 3, offset: u64::MAX, len: u32::MAX }, &mut bytes);
    survive(&bytes, drive::pointer);
}

#[test]
fn blocks() {
    survive(&sample_block(), drive::block);
}

#[test]
fn sealed_blocks() {
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        let mut bytes = sample_block().repeat(3);
        sealed::seal(&mut bytes, 0, &mut Compressor::new(compression), 5, 4096);
        survive(&bytes, drive::sealed);
        survive(&bytes[..bytes.len() - 8], drive::sealed_body);
    }
}

#[test]
fn footers() {
    for (index_form, expires) in [(IndexForm::Whole, false), (IndexForm::Parts, false), (IndexForm::Parts, true)] {
        let footer = Footer {
            data_bytes: 500,
            filter_bytes: 65,
            tombstones_bytes: 0,
            index_bytes: 90,
            properties_bytes: 60,
            file: 5,
            index_form,
            expires,
        };
        survive(&footer.encode(), drive::footer);
    }
}

#[test]
fn indexes() {
    let mut builder = IndexBuilder::default();
    (1..20u64).for_each(|block| builder.add(format!("key{block:04}").as_bytes(), block * 4096));
    let mut bytes = Vec::new();
    builder.finish(&mut bytes);
    survive(&bytes, drive::index);
    let mut part = Vec::new();
    parts::split(&builder, |content| {
        part.extend_from_slice(content);
        part.len() as u64
    });
    survive(&part, drive::index);
}

#[test]
fn filters() {
    let mut builder = FilterBuilder::default();
    (0..100u32).for_each(|key| builder.add(key_hash(&key.to_le_bytes())));
    for bits in [10, HASH_BITS] {
        let mut bytes = Vec::new();
        builder.finish(bits, &mut bytes);
        survive(&bytes, drive::filter);
    }
}

#[test]
fn small_sections() {
    let tombstone =
        |start: &[u8], end: Option<&[u8]>| RangeTombstone { start: start.into(), end: end.map(Into::into), seqno: 900 };
    let mut bytes = Vec::new();
    tombstones::encode(&[tombstone(b"a", Some(b"m")), tombstone(b"z", None)], &mut bytes);
    survive(&bytes, drive::sections);
    let mut bytes = Vec::new();
    sample_properties().encode(&mut bytes);
    survive(&bytes, drive::sections);
}
