//! Deleted key ranges, as GC asks about them: is this record older than a range delete over its key?
//!
//! Only the newest range delete over a key counts, so the set is a sequence of disjoint ranges, each with one number.
//! A lookup is one descent of a tree. (The index keeps every number of every range, since it answers for snapshots
//! too, and never changes a set once it is made: `range_tombstones.rs` there. This set grows with each commit.)
//!
//! **Neighbours merge.** A range delete that begins where an older one ends, or ends where one begins, absorbs that
//! one if nothing was put there since: then no record there is between the two numbers, and the newer one says the
//! same. So a queue whose entries are deleted one by one from the front is one range, however long it has been
//! running.
//!
//! Invariants: ranges are not empty and do not overlap; each covers what the newest range delete over its keys
//! covers, unless that was forgotten.

use std::{collections::BTreeMap, ops::Bound};

use bifold_contract::SeqNo;

/// What a range takes in memory without its two keys, in bytes: its place in the tree and what the allocator adds.
/// Measured.
const RANGE_BYTES: u64 = 120;

/// A set of range deletes.
#[derive(Clone, Debug, Default)]
pub struct CoveredRanges {
    ranges: BTreeMap<Box<[u8]>, Rest>,
    bytes: u64,
}

/// What follows the first key of a range.
#[derive(Clone, Debug)]
struct Rest {
    /// The first key behind it; `None`: it has no end.
    end: Option<Box<[u8]>>,
    seqno: SeqNo,
    /// A value may have been put there since.
    is_written: bool,
}

/// One range: first key, first key behind it, and the number below which everything in it is deleted.
pub type Covered<'a> = (&'a [u8], Option<&'a [u8]>, SeqNo);

impl CoveredRanges {
    /// Adds a range delete. One that is older than others over its keys occurs only when logs are replayed.
    pub fn add(&mut self, start: &[u8], end: Option<&[u8]>, seqno: SeqNo) {
        let newer: Vec<(Box<[u8]>, Rest)> = self
            .within(start, end)
            .filter(|(_, rest)| rest.seqno > seqno)
            .map(|(key, rest)| (key.into(), rest.clone()))
            .collect();
        if newer.is_empty() {
            return self.add_newest(start, end, seqno);
        }
        let mut from = start;
        for (at, rest) in &newer {
            self.add_older(from, Some(at), seqno);
            match &rest.end {
                Some(next) => from = next,
                None => return,
            }
        }
        self.add_older(from, end, seqno);
    }

    /// Adds a piece of one that is older than its neighbours: between it and those there may be values of any age.
    fn add_older(&mut self, start: &[u8], end: Option<&[u8]>, seqno: SeqNo) {
        if end.is_none_or(|end| start < end) {
            self.cut_out(start, end);
            self.insert(start.into(), Rest { end: end.map(Into::into), seqno, is_written: true });
        }
    }

    /// The ranges that have keys within `start..end`, with their first keys.
    fn within<'a>(&'a self, start: &'a [u8], end: Option<&'a [u8]>) -> impl Iterator<Item = (&'a [u8], &'a Rest)> {
        let before = self.ranges.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(start))).next_back();
        let before = before.filter(|(_, rest)| rest.end.as_deref().is_none_or(|end| end > start));
        let later = self.ranges.range::<[u8], _>((Bound::Included(start), Bound::Unbounded));
        let later = later.take_while(move |(key, _)| end.is_none_or(|end| &***key < end));
        before.into_iter().chain(later).map(|(key, rest)| (&**key, rest))
    }

    /// Whether all of `start..end` is covered by range deletes with this number or later ones.
    #[must_use]
    pub fn covers_all(&self, start: &[u8], end: Option<&[u8]>, seqno: SeqNo) -> bool {
        let mut upto = start;
        for (first, rest) in self.within(start, end) {
            if end.is_some_and(|end| end <= upto) || first > upto || rest.seqno < seqno {
                break;
            }
            match &rest.end {
                Some(next) => upto = next,
                None => return true,
            }
        }
        end.is_some_and(|end| end <= upto)
    }

    /// Adds a range delete that is newer than all over its keys.
    fn add_newest(&mut self, start: &[u8], end: Option<&[u8]>, seqno: SeqNo) {
        if end.is_some_and(|end| end <= start) {
            return;
        }
        self.cut_out(start, end);
        let (mut start, mut end): (Box<[u8]>, Option<Box<[u8]>>) = (start.into(), end.map(Into::into));
        if let Some(before) = self.ends_at(&start, seqno) {
            self.remove(&before);
            start = before;
        }
        if let Some(next) = end.as_deref().and_then(|end| self.ranges.get_key_value(end))
            && next.1.may_merge_into(seqno)
        {
            let next = next.0.clone();
            end = self.remove(&next).and_then(|rest| rest.end);
        }
        self.insert(start, Rest { end, seqno, is_written: false });
    }

    /// Adds range deletes of an earlier session, in any order. What was put there since is not known.
    pub fn restore<'a>(&mut self, found: impl IntoIterator<Item = Covered<'a>>) {
        let mut all = Self::default();
        let here = std::mem::take(self);
        let mut all_found: Vec<Covered<'_>> = here.iter().collect();
        for range in found {
            all_found.push(range);
        }
        all_found.sort_unstable_by_key(|&(_, _, seqno)| seqno);
        for (start, end, seqno) in all_found {
            all.add(start, end, seqno);
            all.put(start);
        }
        *self = all;
    }

    /// Notes that a key was put.
    pub fn put(&mut self, key: &[u8]) {
        if let Some((_, rest)) = self.ranges.range_mut::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()
            && rest.end.as_deref().is_none_or(|end| key < end)
        {
            rest.is_written = true;
        }
    }

    /// Notes that values may have been put anywhere from `first` to `last`, both inclusive.
    pub fn put_within(&mut self, first: &[u8], last: &[u8]) {
        let from_before = self.ranges.range_mut::<[u8], _>((Bound::Unbounded, Bound::Excluded(first))).next_back();
        if let Some((_, rest)) = from_before
            && rest.end.as_deref().is_none_or(|end| end > first)
        {
            rest.is_written = true;
        }
        let within = self.ranges.range_mut::<[u8], _>((Bound::Included(first), Bound::Included(last)));
        within.for_each(|(_, rest)| rest.is_written = true);
    }

    /// Whether a value put now is the first since its key's range was deleted.
    #[must_use]
    pub fn is_first_put(&self, key: &[u8]) -> bool {
        self.over(key).is_some_and(|rest| !rest.is_written)
    }

    /// Whether a range delete covers what was written to `key` with this number.
    #[must_use]
    pub fn covers(&self, key: &[u8], seqno: SeqNo) -> bool {
        self.over(key).is_some_and(|rest| rest.seqno > seqno)
    }

    /// The range that a key is in.
    fn over(&self, key: &[u8]) -> Option<&Rest> {
        let before = self.ranges.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back();
        before.map(|(_, rest)| rest).filter(|rest| rest.end.as_deref().is_none_or(|end| key < end))
    }

    /// Forgets those with numbers up to `floor`.
    pub fn forget_upto(&mut self, floor: SeqNo) {
        self.ranges.retain(|_, rest| rest.seqno > floor);
        self.bytes = self.ranges.iter().map(|(start, rest)| bytes_of(start, rest)).sum();
    }

    /// All ranges, by key.
    pub fn iter(&self) -> impl Iterator<Item = Covered<'_>> {
        self.ranges.iter().map(|(start, rest)| (&**start, rest.end.as_deref(), rest.seqno))
    }

    /// How many ranges there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether nothing is deleted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the keys at both ends of all ranges.
    #[must_use]
    pub fn key_bytes(&self) -> u64 {
        self.bytes - self.ranges.len() as u64 * RANGE_BYTES
    }

    /// Clears `start..end`: what reaches beyond it on either side stays.
    fn cut_out(&mut self, start: &[u8], end: Option<&[u8]>) {
        let before = self.ranges.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(start))).next_back();
        if let Some((key, rest)) = before
            && rest.end.as_deref().is_none_or(|end| end > start)
        {
            let key = key.clone();
            if let Some(rest) = self.remove(&key) {
                self.insert_behind(end, &rest);
                self.insert(key, Rest { end: Some(start.into()), ..rest });
            }
        }
        let behind = end.map_or(Bound::Unbounded, Bound::Excluded);
        let within: Vec<Box<[u8]>> =
            self.ranges.range::<[u8], _>((Bound::Included(start), behind)).map(|(key, _)| key.clone()).collect();
        for key in within {
            if let Some(rest) = self.remove(&key) {
                self.insert_behind(end, &rest);
            }
        }
    }

    /// Inserts the piece of a range behind `start`, if there is one.
    fn insert_behind(&mut self, start: Option<&[u8]>, rest: &Rest) {
        if let Some(start) = start
            && rest.end.as_deref().is_none_or(|end| end > start)
        {
            self.insert(start.into(), rest.clone());
        }
    }

    /// The first key of a range that ends at `key` and that one with this number may absorb.
    fn ends_at(&self, key: &[u8], seqno: SeqNo) -> Option<Box<[u8]>> {
        let (start, rest) = self.ranges.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(key))).next_back()?;
        (rest.may_merge_into(seqno) && rest.end.as_deref() == Some(key)).then(|| start.clone())
    }

    fn insert(&mut self, start: Box<[u8]>, rest: Rest) {
        self.bytes += bytes_of(&start, &rest);
        self.ranges.insert(start, rest);
    }

    fn remove(&mut self, start: &[u8]) -> Option<Rest> {
        let rest = self.ranges.remove(start)?;
        self.bytes -= bytes_of(start, &rest);
        Some(rest)
    }
}

impl Rest {
    /// Whether a neighbour with this number says the same of what is here: it is newer, and nothing was put here
    /// between them.
    fn may_merge_into(&self, seqno: SeqNo) -> bool {
        !self.is_written && self.seqno < seqno
    }
}

fn bytes_of(start: &[u8], rest: &Rest) -> u64 {
    RANGE_BYTES + (start.len() + rest.end.as_ref().map_or(0, |end| end.len())) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(n: u8) -> Vec<u8> {
        vec![n]
    }

    #[derive(Clone, Debug)]
    enum Act {
        Put(u8),
        Delete(u8, Option<u8>),
        Reopen,
        /// Only some of the ranges are found; the log has all.
        Recover(u64),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            4 => (0..24u8).prop_map(Act::Put),
            6 => (0..24u8, prop::option::weighted(0.9, 0..24u8)).prop_map(|(start, end)| Act::Delete(start, end)),
            1 => Just(Act::Reopen),
            1 => any::<u64>().prop_map(Act::Recover),
        ]
    }

    /// The set restored from those ranges of `set` that are `found`, by their bits, and a log with everything.
    fn recovered(
        set: &CoveredRanges,
        found: u64,
        puts: &[(u8, SeqNo)],
        deletes: &[(u8, Option<u8>, SeqNo)],
    ) -> CoveredRanges {
        let mut again = CoveredRanges::default();
        again.restore(set.iter().enumerate().filter(|(at, _)| found >> (at % 64) & 1 == 1).map(|(_, range)| range));
        let last = puts.iter().map(|put| put.1).chain(deletes.iter().map(|delete| delete.2)).max().unwrap_or(0);
        for seqno in 1..=last {
            puts.iter().filter(|put| put.1 == seqno).for_each(|put| again.put(&key(put.0)));
            for &(start, end, _) in deletes.iter().filter(|delete| delete.2 == seqno) {
                let (start, end) = (key(start), end.map(key));
                if !again.covers_all(&start, end.as_deref(), seqno) {
                    again.add(&start, end.as_deref(), seqno);
                }
            }
        }
        again
    }

    proptest! {
        /// For every record that was ever put, the set answers what all range deletes together would.
        #[test]
        fn it_says_of_each_record_what_all_range_deletes_say(acts in prop::collection::vec(act(), 0..60)) {
            let mut set = CoveredRanges::default();
            let mut puts: Vec<(u8, SeqNo)> = Vec::new();
            let mut deletes: Vec<(u8, Option<u8>, SeqNo)> = Vec::new();
            for (seqno, act) in (1..).zip(acts) {
                match act {
                    Act::Put(n) => {
                        set.put(&key(n));
                        puts.push((n, seqno));
                    }
                    Act::Delete(start, end) => {
                        set.add(&key(start), end.map(key).as_deref(), seqno);
                        deletes.push((start, end, seqno));
                    }
                    Act::Reopen => {
                        let mut again = CoveredRanges::default();
                        again.restore(set.iter());
                        set = again;
                    }
                    Act::Recover(found) => set = recovered(&set, found, &puts, &deletes),
                }
                let ranges: Vec<_> = set.iter().collect();
                prop_assert!(ranges.windows(2).all(|two| two[0].1.is_some_and(|end| end <= two[1].0)));
                prop_assert_eq!(set.bytes(), set.ranges.iter().map(|(start, rest)| bytes_of(start, rest)).sum::<u64>());
                for &(n, put) in &puts {
                    let is_deleted = deletes.iter().any(|&(start, end, seqno)| {
                        seqno > put && start <= n && end.is_none_or(|end| n < end)
                    });
                    prop_assert_eq!(set.covers(&key(n), put), is_deleted, "key {} put as {}", n, put);
                }
            }
        }
    }

    #[test]
    fn a_queue_deleted_from_the_front_is_one_range() {
        let mut set = CoveredRanges::default();
        for n in 0..1000u32 {
            set.put(&(n + 5).to_be_bytes());
            set.add(&n.to_be_bytes(), Some(&(n + 1).to_be_bytes()), u64::from(n) + 10);
        }
        assert_eq!(set.len(), 1);
        assert!(set.covers(&7u32.to_be_bytes(), 5) && !set.covers(&1000u32.to_be_bytes(), 5));
    }

    #[test]
    fn a_range_delete_that_is_found_late_leaves_newer_ones_as_they_are() {
        let mut set = CoveredRanges::default();
        set.restore([(&b"c"[..], Some(&b"d"[..]), 7), (b"e", None, 8)]);
        assert!(!set.covers_all(b"a", Some(b"z"), 5));
        set.add(b"a", Some(b"z"), 5);
        assert!(set.covers_all(b"a", Some(b"z"), 5) && !set.covers_all(b"a", Some(b"z"), 6));
        assert!(set.covers(b"cc", 6) && set.covers(b"zz", 7) && set.covers(b"dd", 4) && !set.covers(b"dd", 5));
        assert!(set.covers_all(b"e", None, 8) && !set.covers_all(b"d", None, 8));
    }

    #[test]
    fn what_was_put_between_two_neighbours_keeps_them_apart() {
        let mut set = CoveredRanges::default();
        set.add(b"a", Some(b"b"), 1);
        set.put(b"aa");
        set.add(b"b", Some(b"c"), 3);
        assert!(set.covers(b"aa", 0) && !set.covers(b"aa", 2), "it was put after its range was deleted");
        set.forget_upto(1);
        assert!(!set.covers(b"aa", 0) && set.covers(b"bb", 2));
    }
}
