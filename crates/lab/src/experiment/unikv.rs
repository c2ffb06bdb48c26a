//! UniKV's experiments (§IV there). Experiment 9 is not here: there all I/O is direct, and the
//! engine has direct reads alone.
//!
//! | file | what it is |
//! |---|---|
//! | this one | stores and workload of the paper, scaled; experiments 1 to 5 |
//! | `impact` | experiments 6 to 8, 10, 11 |
//!
//! | there | here |
//! |---|---|
//! | UniKV | `unikv`: an unsorted layer of 4 and ranges of 40 of the paper's 100 GB, scaled |
//! | LevelDB | `leveldb-like`: the same code with inline values and LevelDB's settings; UniKV is made of LevelDB, too |
//! | RocksDB | where it is built in |
//! | PebblesDB | `tiered`: levels of runs that overlap, without guards, merged as a whole (VAT, §5) |
//!
//! Entries of 1 KiB with keys of 24 bytes, Zipf 0.99. Of 100 GB of data others have 170 MB of block cache, which is
//! what UniKV's hash index takes, and UniKV has 8 MB: so it is here, scaled. All that is left is page cache.

mod impact;

use super::{
    Arm, Data, Experiment, Maker, Paper, View,
    check::{Check, Rule, falls, least, rises},
    data::{DIR_BYTES, RATE, READ, SECONDS, WRITE_AMP, WRITTEN},
    setup::{KEY_BYTES, KOPS, LIKE_LEVELDB, MIB, Setup, TIMES, operations, plan, scans, settle, step, zipf},
};
use crate::{Plan, Workload, scale::Scale, spec::Step};

/// Every one of them.
pub(super) const ALL: &[Maker] = &[e1, e2, e3, e4, e5, impact::e6, impact::e7, impact::e8, impact::e10, impact::e11];

/// The paper's skew.
const THETA: f64 = 0.99;

/// So many bytes of cache as `share` of the paper's 100 GB, but not less than a few blocks.
fn cached(setup: Setup, scale: Scale, share_mb: u64) -> Setup {
    setup.set(format!("cache_bytes={}", (scale.data_bytes() * share_mb / 100_000).max(16 << 10)))
}

fn papers(scale: Scale) -> Setup {
    cached(Setup::bifold(scale, "unikv"), scale, 8)
}

/// LevelDB with the paper's settings: memtables as large as the others', filters of 10 bits per key.
fn leveldb(scale: Scale) -> Setup {
    let setup = Setup::like_leveldb(scale).set(format!("memtable_bytes={}", scale.memtable_bytes()));
    cached(setup.set("keyspace.filter_bits_per_key=10"), scale, 170)
}

fn rocksdb(scale: Scale) -> Option<Setup> {
    Setup::rocksdb(scale).map(|setup| cached(setup, scale, 170))
}

fn tiered(scale: Scale) -> Setup {
    let tree = cached(Setup::bifold(scale, "inline"), scale, 170);
    tree.set("keyspace.compaction.tiered.size_ratio=4").named("tiered")
}

fn everyone(scale: Scale) -> impl Iterator<Item = Setup> {
    [Some(leveldb(scale)), rocksdb(scale), Some(tiered(scale)), Some(papers(scale))].into_iter().flatten()
}

/// Those for comparison in which what cancels a result of the paper here is switched off: without filters LevelDB asks
/// each level, and without a bound on space the unsorted layer of a small partition is as large as in the paper.
fn switched_off(scale: Scale) -> [Setup; 2] {
    [
        leveldb(scale).set("keyspace.filter_bits_per_key=0").named("leveldb-like, no filters"),
        papers(scale).set("keyspace.values.space_target=8").named("unikv, any space"),
    ]
}

/// UniKV with one of its mechanisms switched, to see what that one costs and gains: runs of the unsorted layer are not
/// merged with each other for scans; GC rewrites a partition, as in the paper, and not the keys of one file.
fn switched(scale: Scale) -> [Setup; 2] {
    [
        papers(scale).set("keyspace.compaction.two_layer.scan_merge_runs=1000").named("unikv, runs never merged"),
        papers(scale).set("keyspace.values.unikv.gc=partition").named("unikv, GC by partition"),
    ]
}

/// The paper's workload on `bytes` of entries.
fn base(bytes: u64, pair_bytes: usize, seed: u64) -> Plan {
    let plan = plan(bytes, pair_bytes - KEY_BYTES, seed);
    Plan { updates: zipf(THETA), reads: zipf(THETA), theta: THETA, ..plan }
}

fn standard(scale: Scale, seed: u64) -> Plan {
    base(scale.data_bytes(), 1 << 10, seed)
}

/// A load and what it leaves to do, then reads.
fn load_and_reads(keys: u64) -> Vec<Step> {
    vec![step(Workload::Load), settle(), operations(step(Workload::Read), keys / 2)]
}

/// The paper's microbenchmark: experiment 1. Experiment 10 looks at its memory.
fn micro(stores: impl Iterator<Item = Setup>, scale: Scale, seed: u64) -> Vec<Arm> {
    let plan = standard(scale, seed);
    let mut steps = load_and_reads(plan.keys);
    steps.extend([scans("scan", 50, plan.keys / 2), step(Workload::Update), Step::new("rest", Workload::Settle)]);
    stores.map(|setup| setup.arm(&plan, &steps)).collect()
}

/// A check of one figure against another series.
fn over(
    what: &str,
    b: &'static str,
    paper: &str,
    rule: Rule,
    ours: impl Fn(&Data<'_>, &str) -> Option<f64> + Send + Sync + 'static,
) -> Check {
    Check::new(format!("{what}, unikv over {b}"), paper, rule, move |d| Some(ours(d, "unikv")? / ours(d, b)?))
}

fn e1(scale: Scale, seed: u64) -> Experiment {
    let rate = |step: &'static str| move |d: &Data<'_>, series: &str| d.of(series, step, RATE);
    let written = |steps: [&'static str; 2]| move |d: &Data<'_>, series: &str| d.sum(series, None, &steps, WRITTEN);
    let less = |what, paper, share, steps| over(what, LIKE_LEVELDB, paper, Rule::Saving(share), written(steps));
    let mut checks = vec![
        over("load", LIKE_LEVELDB, "1.7 to 9.6 ×", Rule::Gain(1.7), rate("load")),
        over("reads", LIKE_LEVELDB, "3.1 to 6.6 ×", Rule::Gain(3.1), rate("read")),
        over("updates", LIKE_LEVELDB, "1.6 to 8.2 ×", Rule::Gain(1.6), rate("update")),
        over("scans of 50", LIKE_LEVELDB, "nearly the same as LevelDB", Rule::Alike, rate("scan")),
        less("bytes written by the load", "46.7 to 73.2 % less", 0.467, ["load", "settle"]),
        less("bytes written by the updates", "65.2 to 76.6 % less", 0.652, ["update", "rest"]),
        over("bytes read by reads", LIKE_LEVELDB, "69.7 to 80.6 % less", Rule::Saving(0.697), |d, series| {
            d.of(series, "read", READ)
        }),
    ];
    if rocksdb(scale).is_some() {
        checks.extend([
            over("load", "rocksdb", "1.7 to 9.6 ×", Rule::Gain(1.7), rate("load")),
            over("reads", "rocksdb", "3.1 to 6.6 ×", Rule::Gain(3.1), rate("read")),
            over("updates", "rocksdb", "1.6 to 8.2 ×", Rule::Gain(1.6), rate("update")),
            over("scans of 50", "rocksdb", "1.3 to 1.4 ×", Rule::Gain(1.3), rate("scan")),
        ]);
    }
    Experiment {
        name: "unikv-e1",
        paper: Paper::UniKv,
        place: "experiment 1, figure 9 and table I",
        title: "Loads, reads, scans, updates; bytes written and read; space",
        note: "`leveldb-like` stands for LevelDB, and for others where the paper speaks of all. `tiered`, for \
               PebblesDB, is only shown; so are `leveldb-like` without filters, and `unikv` without a bound on space, \
               whose unsorted layers then have the paper's size, without merges for scans, and with the paper's GC. \
               Reads are half as many as keys, in the paper a tenth; they begin when background work of the load is \
               done.",
        arms: micro(everyone(scale).chain(switched_off(scale)).chain(switched(scale)), scale, seed),
        views: micro_views(),
        checks,
    }
}

fn micro_views() -> Vec<View> {
    let steps = ["load", "read", "update"];
    let mut views = vec![
        View::bars("Throughput", RATE, KOPS, &steps),
        View::bars("Scans of 50", RATE, KOPS, &["scan"]),
        View::bars(
            "Bytes written, with the background work that remained",
            WRITTEN,
            MIB,
            &["load", "settle", "update", "rest"],
        ),
        View::bars("Bytes written, everything included", WRITE_AMP, TIMES, &["settle", "rest"]),
        View::bars("Bytes read by reads", READ, MIB, &["read"]),
        View::bars("Size of the store", DIR_BYTES, MIB, &["settle"]),
    ];
    views.extend(View::of_device(&steps));
    views.extend(View::of_device_scans("scan"));
    views
}

fn e2(scale: Scale, seed: u64) -> Experiment {
    use Workload::{Load, Mix, Mix30, Mix70};
    let plan = standard(scale, seed);
    let mixes = [("30:70", Mix30), ("50:50", Mix), ("70:30", Mix70)];
    let mut steps = vec![step(Load)];
    steps.extend(mixes.map(|(name, workload)| Step::new(name, workload)));
    let peers = [(LIKE_LEVELDB, "6.5 to 7.1 × LevelDB", 6.5), ("tiered", "2.0 to 2.3 × PebblesDB", 2.0)];
    let peers = peers.into_iter().chain(rocksdb(scale).map(|_| ("rocksdb", "4.4 to 4.6 ×", 4.4)));
    let compared = |(b, paper, gain)| {
        let of = move |(mix, _)| over(mix, b, paper, Rule::Gain(gain), move |d, series| d.of(series, mix, RATE));
        mixes.map(of)
    };
    Experiment {
        name: "unikv-e2",
        paper: Paper::UniKv,
        place: "experiment 2, figure 10",
        title: "Reads and writes mixed",
        note: "One store runs all three mixes, one after the other. `leveldb-like` stands for LevelDB, `tiered` for \
        PebblesDB.",
        arms: everyone(scale).map(|setup| setup.arm(&plan, &steps)).collect(),
        views: vec![View::bars("Reads to writes", RATE, KOPS, &["30:70", "50:50", "70:30"])],
        checks: peers.flat_map(compared).collect(),
    }
}

fn e3(scale: Scale, seed: u64) -> Experiment {
    use Workload::{Load, YcsbA, YcsbB, YcsbC, YcsbD, YcsbE, YcsbF};
    // Scans of 1 to 200 entries, 100 on average.
    let plan = Plan { scan_len: 200, ..standard(scale, seed) };
    let mut steps = vec![step(Load)];
    steps.extend([YcsbA, YcsbB, YcsbC, YcsbF, YcsbD].map(|workload| operations(step(workload), plan.keys / 2)));
    steps.push(operations(step(YcsbE), plan.keys / 20));
    let gains = [
        ("A", "ycsb-a", "2.2 to 5.4 ×", 2.2),
        ("B", "ycsb-b", "2.1 to 4.2 ×", 2.1),
        ("C", "ycsb-c", "2.6 to 4.4 ×", 2.6),
        ("D", "ycsb-d", "2.7 to 7.3 ×", 2.7),
        ("E", "ycsb-e", "1.1 to 1.3 ×", 1.1),
        ("F", "ycsb-f", "1.8 to 4.4 ×", 1.8),
    ];
    let peers = std::iter::once(LIKE_LEVELDB).chain(rocksdb(scale).map(|_| "rocksdb"));
    let compared = |b| {
        gains.map(|(what, step, paper, gain)| {
            over(what, b, paper, Rule::Gain(gain), move |d, series| d.of(series, step, RATE))
        })
    };
    Experiment {
        name: "unikv-e3",
        paper: Paper::UniKv,
        place: "experiment 3, figure 11",
        title: "YCSB",
        note: "One store runs all workloads, in the order A, B, C, F, D, E; in the paper each has a fresh load. Scans \
        of E have 1 to 200 entries instead of 100, and are half as many. `leveldb-like` is for LevelDB; `tiered`, for \
        PebblesDB, is only shown.",
        arms: everyone(scale).map(|setup| setup.arm(&plan, &steps)).collect(),
        views: vec![
            View::bars("A to D and F", RATE, KOPS, &["ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-f"]),
            View::bars("E", RATE, KOPS, &["ycsb-e"]),
        ],
        checks: peers.flat_map(compared).collect(),
    }
}

/// How many times the data of the other experiments, which stand for 100 GB.
const LARGER: [u64; 2] = [2, 3];

/// UniKV over `tiered` at each value of the parameter.
fn ratios(d: &Data<'_>, step: &str, metric: &str) -> Vec<(f64, f64)> {
    d.ratios("unikv", "tiered", step, metric)
}

fn e4(scale: Scale, seed: u64) -> Experiment {
    let setups = [tiered(scale), papers(scale)];
    let at = |setup: &Setup, times: u64| {
        let plan = base(times * scale.data_bytes(), 1 << 10, seed);
        let mut steps = load_and_reads(plan.keys);
        steps.push(step(Workload::Update));
        setup.arm_at(times as f64, &plan, &steps)
    };
    let gain = |what: &str, paper, gain, step: &'static str| {
        Check::new(format!("{what}, unikv over tiered, smallest ratio"), paper, Rule::Gain(gain), move |d| {
            least(&ratios(d, step, RATE))
        })
    };
    Experiment {
        name: "unikv-e4",
        paper: Paper::UniKv,
        place: "experiment 4, figure 12",
        title: "More data",
        note: "`tiered` stands for PebblesDB, the only store of this comparison in the paper.",
        arms: setups.iter().flat_map(|setup| LARGER.map(|times| at(setup, times))).collect(),
        views: vec![
            View::lines("Load", RATE, KOPS, "load", "times the data", false),
            View::lines("Reads", RATE, KOPS, "read", "times the data", false),
            View::lines("Updates", RATE, KOPS, "update", "times the data", false),
            View::lines("Bytes written for each byte loaded", WRITE_AMP, TIMES, "settle", "times the data", false),
        ],
        checks: vec![
            gain("load", "1.8 to 2.0 × PebblesDB", 1.8, "load"),
            gain("reads", "3.2 to 3.6 × PebblesDB", 3.2, "read"),
            gain("updates", "1.4 to 1.5 × PebblesDB", 1.4, "update"),
            Check::new(
                "bytes written by the load, unikv over tiered, largest ratio",
                "47.4 to 52.1 % less",
                Rule::Saving(0.474),
                |d| ratios(d, "settle", WRITE_AMP).into_iter().map(|(_, ratio)| ratio).reduce(f64::max),
            ),
            Check::new("load, unikv over tiered, with more data", "the gain increases", Rule::Rises, |d| {
                rises(&ratios(d, "load", RATE))
            }),
        ],
    }
}

/// Entry sizes, in bytes.
const ENTRY_SIZES: [usize; 4] = [256, 1 << 10, 4 << 10, 32 << 10];

fn e5(scale: Scale, seed: u64) -> Experiment {
    let setups = [tiered(scale), papers(scale)];
    let at = |setup: &Setup, bytes: usize| {
        let plan = base(scale.data_bytes(), bytes, seed);
        let mut steps = load_and_reads(plan.keys);
        steps.push(step(Workload::Update));
        setup.arm_at(bytes as f64, &plan, &steps)
    };
    let always = |what: &str, step: &'static str| {
        let what = format!("{what}, unikv over tiered, smallest ratio");
        let paper = "always outperforms PebblesDB (the direction alone)";
        Check::new(what, paper, Rule::AtLeast(1.0), move |d| least(&ratios(d, step, RATE)))
    };
    // All sizes load the same bytes, so what falls in seconds rises in bytes per second.
    let grows = |what, step: &'static str| {
        Check::new(what, "throughput in bytes grows steadily with the size", Rule::Falls, move |d| {
            falls(&d.over("unikv", step, SECONDS))
        })
    };
    Experiment {
        name: "unikv-e5",
        paper: Paper::UniKv,
        place: "experiment 5, figure 13",
        title: "Entry size",
        note: "`tiered` stands for PebblesDB. The paper shows bytes per second; here are seconds for the same bytes. \
               Its statement on PebblesDB's first level at large sizes is not checked.",
        arms: setups.iter().flat_map(|setup| ENTRY_SIZES.map(|bytes| at(setup, bytes))).collect(),
        views: vec![
            View::lines("Load of the same bytes", SECONDS, ("s", 1.0), "load", "entry size, bytes", true),
            View::lines("Reads of half of them", SECONDS, ("s", 1.0), "read", "entry size, bytes", true),
            View::lines("Updates of as many", SECONDS, ("s", 1.0), "update", "entry size, bytes", true),
            View::lines("Bytes written for each byte loaded", WRITE_AMP, TIMES, "settle", "entry size, bytes", true),
        ],
        checks: vec![
            always("load", "load"),
            always("reads", "read"),
            always("updates", "update"),
            grows("time of the load over the entry size", "load"),
            grows("time of the updates over the entry size", "update"),
            Check::new("load, unikv over tiered, over the entry size", "the improvement decreases", Rule::Falls, |d| {
                falls(&ratios(d, "load", RATE))
            }),
            Check::new(
                "reads, unikv over tiered, over the entry size",
                "the improvement increases",
                Rule::Rises,
                |d| rises(&ratios(d, "read", RATE)),
            ),
        ],
    }
}
