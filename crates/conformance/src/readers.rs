//! What readers that began before values moved see: snapshots, iterators, and readers without either.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use bifold::{Db, Snapshot, Workers};
use bifold_io::memory::MemoryFs;
use bifold_sim::{
    env,
    history::{KeyNo, Op, Way, key_bytes},
    model::Contents,
    value::Spec,
};

use crate::{
    Case, MIN_BYTES,
    support::{Bed, EVERYTHING, StopOnDrop, contents, epochs, records, spec, threaded},
};

/// No snapshot; one from before the first commit; one from after the last; several of the same moment; dropped in any
/// order.
pub fn a13_every_set_of_snapshots_keeps_what_it_sees_and_no_more(case: &Case) {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let mut bed = Bed::new(case);
        bed.step(&Op::Snapshot(0));
        bed.fill(0..40);
        bed.step(&Op::Snapshot(1));
        bed.step(&Op::Snapshot(2));
        bed.fill((0..40).step_by(2));
        (0..40).step_by(5).for_each(|key| bed.delete(key));
        for dropped in order {
            bed.collect();
            (0..3).for_each(|slot| bed.step(&Op::ReadSnapshot(slot, 0)));
            bed.step(&Op::Compact);
            (0..3).for_each(|slot| bed.step(&Op::ReadSnapshot(slot, 0)));
            bed.step(&Op::DropSnapshot(dropped));
        }
        bed.collect();
        assert_eq!(bed.db().stats().space.drained_bytes, 0, "no snapshot is open");
        bed.step(&Op::Snapshot(0));
        bed.collect();
        bed.step(&Op::ReadSnapshot(0, 0));
        bed.step(&Op::DropSnapshot(0));
        bed.check_thoroughly();
    }
}

/// Everything is deleted, with merges and GC until nothing is left, while iterators and snapshots are open.
pub fn a16_open_readers_outlast_gc_of_everything(case: &Case) {
    let mut bed = Bed::new(case);
    bed.fill(0..100);
    (0..3).for_each(|slot| bed.step(&Op::OpenIterator(slot, 0)));
    bed.step(&Op::Snapshot(0));
    let held = bed.db().stats().space.values_bytes;
    bed.delete_range(EVERYTHING);
    for _ in 0..4 {
        bed.step(&Op::Compact);
        bed.collect();
        bed.step(&Op::ReadSnapshot(0, 0));
    }
    let ways = [Way::Forward, Way::Backward, Way::BothEnds];
    (0..).zip(ways).for_each(|(slot, way)| bed.step(&Op::FinishIterator(slot, way)));
    bed.step(&Op::ReadSnapshot(0, 0));
    bed.step(&Op::DropSnapshot(0));
    bed.step(&Op::Compact);
    bed.collect();
    let left = bed.db().stats().space.values_bytes;
    assert!(left * 4 <= held, "{left} of {held} bytes are left of nothing");
    bed.check_thoroughly();
}

/// Two threads read keys that nobody changes, one by one and in scans, while their values move and their files are
/// deleted.
pub fn a21_readers_miss_no_value_while_its_file_goes(case: &Case) {
    let fs = MemoryFs::default();
    let db = Db::open_in(threaded(&fs), env::DIR, with_workers(case)).unwrap();
    for key in 0..100 {
        db.put(key_bytes(key), steady(key).bytes()).unwrap();
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends_the_others = StopOnDrop(&done);
        scope.spawn(|| {
            while !done.load(Relaxed) {
                (0..100).for_each(|key| assert_steady(key, db.get(key_bytes(key)).unwrap().as_deref()));
            }
        });
        scope.spawn(|| {
            while !done.load(Relaxed) {
                let found: BTreeMap<_, _> = db.iter().map(|pair| pair.unwrap().into_parts().unwrap()).collect();
                (0..100).for_each(|key| assert_steady(key, found.get(&key_bytes(key)).map(|value| &value[..])));
            }
        });
        for round in 0..40u16 {
            (200..240).for_each(|key| db.put(key_bytes(key), spec(u32::from(round), 150).bytes()).unwrap());
            db.collect_garbage().unwrap();
            if round % 8 == 0 {
                db.compact().unwrap();
            }
        }
    });
}

fn with_workers(case: &Case) -> bifold::Options {
    bifold::Options { workers: Workers::Threads(2), ..case.options() }
}

/// The value that a key has from the beginning to the end.
fn steady(key: KeyNo) -> Spec {
    spec(u32::from(key), 64 + u32::from(key))
}

fn assert_steady(key: KeyNo, found: Option<&[u8]>) {
    assert!(
        found.is_some_and(|value| steady(key).is(value)),
        "key {key}: {:?}",
        found.map(bifold_sim::value::describe)
    );
}

/// Keys that nobody overwrites after the first round, so that GC made each copy of their values.
const COLD: KeyNo = 150;

/// All keys; those from [`COLD`] on are overwritten all the time.
const KEYS: KeyNo = 300;

/// The least number of checks, and how long the readers continue at most to make them.
const CHECKS_MIN: u64 = 200_000;
const TIME_MAX: Duration = Duration::from_secs(60);

/// The least number of copies of each cold value, without the one that its writer made.
const MOVES_MIN: usize = 3;

/// Bytes that rewrites must move where values in files without garbage stay: until then GC goes on.
const MOVED_MIN: u64 = 100 * MIN_BYTES as u64;

/// A snapshot and what it must hold.
type Held = (Snapshot, Contents);

/// What rewrites have moved.
fn moved_bytes(db: &Db) -> u64 {
    let stats = db.stats();
    stats.keyspaces.iter().flat_map(|k| &k.values).map(|v| v.merged_bytes + v.gc_bytes).sum()
}

/// Snapshots are taken, forced GC moves all live values again and again, a writer overwrites half of the keys, and a
/// reader compares every value of every snapshot with what was there when it was taken.
pub fn g14_snapshots_stay_the_same_while_every_value_moves(case: &Case) {
    let fs = MemoryFs::default();
    let db = Db::open_in(threaded(&fs), env::DIR, with_workers(case)).unwrap();
    (0..KEYS).for_each(|key| db.put(key_bytes(key), steady(key).bytes()).unwrap());
    let held: Mutex<Vec<Held>> = Mutex::new(vec![(db.snapshot(), contents(&db))]);
    let (done, checks, begin) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
    let enough = || checks.load(Relaxed) >= CHECKS_MIN || begin.elapsed() > TIME_MAX;
    thread::scope(|scope| {
        let _ends_the_others = StopOnDrop(&done);
        scope.spawn(|| overwrite(&db, &done));
        scope.spawn(|| {
            while !done.load(Relaxed) {
                let snapshots = held.lock().unwrap().clone();
                for held in snapshots {
                    checks.fetch_add(check(&db, &held), Relaxed);
                }
            }
        });
        let mut round = 0;
        let is_enough_moved =
            || !case.moves_values_with_keys() || moved_bytes(&db) > MOVED_MIN || begin.elapsed() > TIME_MAX;
        while round <= MOVES_MIN || !enough() || !is_enough_moved() {
            db.collect_garbage().unwrap();
            round += 1;
            // Every snapshot is kept: each pins the files of its moment.
            if round <= MOVES_MIN {
                let snapshot = db.snapshot();
                let holds = seen_by(&db, &snapshot);
                held.lock().unwrap().push((snapshot, holds));
            }
        }
    });
    let checks = checks.load(Relaxed);
    assert!(checks >= CHECKS_MIN, "only {checks} checks");
    if case.moves_values_with_keys() {
        // A value in a file without garbage moves with its key or, unmerged, never.
        let moved = moved_bytes(&db);
        assert!(moved > MOVED_MIN, "only {moved} bytes have moved");
    } else if case.separates() {
        // No worker is just making a file.
        db.clone().close().unwrap();
        assert_moved(&fs);
    }
    println!("{checks} values of {} snapshots as they were, in {:?}", held.lock().unwrap().len(), begin.elapsed());
}

fn overwrite(db: &Db, done: &AtomicBool) {
    for tag in 1000.. {
        if done.load(Relaxed) {
            return;
        }
        let key = COLD + (tag * 7 % u32::from(KEYS - COLD)) as KeyNo;
        db.put(key_bytes(key), spec(tag, 40 + tag % 200).bytes()).unwrap();
        if tag % 64 == 0 {
            // Otherwise thousands of files would be kept, since every snapshot is.
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn seen_by(db: &Db, snapshot: &Snapshot) -> Contents {
    let pairs = snapshot.iter(db.default_keyspace()).map(|pair| pair.unwrap().into_parts().unwrap());
    Contents::from([("default".to_owned(), pairs.collect())])
}

/// Compares a scan and a get of every key with what the snapshot held at first. Returns how many values were
/// compared.
fn check(db: &Db, (snapshot, holds): &Held) -> u64 {
    let right = &holds["default"];
    assert!(seen_by(db, snapshot)["default"] == *right, "a scan of snapshot {} changed", snapshot.seqno());
    for (key, value) in right {
        let found = snapshot.get(db.default_keyspace(), key).unwrap();
        assert!(found.as_ref() == Some(value), "{} in snapshot {} changed", key.escape_ascii(), snapshot.seqno());
    }
    2 * right.len() as u64
}

/// All copies are still there, because the first snapshot is: each has the number of the write that it copies. Where
/// snapshots need no old copies, tables record how often they were rewritten.
fn assert_moved(fs: &MemoryFs) {
    let epochs = epochs(fs);
    let mut copies = BTreeMap::new();
    for (key, number, ..) in records(fs) {
        *copies.entry((key, number)).or_insert(0usize) += 1;
    }
    for key in 0..COLD {
        let of_key = copies.iter().filter(|((found, _), _)| **found == *key_bytes(key));
        let most = of_key.map(|(_, copies)| *copies).max().unwrap_or(0);
        let epoch = epochs.get(&key_bytes(key)[..]).copied().unwrap_or(0) as usize;
        assert!(
            most > MOVES_MIN || epoch > MOVES_MIN,
            "the value of key {key} moved {most} times less one, {epoch} times"
        );
    }
}
