//! Many sorted keys, searched with few cache misses.
//!
//! A table's index has a key per data block, a run has one per table. Comparing them one by one follows a pointer to each
//! key: a cache miss per step. Here the bytes that all keys have in common are set aside, and the next eight of each key
//! stand side by side as one big-endian number, so a search over 4 096 keys touches one array of 32 KiB. Whole keys are
//! looked at only where those eight bytes tie.

use std::cmp::Ordering;

/// Keys in ascending order.
#[derive(Clone, Debug, Default)]
pub struct Fences {
    /// What all keys begin with.
    prefix: Box<[u8]>,
    /// The eight bytes of each key behind the prefix.
    slices: Box<[u64]>,
    /// All keys, one behind the other.
    bytes: Box<[u8]>,
    /// Where each key ends in `bytes`.
    ends: Box<[u32]>,
}

impl Fences {
    /// Keys that ascend, equal ones allowed. Together they must be shorter than 4 GiB.
    ///
    /// # Panics
    /// When they are longer: callers index at most some 10 000 keys of at most 64 KiB.
    #[must_use]
    pub fn new<'a>(keys: impl Iterator<Item = &'a [u8]> + Clone) -> Self {
        let first = keys.clone().next().unwrap_or_default();
        let last = keys.clone().last().unwrap_or_default();
        // Whatever the first and the last share, all between them share.
        let prefix = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        let mut slices = Vec::new();
        for key in keys {
            bytes.extend_from_slice(key);
            ends.push(u32::try_from(bytes.len()).unwrap_or_else(|_| panic!("fences of {} bytes", bytes.len())));
            slices.push(slice_of(&key[prefix..]));
        }
        Self { prefix: first[..prefix].into(), slices: slices.into(), bytes: bytes.into(), ends: ends.into() }
    }

    /// How many keys are less than `key`: the position of the first that is not.
    #[inline]
    #[must_use]
    pub fn count_less(&self, key: &[u8]) -> usize {
        let head = key.len().min(self.prefix.len());
        match key[..head].cmp(&self.prefix[..head]) {
            Ordering::Less => return 0,
            Ordering::Greater => return self.slices.len(),
            // A proper prefix of what all keys begin with is less than all of them.
            Ordering::Equal if head < self.prefix.len() => return 0,
            Ordering::Equal => {}
        }
        let slice = slice_of(&key[head..]);
        let mut at = count_less(&self.slices, slice);
        while at < self.slices.len() && self.slices[at] == slice && self.key(at) < key {
            at += 1;
        }
        at
    }

    /// The key at a position.
    #[inline]
    #[must_use]
    pub fn key(&self, at: usize) -> &[u8] {
        let start = if at == 0 { 0 } else { self.ends[at - 1] as usize };
        &self.bytes[start..self.ends[at] as usize]
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slices.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    /// Bytes of memory it takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.prefix.len() + self.slices.len() * 8 + self.bytes.len() + self.ends.len() * 4
    }
}

/// The first eight bytes as a number that compares as they do; shorter ones are filled up with zeros.
#[inline]
#[must_use]
pub fn slice_of(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(eight) => u64::from_be_bytes(*eight),
        None => {
            let mut eight = [0; 8];
            eight[..bytes.len()].copy_from_slice(bytes);
            u64::from_be_bytes(eight)
        }
    }
}

/// How many of the ascending `slices` are less than `slice`, without a branch that depends on them.
#[inline]
fn count_less(slices: &[u64], slice: u64) -> usize {
    let mut base = 0;
    let mut size = slices.len();
    while size > 1 {
        let half = size / 2;
        // A conditional move: the search of a cached array is then bound by its misses, not by mispredictions.
        base = if slices[base + half - 1] < slice { base + half } else { base };
        size -= half;
    }
    base + usize::from(size == 1 && slices[base] < slice)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        let tail = proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(255), any::<u8>()], 0..12);
        (prop_oneof![Just("user0000000"), Just("us"), Just("")], tail).prop_map(|(head, tail)| [head.as_bytes(), &tail].concat())
    }

    proptest! {
        #[test]
        fn a_search_finds_what_counting_finds(mut keys in proptest::collection::vec(key(), 0..40), probe in key()) {
            keys.sort();
            let fences = Fences::new(keys.iter().map(Vec::as_slice));
            prop_assert_eq!(fences.len(), keys.len());
            for probe in keys.iter().chain([&probe]) {
                prop_assert_eq!(fences.count_less(probe), keys.iter().filter(|k| *k < probe).count());
            }
            for (at, key) in keys.iter().enumerate() {
                prop_assert_eq!(fences.key(at), &key[..]);
            }
        }
    }
}
