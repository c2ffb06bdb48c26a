//! Which marks an axis has, and where values are on it.

use super::numbers::{grouped, parameter};

/// Values beyond are not drawn: nothing that is measured is as large, and sums of them would not be numbers.
const VALUE_MAX: f64 = 1e100;

/// Whether a value can be drawn.
#[must_use]
pub fn drawable(value: f64) -> bool {
    value.abs() <= VALUE_MAX
}

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// The value where it begins.
    pub from: f64,
    /// The value where it ends.
    pub to: f64,
    /// Whether equal ratios are equally far apart.
    pub log: bool,
    /// Where there are marks, with what is written there.
    pub marks: Vec<(f64, String)>,
}

impl Axis {
    /// From 0, or a round number below what is less, to a round number. `most` is within. About `count` marks that
    /// are 1, 2 or 5 apart, times a power of ten.
    #[must_use]
    pub fn from_zero(least: f64, most: f64, count: usize) -> Self {
        let (least, most) = (least.min(0.0), most.max(0.0));
        let most = if most > least { most } else { least + 1.0 };
        let step = AxisStep::about((most - least) / count.max(1) as f64);
        // What is above a mark by less than computers are exact to needs no mark more.
        let (first, last) = ((least / step.value() + 1e-9).floor(), (most / step.value() - 1e-9).ceil());
        let last = if last > first { last } else { first + 1.0 };
        let marks: Vec<(f64, String)> = (0..=(last - first) as u32)
            .map(|mark| (first + f64::from(mark)) * step.value())
            .map(|value| (value, step.label(value, most.max(-least))))
            .collect();
        Self { from: first * step.value(), to: last * step.value(), log: false, marks }
    }

    /// Over these parameters, which rise, with a mark at each of them. Where there are many, with round marks between
    /// them. A logarithmic axis of what has no logarithm is a linear one.
    #[must_use]
    pub fn over(parameters: &[f64], log: bool) -> Self {
        let (first, last) = (parameters.first().copied().unwrap_or(0.0), parameters.last().copied().unwrap_or(1.0));
        let log = log && first > 0.0;
        let margin = if parameters.len() > MARKED_MAX { 0.0 } else { 0.05 };
        let (from, to) = match (log, last > first) {
            (true, true) => {
                let share = (last / first).powf(margin);
                (first / share, last * share)
            }
            (true, false) => (first / 2.0, first * 2.0),
            (false, true) => (first - margin * (last - first), last + margin * (last - first)),
            (false, false) => (first - first.abs().max(1.0) / 2.0, first + first.abs().max(1.0) / 2.0),
        };
        let marks = match (parameters.len() <= MARKED_MAX, log) {
            (true, _) => parameters.iter().map(|&value| (value, parameter(value))).collect(),
            (false, true) => ratios(from, to),
            (false, false) => rounds(from, to),
        };
        Self { from, to, log, marks }
    }

    /// How far along a value is, 0 to 1 within the axis.
    #[must_use]
    pub fn share(&self, value: f64) -> f64 {
        match self.log {
            true => (value / self.from).ln() / (self.to / self.from).ln(),
            false => (value - self.from) / (self.to - self.from),
        }
    }
}

/// As many parameters were chosen one by one; more are samples of a curve.
pub const MARKED_MAX: usize = 15;

/// 1, 2 or 5 times a power of ten.
#[derive(Clone, Copy)]
struct AxisStep {
    digit: f64,
    power: i32,
}

impl AxisStep {
    /// The least that is no smaller than this.
    fn about(value: f64) -> Self {
        let power = value.log10().floor().clamp(-300.0, 300.0) as i32;
        let digit = value / 10_f64.powi(power);
        match digit {
            digit if digit <= 1.0 => Self { digit: 1.0, power },
            digit if digit <= 2.0 => Self { digit: 2.0, power },
            digit if digit <= 5.0 => Self { digit: 5.0, power },
            _ => Self { digit: 1.0, power: power + 1 },
        }
    }

    fn value(self) -> f64 {
        self.digit * 10_f64.powi(self.power)
    }

    /// A multiple of the step with as many decimals as it needs. Axes up to more than a million have short numbers,
    /// too.
    fn label(self, value: f64, most: f64) -> String {
        let value = if value == 0.0 { 0.0 } else { value };
        let (unit, power) = match most {
            most if most >= 1e15 => return if value == 0.0 { "0".to_owned() } else { format!("{value:.1e}") },
            most if most >= 1e9 => (" G", 9),
            most if most >= 1e6 => (" M", 6),
            most if most < 1e-4 => return if value == 0.0 { "0".to_owned() } else { format!("{value:.1e}") },
            _ => ("", 0),
        };
        let decimals = usize::try_from(power - self.power).unwrap_or(0);
        let number = grouped(&format!("{:.decimals$}", value / 10_f64.powi(power)));
        if value == 0.0 { "0".to_owned() } else { format!("{number}{unit}") }
    }
}

/// Round marks on a linear axis that begins anywhere.
fn rounds(from: f64, to: f64) -> Vec<(f64, String)> {
    let step = AxisStep::about((to - from) / 5.0);
    let (first, last) = ((from / step.value() - 1e-9).ceil(), (to / step.value() + 1e-9).floor());
    (0..=(last - first).max(0.0) as u32)
        .map(|mark| (first + f64::from(mark)) * step.value())
        .map(|value| (value.clamp(from, to), step.label(value, to.abs().max(from.abs()))))
        .collect()
}

/// Powers of ten on a logarithmic axis, and 2 and 5 times these where there are few.
fn ratios(from: f64, to: f64) -> Vec<(f64, String)> {
    let powers = from.log10().floor() as i32..=to.log10().ceil() as i32;
    let digits: &[f64] = if (to / from).log10() > 2.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    powers
        .flat_map(|power| digits.iter().map(move |digit| AxisStep { digit: *digit, power }))
        .map(AxisStep::value)
        .filter(|value| (from * (1.0 - 1e-9)..=to * (1.0 + 1e-9)).contains(value))
        .map(|value| (value.clamp(from, to), parameter(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.marks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn marks_are_few_and_round() {
        for (most, expected) in [
            (0.0, &["0", "0.2", "0.4", "0.6", "0.8", "1.0"][..]),
            (1.0, &["0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
            (7.3, &["0", "2", "4", "6", "8"]),
            (0.011, &["0", "0.005", "0.010", "0.015"]),
            (41.0, &["0", "10", "20", "30", "40", "50"]),
            (99.0, &["0", "20", "40", "60", "80", "100"]),
            (43_000.0, &["0", "10\u{202f}000", "20\u{202f}000", "30\u{202f}000", "40\u{202f}000", "50\u{202f}000"]),
            (2.4e6, &["0", "0.5 M", "1.0 M", "1.5 M", "2.0 M", "2.5 M"]),
            (2e99, &["0", "5.0e98", "1.0e99", "1.5e99", "2.0e99"]),
        ] {
            let axis = Axis::from_zero(0.0, most, 5);
            assert_eq!(labels(&axis), expected, "{most}");
            assert!(axis.from == 0.0 && axis.to >= most && (3..=7).contains(&axis.marks.len()), "{axis:?}");
        }
        assert_eq!(labels(&Axis::from_zero(-3.0, 5.0, 5)), ["-4", "-2", "0", "2", "4", "6"]);
    }

    #[test]
    fn an_axis_over_a_parameter_has_marks_where_something_was_measured() {
        let axis = Axis::over(&[64.0, 1024.0, 16_384.0], true);
        assert_eq!(labels(&axis), ["64", "1024", "16\u{202f}384"]);
        assert!((axis.share(1024.0) - 0.5).abs() < 1e-9 && axis.share(64.0) > 0.0 && axis.share(16_384.0) < 1.0);
        // 0 has no logarithm.
        assert!(!Axis::over(&[0.0, 1.0], true).log);
        for alone in [&[][..], &[0.0], &[-7.0], &[5.0]] {
            let axis = Axis::over(alone, true);
            assert!(axis.to > axis.from && axis.marks.len() == alone.len(), "{axis:?}");
        }
    }

    #[test]
    fn a_curve_of_many_points_has_round_marks() {
        let samples = |to: f64| (0..=80).map(|at| 0.001 * (to / 0.001).powf(f64::from(at) / 80.0)).collect::<Vec<_>>();
        assert_eq!(labels(&Axis::over(&samples(1.0), true)), ["0.001", "0.01", "0.1", "1"]);
        assert_eq!(labels(&Axis::over(&samples(0.05), true)), ["0.001", "0.002", "0.005", "0.01", "0.02", "0.05"]);
        assert_eq!(labels(&Axis::over(&samples(1.0), false)).len(), 5);
        let even: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!(labels(&Axis::over(&even, false)), ["0", "20", "40", "60", "80", "100"]);
    }
}
