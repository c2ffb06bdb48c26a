//! Deleted key ranges, for lookups by key.
//!
//! Tombstones may overlap in any way. Split at every start and end they become **fragments**: sorted, disjoint, each
//! with the sequence numbers of all tombstones that span it. A lookup is then one binary search.
//!
//! ```text
//! given       a─────────────7─────────────m            fragments   a──7──e──9,7──m──9──t
//!                           e──────────9───────t
//! ```
//!
//! Invariants: fragments are in key order and do not overlap; each has at least one sequence number, in descending
//! order.
//!
//! An entry with sequence number `s` is deleted for a snapshot if [`RangeTombstones::covering`] returns more than
//! `s`.

use std::{cmp::Ordering, collections::BTreeMap, sync::Arc};

use bifold_contract::{RangeTombstone, SeqNo, key::MAX_SEQNO};

/// A set of range tombstones. Cheap to clone. A lookup in an empty set costs one comparison.
#[derive(Clone, Debug, Default)]
pub struct RangeTombstones {
    /// `None` if there are none, so that the common case reads only this field.
    fragments: Option<Arc<[Fragment]>>,
}

/// A range and the sequence numbers of all tombstones that span it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fragment {
    start: Box<[u8]>,
    end: Option<Box<[u8]>>,
    seqnos: Box<[SeqNo]>,
}

/// The position of the last lookup. Lookups in key order, up or down, then cost two comparisons instead of a search.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hint {
    /// How many fragments start at or before the key of the last lookup.
    started: usize,
}

impl RangeTombstones {
    /// The largest sequence number, at most `snapshot`, of a tombstone that spans `key`; 0 if there is none.
    #[inline]
    #[must_use]
    pub fn covering(&self, key: &[u8], snapshot: SeqNo) -> SeqNo {
        match &self.fragments {
            None => 0,
            Some(fragments) => covering_in(fragments, count_started(fragments, key), key, snapshot),
        }
    }

    /// As [`RangeTombstones::covering`], for lookups in key order, up or down.
    #[inline]
    #[must_use]
    pub fn covering_near(&self, hint: &mut Hint, key: &[u8], snapshot: SeqNo) -> SeqNo {
        let Some(fragments) = &self.fragments else { return 0 };
        if !started_is(fragments, hint.started, key) {
            let (up, down) = (hint.started + 1, hint.started.saturating_sub(1));
            hint.started = match () {
                () if started_is(fragments, up, key) => up,
                () if started_is(fragments, down, key) => down,
                () => count_started(fragments, key),
            };
        }
        covering_in(fragments, hint.started, key, snapshot)
    }

    /// All of `tombstones`, for any snapshot. Tombstones with an empty range are left out.
    ///
    /// A fragment stores one number per tombstone that spans it: `n` tombstones over one range that is split at `n`
    /// keys take `n²` numbers. If the snapshots are known, [`RangeTombstones::for_snapshots`] stores fewer.
    #[must_use]
    pub fn new<'a>(tombstones: impl IntoIterator<Item = &'a RangeTombstone>) -> Self {
        Self::build(tombstones, |active| active.keys().rev().copied().collect())
    }

    /// The tombstones that decide what one of `snapshots` (ascending) sees; all others are left out.
    #[must_use]
    pub fn for_snapshots<'a>(tombstones: impl IntoIterator<Item = &'a RangeTombstone>, snapshots: &[SeqNo]) -> Self {
        debug_assert!(snapshots.is_sorted(), "snapshots ascend");
        Self::build(tombstones, |active| {
            let newest = |&snapshot: &SeqNo| active.range(..=snapshot).next_back().map(|(&seqno, _)| seqno);
            let mut seqnos: Vec<SeqNo> = snapshots.iter().rev().filter_map(newest).collect();
            seqnos.dedup();
            seqnos
        })
    }

    /// The tombstones that a rewrite asks for: those that decide what these snapshots (ascending) and later ones see.
    #[must_use]
    pub fn for_rewrite<'a>(tombstones: impl IntoIterator<Item = &'a RangeTombstone>, snapshots: &[SeqNo]) -> Self {
        let asked: Vec<SeqNo> = snapshots.iter().copied().chain([MAX_SEQNO]).collect();
        Self::for_snapshots(tombstones, &asked)
    }

    /// Sweeps over all starts and ends in key order. Between two neighbours is one fragment, with the numbers that
    /// `wanted` selects from the tombstones active there.
    fn build<'a>(
        tombstones: impl IntoIterator<Item = &'a RangeTombstone>,
        wanted: impl Fn(&BTreeMap<SeqNo, usize>) -> Vec<SeqNo>,
    ) -> Self {
        let mut starts: Vec<(&[u8], SeqNo)> = Vec::new();
        let mut ends: Vec<(&[u8], SeqNo)> = Vec::new();
        for tombstone in tombstones {
            if tombstone.end.as_ref().is_some_and(|end| *end <= tombstone.start) {
                continue;
            }
            starts.push((&tombstone.start, tombstone.seqno));
            ends.extend(tombstone.end.as_deref().map(|end| (end, tombstone.seqno)));
        }
        starts.sort_unstable();
        ends.sort_unstable();

        let mut fragments: Vec<Fragment> = Vec::new();
        // A tombstone in two tables occurs twice, hence the counts.
        let mut active: BTreeMap<SeqNo, usize> = BTreeMap::new();
        let (mut starts, mut ends) = (starts.into_iter().peekable(), ends.into_iter().peekable());
        while let Some(at) = nearest(starts.peek(), ends.peek()) {
            while let Some((_, seqno)) = starts.next_if(|(key, _)| *key == at) {
                *active.entry(seqno).or_default() += 1;
            }
            while let Some((_, seqno)) = ends.next_if(|(key, _)| *key == at) {
                if let Some(count) = active.get_mut(&seqno) {
                    *count -= 1;
                    if *count == 0 {
                        active.remove(&seqno);
                    }
                }
            }
            let end = nearest(starts.peek(), ends.peek());
            push_fragment(&mut fragments, at, end, wanted(&active));
        }
        Self::from_fragments(fragments)
    }

    fn from_fragments(fragments: Vec<Fragment>) -> Self {
        Self { fragments: (!fragments.is_empty()).then(|| fragments.into()) }
    }

    /// Whether no key is deleted.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fragments.is_none()
    }

    /// The tombstones for which `keep(start, end, seqno)` returns true. It is called for each fragment.
    #[must_use]
    pub fn filtered(&self, mut keep: impl FnMut(&[u8], Option<&[u8]>, SeqNo) -> bool) -> Self {
        let mut kept = Vec::new();
        for fragment in self.fragments() {
            let end = fragment.end.as_deref();
            let seqnos = fragment.seqnos.iter().copied().filter(|&seqno| keep(&fragment.start, end, seqno)).collect();
            push_fragment(&mut kept, &fragment.start, end, seqnos);
        }
        Self::from_fragments(kept)
    }

    /// The tombstones clipped to `start..end` (`None`: unbounded). Adjacent fragments with the same number are joined
    /// again. Sorted by start, then newest first.
    #[must_use]
    pub fn clipped(&self, start: Option<&[u8]>, end: Option<&[u8]>) -> Vec<RangeTombstone> {
        let mut done: Vec<RangeTombstone> = Vec::new();
        let mut open: Vec<RangeTombstone> = Vec::new();
        for fragment in self.fragments() {
            let from = start.map_or(&*fragment.start, |start| start.max(&*fragment.start));
            let to = smaller_end(fragment.end.as_deref(), end);
            if to.is_some_and(|to| to <= from) {
                continue;
            }
            // Both lists descend by number, so one pass matches the tombstones that continue.
            let mut before = std::mem::take(&mut open).into_iter().peekable();
            for &seqno in &fragment.seqnos {
                done.extend(std::iter::from_fn(|| before.next_if(|t| t.seqno > seqno)));
                let continues = |t: &RangeTombstone| t.seqno == seqno && t.end.as_deref() == Some(from);
                open.push(match before.next_if(continues) {
                    Some(tombstone) => RangeTombstone { end: to.map(Box::from), ..tombstone },
                    None => RangeTombstone { start: from.into(), end: to.map(Box::from), seqno },
                });
            }
            done.extend(before);
        }
        done.append(&mut open);
        done.sort_unstable_by(|a, b| a.start.cmp(&b.start).then(b.seqno.cmp(&a.seqno)));
        done
    }

    fn fragments(&self) -> &[Fragment] {
        self.fragments.as_deref().unwrap_or_default()
    }
}

/// How many fragments start at or before `key`.
fn count_started(fragments: &[Fragment], key: &[u8]) -> usize {
    fragments.partition_point(|f| &*f.start <= key)
}

/// Whether exactly `count` fragments start at or before `key`.
fn started_is(fragments: &[Fragment], count: usize, key: &[u8]) -> bool {
    count <= fragments.len()
        && (count == 0 || &*fragments[count - 1].start <= key)
        && fragments.get(count).is_none_or(|next| key < &*next.start)
}

/// The result from the last of the first `started` fragments, the only one that may span `key`.
fn covering_in(fragments: &[Fragment], started: usize, key: &[u8], snapshot: SeqNo) -> SeqNo {
    let Some(fragment) = started.checked_sub(1).map(|last| &fragments[last]) else { return 0 };
    if fragment.end.as_deref().is_some_and(|end| end <= key) {
        return 0;
    }
    let newer = fragment.seqnos.partition_point(|&seqno| seqno > snapshot);
    fragment.seqnos.get(newer).copied().unwrap_or(0)
}

/// The smaller of the next start and the next end.
fn nearest<'a>(start: Option<&(&'a [u8], SeqNo)>, end: Option<&(&'a [u8], SeqNo)>) -> Option<&'a [u8]> {
    match (start, end) {
        (Some((start, _)), Some((end, _))) => Some(start.min(end)),
        (start, end) => start.or(end).map(|(key, _)| *key),
    }
}

/// The smaller of two exclusive upper bounds, where `None` is beyond all keys.
pub(crate) fn smaller_end<'a>(a: Option<&'a [u8]>, b: Option<&'a [u8]>) -> Option<&'a [u8]> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if a.cmp(b) == Ordering::Less { a } else { b }),
        (a, b) => a.or(b),
    }
}

/// Adds a fragment, or extends the last one if it ends there and has the same numbers.
fn push_fragment(fragments: &mut Vec<Fragment>, start: &[u8], end: Option<&[u8]>, seqnos: Vec<SeqNo>) {
    if seqnos.is_empty() {
        return;
    }
    match fragments.last_mut() {
        Some(last) if last.end.as_deref() == Some(start) && *last.seqnos == *seqnos => last.end = end.map(Box::from),
        _ => fragments.push(Fragment { start: start.into(), end: end.map(Box::from), seqnos: seqnos.into() }),
    }
}

#[cfg(test)]
mod tests;
