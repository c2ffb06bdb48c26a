//! Lists at work: what searches in tables read.

use std::sync::Arc;

use bifold_contract::IoSource;
use bifold_format::{
    sorted::SortedProperties,
    value::{self, Stored, ValueKind},
};
use bifold_io::memory::MemoryFs;

use super::*;
use crate::parts::{
    budget::Budget,
    sorted_table::{Indexes, SortedTable, SortedWriter, Sought},
    value_files::{ValueFiles, scratch::value_files},
};

fn key(n: u64) -> Vec<u8> {
    format!("key {n:06}").into_bytes()
}

/// 25 records with such values are a stretch.
fn body(n: u64) -> Vec<u8> {
    format!("{n:06}").repeat(50).into_bytes()
}

fn record_bytes(n: u64, seqno: SeqNo) -> u32 {
    let mut record = Vec::new();
    value::encode(&mut record, (1, 0), ValueKind::Value, seqno, &key(n), Stored::plain(&body(n)));
    record.len() as u32
}

/// A table of keys from 0 on with these numbers.
fn table(files: &ValueFiles, seqnos: &[SeqNo]) -> Arc<SortedTable> {
    let mut writer = SortedWriter::begin(files).unwrap();
    for (n, &seqno) in (0..).zip(seqnos) {
        writer.add(&key(n), seqno, Stored::plain(&body(n))).unwrap();
    }
    Arc::new(writer.finish(files, SortedProperties::default()).unwrap().1)
}

/// Searches for a version and returns where it is, how many bytes were read for it, and by how many calls.
fn search(files: &ValueFiles, of: (&Arc<SortedTable>, &Indexes), n: u64, seqno: SeqNo) -> (u64, (u64, u64)) {
    let totals = || {
        let totals = files.context().dir.totals();
        (totals.read_bytes[IoSource::Get as usize], totals.reads[IoSource::Get as usize])
    };
    let before = totals();
    let sought = Sought { key: &key(n), seqno, len: record_bytes(n, seqno) };
    let (offset, found) = of.0.search(sought, of.1, IoSource::Get).unwrap().unwrap();
    assert_eq!(&found[..], body(n));
    let after = totals();
    (offset, (after.0 - before.0, after.1 - before.1))
}

#[test]
fn the_second_search_in_a_stretch_reads_one_record() {
    let files = value_files(&MemoryFs::new(), 100);
    let budget = Budget::new(1 << 20);
    let indexes = Indexes::new(Arc::clone(&budget));
    let seqnos: Vec<SeqNo> = (0..100).map(|n| 5000 - 7 * n).collect();
    let table = table(&files, &seqnos);
    let search = |n: u64| search(&files, (&table, &indexes), n, seqnos[n as usize]).1;
    let (bytes, calls) = search(30);
    assert!(bytes > STRETCH_BYTES && calls == 2, "the index and a stretch: {bytes} bytes, {calls} calls");
    let one_record = (u64::from(record_bytes(0, 1)), 1);
    assert_eq!((search(31), search(25), search(49), search(30)), (one_record, one_record, one_record, one_record));
    let (bytes, calls) = search(50);
    assert!(bytes > STRETCH_BYTES && calls == 1, "the next stretch: {bytes} bytes, {calls} calls");
    assert_eq!(search(74), one_record);
    // Two lists of 25 records, with their lengths; and four stretches and what follows them have a beginning.
    let lists_bytes = indexes.share.used_bytes();
    assert!((2 * 26 * 4..3 * 26 * 4).contains(&lists_bytes), "{lists_bytes} bytes for two lists");
    assert_eq!(indexes.memory_bytes(), budget.used_bytes());
    drop(table);
    assert_eq!((indexes.share.used_bytes(), budget.used_bytes()), (0, 0));
}

#[test]
fn numbers_with_the_same_lowest_bits_are_told_apart() {
    let files = value_files(&MemoryFs::new(), 100);
    let indexes = Indexes::new(Budget::new(1 << 20));
    let seqnos: [SeqNo; 3] = [7, 7 + (1 << (u32::BITS - OFFSET_BITS)), 8];
    let table = table(&files, &seqnos);
    for _ in 0..3 {
        for (n, &seqno) in (0..).zip(&seqnos) {
            search(&files, (&table, &indexes), n, seqno);
        }
    }
}

#[test]
fn damage_of_a_record_with_a_known_place_is_reported() {
    let fs = MemoryFs::new();
    let files = value_files(&fs, 100);
    let indexes = Indexes::new(Budget::new(1 << 20));
    let seqnos: Vec<SeqNo> = (1..=20).collect();
    let table = table(&files, &seqnos);
    let search = |n: u64| search(&files, (&table, &indexes), n, seqnos[n as usize]).0;
    let (damaged, _) = (search(11), search(12));
    fs.flip_bit(table.file.reader().path(), (damaged + 100) * 8);
    let sought = Sought { key: &key(11), seqno: 12, len: record_bytes(11, 12) };
    assert!(table.search(sought, &indexes, IoSource::Get).is_err());
    assert!(search(10) < damaged && damaged < search(12), "its neighbours are whole");
}

/// Of several tables whose lists do not all fit, the one that is searched has its own.
#[test]
fn lists_keep_within_their_share_and_tables_that_nobody_searches_lose_theirs() {
    let files = value_files(&MemoryFs::new(), 100);
    let budget = Budget::new(64 << 10);
    let indexes = Indexes::new(Arc::clone(&budget));
    let seqnos: Vec<SeqNo> = (1..=1000).collect();
    let tables: Vec<Arc<SortedTable>> = (0..6).map(|_| table(&files, &seqnos)).collect();
    let mut most = 0;
    for table in &tables {
        let search = |n: u64| search(&files, (table, &indexes), n, n + 1).1;
        for n in 0..1000 {
            search(n);
        }
        for n in 0..1000 {
            assert_eq!(search(n), (u64::from(record_bytes(n, n + 1)), 1), "record {n}");
        }
        most = most.max(indexes.share.used_bytes());
        assert_eq!(indexes.memory_bytes(), budget.used_bytes());
    }
    assert!((8 << 10..=16 << 10).contains(&most), "{most} bytes");
}

#[test]
fn without_memory_each_search_reads_the_stretch() {
    let files = value_files(&MemoryFs::new(), 100);
    let indexes = Indexes::new(Budget::new(0));
    let seqnos: Vec<SeqNo> = (1..=100).collect();
    let table = table(&files, &seqnos);
    for n in [30, 31, 30] {
        let (_, (bytes, calls)) = search(&files, (&table, &indexes), n, n + 1);
        assert!(bytes > STRETCH_BYTES && calls == 2, "{bytes} bytes, {calls} calls");
    }
    assert_eq!(indexes.memory_bytes(), 0);
}
