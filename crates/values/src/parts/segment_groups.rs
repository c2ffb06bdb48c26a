//! Segment groups: values grouped by the hash of their keys (HashKV §3.1), without a capacity stated in advance.
//!
//! ```text
//! hash of the key ─▶ directory (2^depth entries) ─▶ group ─▶ its files, the last one appended to
//!
//! a group covers a region: all hashes whose low `bits` bits are `prefix`
//! ```
//!
//! **Growth** (ours; extendible hashing). A group that has grown past its size splits into two of one more bit. Nothing is
//! copied: the old file stays with both, and each goes on in a file of its own. Collecting either collects both, and leaves
//! each with a file of its own. So groups that share a file form a **family**, the unit of collection.
//!
//! **How live bytes are known without asking the index.** Each group remembers its keys in a Bloom filter: a key met before
//! replaces a value about as long; if the key is new in the hot part and known in the cold one, the value there is dead. A collection counts exactly and starts the filter anew; until the first one after a
//! start every write counts as a replacement, which errs on the side of collecting.

use std::sync::Arc;

use super::value_files::{COLD, ValueFile};

/// All hashes whose low `bits` bits are `prefix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Region {
    /// How many bits count.
    pub bits: u32,
    /// What they are.
    pub prefix: u64,
}

/// No group covers less than this many bits of hash.
const BITS_MAX: u32 = 32;

impl Region {
    /// All hashes.
    pub const ALL: Self = Self { bits: 0, prefix: 0 };

    /// As a group number: the prefix below a one bit.
    #[must_use]
    pub fn number(self) -> u64 {
        1 << self.bits | self.prefix
    }

    /// The region of a group number, if it is one.
    #[must_use]
    pub fn of(number: u64) -> Option<Self> {
        let bits = number.checked_ilog2()?;
        (bits <= BITS_MAX).then_some(Self { bits, prefix: number & !(1 << bits) })
    }

    /// Whether it covers this hash.
    #[must_use]
    pub fn covers(self, hash: u64) -> bool {
        hash & ((1 << self.bits) - 1) == self.prefix
    }

    /// Whether it covers all of `other`.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.bits <= other.bits && self.covers(other.prefix)
    }

    fn halves(self) -> [Self; 2] {
        let bits = self.bits + 1;
        [Self { bits, prefix: self.prefix }, Self { bits, prefix: self.prefix | 1 << self.bits }]
    }
}

/// One group.
#[derive(Clone, Debug)]
pub struct Group {
    /// The hashes it covers.
    pub region: Region,
    /// What commits append to.
    pub hot: Part,
    /// Values that were not updated between two collections, and notes (§3.4; the paper's cold log, but one for each group).
    pub cold: Part,
    /// It is being collected.
    pub busy: bool,
}

/// One half of a group.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// Its files, oldest first. Those shared with other groups cover more than the group's region.
    pub files: Vec<Arc<ValueFile>>,
    /// The last of them may be appended to.
    pub open: bool,
    /// Bytes of live records, as far as known.
    pub live: u64,
    /// Bytes of dead records, as far as known.
    pub dead: u64,
    /// Bytes written since the last collection.
    pub written: u64,
    /// [`Groups::clock`] at the last collection.
    pub collected_at: u64,
    seen: Option<Seen>,
}

impl Part {
    fn new(clock: u64) -> Self {
        Self { collected_at: clock, seen: Some(Seen::default()), ..Self::default() }
    }

    /// The file to append to.
    #[must_use]
    pub fn head(&self) -> Option<&Arc<ValueFile>> {
        self.files.last().filter(|file| self.open && !file.is_sealed())
    }

    /// Takes a file of an earlier session in, which the halves of 2 to the power of `share` groups have in common.
    fn adopt(&mut self, file: &Arc<ValueFile>, share: u32) {
        let bytes = (file.len() - file.start()) >> share;
        let dead = (file.dead() >> share).min(bytes);
        self.live += bytes - dead;
        self.dead += dead;
        self.files.push(Arc::clone(file));
        self.seen = None;
        self.open = share == 0;
    }

    fn half(&self) -> Self {
        let (live, dead, written) = (self.live / 2, self.dead / 2, self.written / 2);
        Self { open: false, live, dead, written, ..self.clone() }
    }

    /// Notes a key; answers whether it may have been here before.
    fn meet(&mut self, hash: u64) -> bool {
        self.seen.as_mut().is_none_or(|seen| seen.insert(hash))
    }

    /// Notes a value of so many bytes; answers whether its key may have been here before.
    pub fn wrote(&mut self, hash: u64, bytes: u64) -> bool {
        self.written += bytes;
        let known = self.meet(hash);
        *(if known { &mut self.dead } else { &mut self.live }) += bytes;
        known
    }

    /// Notes a record of so many bytes that leaves its key without a value here; answers as [`Part::wrote`].
    pub fn ended(&mut self, hash: u64, bytes: u64) -> bool {
        self.written += bytes;
        self.dead += bytes;
        let known = self.meet(hash);
        if known {
            self.lose_one();
        }
        known
    }

    fn may_hold(&self, hash: u64) -> bool {
        self.seen.as_ref().map_or(!self.files.is_empty(), |seen| seen.contains(hash))
    }

    /// Notes that one value is dead, about as long as others.
    fn lose_one(&mut self) {
        let keys = self.seen.as_ref().map_or(0, |seen| seen.keys);
        let mean = self.live / keys.max(1);
        let mean = if keys == 0 { 0 } else { mean };
        self.live -= mean;
        self.dead += mean;
    }

    /// Adds what a collection has copied here: the hashes of its keys, its live and its other bytes.
    pub fn add(&mut self, hashes: &[u64], live: u64, dead: u64) {
        if let Some(seen) = &mut self.seen {
            for &hash in hashes {
                seen.insert(hash);
            }
        }
        self.live += live;
        self.dead += dead;
    }

    /// Begins to count anew after a collection that found these keys and so many live bytes.
    pub fn recount(&mut self, hashes: &[u64], live: u64, dead: u64, clock: u64) {
        (self.seen, self.live, self.dead) = (Some(Seen::for_keys(hashes.len())), 0, 0);
        (self.written, self.collected_at) = (0, clock);
        self.add(hashes, live, dead);
    }
}

impl Group {
    fn new(region: Region, clock: u64) -> Self {
        Self { region, hot: Part::new(clock), cold: Part::new(clock), busy: false }
    }

    /// Bytes in it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        [&self.hot, &self.cold].iter().map(|part| part.live + part.dead).sum()
    }

    /// Notes a value of so many bytes.
    pub fn wrote(&mut self, hash: u64, bytes: u64) {
        if !self.hot.wrote(hash, bytes) && self.cold.may_hold(hash) {
            self.cold.lose_one();
        }
    }

    /// Notes a record of so many bytes that leaves its key without a value here.
    pub fn ended(&mut self, hash: u64, bytes: u64) {
        if !self.hot.ended(hash, bytes) && self.cold.may_hold(hash) {
            self.cold.lose_one();
        }
    }

    /// All its files.
    pub fn files(&self) -> impl Iterator<Item = &Arc<ValueFile>> {
        self.cold.files.iter().chain(&self.hot.files)
    }
}

/// All groups of a keyspace.
#[derive(Debug)]
pub struct Groups {
    /// Positions in `groups`, by the low bits of the hash.
    directory: Vec<u32>,
    groups: Vec<Group>,
    /// Bytes written to all groups.
    pub clock: u64,
}

impl Groups {
    /// Groups of `bits` bits each, and as many more as the files ask for.
    #[must_use]
    pub fn new(bits: u32, files: &[Arc<ValueFile>]) -> Self {
        let mut groups = Self { directory: vec![0], groups: vec![Group::new(Region::ALL, 0)], clock: 0 };
        for _ in 0..bits {
            (0..groups.groups.len()).for_each(|at| groups.split(at));
        }
        let mut regions: Vec<(Region, &Arc<ValueFile>)> =
            files.iter().filter_map(|file| Some((Region::of(file.description.group)?, file))).collect();
        for (region, _) in &regions {
            while groups.at(region.prefix).region.bits < region.bits {
                groups.split(groups.position(region.prefix));
            }
        }
        regions.sort_by_key(|(_, file)| file.id);
        for group in &mut groups.groups {
            let covering = regions.iter().filter(|(region, _)| region.contains(group.region));
            for (region, file) in covering {
                let part = if file.description.class == COLD { &mut group.cold } else { &mut group.hot };
                part.adopt(file, group.region.bits - region.bits);
            }
        }
        groups
    }

    fn position(&self, hash: u64) -> usize {
        self.directory[hash as usize & (self.directory.len() - 1)] as usize
    }

    /// The group of a hash.
    #[must_use]
    pub fn at(&self, hash: u64) -> &Group {
        &self.groups[self.position(hash)]
    }

    /// The group of a hash.
    pub fn at_mut(&mut self, hash: u64) -> &mut Group {
        let at = self.position(hash);
        &mut self.groups[at]
    }

    /// All groups.
    #[must_use]
    pub fn all(&self) -> &[Group] {
        &self.groups
    }

    /// All groups.
    pub fn all_mut(&mut self) -> &mut [Group] {
        &mut self.groups
    }

    /// Nothing is appended to the present files any more.
    pub fn close(&mut self) {
        for group in &mut self.groups {
            (group.hot.open, group.cold.open) = (false, false);
        }
    }

    /// Splits the group of `hash`, if it can be.
    pub fn split_at(&mut self, hash: u64) {
        let at = self.position(hash);
        if !self.groups[at].busy && self.groups[at].region.bits < BITS_MAX {
            self.split(at);
        }
    }

    fn split(&mut self, at: usize) {
        let old = self.groups[at].clone();
        if 1usize << old.region.bits == self.directory.len() {
            self.directory.extend_from_within(..);
        }
        let [low, high] = old.region.halves();
        let half = |region| Group { region, hot: old.hot.half(), cold: old.cold.half(), busy: old.busy };
        let new = u32::try_from(self.groups.len()).unwrap_or(u32::MAX);
        self.groups[at] = half(low);
        self.groups.push(half(high));
        for (prefix, entry) in self.directory.iter_mut().enumerate() {
            if high.covers(prefix as u64) {
                *entry = new;
            }
        }
    }

    /// The positions of the groups that share files with the group at `at`, itself included: files of the hot part, or any.
    #[must_use]
    pub fn family(&self, at: usize, hot_only: bool) -> Vec<usize> {
        let group = &self.groups[at];
        let cold: &[_] = if hot_only { &[] } else { &group.cold.files };
        let region_of = |file: &Arc<ValueFile>| Region::of(file.description.group).unwrap_or(Region::ALL);
        let regions = group.hot.files.iter().chain(cold).map(region_of).chain([group.region]);
        let widest = regions.min().unwrap_or(Region::ALL);
        (0..self.groups.len()).filter(|&other| widest.contains(self.groups[other].region)).collect()
    }
}

/// Which keys were met: a Bloom filter that grows by adding larger ones.
#[derive(Clone, Debug)]
struct Seen {
    layers: Vec<Layer>,
    /// About how many different keys.
    keys: u64,
}

#[derive(Clone, Debug)]
struct Layer {
    blocks: Vec<[u64; 8]>,
    room: usize,
}

/// Bits of filter for each key: about one key in a hundred is taken for one met before.
const BITS_PER_KEY: usize = 12;

/// Keys that the first layer has room for.
const KEYS_MIN: usize = 64;

impl Default for Seen {
    fn default() -> Self {
        Self::for_keys(KEYS_MIN)
    }
}

impl Seen {
    /// With room for half as many keys again.
    fn for_keys(keys: usize) -> Self {
        Self { layers: vec![Layer::new((keys + keys / 2).max(KEYS_MIN))], keys: 0 }
    }

    fn contains(&self, hash: u64) -> bool {
        self.layers.iter().any(|layer| layer.contains(hash))
    }

    /// Answers whether it was there.
    fn insert(&mut self, hash: u64) -> bool {
        if self.contains(hash) {
            return true;
        }
        if self.layers.last().is_none_or(|layer| layer.room == 0) {
            self.layers.push(Layer::new((self.keys as usize).max(KEYS_MIN)));
        }
        if let Some(layer) = self.layers.last_mut() {
            layer.insert(hash);
        }
        self.keys += 1;
        false
    }
}

impl Layer {
    fn new(keys: usize) -> Self {
        Self { blocks: vec![[0; 8]; (keys * BITS_PER_KEY).div_ceil(512)], room: keys }
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
        let (block, mut bits) = self.place(hash);
        bits.all(|(word, bit)| self.blocks[block][word] & bit != 0)
    }

    fn insert(&mut self, hash: u64) {
        let (block, bits) = self.place(hash);
        bits.for_each(|(word, bit)| self.blocks[block][word] |= bit);
        self.room = self.room.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_have_numbers() {
        for region in [Region::ALL, Region { bits: 3, prefix: 5 }, Region { bits: 32, prefix: 0xFFFF_FFFF }] {
            assert_eq!(Region::of(region.number()), Some(region));
        }
        assert_eq!(Region::of(0), None);
    }

    #[test]
    fn after_any_splits_each_hash_has_one_group_that_covers_it() {
        let mut groups = Groups::new(2, &[]);
        let mut hash: u64 = 1;
        for _ in 0..300 {
            hash = hash.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            groups.split_at(hash >> 32);
        }
        assert_eq!(groups.all().len(), 304);
        for n in 0..10_000u64 {
            let hash = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            assert!(groups.at(hash).region.covers(hash));
            assert_eq!(groups.all().iter().filter(|g| g.region.covers(hash)).count(), 1);
        }
    }

    #[test]
    fn a_group_tells_new_keys_from_known_ones() {
        let mut group = Group::new(Region::ALL, 0);
        let hash = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ n << 40;
        (0..10_000).for_each(|n| group.wrote(hash(n), 10));
        assert!(group.hot.dead < 2_000, "{} of 100000 bytes are thought dead", group.hot.dead);
        let (live, dead) = (group.hot.live, group.hot.dead);
        (0..10_000).for_each(|n| group.wrote(hash(n), 10));
        assert_eq!((group.hot.live, group.hot.dead), (live, dead + 100_000));
        group.ended(hash(3), 4);
        assert!(group.hot.live < live);
    }

    #[test]
    fn the_first_update_of_a_cold_value_is_its_end() {
        let mut group = Group::new(Region::ALL, 0);
        let hash = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ n << 40;
        let cold: Vec<u64> = (0..1000).map(hash).collect();
        group.cold.recount(&cold, 100_000, 0, 0);
        for _ in 0..3 {
            (0..100).for_each(|n| group.wrote(hash(n), 100));
        }
        assert!((9_000..11_000).contains(&group.cold.dead), "{:?}", group.cold.dead);
        assert_eq!(group.cold.live + group.cold.dead, 100_000);
        assert!((19_000..21_000).contains(&group.hot.dead));
        // Cold again, and updated again.
        group.hot.recount(&[], 0, 0, 0);
        group.cold.add(&cold[..100], 10_000, 0);
        (0..100).for_each(|n| group.wrote(hash(n), 100));
        assert!((18_000..22_000).contains(&group.cold.dead), "{:?}", group.cold.dead);
    }
}
