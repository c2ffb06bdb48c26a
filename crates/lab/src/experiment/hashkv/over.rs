//! HashKV's and WiscKey's value stores over other engines (§4.5 there): the crate `bifold-over`, and these engines by
//! themselves.

use super::{
    super::{
        Arm, Data, Experiment, Paper, View,
        check::{Check, Rule},
        data::{P99_US, RATE, WRITTEN},
        setup::{KEY_BYTES, KOPS, MIB, Setup, US, load_and_updates, plan},
    },
    base, by_size, loads_and_scans, papers, rate, rate_at, reserve, reserve_of, wisckey,
    ycsb::{YCSB, ycsb},
};
use crate::{scale::Scale, store::Peer};

/// An engine, alone and beneath the two value stores.
struct Under {
    alone: &'static str,
    store: Peer,
    hashkv: &'static str,
    wisckey: &'static str,
}

const UNDER: [Under; 2] = [
    Under {
        alone: "rocksdb",
        store: Peer::OverRocksDb,
        hashkv: "hashkv over rocksdb",
        wisckey: "wisckey over rocksdb",
    },
    Under { alone: "fjall", store: Peer::OverFjall, hashkv: "hashkv over fjall", wisckey: "wisckey over fjall" },
];

/// Those that this program was built with.
fn under() -> impl Iterator<Item = &'static Under> {
    UNDER.iter().filter(|under| under.store.built_in())
}

impl Under {
    /// The engine, and the two stores over it, with the paper's options: all values are separated, the most written
    /// group first, no cold values.
    fn setups(&self, scale: Scale, pair_bytes: usize) -> [Setup; 3] {
        let over = |series: &str, placement: &str| {
            let setup = Setup::peer(scale, self.store.name()).named(series);
            let setup = setup.set(format!("keyspace.placement={placement}"));
            let setup = setup.set("keyspace.values.separate_from_bytes=1");
            let setup = setup.set("keyspace.values.hashkv.victim=greedy").set("keyspace.values.hashkv.cold=off");
            reserve_of(setup, 0.3, pair_bytes)
        };
        [Setup::peer(scale, self.alone), over(self.wisckey, "wisckey"), over(self.hashkv, "hashkv")]
    }
}

pub(super) fn e13(scale: Scale, seed: u64) -> Experiment {
    let plan = base(scale, seed);
    let mut steps = load_and_updates();
    steps.pop();
    steps.extend(ycsb(&plan));
    let mut setups = vec![reserve(wisckey(scale), 0.3), reserve(papers(scale), 0.3)];
    setups.extend(under().flat_map(|under| under.setups(scale, 1024)));
    Experiment {
        name: "hashkv-e13",
        paper: Paper::HashKv,
        place: "experiment 13, figure 17",
        title: "KV separation over other stores, by YCSB",
        note: "The paper has RocksDB, HyperLevelDB and PebblesDB; here it is RocksDB, and fjall, of which the paper \
        says nothing. Stores over another index do not count that index in their space target. One workload after \
        the other on the same store. Without the features `rocksdb` and `fjall` only Bifold's own index is measured.",
        arms: setups.iter().map(|setup| setup.arm(&plan, &steps)).collect(),
        views: vec![
            View::bars("Throughput", RATE, KOPS, &YCSB),
            View::bars("99th percentile", P99_US, US, &YCSB),
            View::bars("Bytes written", WRITTEN, MIB, &["P0", "P1", "P2"]),
        ],
        checks: by_ycsb(),
    }
}

/// What the paper says of figure 17.
fn by_ycsb() -> Vec<Check> {
    let mut checks = vec![
        Check::new(
            "A, hashkv over wisckey, with Bifold's own index",
            "10.7 to 91 % faster",
            Rule::Gain(1.107),
            rate("hashkv", "wisckey", "ycsb-a"),
        ),
        Check::new(
            "C, hashkv over wisckey, with Bifold's own index",
            "similar",
            Rule::Alike,
            rate("hashkv", "wisckey", "ycsb-c"),
        ),
    ];
    for Under { alone, hashkv, wisckey, .. } in under() {
        let of_rocksdb = |claim: &str| format!("{claim}, over RocksDB");
        for (workload, name) in [("ycsb-a", "A"), ("ycsb-f", "F")] {
            checks.push(Check::new(
                format!("{name}, {hashkv}, against {alone} alone"),
                of_rocksdb("1.2 ×"),
                Rule::Gain(1.2),
                rate(hashkv, alone, workload),
            ));
            checks.push(Check::new(
                format!("{name}, {hashkv}, against {wisckey}"),
                of_rocksdb("21.3 to 39.4 % faster"),
                Rule::Gain(1.213),
                rate(hashkv, wisckey, workload),
            ));
        }
        for (workload, name) in [("ycsb-b", "B"), ("ycsb-c", "C"), ("ycsb-d", "D")] {
            checks.push(Check::new(
                format!("{name}, {hashkv}, against {alone} alone"),
                of_rocksdb("1.1 to 1.3 ×"),
                Rule::Gain(1.1),
                rate(hashkv, alone, workload),
            ));
            let what = format!("{name}, {hashkv}, against {wisckey}");
            checks.push(Check::new(what, "similar", Rule::Alike, rate(hashkv, wisckey, workload)));
        }
    }
    checks
}

pub(super) fn scans(scale: Scale, seed: u64) -> Experiment {
    const SIZES: [usize; 3] = [256, 1024, 4096];
    let read = "/user_bytes_read_per_sec";
    // The arms of experiment 5, and those over other engines.
    let mut arms: Vec<Arm> = by_size(scale, seed, &SIZES, loads_and_scans);
    for pair in SIZES {
        let plan = plan(scale.data_bytes(), pair - KEY_BYTES, seed);
        let steps = loads_and_scans(pair, &plan);
        for setup in under().flat_map(|under| under.setups(scale, pair)) {
            let arm = setup.arm_at(pair as f64, &plan, &steps);
            if arms.iter().all(|other| other.label() != arm.label()) {
                arms.push(arm);
            }
        }
    }
    let step = "scan after the load";
    let over = |a: &'static str, b: &'static str, x: f64| move |d: &Data<'_>| d.ratio_at(a, b, x, step, read);
    let mut checks = vec![Check::new(
        "updates of 1 KiB in P3, hashkv over wisckey, with Bifold's own index",
        "faster (experiment 4)",
        Rule::AtLeast(1.0),
        rate_at("hashkv", "wisckey", 1024.0, "P3"),
    )];
    for Under { alone, hashkv, wisckey, .. } in under() {
        let what = format!("scans of 1 KiB after the load, {hashkv}, against {wisckey}");
        checks.push(Check::new(what, "similar", Rule::Alike, over(hashkv, wisckey, 1024.0)));
        let what = format!("scans of 4 KiB after the load, {hashkv}, against {alone} alone");
        checks.push(Check::new(
            what,
            "similar or faster, over RocksDB",
            Rule::AtLeast(0.8),
            over(hashkv, alone, 4096.0),
        ));
    }
    Experiment {
        name: "hashkv-e13-scans",
        paper: Paper::HashKv,
        place: "experiment 13, figure 18",
        title: "KV separation over other stores, by scans",
        note: "As experiment 5, with stores over other indexes, which announce up to 64 values ahead.",
        arms,
        views: vec![View::lines("Scans after the load", read, ("MiB/s", 1_048_576.0), step, "entry size, bytes", true)],
        checks,
    }
}
