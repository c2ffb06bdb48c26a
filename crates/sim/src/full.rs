//! A full disk: puts until they are refused, which poisons nothing. Then the same process continues, or another one
//! after a kill; or others fill the disk to the last byte, and the process closes the database or is killed.
//!
//! Required: everything acknowledged is there, also on the full disk; a full disk can be opened; half of the entries
//! can be deleted, a compaction frees their space, and puts succeed again, all without any additional room.

use std::path::Path;

use bifold::{Access, Db, Durability, Error, Options};
use bifold_io::memory::MemoryFs;

use crate::{
    env,
    history::key_bytes,
    judge::verify_is_clean,
    model::{Change, Crash, Model},
    options::OptionSet,
    random::Random,
    read::{self, Trouble},
    report::{Report, guarded},
    value::Spec,
};

/// How many different keys are put.
const KEYS: u64 = 1200;

/// The most puts to try: far more than any of the capacities holds.
const PUTS_MAX: u32 = 100_000;

/// Bytes that a compacted database may take beyond its entries plus a quarter: log, and ends of tables. The manifest,
/// which is only rewritten when it has grown past a mebibyte, does not count.
const OVERHEAD_BYTES: u64 = 32 << 10;

/// Fills a disk, empties it, continues.
#[must_use]
pub fn run(seed: u64) -> Report {
    let mut report = Report::default();
    if let Err(trouble) = guarded(|| fill_and_empty(seed, &mut report)) {
        report.fail(format!("full --seed {seed}"), &trouble);
    }
    report
}

fn fill_and_empty(seed: u64, report: &mut Report) -> Result<(), Trouble> {
    let mut random = Random::new(seed, "full");
    let capacity = random.within(800 << 10, 3 << 20);
    let options = OptionSet::new(seed, 0, Durability::Buffered).database;
    let fs = env::disk(seed);
    fs.set_capacity(Some(capacity));
    let mut model = Model::default();
    let db = open(&fs, &options)?;
    let puts = fill(&db, &mut model, &mut random)?;
    report.count("disks filled", 1);
    report.count("puts before they were full", puts);
    if let Some(poisoned) = db.stats().poisoned {
        return Err(Trouble::wrong(format!("puts were refused too late: {poisoned}")));
    }
    check(&db, &mut model).map_err(|t| t.during("reads on the full disk"))?;
    // The seed alone decides, so that a few seeds go all ways.
    let (fs, db) = match seed % 4 {
        0 => (fs, db),
        1 => {
            let left = killed(&fs, db, report);
            let db = opened_after_a_kill(&left, &options, &mut model)?;
            (left, db)
        }
        end => {
            fs.set_capacity(Some(fs.used_bytes()));
            let left = if end == 2 { closed(fs, db) } else { killed(&fs, db, report) };
            filled_by_others(&left, &options, &mut model, report)?;
            left.set_capacity(Some(capacity));
            let db = open(&left, &options).map_err(|t| t.during("open after others have freed their space"))?;
            (left, db)
        }
    };
    empty(&fs, &db, &mut model)?;
    db.put("one more", "write").map_err(|e| Trouble::from(e).during("a put into the emptied database"))?;
    db.close()?;
    verify_is_clean(&fs)
}

/// What the process leaves that has `db` open if it is killed now.
fn killed(fs: &MemoryFs, db: Db, report: &mut Report) -> MemoryFs {
    let left = fs.fork();
    // It closes files that nobody looks at any more.
    drop(db);
    report.count("full disks after a kill", 1);
    left
}

/// What it leaves if it closes the database, or tries to.
fn closed(fs: MemoryFs, db: Db) -> MemoryFs {
    drop(db);
    fs
}

/// The full disk, after its process was killed.
fn opened_after_a_kill(fs: &MemoryFs, options: &Options, model: &mut Model) -> Result<Db, Trouble> {
    let frozen = Options { access: Access::ReadOnly, ..options.clone() };
    check(&open(fs, &frozen).map_err(|t| t.during("open read-only on the full disk"))?, model)?;
    let db = open(fs, options).map_err(|t| t.during("open on the full disk"))?;
    check(&db, model)?;
    Ok(db)
}

/// Others have taken the rest of the disk, to the last byte. With a `RESERVE` it can be opened all the same, and what
/// is refused there is refused before anything changes.
fn filled_by_others(fs: &MemoryFs, options: &Options, model: &mut Model, report: &mut Report) -> Result<(), Trouble> {
    let has_reserve = bifold_io::fs::FileSystem::len(fs, &Path::new(env::DIR).join("RESERVE"))?.is_some();
    match open(fs, options) {
        Err(Trouble::Refused(error)) if !has_reserve && error.is_full() => {
            report.count("disks that others have filled, without a reserve", 1);
        }
        Err(trouble) => return Err(trouble.during("open on a disk that others have filled")),
        Ok(db) => {
            report.count("disks that others have filled", 1);
            check(&db, model)?;
            for key in (0..KEYS as u16).filter(|key| key % 2 == 0) {
                model.begin(&[Change::Delete(0, key_bytes(key))]);
                match db.delete(key_bytes(key)) {
                    Ok(()) => model.acknowledge(Durability::Buffered),
                    Err(Error::Full { .. }) => break,
                    Err(error) => return Err(Trouble::from(error).during("a delete on a disk that others have filled")),
                }
                report.count("deletes there", 1);
            }
            check(&db, model)?;
        }
    }
    let frozen = Options { access: Access::ReadOnly, ..options.clone() };
    check(&open(fs, &frozen).map_err(|t| t.during("open read-only on a disk that others have filled"))?, model)
}

/// Deletes half of the entries and requires that the space is freed.
fn empty(fs: &MemoryFs, db: &Db, model: &mut Model) -> Result<(), Trouble> {
    for key in (0..KEYS as u16).filter(|key| key % 2 == 0) {
        model.begin(&[Change::Delete(0, key_bytes(key))]);
        db.delete(key_bytes(key)).map_err(|e| Trouble::from(e).during("a delete on the full disk"))?;
    }
    db.compact().map_err(|e| Trouble::from(e).during("compaction on the full disk"))?;
    model.acknowledge(Durability::Buffered);
    check(db, model)?;
    let live: u64 = read::contents(db)?.values().flatten().map(|(key, value)| (key.len() + value.len()) as u64).sum();
    let space = db.stats().space;
    let kept = fs.used_bytes() - space.manifest_bytes - space.appends_bytes - space.reserve_bytes;
    if kept > live + live / 4 + OVERHEAD_BYTES {
        return Err(Trouble::wrong(format!("after deletes and compaction {kept} bytes are used for {live} live ones")));
    }
    Ok(())
}

fn open(fs: &MemoryFs, options: &Options) -> Result<Db, Trouble> {
    Ok(Db::open_in(env::simulated(fs), env::DIR, options.clone())?)
}

/// Puts until the database refuses. Returns how many were acknowledged.
fn fill(db: &Db, model: &mut Model, random: &mut Random) -> Result<u64, Trouble> {
    for tag in 0..PUTS_MAX {
        let key = key_bytes(random.below(KEYS) as u16);
        let value = Spec { tag, len: random.within(100, 5000) as u32 };
        model.begin(&[Change::Put(0, key.clone(), value)]);
        match db.put(key, value.bytes()) {
            Ok(()) => model.acknowledge(Durability::Buffered),
            Err(Error::Full { .. }) => return Ok(u64::from(tag)),
            Err(error) => return Err(Trouble::from(error).during(format!("put number {tag}"))),
        }
    }
    Err(Trouble::wrong("the disk never filled"))
}

/// Requires that everything acknowledged is there, and updates the model with whether the failed put is.
fn check(db: &Db, model: &mut Model) -> Result<(), Trouble> {
    let contents = read::contents(db)?;
    let n = model.check(&contents, Crash::Kill).map_err(|m| Trouble::wrong(m.to_string()))?;
    model.cut_back_to(n);
    read::compare_everything(db, model, n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_process_closes_nothing() {
        for seed in [0, 1] {
            let (fs, options) = (env::disk(seed), OptionSet::new(seed, 0, Durability::Buffered).database);
            let db = open(&fs, &options).unwrap();
            db.put("key", "value").unwrap();
            let before = fs.ops();
            let left = killed(&fs, db, &mut Report::default());
            assert_eq!(left.ops(), before, "seed {seed}: calls of closing are in what it leaves");
            assert!(fs.ops() > before, "seed {seed}: closing makes no call");
            let found = open(&left, &options).unwrap().get("key").unwrap();
            assert_eq!(found.as_deref(), Some(&b"value"[..]), "seed {seed}");
        }
    }
}
