//! Kills and errors at the N-th system call, from outside, of a real process on the real disk, and of its recovery.
//!
//! A writer acknowledges commits. At its N-th call that changes the directory it is killed, or that call fails
//! ([`crate::trace`]). Another process opens what is left and is killed at its M-th call, and so may a third. Then
//! the database is verified as it is, opened and compared: everything acknowledged is there, and batches are whole. A
//! checkpoint has what was acknowledged before it. Nobody ever closes the database. A program stopped by a failing call
//! must report it: exit code 1 and a message that names a file.
//!
//! Most writers have one thread, so N is the same call in each run. For the others N is still the same, but what the
//! other thread is doing then may differ.

mod said;
#[cfg(test)]
mod tests;

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use bifold::{Db, Durability, Error, Keyspace, KeyspaceOptions, Options, PlacementKind, Workers};
use bifold_io::fs::APPENDS_NAME;

use self::said::Said;
use crate::{
    commits::{Commits, written_by},
    model::{CommitNo, Model, NAMES},
    options::OptionSet,
    random::Random,
    read::{self, Trouble},
    report::{Report, guarded, time_is_up},
    trace::{self, Counted, Deed, Fault, Lasts, Traced},
};

/// Commits of each writer thread.
const COMMITS: CommitNo = 40;

/// What happens after commits whose number is a multiple of this: a flush, a compaction, a checkpoint.
const FLUSH_EVERY: CommitNo = 11;
const COMPACT_EVERY: CommitNo = 17;
const CHECKPOINT_EVERY: CommitNo = 29;

const PLACEMENTS: [PlacementKind; 7] = PlacementKind::ALL;

/// What is run for each seed.
#[derive(Clone, Copy, Debug)]
pub struct SyscallSizes {
    /// The writer is killed at one in `every` of its calls; other seeds choose others.
    pub every: u64,
    /// How many recoveries are killed for each database left by a kill.
    pub recoveries: u64,
    /// One in `errors_every` calls of the writer is made to fail, and as many of a recovery.
    pub errors_every: u64,
}

impl SyscallSizes {
    /// Some calls of each seed.
    #[must_use]
    pub fn usual() -> Self {
        Self { every: 29, recoveries: 2, errors_every: 31 }
    }
}

/// The place of one failure.
#[derive(Clone, Copy, Debug, Default)]
pub struct FailurePlace {
    /// The call of the writer.
    pub call: u64,
    /// The error that it fails with, and for how long; `None`: the writer is killed.
    pub error: Option<u64>,
    /// The call of the recovery.
    pub recovery: Option<u64>,
    /// The error that this one fails with; `None`: it is killed.
    pub recovery_error: Option<u64>,
    /// The call of the next recovery.
    pub again: Option<u64>,
}

/// The options of a seed: placement, threads and everything else.
fn options(seed: u64) -> Options {
    let mut options = OptionSet::new(seed, 0, Durability::Buffered).database;
    options.keyspace = keyspace(options.keyspace, seed);
    options.workers = if has_threads(seed) { Workers::Threads(2) } else { Workers::Caller };
    options
}

fn keyspace(mut keyspace: KeyspaceOptions, seed: u64) -> KeyspaceOptions {
    keyspace.placement = PLACEMENTS[(seed % PLACEMENTS.len() as u64) as usize];
    keyspace.values.separate_from_bytes = Some(64);
    keyspace
}

fn has_threads(seed: u64) -> bool {
    (seed / PLACEMENTS.len() as u64) % 4 == 3
}

fn writers(seed: u64) -> u8 {
    if has_threads(seed) { 2 } else { 1 }
}

fn durability(seed: u64, n: CommitNo) -> Durability {
    if (seed ^ n).is_multiple_of(3) { Durability::Sync } else { Durability::Buffered }
}

/// The writer: a process of its own. It ends without closing anything.
///
/// # Errors
/// The database's.
pub fn write(dir: &Path, seed: u64) -> Result<(), Trouble> {
    let db = Db::open_with(dir, options(seed))?;
    let second = db.keyspace(NAMES[1], keyspace(options(seed).keyspace, seed + 1))?;
    let trees = [db.default_keyspace().clone(), second];
    let outcome = std::thread::scope(|scope| {
        let (db, trees) = (&db, &trees);
        let threads: Vec<_> =
            (0..writers(seed)).map(|w| scope.spawn(move || write_all(dir, db, trees, seed, w))).collect();
        threads.into_iter().try_for_each(|w| w.join().unwrap_or_else(|_| Err(Trouble::wrong("a writer panicked"))))
    });
    std::mem::forget((db, trees));
    outcome
}

fn write_all(dir: &Path, db: &Db, trees: &[Keyspace; 2], seed: u64, writer: u8) -> Result<(), Trouble> {
    let commits = Commits::batches_of(seed);
    for n in 1..=COMMITS {
        commits.commit((db, trees), (writer, n), durability(seed, n))?;
        acknowledge(writer, n)?;
        if n.is_multiple_of(FLUSH_EVERY) {
            db.flush()?;
        }
        if n.is_multiple_of(COMPACT_EVERY) {
            db.compact()?;
        }
        if n.is_multiple_of(CHECKPOINT_EVERY) && writer == 0 {
            db.checkpoint(checkpoint_of(dir))?;
            acknowledge(CHECKPOINT, n)?;
        }
    }
    Ok(())
}

/// In place of the writer in an acknowledgement: a checkpoint has been made.
const CHECKPOINT: u8 = u8::MAX;

fn checkpoint_of(dir: &Path) -> PathBuf {
    dir.with_file_name("checkpoint")
}

fn acknowledge(writer: u8, n: CommitNo) -> Result<(), Trouble> {
    use io::Write as _;
    let mut ack = vec![writer];
    ack.extend(n.to_le_bytes());
    let mut out = io::stdout().lock();
    out.write_all(&ack).and_then(|()| out.flush()).map_err(|e| Trouble::wrong(format!("acknowledging: {e}")))
}

/// The recovery: opens the database and ends without closing it.
///
/// # Errors
/// The database's.
pub fn recover(dir: &Path, seed: u64) -> Result<(), Trouble> {
    let db = Db::open_with(dir, options(seed))?;
    std::mem::forget(db);
    Ok(())
}

/// Runs the seed at some of its calls. `program` is `bifold-sim` itself.
#[must_use]
pub fn run(program: &Path, seed: u64, sizes: SyscallSizes) -> Report {
    let mut report = Report::default();
    let calls = match guarded(|| Lab::new(program, seed)?.calls()) {
        Ok(calls) => calls,
        Err(trouble) => {
            report.fail(format!("syscalls --seed {seed}"), &trouble);
            return report;
        }
    };
    let mut random = Random::new(seed, "system calls");
    let mut recovery_calls = RECOVERY_CALLS;
    let kills = (seed % sizes.every + 1..=calls).step_by(sizes.every as usize).map(|call| (call, None));
    let errors = (seed % sizes.errors_every + 1..=calls).step_by(sizes.errors_every as usize);
    let errors = errors.map(|call| (call, Some(call / sizes.errors_every + seed)));
    for (call, error) in kills.chain(errors) {
        let place = FailurePlace { call, error, ..FailurePlace::default() };
        let outcome = at_call((program, seed), place, sizes, (&mut random, &mut recovery_calls), &mut report);
        if let Err((place, trouble)) = outcome.map_err(|failed| *failed) {
            report.fail(format!("syscalls --seed {seed} {}", place.words()), &trouble.during(place.words()));
        }
        if !report.failures.is_empty() || time_is_up() {
            break;
        }
    }
    report
}

/// How many calls a recovery is assumed to make until one has ended undisturbed.
const RECOVERY_CALLS: u64 = 100;

/// Checks what one call of the writer leaves: as it is, and after recoveries that are killed or fail at some call. A
/// recovery that ends before its call gives the number of calls.
fn at_call(
    (program, seed): (&Path, u64),
    place: FailurePlace,
    sizes: SyscallSizes,
    (random, calls): (&mut Random, &mut u64),
    report: &mut Report,
) -> Result<(), Box<(FailurePlace, Trouble)>> {
    let left = guarded(|| Left::new(program, seed, place, report)).map_err(|t| Box::new((place, t)))?;
    guarded(|| left.check(place, report)).map_err(|t| Box::new((place, t)))?;
    for turn in 0..sizes.recoveries {
        let recovery = Some(random.within(1, *calls + 2));
        let recovery_error = turn.is_multiple_of(2).then(|| random.below(16)).filter(|_| place.call.is_multiple_of(2));
        let again = (random.below(3) == 0).then(|| random.within(1, *calls + 1));
        let place = FailurePlace { recovery, recovery_error, again, ..place };
        *calls = guarded(|| left.check(place, report)).map_err(|t| Box::new((place, t)))?.unwrap_or(*calls).max(10);
    }
    Ok(())
}

/// Repeats one failure.
#[must_use]
pub fn replay(program: &Path, seed: u64, place: FailurePlace) -> Report {
    let mut report = Report::default();
    if place.call == 0 {
        return run(program, seed, SyscallSizes::usual());
    }
    let outcome = guarded(|| Left::new(program, seed, place, &mut Report::default())?.check(place, &mut report));
    if let Err(trouble) = outcome {
        report.fail("syscalls (as given)", &trouble);
    }
    report
}

impl FailurePlace {
    /// The command-line options that name it.
    #[must_use]
    pub fn words(&self) -> String {
        let named = [
            ("call", Some(self.call)),
            ("error", self.error),
            ("recovery", self.recovery),
            ("recovery-error", self.recovery_error),
            ("again", self.again),
        ];
        let words = named.iter().filter_map(|(name, number)| Some(format!("--{name} {}", (*number)?)));
        words.collect::<Vec<_>>().join(" ")
    }
}

/// The fault at a call: a kill, or the error of this number.
fn fault(at: u64, error: Option<u64>) -> Fault {
    let deed = error.map_or(Deed::Kill, |number| Deed::Fail {
        number: number / 2,
        lasts: if number.is_multiple_of(2) { Lasts::Once } else { Lasts::FromThenOn },
    });
    Fault { at, deed }
}

/// A directory for the databases of one seed, deleted on drop.
struct Lab<'a> {
    program: &'a Path,
    seed: u64,
    root: PathBuf,
}

impl<'a> Lab<'a> {
    fn new(program: &'a Path, seed: u64) -> Result<Self, Trouble> {
        let root = trace::scratch().join(format!("bifold-syscalls-{}-{seed}", std::process::id()));
        let lab = Self { program, seed, root };
        lab.empty()?;
        Ok(lab)
    }

    fn empty(&self) -> Result<(), Trouble> {
        drop(fs::remove_dir_all(&self.root));
        fs::create_dir_all(&self.root).map_err(|e| Trouble::wrong(format!("{}: {e}", self.root.display())))
    }

    fn dir(&self) -> PathBuf {
        self.root.join("db")
    }

    /// How many calls the writer makes.
    fn calls(&self) -> Result<u64, Trouble> {
        let traced = self.process("write", None)?;
        if !traced.status.success() {
            return Err(Trouble::wrong(format!("a writer without a fault: {}, {}", traced.status, traced.err)));
        }
        Ok(traced.calls)
    }

    /// Runs a process on the database: see [`write()`] and [`recover`].
    fn process(&self, what: &str, fault: Option<Fault>) -> Result<Traced, Trouble> {
        let mut command = Command::new(self.program);
        command.args(["syscalls-child", what]).arg(self.dir()).arg(self.seed.to_string());
        let traced = trace::run(command, &self.root, Counted::Changes, fault)?;
        ended_well(&traced, &self.root).map_err(|t| t.during(what))?;
        Ok(traced)
    }
}

impl Drop for Lab<'_> {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.root));
    }
}

/// A program ends by our kill, by itself, or with exit code 1 or 2 and a message that names a file of `root`. With
/// exit code 1 the file may be named in its output instead, as by `verify` when it could not read a file.
///
/// # Errors
/// How else it ended.
pub fn ended_well(traced: &Traced, root: &Path) -> Result<(), Trouble> {
    let out = String::from_utf8_lossy(&traced.out);
    let names_a_file = |said: &str| said.contains(&*root.to_string_lossy());
    let how = || {
        let said = [out.trim_end(), traced.err.trim_end()].join(" ");
        format!("{}, after {:?}, output: {said}", traced.status, traced.done)
    };
    if traced.err.contains("panicked") {
        return Err(Trouble::wrong(format!("a panic: {}", how())));
    }
    match traced.status.code() {
        None if traced.is_killed() => Ok(()),
        Some(0) => Ok(()),
        Some(1 | 2) if traced.done.is_none() => Err(Trouble::wrong(format!("a refusal without a cause: {}", how()))),
        Some(1 | 2) if names_a_file(&traced.err) => Ok(()),
        Some(1) if names_a_file(&out) => Ok(()),
        Some(1 | 2) => Err(Trouble::wrong(format!("a message that names no file: {}", how()))),
        _ => Err(Trouble::wrong(format!("an unexpected end: {}", how()))),
    }
}

/// What a killed or stopped writer has left.
struct Left<'a> {
    lab: Lab<'a>,
    /// A copy of what the recoveries begin with.
    kept: PathBuf,
    said: Said,
}

impl<'a> Left<'a> {
    fn new(program: &'a Path, seed: u64, place: FailurePlace, report: &mut Report) -> Result<Self, Trouble> {
        let lab = Lab::new(program, seed)?;
        let traced = lab.process("write", Some(fault(place.call, place.error)))?;
        match traced.done {
            Some((_, None)) => report.count("processes killed at a system call", 1),
            Some(_) => report.count("system calls of writers made to fail", 1),
            None => {}
        }
        let said = Said::of(&traced.out, writers(seed));
        report.count("commits acknowledged", said.acked.iter().sum());
        Self::of(lab, said)
    }

    /// What is in the laboratory now, of which a writer has said this.
    fn of(lab: Lab<'a>, said: Said) -> Result<Self, Trouble> {
        let kept = lab.root.with_extension("kept");
        copy(&lab.root, &kept)?;
        Ok(Self { lab, kept, said })
    }

    /// Recovers as `place` says, then opens and compares. Returns how many calls the recovery made, if it was
    /// undisturbed.
    fn check(&self, place: FailurePlace, report: &mut Report) -> Result<Option<u64>, Trouble> {
        copy(&self.kept, &self.lab.root)?;
        let mut calls = None;
        if let Some(call) = place.recovery {
            let traced = self.lab.process("recover", Some(fault(call, place.recovery_error)))?;
            match traced.done {
                Some((_, None)) => report.count("recoveries killed at a system call", 1),
                Some(_) => report.count("system calls of recoveries made to fail", 1),
                None => calls = Some(traced.calls),
            }
        }
        if let Some(call) = place.again {
            let done = self.lab.process("recover", Some(fault(call, None)))?.done;
            report.count("recoveries from those killed too", u64::from(done.is_some()));
        }
        let dir = self.lab.dir();
        // A recovery that was killed while a file had its other name must be completed first.
        let is_halfway = fs::read_dir(&dir).is_ok_and(|files| {
            files.filter_map(Result::ok).any(|file| file.path().extension().is_some_and(|end| end == "again"))
        });
        let acked = &self.said.acked;
        if !is_halfway {
            is_verified(&dir, acked.iter().any(|&n| n > 0))?;
        }
        // One commit more than was acknowledged may have been in progress.
        self.compare(&dir, acked.iter().map(|&n| (n, n + 1)))?;
        if is_halfway {
            is_verified(&dir, true).map_err(|t| t.during("after the recovery"))?;
            report.count("recoveries that were killed with a file under its other name", 1);
        }
        if let Some(has) = &self.said.checkpoint {
            let checkpoint = checkpoint_of(&dir);
            is_verified(&checkpoint, true).map_err(|t| t.during("the checkpoint"))?;
            self.compare(&checkpoint, has.iter().copied()).map_err(|t| t.during("the checkpoint"))?;
            report.count("checkpoints compared", 1);
        }
        report.count("databases compared", 1);
        Ok(calls)
    }

    /// Opens a database and requires of each thread at least its first commit of `has`, and at most its second.
    fn compare(&self, dir: &Path, has: impl Iterator<Item = (CommitNo, CommitNo)>) -> Result<(), Trouble> {
        let db = Db::open_with(dir, calm(self.lab.seed)).map_err(|e| Trouble::from(e).during("the final opening"))?;
        let contents = read::contents(&db).map_err(|t| t.during("the final reading"))?;
        let commits = Commits::batches_of(self.lab.seed);
        for (writer, (first, last)) in has.enumerate() {
            let mut model = Model::default();
            model.begin_create(1);
            for n in 1..=last {
                model.begin(&commits.changes(writer as u8, n));
            }
            if first > 0 {
                model.acknowledge_change();
            }
            let own = written_by(&contents, writer as u8);
            let fits = model.check_between(&own, first..=last);
            fits.map_err(|m| Trouble::wrong(format!("writer {writer}: {m}")))?;
        }
        Ok(())
    }
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.kept));
    }
}

/// The options for checking a database.
fn calm(seed: u64) -> Options {
    Options { workers: Workers::Caller, ..options(seed) }
}

/// Requires that an unrepaired database has no errors, or was never created.
fn is_verified(dir: &Path, must_exist: bool) -> Result<(), Trouble> {
    match bifold::verify(dir) {
        Err(Error::NotFound { .. }) if !must_exist => Ok(()),
        Err(error) => Err(Trouble::from(error).during("verify")),
        Ok(report) => match report.problems.first() {
            None => Ok(()),
            Some(problem) => Err(Trouble::wrong(format!("verify: {problem}"))),
        },
    }
}

/// Replaces the directory `to` with a copy of `from`. `APPENDS` comes first: if the database is open, threads bring
/// bytes from there to the other files, and copied later they could be in none of the copies.
///
/// # Errors
/// The system's.
pub fn copy(from: &Path, to: &Path) -> Result<(), Trouble> {
    fn all(from: &Path, to: &Path) -> io::Result<()> {
        fs::create_dir_all(to)?;
        let mut entries = fs::read_dir(from)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(|entry| entry.file_name() != APPENDS_NAME);
        for entry in entries {
            let target = to.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                all(&entry.path(), &target)?
            } else {
                fs::copy(entry.path(), target)?;
            }
        }
        Ok(())
    }
    drop(fs::remove_dir_all(to));
    all(from, to).map_err(|e| Trouble::wrong(format!("copying {}: {e}", from.display())))
}
