//! What tests of checkpoints and of backups share: databases of every placement, and copies that are made while the
//! database is written to.

use std::{
    ops::RangeInclusive,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    thread,
};

use bifold::{
    Db, Keyspace, KeyspaceOptions, Options, PlacementKind, Reads, Workers,
    options::{DiffKv, HashKv, Values},
    verify,
};

use crate::support::{entries, tiny};

pub const ALL: [PlacementKind; 7] = PlacementKind::ALL;

/// Small files, and values on either side of every limit.
pub fn options(placement: PlacementKind) -> Options {
    let values = Values {
        separate_from_bytes: Some(64),
        hashkv: HashKv { group_bytes: 8 << 10, groups_max: 16, ..HashKv::default() },
        diffkv: DiffKv { large_bytes: 250, ..DiffKv::default() },
        file_bytes: 16 << 10,
        ..Values::default()
    };
    Options { keyspace: KeyspaceOptions { placement, values, ..tiny().keyspace }, ..tiny() }
}

/// So few open files that those not in use are closed all the time.
pub fn crowded(placement: PlacementKind) -> Options {
    Options {
        open_files_max: 8,
        reads: Reads::Called,
        memory_limit: 8 << 20,
        memtable_bytes: 32 << 10,
        workers: Workers::Threads(2),
        ..options(placement)
    }
}

/// What is done in a loop, by a thread of its own, while copies are made.
pub type Meanwhile<'a> = &'a (dyn Fn() + Sync);

/// Makes `times` copies while each commit writes its number to two keyspaces, garbage is collected, and `others` run.
/// A copy must hold one of these commits: no earlier one than the last before the copy began, and no later one than
/// the first that had not begun when it ended.
pub fn copy_while_written<T>(
    (db, other): (&Db, &Keyspace),
    others: &[Meanwhile<'_>],
    times: u32,
    mut copy: impl FnMut(u32) -> T,
) -> Vec<(RangeInclusive<u32>, T)> {
    let (begun, ended, stop) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
    let write = || {
        for n in 1.. {
            begun.store(n, SeqCst);
            let value = n.to_be_bytes().repeat(200);
            let mut batch = db.batch();
            batch.put(db.default_keyspace(), "number", &value).unwrap();
            batch.put(other, "number", &value).unwrap();
            batch.put(other, format!("key{}", n % 500), &value).unwrap();
            db.commit(batch).unwrap();
            ended.store(n, SeqCst);
            if stop.load(SeqCst) {
                break;
            }
        }
    };
    let collect_garbage: Meanwhile<'_> = &|| {
        db.collect_garbage().unwrap();
        db.flush().unwrap();
    };
    let again = |act: Meanwhile<'_>| {
        while !stop.load(SeqCst) {
            act();
        }
    };
    thread::scope(|scope| {
        scope.spawn(write);
        for &act in others.iter().chain([&collect_garbage]) {
            let again = &again;
            scope.spawn(move || again(act));
        }
        let mut make = |n| {
            let earliest = ended.load(SeqCst);
            let made = copy(n);
            (earliest..=begun.load(SeqCst), made)
        };
        let made = (0..times).map(&mut make).collect();
        stop.store(true, SeqCst);
        made
    })
}

/// Checks that the copy holds the state after one of these commits.
pub fn check_copy(path: &Path, commits: &RangeInclusive<u32>, options: &Options) {
    assert_eq!(verify(path).unwrap().problems.len(), 0, "{}", path.display());
    let copy = Db::open_with(path, options.clone()).unwrap();
    let number =
        |value: Option<bifold::Value>| value.map_or(0, |value| u32::from_be_bytes(value[..4].try_into().unwrap()));
    let held = number(copy.get("number").unwrap());
    let of_other = copy.existing_keyspace("other").unwrap().unwrap();
    assert_eq!(held, number(of_other.get("number").unwrap()));
    assert!(commits.contains(&held), "{}: {held} of {commits:?}", path.display());
    assert!(entries(of_other.iter()).len() <= 501);
    copy.close().unwrap();
}
