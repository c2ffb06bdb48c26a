//! Medians over the rounds of an experiment's runs.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Arm;
use crate::{
    record::Run,
    spec::{Step, step_in_keys},
};

/// Operations per second.
pub const RATE: &str = "/ops_per_sec";
/// Bytes written to files for each byte the user wrote, since the run began.
pub const WRITE_AMP: &str = "/write_amp";
/// Bytes read from files for the user, for each byte returned, since the run began.
pub const READ_AMP: &str = "/read_amp";
/// Size of the directory for each live byte.
pub const SPACE_AMP: &str = "/space_amp";
/// Size of the directory at the end of the step.
pub const DIR_BYTES: &str = "/dir_bytes";
/// The largest size of the directory during the step.
pub const DIR_BYTES_MAX: &str = "/dir_bytes_max";
/// Bytes written to files during the step.
pub const WRITTEN: &str = "/bytes_written";
/// Bytes read from files during the step.
pub const READ: &str = "/bytes_read";
/// Mean time of an operation, in microseconds.
pub const MEAN_US: &str = "/latency_us/mean";
/// The 99th percentile of the time of an operation, in microseconds.
pub const P99_US: &str = "/latency_us/p99";
/// The 99.9th percentile.
pub const P999_US: &str = "/latency_us/p999";
/// The 99.99th percentile.
pub const P9999_US: &str = "/latency_us/p9999";
/// The median.
pub const P50_US: &str = "/latency_us/p50";
/// The slowest operation, in microseconds.
pub const SLOWEST_US: &str = "/latency_us/max";
/// The slowest operation without the time for which the machine stalled, in microseconds.
pub const SLOWEST_OWN_US: &str = "/slowest_own_us";
/// Requests that the device answered for an operation.
pub const DEVICE_READS_OF_ONE: &str = "/device/requests_per_op";
/// Bytes that the device read for an operation.
pub const DEVICE_BYTES_OF_ONE: &str = "/device/bytes_per_op";
/// Requests for what the device wrote, for an operation.
pub const DEVICE_WRITES_OF_ONE: &str = "/device/write_requests_per_op";
/// Bytes that the device wrote for an operation.
pub const DEVICE_WRITTEN_OF_ONE: &str = "/device/written_per_op";
/// Bytes that the device read for each byte that the user received.
pub const READ_OF_ASKED: &str = "/device/read_amp";
/// Processors that others took during the step.
pub const OTHERS: &str = "/busy/others";
/// Processors that the host took during the step.
pub const STEAL: &str = "/busy/steal";
/// Processor time of an operation, in microseconds.
pub const CPU_US: &str = "/cpu_us_per_op";
/// The most memory resident during the step, in bytes.
pub const MEMORY: &str = "/peak_rss_bytes";
/// The duration of the step, in seconds.
pub const SECONDS: &str = "/seconds";

/// The measurements of one experiment's runs.
#[derive(Debug, Default)]
pub struct Data<'a> {
    arms: Vec<(&'a Arm, Vec<&'a Run>)>,
}

/// The middle one of several rounds, and the outer ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The median.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

impl<'a> Data<'a> {
    /// Those of `runs` that belong to `arms`.
    #[must_use]
    pub fn new(arms: &'a [Arm], runs: &'a [Run]) -> Self {
        let mut by_key: BTreeMap<&str, Vec<&Run>> = BTreeMap::new();
        for run in runs {
            by_key.entry(&run.key).or_default().push(run);
        }
        let of = |arm: &'a Arm| (arm, by_key.get(arm.spec.key().as_str()).cloned().unwrap_or_default());
        Self { arms: arms.iter().map(of).collect() }
    }

    /// The number of runs of the arm with the fewest, without those that were not loaded in time: they have one round.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.arms.iter().filter(|(_, runs)| are_loaded(runs)).map(|(_, runs)| runs.len()).min().unwrap_or(0)
    }

    /// The arms that have been run, with their runs.
    pub fn measured(&self) -> impl Iterator<Item = (&'a Arm, &[&'a Run])> {
        self.arms.iter().filter(|(_, runs)| !runs.is_empty()).map(|(arm, runs)| (*arm, runs.as_slice()))
    }

    /// The names of all series, in the order of the arms.
    #[must_use]
    pub fn series(&self) -> Vec<&'a str> {
        let mut names: Vec<&str> = Vec::new();
        for (arm, _) in self.measured() {
            if !names.contains(&arm.series.as_str()) {
                names.push(&arm.series);
            }
        }
        names
    }

    /// A figure of an arm's step.
    #[must_use]
    pub fn figure(&self, series: &str, x: Option<f64>, step: &str, metric: &str) -> Option<Figure> {
        let (_, runs) = self.measured().find(|(arm, _)| arm.series == series && arm.x == x)?;
        let mut figures: Vec<f64> = runs.iter().filter_map(|run| of_step(run, step, metric)).collect();
        figures.sort_by(f64::total_cmp);
        Some(Figure { median: middle(&figures)?, least: *figures.first()?, most: *figures.last()? })
    }

    /// The median of a figure of an arm without a parameter.
    #[must_use]
    pub fn of(&self, series: &str, step: &str, metric: &str) -> Option<f64> {
        self.figure(series, None, step, metric).map(|figure| figure.median)
    }

    /// The median of a figure at a value of the parameter.
    #[must_use]
    pub fn at(&self, series: &str, x: f64, step: &str, metric: &str) -> Option<f64> {
        self.figure(series, Some(x), step, metric).map(|figure| figure.median)
    }

    /// Medians over the parameter, by ascending parameter; none unless all values of the parameter have been run. A
    /// claim about a curve, such as its least point, would otherwise hold of the part that somebody ran.
    #[must_use]
    pub fn over(&self, series: &str, step: &str, metric: &str) -> Vec<(f64, f64)> {
        let of_series = self.arms.iter().filter(|(arm, _)| arm.series == series && arm.x.is_some());
        let point = |(arm, _): &(&Arm, Vec<&Run>)| Some((arm.x?, self.at(series, arm.x?, step, metric)?));
        let mut points: Vec<(f64, f64)> = of_series.map(point).collect::<Option<_>>().unwrap_or_default();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    }

    /// The ratio of a figure of one series to that of another, if both were measured.
    #[must_use]
    pub fn ratio(&self, a: &str, b: &str, step: &str, metric: &str) -> Option<f64> {
        Some(self.of(a, step, metric)? / self.of(b, step, metric)?)
    }

    /// The same at a value of the parameter.
    #[must_use]
    pub fn ratio_at(&self, a: &str, b: &str, x: f64, step: &str, metric: &str) -> Option<f64> {
        Some(self.at(a, x, step, metric)? / self.at(b, x, step, metric)?)
    }

    /// The ratios of a figure of one series to that of another, by ascending parameter; none unless both have been run
    /// at all of its values.
    #[must_use]
    pub fn ratios(&self, a: &str, b: &str, step: &str, metric: &str) -> Vec<(f64, f64)> {
        let points = self.over(a, step, metric).into_iter();
        let ratio = |(x, figure)| Some((x, figure / self.at(b, x, step, metric)?));
        points.map(ratio).collect::<Option<_>>().unwrap_or_default()
    }

    /// A figure summed up over steps.
    #[must_use]
    pub fn sum(&self, series: &str, x: Option<f64>, steps: &[&str], metric: &str) -> Option<f64> {
        steps.iter().map(|step| self.figure(series, x, step, metric).map(|figure| figure.median)).sum()
    }
}

/// Whether every store had all keys in time.
#[must_use]
pub fn are_loaded(runs: &[&Run]) -> bool {
    runs.iter().all(|run| run.not_loaded.is_none())
}

/// Figures that grow with every operation of a step.
const TOTALS: [&str; 3] = [WRITTEN, READ, SECONDS];

/// A figure of a run's step; the sum, if the metric has several figures by source, and the median, if the run makes the
/// step several times. If the step ended by its time limit, totals are those of all its operations, at the rate of
/// those that were done: otherwise the slowest store would write least.
#[must_use]
pub fn of_step(run: &Run, step: &str, metric: &str) -> Option<f64> {
    let limited = run.spec.plan.time_max.is_some();
    let figure = |(at, record): (usize, &Value)| match metric {
        WRITE_AMP if limited => write_amp(run, &run.steps[..=at]),
        _ if TOTALS.contains(&metric) => Some(number(record, metric)? / share_done(run, step, record)),
        _ => number(record, metric),
    };
    let mut figures: Vec<f64> = records(run, step).filter_map(figure).collect();
    figures.sort_by(f64::total_cmp);
    middle(&figures)
}

/// A figure of a record; the sum, if the metric has several figures by source.
fn number(record: &Value, metric: &str) -> Option<f64> {
    match record.pointer(metric)? {
        Value::Object(by_source) => Some(by_source.values().filter_map(Value::as_f64).sum()),
        figure => figure.as_f64(),
    }
}

/// [`WRITE_AMP`] of all operations of these steps, some of which ended by their time limit: otherwise a slow store's
/// updates would weigh less than a fast one's.
fn write_amp(run: &Run, steps: &[Value]) -> Option<f64> {
    let total = |metric| {
        let scaled = |record: &Value| {
            let figure = number(record, metric)?;
            Some(figure / record["step"].as_str().map_or(1.0, |step| share_done(run, step, record)))
        };
        steps.iter().map(scaled).sum::<Option<f64>>()
    };
    let put = total("/user_bytes_written").filter(|&bytes| bytes > 0.0)?;
    Some(total(WRITTEN)? / put)
}

/// The number of steps that ended by their time limit.
#[must_use]
pub fn cut_short(run: &Run) -> usize {
    // A wait for background work that ended before the work counts no operation.
    let is_cut = |step: &Step, record: &Value| {
        share_done(run, &step.name, record) < 1.0 || !step.act.has_rate() && record["operations"] == 0
    };
    run.spec.steps.iter().filter(|step| records(run, &step.name).any(|(_, record)| is_cut(step, record))).count()
}

/// The records of a step, with their places among all of the run.
fn records<'a>(run: &'a Run, step: &'a str) -> impl Iterator<Item = (usize, &'a Value)> {
    let of_step = move |record: &Value| record["step"] == step || record["step"] == step_in_keys(step);
    run.steps.iter().enumerate().filter(move |(_, record)| of_step(record))
}

/// The share of a step's operations that were done; 1 where nothing limits its time.
fn share_done(run: &Run, step: &str, record: &Value) -> f64 {
    let is_it = |planned: &&Step| planned.name == step || step_in_keys(&planned.name) == step;
    let planned = run.spec.steps.iter().find(is_it).filter(|planned| planned.act.has_rate());
    match (run.spec.plan.time_max, planned, record["operations"].as_u64()) {
        (Some(_), Some(planned), Some(done)) if done > 0 => {
            (done as f64 / run.spec.operations(planned).max(1) as f64).min(1.0)
        }
        _ => 1.0,
    }
}

/// The median of sorted figures.
#[must_use]
pub fn middle(sorted: &[f64]) -> Option<f64> {
    let half = sorted.len() / 2;
    let upper = *sorted.get(half)?;
    Some(if sorted.len().is_multiple_of(2) { f64::midpoint(sorted[half - 1], upper) } else { upper })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Workload, experiment::setup, scale::Scale};

    /// A run of one step, which has this record.
    fn run_of(spec: &crate::Spec, step: &Value) -> Run {
        Run::made_up(spec, vec![step.clone()])
    }

    #[test]
    fn totals_of_a_step_that_was_cut_short_are_those_of_all_its_operations() {
        let mut spec = setup::Setup::bifold(Scale::Tiny, "inline")
            .arm(&setup::plan(1 << 20, 1000, 1), &[Step::new("P1", Workload::Update)])
            .spec;
        let quarter = spec.plan.keys / 4;
        let step = serde_json::json!({
            "step": "P1", "operations": quarter, "ops_per_sec": 50.0, "bytes_written": {"log": 100, "flush": 60},
        });
        let of = |spec: &crate::Spec, metric| {
            let run = run_of(spec, &step);
            (of_step(&run, "P1", metric).unwrap(), cut_short(&run))
        };
        // Nothing limits the time: the operations are as they should be.
        assert_eq!((of(&spec, WRITTEN), of(&spec, RATE)), ((160.0, 0), (50.0, 0)));
        spec.plan.time_max = Some(std::time::Duration::from_secs(1));
        let times = spec.plan.keys as f64 / quarter as f64;
        assert_eq!((of(&spec, WRITTEN), of(&spec, RATE)), ((160.0 * times, 1), (50.0, 1)));
    }

    #[test]
    fn amplification_weighs_steps_as_if_none_was_cut_short() {
        let steps = [Step::new("load", Workload::Load), Step::new("update", Workload::Update)];
        let mut spec = setup::Setup::bifold(Scale::Tiny, "inline").arm(&setup::plan(1 << 20, 1000, 1), &steps).spec;
        let keys = spec.plan.keys;
        let record = |step: &str, operations: u64, times: u64| {
            let (put, written) = (1000 * operations, times * 1000 * operations);
            serde_json::json!({"step": step, "operations": operations, "user_bytes_written": put,
                "bytes_written": {"log": put, "flush": written - put}, "write_amp": 2.2})
        };
        let of = |spec: &crate::Spec| {
            let mut run = run_of(spec, &record("load", keys, 1));
            // A quarter of the updates, each of which writes seven times its bytes.
            run.steps.push(record("update", keys / 4, 7));
            ["load", "update"].map(|step| of_step(&run, step, WRITE_AMP).unwrap())
        };
        assert_eq!(of(&spec), [2.2, 2.2], "nothing limits the time");
        spec.plan.time_max = Some(std::time::Duration::from_secs(1));
        let [load, update] = of(&spec);
        assert!(load == 1.0 && (update - 4.0).abs() < 0.01, "{load} {update}");
    }

    #[test]
    fn a_curve_says_nothing_until_all_of_it_was_run() {
        let setup = setup::Setup::bifold(Scale::Tiny, "inline");
        let steps = [Step::new("update", Workload::Update)];
        let at =
            |x: f64, series: &str| setup.clone().named(series).arm_at(x, &setup::plan(1 << 20, x as usize, 1), &steps);
        let arms = [at(100.0, "ours"), at(1000.0, "ours"), at(100.0, "theirs"), at(1000.0, "theirs")];
        let record = |rate: f64| serde_json::json!({"step": "update", "operations": 1, "ops_per_sec": rate});
        // The names of series are not part of a run's key, so both series have the same runs.
        let runs = [run_of(&arms[0].spec, &record(5.0)), run_of(&arms[1].spec, &record(2.0))];
        let part = Data::new(&arms, &runs[..1]);
        assert!(part.over("ours", "update", RATE).is_empty());
        assert!(part.ratios("ours", "theirs", "update", RATE).is_empty());
        assert_eq!(part.at("ours", 100.0, "update", RATE), Some(5.0), "the point itself is there");
        let whole = Data::new(&arms, &runs);
        assert_eq!(whole.over("ours", "update", RATE), [(100.0, 5.0), (1000.0, 2.0)]);
        assert_eq!(whole.ratios("ours", "theirs", "update", RATE), [(100.0, 1.0), (1000.0, 1.0)]);
    }

    #[test]
    fn a_wait_that_ended_before_the_work_is_a_step_that_was_cut_short() {
        let spec =
            setup::Setup::bifold(Scale::Tiny, "inline").arm(&setup::plan(1 << 20, 1000, 1), &[setup::settle()]).spec;
        let cut = |operations: u64| {
            cut_short(&run_of(&spec, &serde_json::json!({"step": "settle", "operations": operations})))
        };
        assert_eq!((cut(1), cut(0)), (0, 1));
    }

    #[test]
    fn the_median_is_in_the_middle() {
        for (figures, median) in
            [(&[][..], None), (&[3.0], Some(3.0)), (&[1.0, 2.0], Some(1.5)), (&[1.0, 2.0, 9.0], Some(2.0))]
        {
            assert_eq!(middle(figures), median);
        }
    }
}
