//! The mapped file `APPENDS`: its layout, and who has which slot of it.
//!
//! ```text
//! APPENDS   slot 0 │ slot 1 │ …                                        each SLOT_BYTES
//!
//! slot      ┌─────────────┬──────────┬────────────┬────────────────────────────────────┬────────────────────┐
//!           │ base     u64│ KIND,    │ epoch   u64│ per append: length u64,            │ the appended bytes │
//!           │             │ name     │            │ checksum u64; up to APPENDS_MAX    │ one after another  │
//!           └─────────────┴──────────┴────────────┴────────────────────────────────────┴────────────────────┘
//!           0             8          56           64                                   4096                 36 864
//! ```
//!
//! All numbers are little-endian. `KIND`: 0 in a free slot, else the length of the name, the letters `BFAPP`, the
//! format's version 1, and 0. `base`: where in the file called `name` the first of the appended bytes belongs. An
//! append counts if its checksum holds: XXH3 of its bytes, seeded with the epoch, the name and **its offset in the
//! file**. So what stands in a slot from an earlier round, or what a power loss has mixed from several, never counts:
//! within an epoch no offset of a file is ever written twice, hence whatever counts is what belongs there.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, Weak,
    atomic::{AtomicBool, Ordering},
};

use bifold_contract::{Corruption, planted};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    ground::{AppendPlace, Ground, GroundMap},
    staged::StagedFile,
};
use crate::fs::APPEND_SLOT_BYTES;

const BASE: usize = 0;
const KIND: usize = 8;
const NAME: usize = 16;
const NAME_MAX: usize = EPOCH - NAME;
const EPOCH: usize = 56;
const TABLE: usize = 64;
const ENTRY: usize = 16;
const PAYLOAD: usize = 4096;

/// What stands at `KIND` of a slot that is taken, together with the length of the name: magic and version.
const MAGIC: u64 = u64::from_le_bytes(*b"\0BFAPP\x01\0");

/// Appends that a slot can hold.
pub const APPENDS_MAX: usize = (PAYLOAD - TABLE) / ENTRY;

/// A slot with its head.
pub const SLOT_BYTES: usize = APPEND_SLOT_BYTES as usize;

/// Bytes that a slot can hold: writes of 32 KiB cost 0.3 µs per KiB, less than half of those of single records.
pub const ROOM: usize = SLOT_BYTES - PAYLOAD;

/// The first slots that the file has, as many as these, are for nobody: an opening that finds the disk full gives back
/// their space to write out the first of the others, whose space then does for the next.
const SPARE: usize = 1;

/// The checksum's seed for an append at `offset` of the file that `file_seed` is of.
fn seed_at(file_seed: u64, offset: u64) -> u64 {
    if planted!("region_any_offset") { file_seed } else { file_seed ^ offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) }
}

fn seed_of(name: &[u8], epoch: u64) -> u64 {
    xxh3_64_with_seed(name, epoch)
}

/// What a slot holds: bytes that belong at `base` of the file `name`.
#[derive(Debug, PartialEq, Eq)]
pub struct Left {
    /// Which slot.
    pub slot: usize,
    /// The file.
    pub name: String,
    /// Where in it.
    pub base: u64,
    /// What.
    pub bytes: Vec<u8>,
}

/// What stands in the bytes of a file `APPENDS`, slots that hold nothing left out.
///
/// # Errors
/// When a slot is not of a version that this release knows.
pub fn parse(image: &[u8]) -> Result<Vec<Left>, Corruption> {
    let mut all = Vec::new();
    for (at, slot) in image.chunks_exact(SLOT_BYTES).enumerate() {
        let kind = number(slot, KIND);
        if kind & !0xFF != MAGIC && kind != 0 {
            let (expected, found) = (format!("0 or {MAGIC:#018x} and a length"), format!("{kind:#018x}"));
            return Err(Corruption::new((at * SLOT_BYTES + KIND) as u64, "kind of a slot", expected, found));
        }
        all.extend(parse_slot(slot, at).filter(|left| !left.bytes.is_empty()));
    }
    Ok(all)
}

fn number(slot: &[u8], at: usize) -> u64 {
    slot.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn parse_slot(slot: &[u8], at: usize) -> Option<Left> {
    let number = |at| number(slot, at);
    let name_len = usize::from(number(KIND) as u8);
    if !(1..=NAME_MAX).contains(&name_len) {
        return None;
    }
    let name = slot.get(NAME..NAME + name_len)?;
    let (base, seed) = (number(BASE), seed_of(name, number(EPOCH)));
    base.checked_add(ROOM as u64)?;
    let mut len = 0;
    for entry in (0..APPENDS_MAX).map(|n| TABLE + n * ENTRY) {
        let Some(part) = usize::try_from(number(entry)).ok().filter(|&part| part > 0 && part <= ROOM - len) else {
            break;
        };
        let bytes = &slot[PAYLOAD + len..PAYLOAD + len + part];
        if xxh3_64_with_seed(bytes, seed_at(seed, base.wrapping_add(len as u64))) != number(entry + 8) {
            break;
        }
        len += part;
    }
    let name = str::from_utf8(name).ok().filter(|name| !name.contains('/'))?.to_owned();
    Some(Left { slot: at, name, base, bytes: slot[PAYLOAD..PAYLOAD + len].to_vec() })
}

/// The slots of a directory.
#[derive(Debug)]
pub struct Slots<G: Ground> {
    map: G::Map,
    slots_max: usize,
    taken: Mutex<Taken<G>>,
    /// Some slot may still say what it held, though its file goes on elsewhere.
    is_stale: AtomicBool,
}

#[derive(Debug)]
struct Taken<G: Ground> {
    /// By whom each slot is taken, as far as the file has grown.
    holders: Vec<Holder<G>>,
    /// Where the search for a slot to take over begins.
    hand: usize,
}

#[derive(Debug)]
enum Holder<G: Ground> {
    Nobody,
    File(Weak<StagedFile<G>>),
    /// What it holds could not be written, or it must not be used: it is left for the next opening.
    Left,
}

/// For each byte that slots take so many must be free.
const FREE_FOR_EACH: u64 = 8;

/// How many bytes are mapped for so many slots.
pub fn mapped_bytes(slots_max: usize) -> usize {
    slots_max.saturating_add(SPARE).saturating_mul(SLOT_BYTES)
}

impl<G: Ground> Slots<G> {
    /// At most `slots_max` slots in `map`.
    pub fn new(map: G::Map, slots_max: usize) -> Arc<Self> {
        let taken = Mutex::new(Taken { holders: Vec::new(), hand: 0 });
        Arc::new(Self { map, slots_max, taken, is_stale: AtomicBool::new(false) })
    }

    fn taken(&self) -> MutexGuard<'_, Taken<G>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for `holder`, whose file is called `name` and has `base` bytes. A free one, a new one, or one whose
    /// holder is not appending just now. `None` when there is none.
    pub fn take(self: &Arc<Self>, holder: &Arc<StagedFile<G>>, name: &str, base: u64) -> Option<Slot<G>> {
        if name.len() > NAME_MAX || self.map.is_broken() {
            return None;
        }
        let mut taken = self.taken();
        let free = taken.holders.iter().position(|holder| matches!(holder, Holder::Nobody));
        let at = free.or_else(|| self.grow(&mut taken)).or_else(|| take_over(&mut taken))?;
        taken.holders[at] = Holder::File(Arc::downgrade(holder));
        drop(taken);
        let slot = Slot { slots: Arc::clone(self), at, seed: seed_of(name.as_bytes(), self.map.epoch()) };
        slot.begin(name, base);
        if self.map.is_broken() {
            slot.free();
            return None;
        }
        Some(slot)
    }

    /// Adds slots, with their space on the disk and in memory; answers the first of them.
    fn grow(&self, taken: &mut Taken<G>) -> Option<usize> {
        let there = taken.holders.len();
        let spare = if there == 0 { SPARE } else { 0 };
        let more = G::GROWTH.min((self.slots_max + SPARE).saturating_sub(there));
        if more <= spare
            || !self.may_take(more * SLOT_BYTES)
            || !self.map.reserve(there * SLOT_BYTES, more * SLOT_BYTES)
        {
            return None;
        }
        self.map.keep_in_memory((there + spare) * SLOT_BYTES, (more - spare) * SLOT_BYTES);
        taken.holders.extend((0..more).map(|n| if n < spare { Holder::Left } else { Holder::Nobody }));
        Some(there + spare)
    }

    /// A disk that is nearly full has better uses for its space: appends are plain ones there.
    fn may_take(&self, bytes: usize) -> bool {
        self.map.free_bytes().is_none_or(|free| free >= bytes as u64 * FREE_FOR_EACH)
    }

    /// Whether some slot holds what could not be written.
    pub fn any_left(&self) -> bool {
        self.taken().holders.iter().skip(SPARE).any(|holder| matches!(holder, Holder::Left))
    }

    /// Makes sure that nothing that was staged so far, and is in its file now, is ever put back there again: not after
    /// a power loss either. `false` where that cannot be done.
    pub fn forget_written(&self) -> std::io::Result<bool> {
        self.map.sync()?;
        Ok(!self.is_stale.load(Ordering::Acquire))
    }
}

/// Takes a slot from a file that can do without it just now.
///
/// One that cannot be written out stays where it is, with its file none the worse for it; no others are tried then.
/// Whoever wanted the slot appends to its own file, and finds out for itself whether the disk is full.
fn take_over<G: Ground>(taken: &mut Taken<G>) -> Option<usize> {
    let slots = taken.holders.len();
    for at in (0..slots).map(|n| (taken.hand + n) % slots) {
        let is_given_up = match &taken.holders[at] {
            Holder::Nobody => true,
            Holder::File(holder) => match holder.upgrade().map(|holder| holder.give_up_slot()) {
                Some(Ok(is_given_up)) => is_given_up,
                // Its own next append or sync says so again.
                Some(Err(_)) => return None,
                None => false,
            },
            Holder::Left => false,
        };
        if is_given_up {
            taken.hand = at + 1;
            return Some(at);
        }
    }
    None
}

/// One slot, for one file. Every method must be called under that file's lock.
#[derive(Debug)]
pub struct Slot<G: Ground> {
    slots: Arc<Slots<G>>,
    at: usize,
    seed: u64,
}

impl<G: Ground> Slot<G> {
    fn map(&self) -> &G::Map {
        &self.slots.map
    }

    fn place(&self, at: usize) -> usize {
        self.at * SLOT_BYTES + at
    }

    /// The slot is for the file `name` from now on, and holds nothing.
    fn begin(&self, name: &str, base: u64) {
        let map = self.map();
        map.store_number(self.place(KIND), 0);
        map.store(self.place(NAME), name.as_bytes());
        map.store_number(self.place(EPOCH), map.epoch());
        map.store_number(self.place(BASE), base);
        map.store_number(self.place(KIND), MAGIC | name.len() as u64);
    }

    /// Adds `parts` as append number `n`, at `staged` of the slot's room and at `offset` of the file. `false` when that
    /// could not be done: what was there before still is, and the slot is to be written out and given back.
    pub fn push(&self, parts: &[&[u8]], n: usize, staged: usize, offset: u64) -> bool {
        let map = self.map();
        let len: usize = parts.iter().map(|part| part.len()).sum();
        assert!(n < APPENDS_MAX && staged + len <= ROOM, "the caller makes room first");
        let entry = self.place(TABLE + n * ENTRY);
        let mut place = AppendPlace { len: entry, checksum: entry + 8, bytes: self.place(PAYLOAD + staged) };
        if planted!("region_unpublished") && n.is_multiple_of(16) {
            // Written where nobody looks for it.
            (place.len, place.checksum) = (place.checksum, place.checksum + 8);
        }
        map.store_append(parts, place, |bytes| xxh3_64_with_seed(bytes, seed_at(self.seed, offset)));
        !map.is_broken()
    }

    /// Shows the first `len` of the appended bytes, which are all there are.
    ///
    /// # Errors
    /// When they are no longer there: somebody else has cut the file.
    pub fn with<T>(&self, len: usize, look: impl FnOnce(&[u8]) -> T) -> std::io::Result<T> {
        debug_assert!(len <= ROOM);
        self.check(len)?;
        let looked = self.map().with(self.place(PAYLOAD), len, look);
        self.check(len).map(|()| looked)
    }

    /// In a broken map, whether the slot says of itself that it holds `len` bytes.
    fn check(&self, len: usize) -> std::io::Result<()> {
        let holds = |slot: &[u8]| parse_slot(slot, self.at).is_some_and(|left| left.bytes.len() >= len);
        if !self.is_broken() || self.map().with(self.place(0), SLOT_BYTES, holds) {
            return Ok(());
        }
        Err(std::io::Error::other(CUT))
    }

    /// What the slot held is in the file, which has `base` bytes now. Nothing else needs to be cleared: no checksum of
    /// the old appends holds at the new offsets.
    pub fn flushed(&self, base: u64) {
        self.map().store_number(self.place(BASE), base);
    }

    /// Whether the slot is to be written out and given back.
    pub fn is_broken(&self) -> bool {
        self.map().is_broken()
    }

    /// Gives the slot back, with nothing in it.
    pub fn free(self) {
        let map = self.map();
        map.store_number(self.place(KIND), 0);
        if map.is_broken() && map.write_number(self.place(KIND), 0).is_err() {
            self.slots.is_stale.store(true, Ordering::Release);
        }
        self.slots.taken().holders[self.at] = Holder::Nobody;
    }

    /// It stays as it is until the next opening.
    pub fn leave(&self) {
        self.slots.taken().holders[self.at] = Holder::Left;
    }
}

const CUT: &str = "what was appended last is no longer in the file APPENDS: another program has cut that file, or the disk \
                   cannot be read";
