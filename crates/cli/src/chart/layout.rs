//! From curves and axes to shapes at their places: a title, then each panel with its title, its legend and its curves.

use bifold_vat::figures::{Axis, Curve, CurveKind, Figure, Panel, Scale};

use super::{Anchor, Color, Direction, Picture, Point, Shape, Text, Weight, letter_width};

/// Colours that differ for people who see few colours, too (Okabe and Ito, "Color Universal Design", 2008).
const COLORS: [Color; 6] = [[0, 114, 178], [213, 94, 0], [0, 158, 115], [204, 121, 167], [230, 159, 0], [86, 180, 233]];
const INK: Color = [34, 34, 34];
const FAINT: Color = [225, 225, 225];
const REFERENCE: Color = [110, 110, 110];

const WIDTH: f64 = 800.0;
/// Left of the curves: the marks of the axis and its label.
const LEFT: f64 = 76.0;
const RIGHT: f64 = 20.0;
/// Halfway along the horizontal axis.
const MIDDLE: f64 = LEFT.midpoint(WIDTH - RIGHT);
const CURVES_HEIGHT: f64 = 300.0;
const LINE_HEIGHT: f64 = 22.0;
/// The dash before a name in the legend, with the room around it.
const SAMPLE: f64 = 34.0;
const GAP: f64 = 24.0;

/// Lays out a figure of the paper.
pub fn picture(figure: &Figure) -> Picture {
    panels(format!("VAT figure {}: {}", figure.number, figure.title), &figure.panels)
}

/// Lays out panels under a title, one below the other.
pub fn panels(title: String, panels: &[Panel]) -> Picture {
    let mut pen = Pen { shapes: Vec::new() };
    let mut y = 28.0;
    pen.text(&title, (MIDDLE, y), Anchor::Middle, Weight::Bold);
    y += LINE_HEIGHT;
    for (panel, letter) in panels.iter().zip('a'..='z') {
        y = pen.panel(panel, letter, y + GAP / 2.0);
    }
    Picture { title, width: WIDTH, height: (y + GAP / 2.0).round(), shapes: pen.shapes }
}

/// Where the curves of a panel are.
struct Frame<'a> {
    panel: &'a Panel,
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

impl Frame<'_> {
    fn x(&self, value: f64) -> f64 {
        self.left + share(&self.panel.x, value) * (self.right - self.left)
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom - share(&self.panel.y, value) * (self.bottom - self.top)
    }
}

/// How far along its axis a value is, 0 to 1 within the range.
fn share(axis: &Axis, value: f64) -> f64 {
    let (from, to) = axis.range;
    match axis.scale {
        Scale::Linear => (value - from) / (to - from),
        Scale::Log => (value / from).ln() / (to / from).ln(),
    }
}

/// Collects shapes.
struct Pen {
    shapes: Vec<Shape>,
}

impl Pen {
    /// Draws a panel from `y` down and answers where it ends.
    fn panel(&mut self, panel: &Panel, letter: char, y: f64) -> f64 {
        let title = format!("({letter}) {}", panel.title);
        self.text(&title, (MIDDLE, y + LINE_HEIGHT / 2.0), Anchor::Middle, Weight::Bold);
        let top = sharp(self.legend(panel, y + LINE_HEIGHT) + 8.0);
        let frame = Frame { panel, left: sharp(LEFT), top, right: sharp(WIDTH - RIGHT), bottom: top + CURVES_HEIGHT };
        self.axes(&frame);
        for (curve, color) in panel.curves.iter().zip(COLORS.into_iter().cycle()) {
            self.curve(&frame, curve, color);
        }
        frame.bottom + 2.0 * LINE_HEIGHT + 8.0
    }

    /// Draws the names of the curves in rows and answers where they end.
    fn legend(&mut self, panel: &Panel, y: f64) -> f64 {
        let widest = panel.curves.iter().map(|curve| curve.name.len()).max().unwrap_or(0);
        let column = SAMPLE + widest as f64 * letter_width() + 20.0;
        let most = (((WIDTH - RIGHT - LEFT) / column).floor() as usize).max(1);
        // As few rows as there is room for, all about equally long.
        let columns = panel.curves.len().div_ceil(panel.curves.len().div_ceil(most).max(1)).max(1);
        for ((at, curve), color) in panel.curves.iter().enumerate().zip(COLORS.into_iter().cycle()) {
            let x = LEFT + (at % columns) as f64 * column;
            let y = y + ((at / columns) as f64 + 0.5) * LINE_HEIGHT;
            self.line(vec![(x, y), (x + SAMPLE - 10.0, y)], 2.5, color);
            if curve.kind == CurveKind::Levels {
                self.shapes.push(Shape::Disc { center: (x + (SAMPLE - 10.0) / 2.0, y), radius: 3.5, color });
            }
            self.text(&curve.name, (x + SAMPLE, y), Anchor::Start, Weight::Regular);
        }
        y + panel.curves.len().div_ceil(columns) as f64 * LINE_HEIGHT
    }

    fn axes(&mut self, frame: &Frame<'_>) {
        let Frame { panel, left, top, right, bottom } = *frame;
        for tick in &panel.x.ticks {
            let x = sharp(frame.x(*tick));
            self.line(vec![(x, top), (x, bottom)], 1.0, FAINT);
            self.line(vec![(x, bottom), (x, bottom + 5.0)], 1.0, INK);
            self.text(&tick.to_string(), (x, bottom + 17.0), Anchor::Middle, Weight::Regular);
        }
        for tick in &panel.y.ticks {
            let y = sharp(frame.y(*tick));
            self.line(vec![(left, y), (right, y)], 1.0, FAINT);
            self.line(vec![(left - 5.0, y), (left, y)], 1.0, INK);
            self.text(&tick.to_string(), (left - 10.0, y), Anchor::End, Weight::Regular);
        }
        if let Some((value, meaning)) = panel.reference {
            self.reference(frame, value, meaning);
        }
        self.line(vec![(left, top), (left, bottom), (right, bottom)], 1.0, INK);
        self.text(panel.x.label, (left.midpoint(right), bottom + 38.0), Anchor::Middle, Weight::Regular);
        let (at, anchor) = ((22.0, top.midpoint(bottom)), Anchor::Middle);
        self.written(panel.y.label, at, anchor, Weight::Regular, Direction::Up, INK);
    }

    /// A dashed line across, with what it means above it, right of the middle where no curve is near.
    fn reference(&mut self, frame: &Frame<'_>, value: f64, meaning: &str) {
        let y = sharp(frame.y(value));
        let mut x = frame.left;
        while x < frame.right {
            self.line(vec![(x, y), ((x + 6.0).min(frame.right), y)], 1.0, REFERENCE);
            x += 12.0;
        }
        let at = (frame.left + 0.6 * (frame.right - frame.left), y - 10.0);
        self.written(meaning, at, Anchor::Middle, Weight::Regular, Direction::Right, REFERENCE);
    }

    fn curve(&mut self, frame: &Frame<'_>, curve: &Curve, color: Color) {
        let places: Vec<Point> = curve.points.iter().map(|&(x, y)| (frame.x(x), frame.y(y))).collect();
        for points in inside(&places, frame.top, frame.bottom) {
            self.line(points, 2.0, color);
        }
        if curve.kind == CurveKind::Levels {
            for center in places.into_iter().filter(|(_, y)| (frame.top..=frame.bottom).contains(y)) {
                self.shapes.push(Shape::Disc { center, radius: 3.5, color });
            }
        }
    }

    fn line(&mut self, points: Vec<Point>, width: f64, color: Color) {
        self.shapes.push(Shape::Line { points, width, color });
    }

    fn text(&mut self, text: &str, at: Point, anchor: Anchor, weight: Weight) {
        self.written(text, at, anchor, weight, Direction::Right, INK);
    }

    fn written(&mut self, text: &str, at: Point, anchor: Anchor, weight: Weight, direction: Direction, color: Color) {
        let text = text.to_owned();
        self.shapes.push(Shape::Text(Text { text, at, anchor, weight, direction, color }));
    }
}

/// The middle of the nearest unit, where a thin line fills whole pixels in SVG and in PNG.
fn sharp(value: f64) -> f64 {
    value.floor() + 0.5
}

/// The parts of a line between two heights.
fn inside(points: &[Point], top: f64, bottom: f64) -> Vec<Vec<Point>> {
    let mut parts: Vec<Vec<Point>> = Vec::new();
    for pair in points.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let Some((from, to)) = clipped(from, to, top, bottom) else { continue };
        match parts.last_mut() {
            Some(part) if part.last() == Some(&from) => part.push(to),
            _ => parts.push(vec![from, to]),
        }
    }
    parts
}

/// The part of a straight line between two heights, if there is one.
fn clipped(from: Point, to: Point, top: f64, bottom: f64) -> Option<(Point, Point)> {
    let (low, high) = (from.1.min(to.1), from.1.max(to.1));
    if high < top || low > bottom {
        return None;
    }
    let at = |y: f64| {
        let bound = y.clamp(top, bottom);
        // Only points outside are moved, so the line is not level and the division is sound.
        let x = if bound == y { None } else { Some(from.0 + (bound - from.1) / (to.1 - from.1) * (to.0 - from.0)) };
        (x, bound)
    };
    let ((from_x, from_y), (to_x, to_y)) = (at(from.1), at(to.1));
    Some(((from_x.unwrap_or(from.0), from_y), (to_x.unwrap_or(to.0), to_y)))
}

#[cfg(test)]
mod tests {
    use bifold_vat::figures;

    use super::*;

    #[test]
    fn a_line_is_cut_where_it_leaves() {
        let zigzag = [(0.0, -10.0), (10.0, 10.0), (20.0, 10.0), (30.0, 30.0), (40.0, 40.0), (50.0, 0.0)];
        let parts = inside(&zigzag, 0.0, 20.0);
        assert_eq!(
            parts,
            [vec![(5.0, 0.0), (10.0, 10.0), (20.0, 10.0), (25.0, 20.0)], vec![(45.0, 20.0), (50.0, 0.0)]]
        );
    }

    #[test]
    fn nothing_leaves_the_picture() {
        for number in figures::NUMBERS {
            let picture = picture(&figures::figure(number).unwrap());
            let (width, height) = (picture.width, picture.height);
            let on_it = |(x, y): Point| (0.0..=width).contains(&x) && (0.0..=height).contains(&y);
            for shape in &picture.shapes {
                match shape {
                    Shape::Line { points, .. } => assert!(points.iter().all(|p| on_it(*p)), "{shape:?}"),
                    Shape::Disc { center, .. } => assert!(on_it(*center), "{shape:?}"),
                    Shape::Text(text) => {
                        let room = text.text.len() as f64 * letter_width();
                        let before = match text.anchor {
                            Anchor::Start => 0.0,
                            Anchor::Middle => room / 2.0,
                            Anchor::End => room,
                        };
                        let (x, y) = text.at;
                        let (from, to) = match text.direction {
                            Direction::Right => ((x - before, y), (x - before + room, y)),
                            Direction::Up => ((x, y + before), (x, y + before - room)),
                        };
                        assert!(on_it(from) && on_it(to), "{shape:?}");
                    }
                }
            }
        }
    }
}
