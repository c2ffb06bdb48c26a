//! A workload from a written description.

use std::{fs, path::Path};

use bifold::options::parse_size;
use bifold_vat::advise::{Operations, ValueSize, Workload};
use serde::Deserialize;

use crate::failure::{Failure, Result};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    keys: f64,
    key_bytes: Size,
    value_bytes: Sizes,
    operations: Operations,
    #[serde(default)]
    skew: Skew,
}

/// A number, or text such as `4KiB`.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a number of bytes, or text such as \"4KiB\"")]
enum Size {
    Number(f64),
    Text(String),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a number of bytes, text such as \"4KiB\", or a list of { bytes = …, share = … }")]
enum Sizes {
    One(Size),
    Several(Vec<Shared>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shared {
    bytes: Size,
    #[serde(default = "one")]
    share: f64,
}

fn one() -> f64 {
    1.0
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Skew {
    updates: f64,
    reads: f64,
}

impl Size {
    fn bytes(self) -> std::result::Result<f64, String> {
        match self {
            Self::Number(bytes) => Ok(bytes),
            Self::Text(text) => parse_size(&text).map(|bytes| bytes as f64).map_err(|error| error.to_string()),
        }
    }
}

/// Reads a description.
///
/// # Errors
/// Errors of the system; an invalid description, with file and line.
pub fn read(path: &Path) -> Result<Workload> {
    let text = fs::read_to_string(path).map_err(|e| Failure::file("read", path, &e))?;
    parse(&text).map_err(|why| Failure::trouble(format!("{}: {why}", path.display())))
}

fn parse(text: &str) -> std::result::Result<Workload, String> {
    let described: Described = toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| 1 + text[..span.start].matches('\n').count());
        line.map_or_else(|| error.message().to_owned(), |line| format!("line {line}: {}", error.message()))
    })?;
    let Described { keys, key_bytes, value_bytes, operations, skew } = described;
    let values = match value_bytes {
        Sizes::One(size) => vec![ValueSize { bytes: size.bytes()?, share: 1.0 }],
        Sizes::Several(sizes) => {
            let value = |Shared { bytes, share }| Ok(ValueSize { bytes: bytes.bytes()?, share });
            sizes.into_iter().map(value).collect::<std::result::Result<_, String>>()?
        }
    };
    let (update_skew, read_skew) = (skew.updates, skew.reads);
    Ok(Workload { keys, key_bytes: key_bytes.bytes()?, values, operations, update_skew, read_skew })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_text_or_lists() {
        let with = |value: &str| {
            parse(&format!("keys = 10\nkey_bytes = \"1KiB\"\nvalue_bytes = {value}\n[operations]\nread = 1\n"))
        };
        assert_eq!(with("100").unwrap().values, [ValueSize { bytes: 100.0, share: 1.0 }]);
        assert_eq!(with("'4KiB'").unwrap().values[0].bytes, 4096.0);
        let two = with("[{ bytes = 100, share = 9 }, { bytes = '64KiB' }]").unwrap();
        assert_eq!(two.values[1], ValueSize { bytes: 65_536.0, share: 1.0 });
        assert_eq!((two.key_bytes, two.update_skew), (1024.0, 0.0));
        assert!(with("'a lot'").unwrap_err().contains("a lot"));
        assert!(with("[{ byte = 1 }]").unwrap_err().contains("line 3"));
    }
}
