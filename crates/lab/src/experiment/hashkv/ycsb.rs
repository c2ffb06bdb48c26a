//! HashKV under YCSB's core workloads (§4.5 there).

use super::{
    super::{
        Experiment, Paper, View,
        check::{Check, Rule},
        data::{P99_US, RATE},
        setup::{KOPS, LIKE_LEVELDB, Setup, US, load_and_updates, operations, plan, step},
    },
    base,
    features::{by_threshold, over_none, peak_of},
    papers, rate, reserve, wisckey,
};
use crate::{Plan, Workload, scale::Scale, spec::Step};

pub(super) const YCSB: [&str; 5] = ["ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-f"];

/// The five workloads without scans, half as many operations as keys each.
pub(super) fn ycsb(plan: &Plan) -> Vec<Step> {
    use Workload::{YcsbA, YcsbB, YcsbC, YcsbD, YcsbF};
    [YcsbA, YcsbB, YcsbC, YcsbD, YcsbF].map(|workload| operations(step(workload), plan.keys / 2)).into()
}

pub(super) fn e11(scale: Scale, seed: u64) -> Experiment {
    let plan = base(scale, seed);
    let mut steps = load_and_updates();
    steps.pop();
    steps.extend(ycsb(&plan));
    let setups = [
        Some(Setup::like_leveldb(scale)),
        Setup::rocksdb(scale),
        Some(reserve(wisckey(scale), 0.3)),
        Some(reserve(papers(scale), 0.3)),
    ];
    Experiment {
        name: "hashkv-e11",
        paper: Paper::HashKv,
        place: "experiment 11, figure 15",
        title: "YCSB on aged stores",
        note: "One workload after the other on the same store; in the paper each runs on a newly aged store. 99th \
        percentiles; the paper's are 95th. RocksDB has the memtable that all stores but LevelDB have here, and its own \
        limits of level 0; the paper gives it LevelDB's.",
        arms: setups.iter().flatten().map(|setup| setup.arm(&plan, &steps)).collect(),
        views: vec![View::bars("Throughput", RATE, KOPS, &YCSB), View::bars("99th percentile", P99_US, US, &YCSB)],
        checks: vec![
            Check::new(
                "A, hashkv over leveldb-like",
                "2.8 to 2.9 × LevelDB",
                Rule::Gain(2.8),
                rate("hashkv", LIKE_LEVELDB, "ycsb-a"),
            ),
            Check::new("A, hashkv over wisckey", "1.1 to 1.4 ×", Rule::Gain(1.1), rate("hashkv", "wisckey", "ycsb-a")),
            Check::new(
                "A, hashkv over rocksdb",
                "12.5 to 13.9 % slower",
                Rule::AtLeast(0.8),
                rate("hashkv", "rocksdb", "ycsb-a"),
            ),
            Check::new(
                "C, hashkv over leveldb-like",
                "2.3 to 4.8 × LevelDB",
                Rule::Gain(2.3),
                rate("hashkv", LIKE_LEVELDB, "ycsb-c"),
            ),
            Check::new("C, hashkv over wisckey", "similar", Rule::Alike, rate("hashkv", "wisckey", "ycsb-c")),
            Check::new(
                "F, hashkv over leveldb-like",
                "2.8 to 2.9 × LevelDB",
                Rule::Gain(2.8),
                rate("hashkv", LIKE_LEVELDB, "ycsb-f"),
            ),
        ],
    }
}

pub(super) fn e12(scale: Scale, seed: u64) -> Experiment {
    let mut steps = load_and_updates();
    steps.pop();
    // As many keys as the plan of experiment 8 has.
    steps.extend(ycsb(&plan(scale.data_bytes(), 870, seed)));
    let label = "smallest entry with a separated value, bytes";
    Experiment {
        name: "hashkv-e12",
        paper: Paper::HashKv,
        place: "experiment 12, figure 16",
        title: "Which values stay with their keys, by YCSB",
        note: "One workload after the other on the same store.",
        arms: by_threshold(scale, seed, &steps),
        views: vec![
            View::lines("YCSB A", RATE, KOPS, "ycsb-a", label, false),
            View::lines("YCSB C", RATE, KOPS, "ycsb-c", label, false),
            View::lines("YCSB C, 99th percentile of reads", P99_US, US, "ycsb-c", label, false),
        ],
        checks: vec![
            Check::new(
                "A, a threshold of 192 B over none",
                "26.5 to 48.3 % more",
                Rule::Gain(1.265),
                over_none("ycsb-a"),
            ),
            Check::new(
                "C, a threshold of 192 B over none",
                "26.5 to 48.3 % more",
                Rule::Gain(1.265),
                over_none("ycsb-c"),
            ),
            Check::new(
                "the threshold with most operations of A per second",
                "128 to 256 B",
                Rule::Between(128.0, 256.0),
                peak_of("ycsb-a"),
            ),
        ],
    }
}
