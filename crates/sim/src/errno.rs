//! Every call of the file system fails: a history is run once to count its calls and then again and again, each time
//! with another call failing, once or from then on.
//!
//! Required: no panic; no wrong answer, before or after; the error is reported, by the call that found it or in
//! `stats().poisoned`; nothing is retried endlessly; after a failed sync no write is accepted; opened again without
//! the fault, the files hold everything acknowledged, also after a power loss.

use bifold_io::{
    Env,
    faulty::{Call, Decider, Fault, FaultKind, FaultyFs, Persistence},
    fs::APPENDS_NAME,
    memory::{Fate, MemoryFs},
    pins::READERS,
};

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    driver::{Blind, Driver},
    env::{self, StepClock},
    feed::Feed,
    history::{Extras, Flavor, History, Mix, Op},
    judge::{Depth, Judge},
    model::{CommitNo, Crash, Mismatch, Model},
    nested,
    options::OptionSet,
    read::{self, Trouble},
    report::{Report, guarded, time_is_up},
};

/// What is run for each seed.
#[derive(Clone, Copy, Debug)]
pub struct ErrnoSizes {
    /// One in `every` calls is made to fail; other seeds choose others.
    pub every: u64,
}

impl ErrnoSizes {
    /// One call in seven.
    #[must_use]
    pub fn usual() -> Self {
        Self { every: 7 }
    }
}

const MIX: Mix = Mix { ops: 60, keys: 40, flavor: Flavor::Files };

/// The errors of a failing call.
const KINDS: [FaultKind; 5] =
    [FaultKind::EIO, FaultKind::ENOSPC, FaultKind::EMFILE, FaultKind::EINTR, FaultKind::ShortWrite];

/// A lasting fault ends after this many calls. A history makes a few thousand. A run that gets there keeps retrying
/// without reporting an error, and would never end if the fault did not.
const LASTING: Persistence = Persistence::Calls(LASTING_CALLS);
const LASTING_CALLS: u64 = 20_000;

/// The fault number `number` at `call`: each kind once, and each from then on.
fn fault_at(call: u64, number: u64) -> Fault {
    let kinds = KINDS.len() as u64;
    let persistence = if (number / kinds).is_multiple_of(2) { Persistence::Once } else { LASTING };
    Fault { at: call, kind: KINDS[(number % kinds) as usize], persistence }
}

/// The history of a seed.
#[must_use]
pub fn history(seed: u64) -> History {
    // A dropped handle cannot report its last error.
    let history = History::new(seed, MIX);
    let ops = history.ops.into_iter().filter(|(_, op)| *op != Op::Abandon).collect();
    History { ops, ..history }
}

/// Runs the history of `seed` once for each call chosen.
#[must_use]
pub fn run(seed: u64, sizes: ErrnoSizes) -> Report {
    let mut report = Report::default();
    let calls = match guarded(|| calls_of(seed)) {
        Ok(calls) => calls,
        Err(trouble) => {
            report.fail(format!("errno --seed {seed}"), &trouble);
            return report;
        }
    };
    for call in (seed % sizes.every + 1..=calls).step_by(sizes.every as usize) {
        report.merge(run_one(seed, call, call / sizes.every + seed));
        if !report.failures.is_empty() || time_is_up() {
            break;
        }
    }
    report
}

/// Repeats one failure, or all calls of a seed.
#[must_use]
pub fn replay(seed: u64, call: Option<u64>, fault: Option<u64>) -> Report {
    match call {
        Some(call) => run_one(seed, call, fault.unwrap_or(0)),
        None => run(seed, ErrnoSizes { every: 1 }),
    }
}

/// Runs the history of `seed` once for each sync of the directory, with that sync failing.
#[must_use]
pub fn without_names(seed: u64) -> Report {
    let mut report = Report::default();
    let calls = Arc::<Mutex<Vec<u64>>>::default();
    let seen = Arc::clone(&calls);
    let look = move |call: &Call<'_>| {
        if call.op == SYNC_DIR {
            seen.lock().unwrap_or_else(PoisonError::into_inner).push(call.number);
        }
        None
    };
    if let Err(trouble) = guarded(|| calls_seen_by(seed, Some(Box::new(look)))) {
        report.fail(format!("errno --seed {seed}"), &trouble);
    }
    let calls = calls.lock().unwrap_or_else(PoisonError::into_inner).clone();
    calls.into_iter().for_each(|call| report.merge(run_one(seed, call, 0)));
    report
}

/// The name of the call that makes names durable.
const SYNC_DIR: &str = "sync directory";

/// How many calls the history of a seed makes when none fails.
fn calls_of(seed: u64) -> Result<u64, Trouble> {
    calls_seen_by(seed, None)
}

fn calls_seen_by(seed: u64, decider: Option<Decider>) -> Result<u64, Trouble> {
    let faulty = FaultyFs::over_memory(env::disk(seed));
    decider.into_iter().for_each(|decider| faulty.decide_by(decider));
    let mut driver = driver(seed, &faulty);
    driver.open()?;
    history(seed).ops.iter().try_for_each(|(_, op)| driver.step(op))?;
    driver.close()?;
    Ok(faulty.calls())
}

fn driver(seed: u64, faulty: &FaultyFs) -> Driver<Blind> {
    let set = OptionSet::of(&history(seed), 0);
    // A disk in memory keeps what each round of a circle writes.
    let clock = StepClock::default();
    clock.allow(LOOKS_MAX);
    let env = Env { clock: Arc::new(clock), ..env::over(Arc::new(faulty.clone())) };
    Driver::new(env, env::DIR.as_ref(), set, Model::default(), Blind)
}

/// So often may a run look at the clock; none that ends does so a tenth as often.
const LOOKS_MAX: u64 = 200_000;

fn run_one(seed: u64, call: u64, number: u64) -> Report {
    let mut report = Report::default();
    let fault = fault_at(call, number);
    let outcome = guarded(|| ErrnoRun::new(seed, fault).run(&mut report));
    if let Err(trouble) = outcome {
        report
            .fail(format!("errno --seed {seed} --call {call} --fault {number}"), &trouble.during(format!("{fault:?}")));
    }
    report
}

struct ErrnoRun {
    seed: u64,
    fault: Fault,
    memory: MemoryFs,
    faulty: FaultyFs,
    driver: Driver<Blind>,
    /// Whether an error was reported, or none had to be.
    reported: bool,
}

/// A call that failed: number, operation, path.
type Hit = (u64, &'static str, PathBuf);

/// How a run continues after an error.
enum Ending {
    Going,
    Over,
}

impl ErrnoRun {
    fn new(seed: u64, fault: Fault) -> Self {
        let memory = env::disk(seed);
        let faulty = FaultyFs::over_memory(memory.clone());
        faulty.plan(fault);
        Self { seed, fault, memory, driver: driver(seed, &faulty), faulty, reported: false }
    }

    /// The first call that failed.
    fn hit(&self) -> Option<Hit> {
        self.faulty.injected().into_iter().next()
    }

    fn run(mut self, report: &mut Report) -> Result<(), Trouble> {
        if let Ending::Going = self.open()? {
            self.steps(report)?;
        }
        let Some(hit) = self.hit() else { return Ok(()) };
        report.count("faults injected", 1);
        if self.faulty.calls() >= self.fault.at + LASTING_CALLS {
            return Err(Trouble::wrong(format!("{hit:?} failed, and the run retried until the fault ended")));
        }
        let Self { seed, fault, memory, driver, reported, .. } = self;
        let (model, set) = driver.into_parts();
        let judge = Judge { set, seed, extras: Extras::of(seed) };
        let is_sync = hit.1.starts_with("sync");
        // Always after a failed sync: bytes that it left only in the system's cache must become durable before they
        // are served.
        let is_thorough = is_sync || (seed + fault.at).is_multiple_of(8);
        let depth = if is_thorough { Depth::Thorough } else { Depth::Quick };
        let lost = memory.power_loss(Fate::DropUnsynced);
        judge
            .judge(&memory.fork(), &model, Crash::Kill, depth)
            .map_err(|t| t.during("then opened without the fault"))?;
        judge.judge(&lost, &model, Crash::Power, depth).map_err(|t| t.during("then power was lost"))?;
        if is_sync {
            // And they must become durable before anything that depends on them: recovery writes one keyspace's
            // tables after another's.
            let every = 3 + fault.at % 5;
            nested::examine_killed(&judge, &memory.fork(), &model, every, report)
                .map_err(|t| t.during(format!("{hit:?} failed, then opened without the fault")))?;
        }
        // A file that cannot be removed is only counted (`stats().space.failed_removals`) and left to the next
        // opening; the checks above have found it removed by then.
        // If the pins of readers cannot be listed, a file stays as if one held it.
        // If `APPENDS` cannot be created or stored to, appends are plain ones: nothing has failed.
        // What an append region could not write at first stays there and is written later, by this process or the
        // next. The checks above cover what was acknowledged, after a kill and after a power loss.
        let is_kept = hit.1 == "append to" && env::has_append_region(seed);
        let tidying = is_kept
            || hit.1 == "remove"
            || hit.2.ends_with(READERS)
            || (hit.2.ends_with(APPENDS_NAME) && ["create", "reserve", "store to"].contains(&hit.1));
        if reported || tidying {
            Ok(())
        } else {
            Err(Trouble::wrong(format!("{hit:?} failed and no error was reported")))
        }
    }

    /// Opens the database. If a fault that does not last prevents that, a second attempt must succeed.
    fn open(&mut self) -> Result<Ending, Trouble> {
        match self.driver.open() {
            Err(Trouble::Refused(_)) => self.reported = true,
            other => return other.map(|()| Ending::Going),
        }
        match self.driver.open() {
            Err(Trouble::Refused(_)) if self.fault.persistence == LASTING => Ok(Ending::Over),
            Err(trouble) => Err(trouble.during("second attempt to open")),
            Ok(()) => Ok(Ending::Going),
        }
    }

    fn steps(&mut self, report: &mut Report) -> Result<(), Trouble> {
        for (at, op) in &history(self.seed).ops {
            let before = self.driver.model.head();
            let had_failed = self.hit().is_some();
            let outcome = self.driver.step(op);
            // A hint that cannot open its file is dropped. The read that it announced opens the file again, and its
            // answer is compared with the model's. A checkpoint is read, too.
            let is_read = |path: &Path| op.only_reads() || (*op == Op::Checkpoint && !path.starts_with(env::DIR));
            let hint_failed = !had_failed && self.hit().is_some_and(|hit| hit.1 == "open" && is_read(&hit.2));
            self.reported |= hint_failed && outcome.is_ok();
            let place = format!("operation {at} ({op})");
            match outcome {
                Err(Trouble::Refused(error)) if self.hit().is_none() => {
                    return Err(Trouble::wrong(format!("{place}: refused without a fault: {error}")));
                }
                Err(Trouble::Refused(_)) => {
                    self.reported = true;
                    report.count("errors returned", 1);
                    if let Ending::Over = self.aftermath(before, report).map_err(|t| t.during(&place))? {
                        return Ok(());
                    }
                }
                other => other.map_err(|t| t.during(&place))?,
            }
            // Background work reports its errors here. The next write would report them too, but a reopen may come
            // first.
            self.reported |= self.driver.is_open() && {
                let stats = self.driver.db().stats();
                stats.poisoned.is_some() || !stats.left_out.is_empty() || stats.space.unanswered > 0
            };
        }
        match self.driver.close() {
            Err(Trouble::Refused(_)) => self.reported = true,
            other => other?,
        }
        Ok(())
    }

    /// After an error: either no more writes are accepted, or what failed has not happened and everything else
    /// continues.
    fn aftermath(&mut self, before: CommitNo, report: &mut Report) -> Result<Ending, Trouble> {
        if !self.driver.is_open() {
            return Ok(Ending::Over);
        }
        let head = self.driver.model.head();
        let contents = match read::contents(self.driver.db()) {
            Ok(contents) => Some(contents),
            Err(Trouble::Refused(_)) => None,
            Err(wrong) => return Err(wrong),
        };
        let mismatch = |m: Mismatch| Trouble::wrong(format!("after the error: {m}"));
        let model = &self.driver.model;
        let seen = match (&contents, self.driver.set().keeps_all_changes()) {
            (None, _) => None,
            (Some(contents), None) => Some(model.check_between(contents, before..=head).map_err(mismatch)?),
            (Some(contents), Some(all)) => match Feed::read(self.driver.db()) {
                Err(Trouble::Refused(_)) => None,
                feed => Some(feed?.check_between(contents, (model, all), before..=head)?),
            },
        };
        let stats = self.driver.db().stats();
        self.reported |= !stats.left_out.is_empty() || stats.space.unanswered > 0;
        if stats.poisoned.is_some() {
            report.count("databases poisoned", 1);
            return match self.driver.db().put("one more", "write") {
                Err(bifold::Error::Poisoned { .. }) => Ok(Ending::Over),
                other => Err(Trouble::wrong(format!("a poisoned database answers {other:?} to a put"))),
            };
        }
        // The file of a large value that cannot be synced is deleted, and nothing names it.
        let is_large = |path: &Path| path.extension().is_some_and(|extension| extension == "large");
        let must_end = |(_, op, path): &Hit| op.starts_with("sync") && path.starts_with(env::DIR) && !is_large(path);
        if let Some(hit) = self.hit().filter(must_end) {
            return Err(Trouble::wrong(format!("it accepts writes although {hit:?} failed")));
        }
        match (seen, &contents) {
            (Some(n), Some(contents)) => {
                self.driver.model.cut_back_to(n);
                self.driver.model.resolve_as(contents);
                Ok(Ending::Going)
            }
            _ => Ok(Ending::Over),
        }
    }
}
