//! What keys with several operands had at some of them, so that a read does not combine all.
//!
//! ```text
//! operand 14 ─▶ 13 ─▶ operand 12, a step ─▶ 11 ─▶ 10 ─▶ 9 ─▶ operand 8, a step ─▶ …     newest first
//!                     slot: the value at 12                  slot: empty
//! ```
//!
//! Each fourth operand in a row is a step. Whoever writes leaves its slot empty; a reader that has combined everything
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
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    ptr::{self, NonNull},
    sync::atomic::{
        AtomicPtr, AtomicUsize,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
};

use bifold_contract::planted;

use super::entry::STEP_OPERANDS;

/// All values together take at most one such part of what the operands take.
const SHARE: usize = 4;

/// One value takes at most one such part of what the versions take that a reader need not walk.
const SHARE_OF_WALK: usize = 2;

/// What the allocator needs for an allocation.
const ALLOCATION_BYTES: usize = 16;

/// Where the value of a step is, once there is one.
#[derive(Default)]
pub(super) struct Slot(AtomicPtr<Kept>);

/// The head of a value in a slot. Its bytes follow.
struct Kept {
    /// All values of a memtable are a list, to be freed.
    next: AtomicPtr<Kept>,
    len: usize,
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
pub struct KeyStep<'m> {
    slot: &'m Slot,
    steps: &'m Steps,
}

impl Slot {
    /// The value, if there is one.
    pub(super) fn value(&self) -> Option<&[u8]> {
        let kept = NonNull::new(self.0.load(Acquire))?;
        // SAFETY: `KeyStep::keep` stores only complete values, which never change and are freed with the memtable: its
        // `Steps` and this slot are borrowed together.
        Some(unsafe { NonNull::slice_from_raw_parts(kept.add(1).cast(), kept.as_ref().len).as_ref() })
    }
}

impl<'m> KeyStep<'m> {
    pub(super) fn new(slot: &'m Slot, steps: &'m Steps) -> Self {
        Self { slot, steps }
    }

    /// Keeps `value`, which the key has at the step's number, unless it takes too much memory: of what the versions
    /// that were combined take, `walked_bytes`, or of what the memtable has set aside. The first value stays.
    pub fn keep(&self, value: &[u8], walked_bytes: usize) {
        let bytes = kept_bytes(value.len());
        if bytes > walked_bytes / SHARE_OF_WALK || self.slot.value().is_some() || !self.steps.take(bytes) {
            return;
        }
        let kept = Kept::create(value);
        if self.slot.0.compare_exchange(ptr::null_mut(), kept.as_ptr(), AcqRel, Acquire).is_ok() {
            self.steps.add(kept);
        } else {
            // SAFETY: nobody else has seen it.
            unsafe { Kept::free(kept) };
            self.steps.taken.fetch_sub(bytes, Relaxed);
        }
    }
}

/// The memory of a value with so many bytes.
fn kept_bytes(len: usize) -> usize {
    len + size_of::<Kept>() + ALLOCATION_BYTES
}

impl Kept {
    fn layout(len: usize) -> Layout {
        let bytes = size_of::<Self>() + len;
        // A value that does not fit in memory has not come here.
        Layout::from_size_align(bytes, align_of::<Self>()).unwrap_or_else(|_| panic!("a value of {len} bytes"))
    }

    fn create(value: &[u8]) -> NonNull<Self> {
        let layout = Self::layout(value.len());
        // SAFETY: the layout has the size of the head at least.
        let Some(kept) = NonNull::new(unsafe { alloc(layout) }.cast::<Self>()) else { handle_alloc_error(layout) };
        // SAFETY: the space is new, aligned, and large enough for the head and the bytes behind it.
        unsafe {
            kept.write(Self { next: AtomicPtr::default(), len: value.len() });
            ptr::copy_nonoverlapping(value.as_ptr(), kept.add(1).cast().as_ptr(), value.len());
        }
        kept
    }

    /// # Safety
    /// It comes from [`Kept::create`], is freed once, and nobody uses it any more.
    unsafe fn free(kept: NonNull<Self>) {
        // SAFETY: as the caller promises.
        unsafe {
            let layout = Self::layout(kept.as_ref().len);
            dealloc(kept.cast().as_ptr(), layout);
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

    fn add(&self, kept: NonNull<Kept>) {
        // SAFETY: it is freed with `self`.
        let next = unsafe { &kept.as_ref().next };
        let mut newest = self.newest.load(Relaxed);
        loop {
            next.store(newest, Relaxed);
            match self.newest.compare_exchange_weak(newest, kept.as_ptr(), Release, Relaxed) {
                Ok(_) => return,
                Err(newer) => newest = newer,
            }
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        let mut newest = *self.newest.get_mut();
        while let Some(kept) = NonNull::new(newest) {
            // SAFETY: each value is once in the list, and nobody borrows the memtable any more.
            unsafe {
                newest = kept.as_ref().next.load(Acquire);
                Kept::free(kept);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bifold_contract::{Entry, Kind, SeqNo};
    use bifold_format::filter::key_hash;

    use super::{super::Memtable, *};
    use crate::cursor::Cursor;

    const KEY: &[u8] = b"key";

    fn with_operands(operands: SeqNo) -> Arc<Memtable> {
        let memtable = Arc::new(Memtable::new());
        let mut writer = memtable.writer();
        (1..=operands).for_each(|seqno| writer.insert(&Entry::operand(KEY, seqno, b"operand")));
        drop(writer);
        memtable
    }

    /// The numbers of steps that `snapshot` comes to, and what was left there.
    fn steps(memtable: &Memtable, snapshot: SeqNo) -> Vec<(SeqNo, Option<Vec<u8>>)> {
        let steps = memtable.versions(KEY, key_hash(KEY), snapshot).filter(|version| version.step.is_some());
        steps.map(|version| (version.entry.seqno, version.value.map(<[u8]>::to_vec))).collect()
    }

    fn keep(memtable: &Memtable, at: SeqNo, value: &[u8], walked_bytes: usize) {
        let version = memtable.versions(KEY, key_hash(KEY), at).next().unwrap();
        assert_eq!(version.entry.seqno, at);
        version.step.unwrap().keep(value, walked_bytes);
    }

    #[test]
    fn each_fourth_operand_in_a_row_is_a_step() {
        let memtable = with_operands(10);
        memtable.writer().insert(&Entry::inline(KEY, 11, b"value"));
        let mut writer = memtable.writer();
        (12..=18).for_each(|seqno| writer.insert(&Entry::operand(KEY, seqno, b"")));
        assert_eq!(steps(&memtable, 18), [(15, None), (8, None), (4, None)]);
        assert_eq!(steps(&memtable, 7), [(4, None)]);
        let kinds: Vec<_> = memtable.versions(KEY, key_hash(KEY), 12).take(3).map(|v| v.entry.kind).collect();
        assert_eq!(kinds, [Kind::Operand, Kind::Inline, Kind::Operand]);
        assert!(memtable.versions(b"other", key_hash(b"other"), 18).next().is_none());
    }

    #[test]
    fn a_step_keeps_the_first_value_and_nothing_else_changes() {
        let memtable = with_operands(10);
        let bytes = memtable.bytes();
        keep(&memtable, 8, b"first", 1000);
        keep(&memtable, 8, b"second", 1000);
        assert_eq!(steps(&memtable, 10), [(8, Some(b"first".to_vec())), (4, None)]);
        assert_eq!(memtable.bytes(), bytes, "the writer has counted it");
        let mut cursor = memtable.cursor();
        cursor.first().unwrap();
        for seqno in (1..=10).rev() {
            assert_eq!(cursor.entry(), Some(Entry::operand(KEY, seqno, b"operand")));
            cursor.next().unwrap();
        }
        assert_eq!(cursor.entry(), None);
    }

    #[test]
    fn values_take_what_is_set_aside_and_no_more() {
        let memtable = with_operands(8);
        keep(&memtable, 8, &[0; 10], 80);
        assert_eq!(memtable.steps.taken_bytes(), 0, "more than half of what was walked");
        keep(&memtable, 8, &[0; 30], 1 << 20);
        assert_eq!(memtable.steps.taken_bytes(), 0, "more than two steps have set aside");
        keep(&memtable, 8, &[0; 10], 100);
        assert_eq!(memtable.steps.taken_bytes(), kept_bytes(10));
        let memtable = with_operands(4 * 4000);
        for step in 1..=4000 {
            keep(&memtable, 4 * step, &[0; 1000], 1 << 20);
        }
        let taken = memtable.steps.taken_bytes();
        assert!(taken > memtable.steps.bytes() / 2 && taken <= memtable.steps.bytes(), "{taken}");
        let kept = steps(&memtable, SeqNo::MAX).iter().filter(|(_, value)| value.is_some()).count();
        assert!(kept * 1000 <= taken && memtable.steps.bytes() * 4 <= memtable.data_bytes(), "{kept} values");
    }

    #[test]
    fn readers_leave_values_while_a_writer_goes_on() {
        let memtable = with_operands(1);
        let last: SeqNo = if cfg!(miri) { 200 } else { 20_000 };
        let read = || {
            while memtable.max_seqno() < Some(last) {
                for version in memtable.versions(KEY, key_hash(KEY), SeqNo::MAX).take(100) {
                    let number = version.entry.seqno.to_le_bytes();
                    assert!(version.value.is_none_or(|value| value == number), "{}", version.entry.seqno);
                    version.step.into_iter().for_each(|step| step.keep(&number, 1000));
                }
            }
        };
        std::thread::scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(read)));
            for seqno in 2..=last {
                memtable.writer().insert(&Entry::operand(KEY, seqno, b"operand"));
            }
        });
        let kept = steps(&memtable, last).iter().filter(|(_, value)| value.is_some()).count();
        let bytes = kept * kept_bytes(size_of::<SeqNo>());
        assert_eq!(memtable.steps.taken_bytes(), bytes, "values that came too late are given back");
    }
}
