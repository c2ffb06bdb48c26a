//! The same seed must do the same I/O, byte for byte. Otherwise no failure can be repeated.

use crate::{
    driver::{Blind, Driver},
    env,
    history::{Flavor, History, Mix},
    model::Model,
    options::OptionSet,
    read::Trouble,
    report::{Report, guarded},
};

const MIX: Mix = Mix { ops: 150, keys: 60, flavor: Flavor::Reads };

/// The history of a seed.
#[must_use]
pub fn history(seed: u64) -> History {
    History::new(seed, MIX)
}

/// Runs the history of `seed` twice and compares the traces.
#[must_use]
pub fn run(seed: u64) -> Report {
    let mut report = Report::default();
    report.count("seeds run twice", 1);
    let outcome = guarded(|| {
        let (first, second) = (trace_of(seed)?, trace_of(seed)?);
        report.count("changes of files traced", first.changes);
        if first != second {
            return Err(Trouble::wrong(format!("first run {first:?}, second run {second:?}")));
        }
        Ok(())
    });
    if let Err(trouble) = outcome {
        report.fail(format!("determinism --seed {seed}"), &trouble);
    }
    report
}

/// All calls of the file system in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trace {
    /// How many changes there were.
    changes: u64,
    /// A hash of all calls, including reads.
    hash: u64,
}

fn trace_of(seed: u64) -> Result<Trace, Trouble> {
    let history = history(seed);
    let set = OptionSet::of(&history, 0);
    let fs = env::disk(seed);
    let mut driver = Driver::new(env::simulated(&fs), env::DIR.as_ref(), set, Model::default(), Blind);
    driver.open()?;
    history.ops.iter().try_for_each(|(_, op)| driver.step(op))?;
    driver.close()?;
    Ok(Trace { changes: fs.ops(), hash: fs.trace_hash() })
}
