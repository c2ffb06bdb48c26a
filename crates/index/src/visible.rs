//! A merged stream as one snapshot sees it, read from both ends.
//!
//! For every key between the bounds it yields the newest version that is not newer than the snapshot, unless that is
//! a tombstone, has expired or is covered by a range tombstone. Each end has a cursor, created on first use. The ends stop where
//! they meet, so each key is yielded once, by the end that reaches it first.
//!
//! Forward, the newest version of a key comes first and the others are skipped. Backward, it comes last, so the
//! latest candidate is remembered until the key ends. For a key with many versions, a seek replaces further steps
//! after `STEPS_MAX`. Nothing here recurses.
//!
//! Invariants: the front cursor is on the key it yielded last, the back cursor before its own; when one end finds
//! nothing more, both are done; after an error every call returns that error.

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
    outcome: Outcome,
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

struct Front {
    cursor: MergeCursor,
    hint: Hint,
    /// The key yielded last; during a move, the key examined last.
    key: Vec<u8>,
    /// Whether the cursor is on an entry that was yielded.
    is_placed: bool,
}

struct Back {
    cursor: MergeCursor,
    hint: Hint,
    /// The key yielded last; during a move, the key examined last.
    key: Vec<u8>,
    /// Whether the fields below are of an entry that was yielded. The cursor is already before it.
    is_placed: bool,
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
        Self { make, tombstones, snapshot, time, lower, upper, front: None, back: None, outcome: Outcome::Going }
    }

    /// The next entry from the front; `None` when it meets the back.
    ///
    /// # Errors
    /// Those of the streams. Every later call, from either end, returns the same error.
    pub fn next_front(&mut self) -> Result<Option<Item>> {
        if !self.advance_front()? {
            return Ok(None);
        }
        Ok(self.front.as_ref().and_then(Front::item))
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
        self.front.as_ref().filter(|front| front.is_placed).and_then(|front| front.cursor.entry())
    }

    /// The payload of the entry the front moved to last without an instant, sharing its block; empty after it has met the back.
    #[must_use]
    pub fn front_payload(&self) -> Value {
        self.front.as_ref().filter(|front| front.is_placed).map_or_else(|| Value::copy_of(&[]), |front| front.payload())
    }

    /// The entry the back moved to last, borrowed, as it is stored; `None` after it has met the front.
    #[must_use]
    pub fn back(&self) -> Option<Entry<'_>> {
        let back = self.back.as_ref().filter(|back| back.is_placed)?;
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
        let limit = self.back.as_ref().filter(|back| back.is_placed).map(|back| &*back.key);
        let front = match &mut self.front {
            Some(front) => {
                front.is_placed = false;
                front.leave_key()?;
                front
            }
            none => none.insert(Front::placed((self.make)(), &self.lower, self.snapshot)?),
        };
        let mut too_new = 0;
        while let Some(entry) = front.cursor.entry() {
            if is_above(entry.key, &self.upper) || limit.is_some_and(|limit| limit <= entry.key) {
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
                front.is_placed = true;
                return Ok(true);
            } else {
                front.leave_key()?;
            }
        }
        Ok(false)
    }

    fn move_back(&mut self) -> Result<bool> {
        let limit = self.front.as_ref().filter(|front| front.is_placed).map(|front| &*front.key);
        let back = match &mut self.back {
            Some(back) => {
                back.is_placed = false;
                back
            }
            none => none.insert(Back::placed((self.make)(), &self.upper)?),
        };
        while let Some(entry) = back.cursor.entry() {
            if is_below(entry.key, &self.lower) || limit.is_some_and(|limit| entry.key <= limit) {
                return Ok(false);
            }
            back.key.clear();
            back.key.extend_from_slice(entry.key);
            if back.take_newest(self.snapshot)? {
                let (seqno, kind, payload) = (back.seqno, back.kind, &*back.payload);
                let entry = Entry { key: &back.key, seqno, kind, payload };
                let time = if planted!("backwards_nothing_expires") { 0 } else { self.time };
                back.is_placed = is_live(&self.tombstones, &mut back.hint, &entry, (self.snapshot, time));
                if back.is_placed {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

impl Front {
    /// A front at the first entry of the range, in stream order from (`lower`, `snapshot`).
    fn placed(mut cursor: MergeCursor, lower: &Bound<Box<[u8]>>, snapshot: SeqNo) -> Result<Self> {
        match lower {
            Bound::Unbounded => cursor.first()?,
            Bound::Included(key) => cursor.seek(key, snapshot)?,
            Bound::Excluded(key) => cursor.seek(key, 0)?,
        }
        Ok(Self { cursor, hint: Hint::default(), key: Vec::new(), is_placed: false })
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

    fn item(&self) -> Option<Item> {
        let entry = self.cursor.entry()?;
        let (kind, expires_at) = (entry.kind.plain(), entry.expires_at());
        Some(Item { key: entry.key.into(), seqno: entry.seqno, kind, payload: self.payload(), expires_at })
    }

    /// The payload without an instant.
    fn payload(&self) -> Value {
        let payload = self.cursor.payload();
        if self.cursor.entry().is_some_and(|entry| entry.kind.expires()) { without_instant(&payload) } else { payload }
    }
}

impl Back {
    /// A back at the last entry of the range.
    fn placed(mut cursor: MergeCursor, upper: &Bound<Box<[u8]>>) -> Result<Self> {
        match upper {
            Bound::Unbounded => cursor.last()?,
            // The least key above `key` is `key` followed by a zero byte.
            Bound::Included(key) => cursor.seek_before(&[key, &[0][..]].concat())?,
            Bound::Excluded(key) => cursor.seek_before(key)?,
        }
        let (key, payload) = (Vec::new(), Value::copy_of(&[]));
        Ok(Self { cursor, hint: Hint::default(), key, is_placed: false, seqno: 0, kind: Kind::Delete, payload })
    }

    /// Remembers the newest version of `key` that `snapshot` sees, if any, and moves before all versions of the key.
    /// The cursor must be on the oldest.
    fn take_newest(&mut self, snapshot: SeqNo) -> Result<bool> {
        let mut found = false;
        for _ in 0..STEPS_MAX {
            if !self.remember_if_visible(snapshot) {
                break;
            }
            found = true;
            self.cursor.prev()?;
        }
        if found && self.remember_if_visible(snapshot) {
            self.cursor.seek(&self.key, snapshot)?;
            self.remember_if_visible(snapshot);
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
    fn remember_if_visible(&mut self, snapshot: SeqNo) -> bool {
        let Some(entry) = self.cursor.entry().filter(|e| e.key == self.key && e.seqno <= snapshot) else {
            return false;
        };
        (self.seqno, self.kind) = (entry.seqno, entry.kind);
        self.payload = if entry.kind == Kind::Delete { Value::copy_of(&[]) } else { self.cursor.payload() };
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
        Kind::Inline | Kind::Pointer => true,
        Kind::Delete => false,
        Kind::InlineUntil | Kind::PointerUntil => entry.expires_at().is_some_and(|instant| instant > time),
    };
    is_value && tombstones.covering_near(hint, entry.key, snapshot) <= entry.seqno
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
