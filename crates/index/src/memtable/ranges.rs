//! The range tombstones of a memtable, and of a table.
//!
//! Usually there are none, and a reader pays for one load. Otherwise the first reader after a write prepares them for
//! lookups, and the result is kept: n tombstones written in a row are prepared once, not n times.
//!
//! They are prepared in **blocks** of [`LEAF`], in the order of their numbers. Whenever there are [`FAN`] blocks of one
//! size, they become the parts of a larger one. So n tombstones are in about log n blocks, each is merged log n times,
//! and only the last block, if it is not full, is made again for the next tombstone.
//!
//! The **edges** of a block are the keys at which its newest number changes:
//!
//! ```text
//! given       a─────────────7─────────────m            edges   a 7, e 9, t none
//!                           e──────────9───────t
//! ```
//!
//! Who sees a whole block needs one binary search in its edges. A snapshot that sees only some of it asks the parts,
//! and of those, too, it sees all but one as a whole or not at all.
//!
//! A table has all of its own when it is opened, and prepares them then: its file may say anything, and be short.
//!
//! Invariants: no number of a block is below those of the blocks before it; edges ascend, and the numbers of
//! neighbours differ; a block has at most two edges for each tombstone. No fragment has a list of all tombstones that
//! span it, as in [`crate::range_tombstones`]: for n nested ranges those lists are n²/2 numbers.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use arc_swap::ArcSwapOption;
use bifold_contract::{RangeTombstone, SeqNo};

use crate::range_tombstones::smaller_end;

/// Tombstones in a block of the smallest size.
const LEAF: usize = 64;

/// Parts of a larger block. With more of them, lookups ask more blocks; with fewer, there are more sizes, and each
/// tombstone has edges in one block of each size.
const FAN: usize = 4;

/// What is counted for a tombstone in a block of each size: two edges, and a third more, since those who came before it
/// did not count the size that it completes.
const BYTES_IN_BLOCK: usize = 2 * size_of::<Edge>() * 4 / 3;

/// Bounds of keys.
type Within<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

/// A growing list of range tombstones.
pub(super) struct Ranges {
    count: AtomicUsize,
    /// In the order of their numbers.
    all: Mutex<Vec<Tombstone>>,
    prepared: ArcSwapOption<Prepared>,
}

/// The range tombstones that a memtable had at one moment, or those of a table. Cheap to clone. A lookup costs one
/// comparison if there are none.
#[derive(Clone, Debug, Default)]
pub struct MemtableRanges {
    /// `None` if there are none.
    prepared: Option<Arc<Prepared>>,
}

#[derive(Debug)]
struct Prepared {
    count: usize,
    /// From old to new.
    blocks: Vec<Arc<Block>>,
}

/// Tombstones with successive numbers.
#[derive(Debug)]
struct Block {
    oldest: SeqNo,
    newest: SeqNo,
    count: usize,
    edges: Box<[Edge]>,
    parts: Parts,
}

#[derive(Debug)]
enum Parts {
    Tombstones(Box<[Tombstone]>),
    Blocks(Box<[Arc<Block>]>),
}

/// From this key on, the newest number is this one; 0: there is none.
#[derive(Clone, Debug)]
struct Edge {
    key: Arc<[u8]>,
    seqno: SeqNo,
}

/// A range tombstone that shares its keys with edges.
#[derive(Clone, Debug)]
struct Tombstone {
    start: Arc<[u8]>,
    end: Option<Arc<[u8]>>,
    seqno: SeqNo,
}

impl Ranges {
    pub(super) fn new() -> Self {
        Self { count: AtomicUsize::new(0), all: Mutex::new(Vec::new()), prepared: ArcSwapOption::empty() }
    }

    #[inline]
    pub(super) fn get(&self) -> MemtableRanges {
        match self.count.load(Ordering::Acquire) {
            0 => MemtableRanges::default(),
            count => self.get_at_least(count),
        }
    }

    fn get_at_least(&self, count: usize) -> MemtableRanges {
        if let Some(prepared) = &*self.prepared.load()
            && prepared.count >= count
        {
            return MemtableRanges { prepared: Some(Arc::clone(prepared)) };
        }
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.prepared.load_full();
        let prepared = match before.as_ref().filter(|before| before.count == all.len()) {
            Some(by_another) => Arc::clone(by_another),
            None => Arc::new(Prepared::of(&all, before.as_deref())),
        };
        // Stored under the lock, so that an older result never replaces a newer one.
        self.prepared.store(Some(Arc::clone(&prepared)));
        MemtableRanges { prepared: Some(prepared) }
    }

    pub(super) fn push(&self, tombstone: RangeTombstone) {
        let tombstone = Tombstone::from(tombstone);
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(tombstone);
        self.count.store(all.len(), Ordering::Release);
    }

    /// Copies of all, in the order of their numbers. Prepares nothing.
    pub(super) fn copies(&self) -> Vec<RangeTombstone> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(|tombstone| tombstone.clipped((None, None))).collect()
    }

    /// What the next tombstone takes once it is prepared, without its keys.
    pub(super) fn bytes_to_prepare_next(&self) -> usize {
        let leaves = self.count.load(Ordering::Relaxed) / LEAF;
        let sizes = leaves.checked_ilog(FAN).map_or(1, |larger| larger as usize + 2);
        size_of::<Tombstone>() + sizes * BYTES_IN_BLOCK
    }

    #[cfg(test)]
    pub(super) fn prepared_bytes(&self) -> usize {
        MemtableRanges { prepared: self.prepared.load_full() }.bytes()
    }
}

impl MemtableRanges {
    /// Those of a table, in any order. What is left of one tombstone may be several with one number.
    pub(crate) fn of_table(tombstones: &[RangeTombstone]) -> Self {
        let mut all: Vec<Tombstone> = tombstones.iter().cloned().map(Tombstone::from).collect();
        all.sort_by_key(|tombstone| tombstone.seqno);
        let Prepared { count, blocks } = Prepared::of(&all, None);
        // Nothing will follow, so they are one: whoever sees all of it needs one search.
        let blocks = if blocks.len() > 1 { vec![Arc::new(Block::of_blocks(blocks))] } else { blocks };
        Self { prepared: (count > 0).then(|| Arc::new(Prepared { count, blocks })) }
    }

    /// The largest sequence number, at most `snapshot`, of a tombstone that spans `key`; 0 if there is none.
    #[inline]
    #[must_use]
    pub fn covering(&self, key: &[u8], snapshot: SeqNo) -> SeqNo {
        match &self.prepared {
            None => 0,
            Some(prepared) => covering_in(&prepared.blocks, key, snapshot),
        }
    }

    /// Whether no key is deleted.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.prepared.is_none()
    }

    /// The tombstones clipped to `start..end` (`None`: unbounded), in the order of their numbers.
    #[must_use]
    pub fn clipped(&self, start: Option<&[u8]>, end: Option<&[u8]>) -> Vec<RangeTombstone> {
        let mut clipped = Vec::new();
        let mut take = |tombstone: &Tombstone| clipped.extend(tombstone.clipped((start, end)));
        each_within(self.blocks(), (start, end), &mut take);
        clipped
    }

    /// What `snapshot` sees of the keys from `first` to `last`, both inclusive (`None`: unbounded): tombstones, and
    /// of many only the parts that are not below newer ones. Some may reach beyond these keys.
    #[must_use]
    pub fn seen_by(&self, snapshot: SeqNo, first: Option<&[u8]>, last: Option<&[u8]>) -> Vec<RangeTombstone> {
        let mut seen = Vec::new();
        each_seen(self.blocks(), snapshot, (first, last), &mut seen);
        seen
    }

    /// The memory that lookups take, without keys.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.blocks().iter().map(|block| block.bytes()).sum()
    }

    fn blocks(&self) -> &[Arc<Block>] {
        self.prepared.as_ref().map_or(&[][..], |prepared| &prepared.blocks[..])
    }
}

/// The result from `blocks`: newer ones first, since any number of theirs is larger.
fn covering_in(blocks: &[Arc<Block>], key: &[u8], snapshot: SeqNo) -> SeqNo {
    let in_block = |block: &Arc<Block>| match &block.parts {
        _ if block.newest <= snapshot => block.newest_at(key),
        _ if block.oldest > snapshot => 0,
        Parts::Blocks(parts) => covering_in(parts, key, snapshot),
        Parts::Tombstones(tombstones) => {
            let newest = tombstones.iter().rev().find(|t| t.seqno <= snapshot && t.contains(key));
            newest.map_or(0, |tombstone| tombstone.seqno)
        }
    };
    blocks.iter().rev().map(in_block).find(|&seqno| seqno > 0).unwrap_or(0)
}

/// Calls `see` with the tombstones that may overlap these keys, in the order of their numbers.
fn each_within(blocks: &[Arc<Block>], keys: Within<'_>, see: &mut dyn FnMut(&Tombstone)) {
    for block in blocks.iter().filter(|block| block.deleted(keys).next().is_some()) {
        match &block.parts {
            Parts::Blocks(parts) => each_within(parts, keys, see),
            Parts::Tombstones(tombstones) => tombstones.iter().for_each(&mut *see),
        }
    }
}

fn each_seen(blocks: &[Arc<Block>], snapshot: SeqNo, keys: Within<'_>, seen: &mut Vec<RangeTombstone>) {
    for block in blocks.iter().filter(|block| block.oldest <= snapshot) {
        match &block.parts {
            _ if block.newest <= snapshot => seen.extend(block.deleted(keys).map(|(edge, next)| RangeTombstone {
                start: (*edge.key).into(),
                end: next.map(|next| (*next.key).into()),
                seqno: edge.seqno,
            })),
            Parts::Blocks(parts) => each_seen(parts, snapshot, keys, seen),
            Parts::Tombstones(tombstones) => {
                let older = tombstones.iter().filter(|tombstone| tombstone.seqno <= snapshot);
                seen.extend(older.filter_map(|tombstone| tombstone.clipped((None, None))));
            }
        }
    }
}

impl Prepared {
    /// All of these, given what was prepared of the first ones.
    fn of(all: &[Tombstone], before: Option<&Self>) -> Self {
        let mut blocks = before.map_or_else(Vec::new, |before| before.blocks.clone());
        // Only the last one has room for more.
        blocks.pop_if(|last| last.count < LEAF);
        let done: usize = blocks.iter().map(|block| block.count).sum();
        for tombstones in all[done..].chunks(LEAF) {
            blocks.push(Arc::new(Block::of_tombstones(tombstones)));
            while let Some(first) = blocks.len().checked_sub(FAN)
                && blocks[first..].iter().all(|block| block.count == blocks[first].count)
            {
                let parts = blocks.split_off(first);
                blocks.push(Arc::new(Block::of_blocks(parts)));
            }
        }
        Self { count: all.len(), blocks }
    }
}

impl Block {
    fn of_tombstones(tombstones: &[Tombstone]) -> Self {
        let number = |tombstone: Option<&Tombstone>| tombstone.map_or(0, |tombstone| tombstone.seqno);
        Self {
            oldest: number(tombstones.first()),
            newest: number(tombstones.last()),
            count: tombstones.len(),
            edges: edges_of(tombstones).into(),
            parts: Parts::Tombstones(tombstones.into()),
        }
    }

    fn of_blocks(parts: Vec<Arc<Self>>) -> Self {
        let edges = parts.iter().fold(Vec::new(), |older, part| overlaid(&older, &part.edges));
        Self {
            oldest: parts.first().map_or(0, |part| part.oldest),
            newest: parts.last().map_or(0, |part| part.newest),
            count: parts.iter().map(|part| part.count).sum(),
            edges: edges.into(),
            parts: Parts::Blocks(parts.into()),
        }
    }

    /// The newest number of a tombstone that spans `key`; 0 if there is none.
    fn newest_at(&self, key: &[u8]) -> SeqNo {
        let started = self.edges.partition_point(|edge| *edge.key <= *key);
        started.checked_sub(1).map_or(0, |last| self.edges[last].seqno)
    }

    /// The edges from which on keys from `first` to `last` are deleted, each with the next one. What is between the two
    /// may reach beyond these keys.
    fn deleted(&self, (first, last): Within<'_>) -> impl Iterator<Item = (&Edge, Option<&Edge>)> {
        let started = self.edges.partition_point(|edge| first.is_some_and(|first| *edge.key <= *first));
        let edges = &self.edges[started.saturating_sub(1)..];
        let upto = edges.partition_point(|edge| last.is_none_or(|last| *edge.key <= *last));
        let with_next = edges[..upto].iter().enumerate().map(move |(at, edge)| (edge, edges.get(at + 1)));
        with_next.filter(|(edge, _)| edge.seqno > 0)
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        let parts = match &self.parts {
            Parts::Tombstones(tombstones) => size_of_val(&**tombstones),
            Parts::Blocks(parts) => parts.iter().map(|part| size_of_val(part) + part.bytes()).sum(),
        };
        size_of_val(self) + size_of_val(&*self.edges) + parts
    }
}

impl From<RangeTombstone> for Tombstone {
    fn from(RangeTombstone { start, end, seqno }: RangeTombstone) -> Self {
        Self { start: start.into(), end: end.map(Arc::from), seqno }
    }
}

impl Tombstone {
    fn contains(&self, key: &[u8]) -> bool {
        *self.start <= *key && self.end.as_deref().is_none_or(|end| key < end)
    }

    /// The part in these keys, of which the last one is exclusive; `None` if there is none.
    fn clipped(&self, (start, end): Within<'_>) -> Option<RangeTombstone> {
        let from = start.map_or(&*self.start, |start| start.max(&*self.start));
        let to = smaller_end(self.end.as_deref(), end);
        let is_empty = to.is_some_and(|to| to <= from);
        (!is_empty).then(|| RangeTombstone { start: from.into(), end: to.map(Box::from), seqno: self.seqno })
    }
}

fn edges_of(tombstones: &[Tombstone]) -> Vec<Edge> {
    match tombstones {
        [] => Vec::new(),
        [Tombstone { start, end: Some(end), .. }] if end <= start => Vec::new(),
        [Tombstone { start, end, seqno }] => {
            let start = Edge { key: Arc::clone(start), seqno: *seqno };
            let end = end.as_ref().map(|end| Edge { key: Arc::clone(end), seqno: 0 });
            [Some(start), end].into_iter().flatten().collect()
        }
        more => {
            let (older, newer) = more.split_at(more.len() / 2);
            overlaid(&edges_of(older), &edges_of(newer))
        }
    }
}

/// The edges of two blocks together. At each key that is the larger number, whichever of them is newer.
fn overlaid(older: &[Edge], newer: &[Edge]) -> Vec<Edge> {
    let mut edges: Vec<Edge> = Vec::with_capacity(older.len() + newer.len());
    let (mut older, mut newer) = (older.iter().peekable(), newer.iter().peekable());
    // The numbers from the last key on.
    let (mut below, mut above): (SeqNo, SeqNo) = (0, 0);
    loop {
        let order = match (older.peek(), newer.peek()) {
            (Some(older), Some(newer)) => older.key.cmp(&newer.key),
            (older, newer) => older.is_none().cmp(&newer.is_none()),
        };
        let from_older = if order.is_le() { older.next() } else { None };
        let from_newer = if order.is_ge() { newer.next() } else { None };
        let Some(Edge { key, .. }) = from_older.or(from_newer) else { return edges };
        below = from_older.map_or(below, |edge| edge.seqno);
        above = from_newer.map_or(above, |edge| edge.seqno);
        let seqno = below.max(above);
        if edges.last().map_or(0, |last| last.seqno) != seqno {
            edges.push(Edge { key: Arc::clone(key), seqno });
        }
    }
}
