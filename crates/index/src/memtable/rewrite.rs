//! What becomes of a node that cannot take one more key: its keys, old and new, dealt out to one new node or two.
//!
//! Here the prefix is chosen by which a node shortens its keys. The old one stays while the slices still differ within
//! their first half, so that a split copies numbers and does not visit 15 keys in memory. Otherwise:
//!
//! - what both fences share, which is certain ([`Trust::Fences`]); or
//! - what all present keys share, less four bytes, where that is longer ([`Trust::Members`]). The four bytes are for
//!   keys to come: a counter in decimal digits goes on for 10 000 steps before it breaks the prefix and costs a
//!   rewriting, and the four that remain tell 14 neighbours apart.

use std::ops::Range;

use super::{
    entry::Key,
    node::{Head, Node, Place, Truncation, Trust, slice_at},
    order::{Order, SLOTS},
};

/// How many of the eight bytes of a slice may be the same in all keys of a node.
const SPARE_BYTES: usize = 4;

/// A node made by an even split has room for six.
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
    /// Chosen from the fences of each new node and this many bytes that all the keys share.
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
    /// The keys of `node` with `key` at `place`.
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
    /// Half of them, unless all came in ascending order: then more of the same is likely, and what is left behind
    /// should be full. A node is made with its keys in order, so only those added since tell: without that, keys that
    /// descend towards a full node would each get a leaf of its own.
    pub(super) fn left_len(&self) -> usize {
        match (self.ascending, self.level) {
            (false, _) => self.len / 2,
            (true, 0) => self.len - 1,
            // The key in between moves up, and an inner node must not be left without keys.
            (true, _) => self.len - 3,
        }
    }

    /// The head of a new node with the keys at `range`, which will stand between `fences`.
    pub(super) fn head(&self, range: Range<usize>, fences: impl FnOnce() -> Fences<'m>) -> Head {
        let keys = &self.keys[range.clone()];
        match self.choice {
            Choice::Keep(truncation) => Head::new(self.level, keys, &self.slices[range], truncation),
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

/// The head of a new root above two nodes whose keys share so many bytes.
pub(super) fn root_head(level: u8, separator: Key<'_>, shared_len: usize) -> Head {
    new_head(level, &[separator], choose(shared_len, Fences { low: None, high: None }))
}

/// The head of the first node of a tree.
pub(super) fn first_head(key: Key<'_>) -> Head {
    new_head(0, &[key], Truncation { prefix_len: 0, trust: Trust::Fences })
}

/// Where the key at `at` of the rewriting was in the node, `None` for the one added. Beyond the end any key will do.
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
    let hoped_len = shared_len.saturating_sub(SPARE_BYTES);
    let (prefix_len, trust) =
        if hoped_len > fenced_len { (hoped_len, Trust::Members) } else { (fenced_len, Trust::Fences) };
    // A key has at most 64 KiB, so this is exact.
    Truncation { prefix_len: prefix_len as u32, trust }
}

fn new_head(level: u8, keys: &[Key<'_>], truncation: Truncation) -> Head {
    let mut slices = [0; SLOTS];
    for (slice, key) in slices.iter_mut().zip(keys) {
        *slice = slice_at(key.bytes(), truncation.prefix_len);
    }
    Head::new(level, keys, &slices, truncation)
}

/// How many bytes two keys have in common at their start.
fn shared_prefix_len(a: Key<'_>, b: Key<'_>) -> usize {
    a.bytes().iter().zip(b.bytes()).take_while(|(a, b)| a == b).count()
}
