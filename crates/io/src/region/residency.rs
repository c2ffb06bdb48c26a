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
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

/// How often looks may become rarer.
const STEPS: usize = 5;

/// One read in so many is looked at: the more rarely, the longer all was in memory. Primes: a get reads a block and
/// then a value, and a look must not meet blocks only.
const READS_PER_LOOK: [u32; STEPS] = [61, 127, 251, 509, 1021];

/// The same for windows of scans. A scan that starts in several runs has several.
const WINDOWS_PER_LOOK: [u32; STEPS] = [5, 11, 17, 31, 61];

/// So many looks in a row that found all in memory make the next ones rarer. One that did not makes them frequent
/// again.
const LOOKS_PER_STEP: u32 = 64;

/// Reads are called once so many of the last 64 that were looked at were not in memory,
const COLD_FROM: u32 = 4;

/// and mapped again once no more than this were not.
const WARM_UP_TO: u32 = 1;

thread_local! {
    /// Counts down to the next look. A count that threads shared would cost each of their reads a cache miss.
    static READS: Cell<u32> = const { Cell::new(0) };
    /// The same for windows of scans.
    static WINDOWS: Cell<u32> = const { Cell::new(0) };
}

/// What is known of the files of a directory.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Of short reads.
    pub reads: Arc<Residency>,
    /// Of windows of scans.
    pub windows: Arc<Residency>,
}

/// What is known of reads of one kind.
#[derive(Debug, Default)]
pub(super) struct Residency {
    /// A bit for each of the last 64 looks, the newest lowest: the read was not in memory.
    history: AtomicU64,
    is_cold: AtomicBool,
    /// Looks in a row that found all in memory, up to some.
    warm_looks: AtomicU32,
}

impl Residency {
    /// Whether the next read should be by a call. `is_in_memory` looks, now and then; `None` says nothing.
    #[inline]
    pub fn is_cold(&self, is_in_memory: impl FnOnce() -> Option<bool>) -> bool {
        let due = READS.with(|reads| self.count_down(reads, &READS_PER_LOOK));
        if due && let Some(is_in_memory) = is_in_memory() {
            self.note(!is_in_memory);
        }
        self.was_cold()
    }

    /// Whether the next window of a scan is in memory, as far as is known. While some are not, each is looked at.
    pub fn is_window_in_memory(&self, is_in_memory: impl FnOnce() -> Option<bool>) -> Option<bool> {
        let due = WINDOWS.with(|windows| self.count_down(windows, &WINDOWS_PER_LOOK));
        if !due && !self.was_cold() {
            return Some(true);
        }
        is_in_memory().inspect(|is_in_memory| self.note(!is_in_memory))
    }

    #[inline]
    fn count_down(&self, left: &Cell<u32>, every: &[u32; STEPS]) -> bool {
        match left.get().checked_sub(1) {
            Some(less) => {
                left.set(less);
                false
            }
            None => {
                let step = (self.warm_looks.load(Relaxed) / LOOKS_PER_STEP) as usize;
                left.set(every[step.min(STEPS - 1)] - 1);
                true
            }
        }
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
        let warm = self.warm_looks.load(Relaxed);
        self.warm_looks.store(if is_cold { 0 } else { (warm + 1).min(LOOKS_PER_STEP * STEPS as u32) }, Relaxed);
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
        assert!(cold > 10_000 - READS_PER_LOOK[STEPS - 1] - COLD_FROM * READS_PER_LOOK[0], "{cold} by calls");
        let warm = called(&residency, 100_000, true);
        assert!(warm < 65 * READS_PER_LOOK[0], "{warm} by calls after the data have come to memory");
        assert_eq!(called(&residency, 10_000, true), 0);
    }

    #[test]
    fn looks_become_rare_while_all_is_in_memory_and_frequent_with_the_first_that_finds_something_else() {
        let looks_in = |residency: &Residency, reads: u32| {
            let look = |looks: &Cell<u32>| looks.set(looks.get() + 1);
            let looks = Cell::new(0);
            (0..reads).for_each(|_| {
                _ = residency.is_cold(|| {
                    Some({
                        look(&looks);
                        true
                    })
                })
            });
            looks.get()
        };
        let residency = Residency::default();
        let first = looks_in(&residency, 64 * 61);
        assert!((63..=65).contains(&first), "{first}");
        looks_in(&residency, 1_000_000);
        let later = looks_in(&residency, 64 * 61);
        assert!(later <= 4, "{later}");
        residency.note(true);
        assert!(!residency.was_cold(), "one says little");
        assert!(looks_in(&residency, 1021 + 64 * 61) >= 64);
    }

    #[test]
    fn windows_are_looked_at_now_and_then_and_each_while_some_are_not_in_memory() {
        let residency = Residency::default();
        let window = |found| residency.is_window_in_memory(|| Some(found));
        let passed = (0..1000).filter(|_| window(true) == Some(true)).count();
        assert_eq!(passed, 1000);
        let missed = (0..1000).filter(|_| window(false) == Some(true)).count();
        assert!(missed < 61 + 4 * 5, "{missed} of 1000 taken to be in memory");
        assert_eq!(window(true), Some(true), "looked at");
        assert_eq!(window(false), Some(false), "looked at");
        assert_eq!(residency.is_window_in_memory(|| None), None);
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
