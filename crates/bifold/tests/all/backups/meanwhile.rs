//! Backups while the database is written to, and several at once.

use std::{
    ops::RangeInclusive,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use bifold::{Backup, BackupOptions, Db, Error, Options, PlacementKind, Reads, Workers, verify};

use super::{ALL, held, options};
use crate::support::{TempDir, entries, fill, tiny, tiny_db};

/// So few open files that those not in use are closed all the time.
fn crowded(placement: PlacementKind) -> Options {
    Options {
        open_files_max: 8,
        reads: Reads::Called,
        memory_limit: 8 << 20,
        memtable_bytes: 32 << 10,
        workers: Workers::Threads(2),
        ..options(placement)
    }
}

/// Each commit writes its number to two keyspaces. A generation has the same in both, from no earlier than the last
/// commit before it began and no later than the first one that had not begun when it ended.
#[test]
fn backups_during_writes_and_gc_are_whole() {
    for placement in ALL {
        let dir = TempDir::new();
        let options = crowded(placement);
        let db = Db::open_with(dir.join("db"), options.clone()).unwrap();
        let other = db.keyspace("other", options.keyspace.clone()).unwrap();
        let (begun, ended, stop) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
        let made = thread::scope(|scope| {
            let write = || {
                for n in 1.. {
                    begun.store(n, SeqCst);
                    let value = n.to_be_bytes().repeat(200);
                    let mut batch = db.batch();
                    batch.put(db.default_keyspace(), "number", &value).unwrap();
                    batch.put(&other, "number", &value).unwrap();
                    batch.put(&other, format!("key{}", n % 500), &value).unwrap();
                    db.commit(batch).unwrap();
                    ended.store(n, SeqCst);
                    if stop.load(SeqCst) {
                        break;
                    }
                }
            };
            let gc = || {
                while !stop.load(SeqCst) {
                    db.collect_garbage().unwrap();
                    db.flush().unwrap();
                }
            };
            let threads = [scope.spawn(write), scope.spawn(gc)];
            let make = |_| {
                let earliest = ended.load(SeqCst);
                let made = db.backup(dir.join("backups"));
                (earliest, begun.load(SeqCst), made)
            };
            let made: Vec<_> = (0..6).map(make).collect();
            stop.store(true, SeqCst);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            made
        });
        let backup = Backup::open(dir.join("backups")).unwrap();
        assert!(backup.verify().unwrap().problems.is_empty(), "{placement:?}");
        for (earliest, latest, made) in made {
            let number = made.unwrap_or_else(|error| panic!("{placement:?}: {error}")).number;
            let path = dir.join(&format!("restored{number}"));
            backup.restore_generation(number, &path).unwrap();
            check_restored(&path, earliest..=latest, &options);
        }
    }
}

/// Checks that the database holds the state after one of these commits.
fn check_restored(path: &Path, commits: RangeInclusive<u32>, options: &Options) {
    assert_eq!(verify(path).unwrap().problems.len(), 0, "{}", path.display());
    let restored = Db::open_with(path, options.clone()).unwrap();
    let number =
        |value: Option<bifold::Value>| value.map_or(0, |value| u32::from_be_bytes(value[..4].try_into().unwrap()));
    let held = number(restored.get("number").unwrap());
    let of_other = restored.existing_keyspace("other").unwrap().unwrap();
    assert_eq!(held, number(of_other.get("number").unwrap()));
    assert!(commits.contains(&held), "{}: {held} of {commits:?}", path.display());
}

#[test]
fn backups_to_one_repository_exclude_each_other() {
    let (dir, db) = tiny_db();
    fill(db.default_keyspace(), 300, "both");
    let repository = dir.join("backups");
    let mut refused = Vec::new();
    db.backup_with(&repository, BackupOptions::default(), |_| {
        if refused.is_empty() {
            refused.push(db.backup(&repository).unwrap_err());
            let backup = Backup::open(&repository).unwrap();
            refused.push(backup.prune(1).unwrap_err());
            refused.push(backup.verify().unwrap_err());
            refused.push(backup.restore(dir.join("restored")).unwrap_err());
            assert!(backup.generations().unwrap().is_empty(), "listing needs no lock");
        }
        // Writers do not wait for the copy.
        db.put("meanwhile", "written").unwrap();
    })
    .unwrap();
    assert_eq!(refused.len(), 4);
    for error in refused {
        assert!(matches!(error, Error::Locked { .. }) && error.to_string().contains("backup"), "{error}");
    }
    Db::restore(&repository, dir.join("restored")).unwrap();
    assert_eq!(held(&dir.join("restored"), &tiny()).len(), 300, "what came after the backup began is not in it");
}

#[test]
fn a_backup_keeps_to_its_rate() {
    let (dir, db) = tiny_db();
    fill(db.default_keyspace(), 2000, &"long ".repeat(20));
    let slow = BackupOptions::default().with_bytes_per_second(Some(600 << 10));
    let begin = Instant::now();
    let made = db.backup_with(dir.join("backups"), slow, |_| ()).unwrap();
    let least =
        Duration::from_secs_f64(made.bytes as f64 / f64::from(600 << 10)).saturating_sub(Duration::from_millis(200));
    assert!(begin.elapsed() >= least, "{:?} for {} bytes", begin.elapsed(), made.bytes);
    Db::restore(dir.join("backups"), dir.join("restored")).unwrap();
    assert!(held(&dir.join("restored"), &tiny()) == entries(db.iter()));
}
