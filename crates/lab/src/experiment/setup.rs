//! The pieces of experiments: stores with their options, plans, steps, arms.

use super::Arm;
use crate::{
    Plan, Spec, Workload,
    choose::Distribution,
    plan::Changes,
    scale::Scale,
    spec::{Act, PageCache, Step},
    store::{Peer, cached::CachedStore},
    values::Sizes,
};

/// Size of a key in all experiments but NovKV's, in bytes.
pub const KEY_BYTES: usize = 24;

/// The name of [`Setup::like_leveldb`].
pub const LIKE_LEVELDB: &str = "leveldb-like";

/// Thousand operations per second.
pub const KOPS: (&str, f64) = ("thousand operations/s", 1e3);
/// Mebibytes.
pub const MIB: (&str, f64) = ("MiB", 1_048_576.0);
/// Microseconds.
pub const US: (&str, f64) = ("µs", 1.0);
/// Bytes for each byte.
pub const TIMES: (&str, f64) = ("bytes for each byte", 1.0);

/// A store with its options.
#[derive(Clone, Debug)]
pub struct Setup {
    series: String,
    store: String,
    set: Vec<String>,
}

impl Setup {
    /// Bifold with a placement and the tree it is meant for, at this scale.
    #[must_use]
    pub fn bifold(scale: Scale, placement: &str) -> Self {
        let mut set = vec![format!("keyspace.preset={placement}")];
        set.extend(scale.options());
        set.extend(if placement == "unikv" { scale.two_layers() } else { scale.leveled() });
        Self { series: placement.to_owned(), store: "bifold".to_owned(), set }
    }

    /// Bifold's LSM-tree set up as LevelDB is by default: memtables smaller than RocksDB's (a sixteenth there, a
    /// fourth here: see [`Scale::table_bytes`] for what small ones cost), four runs in level 0, a level 1 of two and
    /// a half memtables, no filters.
    #[must_use]
    pub fn like_leveldb(scale: Scale) -> Self {
        let memtable = scale.memtable_bytes() / 4;
        Self::bifold(scale, "inline")
            .set(format!("memtable_bytes={memtable}"))
            .set(format!("keyspace.table_bytes={}", memtable))
            .set("keyspace.filter_bits_per_key=0")
            .set("keyspace.compaction.leveled.level0_runs=4")
            .set(format!("keyspace.compaction.leveled.base_bytes={}", memtable * 5 / 2))
            .named(LIKE_LEVELDB)
    }

    /// Another store with the budgets of Bifold at this scale: memory, memtables, tables, level 1.
    #[must_use]
    pub fn peer(scale: Scale, name: &str) -> Self {
        let set = [scale.options(), scale.leveled()].concat();
        Self { series: name.to_owned(), store: name.to_owned(), set }
    }

    /// RocksDB, if this program was built with it.
    #[must_use]
    pub fn rocksdb(scale: Scale) -> Option<Self> {
        Peer::RocksDb.built_in().then(|| Self::peer(scale, "rocksdb"))
    }

    /// A store under its own name with these options.
    #[must_use]
    pub fn of(store: &str, set: Vec<String>) -> Self {
        Self { series: store.to_owned(), store: store.to_owned(), set }
    }

    /// Behind a write cache of this many bytes, at least so many that some values fit.
    #[must_use]
    pub fn cached(self, bytes: u64) -> Self {
        let setup = self.set(format!("transaction_bytes_max={}", bytes.max(64 << 10)));
        Self { store: CachedStore::NAME.to_owned(), ..setup }
    }

    /// With one more option.
    #[must_use]
    pub fn set(mut self, option: impl Into<String>) -> Self {
        self.set.push(option.into());
        self
    }

    /// Under another name.
    #[must_use]
    pub fn named(self, series: impl Into<String>) -> Self {
        Self { series: series.into(), ..self }
    }

    /// A run of it.
    #[must_use]
    pub fn arm(&self, plan: &Plan, steps: &[Step]) -> Arm {
        let Self { series, store, set } = self.clone();
        let spec = Spec {
            store,
            toml: None,
            set,
            plan: plan.clone(),
            input: None,
            steps: steps.to_vec(),
            page_cache: PageCache::Warm,
            process_memory: None,
        };
        Arm { series, x: None, spec }
    }

    /// A run of it at a value of the parameter.
    #[must_use]
    pub fn arm_at(&self, x: f64, plan: &Plan, steps: &[Step]) -> Arm {
        Arm { x: Some(x), ..self.arm(plan, steps) }
    }
}

/// A plan for `bytes` of entries, each with a key of [`KEY_BYTES`] and a value of `value_bytes`.
#[must_use]
pub fn plan(bytes: u64, value_bytes: usize, seed: u64) -> Plan {
    let keys = (bytes / (KEY_BYTES + value_bytes) as u64).max(16);
    Plan { keys, key_bytes: KEY_BYTES, sizes: Sizes::Fixed(value_bytes), seed, ..Plan::default() }
}

/// A plan with values of `sizes` and as many keys as `bytes` of entries would have with values of `mean` bytes. Pareto
/// sizes are 1.18 KB on average: with a mean of 1000 the data are 1.18 times `bytes`.
#[must_use]
pub fn plan_of(bytes: u64, sizes: Sizes, mean: usize, seed: u64) -> Plan {
    Plan { sizes, ..plan(bytes, mean, seed) }
}

/// Skewed choices, as most papers have them.
#[must_use]
pub fn zipf(theta: f64) -> Distribution {
    Distribution::Zipf { theta }
}

/// A step under the workload's own name.
#[must_use]
pub fn step(workload: Workload) -> Step {
    Step::new(workload.name(), workload)
}

/// A step for each workload, under its own name; a workload that occurs again has a number, such as `read 2`.
#[must_use]
pub fn steps(workloads: &[Workload]) -> Vec<Step> {
    let name = |at: usize, workload: Workload| {
        let earlier = workloads[..at].iter().filter(|&&other| other == workload).count();
        if earlier == 0 { workload.name().to_owned() } else { format!("{workload} {}", earlier + 1) }
    };
    workloads.iter().enumerate().map(|(at, &workload)| Step::new(&name(at, workload), workload)).collect()
}

/// Waits until the store is idle.
#[must_use]
pub fn settle() -> Step {
    step(Workload::Settle)
}

/// HashKV's phases: a load (P0), and three times as many updates as there are keys (P1 to P3).
#[must_use]
pub fn load_and_updates() -> Vec<Step> {
    let update = |name| Step::new(name, Workload::Update);
    vec![Step::new("P0", Workload::Load), update("P1"), update("P2"), update("P3")]
}

/// A step with this many operations.
#[must_use]
pub fn operations(step: Step, operations: u64) -> Step {
    let changes = Changes { operations: Some(operations.max(1)), ..step.changes.clone() };
    step.with(changes)
}

/// Scans of `len` keys each, `keys` keys in all.
#[must_use]
pub fn scans(name: &str, len: usize, keys: u64) -> Step {
    let operations = Some((keys / len as u64).max(1));
    Step::new(name, Workload::Scan).with(Changes { scan_len: Some(len), operations, ..Changes::default() })
}

/// The process ends like a killed one, and another one opens the store.
#[must_use]
pub fn recover(name: &str) -> Step {
    Step { name: name.to_owned(), act: Act::Recover, changes: Changes::default() }
}
