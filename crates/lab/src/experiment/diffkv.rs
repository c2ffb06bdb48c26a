//! DiffKV's experiments: its motivating trade-off (§2.3 of the paper), comparisons with other stores (§5.2, §5.3), the
//! costs and gains of its merges (§5.4), scans (§5.5) and its parameters (§5.6).
//!
//! | file | what it is |
//! |---|---|
//! | this one | stores and workloads of the paper, scaled; figures 2, 3, 10 to 13, 17 |
//! | `merges` | figures 14 to 16 |
//! | `parameters` | figure 18 |
//!
//! | there | here |
//! |---|---|
//! | DiffKV | `diffkv` with the paper's 128 bytes, 8 KiB, ten sorted groups and 30 % of garbage |
//! | RocksDB | `inline`: the same code with inline values; and RocksDB itself where it is built in |
//! | Titan, no GC | `separated`: the values that DiffKV separates, separated by flushes, without merges and GC |
//! | Titan, foreground GC | `logs, GC`: GC of logs with index lookups, above a space target; writers may wait |
//! | (none) | `separated, GC`: that target held by DiffKV's own GC, in compactions, without lookups |
//! | PebblesDB | `tiered` in figures 2 and 3: levels of runs that overlap, without guards, merged as a whole |
//!
//! Entries have keys of 24 bytes and values of Pareto sizes unless sizes are the parameter; choices follow Zipf's law
//! with 0.9. The number of keys is that of values of 1000 bytes. The drawn ones have 1.18 KB on average, so data are
//! 1.18 times as large as with values of one size.

mod merges;
mod parameters;

use super::{
    Arm, Data, Experiment, Maker, Paper, View,
    check::{Check, Rule, falls, rises},
    data::{DIR_BYTES, MEAN_US, P99_US, RATE, WRITE_AMP},
    setup::{KOPS, MIB, Setup, TIMES, US, operations, plan, plan_of, scans, settle, step, zipf},
};
use crate::{Plan, Workload, scale::Scale, spec::Step, values::Sizes};

/// Every one of them.
pub(super) const ALL: &[Maker] = &[
    f2,
    f3,
    f10,
    f11,
    f12,
    f13,
    merges::f14,
    merges::f15,
    merges::f16,
    f17,
    parameters::f18a,
    parameters::f18b,
    parameters::f18c,
    parameters::f18d,
];

/// Stores with inline values; the second only if it is built in.
const LSMS: [&str; 2] = ["inline", "rocksdb"];

/// The paper's skew.
const THETA: f64 = 0.9;

/// Threads that scan, unless they are the parameter.
const SCAN_THREADS: usize = 16;

/// The paper's store. All other options are its defaults.
fn papers(scale: Scale) -> Setup {
    Setup::bifold(scale, "diffkv").set("keyspace.values.separate_from_bytes=128")
}

/// Values separated by flushes, large ones too, and never merged.
fn separated(scale: Scale) -> Setup {
    papers(scale)
        .set("keyspace.values.diffkv.merge=off")
        .set("keyspace.values.diffkv.large_bytes=1MiB")
        .set("keyspace.values.space_target=100")
        .named("separated")
}

/// The same with GC at DiffKV's space target, which its compactions do.
fn separated_with_gc(scale: Scale) -> Setup {
    separated(scale).set("keyspace.values.space_target=1.5").named("separated, GC")
}

/// All separated values in logs, whose GC holds DiffKV's space target.
fn logs_with_gc(scale: Scale) -> Setup {
    papers(scale).set("keyspace.values.diffkv.large_bytes=1").set("keyspace.values.space_target=1.5").named("logs, GC")
}

fn tiered(scale: Scale) -> Setup {
    Setup::bifold(scale, "inline").set("keyspace.compaction.tiered.size_ratio=4").named("tiered")
}

/// The stores of [`LSMS`] that are built in.
fn lsms(scale: Scale) -> impl Iterator<Item = Setup> {
    std::iter::once(Setup::bifold(scale, "inline")).chain(Setup::rocksdb(scale))
}

/// A check against each built-in store of [`LSMS`]; `ours` gets its name.
fn over_lsms(
    scale: Scale,
    what: &str,
    paper: &str,
    rule: Rule,
    ours: impl Fn(&Data<'_>, &str) -> Option<f64> + Copy + Send + Sync + 'static,
) -> Vec<Check> {
    let there = if Setup::rocksdb(scale).is_some() { &LSMS[..] } else { &LSMS[..1] };
    there
        .iter()
        .map(|&lsm| Check::new(format!("{what}, diffkv over {lsm}"), paper, rule, move |d| ours(d, lsm)))
        .collect()
}

/// The paper's workload: mixed sizes, skewed choices.
fn base(scale: Scale, seed: u64) -> Plan {
    let plan = plan_of(scale.data_bytes(), Sizes::Pareto, 1000, seed);
    Plan { updates: zipf(THETA), reads: zipf(THETA), theta: THETA, ..plan }
}

/// Scans of `len` entries each, `entries` in all, by this many threads.
fn scans_by(name: &str, (len, entries): (usize, u64), threads: usize) -> Step {
    let mut step = scans(name, len, entries);
    step.changes.threads = Some(threads);
    step
}

/// Loads of values of one size, then reads and scans: figures 2 and 3. Value sizes are the parameter.
const SIZES: [usize; 4] = [128, 1 << 10, 4 << 10, 16 << 10];
const KB: f64 = 1024.0;
const LARGEST: f64 = 16.0 * 1024.0;

fn by_size(scale: Scale, seed: u64) -> Vec<Arm> {
    let setups: Vec<Setup> = lsms(scale).chain([tiered(scale), separated(scale)]).collect();
    let at = |setup: &Setup, bytes: usize| {
        let plan = plan(scale.data_bytes(), bytes, seed);
        let reads = operations(step(Workload::Read), plan.keys / 2);
        let steps = [step(Workload::Load), settle(), reads, scans("scan", 100, plan.keys)];
        setup.arm_at(bytes as f64, &plan, &steps)
    };
    setups.iter().flat_map(|setup| SIZES.map(|bytes| at(setup, bytes))).collect()
}

fn f2(scale: Scale, seed: u64) -> Experiment {
    let written = |a: &'static str| move |d: &Data<'_>| d.ratio_at(a, "inline", LARGEST, "settle", WRITE_AMP);
    let rate = |a: &'static str| move |d: &Data<'_>| d.ratio_at(a, "inline", LARGEST, "load", RATE);
    let falling = |a: &'static str| move |d: &Data<'_>| falls(&d.over(a, "settle", WRITE_AMP));
    let decrease = "write amplification decreases as the value size increases";
    Experiment {
        name: "diffkv-f2",
        paper: Paper::DiffKv,
        place: "§2.3, figure 2",
        title: "Loads by value size: relaxed order and separated values write less",
        note: "`tiered` stands for PebblesDB, `separated` for Titan, `inline` for RocksDB. Write amplification is that \
               after all background work.",
        arms: by_size(scale, seed),
        views: vec![
            View::lines("Write amplification", WRITE_AMP, TIMES, "settle", "value size, bytes", true),
            View::lines("Load", RATE, KOPS, "load", "value size, bytes", true),
        ],
        checks: vec![
            Check::new(
                "write amplification at 16 KiB, tiered over inline",
                "4.3 for 9.4",
                Rule::Saving(1.0 - 4.3 / 9.4),
                written("tiered"),
            ),
            Check::new(
                "write amplification at 16 KiB, separated over inline",
                "1.3 for 9.4",
                Rule::Saving(1.0 - 1.3 / 9.4),
                written("separated"),
            ),
            Check::new("load at 16 KiB, tiered over inline", "2.7 ×", Rule::Gain(2.7), rate("tiered")),
            Check::new("load at 16 KiB, separated over inline", "8.7 ×", Rule::Gain(8.7), rate("separated")),
            Check::new("write amplification of tiered over value sizes", decrease, Rule::Falls, falling("tiered")),
            Check::new(
                "write amplification of separated over value sizes",
                decrease,
                Rule::Falls,
                falling("separated"),
            ),
        ],
    }
}

fn f3(scale: Scale, seed: u64) -> Experiment {
    let time = |a: &'static str, x: f64| move |d: &Data<'_>| d.ratio_at(a, "inline", x, "scan", MEAN_US);
    Experiment {
        name: "diffkv-f3",
        paper: Paper::DiffKv,
        place: "§2.3, figure 3",
        title: "Reads and scans by value size: relaxed order and separated values scan more slowly",
        note: "`tiered` stands for PebblesDB, `separated` for Titan, `inline` for RocksDB. All background work is done \
        before reads begin.",
        arms: by_size(scale, seed),
        views: vec![
            View::lines("Uniform reads", RATE, KOPS, "read", "value size, bytes", true),
            View::lines("Time of a scan of 100", MEAN_US, US, "scan", "value size, bytes", true),
        ],
        checks: vec![
            Check::new("reads at 16 KiB, separated over inline", "2.0 ×", Rule::Gain(2.0), |d| {
                d.ratio_at("separated", "inline", LARGEST, "read", RATE)
            }),
            Check::new("reads at 1 KiB, tiered over inline", "lower (the direction alone)", Rule::AtMost(1.0), |d| {
                d.ratio_at("tiered", "inline", KB, "read", RATE)
            }),
            Check::new("time of a scan at 1 KiB, tiered over inline", "1.5 ×", Rule::Gain(1.5), time("tiered", KB)),
            Check::new(
                "time of a scan at 1 KiB, separated over inline",
                "2.4 ×",
                Rule::Gain(2.4),
                time("separated", KB),
            ),
            Check::new(
                "time of a scan, separated over inline, from 1 to 16 KiB",
                "differences become smaller",
                Rule::Falls,
                move |d| falls(&[(KB, time("separated", KB)(d)?), (LARGEST, time("separated", LARGEST)(d)?)]),
            ),
        ],
    }
}

/// Loads, then reads, scans, inserts and updates: figures 10 and 11.
fn micro(scale: Scale, seed: u64) -> Vec<Arm> {
    let plan = base(scale, seed);
    let steps = [
        step(Workload::Load),
        settle(),
        operations(step(Workload::Read), plan.keys / 2),
        scans_by("scan", (100, plan.keys), SCAN_THREADS),
        operations(step(Workload::Insert), plan.keys / 10),
        operations(step(Workload::Update), 3 * plan.keys),
    ];
    let with_separation = [separated(scale), separated_with_gc(scale), logs_with_gc(scale), papers(scale)];
    // What the space target costs updates, and what more levels of keys do.
    let others = [
        papers(scale).set("keyspace.values.space_target=2").named("diffkv, space 2"),
        merges::deep(scale).named("diffkv, deep"),
    ];
    lsms(scale).chain(with_separation).chain(others).map(|setup| setup.arm(&plan, &steps)).collect()
}

const MICRO_NOTE: &str = "One store runs all phases, and reads and scans come before overwrites; in the paper each \
phase has a fresh load. Scans have 16 threads. `inline` stands for RocksDB, `separated` for Titan without GC, \
`logs, GC` for Titan with foreground GC, which looks keys up in the index; `separated, GC` is DiffKV's own GC \
without its merges. `diffkv, space 2` has a space target of 2 instead of 1.5, and `diffkv, deep` more levels of keys \
and no bound on space. PebblesDB is missing, and so is a GC that never makes writers wait.";

fn f10(scale: Scale, seed: u64) -> Experiment {
    let over = |b: &'static str, step, metric| move |d: &Data<'_>| d.ratio("diffkv", b, step, metric);
    let gain =
        |what, paper, rule, step| over_lsms(scale, what, paper, rule, move |d, lsm| d.ratio("diffkv", lsm, step, RATE));
    let mut checks = gain("inserts", "3.8 × RocksDB", Rule::Gain(3.8), "insert");
    checks.extend(gain("updates", "3.7 × RocksDB", Rule::Gain(3.7), "update"));
    checks.extend(gain("reads", "2.6 × RocksDB", Rule::Gain(2.6), "read"));
    checks.extend(gain("scans", "comparable with RocksDB", Rule::Alike, "scan"));
    checks.extend([
        Check::new("scans, diffkv over separated", "3.2 × Titan", Rule::Gain(3.2), over("separated", "scan", RATE)),
        Check::new(
            "updates, diffkv over logs, GC",
            "1.7 × Titan with foreground GC",
            Rule::Gain(1.7),
            over("logs, GC", "update", RATE),
        ),
        Check::new(
            "size after updates, diffkv over separated",
            "53.7 % less than Titan without GC",
            Rule::Saving(0.537),
            over("separated", "update", DIR_BYTES),
        ),
    ]);
    Experiment {
        name: "diffkv-f10",
        paper: Paper::DiffKv,
        place: "§5.2, figure 10",
        title: "Inserts, updates, reads, scans; space",
        note: MICRO_NOTE,
        arms: micro(scale, seed),
        views: [
            vec![
                View::bars("Inserts, updates, reads", RATE, KOPS, &["insert", "update", "read"]),
                View::bars("Scans of 100", RATE, KOPS, &["scan"]),
                View::bars("Mean time", MEAN_US, US, &["insert", "update", "read"]),
                View::bars("Size of the store", DIR_BYTES, MIB, &["settle", "update"]),
            ],
            View::of_device(&["insert", "update", "read"]),
            View::of_device_scans("scan"),
        ]
        .concat(),
        checks,
    }
}

fn f11(scale: Scale, seed: u64) -> Experiment {
    let less = |what, paper, rule, step| {
        over_lsms(scale, what, paper, rule, move |d, lsm| d.ratio("diffkv", lsm, step, P99_US))
    };
    let mut checks = less("99th percentile of inserts", "96.5 % less than RocksDB", Rule::Saving(0.965), "insert");
    checks.extend(less("99th percentile of updates", "94.3 % less than RocksDB", Rule::Saving(0.943), "update"));
    checks.extend(less("99th percentile of reads", "82.7 % less than RocksDB", Rule::Saving(0.827), "read"));
    checks.extend(less("99th percentile of scans", "similar to RocksDB", Rule::Alike, "scan"));
    checks.push(Check::new(
        "99th percentile of scans, diffkv over separated",
        "50.4 % less than Titan",
        Rule::Saving(0.504),
        |d| d.ratio("diffkv", "separated", "scan", P99_US),
    ));
    Experiment {
        name: "diffkv-f11",
        paper: Paper::DiffKv,
        place: "§5.2, figure 11",
        title: "Tail latency of inserts, updates, reads, scans",
        note: MICRO_NOTE,
        arms: micro(scale, seed),
        views: vec![
            View::bars("99th percentile", P99_US, US, &["insert", "update", "read"]),
            View::bars("99th percentile of scans of 100", P99_US, US, &["scan"]),
        ],
        checks,
    }
}

/// YCSB's core workloads: figures 12 and 13.
fn ycsb(scale: Scale, seed: u64) -> Vec<Arm> {
    use Workload::{Load, YcsbA, YcsbB, YcsbC, YcsbD, YcsbE, YcsbF};
    let plan = base(scale, seed);
    let mut steps: Vec<Step> = [Load, YcsbA, YcsbB, YcsbC, YcsbF, YcsbD].map(step).into();
    steps.push(operations(step(YcsbE), plan.keys / 10));
    lsms(scale)
        .chain([separated(scale), separated_with_gc(scale), logs_with_gc(scale), papers(scale)])
        .map(|setup| setup.arm(&plan, &steps))
        .collect()
}

const YCSB_NOTE: &str = "One store runs all workloads, in the order A, B, C, F, D, E; in the paper each has a fresh \
load. Scans of E have 1 to 100 entries, as in YCSB, and are fewer. Choices follow Zipf's law only; uniform choices, \
with the same results in the paper, are left out. `inline` stands for RocksDB, `separated` for Titan without GC, \
`logs, GC` for Titan with foreground GC; `separated, GC` is DiffKV's own GC without its merges.";

fn f12(scale: Scale, seed: u64) -> Experiment {
    let over = |what, rule, step| {
        let paper = if rule == Rule::Alike { "similar to RocksDB" } else { "1.7 to 4.5 × RocksDB" };
        over_lsms(scale, what, paper, rule, move |d, lsm| d.ratio("diffkv", lsm, step, RATE))
    };
    let mixes = [("A", "ycsb-a"), ("B", "ycsb-b"), ("C", "ycsb-c"), ("D", "ycsb-d"), ("F", "ycsb-f")];
    let mut checks: Vec<Check> = mixes.into_iter().flat_map(|(what, step)| over(what, Rule::Gain(1.7), step)).collect();
    checks.extend(over("E", Rule::Alike, "ycsb-e"));
    checks.push(Check::new("E, diffkv over separated", "2 × Titan", Rule::Gain(2.0), |d| {
        d.ratio("diffkv", "separated", "ycsb-e", RATE)
    }));
    Experiment {
        name: "diffkv-f12",
        paper: Paper::DiffKv,
        place: "§5.3, figure 12",
        title: "YCSB",
        note: YCSB_NOTE,
        arms: ycsb(scale, seed),
        views: vec![
            View::bars("A to D and F", RATE, KOPS, &["ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-f"]),
            View::bars("E", RATE, KOPS, &["ycsb-e"]),
        ],
        checks,
    }
}

/// Percentiles of one kind of operation in a mix.
const P99_UPDATE: &str = "/latency_us_by_operation/update/p99";
const P99_READ: &str = "/latency_us_by_operation/read/p99";
const P99_INSERT: &str = "/latency_us_by_operation/insert/p99";
const P99_SCAN: &str = "/latency_us_by_operation/scan/p99";

fn f13(scale: Scale, seed: u64) -> Experiment {
    let less = |what, step, metric| {
        let paper = "significantly less than RocksDB (the direction alone)";
        over_lsms(scale, what, paper, Rule::AtMost(1.0), move |d, lsm| d.ratio("diffkv", lsm, step, metric))
    };
    let mut checks = less("99th percentile of updates in A", "ycsb-a", P99_UPDATE);
    checks.extend(less("99th percentile of reads in B", "ycsb-b", P99_READ));
    checks.extend(less("99th percentile of inserts in D", "ycsb-d", P99_INSERT));
    checks.push(Check::new(
        "99th percentile of scans in E, diffkv over separated",
        "less than Titan (the direction alone)",
        Rule::AtMost(1.0),
        |d| d.ratio("diffkv", "separated", "ycsb-e", P99_SCAN),
    ));
    checks.extend(over_lsms(scale, "size after A", "11.9 % more than RocksDB", Rule::Alike, |d, lsm| {
        d.ratio("diffkv", lsm, "ycsb-a", DIR_BYTES)
    }));
    Experiment {
        name: "diffkv-f13",
        paper: Paper::DiffKv,
        place: "§5.3, figure 13",
        title: "Tail latency and space under YCSB",
        note: YCSB_NOTE,
        arms: ycsb(scale, seed),
        views: vec![
            View::bars("99th percentile of updates", P99_UPDATE, US, &["ycsb-a", "ycsb-b"]),
            View::bars("99th percentile of reads", P99_READ, US, &["ycsb-a", "ycsb-b", "ycsb-f", "ycsb-d"]),
            View::bars("99th percentile of inserts", P99_INSERT, US, &["ycsb-d", "ycsb-e"]),
            View::bars("99th percentile of scans", P99_SCAN, US, &["ycsb-e"]),
            View::bars("Size of the store", DIR_BYTES, MIB, &["ycsb-a"]),
        ],
        checks,
    }
}

const LENGTHS: [(&str, usize); 4] =
    [("20 entries", 20), ("100 entries", 100), ("1000 entries", 1000), ("10 000 entries", 10_000)];
const THREADS: [(&str, usize); 4] = [("8 threads", 8), ("16 threads", 16), ("32 threads", 32), ("64 threads", 64)];

/// The least of a ratio over several steps.
fn least_ratio(d: &Data<'_>, b: &str, steps: &[(&str, usize)]) -> Option<f64> {
    let ratios: Option<Vec<f64>> = steps.iter().map(|(step, _)| d.ratio("diffkv", b, step, RATE)).collect();
    ratios?.into_iter().reduce(f64::min)
}

fn f17(scale: Scale, seed: u64) -> Experiment {
    let plan = base(scale, seed);
    let mut steps = vec![step(Workload::Load), settle()];
    steps.extend(LENGTHS.map(|(name, len)| scans_by(name, (len, 4 * plan.keys), SCAN_THREADS)));
    steps.extend(THREADS.map(|(name, threads)| scans_by(name, (100, 2 * plan.keys), threads)));
    let reaches = |paper, step| {
        over_lsms(scale, step, paper, Rule::AtLeast(0.8), move |d, lsm| d.ratio("diffkv", lsm, step, RATE))
    };
    let mut checks = reaches("83 % of RocksDB; a fifth less at most", "20 entries");
    checks.extend(reaches("96 % of RocksDB; a fifth less at most", "10 000 entries"));
    checks.extend(over_lsms(
        scale,
        "8 to 64 threads, smallest ratio",
        "comparable with RocksDB",
        Rule::Alike,
        |d, lsm| least_ratio(d, lsm, &THREADS),
    ));
    checks.extend([
        Check::new("20 to 10 000 entries, diffkv over separated", "the gain over Titan increases", Rule::Rises, |d| {
            let ratio = |(step, len): (&str, usize)| Some((len as f64, d.ratio("diffkv", "separated", step, RATE)?));
            rises(&LENGTHS.into_iter().map(ratio).collect::<Option<Vec<_>>>()?)
        }),
        Check::new(
            "20 to 10 000 entries, diffkv over separated, smallest ratio",
            "significantly more than Titan (the direction alone)",
            Rule::AtLeast(1.0),
            |d| least_ratio(d, "separated", &LENGTHS),
        ),
        Check::new(
            "8 to 64 threads, diffkv over separated, smallest ratio",
            "significantly more than Titan (the direction alone)",
            Rule::AtLeast(1.0),
            |d| least_ratio(d, "separated", &THREADS),
        ),
    ]);
    Experiment {
        name: "diffkv-f17",
        paper: Paper::DiffKv,
        place: "§5.5, figure 17",
        title: "Scans by length and by threads",
        note: "`inline` stands for RocksDB, `separated` for Titan without GC. The paper reads a tenth of the data with \
        each length; here it is four times the data, because the data are small.",
        arms: lsms(scale).chain([separated(scale), papers(scale)]).map(|setup| setup.arm(&plan, &steps)).collect(),
        views: vec![
            View::bars("Scans by their length, 16 threads", RATE, KOPS, &LENGTHS.map(|(name, _)| name)),
            View::bars("Scans of 100 by threads", RATE, KOPS, &THREADS.map(|(name, _)| name)),
        ],
        checks,
    }
}
