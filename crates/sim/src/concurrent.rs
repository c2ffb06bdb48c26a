//! Real threads, real background workers, tiny memtables: what readers see must be consistent at every moment.
//!
//! * **Bank**: each writer moves money between its own accounts, across two keyspaces, in one batch per transfer.
//!   Every snapshot must show the same sum, and so must any two iterators of one snapshot.
//! * **Counters**: all writers increment shared counters by compare-and-swap. No increment may be lost.
//! * **Steps**: each writer stores its step number with every batch. Nobody may ever see it decrease.
//! * **Snapshots** are read twice while everything is rewritten; both reads must agree.
//! * **Keyspaces** of all placements are created, filled and dropped meanwhile, with iterators on their tables and
//!   value files. The iterators continue, and once they are dropped no file is left, even if handles are kept.
//!   Some are filled by ingests, whose pieces the workers write.
//! * **Checkpoints** taken meanwhile can be opened and show the same sums.
//! * **The change feed**, where changes are kept, tells the same of every commit (`fed.rs`).

mod fed;

use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use bifold::{Batch, Db, Durability, Error, Keyspace, Options, RetainChanges, Snapshot, Swap, Workers};
use bifold_io::{Env, memory::MemoryFs};

use crate::{
    env, judge,
    model::NAMES,
    options::OptionSet,
    random::Random,
    read::Trouble,
    report::{Report, guarded},
};

const WRITERS: u64 = 3;
const READERS: u64 = 2;
const ACCOUNTS: u64 = 24;
const COUNTERS: u64 = 4;
const OPENING: u64 = 1000;

/// How many handles of dropped keyspaces are kept.
const HANDLES_KEPT: usize = 20;

/// Bytes appended to each number, so that memtables of a few KiB overflow every few dozen transfers.
const PADDING: usize = 100;

/// Runs the bank for `steps` transfers per writer.
#[must_use]
pub fn run(seed: u64, steps: u64) -> Report {
    let mut report = Report::default();
    if let Err(trouble) = guarded(|| Bank::open(seed, steps)?.run(&mut report)) {
        report.fail(format!("concurrent --seed {seed} --steps {steps}"), &trouble);
    }
    report
}

struct Bank {
    db: Db,
    trees: [Keyspace; 2],
    seed: u64,
    steps: u64,
    env: Env,
    options: Options,
    stop: AtomicBool,
    incremented: AtomicU64,
    checks: AtomicU64,
    dropped: AtomicU64,
    ingested: AtomicU64,
    /// Commits that the change feed has told of.
    told: AtomicU64,
    copies: AtomicU64,
    /// Handles of dropped keyspaces.
    kept: Mutex<Vec<Keyspace>>,
    fs: MemoryFs,
}

impl Bank {
    fn open(seed: u64, steps: u64) -> Result<Self, Trouble> {
        let fs = MemoryFs::default();
        let set = OptionSet::new(seed, 0, Durability::Buffered);
        let retain_changes = (seed % 2 == 1).then_some(RetainChanges { bytes: 1 << 40, age: None });
        let options = Options { workers: Workers::Threads(1 + (seed % 4) as u32), retain_changes, ..set.database };
        let env = env::threaded(Arc::new(fs.clone()));
        let db = Db::open_in(env.clone(), env::DIR, options.clone())?;
        let second = db.keyspace(NAMES[1], set.keyspaces[1].clone())?;
        let trees = [db.default_keyspace().clone(), second];
        let mut opening = Batch::new();
        for writer in 0..WRITERS {
            for account in 0..ACCOUNTS {
                opening.put(tree_of(&trees, account), account_key(writer, account), number(OPENING, 0))?;
            }
            opening.put(&trees[0], step_key(writer), number(0, 0))?;
        }
        db.commit(opening)?;
        let stop = AtomicBool::new(false);
        let [incremented, checks, dropped, ingested, told, copies] = [const { AtomicU64::new(0) }; 6];
        Ok(Self {
            db,
            trees,
            seed,
            steps,
            env,
            options,
            stop,
            incremented,
            checks,
            dropped,
            ingested,
            told,
            copies,
            kept: Mutex::default(),
            fs,
        })
    }

    fn run(self, report: &mut Report) -> Result<(), Trouble> {
        let outcomes = thread::scope(|scope| {
            let bank = &self;
            let writers: Vec<_> = (0..WRITERS).map(|w| scope.spawn(move || bank.guard(|| bank.write(w)))).collect();
            let readers: Vec<_> = (0..READERS).map(|r| scope.spawn(move || bank.guard(|| bank.read(r)))).collect();
            let keeper = scope.spawn(move || bank.guard(|| bank.maintain()));
            let churner = scope.spawn(move || bank.guard(|| bank.churn()));
            let follower = scope.spawn(move || bank.guard(|| bank.follow_if_kept()));
            let mut outcomes: Vec<_> = writers.into_iter().map(thread::ScopedJoinHandle::join).collect();
            self.stop.store(true, Ordering::Release);
            outcomes.extend(readers.into_iter().chain([keeper, churner, follower]).map(thread::ScopedJoinHandle::join));
            outcomes
        });
        for outcome in outcomes {
            outcome.unwrap_or_else(|_| Err(Trouble::wrong("a thread panicked")))?;
        }
        self.audit(&self.trees, &self.db.snapshot())?;
        if let Some(words) = self.db.stats().overdue_described.first() {
            return Err(Trouble::wrong(words));
        }
        report.count("transfers", WRITERS * self.steps);
        report.count("raises", self.incremented.load(Ordering::Acquire));
        report.count("audits", self.checks.load(Ordering::Acquire));
        report.count("keyspaces dropped", self.dropped.load(Ordering::Acquire));
        report.count("ingests", self.ingested.load(Ordering::Acquire));
        report.count("commits fed", self.told.load(Ordering::Acquire));
        report.count("checkpoints", self.copies.load(Ordering::Acquire));
        let flushes = self.db.stats().flushes;
        report.count("runs with flushes at once", u64::from(flushes.at_once_max > 1));
        report.count("ranges of flushes written by other threads", flushes.ranges_helped);
        self.reopen_and_audit()
    }

    /// If one thread fails, stops the others.
    fn guard(&self, work: impl FnOnce() -> Result<(), Trouble>) -> Result<(), Trouble> {
        let outcome = guarded(work);
        if outcome.is_err() {
            self.stop.store(true, Ordering::Release);
        }
        outcome
    }

    fn write(&self, writer: u64) -> Result<(), Trouble> {
        let mut random = Random::new(self.seed ^ writer << 32, "bank");
        let mut balances = vec![OPENING; ACCOUNTS as usize];
        for step in 1..=self.steps {
            if self.stop.load(Ordering::Acquire) {
                break;
            }
            let (from, to) = (random.below(ACCOUNTS), random.below(ACCOUNTS));
            let amount = random.below(balances[from as usize] + 1);
            balances[from as usize] -= amount;
            balances[to as usize] += amount;
            let mut batch = Batch::new();
            for account in [from, to] {
                let balance = number(balances[account as usize], random.below(PADDING as u64) as usize);
                batch.put(tree_of(&self.trees, account), account_key(writer, account), balance)?;
            }
            batch.put(&self.trees[0], step_key(writer), number(step, 0))?;
            self.db.commit_with(batch, random.pick(&[Durability::Memory, Durability::Buffered, Durability::Sync]))?;
            let seen = read_number(self.trees[0].get(step_key(writer))?.as_deref())?;
            if seen != step {
                return Err(Trouble::wrong(format!("writer {writer} wrote step {step} and reads {seen}")));
            }
            if random.chance(25) {
                self.increment(random.below(COUNTERS))?;
            }
        }
        Ok(())
    }

    fn increment(&self, counter: u64) -> Result<(), Trouble> {
        let tree = &self.trees[(counter % 2) as usize];
        let key = counter_key(counter);
        let mut there = tree.get(&key)?.map(|v| v.to_vec());
        loop {
            let next = number(there.as_deref().map_or(Ok(0), |v| read_number(Some(v)))? + 1, 0);
            match tree.compare_and_swap(&key, there.as_deref(), Some(&next))? {
                Swap::Done => break,
                Swap::Mismatch { current } => there = current.map(|v| v.to_vec()),
            }
        }
        self.incremented.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    fn read(&self, reader: u64) -> Result<(), Trouble> {
        let mut random = Random::new(self.seed ^ reader << 40, "readers");
        let mut steps = vec![0; WRITERS as usize];
        while !self.stop.load(Ordering::Acquire) {
            let snapshot = self.db.snapshot();
            let first = self.audit(&self.trees, &snapshot)?;
            for (writer, before) in steps.iter_mut().enumerate() {
                let now = first[writer];
                if now < *before {
                    return Err(Trouble::wrong(format!("writer {writer}'s step fell from {before} to {now}")));
                }
                *before = now;
                let one = read_number(self.trees[0].get(step_key(writer as u64))?.as_deref())?;
                if one < now {
                    return Err(Trouble::wrong(format!(
                        "a get sees step {one} of writer {writer}, an earlier snapshot {now}"
                    )));
                }
            }
            if random.chance(30) {
                thread::yield_now();
            }
            if self.audit(&self.trees, &snapshot)? != first {
                return Err(Trouble::wrong("a snapshot answered differently the second time"));
            }
        }
        Ok(())
    }

    /// Checks all sums in one snapshot, by scans forwards and backwards and by gets. Returns the writers' steps.
    fn audit(&self, trees: &[Keyspace; 2], snapshot: &Snapshot) -> Result<Vec<u64>, Trouble> {
        self.checks.fetch_add(1, Ordering::AcqRel);
        let mut steps = Vec::new();
        for writer in 0..WRITERS {
            let prefix = format!("account/{writer}/");
            let mut sum = 0;
            for (at, tree) in trees.iter().enumerate() {
                let forward = snapshot.prefix(tree, &prefix).collect::<Result<Vec<_>, _>>()?;
                let mut backward = snapshot.prefix(tree, &prefix).rev().collect::<Result<Vec<_>, _>>()?;
                backward.reverse();
                let keys = |entries: &[bifold::Pair]| entries.iter().map(|p| p.key().to_vec()).collect::<Vec<_>>();
                if keys(&forward) != keys(&backward) || forward.len() as u64 != ACCOUNTS / 2 {
                    let (f, b) = (forward.len(), backward.len());
                    return Err(Trouble::wrong(format!("tree {at}: {f} accounts forwards, {b} backwards")));
                }
                for (entry, same) in forward.iter().zip(&backward) {
                    let value = entry.value()?;
                    if value != same.value()? || Some(&value) != snapshot.get(tree, entry.key())?.as_ref() {
                        return Err(Trouble::wrong(format!(
                            "two ways of reading {} differ",
                            entry.key().escape_ascii()
                        )));
                    }
                    sum += read_number(Some(&value))?;
                }
            }
            if sum != ACCOUNTS * OPENING {
                let seqno = snapshot.seqno();
                return Err(Trouble::wrong(format!(
                    "writer {writer} holds {sum} at {seqno}, not {}",
                    ACCOUNTS * OPENING
                )));
            }
            steps.push(read_number(snapshot.get(&trees[0], step_key(writer))?.as_deref())?);
        }
        Ok(steps)
    }

    fn maintain(&self) -> Result<(), Trouble> {
        let mut random = Random::new(self.seed, "keeper");
        while !self.stop.load(Ordering::Acquire) {
            match random.below(7) {
                0 => self.db.flush()?,
                6 => self.copy()?,
                1 => self.db.compact()?,
                2 => self.trees[1].compact_range(account_key(1, 0)..account_key(2, 0))?,
                3 => self.db.sync()?,
                4 => drop(self.db.stats()),
                _ => thread::sleep(std::time::Duration::from_micros(200)),
            }
        }
        Ok(())
    }

    /// Creates, fills and drops keyspaces of all placements. An iterator continues, a handle returns an error, and
    /// neither keeps files.
    fn churn(&self) -> Result<(), Trouble> {
        let mut random = Random::new(self.seed, "churn");
        while !self.stop.load(Ordering::Acquire) {
            let set = OptionSet::new(random.below(u64::MAX), 0, Durability::Buffered);
            let name = format!("short-lived{}", random.below(3));
            let short = self.db.keyspace(&name, set.keyspaces[1].clone())?;
            let count = random.within(1, 200);
            self.fill(&short, count, random.chance(50))?;
            if random.chance(30) {
                self.db.flush()?;
            }
            let mut iterator = short.iter();
            let first = iterator.next().ok_or_else(|| Trouble::wrong("a keyspace that was filled is empty"))??;
            self.db.drop_keyspace(&name)?;
            if !matches!(short.get(0u64.to_be_bytes()), Err(Error::Closed { .. })) {
                return Err(Trouble::wrong("a dropped keyspace answers"));
            }
            let entries = std::iter::once(Ok(first)).chain(iterator).collect::<Result<Vec<_>, _>>()?;
            for (n, entry) in (0..).zip(&entries) {
                if entry.key() != u64::to_be_bytes(n) || read_number(Some(&entry.value()?))? != n {
                    return Err(Trouble::wrong(format!("entry {n} of a dropped keyspace is wrong")));
                }
            }
            if entries.len() as u64 != count {
                return Err(Trouble::wrong(format!("an iterator yields {} of {count} entries", entries.len())));
            }
            self.dropped.fetch_add(1, Ordering::AcqRel);
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.push(short);
            kept.truncate(HANDLES_KEPT);
        }
        Ok(())
    }

    fn fill(&self, short: &Keyspace, count: u64, at_once: bool) -> Result<(), Trouble> {
        let value = |n| number(n, PADDING * 5);
        if !at_once {
            return (0..count).try_for_each(|n| Ok(short.put(n.to_be_bytes(), value(n))?));
        }
        let mut ingest = short.ingest()?;
        (0..count).try_for_each(|n| ingest.put(n.to_be_bytes(), value(n)))?;
        ingest.finish()?;
        self.ingested.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    fn follow_if_kept(&self) -> Result<(), Trouble> {
        if self.options.retain_changes.is_some() {
            self.told.store(self.follow()?, Ordering::Release);
        }
        Ok(())
    }

    /// A copy made now can be opened and is consistent.
    fn copy(&self) -> Result<(), Trouble> {
        let dir = Path::new(env::DIR).with_file_name(format!("copy{}", self.copies.fetch_add(1, Ordering::AcqRel)));
        self.db.checkpoint(&dir)?;
        let options = Options { workers: Workers::Caller, ..self.options.clone() };
        let copy = Db::open_in(self.env.clone(), &dir, options)?;
        let second = copy.existing_keyspace(NAMES[1])?.ok_or_else(|| Trouble::wrong("a copy lacks a keyspace"))?;
        self.audit(&[copy.default_keyspace().clone(), second], &copy.snapshot())?;
        Ok(copy.close()?)
    }

    fn reopen_and_audit(mut self) -> Result<(), Trouble> {
        let incremented = self.incremented.load(Ordering::Acquire);
        self.db.wait_idle()?;
        judge::no_orphans(&self.fs, Path::new(env::DIR), &self.db).map_err(|t| t.during("with handles kept"))?;
        let (env, options) = (self.env.clone(), self.options.clone());
        self.db.clone().close()?;
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let Self { db, trees, .. } = self;
        drop((db, trees));
        let db = Db::open_in(env, env::DIR, options)?;
        let second = db.existing_keyspace(NAMES[1])?.ok_or_else(|| Trouble::wrong("the second keyspace is missing"))?;
        let trees = [db.default_keyspace().clone(), second];
        let mut counted = 0;
        for counter in 0..COUNTERS {
            let value = trees[(counter % 2) as usize].get(counter_key(counter))?;
            counted += value.as_deref().map_or(Ok(0), |v| read_number(Some(v)))?;
        }
        if counted != incremented {
            return Err(Trouble::wrong(format!("{incremented} increments were made, the counters show {counted}")));
        }
        (self.db, self.trees) = (db, trees);
        let steps = self.audit(&self.trees, &self.db.snapshot())?;
        if steps.iter().any(|&step| step != self.steps) {
            return Err(Trouble::wrong(format!("after reopening the steps are {steps:?}, not {}", self.steps)));
        }
        self.db.close()?;
        Ok(())
    }
}

fn tree_of(trees: &[Keyspace; 2], account: u64) -> &Keyspace {
    &trees[(account % 2) as usize]
}

fn account_key(writer: u64, account: u64) -> Vec<u8> {
    format!("account/{writer}/{account:03}").into_bytes()
}

fn step_key(writer: u64) -> Vec<u8> {
    format!("step/{writer}").into_bytes()
}

fn counter_key(counter: u64) -> Vec<u8> {
    format!("counter/{counter}").into_bytes()
}

fn number(n: u64, padding: usize) -> Vec<u8> {
    let mut bytes = n.to_le_bytes().to_vec();
    bytes.resize(8 + padding, b'.');
    bytes
}

fn read_number(bytes: Option<&[u8]>) -> Result<u64, Trouble> {
    match bytes.and_then(|b| b.first_chunk::<8>()) {
        Some(head) => Ok(u64::from_le_bytes(*head)),
        None => Err(Trouble::wrong(format!("a number is missing: {bytes:?}"))),
    }
}
