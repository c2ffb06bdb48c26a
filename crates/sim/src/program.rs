//! The program `bifold` as users get it, with system calls of its commands failing from outside ([`crate::trace`]).
//!
//! A killed process leaves a database. Then one command runs on it, and its N-th call that concerns the directory
//! fails, once or from then on. Required: the command ends by itself, with success, or with exit code 1 or 2 and a
//! message that names a file; no panic. If it succeeds, its output is the same as without a fault, but for figures that
//! differ each time. Afterwards everything is still there, including what the command did if it succeeded: a checkpoint
//! is opened and has all of it, too.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use bifold::{Db, IfMissing, KeyspaceOptions, Options, PlacementKind, Workers};

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
    prints: Prints,
    after: Effect,
}

/// What is the same each time in the output of a command that succeeds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Prints {
    /// Nothing is required to be.
    Figures,
    /// All of it.
    Answer,
    /// All but how long it took, which comes last.
    AnswerAndTime,
}

impl Prints {
    /// The part of the output that is the same each time.
    fn same_of(self, out: &[u8]) -> String {
        let out = String::from_utf8_lossy(out).into_owned();
        match self {
            Self::Figures => String::new(),
            Self::Answer => out,
            Self::AnswerAndTime => out.rsplit_once(" in ").map_or(out.clone(), |(answer, _)| answer.to_owned()),
        }
    }
}

/// What has changed after success.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Nothing,
    Put,
    Deleted,
    Copied,
}

const DB: &str = "DB";
const COPY: &str = "COPY";

const ACTS: &[CommandCase] = &[
    CommandCase { words: &["put", DB, "new", "value of new"], prints: Prints::Figures, after: Effect::Put },
    CommandCase { words: &["get", DB, "key/007"], prints: Prints::Answer, after: Effect::Nothing },
    CommandCase { words: &["del", DB, "key/007"], prints: Prints::Figures, after: Effect::Deleted },
    CommandCase { words: &["scan", DB], prints: Prints::Answer, after: Effect::Nothing },
    CommandCase { words: &["export", DB, "--format", "tsv"], prints: Prints::Answer, after: Effect::Nothing },
    CommandCase { words: &["stats", DB], prints: Prints::Figures, after: Effect::Nothing },
    CommandCase { words: &["verify", DB], prints: Prints::AnswerAndTime, after: Effect::Nothing },
    CommandCase { words: &["compact", DB], prints: Prints::Figures, after: Effect::Nothing },
    CommandCase { words: &["gc", DB], prints: Prints::Figures, after: Effect::Nothing },
    CommandCase { words: &["checkpoint", DB, COPY], prints: Prints::Figures, after: Effect::Copied },
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

    /// Where the command that copies the database puts the copy.
    fn copy(&self) -> PathBuf {
        self.root.join("copy")
    }

    fn run(&self, fault: Option<Fault>) -> Result<Traced, Trouble> {
        copy(&self.kept, &self.root)?;
        let mut command = Command::new(self.program);
        for word in self.act.words {
            match *word {
                DB => command.arg(self.root.join("db")),
                COPY => command.arg(self.copy()),
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
        let answer = |out: &[u8]| self.act.prints.same_of(out);
        if success && answer(&traced.out) != answer(&undisturbed.out) {
            return Err(Trouble::wrong(format!("a different answer with success, after {:?}", traced.done)));
        }
        let during = |trouble: Trouble| trouble.during(format!("after {:?}", traced.done));
        self.has_all(&self.root.join("db"), success).map_err(during)?;
        if success && self.act.after == Effect::Copied {
            self.has_all(&self.copy(), success).map_err(|t| during(t.during("the copy")))?;
        }
        Ok(())
    }

    /// Opens a database and requires everything that was there, and what a command did that succeeded.
    fn has_all(&self, dir: &Path, success: bool) -> Result<(), Trouble> {
        let options = Options { if_missing: IfMissing::Fail, ..calm() };
        let db = Db::open_with(dir, options).map_err(|e| Trouble::from(e).during("opening afterwards"))?;
        for n in 0..KEYS {
            let found = db.get(key(n))?;
            let is_deleted = self.act.after == Effect::Deleted && n == 7;
            match found {
                Some(found) if found == value(n).as_str() && !(is_deleted && success) => {}
                None if is_deleted => {}
                _ => return Err(Trouble::wrong(format!("{} has changed", key(n)))),
            }
        }
        if self.act.after == Effect::Put && success && db.get("new")?.is_none_or(|found| found != "value of new") {
            return Err(Trouble::wrong("the new value is missing"));
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

#[cfg(test)]
mod tests {
    use super::*;

    const CHECKPOINT: u64 = 9;
    const VERIFY: u64 = 6;

    /// Runs `program` as if it were the command of this seed, and judges it. What it should have printed is what
    /// `right` makes of its output. `None` where programs cannot be traced.
    fn judged(program: &str, seed: u64, right: impl Fn(&str) -> String) -> Option<Result<(), Trouble>> {
        if let Err(why) = trace::availability() {
            println!("skipped: {why}");
            return None;
        }
        let stage = Stage::new(Path::new(program), seed).unwrap();
        let mut traced = stage.run(None).unwrap();
        traced.out = right(&String::from_utf8_lossy(&traced.out)).into_bytes();
        Some(stage.check(fault(u64::MAX, 0), &traced, &mut Report::default()))
    }

    #[test]
    fn a_checkpoint_that_says_it_succeeded_must_be_there() {
        assert!(ACTS[CHECKPOINT as usize].words.contains(&"checkpoint"));
        // It succeeds and does nothing.
        let Some(outcome) = judged("true", CHECKPOINT, str::to_owned) else { return };
        let trouble = outcome.unwrap_err().to_string();
        assert!(trouble.contains("the copy"), "{trouble}");
    }

    #[test]
    fn verification_that_says_it_succeeded_must_have_read_the_same() {
        assert!(ACTS[VERIFY as usize].words.contains(&"verify"));
        // It prints the arguments.
        let Some(outcome) = judged("echo", VERIFY, str::to_owned) else { return };
        outcome.unwrap();
        let outcome = judged("echo", VERIFY, |out| out.replace("verify", "verify another"));
        assert!(outcome.is_some_and(|outcome| outcome.is_err()));
    }

    #[test]
    fn how_long_it_took_is_no_part_of_an_answer() {
        let same = |read: &str, took: &str| {
            Prints::AnswerAndTime.same_of(format!("db: sound, read {read} in {took}\n").as_bytes())
        };
        assert_eq!(same("8 B in 3 files", "0.1 s"), same("8 B in 3 files", "2.0 s"));
        assert_ne!(same("8 B in 3 files", "0.1 s"), same("8 B in 2 files", "0.1 s"));
    }
}
