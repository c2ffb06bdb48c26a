//! How short reads are done where data may exceed memory: through mapped pages while these are in memory, by calls
//! while many are not.
//!
//! ```text
//!          a sample of the reads                  more than a few of the last 64 not in memory
//! mapped ───▶ asks the system (`mincore`) ──▶ history ─────────────────────────────────────▶ called
//!    ▲                                           │  hardly any
//!    └───────────────────────────────────────────┘
//! ```
//!
//! A page in memory costs 0.3 µs through the mapping and 1.8 µs by a call. A record on two pages that are not in memory
//! costs two reads of the device through the mapping, one after the other, and one by a call. So calls pay from about
//! one cold read in sixteen on.

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

/// One read in so many is looked at. A prime: a get reads a block and then a value, and a look must not meet blocks
/// only.
const READS_PER_LOOK: u32 = 61;

/// Reads are called once so many of the last 64 that were looked at were not in memory,
const COLD_FROM: u32 = 4;

/// and mapped again once no more than this were not.
const WARM_UP_TO: u32 = 1;

thread_local! {
    /// Counts down to the next look. A count that threads shared would cost each of their reads a cache miss.
    static READS: Cell<u32> = const { Cell::new(0) };
}

/// What is known of the files of a directory.
#[derive(Debug, Default)]
pub(super) struct Residency {
    /// A bit for each of the last 64 looks, the newest lowest: the read was not in memory.
    history: AtomicU64,
    is_cold: AtomicBool,
}

impl Residency {
    /// Whether the next read should be by a call. `is_in_memory` looks, now and then; `None` says nothing.
    #[inline]
    pub fn is_cold(&self, is_in_memory: impl FnOnce() -> Option<bool>) -> bool {
        let due = READS.with(|reads| {
            let left = reads.get();
            reads.set(left.checked_sub(1).unwrap_or(READS_PER_LOOK - 1));
            left == 0
        });
        if due && let Some(is_in_memory) = is_in_memory() {
            self.note(!is_in_memory);
        }
        self.was_cold()
    }

    /// What was last found.
    #[inline]
    pub fn was_cold(&self) -> bool {
        self.is_cold.load(Relaxed)
    }

    /// Remembers a look. Threads that note at the same time may lose one of their looks, which changes little.
    pub fn note(&self, is_cold: bool) {
        let history = self.history.load(Relaxed) << 1 | u64::from(is_cold);
        self.history.store(history, Relaxed);
        let cold = history.count_ones();
        if cold >= COLD_FROM {
            self.is_cold.store(true, Relaxed);
        } else if cold <= WARM_UP_TO {
            self.is_cold.store(false, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `reads` reads, each in memory or not, were said to be by a call.
    fn called(residency: &Residency, reads: u32, is_in_memory: bool) -> u32 {
        (0..reads).map(|_| u32::from(residency.is_cold(|| Some(is_in_memory)))).sum()
    }

    #[test]
    fn reads_are_called_soon_after_they_are_cold_and_mapped_soon_after_they_are_not() {
        let residency = Residency::default();
        assert_eq!(called(&residency, 10_000, true), 0);
        let cold = called(&residency, 10_000, false);
        assert!(cold > 10_000 - (COLD_FROM + 1) * READS_PER_LOOK, "{cold} by calls");
        let warm = called(&residency, 100_000, true);
        assert!(warm < 65 * READS_PER_LOOK, "{warm} by calls after the data have come to memory");
        assert_eq!(called(&residency, 10_000, true), 0);
    }

    #[test]
    fn blocks_in_memory_do_not_hide_values_that_are_not() {
        for reads_of_a_get in [2, 3, 4, 8] {
            for value_at in 0..reads_of_a_get {
                let residency = Residency::default();
                let is_value = |read: u32| read % reads_of_a_get == value_at;
                let called = (0..20_000).filter(|read| residency.is_cold(|| Some(!is_value(*read)))).count();
                assert!(called > 10_000, "{called} of 20000 by calls, one in {reads_of_a_get} not in memory");
            }
        }
    }

    #[test]
    fn a_few_cold_reads_change_nothing_and_a_look_that_cannot_tell_neither() {
        let residency = Residency::default();
        for look in 0..10_000u32 {
            residency.note(look.is_multiple_of(32));
            assert!(!residency.is_cold.load(Relaxed));
        }
        assert!((0..10_000).all(|_| !residency.is_cold(|| None)));
    }
}
