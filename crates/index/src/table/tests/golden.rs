//! The page `docs/formats/table.md` carries a worked example in a fenced block marked `hex`: bytes, then `│`, then
//! words. This test writes the same table and compares, so neither the bytes nor the page can change unnoticed.

use bifold_contract::{Entry, IoSource, RangeTombstone};

use super::samples::Disk;
use crate::table::{TableOptions, TableWriter};

const PAGE: &str = include_str!("../../../../../docs/formats/table.md");

#[test]
fn the_example_of_a_table_is_what_is_written() {
    let disk = Disk::new();
    let options = TableOptions { block_bytes: 64, restart_interval: 2, ..TableOptions::default() };
    let mut writer = TableWriter::create(&disk.dir, 13, IoSource::Flush, &options).unwrap();
    writer.add(&Entry::inline(b"apple", 9, b"red")).unwrap();
    writer.add(&Entry::delete(b"apple", 7)).unwrap();
    writer.add(&Entry::inline(b"apricot", 8, b"orange")).unwrap();
    writer.add(&Entry::inline(b"pear", 300, b"green")).unwrap();
    let tombstone = RangeTombstone { start: b"b"[..].into(), end: Some(b"m"[..].into()), seqno: 10 };
    writer.add_range_tombstone(&tombstone).unwrap();
    let meta = writer.finish().unwrap();
    let reader = disk.dir.open("000013.tbl").unwrap();
    let mut bytes = vec![0; meta.bytes as usize];
    reader.read_at(&mut bytes, 0, IoSource::Maintenance).unwrap();
    assert!(disk.open(&meta).verify().is_empty());

    let example = PAGE.split("```hex\n").nth(1).and_then(|after| after.split("```").next()).unwrap_or_default();
    let shown: String =
        example.lines().map(|line| line.split('│').next().unwrap_or_default().replace(' ', "")).collect();
    let written: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(shown, written);
}
