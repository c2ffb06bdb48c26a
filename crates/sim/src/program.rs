//! The program `bifold` as users get it, with system calls of its commands failing from outside ([`crate::trace`]).
//!
//! A killed process leaves a database. Then one command runs on it, and its N-th call that concerns the directory
//! fails, once or from then on. Required: the command ends by itself, with success, or with exit code 1 or 2 and a
//! message that names a file; no panic. If it succeeds, its output is the same as without a fault. Afterwards
//! everything is still there, including what the command did if it succeeded.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use bifold::{Db, KeyspaceOptions, Options, PlacementKind, Workers};

use crate::{
    random::Random,
    read::Trouble,
    report::{Report, guarded, time_is_up},
    syscalls::{copy, ended_well},
    trace::{self, Counted, Deed, Fault, Lasts, Traced},
};

/// One command, and the effect of its success.
struct CommandCase {
    words: &'static [&'static str],
    /// Whether the output is the same each time.
    prints: bool,
    after: Effect,
}

/// What has changed after success.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Nothing,
    Put,
    Deleted,
}

const DB: &str = "DB";
const COPY: &str = "COPY";

const ACTS: &[CommandCase] = &[
    CommandCase { words: &["put", DB, "new", "value of new"], prints: false, after: Effect::Put },
    CommandCase { words: &["get", DB, "key/007"], prints: true, after: Effect::Nothing },
    CommandCase { words: &["del", DB, "key/007"], prints: false, after: Effect::Deleted },
    CommandCase { words: &["scan", DB], prints: true, after: Effect::Nothing },
    CommandCase { words: &["export", DB, "--format", "tsv"], prints: true, after: Effect::Nothing },
    CommandCase { words: &["stats", DB], prints: false, after: Effect::Nothing },
    CommandCase { words: &["verify", DB], prints: false, after: Effect::Nothing },
    CommandCase { words: &["compact", DB], prints: false, after: Effect::Nothing },
    CommandCase { words: &["gc", DB], prints: false, after: Effect::Nothing },
    CommandCase { words: &["checkpoint", DB, COPY], prints: false, after: Effect::Nothing },
];

const KEYS: usize = 60;

const PLACEMENTS: [PlacementKind; 7] = PlacementKind::ALL;

/// The program in the same directory as this one, where `cargo build -p bifold-cli` puts it.
///
/// # Errors
/// That it does not exist.
pub fn next_to_this() -> Result<PathBuf, Trouble> {
    let this = crate::kill::this_program()?;
    let program = this.with_file_name("bifold");
    if program.is_file() {
        return Ok(program);
    }
    Err(Trouble::wrong(format!("{} does not exist: run `cargo build --release -p bifold-cli`", program.display())))
}

fn key(n: usize) -> String {
    format!("key/{n:03}")
}

fn value(n: usize) -> String {
    format!("{n} ").repeat(20 + n * 13 % 700)
}

/// One command, one database, one directory.
struct Stage<'a> {
    program: &'a Path,
    act: &'a CommandCase,
    root: PathBuf,
    kept: PathBuf,
}

impl<'a> Stage<'a> {
    fn new(program: &'a Path, seed: u64) -> Result<Self, Trouble> {
        let act = &ACTS[(seed % ACTS.len() as u64) as usize];
        let root = trace::scratch().join(format!("bifold-program-{}-{seed}", std::process::id()));
        let stage = Self { program, act, kept: root.with_extension("kept"), root };
        drop(fs::remove_dir_all(&stage.root));
        fs::create_dir_all(&stage.root).map_err(|e| Trouble::wrong(e.to_string()))?;
        let placement = PLACEMENTS[(seed / ACTS.len() as u64 % PLACEMENTS.len() as u64) as usize];
        let keyspace = KeyspaceOptions { placement, ..KeyspaceOptions::default() };
        let db = Db::open_with(stage.root.join("db"), Options { keyspace, ..calm() })?;
        for n in 0..KEYS {
            db.put(key(n), value(n))?;
            if n == KEYS / 2 {
                db.flush()?;
            }
        }
        // As the system has it if the process is killed now.
        copy(&stage.root, &stage.kept)?;
        drop(db);
        Ok(stage)
    }

    fn run(&self, fault: Option<Fault>) -> Result<Traced, Trouble> {
        copy(&self.kept, &self.root)?;
        let mut command = Command::new(self.program);
        for word in self.act.words {
            match *word {
                DB => command.arg(self.root.join("db")),
                COPY => command.arg(self.root.join("copy")),
                word => command.arg(word),
            };
        }
        let traced = trace::run(command, &self.root, Counted::All, fault)?;
        ended_well(&traced, &self.root)?;
        Ok(traced)
    }

    /// Runs the command with a fault and checks what it leaves.
    fn check(&self, fault: Fault, undisturbed: &Traced, report: &mut Report) -> Result<(), Trouble> {
        let traced = self.run(Some(fault))?;
        report.count("system calls of the program made to fail", u64::from(traced.done.is_some()));
        let success = traced.status.success();
        report.count(if success { "commands that ended well all the same" } else { "commands that said why not" }, 1);
        if success && self.act.prints && traced.out != undisturbed.out {
            return Err(Trouble::wrong(format!("a different answer with success, after {:?}", traced.done)));
        }
        let db =
            Db::open_with(self.root.join("db"), calm()).map_err(|e| Trouble::from(e).during("opening afterwards"))?;
        for n in 0..KEYS {
            let found = db.get(key(n))?;
            let is_deleted = self.act.after == Effect::Deleted && n == 7;
            match found {
                Some(found) if found == value(n).as_str() && !(is_deleted && success) => {}
                None if is_deleted => {}
                _ => return Err(Trouble::wrong(format!("{} has changed, after {:?}", key(n), traced.done))),
            }
        }
        if self.act.after == Effect::Put && success && db.get("new")?.is_none_or(|found| found != "value of new") {
            return Err(Trouble::wrong(format!("the new value is missing, after {:?}", traced.done)));
        }
        Ok(())
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        drop((fs::remove_dir_all(&self.root), fs::remove_dir_all(&self.kept)));
    }
}

fn calm() -> Options {
    Options { workers: Workers::Caller, memory_limit: 16 << 20, ..Options::default() }
}

fn fault(call: u64, number: u64) -> Fault {
    let lasts = if number.is_multiple_of(2) { Lasts::Once } else { Lasts::FromThenOn };
    Fault { at: call, deed: Deed::Fail { number: number / 2, lasts } }
}

/// Runs the seed's command on the seed's placement, and fails one in `every` of its calls.
#[must_use]
pub fn run(program: &Path, seed: u64, every: u64) -> Report {
    let mut report = Report::default();
    let made = guarded(|| {
        let stage = Stage::new(program, seed)?;
        let undisturbed = stage.run(None).map_err(|t| t.during("undisturbed"))?;
        Ok((stage, undisturbed))
    });
    let (stage, undisturbed) = match made {
        Ok(made) => made,
        Err(trouble) => {
            report.fail(format!("program --seed {seed}"), &trouble);
            return report;
        }
    };
    let mut random = Random::new(seed, "program");
    for call in (random.within(1, every + 1)..=undisturbed.calls).step_by(every as usize) {
        let number = random.below(16);
        if let Err(trouble) = guarded(|| stage.check(fault(call, number), &undisturbed, &mut report)) {
            let replay = format!("program --seed {seed} --call {call} --error {number}");
            report.fail(replay, &trouble.during(format!("{:?}, call {call}", stage.act.words)));
        }
        if !report.failures.is_empty() || time_is_up() {
            break;
        }
    }
    report
}

/// Repeats one failure.
#[must_use]
pub fn replay(program: &Path, seed: u64, call: Option<u64>, number: Option<u64>) -> Report {
    let Some(call) = call else { return run(program, seed, 1) };
    let mut report = Report::default();
    let outcome = guarded(|| {
        let stage = Stage::new(program, seed)?;
        let undisturbed = stage.run(None)?;
        stage.check(fault(call, number.unwrap_or(0)), &undisturbed, &mut report)
    });
    if let Err(trouble) = outcome {
        report.fail("program (as given)", &trouble);
    }
    report
}
