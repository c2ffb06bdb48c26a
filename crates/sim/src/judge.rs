//! Judges what a crash left: opens it and requires everything that was promised.
//!
//! 1. It opens, with the same options and no help.
//! 2. It holds the state after some commit between floor and head ([`crate::model`]).
//! 3. Every way of reading gives that state.
//! 4. No unreferenced file is left, and `verify` finds nothing wrong.
//! 5. What it serves survives a power loss right after (recovery makes durable what it serves).
//! 6. It continues to work: more operations, closed, opened, read.
//! 7. `verify` finds nothing wrong before anything is repaired, either. It may refuse where there is no database yet,
//!    and where a crash in a recovery has left a file under its other name.

use std::path::Path;

use bifold::{Db, Error, Value};
use bifold_format::names;
use bifold_io::{
    FileSystem, LockMode,
    fs::{APPENDS_NAME, Appending, DirLock, DirUse},
    memory::MemoryFs,
};

use crate::{
    driver::{Blind, Driver},
    env,
    feed::Feed,
    history::{Extras, Flavor, History, Mix},
    model::{CommitNo, Contents, Crash, Model},
    options::OptionSet,
    read::{self, Trouble},
};

/// How much is required of one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Points 1, 2 and 4.
    Quick,
    /// All points.
    Thorough,
}

/// What all images of a run have in common.
#[derive(Clone, Debug)]
pub struct Judge {
    /// The options of the run.
    pub set: OptionSet,
    /// The seed of the operations in point 6.
    pub seed: u64,
    /// What else these have.
    pub extras: Extras,
}

impl Judge {
    /// Judges `image`, which `crash` left when the model was as given. Returns the commit whose state it holds.
    ///
    /// # Errors
    /// The first promise that is not kept.
    pub fn judge(&self, image: &MemoryFs, model: &Model, crash: Crash, depth: Depth) -> Result<CommitNo, Trouble> {
        if depth == Depth::Thorough {
            verify_as_found(&image.fork())?;
        }
        let db = self.open(image, model).map_err(|e| e.during("open after the crash"))?;
        let contents = read::contents(&db).map_err(|t| t.during("reading after the crash"))?;
        let n = match self.set.keeps_all_changes() {
            None => model.check(&contents, crash).map_err(|m| Trouble::wrong(m.to_string()))?,
            Some(all) => {
                let allowed = model.floor(crash)..=model.head();
                let found = Feed::read(&db).and_then(|feed| feed.check_between(&contents, (model, all), allowed));
                found.map_err(|t| t.during("the changes after the crash"))?
            }
        };
        let mut recovered = model.recovered(n, &contents);
        self.set.check_stored(&db, &mut recovered)?;
        no_orphans(image, env::DIR.as_ref(), &db)?;
        if depth == Depth::Thorough {
            read::compare_everything(&db, &recovered, n).map_err(|t| t.during("reading every way after the crash"))?;
            self.serves_only_what_is_durable(image, (&recovered, &contents))?;
            drop(db);
            verify_is_clean(image)?;
            self.continues(image, recovered).map_err(|t| t.during("continuing after the crash"))?;
        } else {
            drop(db);
            verify_is_clean(image)?;
        }
        Ok(n)
    }

    fn open(&self, image: &MemoryFs, model: &Model) -> Result<Db, Trouble> {
        Ok(Db::open_in(env::simulated(image), env::DIR, self.set.to_open(model))?)
    }

    fn serves_only_what_is_durable(&self, image: &MemoryFs, of: (&Model, &Contents)) -> Result<(), Trouble> {
        let (model, served) = of;
        let after = env::without_unsynced(image);
        let db = self.open(&after, model).map_err(|t| t.during("open after a second power loss"))?;
        let again = read::contents(&db).map_err(|t| t.during("reading after a second power loss"))?;
        let options = self.set.check_stored(&db, &mut model.clone());
        options.map_err(|t| t.during("reading the options after a second power loss"))?;
        if let Some(difference) = first_difference(served, &again) {
            return Err(Trouble::wrong(format!("served after the crash, then lost with power: {difference}")));
        }
        Ok(())
    }

    fn continues(&self, image: &MemoryFs, model: Model) -> Result<(), Trouble> {
        let mix = Mix { ops: 25, keys: 40, flavor: Flavor::Files };
        let more = History::with_extras(self.seed ^ model.head(), mix, self.extras);
        let mut driver = Driver::new(env::simulated(image), env::DIR.as_ref(), self.set.clone(), model, Blind);
        driver.open()?;
        for (at, op) in &more.ops {
            driver.step(op).map_err(|t| t.during(format!("{at} {op}")))?;
        }
        driver.close()?;
        driver.open()?;
        driver.compare_everything()
    }
}

fn first_difference(a: &Contents, b: &Contents) -> Option<String> {
    if !a.keys().eq(b.keys()) {
        return Some(format!("keyspaces {:?} became {:?}", a.keys(), b.keys()));
    }
    let show =
        |entry: Option<&(Box<[u8]>, Value)>| entry.map(|(key, value)| (key.escape_ascii().to_string(), value.len()));
    a.iter().zip(b.values()).find_map(|((name, left), right)| {
        let at = (0..left.len().max(right.len())).find(|&at| left.get(at) != right.get(at))?;
        Some(format!("{name}: entry {at}: {:?} became {:?}", show(left.get(at)), show(right.get(at))))
    })
}

/// Runs the offline check on what a crash has left, before anything repairs it. It may refuse where it cannot know.
fn verify_as_found(image: &MemoryFs) -> Result<(), Trouble> {
    let dir = Path::new(env::DIR);
    let is_new = image.len(&dir.join(names::MANIFEST))?.is_none();
    let is_halfway = || image.files().iter().any(|path| path.extension().is_some_and(|end| end == "again"));
    match verify_is_clean(image) {
        Err(Trouble::Refused(Error::NotFound { .. })) if is_new => Ok(()),
        Err(Trouble::Refused(Error::InvalidArgument { .. })) if is_halfway() => Ok(()),
        verified => verified.map_err(|t| t.during("before the repair")),
    }
}

/// Runs the offline check and requires that it finds nothing.
///
/// # Errors
/// What it finds.
pub fn verify_is_clean(image: &MemoryFs) -> Result<(), Trouble> {
    verify_is_clean_in(image, env::DIR.as_ref())
}

/// The same for the database in `dir`.
///
/// # Errors
/// What it finds.
pub fn verify_is_clean_in(image: &MemoryFs, dir: &Path) -> Result<(), Trouble> {
    let report = bifold::verify_in(&env::simulated(image), dir, |_| {})?;
    match report.problems.first() {
        None => Ok(()),
        Some(problem) => Err(Trouble::wrong(format!("verify: {problem}"))),
    }
}

/// The files, including what is staged for them in the append region, if there is one.
fn written_out(image: &MemoryFs, dir: &Path) -> Result<MemoryFs, Trouble> {
    if image.len(&dir.join(APPENDS_NAME))?.is_none() {
        return Ok(image.clone());
    }
    // As a process killed now leaves them, taken over by another one.
    let files = image.fork();
    let used = DirUse::Write;
    let lock = files.lock(&dir.join("LOCK"), LockMode::Exclusive)?;
    drop(files.append_region(dir, DirLock { lock, used }, Appending::default())?);
    Ok(files)
}

/// Requires that the open database knows every file in the directory.
///
/// # Errors
/// The files that it does not know.
pub fn no_orphans(image: &MemoryFs, dir: &Path, db: &Db) -> Result<(), Trouble> {
    let stats = db.stats();
    let image = &written_out(image, dir)?;
    let known: u64 = stats.keyspaces.iter().flat_map(|k| &k.levels).map(|level| level.tables).sum();
    let mut tables = (0, 0);
    let mut values = (0, 0);
    let (mut large, mut logs) = ((0, 0), 0);
    let mut strange = Vec::new();
    for path in image.list(dir)? {
        let bytes = image.len(&path)?.unwrap_or(0);
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        match name.rsplit_once('.') {
            Some((_, "tbl")) => tables = (tables.0 + 1, tables.1 + bytes),
            Some((_, "val")) => values = (values.0 + 1, values.1 + bytes),
            Some((_, "large")) => large = (large.0 + 1, large.1 + bytes),
            Some((_, "log" | "ingest")) => logs += bytes,
            _ if ["MANIFEST", "LOCK", "RESERVE"].contains(&name) => {}
            _ => strange.push(name.to_owned()),
        }
    }
    let space = &stats.space;
    let known_values = (space.value_files, space.values_bytes);
    if values != known_values {
        return Err(Trouble::wrong(format!("found {values:?} value files and bytes, but {known_values:?} are known")));
    }
    let known_large = (space.large_files + space.kept_large_files, space.large_bytes + space.kept_large_bytes);
    if large != known_large {
        return Err(Trouble::wrong(format!("found {large:?} large values and bytes, but {known_large:?} are known")));
    }
    if tables != (known, space.tables_bytes) || logs != space.logs_bytes || !strange.is_empty() {
        return Err(Trouble::wrong(format!(
            "files left over: {} tables of {} bytes where {known} of {} are known, logs of {logs} bytes where {} are \
             known, strange files {strange:?}",
            tables.0, tables.1, space.tables_bytes, space.logs_bytes
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{path::PathBuf, sync::Arc};

    use bifold::{Durability, PlacementKind};
    use bifold_io::faulty::{Fault, FaultKind, FaultyFs, Persistence};

    use super::*;
    use crate::{
        history::{Op, Write},
        value::Spec,
    };

    /// A database that is open, with values in files and commits in the log.
    fn eight_puts() -> (MemoryFs, Driver<Blind>) {
        let mut set = OptionSet::new(1, 0, Durability::Buffered);
        set.keyspaces[0].placement = PlacementKind::WiscKey;
        set.keyspaces[0].values.separate_from_bytes = Some(1);
        set.database.keyspace = set.keyspaces[0].clone();
        let fs = MemoryFs::default();
        let mut driver = Driver::new(env::simulated(&fs), env::DIR.as_ref(), set, Model::default(), Blind);
        driver.open().unwrap();
        for key in 0..8 {
            driver.step(&Op::Write(Write::Put(0, key, Spec { tag: u32::from(key), len: 300 }))).unwrap();
        }
        (fs, driver)
    }

    #[test]
    fn what_verification_finds_before_the_repair_counts() {
        let (fs, driver) = eight_puts();
        let judge = Judge { set: driver.set().clone(), seed: 1, extras: Extras::default() };
        let judged = |image: &MemoryFs, depth| judge.judge(image, &driver.model, Crash::Kill, depth);
        judged(&fs.fork(), Depth::Thorough).unwrap();
        let is_of_values = |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "val");
        let damaged = fs.fork();
        let path = damaged.files().iter().find(is_of_values).unwrap().clone();
        // No crash leaves this behind the last record; opening cuts it off.
        damaged.write_durable(&path, &[damaged.read(&path).unwrap(), vec![0xA5; 600]].concat());
        judged(&damaged.fork(), Depth::Quick).unwrap();
        let trouble = judged(&damaged, Depth::Thorough).unwrap_err().to_string();
        assert!(trouble.starts_with("before the repair: verify: "), "{trouble}");
    }

    #[test]
    fn verification_may_refuse_only_what_it_cannot_know() {
        let (fs, driver) = eight_puts();
        drop(driver);
        verify_as_found(&MemoryFs::default()).unwrap();
        let log = fs.files().into_iter().find(|path| path.extension().is_some_and(|end| end == "log")).unwrap();
        let halfway = fs.fork();
        halfway.rename(&log, &log.with_extension("log.again")).unwrap();
        verify_as_found(&halfway).unwrap();
        let without = fs.fork();
        without.remove(&Path::new(env::DIR).join(names::MANIFEST)).unwrap();
        assert!(verify_as_found(&without).is_err(), "a database that has lost its manifest");
    }

    /// Whichever call fails, it says so or has read everything.
    #[test]
    fn verification_that_cannot_look_at_a_file_says_so() {
        let (fs, mut driver) = eight_puts();
        driver.close().unwrap();
        let verified = |fault: Option<u64>| {
            let faulty = FaultyFs::over_memory(fs.fork());
            if let Some(at) = fault {
                faulty.plan(Fault { at, kind: FaultKind::EIO, persistence: Persistence::Once });
            }
            let verified = bifold::verify_in(&env::over(Arc::new(faulty.clone())), env::DIR, |_| {});
            (verified.map(|report| (report.files, report.bytes, report.problems.len())), faulty.calls())
        };
        let (right, calls) = verified(None);
        let right = right.unwrap();
        assert!(right.2 == 0 && calls > 10, "{right:?}, {calls} calls");
        for at in 1..=calls {
            if let Ok(found) = verified(Some(at)).0 {
                assert!(found.2 > 0 || found == right, "call {at}: {found:?}, without a fault {right:?}");
            }
        }
    }
}
