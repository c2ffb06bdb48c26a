//! HashKV's experiments (§4 of the paper), in its order. Experiment 3 (parity RAID) is missing: it needs devices that a
//! library cannot provide.
//!
//! The paper's setup, scaled: entries of 1 KiB, an empty store loaded once (P0), then as many updates as there are keys
//! three times (P1 to P3), Zipf 0.99. All values are separated, GC takes the group with most writes, and there is no
//! cold log, unless an experiment is about these. `hashkv` here is Bifold's with exactly that; `hashkv, tuned` has our
//! defaults: victims by cost and benefit, cold segments. `leveldb-like`, Bifold's own LSM-tree with LevelDB's settings,
//! stands for LevelDB.
//!
//! | file | what it is |
//! |---|---|
//! | this one | stores and workload of the paper, scaled; experiments 1 to 5 |
//! | `features` | experiments 6 to 10 |
//! | `ycsb` | experiments 11 and 12 |
//! | `over` | experiment 13 |
//! | `groups` | experiments 14 and 15 |

mod features;
mod groups;
mod over;
mod ycsb;

use super::{
    Arm, Data, Experiment, Maker, Paper, View,
    check::{Check, Rule, falls, least, most},
    data::{DIR_BYTES, MEAN_US, RATE, WRITTEN},
    setup::{KEY_BYTES, KOPS, LIKE_LEVELDB, MIB, Setup, US, load_and_updates, plan, scans, step, zipf},
};
use crate::{Plan, Workload, scale::Scale, spec::Step};

/// Every one of them.
pub(super) const ALL: &[Maker] = &[
    e1,
    e2,
    e4,
    e5,
    features::e6,
    features::e7,
    features::e8,
    features::e9,
    features::e10,
    ycsb::e11,
    ycsb::e12,
    over::e13,
    over::scans,
    groups::e14,
    groups::e15,
];

const ALL_PHASES: [&str; 4] = ["P0", "P1", "P2", "P3"];
const UPDATES: [&str; 3] = ["P1", "P2", "P3"];

/// The paper's store: all values are separated, the most written group first, no cold values.
fn papers(scale: Scale) -> Setup {
    Setup::bifold(scale, "hashkv")
        .set("keyspace.values.separate_from_bytes=1")
        .set("keyspace.values.hashkv.victim=greedy")
        .set("keyspace.values.hashkv.cold=off")
}

fn wisckey(scale: Scale) -> Setup {
    Setup::bifold(scale, "wisckey").set("keyspace.values.separate_from_bytes=1")
}

/// With a reserve: the share of the data by which value files may grow, with entries of 1 KiB.
fn reserve(setup: Setup, share: f64) -> Setup {
    reserve_of(setup, share, 1024)
}

/// The same with entries of this many bytes on average. The engine's target holds for all files: keys, their index and
/// the frames of values come on top of the reserve, about [`OVERHEAD_BYTES`] per entry.
fn reserve_of(setup: Setup, share: f64, pair_bytes: usize) -> Setup {
    let target = 1.0 + share + OVERHEAD_BYTES / pair_bytes as f64;
    setup.set(format!("keyspace.values.space_target={target:.2}"))
}

/// The overhead of an entry, in bytes: its key and address in the index, and a frame.
const OVERHEAD_BYTES: f64 = 80.0;

fn base(scale: Scale, seed: u64) -> Plan {
    plan(scale.data_bytes(), 1000, seed)
}

/// Bytes that one series writes in these steps, over those of another.
fn written(
    a: &'static str,
    b: &'static str,
    x: Option<f64>,
    steps: &'static [&'static str],
) -> impl Fn(&Data<'_>) -> Option<f64> {
    move |d| Some(d.sum(a, x, steps, WRITTEN)? / d.sum(b, x, steps, WRITTEN)?)
}

fn rate(a: &'static str, b: &'static str, step: &'static str) -> impl Fn(&Data<'_>) -> Option<f64> {
    move |d| d.ratio(a, b, step, RATE)
}

fn rate_at(a: &'static str, b: &'static str, x: f64, step: &'static str) -> impl Fn(&Data<'_>) -> Option<f64> {
    move |d| d.ratio_at(a, b, x, step, RATE)
}

/// The paper's data, 40 GiB, over its write cache.
const WRITE_CACHE_SHARE: u64 = 640;

fn e1(scale: Scale, seed: u64) -> Experiment {
    let setups = [
        Some(Setup::like_leveldb(scale)),
        Setup::rocksdb(scale),
        Some(reserve(wisckey(scale), 0.3)),
        Some(reserve(papers(scale), 0.3)),
        Some(reserve(Setup::bifold(scale, "hashkv").named("hashkv, tuned"), 0.3)),
        Some(reserve(papers(scale).cached(scale.data_bytes() / WRITE_CACHE_SHARE).named("hashkv, cached"), 0.3)),
    ];
    let (plan, steps) = (base(scale, seed), load_and_updates());
    let grown = |d: &Data<'_>| Some(d.of("hashkv", "P3", DIR_BYTES)? / d.of("hashkv", "P0", DIR_BYTES)?);
    let mut views = vec![
        View::bars("Throughput", RATE, KOPS, &ALL_PHASES),
        View::bars("Bytes written", WRITTEN, MIB, &ALL_PHASES),
        View::bars("Size of the store", DIR_BYTES, MIB, &ALL_PHASES),
    ];
    views.extend(View::of_device(&ALL_PHASES));
    Experiment {
        name: "hashkv-e1",
        paper: Paper::HashKv,
        place: "experiment 1, figure 6",
        title: "Load and updates",
        note: "HyperLevelDB and PebblesDB are missing. The paper's stores have a write cache of 64 MiB, whose contents \
        a crash loses. Here only `hashkv, cached` has one, of the same share of the data; it is shown and not judged.",
        arms: setups.iter().flatten().map(|setup| setup.arm(&plan, &steps)).collect(),
        views,
        checks: vec![
            Check::new(
                "updates in P3, hashkv over wisckey",
                "3.7 to 4.6 ×",
                Rule::Gain(3.7),
                rate("hashkv", "wisckey", "P3"),
            ),
            Check::new(
                "updates in P3, hashkv over leveldb-like",
                "6.3 to 7.9 × LevelDB",
                Rule::Gain(6.3),
                rate("hashkv", LIKE_LEVELDB, "P3"),
            ),
            Check::new(
                "updates in P3, hashkv over rocksdb",
                "1.3 to 1.4 ×",
                Rule::Gain(1.3),
                rate("hashkv", "rocksdb", "P3"),
            ),
            Check::new("load, hashkv over wisckey", "7.9 % slower", Rule::Alike, rate("hashkv", "wisckey", "P0")),
            Check::new(
                "bytes written, hashkv over wisckey",
                "49.6 % less",
                Rule::Saving(0.496),
                written("hashkv", "wisckey", None, &ALL_PHASES),
            ),
            Check::new(
                "bytes written, hashkv over leveldb-like",
                "71.5 % less than LevelDB",
                Rule::Saving(0.715),
                written("hashkv", LIKE_LEVELDB, None, &ALL_PHASES),
            ),
            Check::new("size of the store after P3 over that after P0", "27 % more", Rule::AtMost(1.4), grown),
        ],
    }
}

fn e2(scale: Scale, seed: u64) -> Experiment {
    let (plan, steps) = (base(scale, seed), load_and_updates());
    let arms = [0.1, 0.3, 0.5, 0.7, 0.9].into_iter().flat_map(|share| {
        [wisckey(scale), papers(scale)].map(|setup| reserve(setup, share).arm_at(100.0 * share, &plan, &steps))
    });
    let label = "reserved space, % of the data";
    let falling = |series: &'static str| move |d: &Data<'_>| falls(&d.over(series, "P3", MEAN_US));
    Experiment {
        name: "hashkv-e2",
        paper: Paper::HashKv,
        place: "experiment 2, figure 7, table 1",
        title: "Reserved space",
        note: "The reserve is a share of the live data, by `space_target`, and not of a capacity known in advance. \
        The components of latency (figure 7c) are not measured.",
        arms: arms.collect(),
        views: vec![
            View::lines("Updates in P3", RATE, KOPS, "P3", label, false),
            View::lines("Bytes written in P3", WRITTEN, MIB, "P3", label, false),
            View::lines("Mean latency in P3", MEAN_US, US, "P3", label, false),
        ],
        checks: vec![
            Check::new("updates, hashkv over wisckey, at the worst reserve", "3.1 to 4.7 ×", Rule::Gain(3.1), |d| {
                least(&d.ratios("hashkv", "wisckey", "P3", RATE))
            }),
            Check::new(
                "bytes written, hashkv over wisckey, at the worst reserve",
                "30.1 to 57.3 % less",
                Rule::Saving(0.301),
                |d| most(&d.ratios("hashkv", "wisckey", "P3", WRITTEN)),
            ),
            Check::new("hashkv's latency falls with the reserve", "36.2 to 7.7 µs", Rule::Falls, falling("hashkv")),
            Check::new("wisckey's latency falls with the reserve", "160.7 to 24.5 µs", Rule::Falls, falling("wisckey")),
        ],
    }
}

/// Value sizes of experiments 4 and 5, each with its key a power of two.
const ENTRY_BYTES: [usize; 4] = [256, 1024, 4096, 65_536];

fn by_size(scale: Scale, seed: u64, sizes: &[usize], steps: impl Fn(usize, &Plan) -> Vec<Step>) -> Vec<Arm> {
    let arms = sizes.iter().flat_map(|&pair| {
        let setups = [
            Some(Setup::like_leveldb(scale)),
            Setup::rocksdb(scale),
            Some(reserve_of(wisckey(scale), 0.3, pair)),
            Some(reserve_of(papers(scale), 0.3, pair)),
        ];
        let plan = plan(scale.data_bytes(), pair - KEY_BYTES, seed);
        let steps = steps(pair, &plan);
        setups.iter().flatten().map(|setup| setup.arm_at(pair as f64, &plan, &steps)).collect::<Vec<_>>()
    });
    arms.collect()
}

fn e4(scale: Scale, seed: u64) -> Experiment {
    let label = "entry size, bytes";
    Experiment {
        name: "hashkv-e4",
        paper: Paper::HashKv,
        place: "experiment 4, figure 9",
        title: "Entry size",
        note: "The same bytes at each size, so fewer entries if they are larger.",
        arms: by_size(scale, seed, &ENTRY_BYTES, |_, _| load_and_updates()),
        views: vec![
            View::lines("Updates in P3", RATE, KOPS, "P3", label, true),
            View::lines("Bytes written in P3", WRITTEN, MIB, "P3", label, true),
        ],
        checks: vec![
            Check::new(
                "updates of 256 B to 4 KiB, hashkv over wisckey, at the worst size",
                "2.2 to 5.1 ×",
                Rule::Gain(2.2),
                |d| {
                    let mut ratios = d.ratios("hashkv", "wisckey", "P3", RATE);
                    ratios.retain(|&(bytes, _)| bytes <= 4096.0);
                    least(&ratios)
                },
            ),
            Check::new(
                "updates of 4 KiB, hashkv over leveldb-like",
                "15.5 × LevelDB",
                Rule::Gain(15.5),
                rate_at("hashkv", LIKE_LEVELDB, 4096.0, "P3"),
            ),
            Check::new(
                "updates of 4 KiB, hashkv over rocksdb",
                "2.8 ×",
                Rule::Gain(2.8),
                rate_at("hashkv", "rocksdb", 4096.0, "P3"),
            ),
            Check::new(
                "updates of 256 B, hashkv over rocksdb",
                "slower",
                Rule::AtMost(1.0),
                rate_at("hashkv", "rocksdb", 256.0, "P3"),
            ),
            Check::new(
                "updates of 64 KiB, hashkv over wisckey",
                "10.7 % slower",
                Rule::Alike,
                rate_at("hashkv", "wisckey", 65_536.0, "P3"),
            ),
            Check::new(
                "bytes written, hashkv over leveldb-like, at the worst size",
                "43.2 to 78.8 % less than LevelDB",
                Rule::Saving(0.432),
                |d| most(&d.ratios("hashkv", LIKE_LEVELDB, "P3", WRITTEN)),
            ),
        ],
    }
}

/// Each scan reads 1 MiB, or an eighth of the data if they are few.
fn loads_and_scans(pair: usize, plan: &Plan) -> Vec<Step> {
    let len = ((1 << 20) / pair).min(plan.keys as usize / 8).max(1);
    let scan = |name| {
        let mut scan = scans(name, len, plan.keys / 2);
        scan.changes.reads = Some(zipf(0.99));
        scan
    };
    let mut steps = load_and_updates();
    steps.insert(1, scan("scan after the load"));
    steps.extend([step(Workload::Compact), scan("scan after updates")]);
    steps
}

fn e5(scale: Scale, seed: u64) -> Experiment {
    let label = "entry size, bytes";
    let read = "/user_bytes_read_per_sec";
    let over = |a: &'static str, b: &'static str, x: f64, step: &'static str| {
        move |d: &Data<'_>| d.ratio_at(a, b, x, step, "/user_bytes_read_per_sec")
    };
    Experiment {
        name: "hashkv-e5",
        paper: Paper::HashKv,
        place: "experiment 5, figure 10",
        title: "Range scans",
        note: "Scans read half of the data in all, the paper's a tenth. All of it is in the page cache unless memory \
        is limited.",
        arms: by_size(scale, seed, &[256, 1024, 4096, 16_384], loads_and_scans),
        views: vec![
            View::lines("Scans after the load", read, ("MiB/s", 1_048_576.0), "scan after the load", label, true),
            View::lines(
                "Scans after updates and a compaction",
                read,
                ("MiB/s", 1_048_576.0),
                "scan after updates",
                label,
                true,
            ),
        ],
        checks: vec![
            Check::new(
                "scans of 1 KiB after the load, hashkv over wisckey",
                "similar",
                Rule::Alike,
                over("hashkv", "wisckey", 1024.0, "scan after the load"),
            ),
            Check::new(
                "scans of 1 KiB after the load, hashkv over leveldb-like",
                "36.3 % slower than LevelDB",
                Rule::AtMost(0.82),
                over("hashkv", LIKE_LEVELDB, 1024.0, "scan after the load"),
            ),
            Check::new(
                "scans of 4 KiB after the load, hashkv over leveldb-like",
                "94.2 % faster than LevelDB",
                Rule::Gain(1.942),
                over("hashkv", LIKE_LEVELDB, 4096.0, "scan after the load"),
            ),
            Check::new(
                "scans of 4 KiB after updates and a compaction, hashkv over leveldb-like",
                "similar",
                Rule::Alike,
                over("hashkv", LIKE_LEVELDB, 4096.0, "scan after updates"),
            ),
        ],
    }
}
