//! An experiment's chart as a picture: from the top down its title, the legend, the unit, bars or lines, names along
//! the axis.
//!
//! Bars and points are medians; a thin line over them goes from the least of the rounds to the most. Curves of more
//! than [`MARKED_MAX`] points were computed: they have neither. What was not measured leaves a gap.

use super::{
    Anchor, Direction, Paint, Picture, Point, Shape, Weight,
    axis::{Axis, MARKED_MAX, drawable},
    letters::{fitted, paragraph, width as room_of, wrapped},
    numbers::{number as number_of, parameter, range},
    pen::{Pen, inside, sharp},
    series,
};
use crate::experiment::view::{Chart, ChartKind, LinePoint};

/// How a chart is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    /// Whether the title is in the picture, or next to it.
    pub titled: bool,
    /// Which look each series has, as [`series`] counts them; those beyond have the looks that follow.
    pub paints: &'a [usize],
    /// The highest value that is shown, where a chart says so; curves are cut there.
    pub most: Option<f64>,
}

/// How high letters are. On a telephone a picture is 360 pixels wide or less: letters are 10 there.
const FONT_SIZE: f64 = 13.0;
/// The width of most pictures: two of them fit next to each other on a page.
const WIDTH: f64 = 440.0;
/// How wide those are that have more bars than [`BARS_MAX`].
const WIDE: f64 = 900.0;
const BARS_MAX: usize = 36;
const CURVES_HEIGHT: f64 = 190.0;
const LINE_HEIGHT: f64 = 18.0;
const EDGE: f64 = 8.0;
/// What names below the axis may take when they stand upright.
const UPRIGHT: f64 = 110.0;

/// Median, least and most, all of which can be drawn.
type Spread = [f64; 3];

/// Lays out a chart; nothing where nothing was measured.
#[must_use]
pub fn picture(chart: &Chart, look: Look<'_>) -> Option<Picture> {
    let plot = Plot::new(chart, look)?;
    let mut pen = Pen::default();
    let top = plot.head(&mut pen);
    let (y, least_left) = (plot.y_axis(), 24.0);
    let widest = y.marks.iter().map(|(_, label)| room_of(label, FONT_SIZE)).fold(0.0, f64::max);
    let frame = Frame {
        left: sharp((widest + EDGE + plot.side()).max(least_left)),
        top: sharp(top),
        right: sharp(plot.width - EDGE),
        bottom: sharp(top) + CURVES_HEIGHT,
        y,
    };
    frame.lines(&mut pen);
    let bottom = match &chart.shape {
        ChartKind::Bars { groups, series } => {
            plot.bars(&mut pen, &frame, groups, series);
            below_groups(&mut pen, &frame, groups)
        }
        ChartKind::Lines { label, log, series } => plot.curves(&mut pen, &frame, label, *log, series),
    };
    let height = (bottom + EDGE).ceil();
    Some(Picture { title: chart.title.clone(), width: plot.width, height, font_size: FONT_SIZE, shapes: pen.shapes })
}

/// Where values are.
struct Frame {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
    y: Axis,
}

impl Frame {
    fn y(&self, value: f64) -> f64 {
        self.bottom - self.y.share(value).clamp(0.0, 1.0) * (self.bottom - self.top)
    }

    fn x(&self, axis: &Axis, value: f64) -> f64 {
        self.left + axis.share(value).clamp(0.0, 1.0) * (self.right - self.left)
    }

    /// Marks along the vertical axis and the line that values stand on.
    fn lines(&self, pen: &mut Pen) {
        for (value, label) in &self.y.marks {
            let y = sharp(self.y(*value));
            let paint = if *value == 0.0 { Paint::Reference } else { Paint::Faint };
            pen.line(vec![(self.left, y), (self.right, y)], 1.0, paint);
            pen.text(label, (self.left - 7.0, y), Anchor::End, Weight::Regular);
        }
    }
}

/// A chart that has something to show.
struct Plot<'a> {
    chart: &'a Chart,
    look: Look<'a>,
    width: f64,
    /// The series that something was measured of, with their numbers.
    names: Vec<(usize, &'a str)>,
    highest: f64,
    lowest: f64,
}

impl<'a> Plot<'a> {
    fn new(chart: &'a Chart, look: Look<'a>) -> Option<Self> {
        let all: Vec<(&str, Vec<Spread>)> = match &chart.shape {
            ChartKind::Bars { series, .. } => {
                let of = |bars: &[Option<Spread>]| bars.iter().filter_map(|bar| bar.and_then(whole)).collect();
                series.iter().map(|(name, bars)| (name.as_str(), of(bars))).collect()
            }
            ChartKind::Lines { series, .. } => {
                let of =
                    |points: &[LinePoint]| points.iter().filter_map(|point| Some(whole_point(*point)?.1)).collect();
                series.iter().map(|(name, points)| (name.as_str(), of(points))).collect()
            }
        };
        let names = all.iter().enumerate().filter(|(_, (_, spreads))| !spreads.is_empty());
        let names = names.map(|(number, (name, _))| (number, *name)).collect();
        let spreads: Vec<Spread> = all.into_iter().flat_map(|(_, spreads)| spreads).collect();
        if spreads.is_empty() {
            return None;
        }
        let bars = match &chart.shape {
            ChartKind::Bars { groups, series } => groups.len() * series.len(),
            ChartKind::Lines { .. } => 0,
        };
        let highest = spreads.iter().map(|spread| spread[2]).fold(f64::MIN, f64::max);
        Some(Self {
            chart,
            look,
            width: if bars > BARS_MAX { WIDE } else { WIDTH },
            names,
            highest: look.most.filter(|most| *most > 0.0 && drawable(*most)).map_or(highest, |most| most.min(highest)),
            lowest: spreads.iter().map(|spread| spread[1]).fold(f64::MAX, f64::min),
        })
    }

    fn y_axis(&self) -> Axis {
        Axis::from_zero(self.lowest, self.highest, 5)
    }

    fn paint(&self, series: usize) -> usize {
        self.look.paints.get(series).copied().unwrap_or(series)
    }

    /// Where text begins: in line with the page's, or within a picture of its own.
    fn side(&self) -> f64 {
        if self.look.titled { EDGE } else { 1.0 }
    }

    /// Title, legend and unit. Returns where they end.
    fn head(&self, pen: &mut Pen) -> f64 {
        let (side, mut y) = (self.side(), EDGE);
        let room = self.width - side - EDGE;
        if self.look.titled {
            // Bold letters are wider by less than an eighth.
            for line in paragraph(&self.chart.title, FONT_SIZE * 1.125, room, 3) {
                pen.text(&line, (side, y + LINE_HEIGHT / 2.0), Anchor::Start, Weight::Bold);
                y += LINE_HEIGHT;
            }
            y += EDGE / 2.0;
        }
        y = self.legend(pen, y) + EDGE / 2.0;
        for line in paragraph(&self.chart.unit, FONT_SIZE, room, 2) {
            let at = (side, y + LINE_HEIGHT / 2.0);
            pen.written(&line, at, Anchor::Start, Weight::Regular, Direction::Right, Paint::Reference);
            y += LINE_HEIGHT;
        }
        y + EDGE
    }

    /// The names of the series, one after the other. Returns where they end.
    fn legend(&self, pen: &mut Pen, mut y: f64) -> f64 {
        let (side, end) = (self.side(), self.width - EDGE);
        let mut x = side;
        // What stands before each name, with the room between.
        let sample = if matches!(self.chart.shape, ChartKind::Bars { .. }) { 18.0 } else { 26.0 };
        for &(number, name) in &self.names {
            let name = fitted(name, FONT_SIZE, end - side - sample);
            let room = sample + room_of(&name, FONT_SIZE);
            if x > side && x + room > end {
                (x, y) = (side, y + LINE_HEIGHT);
            }
            let (middle, paint) = (y + LINE_HEIGHT / 2.0, self.paint(number));
            match self.chart.shape {
                ChartKind::Bars { .. } => series::bar(pen, paint, (x, middle - 6.0), (12.0, 12.0)),
                ChartKind::Lines { .. } => {
                    series::line(pen, paint, vec![(x, middle), (x + 20.0, middle)], 2.5);
                    series::mark(pen, paint, (x + 10.0, middle));
                }
            }
            pen.text(&name, (x + sample, middle), Anchor::Start, Weight::Regular);
            x += room + 14.0;
        }
        if self.names.is_empty() { y } else { y + LINE_HEIGHT }
    }

    fn bars(&self, pen: &mut Pen, frame: &Frame, groups: &[String], all: &[(String, Vec<Option<Spread>>)]) {
        let slot = (frame.right - frame.left) / groups.len().max(1) as f64;
        let bar = (slot * 0.84 / all.len().max(1) as f64).min(56.0);
        let mut hints = Vec::new();
        for (at, group) in groups.iter().enumerate() {
            let begin = frame.left + (at as f64 + 0.5) * slot - bar * all.len() as f64 / 2.0;
            for (number, (name, bars)) in all.iter().enumerate() {
                let (x, spread) = (begin + number as f64 * bar, bars.get(at).copied().flatten().and_then(whole));
                if let Some(spread) = spread {
                    let gap = (bar * 0.12).min(2.0);
                    let (y, zero) = (frame.y(spread[0]), frame.y(0.0));
                    let (corner, size) = ((x + gap / 2.0, y.min(zero)), (bar - gap, (y - zero).abs()));
                    series::bar(pen, self.paint(number), corner, size);
                    whisker(pen, frame, x + bar / 2.0, spread, (bar * 0.22).min(4.0));
                }
                let text = self.said(name, group, spread);
                hints.push(Shape::Hint { corner: (x, frame.top), size: (bar, frame.bottom - frame.top), text });
            }
        }
        pen.shapes.extend(hints);
    }

    /// Draws the curves and what is below them. Returns where that ends.
    fn curves(&self, pen: &mut Pen, frame: &Frame, label: &str, log: bool, all: &[(String, Vec<LinePoint>)]) -> f64 {
        let mut parameters: Vec<f64> =
            all.iter().flat_map(|(_, points)| points).map(|point| point.0).filter(|x| drawable(*x)).collect();
        parameters.sort_by(f64::total_cmp);
        parameters.dedup();
        let axis = Axis::over(&parameters, log);
        let mut hints = Vec::new();
        for (number, (name, points)) in all.iter().enumerate() {
            let marked = points.len() <= MARKED_MAX;
            let places = |part: &[(f64, Spread)]| -> Vec<Point> {
                // Not clamped: where a curve leaves, it is cut on its way.
                part.iter()
                    .map(|(x, spread)| {
                        (frame.x(&axis, *x), frame.bottom - frame.y.share(spread[0]) * (frame.bottom - frame.top))
                    })
                    .collect()
            };
            for part in unbroken(points) {
                for line in inside(&places(&part), frame.top, frame.bottom) {
                    series::line(pen, self.paint(number), line, 2.0);
                }
                for (x, spread) in part.iter().filter(|(_, spread)| marked && spread[0] <= frame.y.to) {
                    let center = (frame.x(&axis, *x), frame.y(spread[0]));
                    whisker(pen, frame, center.0, *spread, 3.5);
                    series::mark(pen, self.paint(number), center);
                    let text = self.said(name, &format!("{label} {}", parameter(*x)), Some(*spread));
                    let corner = (center.0 - 7.0, center.1 - 7.0);
                    hints.push(Shape::Hint { corner, size: (14.0, 14.0), text });
                }
            }
        }
        let bottom = below_parameters(pen, frame, &axis, label);
        pen.shapes.extend(hints);
        bottom
    }

    /// What those see who point at a bar or a point.
    fn said(&self, series: &str, place: &str, spread: Option<Spread>) -> String {
        let unit = &self.chart.unit;
        let figure = spread.map_or_else(
            || "not measured".to_owned(),
            |spread| match range(spread) {
                Some(range) => format!("{} {unit} ({range})", number_of(spread[0])),
                None => format!("{} {unit}", number_of(spread[0])),
            },
        );
        format!("{series}, {place}: {figure}")
    }
}

/// A line from the least to the most, with ends half as long as `reach` says twice. None where they are as good as
/// the same.
fn whisker(pen: &mut Pen, frame: &Frame, x: f64, spread: Spread, reach: f64) {
    let (low, high) = (frame.y(spread[1]), frame.y(spread[2]));
    if low - high < 1.0 {
        return;
    }
    pen.line(vec![(x, low), (x, high)], 1.2, Paint::Ink);
    for y in [low, high] {
        pen.line(vec![(x - reach, y), (x + reach, y)], 1.2, Paint::Ink);
    }
}

/// The names of groups: in lines below them, or upright where they are too long for that. Returns where they end.
fn below_groups(pen: &mut Pen, frame: &Frame, groups: &[String]) -> f64 {
    let slot = (frame.right - frame.left) / groups.len().max(1) as f64;
    let middle = |at: usize| frame.left + (at as f64 + 0.5) * slot;
    let lines: Option<Vec<Vec<String>>> = groups.iter().map(|group| wrapped(group, FONT_SIZE, slot - 6.0, 3)).collect();
    if let Some(lines) = lines {
        let top = frame.bottom + 6.0;
        for (at, lines) in lines.iter().enumerate() {
            for (row, line) in lines.iter().enumerate() {
                let y = top + (row as f64 + 0.5) * LINE_HEIGHT;
                pen.text(line, (middle(at), y), Anchor::Middle, Weight::Regular);
            }
        }
        return top + lines.iter().map(Vec::len).max().unwrap_or(0) as f64 * LINE_HEIGHT;
    }
    let names: Vec<String> = groups.iter().map(|group| fitted(group, FONT_SIZE, UPRIGHT)).collect();
    let top = frame.bottom + 8.0;
    // Where there are more groups than lines of text next to each other, some have no name.
    let every = (14.0 / slot).ceil().max(1.0) as usize;
    for (at, name) in names.iter().enumerate().step_by(every) {
        pen.written(name, (middle(at), top), Anchor::End, Weight::Regular, Direction::Up, Paint::Ink);
    }
    top + names.iter().map(|name| room_of(name, FONT_SIZE)).fold(0.0, f64::max)
}

/// Marks along the horizontal axis, as many as have room, and what it is. Returns where that ends.
fn below_parameters(pen: &mut Pen, frame: &Frame, axis: &Axis, label: &str) -> f64 {
    let mut free = 0.0;
    let mut y = frame.bottom + 6.0;
    for (value, mark) in &axis.marks {
        let (x, room) = (frame.x(axis, *value), room_of(mark, FONT_SIZE));
        pen.line(vec![(sharp(x), frame.bottom), (sharp(x), frame.bottom + 5.0)], 1.0, Paint::Reference);
        // The first and the last stay within the picture.
        let from = (x - room / 2.0).clamp(0.0, (frame.right + EDGE - 1.0 - room).max(0.0));
        if from >= free && room <= frame.right {
            pen.text(mark, (from + room / 2.0, y + LINE_HEIGHT / 2.0), Anchor::Middle, Weight::Regular);
            free = from + room + 6.0;
        }
    }
    y += LINE_HEIGHT;
    let middle = frame.left.midpoint(frame.right);
    for line in paragraph(label, FONT_SIZE, frame.right - frame.left, 2) {
        let at = (middle, y + LINE_HEIGHT / 2.0);
        pen.written(&line, at, Anchor::Middle, Weight::Regular, Direction::Right, Paint::Reference);
        y += LINE_HEIGHT;
    }
    y
}

/// A figure all of which can be drawn. A spread that cannot is left out.
fn whole([median, least, most]: Spread) -> Option<Spread> {
    let (least, most) = if drawable(least) && drawable(most) { (least, most) } else { (median, median) };
    drawable(median).then_some([median, least.min(median), most.max(median)])
}

fn whole_point((x, spread): LinePoint) -> Option<(f64, Spread)> {
    Some((x, whole(spread)?)).filter(|_| drawable(x))
}

/// The parts of a line between the points that were not measured.
fn unbroken(points: &[LinePoint]) -> Vec<Vec<(f64, Spread)>> {
    let parts = points.split(|point| whole_point(*point).is_none());
    parts.map(|part| part.iter().filter_map(|point| whole_point(*point)).collect()).collect()
}

#[cfg(test)]
mod tests;
