//! Charts: a figure over steps, as bars, or over a parameter, as lines.

use serde::Serialize;

use super::{Arm, Data, Experiment};

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
}

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

impl View {
    /// Bars of a figure in steps.
    #[must_use]
    pub fn bars(title: &str, metric: &'static str, (unit, per): (&'static str, f64), steps: &[&'static str]) -> Self {
        Self { title: title.to_owned(), metric, unit, per, over: Over::Steps(steps.to_vec()), most: None }
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
        Self { title: title.to_owned(), metric, unit, per, over: Over::Parameter { step, label, log }, most: None }
    }

    /// Lines over the parameter whose points are each put together from several figures.
    #[must_use]
    pub fn curves(title: &str, unit: &'static str, label: &'static str, of: Curves) -> Self {
        let over = Over::Curves { label, log: false, of };
        Self { title: title.to_owned(), metric: "", unit, per: 1.0, over, most: None }
    }

    /// A chart whose points were computed.
    #[must_use]
    pub fn computed(chart: Chart) -> Self {
        let title = chart.title.clone();
        Self { title, metric: "", unit: "", per: 1.0, over: Over::Computed(Box::new(chart)), most: None }
    }

    /// The same with curves clipped at this value.
    #[must_use]
    pub fn up_to(self, most: f64) -> Self {
        Self { most: Some(most), ..self }
    }

    /// The chart of the measurements.
    #[must_use]
    pub fn chart(&self, data: &Data<'_>) -> Chart {
        let shape = match &self.over {
            Over::Computed(chart) => return (**chart).clone(),
            Over::Curves { label, log, of } => {
                ChartKind::Lines { label: (*label).to_owned(), log: *log, series: of(data) }
            }
            Over::Steps(steps) => self.bars_of(data, steps),
            Over::Parameter { step, label, log } => self.lines_of(data, step, label, *log),
        };
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
