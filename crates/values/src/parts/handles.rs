//! Repaired handles: the current place of values whose pointers in the index are out of date (NovKV §III-D).
//!
//! The paper writes a handle that had to be searched for into the memtable. That would be a write: it must not beat a
//! newer one, snapshots, compaction and drop-keys must not take it for another version of the key, and reading would
//! fill memtables. Here it is kept outside the index, under the stale pointer, until compaction finds that pointer
//! and writes the new one in its place. A wrong handle costs no more than one read: the record that it leads to says
//! which version of which key it is.
//!
//! ```text
//! stale pointer, epoch of the table now ─hash─▶ one cache line of eight slots, each: tag 24 bits │ offset 40 bits
//! ```
//!
//! Each slot is one word, so no lock is needed: a slot that was overwritten or belongs to another pointer leads to a
//! record of another version, and the value is searched for once more.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bifold_contract::Pointer;
use bifold_format::filter::key_hash;

use super::budget::{Budget, Taken};

const SLOTS: usize = 8;

const OFFSET_BITS: u32 = 40;

/// The largest share of the budget.
const SHARE: u64 = 4;

/// Fewer lines than this are not worth having.
const LINES_MIN: u64 = 64;

#[repr(align(64))]
#[derive(Debug, Default)]
struct Line([AtomicU64; SLOTS]);

#[derive(Debug)]
struct Lines {
    lines: Box<[Line]>,
    _taken: Taken,
}

/// Repaired handles of one keyspace.
#[derive(Debug)]
pub struct Handles {
    budget: Arc<Budget>,
    /// Made by the first repair; `None` when no memory is left.
    lines: OnceLock<Option<Lines>>,
}

impl Handles {
    /// No handles yet.
    #[must_use]
    pub fn new(budget: Arc<Budget>) -> Self {
        Self { budget, lines: OnceLock::new() }
    }

    /// Where the value is in the table of `epoch` that `stale` led to, as far as known. It may be the place of
    /// another value.
    #[must_use]
    pub fn get(&self, stale: Pointer, epoch: u32) -> Option<u64> {
        let lines = self.lines.get()?.as_ref()?;
        let (line, tag) = lines.find(stale, epoch);
        let slots = line.0.iter().map(|slot| slot.load(Relaxed));
        slots
            .filter(|&word| word != 0)
            .find(|word| word >> OFFSET_BITS == tag)
            .map(|word| word & ((1 << OFFSET_BITS) - 1))
    }

    /// Keeps where the value was found.
    pub fn keep(&self, stale: Pointer, epoch: u32, offset: u64) {
        let Some(lines) = self.lines.get_or_init(|| Lines::new(&self.budget)) else { return };
        if offset >> OFFSET_BITS != 0 {
            return;
        }
        let (line, tag) = lines.find(stale, epoch);
        let is_free = |slot: &&AtomicU64| matches!(slot.load(Relaxed), word if word == 0 || word >> OFFSET_BITS == tag);
        let any = &line.0[tag as usize % SLOTS];
        line.0.iter().find(is_free).unwrap_or(any).store(tag << OFFSET_BITS | offset, Relaxed);
    }

    /// Memory for them.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.lines.get().and_then(Option::as_ref).map_or(0, |lines| size_of_val(&*lines.lines) as u64)
    }
}

impl Lines {
    fn new(budget: &Arc<Budget>) -> Option<Self> {
        let mut count =
            (budget.bytes_max() / SHARE / size_of::<Line>() as u64).checked_ilog2().map_or(0, |log| 1 << log);
        while count >= LINES_MIN {
            if let Some(taken) = budget.take(count * size_of::<Line>() as u64) {
                return Some(Self { lines: (0..count).map(|_| Line::default()).collect(), _taken: taken });
            }
            count /= 2;
        }
        None
    }

    fn find(&self, stale: Pointer, epoch: u32) -> (&Line, u64) {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&stale.file.to_le_bytes());
        bytes[8..16].copy_from_slice(&stale.offset.to_le_bytes());
        bytes[16..20].copy_from_slice(&stale.epoch.to_le_bytes());
        bytes[20..].copy_from_slice(&epoch.to_le_bytes());
        let hash = key_hash(&bytes);
        // A power of two: the low bits choose the line, the high ones are the tag. An empty slot has tag 0.
        let line = &self.lines[hash as usize & (self.lines.len() - 1)];
        (line, (hash >> OFFSET_BITS).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        handles.keep(pointer(7), 2, 1 << 40);
        assert_eq!(handles.get(pointer(7), 2), None, "it does not fit");
    }

    #[test]
    fn they_stay_within_their_share_of_the_budget() {
        let budget = Budget::new(64 << 10);
        let handles = Handles::new(Arc::clone(&budget));
        (0..10_000).for_each(|offset| handles.keep(pointer(offset), 2, offset));
        assert_eq!((handles.memory_bytes(), budget.used_bytes()), (16 << 10, 16 << 10));
        let right = (0..10_000).filter(|&offset| handles.get(pointer(offset), 2) == Some(offset)).count();
        let any = (0..10_000).filter(|&offset| handles.get(pointer(offset), 2).is_some()).count();
        assert!(right > 1000 && right == any, "{right} of {any}");
        let none = Handles::new(Budget::new(1000));
        none.keep(pointer(1), 2, 3);
        assert_eq!(none.get(pointer(1), 2), None);
    }
}
