mod damage;
mod golden;
mod model;
pub(crate) mod samples;

use std::sync::Arc;

use bifold_contract::{Entry, IoSource, Kind, RangeTombstone};
use bifold_format::{compression::Compression, filter::key_hash};
use samples::{Disk, OwnedEntry, options, sample};

use super::{ReadMode, Table, TableContext, TableOptions, TableWriter};
use crate::cursor::{Cursor, Direction};

#[test]
fn a_table_knows_what_is_in_it() {
    let disk = Disk::new();
    let mut writer = TableWriter::create(&disk.dir, 3, IoSource::Flush, &options()).unwrap();
    assert!(writer.is_empty());
    writer.add(&Entry::inline(b"b", 7, b"value")).unwrap();
    writer.add(&Entry::delete(b"c", 9)).unwrap();
    let tombstone = RangeTombstone { start: b"a"[..].into(), end: Some(b"x"[..].into()), seqno: 4 };
    writer.add_range_tombstone(&tombstone).unwrap();
    assert!(!writer.is_empty() && writer.entries() == 2);
    let estimated = writer.bytes();
    let meta = writer.finish().unwrap();
    assert_eq!(meta.bytes, disk.dir.len("000003.tbl").unwrap().unwrap());
    // The estimate uses the largest possible index, which for one block is most of the file.
    assert!((meta.bytes..meta.bytes + 1000).contains(&estimated), "estimated {estimated}, got {}", meta.bytes);
    assert_eq!((meta.entries, meta.tombstones, meta.range_tombstones), (2, 1, 1));
    assert_eq!((&*meta.smallest, &*meta.largest, meta.unbounded), (&b"a"[..], &b"x"[..], false));
    assert_eq!((meta.min_seqno, meta.max_seqno), (4, 9));
    assert_eq!(Table::read_meta(&disk.dir, 3).unwrap(), meta);

    let table = disk.open(&meta);
    assert_eq!(table.range_tombstones(), [tombstone]);
    assert_eq!((table.covering(b"b", 4), table.covering(b"b", 3), table.covering(b"x", 9)), (4, 0, 0));
}

#[test]
fn a_table_may_have_only_range_tombstones() {
    let disk = Disk::new();
    let mut writer = TableWriter::create(&disk.dir, 3, IoSource::Flush, &options()).unwrap();
    for (start, end, seqno) in [(&b"k"[..], None, 8), (b"c", Some(&b"d"[..]), 5), (b"c", Some(b"e"), 6)] {
        writer.add_range_tombstone(&RangeTombstone { start: start.into(), end: end.map(Box::from), seqno }).unwrap();
    }
    let meta = writer.finish().unwrap();
    assert!(meta.unbounded && *meta.smallest == *b"c" && *meta.largest == *b"k");
    let table = disk.open(&meta);
    assert_eq!(table.range_tombstones().iter().map(|t| t.seqno).collect::<Vec<_>>(), [6, 5, 8]);
    assert!(table.get(b"c", key_hash(b"c"), 9, IoSource::Get).unwrap().is_none());
    let mut cursor = table.cursor(ReadMode::Scan);
    cursor.first().unwrap();
    assert!(cursor.entry().is_none());
    cursor.seek_before(b"z").unwrap();
    assert!(cursor.entry().is_none());
    assert!(table.verify().is_empty());
}

/// What snapshots have held may be nested, and a file may say anything: lists of all that span a key would have n²/2
/// numbers.
#[test]
fn nested_range_tombstones_take_little_memory() {
    const COUNT: u64 = 3000;
    let disk = Disk::new();
    let mut writer = TableWriter::create(&disk.dir, 3, IoSource::Flush, &options()).unwrap();
    let key = |number: u64| format!("{number:06}").into_bytes();
    let mut add = |start: u64, end: u64, seqno: u64| {
        let tombstone = RangeTombstone { start: key(start).into(), end: Some(key(end).into()), seqno };
        writer.add_range_tombstone(&tombstone).unwrap();
    };
    (1..=COUNT).for_each(|n| add(COUNT - n, COUNT + n, COUNT + 1 - n));
    // What is left of one that others have cut.
    (1..=200).for_each(|n| add(2 * COUNT + 2 * n, 2 * COUNT + 2 * n + 1, 7));
    let table = disk.open(&writer.finish().unwrap());
    let by_definition = |key: &[u8], snapshot: u64| {
        let seen = table.range_tombstones().iter().filter(|t| t.seqno <= snapshot && t.contains(key));
        seen.map(|t| t.seqno).max().unwrap_or(0)
    };
    for number in (0..2 * COUNT + 500).step_by(37) {
        for snapshot in [0, 6, 7, 700, 1500, COUNT - 1, COUNT] {
            let (found, expected) = (table.covering(&key(number), snapshot), by_definition(&key(number), snapshot));
            assert_eq!(found, expected, "{number} at {snapshot}");
        }
    }
    let bytes = table.covering.bytes() as u64;
    assert!(bytes < 400 * COUNT, "{bytes}");
}

#[test]
fn an_obsolete_table_is_removed_when_its_last_reference_is_dropped() {
    let disk = Disk::new();
    let meta = disk.write(3, &sample(20), &options());
    let table = disk.open(&meta);
    let mut cursor = table.cursor(ReadMode::Scan);
    table.mark_obsolete();
    drop(table);
    cursor.first().unwrap();
    assert!(cursor.entry().is_some());
    assert!(disk.dir.len("000003.tbl").unwrap().is_some());
    drop(cursor);
    assert!(disk.dir.len("000003.tbl").unwrap().is_none());

    let meta = disk.write(4, &sample(20), &options());
    drop(disk.open(&meta));
    assert!(disk.dir.len("000004.tbl").unwrap().is_some(), "a table that is still needed stays");
}

#[test]
fn an_abandoned_table_leaves_no_file() {
    let disk = Disk::new();
    let mut writer = TableWriter::create(&disk.dir, 3, IoSource::Flush, &options()).unwrap();
    writer.add(&Entry::inline(b"b", 7, b"value")).unwrap();
    writer.abandon();
    assert!(disk.dir.list().unwrap().is_empty());
}

#[test]
#[should_panic(expected = "does not follow")]
fn entries_out_of_order_are_a_bug() {
    let disk = Disk::new();
    let mut writer = TableWriter::create(&disk.dir, 3, IoSource::Flush, &options()).unwrap();
    writer.add(&Entry::inline(b"b", 7, b"")).unwrap();
    let _panics = writer.add(&Entry::inline(b"b", 7, b""));
}

#[test]
fn a_cached_block_is_read_once() {
    let disk = Disk::new();
    let entries = sample(2000);
    let meta = disk.write(3, &entries, &options());
    let table = disk.open(&meta);
    let reads = || disk.dir.totals().reads[IoSource::Get as usize];
    let key = &entries[777].key;
    for _ in 0..3 {
        let found = table.get(key, key_hash(key), u64::MAX, IoSource::Get).unwrap().unwrap();
        assert_eq!(found.payload, entries[777].payload);
    }
    assert_eq!(reads(), 1);
    assert_eq!(disk.context.cache().hits(), 2);
}

/// Else the blocks where scans begin would stay in the cache for the question alone.
#[test]
fn whether_a_scan_begins_cold_is_no_request_of_the_cache() {
    let disk = Disk::new();
    let entries = sample(2000);
    let table = disk.open(&disk.write(3, &entries, &options()));
    let key = &entries[777].key;
    let requests = || (disk.context.cache().hits(), disk.context.cache().misses());
    let ask = || table.cursor(ReadMode::Scan).is_cold(key, Direction::Forward).unwrap().unwrap();
    ask();
    assert_eq!(requests(), (0, 0));
    table.get(key, key_hash(key), u64::MAX, IoSource::Get).unwrap().unwrap();
    assert_eq!(requests(), (0, 1));
    assert!(!ask(), "its block is cached");
    assert_eq!(requests(), (0, 1));
}

#[test]
fn a_block_without_values_is_short_unless_it_is_compressed_or_blocks_are_shorter_anyway() {
    let read_of_a_get = |kind: Kind, options: &TableOptions| {
        let disk = Disk::new();
        let entries: Vec<_> =
            sample(2000).into_iter().map(|entry| OwnedEntry { kind, payload: vec![7; 20], ..entry }).collect();
        let table = disk.open(&disk.write(3, &entries, options));
        let key = &entries[777].key;
        let found = table.get(key, key_hash(key), u64::MAX, IoSource::Get).unwrap().unwrap();
        assert_eq!((found.kind, &*found.payload), (kind, &[7; 20][..]));
        disk.dir.totals().read_bytes[IoSource::Get as usize]
    };
    let about = |bytes: u64| bytes - bytes / 8..bytes + bytes / 8;
    assert!(about(1024).contains(&read_of_a_get(Kind::Pointer, &options())));
    assert!(about(4096).contains(&read_of_a_get(Kind::Inline, &options())));
    let shorter = TableOptions { block_bytes: 512, ..options() };
    assert!(about(512).contains(&read_of_a_get(Kind::Pointer, &shorter)));
    // As long as one with values before it is compressed.
    let compressed = TableOptions { compression: Compression::Lz4, ..options() };
    let [of_addresses, of_values] = [Kind::Pointer, Kind::Inline].map(|kind| read_of_a_get(kind, &compressed));
    assert!(of_addresses.abs_diff(of_values) < of_values / 8, "{of_addresses} and {of_values}");
}

#[test]
fn addresses_among_values_share_their_blocks() {
    let disk = Disk::new();
    let mut entries = sample(400);
    // Ten addresses, and then a value.
    for (at, entry) in entries.iter_mut().enumerate().filter(|(at, _)| at % 11 > 0) {
        (entry.kind, entry.payload) = (Kind::Pointer, vec![at as u8; 20]);
    }
    let table = disk.open(&disk.write(3, &entries, &options()));
    for OwnedEntry { key, kind, payload, .. } in &entries {
        let found = table.get(key, key_hash(key), u64::MAX, IoSource::Get).unwrap().unwrap();
        assert_eq!((found.kind, &*found.payload), (*kind, &payload[..]));
    }
    let blocks = disk.dir.totals().reads[IoSource::Get as usize];
    assert!(blocks <= table.meta().bytes / 3500, "{blocks} blocks in {} bytes", table.meta().bytes);
    assert!(table.verify().is_empty());
}

#[test]
fn a_compaction_does_not_use_the_cache_and_reads_in_large_pieces() {
    let disk = Disk::new();
    let entries = sample(20_000);
    let meta = disk.write(3, &entries, &options());
    let table = disk.open(&meta);
    let walk = |mode| {
        let mut cursor = table.cursor(mode);
        cursor.first().unwrap();
        let mut count = 0;
        while cursor.entry().is_some() {
            count += 1;
            cursor.next().unwrap();
        }
        assert_eq!(count, entries.len());
    };
    walk(ReadMode::Compaction);
    let totals = disk.dir.totals();
    assert_eq!((disk.context.cache().bytes(), disk.context.cache().misses()), (0, 0));
    assert!(totals.read_bytes[IoSource::Compaction as usize] < meta.bytes);
    assert!(totals.reads[IoSource::Compaction as usize] < meta.bytes / (100 << 10));
    walk(ReadMode::Scan);
    assert!(disk.dir.totals().reads[IoSource::Scan as usize] < meta.bytes / (30 << 10));
}

#[test]
fn without_a_budget_indexes_and_filters_go_through_the_cache() {
    let entries = sample(500);
    for (cache_bytes, metadata_bytes, held) in [(0, 0, false), (1 << 20, 0, false), (0, 1 << 20, true)] {
        let disk = Disk { context: Arc::new(TableContext::new(cache_bytes, metadata_bytes)), ..Disk::new() };
        let meta = disk.write(3, &entries, &options());
        let table = disk.open(&meta);
        assert_eq!(disk.context.metadata_bytes() > 0, held);
        assert!(disk.context.metadata_bytes() <= metadata_bytes);
        for OwnedEntry { key, payload, .. } in entries.iter().step_by(7) {
            let found = table.get(key, key_hash(key), u64::MAX, IoSource::Get).unwrap().unwrap();
            assert_eq!(found.payload, *payload);
        }
        drop(table);
        assert_eq!(disk.context.metadata_bytes(), 0, "the budget is returned");
    }
}

#[test]
fn a_table_opened_without_room_holds_index_and_filter_once_there_is_some() {
    let (entries, disk) = (sample(2000), Disk::new());
    let [one, other] = [3, 4].map(|id| disk.write(id, &entries, &options()));
    let table = disk.open(&one);
    let bytes = disk.context.metadata_bytes();
    drop(table);
    let disk = Disk { context: Arc::new(TableContext::new(0, bytes + bytes / 2)), ..disk };
    let (input, output) = (disk.open(&one), disk.open(&other));
    let get = |OwnedEntry { key, payload, .. }: &OwnedEntry| {
        let found = output.get(key, key_hash(key), u64::MAX, IoSource::Get).unwrap().unwrap();
        assert_eq!(found.payload, *payload);
    };
    get(&entries[7]);
    assert_eq!((disk.context.metadata_bytes(), output.held.bytes()), (bytes, 0), "there is room for one");
    let read = || entries.iter().step_by(9).for_each(get);
    std::thread::scope(|scope| {
        (0..3).for_each(|_| drop(scope.spawn(read)));
        drop(input);
    });
    get(&entries[7]);
    assert_eq!((disk.context.metadata_bytes(), output.held.bytes()), (bytes, bytes));
    let reads = || disk.dir.totals().reads[IoSource::Metadata as usize];
    let before = reads();
    read();
    assert_eq!(reads(), before, "what is held is not read");
    drop(output);
    assert_eq!(disk.context.metadata_bytes(), 0, "the budget is returned");
}

#[test]
fn a_table_with_an_index_in_parts_holds_more_as_room_comes() {
    let (entries, disk) = (sample(400), Disk::new());
    let options = TableOptions { block_bytes: 1, ..options() };
    let metas = [3, 4, 5].map(|id| disk.write(id, &entries, &options));
    let held_with = |budget: u64| {
        let table = Table::open(&disk.dir, metas[0].clone().into(), &Arc::new(TableContext::new(0, budget))).unwrap();
        table.held.bytes()
    };
    let whole = held_with(1 << 20);
    let top = held_with(whole - 1);
    assert!(top > 0 && top < whole);
    let disk = Disk { context: Arc::new(TableContext::new(0, whole + top)), ..disk };
    let [first, second, third] = [0, 1, 2].map(|at| disk.open(&metas[at]));
    assert_eq!([&first, &second, &third].map(|table| table.held.bytes()), [whole, top, 0]);
    let read = |table: &Table| {
        for OwnedEntry { key, payload, .. } in &entries {
            let found = table.get(key, key_hash(key), u64::MAX, IoSource::Get).unwrap().unwrap();
            assert_eq!(found.payload, *payload);
            assert!((0.0..1.0).contains(&table.share(key, Some(key)).unwrap()));
        }
    };
    read(&third);
    assert_eq!(third.held.bytes(), 0);
    drop(second);
    read(&third);
    assert_eq!((third.held.bytes(), third.held.whole().is_none()), (top, true));
    drop(first);
    read(&third);
    assert!(third.held.whole().is_some_and(|held| held.filter.is_some()));
    assert!((whole..whole + top).contains(&third.held.bytes()), "the filter is not held twice");
    assert_eq!(disk.context.metadata_bytes(), third.held.bytes());
    let cursor = |table: &Arc<Table>| {
        let mut cursor = table.cursor(ReadMode::Scan);
        cursor.first().unwrap();
        cursor.entry().map(|entry| entry.key.to_vec())
    };
    assert_eq!(cursor(&third).as_ref(), Some(&entries[0].key));
    drop(third);
    assert_eq!(disk.context.metadata_bytes(), 0, "the budget is returned");
}

#[test]
fn the_filter_saves_reads_for_absent_keys() {
    let disk = Disk::new();
    let meta = disk.write(3, &sample(2000), &options());
    let table = disk.open(&meta);
    for absent in 0..1000u32 {
        let key = format!("absent{absent}");
        assert!(table.get(key.as_bytes(), key_hash(key.as_bytes()), u64::MAX, IoSource::Get).unwrap().is_none());
    }
    let reads = disk.dir.totals().reads[IoSource::Get as usize];
    assert!(reads < 30, "{reads} reads for 1000 absent keys");
}
