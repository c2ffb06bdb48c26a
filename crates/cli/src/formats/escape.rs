//! Bytes as one line of UTF-8: `\\` backslash, `\t` tab, `\n` newline, `\r` carriage return, `\xHH` any other control
//! character and any byte that is not UTF-8. Everything else stands for itself.

/// Appends `bytes`, escaped, to `out`.
pub fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    escape_where(bytes, out, |c| c < ' ' || c == '\x7f');
}

/// The same for a terminal, which may also interpret the control characters beyond ASCII. Files keep those unescaped.
pub fn escape_for_terminal(bytes: &[u8], out: &mut Vec<u8>) {
    escape_where(bytes, out, char::is_control);
}

fn escape_where(bytes: &[u8], out: &mut Vec<u8>, is_odd: impl Fn(char) -> bool) {
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.extend_from_slice(b"\\\\"),
                '\t' => out.extend_from_slice(b"\\t"),
                '\n' => out.extend_from_slice(b"\\n"),
                '\r' => out.extend_from_slice(b"\\r"),
                _ if is_odd(c) => c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| hex(byte, out)),
                _ => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        chunk.invalid().iter().for_each(|&byte| hex(byte, out));
    }
}

/// `bytes`, escaped.
pub fn escaped(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len());
    escape(bytes, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

fn hex(byte: u8, out: &mut Vec<u8>) {
    let digit = |n: u8| b"0123456789abcdef"[usize::from(n & 15)];
    out.extend_from_slice(&[b'\\', b'x', digit(byte >> 4), digit(byte)]);
}

/// The bytes of an escaped `text`.
///
/// # Errors
/// In words, for an invalid escape.
pub fn unescape(text: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    out.try_reserve(text.len()).map_err(|_| format!("there is no memory for its {} bytes", text.len()))?;
    let mut parts = text.split('\\');
    out.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    // Each further piece followed a backslash; an empty one means two backslashes in a row.
    while let Some(part) = parts.next() {
        let (byte, used) = match part.as_bytes() {
            [] => match parts.next() {
                Some(rest) => {
                    out.push(b'\\');
                    out.extend_from_slice(rest.as_bytes());
                    continue;
                }
                None => return Err("it ends in a single backslash: write a backslash as \\\\".to_owned()),
            },
            [b't', ..] => (b'\t', 1),
            [b'n', ..] => (b'\n', 1),
            [b'r', ..] => (b'\r', 1),
            [b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                (nibble(*high) << 4 | nibble(*low), 3)
            }
            _ => {
                let shown: String = part.chars().take(3).collect();
                return Err(format!(
                    "`\\{shown}` is not an escape: there are \\\\, \\t, \\n, \\r and \\xHH (a backslash is written \
                    \\\\)"
                ));
            }
        };
        out.push(byte);
        out.extend_from_slice(&part.as_bytes()[used..]);
    }
    Ok(out)
}

fn nibble(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_come_back(bytes: Vec<u8>) {
            prop_assert_eq!(unescape(&escaped(&bytes)), Ok(bytes));
        }

        #[test]
        fn texts_that_look_like_escapes_come_back(bytes in proptest::collection::vec(
            prop_oneof![Just(b'\\'), Just(b't'), Just(b'x'), Just(b'\t'), Just(b'\r'), Just(0xff), Just(b'0')], 0..12)
        ) {
            prop_assert_eq!(unescape(&escaped(&bytes)), Ok(bytes));
        }

        #[test]
        fn an_escaped_text_is_one_printable_line(bytes: Vec<u8>) {
            prop_assert!(!escaped(&bytes).bytes().any(|b| b < 0x20 || b == 0x7f));
            let mut shown = Vec::new();
            escape_for_terminal(&bytes, &mut shown);
            let shown = String::from_utf8_lossy(&shown).into_owned();
            prop_assert!(!shown.chars().any(char::is_control));
            prop_assert_eq!(unescape(&shown), Ok(bytes));
        }

        #[test]
        fn any_text_is_read_or_refused(text: String) {
            let _ = unescape(&text);
        }
    }

    #[test]
    fn escapes_are_those_of_the_manual() {
        for (text, bytes) in [
            ("plain ü", "plain ü".as_bytes()),
            (r"a\tb\nc\rd", b"a\tb\nc\rd"),
            (r"\\", b"\\"),
            (r"\\\\", b"\\\\"),
            (r"\\t", b"\\t"),
            (r"\xff\x00\x7f", b"\xff\x00\x7f"),
            ("", b""),
        ] {
            assert_eq!(unescape(text).as_deref(), Ok(bytes), "{text}");
            assert_eq!(escaped(bytes), text);
        }
        assert_eq!(unescape(r"\xFf").as_deref(), Ok(&b"\xff"[..]));
        for text in [r"\", r"\\\", r"\q", r"\x", r"\x1", r"\xg0", r"a\", r"\é", r"\xé"] {
            assert!(unescape(text).is_err(), "{text}");
        }
    }
}
