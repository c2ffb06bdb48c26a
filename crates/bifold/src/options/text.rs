//! Options as text: sizes with units, dotted names, and the words that say what is out of bounds.

use bifold_contract::{Error, Result};
use serde::{Deserialize, Deserializer, de};

pub(super) fn at_least(name: &str, value: u64, least: u64) -> Result<()> {
    if value < least {
        return Err(Error::invalid(format!("option `{name}`"), format!("{value} is too small, the least is {least}")));
    }
    Ok(())
}

pub(super) fn within(name: &str, value: u64, least: u64, most: u64) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!("option `{name}`"), format!("{value} is not between {least} and {most}")))
}

/// Puts `text` at the dotted `path`, as a number or boolean where it reads as one, as a string otherwise.
pub(super) fn insert_at(table: &mut toml::Table, path: &str, text: &str) {
    let value = match (text.parse::<i64>(), text.parse::<bool>(), text.parse::<f64>()) {
        (Ok(number), ..) => toml::Value::Integer(number),
        (_, Ok(flag), _) => toml::Value::Boolean(flag),
        (_, _, Ok(number)) => toml::Value::Float(number),
        _ => toml::Value::String(text.to_owned()),
    };
    match path.split_once('.') {
        None => {
            table.insert(path.to_owned(), value);
        }
        Some((head, rest)) => {
            // An enum's other variant must go when a field of this one is named: `compaction.tiered.growth=4`.
            if head == "compaction" {
                let variant = rest.split('.').next().unwrap_or_default();
                if table.get(head).and_then(toml::Value::as_table).is_some_and(|t| !t.contains_key(variant)) {
                    table.remove(head);
                }
            }
            let inner = table.entry(head).or_insert_with(|| toml::Table::new().into());
            if !inner.is_table() {
                *inner = toml::Table::new().into();
            }
            if let Some(inner) = inner.as_table_mut() {
                insert_at(inner, rest, text);
            }
        }
    }
}

/// A number of bytes: an integer, or a string with a unit (`"64MiB"`, `"4 KiB"`, `"10GB"`).
pub(super) fn size<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Size {
        Bytes(u64),
        Text(String),
    }
    match Size::deserialize(from)
        .map_err(|_| de::Error::custom("a size is a number of bytes or a text like \"64MiB\""))?
    {
        Size::Bytes(bytes) => Ok(bytes),
        Size::Text(text) => parse_size(&text).map_err(de::Error::custom),
    }
}

pub(super) fn optional_size<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Option<u64>, D::Error> {
    size(from).map(Some)
}

/// Reads `"64MiB"`, `"1.5 GiB"`, `"4096"`.
///
/// # Errors
/// In words, when it is none of these.
pub fn parse_size(text: &str) -> std::result::Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1u64 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        other => return Err(format!("`{other}` is not a unit of size; use B, KiB, MiB, GiB, TiB, KB, MB, GB or TB")),
    };
    let whole = number.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    let fraction = || number.parse::<f64>().ok().map(|n| n * unit as f64).filter(|n| *n < u64::MAX as f64);
    whole.or_else(|| fraction().map(|n| n as u64)).ok_or_else(|| format!("`{text}` is not a size such as 64MiB"))
}
