//! Operations that are committed together.

use bifold_contract::{Error, Result, key};
use bifold_values::placement::WriteOp;

use crate::{index::KEY_BYTES_MAX, packed::Packed};

/// Bytes that an operation may take in the log in addition to its key and value.
const OP_OVERHEAD_BYTES: u64 = 64;

/// Operations that become visible together, and survive a crash together or not at all. Of two on one key the later
/// counts.
#[derive(Clone, Debug, Default)]
pub struct Batch(
    /// Keys with their values; a deleted one has none.
    Packed,
);

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
        self.0.add(key, Some(|bytes: &mut Vec<u8>| bytes.extend_from_slice(value)));
        Ok(())
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// As [`Batch::put`].
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        check_key(key)?;
        self.0.add(key, None::<fn(&mut Vec<u8>)>);
        Ok(())
    }

    /// How many operations it has. Two on one key count twice.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// The most that it takes in the log.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes() as u64 + self.len() as u64 * OP_OVERHEAD_BYTES
    }

    pub(crate) fn ops(&self) -> impl Iterator<Item = WriteOp<'_>> {
        self.0.iter().map(|(key, value)| value.map_or(WriteOp::Delete { key }, |value| WriteOp::Put { key, value }))
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
