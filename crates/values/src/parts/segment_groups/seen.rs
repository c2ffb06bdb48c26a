//! Which keys a segment of a group knows: a Bloom filter that grows, paid from a budget.

use std::sync::Arc;

use crate::parts::budget::{Budget, Taken};

/// The known keys: a Bloom filter that grows by adding larger ones. The halves of a split group share them.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub layers: Vec<Arc<Layer>>,
    /// About how many different keys.
    pub keys: u64,
}

#[derive(Debug)]
pub(super) struct Layer {
    blocks: Vec<[u64; 8]>,
    room: usize,
    pub taken: Taken,
}

/// Bits of filter for each key: about one new key in a hundred is taken for a known one.
const BITS_PER_KEY: u64 = 12;

/// With fewer bits, three new keys of four are taken for known ones.
const BITS_PER_KEY_MIN: u64 = 2;

/// A new layer has room for so many times the known keys: checking whether a key is new costs a cache miss for each
/// layer.
const LAYER_GROWTH: usize = 3;

/// Keys that the first layer has room for.
const KEYS_MIN: usize = 64;

impl Seen {
    /// A filter with room for half as many keys again. `None` where the budget is used up.
    pub fn for_keys(keys: usize, budget: &Arc<Budget>) -> Option<Self> {
        let layer = Layer::new((keys + keys / 2).max(KEYS_MIN), budget)?;
        Some(Self { layers: vec![Arc::new(layer)], keys: 0 })
    }

    pub fn half(&self) -> Self {
        Self { layers: self.layers.clone(), keys: self.keys / 2 }
    }

    /// The last layer knows most keys.
    pub fn contains(&self, hash: u64) -> bool {
        self.layers.iter().rev().any(|layer| layer.contains(hash))
    }

    /// Returns whether it was there. `None`: it was not, and there is no room for it.
    pub fn insert(&mut self, hash: u64, budget: &Arc<Budget>) -> Option<bool> {
        if self.contains(hash) {
            return Some(true);
        }
        let has_room = |layer: &mut Arc<Layer>| Arc::get_mut(layer).is_some_and(|layer| layer.room > 0);
        if !self.layers.last_mut().is_some_and(has_room) {
            self.layers.push(Arc::new(Layer::new((self.keys as usize * LAYER_GROWTH).max(KEYS_MIN), budget)?));
        }
        self.layers.last_mut().and_then(Arc::get_mut)?.insert(hash);
        self.keys += 1;
        Some(false)
    }
}

impl Layer {
    fn new(keys: usize, budget: &Arc<Budget>) -> Option<Self> {
        let (keys, free) = (keys as u64, budget.free_bytes());
        // From half of the budget on fewer and fewer, and never more than half of what is left.
        let fair = 2 * BITS_PER_KEY * free / budget.bytes_max().max(1);
        let bits = BITS_PER_KEY.min(fair).min(free * 8 / 2 / keys);
        if bits < BITS_PER_KEY_MIN {
            return None;
        }
        let blocks = (keys * bits).div_ceil(512);
        let taken = budget.take(blocks * 64)?;
        Some(Self { blocks: vec![[0; 8]; blocks as usize], room: keys as usize, taken })
    }

    /// The block of a hash, and six bits of it. The low bits choose the group, so others choose here.
    fn place(&self, hash: u64) -> (usize, impl Iterator<Item = (usize, u64)> + use<>) {
        let block = (((hash >> 32) * self.blocks.len() as u64) >> 32) as usize;
        let spread = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let bits = (0..6).map(move |n| {
            let bit = (spread >> (10 * n)) as usize & 511;
            (bit / 64, 1 << (bit % 64))
        });
        (block, bits)
    }

    fn contains(&self, hash: u64) -> bool {
        let (block, bits) = self.place(hash);
        let block = &self.blocks[block];
        // All six without a branch: they are in one cache line.
        bits.fold(true, |there, (word, bit)| there & (block[word] & bit != 0))
    }

    fn insert(&mut self, hash: u64) {
        let (block, bits) = self.place(hash);
        bits.for_each(|(word, bit)| self.blocks[block][word] |= bit);
        self.room = self.room.saturating_sub(1);
    }
}
