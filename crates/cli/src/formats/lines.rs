//! Files with one entry per line. The whole file is checked before anything is done with it.

use std::{
    io::{BufRead, BufReader, Read},
    ops::ControlFlow,
    path::Path,
};

use super::{Entry, Format, check, jsonl, tsv};
use crate::failure::{Failure, Result};

/// Calls `each` for each entry of an input, with its line. `name` is the name of the input in messages about wrong
/// lines.
///
/// # Errors
/// `FILE:LINE: what is wrong` for the first bad line; errors of the system and of `each`.
pub fn read(
    input: impl Read,
    name: &Path,
    format: Format,
    mut each: impl FnMut(Entry, &[u8]) -> Result<()>,
) -> Result<()> {
    read_while(input, name, format, |entry, line| each(entry, line).map(|()| ControlFlow::Continue(())))
}

/// The same, until `each` says that it has enough: what follows is not read.
///
/// # Errors
/// As [`read`].
pub fn read_while(
    input: impl Read,
    name: &Path,
    format: Format,
    mut each: impl FnMut(Entry, &[u8]) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let mut reader = BufReader::with_capacity(256 << 10, input);
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        let bad = |why: String| Failure::trouble(format!("{}:{number}: {why}", name.display()));
        match next(&mut reader, &mut line, format) {
            Ok(true) => {}
            Ok(false) => break,
            Err(Unread::System(error)) => return Err(Failure::file("read", name, &error)),
            Err(Unread::Bad(why)) => return Err(bad(why)),
        }
        let entry = parse(without_end(&line), format).map_err(bad)?;
        if each(entry, &line)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Why no line was read.
enum Unread {
    System(std::io::Error),
    Bad(String),
}

/// Reads a line with its line ending, and returns whether there is one. A line that cannot be valid is not read to
/// its end: it may have none.
fn next(reader: &mut impl BufRead, line: &mut Vec<u8>, format: Format) -> std::result::Result<bool, Unread> {
    loop {
        let piece = match reader.fill_buf() {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            piece => piece.map_err(Unread::System)?,
        };
        let end = piece.iter().position(|&byte| byte == b'\n').map(|at| at + 1);
        let taken = end.unwrap_or(piece.len());
        if line.try_reserve(taken).is_err() {
            let so_far = line.len();
            return Err(Unread::Bad(format!("the line has more than {so_far} bytes, and there is no memory for more")));
        }
        line.extend_from_slice(&piece[..taken]);
        reader.consume(taken);
        if end.is_some() || taken == 0 {
            return Ok(!line.is_empty());
        }
        check_unended(line, format).map_err(Unread::Bad)?;
    }
}

/// Refuses the beginning of a line that cannot become valid, whatever follows.
fn check_unended(line: &[u8], format: Format) -> std::result::Result<(), String> {
    let (most, longest_key) = match format {
        // An escape takes four bytes for one; `\u0000` in JSON takes six.
        Format::Tsv | Format::Dir => (4 * (bifold::MAX_KEY_LEN + bifold::MAX_VALUE_LEN) + 2, 4 * bifold::MAX_KEY_LEN),
        Format::Jsonl => (6 * (bifold::MAX_KEY_LEN + bifold::MAX_VALUE_LEN) + 1024, usize::MAX),
    };
    if line.len() > longest_key && !line[..=longest_key].contains(&b'\t') {
        return Err(format!("there is no tab in the first {longest_key} bytes of the line: no key is longer"));
    }
    if format == Format::Jsonl && line.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(|&byte| byte != b'{')
    {
        return Err("the line does not begin with `{`: a line is {\"key\":\"…\",\"value\":\"…\"}".to_owned());
    }
    if line.len() > most {
        return Err(format!("the line has more than {most} bytes: no entry is longer"));
    }
    Ok(())
}

/// A line without its newline, and without Windows' carriage return before it.
fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// The entry of a line without its line ending.
///
/// # Errors
/// In words, what is wrong with the line.
pub fn parse(line: &[u8], format: Format) -> std::result::Result<Entry, String> {
    if line.is_empty() {
        return Err("the line is empty".to_owned());
    }
    let entry = match format {
        Format::Tsv => tsv::read(line)?,
        Format::Jsonl => jsonl::read(line)?,
        Format::Dir => return Err("a directory has no lines".to_owned()),
    };
    check(&entry.key, entry.value.len())?;
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::Expires, *};

    fn write(format: Format, key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match format {
            Format::Tsv => tsv::write(key, value, &mut out),
            _ => jsonl::write(key, Some(value), Expires::Unsaid, &mut out),
        }
        out
    }

    proptest! {
        #[test]
        fn any_entry_comes_back_from_its_line(key in proptest::collection::vec(any::<u8>(), 1..20), value: Vec<u8>) {
            for format in [Format::Tsv, Format::Jsonl] {
                let line = write(format, &key, &value);
                prop_assert_eq!(line.iter().filter(|&&b| b == b'\n').count(), 1);
                let entry = Entry { key: key.clone(), value: value.clone(), expires: Expires::Unsaid };
                prop_assert_eq!(parse(without_end(&line), format), Ok(entry));
            }
        }

        #[test]
        fn any_line_is_read_or_refused(line: Vec<u8>) {
            for format in [Format::Tsv, Format::Jsonl] {
                if let Ok(entry) = parse(&line, format).map(|entry| Entry { expires: Expires::Unsaid, ..entry }) {
                    let again = write(format, &entry.key, &entry.value);
                    prop_assert_eq!(parse(without_end(&again), format), Ok(entry));
                }
            }
        }
    }

    #[test]
    fn a_line_has_when_its_entry_expires() {
        let mut line = Vec::new();
        let at = std::time::UNIX_EPOCH + std::time::Duration::from_millis(1_764_000_000_123);
        for (expires, said) in [
            (Expires::at(Some(at)), ",\"expires_at_ms\":1764000000123"),
            (Expires::Never, ",\"expires_at_ms\":null"),
            (Expires::at(None), ""),
        ] {
            line.clear();
            jsonl::write(b"k", Some(b"v"), expires, &mut line);
            assert_eq!(line, format!("{{\"key\":\"k\",\"value\":\"v\"{said}}}\n").as_bytes());
            assert_eq!(parse(without_end(&line), Format::Jsonl).unwrap().expires, expires);
        }
    }

    /// Such lines have no end: they are refused long before memory is full.
    #[test]
    fn a_line_without_end_is_refused_where_it_can_no_longer_be_valid() {
        for (format, byte, why) in [
            (Format::Tsv, b'x', "FILE:2: there is no tab in the first 262144 bytes"),
            (Format::Jsonl, b'x', "FILE:2: the line does not begin with `{`"),
        ] {
            let first: &[u8] = if format == Format::Tsv { b"a\tb\n" } else { b"{\"key\":\"a\",\"value\":\"b\"}\n" };
            let mut read_bytes = 0;
            let counted = std::io::repeat(byte).take(1 << 30);
            let outcome = read(first.chain(counted), Path::new("FILE"), format, |_, line| {
                read_bytes += line.len();
                Ok(())
            });
            let Err(Failure::Trouble(message)) = outcome else { panic!("{format:?}: it was read") };
            assert!(message.contains(why), "{message}");
            assert_eq!(read_bytes, first.len());
        }
    }

    #[test]
    fn bad_lines_are_refused_with_the_reason() {
        for (format, line, why) in [
            (Format::Tsv, "no tab", "no tab"),
            (Format::Tsv, "", "empty"),
            (Format::Tsv, "\tvalue", "key is empty"),
            (Format::Tsv, "a\tb\tc", "more than one tab"),
            (Format::Tsv, "a\t\\q", "in the value, `\\q` is not an escape"),
            (Format::Jsonl, "{}", "no `key`"),
            (Format::Jsonl, "{\"key\":\"a\"}", "no `value`"),
            (Format::Jsonl, "{\"key\":\"\",\"value\":\"\"}", "key is empty"),
            (Format::Jsonl, "{\"key\":\"a\",\"value\":1}", "invalid type"),
            (Format::Jsonl, "{\"key\":\"a\",\"value\":\"b\",\"x\":1}", "unknown field"),
            (Format::Jsonl, "{\"key\":\"a\",\"key\":\"b\",\"value\":\"\"}", "duplicate field"),
            (Format::Jsonl, "{\"key\":\"a\",\"key_base64\":\"YQ==\",\"value\":\"\"}", "both"),
            (Format::Jsonl, "{\"key_base64\":\"Y\",\"value\":\"\"}", "in `key_base64`"),
            (Format::Jsonl, "{\"key\":\"a\",\"value\":\"b\"} x", "trailing"),
        ] {
            let error = parse(line.as_bytes(), format).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
        assert!(parse(b"a\t\xff", Format::Tsv).unwrap_err().contains("byte 3 of the line is not UTF-8"));
    }
}
