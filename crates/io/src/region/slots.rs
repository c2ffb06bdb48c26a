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
//! All numbers are little-endian. `KIND`: 0 in a free slot, else the length of the name, the letters `BFAPP`, the format's
//! version 1, and 0. `base`: where in the file called `name` the first of the appended bytes belongs. An append
//! counts if its checksum holds: XXH3 of its bytes, seeded with the epoch, the name and **its offset in the file**. So what
//! stands in a slot from an earlier round, or what a power loss has mixed from several, never counts: within an epoch no
//! offset of a file is ever written twice, hence whatever counts is what belongs there.

use std::{
    fs::{File, OpenOptions},
    path::Path,
    ptr::{self, NonNull},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use bifold_contract::Corruption;
use rustix::{
    fs::FallocateFlags,
    mm::{Advice, MapFlags, ProtFlags},
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::staged::StagedFile;
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

/// The file grows by so many slots.
const GROWTH: usize = 16;

/// The checksum's seed for an append at `offset` of the file that `file_seed` is of.
fn seed_at(file_seed: u64, offset: u64) -> u64 {
    if cfg!(planted = "region_any_offset") { file_seed } else { file_seed ^ offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) }
}

fn seed_of(name: &[u8], epoch: u64) -> u64 {
    xxh3_64_with_seed(name, epoch)
}

/// What a slot holds: bytes that belong at `base` of the file `name`.
#[derive(Debug, PartialEq, Eq)]
pub struct Left {
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
        all.extend(parse_slot(slot).filter(|left| !left.bytes.is_empty()));
    }
    Ok(all)
}

fn number(slot: &[u8], at: usize) -> u64 {
    slot.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn parse_slot(slot: &[u8]) -> Option<Left> {
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
    Some(Left { name, base, bytes: slot[PAYLOAD..PAYLOAD + len].to_vec() })
}

/// The slots of a directory.
#[derive(Debug)]
pub struct Slots {
    file: File,
    map: Mapping,
    epoch: u64,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    /// By whom each slot is taken, as far as the file has grown.
    holders: Vec<Holder>,
    /// Where the search for a slot to take over begins.
    hand: usize,
}

#[derive(Clone, Debug)]
enum Holder {
    Nobody,
    File(Weak<StagedFile>),
    /// What it holds could not be written: it is left for the next opening.
    Left,
}

#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is plain memory; a `Slot` alone writes to its part, and there is one at a time for each.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the very range that `Slots::create` has mapped; every `Slot` holds on to its `Slots`.
        let _fails_for_bad_arguments_only = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

impl Slots {
    /// Makes the file `path` and maps room for `slots_max`. `None` where that cannot be done.
    pub fn create(path: &Path, slots_max: usize) -> Option<Arc<Self>> {
        if slots_max == 0 {
            return None;
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).ok()?;
        let bytes = slots_max * SLOT_BYTES;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at an address that the system chooses; nobody else has it.
        let start = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, access, flags, &file, 0) }.ok()?;
        let map = Mapping { start: NonNull::new(start.cast())?, bytes };
        let epoch = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), path);
        Some(Arc::new(Self { file, map, epoch, taken: Mutex::default() }))
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for `holder`, whose file is called `name` and has `base` bytes. A free one, a new one, or one whose holder is
    /// not appending just now. `None` when there is none.
    pub fn take(self: &Arc<Self>, holder: &Arc<StagedFile>, name: &str, base: u64) -> Option<Slot> {
        if name.len() > NAME_MAX {
            return None;
        }
        let mut taken = self.taken();
        let free = taken.holders.iter().position(|holder| matches!(holder, Holder::Nobody));
        let at = free.or_else(|| self.grow(&mut taken)).or_else(|| take_over(&mut taken))?;
        taken.holders[at] = Holder::File(Arc::downgrade(holder));
        drop(taken);
        let slot = Slot { slots: Arc::clone(self), at, seed: seed_of(name.as_bytes(), self.epoch) };
        slot.begin(name, base);
        Some(slot)
    }

    /// Adds slots, with their space on the disk and in memory; answers the first of them.
    fn grow(&self, taken: &mut Taken) -> Option<usize> {
        let first = taken.holders.len();
        let more = GROWTH.min((self.map.bytes / SLOT_BYTES).saturating_sub(first));
        if more == 0 {
            return None;
        }
        let (offset, bytes) = (first * SLOT_BYTES, more * SLOT_BYTES);
        // With its space: a store into a mapped file that cannot get any kills the process.
        if rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset as u64, bytes as u64).is_err() {
            // Some file systems keep what they could get.
            let _best_effort = self.file.set_len(offset as u64);
            return None;
        }
        // SAFETY: within the mapping, and within the file now.
        unsafe {
            let start = self.map.start.as_ptr().add(offset).cast();
            // Both are hints. Memory that stays in place is never read back from a disk that may fail.
            let _slower = rustix::mm::madvise(start, bytes, Advice::LinuxPopulateWrite);
            let _evictable = rustix::mm::mlock(start, bytes);
        }
        taken.holders.resize(first + more, Holder::Nobody);
        Some(first)
    }

    /// Whether some slot holds what could not be written.
    pub fn any_left(&self) -> bool {
        self.taken().holders.iter().any(|holder| matches!(holder, Holder::Left))
    }
}

/// Takes a slot from a file that can do without it just now.
fn take_over(taken: &mut Taken) -> Option<usize> {
    let slots = taken.holders.len();
    let mut hands = (0..slots).map(|n| (taken.hand + n) % slots);
    let at = hands.find(|&at| match &taken.holders[at] {
        Holder::Nobody => true,
        Holder::File(holder) => holder.upgrade().is_some_and(|holder| holder.give_up_slot()),
        Holder::Left => false,
    })?;
    taken.hand = at + 1;
    Some(at)
}

/// One slot, for one file. Every method must be called under that file's lock.
#[derive(Debug)]
pub struct Slot {
    slots: Arc<Slots>,
    at: usize,
    seed: u64,
}

impl Slot {
    fn start(&self) -> *mut u8 {
        // SAFETY: `take` only hands out positions within the mapping.
        unsafe { self.slots.map.start.as_ptr().add(self.at * SLOT_BYTES) }
    }

    fn number(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8) && at + 8 <= PAYLOAD);
        // SAFETY: within the slot, aligned as the mapping is; only ever used as an atomic once the slot has a holder.
        unsafe { AtomicU64::from_ptr(self.start().add(at).cast()) }
    }

    /// The slot is for the file `name` from now on, and holds nothing.
    fn begin(&self, name: &str, base: u64) {
        self.number(KIND).store(0, Ordering::Release);
        // SAFETY: within the head of the slot, `take` has checked the length; nobody else has the slot.
        unsafe { ptr::copy_nonoverlapping(name.as_ptr(), self.start().add(NAME), name.len()) };
        self.number(EPOCH).store(self.slots.epoch.to_le(), Ordering::Release);
        self.number(BASE).store(base.to_le(), Ordering::Release);
        self.number(KIND).store((MAGIC | name.len() as u64).to_le(), Ordering::Release);
    }

    /// Adds `parts` as append number `n`, at `staged` of the slot's room and at `offset` of the file.
    pub fn push(&self, parts: &[&[u8]], n: usize, staged: usize, offset: u64) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        assert!(n < APPENDS_MAX && staged + len <= ROOM, "the caller makes room first");
        let mut at = PAYLOAD + staged;
        for part in parts {
            // SAFETY: within the slot's room, as asserted; nobody else has the slot.
            unsafe { ptr::copy_nonoverlapping(part.as_ptr(), self.start().add(at), part.len()) };
            at += part.len();
        }
        let entry = TABLE + n * ENTRY;
        let checksum = xxh3_64_with_seed(&self.bytes(staged + len)[staged..], seed_at(self.seed, offset));
        self.number(entry + 8).store(checksum.to_le(), Ordering::Release);
        if cfg!(not(planted = "region_unpublished")) || !n.is_multiple_of(16) {
            self.number(entry).store((len as u64).to_le(), Ordering::Release);
        }
    }

    /// The first `len` of the appended bytes.
    pub fn bytes(&self, len: usize) -> &[u8] {
        debug_assert!(len <= ROOM);
        // SAFETY: within the slot, initialised (a file's bytes always are), and written by nobody but this slot's holder.
        unsafe { std::slice::from_raw_parts(self.start().add(PAYLOAD), len) }
    }

    /// What the slot held is in the file, which has `base` bytes now. Nothing else needs to be cleared: no checksum of the
    /// old appends holds at the new offsets.
    pub fn flushed(&self, base: u64) {
        self.number(BASE).store(base.to_le(), Ordering::Release);
    }

    /// Gives the slot back, with nothing in it.
    pub fn free(self) {
        self.number(KIND).store(0, Ordering::Release);
        self.slots.taken().holders[self.at] = Holder::Nobody;
    }

    /// Gives it up as it is.
    pub fn leave(self) {
        self.slots.taken().holders[self.at] = Holder::Left;
    }
}
