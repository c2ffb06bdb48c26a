//! Operations that are committed together.

use bifold_contract::{Error, Result, key};
use bifold_values::placement::WriteOp;

use crate::index::KEY_BYTES_MAX;

/// Operations that become visible together, and survive a crash together or not at all. Of two on one key the later
/// counts.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    /// The end of each key, and of its value; `None` for a delete.
    ends: Vec<(usize, Option<usize>)>,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key to a value.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an empty key, or one of more than 65 533 bytes, or a value of more than 1 GiB.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        check_key(key)?;
        key::check_value(value)?;
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((key_end, Some(self.bytes.len())));
        Ok(())
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// As [`Batch::put`].
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        check_key(key)?;
        self.bytes.extend_from_slice(key);
        self.ends.push((self.bytes.len(), None));
        Ok(())
    }

    /// How many operations it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(crate) fn ops(&self) -> impl Iterator<Item = WriteOp<'_>> {
        let mut start = 0;
        self.ends.iter().map(move |&(key_end, end)| {
            let key = &self.bytes[start..key_end];
            start = end.unwrap_or(key_end);
            match end {
                Some(end) => WriteOp::Put { key, value: &self.bytes[key_end..end] },
                None => WriteOp::Delete { key },
            }
        })
    }
}

/// Checks that a key may be stored.
pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    match key.len() {
        1..=KEY_BYTES_MAX => Ok(()),
        0 => Err(Error::invalid("key", "a key must have at least one byte")),
        len => Err(Error::invalid("key", format!("{len} bytes is longer than the longest key, {KEY_BYTES_MAX} bytes"))),
    }
}
