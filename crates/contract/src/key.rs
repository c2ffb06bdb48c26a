//! Identifiers and limits.
//!
//! A key is any non-empty byte string of at most [`MAX_KEY_LEN`] bytes; keys are ordered as unsigned bytes.

use crate::{Error, Result};

/// A sequence number: the position of one operation in the order of all commits of a database.
///
/// The first operation has number 1; 0 means "before everything". Within one key a larger number is newer.
pub type SeqNo = u64;

/// The number in a file's name. Never used twice within a database, whatever the file's kind.
pub type FileId = u64;

/// Names a keyspace in the log and the manifest. Never used twice within a database.
pub type KeyspaceId = u32;

/// Names a sorted run. Within a level a larger id holds newer data.
pub type RunId = u64;

/// Longest key, in bytes (64 KiB).
pub const MAX_KEY_LEN: usize = 64 << 10;

/// Longest value, in bytes (1 GiB).
pub const MAX_VALUE_LEN: usize = 1 << 30;

/// The largest sequence number: a number (7 bytes) and a kind (1 byte) fit in one 64-bit word.
pub const MAX_SEQNO: SeqNo = (1 << 56) - 1;

/// Checks that `key` may be stored.
///
/// # Errors
/// [`Error::InvalidArgument`] for an empty key or one longer than [`MAX_KEY_LEN`].
pub fn check_key(key: &[u8]) -> Result<()> {
    match key.len() {
        0 => Err(Error::invalid("key", "a key must have at least one byte")),
        n if n > MAX_KEY_LEN => {
            Err(Error::invalid("key", format!("{n} bytes is longer than the longest key, {MAX_KEY_LEN} bytes")))
        }
        _ => Ok(()),
    }
}

/// Checks that `value` may be stored.
///
/// # Errors
/// [`Error::InvalidArgument`] for a value longer than [`MAX_VALUE_LEN`]. Empty values are fine.
pub fn check_value(value: &[u8]) -> Result<()> {
    if value.len() > MAX_VALUE_LEN {
        return Err(Error::invalid(
            "value",
            format!("{} bytes is longer than the longest value, {MAX_VALUE_LEN} bytes", value.len()),
        ));
    }
    Ok(())
}
