//! Once changes are kept, every opening knows: only the logs say so.

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use bifold::{Db, Durability, Env, Error, Options, PlacementKind, RetainChanges};
use bifold_io::memory::{Fate, MemoryFs, OpKind};

use super::{ALL_OF_THEM, Replica, bed, key, value};
use crate::bed::{Bed, numbers};

const FEW: RetainChanges = RetainChanges { bytes: 1, age: None };

/// Opens what is there without being told. Whether changes are kept, but some are gone.
fn some_are_gone(bed: &Bed, fs: &MemoryFs, what: &str) -> bool {
    let options = Options { retain_changes: None, ..bed.options.clone() };
    match Db::open_in(bed.env_of(fs), "/db", options).unwrap().changes(0) {
        Ok(_) => false,
        Err(Error::ChangesGone { .. }) => true,
        Err(error) => panic!("{what}: {error}"),
    }
}

/// Right after an opening, nothing is in the new log, not even that it is kept.
#[test]
fn a_kill_right_after_an_opening_forgets_nothing() {
    for placement in [PlacementKind::Inline, PlacementKind::HashKv] {
        let mut bed = bed(placement, ALL_OF_THEM);
        for n in 0..50 {
            bed.ks().put(key(n), value(n, n)).unwrap();
        }
        bed.db().flush().unwrap();
        bed.reopen();
        bed.options.retain_changes = None;
        let mut fs = bed.fs.fork();
        for _ in 0..3 {
            let env = Env { fs: Arc::new(fs.clone()), ..bed.env() };
            let killed = Db::open_in(env, "/db", bed.options.clone()).unwrap();
            fs = fs.fork();
            drop(killed);
        }
        let env = Env { fs: Arc::new(fs), ..bed.env() };
        let db = Db::open_in(env, "/db", bed.options.clone()).unwrap();
        let mut replica = Replica::default();
        replica.catch_up(&db);
        replica.is_of(db.default_keyspace(), &format!("{placement:?}"));
        assert_eq!(replica.commits, 50);
    }
}

/// A compaction deletes all that is kept before the new log has a commit.
#[test]
fn no_power_loss_after_an_opening_forgets_that_changes_are_kept() {
    let mut bed = bed(PlacementKind::Inline, ALL_OF_THEM);
    for round in 0..2 {
        bed.ks().put(key(0), value(0, round)).unwrap();
        bed.db().flush().unwrap();
    }
    bed.options.retain_changes = Some(FEW);
    bed.reopen();
    bed.db().compact().unwrap();
    let mut gone = 0;
    for seed in 0..40 {
        // The deletion may be durable, or not.
        gone += u32::from(some_are_gone(&bed, &bed.fs.power_loss(Fate::Random(seed)), &format!("seed {seed}")));
    }
    assert!((1..40).contains(&gone), "{gone}");
}

/// Even if no log before the one being written is kept, which may have nothing yet.
#[test]
fn no_power_loss_forgets_that_changes_are_kept() {
    for placement in [PlacementKind::Inline, PlacementKind::HashKv] {
        let mut bed = bed(placement, FEW);
        bed.options.durability = Durability::Buffered;
        bed.reopen();
        bed.ks().put(key(0), value(0, 0)).unwrap();
        let mut random = numbers(11);
        for at in 0..60 {
            if random(3) > 0 {
                bed.ks().put(key(at), value(at, 1)).unwrap();
            }
            bed.db().flush().unwrap();
            for fate in [Fate::KeepAll, Fate::DropUnsynced, Fate::Random(u64::from(at))] {
                some_are_gone(&bed, &bed.fs.power_loss(fate), &format!("{placement:?}, step {at}, {fate:?}"));
            }
        }
    }
}

/// No log has a change that is kept, and the last one has no commits: an opening deletes it.
#[test]
fn no_crash_after_another_forgets_that_changes_are_kept() {
    let mut bed = bed(PlacementKind::Inline, FEW);
    bed.ks().put(key(0), value(0, 0)).unwrap();
    bed.db().flush().unwrap();
    bed.reopen();
    bed.db().compact().unwrap();
    let crashed = bed.fs.fork();
    let (images, disk) = (Arc::new(Mutex::new(Vec::new())), crashed.clone());
    let taken = Arc::clone(&images);
    crashed.set_hook(Some(Arc::new(move |call: u64, _: OpKind, _: &Path| {
        taken.lock().unwrap().extend([Fate::KeepAll, Fate::Random(call)].map(|fate| disk.power_loss(fate)));
    })));
    let options = Options { retain_changes: None, ..bed.options.clone() };
    Db::open_in(bed.env_of(&crashed), "/db", options).unwrap().close().unwrap();
    crashed.set_hook(None);
    for (n, image) in images.lock().unwrap().iter().enumerate() {
        some_are_gone(&bed, image, &format!("image {n}"));
    }
}
