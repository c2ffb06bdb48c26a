//! The layout of keys and their versions in the arena.
//!
//! ```text
//! key      newest: 8 │ len: 4 │ key bytes … (padded to 8)
//! version  older: 8 │ seqno, place and kind: 8 │ len: 4 │ payload … (padded to 8)
//! step     slot: 8, and then a version
//! ```
//!
//! The first version is allocated right after its key, so a lookup of a key that was written once reads one place in
//! memory: with 24 B keys, the two heads and the key take 60 B. A later version goes to the next free space of the
//! arena. The key's head points at the newest version, and each version at the next older one.
//!
//! The lowest bits of `newest` say whether that version is an operand, and at which place: the writer does not access
//! an older version. Operands in a row are counted: the place of the first is 0, and behind 3 comes 0 again. Those at
//! place 3 are steps ([`super::steps`]): before its head such a version has a slot for the value that the key has at
//! its number.
//!
//! Invariants: everything except `newest` and slots is written before another thread can see it and never changes
//! again; sequence numbers descend along the list; a key has at least one version.

use std::{
    marker::PhantomData,
    mem::{align_of, offset_of, size_of},
    ptr::{self, NonNull},
    sync::atomic::{AtomicPtr, Ordering},
};

use bifold_contract::{Entry, Kind, SeqNo};

use super::{
    arena::{Arena, ENTRY_ALIGN_BYTES},
    steps::Slot,
};
use crate::cpu::prefetch_lines;

/// The header before the bytes of a key.
#[repr(C)]
pub(super) struct KeyHead {
    /// With [`TAG_MASK`].
    newest: AtomicPtr<VersionHead>,
    len: u32,
}

/// The header before the payload of a version.
#[repr(C)]
struct VersionHead {
    older: *const VersionHead,
    /// The sequence number in the upper seven bytes, then two bits for an operand's place and four for the kind.
    stamp: u64,
    len: u32,
}

/// The bytes follow the length directly and use the padding at the end of the head.
const KEY_AT: usize = offset_of!(KeyHead, len) + size_of::<u32>();
const PAYLOAD_AT: usize = offset_of!(VersionHead, len) + size_of::<u32>();

/// The bits of a stamp for an operand's place.
const PLACE_SHIFT: u32 = 4;
const PLACE_MASK: u64 = 0b11;
const KIND_MASK: u64 = 0xf;

/// The place of a step, and how many operands there are from one to the next.
const STEP_PLACE: u64 = PLACE_MASK;
pub(super) const STEP_OPERANDS: usize = STEP_PLACE as usize + 1;

/// The bits of a pointer to the newest version: 0, or the place of the next operand in a row, counted from 1.
const TAG_MASK: usize = ENTRY_ALIGN_BYTES - 1;

const SLOT_BYTES: usize = size_of::<Slot>();

const _: () = assert!(align_of::<KeyHead>() <= ENTRY_ALIGN_BYTES && align_of::<VersionHead>() <= ENTRY_ALIGN_BYTES);
const _: () = assert!(STEP_OPERANDS <= TAG_MASK);
const _: () = assert!(align_of::<Slot>() <= ENTRY_ALIGN_BYTES && SLOT_BYTES.is_multiple_of(ENTRY_ALIGN_BYTES));

/// A key in an arena that outlives `'m`.
#[derive(Clone, Copy)]
pub(super) struct Key<'m> {
    head: NonNull<KeyHead>,
    life: PhantomData<&'m KeyHead>,
}

/// A version in an arena that outlives `'m`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct VersionRef<'m> {
    head: NonNull<VersionHead>,
    life: PhantomData<&'m VersionHead>,
}

impl<'m> Key<'m> {
    /// Writes the key of `entry` with that entry as its first version.
    ///
    /// # Safety
    /// The arena lives at least as long as `'m`.
    pub(super) unsafe fn create(arena: &mut Arena, entry: &Entry<'_>) -> Self {
        let version_at = (KEY_AT + entry.key.len()).next_multiple_of(ENTRY_ALIGN_BYTES);
        let space = arena.entry_space(version_at + PAYLOAD_AT + entry.payload.len());
        let head = space.cast::<KeyHead>();
        // SAFETY: nobody else has the space. It is aligned for both heads and large enough for the key's head and
        // bytes, and from `version_at` on for the version's. (Rounding up covers the padding at the end of a head
        // without payload.)
        unsafe {
            let version = space.add(version_at);
            write_version(version, entry, 0, ptr::null());
            head.write(KeyHead { newest: AtomicPtr::new(tagged(version, entry.kind, 0)), len: len_of(entry.key) });
            ptr::copy_nonoverlapping(entry.key.as_ptr(), space.add(KEY_AT).as_ptr(), entry.key.len());
        }
        Self { head, life: PhantomData }
    }

    /// Adds a version of the same key, newer than all existing ones. Returns whether it is a step. Only the thread
    /// that holds the arena may call this.
    pub(super) fn push(self, arena: &mut Arena, entry: &Entry<'_>) -> bool {
        let (newest, tag) = self.newest_and_tag();
        let place = if entry.kind == Kind::Operand { tag as u64 & PLACE_MASK } else { 0 };
        let is_step = place == STEP_PLACE;
        let head_at = if is_step { SLOT_BYTES } else { 0 };
        let space = arena.entry_space(head_at + PAYLOAD_AT + entry.payload.len());
        // SAFETY: nobody else has the space; it is aligned and large enough for a step's slot, and from `head_at` on
        // for head and payload.
        let version = unsafe {
            if is_step {
                space.cast().write(Slot::default());
            }
            let version = space.add(head_at);
            write_version(version, entry, place, newest.head.as_ptr());
            version
        };
        // Release: a reader that sees the version sees its content.
        self.head().newest.store(tagged(version, entry.kind, place), Ordering::Release);
        is_step
    }

    /// The key at a pointer.
    ///
    /// # Safety
    /// The pointer comes from [`Key::as_ptr`] of a key in an arena that outlives `'m`, and what that key's thread wrote
    /// before is visible to this one.
    #[inline]
    pub(super) unsafe fn from_ptr(head: NonNull<KeyHead>) -> Self {
        Self { head, life: PhantomData }
    }

    #[inline]
    pub(super) fn as_ptr(self) -> *mut KeyHead {
        self.head.as_ptr()
    }

    #[inline]
    fn head(self) -> &'m KeyHead {
        // SAFETY: a `Key` refers to an initialised head that outlives `'m` and changes only through its atomic.
        unsafe { self.head.as_ref() }
    }

    /// The key's bytes.
    #[inline]
    pub(super) fn bytes(self) -> &'m [u8] {
        let len = self.head().len as usize;
        // SAFETY: `create` wrote `len` bytes there, which outlive `'m` and never change.
        unsafe { NonNull::slice_from_raw_parts(self.head.cast::<u8>().add(KEY_AT), len).as_ref() }
    }

    /// Prefetches the key.
    #[inline]
    pub(super) fn prefetch(self) {
        prefetch_lines(self.head.as_ptr().cast(), 2);
    }

    /// Its newest version.
    #[inline]
    pub(super) fn newest(self) -> VersionRef<'m> {
        self.newest_and_tag().0
    }

    #[inline]
    fn newest_and_tag(self) -> (VersionRef<'m>, usize) {
        let newest = self.head().newest.load(Ordering::Acquire);
        let version = newest.map_addr(|address| address & !TAG_MASK);
        // SAFETY: `create` and `push` store only complete versions in the same arena, which are aligned.
        let version = VersionRef { head: unsafe { NonNull::new_unchecked(version) }, life: PhantomData };
        (version, newest.addr() & TAG_MASK)
    }

    /// Its newest version that is not newer than `snapshot`.
    #[inline]
    pub(super) fn at(self, snapshot: SeqNo) -> Option<VersionRef<'m>> {
        let mut version = self.newest();
        while version.seqno() > snapshot {
            version = version.older()?;
        }
        Some(version)
    }
}

impl<'m> VersionRef<'m> {
    #[inline]
    fn head(self) -> &'m VersionHead {
        // SAFETY: a `VersionRef` refers to an initialised head that outlives `'m` and never changes.
        unsafe { self.head.as_ref() }
    }

    #[inline]
    pub(super) fn seqno(self) -> SeqNo {
        self.head().stamp >> 8
    }

    /// The version before this one, if the key has one.
    #[inline]
    pub(super) fn older(self) -> Option<Self> {
        NonNull::new(self.head().older.cast_mut()).map(|head| Self { head, life: PhantomData })
    }

    /// Its slot, if it is a step.
    pub(super) fn slot(self) -> Option<&'m Slot> {
        let is_step = self.head().stamp >> PLACE_SHIFT & PLACE_MASK == STEP_PLACE;
        // SAFETY: `push` wrote a slot right before the head of each version with this place. It outlives `'m`, and
        // changes only through its atomic.
        is_step.then(|| unsafe { self.head.cast::<u8>().sub(SLOT_BYTES).cast::<Slot>().as_ref() })
    }

    /// The bytes that it takes in the arena.
    pub(super) fn bytes(self) -> usize {
        version_bytes(self.head().len as usize)
    }

    /// This version of `key`.
    #[inline]
    pub(super) fn entry(self, key: Key<'m>) -> Entry<'m> {
        let head = self.head();
        // SAFETY: `write_version` wrote `len` bytes there, which outlive `'m` and never change.
        let payload = unsafe {
            NonNull::slice_from_raw_parts(self.head.cast::<u8>().add(PAYLOAD_AT), head.len as usize).as_ref()
        };
        let kind = match head.stamp & KIND_MASK {
            0 => Kind::Delete,
            1 => Kind::Inline,
            2 => Kind::Pointer,
            3 => Kind::InlineUntil,
            4 => Kind::PointerUntil,
            5 => Kind::Operand,
            _ => Kind::Large,
        };
        Entry { key: key.bytes(), seqno: self.seqno(), kind, payload }
    }
}

/// A pointer to a version, with what the next one needs to know of it.
fn tagged(version: NonNull<u8>, kind: Kind, place: u64) -> *mut VersionHead {
    let tag = if kind == Kind::Operand { place as usize + 1 } else { 0 };
    version.cast::<VersionHead>().as_ptr().map_addr(|address| address | tag)
}

/// The bytes of a version with so long a payload.
pub(super) const fn version_bytes(payload_len: usize) -> usize {
    PAYLOAD_AT + payload_len
}

/// # Safety
/// Only the caller has `space`; it is aligned for a head and large enough for a head and the payload.
unsafe fn write_version(space: NonNull<u8>, entry: &Entry<'_>, place: u64, older: *const VersionHead) {
    let stamp = entry.seqno << 8 | place << PLACE_SHIFT | entry.kind as u64;
    // SAFETY: as the caller promises.
    unsafe {
        space.cast().write(VersionHead { older, stamp, len: len_of(entry.payload) });
        ptr::copy_nonoverlapping(entry.payload.as_ptr(), space.add(PAYLOAD_AT).as_ptr(), entry.payload.len());
    }
}

fn len_of(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or_else(|_| panic!("{} bytes in one entry", bytes.len()))
}
