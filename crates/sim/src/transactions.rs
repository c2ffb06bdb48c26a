//! Threads run transactions on few keys of three keyspaces, while another flushes, compacts and collects garbage.
//!
//! Values are lists, to which transactions append their number. They get keys one by one and together, scan ranges
//! from both ends and not always to the end, delete keys and ranges, go back to savepoints, give up. Some keys they get
//! for update. Some run under snapshot isolation. [`check`] then looks for anomalies in what all of them have seen.
//!
//! In some histories puts expire, at once or much later; in some a thread ingests into the same keys; in some changes
//! are kept, and a thread reads the feed (`fed.rs`).
//!
//! In some histories the power fails meanwhile. The image must hold the state after some commit, no earlier than the
//! last one that was durable, and the history goes on from there.

pub mod check;
mod fed;
mod ingests;
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
    fed::Told,
    ingests::INGESTS,
    work::{Worker, key_of, list_of},
};
use crate::{
    env, judge,
    model::NAMES,
    options::{ALL_CHANGES, OptionSet},
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

/// What a history has in addition to transactions.
#[derive(Clone, Copy, Debug)]
struct SessionExtras {
    /// Puts that expire.
    expiry: bool,
    /// Ingests.
    ingests: bool,
    /// A change feed.
    feed: bool,
}

impl SessionExtras {
    fn of(seed: u64) -> Self {
        let mut random = Random::new(seed, "extras of transactions");
        let (expiry, ways) = (random.chance(50), random.below(5));
        Self { expiry, feed: ways < 2, ingests: (1..4).contains(&ways) }
    }
}

/// A database in use.
struct Session {
    db: Db,
    trees: Vec<Keyspace>,
    fs: MemoryFs,
    seed: u64,
    isolation: Isolation,
    extras: SessionExtras,
    /// The last change before this life.
    since: SeqNo,
    /// How many workers have not ended.
    busy: AtomicU64,
    stop: AtomicBool,
    /// The last commit known to be durable.
    durable: AtomicU64,
}

/// What the threads of a life have done, what the feed has told, and what a power loss has left meanwhile.
type Lived = (Vec<Done>, Told, Option<Image>);

/// What a power loss left, and the last commit that was durable before it.
type Image = (SeqNo, MemoryFs);

fn live(seed: u64, report: &mut Report) -> Result<(), Trouble> {
    let mut random = Random::new(seed, "transactions");
    let set = OptionSet::new(seed, 0, Durability::Buffered);
    let extras = SessionExtras::of(seed);
    let retain_changes = extras.feed.then_some(ALL_CHANGES);
    let workers = Workers::Threads(2);
    let options = Options { workers, memory_limit: 8 << 20, retain_changes, ..set.database.clone() };
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
            since: db.snapshot().seqno(),
            db,
            trees,
            fs: fs.clone(),
            seed: seed ^ number << 50,
            isolation,
            extras,
            busy: AtomicU64::new(WORKERS + u64::from(extras.ingests)),
            stop: AtomicBool::new(false),
            durable: AtomicU64::new(0),
        };
        let since = life.since;
        let (all, told, image) = life.run(first_id, number + 1 < lives)?;
        count(&all, isolation, report);
        report.count("commits fed", told.len() as u64);
        first_id += EACH * WORKERS as u32 + INGESTS;
        let checker = Checker::new(&all, &base, keys())?;
        checker.check()?;
        life.compare_feed(&told, &checker)?;
        let (floor, next) = life.end(&checker, image)?;
        // Without an image it was just closed.
        let mut after = checker.state(SeqNo::MAX);
        if let Some(next) = next {
            let held = judge_image(&next, &options, (&checker, floor), since)?;
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
    let mut count = |what, is: fn(&TransactionEnd) -> bool| {
        report.count(what, all.iter().filter(|done| is(&done.outcome)).count() as u64);
    };
    count(kind, |outcome| matches!(outcome, TransactionEnd::Committed(_)));
    count("ingests", |outcome| matches!(outcome, TransactionEnd::Ingested(_)));
    count("refused or given up", |outcome| *outcome == TransactionEnd::Nothing);
    let expired = all.iter().flat_map(|done| &done.steps).filter(|step| matches!(step, Step::WroteExpired(..)));
    report.count("puts that expire at once", expired.count() as u64);
    let scans = all.iter().flat_map(|done| &done.steps).filter(|step| matches!(step, Step::Scanned(..)));
    report.count("scans", scans.count() as u64);
    report.count("reads for update", all.iter().map(|done| done.read_for_update().count() as u64).sum());
}

/// An image holds the state after some commit from `floor` on, and so does its feed. Returns that.
fn judge_image(
    image: &MemoryFs,
    options: &Options,
    (checker, floor): (&Checker<'_>, SeqNo),
    since: SeqNo,
) -> Result<Lists, Trouble> {
    // The logs know that changes are kept.
    let has_feed = options.retain_changes.is_some();
    let options = Options { workers: Workers::Caller, retain_changes: None, ..options.clone() };
    let db = Db::open_in(env::simulated(image), env::DIR, options).map_err(|e| Trouble::from(e).during("recovery"))?;
    let mut found = Lists::new();
    for (at, name) in NAMES.iter().enumerate() {
        if let Some(tree) = db.existing_keyspace(name)? {
            found.extend(contents(&tree, at)?);
        }
    }
    if has_feed {
        fed::compare_image(&db, since, (checker, floor), &found)?;
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
    fn run(&self, first_id: u32, crashes: bool) -> Result<Lived, Trouble> {
        let image: Mutex<Option<Image>> = Mutex::default();
        let work = |number: u64| Worker::new(self, number, first_id + EACH * number as u32).run();
        let busy = |work: &dyn Fn() -> Result<Vec<Done>, Trouble>| {
            let done = self.guard(work);
            self.busy.fetch_sub(1, Ordering::AcqRel);
            done
        };
        let (outcomes, told) = thread::scope(|scope| {
            let (work, busy) = (&work, &busy);
            let keeper = scope.spawn(|| self.guard(|| self.keep(crashes.then_some(&image))));
            let reader = scope.spawn(|| self.guard(|| self.follow()));
            let mut writers: Vec<_> = (0..WORKERS).map(|number| scope.spawn(move || busy(&|| work(number)))).collect();
            if self.extras.ingests {
                writers.push(scope.spawn(move || busy(&|| self.ingest_all(first_id + EACH * WORKERS as u32))));
            }
            let mut outcomes: Vec<_> = writers.into_iter().map(joined).collect();
            outcomes.push(joined(keeper));
            (outcomes, joined(reader))
        });
        let all = outcomes.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
        Ok((all, told?, image.into_inner().unwrap_or_else(PoisonError::into_inner)))
    }

    /// If one thread fails, stops the others.
    fn guard<T>(&self, work: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
        let outcome = guarded(work);
        if outcome.is_err() {
            self.stop.store(true, Ordering::Release);
        }
        outcome
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire) > 0
    }

    /// From now on everything up to this number survives a power loss.
    fn is_durable(&self, number: SeqNo) {
        self.durable.fetch_max(number, Ordering::AcqRel);
    }

    /// Rewrites everything again and again while the others work.
    fn keep(&self, image: Option<&Mutex<Option<Image>>>) -> Result<Vec<Done>, Trouble> {
        let mut random = Random::new(self.seed, "keeper");
        while !self.is_over() && self.is_busy() {
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

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T, Trouble>>) -> Result<T, Trouble> {
    thread.join().unwrap_or_else(|_| Err(Trouble::wrong("a thread panicked")))
}
