//! The index of a table: a fence and the place of each data block.
//!
//! ```text
//! index    nodes of the upper levels, top first │ leaf per block │ tail end u32 per block │
//!          prefix │ tail │ … │ prefix length u32 │ blocks u32
//! node     head u64 × 8, padded with the largest number
//! leaf     head u64 │ end of the block u64
//! ```
//!
//! The **fence** of a block is a key not less than any in it and less than all keys of later blocks; it is equal to
//! the first of the next block only where the versions of one key straddle the two. Of each fence the part that all
//! have in common is stored once, the next eight bytes as a [`head`], and whatever is behind the common part as a
//! tail, which is looked at only where heads tie.
//!
//! Over the leaves stand levels of nodes, a node being one cache line: each number is the largest head of eight
//! below. A search of 4 096 blocks touches four nodes and a leaf's two lines, where a binary search touches ten
//! lines; and the upper nodes of all tables together fit the processor's cache. Everything is searched as it stands
//! in the file, so an index that comes through the cache costs no decoding.

use std::cmp::Ordering;

use bifold_contract::Corruption;

use super::Place;
use crate::block::heads::{Rest, common_prefix, head, rest, ties};

/// Heads in a node: one cache line.
const FANOUT: usize = 8;

/// Levels above 2³² leaves.
const LEVELS_MAX: usize = 11;

/// Bytes per block without the tail of its fence: a leaf and the tail's end.
const BLOCK_BYTES: usize = 16 + 4;

/// Bytes of the numbers at the end.
const FIXED_TAIL_BYTES: usize = 8;

/// Collects the fences of a table.
#[derive(Clone, Debug, Default)]
pub struct IndexBuilder {
    fences: Vec<u8>,
    fence_ends: Vec<usize>,
    /// Where each block ends in the file.
    block_ends: Vec<u64>,
}

impl IndexBuilder {
    /// Adds the block that ends at `block_end` of the file.
    pub fn add(&mut self, fence: &[u8], block_end: u64) {
        self.fences.extend_from_slice(fence);
        self.fence_ends.push(self.fences.len());
        self.block_ends.push(block_end);
    }

    /// An upper bound on the size of the index if it were finished now.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        // Each upper level has an eighth of the heads below it plus less than one node of padding: a seventh in all.
        let nodes = self.blocks() * 8 / 7 + LEVELS_MAX * FANOUT * 8;
        self.fences.len() + self.blocks() * BLOCK_BYTES + nodes + FIXED_TAIL_BYTES
    }

    /// How many blocks there are.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.block_ends.len()
    }

    /// The fence and the end of each block.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&[u8], u64)> {
        (0..self.blocks()).map(|block| (self.fence(block), self.block_ends[block]))
    }

    fn fence(&self, block: usize) -> &[u8] {
        let start = if block == 0 { 0 } else { self.fence_ends[block - 1] };
        &self.fences[start..self.fence_ends[block]]
    }

    /// Appends the index to `out`.
    ///
    /// # Panics
    /// If there are no blocks, or [`IndexBuilder::bytes_max`] is 4 GiB or more.
    pub fn finish(&self, out: &mut Vec<u8>) {
        assert!(self.bytes_max() < u32::MAX as usize, "an index of {} bytes", self.bytes_max());
        let blocks = self.blocks();
        let prefix = common_prefix(self.fence(0), self.fence(blocks - 1));
        out.reserve(self.bytes_max());
        let heads: Vec<u64> = (0..blocks).map(|block| head(&self.fence(block)[prefix..])).collect();
        for level in levels_over(&heads).iter().rev() {
            let filled = level.iter().copied().chain(std::iter::repeat(u64::MAX));
            filled
                .take(level.len().next_multiple_of(FANOUT))
                .for_each(|head| out.extend_from_slice(&head.to_le_bytes()));
        }
        for (head, end) in heads.iter().zip(&self.block_ends) {
            out.extend_from_slice(&head.to_le_bytes());
            out.extend_from_slice(&end.to_le_bytes());
        }
        let mut tails_end = 0;
        for block in 0..blocks {
            tails_end += (self.fence(block).len() - prefix) as u32;
            out.extend_from_slice(&tails_end.to_le_bytes());
        }
        out.extend_from_slice(&self.fence(0)[..prefix]);
        (0..blocks).for_each(|block| out.extend_from_slice(&self.fence(block)[prefix..]));
        out.extend_from_slice(&(prefix as u32).to_le_bytes());
        out.extend_from_slice(&(blocks as u32).to_le_bytes());
    }
}

/// The levels above these heads, from the lowest to one of a single node.
fn levels_over(heads: &[u64]) -> Vec<Vec<u64>> {
    let mut levels: Vec<Vec<u64>> = Vec::new();
    let mut below = heads;
    while below.len() > FANOUT {
        let largest = below.chunks(FANOUT).map(|node| node[node.len() - 1]).collect();
        levels.push(largest);
        below = &levels[levels.len() - 1];
    }
    levels
}

/// A head and where the block ends.
type Leaf = [[u8; 8]; 2];

/// Where the parts of an index stand in its bytes.
#[derive(Clone, Copy, Debug)]
pub struct IndexLayout {
    blocks: usize,
    prefix_len: usize,
    /// Upper levels, and nodes in them.
    levels: u32,
    nodes: usize,
}

impl IndexLayout {
    /// The layout of the index that [`IndexBuilder::finish`] wrote. The time does not depend on its size.
    ///
    /// # Errors
    /// If the bytes are not an index.
    #[inline]
    pub fn of(bytes: &[u8]) -> Result<Self, Corruption> {
        let layout = Self::read(bytes).filter(|layout| {
            let index = layout.split(bytes);
            index.is_some_and(|index| index.tail_end(layout.blocks - 1) == Some(index.tails.len()))
        });
        layout.ok_or_else(|| not_an_index(bytes))
    }

    #[inline]
    fn read(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, d, e, f, g, h] = *bytes.last_chunk::<FIXED_TAIL_BYTES>()?;
        let prefix_len = u32::from_le_bytes([a, b, c, d]) as usize;
        let blocks = u32::from_le_bytes([e, f, g, h]) as usize;
        let (mut levels, mut nodes, mut len) = (0, 0, blocks);
        while len > FANOUT {
            len = len.div_ceil(FANOUT);
            levels += 1;
            nodes += len.div_ceil(FANOUT);
        }
        (blocks > 0).then_some(Self { blocks, prefix_len, levels, nodes })
    }

    /// The index in `bytes`, which are those of [`IndexLayout::of`]. Looks at none of them: a search that has the
    /// layout does not wait for the numbers at their end.
    ///
    /// # Errors
    /// If they are shorter than those.
    #[inline]
    pub fn index(self, bytes: &[u8]) -> Result<Index<'_>, Corruption> {
        self.split(bytes).ok_or_else(|| not_an_index(bytes))
    }

    #[inline]
    fn split(self, bytes: &[u8]) -> Option<Index<'_>> {
        let Self { blocks, prefix_len, levels, nodes } = self;
        let rest = &bytes[..bytes.len().checked_sub(FIXED_TAIL_BYTES)?];
        let (upper, rest) = rest.split_at_checked(nodes * FANOUT * 8)?;
        let (leaves, rest) = rest.split_at_checked(blocks.checked_mul(16)?)?;
        let (tail_ends, rest) = rest.split_at_checked(blocks * 4)?;
        let (prefix, tails) = rest.split_at_checked(prefix_len)?;
        Some(Index {
            upper: upper.as_chunks().0.as_chunks().0,
            levels,
            leaves: leaves.as_chunks().0.as_chunks().0,
            tail_ends: tail_ends.as_chunks().0,
            prefix,
            tails,
            first: 0,
        })
    }
}

#[cold]
fn not_an_index(bytes: &[u8]) -> Corruption {
    let end = &bytes[bytes.len().saturating_sub(FIXED_TAIL_BYTES)..];
    let found = format!("{} bytes ending in {end:02x?}", bytes.len());
    Corruption::new(0, "table index", "nodes, leaves and fences of its blocks", found)
}

/// An index to search.
#[derive(Clone, Copy, Debug)]
pub struct Index<'a> {
    upper: &'a [[[u8; 8]; FANOUT]],
    /// Upper levels.
    levels: u32,
    leaves: &'a [Leaf],
    tail_ends: &'a [[u8; 4]],
    prefix: &'a [u8],
    tails: &'a [u8],
    /// Where the first block begins.
    first: u64,
}

impl<'a> Index<'a> {
    /// The index that [`IndexBuilder::finish`] wrote. The time does not depend on its size.
    ///
    /// # Errors
    /// If the bytes are not an index.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Corruption> {
        IndexLayout::of(bytes)?.index(bytes)
    }

    /// The same index of blocks that begin at `first` of the file.
    #[must_use]
    pub(super) fn beginning_at(self, first: u64) -> Self {
        Self { first, ..self }
    }

    /// The first block whose fence is not less than `key`: the first that may hold the key. [`Index::blocks`] when
    /// there is none.
    #[inline]
    #[must_use]
    pub fn find(&self, key: &[u8]) -> usize {
        let rest = match rest(key, self.prefix) {
            Rest::Before => return 0,
            Rest::After => return self.blocks(),
            Rest::Of(rest) => rest,
        };
        let sought = head(rest);
        let less = self.count_less(sought);
        let mut open = less..less + ties(&self.leaves[less..], |leaf| u64::from_le_bytes(leaf[0]) == sought);
        while !open.is_empty() {
            let middle = open.start + open.len() / 2;
            if self.tail(middle).unwrap_or_default() < rest { open.start = middle + 1 } else { open.end = middle }
        }
        open.start
    }

    /// How many leaves have a smaller head.
    #[inline]
    fn count_less(&self, sought: u64) -> usize {
        let (mut at, mut first_node) = (0, 0);
        for level in (1..=self.levels).rev() {
            let Some(node) = self.upper.get(first_node + at) else { return self.blocks() };
            // No branch depends on the heads: the count is a sum of eight comparisons.
            at = at * FANOUT + node.iter().map(|head| usize::from(u64::from_le_bytes(*head) < sought)).sum::<usize>();
            // Heads in this level: one for each node of the level below.
            let len = self.blocks().div_ceil(1 << (FANOUT.ilog2() * level));
            first_node += len.div_ceil(FANOUT);
            if at >= len {
                return self.blocks();
            }
        }
        let start = (at * FANOUT).min(self.blocks());
        let leaves = &self.leaves[start..self.blocks().min(start + FANOUT)];
        start + leaves.iter().map(|leaf| usize::from(u64::from_le_bytes(leaf[0]) < sought)).sum::<usize>()
    }

    /// The place of a block; `None` past the last block, and where offsets do not ascend.
    #[inline]
    #[must_use]
    pub fn place(&self, block: usize) -> Option<Place> {
        let end_of = |at: usize| self.leaves.get(at).map(|leaf| u64::from_le_bytes(leaf[1]));
        let start = if block == 0 { self.first } else { end_of(block - 1)? };
        let end = end_of(block)?;
        (start < end).then_some(Place { start, end })
    }

    /// How many blocks there are.
    #[inline]
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.leaves.len()
    }

    /// The fence of a block.
    #[must_use]
    pub fn fence(&self, block: usize) -> Option<Vec<u8>> {
        Some([self.prefix, self.tail(block)?].concat())
    }

    /// How the fence of a block compares with `key`; `None` past the last block.
    #[must_use]
    pub fn compare_fence(&self, block: usize, key: &[u8]) -> Option<Ordering> {
        let tail = self.tail(block)?;
        Some(match rest(key, self.prefix) {
            Rest::Before => Ordering::Greater,
            Rest::After => Ordering::Less,
            Rest::Of(rest) => tail.cmp(rest),
        })
    }

    /// Whether a search finds each block by its fence: whether the heads of leaves and nodes match the fences.
    #[must_use]
    pub fn heads_match(&self) -> bool {
        let heads: Vec<u64> = self.leaves.iter().map(|leaf| u64::from_le_bytes(leaf[0])).collect();
        let of_fences = (0..self.blocks()).all(|block| self.tail(block).map(head) == Some(heads[block]));
        let filled = |level: Vec<u64>| {
            let len = level.len().next_multiple_of(FANOUT);
            level.into_iter().chain(std::iter::repeat(u64::MAX)).take(len)
        };
        let expected = levels_over(&heads).into_iter().rev().flat_map(filled);
        of_fences && expected.eq(self.upper.as_flattened().iter().map(|head| u64::from_le_bytes(*head)))
    }

    fn tail_end(&self, block: usize) -> Option<usize> {
        self.tail_ends.get(block).map(|end| u32::from_le_bytes(*end) as usize)
    }

    #[inline]
    fn tail(&self, block: usize) -> Option<&'a [u8]> {
        let start = if block == 0 { 0 } else { self.tail_end(block - 1)? };
        self.tails.get(start..self.tail_end(block)?)
    }
}

/// A short key `k` with `last <= k < next`. `next` must be greater than `last`.
#[must_use]
pub fn separator<'a>(last: &'a [u8], next: &'a [u8]) -> &'a [u8] {
    let shared = common_prefix(last, next);
    // Cut one byte behind what both share, `next` is greater than `last`, and less than `next` unless nothing was
    // cut. If `last` is what both share it is shorter still.
    if shared < last.len() && shared + 1 < next.len() { &next[..=shared] } else { last }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        let tail = prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(255)], 0..12);
        let head = prop_oneof![Just("user:0000"), Just("us"), Just("")];
        (head, tail).prop_map(|(head, tail)| [head.as_bytes(), &tail].concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_search_finds_what_counting_finds(mut fences in prop::collection::vec(key(), 1..700), probe in key()) {
            fences.sort();
            let mut builder = IndexBuilder::default();
            (1u64..).zip(&fences).for_each(|(at, fence)| builder.add(fence, at * at));
            let mut bytes = Vec::new();
            builder.finish(&mut bytes);
            prop_assert!(bytes.len() <= builder.bytes_max());
            let index = Index::parse(&bytes).unwrap();
            prop_assert_eq!(index.blocks(), fences.len());
            prop_assert!(index.heads_match());
            for probe in fences.iter().step_by(7).chain([&probe]) {
                prop_assert_eq!(index.find(probe), fences.iter().filter(|f| *f < probe).count());
            }
            for (at, fence) in fences.iter().enumerate() {
                prop_assert_eq!(index.fence(at).unwrap(), &fence[..]);
                prop_assert_eq!(index.compare_fence(at, &probe), Some(fence.cmp(&probe)));
                let (start, end) = ((at * at) as u64, ((at + 1) * (at + 1)) as u64);
                prop_assert_eq!(index.place(at), Some(Place { start, end }));
            }
            prop_assert_eq!(index.place(fences.len()), None);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_search_panic(mut bytes: Vec<u8>, prefix in 0u8..4, blocks in 0u8..4, key in key()) {
            bytes.extend_from_slice(&[prefix, 0, 0, 0, blocks, 0, 0, 0]);
            if let Ok(index) = Index::parse(&bytes) {
                let _any_answer = (index.place(index.find(&key)), index.fence(0), index.heads_match());
            }
        }

        #[test]
        fn separators_separate(a in prop::collection::vec(0u8..3, 0..6), b in prop::collection::vec(0u8..3, 0..6)) {
            let (last, next) = (a.clone().min(b.clone()), a.max(b));
            prop_assume!(last < next);
            let fence = separator(&last, &next);
            prop_assert!(last[..] <= *fence && *fence < next[..] && fence.len() <= last.len());
        }
    }
}
