//! Disjoint key ranges.
//!
//! A range is a first key and an exclusive end; without an end it has no bound. Every kind of bound can be written so,
//! because the smallest key above `k` is `k` followed by a zero byte. Ranges that overlap or touch become one.

use std::{collections::BTreeMap, ops::Bound};

/// A first key and an exclusive end (`None`: no end).
pub(super) type Interval = (Box<[u8]>, Option<Box<[u8]>>);

/// Memory of a range without its keys, in bytes: two pointers with lengths, and its share of the map.
const INTERVAL_OVERHEAD_BYTES: u64 = 96;

/// A set of keys, as disjoint ranges in key order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Intervals {
    by_start: BTreeMap<Box<[u8]>, Option<Box<[u8]>>>,
}

/// Bytes that a range may take.
pub(super) fn bytes_of(start: &[u8], end: Option<&[u8]>) -> u64 {
    (start.len() + end.map_or(0, <[u8]>::len)) as u64 + INTERVAL_OVERHEAD_BYTES
}

impl Intervals {
    /// Adds a range, for which [`bytes_of`] were taken. Returns how many of them, and of those taken for ranges that it
    /// has become one with, are not needed.
    pub fn add(&mut self, (mut start, mut end): Interval) -> u64 {
        let mut taken = bytes_of(&start, end.as_deref());
        // From the last one that may touch it back to the first one that does.
        while let Some((before, its_end)) = self.last_starting_by(end.as_deref()) {
            if its_end.as_ref().is_some_and(|its_end| *its_end < start) {
                break;
            }
            taken += bytes_of(&before, its_end.as_deref());
            self.by_start.remove(&before);
            start = start.min(before);
            end = match (end, its_end) {
                (Some(end), Some(its_end)) => Some(end.max(its_end)),
                _ => None,
            };
        }
        let needed = bytes_of(&start, end.as_deref());
        self.by_start.insert(start, end);
        taken - needed
    }

    fn last_starting_by(&self, key: Option<&[u8]>) -> Option<Interval> {
        let upto = key.map_or(Bound::Unbounded, Bound::Included);
        let (start, end) = self.by_start.range::<[u8], _>((Bound::Unbounded, upto)).next_back()?;
        Some((start.clone(), end.clone()))
    }

    /// Whether `key` lies in one of them.
    pub fn contains(&self, key: &[u8]) -> bool {
        let before = self.by_start.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back();
        before.is_some_and(|(_, end)| end.as_ref().is_none_or(|end| key < &**end))
    }

    /// All of them, in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.by_start.iter().map(|(start, end)| (&**start, end.as_deref()))
    }

    /// Bytes that all of them take.
    pub fn bytes(&self) -> u64 {
        self.iter().map(|(start, end)| bytes_of(start, end)).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn they_hold_what_was_added_and_stay_disjoint() {
        let mut random = bifold_io::random::Random::new(7);
        for _ in 0..300 {
            let (mut intervals, mut keys) = (Intervals::default(), BTreeSet::new());
            let mut taken = 0;
            for _ in 0..random.below(12) {
                let (start, length) = (random.below(60) as u8, random.below(12) as u8 + 1);
                let end = (random.below(8) > 0).then(|| start + length);
                keys.extend(start..end.unwrap_or(100));
                let end: Option<Box<[u8]>> = end.map(|end| [end].into());
                taken += bytes_of(&[start], end.as_deref());
                taken -= intervals.add(([start].into(), end));
                assert_eq!(intervals.bytes(), taken, "{intervals:?}");
            }
            for key in 0..100u8 {
                assert_eq!(intervals.contains(&[key]), keys.contains(&key), "{key} {intervals:?}");
            }
            let all: Vec<_> = intervals.iter().collect();
            assert!(all.windows(2).all(|two| two[0].1.is_some_and(|end| end < two[1].0)), "{all:?}");
        }
    }
}
