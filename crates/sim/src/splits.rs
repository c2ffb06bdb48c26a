//! Power loss at every I/O of partitions during splits and GC (UniKV §III-C, §III-D): histories of overwrites on a
//! keyspace with such tight limits that hardly any batch comes without a merge, a split or a GC run.

use crate::{
    driver::{Blind, Driver},
    env,
    history::{Extras, History, Op, Write},
    model::{Model, NAMES},
    options::OptionSet,
    power::{self, PowerSizes},
    random::Random,
    read::Trouble,
    report::{Report, guarded},
    value::Spec,
};
use bifold::{
    Compaction, Durability, KeyspaceOptions, Options, Workers,
    options::{HashIndex, TwoLayer, UniKv, Values},
};

/// Batches of a history.
const BATCHES: u32 = 40;

/// Runs the history of `seed` and judges its images, or only one of them. Counts splits and GC runs.
#[must_use]
pub fn run(seed: u64, only: Option<u64>) -> Report {
    let sizes = PowerSizes::of_given_history();
    let (history, set) = (history(seed), options(seed));
    let mut report = power::run_history(&format!("splits --seed {seed}"), &history, &set, sizes, only);
    match guarded(|| count_splits_and_gc(&history, &set)) {
        Ok((splits, gc_runs)) => {
            report.count("splits", splits);
            report.count("collections", gc_runs);
        }
        Err(trouble) => report.fail(format!("splits --seed {seed}"), &trouble),
    }
    report
}

/// The history of `seed`: batches over few keys, with a deletion now and then.
#[must_use]
pub fn history(seed: u64) -> History {
    let mut random = Random::new(seed, "splits");
    let mut write = |batch: u32, at: u32| {
        let key = random.below(90) as u16;
        match random.below(10) {
            0 => Write::Delete(0, key),
            _ => Write::Put(0, key, Spec { tag: batch * 10 + at, len: random.within(20, 600) as u32 }),
        }
    };
    let mut ops: Vec<Op> = (0..BATCHES)
        .map(|batch| Op::Batch(Durability::Buffered, (0..5).map(|at| write(batch, at)).collect()))
        .collect();
    for _ in 0..6 {
        let at = random.below(ops.len() as u64) as usize;
        ops.insert(
            at,
            random.pick(&[Op::Reopen, Op::Flush, Op::Sync, Op::Snapshot(0), Op::DropSnapshot(0)].each_ref()).clone(),
        );
    }
    History {
        seed,
        durability: Durability::Buffered,
        extras: Extras::default(),
        ops: ops.into_iter().enumerate().collect(),
    }
}

/// UniKV's design, with everything so small that a few values fill it.
fn options(seed: u64) -> OptionSet {
    let mut random = Random::new(seed, "splitting options");
    let unsorted_bytes = random.pick(&[2 << 10, 4 << 10]);
    let keyspace = KeyspaceOptions {
        table_bytes: random.pick(&[1 << 10, 4 << 10]),
        partition_bytes: Some(random.pick(&[4 << 10, 8 << 10])),
        block_bytes: 512,
        compaction: Compaction::TwoLayer(TwoLayer { unsorted_bytes, scan_merge_runs: random.pick(&[2, 4]) }),
        hash_index: Some(HashIndex { tag_bits: random.pick(&[4, 16]), ..HashIndex::default() }),
        values: Values {
            separate_from_bytes: Some(100),
            space_target: random.pick(&[1.05, 1.3]),
            // Otherwise merges, which happen with nearly each flush, do the work of GC.
            unikv: UniKv { gc_threshold: 0.1, ..UniKv::default() },
            file_bytes: random.pick(&[1 << 10, 4 << 10]),
            ..Values::default()
        },
        ..KeyspaceOptions::unikv()
    };
    let database = Options {
        memory_limit: 1 << 20,
        memtable_bytes: 4 << 10,
        workers: Workers::Caller,
        keyspace: keyspace.clone(),
        ..Options::default()
    };
    OptionSet { database, keyspaces: vec![keyspace; NAMES.len()] }
}

/// How often partitions of the keyspace split while the history runs, and how many GC runs there are.
fn count_splits_and_gc(history: &History, set: &OptionSet) -> Result<(u64, u64), Trouble> {
    let mut driver =
        Driver::new(env::simulated(&env::disk(history.seed)), env::DIR.as_ref(), set.clone(), Model::default(), Blind);
    driver.open()?;
    let (mut most, mut gc_runs, mut before) = (1, 0, 0);
    for (_, op) in &history.ops {
        driver.step(op)?;
        let stats = driver.db().stats();
        most = stats.keyspaces.iter().map(|keyspace| keyspace.partitions).fold(most, u64::max);
        // The count starts at 0 when the database is opened.
        gc_runs += stats.gc.jobs.saturating_sub(if stats.gc.jobs < before { 0 } else { before });
        before = stats.gc.jobs;
    }
    driver.close()?;
    Ok((most - 1, gc_runs))
}
