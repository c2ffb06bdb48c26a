//! Measured and predicted amplification as curves over levels: leveling and tiering with inline values, and both with
//! a log. A panel has at most six curves: more colours are hard to distinguish.

use bifold_vat::figures::{Axis, Curve, CurveKind, Panel, Scale};

use super::{
    config::{MergePolicy, Place, Tables},
    verdict::Row,
};
use crate::chart::{Picture, panels};

/// The name of a curve, and its trees.
type Series = (&'static str, MergePolicy, Tables);

const WHOLE: Series = ("whole levels", MergePolicy::Leveling, Tables::Whole);
const QUARTER: Series = ("by table", MergePolicy::Leveling, Tables::Quarter);
const SMALL: Series = ("small tables", MergePolicy::Leveling, Tables::Small);
const TIERING: Series = ("tiering", MergePolicy::Tiering, Tables::Quarter);

/// The picture of a run.
#[must_use]
pub fn of(rows: &[Row]) -> Picture {
    let panels = [
        panel("Leveling, inline values", Place::Inline, &[WHOLE, QUARTER, SMALL], rows),
        panel("Tiering, inline values", Place::Inline, &[TIERING], rows),
        panel("Values in a log", Place::Log, &[WHOLE, TIERING], rows),
    ];
    panels::stacked("Measured and predicted amplification of inserts".to_owned(), &panels)
}

fn panel(title: &'static str, place: Place, series: &[Series], rows: &[Row]) -> Panel {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.config.place == place).collect();
    let mut curves = Vec::new();
    for &(name, shape, tables) in series {
        let mut of: Vec<&Row> =
            rows.iter().copied().filter(|row| (row.config.shape, row.config.tables) == (shape, tables)).collect();
        of.sort_by_key(|row| row.config.levels);
        for (what, figure) in
            [("measured", Row::measured as fn(&Row) -> f64), ("predicted", Row::predicted as fn(&Row) -> f64)]
        {
            let points: Vec<_> = of.iter().map(|row| (f64::from(row.config.levels), figure(row))).collect();
            if !points.is_empty() {
                curves.push(Curve { name: format!("{name}, {what}"), kind: CurveKind::Levels, points });
            }
        }
    }
    let levels = || rows.iter().map(|row| row.config.levels);
    let (least, most) = (levels().min().unwrap_or(1), levels().max().unwrap_or(1));
    let highest = curves.iter().flat_map(|curve| &curve.points).map(|point| point.1).fold(1.0, f64::max);
    Panel {
        title,
        x: Axis {
            label: "levels on the device, l",
            scale: Scale::Linear,
            range: (f64::from(least) - 0.5, f64::from(most) + 0.5),
            ticks: (least..=most).map(f64::from).collect(),
        },
        y: from_zero("amplification (bytes per byte)", highest),
        reference: None,
        curves,
    }
}

/// From 0 to a round number above `highest`, with up to ten marks.
fn from_zero(label: &'static str, highest: f64) -> Axis {
    let mut step = 10_f64.powf(highest.log10().floor() - 1.0);
    for factor in [2.0, 2.5, 2.0, 2.0] {
        if highest / step > 10.0 {
            step *= factor;
        }
    }
    let marks = (highest / step).ceil().max(1.0);
    let ticks = (0..=marks as u32).map(|mark| (f64::from(mark) * step * 1000.0).round() / 1000.0).collect();
    Axis { label, scale: Scale::Linear, range: (0.0, marks * step), ticks }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_few_and_round() {
        for (highest, step, count) in [(1.0, 0.1, 11), (7.3, 1.0, 9), (12.0, 2.0, 7), (41.0, 5.0, 10), (99.0, 10.0, 11)]
        {
            let axis = from_zero("", highest);
            assert_eq!((axis.ticks[1], axis.ticks.len()), (step, count), "{highest}");
            assert!(axis.range.1 >= highest);
        }
    }
}
