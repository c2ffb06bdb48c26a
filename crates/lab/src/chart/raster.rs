//! A picture as pixels.
//!
//! Lines and discs are drawn by distance: a pixel whose middle is half a pixel or more inside is covered, one half a
//! pixel or more outside is not, and between the two it is mixed. A line with many corners is first covered as a
//! whole and then mixed once, so that corners are not darker.

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};

use super::{Anchor, Color, Direction, Picture, Point, Shape, Text, Weight};

/// Pixels a unit.
pub const SCALE: f64 = 2.0;

/// The letters: 32 pixels with room for accents and tails, of which capitals are 17.
const LETTERS: RasterHeight = RasterHeight::Size32;

/// The pixels from one letter to the next, the same for all letters of both weights.
pub const LETTER_WIDTH: usize = get_raster_width(FontWeight::Regular, LETTERS);

/// Rows of pixels, three bytes each.
#[derive(Debug)]
pub struct Pixels {
    /// How many there are in a row.
    pub width: usize,
    /// How many rows there are.
    pub height: usize,
    /// Red, green and blue of each, row after row.
    pub rgb: Vec<u8>,
}

/// Draws a picture.
#[must_use]
pub fn draw(picture: &Picture) -> Pixels {
    let (width, height) = ((picture.width * SCALE).ceil() as usize, (picture.height * SCALE).ceil() as usize);
    let mut pixels = Pixels { width, height, rgb: vec![u8::MAX; width * height * 3] };
    for shape in &picture.shapes {
        match shape {
            Shape::Line { points, width, paint } => pixels.stroke(points, *width, paint.color()),
            Shape::Disc { center, radius, paint } => pixels.stroke(&[*center, *center], radius * 2.0, paint.color()),
            Shape::Rect { corner, size, paint } => pixels.fill(*corner, *size, paint.color()),
            Shape::Text(text) => pixels.write(text),
            Shape::Hint { .. } => {}
        }
    }
    pixels
}

impl Pixels {
    /// Mixes `color` into a pixel by `cover`, 0 to 1. Pixels that are not there are left alone.
    fn mix(&mut self, x: usize, y: usize, color: Color, cover: f64) {
        if x >= self.width || y >= self.height {
            return;
        }
        let at = (y * self.width + x) * 3;
        let Some(pixel) = self.rgb.get_mut(at..at + 3) else { return };
        for (old, new) in pixel.iter_mut().zip(color) {
            *old = (f64::from(*old) * (1.0 - cover) + f64::from(new) * cover).round() as u8;
        }
    }

    /// A line with round ends; one whose points are all the same is a disc.
    fn stroke(&mut self, points: &[Point], width: f64, color: Color) {
        let points: Vec<Point> = points.iter().map(|(x, y)| (x * SCALE, y * SCALE)).collect();
        let reach = width * SCALE / 2.0;
        let area = Area::around(&points, reach + 1.0, self.width, self.height);
        let mut cover = vec![0.0_f64; area.width() * area.height()];
        for pair in points.windows(2) {
            // Ends are round, also those of the thin straight lines of the axes: half a unit longer, which nobody sees.
            let near = Area::around(pair, reach + 1.0, self.width, self.height);
            for (x, y) in near.places() {
                let distance = distance((x as f64 + 0.5, y as f64 + 0.5), pair[0], pair[1]);
                let at = (y - area.top) * area.width() + (x - area.left);
                cover[at] = cover[at].max((reach + 0.5 - distance).clamp(0.0, 1.0));
            }
        }
        for ((x, y), cover) in area.places().zip(cover) {
            self.mix(x, y, color, cover);
        }
    }

    /// A rectangle; pixels at its edges are mixed by how much of them it covers.
    fn fill(&mut self, (x, y): Point, (width, height): (f64, f64), color: Color) {
        let (left, top, right, bottom) = (x * SCALE, y * SCALE, (x + width) * SCALE, (y + height) * SCALE);
        let covered = |pixel: usize, from: f64, to: f64| (to.min(pixel as f64 + 1.0) - from.max(pixel as f64)).max(0.0);
        let area = Area::around(&[(left, top), (right, bottom)], 0.0, self.width, self.height);
        for (x, y) in area.places() {
            self.mix(x, y, color, covered(x, left, right) * covered(y, top, bottom));
        }
    }

    /// A text, letter by letter.
    fn write(&mut self, text: &Text) {
        let weight = match text.weight {
            Weight::Regular => FontWeight::Regular,
            Weight::Bold => FontWeight::Bold,
        };
        let length = text.text.chars().count() * LETTER_WIDTH;
        let before = match text.anchor {
            Anchor::Start => 0,
            Anchor::Middle => length / 2,
            Anchor::End => length,
        };
        // The top left corner of the text, as if it ran to the right from the middle of its height.
        let (x, y) = ((text.at.0 * SCALE).round() as isize, (text.at.1 * SCALE).round() as isize);
        let (before, above) = (before.cast_signed(), (LETTERS.val() / 2).cast_signed());
        for (at, letter) in text.text.chars().enumerate() {
            // The font has all of ASCII; what it has not leaves a gap.
            let Some(letter) = get_raster(letter, weight, LETTERS) else { continue };
            for (row, line) in letter.rows().enumerate() {
                for (column, cover) in line.iter().enumerate() {
                    let along = (at * LETTER_WIDTH + column).cast_signed() - before;
                    let down = row.cast_signed() - above;
                    let (px, py) = match text.direction {
                        Direction::Right => (x + along, y + down),
                        Direction::Up => (x + down, y - along),
                    };
                    if let (Ok(px), Ok(py)) = (usize::try_from(px), usize::try_from(py)) {
                        self.mix(px, py, text.paint.color(), f64::from(*cover) / 255.0);
                    }
                }
            }
        }
    }
}

/// A rectangle of pixels, cut to the picture: from left and top to before right and bottom.
struct Area {
    left: usize,
    top: usize,
    right: usize,
    bottom: usize,
}

impl Area {
    /// All pixels no farther than `reach` from the rectangle around the points.
    fn around(points: &[Point], reach: f64, width: usize, height: usize) -> Self {
        let least = |of: fn(&Point) -> f64| points.iter().map(of).fold(f64::INFINITY, f64::min);
        let most = |of: fn(&Point) -> f64| points.iter().map(of).fold(f64::NEG_INFINITY, f64::max);
        // A cast of what is negative, or too large, ends at the range of the type.
        let (left, right) = ((least(|p| p.0) - reach).floor() as usize, (most(|p| p.0) + reach).ceil() as usize);
        let (top, bottom) = ((least(|p| p.1) - reach).floor() as usize, (most(|p| p.1) + reach).ceil() as usize);
        let (right, bottom) = (right.min(width), bottom.min(height));
        Self { left: left.min(right), top: top.min(bottom), right, bottom }
    }

    fn width(&self) -> usize {
        self.right - self.left
    }

    fn height(&self) -> usize {
        self.bottom - self.top
    }

    fn places(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (left, right) = (self.left, self.right);
        (self.top..self.bottom).flat_map(move |y| (left..right).map(move |x| (x, y)))
    }
}

/// How far a point is from the straight line between two others.
fn distance((x, y): Point, from: Point, to: Point) -> f64 {
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let length = dx * dx + dy * dy;
    let along = if length == 0.0 { 0.0 } else { (((x - from.0) * dx + (y - from.1) * dy) / length).clamp(0.0, 1.0) };
    (x - from.0 - along * dx).hypot(y - from.1 - along * dy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::Paint;

    const BLACK: Paint = Paint::Ink;

    fn drawn(shapes: Vec<Shape>) -> Pixels {
        draw(&Picture { title: String::new(), width: 40.0, height: 20.0, font_size: 12.0, shapes })
    }

    fn dark(pixels: &Pixels) -> Vec<(usize, usize)> {
        let is_dark = |at: &usize| pixels.rgb[at * 3] < 128;
        (0..pixels.width * pixels.height).filter(is_dark).map(|at| (at % pixels.width, at / pixels.width)).collect()
    }

    #[test]
    fn a_line_of_one_unit_in_the_middle_of_units_fills_two_rows() {
        let line = Shape::Line { points: vec![(10.0, 5.5), (30.0, 5.5)], width: 1.0, paint: BLACK };
        let pixels = drawn(vec![line]);
        assert_eq!((pixels.width, pixels.height), (80, 40));
        let dark = dark(&pixels);
        assert!(dark.iter().all(|(_, y)| [10, 11].contains(y)), "{dark:?}");
        assert!((40..=42).contains(&(dark.len() / 2)), "{}", dark.len());
    }

    #[test]
    fn a_disc_has_its_area() {
        let pixels = drawn(vec![Shape::Disc { center: (20.0, 10.0), radius: 5.0, paint: BLACK }]);
        let area = std::f64::consts::PI * 100.0;
        assert!((dark(&pixels).len() as f64 / area - 1.0).abs() < 0.05);
    }

    #[test]
    fn a_rectangle_has_its_area() {
        let pixels = drawn(vec![Shape::Rect { corner: (10.0, 5.0), size: (4.0, 2.5), paint: BLACK }]);
        assert_eq!(dark(&pixels).len(), 8 * 5);
        assert!(dark(&pixels).contains(&(20, 10)) && !dark(&pixels).contains(&(28, 10)));
    }

    #[test]
    fn all_letters_of_the_figures_are_in_the_font() {
        for number in bifold_vat::figures::NUMBERS {
            let figure = bifold_vat::figures::figure(number).unwrap();
            for shape in super::super::panels::picture(&figure).shapes {
                let Shape::Text(text) = shape else { continue };
                assert!(text.text.is_ascii(), "{}", text.text);
            }
        }
        assert_eq!(get_raster_width(FontWeight::Bold, LETTERS), LETTER_WIDTH);
    }

    #[test]
    fn what_is_partly_outside_is_cut() {
        let text = |at| {
            let (anchor, weight) = (Anchor::Middle, Weight::Regular);
            let text = "wide text".to_owned();
            Shape::Text(Text { text, at, anchor, weight, direction: Direction::Up, paint: BLACK })
        };
        let far = Shape::Line { points: vec![(-50.0, -50.0), (90.0, 90.0)], width: 3.0, paint: BLACK };
        let gone = Shape::Line { points: vec![(-50.0, -50.0), (-60.0, -60.0)], width: 3.0, paint: BLACK };
        let beyond = Shape::Disc { center: (500.0, 500.0), radius: 9.0, paint: BLACK };
        let pixels = drawn(vec![text((0.0, 0.0)), text((40.0, 20.0)), far, gone, beyond]);
        assert!(!dark(&pixels).is_empty());
    }
}
