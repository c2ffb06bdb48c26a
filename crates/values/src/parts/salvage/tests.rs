//! Files with damage everywhere: no panic, no record that was never written, and all that the damage did not touch.

use std::{path::Path, sync::Arc};

use bifold_format::{compression::Compressor, value::Stored};
use bifold_io::{
    FileSystem,
    faulty::{FaultKind, FaultyFs},
    memory::MemoryFs,
};

use super::*;

const FILE: FileId = 14;

/// What was written: where, number, kind, key, value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Written {
    offset: u64,
    end: u64,
    seqno: u64,
    kind: ValueKind,
    key: Vec<u8>,
    value: Vec<u8>,
}

/// A file with these values, and a note behind every third one.
fn file_of(values: &[Vec<u8>]) -> (Vec<u8>, Vec<Written>) {
    let mut bytes = value::header(FILE, Description { class: 1, keyspace: 2, group: 17 });
    let mut all = Vec::new();
    let mut compressor = Compressor::new(bifold_format::compression::Compression::Lz4);
    for (number, content) in values.iter().enumerate() {
        let (offset, key, seqno) = (bytes.len() as u64, format!("key {number}").into_bytes(), 10 + 2 * number as u64);
        value::encode_value(&mut bytes, (FILE, offset), seqno, &key, content, &mut compressor);
        let end = bytes.len() as u64;
        all.push(Written { offset, end, seqno, kind: ValueKind::Value, key: key.clone(), value: content.clone() });
        if number % 3 == 2 {
            let kind = if number % 2 == 0 { ValueKind::Delete } else { ValueKind::Stub };
            value::encode(&mut bytes, (FILE, end), kind, seqno + 1, &key, Stored::NOTHING);
            let (offset, end) = (end, bytes.len() as u64);
            all.push(Written { offset, end, seqno: seqno + 1, kind, key, value: Vec::new() });
        }
    }
    (bytes, all)
}

fn small() -> (Vec<u8>, Vec<Written>) {
    let values = [b"one".to_vec(), vec![0; 40], b"ab".repeat(40), Vec::new(), vec![0x5B; 30], b"six".to_vec()];
    file_of(&values)
}

fn dir_of(fs: &Arc<dyn FileSystem>, name: &str, bytes: &[u8]) -> Dir {
    let dir = Dir::new(Arc::clone(fs), Path::new("/lost"));
    dir.create_dir().unwrap();
    let writer = dir.create(name, IoSource::Value).unwrap();
    writer.append(&[bytes]).unwrap();
    dir
}

/// Everything that is found in a file of this name, and whether all stretches together are the whole file.
fn found_in(name: &str, bytes: &[u8]) -> Result<(Vec<Written>, Vec<Damage>)> {
    let dir = dir_of(&(Arc::new(MemoryFs::new()) as Arc<dyn FileSystem>), name, bytes);
    Source::open(&dir, name).map(|source| walk(&source))
}

fn walk(source: &Source) -> (Vec<Written>, Vec<Damage>) {
    let mut salvage = source.salvage();
    let (mut records, mut damage) = (Vec::new(), Vec::new());
    let mut at = source.start.min(source.len());
    loop {
        match salvage.step() {
            Found::Record(record, len) => {
                let (offset, end) = (record.offset, record.offset + u64::from(len));
                assert_eq!(at, offset, "nothing is skipped without a report");
                at = end;
                let value = record.value().unwrap().to_vec();
                let (seqno, kind) = (record.seqno, record.kind);
                records.push(Written { offset, end, seqno, kind, key: record.key.to_vec(), value });
            }
            Found::Damage(damaged) => {
                assert_eq!(at, damaged.offset, "nothing is skipped without a report");
                assert!(damaged.bytes > 0);
                at += damaged.bytes;
                damage.push(damaged);
            }
            Found::End => break,
        }
    }
    assert_eq!(at, source.len());
    (records, damage)
}

/// All records but those that the damage between two offsets touches.
fn outside(all: &[Written], from: u64, to: u64) -> Vec<Written> {
    all.iter().filter(|record| record.end <= from || record.offset >= to).cloned().collect()
}

#[test]
fn a_sound_file_is_all_records() {
    let (bytes, all) = small();
    assert_eq!(found_in("000014.val", &bytes).unwrap(), (all.clone(), Vec::new()));
    assert_eq!(found_in("any other name", &bytes).unwrap(), (all, Vec::new()));
}

#[test]
fn a_flipped_byte_anywhere_costs_one_record_and_no_other() {
    let (bytes, all) = small();
    for at in 0..bytes.len() {
        for flip in [1, 2, 4, 8, 16, 32, 64, 128, 0xFF] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            let (records, damage) = found_in("000014.val", &damaged).unwrap();
            assert_eq!(records, outside(&all, at as u64, at as u64 + 1), "byte {at} ^ {flip:#x}");
            let holds = |damage: &Damage| (damage.offset..damage.offset + damage.bytes).contains(&(at as u64));
            assert!(at < 32 || (damage.len() == 1 && holds(&damage[0])), "byte {at} ^ {flip:#x}: {damage:?}");
        }
    }
}

#[test]
fn a_damaged_header_needs_the_name_only_where_the_number_is_lost() {
    let (bytes, all) = small();
    for at in 0..32 {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        let found = found_in("copy.bin", &damaged);
        assert_eq!(found.is_err(), (16..24).contains(&at), "byte {at}");
        assert!(found.is_err() || found.unwrap().0 == all, "byte {at}");
        // The description is damaged too: the number comes from the records.
        damaged[55] ^= 1;
        assert_eq!(found_in("000014.val", &damaged).unwrap().0, all, "byte {at}");
    }
    let error = found_in("copy.bin", &[7; 4000]).unwrap_err().to_string();
    assert!(error.contains("000014.val"), "{error}");
}

#[test]
fn a_file_cut_anywhere_keeps_what_is_before_the_cut() {
    let (bytes, all) = small();
    for cut in 0..bytes.len() {
        let (records, damage) = found_in("000014.val", &bytes[..cut]).unwrap();
        assert_eq!(records, outside(&all, cut as u64, u64::MAX), "{cut}");
        assert!(damage.len() <= 1, "{cut}: {damage:?}");
    }
}

#[test]
fn stretches_of_zeros_of_noise_and_of_older_bytes_cost_only_what_they_touch() {
    let values: Vec<Vec<u8>> = (0..60).map(|n: usize| format!("{n} ").into_bytes().repeat(n * 7 % 50)).collect();
    let (bytes, all) = file_of(&values);
    let noise: Vec<u8> = (0..bytes.len() as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect();
    for (number, from) in (58..bytes.len()).step_by(17).enumerate() {
        let to = bytes.len().min(from + [1, 22, 100, 513, 3000][number % 5]);
        let mut damaged = bytes.clone();
        match number % 3 {
            0 => damaged[from..to].fill(0),
            1 => damaged[from..to].copy_from_slice(&noise[from..to]),
            // Records of the same file, at another place.
            _ => damaged[from..to].copy_from_slice(&bytes[from - 58..to - 58]),
        }
        let (records, damage) = found_in("000014.val", &damaged).unwrap();
        let kept = outside(&all, from as u64, to as u64);
        assert!(kept.iter().all(|record| records.contains(record)), "{from}..{to}");
        assert!(records.iter().all(|record| all.contains(record)), "{from}..{to}");
        assert!(!damage.is_empty() || damaged == bytes, "{from}..{to}");
    }
}

#[test]
fn records_in_a_value_are_not_taken_for_records() {
    let (inner, _) = small();
    let (mut bytes, all) = file_of(&[b"first".to_vec(), inner, b"last".to_vec()]);
    for at in [all[1].offset, all[1].offset + 30] {
        bytes[at as usize] ^= 1;
        assert_eq!(found_in("000014.val", &bytes).unwrap().0, [&all[..1], &all[2..]].concat(), "{at}");
    }
}

#[test]
fn zeros_are_called_zeros_and_an_end_an_end() {
    let (bytes, all) = small();
    let damage = found_in("000014.val", &[&bytes[..], &[0; 5000]].concat()).unwrap().1;
    assert!(damage.len() == 1 && damage[0].bytes == 5000 && damage[0].problem.contains("zeros"), "{damage:?}");
    let damage = found_in("000014.val", &bytes[..all.last().unwrap().end as usize - 1]).unwrap().1;
    assert!(damage[0].problem.contains("ends inside a record"), "{damage:?}");
}

#[test]
fn other_files_are_refused_even_under_the_name_of_a_value_file() {
    let log = frame::file_header(*b"bifldlog", 1, FILE);
    assert!(found_in("000014.val", &log).unwrap_err().to_string().contains("magic"));
    let newer = frame::file_header(*b"bifldval", 99, FILE);
    assert!(found_in("000014.val", &newer).unwrap_err().to_string().contains("upgrade"));
}

#[test]
fn what_the_disk_does_not_give_is_damage_and_the_rest_is_read() {
    let (bytes, all) = file_of(&vec![vec![7; 500]; 40].into_iter().enumerate().map(number_it).collect::<Vec<_>>());
    let faulty = FaultyFs::new(Arc::new(MemoryFs::new()));
    let fs: Arc<dyn FileSystem> = Arc::new(faulty.clone());
    let source = Source::open(&dir_of(&fs, "000014.val", &bytes), "000014.val").unwrap();
    // The walk's first read fails, and of the pieces read then the second, 4 KiB.
    let first = faulty.calls() + 1;
    faulty
        .decide_by(Box::new(move |call| (call.number == first || call.number == first + 2).then_some(FaultKind::EIO)));
    let (records, damage) = walk(&source);
    let start = source.start;
    assert_eq!(records, outside(&all, start + 4096, start + 8192));
    assert!(damage.iter().any(|damage| damage.problem.contains("cannot be read")), "{damage:?}");
}

/// Values that LZ4 leaves as they are.
fn number_it((number, value): (usize, Vec<u8>)) -> Vec<u8> {
    let mut state = number as u64 + 1;
    value
        .iter()
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

#[test]
fn a_record_that_is_not_whole_any_more_is_not_read_again() {
    let (mut bytes, all) = small();
    let dir = dir_of(&(Arc::new(MemoryFs::new()) as Arc<dyn FileSystem>), "000014.val", &bytes);
    let (offset, len) = (all[0].offset, (all[0].end - all[0].offset) as u32);
    let again = |dir: &Dir| Source::open(dir, "000014.val").unwrap().again(offset, len, |record| record.key.to_vec());
    assert_eq!(again(&dir), Some(all[0].key.clone()));
    bytes[offset as usize + 25] ^= 1;
    let dir = dir_of(&(Arc::new(MemoryFs::new()) as Arc<dyn FileSystem>), "000014.val", &bytes);
    assert_eq!(again(&dir), None);
}
