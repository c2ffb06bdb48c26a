//! How often keys were written recently: a count-min sketch with four-bit counters and ageing.
//!
//! ```text
//! key hash ─┬─▶ row 0:  ▯▯▯▮▯▯▯▯▯▯▯▯▯▯▯▯ ┐ the smaller of the two counters, raised by one (conservative update)
//!           └─▶ row 1:  ▯▯▯▯▯▯▯▯▯▮▯▯▯▯▯▯ ┘ every counter is halved after as many updates as half the keys
//! ```
//!
//! **Size.** A counter a row for eight keys: one bit a key in all. It begins with 1 KiB and doubles as the keys grow,
//! so their number need not be stated. Doubling copies each row behind itself: a counter then serves both halves of its
//! keys. Halving is the reverse: of two counters the larger one stays.

/// Bytes of the first sketch.
const BYTES_MIN: usize = 1 << 10;

/// Keys for each counter of a row.
const KEYS_PER_COUNTER: u64 = 8;

/// It is halved when it is large enough for so many times the keys. Their number is an estimate, which may fall for a
/// while; what halving makes of several keys, doubling does not tell from each other.
const TOO_LARGE: u64 = 8;

/// The largest count.
pub const COUNT_MAX: u8 = 15;

/// Counts of recent writes by key.
#[derive(Debug)]
pub struct Sketch {
    /// Two counters a byte. A power of two long, both rows.
    rows: [Box<[u8]>; 2],
    /// Updates until all counters are halved.
    until_halved: u64,
}

impl Default for Sketch {
    fn default() -> Self {
        let row = || vec![0; BYTES_MIN / 2].into_boxed_slice();
        let mut sketch = Self { rows: [row(), row()], until_halved: 0 };
        sketch.until_halved = sketch.period();
        sketch
    }
}

impl Sketch {
    /// Counters of a row.
    fn counters(&self) -> u64 {
        2 * self.rows[0].len() as u64
    }

    /// Updates between two halvings: half the keys that it is large enough for.
    fn period(&self) -> u64 {
        self.keys() / 2
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.counters()
    }

    /// So many keys it is large enough for.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.counters() * KEYS_PER_COUNTER
    }

    /// Whether it is too small for so many keys.
    #[must_use]
    pub fn is_small_for(&self, keys: u64) -> bool {
        keys > self.keys()
    }

    /// Doubles it.
    pub fn grow(&mut self) {
        for row in &mut self.rows {
            *row = [&**row, &**row].concat().into_boxed_slice();
        }
    }

    /// Whether it is much too large for so many keys.
    #[must_use]
    pub fn is_large_for(&self, keys: u64) -> bool {
        self.memory_bytes() > BYTES_MIN as u64 && self.keys() > keys.saturating_mul(TOO_LARGE)
    }

    /// Halves it. It must be larger than the first one.
    pub fn shrink(&mut self) {
        for row in &mut self.rows {
            let (low, high) = row.split_at(row.len() / 2);
            let larger = |(&a, &b): (&u8, &u8)| (a & 0x0F).max(b & 0x0F) | (a & 0xF0).max(b & 0xF0);
            *row = low.iter().zip(high).map(larger).collect();
        }
        self.until_halved = self.until_halved.min(self.period());
    }

    /// Counts a write of the key with this hash. Returns how often it was written recently, this time included: 1 to
    /// [`COUNT_MAX`].
    pub fn count(&mut self, hash: u64) -> u8 {
        let mask = self.counters() - 1;
        let at = [hash & mask, (hash >> 32) & mask];
        let counts = [0, 1].map(|row| get(&self.rows[row], at[row]));
        let least = counts[0].min(counts[1]);
        let count = (least + 1).min(COUNT_MAX);
        for (row, &slot) in self.rows.iter_mut().zip(&at) {
            if get(row, slot) < count {
                set(row, slot, count);
            }
        }
        self.until_halved -= 1;
        if self.until_halved == 0 {
            self.halve();
        }
        count
    }

    fn halve(&mut self) {
        for byte in self.rows.iter_mut().flat_map(|row| row.iter_mut()) {
            *byte = (*byte >> 1) & 0x77;
        }
        self.until_halved = self.period();
    }
}

fn get(row: &[u8], slot: u64) -> u8 {
    let byte = row[(slot / 2) as usize];
    if slot.is_multiple_of(2) { byte & 15 } else { byte >> 4 }
}

fn set(row: &mut [u8], slot: u64, count: u8) {
    let byte = &mut row[(slot / 2) as usize];
    *byte = if slot.is_multiple_of(2) { *byte & 0xF0 | count } else { *byte & 0x0F | count << 4 };
}

#[cfg(test)]
mod tests {
    use bifold_format::filter::key_hash;

    use super::*;

    fn hash(key: u64) -> u64 {
        key_hash(&key.to_be_bytes())
    }

    #[test]
    fn keys_written_often_have_high_counts_and_others_low_ones() {
        let mut sketch = Sketch::default();
        while sketch.is_small_for(20_000) {
            sketch.grow();
        }
        // Each tenth write is of one of ten keys.
        let mut counts = Vec::new();
        for n in 0..100_000_u64 {
            let key = if n % 10 == 0 { n / 10 % 10 } else { 10 + n % 19_990 };
            counts.push((key, sketch.count(hash(key))));
        }
        let late = &counts[50_000..];
        let mean = |is_hot: bool| {
            let of: Vec<u64> =
                late.iter().filter(|(key, _)| (*key < 10) == is_hot).map(|(_, count)| u64::from(*count)).collect();
            of.iter().sum::<u64>() as f64 / of.len() as f64
        };
        assert!(mean(true) > 14.0 && mean(false) < 4.0, "{} and {}", mean(true), mean(false));
    }

    #[test]
    fn counts_age() {
        let mut sketch = Sketch::default();
        (0..COUNT_MAX).for_each(|n| assert_eq!(sketch.count(hash(1)), n + 1));
        assert_eq!(sketch.count(hash(1)), COUNT_MAX, "it saturates");
        let others = (2 * sketch.period()) as usize;
        (0..others).map(|_| sketch.count(hash(2))).for_each(|count| assert!(count > 0));
        assert!(sketch.count(hash(1)) <= COUNT_MAX / 4 + 1, "halved twice");
    }

    #[test]
    fn counts_outlast_growth() {
        let mut sketch = Sketch::default();
        (0..5).for_each(|n| assert_eq!(sketch.count(hash(1)), n + 1));
        let bytes = sketch.memory_bytes();
        sketch.grow();
        assert_eq!((sketch.memory_bytes(), sketch.count(hash(1))), (2 * bytes, 6));
    }

    #[test]
    fn counts_outlast_shrinking() {
        let mut sketch = Sketch::default();
        let bytes = sketch.memory_bytes();
        (0..3).for_each(|_| sketch.grow());
        (0..5).for_each(|n| assert_eq!(sketch.count(hash(1)), n + 1));
        let keys = sketch.keys();
        assert!(sketch.is_large_for(keys / TOO_LARGE - 1) && !sketch.is_large_for(keys / TOO_LARGE));
        (0..3).for_each(|_| sketch.shrink());
        assert_eq!((sketch.memory_bytes(), sketch.count(hash(1))), (bytes, 6));
        assert!(!sketch.is_large_for(1), "the first one is never too large");
        // They go on ageing, by its own period.
        (0..2 * sketch.period()).for_each(|_| assert!(sketch.count(hash(2)) > 0));
        assert!(sketch.count(hash(1)) <= COUNT_MAX / 4 + 1, "halved twice");
    }
}
