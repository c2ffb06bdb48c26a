//! Repaired handles: the current place of values whose pointers in the index are out of date (NovKV §III-D).
//!
//! The paper writes a handle that had to be searched for into the memtable. That would be a write: it must not beat a
//! newer one, snapshots, compaction and drop-keys must not take it for another version of the key, and reading would
//! fill memtables. Here it is kept outside the index, under the stale pointer, until compaction finds that pointer
//! and writes the new one in its place. A wrong handle costs no more than one read: the record that it leads to says
//! which version of which key it is.
//!
//! ```text
//! stale pointer, epoch of the table now ─hash─▶ tag ─▶ two cache lines of 8 slots, each: tag 30 bits │ offset 34 bits
//! ```
//!
//! Each slot is one word, so no lock is needed: a slot that was overwritten or belongs to another pointer leads to a
//! record of another version, and the value is searched for once more.
//!
//! A handle goes to the emptier one of its two lines, so hardly any is displaced before most slots are in use. The
//! table begins with 4 KiB and doubles when three quarters of them are: as far as a quarter of the budget for filters,
//! then with memory of the block cache. The lowest and the highest bits of a tag choose the lines, so doubling moves
//! each handle without looking at what it belongs to. When handles are many compared with the tables of the index, or
//! memory is at its end, a rewrite of those tables takes all of them over ([`Handles::are_due`]). What readers find
//! while it runs goes to a new table, because the rewrite may have passed the entries already.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use arc_swap::ArcSwapOption;
use bifold_contract::{Pointer, planted};
use bifold_format::filter::key_hash;

use super::{
    budget::{Budget, Granted},
    sync::LockExt,
};

const SLOTS: usize = 8;

/// Sorted tables of up to 16 GiB.
const OFFSET_BITS: u32 = 34;

/// The largest share of the budget that is not borrowed.
const SHARE: u64 = 4;

/// As many lines as there are to begin with.
const LINES_MIN: u64 = 64;

/// As many lines as there are at most, 16 MiB: twelve bits of a tag remain to distinguish handles of one line.
const LINES_MAX: u64 = 1 << 18;

/// Rewriting the index may write so many bytes for each handle that it takes over: four entries.
const INDEX_BYTES_OF_ONE: u64 = 160;

/// The same when memory is at its end, and each further handle displaces another one.
const INDEX_BYTES_OF_ONE_MAX: u64 = 1024;

#[repr(align(64))]
#[derive(Debug, Default)]
struct Line([AtomicU64; SLOTS]);

#[derive(Debug)]
struct Lines {
    lines: Box<[Line]>,
    /// Slots in use.
    filled: AtomicU64,
    /// Handles that took the slot of another one.
    displaced: AtomicU64,
    _memory: Granted,
}

/// Repaired handles of one keyspace.
#[derive(Debug)]
pub struct Handles {
    budget: Arc<Budget>,
    /// Made by the first repair.
    lines: ArcSwapOption<Lines>,
    /// Those that a rewrite of the index takes over.
    leaving: ArcSwapOption<Lines>,
    /// Held while the table is made, doubled or emptied.
    changing: Mutex<()>,
}

impl Handles {
    /// No handles yet.
    #[must_use]
    pub fn new(budget: Arc<Budget>) -> Self {
        Self { budget, lines: ArcSwapOption::empty(), leaving: ArcSwapOption::empty(), changing: Mutex::default() }
    }

    /// Where the value is in the table of `epoch` that `stale` led to, as far as known. It may be the place of
    /// another value.
    #[must_use]
    pub fn get(&self, stale: Pointer, epoch: u32) -> Option<u64> {
        let tag = tag(stale, epoch);
        let find = |lines: &ArcSwapOption<Lines>| lines.load().as_ref().and_then(|lines| lines.find(tag));
        find(&self.lines).or_else(|| find(&self.leaving))
    }

    /// Keeps where the value was found.
    pub fn keep(&self, stale: Pointer, epoch: u32, offset: u64) {
        if offset >> OFFSET_BITS != 0 {
            return;
        }
        if self.lines.load().as_ref().is_none_or(|lines| lines.is_full()) {
            self.grow();
        }
        if let Some(lines) = &*self.lines.load() {
            lines.put(tag(stale, epoch), offset);
        }
    }

    /// Makes the table, or doubles it, if there is memory for that. A handle that is kept meanwhile may be lost.
    fn grow(&self) {
        // Somebody else is at it.
        let Ok(_changing) = self.changing.try_lock() else { return };
        let old = self.lines.load_full();
        let count = old.as_ref().map_or(LINES_MIN, |old| old.lines.len() as u64 * 2);
        if count > LINES_MAX || old.as_ref().is_some_and(|old| !old.is_full()) {
            return;
        }
        let Some(memory) = self.memory(count * size_of::<Line>() as u64) else { return };
        let lines = Lines::new(count, memory);
        for word in old.iter().flat_map(|old| &old.lines).flat_map(|line| &line.0).map(|slot| slot.load(Relaxed)) {
            if word != 0 && !planted!("lose_handles") {
                lines.put(word >> OFFSET_BITS, word & ((1 << OFFSET_BITS) - 1));
            }
        }
        self.lines.store(Some(Arc::new(lines)));
    }

    fn memory(&self, bytes: u64) -> Option<Granted> {
        let own = if bytes <= self.budget.bytes_max() / SHARE { self.budget.take(bytes) } else { None };
        own.map(Granted::Own).or_else(|| self.budget.borrow(bytes).map(Granted::Lent))
    }

    /// Whether a rewrite of all tables of the index, of so many bytes, should take the handles over. Without tables all
    /// stale pointers are in memtables, and nothing would take them over.
    #[must_use]
    pub fn are_due(&self, index_bytes: u64) -> bool {
        let lines = self.lines.load();
        let Some(lines) = &*lines else { return false };
        let filled = lines.filled.load(Relaxed);
        let is_at_its_end = lines.displaced.load(Relaxed) > filled / 2;
        let each = if is_at_its_end { INDEX_BYTES_OF_ONE_MAX } else { INDEX_BYTES_OF_ONE };
        filled >= LINES_MIN * SLOTS as u64 / 2 && (1..=filled * each).contains(&index_bytes)
    }

    /// A rewrite of the index begins, which takes them over. They are found until it ends with [`Handles::forget`]; if
    /// it fails, until the next one begins.
    pub fn set_aside(&self) {
        let _changing = self.changing.hold();
        self.leaving.store(self.lines.swap(None));
    }

    /// The index has taken those over that were set aside. What was kept since then stays.
    pub fn forget(&self) {
        let _changing = self.changing.hold();
        self.leaving.store(None);
        if planted!("forget_new_handles") {
            self.lines.store(None);
        }
    }

    /// Memory for them.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let bytes = |lines: &ArcSwapOption<Lines>| lines.load().as_ref().map_or(0, |lines| lines.bytes());
        bytes(&self.lines) + bytes(&self.leaving)
    }
}

impl Lines {
    fn new(count: u64, memory: Granted) -> Self {
        let (filled, displaced) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { lines: (0..count).map(|_| Line::default()).collect(), filled, displaced, _memory: memory }
    }

    fn bytes(&self) -> u64 {
        size_of_val(&*self.lines) as u64
    }

    fn find(&self, tag: u64) -> Option<u64> {
        let mut slots = self.of(tag).into_iter().flat_map(|line| &line.0).map(|slot| slot.load(Relaxed));
        slots.find(|word| word >> OFFSET_BITS == tag).map(|word| word & ((1 << OFFSET_BITS) - 1))
    }

    /// Three quarters of the slots are in use: with many more, handles displace each other.
    fn is_full(&self) -> bool {
        self.filled.load(Relaxed) * 8 >= self.lines.len() as u64 * SLOTS as u64 * 6
    }

    /// The lines of a tag, by its lowest and by its highest bits: the number of lines is a power of two.
    fn of(&self, tag: u64) -> [&Line; 2] {
        let mirrored = tag.reverse_bits() >> OFFSET_BITS;
        [tag, mirrored].map(|bits| &self.lines[bits as usize & (self.lines.len() - 1)])
    }

    fn put(&self, tag: u64, offset: u64) {
        let lines = self.of(tag);
        let slots = || lines.into_iter().flat_map(|line| &line.0);
        let is_same = |slot: &&AtomicU64| slot.load(Relaxed) >> OFFSET_BITS == tag;
        let free = || {
            let emptier = lines.into_iter().max_by_key(|line| line.free().count())?;
            emptier.free().next().inspect(|_| add(&self.filled))
        };
        let slot = slots().find(is_same).or_else(free).unwrap_or_else(|| {
            add(&self.displaced);
            // Any will do.
            &lines[0].0[offset as usize % SLOTS]
        });
        slot.store(tag << OFFSET_BITS | offset, Relaxed);
    }
}

impl Line {
    fn free(&self) -> impl Iterator<Item = &AtomicU64> {
        self.0.iter().filter(|slot| slot.load(Relaxed) == 0)
    }
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Relaxed);
}

/// Identifies a pointer and an epoch. A word of 0 is an empty slot, so no tag is 0.
fn tag(stale: Pointer, epoch: u32) -> u64 {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&stale.file.to_le_bytes());
    bytes[8..16].copy_from_slice(&stale.offset.to_le_bytes());
    bytes[16..20].copy_from_slice(&stale.epoch.to_le_bytes());
    bytes[20..].copy_from_slice(&epoch.to_le_bytes());
    (key_hash(&bytes) >> OFFSET_BITS).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::budget::Lender;

    fn pointer(offset: u64) -> Pointer {
        Pointer { file: 3, epoch: 1, offset, len: 10 }
    }

    #[test]
    fn handles_are_kept_by_pointer_and_epoch() {
        let handles = Handles::new(Budget::new(1 << 20));
        assert_eq!((handles.get(pointer(5), 2), handles.memory_bytes()), (None, 0));
        handles.keep(pointer(5), 2, 77);
        handles.keep(pointer(6), 2, 0);
        assert_eq!(handles.get(pointer(5), 2), Some(77));
        assert_eq!(handles.get(pointer(6), 2), Some(0));
        assert_eq!(handles.get(pointer(5), 3), None, "the table has been rewritten");
        handles.keep(pointer(5), 2, 78);
        assert_eq!(handles.get(pointer(5), 2), Some(78));
        handles.keep(pointer(7), 2, 1 << 34);
        assert_eq!(handles.get(pointer(7), 2), None, "it does not fit");
    }

    fn right(handles: &Handles, count: u64) -> u64 {
        (0..count).filter(|&offset| handles.get(pointer(offset), 2) == Some(offset)).count() as u64
    }

    #[test]
    fn they_grow_with_their_number_and_none_is_lost_by_that() {
        let budget = Budget::new(8 << 20);
        let handles = Handles::new(Arc::clone(&budget));
        for (count, bytes) in [(300, 4 << 10), (3000, 32 << 10), (90_000, 1 << 20)] {
            (0..count).for_each(|offset| handles.keep(pointer(offset), 2, offset));
            assert_eq!((handles.memory_bytes(), budget.used_bytes()), (bytes, bytes), "{count}");
            // Here and there both lines of a handle are full before three quarters of all slots are in use.
            assert!(right(&handles, count) * 1000 >= count * 995, "{} of {count}", right(&handles, count));
        }
        take_over(&handles);
        assert_eq!((handles.memory_bytes(), budget.used_bytes(), right(&handles, 90_000)), (0, 0, 0));
    }

    fn take_over(handles: &Handles) {
        handles.set_aside();
        handles.forget();
    }

    /// A reader may search for a value whose entry the rewrite has passed.
    #[test]
    fn those_found_while_others_are_taken_over_stay() {
        let budget = Budget::new(1 << 20);
        let handles = Handles::new(Arc::clone(&budget));
        (0..300).for_each(|offset| handles.keep(pointer(offset), 2, offset));
        handles.set_aside();
        assert_eq!(right(&handles, 300), 300, "the rewrite needs them");
        assert!(!handles.are_due(1), "they are being taken over");
        (300..310).for_each(|offset| handles.keep(pointer(offset), 2, offset));
        assert_eq!((right(&handles, 310), handles.memory_bytes(), budget.used_bytes()), (310, 8 << 10, 8 << 10));
        handles.forget();
        assert_eq!((right(&handles, 310), handles.memory_bytes(), budget.used_bytes()), (10, 4 << 10, 4 << 10));
    }

    #[test]
    fn they_stay_within_their_share_of_the_budget() {
        let budget = Budget::new(64 << 10);
        let handles = Handles::new(Arc::clone(&budget));
        (0..10_000).for_each(|offset| handles.keep(pointer(offset), 2, offset));
        assert_eq!((handles.memory_bytes(), budget.used_bytes()), (16 << 10, 16 << 10));
        let any = (0..10_000).filter(|&offset| handles.get(pointer(offset), 2).is_some()).count() as u64;
        let right = right(&handles, 10_000);
        assert!(right > 1000 && right == any, "{right} of {any}");
        let none = Handles::new(Budget::new(1000));
        none.keep(pointer(1), 2, 3);
        assert_eq!(none.get(pointer(1), 2), None);
    }

    #[derive(Debug, Default)]
    struct Lends(AtomicU64);

    impl Lender for Lends {
        fn lend(&self, bytes: u64) -> bool {
            let grown = |lent: u64| Some(lent + bytes).filter(|&sum| sum <= 48 << 10);
            self.0.fetch_update(Relaxed, Relaxed, grown).is_ok()
        }

        fn take_back(&self, bytes: u64) {
            self.0.fetch_sub(bytes, Relaxed);
        }
    }

    #[test]
    fn they_borrow_what_their_share_does_not_have_and_give_it_back() {
        let lends = Arc::new(Lends::default());
        let memory = crate::parts::budget::Memory::with_lender(64 << 10, 0, Arc::clone(&lends) as Arc<dyn Lender>);
        let handles = Handles::new(Arc::clone(&memory.filters));
        (0..10_000).for_each(|offset| handles.keep(pointer(offset), 2, offset));
        let lent = || lends.0.load(Relaxed);
        // 16 KiB are their own; 32 more were borrowed, and 64 were refused.
        assert_eq!((handles.memory_bytes(), memory.filters.used_bytes(), lent()), (32 << 10, 0, 32 << 10));
        take_over(&handles);
        assert_eq!(lent(), 0);
    }

    #[test]
    fn a_rewrite_is_due_when_they_are_many_or_memory_is_at_its_end() {
        let handles = Handles::new(Budget::new(64 << 10));
        assert!(!handles.are_due(1), "there are none");
        (0..1000).for_each(|offset| handles.keep(pointer(offset), 2, offset));
        assert!(handles.are_due(150_000) && !handles.are_due(170_000));
        assert!(!handles.are_due(0), "there is no table");
        (1000..10_000).for_each(|offset| handles.keep(pointer(offset), 2, offset));
        assert!(handles.are_due(1_500_000) && !handles.are_due(3_000_000));
    }
}
