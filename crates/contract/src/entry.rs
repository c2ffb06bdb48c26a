//! One version of one key, as memtables, tables, merges and rewriters pass it on.
//!
//! Every sorted stream is ordered by key ascending, then by sequence number **descending**: the newest version of
//! a key comes first. Two entries of a stream never share both key and sequence number.

use crate::{
    SeqNo,
    expiry::{self, Millis},
    levels::upper_bound_is_after,
};

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
    /// As `Inline`, until the [instant](mod@crate::expiry) at the beginning of the payload.
    InlineUntil = 3,
    /// As `Pointer`, until the instant at the beginning of the payload.
    PointerUntil = 4,
    /// The entry's payload is an operand, which the keyspace's merge operator combines with the older versions: it
    /// shadows none of them.
    Operand = 5,
    /// The entry's payload is an encoded [`LargeRef`](crate::LargeRef): the value has a file of its own.
    Large = 6,
}

impl Kind {
    /// The kind stored as `byte`, or `None` when no kind has that number.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Delete),
            1 => Some(Self::Inline),
            2 => Some(Self::Pointer),
            3 => Some(Self::InlineUntil),
            4 => Some(Self::PointerUntil),
            5 => Some(Self::Operand),
            6 => Some(Self::Large),
            _ => None,
        }
    }

    /// Whether the payload begins with an instant.
    #[inline]
    #[must_use]
    pub fn expires(self) -> bool {
        matches!(self, Self::InlineUntil | Self::PointerUntil)
    }

    /// What the payload means behind its instant, if it has one.
    #[must_use]
    pub fn plain(self) -> Self {
        match self {
            Self::InlineUntil => Self::Inline,
            Self::PointerUntil => Self::Pointer,
            plain => plain,
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
    /// The value, an encoded pointer, or nothing; before it the instant, if the entry expires.
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

    /// An operand of the merge operator.
    #[must_use]
    pub fn operand(key: &'a [u8], seqno: SeqNo, operand: &'a [u8]) -> Self {
        Self { key, seqno, kind: Kind::Operand, payload: operand }
    }

    /// From when on it is as if deleted.
    #[inline]
    #[must_use]
    pub fn expires_at(&self) -> Option<Millis> {
        if self.kind.expires() { Some(expiry::split(self.payload).0) } else { None }
    }

    /// The same version without its instant, if it has one.
    #[must_use]
    pub fn plain(&self) -> Self {
        let payload = if self.kind.expires() { expiry::split(self.payload).1 } else { self.payload };
        Self { kind: self.kind.plain(), payload, ..*self }
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
