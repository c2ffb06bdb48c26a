//! A merged stream as one snapshot sees it, read from both ends.
//!
//! For every key between the bounds it yields the newest version that is not newer than the snapshot, unless that is
//! a tombstone, has expired or is covered by a range tombstone. Each end has a cursor, created on first use. The ends
//! stop where they meet, so each key is yielded once, by the end that reaches it first.
//!
//! Forward, the newest version of a key comes first and the others are skipped. Backward, it comes last, so the
//! latest candidate is remembered until the key ends. For a key with many versions, a seek replaces further steps
//! after `STEPS_MAX`. Nothing here recurses.
//!
//! Each end has a *fence*, beyond which the other end yields nothing: the key that it yielded last, exclusive, or the
//! key that it was sought at (`seek.rs`) or that stopped it, inclusive.
//!
//! Invariants: the front cursor is on the first entry that it may still yield, or on the key it yielded last; the back
//! cursor is before its own. When one end finds nothing more, both are done until an end is sought; after an error
//! every call returns that error.

mod chain;
mod seek;

use std::ops::Bound;

use bifold_contract::{
    Entry, Error, Kind, Millis, Result, SeqNo, Value,
    expiry::{self, INSTANT_BYTES},
    planted,
};

use crate::{
    cursor::Cursor,
    merge::MergeCursor,
    range_tombstones::{Hint, RangeTombstones},
};

/// A seek costs about as much as this many steps.
const STEPS_MAX: usize = 8;

/// The entries of a key range that a snapshot sees.
pub struct Visible {
    make: Box<dyn Fn() -> MergeCursor + Send>,
    tombstones: RangeTombstones,
    snapshot: SeqNo,
    /// Entries with instants up to this have expired.
    time: Millis,
    lower: Bound<Box<[u8]>>,
    upper: Bound<Box<[u8]>>,
    front: Option<Front>,
    back: Option<Back>,
    payloads: Payloads,
    outcome: Outcome,
}

/// Whether entries come with their payloads.
enum Payloads {
    Given,
    /// All have this empty one.
    LeftOut(Value),
}

/// A visible entry. The payload is a value or, by `kind`, an encoded pointer to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The key.
    pub key: Box<[u8]>,
    /// The version's sequence number.
    pub seqno: SeqNo,
    /// What `payload` means: an inline value or an encoded pointer.
    pub kind: Kind,
    /// The version's payload, without an instant.
    pub payload: Value,
    /// When it expires, if it does.
    pub expires_at: Option<Millis>,
}

enum Outcome {
    Going,
    Over,
    Failed(Error),
}

/// Where an end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// On the entry it has yielded last. The other end may yield what lies beyond that key.
    Entry,
    /// The same, but not on the entry any more.
    Passed,
    /// Before the entries that it yields next. The other end may yield that key, too.
    Key,
    /// Past all entries. The other end yields nothing.
    End,
}

struct Front {
    cursor: MergeCursor,
    hint: Hint,
    /// The key of the fence; during a move, the key examined last.
    key: Vec<u8>,
    /// If it is on an entry, so is the cursor.
    at: At,
}

struct Back {
    cursor: MergeCursor,
    hint: Hint,
    /// The key of the fence; during a move, the key examined last.
    key: Vec<u8>,
    /// If it is on an entry, the fields below are of that, and the cursor is already before it.
    at: At,
    seqno: SeqNo,
    kind: Kind,
    payload: Value,
}

impl Visible {
    /// What `snapshot` sees at `time`, between the bounds, of the streams that `make` merges. `tombstones` are those of
    /// all the streams and may include ones newer than the snapshot.
    #[must_use]
    pub fn new(
        make: Box<dyn Fn() -> MergeCursor + Send>,
        tombstones: RangeTombstones,
        (snapshot, time): (SeqNo, Millis),
        lower: Bound<Box<[u8]>>,
        upper: Bound<Box<[u8]>>,
    ) -> Self {
        let (payloads, outcome) = (Payloads::Given, Outcome::Going);
        Self { make, tombstones, snapshot, time, lower, upper, front: None, back: None, payloads, outcome }
    }

    /// From now on entries come with empty payloads: nothing is copied out of memtables for those who want only keys.
    pub fn leave_out_payloads(&mut self) {
        self.payloads = Payloads::LeftOut(Value::copy_of(&[]));
    }

    /// The next entry from the front; `None` when it meets the back.
    ///
    /// # Errors
    /// Those of the streams. Every later call, from either end, returns the same error.
    pub fn next_front(&mut self) -> Result<Option<Item>> {
        if !self.advance_front()? {
            return Ok(None);
        }
        Ok(self.front.as_ref().and_then(|front| front.item(&self.payloads)))
    }

    /// The next entry from the back; `None` when it meets the front.
    ///
    /// # Errors
    /// As [`Visible::next_front`].
    pub fn next_back(&mut self) -> Result<Option<Item>> {
        if !self.advance_back()? {
            return Ok(None);
        }
        Ok(self.back.as_ref().map(Back::item))
    }

    /// Moves the front to the next entry without reading its payload; `false` when it meets the back.
    ///
    /// # Errors
    /// As [`Visible::next_front`].
    pub fn advance_front(&mut self) -> Result<bool> {
        let moved = self.begin().and_then(|going| if going { self.move_front() } else { Ok(false) });
        self.record_outcome(moved)
    }

    /// Moves the back to the next entry; `false` when it meets the front.
    ///
    /// # Errors
    /// As [`Visible::next_front`].
    pub fn advance_back(&mut self) -> Result<bool> {
        let moved = self.begin().and_then(|going| if going { self.move_back() } else { Ok(false) });
        self.record_outcome(moved)
    }

    /// The entry the front moved to last, borrowed, as it is stored; `None` after it has met the back.
    #[must_use]
    pub fn front(&self) -> Option<Entry<'_>> {
        self.front.as_ref().filter(|front| front.at == At::Entry).and_then(|front| front.cursor.entry())
    }

    /// The payload of the entry the front moved to last, without an instant. It shares its block; after the front has
    /// met the back it is empty.
    #[must_use]
    pub fn front_payload(&self) -> Value {
        self.front
            .as_ref()
            .filter(|front| front.at == At::Entry)
            .map_or_else(|| Value::copy_of(&[]), |front| front.payload())
    }

    /// The entry the back moved to last, borrowed, as it is stored; `None` after it has met the front.
    #[must_use]
    pub fn back(&self) -> Option<Entry<'_>> {
        let back = self.back.as_ref().filter(|back| back.at == At::Entry)?;
        Some(Entry { key: &back.key, seqno: back.seqno, kind: back.kind, payload: &back.payload })
    }

    fn begin(&self) -> Result<bool> {
        match &self.outcome {
            Outcome::Going => Ok(true),
            Outcome::Over => Ok(false),
            Outcome::Failed(error) => Err(error.clone()),
        }
    }

    fn record_outcome(&mut self, moved: Result<bool>) -> Result<bool> {
        match &moved {
            Ok(true) => {}
            Ok(false) => self.outcome = Outcome::Over,
            Err(error) => self.outcome = Outcome::Failed(error.clone()),
        }
        moved
    }

    fn move_front(&mut self) -> Result<bool> {
        let front = match &mut self.front {
            Some(front) => {
                if std::mem::replace(&mut front.at, At::Key) == At::Entry {
                    front.leave_key()?;
                }
                front
            }
            none => none.insert(Front::placed((self.make)(), &self.lower, self.snapshot)?),
        };
        let mut too_new = 0;
        while let Some(entry) = front.cursor.entry() {
            if is_above(entry.key, &self.upper) {
                break;
            }
            if self.back.as_ref().is_some_and(|back| back.excludes(entry.key)) {
                front.at = At::Key;
                front.key.clear();
                front.key.extend_from_slice(entry.key);
                return Ok(false);
            }
            if front.key != entry.key {
                front.key.clear();
                front.key.extend_from_slice(entry.key);
                too_new = 0;
            }
            if entry.seqno > self.snapshot {
                too_new += 1;
                if too_new <= STEPS_MAX {
                    front.cursor.next()?;
                } else {
                    front.cursor.seek(&front.key, self.snapshot)?;
                }
            } else if is_live(&self.tombstones, &mut front.hint, &entry, (self.snapshot, self.time)) {
                front.at = At::Entry;
                return Ok(true);
            } else {
                front.leave_key()?;
            }
        }
        front.at = At::End;
        Ok(false)
    }

    fn move_back(&mut self) -> Result<bool> {
        let back = match &mut self.back {
            Some(back) => {
                back.at = At::Key;
                back
            }
            none => none.insert(Back::placed((self.make)(), &self.upper)?),
        };
        while let Some(entry) = back.cursor.entry() {
            if is_below(entry.key, &self.lower) {
                break;
            }
            let is_met = self.front.as_ref().is_some_and(|front| front.excludes(entry.key));
            back.key.clear();
            back.key.extend_from_slice(entry.key);
            if is_met {
                back.at = At::Key;
                return Ok(false);
            }
            if back.take_newest(self.snapshot, &self.payloads)? {
                let (seqno, kind, payload) = (back.seqno, back.kind, &*back.payload);
                let entry = Entry { key: &back.key, seqno, kind, payload };
                let time = if planted!("backwards_nothing_expires") { 0 } else { self.time };
                if is_live(&self.tombstones, &mut back.hint, &entry, (self.snapshot, time)) {
                    back.at = At::Entry;
                    return Ok(true);
                }
            }
        }
        back.at = At::End;
        Ok(false)
    }
}

impl Front {
    /// A front at the first entry of the range, in stream order from (`lower`, `snapshot`).
    fn placed(cursor: MergeCursor, lower: &Bound<Box<[u8]>>, snapshot: SeqNo) -> Result<Self> {
        let mut front = Self::new(cursor);
        front.go_to_bound(lower, snapshot)?;
        Ok(front)
    }

    /// A front that must be placed.
    fn new(cursor: MergeCursor) -> Self {
        Self { cursor, hint: Hint::default(), key: Vec::new(), at: At::End }
    }

    fn go_to_bound(&mut self, lower: &Bound<Box<[u8]>>, snapshot: SeqNo) -> Result<()> {
        self.at = At::Key;
        match lower {
            Bound::Unbounded => self.cursor.first(),
            Bound::Included(key) => self.cursor.seek(key, snapshot),
            Bound::Excluded(key) => self.cursor.seek(key, 0),
        }
    }

    /// Whether the back must not yield `key`.
    fn excludes(&self, key: &[u8]) -> bool {
        match self.at {
            At::Entry | At::Passed => *key <= *self.key,
            At::Key => *key < *self.key,
            At::End => true,
        }
    }

    /// Moves past all versions of `key`.
    fn leave_key(&mut self) -> Result<()> {
        for _ in 0..STEPS_MAX {
            match self.cursor.entry() {
                Some(entry) if entry.key == self.key => self.cursor.next()?,
                _ => return Ok(()),
            }
        }
        match self.cursor.entry() {
            // No version has number 0, so this is the first of the next key.
            Some(entry) if entry.key == self.key => self.cursor.seek(&self.key, 0),
            _ => Ok(()),
        }
    }

    fn item(&self, payloads: &Payloads) -> Option<Item> {
        let entry = self.cursor.entry()?;
        let (kind, expires_at) = (entry.kind.plain(), entry.expires_at());
        let payload = match payloads {
            Payloads::Given => self.payload(),
            Payloads::LeftOut(empty) => empty.clone(),
        };
        Some(Item { key: entry.key.into(), seqno: entry.seqno, kind, payload, expires_at })
    }

    /// The payload without an instant.
    fn payload(&self) -> Value {
        let payload = self.cursor.payload();
        if self.cursor.entry().is_some_and(|entry| entry.kind.expires()) { without_instant(&payload) } else { payload }
    }
}

impl Back {
    /// A back at the last entry of the range.
    fn placed(cursor: MergeCursor, upper: &Bound<Box<[u8]>>) -> Result<Self> {
        let mut back = Self::new(cursor);
        back.go_to_bound(upper)?;
        Ok(back)
    }

    /// A back that must be placed.
    fn new(cursor: MergeCursor) -> Self {
        let (key, payload) = (Vec::new(), Value::copy_of(&[]));
        Self { cursor, hint: Hint::default(), key, at: At::End, seqno: 0, kind: Kind::Delete, payload }
    }

    fn go_to_bound(&mut self, upper: &Bound<Box<[u8]>>) -> Result<()> {
        self.at = At::Key;
        match upper {
            Bound::Unbounded => self.cursor.last(),
            Bound::Included(key) => self.cursor.seek_before(&after(key)),
            Bound::Excluded(key) => self.cursor.seek_before(key),
        }
    }

    /// Whether the front must not yield `key`.
    fn excludes(&self, key: &[u8]) -> bool {
        match self.at {
            At::Entry | At::Passed => *self.key <= *key,
            At::Key => *self.key < *key,
            At::End => true,
        }
    }

    /// Remembers the newest version of `key` that `snapshot` sees, if any, and moves before all versions of the key.
    /// The cursor must be on the oldest.
    fn take_newest(&mut self, snapshot: SeqNo, payloads: &Payloads) -> Result<bool> {
        let mut found = false;
        for _ in 0..STEPS_MAX {
            if !self.remember_if_visible(snapshot, payloads) {
                break;
            }
            found = true;
            self.cursor.prev()?;
        }
        if found && self.remember_if_visible(snapshot, payloads) {
            self.cursor.seek(&self.key, snapshot)?;
            self.remember_if_visible(snapshot, payloads);
            self.cursor.seek_before(&self.key)?;
            return Ok(true);
        }
        for _ in 0..STEPS_MAX {
            if !self.is_on_key() {
                return Ok(found);
            }
            self.cursor.prev()?;
        }
        if self.is_on_key() {
            self.cursor.seek_before(&self.key)?;
        }
        Ok(found)
    }

    /// Remembers the current entry if it is a version of `key` that the snapshot sees.
    fn remember_if_visible(&mut self, snapshot: SeqNo, payloads: &Payloads) -> bool {
        let Some(entry) = self.cursor.entry().filter(|e| e.key == self.key && e.seqno <= snapshot) else {
            return false;
        };
        (self.seqno, self.kind) = (entry.seqno, entry.kind);
        self.payload = match (entry.kind, payloads) {
            (kind, Payloads::LeftOut(_)) if kind.expires() => {
                Value::copy_of(&entry.payload[..INSTANT_BYTES.min(entry.payload.len())])
            }
            (_, Payloads::LeftOut(empty)) => empty.clone(),
            (Kind::Delete, _) => Value::copy_of(&[]),
            _ => self.cursor.payload(),
        };
        true
    }

    fn is_on_key(&self) -> bool {
        self.cursor.entry().is_some_and(|entry| entry.key == self.key)
    }

    fn item(&self) -> Item {
        let (key, seqno, kind) = (self.key.as_slice().into(), self.seqno, self.kind.plain());
        let (payload, expires_at) = match self.kind.expires() {
            true => (without_instant(&self.payload), Some(expiry::split(&self.payload).0)),
            false => (self.payload.clone(), None),
        };
        Item { key, seqno, kind, payload, expires_at }
    }
}

/// The rest of a payload that begins with an instant.
#[must_use]
pub fn without_instant(payload: &Value) -> Value {
    payload.part(INSTANT_BYTES.min(payload.len()), payload.len())
}

/// Whether `entry`, the newest version of its key that `snapshot` sees, is a value that has not expired at `time` and
/// that no range tombstone covers.
fn is_live(
    tombstones: &RangeTombstones,
    hint: &mut Hint,
    entry: &Entry<'_>,
    (snapshot, time): (SeqNo, Millis),
) -> bool {
    let is_value = match entry.kind {
        // Whoever asked resolves it.
        Kind::Inline | Kind::Pointer | Kind::Operand | Kind::Large => true,
        Kind::Delete => false,
        Kind::InlineUntil | Kind::PointerUntil => entry.expires_at().is_some_and(|instant| instant > time),
    };
    is_value && tombstones.covering_near(hint, entry.key, snapshot) <= entry.seqno
}

/// The least key above `key`.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

fn is_above(key: &[u8], upper: &Bound<Box<[u8]>>) -> bool {
    match upper {
        Bound::Unbounded => false,
        Bound::Included(upper) => **upper < *key,
        Bound::Excluded(upper) => **upper <= *key,
    }
}

fn is_below(key: &[u8], lower: &Bound<Box<[u8]>>) -> bool {
    match lower {
        Bound::Unbounded => false,
        Bound::Included(lower) => *key < **lower,
        Bound::Excluded(lower) => *key <= **lower,
    }
}

#[cfg(test)]
mod tests;
