//! Damage of every kind to closed and killed databases, under a memory limit.
//!
//! Half of the killed ones have an append region, whose file is damaged like the others.
//!
//! Bits flip. Blocks of 512 and 4096 bytes are zeroed, swapped, or copied from another file or an older state of the
//! file. Files end early, continue with garbage, exist twice or have numbers that no file should have. Lengths,
//! counts and numbers are forged with matching checksums. Then everything that reads a database reads this one.
//!
//! Required for any damage: no panic; no more file system calls than a multiple of what a sound database takes, so
//! nothing loops; never more memory than the files' bytes and the `memory_limit`; every error names a file of the
//! database. Unless checksums were forged, no answer is wrong: each value was once written to its key, a get finds what
//! iterating yields, and a database that opens holds the state after a commit. That state includes all acknowledged
//! commits unless the damage looks like a crash, or a killed process has left the database (see [`Tails`]).

mod mutate;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use bifold::{
    Access, Db, Durability, Error, Options, PlacementKind, Value,
    salvage::{Salvage, SalvageOptions},
};
use bifold_io::{
    faulty::{Fault, FaultKind, FaultyFs, Persistence},
    fs::APPENDS_NAME,
    memory::MemoryFs,
};

pub use self::mutate::{Harm, Mutation};
use crate::{
    allocations::peak_of,
    driver::{Blind, Driver},
    env::{self, Files},
    history::{Flavor, History, Mix, Op},
    model::{CommitNo, Contents, Crash, Entries, Model, NAMES},
    options::OptionSet,
    random::Random,
    read::{self, Trouble},
    report::{Report, guarded, time_is_up},
};

/// What happens to commits behind damage in a killed database, if a crash cannot have caused the damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tails {
    /// They may be lost without an error.
    MayBeLost,
    /// They are there, or an error reports the damage.
    AreKept,
}

/// What the engine promises now. `MayBeLost` as long as any broken record behind the recorded end of a value file
/// counts as torn; `BIFOLD_SIM_TAILS=kept` already requires the other.
#[must_use]
pub fn tails() -> Tails {
    match std::env::var("BIFOLD_SIM_TAILS").as_deref() {
        Ok("kept") => Tails::AreKept,
        _ => Tails::MayBeLost,
    }
}

/// The lowest possible limit.
pub const MEMORY_LIMIT: u64 = 1 << 20;

/// Memory in addition to files and limit: decompression contexts, tables of open files, messages.
const SLACK: u64 = 1 << 20;

/// A damaged database may take this many times the calls of a sound one, plus this many.
const CALLS_FACTOR: u64 = 20;
const CALLS_MORE: u64 = 2000;

/// A seed that takes longer loops without any call.
const HANGS_AFTER: Duration = Duration::from_secs(600);

/// A database with sound files, from a session that was closed or killed.
pub struct Fixture {
    files: Files,
    /// The files at an earlier time.
    older: Files,
    model: Model,
    set: OptionSet,
    is_killed: bool,
}

impl Fixture {
    /// The fixture of a seed.
    ///
    /// # Errors
    /// What went wrong without any damage.
    pub fn new(seed: u64) -> Result<Self, Trouble> {
        let mut history = History::new(seed, Mix { ops: 90, keys: 60, flavor: Flavor::Files });
        history.durability = Durability::Buffered;
        let mut set = OptionSet::of(&history, 0);
        let placement = [
            PlacementKind::Inline,
            PlacementKind::WiscKey,
            PlacementKind::HashKv,
            PlacementKind::NovKv,
            PlacementKind::DiffKv,
            PlacementKind::UniKv,
        ][(seed % 6) as usize];
        // So that other seeds stay what they were.
        let placement = if seed % 13 == 12 { PlacementKind::Streams } else { placement };
        set.keyspaces[0].placement = placement;
        set.keyspaces[0].values.separate_from_bytes = Some(16);
        set.database.keyspace = set.keyspaces[0].clone();
        set.database.memory_limit = MEMORY_LIMIT;
        let is_killed = seed / 6 % 2 == 1;
        let fs = MemoryFs::default();
        fs.set_append_region(is_killed && seed / 12 % 2 == 1);
        let mut driver = Driver::new(env::simulated(&fs), env::DIR.as_ref(), set.clone(), Model::default(), Blind);
        driver.open()?;
        let ops: Vec<Op> = history.ops.into_iter().map(|(_, op)| op).collect();
        let ops: Vec<&Op> = ops.iter().filter(|op| !matches!(op, Op::Checkpoint | Op::Abandon)).collect();
        let (earlier, later) = ops.split_at(ops.len() * 2 / 3);
        earlier.iter().try_for_each(|op| driver.step(op))?;
        let older = env::files_of(&fs, env::DIR.as_ref())?;
        later.iter().try_for_each(|op| driver.step(op))?;
        if !is_killed {
            driver.close()?;
        }
        let files = env::files_of(&fs, env::DIR.as_ref())?;
        Ok(Self { files, older, model: driver.into_parts().0, set, is_killed })
    }

    /// Damage number `number` to the fixture of `seed`.
    #[must_use]
    pub fn change(&self, seed: u64, number: u64) -> Mutation {
        Mutation::new(&self.files, &self.older, &mut Random::new(seed ^ number << 32, "damage"))
    }

    /// No damage.
    #[must_use]
    pub fn unchanged(&self) -> Mutation {
        Mutation { kind: Harm::None, files: self.files.clone(), touched: BTreeSet::new(), what: "nothing".into() }
    }

    /// The counter for checks of this database.
    #[must_use]
    pub fn session(&self) -> &'static str {
        match (self.is_killed, self.has_region()) {
            (false, _) => "closed databases damaged",
            (true, false) => "killed databases damaged",
            (true, true) => "killed databases with an append region damaged",
        }
    }

    fn has_region(&self) -> bool {
        self.files.iter().any(|(path, _)| path.ends_with(APPENDS_NAME))
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    fn options(&self, access: Access) -> Options {
        Options { access, ..self.set.database.clone() }
    }

    /// Checks the requirements for the database with these changes.
    ///
    /// # Errors
    /// The requirement that is not met.
    pub fn check(&self, change: &Mutation, calls: &Calls, report: &mut Report) -> Result<(), Trouble> {
        let look = Look { fixture: self, change, calls };
        report.count(self.session(), 1);
        let reported = look.verify(report).map_err(|t| t.during("verify"))?;
        look.salvage(report).map_err(|t| t.during("salvage"))?;
        look.open(Access::ReadOnly, reported, report).map_err(|t| t.during("read-only"))?;
        look.open(Access::ReadWrite, reported, report).map_err(|t| t.during("open"))
    }

    /// How many calls each check of the sound database takes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn calls(&self) -> Result<Calls, Trouble> {
        let none = self.unchanged();
        let calls = Calls { max: u64::MAX };
        let look = Look { fixture: self, change: &none, calls: &calls };
        let mut most = 0;
        let mut report = Report::default();
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let (_, calls) = look.within(&mut report, |env| self.read_all(env, access))?;
            most = most.max(calls);
        }
        Ok(Calls { max: most * CALLS_FACTOR + CALLS_MORE })
    }

    /// The last commit that nothing but damage may cost.
    fn acknowledged(&self) -> CommitNo {
        self.model.floor(if self.is_killed { Crash::Kill } else { Crash::Power })
    }

    /// Opens and reads in every way. Returns what iterating yields.
    fn read_all(&self, env: &bifold::Env, access: Access) -> Result<Contents, Trouble> {
        let db = Db::open_in(env.clone(), env::DIR, self.options(access))?;
        let stats = db.stats();
        std::hint::black_box(format!("{stats:?}"));
        let contents = read::contents(&db);
        // All gets are made, whatever the first wrong one is: after forged damage a later one may panic.
        let mut judged = Ok(());
        for (at, name) in NAMES.iter().enumerate() {
            let (Some(tree), Some(id)) = (db.existing_keyspace(name)?, self.model.current(at as u8)) else { continue };
            let entries = contents.as_ref().ok().and_then(|contents| contents.get(*name));
            for key in self.model.keys(id) {
                let found = tree.get(key);
                if let Ok(Some(value)) = &found
                    && !self.model.has_ever_held(id, key, value)
                {
                    let what = format!("get {}: a value never written", key.escape_ascii());
                    judged = judged.and(Err(Trouble::wrong(what)));
                }
                judged = judged.and_then(|()| judge_get(key, found, entries));
            }
        }
        judged.and(contents)
    }
}

/// Requires that a get finds what iterating yields, which are these `entries`, or an error that names a file. Without
/// entries iterating has ended with an error.
fn judge_get(key: &[u8], found: bifold::Result<Option<Value>>, entries: Option<&Entries>) -> Result<(), Trouble> {
    let found = match found {
        Ok(found) => found,
        Err(error) => return names_a_file(&error).map_err(|t| t.during(format!("get {}", key.escape_ascii()))),
    };
    let Some(entries) = entries else { return Ok(()) };
    let there = entries.binary_search_by(|(other, _)| (**other).cmp(key)).ok().map(|at| &entries[at].1);
    if found.as_ref() == there {
        return Ok(());
    }
    let len = |value: Option<&Value>| value.map_or("nothing".to_owned(), |value| format!("{} bytes", value.len()));
    let (found, there) = (len(found.as_ref()), len(there));
    Err(Trouble::wrong(format!("get {}: it finds {found}, iterating {there}", key.escape_ascii())))
}

/// How many file system calls a check of a database may take.
#[derive(Clone, Copy, Debug)]
pub struct Calls {
    max: u64,
}

/// A check of one damaged database.
struct Look<'a> {
    fixture: &'a Fixture,
    change: &'a Mutation,
    calls: &'a Calls,
}

impl Look<'_> {
    /// Runs `work` on the damaged files, with bounds on calls and memory. Returns its number of calls as well.
    fn within<T>(
        &self,
        report: &mut Report,
        work: impl FnOnce(&bifold::Env) -> Result<T, Trouble>,
    ) -> Result<(Result<T, Trouble>, u64), Trouble> {
        let fs = env::holding(&self.change.files);
        fs.set_append_region(self.fixture.has_region());
        let faulty = FaultyFs::over_memory(fs);
        faulty.plan(Fault { at: self.calls.max, kind: FaultKind::EIO, persistence: Persistence::Sticky });
        let env = env::over(Arc::new(faulty.clone()));
        let bytes: u64 = self.change.files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        // What is written stays in memory, since the disk is in memory.
        let bound = 3 * bytes.max(self.fixture.bytes()) + MEMORY_LIMIT + SLACK;
        let (outcome, peak) = peak_of(|| guarded(|| work(&env)));
        report.count("looks at damaged databases", 1);
        if faulty.calls() >= self.calls.max {
            return Err(Trouble::wrong(format!("it loops: {} calls", faulty.calls())));
        }
        if peak as u64 > bound {
            return Err(Trouble::wrong(format!(
                "{peak} bytes of memory for files of {bytes}, at most {bound} expected"
            )));
        }
        match outcome {
            Err(Trouble::Wrong(what)) => Err(Trouble::Wrong(what)),
            outcome => Ok((outcome, faulty.calls())),
        }
    }

    fn verify(&self, report: &mut Report) -> Result<Reported, Trouble> {
        let verified = |env: &bifold::Env| Ok(bifold::verify_in(env, env::DIR, |_| {})?);
        let problems = match self.within(report, verified)?.0 {
            Ok(found) => found.problems,
            Err(Trouble::Refused(error)) => vec![error],
            Err(wrong) => return Err(wrong),
        };
        for problem in &problems {
            names_a_file(problem)?;
            report.count("errors that name a damaged file", u64::from(self.names_a_touched_file(problem)));
        }
        report.count("damage that verify tells", u64::from(!problems.is_empty()));
        Ok(if problems.is_empty() { Reported::No } else { Reported::Yes })
    }

    fn salvage(&self, report: &mut Report) -> Result<(), Trouble> {
        let values =
            self.change.files.iter().map(|(path, _)| path).filter(|path| path.extension().is_some_and(|e| e == "val"));
        let values: Vec<&PathBuf> = values.collect();
        let options = SalvageOptions { memory_bytes: MEMORY_LIMIT as usize, ..SalvageOptions::default() };
        let look = |env: &bifold::Env| {
            let found = Salvage::open(env, &values, &options)?.inspect::<Error>(|_| Ok(()), |_| {})?;
            std::hint::black_box(format!("{found:?}"));
            Ok(())
        };
        match self.within(report, look)?.0 {
            Err(Trouble::Refused(error)) => names_a_file(&error),
            other => other,
        }
    }

    fn open(&self, access: Access, reported: Reported, report: &mut Report) -> Result<(), Trouble> {
        let contents = match self.within(report, |env| self.fixture.read_all(env, access)) {
            Err(Trouble::Wrong(_)) if self.change.kind.is_forged() && !self.panicked(access)? => return Ok(()),
            Err(wrong) => return Err(wrong),
            Ok((Ok(contents), _)) => contents,
            // What was forged came to the merge operator. Its error names the key.
            Ok((Err(Trouble::Refused(Error::Merge { .. })), _)) if self.change.kind.is_forged() => return Ok(()),
            Ok((Err(Trouble::Refused(error)), _)) => return names_a_file(&error),
            Ok((Err(wrong), _)) => return Err(wrong),
        };
        if self.change.kind.is_forged() {
            return Ok(());
        }
        report.count("damaged databases that answer", 1);
        let model = &self.fixture.model;
        let fits = model.check_between(&contents, self.floor(reported, tails())..=model.head());
        let state = fits.map_err(|m| Trouble::wrong(m.to_string()))?;
        let is_lost = state < self.fixture.acknowledged();
        let is_silent = is_lost && reported == Reported::No && !self.change.passes_for_a_crash();
        report.count("commits behind damage lost without a word", u64::from(is_silent));
        Ok(())
    }

    /// The first commit whose state the database may hold. What looks like a crash may cost commits. Damage that
    /// verification reports may not, since a database without its commits must not open; except in the logs and the
    /// manifest of a killed database, where nothing may tell which commits there were behind the damage.
    fn floor(&self, reported: Reported, tails: Tails) -> CommitNo {
        let is_known = reported == Reported::Yes && self.change.touched.iter().all(|path| names_commits(path));
        let may_be_lost = self.fixture.is_killed && (is_known || tails == Tails::MayBeLost);
        if may_be_lost || self.change.passes_for_a_crash() { 0 } else { self.fixture.acknowledged() }
    }

    /// Whether more than an answer is wrong with a forged database: forged checksums permit any answer.
    fn panicked(&self, access: Access) -> Result<bool, Trouble> {
        match self.within(&mut Report::default(), |env| self.fixture.read_all(env, access)) {
            Err(Trouble::Wrong(what)) if is_bad_whatever_was_forged(&what) => Err(Trouble::Wrong(what)),
            _ => Ok(false),
        }
    }

    fn names_a_touched_file(&self, error: &Error) -> bool {
        self.change.touched.iter().any(|path| error.to_string().contains(&*path.to_string_lossy()))
    }
}

fn is_bad_whatever_was_forged(what: &str) -> bool {
    ["panic", "it loops", "bytes of memory"].iter().any(|bad| what.contains(bad))
}

/// Whether verification has found anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reported {
    Yes,
    No,
}

/// Requires that an error is of a kind that damage causes, and names the place.
fn names_a_file(error: &Error) -> Result<(), Trouble> {
    let text = error.to_string();
    let is_kind = matches!(
        error,
        Error::Corruption { .. }
            | Error::NewerFormat { .. }
            | Error::Io { .. }
            | Error::NotFound { .. }
            | Error::InvalidArgument { .. }
            | Error::Poisoned { .. }
    );
    // An entry that a table has with a sound checksum is its keyspace's: which table it came from is no longer known.
    if is_kind && (text.contains(env::DIR) || text.contains("keyspace")) {
        return Ok(());
    }
    Err(Trouble::wrong(format!("an error that names no file: {text}")))
}

/// Damages the fixture of `seed` in `times` ways.
#[must_use]
pub fn run(seed: u64, times: u64) -> Report {
    let (done, is_done) = mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        if is_done.recv_timeout(HANGS_AFTER) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("hangs; repeat with: bifold-sim replay damage --seed {seed}");
            std::process::abort();
        }
    });
    let report = run_watched(seed, 0..times);
    drop(done);
    drop(watchdog.join());
    report
}

/// Repeats one failure, or all of a seed.
#[must_use]
pub fn replay(seed: u64, number: Option<u64>) -> Report {
    number.map_or_else(|| run(seed, TIMES), |number| run_watched(seed, number..number + 1))
}

/// How often a seed's database is damaged in a soak.
pub const TIMES: u64 = 100;

fn run_watched(seed: u64, numbers: std::ops::Range<u64>) -> Report {
    let mut report = Report::default();
    let made = guarded(|| {
        let fixture = Fixture::new(seed)?;
        let calls = fixture.calls().map_err(|t| t.during("without damage"))?;
        Ok((fixture, calls))
    });
    let (fixture, calls) = match made {
        Ok(made) => made,
        Err(trouble) => {
            report.fail(format!("damage --seed {seed}"), &trouble);
            return report;
        }
    };
    for number in numbers {
        let change = fixture.change(seed, number);
        let outcome = guarded(|| fixture.check(&change, &calls, &mut report));
        if let Err(trouble) = outcome {
            report.fail(format!("damage --seed {seed} --number {number}"), &trouble.during(&change));
        }
        if !report.failures.is_empty() || time_is_up() {
            break;
        }
    }
    report
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.what)
    }
}

/// Whether a crash can truncate this file.
fn is_appended(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "log" || extension == "val")
}

/// Whether this file says which commits there are.
fn names_commits(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "log") || path.ends_with("MANIFEST")
}
