//! Prefetching of announced reads (DiffKV §2.2: most of a scan's time goes into fetching values).
//!
//! ```text
//! pointers of the next entries ─▶ by file and offset ─▶ neighbours as one stretch ─▶ concurrent requests to the device
//! ```
//!
//! Where values are sorted by key, even partly, the next entries of a scan have few stretches. Where they are in the
//! order of arrival, each is a stretch of its own.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use bifold_contract::{FileId, IoSource, Pointer};

use super::{ValueFile, ValueFiles, file::ReadBy};

/// Whether values are in memory is checked at the first announcement, and then once in so many while they are, at first
/// and at last: the check takes a system call for each value it looks at. Each check that finds all in memory doubles
/// the number.
const LOOKS_EVERY: (u64, u64) = (4, 64);

/// At most so many values of an announcement are checked. Of values that do not fit in memory, many do: one that does
/// must not hide the others.
const LOOKS_MAX: usize = 8;

/// Values no further apart than this, in bytes, are fetched with what is between them: a device takes about as long
/// for four pages as for one, and longer for a second request.
const GAP_BYTES: u64 = 16 << 10;

/// A section of a file to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    file: FileId,
    start: u64,
    end: u64,
}

/// The stretches that these pointers are in, by file and offset.
fn stretches(pointers: &[Pointer]) -> Vec<Stretch> {
    let stretch = |at: &Pointer| Stretch { file: at.file, start: at.offset, end: at.offset + u64::from(at.len) };
    let mut all: Vec<Stretch> = pointers.iter().map(stretch).collect();
    all.sort_unstable_by_key(|stretch| (stretch.file, stretch.start));
    all.dedup_by(|next, last| {
        let is_near = next.file == last.file && next.start <= last.end + GAP_BYTES;
        if is_near {
            last.end = last.end.max(next.end);
        }
        is_near
    });
    all
}

/// Whether a place is one in `every`. Where values are decides which announcements are checked: a count that threads
/// shared would cost each of their scans cache misses, and one for each thread would make runs differ.
fn is_picked(at: Pointer, every: u64) -> bool {
    // Mixed twice: offsets are often multiples of something, and the low bits of a product depend on low bits only.
    let once = (at.offset ^ at.file.rotate_left(40)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (once ^ once >> 32).wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
    (mixed >> 32).is_multiple_of(every)
}

impl ValueFiles {
    /// Announces reads to come. Asking the system to prefetch a value takes as long as reading it from memory, so it
    /// is done only when one of a few values is not in memory; and while all are in memory, that is checked only now
    /// and then. Returns whether the system was asked.
    pub fn prefetch(&self, pointers: &[Pointer]) -> bool {
        let all = self.all.load();
        let file_of = |id: FileId| -> Option<&Arc<ValueFile>> { all.get(&id) };
        let looked_every = self.looks_every.load(Relaxed);
        let every = looked_every.clamp(LOOKS_EVERY.0, LOOKS_EVERY.1);
        let is_due = looked_every == 0 || pointers.first().is_some_and(|at| is_picked(*at, every));
        if is_due || self.are_cold.load(Relaxed) {
            let step = pointers.len().div_ceil(LOOKS_MAX).max(1);
            let mut looked_at = pointers.iter().step_by(step).filter_map(|at| Some((file_of(at.file)?, at)));
            let is_cold = looked_at.any(|(file, at)| !file.reader.is_in_memory(at.offset, at.len.into()));
            self.are_cold.store(is_cold, Relaxed);
            self.looks_every.store(if is_cold { LOOKS_EVERY.0 } else { every * 2 }, Relaxed);
        }
        if self.are_cold.load(Relaxed) {
            for stretch in stretches(pointers) {
                if let Some(file) = file_of(stretch.file) {
                    file.reader.prefetch(stretch.start, stretch.end - stretch.start);
                }
            }
            return true;
        }
        for at in pointers {
            if let Some(file) = file_of(at.file) {
                file.reader.touch(at.offset, at.len.into());
            }
        }
        false
    }

    /// How to read a value. A scan of values from the device reads each page once: mapping it would take as long and
    /// leave it in the process's resident set.
    pub fn way(&self, source: IoSource) -> ReadBy {
        if source == IoSource::Scan && self.are_cold.load(Relaxed) { ReadBy::Call } else { ReadBy::AnyWay }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_place_in_so_many_is_picked_whether_values_stand_one_behind_the_other_or_anywhere() {
        for stride in [1, 64, 1037, 4096, 1 << 20] {
            for every in [LOOKS_EVERY.0, 16, LOOKS_EVERY.1] {
                let at = |n: u64| Pointer { file: 7 + n / 1000, epoch: 0, offset: 40 + n * stride, len: 1037 };
                let picked = (0..20_000).filter(|n| is_picked(at(*n), every)).count() as u64;
                let expected = 20_000 / every;
                assert!((expected / 2..expected * 2).contains(&picked), "{picked} of 20000, one in {every}, {stride}");
            }
        }
    }

    #[test]
    fn neighbours_are_fetched_as_one_whatever_their_order() {
        let at = |file, offset, len| Pointer { file, epoch: 0, offset, len };
        let of = |file, start, end| Stretch { file, start, end };
        let pointers = [at(2, 5000, 100), at(1, 90_000, 10), at(2, 4000, 1000), at(2, 4500, 10), at(1, 40, 1)];
        assert_eq!(stretches(&pointers), [of(1, 40, 41), of(1, 90_000, 90_010), of(2, 4000, 5100)]);
        assert_eq!(stretches(&[]), []);
        let last = at(3, 10 + GAP_BYTES, 5);
        assert_eq!(stretches(&[last, at(3, 0, 10)]), [of(3, 0, 15 + GAP_BYTES)]);
        assert_eq!(stretches(&[last, at(3, 0, 9)]).len(), 2);
    }
}
