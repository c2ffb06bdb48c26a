//! Our own targets: all placements compared with RocksDB, LMDB and fjall, in three settings, and what was reached.
//!
//! | setting | data | the store's process |
//! |---|---|---|
//! | [`Setting::Cache`] | 1 M × (24 + 1000) B | all memory; a cache of 256 MiB |
//! | [`Setting::Large`] | 8 M × (24 + 1000) B | all memory; a cache of 512 MiB |
//! | [`Setting::Confined`] | 2 M × (24 + 1000) B | 768 MiB with its page cache; a cache of 64 MiB |
//!
//! RocksDB runs with three sets of options; a target is compared with the best of them.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    Data, Experiment, Paper, View,
    check::{Check, Rule},
    data::{CPU_US, DEVICE_BYTES_OF_ONE, DEVICE_READS_OF_ONE, P999_US, P9999_US, RATE, READ_OF_ASKED, SLOWEST_OWN_US},
    setup::{KEY_BYTES, KOPS, Setup, US, settle, zipf},
};
use crate::{
    Failure, Plan, Scale, Workload,
    plan::Changes,
    spec::{Act, Step},
    store::Peer,
    values::Sizes,
};

/// The placements, best known first.
const PLACEMENTS: [&str; 7] = ["inline", "wisckey", "hashkv", "novkv", "diffkv", "unikv", "streams"];

/// Those that are also measured past the page cache where memory is confined.
const DIRECT: [(&str, &str); 3] = [("inline", "inline-direct"), ("hashkv", "hashkv-direct"), ("unikv", "unikv-direct")];

/// Options of these: the cache has what memtables, indexes and filters leave, and all of it fits the process.
const DIRECT_OPTIONS: [&str; 2] = ["reads=direct", "memory_limit=672MiB"];

/// Those whose values lie in key order, or nearly so.
const ORDERED: [&str; 3] = ["inline", "diffkv", "unikv"];

/// RocksDB, with several sets of options.
const ROCKSDB: [Peer; 3] = [Peer::RocksDb, Peer::RocksDbRecommended, Peer::RocksDbDirect];

/// The block cache of RocksDB with direct reads is eight times as large. With 512 and with 384 MiB its process was
/// killed for exceeding 768 MiB.
const ROCKSDB_DIRECT_CONFINED: &str = "cache_bytes=32MiB";

/// In place of a paper's statement.
const TARGET: &str = "our target";

const LOAD: &str = "load";
const GET: &str = "get";
const GET_2: &str = "get, 2 threads";
const GET_16: &str = "get, 16 threads";
const DEVICE_16: &str = "device, 16 at once";
const ZIPF: &str = "get, Zipf";
const SCAN: &str = "scan";
const UPDATE: &str = "update";

/// Steps whose figures are shown, in their order.
const SHOWN: [&str; 8] = [LOAD, GET, GET_2, GET_16, DEVICE_16, ZIPF, SCAN, UPDATE];

/// A step ends after this time, whatever is left of it: the slowest store is 50 times slower than the fastest.
const STEP_TIME_MAX: Duration = Duration::from_secs(20);

/// How often one and two threads read in turns where data are in memory.
const TURNS: usize = 3;

/// How much data, and how much memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// All in memory.
    Cache,
    /// Eight times as much, in the page cache of a large machine.
    Large,
    /// Nearly three times as much as memory holds.
    Confined,
}

impl Setting {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Cache, Self::Large, Self::Confined];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cache => "cache",
            Self::Large => "large",
            Self::Confined => "confined",
        }
    }

    fn keys(self) -> u64 {
        match self {
            Self::Cache => 1_000_000,
            Self::Large => 8_000_000,
            Self::Confined => 2_000_000,
        }
    }

    /// Options of all stores; the others have their defaults.
    fn options(self) -> Vec<String> {
        let words: &[&str] = match self {
            Self::Cache => &["memory_limit=768MiB", "cache_bytes=256MiB"],
            Self::Large => &["memory_limit=1024MiB", "cache_bytes=512MiB"],
            Self::Confined => &["cache_bytes=64MiB"],
        };
        words.iter().map(|&word| word.to_owned()).collect()
    }

    /// The most memory of a store's process, page cache included.
    fn process_memory(self) -> Option<u64> {
        (self == Self::Confined).then_some(768 << 20)
    }

    /// Gets of a step, and scans: some seconds of the fastest store.
    fn operations(self) -> (u64, u64) {
        match self {
            Self::Cache | Self::Large => (1_000_000, 20_000),
            Self::Confined => (150_000, 10_000),
        }
    }

    /// The experiment. At the scale `tiny` it has a 500th of the data and all memory, and proves that it works; the
    /// other scales are one.
    #[must_use]
    pub fn experiment(self, scale: Scale, seed: u64) -> Experiment {
        let is_tiny = scale == Scale::Tiny;
        let divisor = if is_tiny { 500 } else { 1 };
        let options = if is_tiny { scale.options() } else { self.options() };
        let plan = Plan {
            keys: self.keys() / divisor,
            key_bytes: KEY_BYTES,
            sizes: Sizes::Fixed(1000),
            time_max: Some(STEP_TIME_MAX),
            seed,
            ..Plan::default()
        };
        let steps = self.steps(divisor);
        let peers = ROCKSDB.into_iter().chain([Peer::Lmdb, Peer::Fjall]).filter(|peer| peer.built_in());
        let arm = |setup: Setup| {
            let mut arm = setup.arm(&plan, &steps);
            arm.spec.process_memory = self.process_memory().filter(|_| !is_tiny);
            arm
        };
        let ours = PLACEMENTS.iter().map(|placement| {
            let preset = format!("keyspace.preset={placement}");
            arm(Setup::of("bifold", [&[preset], &options[..]].concat()).named(*placement))
        });
        let direct = DIRECT.iter().filter(|_| self == Self::Confined).map(|(placement, series)| {
            let preset = format!("keyspace.preset={placement}");
            let options = if is_tiny { options.clone() } else { DIRECT_OPTIONS.map(str::to_owned).to_vec() };
            arm(Setup::of("bifold", [vec![preset, DIRECT_OPTIONS[0].to_owned()], options].concat()).named(*series))
        });
        let theirs = peers.map(|peer| {
            let is_smaller = self == Self::Confined && !is_tiny && peer == Peer::RocksDbDirect;
            let less = is_smaller.then(|| ROCKSDB_DIRECT_CONFINED.to_owned());
            arm(Setup::of(peer.name(), options.iter().cloned().chain(less).collect()))
        });
        Experiment {
            name: "performance",
            paper: Paper::Bifold,
            place: self.name(),
            title: match self {
                Self::Cache => "1 M entries in memory",
                Self::Large => "8 M entries in memory",
                Self::Confined => "2 M entries, process and page cache confined to 768 MiB",
            },
            note: "Requests to the device are counted for the whole machine. A target is compared with the best of \
            RocksDB's three sets of options.",
            arms: ours.chain(direct).chain(theirs).collect(),
            views: self.views(),
            checks: self.checks(),
        }
    }

    fn steps(self, divisor: u64) -> Vec<Step> {
        let (gets, scans) = self.operations();
        let some = |operations: u64, threads: usize| Changes {
            operations: Some((operations / divisor).max(100)),
            threads: Some(threads),
            ..Changes::default()
        };
        let read = |name: &str, changes| Step::new(name, Workload::Read).with(changes);
        let mut steps = vec![Step::new(LOAD, Workload::Load), settle(), read("warm up", some(gets / 2, 1))];
        // In turns: one step differs from the next by more than some placements from each other.
        let turns = if self == Self::Confined { 1 } else { TURNS };
        for _ in 0..turns {
            steps.extend([read(GET, some(gets, 1)), read(GET_2, some(2 * gets, 2))]);
        }
        if self == Self::Confined {
            let device = Step { name: DEVICE_16.to_owned(), act: Act::Device, changes: some(2 * gets, 16) };
            steps.extend([read(GET_16, some(4 * gets, 16)), device]);
        }
        let reads = Some(zipf(0.99));
        steps.extend([
            read(ZIPF, Changes { reads, ..some(2 * gets, 1) }),
            Step::new(SCAN, Workload::Scan).with(some(scans, 1)),
            Step::new(UPDATE, Workload::Update).with(some(2 * gets, 1)),
        ]);
        steps
    }

    /// The steps whose figures are shown.
    #[must_use]
    pub fn shown(self) -> Vec<&'static str> {
        let only_confined = |step: &&str| self == Self::Confined || ![GET_16, DEVICE_16].contains(step);
        SHOWN.into_iter().filter(only_confined).collect()
    }

    fn views(self) -> Vec<View> {
        let shown = self.shown();
        let mut views = vec![
            View::bars("Throughput", RATE, KOPS, &shown),
            View::bars("99.9th percentile", P999_US, US, &shown),
            View::bars("Processor time of an operation", CPU_US, US, &shown),
        ];
        if self == Self::Confined {
            let reads = [GET, ZIPF, SCAN];
            views.extend([
                View::bars("Reads of the device for an operation", DEVICE_READS_OF_ONE, ("reads", 1.0), &reads),
                View::bars("Bytes from the device for an operation", DEVICE_BYTES_OF_ONE, ("KiB", 1024.0), &reads),
            ]);
        }
        views
    }

    fn checks(self) -> Vec<Check> {
        let of_one = |placement| match self {
            Self::Cache => in_cache(placement),
            Self::Large => writes(placement, 50.0),
            Self::Confined => confined(placement),
        };
        let direct =
            DIRECT.into_iter().filter(|_| self == Self::Confined).flat_map(|(_, series)| gets_confined(series));
        PLACEMENTS.into_iter().flat_map(of_one).chain(direct).collect()
    }
}

/// The best of RocksDB's figures, by `better`.
fn rocksdb(data: &Data<'_>, step: &str, metric: &str, better: fn(f64, f64) -> f64) -> Option<f64> {
    ROCKSDB.into_iter().filter_map(|peer| data.of(peer.name(), step, metric)).reduce(better)
}

/// A rate as a multiple of RocksDB's best.
fn over_rocksdb(placement: &'static str, step: &'static str, least: f64) -> Check {
    let what = format!("{placement}: {step}, times RocksDB's");
    Check::new(what, TARGET, Rule::AtLeast(least), move |data| {
        Some(data.of(placement, step, RATE)? / rocksdb(data, step, RATE, f64::max)?)
    })
}

/// A rate as a multiple of LMDB's.
fn over_lmdb(placement: &'static str, step: &'static str, least: f64) -> Check {
    let what = format!("{placement}: {step}, times LMDB's");
    Check::new(what, TARGET, Rule::AtLeast(least), move |data| data.ratio(placement, Peer::Lmdb.name(), step, RATE))
}

/// A figure itself, in units of `per`.
fn itself(placement: &'static str, (what, step, metric): (&str, &'static str, &'static str), rule: Rule) -> Check {
    let per = if [SLOWEST_OWN_US, P9999_US].contains(&metric) || metric == RATE { 1e3 } else { 1.0 };
    let what = format!("{placement}: {step}, {what}");
    Check::new(what, TARGET, rule, move |data| Some(data.of(placement, step, metric)? / per))
}

fn confined(placement: &'static str) -> Vec<Check> {
    let is_ordered = ORDERED.contains(&placement);
    let mut checks = gets_confined(placement);
    checks.push(over_rocksdb(placement, SCAN, if is_ordered { 1.5 } else { 1.0 }));
    if is_ordered {
        let what = ("bytes from the device for one asked for", SCAN, READ_OF_ASKED);
        checks.push(itself(placement, what, Rule::AtMost(1.3)));
    }
    checks
}

fn gets_confined(placement: &'static str) -> Vec<Check> {
    let slow = format!("{placement}: {GET}, p99.9 as a multiple of RocksDB's");
    let slow = Check::new(slow, TARGET, Rule::AtMost(1.0), move |data| {
        Some(data.of(placement, GET, P999_US)? / rocksdb(data, GET, P999_US, f64::min)?)
    });
    let device = format!("{placement}: {GET_16}, requests to the device a second, of what it gives alone");
    let device = Check::new(device, TARGET, Rule::AtLeast(0.85), move |data| {
        let requests = data.of(placement, GET_16, RATE)? * data.of(placement, GET_16, DEVICE_READS_OF_ONE)?;
        Some(requests / data.of(placement, DEVICE_16, RATE).filter(|&rate| rate > 0.0)?)
    });
    vec![
        over_rocksdb(placement, GET, 1.3),
        itself(placement, ("reads of the device for one", GET, DEVICE_READS_OF_ONE), Rule::AtMost(0.75)),
        slow,
        over_rocksdb(placement, ZIPF, 1.5),
        device,
    ]
}

fn in_cache(placement: &'static str) -> Vec<Check> {
    let two = format!("{placement}: {GET_2}, times one");
    let two = Check::new(two, TARGET, Rule::AtLeast(1.9), move |data| {
        Some(data.of(placement, GET_2, RATE)? / data.of(placement, GET, RATE)?)
    });
    let mut checks = vec![
        over_lmdb(placement, GET, 1.0),
        over_rocksdb(placement, GET, 5.0),
        two,
        over_lmdb(placement, SCAN, 1.2),
        over_rocksdb(placement, LOAD, 4.0),
        itself(placement, ("thousand a second", LOAD, RATE), Rule::AtLeast(500.0)),
    ];
    checks.extend(writes(placement, 20.0));
    checks
}

fn writes(placement: &'static str, slowest_ms: f64) -> Vec<Check> {
    let of = |step| {
        [
            itself(
                placement,
                ("slowest write without stalls of the machine, ms", step, SLOWEST_OWN_US),
                Rule::AtMost(slowest_ms),
            ),
            itself(placement, ("p99.99, ms", step, P9999_US), Rule::AtMost(2.0)),
        ]
    };
    [LOAD, UPDATE].into_iter().flat_map(of).collect()
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Setting {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        Self::ALL.into_iter().find(|setting| setting.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Failure::Plan(format!("no setting is called `{text}`; there are {names}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{machine::Machine, record::Run};

    /// A run of `arm` whose steps have these rates and requests to the device.
    fn run(experiment: &Experiment, series: &str, steps: &[(&str, f64, f64)]) -> Run {
        let arm = experiment.arms.iter().find(|arm| arm.series == series).unwrap();
        let step = |&(name, rate, requests): &(&str, f64, f64)| {
            let latency = serde_json::json!({ "p999": 1000.0, "p9999": 1500.0, "max": 30_000.0 });
            let device = serde_json::json!({ "requests_per_op": requests, "read_amp": 1.2 });
            serde_json::json!({
                "step": name, "ops_per_sec": rate, "latency_us": latency, "slowest_own_us": 25_000.0, "device": device,
            })
        };
        Run {
            key: arm.spec.key(),
            round: 1,
            experiment: experiment.name.to_owned(),
            arm: series.to_owned(),
            spec: arm.spec.clone(),
            version: String::new(),
            settings: Vec::new(),
            machine: Machine::default(),
            began: 0,
            seconds: 1.0,
            steps: steps.iter().map(step).collect(),
            accounts: Vec::new(),
            not_loaded: None,
        }
    }

    fn held(experiment: &Experiment, runs: &[Run]) -> Vec<(String, Option<bool>)> {
        let data = Data::new(&experiment.arms, runs);
        experiment.outcomes(&data).into_iter().map(|outcome| (outcome.what, outcome.holds)).collect()
    }

    #[test]
    fn every_arm_of_every_setting_can_be_run_and_its_targets_name_its_steps() {
        for (setting, scale) in Setting::ALL.into_iter().flat_map(|s| [(s, Scale::Tiny), (s, Scale::Small)]) {
            assert_eq!(setting.name().parse::<Setting>().unwrap(), setting);
            let experiment = setting.experiment(scale, 1);
            for arm in &experiment.arms {
                arm.spec.options().unwrap();
                let names: Vec<&str> = arm.spec.steps.iter().map(|step| step.name.as_str()).collect();
                assert!(setting.shown().iter().all(|step| names.contains(step)), "{setting}: {names:?}");
                assert_eq!(arm.spec.process_memory.is_some(), setting == Setting::Confined && scale == Scale::Small);
            }
            let named = |check: &Check| setting.shown().iter().any(|step| check.what.contains(step));
            assert!(experiment.checks.iter().all(named));
        }
        assert!("hot".parse::<Setting>().unwrap_err().to_string().contains("confined"));
    }

    #[test]
    fn targets_in_memory_that_need_no_peer_are_judged_by_the_figures_of_the_placement() {
        let experiment = Setting::Cache.experiment(Scale::Small, 1);
        let steps = [(LOAD, 510_000.0, 0.0), (GET, 300_000.0, 0.0), (GET_2, 580_000.0, 0.0)];
        let outcomes = held(&experiment, &[run(&experiment, "unikv", &steps)]);
        let of = |words: &str| outcomes.iter().find(|(what, _)| what == words).unwrap().1;
        assert_eq!(of("unikv: get, 2 threads, times one"), Some(true));
        assert_eq!(of("unikv: load, thousand a second"), Some(true));
        assert_eq!(of("unikv: load, slowest write without stalls of the machine, ms"), Some(false));
        assert_eq!(of("unikv: load, p99.99, ms"), Some(true));
        assert_eq!(of("inline: get, 2 threads, times one"), None);
    }

    #[test]
    fn of_a_step_that_a_run_makes_several_times_the_median_counts() {
        let experiment = Setting::Cache.experiment(Scale::Small, 1);
        let steps = [(GET, 300e3, 0.0), (GET_2, 590e3, 0.0), (GET, 310e3, 0.0), (GET_2, 400e3, 0.0), (GET, 900e3, 0.0)];
        let runs = [run(&experiment, "unikv", &steps)];
        let data = Data::new(&experiment.arms, &runs);
        assert_eq!([GET, GET_2].map(|step| data.of("unikv", step, RATE)), [Some(310e3), Some(495e3)]);
    }

    #[test]
    fn the_device_is_compared_with_what_it_gives_alone() {
        let experiment = Setting::Confined.experiment(Scale::Small, 1);
        let outcome = |device: f64| {
            let steps = [(GET, 9e3, 0.8), (GET_16, 100_000.0, 0.7), (DEVICE_16, device, 1.0), (SCAN, 1e3, 2.0)];
            let outcomes = held(&experiment, &[run(&experiment, "inline", &steps)]);
            let of = |words: &str| outcomes.iter().find(|(what, _)| what.contains(words)).unwrap().1;
            assert_eq!(of("inline: get, reads of the device"), Some(false));
            assert_eq!(of("inline: scan, bytes from"), Some(true));
            of("inline: get, 16 threads")
        };
        assert_eq!([80e3, 85e3, 0.0].map(outcome), [Some(true), Some(false), None]);
    }
}
