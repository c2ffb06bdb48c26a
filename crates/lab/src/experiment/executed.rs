//! Every experiment, run in this process at the smallest scale: its steps end, all it shows is finite, and each check finds its figure.
//!
//! Figures mean nothing at that scale, so no verdict is looked at. What is compared with RocksDB needs it built in.

use std::{collections::BTreeMap, path::PathBuf};

use super::*;
use crate::{
    execute::{Part, Progress, execute},
    machine::Machine,
    record::Run,
    spec::Act,
    store::Peer,
};

/// A directory that goes away, whatever happens.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Where runs are cheapest. Small files by the thousand come and go within seconds, and ext4 looks at every inode that was freed
/// lately before it makes a file (`recently_deleted`): there all of these runs take 20 times as long as in memory.
fn place() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

/// Whether all of an arm can be run in one process.
fn fits_a_process(arm: &Arm) -> bool {
    arm.spec.steps.iter().all(|step| step.act != Act::Recover)
}

fn run(experiment: &Experiment, arm: &Arm) -> Run {
    let label = format!("{} {}", experiment.name, arm.label());
    let key = arm.spec.key();
    let dir = Temporary(place().join(format!("bifold-lab-run-{}-{key}", std::process::id())));
    std::fs::create_dir_all(&dir.0).unwrap();
    let begin = std::time::Instant::now();
    let part = execute(&arm.spec, 0, &dir.0, None, &Progress::default()).unwrap_or_else(|e| panic!("{label}: {e}"));
    let Part { steps, account, version, settings } = part;
    assert_eq!(steps.len(), arm.spec.steps.len(), "{label}");
    Run {
        key,
        round: 1,
        experiment: experiment.name.to_owned(),
        arm: arm.label(),
        spec: arm.spec.clone(),
        version,
        settings,
        machine: Machine::default(),
        began: 0,
        seconds: begin.elapsed().as_secs_f64(),
        steps: steps.iter().map(|step| serde_json::to_value(step).unwrap()).collect(),
        accounts: vec![account],
    }
}

/// Every figure of a chart.
fn figures(chart: &Chart) -> Vec<f64> {
    match &chart.shape {
        view::Shape::Bars { series, .. } => {
            series.iter().flat_map(|(_, bars)| bars).flatten().flatten().copied().collect()
        }
        view::Shape::Lines { series, .. } => {
            series.iter().flat_map(|(_, line)| line).flat_map(|point| point.1).collect()
        }
    }
}

/// Runs the experiments of a paper, equal runs once.
fn all_of(paper: Paper) {
    let experiments: Vec<Experiment> = all(Scale::Tiny, 1).into_iter().filter(|e| e.paper == paper).collect();
    let mut runs: BTreeMap<String, Run> = BTreeMap::new();
    for experiment in &experiments {
        for arm in experiment.arms.iter().filter(|arm| fits_a_process(arm)) {
            runs.entry(arm.spec.key()).or_insert_with(|| run(experiment, arm));
        }
    }
    let runs: Vec<Run> = runs.into_values().collect();
    for experiment in experiments.iter().filter(|experiment| experiment.arms.iter().all(fits_a_process)) {
        let (name, data) = (experiment.name, Data::new(&experiment.arms, &runs));
        for view in &experiment.views {
            let figures = figures(&view.chart(&data));
            assert!(
                !figures.is_empty() && figures.iter().all(|f| f.is_finite()),
                "{name}, {}: {figures:?}",
                view.title
            );
        }
        for outcome in experiment.outcomes(&data) {
            let is_there = Peer::RocksDb.built_in() || !outcome.what.ends_with("over rocksdb");
            assert!(outcome.ours.is_some() || !is_there, "{name}: nothing was measured of `{}`", outcome.what);
        }
    }
}

#[test]
fn hashkv_can_be_run() {
    all_of(Paper::HashKv);
}

#[test]
fn novkv_can_be_run() {
    all_of(Paper::NovKv);
}

#[test]
fn diffkv_can_be_run() {
    all_of(Paper::DiffKv);
}

#[test]
fn unikv_can_be_run() {
    all_of(Paper::UniKv);
}

#[test]
fn vat_can_be_run() {
    all_of(Paper::Vat);
}
