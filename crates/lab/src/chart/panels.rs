//! From curves and axes to shapes at their places: a title, then each panel with its title, its legend and its curves.

use bifold_vat::figures::{Axis, Curve, CurveKind, Figure, Panel, Scale};

use super::{
    Anchor, Direction, Paint, Picture, Point, Shape, Weight, letters,
    pen::{Pen, inside, sharp},
};

const WIDTH: f64 = 800.0;
/// Left of the curves: the marks of the axis and its label.
const LEFT: f64 = 76.0;
const RIGHT: f64 = 20.0;
/// Halfway along the horizontal axis.
const MIDDLE: f64 = LEFT.midpoint(WIDTH - RIGHT);
const CURVES_HEIGHT: f64 = 300.0;
const LINE_HEIGHT: f64 = 22.0;
const FONT_SIZE: f64 = 12.0;
/// The dash before a name in the legend, with the room around it.
const SAMPLE: f64 = 34.0;
const GAP: f64 = 24.0;

/// Lays out a figure of the paper.
#[must_use]
pub fn picture(figure: &Figure) -> Picture {
    stacked(format!("VAT figure {}: {}", figure.number, figure.title), &figure.panels)
}

/// Lays out panels under a title, one below the other.
#[must_use]
pub fn stacked(title: String, panels: &[Panel]) -> Picture {
    let mut pen = Pen::default();
    let mut y = 28.0;
    pen.text(&title, (MIDDLE, y), Anchor::Middle, Weight::Bold);
    y += LINE_HEIGHT;
    for (panel, letter) in panels.iter().zip('a'..='z') {
        y = pen.panel(panel, letter, y + GAP / 2.0);
    }
    Picture { title, width: WIDTH, height: (y + GAP / 2.0).round(), font_size: FONT_SIZE, shapes: pen.shapes }
}

/// Where the curves of a panel are.
struct PanelFrame<'a> {
    panel: &'a Panel,
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

impl PanelFrame<'_> {
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

impl Pen {
    /// Draws a panel from `y` down. Returns where it ends.
    fn panel(&mut self, panel: &Panel, letter: char, y: f64) -> f64 {
        let title = format!("({letter}) {}", panel.title);
        self.text(&title, (MIDDLE, y + LINE_HEIGHT / 2.0), Anchor::Middle, Weight::Bold);
        let top = sharp(self.legend(panel, y + LINE_HEIGHT) + 8.0);
        let frame =
            PanelFrame { panel, left: sharp(LEFT), top, right: sharp(WIDTH - RIGHT), bottom: top + CURVES_HEIGHT };
        self.axes(&frame);
        for (curve, paint) in panel.curves.iter().zip((0..).map(Paint::Series)) {
            self.curve(&frame, curve, paint);
        }
        frame.bottom + 2.0 * LINE_HEIGHT + 8.0
    }

    /// Draws the names of the curves in rows. Returns where they end.
    fn legend(&mut self, panel: &Panel, y: f64) -> f64 {
        let widest = panel.curves.iter().map(|curve| letters::width(&curve.name, FONT_SIZE)).fold(0.0, f64::max);
        let column = SAMPLE + widest + 20.0;
        let most = (((WIDTH - RIGHT - LEFT) / column).floor() as usize).max(1);
        // As few rows as there is room for, all about equally long.
        let columns = panel.curves.len().div_ceil(panel.curves.len().div_ceil(most).max(1)).max(1);
        for ((at, curve), paint) in panel.curves.iter().enumerate().zip((0..).map(Paint::Series)) {
            let x = LEFT + (at % columns) as f64 * column;
            let y = y + ((at / columns) as f64 + 0.5) * LINE_HEIGHT;
            self.line(vec![(x, y), (x + SAMPLE - 10.0, y)], 2.5, paint);
            if curve.kind == CurveKind::Levels {
                self.shapes.push(Shape::Disc { center: (x + (SAMPLE - 10.0) / 2.0, y), radius: 3.5, paint });
            }
            self.text(&curve.name, (x + SAMPLE, y), Anchor::Start, Weight::Regular);
        }
        y + panel.curves.len().div_ceil(columns) as f64 * LINE_HEIGHT
    }

    fn axes(&mut self, frame: &PanelFrame<'_>) {
        let PanelFrame { panel, left, top, right, bottom } = *frame;
        for tick in &panel.x.ticks {
            let x = sharp(frame.x(*tick));
            self.line(vec![(x, top), (x, bottom)], 1.0, Paint::Faint);
            self.line(vec![(x, bottom), (x, bottom + 5.0)], 1.0, Paint::Ink);
            self.text(&tick.to_string(), (x, bottom + 17.0), Anchor::Middle, Weight::Regular);
        }
        for tick in &panel.y.ticks {
            let y = sharp(frame.y(*tick));
            self.line(vec![(left, y), (right, y)], 1.0, Paint::Faint);
            self.line(vec![(left - 5.0, y), (left, y)], 1.0, Paint::Ink);
            self.text(&tick.to_string(), (left - 10.0, y), Anchor::End, Weight::Regular);
        }
        if let Some((value, meaning)) = panel.reference {
            self.reference(frame, value, meaning);
        }
        self.line(vec![(left, top), (left, bottom), (right, bottom)], 1.0, Paint::Ink);
        self.text(panel.x.label, (left.midpoint(right), bottom + 38.0), Anchor::Middle, Weight::Regular);
        let (at, anchor) = ((22.0, top.midpoint(bottom)), Anchor::Middle);
        self.written(panel.y.label, at, anchor, Weight::Regular, Direction::Up, Paint::Ink);
    }

    /// A dashed line across, with what it means above it, right of the middle where no curve is near.
    fn reference(&mut self, frame: &PanelFrame<'_>, value: f64, meaning: &str) {
        let y = sharp(frame.y(value));
        let mut x = frame.left;
        while x < frame.right {
            self.line(vec![(x, y), ((x + 6.0).min(frame.right), y)], 1.0, Paint::Reference);
            x += 12.0;
        }
        let at = (frame.left + 0.6 * (frame.right - frame.left), y - 10.0);
        self.written(meaning, at, Anchor::Middle, Weight::Regular, Direction::Right, Paint::Reference);
    }

    fn curve(&mut self, frame: &PanelFrame<'_>, curve: &Curve, paint: Paint) {
        let places: Vec<Point> = curve.points.iter().map(|&(x, y)| (frame.x(x), frame.y(y))).collect();
        for points in inside(&places, frame.top, frame.bottom) {
            self.line(points, 2.0, paint);
        }
        if curve.kind == CurveKind::Levels {
            for center in places.into_iter().filter(|(_, y)| (frame.top..=frame.bottom).contains(y)) {
                self.shapes.push(Shape::Disc { center, radius: 3.5, paint });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bifold_vat::figures;

    use super::*;
    use crate::chart::outside;

    #[test]
    fn nothing_leaves_the_picture() {
        for number in figures::NUMBERS {
            let picture = picture(&figures::figure(number).unwrap());
            let left = outside(&picture, |text| letters::width(&text.text, FONT_SIZE));
            assert!(left.is_none(), "figure {number}: {left:?}");
        }
    }
}
