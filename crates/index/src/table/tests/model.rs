//! Tables against sorted vectors.

use bifold_contract::{IoSource, Kind, SeqNo};
use bifold_format::{compression::Compression, filter::key_hash};
use proptest::prelude::*;

use super::samples::{Disk, OwnedEntry};
use crate::{
    cursor::Cursor,
    table::{ReadMode, TableContext, TableCursor, TableOptions},
};

fn key() -> impl Strategy<Value = Vec<u8>> {
    let tail = prop::collection::vec(prop_oneof![Just(b'0'), Just(b'1'), Just(0), Just(255)], 1..6);
    let head = prop_oneof![Just("user:0000000"), Just("us"), Just("")];
    (head, tail).prop_map(|(head, tail)| [head.as_bytes(), &tail].concat())
}

/// Sorted entries; some keys have enough versions to fill blocks.
fn entries() -> impl Strategy<Value = Vec<OwnedEntry>> {
    let versions = prop_oneof![10 => 1u64..3, 1 => 20u64..60];
    let payload = prop_oneof![20 => 0usize..60, 1 => 3000usize..6000];
    prop::collection::btree_map(key(), (versions, 0u8..3, payload), 1..60).prop_map(|keys| {
        let mut entries = Vec::new();
        for (key, (versions, kind, len)) in keys {
            for seqno in (1..=versions).rev() {
                let kind = Kind::from_byte((kind + seqno as u8) % 3).unwrap();
                entries.push(OwnedEntry { key: key.clone(), seqno: seqno * 2, kind, payload: vec![b'v'; len] });
            }
        }
        entries
    })
}

fn any_options() -> impl Strategy<Value = TableOptions> {
    let compression = prop_oneof![Just(Compression::None), Just(Compression::Lz4), Just(Compression::Zstd)];
    (prop_oneof![Just(1usize), Just(100), Just(1000), Just(4096)], 1usize..20, 0u32..12, compression).prop_map(
        |(block_bytes, restart_interval, filter_bits_per_key, compression)| TableOptions {
            block_bytes,
            restart_interval,
            filter_bits_per_key,
            compression,
        },
    )
}

fn mode() -> impl Strategy<Value = ReadMode> {
    prop_oneof![Just(ReadMode::Scan), Just(ReadMode::Compaction)]
}

fn here(cursor: &TableCursor) -> Option<OwnedEntry> {
    let entry = cursor.entry().map(OwnedEntry::of);
    assert_eq!(cursor.payload(), entry.as_ref().map_or(&[][..], |e| &e.payload));
    entry
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn reads_and_iterations_find_what_was_written(
        entries in entries(), options in any_options(), mode in mode(), memory in 0u64..3, probe in key(),
    ) {
        let disk = Disk::new();
        let disk = Disk { context: TableContext::new((memory % 2) << 20, (memory / 2) << 20).into(), ..disk };
        let meta = disk.write(9, &entries, &options);
        prop_assert_eq!(meta.entries, entries.len() as u64);
        let table = disk.open(&meta);
        let problems = table.verify();
        prop_assert!(problems.is_empty(), "{:?}", problems);

        let keys: Vec<_> = entries.iter().step_by(5).map(|e| e.key.clone()).chain([probe]).collect();
        let mut cursor = table.cursor(mode);
        for key in &keys {
            for seqno in [0, 1, 2, 3, 40, 1000] {
                let first = entries.iter().position(|e| (&e.key, seqno) >= (key, e.seqno)).unwrap_or(entries.len());
                let found = table.get(key, key_hash(key), seqno, IoSource::Get).unwrap();
                let expected = entries.get(first).filter(|e| e.key == *key);
                prop_assert_eq!(found.is_some(), expected.is_some());
                if let (Some(found), Some(expected)) = (found, expected) {
                    prop_assert_eq!((found.seqno, found.kind), (expected.seqno, expected.kind));
                    prop_assert_eq!(found.payload, &expected.payload);
                }
                cursor.seek(key, seqno).unwrap();
                prop_assert_eq!(here(&cursor), entries.get(first).cloned());
            }
            cursor.seek_before(key).unwrap();
            prop_assert_eq!(here(&cursor), entries.iter().rfind(|e| e.key < *key).cloned());
        }

        cursor.first().unwrap();
        for entry in &entries {
            prop_assert_eq!(here(&cursor), Some(entry.clone()));
            cursor.next().unwrap();
        }
        prop_assert_eq!(here(&cursor), None);
        cursor.last().unwrap();
        for entry in entries.iter().rev() {
            prop_assert_eq!(here(&cursor), Some(entry.clone()));
            cursor.prev().unwrap();
        }
        prop_assert_eq!(here(&cursor), None);
    }

    #[test]
    fn an_index_in_parts_is_read_as_a_whole_one_is(
        keys in 65usize..400, budget in 0u64..3, mode in mode(),
        walks in prop::collection::vec((0usize..400, 0u64..90), 8),
    ) {
        // Blocks of one entry each, so that there are several parts; some keys have versions on both sides of an edge.
        let key = |at: usize| format!("key{:04}", at / 3).into_bytes();
        let entry = |at: usize| {
            OwnedEntry { key: key(at), seqno: 9 - at as u64 % 3, kind: Kind::Inline, payload: vec![7] }
        };
        let entries: Vec<OwnedEntry> = (0..keys).map(entry).collect();
        let disk = Disk::new();
        // Room for nothing, for the index of the parts and the filter, or for everything.
        let budget = [0, keys as u64 * 2 + 700, 1 << 20][budget as usize];
        let disk = Disk { context: TableContext::new(1 << 20, budget).into(), ..disk };
        let meta = disk.write(9, &entries, &TableOptions { block_bytes: 1, ..TableOptions::default() });
        let table = disk.open(&meta);
        prop_assert!(table.verify().is_empty(), "{:?}", table.verify());
        for (at, entry) in entries.iter().enumerate().step_by(5) {
            let found = table.get(&entry.key, key_hash(&entry.key), entry.seqno, IoSource::Get).unwrap();
            prop_assert_eq!(found.map(|found| found.seqno), Some(entry.seqno), "entry {}", at);
        }
        let mut cursor = table.cursor(mode);
        for (start, steps) in walks {
            let start = start.min(keys - 1);
            let at = entries.iter().position(|e| e.key >= key(start)).unwrap();
            cursor.seek(&key(start), SeqNo::MAX).unwrap();
            for entry in entries[at..].iter().take(steps as usize) {
                prop_assert_eq!(here(&cursor), Some(entry.clone()));
                cursor.next().unwrap();
            }
            cursor.seek_before(&key(start)).unwrap();
            for entry in entries[..at].iter().rev().take(steps as usize) {
                prop_assert_eq!(here(&cursor), Some(entry.clone()));
                cursor.prev().unwrap();
            }
        }
        cursor.last().unwrap();
        prop_assert_eq!(here(&cursor), entries.last().cloned());
        cursor.first().unwrap();
        for entry in &entries {
            prop_assert_eq!(here(&cursor), Some(entry.clone()));
            cursor.next().unwrap();
        }
        prop_assert_eq!(here(&cursor), None);
    }

    #[test]
    fn a_cursor_may_change_direction_anywhere(
        entries in entries(),
        options in any_options(),
        mode in mode(),
        start in key(),
        walks in prop::collection::vec((any::<bool>(), 1usize..40), 0..12),
    ) {
        let disk = Disk::new();
        let table = disk.open(&disk.write(9, &entries, &options));
        let mut cursor = table.cursor(mode);
        cursor.seek(&start, SeqNo::MAX).unwrap();
        let mut at = entries.iter().position(|e| e.key >= start).unwrap_or(entries.len());
        for (forward, steps) in walks {
            for _ in 0..steps {
                if at >= entries.len() {
                    // Past either end a cursor has no entry and stays there.
                    prop_assert_eq!(here(&cursor), None);
                    cursor.next().unwrap();
                    cursor.prev().unwrap();
                    prop_assert_eq!(here(&cursor), None);
                    return Ok(());
                }
                prop_assert_eq!(here(&cursor), Some(entries[at].clone()));
                if forward { cursor.next().unwrap() } else { cursor.prev().unwrap() }
                at = if forward { at + 1 } else { at.wrapping_sub(1) };
            }
        }
    }
}
