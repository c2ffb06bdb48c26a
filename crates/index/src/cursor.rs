//! The trait of ordered streams.

use bifold_contract::{Entry, Result, SeqNo, Value};

/// The direction in which a cursor moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To larger keys.
    Forward,
    /// To smaller keys.
    Backward,
}

impl Direction {
    /// The neighbour of number `at` of `count` in this direction, if there is one.
    pub(crate) fn next(self, at: usize, count: usize) -> Option<usize> {
        match self {
            Self::Forward => Some(at + 1).filter(|&next| next < count),
            Self::Backward => at.checked_sub(1),
        }
    }
}

/// A position in a sorted stream: key ascending, then sequence number descending.
///
/// A new cursor is not on an entry: [`Cursor::entry`] is `None` until the cursor is placed, and again after it moves
/// past either end. After an error the cursor is not on an entry, and every later move returns the same error: it
/// never skips entries that it could not read.
pub trait Cursor {
    /// The current entry.
    fn entry(&self) -> Option<Entry<'_>>;

    /// The payload of the current entry, not copied if the stream's buffers can be shared. Empty without a current
    /// entry.
    fn payload(&self) -> Value;

    /// Moves to the first entry of the stream.
    ///
    /// # Errors
    /// I/O errors and corruption, as for all moves.
    fn first(&mut self) -> Result<()>;

    /// Moves to the last entry of the stream.
    ///
    /// # Errors
    /// As [`Cursor::first`].
    fn last(&mut self) -> Result<()>;

    /// Moves to the first entry at or after (`key`, `seqno`) in stream order: the newest version of `key` that is not
    /// newer than `seqno`, or else the first entry of the next key.
    ///
    /// # Errors
    /// As [`Cursor::first`].
    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()>;

    /// Moves to the last entry whose key is less than `key`: the oldest version of the largest such key.
    ///
    /// # Errors
    /// As [`Cursor::first`].
    fn seek_before(&mut self, key: &[u8]) -> Result<()>;

    /// Moves to the next entry. Does nothing without a current entry.
    ///
    /// # Errors
    /// As [`Cursor::first`].
    fn next(&mut self) -> Result<()>;

    /// Moves to the previous entry. Does nothing without a current entry.
    ///
    /// # Errors
    /// As [`Cursor::first`].
    fn prev(&mut self) -> Result<()>;
}
