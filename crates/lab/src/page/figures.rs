//! All figures behind the charts, as tables: a row for each group or parameter, a column for each series. In all
//! columns but the first, the ratio to the first series precedes the figure itself.

use super::{
    finding::{Finding, names},
    markup::{Markup, element, text, words},
    section::scroll_as,
    words::count,
};
use crate::{
    chart::{
        axis::{MARKED_MAX, drawable},
        numbers::{number, parameter, range},
    },
    experiment::view::{Chart, ChartKind},
};

/// Tables of more series than this have a row of the page for themselves: half of one, or of a sheet of paper, is too
/// narrow.
const HALF_A_ROW: usize = 5;

/// How many points of a curve that was computed are in its table.
const SAMPLES: usize = 12;

/// The tables of an experiment; nothing where nothing was measured.
pub fn all(finding: &Finding<'_>) -> Option<Markup> {
    let tables: Vec<(usize, Markup)> = finding.charts.iter().filter_map(of).collect();
    let rows: usize = tables.iter().map(|(rows, _)| rows).sum();
    if rows == 0 {
        return None;
    }
    let summary = words("summary", &[], &format!("Figures behind the charts ({})", count(rows, "row")));
    let tables = element("div", &[("class", "tables")], tables.into_iter().map(|(_, table)| table));
    Some(element("details", &[("class", "figures")], [summary, tables]))
}

/// A row: what it is of, what sorts it, and the figures of all series.
struct FigureRow {
    name: String,
    sort: Option<f64>,
    figures: Vec<Option<[f64; 3]>>,
}

/// The table of a chart with the number of its rows.
fn of(chart: &Chart) -> Option<(usize, Markup)> {
    let rows = rows(chart);
    if rows.iter().all(|row| row.figures.iter().all(Option::is_none)) {
        return None;
    }
    let over = match &chart.shape {
        ChartKind::Bars { .. } => "step",
        ChartKind::Lines { label, .. } => label.as_str(),
    };
    let kind = if rows.iter().all(|row| row.sort.is_some()) { "number" } else { "text" };
    let heads = [(over, kind)].into_iter().chain(names(chart).map(|name| (name, "number")));
    let head = heads.map(|(name, kind)| words("th", &[("scope", "col"), ("data-kind", kind)], name));
    let caption = element("caption", &[], [text(&chart.title), words("small", &[], &chart.unit)]);
    let body = rows.iter().map(row);
    let table = element(
        "table",
        &[("class", "sortable figures")],
        [caption, element("thead", &[], [element("tr", &[], head)]), element("tbody", &[], body)],
    );
    let class = if names(chart).count() > HALF_A_ROW { "scroll wide" } else { "scroll" };
    Some((rows.len(), scroll_as(class, &chart.title, table)))
}

fn rows(chart: &Chart) -> Vec<FigureRow> {
    match &chart.shape {
        ChartKind::Bars { groups, series } => groups
            .iter()
            .enumerate()
            .map(|(at, name)| FigureRow {
                name: name.clone(),
                sort: None,
                figures: series.iter().map(|(_, bars)| bars.get(at).copied().flatten().filter(sound)).collect(),
            })
            .collect(),
        ChartKind::Lines { series, .. } => {
            let mut xs: Vec<f64> =
                series.iter().flat_map(|(_, points)| points).map(|point| point.0).filter(|x| drawable(*x)).collect();
            xs.sort_by(f64::total_cmp);
            xs.dedup();
            let every = if xs.len() > MARKED_MAX { xs.len().div_ceil(SAMPLES) } else { 1 };
            let at = |x: f64| {
                let of = |points: &[(f64, [f64; 3])]| points.iter().find(|point| point.0 == x).map(|point| point.1);
                let figures = series.iter().map(|(_, points)| of(points).filter(sound)).collect();
                FigureRow { name: parameter(x), sort: Some(x), figures }
            };
            xs.into_iter().step_by(every).map(at).collect()
        }
    }
}

fn sound(figure: &[f64; 3]) -> bool {
    figure.iter().all(|figure| drawable(*figure))
}

fn row(row: &FigureRow) -> Markup {
    let base = row.figures.first().copied().flatten().map(|figure| figure[0]).filter(|base| *base != 0.0);
    let cells = row.figures.iter().enumerate().map(|(at, figure)| {
        let Some(figure) = figure else { return words("td", &[("class", "number")], "–") };
        let ratio = base.filter(|_| at > 0).map(|base| figure[0] / base).filter(|ratio| drawable(*ratio));
        cell(figure, ratio)
    });
    let sort = row.sort.map(|x| x.to_string());
    let attributes: Vec<(&str, &str)> =
        [("scope", "row")].into_iter().chain(sort.as_deref().map(|x| ("data-v", x))).collect();
    element("tr", &[], [words("th", &attributes, &row.name)].into_iter().chain(cells))
}

fn cell(figure: &[f64; 3], ratio: Option<f64>) -> Markup {
    let sort = ratio.unwrap_or(figure[0]).to_string();
    let mut parts = Vec::new();
    if let Some(ratio) = ratio {
        parts.push(words("b", &[], &format!("{} ×", number(ratio))));
    }
    parts.push(words("span", &[], &number(figure[0])));
    parts.extend(range(*figure).map(|range| words("small", &[], &range)));
    element("td", &[("class", "number"), ("data-v", &sort)], parts)
}
