//! How much room text takes, and how it is made to fit.
//!
//! Who draws an SVG chooses the font. The widths here are those of DejaVu Sans, the widest of the common ones, so
//! that text is rather shorter than it is taken for.

/// How wide a text is whose letters are `size` high.
#[must_use]
pub fn width(text: &str, size: f64) -> f64 {
    text.chars().map(letter).sum::<f64>() * size
}

/// The width of a letter as a share of its size.
fn letter(letter: char) -> f64 {
    match letter {
        'i' | 'j' | 'l' | '\'' | '|' => 0.29,
        ' ' | '.' | ',' | ':' | ';' | '!' | '\u{a0}' | '\u{202f}' => 0.34,
        'f' | 'r' | 't' | '(' | ')' | '[' | ']' | '/' | '-' | 'I' => 0.42,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '…' => 1.0,
        'A'..='Z' | '+' | '=' | '<' | '>' | '×' | '–' | '#' | '&' => 0.84,
        '!'..='~' | 'µ' => 0.64,
        // Other scripts may be as wide as they are high.
        _ => 1.0,
    }
}

/// The text, or as much of it as there is room for with an ellipsis after it.
#[must_use]
pub fn fitted(text: &str, size: f64, room: f64) -> String {
    if width(text, size) <= room {
        return text.to_owned();
    }
    let mut left = room - width("…", size);
    let kept: String = text
        .chars()
        .take_while(|&next| {
            left -= letter(next) * size;
            left >= 0.0
        })
        .collect();
    format!("{}…", kept.trim_end())
}

/// The text in lines of at most this room, broken at spaces and behind hyphens and slashes. Nothing where a word
/// alone is too long or there would be more than `lines_max` lines.
#[must_use]
pub fn wrapped(text: &str, size: f64, room: f64, lines_max: usize) -> Option<Vec<String>> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_inclusive([' ', '-', '/', '_']) {
        if width(word.trim_end(), size) > room {
            return None;
        }
        match lines.last_mut() {
            Some(line) if width(&format!("{line}{}", word.trim_end()), size) <= room => line.push_str(word),
            _ => lines.push(word.to_owned()),
        }
        if lines.len() > lines_max {
            return None;
        }
    }
    Some(lines.into_iter().map(|line| line.trim().to_owned()).collect())
}

/// The text in at most `lines_max` lines, the last of which ends early where it must.
#[must_use]
pub fn paragraph(text: &str, size: f64, room: f64, lines_max: usize) -> Vec<String> {
    wrapped(text, size, room, lines_max).unwrap_or_else(|| vec![fitted(text, size, room)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_cut_and_broken() {
        let text = "after the garbage-collection";
        assert_eq!(fitted(text, 10.0, 1e3), text);
        for room in [30.0, 50.0, 100.0] {
            let cut = fitted(text, 10.0, room);
            assert!(cut.ends_with('…') && width(&cut, 10.0) <= room, "{cut}");
        }
        assert_eq!(wrapped(text, 10.0, 65.0, 3).unwrap(), ["after the", "garbage-", "collection"]);
        assert_eq!(wrapped(text, 10.0, 65.0, 2), None);
        assert_eq!(wrapped(text, 10.0, 30.0, 9), None);
        assert_eq!(paragraph(text, 10.0, 30.0, 9).len(), 1);
        assert!(wrapped("", 10.0, 30.0, 9).unwrap().is_empty());
    }
}
