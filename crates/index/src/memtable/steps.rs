//! What keys with many operands had at some of them, so that a read does not combine all.
//!
//! ```text
//! operand 57 ─▶ … ─▶ operand 48, a step ─▶ … ─▶ operand 32, a step ─▶ …     newest first
//!                    slot: the value at 48       slot: empty
//! ```
//!
//! Each 16th operand in a row is a step. Whoever writes leaves its slot empty; a reader that has combined everything
//! below a step leaves there what the key has at its number. The next reader ends its walk there. So no function of a
//! user's runs while a commit is made, and operands that nobody reads are combined by the flush alone.
//!
//! **Invariant:** a filled slot has the value of the key at the step's number, whatever layer the older versions were
//! in. That never changes: all that is older has been committed, deletes of ranges too, and nothing expires where
//! operands are. Above it, a reader must look for deletes itself.
//!
//! Flushes and cursors see operands only. The memory for values is set aside by the writer, a quarter of what the
//! operands take, and counted with the memtable whether it is used or not.

use std::{
    ptr,
    sync::atomic::{
        AtomicPtr, AtomicUsize,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
};

use bifold_contract::planted;

use super::entry::STEP_OPERANDS;

/// A value takes at most one such part of the memory that the versions below it take.
const SHARE: usize = 4;

/// What the allocator may need for an allocation of its own.
const ALLOCATION_BYTES: usize = 16;

/// Where the value of a step is, once there is one.
#[derive(Default)]
pub(super) struct Slot(AtomicPtr<Kept>);

/// A value in a slot.
struct Kept {
    value: Box<[u8]>,
    /// All values of a memtable are a list, to be freed.
    next: AtomicPtr<Kept>,
}

/// The values of a memtable's steps.
#[derive(Default)]
pub(super) struct Steps {
    newest: AtomicPtr<Kept>,
    /// Bytes that values may take in all.
    room: AtomicUsize,
    taken: AtomicUsize,
}

/// A step that a reader has come to.
#[derive(Clone, Copy)]
pub struct Step<'m> {
    slot: &'m Slot,
    steps: &'m Steps,
}

impl Slot {
    /// The value, if there is one.
    pub(super) fn value(&self) -> Option<&[u8]> {
        // SAFETY: `Step::keep` stores only complete values, which never change and are freed with the memtable: its
        // `Steps` and this slot are borrowed together.
        unsafe { self.0.load(Acquire).as_ref() }.map(|kept| &*kept.value)
    }
}

impl<'m> Step<'m> {
    pub(super) fn new(slot: &'m Slot, steps: &'m Steps) -> Self {
        Self { slot, steps }
    }

    /// Keeps `value`, which the key has at the step's number, unless it takes too much memory: of what the versions that
    /// were combined take, `walked_bytes`, or of what the memtable has set aside. The first value stays.
    pub fn keep(&self, value: &[u8], walked_bytes: usize) {
        let bytes = value.len() + size_of::<Kept>() + 2 * ALLOCATION_BYTES;
        if bytes > walked_bytes / SHARE || self.slot.value().is_some() || !self.steps.take(bytes) {
            return;
        }
        let kept = Box::into_raw(Box::new(Kept { value: value.into(), next: AtomicPtr::default() }));
        if self.slot.0.compare_exchange(ptr::null_mut(), kept, AcqRel, Acquire).is_ok() {
            // SAFETY: the memtable is borrowed, so nobody frees it.
            self.steps.add(unsafe { &*kept }, kept);
        } else {
            // SAFETY: from `Box::into_raw` above, and nobody else has seen it.
            drop(unsafe { Box::from_raw(kept) });
            self.steps.taken.fetch_sub(bytes, Relaxed);
        }
    }
}

impl Steps {
    /// Sets memory aside for one more step, whose version takes so many bytes. Only the writer calls this.
    pub(super) fn set_aside(&self, version_bytes: usize) {
        let more = STEP_OPERANDS * version_bytes / SHARE;
        self.room.store(self.room.load(Relaxed) + more, Relaxed);
    }

    /// Bytes that are set aside.
    pub(super) fn bytes(&self) -> usize {
        self.room.load(Relaxed)
    }

    /// Bytes that values take.
    #[cfg(test)]
    pub(super) fn taken_bytes(&self) -> usize {
        self.taken.load(Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        let room = if planted!("steps_have_no_bound") { usize::MAX } else { self.room.load(Relaxed) };
        let fits = |taken: usize| taken.checked_add(bytes).filter(|&taken| taken <= room);
        self.taken.fetch_update(Relaxed, Relaxed, fits).is_ok()
    }

    fn add(&self, kept: &Kept, pointer: *mut Kept) {
        let mut next = self.newest.load(Relaxed);
        loop {
            kept.next.store(next, Relaxed);
            match self.newest.compare_exchange_weak(next, pointer, Release, Relaxed) {
                Ok(_) => return,
                Err(newer) => next = newer,
            }
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        let mut newest = *self.newest.get_mut();
        while !newest.is_null() {
            // SAFETY: each value is once in the list, from `Box::into_raw`, and nobody borrows the memtable any more.
            let mut kept = unsafe { Box::from_raw(newest) };
            newest = *kept.next.get_mut();
        }
    }
}
