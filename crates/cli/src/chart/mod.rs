//! Curves as pictures: a figure of the cost model, laid out once and written as SVG and as PNG.
//!
//! | file | what it is |
//! |---|---|
//! | [`layout`] | from curves and axes to lines, discs and texts at their places |
//! | [`svg`] | these as SVG |
//! | [`raster`] | these as pixels |
//! | [`png`] | pixels as PNG |
//!
//! A picture is 800 units wide: an SVG of 800 pixels, a PNG of 1600, so that it is sharp on dense screens too. Nothing is
//! needed on the machine. The letters of the PNG are bitmaps that the program carries; those of the SVG are drawn by whoever
//! shows it, in a font that is narrower than the one that was measured, so that nothing overlaps.

pub mod layout;
pub mod png;
pub mod raster;
pub mod svg;

/// A place, from the top left corner, in units of which a picture is 800 wide.
pub type Point = (f64, f64);

/// Red, green and blue.
pub type Color = [u8; 3];

/// A picture as the shapes on it, the first at the bottom, on white.
#[derive(Debug)]
pub struct Picture {
    /// For those who cannot see it.
    pub title: String,
    pub width: f64,
    pub height: f64,
    pub shapes: Vec<Shape>,
}

/// What can be drawn.
#[derive(Debug)]
pub enum Shape {
    /// A line through all points, with round ends and corners.
    Line { points: Vec<Point>, width: f64, color: Color },
    /// A filled circle.
    Disc { center: Point, radius: f64, color: Color },
    /// A text.
    Text(Text),
}

/// A line of text.
#[derive(Debug)]
pub struct Text {
    pub text: String,
    /// Where it is held, by its `anchor` and half of its height.
    pub at: Point,
    pub anchor: Anchor,
    pub weight: Weight,
    pub direction: Direction,
    pub color: Color,
}

/// Which part of a text is at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// How heavy letters are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    Regular,
    Bold,
}

/// Where a text runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From left to right.
    Right,
    /// From bottom to top.
    Up,
}

/// The room that each letter takes in the PNG's font, in units. It is the same for all of them.
pub fn letter_width() -> f64 {
    raster::LETTER_WIDTH as f64 / raster::SCALE
}
