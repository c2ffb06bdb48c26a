//! The statistics are true.

use std::ops::ControlFlow;

use bifold::{
    Db, KeyspaceOptions, Options, PlacementKind,
    options::{HashKv, Values},
};

use crate::support::{TempDir, fill, tiny, tiny_db};

#[test]
fn bytes_by_source_add_up_to_the_files() {
    let (dir, db) = tiny_db();
    fill(db.default_keyspace(), 800, "r");
    db.flush().unwrap();
    // Until a sync the end of the log may be in the append region.
    db.sync().unwrap();
    let stats = db.stats();
    let written = |name: &str| stats.io.iter().find(|s| s.source == name).unwrap().bytes_written;
    assert!(written("log") >= stats.user_bytes_written);
    assert!(written("flush") > 0 && written("manifest") > 0);
    let all: u64 = stats.io.iter().map(|s| s.bytes_written).sum();
    assert!((stats.write_amp - all as f64 / stats.user_bytes_written as f64).abs() < 1e-9);
    let on_disk = |suffix: &str| -> u64 {
        let files = std::fs::read_dir(dir.join("db")).unwrap().map(|e| e.unwrap());
        files.filter(|e| e.file_name().to_str().unwrap().ends_with(suffix)).map(|e| e.metadata().unwrap().len()).sum()
    };
    assert_eq!(stats.space.tables_bytes, on_disk(".tbl"));
    // The marker of the sync is in the append region.
    let staged = stats.space.logs_bytes - on_disk(".log");
    assert!(staged < 40, "{staged} bytes of the log are in no file");
    assert_eq!(stats.space.manifest_bytes, on_disk("MANIFEST"));
    assert_eq!((stats.commits, stats.operations, stats.seqno), (800, 800, 800));
}

#[test]
fn the_parts_of_space_are_all_there_is_in_the_directory() {
    for placement in [PlacementKind::Inline, PlacementKind::WiscKey, PlacementKind::HashKv] {
        let values = Values {
            separate_from_bytes: Some(64),
            file_bytes: 16 << 10,
            hashkv: HashKv { group_bytes: 8 << 10, ..HashKv::default() },
            ..Values::default()
        };
        let options = Options { keyspace: KeyspaceOptions { placement, values, ..tiny().keyspace }, ..tiny() };
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), options).unwrap();
        (0..3).for_each(|round| fill(db.default_keyspace(), 800, &format!("{round}").repeat(50)));
        std::fs::write(dir.join("db").join("notes.txt"), "of others").unwrap();
        // So that its tables still exist after the compaction.
        let iterator = db.iter();
        db.compact().unwrap();
        db.sync().unwrap();
        let space = db.stats().space;
        let files = || std::fs::read_dir(dir.join("db")).unwrap().map(|entry| entry.unwrap());
        let is_log = |entry: &std::fs::DirEntry| entry.path().extension().is_some_and(|end| end == "log");
        let logs: u64 = files().filter(is_log).map(|entry| entry.metadata().unwrap().len()).sum();
        // What follows a sync in the log, the marker of that sync, is in the append region.
        let staged = space.logs_bytes - logs;
        assert!(staged < 40, "{staged} bytes of the log are in no file");
        let on_disk: u64 = files().map(|entry| entry.metadata().unwrap().len()).sum::<u64>() + staged;
        let parts = [space.tables_bytes, space.values_bytes, space.logs_bytes, space.manifest_bytes];
        let parts = parts.iter().sum::<u64>() + space.appends_bytes + space.reserve_bytes + space.other_bytes;
        assert_eq!((space.dir_bytes, parts), (on_disk, on_disk), "{placement:?}: {space:?}");
        assert_eq!(space.appends_bytes > 0, cfg!(target_os = "linux"), "{space:?}");
        assert!(space.other_bytes > 9, "the tables that the iterator reads: {space:?}");
        let values = space.live_values_estimate + space.dead_values_estimate + space.drained_bytes;
        assert_eq!(values, space.values_bytes, "{placement:?}: {space:?}");
        drop(iterator);
        assert_eq!(db.stats().space.other_bytes, 9, "{placement:?}");
    }
}

/// Each note of a small value used to count as the death of a large one, so GC ran without anything to free.
#[test]
fn inline_values_change_nothing_in_groups_that_never_had_the_keys() {
    let values = Values {
        separate_from_bytes: Some(64),
        hashkv: HashKv { group_bytes: 64 << 10, ..HashKv::default() },
        ..Values::default()
    };
    let keyspace = KeyspaceOptions { placement: PlacementKind::HashKv, values, ..tiny().keyspace };
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), Options { keyspace, ..tiny() }).unwrap();
    (0..500).for_each(|n| db.put(format!("large{n}"), [7; 500]).unwrap());
    let before = db.stats().space;
    for round in 0..4 {
        (0..500).for_each(|n| db.put(format!("small{n}"), [round; 10]).unwrap());
    }
    (0..500).for_each(|n| db.delete(format!("small{n}")).unwrap());
    let after = db.stats().space;
    // One key in a hundred is taken for one that the group may have.
    assert!(after.values_bytes - before.values_bytes < before.values_bytes / 50, "{before:?} {after:?}");
    assert!(after.live_values_estimate > before.live_values_estimate / 20 * 19, "{before:?} {after:?}");
}

#[test]
fn overwritten_data_shows_in_space_until_it_is_compacted() {
    let (_dir, db) = tiny_db();
    fill(db.default_keyspace(), 500, "first");
    fill(db.default_keyspace(), 500, "again");
    db.compact().unwrap();
    let stats = db.stats();
    assert_eq!(stats.space.dead_bytes_estimate, 0);
    assert!(stats.space_amp < 1.2, "{}", stats.space_amp);
    let entries: u64 = stats.keyspaces[0].levels.iter().map(|l| l.entries).sum();
    assert_eq!(entries, 500);
}

#[test]
fn scans_count_the_bytes_of_the_values_that_they_read() {
    for placement in [PlacementKind::Inline, PlacementKind::WiscKey, PlacementKind::HashKv] {
        let values = Values { separate_from_bytes: Some(64), ..Values::default() };
        let keyspace = KeyspaceOptions { placement, values, ..tiny().keyspace };
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), Options { keyspace, ..tiny() }).unwrap();
        (0..100).for_each(|n| db.put(format!("key{n:03}"), [7; 1000]).unwrap());
        let (keys, all) = (100 * 6, 100 * 6 + 100 * 1000);
        let read = |scan: &dyn Fn()| {
            let before = db.stats();
            scan();
            let after = db.stats();
            assert_eq!(after.scanned_entries - before.scanned_entries, 100, "{placement:?}");
            after.user_bytes_read - before.user_bytes_read
        };
        for _flushed in 0..2 {
            let iterate = || db.iter().for_each(|pair| assert_eq!(pair.unwrap().value().unwrap().len(), 1000));
            assert_eq!(read(&iterate), all, "{placement:?}");
            let visit = || db.iter().visit(|_, _| ControlFlow::Continue(())).unwrap();
            assert_eq!(read(&visit), all, "{placement:?}");
            if placement != PlacementKind::Inline {
                assert_eq!(read(&|| assert_eq!(db.iter().count(), 100)), keys, "{placement:?}: nobody asks for values");
            }
            db.flush().unwrap();
        }
    }
}

#[test]
fn the_keys_of_a_multi_get_are_gets() {
    let (_dir, db) = tiny_db();
    (0..10).for_each(|n| db.put(format!("key{n}"), vec![7u8; 100 + n]).unwrap());
    let keys: Vec<String> = (0..11).map(|n| format!("key{n}")).collect();
    for _flushed in 0..2 {
        let before = db.stats();
        let found = db.default_keyspace().multi_get(&keys).unwrap();
        assert_eq!(found.iter().flatten().count(), 10);
        let after = db.stats();
        assert_eq!((after.gets - before.gets, after.get_hits - before.get_hits), (11, 10));
        assert_eq!(after.user_bytes_read - before.user_bytes_read, (100..110).sum::<u64>());
        db.flush().unwrap();
    }
}

#[test]
fn asking_whether_a_key_exists_reads_no_value() {
    let (_dir, db) = tiny_db();
    db.put("there", "value").unwrap();
    db.put("deleted", "value").unwrap();
    let snapshot = db.snapshot();
    for _flushed in 0..2 {
        let before = db.stats();
        db.delete("deleted").unwrap();
        db.delete_range("m".."n").unwrap();
        assert!(db.contains_key("there").unwrap() && !db.contains_key("deleted").unwrap());
        assert!(!db.contains_key("never").unwrap() && snapshot.contains_key(db.default_keyspace(), "deleted").unwrap());
        let after = db.stats();
        assert_eq!((after.gets - before.gets, after.get_hits - before.get_hits), (4, 2));
        assert_eq!(after.user_bytes_read, before.user_bytes_read);
        db.flush().unwrap();
    }
    db.delete_range("t".."u").unwrap();
    assert!(!db.contains_key("there").unwrap(), "a range delete in the memtable covers a table's entries");
}
