//! A picture as SVG 1.1.

use std::{borrow::Cow, fmt::Write};

use super::{Anchor, Direction, Paint, Picture, Point, SERIES, Shape, Text, Weight};

/// Where colours come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colors {
    /// They are in the picture, which is a file of its own on white.
    Fixed,
    /// They are the variables `--s1` to `--s8`, `--grid`, `--muted` and `--ground` and the text colour of the page
    /// that the picture is a part of, on the ground of the page and in its font.
    Themed,
}

/// Draws a picture.
#[must_use]
pub fn draw(picture: &Picture, colors: Colors) -> String {
    let mut svg = String::new();
    // Writing to a string cannot fail.
    let _ = head(&mut svg, picture, colors);
    for shape in &picture.shapes {
        let _ = match shape {
            Shape::Line { points, width, paint } => writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{width}\" \
                stroke-linejoin=\"round\"/>",
                places(points),
                colors.of(*paint)
            ),
            Shape::Disc { center: (x, y), radius, paint } => {
                let (x, y, color) = (short(*x), short(*y), colors.of(*paint));
                writeln!(svg, "<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" fill=\"{color}\"/>")
            }
            Shape::Rect { corner, size, paint } => {
                writeln!(svg, "<rect {} fill=\"{}\"/>", area(*corner, *size), colors.of(*paint))
            }
            Shape::Text(text) => writeln!(svg, "{}", element(text, colors)),
            Shape::Hint { corner, size, text } => {
                let (area, text) = (area(*corner, *size), escaped(text));
                writeln!(svg, "<rect {area} fill=\"none\" pointer-events=\"all\"><title>{text}</title></rect>")
            }
        };
    }
    svg.push_str("</svg>\n");
    svg
}

/// A picture of its own has a title, which those who cannot see it hear. On a page this is a label: the title would
/// appear wherever somebody points.
fn head(svg: &mut String, picture: &Picture, colors: Colors) -> std::fmt::Result {
    let Picture { title, width, height, font_size, .. } = picture;
    let (title, view) = (escaped(title), format!("viewBox=\"0 0 {width} {height}\""));
    match colors {
        Colors::Fixed => writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" {view} \
             font-family=\"sans-serif\" font-size=\"{font_size}\">\n<title>{title}</title>\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>"
        ),
        Colors::Themed => {
            writeln!(svg, "<svg class=\"chart\" {view} font-size=\"{font_size}\" role=\"img\" aria-label=\"{title}\">")
        }
    }
}

impl Colors {
    fn of(self, paint: Paint) -> Cow<'static, str> {
        match (self, paint) {
            (Self::Fixed, _) => {
                let [red, green, blue] = paint.color();
                format!("#{red:02x}{green:02x}{blue:02x}").into()
            }
            (Self::Themed, Paint::Series(number)) => format!("var(--s{})", number % SERIES + 1).into(),
            (Self::Themed, Paint::Ink) => "currentColor".into(),
            (Self::Themed, Paint::Faint) => "var(--grid)".into(),
            (Self::Themed, Paint::Reference) => "var(--muted)".into(),
            (Self::Themed, Paint::Ground) => "var(--ground)".into(),
        }
    }
}

fn element(text: &Text, colors: Colors) -> String {
    let (x, y) = (short(text.at.0), short(text.at.1));
    let anchor = match text.anchor {
        Anchor::Start => "start",
        Anchor::Middle => "middle",
        Anchor::End => "end",
    };
    let weight = match text.weight {
        Weight::Regular => "",
        Weight::Bold => " font-weight=\"bold\"",
    };
    let turn = match text.direction {
        Direction::Right => String::new(),
        Direction::Up => format!(" transform=\"rotate(-90 {x} {y})\""),
    };
    // `dy` and not `dominant-baseline`, which some viewers do not know: capitals are about 0.7 of the font's size high.
    let (color, text) = (colors.of(text.paint), escaped(&text.text));
    format!(
        "<text x=\"{x}\" y=\"{y}\" dy=\"0.35em\" text-anchor=\"{anchor}\" fill=\"{color}\"{weight}{turn}>{text}</text>"
    )
}

fn area((x, y): Point, (width, height): (f64, f64)) -> String {
    format!("x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"", short(x), short(y), short(width), short(height))
}

fn places(points: &[Point]) -> String {
    points.iter().map(|(x, y)| format!("{},{}", short(*x), short(*y))).collect::<Vec<_>>().join(" ")
}

/// A coordinate to a hundredth of a pixel.
fn short(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Text as XML has it, in elements and in attributes. What XML cannot have at all becomes the sign for that.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\t' | '\n' | '\r' => escaped.push(' '),
            '\0'..'\x20' | '\x7f'..'\u{a0}' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture() -> Picture {
        let text = Text {
            text: "a < b & c".to_owned(),
            at: (1.0, 2.0),
            anchor: Anchor::End,
            weight: Weight::Bold,
            direction: Direction::Up,
            paint: Paint::Series(1),
        };
        let shapes = vec![
            Shape::Line { points: vec![(0.5, 0.0), (1.0 / 3.0, 2.0)], width: 2.0, paint: Paint::Ink },
            Shape::Disc { center: (3.0, 4.0), radius: 1.5, paint: Paint::Ink },
            Shape::Rect { corner: (1.0, 2.0), size: (3.0, 4.0), paint: Paint::Series(8) },
            Shape::Rect { corner: (1.5, 2.5), size: (2.0, 3.0), paint: Paint::Ground },
            Shape::Text(text),
            Shape::Hint { corner: (1.0, 2.0), size: (3.0, 4.0), text: "\"5\"\0".to_owned() },
        ];
        Picture { title: "<t>".to_owned(), width: 10.0, height: 20.0, font_size: 12.0, shapes }
    }

    #[test]
    fn a_picture_becomes_elements() {
        let svg = draw(&picture(), Colors::Fixed);
        for part in [
            "viewBox=\"0 0 10 20\"",
            "<title>&lt;t&gt;</title>",
            "points=\"0.5,0 0.33,2\"",
            "<circle cx=\"3\" cy=\"4\" r=\"1.5\" fill=\"#222222\"/>",
            "<rect x=\"1\" y=\"2\" width=\"3\" height=\"4\" fill=\"#0072b2\"/>",
            "<rect x=\"1.5\" y=\"2.5\" width=\"2\" height=\"3\" fill=\"#ffffff\"/>",
            "<title>&quot;5&quot;\u{fffd}</title>",
            "text-anchor=\"end\" fill=\"#d55e00\" font-weight=\"bold\" transform=\"rotate(-90 1 2)\">a &lt; b &amp; \
            c</text>",
        ] {
            assert!(svg.contains(part), "{part} in {svg}");
        }
    }
    #[test]
    fn colours_may_be_the_page_s() {
        let svg = draw(&picture(), Colors::Themed);
        for part in [
            "aria-label=\"&lt;t&gt;\"",
            "fill=\"var(--s1)\"",
            "fill=\"var(--s2)\"",
            "fill=\"var(--ground)\"",
            "stroke=\"currentColor\"",
        ] {
            assert!(svg.contains(part), "{part} in {svg}");
        }
        assert!(!svg.contains('#') && !svg.contains("http"), "{svg}");
    }
}
