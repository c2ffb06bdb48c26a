//! One version of one key, as memtables, tables, merges and rewriters pass it on.
//!
//! Every sorted stream is ordered by key ascending, then by sequence number **descending**: the newest version of
//! a key comes first. Two entries of a stream never share both key and sequence number.

use crate::{SeqNo, levels::upper_bound_is_after};

/// What an entry says about its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The key is deleted. This entry shadows all older versions.
    Delete = 0,
    /// The entry's payload is the value itself.
    Inline = 1,
    /// The entry's payload is an encoded [`Pointer`](crate::Pointer) to the value.
    Pointer = 2,
}

impl Kind {
    /// The kind stored as `byte`, or `None` when no kind has that number.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Delete),
            1 => Some(Self::Inline),
            2 => Some(Self::Pointer),
            _ => None,
        }
    }
}

/// One version of one key, borrowed from whatever holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The user's key.
    pub key: &'a [u8],
    /// The commit order of this version.
    pub seqno: SeqNo,
    /// What `payload` means.
    pub kind: Kind,
    /// The value, an encoded pointer, or nothing.
    pub payload: &'a [u8],
}

impl<'a> Entry<'a> {
    /// A live version with an inline value.
    #[must_use]
    pub fn inline(key: &'a [u8], seqno: SeqNo, value: &'a [u8]) -> Self {
        Self { key, seqno, kind: Kind::Inline, payload: value }
    }

    /// A tombstone.
    #[must_use]
    pub fn delete(key: &'a [u8], seqno: SeqNo) -> Self {
        Self { key, seqno, kind: Kind::Delete, payload: &[] }
    }
}

/// Deletes every version older than `seqno` of every key in `start..end`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RangeTombstone {
    /// First key deleted.
    pub start: Box<[u8]>,
    /// First key *not* deleted, always greater than `start`. `None` means no upper bound.
    pub end: Option<Box<[u8]>>,
    /// Versions with a smaller sequence number are deleted.
    pub seqno: SeqNo,
}

impl RangeTombstone {
    /// Whether `key` lies in the deleted range.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.start.as_ref() <= key && upper_bound_is_after(self.end.as_deref(), key)
    }
}
