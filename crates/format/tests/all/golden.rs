//! The pages in `docs/formats` carry worked examples in fenced blocks marked `hex`: bytes, then `│`, then words.
//! These tests write the same things and compare, so neither the bytes nor the pages can change unnoticed.

use bifold_contract::{Edit, KeyspaceEdit, LargeRef, Pointer};
use bifold_format::{
    backup::{self, GenerationRecord, StoredFile, chunk_sum},
    large,
    log::{self, Before, LogEncoder},
    manifest, pointer,
};

const BACKUP_PAGE: &str = include_str!("../../../../docs/formats/backup.md");
const LARGE_PAGE: &str = include_str!("../../../../docs/formats/large.md");
const LOG_PAGE: &str = include_str!("../../../../docs/formats/log.md");
const MANIFEST_PAGE: &str = include_str!("../../../../docs/formats/manifest.md");
const POINTER_PAGE: &str = include_str!("../../../../docs/formats/pointer.md");

/// The bytes of the page's examples, in order.
fn examples(page: &str) -> Vec<String> {
    let blocks = page.split("```hex\n").skip(1).filter_map(|after| after.split("```").next());
    blocks.map(|block| block.lines().map(|line| bytes_of(line).replace(' ', "")).collect()).collect()
}

fn bytes_of(line: &str) -> &str {
    line.split('│').next().unwrap_or_default()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_example_of_a_log_is_what_is_written() {
    let mut bytes = log::header(12).to_vec();
    let offset = bytes.len() as u64;
    let mut commit = LogEncoder::begin(&mut bytes, 12, offset, 7);
    commit.put(1, b"key", b"value");
    commit.delete(1, b"old");
    commit.delete_range(2, b"a", Some(b"m"));
    commit.finish(Before::Synced);
    assert_eq!(examples(LOG_PAGE), [hex(&bytes)]);
}

#[test]
fn the_example_of_a_manifest_is_what_is_written() {
    let edit = Edit {
        next_file: Some(3),
        last_seqno: Some(300),
        keyspaces: vec![KeyspaceEdit::Created { id: 1, name: "default".into(), options: String::new() }],
        ..Edit::default()
    };
    let mut bytes = manifest::header(0xB1F0).to_vec();
    let record = manifest::encode_record(&edit, 0xB1F0, bytes.len() as u64);
    bytes.extend_from_slice(&record);
    assert_eq!(examples(MANIFEST_PAGE), [hex(&bytes)]);
}

#[test]
fn the_example_of_a_large_value_is_what_is_written() {
    let mut bytes = large::head(15, 1, b"key");
    let check = large::chunk_check(b"large", 15, bytes.len() as u64);
    bytes.extend_from_slice(b"large");
    bytes.extend_from_slice(&check.to_le_bytes());
    let named = LargeRef { file: 15, len: 5, sum: large::sum_with(0, check) };
    bytes.extend_from_slice(&large::trailer(named, 3));
    let mut entry = Vec::new();
    large::encode(named, &mut entry);
    assert_eq!(examples(LARGE_PAGE), [hex(&bytes), hex(&entry)]);
}

#[test]
fn the_example_of_a_pointer_is_what_is_written() {
    let mut bytes = Vec::new();
    pointer::encode(Pointer { file: 14, epoch: 0, offset: 1_000_000, len: 1050 }, &mut bytes);
    assert_eq!(examples(POINTER_PAGE), [hex(&bytes)]);
}

#[test]
fn the_example_of_a_generation_is_what_is_written() {
    let content = b"hello";
    let file = StoredFile {
        name: "000012.log".into(),
        stored_by: 2,
        bytes: content.len() as u64,
        sums: [chunk_sum(content, 0)].into(),
    };
    let record = GenerationRecord {
        number: 2,
        database_id: 0xB1F0,
        taken_at: 1_795_595_400,
        source: "/db".into(),
        new_bytes: file.bytes,
        files: vec![file],
        manifest: b"m".to_vec(),
    };
    assert_eq!(examples(BACKUP_PAGE), [hex(&backup::encode(&record))]);
}
