//! The nodes of the tree, and how one is searched and added to while others read it.
//!
//! ```text
//! head    order: 8 │ prefix_len: 4 │ level, trust, made_len: 4 │ 14 slices: 112 │ 14 keys: 112
//! leaf    head: 240 │ next: 8 │ successor: 8                 = 256 B, four cache lines
//! inner   head: 240 │ 15 children: 120 │ unused: 24          = 384 B, six
//! ```
//!
//! Slots are filled in the order of arrival and never a second time. Which slots count, and in what order of keys, is
//! one word, [`Order`]: an insertion fills the next slot, then publishes the word that names it. A reader takes the
//! word once and sees a node that never changes.
//!
//! All keys that can come to a node share their first `prefix_len` bytes; the *slice* of a key is the eight bytes after
//! that as a big-endian number, short keys filled up with zeros. Comparing slices decides nearly every search, so keys
//! stay out of the cache; equal slices are settled by the whole keys, because "a" and "a\0" have the same.
//!
//! Where the prefix comes from: mostly from the *fences*, the separators left and right of the node, since what lies
//! between two strings has the prefix these share ([`Trust::Fences`]). At the edges of the tree, or where the keys
//! present share much more than the fences do, it is a longer prefix that has held so far ([`Trust::Members`]);
//! searches compare it, and a key without it makes the writer replace the node.

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
    arena::{LINE_BYTES, prefetch_lines},
    entry::{Key, KeyHead},
    order::{Order, SLOTS},
};

/// Why all keys of a node share its prefix.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// Whatever is routed to the node has it.
    Fences,
    /// Its keys happen to have it.
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
pub(super) struct Head {
    order: AtomicU64,
    prefix_len: u32,
    /// 0 for leaves.
    level: u8,
    trust: Trust,
    /// How many keys it was made with.
    made_len: u8,
    slices: [AtomicU64; SLOTS],
    keys: [AtomicPtr<KeyHead>; SLOTS],
}

#[repr(C, align(64))]
struct Leaf {
    head: Head,
    /// The leaf that follows, or one that has since been replaced.
    next: AtomicPtr<Head>,
    /// What took this leaf's place: the leaf that starts where this one started.
    successor: AtomicPtr<Head>,
}

#[repr(C, align(64))]
struct Inner {
    head: Head,
    /// The child left of all keys, then for each slot the child right of its key.
    children: [AtomicPtr<Head>; SLOTS + 1],
}

const LEAF_LINES: usize = 4;
const INNER_LINES: usize = 6;
const _: () = assert!(size_of::<Leaf>() == LEAF_LINES * LINE_BYTES && size_of::<Inner>() == INNER_LINES * LINE_BYTES);

/// A node in an arena that outlives `'m`.
///
/// Every pointer stored in a node leads to a complete node or key of the same arena; whoever has a `Node<'m>` may
/// follow it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Node<'m> {
    head: NonNull<Head>,
    life: PhantomData<&'m Head>,
}

/// Where a key is in a node, or would be.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The node as it was searched.
    pub(super) order: Order,
    /// How many of its keys are smaller.
    pub(super) rank: usize,
    pub(super) found: Found,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// The key at `rank` is the one sought.
    Exact,
    /// The node does not have it.
    Nothing,
    /// Nor could it take it: it lacks the prefix.
    Foreign,
}

impl<'m> Node<'m> {
    /// Searches for `key`, which must be one that is routed to this node.
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
        // All slots, in the order they lie, without a branch to mispredict: faster than halving the length four times.
        // A slot beyond the length may hold anything, so it is masked out.
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

    /// Searches the keys from `first` on whose slices are that of `key`.
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

    /// The rank of a key that lacks the node's prefix: it is before all or after all.
    fn rank_of_foreign(self, key: &[u8], len: usize) -> Option<usize> {
        let prefix_len = self.head().prefix_len as usize;
        let model = self.key_in(0).bytes();
        match key[..key.len().min(prefix_len)].cmp(&model[..prefix_len]) {
            Less => Some(0),
            Equal => None,
            Greater => Some(len),
        }
    }

    /// The node as it is now.
    #[inline]
    pub(super) fn order(self) -> Order {
        // Acquire: the slots it names are filled.
        Order::from_word(self.head().order.load(Acquire))
    }

    /// The key at `rank` of `order`, which is or was this node's.
    #[inline]
    pub(super) fn key_at(self, order: Order, rank: usize) -> Key<'m> {
        self.key_in(order.slot(rank))
    }

    /// The key in a slot that an order taken from this node names. Slot 0 is named by all of them.
    #[inline]
    fn key_in(self, slot: usize) -> Key<'m> {
        let key = self.head().keys[slot].load(Relaxed);
        // SAFETY: the slot was filled before the order that names it was published, with a key that is complete and of
        // this arena.
        unsafe { Key::from_ptr(NonNull::new_unchecked(key)) }
    }

    /// The child at the position, counted from 0, that `choose` picks, and that position.
    ///
    /// A split publishes the order that names the new right half, **then** puts the left half in the child's place. A
    /// reader between the two finds the old child, which has all keys of both. But a reader that took the order before
    /// the first and the child after the second would look for a key of the right half in the left. So the order is
    /// read again: whoever acquires the left half sees the order that was published before it, and starts anew. This
    /// happens at most once per change of the node, so a reader never waits for a writer that stands still.
    #[inline]
    pub(super) fn child(self, mut choose: impl FnMut(Self) -> (Order, usize)) -> (Self, usize) {
        let inner = self.inner();
        loop {
            let (order, position) = choose(self);
            let child = inner.child_cell(order, position).load(Acquire);
            // All lines at once, long before the search has worked its way from the first to the last.
            prefetch_lines(child.cast(), if inner.head.level == 1 { LEAF_LINES } else { INNER_LINES });
            if Order::from_word(inner.head.order.load(Relaxed)) == order {
                // SAFETY: only complete nodes of this arena are put there, and Acquire shows us that they are complete.
                return (unsafe { Self::from_ptr(NonNull::new_unchecked(child)) }, position);
            }
        }
    }

    /// The child at `position` of `order`, both this node's present ones.
    pub(super) fn child_at(self, order: Order, position: usize) -> Self {
        let child = self.inner().child_cell(order, position).load(Acquire);
        // SAFETY: only complete nodes of this arena are put there, and Acquire shows us that they are complete.
        unsafe { Self::from_ptr(NonNull::new_unchecked(child)) }
    }

    /// The leaf after this one.
    ///
    /// A leaf that is replaced keeps its links, and links to it are not mended by the writer. Both are harmless:
    /// no leaf's lower fence ever changes, so "the leaf that starts at f" stays a valid address, and `successor` leads
    /// from a replaced leaf to the one that starts at the same fence. And a reader still inside a replaced leaf misses
    /// only what came after the replacement, that is, after it arrived.
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
            // Spares the others the way. Should two readers do this at once, the shorter cut may lose: also harmless.
            link.store(next.as_ptr(), Release);
        }
        // SAFETY: as in `child`.
        Some(unsafe { Self::from_ptr(next) })
    }

    /// The node a pointer stands for.
    ///
    /// # Safety
    /// The pointer comes from [`Node::as_ptr`] of a node in an arena that outlives `'m`, and what that node's thread
    /// wrote before is visible to this one.
    #[inline]
    pub(super) unsafe fn from_ptr(head: NonNull<Head>) -> Self {
        Self { head, life: PhantomData }
    }

    #[inline]
    pub(super) fn as_ptr(self) -> *mut Head {
        self.head.as_ptr()
    }

    #[inline]
    pub(super) fn is_leaf(self) -> bool {
        self.level() == 0
    }

    /// How far it is above the leaves.
    #[inline]
    pub(super) fn level(self) -> u8 {
        self.head().level
    }

    /// How it shortens its keys.
    pub(super) fn truncation(self) -> Truncation {
        Truncation { prefix_len: self.head().prefix_len, trust: self.head().trust }
    }

    /// How many keys were added since it was made.
    pub(super) fn added_len(self, order: Order) -> usize {
        order.len() - usize::from(self.head().made_len)
    }

    /// The slice of the key at `rank` of `order`, which is or was this node's.
    pub(super) fn slice_at(self, order: Order, rank: usize) -> u64 {
        self.head().slices[order.slot(rank)].load(Relaxed)
    }

    #[inline]
    fn head(self) -> &'m Head {
        // SAFETY: a `Node` stands for an initialised head that outlives `'m` and changes only through atomics.
        unsafe { self.head.as_ref() }
    }

    #[inline]
    fn leaf(self) -> &'m Leaf {
        debug_assert!(self.is_leaf());
        // SAFETY: nodes of level 0 were made by `new_leaf`; otherwise as in `head`.
        unsafe { self.head.cast().as_ref() }
    }

    #[inline]
    fn inner(self) -> &'m Inner {
        debug_assert!(!self.is_leaf());
        // SAFETY: nodes of other levels were made by `new_inner`; otherwise as in `head`.
        unsafe { self.head.cast().as_ref() }
    }
}

impl Inner {
    #[inline]
    fn child_cell(&self, order: Order, position: usize) -> &AtomicPtr<Head> {
        match position.checked_sub(1) {
            None => &self.children[0],
            Some(rank) => &self.children[order.slot(rank) + 1],
        }
    }
}

/// The eight bytes of `key` from `start` on as a number that orders as they do, filled up with zeros.
#[inline]
pub(super) fn slice_at(key: &[u8], start: u32) -> u64 {
    let rest = key.get(start as usize..).unwrap_or_default();
    match rest.first_chunk::<8>() {
        Some(chunk) => u64::from_be_bytes(*chunk),
        None => rest.iter().enumerate().fold(0, |slice, (at, &byte)| slice | u64::from(byte) << (56 - 8 * at)),
    }
}

mod write;
