//! The check at a commit: would each read answer as it did?
//!
//! ```text
//!  snapshot ──────────────── upto ─────────────── now       numbers of commits
//!     │   1. memtables and tables   │  2. memtables   │
//!     │   without the lock          │  under the lock │
//! ```
//!
//! **Step 1** looks for versions and range tombstones with numbers above the snapshot over what was read. If there is
//! one, the answers are compared: that of the snapshot, which is open, with that of now. Only another answer is a
//! conflict. So a value that GC has moved is none, nor is a key that was put and deleted again; and of what compaction
//! has dropped altogether nothing was left. The order is: view of each keyspace, then the number `upto`, then once more
//! whether each view still has its active memtable. So each commit up to `upto` is in the view, and each later one is
//! in that memtable or in a newer one.
//!
//! **Step 2** holds the commit lock and asks only memtables: has one anything above `upto` over what was read? Then the
//! lock is released and step 1 begins again, because comparing values may read files. The same happens if a memtable
//! of the view was flushed meanwhile, or an ingest has arrived: what came after `upto` might be in a table. After a few
//! rounds all is done under the lock.
//!
//! **What expires** is changed by nobody: it is enough to know when the first of all the values that were read expires.
//! Once that is over, step 1 compares all of them that were to expire: somebody may have given them more time. If none
//! has expired, it knows when the first one will from then on. Somebody may also have given a value less time: that of
//! each value that is compared counts as well. If the time of the first one is over, too, when the lock is held,
//! another round begins.
//!
//! The lock is held for one search in a memtable for each key that was read, and for the entries of memtables in the
//! ranges that were scanned; for nothing if nobody has committed since step 1.

use std::{ops::Bound, sync::Arc};

use bifold_contract::{Error, Millis, RangeTombstone, Result, SeqNo, key::MAX_SEQNO, planted};
use bifold_format::filter::key_hash;
use bifold_index::{
    cursor::Cursor,
    memtable::Memtable,
    merge::{MergeCursor, Source},
    table::ReadMode,
};

use super::{reads::ReadSet, writes::Writes};
use crate::{
    commit::write::Condition,
    read::get::Reader,
    state::{
        snapshot::SnapshotGuard,
        time::Sight,
        tree::{Tree, View},
    },
};

/// A range: its first key and its exclusive end.
type KeyRange<'a> = (&'a [u8], Option<&'a [u8]>);

/// What must be as it was at the snapshot.
pub(super) struct ReadCheck<'a> {
    reader: &'a Arc<Reader>,
    snapshot: &'a Arc<SnapshotGuard>,
    reads: &'a ReadSet,
    /// When the first of all that was read expires, as far as it is known.
    expires: Option<Millis>,
    /// When the first expires now of what step 1 has compared.
    compared: Option<Millis>,
    relied: Vec<Relied<'a>>,
    /// The last commit that step 1 has looked at.
    upto: SeqNo,
    rounds: Rounds,
}

/// How step 2 ends if something may have changed.
#[derive(PartialEq, Eq)]
enum Rounds {
    /// With another round.
    More,
    /// With step 1 under the lock.
    Last,
}

/// What a commit relies on in one keyspace.
struct Relied<'a> {
    tree: &'a Arc<Tree>,
    keys: Vec<&'a [u8]>,
    ranges: Vec<KeyRange<'a>>,
    /// What step 1 has looked at.
    view: Arc<View>,
}

impl<'a> ReadCheck<'a> {
    /// A check of everything that was read.
    pub fn new(reader: &'a Arc<Reader>, snapshot: &'a Arc<SnapshotGuard>, reads: &'a ReadSet) -> Self {
        let relied = reads.iter().map(|of| Relied {
            tree: &of.tree,
            keys: of.keys.iter().map(|key| &**key).collect(),
            ranges: of.ranges.iter().collect(),
            view: of.tree.view_to_hold(),
        });
        let (relied, upto, expires) = (relied.collect(), snapshot.seqno, reads.expires());
        Self { reader, snapshot, reads, expires, compared: None, relied, upto, rounds: Rounds::More }
    }

    /// Checks what is to be written, too.
    pub fn add_writes(&mut self, writes: &'a Writes) {
        self.relied.extend(writes.iter().map(|of| Relied {
            tree: of.keyspace.tree(),
            keys: of.keys.keys().map(|key| &**key).collect(),
            ranges: of.deleted.iter().collect(),
            view: of.keyspace.tree().view_to_hold(),
        }));
    }

    /// From now on nothing is left to another round.
    pub fn decide_under_lock(&mut self) {
        self.rounds = Rounds::Last;
    }

    /// Step 1 without a commit.
    pub fn at_once(&mut self) -> Result<()> {
        self.take_views();
        self.compared = self.decide()?;
        Ok(())
    }

    /// Takes the views and the number up to which they have all commits.
    fn take_views(&mut self) {
        loop {
            self.relied.iter_mut().for_each(|relied| relied.view = relied.tree.view_to_hold());
            self.upto = self.reader.visible();
            let is_current = |relied: &Relied<'_>| {
                let now = relied.tree.view();
                Arc::ptr_eq(&relied.view.active, &now.active) && relied.view.ingested == now.ingested
            };
            if self.relied.iter().all(is_current) {
                return;
            }
        }
    }

    /// Compares the answers of the snapshot with those of now. Returns when the first expires of what it has compared.
    fn decide(&self) -> Result<Option<Millis>> {
        let mut first = None;
        for relied in &self.relied {
            self.reader.readable(relied.tree)?;
            for key in &relied.keys {
                if is_touched(&relied.view, key, self.snapshot.seqno)? {
                    self.compare(relied.tree, key, &mut first)?;
                }
            }
            for range in &relied.ranges {
                self.decide_range(relied, *range, &mut first)?;
            }
        }
        Ok(first)
    }

    fn decide_range(&self, relied: &Relied<'_>, range: KeyRange<'_>, first: &mut Option<Millis>) -> Result<()> {
        let after = self.snapshot.seqno;
        let mut last: Option<Box<[u8]>> = None;
        each_newer(newer_sources(&relied.view, range, after), range, after, &mut |key| {
            if last.as_deref() != Some(key) {
                self.compare(relied.tree, key, first)?;
                last = Some(key.into());
            }
            Ok(true)
        })?;
        for deleted in newer_tombstones(&relied.view, range, after) {
            let start = Bound::Included(deleted.start);
            let end = deleted.end.map_or(Bound::Unbounded, Bound::Excluded);
            for pair in self.reader.range(relied.tree, (start, end), Arc::clone(self.snapshot)) {
                self.compare(relied.tree, pair?.key(), first)?;
            }
        }
        Ok(())
    }

    /// Compares one answer. Notes when the value expires now: somebody may have given it less time.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the value of `key` is another one now.
    fn compare(&self, tree: &Arc<Tree>, key: &[u8], first: &mut Option<Millis>) -> Result<()> {
        let before = self.reader.seen_at(tree, key, self.snapshot.sight())?;
        let now = self.reader.current(tree, key)?;
        let is_same = before == now || planted!("transaction_ignores_deletes") && now.is_none();
        if !is_same {
            return Err(conflict(tree, key));
        }
        if now.is_some() && tree.may_lose_entries() {
            // It may have expired since it was compared.
            let now = self.reader.expires_at(tree, key, || Sight::now(self.reader.visible()))?;
            *first = earlier(*first, now.ok_or_else(|| conflict(tree, key))?);
        }
        Ok(())
    }

    /// Whether something that was read has expired, unless somebody has given it more time.
    fn may_have_expired(&self) -> bool {
        let first = earlier(self.expires, self.compared);
        let is_over = first.is_some_and(|at| at <= self.reader.time.now());
        is_over && !planted!("transaction_overlooks_expiry")
    }

    /// Compares all that was to expire at the snapshot, and notes what expires first of it now.
    ///
    /// # Errors
    /// [`Error::Conflict`] if something has expired, or has another value.
    fn look_at_what_expires(&mut self) -> Result<()> {
        let mut first = None;
        for of in self.reads.iter().filter(|of| of.tree.may_lose_entries()) {
            for key in &of.keys {
                self.look_at(&of.tree, key, &mut first)?;
            }
            for (start, end) in of.ranges.iter() {
                let upto = end.map_or(Bound::Unbounded, |end| Bound::Excluded(Box::from(end)));
                let bounds = (Bound::Included(Box::from(start)), upto);
                for pair in self.reader.range(&of.tree, bounds, Arc::clone(self.snapshot)) {
                    let pair = pair?;
                    if pair.instant().is_some() {
                        self.look_at(&of.tree, pair.key(), &mut first)?;
                    }
                }
            }
        }
        self.expires = first;
        Ok(())
    }

    fn look_at(&self, tree: &Arc<Tree>, key: &[u8], first: &mut Option<Millis>) -> Result<()> {
        let then = self.reader.expires_at(tree, key, || self.snapshot.sight())?;
        if then.flatten().is_some() { self.compare(tree, key, first) } else { Ok(()) }
    }

    /// Whether anything that was read may have changed after `upto`. The caller holds the commit lock.
    fn may_have_changed(&self) -> Result<bool> {
        if self.reader.visible() == self.upto {
            return Ok(false);
        }
        for relied in &self.relied {
            let now = relied.tree.view_to_hold();
            // Its versions are in tables alone.
            if now.ingested > self.upto && !planted!("transaction_overlooks_ingest") {
                return Ok(true);
            }
            let has_flushed = !now.layers().any(|layer| Arc::ptr_eq(layer, &relied.view.active));
            if has_flushed && !planted!("transaction_overlooks_flush") {
                return Ok(true);
            }
            for memtable in now.layers().map(|layer| &layer.memtable) {
                if memtable.max_seqno().is_some_and(|max| max > self.upto)
                    && relied.is_touched_in(memtable, self.upto)?
                {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

impl Condition for ReadCheck<'_> {
    fn prepare(&mut self) -> Result<()> {
        if self.rounds == Rounds::Last {
            return Ok(());
        }
        self.take_views();
        self.compared = self.decide()?;
        if self.may_have_expired() { self.look_at_what_expires() } else { Ok(()) }
    }

    fn holds(&mut self) -> Result<bool> {
        if planted!("transaction_checks_early") {
            return Ok(true);
        }
        // A keyspace is dropped under the commit lock.
        self.relied.iter().try_for_each(|relied| self.reader.readable(relied.tree))?;
        if self.rounds == Rounds::Last {
            if self.may_have_expired() {
                self.look_at_what_expires()?;
            }
            return self.at_once().map(|()| true);
        }
        Ok(!self.may_have_expired() && !self.may_have_changed()?)
    }
}

impl Relied<'_> {
    fn is_touched_in(&self, memtable: &Arc<Memtable>, after: SeqNo) -> Result<bool> {
        if self.keys.iter().any(|key| is_key_touched_in(memtable, key, after)) {
            return Ok(true);
        }
        for range in &self.ranges {
            let mut is_touched = tombstones_in(memtable, *range, after).next().is_some();
            if !is_touched {
                let sources = vec![Source::Memtable(memtable.cursor())];
                each_newer(sources, *range, after, &mut |_| {
                    is_touched = true;
                    Ok(false)
                })?;
            }
            if is_touched {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The earlier of two instants, of which either may be missing.
fn earlier(one: Option<Millis>, other: Option<Millis>) -> Option<Millis> {
    one.into_iter().chain(other).min()
}

fn conflict(tree: &Tree, key: &[u8]) -> Error {
    Error::Conflict { keyspace: tree.name.clone(), key: key.into() }
}

fn is_key_touched_in(memtable: &Memtable, key: &[u8], after: SeqNo) -> bool {
    memtable.range_tombstones().covering(key, MAX_SEQNO) > after
        || memtable.get(key, MAX_SEQNO).is_some_and(|entry| entry.seqno > after)
}

/// Whether a version of `key`, or a range tombstone over it, has a number above `after`.
fn is_touched(view: &View, key: &[u8], after: SeqNo) -> Result<bool> {
    for memtable in newer_memtables(view, after) {
        if is_key_touched_in(memtable, key, after) {
            return Ok(true);
        }
    }
    if are_tables_older(view, after) { Ok(false) } else { view.version.has_newer(key, key_hash(key), after) }
}

/// The memtables with numbers above `after`.
fn newer_memtables(view: &View, after: SeqNo) -> impl Iterator<Item = &Arc<Memtable>> {
    let memtables = view.layers().map(|layer| &layer.memtable);
    memtables.filter(move |memtable| memtable.max_seqno().is_some_and(|max| max > after))
}

/// Whether no table has a number above `after`, by what memtables know: they are newer than all tables but those of
/// ingests.
fn are_tables_older(view: &View, after: SeqNo) -> bool {
    planted!("transaction_overlooks_tables")
        || view.ingested <= after
            && view.layers().any(|layer| layer.memtable.min_seqno().is_some_and(|min| min <= after))
}

fn newer_sources(view: &View, (start, end): KeyRange<'_>, after: SeqNo) -> Vec<Source> {
    let memtables = newer_memtables(view, after).map(|memtable| Source::Memtable(memtable.cursor()));
    let mut sources: Vec<Source> = memtables.collect();
    if !are_tables_older(view, after) {
        let tables = view.version.newer(Some(start), end, after);
        sources.extend(tables.map(|table| Source::Table(table.cursor(ReadMode::Scan))));
    }
    sources
}

/// Calls `see` with the key of each version in `range` that has a number above `after`, until it returns false.
fn each_newer(
    sources: Vec<Source>,
    (start, end): KeyRange<'_>,
    after: SeqNo,
    see: &mut dyn FnMut(&[u8]) -> Result<bool>,
) -> Result<()> {
    if sources.is_empty() {
        return Ok(());
    }
    let mut merge = MergeCursor::new(sources);
    merge.seek(start, MAX_SEQNO)?;
    while let Some(entry) = merge.entry().filter(|entry| end.is_none_or(|end| entry.key < end)) {
        if entry.seqno > after && !see(entry.key)? {
            return Ok(());
        }
        merge.next()?;
    }
    Ok(())
}

/// The range tombstones with numbers above `after`, cut at the ends of `range`.
fn newer_tombstones(view: &View, range: KeyRange<'_>, after: SeqNo) -> Vec<RangeTombstone> {
    let in_memtables = newer_memtables(view, after).flat_map(|memtable| tombstones_in(memtable, range, after));
    let mut all: Vec<RangeTombstone> = in_memtables.collect();
    if view.version.has_range_tombstones() && !are_tables_older(view, after) {
        let tables = view.version.newer(Some(range.0), range.1, after);
        let newer = tables.flat_map(|table| table.range_tombstones()).filter(|tombstone| tombstone.seqno > after);
        all.extend(newer.filter_map(|tombstone| cut(tombstone, range)));
    }
    all
}

fn tombstones_in(
    memtable: &Memtable,
    (start, end): KeyRange<'_>,
    after: SeqNo,
) -> impl Iterator<Item = RangeTombstone> {
    let tombstones = memtable.range_tombstones();
    let clipped = if tombstones.is_empty() { Vec::new() } else { tombstones.clipped(Some(start), end) };
    clipped.into_iter().filter(move |tombstone| tombstone.seqno > after)
}

/// The part of `tombstone` in `range`.
fn cut(tombstone: &RangeTombstone, (start, end): KeyRange<'_>) -> Option<RangeTombstone> {
    let from = start.max(&tombstone.start);
    let upto = match (tombstone.end.as_deref(), end) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
    let is_empty = upto.is_some_and(|upto| upto <= from);
    (!is_empty).then(|| RangeTombstone { start: from.into(), end: upto.map(Box::from), seqno: tombstone.seqno })
}

#[cfg(test)]
mod tests;
