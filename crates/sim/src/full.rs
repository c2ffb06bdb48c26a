//! A full disk: puts until nothing more fits, at whatever point of commit, flush or compaction that happens.
//!
//! Demanded: the error is told; opened read-only on the full disk, everything acknowledged is there; with some room again
//! the database opens and works on, and deleting half of it and compacting gives the space back.

use bifold::{Access, Db, Durability, Options};
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

/// Different keys that are put.
const KEYS: u64 = 600;

/// Puts that are given up after: far more than any of the capacities holds.
const PUTS_MAX: u32 = 100_000;

/// Bytes that a compacted database may take beside a quarter more than its pairs: log, and table ends. The manifest, which
/// is written anew only when it has grown past a mebibyte, is not counted.
const OVERHEAD_BYTES: u64 = 24 << 10;

/// Fills a disk, empties it, goes on.
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
    let capacity = random.within(100 << 10, 600 << 10);
    let options = OptionSet::new(seed, 0, Durability::Buffered).database;
    let fs = env::disk(seed);
    let mut model = Model::default();
    let db = open(&fs, &options)?;
    fs.set_capacity(Some(capacity));
    let puts = fill(&db, &mut model, &mut random)?;
    report.count("disks filled", 1);
    report.count("puts before they were full", puts);
    if db.stats().poisoned.is_none() {
        return Err(Trouble::wrong("the disk is full and `poisoned` is not set"));
    }
    drop(db);

    let frozen = Options { access: Access::ReadOnly, ..options.clone() };
    check(&open(&fs, &frozen).map_err(|t| t.during("open read-only on the full disk"))?, &mut model)?;
    fs.set_capacity(Some(capacity * 2));
    let db = open(&fs, &options).map_err(|t| t.during("open with room again"))?;
    check(&db, &mut model)?;
    for key in (0..KEYS as u16).filter(|key| key % 2 == 0) {
        model.begin(&[Change::Delete(0, key_bytes(key))]);
        db.delete(key_bytes(key))?;
    }
    db.compact()?;
    model.acknowledge(Durability::Buffered);
    check(&db, &mut model)?;
    let live: u64 = read::contents(&db)?.values().flatten().map(|(key, value)| (key.len() + value.len()) as u64).sum();
    let space = db.stats().space;
    let kept = fs.used_bytes() - space.manifest_bytes - space.appends_bytes;
    if kept > live + live / 4 + OVERHEAD_BYTES {
        return Err(Trouble::wrong(format!("after deletes and compaction {kept} bytes are kept for {live} live ones")));
    }
    db.put("one more", "write")?;
    db.close()?;
    verify_is_clean(&fs)
}

fn open(fs: &MemoryFs, options: &Options) -> Result<Db, Trouble> {
    Ok(Db::open_in(env::simulated(fs), env::DIR, options.clone())?)
}

/// Puts until the database refuses. Answers how many were acknowledged.
fn fill(db: &Db, model: &mut Model, random: &mut Random) -> Result<u64, Trouble> {
    for tag in 0..PUTS_MAX {
        let key = key_bytes(random.below(KEYS) as u16);
        let value = Spec { tag, len: random.within(100, 1500) as u32 };
        model.begin(&[Change::Put(0, key.clone(), value)]);
        if db.put(key, value.bytes()).is_err() {
            return Ok(u64::from(tag));
        }
        model.acknowledge(Durability::Buffered);
    }
    Err(Trouble::wrong("the disk never filled"))
}

/// Demands that everything acknowledged is there, and settles whether the put that failed is.
fn check(db: &Db, model: &mut Model) -> Result<(), Trouble> {
    let contents = read::contents(db)?;
    let n = model.check(&contents, Crash::Kill).map_err(|m| Trouble::wrong(m.to_string()))?;
    model.cut_back_to(n);
    read::compare_everything(db, model, n)
}
