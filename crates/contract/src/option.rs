//! Options as users write them: sizes with units, and errors for those out of bounds.
//!
//! Each option is defined once, in the crate that uses it, with its default and its bounds; `bifold::options` joins
//! them.

use serde::{Deserialize, Deserializer, de};

use crate::{Error, Result};

/// Demands that the option `name` is not below `least`.
///
/// # Errors
/// [`Error::InvalidArgument`] naming the option.
pub fn at_least(name: &str, value: u64, least: u64) -> Result<()> {
    if value < least {
        return Err(Error::invalid(format!("option `{name}`"), format!("{value} is too small, the least is {least}")));
    }
    Ok(())
}

/// Demands that the option `name` is between `least` and `most`.
///
/// # Errors
/// [`Error::InvalidArgument`] naming the option.
pub fn within(name: &str, value: u64, least: u64, most: u64) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!("option `{name}`"), format!("{value} is not between {least} and {most}")))
}

/// As [`within`], for an option that need not be whole.
///
/// # Errors
/// As [`within`]; also for what is no number.
pub fn within_f64(name: &str, value: f64, least: f64, most: f64) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!("option `{name}`"), format!("{value} is not between {least} and {most}")))
}

/// A number of bytes: an integer, or a string with a unit (`"64MiB"`, `"4 KiB"`, `"10GB"`). For `deserialize_with`.
///
/// # Errors
/// Anything else.
pub fn size<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<u64, D::Error> {
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

/// As [`size`], for an option that may be unset.
///
/// # Errors
/// As [`size`].
pub fn optional_size<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Option<u64>, D::Error> {
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
