//! One sync of the log or of the manifest fails while several threads commit and the workers flush and compact. No
//! commit of that sync may be reported as durable, then or after a sync that succeeds, because the system has dropped
//! what it could not write. Nothing may be appended behind what is lost.
//!
//! Some databases keep their changes, which a thread reads meanwhile. After the power loss the feed has what the
//! database has.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use bifold::{Db, Durability, Keyspace, Options, Workers};
use bifold_io::{
    faulty::{Call, FaultKind, FaultyFs},
    memory::Fate,
};

use crate::{
    commits::{Commits, fed::FedCommits, written_by},
    env,
    model::{CommitNo, Model, NAMES},
    options::OptionSet,
    random::Random,
    read::{self, Trouble},
    report::{Report, guarded},
};

/// Threads that commit.
const WRITERS: u8 = 4;

/// The most commits of a writer; the sync fails long before.
const COMMITS_MAX: CommitNo = 400;

/// Lets one sync fail, and judges what a power loss leaves.
#[must_use]
pub fn run(seed: u64) -> Report {
    let mut report = Report::default();
    if let Err(trouble) = guarded(|| fail_one(seed, &mut report)) {
        report.fail(format!("lost_sync --seed {seed}"), &trouble);
    }
    report
}

fn fail_one(seed: u64, report: &mut Report) -> Result<(), Trouble> {
    let mut random = Random::new(seed, "lost sync");
    let memory = env::disk(seed);
    let faulty = FaultyFs::over_memory(memory.clone());
    let mut options = OptionSet::new(seed, 0, Durability::Sync).database;
    options.workers = Workers::Threads(2);
    let commits = Commits::of(seed);
    options = commits.suit(options);
    let of_log = random.chance(70);
    if of_log && random.chance(70) {
        options.memtable_bytes = 1 << 20;
    }
    let db = Db::open_in(env::threaded(Arc::new(faulty.clone())), env::DIR, options.clone())?;
    let trees = [db.default_keyspace().clone(), db.keyspace(NAMES[1], options.keyspace.clone())?];
    let doomed = random.within(2, if of_log { 60 } else { 12 });
    let syncs = AtomicU64::new(0);
    faulty.decide_by(Box::new(move |call: &Call<'_>| {
        let here =
            if of_log { call.path.extension().is_some_and(|e| e == "log") } else { call.path.ends_with("MANIFEST") };
        let is_doomed = || syncs.fetch_add(1, Ordering::Relaxed) + 1 == doomed;
        (here && call.op == "sync" && is_doomed()).then_some(FaultKind::EIO)
    }));
    let run = Doomed { db, trees, commits, is_over: AtomicBool::new(false) };
    let (acked, fed) = run.write_until_it_fails();
    let kind = if of_log { "syncs of the log made to fail" } else { "syncs of the manifest made to fail" };
    report.count(kind, faulty.injected().len() as u64);
    report.count("commits acknowledged before", acked.iter().sum());
    let is_poisoned = run.db.stats().poisoned.is_some();
    if !faulty.injected().is_empty() && !is_poisoned {
        return Err(Trouble::wrong("a sync failed but the database accepts writes"));
    }
    match fed {
        // The log is read under the commit lock, after whatever was to be written before.
        Err(Trouble::Refused(_)) if is_poisoned => {}
        other => report.count("commits fed before", other?),
    }
    let lost = memory.power_loss(Fate::DropUnsynced);
    let Doomed { commits, db, trees, .. } = run;
    drop((db, trees));
    let opened = Options { workers: Workers::Caller, retain_changes: None, ..options };
    let db = Db::open_in(env::simulated(&lost), env::DIR, opened)?;
    judge(&db, &commits, &acked, report)
}

/// Requires everything acknowledged, of each writer the state after one commit, and a feed that agrees.
fn judge(db: &Db, commits: &Commits, acked: &[CommitNo], report: &mut Report) -> Result<(), Trouble> {
    let contents = read::contents(db)?;
    let mut heads = Vec::new();
    for (writer, &acked) in acked.iter().enumerate() {
        let mut model = Model::default();
        model.begin_create(1);
        model.acknowledge_change();
        for n in 1..=acked + 1 {
            model.begin(&commits.changes(writer as u8, n));
        }
        let head = model
            .check_between(&written_by(&contents, writer as u8), acked..=acked + 1)
            .map_err(|m| Trouble::wrong(format!("writer {writer}, acknowledged up to commit {acked}: {m}")))?;
        report.count("ingests", (1..=head).filter(|&n| commits.is_ingest(writer as u8, n)).count() as u64);
        heads.push(head);
    }
    if commits.has_feed() {
        let fed = FedCommits::new(commits, &[0; WRITERS as usize], 0).end_with(db, &heads)?;
        report.count("commits fed afterwards", fed.len() as u64);
    }
    Ok(())
}

/// A database of which a sync will fail.
struct Doomed {
    db: Db,
    trees: [Keyspace; 2],
    commits: Commits,
    is_over: AtomicBool,
}

impl Doomed {
    /// The last commit acknowledged to each writer, and how many the feed had meanwhile.
    fn write_until_it_fails(&self) -> (Vec<CommitNo>, Result<u64, Trouble>) {
        let write = |writer: u8| {
            let commit = |n| self.commits.commit((&self.db, &self.trees), (writer, n), Durability::Sync);
            (1..=COMMITS_MAX).take_while(|&n| commit(n).is_ok()).last().unwrap_or(0)
        };
        thread::scope(|scope| {
            let write = &write;
            let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || write(writer))).collect();
            let reader = scope.spawn(|| guarded(|| self.follow()));
            let acked = writers.into_iter().map(|writer| writer.join().unwrap_or(0)).collect();
            self.is_over.store(true, Ordering::Release);
            (acked, reader.join().unwrap_or_else(|_| Err(Trouble::wrong("the reader of the feed panicked"))))
        })
    }

    /// Reads the feed until the writers have ended, if there is one.
    fn follow(&self) -> Result<u64, Trouble> {
        let mut fed = FedCommits::new(&self.commits, &[0; WRITERS as usize], 0);
        let mut count = 0;
        while self.commits.has_feed() && !self.is_over.load(Ordering::Acquire) {
            count += fed.catch_up(&self.db)?.len() as u64;
            thread::yield_now();
        }
        Ok(count)
    }
}
