//! VAT's figures. 2, 4, 5 and 6 are computed from its equations, as [`bifold_vat::figures`] has them: nothing is run
//! for them, and their checks are the sentences of the paper's text. Figure 3 is measured, in `trees`.
//!
//! The text names no N: 1000 is the one at which all its figures come out.

mod trees;

use bifold_vat::{
    Compaction, Design, Growth, KeyShare, Levels, MergeAmplification, Optimum, OutOfRange, SizeRatio, Throughput, Tree,
    figures::{self, Panel, Scale as AxisScale},
};

use super::{
    Experiment, Maker, Paper, View,
    check::{Check, Rule, falls, rises},
    view::{Chart, ChartKind},
};
use crate::scale::Scale;

/// Every one of them.
pub(super) const ALL: &[Maker] = &[f2, trees::f3, f4, f5, f6];

/// N of the paper's examples.
const N: f64 = 1000.0;

const NOTE: &str = "Computed. The formulas and pictures are missing from our copy of the paper, so the equations are \
    derived from its prose, and the charts follow its sentences about them.";

/// A figure of the equations, or the reason why there is none.
type Computed = Result<f64, OutOfRange>;

/// A check of the equations: nothing is measured for it.
fn computed(what: &str, paper: &str, rule: Rule, ours: impl Fn() -> Computed + Send + Sync + 'static) -> Check {
    Check::new(what, paper, rule, move |_| ours().ok())
}

/// The panels of a figure.
fn views(number: u32) -> Vec<View> {
    let panels = figures::figure(number).map(|figure| figure.panels);
    panels.into_iter().flatten().map(|panel| View::computed(chart(&panel))).collect()
}

/// Points above a panel's range are left out: curves of few levels would dwarf all others.
fn chart(panel: &Panel) -> Chart {
    let shown = |points: &[(f64, f64)]| {
        points.iter().filter(|point| point.1 <= panel.y.range.1).map(|&(x, y)| (x, [y; 3])).collect()
    };
    Chart {
        title: panel.title.to_owned(),
        unit: panel.y.label.to_owned(),
        shape: ChartKind::Lines {
            label: panel.x.label.to_owned(),
            log: panel.x.scale == AxisScale::Log,
            series: panel.curves.iter().map(|curve| (curve.name.clone(), shown(&curve.points))).collect(),
        },
    }
}

fn experiment(
    name: &'static str,
    number: u32,
    place: &'static str,
    title: &'static str,
    checks: Vec<Check>,
) -> Experiment {
    Experiment { name, paper: Paper::Vat, place, title, note: NOTE, arms: Vec::new(), views: views(number), checks }
}

fn leveling(alpha: f64) -> Result<Design, OutOfRange> {
    Ok(Design::new(Compaction::Leveling(MergeAmplification::new(alpha)?)))
}

fn best(alpha: f64) -> Result<Optimum, OutOfRange> {
    Ok(leveling(alpha)?.optimum(SizeRatio::new(N)?))
}

/// Leveling at so many levels.
fn at_levels(alpha: f64, levels: u32) -> Computed {
    Ok(leveling(alpha)?.amplification(Tree::of_size(SizeRatio::new(N)?, Levels::new(levels)?)))
}

/// Tiering with a size ratio.
fn tiering(growth: f64) -> Computed {
    Ok(Design::new(Compaction::Tiering).amplification(Tree::with_growth(SizeRatio::new(N)?, Growth::new(growth)?)?))
}

/// How much less leveling at its best moves with a log.
fn gain_of_log(alpha: f64, p: f64) -> Computed {
    let best = best(alpha)?;
    let tree = Tree::of_size(SizeRatio::new(N)?, best.levels);
    Ok(best.amplification / leveling(alpha)?.with_log(KeyShare::new(p)?).amplification(tree))
}

/// The least cost ratio over all numbers of levels.
fn least_cost(alpha: f64, beta: f64) -> Computed {
    let design = leveling(alpha)?.with_throughput(Throughput::new(beta)?);
    Ok(design.cost_ratio(Tree::of_size(SizeRatio::new(N)?, best(alpha)?.levels)))
}

/// A curve, point by point.
fn curve<const POINTS: usize>(xs: [f64; POINTS], y: impl Fn(f64) -> Computed) -> Result<Vec<(f64, f64)>, OutOfRange> {
    xs.into_iter().map(|x| Ok((x, y(x)?))).collect()
}

fn f2(_: Scale, _: u64) -> Experiment {
    let checks = vec![
        computed("least amplification at alpha = 1", "about 25x", Rule::Between(22.5, 27.5), || {
            Ok(best(1.0)?.amplification)
        }),
        computed("least amplification at alpha = 0.1", "less than 10x", Rule::AtMost(10.0), || {
            Ok(best(0.1)?.amplification)
        }),
        computed("best number of levels from alpha = 0 to 1", "decreases as alpha does", Rule::Rises, || {
            let points = curve([0.0, 0.1, 0.4, 1.0], |alpha| Ok(f64::from(best(alpha)?.levels.get())))?;
            Ok(rises(&points).unwrap_or(f64::NAN))
        }),
        computed(
            "amplification with one level at alpha = 0.1",
            "exceeding 50x for small numbers of levels",
            Rule::AtLeast(50.0),
            || at_levels(0.1, 1),
        ),
        computed(
            "least cost ratio, as Kreon over as RocksDB",
            "small tables gain though beta is 0.91 (the direction alone)",
            Rule::AtMost(1.0),
            || Ok(least_cost(0.25, 0.91)? / least_cost(0.68, 1.0)?),
        ),
    ];
    experiment("vat-f2", 2, "§5 and §6, figure 2", "Less merge amplification, fewer levels, less traffic", checks)
}

fn f4(_: Scale, _: u64) -> Experiment {
    let above = "more than 10x for small key shares";
    let checks = vec![
        computed("gain of a log at p = 0.01, alpha = 1", above, Rule::AtLeast(10.0), || gain_of_log(1.0, 0.01)),
        computed("gain of a log at p = 0.01, alpha = 0.25", above, Rule::AtLeast(10.0), || gain_of_log(0.25, 0.01)),
        computed(
            "gain of a log at p = 0.25, alpha = 0",
            "1/(p + 1), a loss (Eq. 15)",
            Rule::Between(0.799, 0.801),
            || gain_of_log(0.0, 0.25),
        ),
        computed(
            "leveling at its best over tiering with size ratio 10",
            "tiering decreases amplification by 5x",
            Rule::Between(4.5, 5.5),
            || Ok(best(1.0)?.amplification / tiering(10.0)?),
        ),
        computed(
            "leveling over tiering, from alpha = 0 to 1",
            "the benefit reduces as alpha does",
            Rule::Rises,
            || {
                let points = curve([0.0, 0.1, 0.4, 1.0], |alpha| Ok(best(alpha)?.amplification / tiering(10.0)?))?;
                Ok(rises(&points).unwrap_or(f64::NAN))
            },
        ),
    ];
    experiment("vat-f4", 4, "§6, figure 4", "What a value log gains, and what tiering gains", checks)
}

fn f5(_: Scale, _: u64) -> Experiment {
    let checks = vec![
        computed(
            "amplification of tiering over its size ratio",
            "a larger growth factor: less amplification",
            Rule::Falls,
            || Ok(falls(&curve([2.0, 4.0, 10.0, 31.0, 100.0], tiering)?).unwrap_or(f64::NAN)),
        ),
        computed(
            "amplification at size ratio 10",
            "5 bytes a byte, 5x less than leveling",
            Rule::Between(4.5, 5.5),
            || tiering(10.0),
        ),
        computed(
            "the saving of size ratio 20 over 10, relative to that of 10 over 5",
            "10 is the point of diminishing returns",
            Rule::AtMost(1.0),
            || Ok((tiering(10.0)? - tiering(20.0)?) / (tiering(5.0)? - tiering(10.0)?)),
        ),
        computed(
            "leveling with a log at p = 0.01, gain",
            "also significant for leveling with a log, about 10x",
            Rule::AtLeast(10.0),
            || gain_of_log(0.25, 0.01),
        ),
    ];
    experiment("vat-f5", 5, "§6, figure 5", "Tiering by its size ratio", checks)
}

/// From fewer levels than anybody has to more.
const LEVELS: [f64; 5] = [1.0, 3.0, 5.0, 8.0, 12.0];

fn f6(_: Scale, _: u64) -> Experiment {
    let part = |of: fn(bifold_vat::Parts) -> f64| {
        move |levels: f64| {
            let tree = Tree::of_size(SizeRatio::new(N)?, Levels::new(levels as u32)?);
            Ok(of(Compaction::Leveling(MergeAmplification::new(1.0)?).parts(tree)))
        }
    };
    let compete = "merge and level amplification are competing quantities";
    let checks = vec![
        computed("merge amplification over levels", compete, Rule::Falls, move || {
            Ok(falls(&curve(LEVELS, part(|parts| parts.merge))?).unwrap_or(f64::NAN))
        }),
        computed("level amplification over levels", compete, Rule::Rises, move || {
            Ok(rises(&curve(LEVELS, part(|parts| parts.level))?).unwrap_or(f64::NAN))
        }),
        computed("size ratio 10 over 4", "worse by about 1.33x", Rule::Between(1.3, 1.36), || {
            let at = |growth| Tree::with_growth(SizeRatio::new(N)?, Growth::new(growth)?);
            Ok(leveling(1.0)?.amplification(at(10.0)?) / leveling(1.0)?.amplification(at(4.0)?))
        }),
        computed("best size ratio", "4 is close to optimal; a tenth off", Rule::Between(3.6, 4.4), || {
            Ok(best(1.0)?.growth)
        }),
        computed(
            "a level more than the best over a level less",
            "err towards a larger number of levels",
            Rule::AtMost(1.0),
            || {
                let best = best(1.0)?.levels.get();
                Ok(at_levels(1.0, best + 1)? / at_levels(1.0, best - 1)?)
            },
        ),
    ];
    experiment("vat-f6", 6, "§6 and §7, figure 6", "The components of leveling's traffic", checks)
}
