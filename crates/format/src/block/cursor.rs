//! Moves through data blocks, in both directions.
//!
//! Forward, each step decodes one entry and replaces the end of the key. Backward, prefixes cannot be undone: the
//! whole interval before the present entry is decoded once and its entries are kept, so that a step costs no more
//! than forward.
//!
//! Invariant: `slot`, `kind` and `key` describe the entry at `at`; `at` is `None` exactly when the cursor stands
//! nowhere.

use bifold_contract::{Corruption, Entry, Kind, MAX_KEY_LEN, SeqNo, Value};

use super::{Layout, Slot, bad_entry};

/// The keys of an interval have at most so many bytes together: there are at most 1024 of them. Without a bound, a
/// small block of many keys that share a long one would take any memory.
const INTERVAL_KEYS_BYTES_MAX: usize = 1024 * MAX_KEY_LEN;

/// A position in a block. Its buffers are reused for the next block.
#[derive(Clone, Debug, Default)]
pub struct BlockCursor {
    block: Option<Value>,
    layout: Layout,
    at: Option<usize>,
    slot: Slot,
    kind: Option<Kind>,
    key: Vec<u8>,
    /// The entries before the current one, back to a restart, and their concatenated keys.
    earlier: Vec<Earlier>,
    earlier_keys: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Earlier {
    at: usize,
    slot: Slot,
    key_start: usize,
}

impl BlockCursor {
    /// Switches to another block. The cursor is not on an entry then.
    ///
    /// # Errors
    /// If the block is damaged. The offset is relative to the block, as for all moves.
    pub fn set_block(&mut self, block: Value) -> Result<(), Corruption> {
        self.clear();
        self.layout = Layout::parse(&block)?;
        self.block = Some(block);
        Ok(())
    }

    /// Releases the block.
    pub fn clear(&mut self) {
        self.block = None;
        self.layout = Layout::default();
        self.at = None;
        self.earlier.clear();
    }

    /// The current entry.
    #[inline]
    #[must_use]
    pub fn entry(&self) -> Option<Entry<'_>> {
        let (_, block, kind) = (self.at?, self.block.as_ref()?, self.kind?);
        let payload = &block[self.slot.payload_start..self.slot.payload_end];
        Some(Entry { key: &self.key, seqno: self.slot.seqno(), kind, payload })
    }

    /// Whether the cursor is on an entry.
    #[inline]
    #[must_use]
    pub fn is_placed(&self) -> bool {
        self.at.is_some()
    }

    /// The payload of the current entry, sharing the block's buffer.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> Option<Value> {
        let (_, block) = (self.at?, self.block.as_ref()?);
        Some(block.part(self.slot.payload_start, self.slot.payload_end))
    }

    /// Moves to the first entry.
    ///
    /// # Errors
    /// As [`BlockCursor::set_block`].
    pub fn first(&mut self) -> Result<(), Corruption> {
        self.earlier.clear();
        self.key.clear();
        self.step_to(0)
    }

    /// Moves to the last entry.
    ///
    /// # Errors
    /// As [`BlockCursor::set_block`].
    pub fn last(&mut self) -> Result<(), Corruption> {
        self.earlier.clear();
        self.step_before(self.layout.entries_end)
    }

    /// Moves to the first entry at or after (`key`, `seqno`), or off the block if there is none.
    ///
    /// # Errors
    /// As [`BlockCursor::set_block`].
    pub fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<(), Corruption> {
        self.earlier.clear();
        self.at = None;
        let Some(block) = &self.block else { return Ok(()) };
        let place = self.layout.seek(block, key, seqno)?;
        let Some(slot) = place.slot else { return Ok(()) };
        // The found entry shares no more bytes with its predecessor than the predecessor shares with `key`.
        self.key.clear();
        self.key.extend_from_slice(key.get(..slot.shared).unwrap_or_default());
        self.set_entry(place.at, slot)
    }

    /// Moves to the last entry whose key is less than `key`, or off the block if there is none.
    ///
    /// # Errors
    /// As [`BlockCursor::set_block`].
    pub fn seek_before(&mut self, key: &[u8]) -> Result<(), Corruption> {
        self.earlier.clear();
        self.at = None;
        let Some(block) = &self.block else { return Ok(()) };
        let place = self.layout.seek(block, key, SeqNo::MAX)?;
        self.step_before(place.at)
    }

    /// Moves to the next entry, or off the block after the last one.
    ///
    /// # Errors
    /// As [`BlockCursor::set_block`].
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "the entry borrows from the cursor; an iterator's cannot")]
    pub fn next(&mut self) -> Result<(), Corruption> {
        if self.at.is_none() {
            return Ok(());
        }
        self.earlier.clear();
        self.step_to(self.slot.payload_end)
    }

    /// Moves to the previous entry, or off the block before the first one.
    ///
    /// # Errors
    /// As [`BlockCursor::set_block`].
    pub fn prev(&mut self) -> Result<(), Corruption> {
        match self.at {
            Some(at) => self.step_before(at),
            None => Ok(()),
        }
    }

    /// Moves to the entry at `at`, which follows the entry that `key` belongs to.
    #[inline]
    fn step_to(&mut self, at: usize) -> Result<(), Corruption> {
        self.at = None;
        let Some(block) = &self.block else { return Ok(()) };
        if at >= self.layout.entries_end {
            return Ok(());
        }
        match Layout::slot(&block[..self.layout.entries_end], at) {
            Some(slot) => self.set_entry(at, slot),
            None => Err(bad_entry(block, at)),
        }
    }

    #[inline]
    fn set_entry(&mut self, at: usize, slot: Slot) -> Result<(), Corruption> {
        let Some(block) = &self.block else { return Ok(()) };
        self.kind = slot.kind();
        if slot.shared > self.key.len() || self.kind.is_none() {
            return Err(bad_entry(block, at));
        }
        self.key.truncate(slot.shared);
        self.key.extend_from_slice(&block[slot.key_start..slot.key_end]);
        self.slot = slot;
        self.at = Some(at);
        Ok(())
    }

    /// Moves to the entry before the one that starts at `end`.
    fn step_before(&mut self, end: usize) -> Result<(), Corruption> {
        self.at = None;
        if self.earlier.is_empty() {
            self.gather(end)?;
        }
        let Some(last) = self.earlier.pop() else { return Ok(()) };
        self.key.clear();
        self.key.extend_from_slice(&self.earlier_keys[last.key_start..]);
        self.earlier_keys.truncate(last.key_start);
        self.kind = last.slot.kind();
        self.slot = last.slot;
        self.at = Some(last.at);
        Ok(())
    }

    /// Decodes the entries from the last restart before `end` up to `end`.
    fn gather(&mut self, end: usize) -> Result<(), Corruption> {
        self.earlier_keys.clear();
        let Some(block) = &self.block else { return Ok(()) };
        let Some(mut at) = self.layout.restart_before(block, end) else { return Ok(()) };
        let mut before = 0..0;
        while at < end {
            let slot = Layout::slot(&block[..self.layout.entries_end], at);
            let key_start = self.earlier_keys.len();
            let fits = |slot: &Slot| {
                slot.shared <= before.len()
                    && key_start + slot.shared + (slot.key_end - slot.key_start) <= INTERVAL_KEYS_BYTES_MAX
            };
            let Some(slot) = slot.filter(|slot| fits(slot) && slot.kind().is_some()) else {
                self.earlier.clear();
                return Err(bad_entry(block, at));
            };
            self.earlier_keys.extend_from_within(before.start..before.start + slot.shared);
            self.earlier_keys.extend_from_slice(&block[slot.key_start..slot.key_end]);
            before = key_start..self.earlier_keys.len();
            self.earlier.push(Earlier { at, slot, key_start });
            at = slot.payload_end;
        }
        Ok(())
    }
}
