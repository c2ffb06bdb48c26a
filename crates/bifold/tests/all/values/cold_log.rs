//! The cold log of `hashkv`: who asks the index, which values are reported dead, and changing from one way to
//! another.

use bifold::{
    Db, Env, Options, PlacementKind,
    options::Cold,
    salvage::{Salvage, SalvageOptions},
};

use super::{check_all, key, separated, update_all, value};
use crate::support::{TempDir, entries, tiny};

fn with(cold: Cold) -> Options {
    let mut options = separated(PlacementKind::HashKv);
    options.keyspace.values.hashkv.cold = cold;
    options
}

/// The same, but GC runs only when a test asks for it.
fn by_hand(cold: Cold) -> Options {
    let mut options = with(cold);
    options.keyspace.values.space_target = 100.0;
    options
}

#[test]
fn groups_never_ask_the_index_and_the_log_asks_for_each_of_its_values() {
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), by_hand(Cold::Log)).unwrap();
    update_all(&db, 1000, 0);
    db.collect_garbage().unwrap();
    let gc = db.stats().gc;
    assert_eq!(gc.index_lookups, 0, "GC took only groups: {gc:?}");
    let of_log = |db: &Db| db.explain_garbage().into_iter().filter(|unit| unit.unit.contains("cold log")).count();
    assert!(of_log(&db) > 10, "all values were alone in their groups, so all are in the log");
    update_all(&db, 200, 1);
    db.collect_garbage().unwrap();
    let lookups = db.stats().gc.index_lookups;
    assert_eq!(lookups, 1000 + 800, "each value of the log, and once more what still lives");
    (0..1000).for_each(|n| {
        let round = u32::from(n < 200);
        assert_eq!(db.get(format!("key{n:05}")).unwrap().as_deref(), Some(&value(n, round)[..]));
    });
}

/// Without the tags nothing would report the dead values in the log's files, and GC would never take them. The values
/// are so short here that tags take a fifth of them: hence the target.
#[test]
fn hashkv_keeps_its_space_target_with_a_cold_log() {
    let dir = TempDir::new();
    let mut options = with(Cold::Log);
    options.keyspace.values.space_target = 2.0;
    let db = Db::open_with(dir.join("db"), options).unwrap();
    let live: u64 = (0..1000).map(|n| value(n, 0).len() as u64 + 60).sum();
    for round in 0..8 {
        update_all(&db, 1000, round);
        db.wait_idle().unwrap();
        let held = db.stats().space.values_bytes;
        assert!(held < live * 21 / 10, "round {round}: {held} bytes of files for {live} live ones");
    }
    check_all(&db, 1000, 7);
    assert!(db.stats().gc.index_lookups > 0, "GC did not take the log");
}

/// As in the paper: the log keeps its garbage. A limit takes effect when it is set.
#[test]
fn an_unlimited_cold_log_is_outside_the_target_until_it_is_limited() {
    let dir = TempDir::new();
    let options = |cold| {
        let mut options = with(cold);
        options.keyspace.values.space_target = 1.3;
        options
    };
    let held = |db: &Db| {
        db.wait_idle().unwrap();
        db.stats().space.values_bytes
    };
    let db = Db::open_with(dir.join("db"), options(Cold::UnlimitedLog)).unwrap();
    update_all(&db, 1000, 0);
    db.collect_garbage().unwrap();
    // Every second value of each file of the log dies.
    (0..1000).step_by(2).for_each(|n| db.put(key(n), value(n, 1)).unwrap());
    let unlimited = held(&db);
    db.close().unwrap();
    let db = Db::open_with(dir.join("db"), options(Cold::Log)).unwrap();
    db.put(key(0), value(0, 1)).unwrap();
    let limited = held(&db);
    (0..1000).for_each(|n| {
        let round = u32::from(n % 2 == 0);
        assert_eq!(db.get(key(n)).unwrap().as_deref(), Some(&value(n, round)[..]), "key {n}");
    });
    assert!(limited < unlimited * 9 / 10, "{limited} bytes with a limit, {unlimited} without");
}

#[test]
fn dead_values_in_the_log_are_known_at_once() {
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), by_hand(Cold::Log)).unwrap();
    let live: u64 = (0..1000).map(|n| value(n, 0).len() as u64 + 40).sum();
    let check = |db: &Db| {
        let found = db.stats().space.live_values_estimate;
        assert!(found > live * 9 / 10 && found < live * 11 / 10, "{found} bytes are thought live of {live}");
    };
    update_all(&db, 1000, 0);
    db.collect_garbage().unwrap();
    check(&db);
    update_all(&db, 200, 1);
    check(&db);
    db.collect_garbage().unwrap();
    check(&db);
}

/// After a start the groups know no tags, so nothing else would ask for GC of them.
#[test]
fn a_range_delete_after_an_opening_empties_the_log() {
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), by_hand(Cold::Log)).unwrap();
    update_all(&db, 1000, 0);
    db.collect_garbage().unwrap();
    db.close().unwrap();
    let db = Db::open_with(dir.join("db"), with(Cold::Log)).unwrap();
    let before = db.stats().space.values_bytes;
    db.default_keyspace().delete_range(key(0)..key(1000)).unwrap();
    db.default_keyspace().compact_range::<&str>(..).unwrap();
    db.wait_idle().unwrap();
    let after = db.stats().space.values_bytes;
    assert!(after < before / 2, "{after} bytes of {before} are left");
}

#[test]
fn a_keyspace_can_change_where_its_cold_values_go_each_time_it_is_opened() {
    let dir = TempDir::new();
    let ways = [
        Cold::Segments,
        Cold::Log,
        Cold::UnlimitedLog,
        Cold::Off,
        Cold::Log,
        Cold::Segments,
        Cold::Off,
        Cold::Segments,
        Cold::Log,
    ];
    for (round, cold) in (0..).zip(ways) {
        let db = Db::open_with(dir.join("db"), with(cold)).unwrap();
        if round > 0 {
            check_all(&db, 600, round - 1);
        }
        update_all(&db, 600, round);
        for n in 0..3 {
            (0..n * 50).for_each(|key| db.put(format!("key{key:05}"), value(key, round)).unwrap());
            db.collect_garbage().unwrap();
        }
        check_all(&db, 600, round);
        db.close().unwrap();
        assert_eq!(bifold::verify(dir.join("db")).unwrap().problems.len(), 0, "{cold:?}");
    }
}

#[test]
fn the_value_files_of_a_cold_log_can_be_salvaged() {
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), with(Cold::Log)).unwrap();
    update_all(&db, 500, 0);
    db.collect_garbage().unwrap();
    update_all(&db, 100, 1);
    db.collect_garbage().unwrap();
    update_all(&db, 50, 2);
    let before = entries(db.iter());
    db.close().unwrap();
    let files = std::fs::read_dir(dir.join("db")).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "val")).collect();
    let options = SalvageOptions { names: [(2, "default".to_owned())].into(), ..SalvageOptions::default() };
    let restored = Db::open_with(dir.join("restored"), tiny()).unwrap();
    let report = Salvage::open(&Env::system(), &files, &options).unwrap().restore(&restored, |_| ()).unwrap();
    assert!(report.is_sound() && report.files.iter().any(|file| file.tags > 0), "{report:?}");
    assert!(entries(restored.iter()) == before);
}
