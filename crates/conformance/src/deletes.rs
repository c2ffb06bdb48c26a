//! What is deleted and must stay so, however values move meanwhile.

use std::{
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use bifold::{
    Compaction, Db, Workers,
    options::{Leveled, Tiered, TwoLayer},
};
use bifold_format::value::ValueKind;
use bifold_io::memory::MemoryFs;
use bifold_sim::{
    env,
    history::{KeyNo, Op, Span, key_bytes},
    judge,
    model::Change,
    random::Random,
};

use crate::{
    Case,
    meanwhile::{Act, Acted, Ends, at_change, at_every_change, at_every_change_of_gc, delete, nothing, put},
    support::{Bed, EVERYTHING, Prepared, StopOnDrop, contents, spec, threaded, walk_values},
};

fn prepared(case: &Case) -> Prepared {
    let mut bed = Bed::new(case);
    bed.fill(0..20);
    bed.step(&Op::Flush);
    bed.cool();
    bed.fill(10..16);
    bed.close()
}

fn merge_everything(db: &Db) -> bifold::Result<()> {
    db.flush()?;
    db.default_keyspace().compact_range::<&[u8]>(..)
}

/// Another thread deletes, overwrites and merges at every change of the files that GC makes.
pub fn a01_a_deleted_key_does_not_come_back_when_its_value_moves(case: &Case) {
    let prepared = prepared(case);
    let deletes: Vec<Change> = [2, 3, 12, 13].map(delete).into();
    let rewritten = vec![delete(4), put(4, spec(1, 90)), delete(4), put(5, spec(2, 70)), delete(5), delete(14)];
    let smaller = vec![put(6, spec(3, 9)), put(7, spec(4, 300)), delete(7), put(7, spec(5, 8)), put(11, spec(6, 99))];
    let acts = [
        Act { changes: deletes.clone(), then: nothing, ends: Ends::Meanwhile },
        Act { changes: deletes, then: merge_everything, ends: Ends::AnyTime },
        Act { changes: rewritten, then: merge_everything, ends: Ends::AnyTime },
        Act { changes: smaller, then: nothing, ends: Ends::Meanwhile },
    ];
    for act in &acts {
        let acted = at_every_change_of_gc(&prepared, act);
        assert!(acted > 10 || !case.separates(), "{acted} changes");
    }
}

/// Real threads: one deletes what it put, one runs GC, one merges; what was deleted is never seen again.
pub fn a01_deleted_keys_stay_deleted_while_threads_run_gc_and_merge(case: &Case) {
    let fs = MemoryFs::default();
    let mut options = case.options();
    options.workers = Workers::Threads(2);
    let db = Db::open_in(threaded(&fs), env::DIR, options.clone()).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let until_done = |act: fn(&Db) -> bifold::Result<()>| {
            let (db, done) = (&db, &done);
            scope.spawn(move || {
                while !done.load(Relaxed) {
                    act(db).unwrap();
                    // Without a pause moves alone would keep the flushes busy.
                    thread::sleep(Duration::from_millis(1));
                }
            });
        };
        until_done(Db::collect_garbage);
        until_done(merge_everything);
        let _ends_the_others = StopOnDrop(&done);
        for round in 0..30u32 {
            put_and_delete(&db, round);
        }
    });
    let left: Vec<_> = contents(&db)["default"].iter().map(|(key, _)| key.clone()).collect();
    assert!(left.is_empty(), "{left:?}");
    db.close().unwrap();
    let db = Db::open_in(threaded(&fs), env::DIR, options).unwrap();
    assert!(contents(&db)["default"].is_empty());
}

fn put_and_delete(db: &Db, round: u32) {
    let keys = || (0..40).map(key_bytes);
    for (key, tag) in keys().zip(round * 40..) {
        db.put(&key, spec(tag, 60 + tag % 90).bytes()).unwrap();
    }
    for (key, tag) in keys().zip(round * 40..) {
        let found = db.get(&key).unwrap();
        assert!(found.is_some_and(|value| spec(tag, 60 + tag % 90).is(&value)), "round {round}");
        db.delete(&key).unwrap();
        assert_eq!(db.get(&key).unwrap(), None, "round {round}");
    }
    assert_eq!(db.iter().count(), 0, "round {round}");
}

/// Deletes of every kind between puts, GC, flushes and merges of ranges, under every compaction.
pub fn a02_a_delete_is_never_below_what_it_deletes(case: &Case) {
    let compactions = [
        Compaction::Leveled(Leveled {
            size_ratio: 2,
            levels: 4,
            level0_runs: 1,
            base_bytes: 4096,
            ..Leveled::default()
        }),
        Compaction::Tiered(Tiered { size_ratio: 2, levels: 4, ..Tiered::default() }),
        Compaction::TwoLayer(TwoLayer { unsorted_bytes: 8192, scan_merge_runs: 2 }),
    ];
    for (seed, compaction) in (0..).zip(compactions) {
        let mut options = case.options();
        options.keyspace.compaction = compaction;
        let mut bed = Bed::with(case, options);
        let mut random = Random::new(seed, "a02");
        for _ in 0..1500 {
            let key = random.below(80) as KeyNo;
            match random.weighted(&[40, 30, 4, 4, 4, 2]) {
                0 => bed.put(key, random.within(0, 200) as u32),
                1 => bed.delete(key),
                2 => bed.delete_range(Span(Bound::Included(key), Bound::Excluded(key + 10))),
                3 => bed.step(&Op::CompactRange(0, Span(Bound::Included(key), Bound::Unbounded))),
                4 => bed.collect(),
                _ => bed.step(&Op::Flush),
            }
        }
        bed.check_thoroughly();
    }
}

/// A queue deleted one by one from the front, and single keys deleted from the middle of others. After a merge and GC
/// of everything, no range delete is kept, and nothing has come back.
pub fn a02_range_deletes_go_when_nothing_needs_them(case: &Case) {
    let fs = MemoryFs::default();
    let open = || Db::open_in(env::simulated(&fs), env::DIR, case.options()).unwrap();
    let key = |n: u32| format!("job{n:05}").into_bytes();
    let db = open();
    let put = |n| db.put(key(n), spec(n, 80).bytes()).unwrap();
    let end = |n| db.delete_range(key(n)..key(n + 1)).unwrap();
    (0..400).for_each(put);
    for n in 0..200 {
        end(n);
        put(400 + n);
    }
    let written = |fs: &MemoryFs| {
        let mut count = 0;
        let is_range = |kind| matches!(kind, ValueKind::DeleteRange | ValueKind::DeleteRangeUnbounded);
        walk_values(fs, |_, record| count += u32::from(is_range(record.kind)));
        count
    };
    let records = case.records_range_deletes();
    assert!(!records || written(&fs) == 200);
    let queue = db.stats().memory.values;
    (200..400).step_by(2).for_each(end);
    let several = db.stats().memory.values;
    assert!(!records || several > queue + 99 * 120, "{queue}, {several}: what is kept of them counts");
    db.compact().unwrap();
    // What the first GC run freed holds on to none any more; the second makes that so on disk.
    db.collect_garbage().unwrap();
    db.wait_idle().unwrap();
    let left = |db: &Db| {
        let found: Vec<_> = contents(db)["default"].iter().map(|(key, _)| key.to_vec()).collect();
        let expected: Vec<_> = (201..400).step_by(2).chain(400..600).map(key).collect();
        assert!(found == expected, "{} keys", found.len());
        let tombstones: u64 = db.stats().keyspaces[0].levels.iter().map(|level| level.tombstones).sum();
        (written(&fs), tombstones)
    };
    assert_eq!(left(&db), (0, 0));
    db.close().unwrap();
    let db = open();
    assert_eq!(left(&db), (0, 0));
    db.collect_garbage().unwrap();
    assert_eq!(left(&db), (0, 0));
}

/// Ranges without neighbours, among values that nobody changes: GC takes those because of the ranges that are kept.
pub fn a02_range_deletes_that_do_not_merge_have_a_bound_in_memory(case: &Case) {
    let fs = MemoryFs::default();
    let open = || Db::open_in(env::simulated(&fs), env::DIR, case.options()).unwrap();
    let db = open();
    (0..100).for_each(|n| db.put(key_bytes(n), spec(n.into(), 80).bytes()).unwrap());
    let mut most = 0;
    for n in 0..5000 {
        db.delete_range(format!("gone{n:05}")..format!("gone{n:05}x")).unwrap();
        if n % 100 == 0 {
            most = most.max(db.stats().memory.values);
        }
    }
    // All together are 700 KiB. A sixty-fourth of the memory limit and what comes between two looks are not half of
    // that.
    assert!(most < 300 << 10, "{most} bytes");
    let check = |db: &Db| {
        let is_there = |n| db.get(key_bytes(n)).unwrap().is_some_and(|value| spec(n.into(), 80).is(&value));
        assert!((0..100).all(is_there));
    };
    check(&db);
    db.close().unwrap();
    check(&open());
}

/// A drained file is in use again after a crash, if a snapshot has kept it, with all that GC left out because of a
/// range delete.
pub fn a02_a_range_delete_outlasts_the_files_that_a_crash_brings_back(case: &Case) {
    let mut bed = Bed::new(case);
    bed.fill(0..40);
    bed.step(&Op::Flush);
    bed.delete_range(EVERYTHING);
    bed.step(&Op::Snapshot(0));
    // So that what GC takes from now on, as soon as it is merged, is kept for the snapshot.
    bed.put(90, 100);
    bed.step(&Op::Compact);
    for n in 0..3 {
        bed.collect();
        bed.db().wait_idle().unwrap();
        // Each flush records files again, and checks what they needed.
        bed.put(91 + n, 100);
        bed.step(&Op::Sync);
        bed.step(&Op::Flush);
    }
    if case.records_range_deletes() {
        let mut values = 0;
        walk_values(&bed.fs, |_, record| values += u32::from(record.kind == ValueKind::Value));
        assert!(values >= 40, "{values}: the files are still there");
    }
    let killed = Arc::new(bed.fs.fork());
    let mut bed = Bed::on(case, &killed, bed.model().clone());
    bed.check();
    bed.check_thoroughly();
    bed.fill(20..30);
    bed.check_thoroughly();
}

/// A snapshot, then everything deleted at once, merges and GC again and again.
pub fn a05_a_snapshot_keeps_what_a_range_delete_took(case: &Case) {
    let mut bed = Bed::new(case);
    bed.fill(0..60);
    bed.step(&Op::Snapshot(0));
    bed.delete_range(Span(Bound::Included(10), Bound::Excluded(50)));
    bed.step(&Op::Snapshot(1));
    bed.delete_range(EVERYTHING);
    for _ in 0..3 {
        bed.step(&Op::Flush);
        bed.step(&Op::Compact);
        bed.collect();
        bed.step(&Op::ReadSnapshot(0, 0));
        bed.step(&Op::ReadSnapshot(1, 0));
        bed.check();
    }
    bed.step(&Op::DropSnapshot(0));
    bed.collect();
    bed.step(&Op::ReadSnapshot(1, 0));
    bed.step(&Op::DropSnapshot(1));
    bed.check_thoroughly();
    let space = bed.db().stats().space;
    assert_eq!(space.drained_bytes, 0, "{space:?}");
}

/// Another thread deletes ranges at every change of the files that GC makes.
pub fn a06_a_range_deleted_while_its_values_move_stays_deleted(case: &Case) {
    let prepared = prepared(case);
    let some = Span(Bound::Included(5), Bound::Excluded(15));
    let acts = [
        Act { changes: vec![Change::DeleteRange(0, some.bounds())], then: nothing, ends: Ends::Meanwhile },
        Act { changes: vec![Change::DeleteRange(0, EVERYTHING.bounds())], then: merge_everything, ends: Ends::AnyTime },
        Act {
            changes: vec![Change::DeleteRange(0, EVERYTHING.bounds()), put(7, spec(1, 99)), put(8, spec(2, 9))],
            then: nothing,
            ends: Ends::Meanwhile,
        },
    ];
    for act in &acts {
        let acted = at_every_change_of_gc(&prepared, act);
        assert!(acted > 10 || !case.separates(), "{acted} changes");
    }
}

/// Another thread drops a keyspace during GC. The files are deleted once, and the database opens again.
pub fn a06_a_keyspace_dropped_during_gc_leaves_nothing(case: &Case) {
    let mut bed = Bed::new(case);
    bed.step(&Op::Create(1));
    bed.fill(0..8);
    (0..16).for_each(|key| bed.put_in(1, key, 100));
    bed.cool();
    let prepared = bed.close();
    let changes = at_every_change(case, Ends::Meanwhile, |at| {
        let mut bed = prepared.open();
        let db = bed.db().clone();
        let other = db.clone();
        let drop_alpha = move || other.drop_keyspace("alpha").unwrap();
        let acted = at_change(&bed.fs, at, drop_alpha, || db.collect_garbage().unwrap());
        drop(db);
        if acted == Acted::Never {
            return acted;
        }
        assert!(bed.db().existing_keyspace("alpha").unwrap().is_none());
        let fs = bed.fs.clone();
        bed.driver.close().unwrap();
        let mut model = prepared.model.clone();
        model.begin_drop(1);
        model.acknowledge_change();
        let mut bed = Bed::on(case, &fs, model);
        judge::no_orphans(&fs, env::DIR.as_ref(), bed.db()).unwrap_or_else(|t| panic!("dropped at {at:?}: {t}"));
        bed.check_thoroughly();
        acted
    });
    assert!(changes > 9 || !case.separates(), "{changes} changes");
}

/// Cleared, filled, garbage-collected, reopened: several times.
pub fn a09_a_cleared_keyspace_can_be_used_again_after_reopening(case: &Case) {
    let mut bed = Bed::new(case);
    for round in 0..4 {
        bed.fill(0..50);
        bed.delete_range(EVERYTHING);
        bed.fill(round..round + 10);
        match round {
            0 => {}
            1 => bed.collect(),
            2 => bed.step(&Op::Compact),
            _ => bed.step(&Op::Abandon),
        }
        bed.reopen();
        bed.check();
    }
    bed.check_thoroughly();
}

/// Cleared, and closed without a flush, or left by a killed process: the log has both, and replay ends with nothing.
pub fn b02_no_replay_undoes_a_clear(case: &Case) {
    let mut bed = Bed::new(case);
    bed.fill(0..50);
    bed.step(&Op::Flush);
    bed.fill(20..70);
    bed.delete_range(EVERYTHING);
    let killed = Arc::new(bed.fs.fork());
    let model = bed.model().clone();
    bed.reopen();
    bed.check();
    assert!(contents(bed.db())["default"].is_empty());
    let mut bed = Bed::on(case, &killed, model);
    assert!(contents(bed.db())["default"].is_empty());
    bed.check_thoroughly();
}
