//! What a crash leaves: images of power losses and killed processes at every change of the files, each opened,
//! compared with the model, garbage-collected, reopened.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use bifold::Db;
use bifold_format::names;
use bifold_io::memory::{Fate, MemoryFs};
use bifold_sim::{
    camera::{Camera, Image, Plan},
    env,
    history::Op,
    judge::{Depth, Judge, no_orphans, verify_is_clean},
    model::{Change, Crash, Model},
    nested,
    options::OptionSet,
    read::Trouble,
    report::Report,
};

use crate::{
    Case,
    meanwhile::{Acted, Ends, at_change, at_every_change},
    support::{Bed, EVERYTHING, EXTRAS, contents, files, number, path},
};

/// One in so many images is also read in every way, crashed again and worked on.
const THOROUGH: u64 = 16;

/// Calls `call`, takes images at every change it makes, and judges them by `model`, which allows every state that may
/// hold during the call. Returns how many.
pub(crate) fn survives(bed: &Bed, model: &Model, call: impl FnOnce(&Db)) -> u64 {
    let mut camera = Camera::new(&bed.fs, Plan { seed: 7, every: 1, random: 2, only: None });
    call(bed.db());
    let images = camera.take();
    drop(camera);
    for image in &images {
        examine(image, model, bed.set()).unwrap_or_else(|trouble| panic!("{image}: {trouble}"));
    }
    images.len() as u64
}

fn examine(image: &Image, model: &Model, set: &OptionSet) -> Result<(), Trouble> {
    let judge = Judge { set: set.clone(), seed: 3, extras: EXTRAS };
    let depth = if image.number.is_multiple_of(THOROUGH) { Depth::Thorough } else { Depth::Quick };
    judge.judge(&image.fs.fork(), model, image.crash, depth)?;
    // Completes the GC run that the crash interrupted.
    let fs = image.fs.fork();
    let before = files(&fs);
    let db = Db::open_in(env::simulated(&fs), env::DIR, set.database.clone())?;
    let found = contents(&db);
    db.collect_garbage()?;
    no_number_twice(&before.into_keys().collect(), &image.fs, &fs)?;
    db.close()?;
    let db = Db::open_in(env::simulated(&fs), env::DIR, set.database.clone())?;
    no_orphans(&fs, env::DIR.as_ref(), &db)?;
    if contents(&db) != found {
        return Err(Trouble::wrong("what was recovered changed after GC and another opening"));
    }
    drop(db);
    verify_is_clean(&fs)
}

/// A file that is new has a number above all there were; a file that is old begins as it did.
fn no_number_twice(names: &BTreeSet<String>, before: &MemoryFs, after: &MemoryFs) -> Result<(), Trouble> {
    let last = names.iter().filter_map(|name| number(name)).max().unwrap_or(0);
    for (name, bytes) in files(after) {
        let Some(id) = number(&name) else { continue };
        let old = before.read(&path(&name)).or_else(|| before.read(&path(&names::again(&name))));
        let same = old.as_ref().is_some_and(|old| old.starts_with(&bytes) || bytes.starts_with(old));
        if !same && id <= last {
            return Err(Trouble::wrong(format!("{name} was made anew, although numbers up to {last} were used")));
        }
    }
    Ok(())
}

/// Files half dead, values in tables and in logs, all of them durable.
fn half_dead(bed: &mut Bed) {
    bed.fill(0..30);
    bed.step(&Op::Flush);
    bed.cool();
    bed.fill((0..30).step_by(3));
    (1..30).step_by(3).for_each(|key| bed.delete(key));
    bed.fill(30..34);
    bed.step(&Op::Sync);
}

/// The index is only in memory when files are deleted: the moves are in logs.
pub fn a03_moves_that_no_table_holds_survive_a_crash_at_every_io(case: &Case) {
    let mut options = case.options();
    options.memtable_bytes = 1 << 20;
    let mut bed = Bed::with(case, options);
    half_dead(&mut bed);
    // Unsynced on top: a prefix of these may be lost, and nothing that was deleted may come back with it.
    bed.fill(20..30);
    (0..4).for_each(|key| bed.delete(key));
    let model = bed.model().clone();
    let images = survives(&bed, &model, |db| (0..2).for_each(|_| db.collect_garbage().unwrap()));
    assert!(images > 100 || !case.separates(), "{images} images");
    bed.check_thoroughly();
}

/// Another thread flushes at every change of the files that GC makes, and the power fails: recorded copies lose their
/// moves, so the index points at the originals.
pub fn a03_copies_that_are_listed_without_their_moves_replace_nothing(case: &Case) {
    let mut bed = Bed::new(case);
    bed.fill(0..20);
    bed.cool();
    bed.fill(0..10);
    bed.fill(20..60);
    let prepared = bed.close();
    let changes = at_every_change(case, Ends::Meanwhile, |at| {
        let bed = prepared.open();
        let (db, fs, lost) = (bed.db().clone(), bed.fs.clone(), Arc::new(Mutex::new(None)));
        let image = Arc::clone(&lost);
        let flush = move || {
            db.put("another key", "so that there is something to flush").unwrap();
            db.flush().unwrap();
            *image.lock().unwrap() = Some(fs.power_loss(Fate::DropUnsynced));
        };
        let acted = at_change(&bed.fs, at, flush, || bed.db().collect_garbage().unwrap());
        if acted == Acted::Never {
            return acted;
        }
        let image = lost.lock().unwrap().take().unwrap();
        let mut bed = Bed::on(case, &image, prepared.model.clone());
        bed.db().delete("another key").unwrap();
        bed.check_thoroughly();
        acted
    });
    assert!(changes > 9 || !case.separates(), "{changes} changes");
}

/// Tables and value files are deleted, new ones are created, the manifest is written all the time.
pub fn a18_a_crash_at_every_io_of_gc_leaves_no_orphan_and_no_number_twice(case: &Case) {
    let mut bed = Bed::new(case);
    half_dead(&mut bed);
    let model = bed.model().clone();
    let images = survives(&bed, &model, |db| {
        db.collect_garbage().unwrap();
        db.flush().unwrap();
        db.collect_garbage().unwrap();
    });
    assert!(images > 100 || !case.separates(), "{images} images");
    bed.check_thoroughly();
}

/// Cleared, merged and garbage-collected. A crash finds all or nothing, and the files of deleted values are deleted.
pub fn a09_a_crash_while_everything_is_cleared_leaves_all_or_nothing(case: &Case) {
    let mut bed = Bed::new(case);
    bed.fill(0..30);
    bed.step(&Op::Sync);
    let clear = [Change::DeleteRange(0, EVERYTHING.bounds())];
    let mut model = bed.model().clone();
    model.begin(&clear);
    let images = survives(&bed, &model, |db| {
        db.delete_range::<&[u8]>(..).unwrap();
        db.compact().unwrap();
        db.collect_garbage().unwrap();
    });
    assert!(images > 50 || !case.separates(), "{images} images");
    bed.driver.model = model;
    bed.check_thoroughly();
}

/// A database with a few commits that were never synced, the last ones of values that take several sectors.
fn unsynced(case: &Case) -> Bed {
    let mut options = case.options();
    options.memtable_bytes = 1 << 20;
    let mut bed = Bed::with(case, options);
    bed.fill(0..10);
    let mut bed = bed.close().open();
    bed.put(3, 200);
    bed.delete(4);
    bed.put(5, 1500);
    bed.put(6, 20);
    bed.put(7, 700);
    bed
}

/// The files that hold what is not durable, and how much of each is: value files, or the log where there are none.
fn grown(bed: &Bed) -> Vec<(String, usize, Vec<u8>)> {
    let old = files(&bed.fs.power_loss(Fate::DropUnsynced));
    let end = if bed.case().separates_at_commit() { ".val" } else { ".log" };
    let grown = files(&bed.fs).into_iter().filter(|(name, _)| name.ends_with(end)).map(|(name, bytes)| {
        let durable = old.get(&name).map_or(0, Vec::len);
        (name, durable, bytes)
    });
    grown.filter(|(_, durable, bytes)| *durable < bytes.len()).collect()
}

fn opens_as_a_prefix(bed: &Bed, image: &MemoryFs, what: &str) {
    let judge = Judge { set: bed.set().clone(), seed: 5, extras: EXTRAS };
    judge.judge(image, bed.model(), Crash::Power, Depth::Quick).unwrap_or_else(|trouble| panic!("{what}: {trouble}"));
}

/// Each file that grew is truncated at any byte of what was not synced; all others are whole.
pub fn b03_a_file_torn_at_any_byte_opens(case: &Case) {
    let bed = unsynced(case);
    let grown = grown(&bed);
    assert!(!grown.is_empty());
    let cuts: usize = grown.iter().map(|(_, durable, bytes)| bytes.len() - durable).sum();
    for (name, durable, bytes) in grown {
        for cut in (durable..bytes.len()).step_by(1 + cuts / 400) {
            let image = bed.fs.power_loss(Fate::KeepAll);
            image.write_durable(&path(&name), &bytes[..cut]);
            opens_as_a_prefix(&bed, &image, &format!("{name} truncated at {cut}"));
        }
    }
}

/// Zeros follow what was written, or replace its end: sectors that were allocated and never written.
pub fn b12_zeros_behind_the_end_of_a_file_are_no_commits(case: &Case) {
    let bed = unsynced(case);
    for (name, durable, bytes) in grown(&bed) {
        for zeros in [1, 7, 22, 23, 100, 511, 512, 4096, 70_000] {
            let image = bed.fs.power_loss(Fate::KeepAll);
            image.write_durable(&path(&name), &[&bytes[..], &vec![0; zeros]].concat());
            opens_as_a_prefix(&bed, &image, &format!("{zeros} zeros behind {name}"));
        }
        // Sectors are lost as wholes, from the first that is not durable on.
        let first = durable.next_multiple_of(512);
        for from in (first..bytes.len()).step_by(512) {
            let image = bed.fs.power_loss(Fate::KeepAll);
            let mut torn = bytes.clone();
            torn[from..].fill(0);
            image.write_durable(&path(&name), &torn);
            opens_as_a_prefix(&bed, &image, &format!("zeros from {from} on in {name}"));
        }
    }
}

/// One keyspace keeps the oldest of many logs alive, which alone holds its commit.
pub fn b05_the_oldest_of_many_logs_is_replayed(case: &Case) {
    let mut bed = Bed::new(case);
    bed.step(&Op::Create(1));
    bed.put_in(1, 1, 100);
    let logs = |bed: &Bed| files(&bed.fs).keys().filter(|name| name.ends_with(".log")).count();
    for round in 0.. {
        assert!(round < 100, "there are only {} logs", logs(&bed));
        if logs(&bed) >= 4 {
            break;
        }
        bed.fill(0..20);
    }
    bed.step(&Op::Sync);
    bed.put(3, 5);
    for (crash, image) in [(Crash::Kill, bed.fs.fork()), (Crash::Power, bed.fs.power_loss(Fate::DropUnsynced))] {
        let judge = Judge { set: bed.set().clone(), seed: 2, extras: EXTRAS };
        judge.judge(&image, bed.model(), crash, Depth::Thorough).unwrap();
    }
}

/// A log with more than a memtable holds is replayed in pieces; a crash may interrupt each of them.
pub fn b06_a_crash_while_a_long_log_is_replayed_loses_nothing(case: &Case) {
    let mut options = case.options();
    options.memtable_bytes = 1 << 20;
    let mut bed = Bed::with(case, options);
    (0..4).for_each(|_| bed.fill(0..40));
    bed.step(&Op::Sync);
    let mut set = bed.set().clone();
    set.database.memtable_bytes = 16 << 10;
    let fs = bed.fs.power_loss(Fate::DropUnsynced);
    let mut camera = Camera::new(&fs, Plan { seed: 9, every: 2, random: 1, only: None });
    drop(Db::open_in(env::simulated(&fs), env::DIR, set.database.clone()).unwrap());
    let images = camera.take();
    assert!(images.len() > 50, "{} images", images.len());
    for image in images {
        examine(&image, bed.model(), &set).unwrap_or_else(|trouble| panic!("{image}: {trouble}"));
    }
}

/// Recovery from a crash during GC crashes too, at every change it makes; a few times a third time.
pub fn b10_a_crash_within_the_recovery_of_gc_loses_nothing(case: &Case) {
    let mut bed = Bed::new(case);
    half_dead(&mut bed);
    let mut camera = Camera::new(&bed.fs, Plan { seed: 11, every: 29, random: 1, only: None });
    bed.collect();
    bed.step(&Op::Flush);
    let (images, mut report) = (camera.take(), Report::default());
    let judge = Judge { set: bed.set().clone(), seed: 4, extras: EXTRAS };
    let sizes = nested::NestedSizes { every: 2, third_every: 100, random: 1 };
    for image in &images {
        let examined = nested::examine(&judge, image, bed.model(), sizes, &mut report);
        examined.unwrap_or_else(|trouble| panic!("{image}: {trouble}"));
    }
    let crashes = report.of("crashes in recovery");
    assert!(crashes > 20 || !case.separates(), "{crashes} crashes in recovery");
}
