//! NovKV's experiments (§IV there). Keys of 16 bytes, values of 128 B to 4 KiB, no skew, GC below a valid
//! rate of 0.7.
//!
//! All but the last figure are of the same runs: every key once, as many uniform overwrites (`write`), then two
//! passes that read the same keys. The paper's random write (`fillrandom`) starts on an empty store and overwrites
//! about a third of its keys; here all of them are overwrites, so there is more garbage. And the paper has as many
//! values of each size; here they are as many bytes, so 29 times fewer values of 4 KiB than of 128 B.

use super::{
    Arm, Data, Experiment, Maker, Paper, View,
    check::{Check, Rule, least, most},
    data::{RATE, WRITE_AMP},
    setup::{KOPS, LIKE_LEVELDB, Setup, TIMES, plan},
};
use crate::{Plan, Workload, choose::Distribution, plan::Changes, scale::Scale, spec::Step};

/// Every one of them.
pub(super) const ALL: &[Maker] = &[f8, f9, f10, f12, f14];

const VALUE_BYTES: [usize; 4] = [128, 512, 1024, 4096];
const LABEL: &str = "size of a value, bytes";
const NOTE: &str = "All measured writes are overwrites; in the paper about a third are. There are as many bytes at \
each size; in the paper there are as many values. `leveldb-like` stands for LevelDB.";
const F12_NOTE: &str = "All bytes count: commit logs, first writes, compaction and GC; in the paper only the last two. \
All measured writes are overwrites; in the paper about a third are. `leveldb-like` stands for LevelDB.";

fn base(scale: Scale, value_bytes: usize, seed: u64) -> Plan {
    let key_bytes = 16;
    let keys = (scale.data_bytes() / (key_bytes + value_bytes) as u64).max(16);
    Plan { keys, key_bytes, updates: Distribution::Uniform, ..plan(scale.data_bytes(), value_bytes, seed) }
}

fn steps(plan: &Plan) -> Vec<Step> {
    let pass = |name| {
        let operations = Some((plan.keys / 4).max(1));
        Step::new(name, Workload::Read).with(Changes { operations, stream: Some(1), ..Changes::default() })
    };
    let mut steps = writes();
    steps.extend([Step::new("settle", Workload::Settle), pass("first pass"), pass("second pass")]);
    steps
}

fn writes() -> Vec<Step> {
    vec![Step::new("load", Workload::Load), Step::new("write", Workload::Update)]
}

fn placements(scale: Scale) -> [Setup; 3] {
    let separated = |placement| Setup::bifold(scale, placement).set("keyspace.values.separate_from_bytes=1");
    [Setup::like_leveldb(scale), separated("wisckey"), separated("novkv")]
}

fn arms(scale: Scale, seed: u64) -> Vec<Arm> {
    let of = |&value_bytes: &usize| {
        let plan = base(scale, value_bytes, seed);
        let steps = steps(&plan);
        placements(scale).map(|setup| setup.arm_at(value_bytes as f64, &plan, &steps))
    };
    VALUE_BYTES.iter().flat_map(of).collect()
}

fn over(
    a: &'static str,
    b: &'static str,
    step: &'static str,
    metric: &'static str,
    of: fn(&[(f64, f64)]) -> Option<f64>,
) -> impl Fn(&Data<'_>) -> Option<f64> {
    move |d| of(&d.ratios(a, b, step, metric))
}

fn experiment(
    name: &'static str,
    place: &'static str,
    title: &'static str,
    arms: Vec<Arm>,
    view: View,
    checks: Vec<Check>,
) -> Experiment {
    Experiment { name, paper: Paper::NovKv, place, title, note: NOTE, arms, views: vec![view], checks }
}

fn f8(scale: Scale, seed: u64) -> Experiment {
    let view = View::lines("Random writes", RATE, KOPS, "write", LABEL, true);
    let checks = vec![
        Check::new(
            "writes, novkv over wisckey, at the best size",
            "1.98 ×",
            Rule::Gain(1.98),
            over("novkv", "wisckey", "write", RATE, most),
        ),
        Check::new(
            "writes, novkv over wisckey, at the worst size",
            "always ahead",
            Rule::AtLeast(1.0),
            over("novkv", "wisckey", "write", RATE, least),
        ),
    ];
    let mut experiment = experiment("novkv-f8", "figure 8", "Random writes", arms(scale, seed), view, checks);
    experiment.views.extend(View::of_device_over("write", LABEL, true));
    experiment
}

fn f9(scale: Scale, seed: u64) -> Experiment {
    let view = View::lines("Random reads, first pass", RATE, KOPS, "first pass", LABEL, true);
    let checks = vec![
        Check::new(
            "first pass, novkv over wisckey, at the worst size",
            "slightly ahead",
            Rule::AtLeast(1.0),
            over("novkv", "wisckey", "first pass", RATE, least),
        ),
        Check::new(
            "first pass, novkv over leveldb-like, at the worst size",
            "much faster than LevelDB",
            Rule::AtLeast(1.0),
            over("novkv", LIKE_LEVELDB, "first pass", RATE, least),
        ),
    ];
    experiment("novkv-f9", "figure 9", "Reads that repair handles", arms(scale, seed), view, checks)
}

fn f10(scale: Scale, seed: u64) -> Experiment {
    let view = View::lines("Random reads, second pass", RATE, KOPS, "second pass", LABEL, true);
    let again = |d: &Data<'_>| {
        let (first, second) = (d.over("novkv", "first pass", RATE), d.over("novkv", "second pass", RATE));
        least(&second.iter().zip(&first).map(|(second, first)| (first.0, second.1 / first.1)).collect::<Vec<_>>())
    };
    let checks = vec![
        Check::new(
            "second pass, novkv over wisckey, at the best size",
            "1.85 ×",
            Rule::Gain(1.85),
            over("novkv", "wisckey", "second pass", RATE, most),
        ),
        Check::new("novkv, second over first pass, at the worst size", "faster", Rule::AtLeast(1.0), again),
    ];
    experiment("novkv-f10", "figure 10", "Reads of repaired handles", arms(scale, seed), view, checks)
}

fn f12(scale: Scale, seed: u64) -> Experiment {
    let view =
        View::lines("Bytes written for each byte put in, load and writes", WRITE_AMP, TIMES, "write", LABEL, true);
    let checks = vec![
        Check::new(
            "write amplification, novkv over wisckey, at the worst size",
            "less",
            Rule::AtMost(1.0),
            over("novkv", "wisckey", "write", WRITE_AMP, most),
        ),
        Check::new(
            "write amplification, novkv over leveldb-like, at the worst size",
            "much less than LevelDB",
            Rule::AtMost(1.0),
            over("novkv", LIKE_LEVELDB, "write", WRITE_AMP, most),
        ),
    ];
    let experiment = experiment("novkv-f12", "figures 12, 13", "Write amplification", arms(scale, seed), view, checks);
    Experiment { note: F12_NOTE, ..experiment }
}

fn f14(scale: Scale, seed: u64) -> Experiment {
    let [_, wisckey, novkv] = placements(scale);
    let endless = "keyspace.values.space_target=100";
    let setups = [
        wisckey.clone(),
        novkv.clone(),
        wisckey.set(endless).named("wisckey, no GC"),
        novkv.set(endless).set("keyspace.values.novkv.gc_threshold=0.05").named("novkv, no GC"),
    ];
    let of = |&value_bytes: &usize| {
        let plan = base(scale, value_bytes, seed);
        // Those with GC are the runs of the other figures.
        let (all, writes) = (steps(&plan), writes());
        let steps = [&all, &all, &writes, &writes];
        let arm = |(setup, steps): (&Setup, &Vec<Step>)| setup.arm_at(value_bytes as f64, &plan, steps);
        setups.iter().zip(steps).map(arm).collect::<Vec<_>>()
    };
    let view = View::lines("Random writes", RATE, KOPS, "write", LABEL, true);
    let checks = vec![
        Check::new(
            "writes, novkv with GC over without, at the worst size",
            "at most 10 % slower",
            Rule::AtLeast(0.8),
            over("novkv", "novkv, no GC", "write", RATE, least),
        ),
        Check::new(
            "writes, wisckey without GC over with, at the best size",
            "up to 1.3 ×",
            Rule::Gain(1.3),
            over("wisckey, no GC", "wisckey", "write", RATE, most),
        ),
    ];
    experiment("novkv-f14", "figure 14", "What GC costs", VALUE_BYTES.iter().flat_map(of).collect(), view, checks)
}
