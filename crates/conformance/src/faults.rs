//! What errors and damage leave: everything that was not hit, and an error that says what was.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use bifold::{Access, Db, Error};
use bifold_io::{
    faulty::{Fault, FaultKind, FaultyFs, Persistence},
    memory::Fate,
    pins::READERS,
};
use bifold_sim::{
    env,
    history::{Op, key_bytes},
    judge::{Depth, Judge, no_orphans},
    model::{Crash, Model},
    read::Trouble,
};

use crate::{
    Case,
    support::{Bed, EVERYTHING, EXTRAS, Prepared, compare, contents, files, holders, path, spec},
};

fn prepared(case: &Case) -> Prepared {
    let mut bed = Bed::new(case);
    bed.fill(0..24);
    bed.step(&Op::Flush);
    bed.cool();
    bed.fill(12..20);
    (0..4).for_each(|key| bed.delete(key));
    bed.close()
}

/// Opens a copy of `prepared`, whose calls can be made to fail.
fn open(prepared: &Prepared) -> (FaultyFs, bifold_io::memory::MemoryFs, Db) {
    let memory = prepared.fs.fork();
    let faulty = FaultyFs::over_memory(memory.clone());
    let env = env::over(Arc::new(faulty.clone()));
    let db = Db::open_in(env, env::DIR, prepared.set.database.clone()).unwrap();
    (faulty, memory, db)
}

/// GC of everything, and then a flush.
fn collect(db: &Db) -> bifold::Result<()> {
    db.collect_garbage()?;
    db.flush()
}

/// Every call that GC makes fails: once, or together with all that follow.
pub fn a17_an_error_within_gc_is_reported_and_loses_nothing(case: &Case) {
    let prepared = prepared(case);
    let (faulty, _, db) = open(&prepared);
    let before = faulty.calls();
    collect(&db).unwrap();
    let last = faulty.calls();
    assert!(last - before > 25 || !case.separates(), "{} calls", last - before);
    let kinds = [FaultKind::EIO, FaultKind::ENOSPC, FaultKind::ShortWrite];
    for at in before + 1..=last {
        let lasting = if at % 2 == 0 { Persistence::Once } else { Persistence::Calls(20_000) };
        for (kind, persistence) in [(FaultKind::EIO, Persistence::Once), (kinds[at as usize % 3], lasting)] {
            let fault = Fault { at, kind, persistence };
            fails(&prepared, fault).unwrap_or_else(|trouble| panic!("{fault:?}: {trouble}"));
        }
        let fault = Fault { at, kind: FaultKind::ENOSPC, persistence: lasting };
        finds_no_room(&prepared, fault).unwrap_or_else(|trouble| panic!("{fault:?} where room is known: {trouble}"));
    }
}

/// On a disk that reports its free space: GC that finds it full leaves nothing behind, and can be repeated.
fn finds_no_room(prepared: &Prepared, fault: Fault) -> Result<(), Trouble> {
    let (faulty, memory, db) = open(prepared);
    memory.set_capacity(Some(memory.used_bytes() + (64 << 20)));
    faulty.plan(fault);
    let answer = collect(&db);
    let stays = faulty.injected().iter().any(|(_, op, path)| only_keeps_a_file(op, path));
    faulty.clear();
    if db.stats().poisoned.is_none() {
        // More is free than before, so what waits is tried again.
        memory.set_capacity(Some(memory.used_bytes() + (128 << 20)));
        collect(&db)?;
        db.sync()?;
        if !stays {
            no_orphans(&memory, env::DIR.as_ref(), &db)
                .map_err(|trouble| trouble.during("files after the second try"))?;
        }
        compare(&db, &prepared.model).map_err(|trouble| trouble.during("reading after the second try"))?;
    } else if answer.is_ok() {
        return Err(Trouble::wrong("poisoned, and nothing was reported"));
    }
    drop(db);
    let judge = Judge { set: prepared.set.clone(), seed: 1, extras: EXTRAS };
    judge.judge(&memory, &prepared.model, Crash::Kill, Depth::Quick).map(drop)
}

/// Whether a failure of this call only leaves a file to the next opening: one that cannot be removed is counted, and
/// one stays while the pins of readers cannot be listed, and its length is asked for.
fn only_keeps_a_file(op: &str, path: &Path) -> bool {
    ["remove", "look up"].contains(&op) || path.ends_with(READERS)
}

fn fails(prepared: &Prepared, fault: Fault) -> Result<(), Trouble> {
    let (faulty, memory, db) = open(prepared);
    faulty.plan(fault);
    let answer = collect(&db);
    let hits = faulty.injected();
    faulty.clear();
    let stats = db.stats();
    let is_shown = stats.poisoned.is_some() || !stats.left_out.is_empty();
    let is_reported = answer.is_err() || is_shown || hits.iter().all(|(_, op, path)| only_keeps_a_file(op, path));
    if !is_reported {
        return Err(Trouble::wrong(format!("{hits:?} were not reported")));
    }
    compare(&db, &prepared.model).map_err(|trouble| trouble.during("reading after the error"))?;
    // What deletes nothing is a write like any other.
    match (stats.poisoned, db.delete("no key")) {
        (Some(_), Err(Error::Poisoned { .. })) | (None, Ok(())) => {}
        (poisoned, answer) => {
            return Err(Trouble::wrong(format!("poisoned: {poisoned:?}, and a delete answers {answer:?}")));
        }
    }
    let lost = memory.power_loss(Fate::DropUnsynced);
    drop(db);
    let judge = Judge { set: prepared.set.clone(), seed: 1, extras: EXTRAS };
    judge.judge(&lost, &prepared.model, Crash::Power, Depth::Quick).map_err(|trouble| trouble.during("power lost"))?;
    judge
        .judge(&memory, &prepared.model, Crash::Kill, Depth::Quick)
        .map_err(|trouble| trouble.during("opened again"))?;
    Ok(())
}

/// `verify`, opening for reading only, reading everything and closing change no byte of a sound database.
pub fn a19_verifying_and_reading_change_no_byte(case: &Case) {
    let mut bed = Bed::new(case);
    bed.fill(0..30);
    bed.collect();
    bed.fill(10..40);
    let model = bed.model().clone();
    let killed = bed.fs.fork();
    for fs in [killed, bed.close().fs] {
        let before = files(&fs);
        let report = bifold::verify_in(&env::simulated(&fs), env::DIR, |_| {}).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        let frozen = bifold::Options { access: Access::ReadOnly, ..case.options() };
        let db = Db::open_in(env::simulated(&fs), env::DIR, frozen).unwrap();
        compare(&db, &model).unwrap();
        assert!(matches!(db.collect_garbage(), Err(Error::ReadOnly)), "GC ran in a read-only database");
        db.close().unwrap();
        assert!(files(&fs) == before, "files changed");
    }
}

/// The disk fills up; then half is deleted, and GC gives the space back.
pub fn c12_a_full_disk_can_be_emptied_by_gc(case: &Case) {
    let mut bed = Bed::new(case);
    bed.fill(0..50);
    let (fs, mut model, set) = (bed.fs.clone(), bed.model().clone(), bed.set().clone());
    fs.set_capacity(Some(fs.used_bytes() + (1 << 20)));
    let mut tag = 1;
    loop {
        let (key, value) = (key_bytes(tag), spec(u32::from(tag), 900));
        model.begin(&[bifold_sim::model::Change::Put(0, key.clone(), value)]);
        match bed.db().put(&key, value.bytes()) {
            Ok(()) => {}
            Err(Error::Full { .. }) => break,
            Err(error) => panic!("put {tag}: {error}"),
        }
        model.acknowledge(bifold::Durability::Buffered);
        tag += 1;
        assert!(tag < 2000, "the disk never filled");
    }
    assert!(bed.db().stats().poisoned.is_none(), "puts were refused too late");
    drop(bed);
    let frozen = bifold::Options { access: Access::ReadOnly, ..set.database.clone() };
    let db = Db::open_in(env::simulated(&fs), env::DIR, frozen).unwrap();
    let found = contents(&db);
    let head = model.check(&found, Crash::Kill).unwrap_or_else(|mismatch| panic!("{mismatch}"));
    drop(db);
    model.cut_back_to(head);
    let mut bed = Bed::on(case, &fs, model);
    bed.check();
    let of_data = |bed: &Bed| {
        let space = bed.db().stats().space;
        fs.used_bytes() - space.manifest_bytes - space.appends_bytes - space.reserve_bytes
    };
    let full = of_data(&bed);
    bed.delete_range(EVERYTHING);
    bed.step(&Op::Compact);
    bed.collect();
    bed.fill(0..20);
    let left = of_data(&bed);
    assert!(left < full / 2, "{left} of {full} bytes are left");
    bed.check_thoroughly();
}

/// A copy of `prepared` with one flipped bit, opened; `None` when opening reported it.
fn damaged(prepared: &Prepared, name: &str, bit: u64) -> Option<Db> {
    let fs = prepared.fs.power_loss(Fate::KeepAll);
    fs.flip_bit(&path(name), bit);
    match Db::open_in(env::simulated(&fs), env::DIR, prepared.set.database.clone()) {
        Ok(db) => Some(db),
        Err(error) => {
            assert_names(&error, name);
            None
        }
    }
}

fn assert_names(error: &Error, name: &str) {
    match error {
        Error::Corruption { path, .. } => {
            assert!(path.ends_with(name), "{name} is damaged, but this was reported: {error}")
        }
        Error::Poisoned { cause } => assert_names(cause, name),
        other => panic!("{name} is damaged, but this was reported: {other}"),
    }
}

/// Bits of all files that hold values: some forty of each file, in all positions of a byte.
fn bits(prepared: &Prepared) -> Vec<(String, u64)> {
    let mut bits = Vec::new();
    for name in holders(&prepared.fs) {
        let len = files(&prepared.fs)[&name].len() as u64 * 8;
        bits.extend((0..len).step_by(len as usize / 40 + 1).map(|bit| (name.clone(), bit)));
    }
    bits
}

/// Reads every key: right, or an error that names the file. Returns the keys that cannot be read.
fn unreadable(db: &Db, model: &Model, name: &str) -> BTreeSet<Box<[u8]>> {
    let tree = model.current(0).unwrap();
    let mut unreadable = BTreeSet::new();
    for key in model.keys(tree) {
        match db.get(key) {
            Ok(found) => {
                let right = model.get(tree, key, model.head());
                bifold_sim::read::expect_value("get", key, right, found.as_deref()).unwrap();
            }
            Err(error) => {
                assert_names(&error, name);
                unreadable.insert(key.into());
            }
        }
    }
    unreadable
}

/// A flipped bit: reads, merges and GC answer right or name the file. What could be read before still can be.
pub fn c13_damage_is_reported_with_its_place_and_spoils_nothing_else(case: &Case) {
    let prepared = prepared(case);
    let mut hits = 0;
    for (name, bit) in bits(&prepared) {
        let Some(db) = damaged(&prepared, &name, bit) else {
            hits += 1;
            continue;
        };
        let before = unreadable(&db, &prepared.model, &name);
        for call in [Db::collect_garbage, Db::compact] {
            if let Err(error) = call(&db) {
                assert_names(&error, &name);
                hits += 1;
            }
        }
        let after = unreadable(&db, &prepared.model, &name);
        assert!(after.is_subset(&before), "bit {bit} of {name}: {:?} became unreadable", after.difference(&before));
        drop(db);
    }
    assert!(hits > 0, "no damage was found");
}

/// A scan over damage yields every key, or ends with an error; it never continues behind one with keys left out.
pub fn c14_an_iterator_leaves_nothing_out_behind_damage(case: &Case) {
    let prepared = prepared(case);
    let tree = prepared.model.current(0).unwrap();
    let head = prepared.model.head();
    for (name, bit) in bits(&prepared) {
        let Some(db) = damaged(&prepared, &name, bit) else { continue };
        let mut right = prepared.model.scan(tree, &EVERYTHING.bounds(), head).into_iter();
        let mut failed = false;
        for pair in db.iter() {
            let pair = match pair {
                Ok(pair) => pair,
                Err(error) => {
                    assert_names(&error, &name);
                    failed = true;
                    continue;
                }
            };
            assert!(!failed, "bit {bit} of {name}: the scan went on behind an error");
            let (key, spec) = right.next().unwrap();
            assert_eq!(pair.key(), key, "bit {bit} of {name}");
            match pair.value() {
                Ok(value) => assert!(spec.is(&value), "bit {bit} of {name}: a wrong value of {}", key.escape_ascii()),
                Err(error) => assert_names(&error, &name),
            }
        }
        assert!(failed || right.next().is_none(), "bit {bit} of {name}: the scan ended early");
    }
}

/// Commits were synced, a later one followed, and the process was killed before any file was recorded again: a
/// flipped bit among their values is damage, not the end of the log.
pub fn b04_damage_before_a_synced_commit_drops_none_behind_it(case: &Case) {
    let mut options = case.options();
    options.memtable_bytes = 1 << 20;
    let mut bed = Bed::with(case, options);
    bed.fill(0..20);
    bed.step(&Op::Sync);
    bed.put(0, 1);
    bed.step(&Op::Sync);
    let killed = Prepared { case: case.clone(), fs: bed.fs.fork(), model: bed.model().clone(), set: bed.set().clone() };
    let names: Vec<String> = files(&killed.fs).into_keys().filter(|name| name.ends_with(".val")).collect();
    assert_eq!(names.is_empty(), !case.separates_at_commit());
    let mut hits = 0;
    for name in &names {
        let bits = files(&killed.fs)[name].len() as u64 * 8;
        for bit in (0..bits).step_by(bits as usize / 60 + 1) {
            let spoilt = damaged(&killed, name, bit).map(|db| unreadable(&db, &killed.model, name).len());
            hits += u32::from(spoilt != Some(0));
        }
    }
    assert!(hits > 0 || names.is_empty(), "no damage was found");
}
