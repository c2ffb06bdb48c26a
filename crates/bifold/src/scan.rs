//! Iterators over a key range, from either end.
//!
//! An iterator pins one view and one snapshot for its life: whatever is flushed, compacted or deleted meanwhile, it goes
//! on to see what was there when it began. It owns what it pins, so it may outlive its handles and move between threads.
//! Values are fetched when asked for; a scan that reads only keys never touches values kept apart.

use std::{ops::Bound, sync::Arc};

use bifold_contract::{IoSource, Kind, RangeTombstone, Result, SeqNo, Value};
use bifold_index::{
    merge::{MergeCursor, Source},
    range_tombstones::RangeTombstones,
    table::ReadMode,
    visible::Visible,
};

use crate::{
    engine::Engine,
    partition::{Partition, View},
    read,
    snapshot::SnapshotGuard,
};

/// Lower and upper bound of an iterator.
pub(crate) type KeyBounds = (Bound<Box<[u8]>>, Bound<Box<[u8]>>);

/// An iterator over the pairs of a key range in key order; [`Iterator::rev`] walks it backwards, and both ends may be
/// used in turns.
///
/// After an error it yields nothing more: it never skips what it could not read.
pub struct Range {
    state: State,
    partition: Arc<Partition>,
    engine: Arc<Engine>,
    snapshot: Arc<SnapshotGuard>,
}

enum State {
    Walking(Box<Visible>),
    /// It could not begin; the error is yielded once.
    Failed(Option<bifold_contract::Error>),
    Done,
}

/// A key and its value, which is fetched when asked for.
#[derive(Debug)]
pub struct Pair {
    key: Box<[u8]>,
    kind: Kind,
    payload: Value,
    partition: Arc<Partition>,
    /// The address stays right as long as the snapshot is open.
    _snapshot: Arc<SnapshotGuard>,
}

impl Pair {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The value. Cheap to call again where values stand beside their keys; a read where they are kept apart.
    ///
    /// # Errors
    /// I/O errors and corruption, where values are kept apart.
    pub fn value(&self) -> Result<Value> {
        match self.kind {
            Kind::Pointer => read::resolve(&self.partition, &self.key, &self.payload, IoSource::Scan),
            Kind::Inline | Kind::Delete => Ok(self.payload.clone()),
        }
    }

    /// Key and value.
    ///
    /// # Errors
    /// As [`Pair::value`].
    pub fn into_parts(self) -> Result<(Box<[u8]>, Value)> {
        let value = self.value()?;
        Ok((self.key, value))
    }
}

impl Engine {
    /// An iterator over the keys between the bounds as `snapshot` sees them.
    pub fn range(
        self: &Arc<Self>,
        partition: &Arc<Partition>,
        bounds: KeyBounds,
        snapshot: Arc<SnapshotGuard>,
    ) -> Range {
        let state = match self.readable(partition) {
            Ok(()) if is_empty(&bounds) => State::Done,
            Ok(()) => State::Walking(Box::new(walk(partition.view_to_hold(), bounds, snapshot.seqno))),
            Err(error) => State::Failed(Some(error)),
        };
        Range { state, partition: Arc::clone(partition), engine: Arc::clone(self), snapshot }
    }
}

fn is_empty((lower, upper): &KeyBounds) -> bool {
    match (lower, upper) {
        (Bound::Included(l), Bound::Included(u)) => l > u,
        (Bound::Included(l) | Bound::Excluded(l), Bound::Excluded(u)) | (Bound::Excluded(l), Bound::Included(u)) => {
            l >= u
        }
        _ => false,
    }
}

fn walk(view: Arc<View>, (lower, upper): KeyBounds, snapshot: SeqNo) -> Visible {
    let tombstones = RangeTombstones::new(&visible_tombstones(&view, snapshot));
    let (from, to) = (key_of(&lower), key_of(&upper));
    let make = Box::new(move || {
        let memtables = view.layers().filter(|l| !l.memtable.is_empty()).map(|l| Source::Memtable(l.memtable.cursor()));
        let runs = view.version.runs_overlapping(from.as_deref(), to.as_deref());
        MergeCursor::new(memtables.chain(runs.map(|run| Source::Run(run.cursor(ReadMode::Scan)))).collect())
    });
    Visible::new(make, tombstones, snapshot, lower, upper)
}

/// Every range tombstone of the view that `snapshot` sees.
fn visible_tombstones(view: &View, snapshot: SeqNo) -> Vec<RangeTombstone> {
    let mut all = Vec::new();
    if cfg!(planted = "ignore_range_tombstone") {
        return all;
    }
    for layer in view.layers() {
        all.extend(layer.memtable.range_tombstones().clipped(None, None));
    }
    if view.version.has_range_tombstones() {
        all.extend(view.version.tables().flat_map(|t| t.range_tombstones()).cloned());
    }
    all.retain(|t| t.seqno <= snapshot);
    all
}

fn key_of(bound: &Bound<Box<[u8]>>) -> Option<Box<[u8]>> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key.clone()),
        Bound::Unbounded => None,
    }
}

/// The smallest key greater than every key that begins with `prefix`; `None` when there is none (`ff ff …`).
pub(crate) fn prefix_end(prefix: &[u8]) -> Option<Box<[u8]>> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end.into())
}

impl Range {
    fn step(
        &mut self,
        advance: impl FnOnce(&mut Visible) -> Result<Option<bifold_index::visible::Item>>,
    ) -> Option<Result<Pair>> {
        let visible = match &mut self.state {
            State::Walking(visible) => visible,
            State::Failed(error) => return error.take().map(Err),
            State::Done => return None,
        };
        match advance(visible) {
            Ok(Some(item)) => {
                self.engine.counters.scanned(item.key.len() + item.payload.len());
                let partition = Arc::clone(&self.partition);
                let _snapshot = Arc::clone(&self.snapshot);
                Some(Ok(Pair { key: item.key, kind: item.kind, payload: item.payload, partition, _snapshot }))
            }
            Ok(None) => {
                self.state = State::Done;
                None
            }
            Err(error) => {
                self.state = State::Done;
                Some(Err(error))
            }
        }
    }
}

impl Iterator for Range {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Visible::next_front)
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Visible::next_back)
    }
}

impl std::fmt::Debug for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Range").field("keyspace", &self.partition.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_one_begins() {
        assert_eq!(prefix_end(b"ab").as_deref(), Some(&b"ac"[..]));
        assert_eq!(prefix_end(b"a\xff\xff").as_deref(), Some(&b"b"[..]));
        assert_eq!(prefix_end(b"\xff"), None);
        assert_eq!(prefix_end(b""), None);
    }
}
