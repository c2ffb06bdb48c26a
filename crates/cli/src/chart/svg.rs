//! A picture as SVG 1.1.

use std::fmt::Write;

use super::{Anchor, Color, Direction, Picture, Point, Shape, Text, Weight};

/// The height of letters in units, that of the PNG's letters.
const FONT_SIZE: f64 = 12.0;

/// Draws a picture.
pub fn draw(picture: &Picture) -> String {
    let Picture { title, width, height, shapes } = picture;
    let mut svg = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"{FONT_SIZE}\">\n<title>{}</title>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>",
        escaped(title)
    );
    for shape in shapes {
        let _ = match shape {
            Shape::Line { points, width, color } => writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{width}\" stroke-linejoin=\"round\"/>",
                places(points),
                hex(*color)
            ),
            Shape::Disc { center: (x, y), radius, color } => {
                writeln!(
                    svg,
                    "<circle cx=\"{}\" cy=\"{}\" r=\"{radius}\" fill=\"{}\"/>",
                    short(*x),
                    short(*y),
                    hex(*color)
                )
            }
            Shape::Text(text) => writeln!(svg, "{}", element(text)),
        };
    }
    svg.push_str("</svg>\n");
    svg
}

fn element(text: &Text) -> String {
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
    let (color, text) = (hex(text.color), escaped(&text.text));
    format!(
        "<text x=\"{x}\" y=\"{y}\" dy=\"0.35em\" text-anchor=\"{anchor}\" fill=\"{color}\"{weight}{turn}>{text}</text>"
    )
}

fn places(points: &[Point]) -> String {
    points.iter().map(|(x, y)| format!("{},{}", short(*x), short(*y))).collect::<Vec<_>>().join(" ")
}

/// A coordinate to a hundredth of a pixel.
fn short(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn hex([red, green, blue]: Color) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_becomes_elements() {
        let text = Text {
            text: "a < b & c".to_owned(),
            at: (1.0, 2.0),
            anchor: Anchor::End,
            weight: Weight::Bold,
            direction: Direction::Up,
            color: [255, 0, 1],
        };
        let shapes = vec![
            Shape::Line { points: vec![(0.5, 0.0), (1.0 / 3.0, 2.0)], width: 2.0, color: [0, 0, 0] },
            Shape::Disc { center: (3.0, 4.0), radius: 1.5, color: [0, 0, 0] },
            Shape::Text(text),
        ];
        let svg = draw(&Picture { title: "<t>".to_owned(), width: 10.0, height: 20.0, shapes });
        for part in [
            "viewBox=\"0 0 10 20\"",
            "<title>&lt;t&gt;</title>",
            "points=\"0.5,0 0.33,2\"",
            "<circle cx=\"3\" cy=\"4\" r=\"1.5\" fill=\"#000000\"/>",
            "text-anchor=\"end\" fill=\"#ff0001\" font-weight=\"bold\" transform=\"rotate(-90 1 2)\">a &lt; b &amp; c</text>",
        ] {
            assert!(svg.contains(part), "{part} in {svg}");
        }
    }
}
