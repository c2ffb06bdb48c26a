//! Collects shapes, and cuts lines where they leave their axes.

use super::{Anchor, Direction, Paint, Point, Shape, Text, Weight};

/// What has been drawn so far.
#[derive(Debug, Default)]
pub struct Pen {
    /// The first at the bottom.
    pub shapes: Vec<Shape>,
}

impl Pen {
    /// A line through these points.
    pub fn line(&mut self, points: Vec<Point>, width: f64, paint: Paint) {
        self.shapes.push(Shape::Line { points, width, paint });
    }

    /// A text as most are: from left to right, in ink.
    pub fn text(&mut self, text: &str, at: Point, anchor: Anchor, weight: Weight) {
        self.written(text, at, anchor, weight, Direction::Right, Paint::Ink);
    }

    /// A text with all that can be said of it.
    pub fn written(
        &mut self,
        text: &str,
        at: Point,
        anchor: Anchor,
        weight: Weight,
        direction: Direction,
        paint: Paint,
    ) {
        let text = text.to_owned();
        self.shapes.push(Shape::Text(Text { text, at, anchor, weight, direction, paint }));
    }
}

/// The middle of the nearest unit, where a thin line fills whole pixels.
#[must_use]
pub fn sharp(value: f64) -> f64 {
    value.floor() + 0.5
}

/// The parts of a line between two heights.
#[must_use]
pub fn inside(points: &[Point], top: f64, bottom: f64) -> Vec<Vec<Point>> {
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
}
