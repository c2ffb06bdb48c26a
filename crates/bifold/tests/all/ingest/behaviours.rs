//! What users rely on, one behaviour a test.

use std::time::Duration;

use bifold::{Access, Backup, Db, Error, IfMissing, KeyspaceOptions, Options, PlacementKind, TimeToLive};

use super::{Model, check, expected, key, value};
use crate::{bed::Bed, support::entries};

/// Ingests these keys with the values of a round. Returns the level.
fn ingest(bed: &Bed, keys: impl Iterator<Item = u32>, round: u32, model: &mut Model) -> u8 {
    let mut ingest = bed.ks().ingest().unwrap();
    for n in keys {
        ingest.put(key(n), value(n, round)).unwrap();
        model.insert(key(n), value(n, round));
    }
    ingest.finish().unwrap().level
}

/// What there is before an ingest of some keys from 10 to 48.
type Before = fn(&Bed, &mut Model);

fn put(bed: &Bed, model: &mut Model, keys: impl Iterator<Item = u32>, round: u32) {
    for n in keys {
        bed.ks().put(key(n), value(n, round)).unwrap();
        model.insert(key(n), value(n, round));
    }
}

/// Each with whether nothing is stored in the range.
fn cases() -> [(&'static str, Before, bool); 8] {
    [
        ("nothing", |_, _| {}, true),
        ("in the memtable", |bed, model| put(bed, model, 30..31, 0), false),
        (
            "in level 0",
            |bed, model| {
                put(bed, model, 30..31, 0);
                bed.db().flush().unwrap();
            },
            false,
        ),
        (
            "at the bottom",
            |bed, model| {
                put(bed, model, 0..60, 0);
                bed.db().compact().unwrap();
            },
            false,
        ),
        (
            "a range is deleted in the memtable",
            |bed, _| {
                put(bed, &mut Model::new(), 30..31, 0);
                bed.db().compact().unwrap();
                bed.ks().delete_range(key(0)..key(60)).unwrap();
            },
            false,
        ),
        (
            "a key is deleted in level 0",
            |bed, _| {
                put(bed, &mut Model::new(), 30..31, 0);
                bed.db().compact().unwrap();
                bed.ks().delete(key(30)).unwrap();
                bed.db().flush().unwrap();
            },
            false,
        ),
        (
            "on both sides",
            |bed, model| {
                put(bed, model, [1, 90].into_iter(), 0);
                bed.db().flush().unwrap();
                bed.db().compact().unwrap();
            },
            true,
        ),
        ("beside it in the memtable", |bed, model| put(bed, model, [1, 90].into_iter(), 0), true),
    ]
}

/// What RocksDB documents of files that are ingested into ranges that overlap what is there: they are newer than all of
/// it, wherever that is, and older than what is written later; a range without anything is filled at the bottom.
#[test]
fn an_ingest_is_newer_than_all_before_it_and_older_than_all_after_it() {
    for placement in PlacementKind::ALL {
        for (name, before, is_empty) in cases() {
            let what = format!("{placement:?}, {name}");
            let mut bed = Bed::new(placement);
            let mut model = Model::new();
            before(&bed, &mut model);
            let older = (bed.db().snapshot(), model.clone());
            let level = ingest(&bed, (10..50).step_by(2), 1, &mut model);
            assert_eq!(level > 0, is_empty, "{what}: level {level}");
            check(bed.ks(), &model, &what);
            assert_eq!(entries(older.0.iter(bed.ks())), expected(&older.1), "{what}: an older snapshot");
            let newer = (bed.db().snapshot(), model.clone());
            put(&bed, &mut model, 20..25, 2);
            bed.ks().delete_range(key(40)..key(45)).unwrap();
            (40..45).for_each(|n| drop(model.remove(&key(n))));
            check(bed.ks(), &model, &format!("{what}, then written"));
            bed.db().flush().unwrap();
            bed.db().compact().unwrap();
            bed.db().collect_garbage().unwrap();
            check(bed.ks(), &model, &format!("{what}, then merged"));
            assert_eq!(entries(newer.0.iter(bed.ks())), expected(&newer.1), "{what}: a newer snapshot");
            drop((older, newer));
            bed.reopen();
            check(bed.ks(), &model, &format!("{what}, then opened"));
        }
    }
}

#[test]
fn keys_that_do_not_ascend_are_refused_and_the_ingest_goes_on() {
    let bed = Bed::new(PlacementKind::Inline);
    let mut ingest = bed.ks().ingest().unwrap();
    ingest.put("b", "1").unwrap();
    for wrong in ["b", "a"] {
        let message = ingest.put(wrong, "2").unwrap_err().to_string();
        assert!(message.contains(&format!("`{wrong}` comes after `b`")), "{message}");
    }
    assert!(matches!(ingest.put("", "2"), Err(Error::InvalidArgument { .. })));
    ingest.put("c", "3").unwrap();
    assert_eq!(ingest.finish().unwrap().entries, 2);
    assert_eq!(entries(bed.ks().iter()), [(b"b".to_vec(), b"1".to_vec()), (b"c".to_vec(), b"3".to_vec())]);
}

#[test]
fn what_is_dropped_leaves_nothing() {
    for placement in PlacementKind::ALL {
        let mut bed = Bed::new(placement);
        bed.ks().put("key", value(59, 1)).unwrap();
        bed.db().flush().unwrap();
        let before = bed.data_files();
        let mut dropped = bed.ks().ingest().unwrap();
        (0..500).for_each(|n| dropped.put(key(n), value(n, 1)).unwrap());
        assert!(bed.data_files().len() > before.len(), "{placement:?}");
        drop(dropped);
        assert_eq!(bed.data_files(), before, "{placement:?}");
        assert_eq!(bed.ks().iter().count(), 1);
        // The process ends while one is open.
        let mut killed = bed.ks().ingest().unwrap();
        (0..500).for_each(|n| killed.put(key(n), value(n, 1)).unwrap());
        bed.fs = bed.fs.fork();
        std::mem::forget(killed);
        bed.db = None;
        bed.reopen();
        assert_eq!(bed.data_files(), before, "{placement:?}: the opening deletes it");
        assert_eq!(bed.ks().iter().count(), 1);
    }
}

/// In `hashkv` values that stay inline leave notes, which nobody reads but GC.
#[test]
fn what_stays_inline_leaves_no_live_values() {
    for placement in PlacementKind::ALL {
        let mut bed = Bed::new(placement);
        let mut ingest = bed.ks().ingest().unwrap();
        (0..1000).for_each(|n| ingest.put(key(n), b"short").unwrap());
        ingest.finish().unwrap();
        for what in ["at once", "after an opening"] {
            let live = bed.db().stats().space.live_values_estimate;
            assert!(live < 1000, "{placement:?}, {what}: {live} bytes");
            bed.reopen();
        }
    }
}

#[test]
fn one_ingest_is_open_at_a_time() {
    let bed = Bed::new(PlacementKind::Inline);
    let first = bed.ks().ingest().unwrap();
    let message = bed.ks().ingest().unwrap_err().to_string();
    assert!(message.contains("one into keyspace `default` is open"), "{message}");
    drop(first);
    assert_eq!(bed.ks().ingest().unwrap().finish().unwrap(), bifold::IngestReport::default());
    bed.ks().ingest().unwrap().finish().unwrap();
}

#[test]
fn entries_expire() {
    for placement in PlacementKind::ALL {
        let mut bed = Bed::new(placement);
        let with_ttl = KeyspaceOptions { ttl: Some(Duration::from_secs(10)), ..bed.ks().options() };
        bed.ks().set_options(with_ttl).unwrap();
        bed.ks().put("b", [1; 300]).unwrap();
        let mut ingest = bed.ks().ingest().unwrap();
        ingest.put("a", [1; 300]).unwrap();
        ingest.put_with_ttl("b", [2; 300], Duration::from_secs(20)).unwrap();
        ingest.put_until("c", [3; 300], None).unwrap();
        ingest.finish().unwrap();
        bed.reopen();
        let left = |key: &str| bed.ks().ttl(key).unwrap();
        assert_eq!(left("a"), TimeToLive::Left(Duration::from_secs(10)), "{placement:?}");
        assert_eq!(left("b"), TimeToLive::Left(Duration::from_secs(20)), "{placement:?}");
        assert_eq!(left("c"), TimeToLive::Forever, "{placement:?}");
        bed.clock.set_unix(Duration::from_secs(1_000_020));
        bed.db().compact().unwrap();
        bed.db().collect_garbage().unwrap();
        assert_eq!(entries(bed.ks().iter()), [(b"c".to_vec(), vec![3; 300])], "{placement:?}");
    }
}

#[test]
fn copies_and_readers_have_it() {
    for placement in PlacementKind::ALL {
        let bed = Bed::new(placement);
        let mut model = Model::new();
        bed.ks().put(key(3), value(3, 0)).unwrap();
        model.insert(key(3), value(3, 0));
        let follow = Options { access: Access::Follow, if_missing: IfMissing::Fail, ..bed.options.clone() };
        let mut reader = Db::open_in(bed.env(), "/db", follow.clone()).unwrap();
        check(reader.default_keyspace(), &model, "before");
        ingest(&bed, 0..150, 1, &mut model);
        bed.ks().put(key(7), value(7, 2)).unwrap();
        model.insert(key(7), value(7, 2));
        reader.refresh().unwrap();
        check(reader.default_keyspace(), &model, &format!("{placement:?}: a reader"));
        let later = Db::open_in(bed.env(), "/db", follow).unwrap();
        check(later.default_keyspace(), &model, &format!("{placement:?}: a later reader"));
        bed.db().checkpoint("/checkpoint").unwrap();
        bed.db().backup("/backups").unwrap();
        Backup::open_in(bed.env(), "/backups").unwrap().restore("/restored").unwrap();
        for copy in ["/checkpoint", "/restored"] {
            let db = Db::open_in(bed.env(), copy, bed.options.clone()).unwrap();
            check(db.default_keyspace(), &model, &format!("{placement:?}: {copy}"));
        }
    }
}

#[test]
fn a_dropped_keyspace_takes_nothing_in() {
    for placement in PlacementKind::ALL {
        let bed = Bed::new(placement);
        let other = bed.db().keyspace("other", bed.options.keyspace.clone()).unwrap();
        let mut ingest = other.ingest().unwrap();
        (0..500).for_each(|n| ingest.put(key(n), value(n, 1)).unwrap());
        bed.db().drop_keyspace("other").unwrap();
        assert!(matches!(ingest.finish(), Err(Error::Closed { .. })), "{placement:?}");
        bed.ks().put("key", "value").unwrap();
        drop(other);
        assert_eq!(bed.data_files(), [""; 0], "{placement:?}");
    }
}

#[test]
fn each_value_is_written_once() {
    for placement in PlacementKind::ALL {
        let bed = Bed::new(placement);
        let before = bed.db().stats();
        let mut model = Model::new();
        ingest(&bed, 0..5000, 1, &mut model);
        let after = bed.db().stats();
        let user: usize = model.iter().map(|(key, value)| key.len() + value.len()).sum();
        let bytes = |stats: &bifold::Stats| stats.io.iter().map(|of| of.bytes_written).sum::<u64>();
        let written = bytes(&after) - bytes(&before);
        assert!(written < user as u64 * 3 / 2, "{placement:?}: {written} for {user}");
    }
}
