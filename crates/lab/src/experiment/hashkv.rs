//! HashKV's experiments (§4 there), in the order of the paper. Experiment 3 (parity RAID) and 13 (other stores as index) are not
//! here: they need devices and stores that a library cannot bring.
//!
//! The paper's setup, scaled: pairs of 1 KiB, an empty store loaded once (P0), then as many updates as there are keys three times
//! (P1 to P3), Zipf 0.99; values apart from their keys whatever their size, GC of the group with most writes, no cold log, unless
//! an experiment is about these. `hashkv` here is Bifold's with exactly that; `hashkv, tuned` has our defaults: victims by cost and
//! benefit, cold parts.

use super::{
    Experiment, Maker, Paper, View,
    check::{Check, Rule},
    data::{DIR_BYTES, RATE, WRITTEN},
    setup::{KOPS, MIB, Setup, load_and_updates, plan},
};
use crate::{Plan, scale::Scale};

/// Every one of them.
pub(super) const ALL: &[Maker] = &[e1];

/// The paper's store: no value too small to be apart, the most written group first, no cold values.
fn papers(scale: Scale) -> Setup {
    Setup::bifold(scale, "hashkv")
        .set("keyspace.values.min_bytes=1")
        .set("keyspace.values.victim=greedy")
        .set("keyspace.values.cold=off")
}

fn wisckey(scale: Scale) -> Setup {
    Setup::bifold(scale, "wisckey").set("keyspace.values.min_bytes=1")
}

/// With a reserve: the share of the data by which value files may grow. Keys, their index and what frames a value come on top,
/// about a twelfth of pairs of 1 KiB.
fn reserve(setup: Setup, share: f64) -> Setup {
    setup.set(format!("keyspace.values.space_target={:.2}", 1.08 + share))
}

fn base(scale: Scale, seed: u64) -> Plan {
    plan(scale.data_bytes(), 1000, seed)
}

const ALL_PHASES: [&str; 4] = ["P0", "P1", "P2", "P3"];

fn e1(scale: Scale, seed: u64) -> Experiment {
    let setups = [
        Some(Setup::bifold(scale, "inline")),
        Setup::rocksdb(scale),
        Some(reserve(wisckey(scale), 0.3)),
        Some(reserve(papers(scale), 0.3)),
        Some(reserve(Setup::bifold(scale, "hashkv").named("hashkv, tuned"), 0.3)),
    ];
    let (plan, steps) = (base(scale, seed), load_and_updates());
    let over = |a: &'static str, b: &'static str, step| move |d: &super::Data<'_>| d.ratio(a, b, step, RATE);
    let written = |a: &'static str, b: &'static str| {
        move |d: &super::Data<'_>| Some(d.sum(a, None, &ALL_PHASES, WRITTEN)? / d.sum(b, None, &ALL_PHASES, WRITTEN)?)
    };
    Experiment {
        name: "hashkv-e1",
        paper: Paper::HashKv,
        place: "experiment 1, figure 6",
        title: "Load and updates",
        note: "`inline`, Bifold's own LSM-tree, stands for LevelDB. HyperLevelDB and PebblesDB are not there.",
        arms: setups.iter().flatten().map(|setup| setup.arm(&plan, &steps)).collect(),
        views: vec![
            View::bars("Throughput", RATE, KOPS, &ALL_PHASES),
            View::bars("Bytes written", WRITTEN, MIB, &ALL_PHASES),
            View::bars("Size of the store", DIR_BYTES, MIB, &ALL_PHASES),
        ],
        checks: vec![
            Check::new(
                "updates in P3, hashkv over wisckey",
                "3.7 to 4.6 ×",
                Rule::Gain(3.7),
                over("hashkv", "wisckey", "P3"),
            ),
            Check::new(
                "updates in P3, hashkv over inline",
                "6.3 to 7.9 × LevelDB",
                Rule::Gain(6.3),
                over("hashkv", "inline", "P3"),
            ),
            Check::new(
                "updates in P3, hashkv over rocksdb",
                "1.3 to 1.4 ×",
                Rule::Gain(1.3),
                over("hashkv", "rocksdb", "P3"),
            ),
            Check::new("load, hashkv over wisckey", "7.9 % slower", Rule::Alike, over("hashkv", "wisckey", "P0")),
            Check::new(
                "bytes written, hashkv over wisckey",
                "49.6 % less",
                Rule::Saving(0.496),
                written("hashkv", "wisckey"),
            ),
            Check::new(
                "bytes written, hashkv over inline",
                "71.5 % less than LevelDB",
                Rule::Saving(0.715),
                written("hashkv", "inline"),
            ),
            Check::new("size of the store after P3 over that after P0", "27 % more", Rule::AtMost(1.4), |d| {
                Some(d.of("hashkv", "P3", DIR_BYTES)? / d.of("hashkv", "P0", DIR_BYTES)?)
            }),
        ],
    }
}
