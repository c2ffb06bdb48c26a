//! Counters that many threads add to at once.
//!
//! A counter that two threads add to takes its cache line away from the other each time: 50 to 100 ns, and a point read
//! adds to ten. Here each thread has a line of its own, as long as there are lines; a sum looks at all of them.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

/// Lines. Threads share one only if there are more of them.
const LINES: usize = 16;

/// A line of its own even where the processor fetches lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Line<const N: usize>([AtomicU64; N]);

/// `N` counters.
#[derive(Debug)]
pub struct Striped<const N: usize> {
    lines: [Line<N>; LINES],
}

impl<const N: usize> Default for Striped<N> {
    fn default() -> Self {
        Self { lines: std::array::from_fn(|_| Line(std::array::from_fn(|_| AtomicU64::new(0)))) }
    }
}

/// The line of this thread. Threads get them in turns.
#[inline]
fn line() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Relaxed) % LINES);
        }
        mine.get()
    })
}

impl<const N: usize> Striped<N> {
    /// Adds to counter `which`. Returns what this thread, and those that share its line, had added before.
    ///
    /// # Panics
    /// If there is no such counter.
    #[inline]
    pub fn add(&self, which: usize, more: u64) -> u64 {
        self.lines[line()].0[which].fetch_add(more, Relaxed)
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
    use std::thread;

    use super::*;

    #[test]
    fn nothing_that_threads_add_is_lost_though_they_share_lines() {
        let counters = Striped::<2>::default();
        thread::scope(|scope| {
            for more in 0..3 * LINES as u64 {
                let counters = &counters;
                scope.spawn(move || {
                    (0..100).for_each(|_| _ = counters.add(0, more));
                    counters.add(1, 1);
                });
            }
        });
        let threads = 3 * LINES as u64;
        assert_eq!((counters.sum(0), counters.sum(1)), (100 * threads * (threads - 1) / 2, threads));
    }

    #[test]
    fn a_thread_is_told_what_it_has_added_before() {
        let counters = Striped::<1>::default();
        assert_eq!((0..5).map(|_| counters.add(0, 3)).collect::<Vec<_>>(), [0, 3, 6, 9, 12]);
    }
}
