//! The findings of each experiment: its outcomes, its charts, the colours of its series.

use std::collections::BTreeMap;

use crate::{
    chart::{SERIES, axis::drawable, plot::Look},
    experiment::{
        CheckOutcome, Data, Experiment, Paper, Verdict,
        check::Rule,
        data::are_loaded,
        view::{Chart, ChartKind, Over, View},
    },
    record::Run,
};

/// An experiment and its findings.
pub struct Finding<'a> {
    /// The experiment.
    pub experiment: &'a Experiment,
    /// Its name as part of links and file names: letters, digits and hyphens.
    pub id: String,
    /// The measurements.
    pub data: Data<'a>,
    /// The outcomes of its checks, in their order.
    pub outcomes: Vec<CheckOutcome>,
    /// The verdict.
    pub verdict: Verdict,
    /// Its charts, in the order of its views.
    pub charts: Vec<Chart>,
    /// The look of each series of each chart, as [`crate::chart::series`] counts them.
    paints: Vec<Vec<usize>>,
}

/// All experiments and their findings.
pub fn all<'a>(experiments: &'a [Experiment], runs: &'a [Run]) -> Vec<Finding<'a>> {
    let mut palette = Palette::default();
    let mut ids = BTreeMap::new();
    experiments
        .iter()
        .map(|experiment| {
            let data = Data::new(&experiment.arms, runs);
            let outcomes = experiment.outcomes(&data);
            let charts = experiment.charts(&data);
            Finding {
                id: id(experiment.name, &mut ids),
                verdict: Verdict::of(&outcomes),
                paints: palette.of(&experiment.views, &charts),
                experiment,
                data,
                outcomes,
                charts,
            }
        })
        .collect()
}

/// Those of which every run was made at least once, then the others, and the number of the former.
pub fn complete_first<'f, 'a>(findings: &'f [Finding<'a>]) -> (Vec<&'f Finding<'a>>, usize) {
    let (mut all, rest): (Vec<_>, Vec<_>) = findings.iter().partition(|finding| finding.is_complete());
    let complete = all.len();
    all.extend(rest);
    (all, complete)
}

impl Finding<'_> {
    /// Whether every run was made at least once.
    pub fn is_complete(&self) -> bool {
        self.data.measured().count() == self.experiment.arms.len()
    }

    /// Whether it compares stores and belongs to no paper.
    pub fn is_comparison(&self) -> bool {
        self.experiment.paper == Paper::Bifold
    }

    /// Rules that hold.
    pub fn held(&self) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.holds == Some(true)).count()
    }

    /// Rules that were measured.
    pub fn measured(&self) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.holds.is_some()).count()
    }

    /// The rules and their outcomes.
    pub fn ruled(&self) -> impl Iterator<Item = (Rule, &CheckOutcome)> {
        self.experiment.checks.iter().map(|check| check.rule).zip(&self.outcomes)
    }

    /// Measured rules with a size, the one that is missed most first: [`margin`] and outcome.
    pub fn by_margin(&self) -> Vec<(f64, Rule, &CheckOutcome)> {
        let mut measured: Vec<_> =
            self.ruled().filter_map(|(rule, outcome)| Some((margin(rule, outcome.ours?)?, rule, outcome))).collect();
        measured.sort_by(|a, b| a.0.total_cmp(&b.0));
        measured
    }

    /// How a chart is drawn.
    pub fn look(&self, chart: usize) -> Look<'_> {
        Look {
            titled: false,
            paints: self.paints.get(chart).map_or(&[], Vec::as_slice),
            most: self.experiment.views.get(chart).and_then(|view| view.most),
        }
    }

    /// Whether a chart without figures is one that is not measured yet.
    pub fn is_expected(&self, chart: usize) -> bool {
        self.experiment.views.get(chart).is_none_or(|view| !view.if_counted)
    }

    /// The fewest and the most runs of an arm, without arms that were not loaded in time: those have one round.
    pub fn rounds(&self) -> Option<(usize, usize)> {
        let rounds = || self.data.measured().filter(|(_, runs)| are_loaded(runs)).map(|(_, runs)| runs.len());
        Some((rounds().min()?, rounds().max()?))
    }
}

/// Our figure as a share of what the rule requires: from 1 on it holds. `None` for rules without a size.
pub fn margin(rule: Rule, ours: f64) -> Option<f64> {
    let share = match rule {
        Rule::Gain(paper) => ours / (1.0 + (paper - 1.0) / 2.0),
        Rule::Saving(share) => (1.0 - share / 2.0) / ours,
        Rule::Alike => (ours / 0.8).min(1.25 / ours),
        Rule::AtLeast(bound) => ours / bound,
        Rule::AtMost(bound) => bound / ours,
        Rule::Between(least, most) => (ours / least).min(most / ours),
        Rule::Rises | Rule::Falls => return None,
    };
    // A bound of zero, or a figure below it, makes no share.
    Some(share).filter(|share| drawable(*share) && *share > 0.0)
}

/// Looks that stay with the names of series from one experiment to the next, as far as the colours go round.
#[derive(Default)]
struct Palette {
    known: BTreeMap<String, usize>,
}

impl Palette {
    fn of(&mut self, views: &[View], charts: &[Chart]) -> Vec<Vec<usize>> {
        // The curves of a chart that was computed are its own: they have the first colours.
        let measured = |at: usize| !views.get(at).is_some_and(|view| matches!(view.over, Over::Computed(_)));
        let mut all: Vec<&str> = Vec::new();
        for name in charts.iter().enumerate().filter(|(at, _)| measured(*at)).flat_map(|(_, chart)| names(chart)) {
            if !all.contains(&name) {
                all.push(name);
            }
        }
        let mut here: BTreeMap<&str, usize> = BTreeMap::new();
        // Those that are known first, so that no new one takes a colour from them.
        let (known, new): (Vec<&str>, Vec<&str>) = all.into_iter().partition(|name| self.known.contains_key(*name));
        for name in known.into_iter().chain(new) {
            let free = |paint: &usize| !here.values().any(|taken| taken == paint);
            let known = self.known.get(name).copied().filter(free);
            let unused = (0..SERIES).filter(free).find(|paint| !self.known.values().any(|taken| taken == paint));
            let paint = known.or(unused).unwrap_or_else(|| (0..).find(free).unwrap_or(0));
            self.known.entry(name.to_owned()).or_insert(paint);
            here.insert(name, paint);
        }
        let paint = |name: &str| here.get(name).copied().unwrap_or(0);
        let paints = |(at, chart)| if measured(at) { names(chart).map(paint).collect() } else { Vec::new() };
        charts.iter().enumerate().map(paints).collect()
    }
}

/// The series of a chart.
pub fn names(chart: &Chart) -> Box<dyn Iterator<Item = &str> + '_> {
    match &chart.shape {
        ChartKind::Bars { series, .. } => Box::new(series.iter().map(|(name, _)| name.as_str())),
        ChartKind::Lines { series, .. } => Box::new(series.iter().map(|(name, _)| name.as_str())),
    }
}

/// A name that no other experiment has, of letters that links and files can have.
fn id(name: &str, taken: &mut BTreeMap<String, usize>) -> String {
    let letter = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
    let plain: String = name.chars().map(letter).take(60).collect();
    let plain = if plain.starts_with(|first: char| first.is_ascii_alphabetic()) { plain } else { format!("x{plain}") };
    let times = taken.entry(plain.clone()).or_insert(0);
    *times += 1;
    if *times == 1 { plain } else { format!("{plain}--{times}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_holds_from_a_margin_of_one_on() {
        for rule in [
            Rule::Gain(3.0),
            Rule::Saving(0.5),
            Rule::Alike,
            Rule::AtLeast(0.3),
            Rule::AtMost(2.5),
            Rule::Between(0.5, 2.0),
        ] {
            for ours in (1..50).map(|tenths| f64::from(tenths) / 10.0 + 0.001) {
                assert_eq!(margin(rule, ours).unwrap() >= 1.0, rule.holds(ours), "{rule} {ours}");
            }
        }
        assert_eq!((margin(Rule::Rises, 1.0), margin(Rule::AtMost(1.0), 0.0)), (None, None));
    }

    #[test]
    fn names_become_parts_of_links() {
        let mut taken = BTreeMap::new();
        let ids: Vec<String> = ["hashkv-e1", "<script>", "hashkv-e1", "", "7"].map(|name| id(name, &mut taken)).into();
        assert_eq!(ids, ["hashkv-e1", "x-script-", "hashkv-e1--2", "x", "x7"]);
    }

    #[test]
    fn a_series_keeps_its_look_and_no_two_of_an_experiment_share_one() {
        let chart = |names: &[&str]| Chart {
            title: String::new(),
            unit: String::new(),
            shape: ChartKind::Bars {
                groups: Vec::new(),
                series: names.iter().map(|name| ((*name).to_owned(), Vec::new())).collect(),
            },
        };
        let mut palette = Palette::default();
        assert_eq!(palette.of(&[], &[chart(&["a", "b"]), chart(&["b", "c"])]), [[0, 1], [1, 2]]);
        assert_eq!(palette.of(&[], &[chart(&["c", "d", "a"])]), [[2, 3, 0]]);
        let many = palette.of(&[], &[chart(&["e", "f", "g", "h", "i", "j", "a", "k"])]);
        let mut paints = many[0].clone();
        paints.sort_unstable();
        assert_eq!((paints, many[0][6]), ((0..8).collect(), 0));
        // Where there are more series than colours, the colours come again in another look.
        let crowd = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "a"];
        assert_eq!(palette.of(&[], &[chart(&crowd)]), [[1, 2, 3, 4, 5, 6, 7, 8, 9, 0]]);
        assert_eq!(palette.of(&[], &[chart(&crowd[6..])]), [[7, 8, 9, 0]]);
    }
}
