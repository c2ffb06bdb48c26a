//! How series look, by their number: first each colour filled, then each colour hollow, then each in bands.
//!
//! | numbers | bars | lines | their marks |
//! |---|---|---|---|
//! | 0 to 7 | filled | through | filled |
//! | 8 to 15 | hollow | of dashes | hollow |
//! | 16 to 23 | in bands | of dots | hollow |
//!
//! More colours than [`SERIES`] could not be told apart by people who see few of them, nor on light and on dark
//! ground alike. Filled and hollow differ for everyone, on any ground, and in bars of a few pixels, where the stripes
//! of a hatching run together. From 24 on all comes again.
//!
//! All of it is made of the shapes that every picture is made of, so that it is the same on a page and in a file of
//! its own.

use super::{Paint, Point, SERIES, Shape, pen::Pen};

/// How thick the edge of a hollow bar is, at most.
const EDGE: f64 = 2.0;
/// How high bands are, and the gaps between them.
const BAND: f64 = 3.0;
/// The radius of a mark, and of the hole in a hollow one.
const MARK: f64 = 3.5;
const HOLE: f64 = 1.9;

/// What tells series of one colour from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Texture {
    Filled,
    Hollow,
    Banded,
}

impl Texture {
    fn of(series: usize) -> Self {
        match series / SERIES % 3 {
            0 => Self::Filled,
            1 => Self::Hollow,
            _ => Self::Banded,
        }
    }
}

/// Draws a bar, or its sample in a legend.
pub fn bar(pen: &mut Pen, series: usize, corner: Point, size: (f64, f64)) {
    pen.shapes.push(Shape::Rect { corner, size, paint: Paint::Series(series) });
    let ((x, y), (width, height)) = (corner, size);
    let mut hole = |corner, size| pen.shapes.push(Shape::Rect { corner, size, paint: Paint::Ground });
    match Texture::of(series) {
        Texture::Filled => {}
        Texture::Hollow => {
            // Half of a bar is hollow at least, however narrow or low it is.
            let (side, end) = (EDGE.min(width / 4.0), EDGE.min(height / 4.0));
            hole((x + side, y + end), (width - 2.0 * side, height - 2.0 * end));
        }
        Texture::Banded => {
            let mut from = BAND;
            while from < height {
                hole((x, y + from), (width, BAND.min(height - from)));
                from += 2.0 * BAND;
            }
        }
    }
}

/// Draws a line, or its sample in a legend.
pub fn line(pen: &mut Pen, series: usize, points: Vec<Point>, width: f64) {
    let (dash, gap) = match Texture::of(series) {
        Texture::Filled => return pen.line(points, width, Paint::Series(series)),
        Texture::Hollow => (5.0, 3.0),
        Texture::Banded => (2.0, 3.0),
    };
    for part in dashes(&points, dash, gap) {
        pen.line(part, width, Paint::Series(series));
    }
}

/// Draws the mark of a point on a line.
pub fn mark(pen: &mut Pen, series: usize, center: Point) {
    pen.shapes.push(Shape::Disc { center, radius: MARK, paint: Paint::Series(series) });
    if Texture::of(series) != Texture::Filled {
        pen.shapes.push(Shape::Disc { center, radius: HOLE, paint: Paint::Ground });
    }
}

/// The parts of a line that are drawn, by its length along all corners.
fn dashes(points: &[Point], dash: f64, gap: f64) -> Vec<Vec<Point>> {
    let mut parts: Vec<Vec<Point>> = Vec::new();
    let (mut drawn, mut left) = (false, 0.0);
    for pair in points.windows(2) {
        let ((x, y), (dx, dy)) = (pair[0], (pair[1].0 - pair[0].0, pair[1].1 - pair[0].1));
        let length = dx.hypot(dy);
        let at = |along: f64| (x + dx * along / length, y + dy * along / length);
        let mut along = 0.0;
        while length - along > left {
            along += left;
            drawn = !drawn;
            left = if drawn { dash } else { gap };
            match parts.last_mut() {
                _ if drawn => parts.push(vec![at(along)]),
                Some(part) => part.push(at(along)),
                None => {}
            }
        }
        left -= length - along;
        // A dash goes on around the corner.
        if let Some(part) = parts.last_mut().filter(|_| drawn) {
            part.push(pair[1]);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(points: &[Point]) -> f64 {
        points.windows(2).map(|pair| (pair[1].0 - pair[0].0).hypot(pair[1].1 - pair[0].1)).sum()
    }

    #[test]
    fn dashes_go_around_corners_and_end_with_the_line() {
        let parts = dashes(&[(0.0, 0.0), (11.0, 0.0), (11.0, 9.0)], 4.0, 2.0);
        let expected = [
            vec![(0.0, 0.0), (4.0, 0.0)],
            vec![(6.0, 0.0), (10.0, 0.0)],
            vec![(11.0, 1.0), (11.0, 5.0)],
            vec![(11.0, 7.0), (11.0, 9.0)],
        ];
        assert_eq!(parts, expected);
        let around = dashes(&[(0.0, 0.0), (3.0, 0.0), (3.0, 0.0), (3.0, 5.0)], 4.0, 2.0);
        assert!((length(&around[0]) - 4.0).abs() < 1e-9 && (length(&around[1]) - 2.0).abs() < 1e-9, "{around:?}");
        assert!(dashes(&[(1.0, 1.0)], 4.0, 2.0).is_empty());
    }

    #[test]
    fn series_of_one_colour_differ_as_bars_as_lines_and_in_the_legend() {
        let shapes = |draw: &dyn Fn(&mut Pen)| {
            let mut pen = Pen::default();
            draw(&mut pen);
            // Whatever differs but the number of the series, which has the same colour.
            format!("{:?}", pen.shapes).replace("Series(9)", "Series(1)").replace("Series(17)", "Series(1)")
        };
        for size in [(12.0, 12.0), (1.5, 190.0), (56.0, 8.0)] {
            let [a, b, c] = [1, 9, 17].map(|series| shapes(&|pen: &mut Pen| bar(pen, series, (5.0, 5.0), size)));
            assert!(a != b && b != c && a != c, "{a} {b} {c}");
        }
        let sample = || vec![(0.0, 0.0), (20.0, 0.0)];
        let [a, b, c] = [1, 9, 17].map(|series| shapes(&|pen: &mut Pen| line(pen, series, sample(), 2.5)));
        assert!(a != b && b != c && a != c, "{a} {b} {c}");
        let [a, b] = [1, 9].map(|series| shapes(&|pen: &mut Pen| mark(pen, series, (5.0, 5.0))));
        assert_ne!(a, b);
    }

    #[test]
    fn holes_stay_within_their_bars() {
        for (series, size) in [(8, (12.0, 0.4)), (8, (0.3, 100.0)), (16, (10.0, 100.5)), (16, (10.0, 1.0))] {
            let mut pen = Pen::default();
            bar(&mut pen, series, (5.0, 7.0), size);
            for shape in &pen.shapes {
                let Shape::Rect { corner, size: (width, height), .. } = shape else { panic!("{shape:?}") };
                assert!(corner.0 >= 5.0 && corner.1 >= 7.0 && *width > 0.0 && *height > 0.0, "{shape:?}");
                assert!(
                    corner.0 + width <= 5.0 + size.0 + 1e-9 && corner.1 + height <= 7.0 + size.1 + 1e-9,
                    "{shape:?}"
                );
            }
        }
    }
}
