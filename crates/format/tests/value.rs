//! The page `docs/formats/value.md` carries a worked example in a fenced block marked `hex`: bytes, then `│`, then
//! words. This test writes the same file and compares, so neither the bytes nor the page can change unnoticed.

use std::sync::Arc;

use bifold_format::{
    compression::{Compression, Compressor},
    frame::{self, Step},
    value::{self, DESCRIPTION_BYTES_MAX, Description, ValueKind},
};

const PAGE: &str = include_str!("../../../docs/formats/value.md");

#[test]
fn the_example_of_a_value_file_is_what_is_written() {
    let description = Description { class: 1, keyspace: 1, group: 0 };
    let mut bytes = value::header(14, description);
    let start = bytes.len() as u64;
    value::encode_value(&mut bytes, (14, start), 7, b"key", b"value", &mut Compressor::new(Compression::None));

    let example = PAGE.split("```hex\n").nth(1).and_then(|after| after.split("```").next()).unwrap_or_default();
    let shown: String =
        example.lines().map(|line| line.split('│').next().unwrap_or_default().replace(' ', "")).collect();
    let written: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(shown, written);
}

#[test]
fn the_example_reads_as_the_page_says() {
    let example = PAGE.split("```hex\n").nth(1).and_then(|after| after.split("```").next()).unwrap_or_default();
    let words = example.lines().flat_map(|line| line.split('│').next().unwrap_or_default().split_whitespace());
    let bytes: Vec<u8> = words.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    let (file, description, start) = value::describe(&bytes).unwrap();
    assert_eq!((file, description, start), (14, Description { class: 1, keyspace: 1, group: 0 }, 58));
    let record = &bytes[start as usize..];
    let Step::Record(frame, len) = frame::step(record, file, start) else { panic!("no record") };
    assert_eq!(len, record.len());
    let found = value::decode(frame).unwrap();
    assert_eq!((found.seqno, found.kind, found.key), (7, ValueKind::Value, &b"key"[..]));
    assert_eq!(&value::read_value(Arc::from(record), file, start, b"key").unwrap()[..], b"value");
}

#[test]
fn the_page_knows_the_longest_description() {
    assert!(PAGE.contains(&format!("the first {DESCRIPTION_BYTES_MAX} bytes of a file")));
}
