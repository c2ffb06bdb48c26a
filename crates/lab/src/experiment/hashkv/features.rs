//! What HashKV's features gain and cost (§4.4 there): hotness, values that stay with their keys, victims, crash
//! consistency.

use super::{
    super::{
        Arm, Data, Experiment, Paper, View,
        check::{Check, Rule, falls, least, most, peak, rises},
        data::{RATE, WRITTEN},
        setup::{KEY_BYTES, KOPS, MIB, Setup, load_and_updates, plan_of, zipf},
    },
    ALL_PHASES, UPDATES, base, papers, rate, rate_at, reserve, reserve_of, written,
};
use crate::{Plan, scale::Scale, spec::Step, values::Sizes};

pub(super) fn e6(scale: Scale, seed: u64) -> Experiment {
    let steps = load_and_updates();
    let setups = [
        papers(scale),
        papers(scale).set("keyspace.values.hashkv.cold=unlimited_log").named("hashkv, cold log"),
        papers(scale).set("keyspace.values.hashkv.cold=log").named("hashkv, cold log within the reserve"),
        Setup::bifold(scale, "hashkv").set("keyspace.values.separate_from_bytes=1").named("hashkv, tuned"),
    ];
    let arms = [0.9, 0.99].into_iter().flat_map(|theta| {
        let plan = Plan { updates: zipf(theta), ..base(scale, seed) };
        setups.clone().map(|setup| reserve(setup, 0.2).arm_at(theta, &plan, &steps))
    });
    let label = "skew of the updates";
    let (cold, off) = ("hashkv, cold log", "hashkv");
    Experiment {
        name: "hashkv-e6",
        paper: Paper::HashKv,
        place: "experiment 6, figure 11",
        title: "Hotness",
        note: "The cold log is as in the paper, which does not limit its size. `hashkv, cold log within the \
        reserve` is ours: GC takes it when its garbage is more than its share of the reserve. `hashkv, tuned` has \
        cold values in segments of their groups instead.",
        arms: arms.collect(),
        views: vec![
            View::lines("Updates in P3", RATE, KOPS, "P3", label, false),
            View::lines("Bytes written in P3", WRITTEN, MIB, "P3", label, false),
        ],
        checks: vec![
            Check::new(
                "updates at 0.9, with a cold log over without",
                "113.1 % more",
                Rule::Gain(2.131),
                rate_at(cold, off, 0.9, "P3"),
            ),
            Check::new(
                "updates at 0.99, with a cold log over without",
                "121.3 % more",
                Rule::Gain(2.213),
                rate_at(cold, off, 0.99, "P3"),
            ),
            Check::new(
                "bytes written at 0.9, with a cold log over without",
                "42.8 % less",
                Rule::Saving(0.428),
                written(cold, off, Some(0.9), &UPDATES),
            ),
            Check::new(
                "bytes written at 0.99, with a cold log over without",
                "42.5 % less",
                Rule::Saving(0.425),
                written(cold, off, Some(0.99), &UPDATES),
            ),
        ],
    }
}

/// The threshold of an entry's size as that of its value's.
fn threshold(setup: Setup, pair_bytes: usize) -> Setup {
    setup.set(format!("keyspace.values.separate_from_bytes={}", pair_bytes.saturating_sub(KEY_BYTES).max(1)))
}

/// Large values and small ones, in several shares, with all separated and with the large ones only.
fn arms_by_share(scale: Scale, seed: u64) -> Vec<Arm> {
    let steps = load_and_updates();
    let mut arms = Vec::new();
    for (large, all, selective) in
        [(1000, "1 KiB, all separated", "1 KiB, selective"), (4072, "4 KiB, all separated", "4 KiB, selective")]
    {
        for small_percent in [33, 50, 67] {
            let mean = (16 * small_percent as usize + large * (100 - small_percent as usize)) / 100;
            let sizes = Sizes::Two { small: 16, large, small_percent };
            let plan = plan_of(scale.data_bytes(), sizes, mean, seed);
            let setup = reserve_of(papers(scale), 0.2, mean + KEY_BYTES);
            arms.push(setup.clone().named(all).arm_at(small_percent as f64, &plan, &steps));
            arms.push(threshold(setup, 192).named(selective).arm_at(small_percent as f64, &plan, &steps));
        }
    }
    arms
}

pub(super) fn e7(scale: Scale, seed: u64) -> Experiment {
    let arms = arms_by_share(scale, seed);
    let label = "small entries (40 B), % of all";
    let ratios = |a: &'static str, b: &'static str, metric: &'static str, of: fn(&[(f64, f64)]) -> Option<f64>| {
        move |d: &Data<'_>| of(&d.ratios(a, b, "P3", metric))
    };
    let (all_1, some_1, all_4, some_4) =
        ("1 KiB, all separated", "1 KiB, selective", "4 KiB, all separated", "4 KiB, selective");
    Experiment {
        name: "hashkv-e7",
        paper: Paper::HashKv,
        place: "experiment 7, figure 12",
        title: "Small values stay with their keys",
        note: "",
        arms,
        views: vec![
            View::lines("Updates in P3", RATE, KOPS, "P3", label, false),
            View::lines("Bytes written in P3", WRITTEN, MIB, "P3", label, false),
        ],
        checks: vec![
            Check::new(
                "updates, large entries of 1 KiB, selective over all separated, at the worst share",
                "23.2 to 118 % more",
                Rule::Gain(1.232),
                ratios(some_1, all_1, RATE, least),
            ),
            Check::new(
                "that gain rises with the share of small entries",
                "yes",
                Rule::Rises,
                ratios(some_1, all_1, RATE, rises),
            ),
            Check::new(
                "updates, large entries of 4 KiB, at the worst share",
                "19.2 to 52.1 % more",
                Rule::Gain(1.192),
                ratios(some_4, all_4, RATE, least),
            ),
            Check::new(
                "bytes written, large entries of 1 KiB, at the worst share",
                "14.1 to 39.6 % less",
                Rule::Saving(0.141),
                ratios(some_1, all_1, WRITTEN, most),
            ),
            Check::new(
                "bytes written, large entries of 4 KiB, at the worst share",
                "4.1 to 10.7 % less",
                Rule::Saving(0.041),
                ratios(some_4, all_4, WRITTEN, most),
            ),
        ],
    }
}

/// Experiments 8 and 12: entry sizes by Zipf's law from 40 B to 8 KiB, whose values have 870 B on average.
pub(super) fn by_threshold(scale: Scale, seed: u64, steps: &[Step]) -> Vec<Arm> {
    let sizes = Sizes::Zipf { min: 16, max: 8192 - KEY_BYTES, theta: 0.99 };
    let plan = plan_of(scale.data_bytes(), sizes, 870, seed);
    let setup = reserve_of(papers(scale), 0.3, 870 + KEY_BYTES);
    let arms = [0, 64, 128, 192, 256, 512].into_iter();
    arms.map(|pair| threshold(setup.clone(), pair).arm_at(pair as f64, &plan, steps)).collect()
}

pub(super) fn over_none(step: &'static str) -> impl Fn(&Data<'_>) -> Option<f64> {
    move |d| Some(d.at("hashkv", 192.0, step, RATE)? / d.at("hashkv", 0.0, step, RATE)?)
}

pub(super) fn peak_of(step: &'static str) -> impl Fn(&Data<'_>) -> Option<f64> {
    move |d| peak(&d.over("hashkv", step, RATE))
}

pub(super) fn e8(scale: Scale, seed: u64) -> Experiment {
    let label = "smallest entry with a separated value, bytes";
    Experiment {
        name: "hashkv-e8",
        paper: Paper::HashKv,
        place: "experiment 8, figure 13",
        title: "Which values stay with their keys",
        note: "The same bytes as in the other experiments; the paper has three times as many.",
        arms: by_threshold(scale, seed, &load_and_updates()),
        views: vec![
            View::lines("Load (P0)", RATE, KOPS, "P0", label, false),
            View::lines("Updates in P3", RATE, KOPS, "P3", label, false),
            View::lines("Bytes written in P3", WRITTEN, MIB, "P3", label, false),
        ],
        checks: vec![
            Check::new(
                "the threshold with most updates per second",
                "128 to 256 B",
                Rule::Between(128.0, 256.0),
                peak_of("P3"),
            ),
            Check::new(
                "updates, a threshold of 192 B over none",
                "at least 40 % more",
                Rule::Gain(1.4),
                over_none("P3"),
            ),
            Check::new("loads become slower with the threshold", "yes", Rule::Falls, |d| {
                falls(&d.over("hashkv", "P0", RATE))
            }),
            Check::new("bytes written in P3, 192 B over none", "16.9 to 18.4 % less", Rule::Saving(0.169), |d| {
                Some(d.at("hashkv", 192.0, "P3", WRITTEN)? / d.at("hashkv", 0.0, "P3", WRITTEN)?)
            }),
        ],
    }
}

pub(super) fn e9(scale: Scale, seed: u64) -> Experiment {
    let steps = load_and_updates();
    let victims = [
        ("greedy", "victim=greedy"),
        ("cost and benefit", "victim=cost_benefit"),
        ("greedy among 5", "victim.greedy_random=5"),
        ("random", "victim=random"),
    ];
    let arms = [0.9, 0.99].into_iter().flat_map(|theta| {
        let plan = Plan { updates: zipf(theta), ..base(scale, seed) };
        let steps = steps.clone();
        victims.map(move |(name, victim)| {
            let setup = reserve(papers(scale), 0.3);
            // The paper's own setup has `greedy` already: to set it again would make a second, equal run.
            let setup = if name == "greedy" { setup } else { setup.set(format!("keyspace.values.{victim}")) };
            setup.named(name).arm_at(theta, &plan, &steps)
        })
    });
    let label = "skew of the updates";
    Experiment {
        name: "hashkv-e9",
        paper: Paper::HashKv,
        place: "experiment 9, figure 14",
        title: "Which group GC takes first",
        note: "Our text of the paper does not give the number of groups among which `greedy among 5` chooses.",
        arms: arms.collect(),
        views: vec![
            View::lines("Updates in P3", RATE, KOPS, "P3", label, false),
            View::lines("Bytes written in P3", WRITTEN, MIB, "P3", label, false),
        ],
        checks: vec![
            Check::new(
                "updates at 0.99, greedy over random",
                "61.3 to 62.2 % more",
                Rule::Gain(1.613),
                rate_at("greedy", "random", 0.99, "P3"),
            ),
            Check::new(
                "updates at 0.99, greedy over greedy among some",
                "31.5 to 32.1 % more",
                Rule::Gain(1.315),
                rate_at("greedy", "greedy among 5", 0.99, "P3"),
            ),
            Check::new(
                "updates at 0.99, greedy over cost and benefit",
                "similar",
                Rule::Alike,
                rate_at("greedy", "cost and benefit", 0.99, "P3"),
            ),
            Check::new(
                "bytes written at 0.99, greedy over random",
                "30.1 to 32 % less",
                Rule::Saving(0.301),
                written("greedy", "random", Some(0.99), &UPDATES),
            ),
        ],
    }
}

pub(super) fn e10(scale: Scale, seed: u64) -> Experiment {
    let (plan, steps) = (base(scale, seed), load_and_updates());
    let setup = reserve(papers(scale), 0.3);
    Experiment {
        name: "hashkv-e10",
        paper: Paper::HashKv,
        place: "experiment 10, table 2",
        title: "What crash consistency costs",
        note: "Bifold's GC is always crash-consistent. Only the durability of commits against a killed process can be \
        switched off (`durability=memory`): the log does here what the paper's journals do after a crash.",
        arms: vec![
            setup.clone().arm(&plan, &steps),
            setup.clone().set("durability=memory").named("hashkv, memory").arm(&plan, &steps),
        ],
        views: vec![
            View::bars("Throughput", RATE, KOPS, &ALL_PHASES),
            View::bars("Bytes written", WRITTEN, MIB, &ALL_PHASES),
        ],
        checks: vec![
            Check::new(
                "updates in P3, crash-consistent over not",
                "6.5 % fewer",
                Rule::Alike,
                rate("hashkv", "hashkv, memory", "P3"),
            ),
            Check::new(
                "bytes written, crash-consistent over not",
                "4.2 % more",
                Rule::Alike,
                written("hashkv", "hashkv, memory", None, &ALL_PHASES),
            ),
        ],
    }
}
