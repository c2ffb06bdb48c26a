//! Live bytes: each key once, with its newest value.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Counts live bytes. Values of one size need no memory for it; others need 4 bytes a key.
#[derive(Debug)]
pub struct LiveBytes {
    key_bytes: u64,
    keys: AtomicU64,
    values: LiveValues,
}

#[derive(Debug)]
enum LiveValues {
    Fixed(u64),
    /// The size of each key's value plus 1; 0 where there is no such key.
    Varied {
        sizes: Vec<AtomicU32>,
        sum: AtomicU64,
    },
}

impl LiveBytes {
    /// None so far; keys have `key_bytes` bytes and numbers below `keys_max`, values have `fixed` bytes or vary.
    #[must_use]
    pub fn new(key_bytes: usize, keys_max: u64, fixed: Option<usize>) -> Self {
        let values = match fixed {
            Some(bytes) => LiveValues::Fixed(bytes as u64),
            None => {
                let sizes = (0..keys_max).map(|_| AtomicU32::new(0)).collect();
                LiveValues::Varied { sizes, sum: AtomicU64::new(0) }
            }
        };
        Self { key_bytes: key_bytes as u64, keys: AtomicU64::new(0), values }
    }

    /// Key number `index` was written, for the first time if `keys` says so below, with a value of `bytes` bytes.
    pub fn wrote(&self, index: u64, bytes: usize) {
        if let LiveValues::Varied { sizes, sum } = &self.values
            && let Some(size) = sizes.get(index as usize)
        {
            let before = size.swap(bytes as u32 + 1, Relaxed);
            // Two writers of one key may swap in another order than they commit: an error of one value's size.
            sum.fetch_add(bytes as u64, Relaxed);
            sum.fetch_sub(u64::from(before.saturating_sub(1)), Relaxed);
        }
    }

    /// All keys with numbers below `keys` are there.
    pub fn reached(&self, keys: u64) {
        self.keys.fetch_max(keys, Relaxed);
    }

    /// Live bytes now.
    #[must_use]
    pub fn total(&self) -> u64 {
        let keys = self.keys.load(Relaxed);
        let values = match &self.values {
            LiveValues::Fixed(bytes) => keys * bytes,
            LiveValues::Varied { sum, .. } => sum.load(Relaxed),
        };
        keys * self.key_bytes + values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overwritten_value_counts_once() {
        for fixed in [Some(10), None] {
            let live = LiveBytes::new(5, 3, fixed);
            for index in [0, 1, 2, 1] {
                live.wrote(index, 10);
            }
            live.reached(3);
            assert_eq!(live.total(), 3 * 15, "{fixed:?}");
        }
        let live = LiveBytes::new(5, 3, None);
        live.wrote(1, 100);
        live.wrote(1, 0);
        live.wrote(1, 7);
        live.reached(2);
        assert_eq!(live.total(), 2 * 5 + 7);
    }
}
