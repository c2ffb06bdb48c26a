//! DiffKV's parameters (§5.6 of the paper): figure 18, one experiment for each of its four panels.

use super::{
    Data, SCAN_THREADS, base,
    merges::{deep, load_and_updates},
    papers, scans_by,
};
use crate::{
    Workload,
    experiment::{
        Experiment, Paper, View,
        check::{Check, Rule, falls, rises},
        data::{DIR_BYTES, RATE},
        setup::{KOPS, MIB, Setup, operations, plan, settle, step},
    },
    scale::Scale,
    spec::Step,
};

/// A point of a curve over another one.
fn over(d: &Data<'_>, series: &str, (a, b): (f64, f64), step: &str, metric: &str) -> Option<f64> {
    Some(d.at(series, a, step, metric)? / d.at(series, b, step, metric)?)
}

/// Value sizes below, at and above the paper's threshold.
const SMALL_SIZES: [usize; 4] = [32, 128, 256, 512];

pub(super) fn f18a(scale: Scale, seed: u64) -> Experiment {
    let tree = Setup::bifold(scale, "inline");
    let separated = papers(scale)
        .set("keyspace.values.separate_from_bytes=1")
        .set("keyspace.values.diffkv.large_bytes=1MiB")
        .named("diffkv");
    let at = |setup: &Setup, bytes: usize| {
        setup.arm_at(bytes as f64, &plan(scale.data_bytes(), bytes, seed), &[step(Workload::Load)])
    };
    let ratio = |bytes: f64| move |d: &Data<'_>| d.ratio_at("diffkv", "inline", bytes, "load", RATE);
    let helps = "at least 128 bytes: separation improves writes (the direction alone)";
    Experiment {
        name: "diffkv-f18a",
        paper: Paper::DiffKv,
        place: "§5.6, figure 18 (a)",
        title: "From which size on values should be separated",
        note: "`diffkv` has values of all sizes in the vTree here, as in the paper's measurement.",
        arms: [tree, separated].iter().flat_map(|setup| SMALL_SIZES.map(|bytes| at(setup, bytes))).collect(),
        views: vec![View::lines("Load", RATE, KOPS, "load", "value size, bytes", true)],
        checks: vec![
            Check::new(
                "load at 32 bytes, diffkv over inline",
                "below 128 bytes: no benefit (the direction alone)",
                Rule::AtMost(1.0),
                ratio(32.0),
            ),
            Check::new("load at 128 bytes, diffkv over inline", helps, Rule::AtLeast(1.0), ratio(128.0)),
            Check::new("load at 512 bytes, diffkv over inline", helps, Rule::AtLeast(1.0), ratio(512.0)),
        ],
    }
}

/// Thresholds, in KiB.
const LARGE: [u64; 5] = [1, 4, 8, 16, 32];

pub(super) fn f18b(scale: Scale, seed: u64) -> Experiment {
    let plan = base(scale, seed);
    let steps = [step(Workload::Load), settle(), scans_by("scan", (100, 4 * plan.keys), SCAN_THREADS)];
    let at = |kib: u64| {
        let setup = papers(scale).set(format!("keyspace.values.diffkv.large_bytes={}", kib << 10));
        setup.arm_at(kib as f64, &plan, &steps)
    };
    Experiment {
        name: "diffkv-f18b",
        paper: Paper::DiffKv,
        place: "§5.6, figure 18 (b)",
        title: "From which size on values should be in logs",
        note: "",
        arms: LARGE.map(at).into(),
        views: vec![
            View::lines("Load", RATE, KOPS, "load", "large values from, KiB", true),
            View::lines("Scans of 100, 16 threads", RATE, KOPS, "scan", "large values from, KiB", true),
        ],
        checks: vec![
            Check::new("load from 1 to 32 KiB", "fewer values in logs: slower writes", Rule::Falls, |d| {
                falls(&d.over("diffkv", "load", RATE))
            }),
            Check::new("scans from 1 to 32 KiB", "fewer values in logs: faster scans", Rule::Rises, |d| {
                rises(&d.over("diffkv", "scan", RATE))
            }),
            Check::new("load, 8 KiB over 1 KiB", "around 80 %; a tenth less at most", Rule::AtLeast(0.7), |d| {
                over(d, "diffkv", (8.0, 1.0), "load", RATE)
            }),
            Check::new("scans, 32 KiB over 8 KiB", "the improvement is very limited", Rule::Alike, |d| {
                over(d, "diffkv", (32.0, 8.0), "scan", RATE)
            }),
        ],
    }
}

/// Sorted groups that a file may overlap.
const RUNS: [u32; 5] = [2, 4, 8, 10, 16];

pub(super) fn f18c(scale: Scale, seed: u64) -> Experiment {
    let plan = base(scale, seed);
    let mut steps = load_and_updates(plan.keys);
    steps.push(scans_by("scan", (100, 4 * plan.keys), SCAN_THREADS));
    let at = |runs: u32| {
        let setup = deep(scale).set(format!("keyspace.values.diffkv.max_sorted_run={runs}"));
        setup.arm_at(f64::from(runs), &plan, &steps)
    };
    Experiment {
        name: "diffkv-f18c",
        paper: Paper::DiffKv,
        place: "§5.6, figure 18 (c)",
        title: "How many sorted groups there may be",
        note: "Levels of keys are smaller than elsewhere, so that there are several. The parameter bounds groups that \
               overlap one file, and not those of a level. Scans come after three times as many updates as keys; \
               in the paper they come after the load.",
        arms: RUNS.map(at).into(),
        views: vec![
            View::lines("Load", RATE, KOPS, "load", "sorted groups at most", false),
            View::lines("Updates", RATE, KOPS, "update", "sorted groups at most", false),
            View::lines("Scans of 100, 16 threads", RATE, KOPS, "scan", "sorted groups at most", false),
            View::lines(
                "Files that overlap one in the last two levels",
                "/facts/value_overlap_last_two",
                ("files", 1.0),
                "rest",
                "sorted groups at most",
                false,
            ),
        ],
        checks: vec![
            Check::new("load from 2 to 16 groups", "writes gain (the trade-off)", Rule::Rises, |d| {
                rises(&d.over("diffkv", "load", RATE))
            }),
            Check::new("scans from 2 to 16 groups", "scans lose (the trade-off)", Rule::Falls, |d| {
                falls(&d.over("diffkv", "scan", RATE))
            }),
            Check::new("load, 16 over 10 groups", "changes slowly above 10", Rule::Alike, |d| {
                over(d, "diffkv", (16.0, 10.0), "load", RATE)
            }),
            Check::new("scans, 16 over 10 groups", "changes slowly above 10", Rule::Alike, |d| {
                over(d, "diffkv", (16.0, 10.0), "scan", RATE)
            }),
        ],
    }
}

/// Shares of invalid data from which on GC takes a file.
const INVALID: [f64; 4] = [0.3, 0.5, 0.7, 0.9];

pub(super) fn f18d(scale: Scale, seed: u64) -> Experiment {
    let plan = base(scale, seed);
    let update = operations(step(Workload::Update), 3 * plan.keys);
    let steps = [step(Workload::Load), update, Step::new("rest", Workload::Settle)];
    let at = |invalid: f64| {
        let setup = deep(scale).set(format!("keyspace.values.diffkv.gc_threshold={:.1}", 1.0 - invalid));
        setup.arm_at(invalid, &plan, &steps)
    };
    Experiment {
        name: "diffkv-f18d",
        paper: Paper::DiffKv,
        place: "§5.6, figure 18 (d)",
        title: "How much garbage a file may have",
        note: "There is no bound on space, as in the paper, and levels of keys are smaller than elsewhere, so that \
        merges find garbage.",
        arms: INVALID.map(at).into(),
        views: vec![
            View::lines("Updates", RATE, KOPS, "update", "invalid share from which GC takes a file", false),
            View::lines("Size of the store", DIR_BYTES, MIB, "rest", "invalid share from which GC takes a file", false),
        ],
        checks: vec![
            Check::new("size after updates, 0.9 over 0.3", "216.2 GB for 158.8", Rule::Gain(216.2 / 158.8), |d| {
                over(d, "diffkv", (0.9, 0.3), "rest", DIR_BYTES)
            }),
            Check::new("size from 0.3 to 0.9", "increases", Rule::Rises, |d| {
                rises(&d.over("diffkv", "rest", DIR_BYTES))
            }),
            Check::new("updates from 0.3 to 0.9", "increase", Rule::Rises, |d| {
                rises(&d.over("diffkv", "update", RATE))
            }),
        ],
    }
}
