//! Data blocks: sorted entries with prefix-compressed keys.
//!
//! ```text
//! block    entry │ entry │ … │ head u64 per restart │ offset u32 per restart │ prefix length u32 │ restarts u32
//! entry    shared varint │ tail length varint │ payload length varint │ key tail │ seqno << 8 | kind u64 │ payload
//! ```
//!
//! Each entry's key is the first `shared` bytes of the key before it and a tail. Every so many entries one shares
//! nothing: a **restart**, where a search can begin. A search looks at the restarts' heads (see [`heads`]), then
//! walks at most one interval without putting any key together: how much of the sought key the last entry matched
//! tells, with `shared`, how most others compare.
//!
//! Blocks come from the disk behind a checksum, and still nothing in here trusts them: whatever the bytes, the answer
//! is a [`Corruption`] or some entry, never a panic.

pub mod heads;
pub mod sealed;
pub mod search;

mod builder;
mod cursor;
mod order;

use std::{cmp::Ordering, ops::Range};

use bifold_contract::{Corruption, Kind, SeqNo, Value, expiry::INSTANT_BYTES};
pub use builder::BlockBuilder;
pub use cursor::BlockCursor;
pub use order::StreamOrder;

use self::heads::{HEAD_BYTES, common_prefix};
use crate::bytes::Input;

/// Bytes per restart in the tail: head and offset.
const RESTART_BYTES: usize = HEAD_BYTES + 4;

/// Bytes of the tail after the restarts.
const FIXED_TAIL_BYTES: usize = 8;

/// Bytes of the smallest entry: three lengths, sequence number and kind.
const ENTRY_BYTES_MIN: usize = 11;

/// A version of a key found in a block.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its sequence number.
    pub seqno: SeqNo,
    /// Its kind.
    pub kind: Kind,
    /// The bytes of the block that are its payload.
    pub payload: Range<usize>,
}

/// The result of looking up one version of a key in a block.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The newest version that is not newer than the requested one.
    Found(Found),
    /// The key is not in the block, and the block continues past its position.
    Absent,
    /// The block ends with a version of the key that is newer than the requested one. Older ones may be in the next
    /// block.
    EndsInKey,
}

/// The newest version of `key` in `block` that is not newer than `seqno`.
///
/// # Errors
/// If the block is damaged. The offset is relative to the block.
#[inline]
pub fn get(block: &[u8], key: &[u8], seqno: SeqNo) -> Result<Answer, Corruption> {
    let layout = Layout::parse(block)?;
    let place = layout.seek(block, key, seqno)?;
    Ok(match place.slot {
        Some(slot) if place.is_key => {
            let kind = slot.kind().ok_or_else(|| bad_entry(block, place.at))?;
            Answer::Found(Found { seqno: slot.seqno(), kind, payload: slot.payload_start..slot.payload_end })
        }
        None if place.is_key => Answer::EndsInKey,
        _ => Answer::Absent,
    })
}

/// Checks that searches find every entry of a block: that restarts are entries with whole keys, and their heads are
/// right.
///
/// # Errors
/// If that is not so.
pub fn check_restarts(block: &Value) -> Result<(), Corruption> {
    let layout = Layout::parse(block)?;
    let damage = |index: usize, found: String| {
        let at = layout.entries_end + index * HEAD_BYTES;
        Err(Corruption::new(
            at as u64,
            "block restarts",
            "a restart at an entry with a whole key, and the right head",
            found,
        ))
    };
    let prefix = layout.restart_key(block, 0)?.0.get(..layout.prefix_len).ok_or_else(|| bad_tail(block))?;
    let stored_heads = block[layout.entries_end..].as_chunks::<HEAD_BYTES>().0;
    let (mut at, mut next) = (0, 0);
    while at < layout.entries_end {
        let Some(slot) = Layout::slot(&block[..layout.entries_end], at) else { return Err(bad_entry(block, at)) };
        if next < layout.restarts && layout.restart(block, next) == at {
            let key = &block[slot.key_start..slot.key_end];
            let expected = key.strip_prefix(prefix).map(heads::head);
            let stored = stored_heads.get(next).map(|head| u64::from_le_bytes(*head));
            if slot.shared != 0 || expected != stored {
                return damage(next, format!("restart {next} with head {stored:x?}"));
            }
            next += 1;
        }
        at = slot.payload_end;
    }
    let first = layout.restart(block, 0);
    if next == layout.restarts && first == 0 { Ok(()) } else { damage(next, format!("restart {next} of no entry")) }
}

/// The layout of a block.
#[derive(Clone, Copy, Debug, Default)]
struct Layout {
    entries_end: usize,
    restarts: usize,
    prefix_len: usize,
}

/// The position of an entry's fields in a block.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    shared: usize,
    key_start: usize,
    key_end: usize,
    tag: u64,
    payload_start: usize,
    payload_end: usize,
}

/// Where a search ended.
struct SearchEnd {
    /// Start of the first entry at or after the sought one; the end of the entries if there is none.
    at: usize,
    /// That entry.
    slot: Option<Slot>,
    /// Whether that entry has the sought key; if there is no such entry, whether the last entry of the block has it.
    is_key: bool,
}

impl Slot {
    #[inline]
    fn seqno(&self) -> SeqNo {
        self.tag >> 8
    }

    #[inline]
    fn kind(&self) -> Option<Kind> {
        let kind = Kind::from_byte(self.tag as u8)?;
        let has_instant = !kind.expires() || self.payload_end - self.payload_start >= INSTANT_BYTES;
        // No version has number 0: who looks for older ones would come to it again and again.
        (has_instant && self.seqno() > 0).then_some(kind)
    }
}

impl Layout {
    #[inline]
    fn parse(block: &[u8]) -> Result<Self, Corruption> {
        let Some((rest, tail)) = block.split_last_chunk::<FIXED_TAIL_BYTES>() else { return Err(bad_tail(block)) };
        let [a, b, c, d, e, f, g, h] = *tail;
        let prefix_len = u32::from_le_bytes([a, b, c, d]) as usize;
        let restarts = u32::from_le_bytes([e, f, g, h]) as usize;
        match restarts.checked_mul(RESTART_BYTES).and_then(|bytes| rest.len().checked_sub(bytes)) {
            Some(entries_end) if restarts > 0 && entries_end >= ENTRY_BYTES_MIN => {
                Ok(Self { entries_end, restarts, prefix_len })
            }
            _ => Err(bad_tail(block)),
        }
    }

    /// The entry at `at`; `None` if it does not fit into `entries`.
    #[inline]
    fn slot(entries: &[u8], at: usize) -> Option<Slot> {
        let (shared, tail_len, payload_len, key_start) = match *entries.get(at..)?.first_chunk::<4>()? {
            // Fast path for nearly all entries: short keys, with payloads below 128 bytes or below 16 KiB.
            [a, b, c, _] if (a | b | c) < 0x80 => (a.into(), b.into(), c.into(), at + 3),
            [a, b, c, d] if (a | b | d) < 0x80 => {
                (a.into(), b.into(), usize::from(c & 0x7F) | usize::from(d) << 7, at + 4)
            }
            _ => long_lengths(entries, at)?,
        };
        let key_end = key_start.checked_add(tail_len)?;
        let tag = entries.get(key_end..)?.first_chunk::<8>()?;
        let payload_start = key_end + 8;
        let payload_end = payload_start.checked_add(payload_len).filter(|&end| end <= entries.len())?;
        Some(Slot { shared, key_start, key_end, tag: u64::from_le_bytes(*tag), payload_start, payload_end })
    }

    /// Finds the first entry at or after (`key`, `seqno`).
    #[inline]
    fn seek(&self, block: &[u8], key: &[u8], seqno: SeqNo) -> Result<SearchEnd, Corruption> {
        let entries = &block[..self.entries_end];
        let mut at = if self.restarts == 1 { 0 } else { self.seek_restart(block, key, seqno)? };
        // All entries passed so far are before the sought one. The key of the last one has `matched` bytes in common
        // with `key`.
        let (mut matched, mut is_key) = (0, false);
        while at < entries.len() {
            let Some(slot) = Self::slot(entries, at) else { return Err(bad_entry(block, at)) };
            // If an entry shares more than `matched` bytes, it differs from `key` where the previous one did, so it
            // is before it too.
            match slot.shared.cmp(&matched) {
                Ordering::Greater => {}
                Ordering::Less if slot.shared > 0 => return Ok(SearchEnd { at, slot: Some(slot), is_key: false }),
                // A restart stores `shared` = 0 but may still have the sought key.
                Ordering::Less | Ordering::Equal => {
                    matched = slot.shared;
                    let tail = &entries[slot.key_start..slot.key_end];
                    let sought = &key[matched..];
                    let common = common_prefix(tail, sought);
                    matched += common;
                    is_key = common == tail.len() && common == sought.len();
                    let is_after = match (tail.get(common), sought.get(common)) {
                        (Some(here), Some(there)) => here > there,
                        (here, None) => here.is_some() || slot.seqno() <= seqno,
                        (None, Some(_)) => false,
                    };
                    if is_after {
                        return Ok(SearchEnd { at, slot: Some(slot), is_key });
                    }
                }
            }
            at = slot.payload_end;
        }
        Ok(SearchEnd { at, slot: None, is_key })
    }

    /// Start of the last restart that is not after (`key`, `seqno`); start of the first restart if all are.
    fn seek_restart(&self, block: &[u8], key: &[u8], seqno: SeqNo) -> Result<usize, Corruption> {
        let first = self.restart_key(block, 0)?.0;
        let Some(prefix) = first.get(..self.prefix_len) else { return Err(bad_tail(block)) };
        let heads = &block[self.entries_end..self.entries_end + self.restarts * HEAD_BYTES];
        let mut open = heads::search(heads.as_chunks().0, prefix, key);
        while !open.is_empty() {
            let middle = open.start + open.len() / 2;
            let (restart_key, restart_seqno) = self.restart_key(block, middle)?;
            let order = restart_key.cmp(key).then_with(|| seqno.cmp(&restart_seqno));
            if order == Ordering::Greater { open.end = middle } else { open.start = middle + 1 }
        }
        Ok(self.restart(block, open.start.saturating_sub(1)))
    }

    /// The offset of a restart. It may be damaged: it is checked when the entry there is decoded.
    #[inline]
    fn restart(&self, block: &[u8], index: usize) -> usize {
        let offsets = &block[self.entries_end + self.restarts * HEAD_BYTES..];
        offsets.as_chunks::<4>().0.get(index).map_or(usize::MAX, |offset| u32::from_le_bytes(*offset) as usize)
    }

    fn restart_key<'a>(&self, block: &'a [u8], index: usize) -> Result<(&'a [u8], SeqNo), Corruption> {
        let at = self.restart(block, index);
        match Self::slot(&block[..self.entries_end], at) {
            Some(slot) if slot.shared == 0 => Ok((&block[slot.key_start..slot.key_end], slot.seqno())),
            _ => Err(bad_entry(block, at)),
        }
    }

    /// The last restart before `at`, or `None`.
    fn restart_before(&self, block: &[u8], at: usize) -> Option<usize> {
        let offsets = &block[self.entries_end + self.restarts * HEAD_BYTES..];
        let offsets = &offsets.as_chunks::<4>().0[..self.restarts];
        let before = offsets.partition_point(|offset| (u32::from_le_bytes(*offset) as usize) < at);
        before.checked_sub(1).map(|index| self.restart(block, index))
    }
}

/// Shared length, tail length, payload length and the start of the tail, for lengths that the fast path does not
/// cover.
fn long_lengths(entries: &[u8], at: usize) -> Option<(usize, usize, usize, usize)> {
    let mut input = Input::new(&entries[at..], "block entry");
    let mut next = || input.varint32().ok().map(|length| length as usize);
    let (shared, tail, payload) = (next()?, next()?, next()?);
    Some((shared, tail, payload, at + input.position()))
}

#[cold]
fn bad_tail(block: &[u8]) -> Corruption {
    let tail = &block[block.len().saturating_sub(FIXED_TAIL_BYTES)..];
    Corruption::new(0, "data block", "entries and restarts", format!("{} bytes ending in {tail:02x?}", block.len()))
}

#[cold]
fn bad_entry(block: &[u8], at: usize) -> Corruption {
    let start = block.get(at..).unwrap_or_default();
    let found = format!("{:02x?}…", &start[..start.len().min(24)]);
    let expected = "lengths, a key tail, a number, a known kind and a payload within the block";
    Corruption::new(at as u64, "block entry", expected, found)
}

#[cfg(test)]
mod tests;
