//! The slots of a node that are in use, in key order: one word, so that one store publishes an insertion.
//!
//! Every four bits from the lowest up are a slot number; the topmost four bits are the length.

/// Keys per node: one less than fit in the word, because that one would cost a node another cache line.
pub(super) const SLOTS: usize = 14;

const SLOT_BITS: usize = 4;
const LEN_SHIFT: usize = 60;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Order(u64);

impl Order {
    /// The first `len` slots, ascending.
    pub(super) fn ascending(len: usize) -> Self {
        debug_assert!(len <= SLOTS);
        let all_slots = 0x00dc_ba98_7654_3210_u64;
        Self(all_slots & ((1 << (SLOT_BITS * len)) - 1) | (len as u64) << LEN_SHIFT)
    }

    #[inline]
    pub(super) fn from_word(word: u64) -> Self {
        Self(word)
    }

    #[inline]
    pub(super) fn to_word(self) -> u64 {
        self.0
    }

    /// How many slots are in use. They are the first ones, because slots are filled in sequence and never freed.
    #[inline]
    pub(super) fn len(self) -> usize {
        (self.0 >> LEN_SHIFT) as usize
    }

    /// The slot of the key at `rank`, below [`Order::len`].
    #[inline]
    pub(super) fn slot(self, rank: usize) -> usize {
        debug_assert!(rank < self.len(), "rank {rank} of {}", self.len());
        (self.0 >> (SLOT_BITS * rank) & 0xf) as usize
    }

    /// This order with the next slot inserted at `rank`.
    #[inline]
    pub(super) fn with_next_slot_at(self, rank: usize) -> Self {
        debug_assert!(rank <= self.len() && self.len() < SLOTS);
        let len = self.len() as u64;
        let slots = self.0 & ((1 << LEN_SHIFT) - 1);
        let below = (1 << (SLOT_BITS * rank)) - 1;
        let shifted = (slots & !below) << SLOT_BITS;
        Self(slots & below | len << (SLOT_BITS * rank) | shifted | (len + 1) << LEN_SHIFT)
    }

    /// Whether the keys arrived in ascending order.
    pub(super) fn is_ascending(self) -> bool {
        self == Self::ascending(self.len())
    }
}
