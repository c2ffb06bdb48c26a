//! Rewrites a node that cannot take another key: its old keys and the new one go to one or two new nodes.
//!
//! The prefix of the new nodes is chosen here. The old prefix stays as long as the slices differ within their first
//! half, so that a split copies numbers and does not access 15 keys in memory. Otherwise it is:
//!
//! - what both fences share, which holds for all keys ([`Trust::Fences`]); or
//! - what all existing keys share, less four bytes, if that is longer ([`Trust::Members`]). The four bytes are for
//!   future keys: a counter in decimal digits takes 10 000 steps before it breaks the prefix and costs a rewrite, and
//!   the other four bytes of a slice distinguish 14 neighbours.

use std::ops::Range;

use super::{
    entry::Key,
    node::{Node, NodeHead, Place, Truncation, Trust, slice_at},
    order::{Order, SLOTS},
};

/// How many of a slice's eight bytes may be equal in all keys of a node.
const SPARE_BYTES: usize = 4;

/// A node from an even split has room for six.
const FEWEST_TO_CALL_ASCENDING: usize = SLOTS / 2 - 1;

/// The keys of a node and one more, in order.
pub(super) struct Rewrite<'m> {
    keys: [Key<'m>; SLOTS + 1],
    slices: [u64; SLOTS + 1],
    len: usize,
    level: u8,
    ascending: bool,
    choice: Choice,
}

#[derive(Clone, Copy)]
enum Choice {
    Keep(Truncation),
    /// Chosen from the fences of each new node and the number of bytes that all the keys share.
    Renew {
        shared_len: usize,
    },
}

/// The separators left and right of a node; `None` at the edges of the tree.
#[derive(Clone, Copy)]
pub(super) struct Fences<'m> {
    pub(super) low: Option<Key<'m>>,
    pub(super) high: Option<Key<'m>>,
}

impl<'m> Rewrite<'m> {
    /// The keys of `node`, with `key` at `place`.
    pub(super) fn new(node: Node<'m>, place: Place, key: Key<'m>) -> Self {
        let Place { order, rank: added, .. } = place;
        let truncation = node.truncation();
        let len = order.len() + 1;
        let keys = std::array::from_fn(|at| match old_rank(at, added, order) {
            Some(rank) => node.key_at(order, rank),
            None => key,
        });
        let slices: [u64; SLOTS + 1] = std::array::from_fn(|at| match old_rank(at, added, order) {
            Some(rank) => node.slice_at(order, rank),
            None => slice_at(key.bytes(), truncation.prefix_len),
        });
        let differ_early = ((slices[0] ^ slices[len - 1]).leading_zeros() as usize) < 8 * SPARE_BYTES;
        let choice = match truncation.trust {
            Trust::Fences if differ_early => Choice::Keep(truncation),
            _ => Choice::Renew { shared_len: shared_prefix_len(keys[0], keys[len - 1]) },
        };
        let ascending =
            added == order.len() && order.is_ascending() && node.added_len(order) >= FEWEST_TO_CALL_ASCENDING;
        Self { keys, slices, len, level: node.level(), ascending, choice }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn key(&self, at: usize) -> Key<'m> {
        self.keys[at]
    }

    /// How many keys go left when there are too many for one node.
    ///
    /// Half of them, unless all arrived in ascending order: then more ascending keys are likely, and the left node
    /// should be full. A node is created with its keys in order, so only the keys added since count: otherwise, keys
    /// that descend towards a full node would each get their own leaf.
    pub(super) fn left_len(&self) -> usize {
        match (self.ascending, self.level) {
            (false, _) => self.len / 2,
            (true, 0) => self.len - 1,
            // The middle key moves up, and no inner node may be left without keys.
            (true, _) => self.len - 3,
        }
    }

    /// The head of a new node between `fences`, with the keys at `range`.
    pub(super) fn head(&self, range: Range<usize>, fences: impl FnOnce() -> Fences<'m>) -> NodeHead {
        let keys = &self.keys[range.clone()];
        match self.choice {
            Choice::Keep(truncation) => NodeHead::new(self.level, keys, &self.slices[range], truncation),
            Choice::Renew { shared_len } => new_head(self.level, keys, choose(shared_len, fences())),
        }
    }

    /// How many bytes all the keys are known to share.
    pub(super) fn shared_len(&self) -> usize {
        match self.choice {
            Choice::Keep(_) => 0,
            Choice::Renew { shared_len } => shared_len,
        }
    }
}

/// The head of a new root above two nodes. All their keys share `shared_len` bytes.
pub(super) fn root_head(level: u8, separator: Key<'_>, shared_len: usize) -> NodeHead {
    new_head(level, &[separator], choose(shared_len, Fences { low: None, high: None }))
}

/// The head of the first node of a tree.
pub(super) fn first_head(key: Key<'_>) -> NodeHead {
    new_head(0, &[key], Truncation { prefix_len: 0, trust: Trust::Fences })
}

/// The old rank of the key at `at`; `None` for the added key. Beyond the end any key will do.
fn old_rank(at: usize, added: usize, order: Order) -> Option<usize> {
    match at {
        _ if at == added || at > order.len() => None,
        _ if at < added => Some(at),
        _ => Some(at - 1),
    }
}

fn choose(shared_len: usize, fences: Fences<'_>) -> Truncation {
    let fenced_len = match (fences.low, fences.high) {
        (Some(low), Some(high)) => shared_prefix_len(low, high),
        _ => 0,
    };
    let members_len = shared_len.saturating_sub(SPARE_BYTES);
    let (prefix_len, trust) =
        if members_len > fenced_len { (members_len, Trust::Members) } else { (fenced_len, Trust::Fences) };
    // A key has at most 64 KiB, so this is exact.
    Truncation { prefix_len: prefix_len as u32, trust }
}

fn new_head(level: u8, keys: &[Key<'_>], truncation: Truncation) -> NodeHead {
    let mut slices = [0; SLOTS];
    for (slice, key) in slices.iter_mut().zip(keys) {
        *slice = slice_at(key.bytes(), truncation.prefix_len);
    }
    NodeHead::new(level, keys, &slices, truncation)
}

/// The length of the common prefix of two keys.
fn shared_prefix_len(a: Key<'_>, b: Key<'_>) -> usize {
    a.bytes().iter().zip(b.bytes()).take_while(|(a, b)| a == b).count()
}
