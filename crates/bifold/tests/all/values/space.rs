//! The space of separated values: targets, what GC leaves alone, what snapshots pin.

use bifold::{Db, PlacementKind};

use super::{TIGHT, check_all, in_memtable, key, separated, update_all, value};
use crate::support::TempDir;

/// With merges, which report what they drop, and without.
#[test]
fn space_keeps_to_its_target_whether_or_not_anything_is_merged() {
    for (placement, options) in TIGHT.into_iter().flat_map(|p| [(p, separated(p)), (p, in_memtable(separated(p)))]) {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), options).unwrap();
        let live: u64 = (0..1000).map(|n| value(n, 0).len() as u64 + 60).sum();
        for round in 0..8 {
            update_all(&db, 1000, round);
            db.wait_idle().unwrap();
            let held = db.stats().space.values_bytes;
            assert!(held < live * 8 / 5, "{placement:?}, round {round}: {held} bytes of files for {live} live ones");
        }
        check_all(&db, 1000, 7);
    }
}

/// A few keys get most updates, so that the oldest values are mostly live.
#[test]
fn space_keeps_to_its_target_under_skewed_updates() {
    for placement in TIGHT {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), in_memtable(separated(placement))).unwrap();
        update_all(&db, 1000, 0);
        let live: u64 = (0..1000).map(|n| value(n, 0).len() as u64 + 60).sum();
        let mut random: u64 = 1;
        for round in 1..=8 {
            for _ in 0..1000 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let uniform = (random >> 32) as f64 / f64::from(u32::MAX);
                let n = (1000.0 * uniform.powi(6)) as u32 % 1000;
                db.put(key(n), value(n, round)).unwrap();
            }
            db.wait_idle().unwrap();
            let held = db.stats().space.values_bytes;
            assert!(held < live * 8 / 5, "{placement:?}, round {round}: {held} bytes of files for {live} live ones");
        }
    }
}

/// A GC run has all files open that it writes, and rows that lead there number them by 16 bits.
#[test]
fn gc_of_long_files_of_streams_writes_few_files_when_file_bytes_is_lowered() {
    let dir = TempDir::new();
    let mut options = in_memtable(separated(PlacementKind::Streams));
    options.keyspace.values.file_bytes = 64 << 10;
    let db = Db::open_with(dir.join("db"), options.clone()).unwrap();
    update_all(&db, 1000, 0);
    options.keyspace.values.file_bytes = 1 << 10;
    db.default_keyspace().set_options(options.keyspace).unwrap();
    db.collect_garbage().unwrap();
    let (files, moved) = (db.stats().space.value_files, db.stats().gc.bytes);
    assert!(moved > 128 << 10 && files < 30, "{moved} bytes have moved, and there are {files} files");
    check_all(&db, 1000, 0);
}

#[test]
fn values_written_once_are_looked_at_rarely_and_never_copied() {
    const KEYS: u32 = 20_000;
    for options in [separated(PlacementKind::WiscKey), in_memtable(separated(PlacementKind::WiscKey))] {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), options.clone()).unwrap();
        update_all(&db, KEYS, 0);
        db.wait_idle().unwrap();
        let gc = db.stats().gc;
        assert_eq!((gc.jobs, gc.bytes), (0, 0), "{gc:?}");
        assert!(0 < gc.index_lookups && gc.index_lookups < u64::from(KEYS) / 2, "{gc:?}");
        // And when nothing is written, not at all.
        db.flush().unwrap();
        db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
        db.wait_idle().unwrap();
        assert_eq!(db.stats().gc.index_lookups, gc.index_lookups);
        db.close().unwrap();
        let db = Db::open_with(dir.join("db"), options).unwrap();
        db.wait_idle().unwrap();
        let gc = db.stats().gc;
        assert!(gc.jobs == 0 && gc.index_lookups <= 512, "{gc:?}");
    }
}

#[test]
fn deleted_values_are_collected_whether_or_not_anything_is_merged() {
    for placement in TIGHT {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), in_memtable(separated(placement))).unwrap();
        update_all(&db, 4000, 0);
        if placement == PlacementKind::DiffKv {
            // Otherwise most values are still in the memtable.
            db.flush().unwrap();
        }
        db.wait_idle().unwrap();
        let before = db.stats().space.values_bytes;
        (0..3200).for_each(|n| db.delete(key(n)).unwrap());
        db.wait_idle().unwrap();
        let after = db.stats().space.values_bytes;
        assert!(after * 2 < before, "{placement:?}: {before} bytes became {after}");
        if matches!(placement, PlacementKind::NovKv | PlacementKind::DiffKv) {
            // Nobody knows how much a range delete overwrites before a merge has found it.
            continue;
        }
        db.delete_range::<&str>(..).unwrap();
        db.wait_idle().unwrap();
        let last = db.stats().space.values_bytes;
        assert!(last * 3 < before, "{placement:?}: {before} bytes became {last}");
    }
}

#[test]
fn space_that_a_snapshot_pins_is_shown_with_its_reason_until_it_is_free() {
    // If values move without writes, no drained file is kept: snapshots find the values at their new places.
    for placement in [PlacementKind::WiscKey, PlacementKind::HashKv] {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), separated(placement)).unwrap();
        update_all(&db, 500, 0);
        let older = db.snapshot();
        update_all(&db, 500, 1);
        let newer = db.snapshot();
        update_all(&db, 500, 2);
        db.collect_garbage().unwrap();
        let space = db.stats().space;
        let by = space.pinned_by.clone().unwrap();
        assert_eq!((by.seqno, by.kind), (older.seqno(), "snapshot"), "{placement:?}: {space:?}");
        assert!(space.pinned_bytes > 0 && space.pinned_bytes + space.awaiting_sync_bytes == space.drained_bytes);
        assert_eq!(space.reclaimable_bytes_estimate, space.awaiting_sync_bytes, "{placement:?}: {space:?}");

        drop(older);
        db.collect_garbage().unwrap();
        let by = db.stats().space.pinned_by.map(|by| by.seqno);
        assert_eq!(by, Some(newer.seqno()), "{placement:?}");
        drop(newer);
        // Nothing reads them any more, but they exist until something syncs.
        let space = db.stats().space;
        assert_eq!((space.pinned_bytes, space.pinned_by.is_none()), (0, true), "{placement:?}: {space:?}");
        assert!(
            space.awaiting_sync_bytes == space.drained_bytes && space.drained_bytes > 0,
            "{placement:?}: {space:?}"
        );
        assert!(space.reclaimable_bytes_estimate >= space.drained_bytes, "{placement:?}: {space:?}");

        db.collect_garbage().unwrap();
        let space = db.stats().space;
        assert_eq!((space.drained_bytes, space.awaiting_sync_bytes), (0, 0), "{placement:?}: {space:?}");
        check_all(&db, 500, 2);
    }
}

/// Groups that have split share files. The dead bytes of a file are what all its groups together know to be dead.
#[test]
fn known_garbage_of_groups_that_share_files_survives_reopening() {
    let dir = TempDir::new();
    let mut options = separated(PlacementKind::HashKv);
    options.keyspace.values.space_target = 100.0;
    let mut db = Db::open_with(dir.join("db"), options.clone()).unwrap();
    (0..3).for_each(|round| update_all(&db, 1000, round));
    db.flush().unwrap();
    let dead = db.stats().space.dead_values_estimate;
    assert!(dead > 0 && db.stats().gc.jobs == 0);
    for _ in 0..3 {
        db.close().unwrap();
        db = Db::open_with(dir.join("db"), options.clone()).unwrap();
        let now = db.stats().space.dead_values_estimate;
        assert!(now.abs_diff(dead) <= dead / 50, "{dead} bytes were known to be dead, now {now}");
    }
}
