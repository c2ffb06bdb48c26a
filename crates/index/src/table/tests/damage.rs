//! A table with a damaged file returns an error or the same result as an intact one.

use std::sync::Arc;

use bifold_contract::{Error, IoSource, Kind, RangeTombstone, TableMeta};
use bifold_format::{
    block::sealed::SEAL_BYTES,
    checksum::checksum,
    compression::Compression,
    filter::{HASH_BITS, key_hash},
    table::properties::Properties,
};

use super::samples::{Disk, OwnedEntry, options, sample};
use crate::{
    cursor::Cursor,
    table::{ReadMode, Table, TableContext, TableOptions, TableWriter, verify},
};

/// A small table with several blocks, versions across blocks, and tombstones of both kinds.
fn small(disk: &Disk, compression: Compression) -> (TableMeta, Vec<OwnedEntry>) {
    let mut entries = Vec::new();
    for (key, versions) in [("apple", 1), ("apricot", 5), ("banana", 1), ("cherry", 2), ("damson", 1)] {
        for seqno in (1..=versions).rev() {
            let kind = if seqno % 2 == 0 { Kind::Delete } else { Kind::Inline };
            let payload = if kind == Kind::Delete { Vec::new() } else { key.repeat(4).into_bytes() };
            entries.push(OwnedEntry { key: key.into(), seqno, kind, payload });
        }
    }
    let options = TableOptions { block_bytes: 100, restart_interval: 2, filter_bits_per_key: 10, compression };
    let mut writer = TableWriter::create(&disk.dir, 5, IoSource::Flush, &options).unwrap();
    entries.iter().for_each(|entry| writer.add(&entry.borrow()).unwrap());
    let tombstone = RangeTombstone { start: b"b"[..].into(), end: Some(b"c"[..].into()), seqno: 1 };
    writer.add_range_tombstone(&tombstone).unwrap();
    (writer.finish().unwrap(), entries)
}

/// Everything that can be read from a table, or an error in its place.
fn read_all(disk: &Disk, meta: &TableMeta, entries: &[OwnedEntry]) -> Vec<Result<String, ()>> {
    // Neither cache nor budget: every read goes to the file.
    let context = Arc::new(TableContext::new(0, 0));
    match Table::open(&disk.dir, Arc::new(meta.clone()), &context) {
        Ok(table) => read_open(&table, entries),
        Err(_) => vec![Err(())],
    }
}

/// The same of a table that is open.
fn read_open(table: &Arc<Table>, entries: &[OwnedEntry]) -> Vec<Result<String, ()>> {
    let mut results = vec![Ok(format!("{:?}", table.range_tombstones()))];
    let keys = entries.iter().map(|e| (&e.key[..], e.seqno)).chain([(&b"absent"[..], 9), (b"zebra", 9)]);
    for (key, seqno) in keys {
        let found = table.get(key, key_hash(key), seqno, IoSource::Get);
        results.push(found.map(|found| format!("{found:?}")).map_err(|_| ()));
    }
    for mode in [ReadMode::Scan, ReadMode::Compaction] {
        let mut cursor = table.cursor(mode);
        let mut outcome = cursor.first();
        while let (Ok(()), Some(entry)) = (&outcome, cursor.entry()) {
            results.push(Ok(format!("{entry:?}")));
            outcome = cursor.next();
        }
        results.push(outcome.map(|()| "end".into()).map_err(|_| ()));
    }
    results
}

/// Whether each result is an error or the result of an intact table. After an error in an iteration nothing more is
/// compared.
fn is_error_or_equal(found: &[Result<String, ()>], intact: &[Result<String, ()>]) -> bool {
    let mut intact = intact.iter();
    found.iter().all(|found| match found {
        Ok(text) => intact.any(|intact| intact.as_ref() == Ok(text)),
        Err(()) => true,
    })
}

#[test]
fn every_flipped_bit_is_an_error_or_harmless_and_verification_finds_it() {
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        let disk = Disk::new();
        let (meta, entries) = small(&disk, compression);
        let intact = read_all(&disk, &meta, &entries);
        assert!(intact.iter().all(Result::is_ok), "{intact:?}");
        assert!(verify::verify(&disk.dir, &meta).is_empty());
        let path = disk.dir.file("000005.tbl");
        for bit in 0..meta.bytes * 8 {
            disk.fs.flip_bit(&path, bit);
            let found = read_all(&disk, &meta, &entries);
            assert!(is_error_or_equal(&found, &intact), "{compression:?}, bit {bit}: {found:?}");
            assert!(found.iter().any(Result::is_err), "{compression:?}, bit {bit}: no read noticed");
            let problems = verify::verify(&disk.dir, &meta);
            assert!(!problems.is_empty(), "{compression:?}, bit {bit}: not verified");
            assert!(problems.iter().all(Error::is_corruption), "{problems:?}");
            disk.fs.flip_bit(&path, bit);
        }
    }
}

/// Of an index in parts, when the table is opened and when the damage comes later.
#[test]
fn flipped_bits_in_a_part_of_an_index_are_errors_or_harmless_and_verification_finds_them() {
    let disk = Disk::new();
    let entries = sample(140);
    let options = TableOptions { block_bytes: 1, filter_bits_per_key: 0, ..options() };
    let meta = disk.write(5, &entries, &options);
    let intact = read_all(&disk, &meta, &entries);
    assert!(intact.iter().all(Result::is_ok), "{intact:?}");
    let path = disk.dir.file("000005.tbl");
    let open = Table::open(&disk.dir, Arc::new(meta.clone()), &Arc::new(TableContext::new(0, 0))).unwrap();
    assert!(!open.top.is_empty() && open.held.whole().is_none());
    let section = open.file.footer.index();
    for bit in (section.start * 8..section.end * 8).step_by(61) {
        disk.fs.flip_bit(&path, bit);
        let found = read_all(&disk, &meta, &entries);
        assert!(found == [Err(())], "bit {bit}: opened");
        let found = read_open(&open, &entries);
        assert!(is_error_or_equal(&found, &intact), "bit {bit}: {found:?}");
        // The number at the end is not looked at any more.
        assert!(bit >= section.end * 8 - 32 || found.iter().any(Result::is_err), "bit {bit}: no read noticed");
        let problems = verify::verify(&disk.dir, &meta);
        assert!(!problems.is_empty() && problems.iter().all(Error::is_corruption), "bit {bit}: {problems:?}");
        disk.fs.flip_bit(&path, bit);
    }
}

/// The hashes of keys are in the file only so that the keys need not be read.
#[test]
fn missing_or_damaged_hashes_are_computed_from_the_keys() {
    for bits in [HASH_BITS, 0, 10] {
        let disk = Disk::new();
        let options = TableOptions { block_bytes: 100, filter_bits_per_key: bits, ..options() };
        let entries = sample(40);
        let twice =
            |entry: &OwnedEntry| [OwnedEntry { seqno: 100, ..entry.clone() }, OwnedEntry { seqno: 9, ..entry.clone() }];
        let meta = disk.write(5, &entries.iter().flat_map(twice).collect::<Vec<_>>(), &options);
        let sorted = |mut hashes: Vec<u64>| {
            hashes.sort_unstable();
            hashes
        };
        let expected = sorted(entries.iter().map(|entry| key_hash(&entry.key)).collect());
        let hashes = || sorted(disk.open(&meta).key_hashes().unwrap());
        assert_eq!(hashes(), expected, "{bits} bits per key");
        let place = disk.open(&meta).file.footer.filter();
        if bits != HASH_BITS {
            continue;
        }
        assert_eq!(place.len() as usize, 40 * 8 + 1 + SEAL_BYTES);
        assert!(!disk.open(&meta).has_filter() && disk.open(&meta).verify().is_empty());
        for bit in place.start * 8..place.end * 8 {
            disk.fs.flip_bit(&disk.dir.file("000005.tbl"), bit);
            assert_eq!(hashes(), expected, "bit {bit}");
            assert_eq!(disk.open(&meta).verify().len(), 1, "bit {bit}: verification still reports it");
            disk.fs.flip_bit(&disk.dir.file("000005.tbl"), bit);
        }
    }
}

#[test]
fn a_truncated_or_grown_file_does_not_open() {
    let disk = Disk::new();
    let (meta, _) = small(&disk, Compression::None);
    let path = disk.dir.file("000005.tbl");
    let bytes = disk.fs.read(&path).unwrap();
    for len in 0..bytes.len() {
        disk.fs.write_durable(&path, &bytes[..len]);
        let error = Table::open(&disk.dir, Arc::new(meta.clone()), &disk.context).unwrap_err();
        assert!(error.is_corruption(), "truncated to {len} bytes: {error}");
        assert!(!verify::verify(&disk.dir, &meta).is_empty());
    }
    disk.fs.write_durable(&path, &[&bytes[..], b"more"].concat());
    assert!(Table::open(&disk.dir, Arc::new(meta), &disk.context).is_err());
}

#[test]
fn another_table_under_its_name_does_not_open() {
    let disk = Disk::new();
    let meta = disk.write(5, &sample(10), &options());
    let other = disk.write(6, &sample(10), &options());
    let bytes = disk.fs.read(&disk.dir.file("000006.tbl")).unwrap();
    disk.fs.write_durable(&disk.dir.file("000005.tbl"), &bytes);
    assert!(Table::open(&disk.dir, Arc::new(meta), &disk.context).unwrap_err().is_corruption());
    // Nor does the right file with other metadata.
    let wrong = TableMeta { entries: 11, ..other.clone() };
    assert!(Table::open(&disk.dir, Arc::new(wrong.clone()), &disk.context).unwrap_err().is_corruption());
    assert_eq!(verify::verify(&disk.dir, &wrong).len(), 1);
    assert!(verify::verify(&disk.dir, &other).is_empty());
}

#[test]
fn verification_continues_after_damage() {
    let disk = Disk::new();
    let meta = disk.write(5, &sample(1000), &options());
    let path = disk.dir.file("000005.tbl");
    for bit in [100, 40_000 * 8, 80_000 * 8] {
        disk.fs.flip_bit(&path, bit);
    }
    let problems = verify::verify(&disk.dir, &meta);
    let offset = |error: &Error| match error {
        Error::Corruption { detail, .. } => detail.offset,
        other => panic!("{other}"),
    };
    let offsets: Vec<_> = problems.iter().map(offset).collect();
    assert_eq!(offsets.len(), 3);
    assert!(offsets[0] == 0 && (36_000..=40_000).contains(&offsets[1]) && (76_000..=80_000).contains(&offsets[2]));
}

#[test]
fn a_cursor_repeats_its_error_and_never_skips() {
    let disk = Disk::new();
    let entries = sample(1000);
    let meta = disk.write(5, &entries, &options());
    disk.fs.flip_bit(&disk.dir.file("000005.tbl"), 40_000 * 8);
    for mode in [ReadMode::Scan, ReadMode::Compaction] {
        let table = disk.open(&meta);
        let mut cursor = table.cursor(mode);
        cursor.first().unwrap();
        let mut read = 0;
        let error = loop {
            assert_eq!(cursor.entry().map(OwnedEntry::of).as_ref(), Some(&entries[read]));
            read += 1;
            if let Err(error) = cursor.next() {
                break error;
            }
        };
        assert!(error.is_corruption() && read > 200);
        for _ in 0..2 {
            assert!(cursor.entry().is_none());
            for outcome in [cursor.next(), cursor.prev(), cursor.first(), cursor.seek(b"key", 1), cursor.last()] {
                assert_eq!(outcome.unwrap_err().to_string(), error.to_string());
            }
        }
    }
}

/// A bit may flip before a block is sealed: then its checksum is right.
#[test]
fn a_compaction_meets_an_error_where_keys_are_not_in_their_place() {
    let wrong = (0..40u64).filter(|at| at % 10 != 9).map(|at| (at, b'9'));
    // Behind the last fence; the same key again, and newer; before the first key.
    let wrong = wrong.chain([(39, b':'), (1, b'0'), (0, b'/')]);
    for ((at, byte), block_bytes) in wrong.flat_map(|wrong| [(wrong, 4096), (wrong, 400)]) {
        let disk = Disk::new();
        let meta = disk.write(5, &sample(40), &TableOptions { block_bytes, ..options() });
        disk.change_key(&meta, at, byte);
        let mut cursor = disk.open(&meta).cursor(ReadMode::Compaction);
        let mut outcome = cursor.first();
        while outcome.is_ok() && cursor.entry().is_some() {
            outcome = cursor.next();
        }
        let Err(error) = outcome else { panic!("entry {at}, byte {byte}, blocks of {block_bytes} bytes") };
        assert!(error.is_corruption() && error.path().is_some_and(|path| path.ends_with("000005.tbl")), "{error}");
    }
}

/// Changes the properties of a table, as if they had been so when they were sealed. They must stay as long.
fn change_properties(disk: &Disk, meta: &TableMeta, change: impl FnOnce(&mut Properties)) {
    let path = disk.dir.file("000005.tbl");
    let place = disk.open(meta).file.footer.properties();
    let mut bytes = disk.fs.read(&path).unwrap();
    let (covered, sum) = bytes[place.start as usize..place.end as usize].split_last_chunk_mut::<8>().unwrap();
    let (_method, content) = covered.split_last_mut().unwrap();
    let mut properties = Properties::decode(content, meta.id, meta.bytes).unwrap();
    change(&mut properties);
    let mut changed = Vec::new();
    properties.encode(&mut changed);
    content.copy_from_slice(&changed);
    *sum = checksum(covered, meta.id, place.start).to_le_bytes();
    disk.fs.write_durable(&path, &bytes);
}

/// It would be read into memory first, however long a file with holes may be.
#[test]
fn a_block_that_is_longer_than_any_of_its_table_is_not_read() {
    let disk = Disk::new();
    let entries = sample(100);
    let meta = disk.write(5, &entries, &options());
    change_properties(&disk, &meta, |properties| properties.block_bytes_max -= 1);
    let found = read_open(&disk.open(&meta), &entries);
    assert!(found.iter().any(Result::is_err), "the longest block was read");
    let mut cursor = disk.open(&meta).cursor(ReadMode::Scan);
    let mut outcome = cursor.first();
    while outcome.is_ok() && cursor.entry().is_some() {
        outcome = cursor.next();
    }
    assert!(outcome.unwrap_err().to_string().contains("expected a place of at most"));
}

#[test]
fn a_table_with_range_tombstones_beyond_its_keys_does_not_open() {
    type Change = fn(&mut TableMeta);
    let cases: [(Option<&str>, Change); 3] = [
        (Some("x"), |meta| meta.largest = b"w"[..].into()),
        (Some("x"), |meta| meta.smallest = b"c"[..].into()),
        (None, |meta| meta.unbounded = false),
    ];
    for (end, change) in cases {
        let disk = Disk::new();
        let mut writer = TableWriter::create(&disk.dir, 5, IoSource::Flush, &options()).unwrap();
        let end = end.map(|end| end.as_bytes().into());
        writer.add_range_tombstone(&RangeTombstone { start: b"b"[..].into(), end, seqno: 3 }).unwrap();
        let mut meta = writer.finish().unwrap();
        disk.open(&meta);
        change_properties(&disk, &meta, |properties| change(&mut properties.meta));
        change(&mut meta);
        let error = Table::open(&disk.dir, Arc::new(meta), &disk.context).unwrap_err();
        assert!(error.is_corruption() && error.to_string().contains("within the keys of the table"), "{error}");
    }
}

/// Of one key, whose blocks have the same fences.
#[test]
fn a_compaction_meets_an_error_where_a_block_begins_with_a_version_newer_than_the_last() {
    let disk = Disk::new();
    let entry = |seqno: u64| OwnedEntry { key: b"key".into(), seqno, kind: Kind::Inline, payload: vec![7; 50] };
    let options = TableOptions { block_bytes: 1, filter_bits_per_key: 0, ..options() };
    let meta = disk.write(5, &[entry(9), entry(8), entry(7)], &options);
    let walk = || {
        let mut cursor = disk.open(&meta).cursor(ReadMode::Compaction);
        let mut outcome = cursor.first();
        let mut seqnos = Vec::new();
        while let (Ok(()), Some(entry)) = (&outcome, cursor.entry()) {
            seqnos.push(entry.seqno);
            outcome = cursor.next();
        }
        (seqnos, outcome.is_err_and(|error| error.is_corruption()))
    };
    assert_eq!(walk(), (vec![9, 8, 7], false));
    // Of the second block, the low byte of the number.
    disk.change_block(&meta, 1, |block| {
        let key = block.windows(3).position(|window| window == b"key").unwrap();
        assert_eq!(block[key + 4], 8);
        block[key + 4] = 10;
    });
    assert_eq!(walk(), (vec![9], true));
}
