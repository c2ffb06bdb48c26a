//! Damage in files that say something of values: they cost what only they know, and the database opens without it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bifold::{
    Access,
    events::{EventListener, Listener},
    salvage::{DatabaseSalvage, SalvageOptions},
};
use bifold_format::value;
use bifold_values::parts::value_files::{DROPS, FORWARDS};

use super::*;

/// A closed database of this placement whose keys were overwritten twice, and its options. GC of everything comes last,
/// if wished.
fn written(placement: &str, is_collected: bool) -> (MemoryFs, Options) {
    let (_, options) = placements().into_iter().find(|(name, _)| *name == placement).unwrap();
    let fs = MemoryFs::new();
    let db = open(&fs, &options);
    (0..3).for_each(|round| update_all_but(&db, None, round));
    db.flush().unwrap();
    db.wait_idle().unwrap();
    if is_collected {
        db.collect_garbage().unwrap();
    }
    db.close().unwrap();
    (fs, options)
}

/// The value files of a class.
fn of_class(fs: &MemoryFs, class: u8) -> Vec<PathBuf> {
    let is_it = |path: &PathBuf| value::describe(&fs.read(path).unwrap()).is_ok_and(|(_, of, _)| of.class == class);
    files(fs, "val").into_iter().filter(is_it).collect()
}

/// Flips a bit in the last record of a file, or flips it back.
fn flip(fs: &MemoryFs, path: &Path) {
    fs.flip_bit(path, (fs.read(path).unwrap().len() as u64 - 4) * 8 + 3);
}

/// Overwrites all keys but these in several rounds after `round`. Returns the last one.
fn work(db: &Db, round: u32, lost: &[u32]) -> u32 {
    for round in round + 1..=round + 8 {
        let order = (0..KEYS).map(|n| n * 7 % KEYS).filter(|n| !lost.contains(n));
        order.for_each(|n| db.put(key(n), value(n, round)).unwrap());
        db.wait_idle().unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    round + 8
}

/// Bytes that live values take, about.
fn live_bytes(round: u32) -> u64 {
    (0..KEYS).map(|n| value(n, round).len() as u64 + 60).sum()
}

/// Counts what a listener is told was left out.
#[derive(Default)]
struct Told(AtomicU64);

impl EventListener for Told {
    fn left_out(&self, _keyspace: &str, _error: &Error) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn a_damaged_drop_file_costs_the_garbage_that_it_names() {
    let (fs, options) = written("novkv", false);
    let drop_files = of_class(&fs, DROPS);
    assert!(!drop_files.is_empty());
    for path in drop_files {
        let image = fs.fork();
        flip(&image, &path);
        let mut round = 2;
        for session in 0..2 {
            let told = Arc::new(Told::default());
            let listener = Listener::new(Arc::clone(&told) as _);
            let db = open(&image, &Options { listener, ..options.clone() });
            let what = format!("{}, session {session}", path.display());
            let left_out = db.left_out();
            assert!(left_out.len() == 1 && names(&left_out[0], &path), "{what}: {left_out:?}");
            round = work(&db, round, &[]);
            assert_eq!(told.0.load(Relaxed), 1, "{what}");
            assert_eq!(unreadable(&db, &path, |_| round), [], "{what}");
            let explicit = db.collect_garbage().expect_err(&what);
            assert!(names(&explicit, &path), "{what}: {explicit}");
            assert_eq!(unreadable(&db, &path, |_| round), [], "{what}");
            assert_eq!(db.stats().poisoned, None, "{what}");
            db.close().unwrap();
            let problems = verify_in(&env(&image), DIR, |_| ()).unwrap().problems;
            assert!(problems.len() == 1 && names(&problems[0], &path), "{what}: {problems:?}");
        }
        // What it names is known again.
        flip(&image, &path);
        let db = open(&image, &options);
        assert!(db.left_out().is_empty());
        db.collect_garbage().unwrap();
        assert_eq!(unreadable(&db, &path, |_| round), []);
        let space = db.stats().space.values_bytes;
        assert!(space < live_bytes(round) * 11 / 10, "{space} of {}", live_bytes(round));
        db.close().unwrap();
        assert_eq!(verify_in(&env(&image), DIR, |_| ()).unwrap().problems.len(), 0);
    }
}

/// Nothing is written there, so no thread works.
#[test]
fn a_listener_learns_at_once_what_an_opening_that_only_reads_has_left_out() {
    let (fs, options) = written("novkv", false);
    let path = of_class(&fs, DROPS).pop().unwrap();
    flip(&fs, &path);
    let accesses = [Access::ReadOnly, Access::Follow];
    for (access, workers) in accesses.into_iter().flat_map(|a| [(a, Workers::Caller), (a, Workers::Threads(2))]) {
        let (image, told) = (fs.fork(), Arc::new(Told::default()));
        let (listener, keyspace) = (Listener::new(Arc::clone(&told) as _), KeyspaceOptions::default());
        let mut db = open(&image, &Options { access, workers, listener, keyspace, ..options.clone() });
        assert!(names(&db.left_out()[0], &path), "{access:?}, {workers:?}");
        assert_eq!(told.0.load(Relaxed), 1, "{access:?}, {workers:?}");
        if access == Access::Follow {
            let writer = open(&image, &options);
            writer.put(key(0), value(0, 3)).unwrap();
            assert!(db.refresh().unwrap().is_newer);
            assert_eq!((db.left_out().len(), told.0.load(Relaxed)), (1, 1), "not twice");
        }
    }
}

/// A value whose row is lost cannot be found, and is not lost: it is there again as soon as the row is.
#[test]
fn a_damaged_forwarding_file_costs_no_value() {
    let (fs, options) = written("streams", true);
    let units = of_class(&fs, FORWARDS);
    let mut lost_anywhere = 0;
    for path in &units {
        let image = fs.fork();
        flip(&image, path);
        let mut round = 2;
        let mut lost = Vec::new();
        for session in 0..2 {
            let db = open(&image, &options);
            let what = format!("{}, session {session}", path.display());
            let left_out = db.left_out();
            assert!(left_out.len() == 1 && names(&left_out[0], path), "{what}: {left_out:?}");
            if session == 0 {
                lost = unreadable(&db, path, |_| round);
                lost_anywhere += lost.len();
            }
            round = work(&db, round, &lost);
            let newest = |n: u32| if lost.contains(&n) { 2 } else { round };
            assert_eq!(unreadable(&db, path, newest), lost, "{what}");
            for explicit in [db.collect_garbage(), db.compact()] {
                let error = explicit.expect_err(&what);
                assert!(names(&error, path), "{what}: {error}");
            }
            assert_eq!(unreadable(&db, path, newest), lost, "{what}");
            let space = db.stats().space;
            let others = space.values_bytes - space.left_out_bytes;
            assert!(others < live_bytes(round) * 8 / 5, "{what}: {space:?}, {} live", live_bytes(round));
            assert_eq!(db.stats().poisoned, None, "{what}");
            db.close().unwrap();
            let problems = verify_in(&env(&image), DIR, |_| ()).unwrap().problems;
            assert!(problems.iter().any(|problem| names(problem, path)), "{what}: {problems:?}");
        }
        let salvage = DatabaseSalvage::open(&env(&image), Path::new(DIR), &SalvageOptions::default()).unwrap();
        let to = open(&MemoryFs::new(), &tiny());
        salvage.restore(&to, |_| ()).unwrap();
        assert_eq!(unreadable(&to, path, |n| if lost.contains(&n) { 2 } else { round }), [], "salvaged");
        flip(&image, path);
        let db = open(&image, &options);
        assert!(db.left_out().is_empty());
        assert_eq!(unreadable(&db, path, |n| if lost.contains(&n) { 2 } else { round }), []);
        db.collect_garbage().unwrap();
        assert_eq!(unreadable(&db, path, |n| if lost.contains(&n) { 2 } else { round }), []);
    }
    assert!(lost_anywhere > 0, "no row of {} files was needed", units.len());
}
