//! Counters that many threads add to at once.
//!
//! A counter that two threads add to takes its cache line away from the other each time: 50 to 100 ns, and a point
//! read adds to ten. Here a thread has a line of its own while it lives, as long as there are such lines, and adds to
//! it by a load and a store: an atomic addition would also wait until all its earlier stores are done. Other threads
//! share lines, by atomic additions. A sum looks at all lines.

use std::{
    cell::{Cell, OnceCell},
    sync::atomic::{
        AtomicU32, AtomicU64, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
};

/// Lines that belong to one thread at a time: a bit each in [`FREE`].
const OWNED: usize = u32::BITS as usize;

/// Lines that other threads share.
const SHARED: usize = 16;

/// A cache line of its own, even where the processor fetches two adjacent lines at once.
#[derive(Debug)]
#[repr(align(128))]
struct Line<const N: usize>([AtomicU64; N]);

/// `N` counters.
#[derive(Debug)]
pub struct Striped<const N: usize> {
    lines: [Line<N>; OWNED + SHARED],
}

impl<const N: usize> Default for Striped<N> {
    fn default() -> Self {
        Self { lines: std::array::from_fn(|_| Line(std::array::from_fn(|_| AtomicU64::new(0)))) }
    }
}

/// Which owned lines no thread has.
static FREE: AtomicU32 = AtomicU32::new(u32::MAX);

/// The line of a thread that has not asked for one.
const NONE: usize = usize::MAX;

thread_local! {
    /// Never dropped, so that a thread can count until its very end.
    static MINE: Cell<usize> = const { Cell::new(NONE) };
    static LEASE: OnceCell<Lease> = const { OnceCell::new() };
}

/// An owned line, as long as its thread lives.
struct Lease(usize);

impl Drop for Lease {
    fn drop(&mut self) {
        MINE.set(shared_line());
        // The next owner sees what was stored here.
        FREE.fetch_or(1 << self.0, Release);
    }
}

/// The line of this thread.
#[inline]
fn line() -> usize {
    if MINE.get() == NONE {
        find_line();
    }
    MINE.get()
}

#[cold]
fn find_line() {
    let taken = FREE.fetch_update(Acquire, Relaxed, |free| (free != 0).then(|| free & (free - 1)));
    match taken {
        Ok(free) => {
            let at = free.trailing_zeros() as usize;
            MINE.set(at);
            let lease = Lease(at);
            // A thread that is ending already drops the lease here, and has a shared line.
            let _kept = LEASE.try_with(|mine| mine.set(lease).is_ok());
        }
        Err(_) => MINE.set(shared_line()),
    }
}

/// Threads get them in turns.
fn shared_line() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    OWNED + NEXT.fetch_add(1, Relaxed) % SHARED
}

impl<const N: usize> Striped<N> {
    /// Adds to counter `which`. Returns what this thread, and those that share its line, had added before.
    ///
    /// # Panics
    /// If there is no such counter.
    #[inline]
    pub fn add(&self, which: usize, more: u64) -> u64 {
        let line = line();
        let counter = &self.lines[line].0[which];
        if line >= OWNED {
            return counter.fetch_add(more, Relaxed);
        }
        let before = counter.load(Relaxed);
        counter.store(before.wrapping_add(more), Relaxed);
        before
    }

    /// What was added to counter `which`.
    ///
    /// # Panics
    /// If there is no such counter.
    #[must_use]
    pub fn sum(&self, which: usize) -> u64 {
        self.lines.iter().map(|line| line.0[which].load(Relaxed)).fold(0, u64::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Barrier, Mutex},
        thread,
    };

    use super::*;

    /// More threads at once than there are lines, and generations of them, so that lines change hands.
    #[test]
    fn nothing_that_threads_add_is_lost_though_they_share_lines_and_inherit_them() {
        const THREADS: u64 = 2 * (OWNED + SHARED) as u64;
        const ADDS: u64 = 300;
        let counters = Striped::<2>::default();
        for _generation in 0..3 {
            let all_have_begun = Barrier::new(THREADS as usize);
            thread::scope(|scope| {
                for more in 0..THREADS {
                    let (counters, all_have_begun) = (&counters, &all_have_begun);
                    scope.spawn(move || {
                        counters.add(1, 1);
                        all_have_begun.wait();
                        (0..ADDS).for_each(|_| _ = counters.add(0, more));
                    });
                }
            });
        }
        let expected = (3 * ADDS * THREADS * (THREADS - 1) / 2, 3 * THREADS);
        assert_eq!((counters.sum(0), counters.sum(1)), expected);
    }

    #[test]
    fn a_line_belongs_to_one_living_thread() {
        let (all_have_lines, lines) = (Barrier::new(OWNED), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for _ in 0..OWNED {
                scope.spawn(|| {
                    lines.lock().unwrap().push(line());
                    all_have_lines.wait();
                });
            }
        });
        let mut owned = lines.into_inner().unwrap();
        owned.retain(|line| *line < OWNED);
        let count = owned.len();
        owned.sort_unstable();
        owned.dedup();
        assert_eq!(owned.len(), count, "none twice");
    }

    #[test]
    fn a_thread_is_told_what_it_has_added_before() {
        let counters = Striped::<1>::default();
        assert_eq!((0..5).map(|_| counters.add(0, 3)).collect::<Vec<_>>(), [0, 3, 6, 9, 12]);
    }
}
