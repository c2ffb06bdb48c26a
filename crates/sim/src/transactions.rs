//! Threads run transactions on few keys of three keyspaces, while another flushes, compacts and collects garbage.
//!
//! Values are lists, to which transactions append their number. They get keys one by one and together, scan ranges
//! from both ends and not always to the end, delete keys and ranges, go back to savepoints, give up. Some run under
//! snapshot isolation. [`check`] then looks for anomalies in what all of them have seen.
//!
//! In some histories the power fails meanwhile. The image must hold the state after some commit, no earlier than the
//! last one that was durable, and the history goes on from there.

pub mod check;
mod work;

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use bifold::{Db, Durability, Isolation, Keyspace, Options, SeqNo, Workers};
use bifold_io::memory::{Fate, MemoryFs};

use self::{
    check::{Checker, Done, Key, Lists, Step, TransactionEnd},
    work::{Worker, key_of, list_of},
};
use crate::{
    env, judge,
    model::NAMES,
    options::OptionSet,
    random::Random,
    read::Trouble,
    report::{Report, guarded},
};

/// Threads that run transactions.
const WORKERS: u64 = 3;

/// Transactions of each.
const EACH: u32 = 8;

/// Keys of each keyspace: few, so that transactions meet.
const KEYS: u8 = 5;

/// Of so many histories one loses power.
const CRASH_EVERY: u64 = 5;

/// So often a history that failed is tried again: threads never do the same twice.
const AGAIN: u32 = 500;

/// Runs the history of `seed`.
#[must_use]
pub fn run(seed: u64) -> Report {
    let mut report = Report::default();
    if let Err(trouble) = guarded(|| live(seed, &mut report)) {
        report.fail(format!("transactions --seed {seed}"), &trouble);
    }
    report
}

/// Runs the history of `seed` until it fails, or often.
#[must_use]
pub fn again(seed: u64) -> Report {
    let mut report = Report::default();
    for _ in 0..AGAIN {
        report.merge(run(seed));
        if !report.failures.is_empty() {
            break;
        }
    }
    report
}

/// A database in use.
struct Session {
    db: Db,
    trees: Vec<Keyspace>,
    fs: MemoryFs,
    seed: u64,
    isolation: Isolation,
    /// How many workers have not ended.
    busy: AtomicU64,
    stop: AtomicBool,
    /// The last commit known to be durable.
    durable: AtomicU64,
}

/// What a power loss left, and the last commit that was durable before it.
type Image = (SeqNo, MemoryFs);

fn live(seed: u64, report: &mut Report) -> Result<(), Trouble> {
    let mut random = Random::new(seed, "transactions");
    let set = OptionSet::new(seed, 0, Durability::Buffered);
    let options = Options { workers: Workers::Threads(2), memory_limit: 8 << 20, ..set.database.clone() };
    let isolation = if random.below(6) == 0 { Isolation::Snapshot } else { Isolation::Serializable };
    let (mut fs, mut base, mut first_id) = (env::disk(seed), Lists::new(), 1);
    let lives = if random.below(CRASH_EVERY) == 0 { 2 } else { 1 };
    for number in 0..lives {
        let db = Db::open_in(env::threaded(Arc::new(fs.clone())), env::DIR, options.clone())?;
        let mut trees = vec![db.default_keyspace().clone()];
        for (name, keyspace) in NAMES.iter().zip(&set.keyspaces).skip(1) {
            trees.push(db.keyspace(name, keyspace.clone())?);
        }
        if number == 0 {
            // An image without the keyspaces would only say that.
            db.sync()?;
        }
        let life = Session {
            db,
            trees,
            fs: fs.clone(),
            seed: seed ^ number << 50,
            isolation,
            busy: AtomicU64::new(WORKERS),
            stop: AtomicBool::new(false),
            durable: AtomicU64::new(0),
        };
        let (all, image) = life.run(first_id, number + 1 < lives)?;
        count(&all, isolation, report);
        first_id += EACH * WORKERS as u32;
        let checker = Checker::new(&all, &base, keys())?;
        checker.check()?;
        let (floor, next) = life.end(&checker, image)?;
        // Without an image it was just closed.
        let mut after = checker.state(SeqNo::MAX);
        if let Some(next) = next {
            let held = judge_image(&next, &options, (&checker, floor))?;
            fs = next;
            report.count("power losses", 1);
            after = held;
        }
        base = after;
    }
    report.count("histories", 1);
    Ok(())
}

fn keys() -> Vec<Key> {
    (0..NAMES.len()).flat_map(|tree| (0..KEYS).map(move |key| (tree, key))).collect()
}

fn count(all: &[Done], isolation: Isolation, report: &mut Report) {
    let kind = match isolation {
        Isolation::Serializable => "serializable transactions committed",
        Isolation::Snapshot => "transactions under snapshot isolation committed",
    };
    report.count(kind, all.iter().filter(|done| done.outcome != TransactionEnd::Nothing).count() as u64);
    report
        .count("refused or given up", all.iter().filter(|done| done.outcome == TransactionEnd::Nothing).count() as u64);
    let scans = all.iter().flat_map(|done| &done.steps).filter(|step| matches!(step, Step::Scanned(..)));
    report.count("scans", scans.count() as u64);
}

/// An image holds the state after some commit from `floor` on. Returns that.
fn judge_image(image: &MemoryFs, options: &Options, of: (&Checker<'_>, SeqNo)) -> Result<Lists, Trouble> {
    let (checker, floor) = of;
    let options = Options { workers: Workers::Caller, ..options.clone() };
    let db = Db::open_in(env::simulated(image), env::DIR, options).map_err(|e| Trouble::from(e).during("recovery"))?;
    let mut found = Lists::new();
    for (at, name) in NAMES.iter().enumerate() {
        if let Some(tree) = db.existing_keyspace(name)? {
            found.extend(contents(&tree, at)?);
        }
    }
    db.close()?;
    let numbers = checker.numbers();
    // A state lasts from its commit to the next one.
    let lasts_long_enough = |at: usize| numbers.get(at + 1).is_none_or(|&next| next > floor);
    if (0..numbers.len()).filter(|&at| lasts_long_enough(at)).any(|at| checker.state(numbers[at]) == found) {
        return Ok(found);
    }
    Err(Trouble::wrong(format!("after a power loss it holds {found:?}, the state after no commit from {floor} on")))
}

fn contents(tree: &Keyspace, at: usize) -> Result<Lists, Trouble> {
    let mut lists = Lists::new();
    for pair in tree.iter() {
        let (key, value) = pair?.into_parts()?;
        lists.insert(key_of(at, &key)?, list_of(&value)?);
    }
    Ok(lists)
}

impl Session {
    /// Runs all threads. Takes an image of a power loss meanwhile if this life `crashes`.
    fn run(&self, first_id: u32, crashes: bool) -> Result<(Vec<Done>, Option<Image>), Trouble> {
        let image: Mutex<Option<Image>> = Mutex::default();
        let outcomes: Vec<Result<Vec<Done>, Trouble>> = thread::scope(|scope| {
            let keeper = scope.spawn(|| self.guard(|| self.keep(crashes.then_some(&image))));
            let work = |number: u64| {
                let worker = Worker::new(self, number, first_id + EACH * number as u32);
                let done = self.guard(|| worker.run());
                self.busy.fetch_sub(1, Ordering::AcqRel);
                done
            };
            let workers: Vec<_> = (0..WORKERS).map(|number| scope.spawn(move || work(number))).collect();
            let mut outcomes: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
            outcomes.push(keeper.join());
            outcomes.into_iter().map(|o| o.unwrap_or_else(|_| Err(Trouble::wrong("a thread panicked")))).collect()
        });
        let all = outcomes.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
        Ok((all, image.into_inner().unwrap_or_else(PoisonError::into_inner)))
    }

    /// If one thread fails, stops the others.
    fn guard(&self, work: impl FnOnce() -> Result<Vec<Done>, Trouble>) -> Result<Vec<Done>, Trouble> {
        let outcome = guarded(work);
        if outcome.is_err() {
            self.stop.store(true, Ordering::Release);
        }
        outcome
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Rewrites everything again and again while the others work.
    fn keep(&self, image: Option<&Mutex<Option<Image>>>) -> Result<Vec<Done>, Trouble> {
        let mut random = Random::new(self.seed, "keeper");
        while !self.is_over() && self.busy.load(Ordering::Acquire) > 0 {
            match random.below(8) {
                0 => self.db.flush()?,
                1 => self.db.compact()?,
                2 => self.db.collect_garbage()?,
                3 => {
                    if let Some(image) = image.filter(|_| random.chance(50)) {
                        let durable = self.durable.load(Ordering::Acquire);
                        let seed = random.below(u64::MAX);
                        let fates = [Fate::DropUnsynced, Fate::Random(seed), Fate::Prefix(seed)];
                        let lost = self.fs.power_loss(random.pick(&fates));
                        *image.lock().unwrap_or_else(PoisonError::into_inner) = Some((durable, lost));
                    }
                }
                _ => thread::yield_now(),
            }
        }
        Ok(Vec::new())
    }

    /// Checks the last state and closes the database. Returns the image to go on with, if there is one.
    fn end(self, checker: &Checker<'_>, image: Option<Image>) -> Result<(SeqNo, Option<MemoryFs>), Trouble> {
        let mut found = Lists::new();
        for (at, tree) in self.trees.iter().enumerate() {
            found.extend(contents(tree, at)?);
        }
        let expected = checker.state(SeqNo::MAX);
        if found != expected {
            return Err(Trouble::wrong(format!("in the end it holds {found:?}, not {expected:?}")));
        }
        if let Some(words) = self.db.stats().overdue_described.first() {
            return Err(Trouble::wrong(words));
        }
        let Self { db, trees, fs, .. } = self;
        db.close()?;
        drop(trees);
        judge::verify_is_clean(&fs)?;
        Ok(match image {
            Some((durable, lost)) => (durable, Some(lost)),
            None => (0, None),
        })
    }
}
