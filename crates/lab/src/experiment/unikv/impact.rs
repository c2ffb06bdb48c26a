//! What UniKV's parameters and its design cost (§IV-E there): experiments 6 to 8, 10 and 11.

use super::{Data, base, everyone, leveldb, load_and_reads, micro, over, papers, standard, switched};
use crate::{
    Workload,
    experiment::{
        Experiment, Paper, View,
        check::{Check, Rule, rises},
        data::{MEMORY, RATE, SECONDS},
        setup::{KOPS, LIKE_LEVELDB, MIB, Setup, recover, scans, settle, step},
    },
    scale::Scale,
    spec::Step,
};

const INDEX_BYTES: &str = "/facts/hash_index_bytes";
const PARTITIONS: &str = "/facts/partitions";

/// Kibibytes.
const KIB: (&str, f64) = ("KiB", 1024.0);

/// A point of UniKV's curve over another one.
fn point_over(d: &Data<'_>, (a, b): (f64, f64), step: &str, metric: &str) -> Option<f64> {
    Some(d.at("unikv", a, step, metric)? / d.at("unikv", b, step, metric)?)
}

/// The unsorted layer in the paper's gigabytes, of 100 of data: 4 are the default.
const UNSORTED: [u64; 4] = [1, 4, 8, 16];

pub(super) fn e6(scale: Scale, seed: u64) -> Experiment {
    let plan = standard(scale, seed);
    let at = |gb: u64| {
        let unsorted = scale.unsorted_bytes() * gb / 4;
        // The target would bound the layer before its own limit does.
        let setup = papers(scale)
            .set(format!("keyspace.compaction.two_layer.unsorted_bytes={unsorted}"))
            .set("keyspace.values.space_target=4");
        setup.arm_at(gb as f64, &plan, &load_and_reads(plan.keys))
    };
    Experiment {
        name: "unikv-e6",
        paper: Paper::UniKv,
        place: "experiment 6, figure 14 (a)",
        title: "Size of the unsorted layer",
        note: "The parameter is the paper's, of 100 GB of data, and stands for the same share of the data here, but 4 \
        is at least four memtables.",
        arms: UNSORTED.map(at).into(),
        views: vec![
            View::lines("Load", RATE, KOPS, "load", "unsorted layer, GB of the paper's 100", true),
            View::lines("Reads", RATE, KOPS, "read", "unsorted layer, GB of the paper's 100", true),
            View::lines(
                "Hash index after the load",
                INDEX_BYTES,
                KIB,
                "load",
                "unsorted layer, GB of the paper's 100",
                true,
            ),
        ],
        checks: vec![
            Check::new("load from 1 to 16", "increases", Rule::Rises, |d| rises(&d.over("unikv", "load", RATE))),
            Check::new("reads, 16 over 1", "nearly the same", Rule::Alike, |d| {
                point_over(d, (16.0, 1.0), "read", RATE)
            }),
            Check::new("hash index from 1 to 16", "its memory increases", Rule::Rises, |d| {
                rises(&d.over("unikv", "load", INDEX_BYTES))
            }),
        ],
    }
}

/// Ranges in the paper's gigabytes, of 100 of data: 40 are the default.
const RANGES: [u64; 3] = [20, 40, 60];

pub(super) fn e7(scale: Scale, seed: u64) -> Experiment {
    let plan = standard(scale, seed);
    let at = |gb: u64| {
        let setup = papers(scale).set(format!("keyspace.partition_bytes={}", scale.partition_bytes() * gb / 40));
        setup.arm_at(gb as f64, &plan, &load_and_reads(plan.keys))
    };
    Experiment {
        name: "unikv-e7",
        paper: Paper::UniKv,
        place: "experiment 7, figure 14 (b)",
        title: "Size of the ranges that split",
        note: "The parameter is the paper's, of 100 GB of data, and stands for the same share of the data here. A \
        range has no memtable of its own here, so its size does not affect memory.",
        arms: RANGES.map(at).into(),
        views: vec![
            View::lines("Load", RATE, KOPS, "load", "range, GB of the paper's 100", false),
            View::lines("Reads", RATE, KOPS, "read", "range, GB of the paper's 100", false),
            View::lines("Ranges", PARTITIONS, ("ranges", 1.0), "settle", "range, GB of the paper's 100", false),
        ],
        checks: vec![
            Check::new("load, 60 over 20", "a small impact", Rule::Alike, |d| {
                point_over(d, (60.0, 20.0), "load", RATE)
            }),
            Check::new("reads, 60 over 20", "almost no impact", Rule::Alike, |d| {
                point_over(d, (60.0, 20.0), "read", RATE)
            }),
        ],
    }
}

const THREADS: [(&str, usize); 6] =
    [("1 thread", 1), ("2 threads", 2), ("4 threads", 4), ("8 threads", 8), ("16 threads", 16), ("32 threads", 32)];

pub(super) fn e8(scale: Scale, seed: u64) -> Experiment {
    let plan = standard(scale, seed);
    let mut steps = vec![step(Workload::Load), settle()];
    steps.extend(THREADS.map(|(name, threads)| {
        let mut step = scans(name, 50, plan.keys);
        step.changes.threads = Some(threads);
        step
    }));
    let setups = [leveldb(scale), papers(scale)].into_iter().chain(switched(scale));
    let scan = |step: &'static str| move |d: &Data<'_>, series: &str| d.of(series, step, RATE);
    let at = |step| over(step, LIKE_LEVELDB, "10 to 20 % less than LevelDB", Rule::AtLeast(0.8), scan(step));
    let grows = |series: &'static str| {
        Check::new(format!("scans of {series} by threads"), "increase", Rule::Rises, move |d| {
            let points = THREADS.iter().map(|&(step, threads)| Some((threads as f64, d.of(series, step, RATE)?)));
            rises(&points.collect::<Option<Vec<_>>>()?)
        })
    };
    Experiment {
        name: "unikv-e8",
        paper: Paper::UniKv,
        place: "experiment 8, figure 15 (a)",
        title: "Scans by threads",
        note: "`leveldb-like` is for LevelDB. Bifold advises the system of the values ahead; UniKV has 32 threads that \
        fetch them. `unikv` without merges for scans, and with the paper's GC, is only shown.",
        arms: setups.map(|setup| setup.arm(&plan, &steps)).collect(),
        views: vec![View::bars("Scans of 50", RATE, KOPS, &THREADS.map(|(name, _)| name))],
        checks: vec![at("8 threads"), at("16 threads"), at("32 threads"), grows(LIKE_LEVELDB), grows("unikv")],
    }
}

const COUNTED: &str = "/facts/memory";

pub(super) fn e10(scale: Scale, seed: u64) -> Experiment {
    let unsorted = scale.unsorted_bytes() as f64;
    let less = |what, paper, share, step: &'static str| {
        over(what, LIKE_LEVELDB, paper, Rule::Saving(share), move |d, series| d.of(series, step, COUNTED))
    };
    Experiment {
        name: "unikv-e10",
        paper: Paper::UniKv,
        place: "experiment 10, table II",
        title: "Memory",
        note: "`leveldb-like` stands for LevelDB. At small sizes caches and indexes are a small part of a process, so \
               for reads and scans the checks use the store's own counts after them. These leave out mapped files, \
               which `top` counts.",
        arms: micro(everyone(scale), scale, seed),
        views: vec![
            View::bars("Peak resident memory", MEMORY, MIB, &["load", "read", "scan"]),
            View::bars("Memory counted by the store", COUNTED, MIB, &["load", "read", "scan"]),
            View::bars("Hash index", INDEX_BYTES, KIB, &["load", "read"]),
        ],
        checks: vec![
            over(
                "resident during the load",
                LIKE_LEVELDB,
                "622 MB for 442",
                Rule::AtMost(622.0 / 442.0),
                |d, series| d.of(series, "load", MEMORY),
            ),
            less("counted after reads", "142 MB for 318", 1.0 - 142.0 / 318.0, "read"),
            less("counted after scans", "96 MB for 112", 1.0 - 96.0 / 112.0, "scan"),
            Check::new(
                "hash index over the unsorted layers' size",
                "154 MB for 16 GB, less than a hundredth",
                Rule::AtMost(0.01),
                move |d| Some(d.of("unikv", "load", INDEX_BYTES)? / (d.of("unikv", "load", PARTITIONS)? * unsorted)),
            ),
        ],
    }
}

pub(super) fn e11(scale: Scale, seed: u64) -> Experiment {
    let plan = base(scale.data_bytes(), 1 << 10, seed);
    let steps: [Step; 2] = [step(Workload::Load), recover("open")];
    let setups: [Setup; 3] = [
        leveldb(scale),
        papers(scale),
        papers(scale).set("keyspace.hash_index.written=false").named("unikv, hashes not written"),
    ];
    Experiment {
        name: "unikv-e11",
        paper: Paper::UniKv,
        place: "experiment 11, table III",
        title: "Recovery",
        note: "`leveldb-like` stands for LevelDB. The time is that of a whole open: commit log, manifest, index. UniKV \
               saves its index periodically; here the hashes of a table's keys are written with it, and the last \
               series has no such hashes.",
        arms: setups.iter().map(|setup| setup.arm(&plan, &steps)).collect(),
        views: vec![View::bars("Opening after the process was killed", SECONDS, ("ms", 1e-3), &["open"])],
        checks: vec![over(
            "opening",
            LIKE_LEVELDB,
            "4.20 s for 0.97; no more than that",
            Rule::AtMost(4.20 / 0.97),
            |d, series| d.of(series, "open", SECONDS),
        )],
    }
}
