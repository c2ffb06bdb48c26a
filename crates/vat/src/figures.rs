//! The paper's projections (figures 2, 4, 5 and 6) as curves, computed from the equations alone.
//!
//! The pictures are missing from our copy of the paper. What each panel shows is taken from the sentences about it,
//! quoted at each function. Ranges, and the parameters that the sentences leave open, are our choice; titles and
//! legends name them. Figure 3 compares stores that the authors measured, and figure 1 a device: neither is a
//! projection.

use crate::{
    design::{Compaction, Design},
    input::{Growth, KeyShare, Levels, MergeAmplification, SizeRatio, Throughput},
    tree::Tree,
};

/// The figures that exist here.
pub const NUMBERS: [u32; 4] = [2, 4, 5, 6];

/// N of all figures unless a legend says otherwise. The paper's minimum of "about 25x" at α = 1 and "less than 10x"
/// at α = 0.1 (§6) are 24 and 7.7 here.
const SIZE: SizeRatio = SizeRatio(1000.0);

/// The sizes where N is the parameter.
const SIZES: [(&str, f64); 4] = [("N = 100", 1e2), ("N = 1000", 1e3), ("N = 10 000", 1e4), ("N = 1 000 000", 1e6)];

/// The numbers of levels on an axis.
const LEVELS: std::ops::RangeInclusive<u32> = 1..=12;

/// Two panels under one title.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Its number in the paper.
    pub number: u32,
    /// What both panels show.
    pub title: &'static str,
    /// (a) and (b).
    pub panels: [Panel; 2],
}

/// Curves over one pair of axes.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// What is shown, and for which size.
    pub title: &'static str,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis. Curves may leave its range.
    pub y: Axis,
    /// A value on the vertical axis that divides better from worse, with what it means.
    pub reference: Option<(f64, &'static str)>,
    /// In legend order.
    pub curves: Vec<Curve>,
}

/// An axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// What is on it, with the unit.
    pub label: &'static str,
    /// How values map to positions.
    pub scale: Scale,
    /// The range.
    pub range: (f64, f64),
    /// Where to put marks.
    pub ticks: Vec<f64>,
}

/// How values map to positions on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Equal steps are equally far apart.
    Linear,
    /// Equal ratios are equally far apart.
    Log,
}

/// A line of a panel.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// What the legend says.
    pub name: String,
    /// What its points are.
    pub kind: CurveKind,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// What the points of a curve are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CurveKind {
    /// Samples of a line.
    Line,
    /// Whole numbers of levels: only the points are trees; the line between them guides the eye.
    Levels,
}

/// The figure with this number in the paper, if it is one of [`NUMBERS`].
pub fn figure(number: u32) -> Option<Figure> {
    let (title, panels) = match number {
        2 => ("Less merge amplification, fewer levels, less traffic", [figure_2a(), figure_2b()]),
        4 => ("What a value log gains, and what tiering gains", [figure_4a(), figure_4b()]),
        5 => ("Tiering by its size ratio", [figure_5a(), figure_5b()]),
        6 => ("What the traffic of leveling is made of", [figure_6a(), figure_6b()]),
        _ => return None,
    };
    Some(Figure { number, title, panels })
}

/// §6: "the curves of base VAT for different values of α while maintaining optimal throughput with β = 1. […] Minimum
/// amplification drops from about 25x to less than 10x, when α decreases from 1.0 to 0.1", "exceeding 50x for small
/// numbers of levels".
fn figure_2a() -> Panel {
    let curves = [1.0, 0.7, 0.4, 0.2, 0.1, 0.0].map(|alpha| {
        let design = Design::new(leveling(alpha));
        over_levels(format!("alpha = {alpha}"), |tree| design.amplification(tree))
    });
    Panel {
        title: "Leveling, N = 1000, beta = 1",
        x: levels_axis(),
        y: linear("amplification (bytes per byte)", 60.0, 10.0),
        reference: None,
        curves: curves.into(),
    }
}

/// §5: "designs that exhibit a reduced value for α (reduced amplification) resulting in lower β as well (reduced device
/// throughput)". Table 1 and §5 have α and β of RocksDB and Kreon; the two others show how far β may fall.
fn figure_2b() -> Panel {
    let designs = [
        ("whole levels", 1.0, 1.0),
        ("as RocksDB", 0.68, 1.0),
        ("as Kreon", 0.25, 0.91),
        ("smaller tables", 0.1, 0.6),
        ("on a slow device", 0.1, 0.3),
    ];
    let curves = designs.map(|(name, alpha, beta)| {
        let design = Design::new(leveling(alpha)).with_throughput(Throughput(beta));
        over_levels(format!("alpha = {alpha}, beta = {beta} ({name})"), |tree| design.cost_ratio(tree))
    });
    Panel {
        title: "Leveling, N = 1000: smaller alpha for smaller beta",
        x: levels_axis(),
        y: linear("cost ratio T / Topt", 60.0, 10.0),
        reference: None,
        curves: curves.into(),
    }
}

/// §6: "using a value log brings significant benefits when the key-value size ratio is small […] the value of α affects
/// the benefits"; Eq. 15: at α = 0 and one level the gain is 1/(p + 1), a loss. Each α has its best number of levels.
fn figure_4a() -> Panel {
    let curves = [1.0, 0.68, 0.25, 0.1, 0.0].map(|alpha| {
        let design = Design::new(leveling(alpha));
        let in_place = design.optimum(SIZE);
        let tree = Tree::of_size(SIZE, in_place.levels);
        let gain = |p| in_place.amplification / design.with_log(KeyShare(p)).amplification(tree);
        let points = steps_of_ratio(0.001, 1.0, 80).map(|p| (p, gain(p))).collect();
        let (levels, s) = (in_place.levels.get(), if in_place.levels.get() == 1 { "" } else { "s" });
        Curve { name: format!("alpha = {alpha} ({levels} level{s})"), kind: CurveKind::Line, points }
    });
    Panel {
        title: "Leveling, N = 1000, best levels: gain of a value log",
        x: log("key share p = K / (K + V)", (0.001, 1.0)),
        y: linear("in place / with a log", 25.0, 5.0),
        reference: Some((1.0, "no gain")),
        curves: curves.into(),
    }
}

/// §6: "the benefit of tiering reduces as merge amplification decreases". §1: "using tiering instead of leveling
/// decreases amplification by 5x", which is leveling at its best, 24, over tiering at f = 10, 5.
fn figure_4b() -> Panel {
    let curves = [2, 3, 5].map(|levels| {
        let tiered = Tree::of_size(SIZE, Levels(levels));
        let tiering = Design::new(Compaction::Tiering).amplification(tiered);
        let gain = |alpha| Design::new(leveling(alpha)).optimum(SIZE).amplification / tiering;
        let points = (0..=100).map(|step| f64::from(step) / 100.0).map(|alpha| (alpha, gain(alpha))).collect();
        let growth = tiered.growth();
        Curve { name: format!("tiering with {levels} levels (f = {growth:.0})"), kind: CurveKind::Line, points }
    });
    Panel {
        title: "N = 1000, leveling with its best levels: gain of tiering",
        x: linear("alpha of leveling", 1.0, 0.2),
        y: linear("leveling / tiering", 10.0, 2.0),
        reference: Some((1.0, "no gain")),
        curves: curves.into(),
    }
}

/// §6: "when using tiering with in-place values, one should probably use a growth factor of around 10, which is the
/// point of diminishing returns".
fn figure_5a() -> Panel {
    let curves = SIZES.map(|(name, ratio)| {
        let design = Design::new(Compaction::Tiering);
        over_growth(name.to_owned(), SizeRatio(ratio), |tree| design.amplification(tree))
    });
    Panel {
        title: "Tiering, values in place",
        x: growth_axis(),
        y: linear("amplification (bytes per byte)", 40.0, 10.0),
        reference: None,
        curves: curves.into(),
    }
}

/// §6: "tiering with a log can be a valid approach for small values of f, which do not reduce read performance
/// significantly and for small [key-value] ratios".
fn figure_5b() -> Panel {
    let curves = [1.0, 0.5, 0.2, 0.1, 0.01].map(|p| {
        let design = Design::new(Compaction::Tiering).with_log(KeyShare(p));
        over_growth(format!("p = {p}"), SIZE, |tree| design.amplification(tree))
    });
    Panel {
        title: "Tiering, N = 1000, values in a log",
        x: growth_axis(),
        y: linear("amplification (bytes per byte)", 20.0, 5.0),
        reference: None,
        curves: curves.into(),
    }
}

/// §7: "Merge and level amplification are competing quantities: as we see in Figure 6(a), for a given amount of data,
/// if we reduce the number of levels l, we have to increase the growth factor f".
fn figure_6a() -> Panel {
    let whole = leveling(1.0);
    let curves = vec![
        over_levels("both".to_owned(), |tree| whole.parts(tree).total()),
        over_levels("merge amplification, l (f - 1)".to_owned(), |tree| whole.parts(tree).merge),
        over_levels("level amplification, 2 l - 1".to_owned(), |tree| whole.parts(tree).level),
    ];
    Panel {
        title: "Leveling, N = 1000, alpha = 1: two costs that compete",
        x: levels_axis(),
        y: linear("amplification (bytes per byte)", 60.0, 10.0),
        reference: None,
        curves,
    }
}

/// §7 compares with models of "write amplification in multi-stage KV stores (see Figure 6(b))". Writes alone, by size;
/// §6: "as data grows […] we have to increase the number of levels, as opposed to increasing their relative size".
fn figure_6b() -> Panel {
    let design = Design::new(leveling(1.0));
    let curves = SIZES.map(|(name, ratio)| {
        let size = SizeRatio(ratio);
        over_levels_of(name.to_owned(), size, |tree| design.write_amplification(tree))
    });
    Panel {
        title: "Leveling, alpha = 1: writes alone",
        x: levels_axis(),
        y: linear("bytes written per byte", 60.0, 10.0),
        reference: None,
        curves: curves.into(),
    }
}

fn leveling(alpha: f64) -> Compaction {
    Compaction::Leveling(MergeAmplification(alpha))
}

fn over_levels(name: String, y: impl Fn(Tree) -> f64) -> Curve {
    over_levels_of(name, SIZE, y)
}

fn over_levels_of(name: String, size: SizeRatio, y: impl Fn(Tree) -> f64) -> Curve {
    let points = LEVELS.map(|levels| (f64::from(levels), y(Tree::of_size(size, Levels(levels))))).collect();
    Curve { name, kind: CurveKind::Levels, points }
}

/// A curve over the growth factor, also where the number of levels is not whole.
fn over_growth(name: String, size: SizeRatio, y: impl Fn(Tree) -> f64) -> Curve {
    let trees = steps_of_ratio(2.0, 100.0, 80).filter_map(|f| Tree::with_growth(size, Growth(f)).ok());
    Curve { name, kind: CurveKind::Line, points: trees.map(|tree| (tree.growth(), y(tree))).collect() }
}

/// `steps + 1` values from `from` to `to` with equal ratios.
fn steps_of_ratio(from: f64, to: f64, steps: u32) -> impl Iterator<Item = f64> {
    (0..=steps).map(move |step| match step {
        step if step == steps => to,
        step => from * (to / from).powf(f64::from(step) / f64::from(steps)),
    })
}

fn levels_axis() -> Axis {
    let ticks: Vec<f64> = LEVELS.map(f64::from).collect();
    Axis { label: "levels on the device, l", scale: Scale::Linear, range: (0.5, 12.5), ticks }
}

fn growth_axis() -> Axis {
    let ticks = vec![2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 20.0, 30.0, 50.0, 100.0];
    Axis { label: "size ratio, f", scale: Scale::Log, range: (2.0, 100.0), ticks }
}

/// From 0 to `to`, with a mark every `step`.
fn linear(label: &'static str, to: f64, step: f64) -> Axis {
    let marks = (to / step).round() as u32;
    let ticks = (0..=marks).map(|mark| to * f64::from(mark) / f64::from(marks)).collect();
    Axis { label, scale: Scale::Linear, range: (0.0, to), ticks }
}

/// Powers of ten over `range`.
fn log(label: &'static str, range: (f64, f64)) -> Axis {
    let exponents = range.0.log10().round() as i32..=range.1.log10().round() as i32;
    Axis { label, scale: Scale::Log, range, ticks: exponents.map(|e| 10_f64.powi(e)).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curves() -> impl Iterator<Item = Curve> {
        NUMBERS.into_iter().flat_map(|n| figure(n).unwrap().panels).flat_map(|panel| panel.curves)
    }

    #[test]
    fn every_curve_has_finite_points_from_left_to_right() {
        assert_eq!(curves().count(), 6 + 5 + 5 + 3 + 4 + 5 + 3 + 4);
        for curve in curves() {
            assert!(curve.points.len() > 8, "{}", curve.name);
            assert!(curve.points.iter().all(|(x, y)| x.is_finite() && y.is_finite() && *y >= 0.0), "{}", curve.name);
            assert!(curve.points.is_sorted_by(|a, b| a.0 < b.0), "{}", curve.name);
        }
        assert!(figure(3).is_none());
    }

    #[test]
    fn every_curve_is_seen() {
        for panel in NUMBERS.into_iter().flat_map(|n| figure(n).unwrap().panels) {
            for axis in [&panel.x, &panel.y] {
                let (from, to) = axis.range;
                assert!(axis.ticks.iter().all(|tick| (from..=to).contains(tick)), "{}", axis.label);
            }
            let ((left, right), (low, high)) = (panel.x.range, panel.y.range);
            for curve in &panel.curves {
                let inside = |&&(x, y): &&(f64, f64)| (left..=right).contains(&x) && (low..=high).contains(&y);
                assert!(curve.points.iter().filter(inside).count() > 1, "{}: {}", panel.title, curve.name);
            }
        }
    }
}
