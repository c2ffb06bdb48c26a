//! Readers look after each change that a writer makes.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use bifold::{Db, Durability, Error, Options};
use bifold_io::{
    faulty::{Fault, FaultKind, FaultyFs, Persistence},
    memory::MemoryFs,
    pins::READERS,
};

use super::{kill, reading};
use crate::{
    driver::{Driver, Watcher},
    env,
    feed::Feed,
    history::{Flavor, History, Mix, Op},
    judge,
    model::{CommitNo, Contents, Crash, Model},
    options::OptionSet,
    random::Random,
    read::{self, Trouble},
    report::Report,
};

const MIX: Mix = Mix { ops: 60, keys: 40, flavor: Flavor::Files };

const KINDS: [FaultKind; 4] = [FaultKind::EIO, FaultKind::ENOSPC, FaultKind::EMFILE, FaultKind::EINTR];

/// Calls of a writer that is to be killed: appends among them write half of their bytes.
const LAST_CALLS: u64 = 12;

/// The reader looks after one in so many changes, on average.
const EVERY: u64 = 6;

/// Runs the history of `seed` twice: to its end, and with the writer killed on the way.
///
/// # Errors
/// What is wrong.
pub fn run(seed: u64, report: &mut Report) -> Result<(), Trouble> {
    let calls = Watched::new(seed).run_until(None, report)?;
    let at = Random::new(seed, "writer's end").within(1, calls);
    Watched::new(seed).run_until(Some(at), report).map(drop)
}

/// The history of `seed`.
#[must_use]
pub fn history(seed: u64) -> History {
    let history = History::new(seed, MIX).with_changes_of_options();
    let ops = history.ops.into_iter().filter(|(_, op)| *op != Op::Checkpoint).collect();
    History { ops, ..history }
}

/// A writer and what watches it.
struct Watched {
    seed: u64,
    fs: MemoryFs,
    writes: FaultyFs,
    set: OptionSet,
    eyes: Eyes,
}

/// ReaderLooks at the database from a hook, and judges between the writer's operations.
#[derive(Clone)]
struct Eyes {
    looks: Arc<Mutex<ReaderLooks>>,
    is_looking: Arc<AtomicBool>,
}

struct ReaderLooks {
    fs: MemoryFs,
    reads: FaultyFs,
    options: Options,
    random: Random,
    reader: Option<Db>,
    /// An earlier state, and what it held.
    kept: Option<(Db, Contents)>,
    /// Whether all changes are kept; `None` if none are.
    keeps_all_changes: Option<bool>,
    /// What was seen since the model was asked last.
    seen: Vec<(Contents, Option<Feed>)>,
    trouble: Option<Trouble>,
    /// The last commit seen.
    last: CommitNo,
    /// A database may not be there before the first opening ends.
    is_there: bool,
    counts: Vec<&'static str>,
}

impl Watched {
    fn new(seed: u64) -> Self {
        let fs = env::disk(seed);
        let set = OptionSet::of(&History { durability: Durability::Buffered, ..history(seed) }, 0);
        let looks = ReaderLooks {
            reads: FaultyFs::over_memory(fs.clone()),
            options: reading(&set.database),
            random: Random::new(seed, "looks"),
            fs: fs.clone(),
            reader: None,
            kept: None,
            keeps_all_changes: set.keeps_all_changes(),
            seen: Vec::new(),
            trouble: None,
            last: 0,
            is_there: false,
            counts: Vec::new(),
        };
        let eyes = Eyes { looks: Arc::new(Mutex::new(looks)), is_looking: Arc::default() };
        Self { seed, writes: FaultyFs::over_memory(fs.clone()), fs, set, eyes }
    }

    /// Runs the history; all of the writer's calls fail from call `end` on. Returns its calls.
    fn run_until(self, end: Option<u64>, report: &mut Report) -> Result<u64, Trouble> {
        let eyes = self.eyes.clone();
        self.fs.set_hook(Some(Arc::new(move |_, _, path| eyes.after_change(path))));
        let outcome = self.write(end);
        self.fs.set_hook(None);
        let mut looks = hold(&self.eyes.looks);
        std::mem::take(&mut looks.counts).into_iter().for_each(|what| report.count(what, 1));
        drop((looks.reader.take(), looks.kept.take()));
        drop(looks);
        outcome?;
        report.count(if end.is_some() { "histories with a killed writer" } else { "histories" }, 1);
        self.nothing_is_left()?;
        Ok(self.writes.calls())
    }

    fn driver(&self, model: Model) -> Driver<Eyes> {
        let env = env::over(Arc::new(self.writes.clone()));
        Driver::new(env, env::DIR.as_ref(), self.set.clone(), model, self.eyes.clone())
    }

    fn write(&self, end: Option<u64>) -> Result<(), Trouble> {
        let mut driver = self.driver(Model::default());
        if let Some(at) = end {
            // The last append may leave half a record.
            self.writes.plan(Fault { at, kind: FaultKind::ShortWrite, persistence: Persistence::Calls(LAST_CALLS) });
            let at = at + LAST_CALLS;
            self.writes.plan(Fault { at, kind: FaultKind::EIO, persistence: Persistence::Sticky });
        }
        let mut ops = history(self.seed).ops.into_iter();
        let mut run = |driver: &mut Driver<Eyes>| {
            if !driver.is_open() {
                driver.open()?;
                hold(&self.eyes.looks).is_there = true;
            }
            ops.try_for_each(|(at, op)| driver.step(&op).map_err(|t| named(t, &format!("{at} {op}"))))?;
            driver.close()
        };
        match run(&mut driver) {
            Err(Trouble::Refused(_)) if end.is_some_and(|end| self.writes.calls() >= end) => {}
            other => return other,
        }
        drop(driver.abandon());
        self.eyes.look_at_remains()?;
        let model = driver.into_parts().0;
        self.writes.clear();
        let mut driver = self.driver(self.recover(&model)?);
        run(&mut driver)
    }

    /// Another writer opens what the killed one has left, watched.
    fn recover(&self, model: &Model) -> Result<Model, Trouble> {
        let db = Db::open_in(env::over(Arc::new(self.writes.clone())), env::DIR, self.set.to_open(model))?;
        let contents = read::contents(&db)?;
        db.close()?;
        let mut looks = hold(&self.eyes.looks);
        looks.judge_all(model)?;
        let n = looks.place(model, &contents).map_err(|t| t.during("after the writer was killed"))?;
        looks.last = n;
        Ok(model.recovered(n, &contents))
    }

    /// A last opening finds only files that it needs, and no readers.
    fn nothing_is_left(&self) -> Result<(), Trouble> {
        self.writes.clear();
        let options = Options { keyspace: bifold::KeyspaceOptions::default(), ..self.set.database.clone() };
        let db = Db::open_in(env::simulated(&self.fs), env::DIR, options)?;
        let followers = db.stats().followers;
        if followers.readers + followers.held_files > 0 {
            return Err(Trouble::wrong(format!("no reader is left, but {followers:?} are counted")));
        }
        judge::no_orphans(&self.fs, env::DIR.as_ref(), &db)?;
        db.close()?;
        judge::verify_is_clean(&self.fs)
    }
}

/// Errors that the database may have for an injected fault stay what they are.
fn named(trouble: Trouble, what: &str) -> Trouble {
    match trouble {
        Trouble::Wrong(_) => trouble.during(what),
        refused @ Trouble::Refused(_) => refused,
    }
}

impl Watcher for Eyes {
    fn before_acknowledge(&mut self, model: &Model) -> Result<(), Trouble> {
        hold(&self.looks).judge_all(model)
    }
}

impl Eyes {
    /// Looks at what a killed writer has left.
    fn look_at_remains(&self) -> Result<(), Trouble> {
        self.is_looking.store(true, Ordering::Release);
        let mut looks = hold(&self.looks);
        let looked = looks.refresh().and_then(|()| match looks.open()? {
            Some(fresh) => looks.see(&fresh),
            None => Ok(()),
        });
        drop(looks);
        self.is_looking.store(false, Ordering::Release);
        looked.map_err(|t| t.during("what a killed writer has left"))
    }

    fn after_change(&self, path: &Path) {
        let of_database = path.parent() == Some(env::DIR.as_ref()) && !path.ends_with(READERS);
        // What the reader changes itself, and what the writer does to pins, calls this too.
        if !of_database || self.is_looking.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut looks = hold(&self.looks);
        if looks.trouble.is_none() && looks.random.below(EVERY) == 0 {
            let looked = looks.look();
            looks.trouble = looked.err().map(|t| t.during(format!("after a change of {}", path.display())));
        }
        drop(looks);
        self.is_looking.store(false, Ordering::Release);
    }
}

impl ReaderLooks {
    fn look(&mut self) -> Result<(), Trouble> {
        match self.random.weighted(&[40, 14, 14, 12, 6, 14, 4]) {
            0 => self.refresh(),
            1 => {
                let Some(fresh) = self.open()? else { return Ok(()) };
                self.counts.push("opened");
                self.see(&fresh)
            }
            2 => {
                self.kept = match self.reader.clone() {
                    Some(reader) => Some((reader.clone(), read::contents(&reader)?)),
                    None => None,
                };
                Ok(())
            }
            3 => self.compare_kept(),
            4 => {
                self.counts.push("readers killed");
                let (reader, kept) = (self.reader.take(), self.kept.take());
                reader.into_iter().chain(kept.map(|kept| kept.0)).for_each(|reader| kill(&self.fs, reader));
                Ok(())
            }
            5 => self.fail(),
            _ if self.is_there => {
                self.counts.push("verified");
                judge::verify_is_clean(&self.fs)
            }
            _ => Ok(()),
        }
    }

    fn open(&mut self) -> Result<Option<Db>, Trouble> {
        match Db::open_in(env::over(Arc::new(self.reads.clone())), env::DIR, self.options.clone()) {
            Err(Error::NotFound { .. }) if !self.is_there => Ok(None),
            other => Ok(Some(other?)),
        }
    }

    fn refresh(&mut self) -> Result<(), Trouble> {
        match self.reader.take() {
            Some(mut reader) => {
                let done = reader.refresh().map(drop);
                let seen = done.map_err(Trouble::from).and_then(|()| self.see(&reader));
                self.reader = Some(reader);
                self.counts.push("refreshed");
                seen
            }
            None => {
                self.reader = self.open()?;
                self.reader.clone().map_or(Ok(()), |reader| self.see(&reader))
            }
        }
    }

    /// One of the next calls fails, or many do. An error is right if that call is reached, a wrong state never is.
    fn fail(&mut self) -> Result<(), Trouble> {
        let before = self.reads.injected().len();
        let (at, many) = (self.reads.calls() + 1 + self.random.below(60), self.random.chance(50));
        let persistence = if many { Persistence::Calls(1000) } else { Persistence::Once };
        self.reads.plan(Fault { at, kind: self.random.pick(&KINDS), persistence });
        let outcome = if self.random.chance(50) {
            self.refresh()
        } else {
            self.open().and_then(|fresh| fresh.map_or(Ok(()), |fresh| self.see(&fresh)))
        };
        self.reads.clear();
        self.counts.push("with a failing call");
        match outcome {
            Err(Trouble::Refused(_)) if self.reads.injected().len() > before => {
                self.counts.push("of them refused");
                Ok(())
            }
            other => other.map_err(|t| t.during("with a call planned to fail")),
        }
    }

    fn see(&mut self, reader: &Db) -> Result<(), Trouble> {
        let feed = self.keeps_all_changes.map(|_| Feed::read(reader)).transpose()?;
        self.seen.push((read::contents(reader)?, feed));
        Ok(())
    }

    fn compare_kept(&mut self) -> Result<(), Trouble> {
        let Some((reader, before)) = &self.kept else { return Ok(()) };
        self.counts.push("earlier states compared");
        match read::contents(reader).map_err(|t| t.during("an earlier state"))? == *before {
            true => Ok(()),
            false => Err(Trouble::wrong("a reader that was not refreshed sees another state")),
        }
    }

    fn judge_all(&mut self, model: &Model) -> Result<(), Trouble> {
        if let Some(trouble) = self.trouble.take() {
            return Err(trouble);
        }
        for (seen, feed) in std::mem::take(&mut self.seen) {
            let n = self.place(model, &seen)?;
            if let (Some(feed), Some(all)) = (feed, self.keeps_all_changes) {
                let found = feed.check_between(&seen, (model, all), n..=model.head());
                found.map_err(|t| t.during("the changes that a reader sees"))?;
                self.counts.push("feeds judged");
            }
            self.last = n;
            self.counts.push("states judged");
        }
        Ok(())
    }

    /// The first commit that these may be the contents after: not before the last one seen, or acknowledged.
    fn place(&self, model: &Model, seen: &Contents) -> Result<CommitNo, Trouble> {
        let first = self.last.max(model.floor(Crash::Kill));
        let fits = (first..=model.head()).find(|&n| model.check_between(seen, n..=n).is_ok());
        fits.ok_or_else(|| match model.check_between(seen, first..=model.head()) {
            Err(mismatch) => Trouble::wrong(format!("a reader sees: {mismatch}")),
            Ok(_) => Trouble::wrong("a reader sees no state"),
        })
    }
}

fn hold(looks: &Mutex<ReaderLooks>) -> MutexGuard<'_, ReaderLooks> {
    looks.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_right_only_if_a_call_has_failed() {
        let watched = Watched::new(1);
        let mut looks = hold(&watched.eyes.looks);
        // It says that there is a database, and there is none: each opening is refused, after a few calls.
        looks.is_there = true;
        let mut unreached = 0;
        for turn in 0..20 {
            let before = looks.reads.injected().len();
            let outcome = looks.fail();
            let is_reached = looks.reads.injected().len() > before;
            assert_eq!(outcome.is_ok(), is_reached, "turn {turn}: {outcome:?}");
            unreached += u32::from(!is_reached);
        }
        assert!(unreached > 0);
    }
}
