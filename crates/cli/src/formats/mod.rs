//! Keys and values as text and back, without loss.

pub mod base64;
pub mod escape;
pub mod jsonl;
pub mod lines;
pub mod tree;
pub mod tsv;

use std::time::{SystemTime, UNIX_EPOCH};

use clap::ValueEnum;

/// The format of keys and values in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// KEY, a tab, VALUE; backslash, tab, newline, carriage return and other special bytes escaped.
    Tsv,
    /// One JSON object per line: {"key":"…","value":"…"}, or key_base64 and value_base64 for bytes that are not
    /// UTF-8. expires_at_ms says when an entry expires; null means never, whatever the keyspace's ttl.
    Jsonl,
    /// A directory: relative paths are keys, contents are values.
    Dir,
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// When it expires.
    pub expires: Expires,
}

/// What a line says about the end of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expires {
    /// Nothing: the keyspace's `ttl` decides.
    Unsaid,
    /// It never does.
    Never,
    /// Milliseconds since the beginning of 1970.
    AtMillis(u64),
}

impl Expires {
    /// That of an entry in a database; for one that does not expire, nothing is said.
    pub fn at(instant: Option<SystemTime>) -> Self {
        let millis = |at: SystemTime| at.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64);
        instant.map_or(Self::Unsaid, |at| Self::AtMillis(millis(at)))
    }
}

/// Checks what a store would refuse, with messages for command line users.
pub fn check(key: &[u8], value_len: usize) -> Result<(), String> {
    if key.is_empty() {
        return Err("the key is empty: a key must have at least one byte".to_owned());
    }
    if key.len() > bifold::MAX_KEY_LEN {
        return Err(format!("the key has {} bytes: the most is {}", key.len(), bifold::MAX_KEY_LEN));
    }
    if value_len > bifold::MAX_VALUE_LEN {
        return Err(format!("the value has {value_len} bytes: the most is {}", bifold::MAX_VALUE_LEN));
    }
    Ok(())
}
