//! Charts of the cost model and of experiments, laid out as shapes and written as SVG.
//!
//! | file | what it is |
//! |---|---|
//! | [`panels`] | from curves and axes of the cost model to lines, discs and texts at their places |
//! | [`plot`] | the same of an experiment's charts: bars and lines with their spread |
//! | [`series`] | what tells their series apart where there are more than colours |
//! | [`axis`] | which marks an axis has, and where values are on it |
//! | [`letters`] | how much room text takes, and how it is made to fit |
//! | [`numbers`] | numbers as people read them |
//! | [`pen`] | collects shapes |
//! | [`svg`] | these as SVG |
//!
//! A unit of a picture is a pixel of its SVG. The machine needs no fonts: the viewer draws the text, in a font that is
//! narrower than the one it was measured with, so that nothing overlaps.

pub mod axis;
pub mod letters;
pub mod numbers;
pub mod panels;
pub mod pen;
pub mod plot;
pub mod series;
pub mod svg;

/// A place, from the top left corner, in units of the picture.
pub type Point = (f64, f64);

/// Red, green and blue.
pub type Color = [u8; 3];

/// A picture as the shapes on it, the first at the bottom, on white unless its colours are the page's.
#[derive(Debug)]
pub struct Picture {
    /// For those who cannot see it.
    pub title: String,
    /// How wide it is, in units.
    pub width: f64,
    /// How high it is, in units.
    pub height: f64,
    /// The font size, in units.
    pub font_size: f64,
    /// What is on it.
    pub shapes: Vec<Shape>,
}

/// What can be drawn.
#[derive(Debug)]
pub enum Shape {
    /// A line through all points, with round ends and corners.
    Line {
        /// Where it goes.
        points: Vec<Point>,
        /// How thick it is, in units.
        width: f64,
        /// Its colour.
        paint: Paint,
    },
    /// A filled circle.
    Disc {
        /// Where it is.
        center: Point,
        /// How large it is, in units.
        radius: f64,
        /// Its colour.
        paint: Paint,
    },
    /// A filled rectangle.
    Rect {
        /// Its corner at the top left.
        corner: Point,
        /// Its width and its height.
        size: (f64, f64),
        /// Its colour.
        paint: Paint,
    },
    /// A text.
    Text(Text),
    /// A place that says something to those who point at it. Nothing is seen of it.
    Hint {
        /// Its corner at the top left.
        corner: Point,
        /// Its width and its height.
        size: (f64, f64),
        /// What it says.
        text: String,
    },
}

/// A line of text.
#[derive(Debug)]
pub struct Text {
    /// What it says.
    pub text: String,
    /// Where it is held, by its `anchor` and half of its height.
    pub at: Point,
    /// Which part of it is there.
    pub anchor: Anchor,
    /// How heavy its letters are.
    pub weight: Weight,
    /// Where it runs.
    pub direction: Direction,
    /// Its colour.
    pub paint: Paint,
}

/// Which part of a text is at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// Its begin.
    Start,
    /// Its middle.
    Middle,
    /// Its end.
    End,
}

/// How heavy letters are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// As in most text.
    Regular,
    /// As in titles.
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

/// What a colour is for. Which one that is, those decide who draw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paint {
    /// A curve or a bar by its number. There are [`SERIES`] colours, which come again after the last: [`series`]
    /// tells those apart.
    Series(usize),
    /// Axes and text.
    Ink,
    /// The lines behind the curves.
    Faint,
    /// What is less than text and more than a line behind the curves.
    Reference,
    /// What everything stands on.
    Ground,
}

/// How many colours there are for series.
pub const SERIES: usize = 8;

/// Colours that differ for people who see few colours, too: six of Okabe and Ito ("Color Universal Design", 2008), a
/// yellow dark enough for white ground, and grey.
const COLORS: [Color; SERIES] = [
    [0, 114, 178],
    [213, 94, 0],
    [0, 158, 115],
    [204, 121, 167],
    [230, 159, 0],
    [86, 180, 233],
    [143, 132, 0],
    [102, 102, 102],
];

impl Paint {
    /// The colour on white.
    #[must_use]
    pub fn color(self) -> Color {
        match self {
            Self::Series(number) => COLORS[number % SERIES],
            Self::Ink => [34, 34, 34],
            Self::Faint => [225, 225, 225],
            Self::Reference => [110, 110, 110],
            Self::Ground => [255, 255, 255],
        }
    }
}

/// The first shape that leaves its picture, where a text is as long as `room` says.
#[cfg(test)]
pub(crate) fn outside(picture: &Picture, room: impl Fn(&Text) -> f64) -> Option<&Shape> {
    let (width, height) = (picture.width, picture.height);
    let on_it = |(x, y): Point| (0.0..=width).contains(&x) && (0.0..=height).contains(&y);
    picture.shapes.iter().find(|shape| match shape {
        Shape::Line { points, .. } => !points.iter().all(|point| on_it(*point)),
        Shape::Disc { center, .. } => !on_it(*center),
        Shape::Rect { corner: (x, y), size, .. } | Shape::Hint { corner: (x, y), size, .. } => {
            !(on_it((*x, *y)) && on_it((x + size.0, y + size.1)))
        }
        Shape::Text(text) => {
            let room = room(text);
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
            !(on_it(from) && on_it(to))
        }
    })
}
