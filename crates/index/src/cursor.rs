//! The trait of everything that can be walked in order.

use bifold_contract::{Entry, Result, SeqNo, Value};

/// A position in a sorted stream: key ascending, then sequence number descending.
///
/// A new cursor stands nowhere; [`Cursor::entry`] is `None` until it is placed, and again when it runs off either end.
/// After an error the cursor stands nowhere and every later move repeats the error's answer: it never skips over what
/// it could not read.
pub trait Cursor {
    /// The entry it stands on.
    fn entry(&self) -> Option<Entry<'_>>;

    /// The payload of the entry it stands on, without copying where the stream's buffers can be shared.
    /// Empty when it stands nowhere.
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

    /// Moves one entry on. Does nothing when it stands nowhere.
    ///
    /// # Errors
    /// As [`Cursor::first`].
    fn next(&mut self) -> Result<()>;

    /// Moves one entry back. Does nothing when it stands nowhere.
    ///
    /// # Errors
    /// As [`Cursor::first`].
    fn prev(&mut self) -> Result<()>;
}
