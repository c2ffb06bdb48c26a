//! The nodes of the tree: search, and insertion concurrent with readers.
//!
//! ```text
//! head    order: 8 │ prefix_len: 4 │ level, trust, made_len: 4 │ 14 slices: 112 │ 14 keys: 112
//! leaf    head: 240 │ next: 8 │ successor: 8                 = 256 B, four cache lines
//! inner   head: 240 │ 15 children: 120 │ unused: 24          = 384 B, six
//! ```
//!
//! Slots are filled in the order of arrival and never a second time. One word, [`Order`], says which slots are in use
//! and their key order. An insertion fills the next slot, then publishes the word that names it. A reader loads the
//! word once and sees a node that never changes.
//!
//! All keys routed to a node share their first `prefix_len` bytes. The *slice* of a key is the next eight bytes as a
//! big-endian number, padded with zeros. Comparing slices decides nearly every search, so the search does not load
//! keys. If slices are equal the whole keys are compared, because "a" and "a\0" have the same slice.
//!
//! The prefix mostly comes from the *fences*, the separators left and right of the node: every string between two
//! strings has their common prefix ([`Trust::Fences`]). At the edges of the tree, or where the existing keys share
//! much more than the fences, it is a longer prefix of all existing keys ([`Trust::Members`]). Searches compare that
//! prefix, and a key without it makes the writer replace the node.

use std::{
    cmp::Ordering::{Equal, Greater, Less},
    marker::PhantomData,
    ptr::NonNull,
    sync::atomic::{
        AtomicPtr, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use super::{
    entry::{Key, KeyHead},
    order::{Order, SLOTS},
};
use crate::cpu::{LINE_BYTES, prefetch_lines};

/// Why the keys of a node share its prefix.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// All keys routed to the node have it.
    Fences,
    /// All existing keys of the node have it.
    Members,
}

/// How a node shortens its keys.
#[derive(Clone, Copy)]
pub(super) struct Truncation {
    pub(super) prefix_len: u32,
    pub(super) trust: Trust,
}

/// What leaves and inner nodes have in common.
#[repr(C)]
pub(super) struct NodeHead {
    order: AtomicU64,
    prefix_len: u32,
    /// 0 for leaves.
    level: u8,
    trust: Trust,
    /// How many keys it was created with.
    made_len: u8,
    slices: [AtomicU64; SLOTS],
    keys: [AtomicPtr<KeyHead>; SLOTS],
}

#[repr(C, align(64))]
struct Leaf {
    head: NodeHead,
    /// The next leaf, or one that has since been replaced.
    next: AtomicPtr<NodeHead>,
    /// The leaf that replaced this one: it starts at the same key.
    successor: AtomicPtr<NodeHead>,
}

#[repr(C, align(64))]
struct Inner {
    head: NodeHead,
    /// The child left of all keys, then the child right of each slot's key.
    children: [AtomicPtr<NodeHead>; SLOTS + 1],
}

const LEAF_LINES: usize = 4;
const INNER_LINES: usize = 6;
const _: () = assert!(size_of::<Leaf>() == LEAF_LINES * LINE_BYTES && size_of::<Inner>() == INNER_LINES * LINE_BYTES);

/// A node in an arena that outlives `'m`.
///
/// Every pointer in a node leads to a complete node or key of the same arena and may be followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Node<'m> {
    head: NonNull<NodeHead>,
    life: PhantomData<&'m NodeHead>,
}

/// The position of a key in a node, or where it would be.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The node as it was searched.
    pub(super) order: Order,
    /// The number of smaller keys.
    pub(super) rank: usize,
    pub(super) found: Found,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// The key at `rank` is the sought key.
    Exact,
    /// The node does not have it.
    Nothing,
    /// The node does not have it and cannot take it: the key lacks the prefix.
    Foreign,
}

impl<'m> Node<'m> {
    /// Searches for `key`, which must be routed to this node.
    #[inline]
    pub(super) fn search(self, key: &[u8]) -> Place {
        let head = self.head();
        let order = self.order();
        let len = order.len();
        if head.trust == Trust::Members
            && let Some(rank) = self.rank_of_foreign(key, len)
        {
            return Place { order, rank, found: Found::Foreign };
        }
        let slice = slice_at(key, head.prefix_len);
        // All slots in memory order, without a branch to mispredict: faster than four steps of a binary search. Slots
        // beyond the length may contain anything and are masked out.
        let mut smaller = 0_u32;
        for (slot, other) in head.slices.iter().enumerate() {
            smaller |= u32::from(other.load(Relaxed) < slice) << slot;
        }
        let rank = (smaller & ((1 << len) - 1)).count_ones() as usize;
        if rank < len && head.slices[order.slot(rank)].load(Relaxed) == slice {
            return self.search_among_equals(key, order, rank, slice);
        }
        Place { order, rank, found: Found::Nothing }
    }

    /// Searches the keys from `first` on that have the same slice as `key`.
    fn search_among_equals(self, key: &[u8], order: Order, first: usize, slice: u64) -> Place {
        let (mut low, mut high) = (first, first + 1);
        while high < order.len() && self.head().slices[order.slot(high)].load(Relaxed) == slice {
            high += 1;
        }
        while low < high {
            let middle = usize::midpoint(low, high);
            match key.cmp(self.key_at(order, middle).bytes()) {
                Equal => return Place { order, rank: middle, found: Found::Exact },
                Less => high = middle,
                Greater => low = middle + 1,
            }
        }
        Place { order, rank: low, found: Found::Nothing }
    }

    /// The rank of a key that lacks the node's prefix: before all keys or after all.
    fn rank_of_foreign(self, key: &[u8], len: usize) -> Option<usize> {
        let prefix_len = self.head().prefix_len as usize;
        let model = self.key_in(0).bytes();
        match key[..key.len().min(prefix_len)].cmp(&model[..prefix_len]) {
            Less => Some(0),
            Equal => None,
            Greater => Some(len),
        }
    }

    /// The current order.
    #[inline]
    pub(super) fn order(self) -> Order {
        // Acquire: the named slots are filled.
        Order::from_word(self.head().order.load(Acquire))
    }

    /// The key at `rank` of `order`, which is or was this node's order.
    #[inline]
    pub(super) fn key_at(self, order: Order, rank: usize) -> Key<'m> {
        self.key_in(order.slot(rank))
    }

    /// The key in a slot that an order loaded from this node names. All of them name slot 0.
    #[inline]
    fn key_in(self, slot: usize) -> Key<'m> {
        let key = self.head().keys[slot].load(Relaxed);
        // SAFETY: the slot was filled with a complete key of this arena before the order that names it was published.
        unsafe { Key::from_ptr(NonNull::new_unchecked(key)) }
    }

    /// The child at the position (from 0) that `choose` returns, and that position.
    ///
    /// A split publishes the order that names the new right half, **then** replaces the child with the left half. A
    /// reader between the two finds the old child, which has all keys of both. But a reader that loads the order
    /// before the first step and the child after the second would look for a key of the right half in the left half.
    /// So the order is loaded again: a reader that acquires the left half sees the order published before it, and
    /// starts again. This happens at most once per change of the node, so a reader never waits for a stalled writer.
    #[inline]
    pub(super) fn child(self, mut choose: impl FnMut(Self) -> (Order, usize)) -> (Self, usize) {
        let inner = self.inner();
        loop {
            let (order, position) = choose(self);
            let child = inner.child_cell(order, position).load(Acquire);
            // Prefetch all lines at once, long before the search gets from the first to the last.
            prefetch_lines(child.cast(), if inner.head.level == 1 { LEAF_LINES } else { INNER_LINES });
            if Order::from_word(inner.head.order.load(Relaxed)) == order {
                // SAFETY: only complete nodes of this arena are stored there, and Acquire makes their content
                // visible.
                return (unsafe { Self::from_ptr(NonNull::new_unchecked(child)) }, position);
            }
        }
    }

    /// The child at `position` of `order`, which is this node's current order.
    pub(super) fn child_at(self, order: Order, position: usize) -> Self {
        let child = self.inner().child_cell(order, position).load(Acquire);
        // SAFETY: only complete nodes of this arena are stored there, and Acquire makes their content visible.
        unsafe { Self::from_ptr(NonNull::new_unchecked(child)) }
    }

    /// The leaf after this one.
    ///
    /// A replaced leaf keeps its links, and the writer does not update links to it. Both are harmless. A leaf's lower
    /// fence never changes, so "the leaf that starts at f" stays a valid address, and `successor` leads from a
    /// replaced leaf to the one that starts at the same fence. A reader still inside a replaced leaf misses only what
    /// was added after the replacement, that is, after the reader arrived.
    pub(super) fn next(self) -> Option<Self> {
        let link = &self.leaf().next;
        let first = link.load(Acquire);
        let mut next = NonNull::new(first)?;
        loop {
            // SAFETY: as in `child`.
            let node = unsafe { Self::from_ptr(next) };
            let Some(successor) = NonNull::new(node.leaf().successor.load(Acquire)) else { break };
            next = successor;
        }
        if next.as_ptr() != first {
            // Shortens the way for other readers. If two readers do this at once, the better link may be lost, which
            // is harmless.
            link.store(next.as_ptr(), Release);
        }
        // SAFETY: as in `child`.
        Some(unsafe { Self::from_ptr(next) })
    }

    /// The node at a pointer.
    ///
    /// # Safety
    /// The pointer comes from [`Node::as_ptr`] of a node in an arena that outlives `'m`, and what that node's thread
    /// wrote before is visible to this one.
    #[inline]
    pub(super) unsafe fn from_ptr(head: NonNull<NodeHead>) -> Self {
        Self { head, life: PhantomData }
    }

    #[inline]
    pub(super) fn as_ptr(self) -> *mut NodeHead {
        self.head.as_ptr()
    }

    #[inline]
    pub(super) fn is_leaf(self) -> bool {
        self.level() == 0
    }

    /// Its height above the leaves.
    #[inline]
    pub(super) fn level(self) -> u8 {
        self.head().level
    }

    /// How it shortens its keys.
    pub(super) fn truncation(self) -> Truncation {
        Truncation { prefix_len: self.head().prefix_len, trust: self.head().trust }
    }

    /// How many keys were added since it was created.
    pub(super) fn added_len(self, order: Order) -> usize {
        order.len() - usize::from(self.head().made_len)
    }

    /// The slice of the key at `rank` of `order`, which is or was this node's order.
    pub(super) fn slice_at(self, order: Order, rank: usize) -> u64 {
        self.head().slices[order.slot(rank)].load(Relaxed)
    }

    #[inline]
    fn head(self) -> &'m NodeHead {
        // SAFETY: a `Node` refers to an initialised head that outlives `'m` and changes only through atomics.
        unsafe { self.head.as_ref() }
    }

    #[inline]
    fn leaf(self) -> &'m Leaf {
        debug_assert!(self.is_leaf());
        // SAFETY: `new_leaf` created the nodes of level 0; otherwise as in `head`.
        unsafe { self.head.cast().as_ref() }
    }

    #[inline]
    fn inner(self) -> &'m Inner {
        debug_assert!(!self.is_leaf());
        // SAFETY: `new_inner` created the nodes of other levels; otherwise as in `head`.
        unsafe { self.head.cast().as_ref() }
    }
}

impl Inner {
    #[inline]
    fn child_cell(&self, order: Order, position: usize) -> &AtomicPtr<NodeHead> {
        match position.checked_sub(1) {
            None => &self.children[0],
            Some(rank) => &self.children[order.slot(rank) + 1],
        }
    }
}

/// The eight bytes of `key` from `start` on as a number with the same order, padded with zeros.
#[inline]
pub(super) fn slice_at(key: &[u8], start: u32) -> u64 {
    let rest = key.get(start as usize..).unwrap_or_default();
    match rest.first_chunk::<8>() {
        Some(chunk) => u64::from_be_bytes(*chunk),
        None => rest.iter().enumerate().fold(0, |slice, (at, &byte)| slice | u64::from(byte) << (56 - 8 * at)),
    }
}

mod write;
