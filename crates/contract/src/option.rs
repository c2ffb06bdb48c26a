//! Options as users write them: sizes with units, and errors for those out of bounds.
//!
//! Each option is defined once, in the crate that uses it, with its default and its bounds; `bifold::options` joins
//! them.

use std::time::Duration;

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

/// A number of bytes: an integer, or a text with a unit (`"64MiB"`, `"4 KiB"`, `"10GB"`). For `serde(with)`.
pub mod size {
    use serde::Serializer;

    use super::{Deserialize, Deserializer, de, parse_size};

    /// # Errors
    /// Anything else.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
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

    /// Integers of TOML are signed: a larger number is written as a text, so that it can be read again.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(bytes: &u64, to: S) -> Result<S::Ok, S::Error> {
        match i64::try_from(*bytes) {
            Ok(bytes) => to.serialize_i64(bytes),
            Err(_) => to.serialize_str(&format!("{bytes}B")),
        }
    }
}

/// As [`size`], for an option that may be unset.
pub mod optional_size {
    use serde::Serializer;

    use super::{Deserializer, size};

    /// # Errors
    /// As [`size::deserialize`].
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
        size::deserialize(from).map(Some)
    }

    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(bytes: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => size::serialize(bytes, to),
            None => to.serialize_none(),
        }
    }
}

/// A time that may be unset: a text such as `"90s"`, a number of seconds, or `"never"`, which unsets it. For
/// `serde(with)`.
pub mod duration {
    use serde::Serializer;

    use super::{Deserialize, Deserializer, Duration, de, parse_duration};

    /// # Errors
    /// Anything else.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Time {
            Seconds(u64),
            Text(String),
        }
        match Time::deserialize(from)
            .map_err(|_| de::Error::custom("a time is a number of seconds or a text like \"90s\""))?
        {
            Time::Seconds(seconds) => Ok(Some(Duration::from_secs(seconds))),
            Time::Text(text) if text.trim() == "never" => Ok(None),
            Time::Text(text) => parse_duration(&text).map(Some).map_err(de::Error::custom),
        }
    }

    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match time {
            // In whole milliseconds, as far as they can be read again.
            Some(time) => {
                let millis = time.as_nanos().div_ceil(1_000_000).min(u128::from(u64::MAX));
                to.serialize_str(&format!("{millis}ms"))
            }
            None => to.serialize_none(),
        }
    }
}

/// Reads `"250ms"`, `"90s"`, `"15min"`, `"24h"`, `"30d"`, `"90"` (seconds). Parts of a millisecond are dropped.
///
/// # Errors
/// In words, when it is none of these.
pub fn parse_duration(text: &str) -> std::result::Result<Duration, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let millis = match unit.trim() {
        "ms" => 1,
        "" | "s" => 1000,
        "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        other => return Err(format!("`{other}` is not a unit of time; use ms, s, min, h or d")),
    };
    let whole = number.parse::<u64>().ok().and_then(|n| n.checked_mul(millis));
    let fraction = || number.parse::<f64>().ok().map(|n| n * millis as f64).filter(|n| *n < u64::MAX as f64);
    let millis =
        whole.or_else(|| fraction().map(|n| n as u64)).ok_or_else(|| format!("`{text}` is not a time such as 90s"))?;
    Ok(Duration::from_millis(millis))
}

/// Reads `"64MiB"`, `"1.5 GiB"`, `"4096"`: a number and B, KiB, MiB, GiB, TiB (or K, M, G, T), KB, MB, GB or TB, in
/// capitals or not. Without a unit it is bytes. Parts of a byte are dropped.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, millis) in [("250ms", 250), ("90s", 90_000), ("90", 90_000), ("1.5min", 90_000), ("2 h", 7_200_000)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "1y", "-1s", "1..2s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
