//! Prefetching into the processor's caches.

/// A cache line.
pub const LINE_BYTES: usize = 64;

/// Prefetches the cache lines from `place` on.
#[inline]
pub fn prefetch_lines(place: *const u8, lines: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in 0..lines {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no effect that the program can observe, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast::<i8>().wrapping_add(line * LINE_BYTES)) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (place, lines);
}
