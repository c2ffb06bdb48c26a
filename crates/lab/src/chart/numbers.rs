//! Numbers as people read them: with as many digits as say something.

/// A figure that was measured, with three digits that count; those of large ones are all there, in groups.
#[must_use]
pub fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        1e-3..0.9995 => {
            // As many decimals as make three digits: 0.0123 has four.
            let decimals = (2.0 - value.abs().log10().floor()).clamp(0.0, 6.0) as usize;
            format!("{value:.decimals$}")
        }
        0.9995..9.995 => format!("{value:.2}"),
        9.995..99.95 => format!("{value:.1}"),
        99.95..1e15 => grouped(&format!("{value:.0}")),
        size if size.is_finite() => format!("{value:.1e}"),
        _ => "–".to_owned(),
    }
}

/// The least and the most of a median, least and most, where they differ from it.
#[must_use]
pub fn range([median, least, most]: [f64; 3]) -> Option<String> {
    let (shown, least, most) = (number(median), number(least), number(most));
    (least != shown || most != shown).then(|| format!("{least}–{most}"))
}

/// A parameter as it was chosen: all of its digits, unless it has more than anybody reads.
#[must_use]
pub fn parameter(value: f64) -> String {
    let exact = value.to_string();
    match value.abs() {
        0.0 => "0".to_owned(),
        1e-6..1e12 if exact.len() <= 12 => grouped(&exact),
        1e-3..1e12 => grouped(&format!("{value:.3}")),
        _ => format!("{value:.3e}"),
    }
}

/// A number with narrow spaces between thousands, from five digits on.
#[must_use]
pub fn grouped(number: &str) -> String {
    let (whole, rest) = number.split_at(number.find('.').unwrap_or(number.len()));
    let (sign, digits) = whole.split_at(usize::from(whole.starts_with('-')));
    if digits.len() < 5 {
        return number.to_owned();
    }
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_count() {
        for (value, said) in [
            (0.0, "0"),
            (0.00012, "1.2e-4"),
            (0.012_345, "0.0123"),
            (0.999_9, "1.00"),
            (-3.456, "-3.46"),
            (34.56, "34.6"),
            (99.97, "100"),
            (65_536.4, "65\u{202f}536"),
            (f64::NAN, "–"),
            (f64::INFINITY, "–"),
        ] {
            assert_eq!(number(value), said);
        }
        assert_eq!(range([2.0, 1.0, 3.0]).as_deref(), Some("1.00–3.00"));
        assert_eq!(range([2.0, 2.0, 2.001]), None);
    }

    #[test]
    fn parameters_are_short() {
        for (value, label) in
            [(0.0, "0"), (0.25, "0.25"), (1e6, "1\u{202f}000\u{202f}000"), (1.0 / 3.0, "0.333"), (1e13, "1.000e13")]
        {
            assert_eq!(parameter(value), label);
        }
        assert_eq!(grouped("-12345.678"), "-12\u{202f}345.678");
    }
}
