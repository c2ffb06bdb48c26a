//! Runs that were never made, with figures as they might be, and experiments that are harder to show than most.

use bifold_vat::figures;
use serde_json::Value;

use crate::{
    PhaseReport, Workload,
    experiment::{
        Experiment, Paper, View,
        check::{Check, Rule, falls},
        data::{P99_US, RATE, SPACE_AMP, WRITTEN},
        setup::{KOPS, MIB, Setup, TIMES, US, load_and_updates, plan},
        view::{Chart, ChartKind},
    },
    machine::Machine,
    random::Random,
    record::{Account, FromDevice, Run, StepRecord},
    report::Latency,
    scale::Scale,
    spec::{Act, PageCache, Spec, Step},
};

const ROUNDS: usize = 3;

/// Three rounds of every arm.
pub fn runs(experiments: &[Experiment]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for experiment in experiments {
        for round in 1..=ROUNDS {
            for arm in &experiment.arms {
                let key = arm.spec.key();
                if !runs.iter().any(|run| run.key == key && run.round == round) {
                    runs.push(run(experiment.name, &arm.label(), &arm.spec, round));
                }
            }
        }
    }
    runs
}

fn run(experiment: &str, arm: &str, spec: &Spec, round: usize) -> Run {
    let key = spec.key();
    let seed = u64::from_str_radix(&key, 16).unwrap();
    // The same for all rounds, and a little of each round's own.
    let (mut speed, mut noise) = (Random::new(seed, 0), Random::new(seed, round as u64));
    let mut figure = |usual: f64| {
        let (store, round) = (speed.below(1000), noise.below(1000));
        usual * (0.4 + store as f64 / 700.0) * (0.95 + round as f64 / 10_000.0)
    };
    let steps: Vec<Value> = spec.steps.iter().map(|step| record(step, &mut figure)).collect();
    let by_source = [("log".to_owned(), 70_000_000), ("tables".to_owned(), 190_000_000)].into();
    Run {
        key,
        round,
        experiment: experiment.to_owned(),
        arm: arm.to_owned(),
        spec: spec.clone(),
        version: "0.1.0".to_owned(),
        settings: vec![("compression".to_owned(), "none".to_owned()), ("cache_bytes".to_owned(), "8388608".to_owned())],
        machine: Machine {
            processor: "A processor with a name".to_owned(),
            processors: 2,
            memory: 8 << 30,
            system: "linux 6.1".to_owned(),
            bifold: "0.1.0".to_owned(),
            optimised: true,
            file_system: Some("ext4".to_owned()),
            settings: None,
        },
        began: 1_795_372_260 + 60 * (seed % 90) + 5400 * round as u64,
        seconds: 20.0 + (seed % 40) as f64,
        steps,
        accounts: vec![Account { by_source, called: Some(259_000_000 + (seed % 3_000_000)) }],
        not_loaded: None,
    }
}

fn record(step: &Step, figure: &mut impl FnMut(f64) -> f64) -> Value {
    let rate = figure(60_000.0);
    let us = 1e6 / rate;
    let latency =
        Latency { p50: us * 0.7, p99: figure(us * 9.0), p999: us * 40.0, p9999: us * 100.0, max: us * 400.0, mean: us };
    let report = PhaseReport {
        store: "bifold",
        phase: match step.act {
            Act::Run(workload) => workload.name(),
            Act::Recover => "recover",
            Act::Device => "device",
        },
        operations: 65_536,
        seconds: 65_536.0 / rate,
        ops_per_sec: rate,
        latency_us: latency,
        user_bytes_written: figure(6.7e7) as u64,
        user_bytes_read: figure(6.7e7) as u64,
        bytes_written: [("flush", figure(8e7) as u64), ("compaction", figure(2e8) as u64)].into(),
        bytes_read: [("compaction", figure(1.5e8) as u64), ("get", figure(3e7) as u64)].into(),
        write_amp: figure(4.0),
        read_amp: figure(2.0),
        space_amp: figure(1.4),
        live_bytes: 64 << 20,
        dir_bytes: figure(9e7) as u64,
        dir_bytes_max: figure(1.2e8) as u64,
        peak_rss_bytes: Some(figure(5e7) as u64),
        cpu_seconds: figure(1.0),
        cpu_us_per_op: figure(14.0),
        ..PhaseReport::default()
    };
    let facts = [("levels".to_owned(), figure(4.0).round())].into();
    // The slower a step, the more the device has to do for it.
    let device = FromDevice {
        bytes_per_op: 70.0 * us,
        requests_per_op: us / 60.0,
        written_per_op: 150.0 * us,
        write_requests_per_op: us / 900.0,
        ..FromDevice::default()
    };
    let device = Some(device);
    serde_json::to_value(StepRecord { step: step.name.clone(), report, called: None, device, busy: None, facts })
        .unwrap()
}

/// Experiments with what the papers' own may not have: long names, many bars, parameters with gaps, curves, hostile
/// text.
pub fn harder() -> Vec<Experiment> {
    vec![sweep(), crowd(), curves(), ours(), not_run(), hostile()]
}

fn experiment(name: &'static str, paper: Paper, title: &'static str) -> Experiment {
    Experiment {
        name,
        paper,
        place: "section 4.2, figure 9",
        title,
        note: "",
        arms: Vec::new(),
        views: Vec::new(),
        checks: Vec::new(),
    }
}

/// More lines over a parameter than there are colours; one store was not run at one of the values, another has a step
/// less.
fn sweep() -> Experiment {
    let sizes = [64.0, 256.0, 1024.0, 4096.0, 16_384.0];
    let mut arms = Vec::new();
    let names = [
        "inline",
        "wisckey",
        "novkv",
        "novkv, larger tables",
        "novkv, smaller tables",
        "hashkv",
        "hashkv, more groups",
        "unikv",
        "diffkv",
        "diffkv, no hot parts",
    ];
    for (number, name) in names.into_iter().enumerate() {
        let placement = name.split(',').next().unwrap();
        for (at, size) in sizes.into_iter().enumerate() {
            let plan = plan(Scale::Small.data_bytes(), size as usize, 1);
            let mut steps = load_and_updates();
            if (number, at) == (1, 2) {
                steps.truncate(2);
            }
            arms.push(Setup::bifold(Scale::Small, placement).named(name).arm_at(size, &plan, &steps));
        }
    }
    let label = "size of a value (bytes)";
    Experiment {
        note: "Values of 64 KiB and more are left out: there are too few of them at this scale.",
        arms,
        views: vec![
            View::lines("Updates by the size of values", RATE, KOPS, "P3", label, true),
            View::lines("Space by the size of values", SPACE_AMP, TIMES, "P3", label, true),
            View::lines("Latest updates, on an even axis", P99_US, US, "P3", label, false),
        ],
        checks: vec![
            Check::new("updates of novkv, by size", "fall with the size of values", Rule::Falls, |d| {
                falls(&d.over("novkv", "P3", RATE))
            }),
            Check::new("novkv over wisckey at 1 KiB", "2.4 ×", Rule::Gain(2.4), |d| {
                d.ratio_at("novkv", "inline", 1024.0, "P3", RATE)
            }),
        ],
        ..experiment("novkv-e4", Paper::NovKv, "Sizes of values")
    }
}

/// More bars than fit next to each other, more series than colours, and groups with long names.
fn crowd() -> Experiment {
    let names = [
        "diffkv",
        "diffkv without hot and cold parts",
        "wisckey",
        "inline",
        "unikv",
        "hashkv",
        "novkv",
        "unikv of few partitions",
        "hashkv with more groups",
        "novkv without filters",
        "wisckey with large files",
    ];
    let step = |name| Step::new(name, Workload::Update);
    let groups: [&'static str; 7] =
        ["load", "updates", "updates after collection", "scans of 100", "reads", "reads-of-missing-keys", "recovery"];
    let plan = plan(Scale::Small.data_bytes(), 1000, 2);
    let arms = names.map(|name| {
        let placement = name.split(' ').next().unwrap();
        Setup::bifold(Scale::Small, placement).named(name).arm(&plan, &groups.map(step))
    });
    let mut arms = arms.to_vec();
    arms[0].spec.page_cache = PageCache::Cold;
    arms[0].spec.process_memory = Some(128 << 20);
    Experiment {
        arms,
        views: vec![
            View::bars("Throughput of all steps", RATE, KOPS, &groups),
            View::bars("Bytes written", WRITTEN, MIB, &groups[1..4]),
            View::bars("Space", SPACE_AMP, TIMES, &["updates"]),
        ],
        checks: vec![
            Check::new("scans, diffkv over wisckey", "up to 4.8 ×", Rule::Gain(4.8), |d| {
                d.ratio("diffkv", "wisckey", "scans of 100", RATE)
            }),
            Check::new("updates, diffkv over inline", "1.7 to 3.5 ×", Rule::Gain(1.7), |d| {
                d.ratio("diffkv", "inline", "updates", RATE)
            }),
            Check::new("space, diffkv over wisckey", "about the same", Rule::Alike, |d| {
                d.ratio("diffkv", "wisckey", "updates", SPACE_AMP)
            }),
        ],
        ..experiment("diffkv-e2", Paper::DiffKv, "Mixed workloads in every step that there is")
    }
}

/// Curves that were computed.
fn curves() -> Experiment {
    let panels = figures::NUMBERS.into_iter().flat_map(|number| figures::figure(number).unwrap().panels);
    let view = |panel: figures::Panel| {
        let points = |curve: &figures::Curve| curve.points.iter().map(|&(x, y)| (x, [y, y, y])).collect();
        let series = panel.curves.iter().map(|curve| (curve.name.clone(), points(curve))).collect();
        let log = panel.x.scale == figures::Scale::Log;
        View::computed(Chart {
            title: panel.title.to_owned(),
            unit: panel.y.label.to_owned(),
            shape: ChartKind::Lines { label: panel.x.label.to_owned(), log, series },
        })
        .up_to(panel.y.range.1)
    };
    Experiment {
        views: panels.map(view).collect(),
        checks: vec![Check::new("amplification at its best", "about 25", Rule::Between(20.0, 30.0), |_| Some(24.3))],
        ..experiment("vat-projections", Paper::Vat, "What the model says of all designs")
    }
}

fn ours() -> Experiment {
    let plan = plan(Scale::Small.data_bytes(), 1000, 3);
    let arms = ["hashkv", "wisckey"].map(|name| Setup::bifold(Scale::Small, name).arm(&plan, &load_and_updates()));
    Experiment {
        arms: arms.to_vec(),
        views: vec![View::bars("Slowest updates of a hundred", P99_US, US, &["P1", "P2", "P3"])],
        checks: vec![Check::new("never reached", "10 times faster", Rule::AtLeast(10.0), |d| {
            d.ratio("hashkv", "wisckey", "P3", RATE)
        })],
        ..experiment("ours-1", Paper::Bifold, "Compared with other stores")
    }
}

fn not_run() -> Experiment {
    Experiment {
        views: vec![View::bars("Nothing", RATE, KOPS, &["P0"])],
        checks: vec![Check::new("nothing", "something", Rule::Alike, |_| None)],
        ..experiment("ours-2", Paper::Bifold, "Not run yet")
    }
}

/// Names that would be markup, leave their picture, or be no text at all.
pub fn hostile() -> Experiment {
    let evil = "</text></svg><script>alert(1)</script><img src=x onerror='a'>\"&|`[x](y)\0\u{1b}\n";
    let long = "a-name-without-an-end ".repeat(40);
    let plan = plan(Scale::Small.data_bytes(), 1000, 4);
    let mut arms = vec![
        Setup::bifold(Scale::Small, "inline").named(evil).arm(&plan, &load_and_updates()),
        Setup::bifold(Scale::Small, "wisckey").named(long.clone()).arm(&plan, &load_and_updates()),
        Setup::bifold(Scale::Small, "hashkv").named("x".repeat(300)).arm(&plan, &load_and_updates()),
    ];
    for arm in &mut arms {
        arm.spec.store = evil.to_owned();
        arm.spec.steps.push(Step::new(evil, Workload::Update));
    }
    let odd = [f64::NAN, f64::INFINITY, -f64::MAX, f64::MAX, 0.0, -5.0, 1e-12, 7.0];
    let line = odd.iter().map(|&y| (y, [y, f64::NEG_INFINITY, f64::NAN])).collect();
    let odd_chart = Chart {
        title: long.clone(),
        unit: evil.to_owned(),
        shape: ChartKind::Lines { label: long.clone(), log: true, series: vec![(evil.to_owned(), line)] },
    };
    let bars = (0..60).map(|at| Some([f64::from(at) * 1e-9; 3])).collect();
    let many = Chart {
        title: evil.to_owned(),
        unit: String::new(),
        shape: ChartKind::Bars {
            groups: (0..60).map(|at| format!("group {at} of them all")).collect(),
            series: vec![(long, bars)],
        },
    };
    Experiment {
        place: "<b>place</b>",
        note: evil,
        arms,
        views: vec![View::bars(evil, RATE, KOPS, &["P0", evil]), View::computed(odd_chart), View::computed(many)],
        checks: vec![Check::new(evil, evil, Rule::AtLeast(0.0), |_| Some(f64::MAX))],
        ..experiment(evil, Paper::Bifold, "<script>hostile</script>")
    }
}
