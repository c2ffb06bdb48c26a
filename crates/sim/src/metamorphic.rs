//! One history under many option sets: each must answer exactly as the model does, so all answer alike.

use std::sync::Arc;

use bifold_io::{
    Env,
    faulty::{Fault, FaultKind, FaultyFs, Persistence},
    memory::MemoryFs,
};

use crate::{
    driver::{Blind, Driver},
    env::{self, StepClock},
    history::{Flavor, History, Mix},
    model::Model,
    options::OptionSet,
    read::Trouble,
    report::{Report, guarded},
};

/// How many option sets each history runs under.
pub const SETS: u64 = 6;

/// Operations of each history.
const MIX: Mix = Mix { ops: 400, keys: 90, flavor: Flavor::Reads };

/// Attempts to shorten a failing history.
const SHRINK_TRIES_MAX: usize = 400;

/// No operation makes this many calls of the file system. A whole run makes about 40 000, and the longest of 6.5
/// million operations made 21 000: a GC of everything after an opening. An operation that reaches the limit loops,
/// and would do so forever: then every call fails, which ends background work, and the run is a failure.
const CALLS_MAX: u64 = 60_000;

/// Nor does it read the clock this often, which every piece of background work does. This finds loops without calls
/// of the file system.
const LOOKS_MAX: u64 = 200_000;

/// Runs the history of `seed` under all its option sets.
#[must_use]
pub fn run(seed: u64) -> Report {
    let mut report = Report::default();
    let history = history(seed);
    for set in 0..SETS {
        report.count("runs", 1);
        report.count("operations", history.ops.len() as u64);
        if let Err(trouble) = run_one(&history, set) {
            let short = history.shrunk(SHRINK_TRIES_MAX, |h| run_one(h, set).is_err());
            let replay = format!("metamorphic --seed {seed} --set {set} --keep {}", short.kept());
            let trouble = run_one(&short, set).err().unwrap_or(trouble);
            report.fail(replay, &trouble);
        }
    }
    report
}

/// Runs a history, or a shortened one, under option set number `set`.
///
/// # Errors
/// The operation that failed, and how.
pub fn run_one(history: &History, set: u64) -> Result<(), Trouble> {
    let options = OptionSet::of(history, set);
    guarded(|| {
        let fs = MemoryFs::default();
        let limited = FaultyFs::new(Arc::new(fs.clone()));
        let clock = Arc::new(StepClock::default());
        let env = Env { clock: Arc::<StepClock>::clone(&clock), ..env::over(Arc::new(limited.clone())) };
        let mut driver = Driver::new(env, env::DIR.as_ref(), options.clone(), Model::default(), Blind);
        driver.open().map_err(|t| t.during("first open"))?;
        for (at, op) in &history.ops {
            limited.clear();
            let at_last = limited.calls() + CALLS_MAX;
            clock.allow(LOOKS_MAX);
            limited.plan(Fault { at: at_last, kind: FaultKind::EIO, persistence: Persistence::Sticky });
            driver.step(op).map_err(|t| t.during(format!("operation {at} ({op})")))?;
        }
        limited.clear();
        clock.allow(LOOKS_MAX);
        driver.compare_everything().map_err(|t| t.during("at the end"))?;
        driver.step(&crate::history::Op::Reopen).map_err(|t| t.during("reopen at the end"))?;
        driver.compare_everything().map_err(|t| t.during("after the last reopen"))?;
        driver.close()?;
        crate::judge::verify_is_clean(&fs)
    })
}

/// The history of `seed`.
#[must_use]
pub fn history(seed: u64) -> History {
    History::new(seed, MIX).with_changes_of_options()
}
