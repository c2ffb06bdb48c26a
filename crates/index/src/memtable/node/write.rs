//! How the writer creates and changes nodes. Only the thread that holds the arena may call these functions.

use std::{
    marker::PhantomData,
    ptr,
    sync::atomic::{
        AtomicPtr, AtomicU64,
        Ordering::{Relaxed, Release},
    },
};

use super::{Found, Inner, Leaf, Node, NodeHead, Place, Truncation, slice_at};
use crate::memtable::{
    arena::Arena,
    entry::Key,
    order::{Order, SLOTS},
};

impl<'m> Node<'m> {
    /// A leaf with the keys of `head`.
    ///
    /// # Safety
    /// The arena lives at least as long as `'m`.
    pub(in super::super) unsafe fn new_leaf(arena: &mut Arena, head: NodeHead, next: Option<Self>) -> Self {
        let pointer = |node: Option<Self>| AtomicPtr::new(node.map_or(ptr::null_mut(), |node| node.head.as_ptr()));
        let leaf = Leaf { head, next: pointer(next), successor: pointer(None) };
        let space = arena.node_space(size_of::<Leaf>()).cast::<Leaf>();
        // SAFETY: nobody else has the space; it is large enough and aligned.
        unsafe { space.write(leaf) };
        Self { head: space.cast(), life: PhantomData }
    }

    /// An inner node with the keys of `head` and one more child than keys.
    ///
    /// # Safety
    /// The arena lives at least as long as `'m`.
    pub(in super::super) unsafe fn new_inner(arena: &mut Arena, head: NodeHead, children: &[Self]) -> Self {
        let pointer = |at: usize| children.get(at).map_or(ptr::null_mut(), |child| child.head.as_ptr());
        let inner = Inner { head, children: std::array::from_fn(|at| AtomicPtr::new(pointer(at))) };
        let space = arena.node_space(size_of::<Inner>()).cast::<Inner>();
        // SAFETY: nobody else has the space; it is large enough and aligned.
        unsafe { space.write(inner) };
        Self { head: space.cast(), life: PhantomData }
    }

    /// Whether the sought key can be added here.
    #[inline]
    pub(in super::super) fn has_room_for(self, place: Place) -> bool {
        place.order.len() < SLOTS && place.found == Found::Nothing
    }

    /// Adds `key` to a leaf at its place.
    #[inline]
    pub(in super::super) fn add_key(self, place: Place, key: Key<'m>) {
        self.fill_slot(place.order.len(), key);
        self.publish(place.order.with_next_slot_at(place.rank));
    }

    /// Replaces the child at `place` with two children and `key` between them.
    pub(in super::super) fn add_child(self, place: Place, left: Self, key: Key<'m>, right: Self) {
        let slot = place.order.len();
        self.fill_slot(slot, key);
        self.inner().children[slot + 1].store(right.head.as_ptr(), Relaxed);
        self.publish(place.order.with_next_slot_at(place.rank));
        // After the order, not before: see `child`.
        self.replace_child(place.order, place.rank, left);
    }

    /// Replaces a child with another for the same key range.
    pub(in super::super) fn replace_child(self, order: Order, position: usize, child: Self) {
        // Release: a reader that sees the child sees its content, and the order published before.
        self.inner().child_cell(order, position).store(child.head.as_ptr(), Release);
    }

    /// Links this replaced leaf to the leaf that took its place, for readers that arrive through an old link.
    pub(in super::super) fn set_successor(self, leaf: Self) {
        self.leaf().successor.store(leaf.head.as_ptr(), Release);
    }

    #[inline]
    fn fill_slot(self, slot: usize, key: Key<'m>) {
        let head = self.head();
        head.slices[slot].store(slice_at(key.bytes(), head.prefix_len), Relaxed);
        head.keys[slot].store(key.as_ptr(), Relaxed);
    }

    #[inline]
    fn publish(self, order: Order) {
        // Release: a reader that sees the order sees the slots it names.
        self.head().order.store(order.to_word(), Release);
    }
}

impl NodeHead {
    /// A head with `keys`, in order, and their slices.
    pub(in super::super) fn new(level: u8, keys: &[Key<'_>], slices: &[u64], truncation: Truncation) -> Self {
        let pointer = |at: usize| keys.get(at).map_or(ptr::null_mut(), |key| key.as_ptr());
        Self {
            order: AtomicU64::new(Order::ascending(keys.len()).to_word()),
            prefix_len: truncation.prefix_len,
            level,
            trust: truncation.trust,
            made_len: keys.len() as u8,
            slices: std::array::from_fn(|at| AtomicU64::new(slices.get(at).copied().unwrap_or(0))),
            keys: std::array::from_fn(|at| AtomicPtr::new(pointer(at))),
        }
    }
}
