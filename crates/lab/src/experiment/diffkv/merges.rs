//! The costs and gains of DiffKV's merges (§5.4 of the paper): figures 14 to 16.
//!
//! At our sizes keys without values would have one level. So levels are small here: the first has a fourth of a
//! memtable, each further one is four times as large, and there are about three of them.

use super::{Data, base, papers, scans_by};
use crate::{
    Workload,
    experiment::{
        Arm, Experiment, Paper, View,
        check::{Check, Rule},
        data::{P99_US, RATE},
        setup::{KOPS, MIB, Setup, US, operations, settle, step},
    },
    scale::Scale,
    spec::Step,
};

/// The paper's store with several levels of keys, and without our bound on space, which would cause merges only for
/// garbage.
pub(super) fn deep(scale: Scale) -> Setup {
    let memtable = scale.memtable_bytes();
    papers(scale)
        .set(format!("keyspace.compaction.leveled.base_bytes={}", memtable / 4))
        .set("keyspace.compaction.leveled.size_ratio=4")
        .set(format!("keyspace.table_bytes={}", memtable / 8))
        .set("keyspace.values.space_target=100")
}

/// Merges whenever keys move to another level; in the last two levels only; and where too many groups overlap, too.
const CTM: &str = "each level";
const LM: &str = "lazy";
const SOM: &str = "scan-optimised";

fn merging(scale: Scale, merge: &str, name: &str) -> Setup {
    deep(scale).set(format!("keyspace.values.diffkv.merge={merge}")).named(name)
}

/// A load, three times as many updates as keys, and after each a wait for background work: `settle`, `rest`.
pub(super) fn load_and_updates(keys: u64) -> Vec<Step> {
    let after = Step::new("rest", Workload::Settle);
    vec![step(Workload::Load), settle(), operations(step(Workload::Update), 3 * keys), after]
}

/// The increase of a count since the load.
fn grown(d: &Data<'_>, series: &str, fact: &str) -> Option<f64> {
    Some(d.of(series, "rest", fact)? - d.of(series, "settle", fact)?)
}

/// The ratio of two such increases.
fn growth_ratio(d: &Data<'_>, (a, b): (&str, &str), facts: &[&str]) -> Option<f64> {
    let sum = |series| facts.iter().map(|fact| grown(d, series, fact)).sum::<Option<f64>>();
    Some(sum(a)? / sum(b)?)
}

const LOOKUPS: &str = "/facts/gc_index_lookups";
const INSERTS: &str = "/facts/gc_index_inserts";
const CPU_SECONDS: &str = "/cpu_seconds";

pub(super) fn f14(scale: Scale, seed: u64) -> Experiment {
    let plan = base(scale, seed);
    let steps = load_and_updates(plan.keys);
    let with_target = |setup: Setup| setup.set("keyspace.values.space_target=1.5");
    let logs = deep(scale).set("keyspace.values.diffkv.large_bytes=1").named("logs");
    let setups = [with_target(logs), with_target(merging(scale, "each_level", CTM))];
    let cpu = |d: &Data<'_>, series| d.sum(series, None, &["update", "rest"], CPU_SECONDS);
    Experiment {
        name: "diffkv-f14",
        paper: Paper::DiffKv,
        place: "§5.4, figure 14",
        title: "Merges instead of GC with index lookups",
        note: "`logs` stands for Titan's background GC: every value counts as large, so values are in logs, and their \
               GC looks values up in the index and writes addresses back. Its values also skip the commit log, which \
               Titan's do not. The paper has the time of GC and merges alone; we have their index lookups, and all \
               processor time. Both stay within 1.5 bytes for each live byte.",
        arms: setups.iter().map(|setup| setup.arm(&plan, &steps)).collect(),
        views: vec![
            View::bars("Processor time", CPU_SECONDS, ("s", 1.0), &["update", "rest"]),
            View::bars("Index lookups", LOOKUPS, ("thousands since the run began", 1e3), &["settle", "rest"]),
            View::bars("Index writes", INSERTS, ("thousands since the run began", 1e3), &["settle", "rest"]),
        ],
        checks: vec![
            Check::new(
                format!("index lookups and writes, {CTM} over logs"),
                "60.7 % less time, since the lookups and the writing back are avoided",
                Rule::Saving(0.607),
                |d| growth_ratio(d, (CTM, "logs"), &[LOOKUPS, INSERTS]),
            ),
            Check::new(
                format!("processor time of the updates, {CTM} over logs"),
                "much less time for the management of values (the direction alone)",
                Rule::AtMost(1.0),
                move |d| Some(cpu(d, CTM)? / cpu(d, "logs")?),
            ),
        ],
    }
}

/// The three policies: figures 15 and 16.
fn policies(scale: Scale, seed: u64) -> Vec<Arm> {
    let plan = base(scale, seed);
    let mut steps = load_and_updates(plan.keys);
    steps.push(scans_by("scan", (100, 4 * plan.keys), super::SCAN_THREADS));
    let policies = [("each_level", CTM), ("lazy", LM), ("scan_optimised", SOM)];
    policies.map(|(merge, name)| merging(scale, merge, name).arm(&plan, &steps)).into()
}

const POLICIES_NOTE: &str = "Levels of keys are smaller than elsewhere, so that there are several, and there is no \
    bound on space, as in the paper: merges drop the garbage that they find. The paper counts the sorted groups of the \
    last two levels. Here each part of a merge is a group of its own, so what is judged is how many files of its level \
    overlap one in these levels. A rule is open unless the stores that it compares had data in four levels after the \
    updates, level 0 among them: with fewer, lazy merge leaves nothing out.";

/// Merges that moved values because their keys went to a deeper level. Those that only did GC or untangled files do not
/// count: the paper has none of them.
const MERGES: &str = "/facts/level_merges";
const GROUPS: &str = "/facts/value_groups";
/// What bounds the files that a scan reads at once in the levels where most values are. The paper counts sorted groups
/// there; ours are as many as there were merges, since each part of one is a group of its own.
const OVERLAP: &str = "/facts/value_overlap_last_two";
const MOVED: [&str; 3] = ["/facts/values_merged", "/facts/values_untangled", "/facts/values_collected"];

const LEVELS: &str = "/facts/levels_filled";

/// The least number of levels with data, level 0 among them.
const LEVELS_MIN: f64 = 4.0;

/// Whether a store had so many levels after the updates in every round.
fn is_deep(d: &Data<'_>, series: &str) -> bool {
    d.figure(series, None, "rest", LEVELS).is_some_and(|levels| levels.least >= LEVELS_MIN)
}

/// A check of one policy over another, which is open unless both had enough levels.
fn of_policies(
    what: &str,
    (a, b): (&'static str, &'static str),
    paper: &str,
    rule: Rule,
    ours: impl Fn(&Data<'_>) -> Option<f64> + Send + Sync + 'static,
) -> Check {
    let if_deep = move |d: &Data<'_>| if is_deep(d, a) && is_deep(d, b) { ours(d) } else { None };
    Check::new(format!("{what}, {a} over {b}"), paper, rule, if_deep)
}

pub(super) fn f15(scale: Scale, seed: u64) -> Experiment {
    Experiment {
        name: "diffkv-f15",
        paper: Paper::DiffKv,
        place: "§5.4, figure 15",
        title: "Lazy and scan-optimised merges: what they move, and the order they leave",
        note: POLICIES_NOTE,
        arms: policies(scale, seed),
        views: vec![
            View::bars(
                "Merges that moved values to another level",
                MERGES,
                ("merges since the run began", 1.0),
                &["settle", "rest"],
            ),
            View::bars("Moved with keys to a lower level", MOVED[0], MIB, &["settle", "rest"]),
            View::bars("Moved for scans", MOVED[1], MIB, &["settle", "rest"]),
            View::bars("Moved to free space", MOVED[2], MIB, &["settle", "rest"]),
            View::bars("Sorted groups in all levels", GROUPS, ("groups", 1.0), &["settle", "rest"]),
            View::bars("Files that overlap one in the last two levels", OVERLAP, ("files", 1.0), &["settle", "rest"]),
        ],
        checks: vec![
            of_policies("merges", (LM, CTM), "65.5 % fewer", Rule::Saving(0.655), |d| {
                growth_ratio(d, (LM, CTM), &[MERGES])
            }),
            of_policies("bytes moved", (LM, CTM), "66.2 % less", Rule::Saving(0.662), |d| {
                growth_ratio(d, (LM, CTM), &MOVED)
            }),
            of_policies(
                "files that overlap one",
                (LM, CTM),
                "up to 20 % more sorted groups (the direction alone)",
                Rule::AtLeast(1.0),
                |d| d.ratio(LM, CTM, "rest", OVERLAP),
            ),
            of_policies("files that overlap one", (SOM, LM), "up to 68 % fewer groups", Rule::Saving(0.68), |d| {
                d.ratio(SOM, LM, "rest", OVERLAP)
            }),
            of_policies("bytes moved", (SOM, LM), "almost the same", Rule::Alike, |d| {
                growth_ratio(d, (SOM, LM), &MOVED)
            }),
        ],
    }
}

pub(super) fn f16(scale: Scale, seed: u64) -> Experiment {
    Experiment {
        name: "diffkv-f16",
        paper: Paper::DiffKv,
        place: "§5.4, figure 16",
        title: "Scan-optimised merges: scans",
        note: POLICIES_NOTE,
        arms: policies(scale, seed),
        views: vec![
            View::bars("Scans of 100, 16 threads", RATE, KOPS, &["scan"]),
            View::bars("99th percentile", P99_US, US, &["scan"]),
        ],
        checks: vec![
            of_policies("scans", (SOM, LM), "18 % more", Rule::Gain(1.18), |d| d.ratio(SOM, LM, "scan", RATE)),
            of_policies("99th percentile of scans", (SOM, LM), "27 % less", Rule::Saving(0.27), |d| {
                d.ratio(SOM, LM, "scan", P99_US)
            }),
        ],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::record::Run;

    /// A round of all policies in which the paper's claims hold, with data in so many levels of each.
    fn round(experiment: &Experiment, levels: [u64; 3]) -> Vec<Run> {
        let figures = [(100, 50, 100.0), (30, 55, 100.0), (30, 20, 120.0)];
        let run = |((arm, levels), (merges, overlap, rate)): ((&Arm, u64), (u64, u64, f64))| {
            let record = |step: &str, merges: u64| {
                let moved = 10 * merges;
                let facts = json!({
                    "level_merges": merges, "values_merged": moved, "values_untangled": 0, "values_collected": 0,
                    "value_overlap_last_two": overlap, "levels_filled": levels,
                });
                json!({"step": step, "facts": facts, "ops_per_sec": rate, "latency_us": {"p99": 1e4 / rate}})
            };
            Run::made_up(&arm.spec, vec![record("settle", 0), record("rest", merges), record("scan", merges)])
        };
        experiment.arms.iter().zip(levels).zip(figures).map(run).collect()
    }

    fn holds(experiment: &Experiment, runs: &[Run]) -> Vec<Option<bool>> {
        experiment.outcomes(&Data::new(&experiment.arms, runs)).into_iter().map(|outcome| outcome.holds).collect()
    }

    #[test]
    fn policies_are_judged_only_where_there_are_three_levels_beneath_level_0() {
        for experiment in [f15(Scale::Tiny, 1), f16(Scale::Tiny, 1)] {
            let deep = round(&experiment, [4; 3]);
            assert!(holds(&experiment, &deep).iter().all(|holds| *holds == Some(true)), "{}", experiment.name);
            let flat = round(&experiment, [3; 3]);
            assert!(holds(&experiment, &flat).iter().all(Option::is_none), "{}", experiment.name);
            let one_was_flat = [deep, round(&experiment, [4, 3, 4])].concat();
            assert!(holds(&experiment, &one_was_flat).iter().all(Option::is_none), "{}", experiment.name);
        }
        let experiment = f15(Scale::Tiny, 1);
        let of_first_flat = holds(&experiment, &round(&experiment, [3, 4, 4]));
        assert_eq!(of_first_flat, [None, None, None, Some(true), Some(true)], "only what is compared with it");
    }

    /// Older runs counted merges for GC, too.
    #[test]
    fn merges_are_judged_only_where_those_between_levels_were_counted() {
        let experiment = f15(Scale::Tiny, 1);
        let mut runs = round(&experiment, [4; 3]);
        for facts in runs.iter_mut().flat_map(|run| &mut run.steps).filter_map(|step| step["facts"].as_object_mut()) {
            let merges = facts.remove("level_merges").unwrap();
            facts.insert("value_merges".to_owned(), merges);
        }
        assert_eq!(holds(&experiment, &runs), [None, Some(true), Some(true), Some(true), Some(true)]);
    }
}
