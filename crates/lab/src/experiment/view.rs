//! Charts: a figure over steps, as bars, or over a parameter, as lines.

use serde::Serialize;

use super::{
    Arm, Data, Experiment,
    data::{DEVICE_BYTES_OF_ONE, DEVICE_READS_OF_ONE, DEVICE_WRITES_OF_ONE, DEVICE_WRITTEN_OF_ONE},
};

/// A chart of an experiment.
#[derive(Clone, Debug)]
pub struct View {
    /// The title.
    pub title: String,
    /// Which figure: a pointer into a step's record, such as [`super::data::RATE`].
    pub metric: &'static str,
    /// The figure and its unit, for the axis.
    pub unit: &'static str,
    /// The divisor of the figures, for short numbers on the axis.
    pub per: f64,
    /// The horizontal axis.
    pub over: Over,
    /// The highest value that is shown, if curves go far beyond their subject.
    pub most: Option<f64>,
    /// Whether it is left out where nothing was counted: the system may not count it, or there was nothing to count.
    pub if_counted: bool,
}

/// What a device does for an operation: title, figure, unit.
const OF_DEVICE: [(&str, &str, (&str, f64)); 4] = [
    ("What the device reads for an operation", DEVICE_BYTES_OF_ONE, ("KiB", 1024.0)),
    ("Requests to read for an operation", DEVICE_READS_OF_ONE, ("requests", 1.0)),
    ("What the device writes for an operation", DEVICE_WRITTEN_OF_ONE, ("KiB", 1024.0)),
    ("Requests to write for an operation", DEVICE_WRITES_OF_ONE, ("requests", 1.0)),
];

/// The horizontal axis.
#[derive(Clone, Debug)]
pub enum Over {
    /// Steps, a group of bars each.
    Steps(Vec<&'static str>),
    /// The parameter, a line for each series.
    Parameter {
        /// At this step.
        step: &'static str,
        /// What the parameter is, with its unit.
        label: &'static str,
        /// Whether equal ratios are equally far apart.
        log: bool,
    },
    /// The parameter, by curves that are put together from several figures.
    Curves {
        /// What the parameter is, with its unit.
        label: &'static str,
        /// Whether equal ratios are equally far apart.
        log: bool,
        /// The curves with their names.
        of: Curves,
    },
    /// Curves that were computed.
    Computed(Box<Chart>),
}

/// A chart with its points, ready to be drawn.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Chart {
    /// Over it.
    pub title: String,
    /// Along the vertical axis.
    pub unit: String,
    /// What it is made of.
    pub shape: ChartKind,
}

/// The parameter, and the median, the least and the most; no numbers (NaN) where nothing was measured, so that the
/// line has a gap.
pub type LinePoint = (f64, [f64; 3]);

/// Curves with their names, of what was measured.
pub type Curves = fn(&Data<'_>) -> Vec<(String, Vec<LinePoint>)>;

/// What a chart is made of. The points of a series are `None` where nothing was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChartKind {
    /// Groups of bars.
    Bars {
        /// The groups.
        groups: Vec<String>,
        /// In each group a bar for each series: the median, the least and the most.
        series: Vec<(String, Vec<Option<[f64; 3]>>)>,
    },
    /// Lines.
    Lines {
        /// Along the horizontal axis.
        label: String,
        /// Whether equal ratios are equally far apart there.
        log: bool,
        /// The points of each series.
        series: Vec<(String, Vec<LinePoint>)>,
    },
}

impl ChartKind {
    /// Whether any figure is more than none.
    fn has_counts(&self) -> bool {
        match self {
            Self::Bars { series, .. } => series.iter().flat_map(|(_, bars)| bars).flatten().any(|bar| bar[2] > 0.0),
            Self::Lines { series, .. } => series.iter().flat_map(|(_, points)| points).any(|point| point.1[2] > 0.0),
        }
    }

    /// Takes all series away.
    fn clear(&mut self) {
        match self {
            Self::Bars { series, .. } => series.clear(),
            Self::Lines { series, .. } => series.clear(),
        }
    }
}

impl View {
    /// Bars of a figure in steps.
    #[must_use]
    pub fn bars(title: &str, metric: &'static str, (unit, per): (&'static str, f64), steps: &[&'static str]) -> Self {
        Self::of(title, metric, (unit, per), Over::Steps(steps.to_vec()))
    }

    /// Lines of a figure of one step over the parameter.
    #[must_use]
    pub fn lines(
        title: &str,
        metric: &'static str,
        (unit, per): (&'static str, f64),
        step: &'static str,
        label: &'static str,
        log: bool,
    ) -> Self {
        Self::of(title, metric, (unit, per), Over::Parameter { step, label, log })
    }

    /// Lines over the parameter whose points are each put together from several figures.
    #[must_use]
    pub fn curves(title: &str, unit: &'static str, label: &'static str, of: Curves) -> Self {
        Self::of(title, "", (unit, 1.0), Over::Curves { label, log: false, of })
    }

    /// A chart whose points were computed.
    #[must_use]
    pub fn computed(chart: Chart) -> Self {
        Self::of(&chart.title.clone(), "", ("", 1.0), Over::Computed(Box::new(chart)))
    }

    /// Bars of what the device reads and writes for an operation of these steps: bytes and requests. Only where it was
    /// counted.
    #[must_use]
    pub fn of_device(steps: &[&'static str]) -> Vec<Self> {
        let view = |(title, metric, unit)| Self { if_counted: true, ..Self::bars(title, metric, unit, steps) };
        OF_DEVICE.into_iter().map(view).collect()
    }

    /// Bars of what the device reads for a scan of this step, which is far more than for other operations.
    #[must_use]
    pub fn of_device_scans(step: &'static str) -> Vec<Self> {
        let of_scan = |view: Self| Self { title: view.title.replace("an operation", "a scan"), ..view };
        Self::of_device(&[step]).into_iter().take(2).map(of_scan).collect()
    }

    /// Lines of what the device reads and writes for an operation of one step over the parameter. Only where it was
    /// counted.
    #[must_use]
    pub fn of_device_over(step: &'static str, label: &'static str, log: bool) -> Vec<Self> {
        let view =
            |(title, metric, unit)| Self { if_counted: true, ..Self::lines(title, metric, unit, step, label, log) };
        OF_DEVICE.into_iter().map(view).collect()
    }

    fn of(title: &str, metric: &'static str, (unit, per): (&'static str, f64), over: Over) -> Self {
        Self { title: title.to_owned(), metric, unit, per, over, most: None, if_counted: false }
    }

    /// The same with curves clipped at this value.
    #[must_use]
    pub fn up_to(self, most: f64) -> Self {
        Self { most: Some(most), ..self }
    }

    /// The chart of the measurements.
    #[must_use]
    pub fn chart(&self, data: &Data<'_>) -> Chart {
        let mut shape = match &self.over {
            Over::Computed(chart) => return (**chart).clone(),
            Over::Curves { label, log, of } => {
                ChartKind::Lines { label: (*label).to_owned(), log: *log, series: of(data) }
            }
            Over::Steps(steps) => self.bars_of(data, steps),
            Over::Parameter { step, label, log } => self.lines_of(data, step, label, *log),
        };
        if self.if_counted && !shape.has_counts() {
            shape.clear();
        }
        Chart { title: self.title.clone(), unit: self.unit.to_owned(), shape }
    }

    fn bars_of(&self, data: &Data<'_>, steps: &[&'static str]) -> ChartKind {
        let of = |series: &str| steps.iter().map(|step| self.figure(data, series, None, step)).collect();
        let series = data.series().into_iter().map(|series| (series.to_owned(), of(series))).collect();
        ChartKind::Bars { groups: steps.iter().map(|&step| step.to_owned()).collect(), series }
    }

    fn lines_of(&self, data: &Data<'_>, step: &str, label: &str, log: bool) -> ChartKind {
        let of = |series: &str| {
            let arms = data.measured().filter(|(arm, _)| arm.series == series);
            let mut points: Vec<LinePoint> = arms
                .filter_map(|(arm, _)| Some((arm.x?, self.figure(data, series, arm.x, step).unwrap_or([f64::NAN; 3]))))
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points
        };
        let series = data.series().into_iter().map(|series| (series.to_owned(), of(series))).collect();
        ChartKind::Lines { label: label.to_owned(), log, series }
    }

    fn figure(&self, data: &Data<'_>, series: &str, x: Option<f64>, step: &str) -> Option<[f64; 3]> {
        let figure = data.figure(series, x, step, self.metric)?;
        Some([figure.median, figure.least, figure.most].map(|figure| figure / self.per))
    }
}

impl Experiment {
    /// The charts of all views, in their order. Lines have gaps at the parameters of arms that were not run.
    #[must_use]
    pub fn charts(&self, data: &Data<'_>) -> Vec<Chart> {
        let chart = |view: &View| {
            let mut chart = view.chart(data);
            if let (Over::Parameter { .. }, ChartKind::Lines { series, .. }) = (&view.over, &mut chart.shape) {
                series.iter_mut().for_each(|(name, points)| add_gaps(name, points, &self.arms));
            }
            chart
        };
        self.views.iter().map(chart).collect()
    }
}

fn add_gaps(series: &str, points: &mut Vec<LinePoint>, arms: &[Arm]) {
    for x in arms.iter().filter(|arm| arm.series == series).filter_map(|arm| arm.x) {
        if !points.iter().any(|point| point.0 == x) {
            points.push((x, [f64::NAN; 3]));
        }
    }
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        Workload,
        experiment::setup::{Setup, load_and_updates, plan},
        record::Run,
        scale::Scale,
        spec::Step,
    };

    fn charts_of(views: &[View], arms: &[Arm], device: &serde_json::Value) -> Vec<Chart> {
        let record = |step: &Step| json!({"step": step.name, "operations": 1, "device": device});
        let run = |arm: &Arm| Run::made_up(&arm.spec, arm.spec.steps.iter().map(record).collect());
        let runs: Vec<Run> = arms.iter().map(run).collect();
        let data = Data::new(arms, &runs);
        views.iter().map(|view| view.chart(&data)).collect()
    }

    #[test]
    fn what_a_device_did_is_shown_where_it_did_something() {
        let steps = [load_and_updates(), vec![Step::new("scan", Workload::Scan)]].concat();
        let bars = [Setup::bifold(Scale::Tiny, "inline").arm(&plan(1 << 20, 1000, 1), &steps)];
        let lines = [100.0, 1000.0]
            .map(|x| Setup::bifold(Scale::Tiny, "inline").arm_at(x, &plan(1 << 20, x as usize, 1), &steps));
        let of_bars = [View::of_device(&["P0", "P1"]), View::of_device_scans("scan")].concat();
        let of_lines = View::of_device_over("P1", "bytes", true);
        for (views, arms) in [(&of_bars, &bars[..]), (&of_lines, &lines[..])] {
            let shown = |device: serde_json::Value| {
                let charts = charts_of(views, arms, &device).into_iter();
                charts.filter(|chart| chart.shape.has_counts()).map(|chart| chart.title).collect::<Vec<_>>()
            };
            let all = json!({"bytes_per_op": 2048.0, "requests_per_op": 0.5, "written_per_op": 1024.0,
                "write_requests_per_op": 0.25});
            assert_eq!(shown(all), views.iter().map(|view| view.title.clone()).collect::<Vec<_>>());
            let only_writes = shown(json!({"bytes_per_op": 0.0, "requests_per_op": 0.0, "written_per_op": 1.0}));
            assert_eq!(only_writes, ["What the device writes for an operation"]);
            let nothing = charts_of(views, arms, &serde_json::Value::Null);
            let is_empty = |chart: &Chart| match &chart.shape {
                ChartKind::Bars { series, .. } => series.is_empty(),
                ChartKind::Lines { series, .. } => series.is_empty(),
            };
            assert!(nothing.iter().all(is_empty), "{nothing:?}");
        }
        let titles: Vec<String> = View::of_device_scans("scan").into_iter().map(|view| view.title).collect();
        assert_eq!(titles, ["What the device reads for a scan", "Requests to read for a scan"]);
    }

    #[test]
    fn bytes_of_a_device_are_kibibytes() {
        let arms = [Setup::bifold(Scale::Tiny, "inline").arm(&plan(1 << 20, 1000, 1), &load_and_updates())];
        let device = json!({"bytes_per_op": 2048.0, "write_requests_per_op": 0.25});
        let charts = charts_of(&View::of_device(&["P0"]), &arms, &device);
        for (at, figure) in [(0, 2.0), (3, 0.25)] {
            let ChartKind::Bars { series, .. } = &charts[at].shape else { panic!("{:?}", charts[at]) };
            assert_eq!(series[0].1, [Some([figure; 3])], "{}", charts[at].title);
        }
    }
}
