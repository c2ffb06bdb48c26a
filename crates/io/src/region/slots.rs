//! The mapped file `APPENDS`: its layout, and which file has which slot.
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
//! All numbers are little-endian. `KIND`: 0 in a free slot, otherwise the length of the name, the letters `BFAPP`,
//! the format's version 2, and 0. `base`: where in the file called `name` the first of the appended bytes belongs. A
//! file may have several slots; the bytes of each follow those of another. An append counts if its checksum holds: XXH3
//! of its bytes, seeded with the epoch, the name and **its offset in the file**. So bytes from an earlier use of the
//! slot, or a mix that a power loss left, never count: within an epoch no offset of a file is written twice, so
//! whatever counts belongs there. Truncating a file begins a new epoch for all slots that are taken from then on.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, Weak,
    atomic::{AtomicBool, AtomicU64, Ordering, fence},
};

use bifold_contract::{Corruption, planted};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    ground::{AppendPlace, Ground, GroundMap},
    staged::StagedFile,
};
use crate::{fs::APPEND_SLOT_BYTES, random::mix};

const BASE: usize = 0;
const KIND: usize = 8;
const NAME: usize = 16;
const NAME_MAX: usize = EPOCH - NAME;
const EPOCH: usize = 56;
const TABLE: usize = 64;
const ENTRY: usize = 16;
const PAYLOAD: usize = 4096;

/// The value at `KIND` of a used slot, without the length of the name: magic and version. Where version 1 is
/// written, a file has one slot.
const MAGIC: u64 = u64::from_le_bytes(*b"\0BFAPP\x02\0");
const MAGIC_1: u64 = u64::from_le_bytes(*b"\0BFAPP\x01\0");

/// Appends that a slot can hold.
pub const APPENDS_MAX: usize = (PAYLOAD - TABLE) / ENTRY;

/// A slot with its head.
pub const SLOT_BYTES: usize = APPEND_SLOT_BYTES as usize;

/// Bytes that a slot can hold: writes of 32 KiB cost 0.3 µs per KiB, less than half of those of single records.
pub const ROOM: usize = SLOT_BYTES - PAYLOAD;

/// How many slots at the beginning of the file stay unused. An opening that finds the disk full frees their space to
/// write out the first of the other slots, whose space then serves for the next.
const SPARE: usize = 1;

/// The checksum's seed for an append at `offset` of the file that has `file_seed`.
fn seed_at(file_seed: u64, offset: u64) -> u64 {
    if planted!("region_any_offset") { file_seed } else { file_seed ^ offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) }
}

fn seed_of(name: &[u8], epoch: u64) -> u64 {
    xxh3_64_with_seed(name, epoch)
}

/// The contents of a slot, or of several that follow each other: bytes that belong at `base` of the file `name`.
#[derive(Debug, PartialEq, Eq)]
pub struct Left {
    /// The numbers of the slots in the order of their bytes, each with how many it has.
    pub slots: Vec<(usize, usize)>,
    /// The file's name.
    pub name: String,
    /// Where the bytes belong in the file.
    pub base: u64,
    /// The appended bytes.
    pub bytes: Vec<u8>,
}

impl Left {
    /// Where its bytes end in the file.
    pub fn end(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }
}

/// What is in the slots of a file `APPENDS`, by file and place.
///
/// # Errors
/// When the version of a slot is unknown to this release.
pub fn parse(image: &[u8]) -> Result<Vec<Left>, Corruption> {
    let mut all: Vec<Left> = Vec::new();
    for (at, slot) in image.chunks_exact(SLOT_BYTES).enumerate() {
        let kind = number(slot, KIND);
        if !matches!(kind & !0xFF, MAGIC | MAGIC_1) && kind != 0 {
            let (expected, found) =
                (format!("0, or {MAGIC:#018x} or {MAGIC_1:#018x} and a length"), format!("{kind:#018x}"));
            return Err(Corruption::new((at * SLOT_BYTES + KIND) as u64, "kind of a slot", expected, found));
        }
        all.extend(parse_slot(slot, at).filter(|left| !left.bytes.is_empty()));
    }
    all.sort_by(|a, b| (&a.name, a.base).cmp(&(&b.name, b.base)));
    all.dedup_by(|next, left| {
        let follows = next.name == left.name && next.base == left.end() && !planted!("unjoined_slots");
        if follows {
            left.slots.append(&mut next.slots);
            left.bytes.append(&mut next.bytes);
        }
        follows
    });
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
    Some(Left { slots: vec![(at, len)], name, base, bytes: slot[PAYLOAD..PAYLOAD + len].to_vec() })
}

/// The slots of a directory.
#[derive(Debug)]
pub struct Slots<G: Ground> {
    map: G::Map,
    slots_max: usize,
    taken: Mutex<Taken<G>>,
    /// A slot may still name contents although its file continues elsewhere.
    is_stale: AtomicBool,
    /// That of slots that are taken from now on.
    epoch: AtomicU64,
}

#[derive(Debug)]
struct Taken<G: Ground> {
    /// The holder of each slot, as far as the file has grown.
    holders: Vec<Holder<G>>,
    /// Where the search for a slot to take over begins.
    hand: usize,
}

#[derive(Debug)]
enum Holder<G: Ground> {
    Nobody,
    File(Weak<StagedFile<G>>),
    /// Its contents could not be written, or it must not be used: it is left for the next opening.
    Left,
}

/// This many bytes must be free for each byte that slots take.
const FREE_FOR_EACH: u64 = 8;

/// How many bytes are mapped for `slots_max` slots.
pub fn mapped_bytes(slots_max: usize) -> usize {
    slots_max.saturating_add(SPARE).saturating_mul(SLOT_BYTES)
}

impl<G: Ground> Slots<G> {
    /// At most `slots_max` slots in `map`.
    pub fn new(map: G::Map, slots_max: usize) -> Arc<Self> {
        let taken = Mutex::new(Taken { holders: Vec::new(), hand: 0 });
        let epoch = AtomicU64::new(map.epoch());
        Arc::new(Self { map, slots_max, taken, is_stale: AtomicBool::new(false), epoch })
    }

    fn taken(&self) -> MutexGuard<'_, Taken<G>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for appends of `holder`, whose file is called `name`, from `base` on: a free one, a new one, or one whose
    /// holder is not appending now. `None` when there is none.
    pub fn take(
        self: &Arc<Self>,
        holder: &Arc<StagedFile<G>>,
        (name, base): (&str, u64),
        from: Taking,
    ) -> Option<Slot<G>> {
        if name.len() > NAME_MAX || self.map.is_broken() {
            return None;
        }
        let mut at = self.take_free(holder);
        if at.is_none() && from == Taking::FromOthers {
            at = self.take_over(holder);
        }
        let at = at?;
        let epoch = self.epoch.load(Ordering::Acquire);
        let slot = Slot { slots: Arc::clone(self), at, seed: seed_of(name.as_bytes(), epoch) };
        slot.begin(name, base, epoch);
        if self.map.is_broken() {
            slot.free();
            return None;
        }
        Some(slot)
    }

    /// A slot that nobody has.
    fn take_free(&self, holder: &Arc<StagedFile<G>>) -> Option<usize> {
        let mut taken = self.taken();
        let free = taken.holders.iter().position(|holder| matches!(holder, Holder::Nobody));
        let at = free.or_else(|| self.grow(&mut taken))?;
        taken.holders[at] = Holder::File(Arc::downgrade(holder));
        Some(at)
    }

    /// Takes a slot from a file that does not need it now.
    ///
    /// A slot that cannot be written out stays with its file, and no others are tried. Whoever wanted the slot appends
    /// to its own file and finds out whether the disk is full.
    fn take_over(&self, holder: &Arc<StagedFile<G>>) -> Option<usize> {
        let slots = self.taken().holders.len();
        for _ in 0..slots {
            let other = {
                let mut taken = self.taken();
                let at = taken.hand % taken.holders.len();
                taken.hand = at + 1;
                match &taken.holders[at] {
                    Holder::File(other) => other.upgrade(),
                    Holder::Nobody | Holder::Left => None,
                }
            };
            match other.map(|other| other.give_up_slot()) {
                Some(Ok(true)) => return self.take_free(holder),
                // The holder's next append or sync reports this error again.
                Some(Err(_)) => return None,
                Some(Ok(false)) | None => {}
            }
        }
        None
    }

    /// Adds slots, with their space on the disk and in memory, and returns the first of them.
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

    /// A nearly full disk has better uses for its space: appends are plain ones there.
    fn may_take(&self, bytes: usize) -> bool {
        self.map.free_bytes().is_none_or(|free| free >= bytes as u64 * FREE_FOR_EACH)
    }

    /// Whether a slot holds bytes that could not be written.
    pub fn any_left(&self) -> bool {
        self.taken().holders.iter().skip(SPARE).any(|holder| matches!(holder, Holder::Left))
    }

    /// Makes sure that nothing staged so far that is in its file now is ever put back there again, not after a power
    /// loss either. `false` where that is impossible.
    ///
    /// A slot that is taken again has the old appends behind its new ones. If it goes to the same file from the same
    /// offset on, as after a truncation, they count again unless the epoch is another one.
    pub fn forget_written(&self) -> std::io::Result<bool> {
        let next = |epoch: u64| Some(if planted!("cuts_keep_the_epoch") { epoch } else { mix(epoch.wrapping_add(1)) });
        let begun = self.epoch.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        debug_assert!(begun.is_ok(), "there is always a next epoch");
        self.map.sync()?;
        Ok(!self.is_stale.load(Ordering::Acquire))
    }
}

/// Where a slot may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taking {
    /// Only from those that nobody has.
    Free,
    /// Also from another file, whose appends are written out for it.
    FromOthers,
}

/// One slot, for one file. What changes it must be called under that file's lock.
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

    /// Assigns the slot, with nothing in it, to the file `name`.
    fn begin(&self, name: &str, base: u64, epoch: u64) {
        let map = self.map();
        map.store_number(self.place(KIND), 0);
        map.store(self.place(NAME), name.as_bytes());
        map.store_number(self.place(EPOCH), epoch);
        map.store_number(self.place(BASE), base);
        map.store_number(self.place(KIND), MAGIC | name.len() as u64);
    }

    /// Adds `parts` as append number `n`, at `staged` of the slot's room and at `offset` of the file. `false` when
    /// that failed: the earlier contents are still there, and the caller must write out and free the slot.
    pub fn push(&self, parts: &[&[u8]], n: usize, staged: usize, offset: u64) -> bool {
        let map = self.map();
        let len: usize = parts.iter().map(|part| part.len()).sum();
        assert!(n < APPENDS_MAX && staged + len <= ROOM, "the caller makes room first");
        let entry = self.place(TABLE + n * ENTRY);
        let mut place = AppendPlace { len: entry, checksum: entry + 8, bytes: self.place(PAYLOAD + staged) };
        if planted!("region_unpublished") && n.is_multiple_of(16) {
            // Written where nothing reads it.
            (place.len, place.checksum) = (place.checksum, place.checksum + 8);
        }
        map.store_append(parts, place, |bytes| xxh3_64_with_seed(bytes, seed_at(self.seed, offset)));
        !map.is_broken()
    }

    /// Passes the first `len` appended bytes, which are all of them, to `look`.
    ///
    /// # Errors
    /// When they no longer exist: another program has truncated the file.
    pub fn with<T>(&self, len: usize, look: impl FnOnce(&[u8]) -> T) -> std::io::Result<T> {
        debug_assert!(len <= ROOM);
        self.check(len)?;
        let looked = self.map().with(self.place(PAYLOAD), len, look);
        // Whoever saw the zeros that a handler in another thread has mapped must also see its mark: the handler stores
        // the mark before it maps, and the check loads it after the bytes. Without this it could be loaded before them.
        fence(Ordering::Acquire);
        self.check(len).map(|()| looked)
    }

    /// In a broken map, checks that the slot itself still holds `len` bytes.
    fn check(&self, len: usize) -> std::io::Result<()> {
        let holds = |slot: &[u8]| parse_slot(slot, self.at).is_some_and(|left| left.bytes.len() >= len);
        if !self.is_broken() || self.map().with(self.place(0), SLOT_BYTES, holds) {
            return Ok(());
        }
        Err(std::io::Error::other(TRUNCATED))
    }

    /// The slot's contents are in the file, which now has `base` bytes. Nothing else needs to be cleared: no checksum
    /// of the old appends holds at the new offsets.
    pub fn flushed(&self, base: u64) {
        self.map().store_number(self.place(BASE), base);
    }

    /// Whether the slot must be written out and freed.
    pub fn is_broken(&self) -> bool {
        self.map().is_broken()
    }

    /// Frees the slot and clears it.
    pub fn free(&self) {
        let map = self.map();
        map.store_number(self.place(KIND), 0);
        if map.is_broken() && map.write_number(self.place(KIND), 0).is_err() {
            self.slots.is_stale.store(true, Ordering::Release);
        }
        self.slots.taken().holders[self.at] = Holder::Nobody;
    }

    /// Leaves the slot as it is until the next opening.
    pub fn leave(&self) {
        self.slots.taken().holders[self.at] = Holder::Left;
    }
}

const TRUNCATED: &str = "the last appends are no longer in the file APPENDS: another program has truncated it, or the \
                         disk cannot be read";
