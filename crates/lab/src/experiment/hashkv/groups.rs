//! How evenly HashKV's groups are filled, and how large they should be (§4.6, §4.7 there).

use super::{
    super::{
        Data, Experiment, Paper, View,
        check::{Check, Rule, rises},
        data::{DIR_BYTES, RATE, WRITTEN},
        setup::{KOPS, MIB, TIMES, load_and_updates},
    },
    ALL_PHASES, base, papers, reserve,
};
use crate::scale::Scale;

pub(super) fn e14(scale: Scale, seed: u64) -> Experiment {
    let (plan, steps) = (base(scale, seed), load_and_updates());
    let used = |d: &Data<'_>| {
        let (values, tables) =
            (d.of("hashkv", "P3", "/facts/value_bytes")?, d.of("hashkv", "P3", "/facts/table_bytes")?);
        Some((values + tables) / d.of("hashkv", "P3", DIR_BYTES)?)
    };
    Experiment {
        name: "hashkv-e14",
        paper: Paper::HashKv,
        place: "experiment 14, figure 19",
        title: "How evenly groups are filled",
        note: "Bifold does not know its final size in advance: groups split as they grow, so some have half of the \
        keys of others. The runs are those of experiment 1.",
        arms: vec![reserve(papers(scale), 0.3).arm(&plan, &steps)],
        views: vec![
            View::bars("Largest group over the mean", "/facts/value_unit_most_over_mean", TIMES, &ALL_PHASES),
            View::bars("Smallest group over the mean", "/facts/value_unit_least_over_mean", TIMES, &ALL_PHASES),
        ],
        checks: vec![
            Check::new("largest over smallest group after P0", "1.025", Rule::AtMost(1.05), |d| {
                Some(
                    d.of("hashkv", "P0", "/facts/value_unit_most")?
                        / d.of("hashkv", "P0", "/facts/value_unit_least")?,
                )
            }),
            Check::new(
                "values and tables over the size of the store after P3",
                "99.4 % of the space is used",
                Rule::AtLeast(0.95),
                used,
            ),
        ],
    }
}

pub(super) fn e15(scale: Scale, seed: u64) -> Experiment {
    let (plan, steps) = (base(scale, seed), load_and_updates());
    let mut arms = Vec::new();
    for (name, share) in [("reserve 20 %", 0.2), ("reserve 50 %", 0.5)] {
        for parts in [512, 128, 32] {
            let bytes = (scale.data_bytes() / parts).max(1 << 10);
            let setup = reserve(papers(scale), share).set(format!("keyspace.values.hashkv.group_bytes={bytes}"));
            let setup = setup.set("keyspace.values.hashkv.groups_max=1024").named(name);
            arms.push(setup.arm_at(1000.0 / parts as f64, &plan, &steps));
        }
    }
    let label = "size of a group, thousandths of the data";
    let gain = |series: &'static str| {
        move |d: &Data<'_>| {
            let points = d.over(series, "P3", RATE);
            Some(points.last()?.1 / points.first()?.1)
        }
    };
    Experiment {
        name: "hashkv-e15",
        paper: Paper::HashKv,
        place: "experiment 15, figure 20a, d",
        title: "Size of the groups",
        note: "Log segments (figure 20 b, e) have no counterpart, as a group is one file, and the write cache (figure \
        20 c, f) is not varied. Groups are a 512th to a 32nd of the data, the paper's a 2560th to a 160th.",
        arms,
        views: vec![
            View::lines("Updates in P3", RATE, KOPS, "P3", label, true),
            View::lines("Bytes written in P3", WRITTEN, MIB, "P3", label, true),
        ],
        checks: vec![
            Check::new("updates rise with the size of groups at 20 %", "yes", Rule::Rises, |d| {
                rises(&d.over("reserve 20 %", "P3", RATE))
            }),
            Check::new(
                "updates, largest over smallest groups at 20 %",
                "52.5 % more",
                Rule::Gain(1.525),
                gain("reserve 20 %"),
            ),
            Check::new(
                "updates, largest over smallest groups at 50 %",
                "28.3 % more",
                Rule::Gain(1.283),
                gain("reserve 50 %"),
            ),
        ],
    }
}
