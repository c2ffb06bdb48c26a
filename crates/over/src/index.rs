//! What a foreign engine must do, and what the store keeps in it.
//!
//! ```text
//! key    as it is; one that begins with 0 gets 0 1 in front of it      the mark is under 0 0
//! entry  0 │ value            1 │ address (`bifold_format::pointer`)
//! mark   "bifover1" │ number of the store u64 │ last commit u64 │ checksum u64
//! ```
//!
//! Keys keep their order. The mark says whose index this is and up to which commit it has everything.

use std::{borrow::Cow, ops::Bound};

use bifold_contract::{Corruption, Pointer, Result, SeqNo};
use bifold_format::{checksum::checksum, pointer};

use crate::packed::Packed;

/// The longest key, in bytes: fjall takes 65 535, and two are needed for keys that begin with a zero byte.
pub const KEY_BYTES_MAX: usize = 65_533;

/// An ordered index of another engine: byte strings to byte strings, in the order of bytes.
///
/// The store calls [`ForeignIndex::write`] and [`ForeignIndex::sync`] from one thread at a time, and the rest from any.
/// Nothing else may write to the index, or to the part of an engine that it is.
///
/// **What it must promise.** What was written before a [`ForeignIndex::sync`] that has returned survives a power loss.
/// Of later writes any may be lost, also single changes of one write; but a key never has a value that was not
/// written to it. It need not have a log of its own.
pub trait ForeignIndex: Send + Sync + 'static {
    /// Its snapshots.
    type View<'a>: ForeignView
    where
        Self: 'a;

    /// Its name, for messages.
    fn name(&self) -> &'static str;

    /// Shows what `key` has now to `see`. Returns whether it has something; if not, `see` is not called.
    ///
    /// # Errors
    /// The engine's.
    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Makes these changes, in any order. After an error the store writes nothing more until it is opened again.
    ///
    /// # Errors
    /// The engine's.
    fn write(&self, changes: &Changes) -> Result<()>;

    /// The index as it is now, whatever is written later.
    ///
    /// # Errors
    /// The engine's.
    fn snapshot(&self) -> Result<Self::View<'_>>;

    /// Makes everything written so far survive a power loss.
    ///
    /// # Errors
    /// The engine's.
    fn sync(&self) -> Result<()>;
}

/// An index as it was at some moment.
pub trait ForeignView {
    /// As [`ForeignIndex::get`].
    ///
    /// # Errors
    /// The engine's.
    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// The entries between two keys, in ascending order. The store asks for no range whose start is behind its end.
    ///
    /// # Errors
    /// The engine's.
    fn scan<'s>(&'s self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Result<Entries<'s>>;
}

/// Entries of an index: keys with what they have.
pub type Entries<'s> = Box<dyn Iterator<Item = Result<(Vec<u8>, Vec<u8>)>> + 's>;

/// Changes of an index, each of another key.
#[derive(Clone, Debug, Default)]
pub struct Changes(
    /// Keys with what they get; a deleted one gets nothing.
    Packed,
);

impl Changes {
    /// All of them: keys, and what each gets; `None` deletes it.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.0.iter()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Bytes of their keys and of what these get.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    pub(crate) fn put(&mut self, key: &[u8], entry: &Entry) {
        let write = |bytes: &mut Vec<u8>| match entry {
            Entry::Deleted => {}
            Entry::Inline(value) => {
                bytes.push(INLINE);
                bytes.extend_from_slice(value);
            }
            Entry::Separated(pointer) => {
                bytes.push(SEPARATED);
                pointer::encode(*pointer, bytes);
            }
        };
        self.0.add(&stored_key(key), (*entry != Entry::Deleted).then_some(write));
    }

    pub(crate) fn mark(&mut self, mark: Mark) {
        self.0.add(MARK_KEY, Some(|bytes: &mut Vec<u8>| bytes.extend_from_slice(&mark.encode())));
    }
}

/// What a key has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Nothing.
    Deleted,
    /// This value.
    Inline(Box<[u8]>),
    /// The value at this address.
    Separated(Pointer),
}

const INLINE: u8 = 0;
const SEPARATED: u8 = 1;

/// Where the mark is. No key of a user is stored under this, or before it.
pub(crate) const MARK_KEY: &[u8] = &[0, 0];

const ZERO: u8 = 0;
const ESCAPED: [u8; 2] = [0, 1];

/// Under which key of the index a user's key is.
pub(crate) fn stored_key(key: &[u8]) -> Cow<'_, [u8]> {
    if key.first() == Some(&ZERO) { Cow::Owned([&ESCAPED, key].concat()) } else { Cow::Borrowed(key) }
}

/// The user's key that is under this key of the index; `None` if none can be.
pub(crate) fn users_key(mut stored: Vec<u8>) -> Option<Vec<u8>> {
    match stored.as_slice() {
        [] => None,
        [ZERO, 1, ZERO, ..] => Some(stored.split_off(ESCAPED.len())),
        [ZERO, ..] => None,
        _ => Some(stored),
    }
}

/// What the index has for a key.
pub(crate) fn decode(stored: &[u8]) -> std::result::Result<Entry, Corruption> {
    match stored.split_first() {
        Some((&INLINE, value)) => Ok(Entry::Inline(value.into())),
        Some((&SEPARATED, address)) => pointer::decode(address).map(Entry::Separated).map_err(|damage| damage.at(1)),
        other => {
            let found = other.map_or("nothing".to_owned(), |(kind, _)| format!("kind {kind}"));
            Err(Corruption::new(0, "entry of the index", "a value (0) or an address (1)", found))
        }
    }
}

/// Whose index this is, and how far it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The number of the store.
    pub store: u64,
    /// All commits up to this one are in the index.
    pub last: SeqNo,
}

const MARK_MAGIC: [u8; 8] = *b"bifover1";
const MARK_BYTES: usize = 32;

impl Mark {
    fn encode(self) -> [u8; MARK_BYTES] {
        let mut out = [0; MARK_BYTES];
        out[..8].copy_from_slice(&MARK_MAGIC);
        out[8..16].copy_from_slice(&self.store.to_le_bytes());
        out[16..24].copy_from_slice(&self.last.to_le_bytes());
        let sum = checksum(&out[..24], 0, 0);
        out[24..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// The mark in these bytes.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Self, Corruption> {
        let number = |at: usize| {
            let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
            word.map_or(0, u64::from_le_bytes)
        };
        let mark = Self { store: number(8), last: number(16) };
        if bytes != mark.encode() {
            let found = format!("{} other bytes", bytes.len());
            return Err(Corruption::new(0, "mark of the index", "a whole mark of bifold-over", found));
        }
        Ok(mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_keys_keep_their_order_and_lie_behind_the_mark() {
        let keys: [&[u8]; 9] =
            [b"\0", b"\0\0", b"\0\0\xff", b"\0\x01", b"\0\xff", b"\x01", b"\x01\0", b"a", b"\xff\xff"];
        let stored: Vec<Vec<u8>> = keys.iter().map(|key| stored_key(key).into_owned()).collect();
        assert!(stored.is_sorted_by(|a, b| a < b) && stored.iter().all(|key| key.as_slice() > MARK_KEY));
        let back: Vec<Vec<u8>> = stored.into_iter().filter_map(users_key).collect();
        assert_eq!(back, keys);
        assert_eq!([b"".to_vec(), MARK_KEY.to_vec(), b"\0\x01".to_vec()].map(users_key), [None, None, None]);
    }

    #[test]
    fn entries_come_back_and_damage_is_an_error() {
        let pointer = Pointer { file: 7, epoch: 0, offset: 1 << 40, len: 900 };
        let mut changes = Changes::default();
        let entries = [Entry::Inline((*b"value").into()), Entry::Deleted, Entry::Separated(pointer)];
        entries.iter().for_each(|entry| changes.put(b"\0key", entry));
        let found: Vec<_> = changes.iter().map(|(_, stored)| stored.map(|bytes| decode(bytes).unwrap())).collect();
        assert_eq!(found, [Some(entries[0].clone()), None, Some(entries[2].clone())]);
        assert!(changes.iter().all(|(key, _)| users_key(key.to_vec()).unwrap() == b"\0key"));
        for bad in [&b""[..], b"\x02", b"\x01", b"\x01\xff"] {
            assert!(decode(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_mark_with_any_flipped_bit_is_damage() {
        let mark = Mark { store: 0x1234_5678_9abc_def0, last: 99 };
        let bytes = mark.encode();
        assert_eq!(Mark::decode(&bytes).unwrap(), mark);
        for bit in 0..MARK_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Mark::decode(&flipped).is_err(), "bit {bit}");
        }
        assert!(Mark::decode(&bytes[..31]).is_err() && Mark::decode(&[]).is_err());
    }
}
