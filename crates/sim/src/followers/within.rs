//! A writer works while a reader is between two of its calls.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use bifold::{Db, Durability, Options};
use bifold_io::faulty::FaultyFs;

use super::reading;
use crate::{
    env, judge,
    model::Contents,
    options::OptionSet,
    random::Random,
    read::{self, Trouble},
    report::{Report, time_is_up},
};

/// A reader stops at one in so many of its calls; other seeds choose others.
const EVERY: u64 = 7;

const KEYS: u64 = 30;

/// A writer, and the states that its commits have led to since it was asked last.
struct Writing {
    db: Db,
    random: Random,
    states: Vec<Contents>,
}

impl Writing {
    /// Overwrites, deletes, flushes, merges, collects. Everything that was there before is in other files afterwards.
    fn burst(&mut self) -> Result<(), Trouble> {
        for _ in 0..12 {
            let key = format!("key{:03}", self.random.below(KEYS));
            if self.random.chance(20) {
                self.db.delete(&key)?;
            } else {
                let len = self.random.below(400) as usize;
                self.db.put(&key, format!("{:06}{}", self.random.below(1_000_000), "v".repeat(len)))?;
            }
            self.states.push(read::contents(&self.db)?);
        }
        self.db.flush()?;
        self.db.compact()?;
        self.db.sync()?;
        Ok(())
    }
}

/// Opens and refreshes readers, each with a burst of the writer in between two of its calls.
///
/// # Errors
/// What is wrong.
pub fn run(seed: u64, report: &mut Report) -> Result<(), Trouble> {
    let fs = env::disk(seed);
    let options = OptionSet::new(seed, 1, Durability::Buffered).database;
    let options = Options { memtable_bytes: options.memtable_bytes.min(8 << 10), ..options };
    let db = Db::open_in(env::simulated(&fs), env::DIR, options.clone())?;
    let writing =
        Arc::new(Mutex::new(Writing { db: db.clone(), random: Random::new(seed, "bursts"), states: Vec::new() }));
    let hold = || writing.lock().unwrap_or_else(PoisonError::into_inner);
    hold().burst()?;
    for first in 1 + seed % EVERY..=EVERY * 12 {
        if !first.is_multiple_of(EVERY) || time_is_up() {
            continue;
        }
        let reads = FaultyFs::over_memory(fs.clone());
        let stop_at = |call: u64| {
            let (writing, done) = (Arc::clone(&writing), AtomicBool::new(false));
            reads.decide_by(Box::new(move |at| {
                if at.number >= call && !done.swap(true, Ordering::AcqRel) {
                    let burst = writing.lock().unwrap_or_else(PoisonError::into_inner).burst();
                    assert!(burst.is_ok(), "the writer fails: {burst:?}");
                }
                None
            }));
        };
        let begin = hold().states.split_off(0).pop().into_iter().collect();
        hold().states = begin;
        stop_at(first);
        let opened = Db::open_in(env::over(Arc::new(reads.clone())), env::DIR, reading(&options));
        let mut reader = opened.map_err(|e| Trouble::from(e).during(format!("opened over call {first}")))?;
        let mut now = read::contents(&reader)?;
        let mut seen = one_of(&now, &hold().states).map_err(|t| t.during(format!("opened over call {first}")))?;
        report.count("opened over a burst", 1);
        for later in [1, 3, 6, 10, 15, 21, 28, 36] {
            stop_at(reads.calls() + later + first % 3);
            let refreshed = reader.refresh().map_err(|e| Trouble::from(e).during(format!("refreshed over {later}")))?;
            // What is read here may be where the writer goes on, so nothing is held meanwhile.
            now = read::contents(&reader)?;
            let newer = one_of(&now, &hold().states[seen..])?;
            seen += newer;
            if !refreshed.is_newer && newer > 0 {
                return Err(Trouble::wrong("a refresh says that there is nothing newer"));
            }
            hold().burst()?;
            if read::contents(&reader)? != now {
                return Err(Trouble::wrong("a reader that was not refreshed sees another state"));
            }
            report.count("refreshed over a burst", 1);
        }
        reads.clear();
    }
    drop(writing);
    let followers = db.stats().followers;
    if followers.readers + followers.held_files > 0 {
        return Err(Trouble::wrong(format!("no reader is left, but {followers:?} are counted")));
    }
    judge::no_orphans(&fs, env::DIR.as_ref(), &db)?;
    db.close()?;
    judge::verify_is_clean(&fs)
}

/// Which of `states` a reader has seen.
fn one_of(seen: &Contents, states: &[Contents]) -> Result<usize, Trouble> {
    let missing = || Trouble::wrong(format!("a reader sees the state after none of the last {} commits", states.len()));
    states.iter().position(|state| state == seen).ok_or_else(missing)
}
