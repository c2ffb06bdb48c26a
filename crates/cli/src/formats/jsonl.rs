//! One JSON object per line: `{"key":"…","value":"…"}`; bytes that are not UTF-8 as `key_base64`, `value_base64`. An
//! entry that expires has `expires_at_ms`, too: milliseconds since the beginning of 1970. There `null` says that it
//! never does; where nothing is said, the keyspace's `ttl` decides.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};

use super::{Entry, Expires, base64};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryLine<'a> {
    #[serde(skip_serializing_if = "Option::is_none", borrow)]
    key: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none", borrow)]
    key_base64: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none", borrow)]
    value: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none", borrow)]
    value_base64: Option<Cow<'a, str>>,
    /// `Some(None)` is `null`.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "said")]
    expires_at_ms: Option<Option<u64>>,
}

/// A field that is there, `null` or not.
fn said<'de, D: Deserializer<'de>>(field: D) -> Result<Option<Option<u64>>, D::Error> {
    Option::deserialize(field).map(Some)
}

/// Appends a line to `out`. Without a value it has only a key, for listings of keys; [`read`] refuses such a line.
pub fn write(key: &[u8], value: Option<&[u8]>, expires: Expires, out: &mut Vec<u8>) {
    let expires_at_ms = match expires {
        Expires::Unsaid => None,
        Expires::Never => Some(None),
        Expires::AtMillis(millis) => Some(Some(millis)),
    };
    let (key, key_base64) = split(key);
    let (value, value_base64) = value.map_or((None, None), split);
    let line = EntryLine { key, key_base64, value, value_base64, expires_at_ms };
    // Strings in a struct always serialise, and writing to a vector cannot fail.
    let written = serde_json::to_writer(&mut *out, &line);
    debug_assert!(written.is_ok(), "{written:?}");
    out.push(b'\n');
}

fn split(bytes: &[u8]) -> (Option<Cow<'_, str>>, Option<Cow<'_, str>>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text.into()), None),
        Err(_) => (None, Some(base64::encode(bytes).into())),
    }
}

/// The entry of a line without its line ending.
///
/// # Errors
/// In words, what is wrong with the line.
pub fn read(line: &[u8]) -> Result<Entry, String> {
    let line: EntryLine<'_> = serde_json::from_slice(line).map_err(|e| describe(&e))?;
    let (key, value) = (join("key", line.key, line.key_base64)?, join("value", line.value, line.value_base64)?);
    let expires = match line.expires_at_ms {
        None => Expires::Unsaid,
        Some(None) => Expires::Never,
        Some(Some(millis)) => Expires::AtMillis(millis),
    };
    Ok(Entry { key, value, expires })
}

fn join(what: &str, text: Option<Cow<'_, str>>, base64: Option<Cow<'_, str>>) -> Result<Vec<u8>, String> {
    match (text, base64) {
        (Some(text), None) => Ok(text.into_owned().into_bytes()),
        (None, Some(text)) => base64::decode(&text).map_err(|why| format!("in `{what}_base64`, {why}")),
        (None, None) => Err(format!("there is no `{what}`: a line is {{\"key\":\"…\",\"value\":\"…\"}}")),
        (Some(_), Some(_)) => Err(format!("there are both `{what}` and `{what}_base64`: give one of them")),
    }
}

fn describe(error: &serde_json::Error) -> String {
    // The line number of this error is always 1; the caller knows the real one.
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text);
    format!("{what}, at column {}: a line is {{\"key\":\"…\",\"value\":\"…\"}}", error.column())
}
