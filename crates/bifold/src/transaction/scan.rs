//! An iterator over a range of the snapshot, with the transaction's own writes in it.
//!
//! ```text
//! stored   a   c   e   g        at the snapshot
//! own        b c x     g        b, g put; c put; e deleted, or in a deleted range
//! yields   a b c       g        from either end
//! ```
//!
//! Each side has looked at one entry ahead, at each end. Where the ends meet, one end takes what the other has looked
//! at. What was seen is the range up to the last entry yielded at the front, and from the last one yielded at the back;
//! all of it once either end has found nothing more.

use std::{cmp::Ordering, collections::btree_map, fmt, ops::Bound, sync::Mutex};

use bifold_contract::{Error, Result};

use super::{
    intervals::{Interval, Intervals},
    reads::ReadSet,
    writes::{Put, PutWhat, TreeWrites, Written},
};
use crate::{
    limits::transaction_memory::Charge,
    read::{operands::combined, pair::Pair, scan::Range},
    waiting::sync::LockExt,
};

/// An iterator over the entries that a [`Transaction`](crate::Transaction) sees in a key range, in key order.
/// [`Iterator::rev`] walks it backwards, and calls at both ends may be mixed.
///
/// It borrows the transaction: nothing can be written while it lives. After an error it yields nothing more.
pub struct TransactionRange<'t> {
    stored: Range,
    own: Option<btree_map::Range<'t, Box<[u8]>, Written>>,
    deleted: Option<&'t Intervals>,
    front: LookedAt<'t>,
    back: LookedAt<'t>,
    /// The last keys that were yielded at the two ends.
    yielded: [Option<Box<[u8]>>; 2],
    state: Stage,
    noted: Option<Noted<'t>>,
}

/// What one end has looked at.
#[derive(Default)]
struct LookedAt<'t> {
    stored: Option<Pair>,
    own: Option<(&'t [u8], &'t Written)>,
}

enum Stage {
    Walking,
    /// Ended, or failed after it had seen no more than was yielded.
    Ended,
    /// It cannot begin; the error is yielded once.
    Refused(Error),
    /// An error was yielded.
    Failed,
}

/// The scan in the read set.
struct Noted<'t> {
    number: u64,
    whole: Interval,
    reads: &'t Mutex<ReadSet>,
    charge: &'t Charge,
}

/// One of the two ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Front,
    Back,
}

impl<'t> TransactionRange<'t> {
    /// A scan of `whole` (`None`: no key can lie in it). `noted` has its number in the read set, if it must be noted.
    pub(super) fn new(
        stored: Range,
        own: Option<&'t TreeWrites>,
        whole: Option<Interval>,
        noted: Result<(Option<u64>, &'t Mutex<ReadSet>, &'t Charge)>,
    ) -> Self {
        let mut range = Self {
            stored,
            own: None,
            deleted: own.map(|own| &own.deleted).filter(|deleted| !deleted.is_empty()),
            front: LookedAt::default(),
            back: LookedAt::default(),
            yielded: [None, None],
            state: Stage::Walking,
            noted: None,
        };
        match (noted, whole) {
            (Err(error), _) => range.state = Stage::Refused(error),
            (Ok(_), None) => range.state = Stage::Ended,
            (Ok((number, reads, charge)), Some(whole)) => {
                let upto = whole.1.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                range.own = own.map(|own| own.keys.range::<[u8], _>((Bound::Included(&*whole.0), upto)));
                range.noted = number.map(|number| Noted { number, whole, reads, charge });
            }
        }
        range
    }

    fn step(&mut self, side: Side) -> Option<Result<Pair>> {
        match &self.state {
            Stage::Walking => {}
            Stage::Ended | Stage::Failed => return None,
            Stage::Refused(_) => {
                let Stage::Refused(error) = std::mem::replace(&mut self.state, Stage::Failed) else { return None };
                return Some(Err(error));
            }
        }
        let found = self.find(side);
        match &found {
            Ok(Some(pair)) => self.yielded[side as usize] = Some(pair.key().into()),
            Ok(None) => self.state = Stage::Ended,
            Err(_) => self.state = Stage::Failed,
        }
        found.transpose()
    }

    /// The next entry at one end.
    fn find(&mut self, side: Side) -> Result<Option<Pair>> {
        loop {
            self.look_ahead(side)?;
            let ahead = if side == Side::Front { &mut self.front } else { &mut self.back };
            let order = match (&ahead.stored, ahead.own) {
                (None, None) => return Ok(None),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(pair), Some((key, _))) if side == Side::Front => pair.key().cmp(key),
                (Some(pair), Some((key, _))) => key.cmp(pair.key()),
            };
            let pair = if order == Ordering::Greater { None } else { ahead.stored.take() };
            let own = if order == Ordering::Less { None } else { ahead.own.take() };
            match (own, pair) {
                (Some((key, Some(Put { value, what: PutWhat::Operand }))), base) => {
                    let base = base.map(|pair| pair.value()).transpose()?;
                    let both = combined(&self.stored.pinned.tree, key, (base.as_deref(), value))?;
                    return Ok(Some(self.stored.pair_of(key, both.into(), None)));
                }
                (Some((key, Some(Put { value, what: PutWhat::Value(expires_at) }))), _) => {
                    return Ok(Some(self.stored.pair_of(key, value.clone(), *expires_at)));
                }
                (Some((_, None)), _) => {}
                (None, Some(pair)) if self.deleted.is_some_and(|deleted| deleted.contains(pair.key())) => {}
                (None, pair) => {
                    self.note_instant(pair.as_ref());
                    return Ok(pair);
                }
            }
        }
    }

    /// Notes when an entry that is yielded expires.
    fn note_instant(&self, pair: Option<&Pair>) {
        if let (Some(noted), Some(pair)) = (&self.noted, pair)
            && let Some(instant) = pair.instant()
        {
            noted.reads.hold().note_instant(instant);
        }
    }

    /// Looks at the next entry of each side.
    fn look_ahead(&mut self, side: Side) -> Result<()> {
        let (this, other) = match side {
            Side::Front => (&mut self.front, &mut self.back),
            Side::Back => (&mut self.back, &mut self.front),
        };
        if this.stored.is_none() {
            let next = if side == Side::Front { self.stored.next() } else { self.stored.next_back() };
            this.stored = next.transpose()?.or_else(|| other.stored.take());
        }
        if this.own.is_none() {
            let own = self.own.as_mut();
            let next = own.and_then(|own| if side == Side::Front { own.next() } else { own.next_back() });
            this.own = next.map(|(key, written)| (&**key, written)).or_else(|| other.own.take());
        }
        Ok(())
    }

    /// What was seen of `whole`.
    fn seen(&self, whole: &Interval) -> Vec<Interval> {
        if matches!(self.state, Stage::Ended) {
            return vec![whole.clone()];
        }
        let after = |key: &[u8]| Box::from([key, &[0]].concat());
        let [front, back] = &self.yielded;
        let upto_front = front.as_ref().map(|key| (whole.0.clone(), Some(after(key))));
        let from_back = back.as_ref().map(|key| (key.clone(), whole.1.clone()));
        upto_front.into_iter().chain(from_back).collect()
    }
}

impl Iterator for TransactionRange<'_> {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Side::Front)
    }
}

impl DoubleEndedIterator for TransactionRange<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Side::Back)
    }
}

impl Drop for TransactionRange<'_> {
    fn drop(&mut self) {
        if let Some(noted) = self.noted.take() {
            let seen = self.seen(&noted.whole);
            noted.reads.hold().end_scan(noted.number, seen, noted.charge);
        }
    }
}

impl fmt::Debug for TransactionRange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionRange").field("stored", &self.stored).finish_non_exhaustive()
    }
}
