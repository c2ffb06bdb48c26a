//! Files of lines, one pair each: checked as a whole before anything is done with them.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

use super::{Format, Pair, check, jsonl, tsv};
use crate::failure::{Failure, Result};

/// Shows each pair of the file, with the bytes its line has, to `each`.
///
/// # Errors
/// `FILE:LINE: what is wrong` for the first bad line; the system's; those of `each`.
pub fn read(path: &Path, format: Format, mut each: impl FnMut(Pair, u64) -> Result<()>) -> Result<()> {
    let file = File::open(path).map_err(|e| Failure::file("open", path, &e))?;
    let mut reader = BufReader::with_capacity(256 << 10, file);
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        let bytes = reader.read_until(b'\n', &mut line).map_err(|e| Failure::file("read", path, &e))?;
        if bytes == 0 {
            break;
        }
        let pair = parse(without_end(&line), format)
            .map_err(|why| Failure::trouble(format!("{}:{number}: {why}", path.display())))?;
        each(pair, bytes as u64)?;
    }
    Ok(())
}

/// A line without its newline, and without the carriage return that Windows puts before it.
fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// The pair of a line without its end.
///
/// # Errors
/// In words, what is wrong with it.
pub fn parse(line: &[u8], format: Format) -> std::result::Result<Pair, String> {
    if line.is_empty() {
        return Err("the line is empty".to_owned());
    }
    let (key, value) = match format {
        Format::Tsv => tsv::read(line)?,
        Format::Jsonl => jsonl::read(line)?,
        Format::Dir => return Err("a directory has no lines".to_owned()),
    };
    check(&key, value.len())?;
    Ok((key, value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn write(format: Format, key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match format {
            Format::Tsv => tsv::write(key, value, &mut out),
            _ => jsonl::write(key, Some(value), &mut out),
        }
        out
    }

    proptest! {
        #[test]
        fn any_pair_comes_back_from_its_line(key in proptest::collection::vec(any::<u8>(), 1..20), value: Vec<u8>) {
            for format in [Format::Tsv, Format::Jsonl] {
                let line = write(format, &key, &value);
                prop_assert_eq!(line.iter().filter(|&&b| b == b'\n').count(), 1);
                prop_assert_eq!(parse(without_end(&line), format), Ok((key.clone(), value.clone())));
            }
        }

        #[test]
        fn any_line_is_read_or_refused(line: Vec<u8>) {
            for format in [Format::Tsv, Format::Jsonl] {
                if let Ok((key, value)) = parse(&line, format) {
                    prop_assert_eq!(parse(without_end(&write(format, &key, &value)), format), Ok((key, value)));
                }
            }
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
