//! Chunks of dropped arenas, kept for the next ones.
//!
//! One memtable follows the other, so the next will want what the last has given back. From the global allocator it
//! would be costly: a page that is new to a process must be cleared, and glibc's, once it has seen large blocks come
//! and go, cuts them out of its heap, where smaller ones that live longer keep the rest from being given back to the
//! system.
//!
//! **Bound:** no more is kept than is in use, in all memtables of the process together. So nothing is kept when the
//! last one is dropped, and what is kept and what is in use are together about what was in use at most.

use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    collections::BTreeMap,
    ptr::NonNull,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Smaller chunks use the global allocator, which has its own free lists for them.
const KEPT_FROM_BYTES: usize = 32 << 10;

/// A chunk without pointers into it.
struct Chunk(NonNull<u8>, Layout);

// SAFETY: it owns its memory and is not tied to a thread.
unsafe impl Send for Chunk {}

/// The kept chunks by size, and how many bytes are in use.
struct Spare {
    chunks: BTreeMap<usize, Vec<Chunk>>,
    kept_bytes: usize,
    used_bytes: usize,
}

impl Spare {
    const fn new() -> Self {
        Self { chunks: BTreeMap::new(), kept_bytes: 0, used_bytes: 0 }
    }

    /// Counts a chunk of this layout as used. Returns a kept one if there is one.
    fn take(&mut self, layout: Layout) -> Option<Chunk> {
        self.used_bytes += layout.size();
        let kept = self.chunks.get_mut(&layout.size())?.pop()?;
        self.kept_bytes -= layout.size();
        Some(kept)
    }

    /// Counts a chunk as unused and keeps it. Returns the chunks to free.
    fn give_back(&mut self, chunk: Chunk) -> Vec<Chunk> {
        let bytes = chunk.1.size();
        self.used_bytes -= bytes;
        self.kept_bytes += bytes;
        self.chunks.entry(bytes).or_default().push(chunk);
        let mut to_free = Vec::new();
        // The largest first, so that few have to be freed.
        while self.kept_bytes > self.used_bytes
            && let Some(mut largest) = self.chunks.last_entry()
        {
            match largest.get_mut().pop() {
                Some(chunk) => {
                    self.kept_bytes -= chunk.1.size();
                    to_free.push(chunk);
                }
                None => drop(largest.remove()),
            }
        }
        to_free
    }
}

static SPARE: Mutex<Spare> = Mutex::new(Spare::new());

fn spare() -> MutexGuard<'static, Spare> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Only chunks that memtables grow by: the chunk of a single large entry would be useless to others.
fn is_kept(layout: Layout) -> bool {
    layout.size() >= KEPT_FROM_BYTES && layout.size().is_power_of_two()
}

/// An uninitialised chunk of this layout. All layouts have the same alignment.
pub(super) fn take(layout: Layout) -> NonNull<u8> {
    let kept = if is_kept(layout) { spare().take(layout) } else { None };
    kept.map_or_else(|| allocate(layout), |chunk| chunk.0)
}

/// Takes back a chunk that [`take`] returned for `layout`. No pointer into it may be left.
pub(super) fn give_back(chunk: NonNull<u8>, layout: Layout) {
    let chunk = Chunk(chunk, layout);
    let to_free = if is_kept(layout) { spare().give_back(chunk) } else { vec![chunk] };
    to_free.into_iter().for_each(free);
}

fn allocate(layout: Layout) -> NonNull<u8> {
    assert!(layout.size() > 0, "an empty chunk");
    // SAFETY: the layout's size is above zero.
    NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout))
}

fn free(Chunk(chunk, layout): Chunk) {
    // SAFETY: `allocate` got this chunk with this layout, and there is no other owner.
    unsafe { dealloc(chunk.as_ptr(), layout) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 64).unwrap()
    }

    /// A chunk that is never read or written.
    fn chunk(bytes: usize) -> Chunk {
        Chunk(NonNull::dangling(), layout(bytes))
    }

    #[test]
    fn no_more_is_kept_than_is_in_use() {
        let mut spare = Spare::new();
        let sizes = [1 << 15, 1 << 16, 1 << 17, 1 << 20, 1 << 20, 1 << 20];
        assert!(sizes.iter().all(|&bytes| spare.take(layout(bytes)).is_none()), "nothing is kept yet");
        let all: usize = sizes.iter().sum();
        let mut to_free = 0;
        for bytes in sizes {
            to_free += spare.give_back(chunk(bytes)).iter().map(|chunk| chunk.1.size()).sum::<usize>();
            assert!(spare.kept_bytes <= spare.used_bytes);
            assert_eq!(spare.kept_bytes + spare.used_bytes + to_free, all);
        }
        assert_eq!((spare.kept_bytes, spare.used_bytes, to_free), (0, 0, all), "none is in use, so none is kept");
    }

    #[test]
    fn returned_chunks_are_reused() {
        let mut spare = Spare::new();
        (0..4).for_each(|_| assert!(spare.take(layout(1 << 20)).is_none()));
        (0..2).for_each(|_| assert!(spare.give_back(chunk(1 << 20)).is_empty()));
        assert!(spare.take(layout(1 << 19)).is_none(), "none of that size is kept");
        let taken: Vec<bool> = (0..3).map(|_| spare.take(layout(1 << 20)).is_some()).collect();
        assert_eq!(taken, [true, true, false]);
        assert_eq!(spare.kept_bytes, 0);
    }
}
