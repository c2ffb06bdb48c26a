//! A filter over the keys of a memtable: most reads look for keys that the memtable does not have, and a descent of the
//! tree costs a cache miss a level.
//!
//! ```text
//! part 0: 256 B │ part 1: 1 KiB │ part 2: 4 KiB │ …     four bits of a word of 64 bits for each key
//! ```
//!
//! A part takes keys until it has 12 bits for each; the next is four times as large. So nothing is ever rehashed, and a
//! small memtable has a small filter: part 0 is in it. Whether a key may be there is asked of each part: one cache miss
//! or two, because only the last ones are large.
//!
//! The writer adds a key before the tree has it, so a reader that may see an entry sees its bits.

use std::sync::{
    OnceLock,
    atomic::{
        AtomicU64, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use crate::cpu::prefetch_lines;

/// Parts after the first. More than memory can fill: the last one has 4 GiB.
const PARTS: usize = 12;

/// Words of the first part.
const FIRST_WORDS: usize = 32;

/// Each part has so many times the words of the one before it.
const GROWTH: usize = 4;

/// So many of the last parts may not be in the processor's caches.
const LARGE_PARTS: usize = 2;

/// Bits for each key of a full part.
const KEY_BITS: usize = 12;

/// Says of most absent keys that they are absent.
pub(super) struct KeyFilter {
    first: [AtomicU64; FIRST_WORDS],
    more: [OnceLock<Box<[AtomicU64]>>; PARTS],
    /// How many parts there are after the first.
    len: AtomicUsize,
    /// Keys of the last part. Only the writer uses it.
    keys: AtomicUsize,
}

impl KeyFilter {
    pub(super) const fn new() -> Self {
        let (len, keys) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { first: [const { AtomicU64::new(0) }; FIRST_WORDS], more: [const { OnceLock::new() }; PARTS], len, keys }
    }

    /// Whether a key with this hash may have been added.
    #[inline]
    pub(super) fn may_contain(&self, hash: u64) -> bool {
        let bits = bits_of(hash);
        let has = |part: &[AtomicU64]| part[word_of(hash, part.len())].load(Relaxed) & bits == bits;
        self.large_parts().any(has) || has(&self.first)
    }

    /// Prefetches what [`KeyFilter::may_contain`] will look at.
    #[inline]
    pub(super) fn expect(&self, hash: u64) {
        for part in self.large_parts().take(LARGE_PARTS) {
            prefetch_lines((&raw const part[word_of(hash, part.len())]).cast(), 1);
        }
    }

    /// Adds a key. Only the writer of the memtable may call this.
    #[inline]
    pub(super) fn add(&self, hash: u64) {
        let part = self.part_with_room();
        let (word, bits) = (&part[word_of(hash, part.len())], bits_of(hash));
        let before = word.load(Relaxed);
        word.store(before | bits, Relaxed);
        // A key that an earlier part has is added once more: to look for it there would be a cache miss.
        self.keys.store(self.keys.load(Relaxed) + usize::from(before & bits != bits), Relaxed);
    }

    /// Bytes of memory that it has allocated.
    pub(super) fn bytes(&self) -> usize {
        // The sum of a geometric series, without its first member.
        (words_of(self.len.load(Relaxed)) - FIRST_WORDS) * GROWTH / (GROWTH - 1) * size_of::<u64>()
    }

    /// The parts after the first, the last and largest one first.
    #[inline]
    fn large_parts(&self) -> impl Iterator<Item = &[AtomicU64]> {
        self.more[..self.len.load(Acquire)].iter().rev().filter_map(OnceLock::get).map(|part| &**part)
    }

    #[inline]
    fn part_with_room(&self) -> &[AtomicU64] {
        let last = self.large_parts().next().unwrap_or(&self.first);
        let is_full = self.keys.load(Relaxed) * KEY_BITS >= last.len() * u64::BITS as usize;
        // The last part takes all that come.
        if is_full && self.len.load(Relaxed) < PARTS { self.next_part() } else { last }
    }

    #[cold]
    fn next_part(&self) -> &[AtomicU64] {
        let len = self.len.load(Relaxed);
        let part = self.more[len].get_or_init(|| (0..words_of(len + 1)).map(|_| AtomicU64::new(0)).collect());
        self.keys.store(0, Relaxed);
        self.len.store(len + 1, Release);
        part
    }
}

/// Words of the part with this position.
fn words_of(nth: usize) -> usize {
    FIRST_WORDS << (GROWTH.ilog2() as usize * nth)
}

/// Four bits of a word, some of which may be the same.
#[inline]
fn bits_of(hash: u64) -> u64 {
    1 << (hash & 63) | 1 << (hash >> 6 & 63) | 1 << (hash >> 12 & 63) | 1 << (hash >> 18 & 63)
}

/// The word of a key in a part with so many words, a power of two.
#[inline]
fn word_of(hash: u64, words: usize) -> usize {
    (hash >> 32) as usize & (words - 1)
}

#[cfg(test)]
mod tests {
    use bifold_format::filter::key_hash;

    use super::*;

    #[test]
    fn what_was_added_is_found_and_little_else() {
        for keys in [0_u64, 1, 1000, 100_000] {
            let filter = KeyFilter::new();
            let hash = |key: u64| key_hash(&key.to_be_bytes());
            (0..keys).for_each(|key| filter.add(hash(key)));
            assert!((0..keys).all(|key| filter.may_contain(hash(key))));
            let wrong = (0..100_000).filter(|key| filter.may_contain(hash((1 << 40) + key))).count();
            assert!(wrong < 10_000, "{wrong} of 100000 with {keys} keys");
            let allocated: usize = filter.large_parts().map(size_of_val).sum();
            assert_eq!(filter.bytes(), allocated, "{keys} keys");
            assert!(allocated as u64 <= 8 * keys, "{allocated} bytes for {keys} keys");
        }
    }

    #[test]
    fn a_key_takes_room_once() {
        let filter = KeyFilter::new();
        (0..100_000).for_each(|_| filter.add(key_hash(b"hot")));
        assert_eq!(filter.bytes(), 0);
    }
}
