//! What recent scans of a keyspace were like, by which the next ones decide how far to read ahead (`read/window.rs`).

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};

use bifold_format::filter::key_hash;

/// Lengths are counted in parts of an entry.
const PARTS: u64 = 16;

/// While all is in memory, one scan in so many looks at tables: a look takes a system call. The key decides which: a
/// count that threads shared would cost each of their scans a cache miss, and one of its own for each thread would make
/// runs differ.
const SCANS_PER_LOOK: u64 = 17;

/// After a look has found something on the device, the next ones look, too, until so many have not.
const LOOKS_COLD: u8 = 16;

/// What recent scans of a keyspace were like.
#[derive(Debug, Default)]
pub(crate) struct Habits {
    /// The values that they asked for came from the device.
    are_cold: AtomicBool,
    /// More than 0 while tables have blocks that are not in memory: how many more looks must find none.
    cold_tables: AtomicU8,
    /// Entries that they asked for: the mean in the upper half, the mean deviation in the lower one. A number that is
    /// overwritten by another thread is lost, and that does not matter.
    lengths: AtomicU64,
}

impl Habits {
    /// Whether recent scans read their values from the device.
    pub fn are_cold(&self) -> bool {
        self.are_cold.load(Relaxed)
    }

    /// Notes whether values came from the device.
    pub fn note_cold(&self, is_cold: bool) {
        // Load first: a store would take the cache line away from other threads that iterate.
        if self.are_cold() != is_cold {
            self.are_cold.store(is_cold, Relaxed);
        }
    }

    /// Whether blocks of tables come from the device. A few of the scans, which begin at `key`, find out by `look`; and
    /// all of them while some do.
    pub fn are_tables_cold(&self, key: &[u8], look: impl FnOnce() -> bool) -> bool {
        let left = self.cold_tables.load(Relaxed);
        let is_due = left > 0 || key_hash(key).is_multiple_of(SCANS_PER_LOOK);
        if !is_due {
            return false;
        }
        let left_now = if look() { LOOKS_COLD } else { left.saturating_sub(1) };
        if left_now != left {
            self.cold_tables.store(left_now, Relaxed);
        }
        left_now > 0
    }

    /// Whether lengths are noted: in memory they decide nothing.
    pub fn have_lengths(&self) -> bool {
        self.are_cold() || self.cold_tables.load(Relaxed) > 0
    }

    /// Notes that a scan asked for so many entries. Mean and deviation follow as those of round trips do in TCP
    /// (Jacobson 1988).
    pub fn note_length(&self, entries: usize) {
        let now = (entries as u64).min(u64::from(u32::MAX) / PARTS) * PARTS;
        let lengths = match self.lengths.load(Relaxed) {
            0 => pack(now, now / 2),
            old => {
                let (mean, deviation) = unpack(old);
                let towards = |from: u64, to: u64| (3 * from + to) / 4;
                pack(towards(mean, now), towards(deviation, now.abs_diff(mean)))
            }
        };
        self.lengths.store(lengths, Relaxed);
    }

    /// How many entries a scan will surely ask for; 0 if the lengths of recent ones differ widely.
    pub fn expected(&self) -> usize {
        let (mean, deviation) = unpack(self.lengths.load(Relaxed));
        (mean.saturating_sub(2 * deviation) + PARTS / 2) as usize / PARTS as usize
    }
}

fn pack(mean: u64, deviation: u64) -> u64 {
    mean << 32 | deviation
}

fn unpack(lengths: u64) -> (u64, u64) {
    (lengths >> 32, lengths & u64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(lengths: impl IntoIterator<Item = usize>) -> usize {
        let habits = Habits::default();
        lengths.into_iter().for_each(|length| habits.note_length(length));
        habits.expected()
    }

    #[test]
    fn scans_of_one_length_are_expected_to_go_on_like_that() {
        assert_eq!(after([]), 0);
        assert_eq!(after([100]), 0, "one says nothing");
        assert_eq!(after([100; 30]), 100);
        assert_eq!(after([1; 30]), 1);
        assert_eq!(after([usize::MAX; 100]), u32::MAX as usize / PARTS as usize);
    }

    #[test]
    fn of_scans_of_many_lengths_little_is_expected() {
        assert!(after((0..200).map(|n| n * 37 % 100 + 1)) <= 10);
        assert!((80..=100).contains(&after((0..200).map(|n| 95 + n % 11))));
        let longer = [100; 30].into_iter().chain([1000]);
        assert_eq!(after(longer), 0, "one of another length, and nothing is sure");
    }
}
