//! Iterators over a key range, from either end.
//!
//! An iterator owns one view and one snapshot: it sees what was there when it began, may outlive its handles and move
//! between threads. Values are fetched on demand; a scan that reads only keys never touches separated values.
//!
//! Once a separated value is asked for, an iterator reads entries ahead and prefetches their values concurrently:
//! [`super::window`] says how many. One that follows a scan from the device prefetches from the beginning.

use std::{
    collections::VecDeque,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bifold_contract::{IoSource, Kind, Millis, Pointer, RangeTombstone, Result, SeqNo, Value, planted};
use bifold_format::pointer;
use bifold_index::{
    cursor::Direction,
    merge::{MergeCursor, Source},
    range_tombstones::RangeTombstones,
    table::{ReadMode, left_out::LeftOutBlocks},
    version::{RunCursor, run},
    visible::{Item, Visible},
};
use bifold_values::parts::value_files::Stretches;

use super::{chain, get::Reader, operands::Operands, pair::Pair, window};
use crate::state::{
    snapshot::SnapshotGuard,
    time::Sight,
    tree::{Tree, Values, View},
};

/// Lower and upper bound of an iterator.
pub(crate) type KeyBounds = (Bound<Box<[u8]>>, Bound<Box<[u8]>>);

/// An iterator over the entries of a key range in key order, as they were when it was made. [`Iterator::rev`] walks it
/// backwards, and calls at both ends may be mixed.
///
/// After an error it yields nothing more: it never skips what it could not read. Errors are those of
/// [`Keyspace::get`](crate::Keyspace::get).
///
/// It goes on after [`Db::close`](crate::Db::close). Until it and its entries are dropped, files and old versions that
/// it may read stay on disk, and nobody else can open the database for writing.
pub struct Range {
    pub(super) state: ScanState,
    pub(super) front: Ahead,
    pub(super) back: Ahead,
    /// Entries that it may still yield; `None` if there is no limit.
    pub(super) left: Option<usize>,
    /// What its caller wants of them.
    pub(super) wanted: Wanted,
    /// What operands are combined in, where keys may have some.
    pub(super) merging: Option<Arc<View>>,
    /// Damage is left out, so an entry may have no value.
    pub(super) leaves_out: bool,
    pub(crate) pinned: Arc<Pinned>,
}

/// Entries that one end has read ahead and not yet yielded.
#[derive(Default)]
pub(super) struct Ahead {
    /// The first one is yielded next.
    pub items: VecDeque<AheadItem>,
    /// How many entries were read ahead at last; 0 at the beginning.
    pub window: usize,
    /// How many it has yielded.
    pub yielded: usize,
    /// The last key that it has taken from what the other end had read ahead.
    pub taken: Option<Box<[u8]>>,
}

/// What is wanted of the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    All,
    Keys,
}

/// An entry that was read ahead.
pub(super) struct AheadItem {
    pub item: Item,
    /// With which its value was announced, if it is read by a call.
    pub announced: Option<Arc<Stretches>>,
    /// What it is combined of, if it is an operand and that was taken.
    pub chain: Option<Box<Operands<'static>>>,
}

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Front,
    Back,
}

/// The call that advances one end.
type Advance = fn(&mut Visible) -> Result<Option<Item>>;

/// What an iterator and its entries keep alive.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub reader: Arc<Reader>,
    pub tree: Arc<Tree>,
    pub values: Arc<Values>,
    /// Pointers stay valid as long as it is open.
    snapshot: Arc<SnapshotGuard>,
    /// Whether a separated value was asked for.
    values_asked: AtomicBool,
}

pub(super) enum ScanState {
    /// Nothing was asked for yet.
    Fresh(Box<Fresh>),
    Walking(Box<Visible>),
    /// It could not begin or go on; the error is yielded once.
    Failed(Option<bifold_contract::Error>),
    /// The ends have met. A seek opens the range again.
    Met(Box<Visible>),
    /// There is nothing between the bounds.
    Done,
}

/// What an iterator begins with.
pub(super) struct Fresh {
    view: Arc<View>,
    bounds: KeyBounds,
    /// Where blocks that cannot be read are noted, if they are left out.
    pub(super) left_out: Option<Arc<LeftOutBlocks>>,
}

impl AheadItem {
    /// An entry whose value was not announced.
    pub fn of(item: Item) -> Self {
        Self { item, announced: None, chain: None }
    }

    pub fn key(&self) -> &[u8] {
        &self.item.key
    }
}

impl Pinned {
    /// What it sees.
    pub fn sight(&self) -> Sight {
        self.snapshot.sight()
    }

    pub fn note_value_asked(&self) {
        // Load first: a store would take the cache line away from other threads that iterate.
        if !self.values_asked.load(Relaxed) {
            self.values_asked.store(true, Relaxed);
        }
    }

    /// Calls `look` with the value of `key` at an encoded pointer, if it was announced with neighbours and is whole.
    pub fn look_at<T>(
        &self,
        announced: &Stretches,
        (key, encoded): (&[u8], &[u8]),
        look: impl FnMut(&[u8]) -> T,
    ) -> Result<Option<T>> {
        // A damaged pointer is reported when its value is read alone.
        let Ok(pointer) = pointer::decode(encoded) else { return Ok(None) };
        self.values.look_at_announced((key, pointer), announced, IoSource::Scan, look)
    }

    /// Prefetches the values of these items.
    fn prefetch(&self, items: &mut VecDeque<AheadItem>, from: usize) {
        let pointers = items.range(from..).filter(|ahead| ahead.item.kind == Kind::Pointer);
        // A damaged pointer is reported when its value is read.
        let pointers: Vec<Pointer> = pointers.filter_map(|ahead| pointer::decode(&ahead.item.payload).ok()).collect();
        if pointers.is_empty() {
            return;
        }
        let announced = self.values.prefetch(&pointers).map(Arc::new);
        self.tree.scans.note_cold(announced.as_ref().is_some_and(|stretches| stretches.are_cold()));
        if announced.is_some() {
            items.range_mut(from..).for_each(|ahead| ahead.announced.clone_from(&announced));
        }
    }

    /// Whether to prefetch values: some were asked for, or it begins and an earlier iterator read from the device.
    fn prefetches(&self, is_beginning: bool) -> bool {
        if self.values_asked.load(Relaxed) {
            return true;
        }
        if !is_beginning {
            // This iterator reads only keys: the next one must not begin with a prefetch.
            self.tree.scans.note_cold(false);
        }
        is_beginning && self.tree.scans.are_cold()
    }
}

impl Reader {
    /// An iterator over the keys between the bounds as `snapshot` sees them.
    pub fn range(self: &Arc<Self>, tree: &Arc<Tree>, bounds: KeyBounds, snapshot: Arc<SnapshotGuard>) -> Range {
        // The view first: the empty view of a dropped tree must not pass for its contents.
        let view = tree.view_to_hold();
        let values = Arc::clone(&view.values);
        let merging = view.settings.options.merge.is_some().then(|| Arc::clone(&view));
        let state = match self.readable(tree) {
            Ok(()) if is_empty(&bounds) => ScanState::Done,
            Ok(()) => ScanState::Fresh(Box::new(Fresh { view, bounds, left_out: None })),
            Err(error) => ScanState::Failed(Some(error)),
        };
        let (tree, values_asked) = (Arc::clone(tree), AtomicBool::new(false));
        let reader = Arc::clone(self);
        let pinned = Arc::new(Pinned { reader, tree, values, snapshot, values_asked });
        let (front, back) = (Ahead::default(), Ahead::default());
        Range { state, front, back, left: None, wanted: Wanted::All, merging, leaves_out: false, pinned }
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

/// What the first merge announces, should it come from the device.
struct BlocksAhead {
    /// The end that asks for it.
    end: End,
    entries: usize,
    /// Where they begin, unless that is the bound of the end.
    key: Option<Box<[u8]>>,
}

/// Begins to walk.
fn walk(fresh: Fresh, pinned: Arc<Pinned>, announced: BlocksAhead) -> Visible {
    let Fresh { view, bounds: (lower, upper), left_out } = fresh;
    let (seqno, time) = (pinned.snapshot.seqno, pinned.snapshot.time());
    if pinned.tree.note_scan(&view) || pinned.values.readers_ask() {
        pinned.snapshot.makes_due(pinned.tree.keyspace);
    }
    let (from, to) = (key_of(&lower), key_of(&upper));
    let seen = visible_tombstones(&view, seqno, (from.as_deref(), to.as_deref()));
    let tombstones = RangeTombstones::for_snapshots(&seen, &[seqno]);
    let BlocksAhead { end, entries, key } = announced;
    let (direction, bound) = match end {
        End::Front => (Direction::Forward, &from),
        End::Back => (Direction::Backward, &to),
    };
    let begins_at = key.or_else(|| bound.clone()).filter(|_| left_out.is_none());
    let is_first = AtomicBool::new(begins_at.is_some());
    let make = Box::new(move || {
        let memtables = view.layers().filter(|l| !l.memtable.is_empty()).map(|l| Source::Memtable(l.memtable.cursor()));
        let streams = view.version.streams_overlapping(from.as_deref(), to.as_deref());
        let mut runs: Vec<RunCursor> = streams.map(|stream| stream.cursor(ReadMode::Scan)).collect();
        if let Some(noted) = &left_out {
            runs.iter_mut().for_each(|run| run.leave_out_damage(noted));
        }
        if let Some(key) = &begins_at
            && is_first.swap(false, Relaxed)
            && pinned.tree.scans.are_tables_cold(key, || run::is_cold(&mut runs, key, direction))
            && entries > 0
        {
            run::announce(&mut runs, key, direction, entries as u64);
        }
        MergeCursor::new(memtables.chain(runs.into_iter().map(Source::Run)).collect())
    });
    Visible::new(make, tombstones, (seqno, time), lower, upper)
}

/// What `snapshot` sees of the view's range tombstones for keys from one to another, both inclusive.
fn visible_tombstones(view: &View, snapshot: SeqNo, (from, to): (Option<&[u8]>, Option<&[u8]>)) -> Vec<RangeTombstone> {
    let mut all = Vec::new();
    if planted!("ignore_range_tombstone") {
        return all;
    }
    for layer in view.layers() {
        all.extend(layer.memtable.range_tombstones().seen_by(snapshot, from, to));
    }
    if view.version.has_range_tombstones() {
        let is_within = |t: &&RangeTombstone| {
            let ends_before = from.is_some_and(|from| t.end.as_deref().is_some_and(|end| end <= from));
            t.seqno <= snapshot && !ends_before && to.is_none_or(|to| *t.start <= *to)
        };
        all.extend(view.version.tables().flat_map(|t| t.range_tombstones()).filter(is_within).cloned());
    }
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
    /// Ends after `entries` more, whichever ends they come from. Of two limits the smaller holds. Unlike
    /// [`Iterator::take`], it tells the iterator where its end is, so nothing is read ahead in vain.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-limit-{}", std::process::id()));
    /// # let db = bifold::Db::open(&dir)?;
    /// # for n in 0..10u8 { db.put([n], b"value")?; }
    /// let mut page = db.range([3]..).limit(2);
    /// assert_eq!(page.next().unwrap()?.key(), [3]);
    /// assert_eq!(page.next().unwrap()?.key(), [4]);
    /// assert!(page.next().is_none());
    /// # db.close()?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn limit(mut self, entries: usize) -> Self {
        self.left = Some(self.left.map_or(entries, |left| left.min(entries)));
        self
    }

    /// An entry that is not stored, as if this iterator had yielded it.
    pub(crate) fn pair_of(&self, key: &[u8], payload: Value, expires_at: Option<Millis>) -> Pair {
        let pinned = Arc::clone(&self.pinned);
        Pair {
            key: key.into(),
            seqno: 0,
            kind: Kind::Inline,
            payload,
            expires_at,
            pinned,
            announced: None,
            unread: None,
        }
    }

    pub(super) fn step(&mut self, end: End) -> Option<Result<Pair>> {
        if self.left == Some(0) {
            return None;
        }
        self.begin(end, None);
        self.look_ahead(end);
        let (this, other) = match end {
            End::Front => (&mut self.front, &mut self.back),
            End::Back => (&mut self.back, &mut self.front),
        };
        let AheadItem { item, announced, chain } = match this.items.pop_front() {
            Some(ahead) => ahead,
            None => match &mut self.state {
                ScanState::Failed(error) => {
                    // The entries that the other end has read ahead lie beyond the error.
                    other.items.clear();
                    return error.take().map(Err);
                }
                // The ends have met: the rest is what the other end has read ahead.
                ScanState::Fresh(_) | ScanState::Walking(_) | ScanState::Met(_) | ScanState::Done => {
                    let item = other.items.pop_back()?;
                    this.taken = Some(item.key().into());
                    item
                }
            },
        };
        this.yielded += 1;
        self.left = self.left.map(|left| left - 1);
        let value_bytes = match item.kind {
            // Counted when it is read or combined.
            Kind::Pointer | Kind::Large | Kind::Operand => 0,
            _ => item.payload.len(),
        };
        self.pinned.reader.counters.scanned(1, (item.key.len() + value_bytes) as u64);
        let pinned = Arc::clone(&self.pinned);
        if item.kind == Kind::Operand && self.wanted == Wanted::All {
            return Some(self.resolved(item.key, chain));
        }
        let Item { key, seqno, kind, payload, expires_at } = item;
        Some(Ok(Pair { key, seqno, kind, payload, expires_at, pinned, announced, unread: None }))
    }

    /// Begins to walk if nothing was asked for yet: at the bound of this end, unless a key is given.
    pub(super) fn begin(&mut self, end: End, key: Option<&[u8]>) {
        if let ScanState::Fresh(_) = self.state
            && let ScanState::Fresh(fresh) = std::mem::replace(&mut self.state, ScanState::Done)
        {
            let entries = self.left.unwrap_or_else(|| self.pinned.tree.scans.expected());
            let announced = BlocksAhead { end, entries, key: key.map(Box::from) };
            let mut visible = walk(*fresh, Arc::clone(&self.pinned), announced);
            if self.wanted == Wanted::Keys {
                visible.leave_out_payloads();
            }
            self.state = ScanState::Walking(Box::new(visible));
        }
    }

    /// The ends have met, or an error ends both.
    pub(crate) fn end(&mut self, outcome: Result<()>) {
        self.state = match (outcome, std::mem::replace(&mut self.state, ScanState::Done)) {
            (Err(error), _) => ScanState::Failed(Some(error)),
            (Ok(()), ScanState::Walking(visible)) => ScanState::Met(visible),
            (Ok(()), other) => other,
        };
    }

    /// Refills the window of one end once it is at most half full.
    fn look_ahead(&mut self, end: End) {
        let (ahead, advance): (_, Advance) = match end {
            End::Front => (&mut self.front, Visible::next_front),
            End::Back => (&mut self.back, Visible::next_back),
        };
        let ScanState::Walking(visible) = &mut self.state else { return };
        let takes_chains = self.wanted == Wanted::All && end == End::Front;
        let prefetches = self.wanted == Wanted::All && self.pinned.prefetches(ahead.window == 0);
        let scans = &self.pinned.tree.scans;
        let window = match (prefetches, self.left) {
            (false, _) => 1,
            (true, _) if !scans.are_cold() => window::in_memory(ahead.window),
            (true, Some(left)) => window::cold(ahead.yielded, ahead.yielded.saturating_add(left)),
            (true, None) => window::cold(ahead.yielded, scans.expected()),
        };
        let (window, present) = (window.min(self.left.unwrap_or(usize::MAX)), ahead.items.len());
        if present * 2 > window {
            return;
        }
        ahead.window = window;
        let mut ended = None;
        while ahead.items.len() < ahead.window && ended.is_none() {
            match advance(visible) {
                Ok(Some(item)) if item.kind == Kind::Operand && takes_chains => match chain::take(visible) {
                    Ok(chain) => ahead.items.push_back(AheadItem { chain, ..AheadItem::of(item) }),
                    Err(error) => ended = Some(Err(error)),
                },
                Ok(Some(item)) => ahead.items.push_back(AheadItem::of(item)),
                Ok(None) => ended = Some(Ok(())),
                Err(error) => ended = Some(Err(error)),
            }
        }
        if prefetches {
            self.pinned.prefetch(&mut ahead.items, present);
        }
        if let Some(outcome) = ended {
            self.end(outcome);
        }
    }
}

impl Range {
    /// Notes how many entries were asked for since it began or was last sought.
    pub(super) fn note_length(&mut self) {
        let scans = &self.pinned.tree.scans;
        let yielded = std::mem::take(&mut self.front.yielded) + std::mem::take(&mut self.back.yielded);
        if yielded > 0 && scans.have_lengths() {
            scans.note_length(yielded);
        }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        self.note_length();
    }
}

impl Iterator for Range {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(End::Front)
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(End::Back)
    }
}

impl std::fmt::Debug for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Range").field("keyspace", &self.pinned.tree.name).finish_non_exhaustive()
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
