//! Bounds the bytes of files that a process has mapped and read.
//!
//! Mapped pages are the system's, but monitors count them as the process's. So files that are read through their
//! mapping count with their length, and once they are more than allowed, those not read recently give their pages back:
//! the process no longer has them, while the page cache keeps them.
//!
//! ```text
//! read of a file that does not count ──▶ room? ──▶ it counts, and is read through its mapping
//!                                          └─ no: by calls; after some reads others give back, and it counts
//! ```
//!
//! **Clock.** Files that count stand in a queue. The hand takes the first one: if it was read since the hand last came
//! by, it goes to the end, else it gives its pages back.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::pages::Pages;

/// What is given back at once, as a share of what is allowed: so the hand seldom moves.
const SPARE: u64 = 8;

/// The files of a directory that count as mapped.
#[derive(Debug)]
pub(super) struct MappedBudget {
    max: u64,
    bytes: AtomicU64,
    clock: Mutex<VecDeque<Weak<Pages>>>,
}

impl MappedBudget {
    /// Allows `max` bytes.
    pub fn new(max: u64) -> Self {
        Self { max, bytes: AtomicU64::new(0), clock: Mutex::default() }
    }

    /// Bytes of the files that count.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Counts `bytes` of `pages`. If there is no room, others give back, but only if `must`. Returns whether they count
    /// now; a file longer than all that is allowed never does.
    pub fn take(&self, pages: &Arc<Pages>, bytes: u64, must: bool) -> bool {
        if bytes > self.max || (!must && self.bytes() + bytes > self.max) {
            return false;
        }
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        if self.bytes() + bytes > self.max {
            self.turn(&mut clock, bytes);
        }
        // Readers may have given the others a second chance meanwhile.
        if self.bytes() + bytes > self.max {
            return false;
        }
        self.bytes.fetch_add(bytes, Relaxed);
        if clock.len() == clock.capacity() {
            clock.retain(|pages| pages.strong_count() > 0);
        }
        clock.push_back(Arc::downgrade(pages));
        true
    }

    /// A file that counts has become longer. It continues to count; others give back if need be.
    pub fn grow(&self, bytes: u64) {
        if self.bytes.fetch_add(bytes, Relaxed) + bytes > self.max {
            self.turn(&mut self.clock.lock().unwrap_or_else(PoisonError::into_inner), 0);
        }
    }

    /// Returns what a file counted.
    pub fn give_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Relaxed);
    }

    /// Makes room for `bytes` and more.
    fn turn(&self, clock: &mut VecDeque<Weak<Pages>>, bytes: u64) {
        // Everyone's second chance is gone after one round.
        for _ in 0..2 * clock.len() {
            if self.bytes() + bytes <= self.max - self.max / SPARE {
                return;
            }
            let Some(pages) = clock.pop_front().and_then(|pages| pages.upgrade()) else { continue };
            if pages.was_read() {
                clock.push_back(Arc::downgrade(&pages));
            } else {
                pages.unmap();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        thread,
    };

    use super::*;
    use crate::fs::{MappedRead, Reads};

    const BYTES: u64 = 64 << 10;

    /// Files of 64 KiB, each filled with its number, mapped; with the budget that they share.
    fn files(count: u8, max: u64) -> (Arc<MappedBudget>, Vec<Arc<Pages>>) {
        let budget = Arc::new(MappedBudget::new(max));
        let each = |n: u8| {
            let path = std::env::temp_dir().join(format!("bifold-budget-{}-{max}-{n}", std::process::id()));
            fs::write(&path, vec![n; BYTES as usize]).unwrap();
            let pages = Pages::new(BYTES, Reads::Mapped, &Default::default(), &budget);
            pages.map(&File::open(&path).unwrap());
            fs::remove_file(path).unwrap();
            pages
        };
        let pages = (0..count).map(each).collect();
        (budget, pages)
    }

    /// Whether it was read through the mapping; what is read must be right.
    fn read(pages: &Pages, n: u8) -> bool {
        let mut buffer = [255; 100];
        let is_read = pages.read(&mut buffer, 4000 + u64::from(n));
        assert!(!is_read || buffer == [n; 100]);
        is_read
    }

    #[test]
    fn what_counts_never_exceeds_what_is_allowed_and_what_is_read_often_counts() {
        let (budget, pages) = files(10, 4 * BYTES);
        assert!((0..4).all(|n| read(&pages[usize::from(n)], n)), "there is room");
        assert_eq!(budget.bytes(), 4 * BYTES);
        assert!((4..10).all(|n| !read(&pages[usize::from(n)], n)), "there is none");
        let often = (0..1000).position(|_| read(&pages[7], 7)).expect("soon there is");
        assert!(often >= 200, "but not at once: after {often} reads");
        assert!(budget.bytes() <= 4 * BYTES);
        assert!(read(&pages[7], 7) && (0..4).any(|n| !read(&pages[usize::from(n)], n)), "another one gave back");
        drop(pages);
        assert_eq!(budget.bytes(), 0);
    }

    #[test]
    fn a_file_that_grows_counts_with_all_of_it_and_others_give_back() {
        let (budget, pages) = files(3, 4 * BYTES);
        assert!((0..3).all(|n| read(&pages[usize::from(n)], n)));
        pages[0].set_written(2 * BYTES);
        assert_eq!(budget.bytes(), 4 * BYTES);
        pages[0].set_written(3 * BYTES);
        assert!(budget.bytes() <= 4 * BYTES, "{} bytes", budget.bytes());
        pages[0].set_written(BYTES);
        drop(pages);
        assert_eq!(budget.bytes(), 0);
    }

    #[test]
    fn blocks_of_a_file_without_room_are_to_be_cached() {
        let (_budget, pages) = files(2, BYTES);
        assert!(read(&pages[0], 0) && pages[0].is_mapped(BYTES));
        assert!(pages[1].is_mapped(BYTES), "nobody knows yet");
        assert!(!read(&pages[1], 1) && !pages[1].is_mapped(BYTES));
        assert!((0..1000).any(|_| read(&pages[1], 1)) && pages[1].is_mapped(BYTES));
    }

    #[test]
    fn a_file_longer_than_all_that_is_allowed_is_never_mapped() {
        let (budget, pages) = files(1, BYTES - 1);
        assert!((0..1000).all(|_| !read(&pages[0], 0)));
        assert_eq!(budget.bytes(), 0);
    }

    #[test]
    fn readers_in_all_threads_get_what_is_in_the_files_while_they_give_back() {
        let (budget, pages) = files(10, 3 * BYTES);
        let read_all = |seed: usize| {
            let is_mapped =
                |at: &usize| read(&pages[(at * 7 + at / 300 + seed) % 10], ((at * 7 + at / 300 + seed) % 10) as u8);
            (0..100_000).filter(is_mapped).count()
        };
        let mapped: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|seed| scope.spawn(move || read_all(seed))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!(mapped > 0 && budget.bytes() <= 3 * BYTES, "{mapped} reads, {} bytes", budget.bytes());
        drop(pages);
        assert_eq!(budget.bytes(), 0);
    }
}
