//! The tree: descents for readers, insertion for the single writer.
//!
//! A B+-tree in which nodes are replaced and never freed. A full node becomes two new ones; the old one stays
//! unchanged (*frozen*) for readers inside it until the arena is dropped. Keys are never removed, and a separator is
//! the first key of the leaf right of it. So every leaf has a key, and every leaf except the first has a key equal to
//! its lower fence.
//!
//! **A reader sees everything that was published before it started.** A node is *current* until it is replaced. By
//! induction, each node that a reader visits was current at some moment after the reader started, so it has all keys
//! of its range that were inserted before:
//! - The root pointer changes before an insertion is published. The reader started after that, so it finds that root
//!   or a newer one.
//! - In a node that was current after the start, the reader finds the order and the child of that moment, or newer
//!   ones. If the node was frozen since, its child was current at that time, which is also after the start. Order and
//!   child match: see [`Node::child`].
//! - The link to the next leaf leads to a leaf that is current or was current at that moment: see [`Node::next`].
//!
//! Everything newer that it sees has higher sequence numbers, which its snapshot ignores.

use std::{
    ptr::{self, NonNull},
    sync::atomic::{AtomicPtr, Ordering},
};

use bifold_contract::Entry;

use super::{
    arena::Arena,
    entry::Key,
    node::{Found, Node, NodeHead, Place},
    order::{Order, SLOTS},
    rewrite::{Fences, Rewrite, first_head, root_head},
};

/// More levels than memory can fill. A split that creates a node with few keys also creates a full one and takes six
/// insertions (see [`Rewrite::left_len`]), so on average a node has at least four children: 4^24 leaves.
const MAX_LEVELS: usize = 24;

/// Keys in order. They are in an arena that lives as long as the tree.
pub(super) struct Tree {
    root: AtomicPtr<NodeHead>,
}

/// What an insertion added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Added {
    Key,
    Version,
    /// A version that is a step.
    Step,
}

/// The inner nodes on the way to a leaf, each with the position of the child.
struct Path<'m> {
    steps: [Option<(Node<'m>, usize)>; MAX_LEVELS],
    len: usize,
}

/// The replacement of a node. `shared_len` is for a new root above two nodes.
enum Replacement<'m> {
    One(Node<'m>),
    Two { left: Node<'m>, separator: Key<'m>, right: Node<'m>, shared_len: usize },
}

impl Tree {
    pub(super) const fn new() -> Self {
        Self { root: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Adds an entry newer than all existing ones. Only the thread that holds the arena may call this.
    ///
    /// # Safety
    /// `arena` is always the same for one tree and lives as long as the tree.
    pub(super) unsafe fn insert<'m>(&'m self, arena: &mut Arena, entry: &Entry<'_>) -> Added {
        let Some(mut node) = self.root() else {
            // SAFETY: the arena outlives `'m`, as the caller promises; this holds in the rest of this file.
            let root = unsafe {
                let key = Key::create(arena, entry);
                Node::new_leaf(arena, first_head(key), None)
            };
            self.set_root(root);
            return Added::Key;
        };
        let mut path = Path::new();
        while !node.is_leaf() {
            let (child, position) = node.child(|node| at_or_below(node, entry.key));
            path.push(node, position);
            node = child;
        }
        let place = node.search(entry.key);
        if place.found == Found::Exact {
            let is_step = node.key_at(place.order, place.rank).push(arena, entry);
            return if is_step { Added::Step } else { Added::Version };
        }
        // SAFETY: as above.
        let key: Key<'m> = unsafe { Key::create(arena, entry) };
        if node.has_room_for(place) {
            node.add_key(place, key);
        } else {
            self.rewrite_leaf(arena, path, node, place, key);
        }
        Added::Key
    }

    fn root(&self) -> Option<Node<'_>> {
        // SAFETY: only complete nodes of the arena are stored there; Acquire makes their content visible.
        NonNull::new(self.root.load(Ordering::Acquire)).map(|root| unsafe { Node::from_ptr(root) })
    }

    fn set_root(&self, node: Node<'_>) {
        self.root.store(node.as_ptr(), Ordering::Release);
    }
}

/// For readers.
impl Tree {
    /// The key, if the tree has it.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<Key<'_>> {
        let leaf = self.descend(|node| at_or_below(node, key))?;
        let place = leaf.search(key);
        (place.found == Found::Exact).then(|| leaf.key_at(place.order, place.rank))
    }

    /// The leaf that has `key` or would have it.
    pub(super) fn leaf_of(&self, key: &[u8]) -> Option<Node<'_>> {
        self.descend(|node| at_or_below(node, key))
    }

    /// The leaf with the largest key below `key` if there is one, else the first leaf.
    pub(super) fn leaf_below(&self, key: &[u8]) -> Option<Node<'_>> {
        // The separators to the left of the path are below `key`, and the nearest of them is a key of the leaf.
        self.descend(|node| {
            let place = node.search(key);
            (place.order, place.rank)
        })
    }

    /// About which part of all keys is below `key`, from 0 to 1: exact if all nodes have as many keys.
    pub(super) fn share_below(&self, key: &[u8]) -> f64 {
        let (mut below, mut width) = (0.0, 1.0);
        let leaf = self.descend(|node| {
            let (order, position) = at_or_below(node, key);
            width /= (order.len() + 1) as f64;
            below += width * position as f64;
            (order, position)
        });
        let Some(leaf) = leaf else { return 0.0 };
        let place = leaf.search(key);
        below + width * place.rank as f64 / place.order.len().max(1) as f64
    }

    pub(super) fn first_leaf(&self) -> Option<Node<'_>> {
        self.descend(|node| (node.order(), 0))
    }

    pub(super) fn last_leaf(&self) -> Option<Node<'_>> {
        self.descend(|node| {
            let order = node.order();
            (order, order.len())
        })
    }

    #[inline]
    fn descend<'m>(&'m self, mut choose: impl FnMut(Node<'m>) -> (Order, usize)) -> Option<Node<'m>> {
        let mut node = self.root()?;
        while !node.is_leaf() {
            (node, _) = node.child(&mut choose);
        }
        Some(node)
    }
}

/// The child that has `key` or would have it.
#[inline]
fn at_or_below(node: Node<'_>, key: &[u8]) -> (Order, usize) {
    let place = node.search(key);
    (place.order, place.rank + usize::from(place.found == Found::Exact))
}

/// For the writer, if a node is full or a key lacks its prefix.
impl Tree {
    fn rewrite_leaf<'m>(&'m self, arena: &mut Arena, path: Path<'m>, leaf: Node<'m>, place: Place, key: Key<'m>) {
        let rewrite = Rewrite::new(leaf, place, key);
        let next = leaf.next();
        if rewrite.len() <= SLOTS {
            let head = rewrite.head(0..rewrite.len(), || path.fences());
            // SAFETY: the arena outlives `'m`, as the caller of `insert` promises.
            let only = unsafe { Node::new_leaf(arena, head, next) };
            leaf.set_successor(only);
            return self.install(arena, path, Replacement::One(only));
        }
        let middle = rewrite.left_len();
        let separator = rewrite.key(middle);
        let left_head = rewrite.head(0..middle, || Fences { high: Some(separator), ..path.fences() });
        let right_head = rewrite.head(middle..rewrite.len(), || Fences { low: Some(separator), ..path.fences() });
        // SAFETY: as above.
        let (left, right) = unsafe {
            let right = Node::new_leaf(arena, right_head, next);
            (Node::new_leaf(arena, left_head, Some(right)), right)
        };
        leaf.set_successor(left);
        self.install(arena, path, Replacement::Two { left, separator, right, shared_len: rewrite.shared_len() });
    }

    /// Replaces the node below the end of `path`, and rewrites parents as long as they are full.
    fn install<'m>(&'m self, arena: &mut Arena, mut path: Path<'m>, mut change: Replacement<'m>) {
        while let Some((parent, position)) = path.pop() {
            let (left, separator, right) = match change {
                Replacement::One(node) => return parent.replace_child(parent.order(), position, node),
                Replacement::Two { left, separator, right, .. } => (left, separator, right),
            };
            let place = parent.search(separator.bytes());
            if parent.has_room_for(place) {
                return parent.add_child(place, left, separator, right);
            }
            change = rewrite_inner(arena, &path, parent, place, (left, separator, right));
        }
        self.set_root(match change {
            Replacement::One(node) => node,
            // SAFETY: as in `rewrite_leaf`.
            Replacement::Two { left, separator, right, shared_len } => unsafe {
                Node::new_inner(arena, root_head(left.level() + 1, separator, shared_len), &[left, right])
            },
        });
    }
}

/// The replacement of a full inner node when one of its children becomes two.
fn rewrite_inner<'m>(
    arena: &mut Arena,
    path: &Path<'m>,
    node: Node<'m>,
    place: Place,
    (left, separator, right): (Node<'m>, Key<'m>, Node<'m>),
) -> Replacement<'m> {
    let rewrite = Rewrite::new(node, place, separator);
    let children: [Node<'m>; SLOTS + 2] = std::array::from_fn(|at| match at {
        _ if at == place.rank => left,
        _ if at == place.rank + 1 => right,
        _ if at < place.rank => node.child_at(place.order, at),
        // Beyond the end any child will do.
        _ => node.child_at(place.order, (at - 1).min(place.order.len())),
    });
    let len = rewrite.len();
    if len <= SLOTS {
        let head = rewrite.head(0..len, || path.fences());
        // SAFETY: as in `rewrite_leaf`.
        return Replacement::One(unsafe { Node::new_inner(arena, head, &children[..=len]) });
    }
    let middle = rewrite.left_len();
    let separator = rewrite.key(middle);
    let left_head = rewrite.head(0..middle, || Fences { high: Some(separator), ..path.fences() });
    let right_head = rewrite.head(middle + 1..len, || Fences { low: Some(separator), ..path.fences() });
    // SAFETY: as in `rewrite_leaf`.
    let (left, right) = unsafe {
        let left = Node::new_inner(arena, left_head, &children[..=middle]);
        (left, Node::new_inner(arena, right_head, &children[middle + 1..=len]))
    };
    Replacement::Two { left, separator, right, shared_len: rewrite.shared_len() }
}

impl<'m> Path<'m> {
    fn new() -> Self {
        Self { steps: [None; MAX_LEVELS], len: 0 }
    }

    fn push(&mut self, node: Node<'m>, position: usize) {
        self.steps[self.len] = Some((node, position));
        self.len += 1;
    }

    fn pop(&mut self) -> Option<(Node<'m>, usize)> {
        self.len = self.len.checked_sub(1)?;
        self.steps[self.len]
    }

    /// The separators around the node below the end of the path.
    fn fences(&self) -> Fences<'m> {
        let mut fences = Fences { low: None, high: None };
        for &(node, position) in self.steps[..self.len].iter().flatten().rev() {
            let order = node.order();
            if fences.low.is_none() && position > 0 {
                fences.low = Some(node.key_at(order, position - 1));
            }
            if fences.high.is_none() && position < order.len() {
                fences.high = Some(node.key_at(order, position));
            }
        }
        fences
    }
}
