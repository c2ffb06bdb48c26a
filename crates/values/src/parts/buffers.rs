//! Memory that rewrites and GC take while they run: counted for each keyspace, and bounded over all of them.
//!
//! ```text
//! free ─▶ an eighth of it, from `least` to `wanted` ─▶ Held ─▶ grows with what must fit ─▶ given back when dropped
//! ```
//!
//! A merge opens as many files as overlap at a key, and it is not known beforehand how many. So each buffer gets an
//! eighth of what is left: full ones as long as there is plenty, then smaller ones, and the least when next to nothing
//! is left. That much is taken even beyond the bound: a merge that waited for memory of another one might wait forever.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use super::budget::{Budget, Taken};

/// A buffer gets this fraction of the free bytes.
const SHARE_OF_FREE: u64 = 8;

/// The buffers of one keyspace.
#[derive(Debug)]
pub struct Buffers {
    budget: Arc<Budget>,
    held_bytes: AtomicU64,
}

/// Some bytes of memory, until it is dropped.
#[derive(Debug)]
pub struct Held {
    of: Arc<Buffers>,
    taken: Taken,
}

impl Buffers {
    /// No buffers yet; they take from `budget`.
    #[must_use]
    pub fn new(budget: Arc<Budget>) -> Arc<Self> {
        Arc::new(Self { budget, held_bytes: AtomicU64::new(0) })
    }

    /// Memory for a buffer: `wanted` bytes, or fewer where others have taken much, but at least `least`.
    #[must_use]
    pub fn hold(self: &Arc<Self>, least: usize, wanted: usize) -> Held {
        let share = usize::try_from(self.budget.free_bytes() / SHARE_OF_FREE).unwrap_or(usize::MAX);
        let mut held = Held { of: Arc::clone(self), taken: self.budget.take_anyway(0) };
        held.grow_to(share.min(wanted).max(least));
        held
    }

    /// Bytes that all of them should take at most.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.budget.bytes_max()
    }

    /// Bytes that are held now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.held_bytes.load(Relaxed)
    }
}

impl Held {
    /// How many.
    #[must_use]
    pub fn bytes(&self) -> usize {
        usize::try_from(self.taken.bytes()).unwrap_or(usize::MAX)
    }

    /// Raises the count to so many: what is in use is counted, whatever the bound.
    pub fn grow_to(&mut self, bytes: usize) {
        let more = (bytes as u64).saturating_sub(self.taken.bytes());
        self.taken.grow_anyway(more);
        self.of.held_bytes.fetch_add(more, Relaxed);
    }

    /// Counts so many more.
    pub fn grow_by(&mut self, bytes: usize) {
        self.grow_to(self.bytes() + bytes);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.held_bytes.fetch_sub(self.taken.bytes(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_become_smaller_the_more_there_are_and_never_too_small() {
        let budget = Budget::new(16 << 20);
        let [one, other] = [(); 2].map(|()| Buffers::new(Arc::clone(&budget)));
        let held: Vec<Held> = (0..1000).map(|_| one.hold(4 << 10, 256 << 10)).collect();
        assert!(held[..48].iter().all(|held| held.bytes() == 256 << 10));
        assert!(held.windows(2).all(|pair| pair[1].bytes() <= pair[0].bytes()));
        assert_eq!(held[999].bytes(), 4 << 10);
        // The bound, and the least size of those that came when it was reached; in full size they would take 250 MiB.
        assert!(one.bytes() < (16 << 20) + (1000 << 12), "{} bytes", one.bytes());
        assert_eq!(other.hold(4 << 10, 256 << 10).bytes(), 4 << 10);
        assert_eq!(other.bytes(), 0);
        drop(held);
        assert_eq!((one.bytes(), budget.used_bytes()), (0, 0));
    }

    #[test]
    fn what_must_fit_is_counted_whatever_the_bound() {
        let budget = Budget::new(100);
        let buffers = Buffers::new(Arc::clone(&budget));
        let mut held = buffers.hold(10, 50);
        assert_eq!(held.bytes(), 12);
        held.grow_to(5);
        held.grow_to(300);
        held.grow_by(1);
        assert_eq!((held.bytes(), buffers.bytes(), budget.used_bytes(), budget.free_bytes()), (301, 301, 301, 0));
        drop(held);
        assert_eq!((buffers.bytes(), budget.free_bytes()), (0, 100));
    }
}
