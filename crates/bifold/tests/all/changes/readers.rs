//! The feed of processes that do not write the database.

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use bifold::{Access, Change, Db, Env, Error, KeyspaceOptions, Options, PlacementKind, RetainChanges};
use bifold_io::memory::{Fate, MemoryFs, OpKind};

use super::{ALL_OF_THEM, Replica, bed, key, step, value};
use crate::bed::{Bed, numbers};

fn open(bed: &Bed, env: Env, access: Access) -> Db {
    let keyspace = KeyspaceOptions::default();
    Db::open_in(env, "/db", Options { access, keyspace, ..bed.options.clone() }).unwrap()
}

#[test]
fn a_follower_has_the_changes_up_to_its_state_whatever_the_writer_does_then() {
    for placement in PlacementKind::ALL {
        let mut bed = bed(placement, ALL_OF_THEM);
        let (mut random, mut replica) = (numbers(3), Replica::default());
        let mut follower = open(&bed, bed.env(), Access::Follow);
        for at in 0..400 {
            step(&mut bed, at, &mut random);
            match random(8) {
                0 => {
                    let what = format!("{placement:?}, step {at}");
                    replica.catch_up(&follower);
                    replica.is_of(follower.default_keyspace(), &what);
                    let mut all = Replica::default();
                    all.catch_up(&follower);
                    all.is_of(follower.default_keyspace(), &format!("{what}, from the first one on"));
                }
                1 => drop(follower.refresh().unwrap()),
                _ => {}
            }
        }
        follower.refresh().unwrap();
        replica.catch_up(&follower);
        replica.is_of(bed.ks(), &format!("{placement:?}, at the end"));
        let mut of_writer = Replica::default();
        of_writer.catch_up(bed.db());
        assert_eq!((replica.seen, replica.commits), (of_writer.seen, of_writer.commits), "{placement:?}");
    }
}

#[test]
fn a_state_keeps_its_changes_while_the_writer_deletes_them() {
    let bed = bed(PlacementKind::HashKv, RetainChanges { bytes: 1, age: None });
    bed.ks().put(key(0), value(0, 0)).unwrap();
    let mut follower = open(&bed, bed.env(), Access::Follow);
    let mut changes = follower.changes(0).unwrap();
    for n in 1..4 {
        bed.ks().put(key(n), value(n, 0)).unwrap();
        bed.db().flush().unwrap();
    }
    assert!(matches!(bed.db().changes(0), Err(Error::ChangesGone { .. })));
    assert_eq!(&*changes.next().unwrap().unwrap().key, key(0).as_bytes());
    assert!(changes.next().is_none());
    follower.refresh().unwrap();
    drop(changes);
    let (now, of_writer) = (follower.changes(0).map(drop), bed.db().changes(0).map(drop));
    assert_eq!(format!("{now:?}"), format!("{of_writer:?}"), "the same first change");
    let Err(Error::ChangesGone { first, .. }) = now else { panic!("{now:?}") };
    assert_eq!(follower.changes(first - 1).unwrap().count(), bed.db().changes(first - 1).unwrap().count());
}

/// They go right after the edit that ends the state: nothing says that the state still needs them.
#[test]
fn logs_deleted_right_after_the_last_edit_of_a_state_are_gone() {
    let bed = bed(PlacementKind::Inline, RetainChanges { bytes: 1, age: None });
    let (begun, disk) = (Arc::new(Mutex::new(Vec::new())), bed.fs.clone());
    let (feeds, is_looking) = (Arc::clone(&begun), AtomicBool::new(false));
    let (env, options) = (bed.env(), Options { access: Access::Follow, ..bed.options.clone() });
    bed.ks().put(key(0), value(0, 0)).unwrap();
    disk.set_hook(Some(Arc::new(move |_: u64, _: OpKind, path: &Path| {
        if path.ends_with("MANIFEST") && !is_looking.swap(true, Ordering::AcqRel) {
            let options = Options { keyspace: KeyspaceOptions::default(), ..options.clone() };
            let follower = Db::open_in(env.clone(), "/db", options).unwrap();
            feeds.lock().unwrap().extend(follower.changes(0).ok());
            is_looking.store(false, Ordering::Release);
        }
    })));
    for n in 1..4 {
        bed.ks().put(key(n), value(n, 0)).unwrap();
        bed.db().flush().unwrap();
    }
    disk.set_hook(None);
    let mut gone = 0;
    for mut changes in std::mem::take(&mut *begun.lock().unwrap()) {
        match changes.next() {
            Some(Err(Error::ChangesGone { .. })) => gone += 1,
            Some(change) => assert_eq!(change.unwrap().seqno, 1),
            None => panic!("a state without its changes"),
        }
    }
    assert!(gone > 0, "no log was deleted at that moment");
}

/// Opens what a crash has left for writing. Returns what there was when the new manifest had come.
fn over_opening<T: Send + 'static>(
    bed: &Bed,
    crashed: &MemoryFs,
    look: impl Fn() -> T + Send + Sync + 'static,
) -> (Db, T) {
    let (looked, is_looking) = (Arc::new(Mutex::new(None)), AtomicBool::new(false));
    let seen = Arc::clone(&looked);
    crashed.set_hook(Some(Arc::new(move |_: u64, op: OpKind, path: &Path| {
        let is_manifest = op == OpKind::Rename && path.ends_with("MANIFEST");
        // What a follower changes calls this, too.
        if is_manifest && !is_looking.swap(true, Ordering::AcqRel) {
            *seen.lock().unwrap() = Some(look());
        }
    })));
    let db = open(bed, bed.env_of(crashed), Access::ReadWrite);
    crashed.set_hook(None);
    let seen = looked.lock().unwrap().take().unwrap();
    (db, seen)
}

/// An opening deletes such a log, and no edit says so: a reader that has come meanwhile does not hold it.
#[test]
fn a_log_without_commits_may_be_gone() {
    let bed = bed(PlacementKind::Inline, ALL_OF_THEM);
    bed.ks().put(key(0), value(0, 0)).unwrap();
    // Two crashes in a row: the second one comes while the first one's log is replayed.
    let crashed = bed.fs.fork();
    let disk = crashed.clone();
    let (once, crashed) = over_opening(&bed, &crashed, move || disk.fork());
    let (env, options) = (bed.env_of(&crashed), Options { access: Access::Follow, ..bed.options.clone() });
    let follow = move || {
        let options = Options { keyspace: KeyspaceOptions::default(), ..options.clone() };
        Db::open_in(env.clone(), "/db", options).unwrap()
    };
    let (again, follower) = over_opening(&bed, &crashed, follow);
    assert_eq!(follower.changes(0).unwrap().count(), 1);
    [once, again].into_iter().for_each(|db| db.close().unwrap());
}

#[test]
fn a_log_without_commits_between_others_hides_none() {
    let bed = bed(PlacementKind::Inline, ALL_OF_THEM);
    let keyspaces =
        ["needs the first log", "a", "b"].map(|name| bed.db().keyspace(name, KeyspaceOptions::default()).unwrap());
    keyspaces.iter().for_each(|keyspace| keyspace.put("key", "1").unwrap());
    // Each begins a log.
    keyspaces[1].compact_range::<&str>(..).unwrap();
    keyspaces[2].compact_range::<&str>(..).unwrap();
    keyspaces[2].put("key", "2").unwrap();
    let follower = open(&bed, bed.env(), Access::Follow);
    assert_eq!(follower.changes(0).unwrap().count(), 4);
}

/// Read-only, after a crash: no opening has cut off what it left.
#[test]
fn what_a_crash_left_has_the_changes_of_its_entries() {
    for placement in PlacementKind::ALL {
        let mut bed = bed(placement, ALL_OF_THEM);
        let mut random = numbers(9);
        for at in 0..60 {
            step(&mut bed, at, &mut random);
            for fate in [Fate::DropUnsynced, Fate::Random(u64::from(at))] {
                let image = bed.fs.power_loss(fate);
                for access in [Access::ReadOnly, Access::Follow] {
                    let env = Env { fs: Arc::new(image.fork()), ..bed.env() };
                    let what = format!("{placement:?}, step {at}, {fate:?}, {access:?}");
                    let db = open(&bed, env, access);
                    let mut replica = Replica::default();
                    match db.changes(0) {
                        // Nothing is durable yet, not even that changes are kept.
                        Err(Error::InvalidArgument { .. }) if db.iter().next().is_none() => continue,
                        _ => replica.catch_up(&db),
                    }
                    replica.is_of(db.default_keyspace(), &what);
                }
            }
        }
    }
}

#[test]
fn a_follower_says_if_changes_are_not_kept_and_sees_when_they_are() {
    let mut bed = Bed::new(PlacementKind::Inline);
    bed.ks().put("before", "1").unwrap();
    let mut follower = open(&bed, bed.env(), Access::Follow);
    assert!(matches!(follower.changes(0), Err(Error::InvalidArgument { .. })));
    bed.options.retain_changes = Some(ALL_OF_THEM);
    bed.reopen();
    bed.ks().put("after", "2").unwrap();
    follower.refresh().unwrap();
    let Err(Error::ChangesGone { first, .. }) = follower.changes(0) else { panic!("the first was not kept") };
    let all: Vec<Change> = follower.changes(first - 1).unwrap().map(Result::unwrap).collect();
    assert_eq!(all.iter().map(|change| &*change.key).collect::<Vec<_>>(), [b"after"]);
    let later = all[0].seqno + 1;
    bed.ks().put("later", "3").unwrap();
    assert!(matches!(follower.changes(later), Err(Error::InvalidArgument { .. })), "its state has no such commit");
}
