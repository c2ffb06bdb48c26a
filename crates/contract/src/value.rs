//! Values as readers receive them.

use std::{fmt, ops::Deref, sync::Arc};

/// The bytes of a value: a view into a shared buffer. It is cheap to clone and may outlive the database.
///
/// A value read from a table block that is cached shares the block with the cache, so nothing is copied. Holding it
/// keeps that one block (usually 4 KiB) in memory. A value read through mapped pages has memory of its own.
#[derive(Clone)]
pub struct Value {
    buffer: Arc<[u8]>,
    start: u32,
    end: u32,
}

impl Value {
    /// The bytes `start..end` of `buffer`, without copying.
    ///
    /// # Panics
    /// If the range is not within the buffer, or ends beyond 4 GiB. Callers decode the range from that buffer.
    #[inline]
    #[must_use]
    pub fn slice(buffer: Arc<[u8]>, start: usize, end: usize) -> Self {
        assert!(start <= end && end <= buffer.len(), "value range {start}..{end} outside its buffer");
        let narrow = |n: usize| u32::try_from(n).unwrap_or_else(|_| panic!("value buffer of {n} bytes"));
        Self { start: narrow(start), end: narrow(end), buffer }
    }

    /// The bytes `start..end` of this value, sharing its buffer.
    ///
    /// # Panics
    /// If the range is not within the value. Callers decode the range from it.
    #[inline]
    #[must_use]
    pub fn part(&self, start: usize, end: usize) -> Self {
        assert!(start <= end && end <= self.len(), "part {start}..{end} of a value of {} bytes", self.len());
        Self { buffer: Arc::clone(&self.buffer), start: self.start + start as u32, end: self.start + end as u32 }
    }

    /// A copy of `bytes` in a new buffer.
    #[inline]
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        Self::slice(Arc::from(bytes), 0, bytes.len())
    }

    /// A copy of the value as a vector.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self[..].to_vec()
    }
}

impl Deref for Value {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.buffer[self.start as usize..self.end as usize]
    }
}

impl AsRef<[u8]> for Value {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self::copy_of(bytes)
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        let end = bytes.len();
        Self::slice(Arc::from(bytes), 0, end)
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Value {
    fn eq(&self, other: &T) -> bool {
        self[..] == *other.as_ref()
    }
}

impl Eq for Value {}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}
