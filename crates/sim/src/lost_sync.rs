//! One sync of the log or of the manifest fails while several threads commit and the workers flush and compact. No
//! commit of that sync may be reported as durable, then or after a sync that succeeds, because the system has dropped
//! what it could not write. Nothing may be appended behind what is lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use bifold::{Batch, Db, Durability, Keyspace, Options, Workers};
use bifold_io::{
    faulty::{Call, FaultKind, FaultyFs},
    memory::Fate,
};

use crate::{
    env,
    kill::{WRITERS_MAX, batch_of, commit_of, written_by},
    model::{CommitNo, Model, NAMES},
    options::OptionSet,
    random::Random,
    read::{self, Trouble},
    report::{Report, guarded},
};

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
    let acked = write_until_it_fails(&db, &trees, seed);
    let kind = if of_log { "syncs of the log made to fail" } else { "syncs of the manifest made to fail" };
    report.count(kind, faulty.injected().len() as u64);
    report.count("commits acknowledged before", acked.iter().sum());
    if !faulty.injected().is_empty() && db.stats().poisoned.is_none() {
        return Err(Trouble::wrong("a sync failed but the database accepts writes"));
    }
    let lost = memory.power_loss(Fate::DropUnsynced);
    drop((db, trees));
    let db = Db::open_in(env::simulated(&lost), env::DIR, Options { workers: Workers::Caller, ..options })?;
    let contents = read::contents(&db)?;
    for (writer, &acked) in acked.iter().enumerate() {
        let mut model = Model::default();
        model.begin_create(1);
        model.acknowledge_change();
        for n in 1..=acked + 1 {
            model.begin(&commit_of(seed, writer as u8, n));
        }
        model
            .check_between(&written_by(&contents, writer as u8), acked..=acked + 1)
            .map_err(|m| Trouble::wrong(format!("writer {writer}, acknowledged up to commit {acked}: {m}")))?;
    }
    Ok(())
}

/// The last commit acknowledged to each writer.
fn write_until_it_fails(db: &Db, trees: &[Keyspace; 2], seed: u64) -> Vec<CommitNo> {
    let write = |writer: u8| {
        let commit =
            |n| db.commit_with(batch_of(trees, seed, writer, n).unwrap_or_else(|_| Batch::new()), Durability::Sync);
        (1..=COMMITS_MAX).take_while(|&n| commit(n).is_ok()).last().unwrap_or(0)
    };
    thread::scope(|scope| {
        let write = &write;
        let writers: Vec<_> = (0..WRITERS_MAX).map(|writer| scope.spawn(move || write(writer))).collect();
        writers.into_iter().map(|writer| writer.join().unwrap_or(0)).collect()
    })
}
