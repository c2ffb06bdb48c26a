//! Counts what each thread allocates, so that a test can report the peak memory of a call.
//!
//! A program that needs this makes [`Counting`] its global allocator. Each thread counts its own allocations only:
//! memory freed by another thread is not subtracted. Simulated databases have one thread.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// The system's allocator, with counting.
pub struct Counting;

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

fn taken(bytes: usize) {
    // At the end of a thread the counter no longer exists.
    let now = NOW.try_with(|now| {
        now.set(now.get().saturating_add(bytes));
        now.get()
    });
    if let Ok(now) = now {
        let _ended = PEAK.try_with(|peak| peak.set(peak.get().max(now)));
    }
}

fn given_back(bytes: usize) {
    let _ended = NOW.try_with(|now| now.set(now.get().saturating_sub(bytes)));
}

// SAFETY: each call forwards its arguments to the system's allocator, and counting allocates nothing: the counters
// are plain cells that need no initialisation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        given_back(layout.size());
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // Both blocks exist for a moment.
        taken(bytes);
        given_back(layout.size());
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

/// Runs `work` and returns by how many bytes this thread's memory grew at most meanwhile. Always 0 where [`Counting`]
/// is not the allocator.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.get();
    PEAK.set(before);
    let done = work();
    (done, PEAK.get().saturating_sub(before))
}

/// Whether [`Counting`] is the allocator of this program.
#[must_use]
pub fn are_counted() -> bool {
    peak_of(|| std::hint::black_box(Vec::<u8>::with_capacity(4096))).1 >= 4096
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static COUNTING: Counting = Counting;

    #[test]
    fn the_peak_of_a_call_is_what_it_held_at_once() {
        assert!(are_counted());
        let (held, peak) = peak_of(|| {
            drop(std::hint::black_box(vec![1_u8; 10_000]));
            let mut held = vec![0_u8; 3000];
            held.reserve_exact(6000);
            std::hint::black_box(held)
        });
        // While it grows, the old and the new block are there.
        assert!((12_000..13_000).contains(&peak), "{peak}");
        let (_, peak) = peak_of(|| drop(held));
        assert_eq!(peak, 0);
        // Another thread counts its own.
        let (_, peak) = peak_of(|| {
            std::thread::scope(|scope| {
                let theirs = scope.spawn(|| peak_of(|| drop(std::hint::black_box(vec![1_u8; 100_000]))).1);
                assert!(theirs.join().unwrap() >= 100_000);
            });
        });
        assert!(peak < 50_000, "{peak}");
    }
}
