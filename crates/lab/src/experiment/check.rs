//! Rules that say when a paper's result counts as reproduced, and the verdict they make.
//!
//! The rules are few, and the same for every experiment, so that none can be fitted to what was measured:
//!
//! * A **gain** of the paper (A is r times B, r > 1) holds where ours is at least half as much of a gain: 1 + (r − 1)
//!   / 2. Where the paper gives a range, r is its lower end.
//! * A **saving** (A is a share s less than B) holds where ours is at least half of it: s / 2.
//! * Things the paper finds **alike** are alike where one is 0.8 to 1.25 times the other.
//! * A curve **rises** or **falls** where no step goes the other way by more than a twentieth and its ends differ
//!   that way.
//! * Other statements have their bound in words and in the rule.
//!
//! An experiment is *reproduced* where every rule was measured and holds, *partly* where some rules hold and some do
//! not, *not* where every rule was measured and none holds. Where not every rule was measured, and those that were all
//! hold or none does, it is *open*: the missing ones may decide otherwise.

use std::fmt;

use serde::Serialize;

use super::{Data, Experiment};

/// Finds a figure in what was measured.
pub type Measure = Box<dyn Fn(&Data<'_>) -> Option<f64> + Send + Sync>;

/// A rule for a figure.
pub struct Check {
    /// The figures that are compared, such as `hashkv over wisckey, updates per second in P3`.
    pub what: String,
    /// The paper's statement.
    pub paper: String,
    /// When it holds.
    pub rule: Rule,
    /// Our figure; `None` if it was not measured.
    pub ours: Measure,
}

/// When a figure counts as the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// A ratio above 1 in the paper.
    Gain(f64),
    /// A share saved in the paper; ours is the ratio that is left.
    Saving(f64),
    /// A ratio that is about 1 in the paper.
    Alike,
    /// A bound.
    AtLeast(f64),
    /// A bound.
    AtMost(f64),
    /// Two bounds.
    Between(f64, f64),
    /// A curve that must rise; ours is [`rises`].
    Rises,
    /// A curve that must fall; ours is [`rises`] turned round.
    Falls,
}

impl Rule {
    /// Whether a figure does.
    #[must_use]
    pub fn holds(self, ours: f64) -> bool {
        match self {
            Self::Gain(paper) => ours >= 1.0 + (paper - 1.0) / 2.0,
            Self::Saving(share) => ours <= 1.0 - share / 2.0,
            Self::Alike => (0.8..=1.25).contains(&ours),
            Self::AtLeast(bound) => ours >= bound,
            Self::AtMost(bound) => ours <= bound,
            Self::Between(least, most) => (least..=most).contains(&ours),
            Self::Rises | Self::Falls => ours > 0.0,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gain(paper) => write!(f, "at least {:.2}, half the gain", 1.0 + (paper - 1.0) / 2.0),
            Self::Saving(share) => write!(f, "at most {:.2}, half the saving", 1.0 - share / 2.0),
            Self::Alike => f.write_str("0.8 to 1.25"),
            Self::AtLeast(bound) => write!(f, "at least {}", rounded(bound)),
            Self::AtMost(bound) => write!(f, "at most {}", rounded(bound)),
            Self::Between(least, most) => write!(f, "{least} to {most}"),
            Self::Rises => f.write_str("rises (above 0)"),
            Self::Falls => f.write_str("falls (above 0)"),
        }
    }
}

/// To three decimals, without trailing zeros.
fn rounded(bound: &f64) -> f64 {
    (bound * 1000.0).round() / 1000.0
}

/// A check and its outcome.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckOutcome {
    /// [`Check::what`].
    pub what: String,
    /// [`Check::paper`].
    pub paper: String,
    /// When it holds, in words.
    pub rule: String,
    /// Our figure.
    pub ours: Option<f64>,
    /// Whether it holds; `None` if it was not measured.
    pub holds: Option<bool>,
}

/// The verdict on an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every rule was measured, and holds.
    Reproduced,
    /// Some of what was measured holds, and some does not.
    Partly,
    /// Every rule was measured, and none holds.
    Not,
    /// Not every rule was measured, and those that were all hold, or none does. Or nothing is claimed.
    Open,
}

impl Verdict {
    /// In a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::Partly => "partly",
            Self::Not => "not",
            Self::Open => "open",
        }
    }

    /// Of these outcomes.
    #[must_use]
    pub fn of(outcomes: &[CheckOutcome]) -> Self {
        let (mut held, mut measured) = (0, 0);
        for holds in outcomes.iter().filter_map(|outcome| outcome.holds) {
            measured += 1;
            held += usize::from(holds);
        }
        match (held, measured) {
            (1.., _) if held < measured => Self::Partly,
            _ if measured < outcomes.len() || measured == 0 => Self::Open,
            (0, _) => Self::Not,
            _ => Self::Reproduced,
        }
    }
}

impl Check {
    /// A check by its rule.
    pub fn new(
        what: impl Into<String>,
        paper: impl Into<String>,
        rule: Rule,
        ours: impl Fn(&Data<'_>) -> Option<f64> + Send + Sync + 'static,
    ) -> Self {
        Self { what: what.into(), paper: paper.into(), rule, ours: Box::new(ours) }
    }

    fn outcome(&self, data: &Data<'_>) -> CheckOutcome {
        let ours = (self.ours)(data).filter(|figure| figure.is_finite());
        CheckOutcome {
            what: self.what.clone(),
            paper: self.paper.clone(),
            rule: self.rule.to_string(),
            ours,
            holds: ours.map(|figure| self.rule.holds(figure)),
        }
    }
}

impl Experiment {
    /// The outcome of every check.
    #[must_use]
    pub fn outcomes(&self, data: &Data<'_>) -> Vec<CheckOutcome> {
        self.checks.iter().map(|check| check.outcome(data)).collect()
    }
}

/// How far a curve rises: the share by which its last point is above its first, or below 0 where a step in between
/// falls by more than a twentieth. Nothing of fewer than two points.
#[must_use]
pub fn rises(points: &[(f64, f64)]) -> Option<f64> {
    let (first, last) = (points.first()?.1, points.last()?.1);
    if points.len() < 2 {
        return None;
    }
    let steepest_fall = points.windows(2).map(|pair| pair[1].1 / pair[0].1 - 1.0).fold(0.0, f64::min);
    Some(if steepest_fall < -0.05 { steepest_fall } else { last / first - 1.0 })
}

/// The same of a curve that should fall.
#[must_use]
pub fn falls(points: &[(f64, f64)]) -> Option<f64> {
    let turned: Vec<(f64, f64)> = points.iter().map(|&(x, y)| (x, 1.0 / y)).collect();
    rises(&turned)
}

/// The lowest point of a curve.
#[must_use]
pub fn least(points: &[(f64, f64)]) -> Option<f64> {
    points.iter().map(|&(_, y)| y).reduce(f64::min)
}

/// The highest point of a curve.
#[must_use]
pub fn most(points: &[(f64, f64)]) -> Option<f64> {
    points.iter().map(|&(_, y)| y).reduce(f64::max)
}

/// The parameter at which a curve is highest.
#[must_use]
pub fn peak(points: &[(f64, f64)]) -> Option<f64> {
    points.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|&(x, _)| x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_gain_and_half_a_saving_are_enough() {
        for (rule, enough, too_little) in [
            (Rule::Gain(3.0), 2.0, 1.99),
            (Rule::Saving(0.5), 0.75, 0.76),
            (Rule::Alike, 0.8, 0.79),
            (Rule::Alike, 1.25, 1.26),
            (Rule::AtLeast(2.0), 2.0, 1.9),
            (Rule::AtMost(2.0), 2.0, 2.1),
            (Rule::Between(1.0, 2.0), 2.0, 2.1),
            (Rule::Rises, 0.01, -0.1),
        ] {
            assert!(rule.holds(enough) && !rule.holds(too_little), "{rule}");
        }
    }

    #[test]
    fn bounds_are_shown_to_three_decimals() {
        assert_eq!(Rule::AtMost(4.2 / 0.97).to_string(), "at most 4.33");
        assert_eq!(Rule::AtLeast(1.0).to_string(), "at least 1");
    }

    #[test]
    fn a_curve_may_deviate_by_a_twentieth() {
        let curve = |ys: [f64; 3]| [(1.0, ys[0]), (2.0, ys[1]), (3.0, ys[2])];
        assert!(rises(&curve([10.0, 9.6, 12.0])).unwrap() > 0.0);
        assert!(rises(&curve([10.0, 9.0, 12.0])).unwrap() < 0.0);
        assert!(rises(&curve([10.0, 10.0, 9.9])).unwrap() < 0.0);
        assert!(falls(&curve([10.0, 8.0, 4.0])).unwrap() > 0.0);
        assert_eq!((rises(&[]), rises(&[(1.0, 1.0)])), (None, None));
        assert_eq!(peak(&curve([1.0, 3.0, 2.0])), Some(2.0));
    }

    #[test]
    fn only_what_was_measured_by_every_rule_is_reproduced() {
        let outcome =
            |holds| CheckOutcome { what: String::new(), paper: String::new(), rule: String::new(), ours: None, holds };
        for (all, verdict) in [
            (vec![Some(true), Some(true)], Verdict::Reproduced),
            (vec![Some(true), None], Verdict::Open),
            (vec![Some(true), Some(false)], Verdict::Partly),
            (vec![Some(true), Some(false), None], Verdict::Partly),
            (vec![Some(false), Some(false)], Verdict::Not),
            (vec![Some(false), None], Verdict::Open),
            (vec![None], Verdict::Open),
            (vec![], Verdict::Open),
        ] {
            assert_eq!(Verdict::of(&all.iter().map(|&holds| outcome(holds)).collect::<Vec<_>>()), verdict);
        }
    }
}
