//! Segment groups: values grouped by the hash of their keys (HashKV §3.1), without a capacity stated in advance.
//!
//! ```text
//! hash of the key ─▶ directory (2^depth entries) ─▶ group ─▶ its files, the last one appended to
//!
//! a group covers a region: all hashes whose low `bits` bits are `prefix`
//! ```
//!
//! **Growth** (ours; extendible hashing). A group that has grown past its size splits into two of one more bit. Nothing
//! is copied: both share the old file, and each continues in its own new file. GC takes both, and leaves each with its
//! own file. So groups that share a file form a **family**, the unit of GC.
//!
//! **How live bytes are known without index lookups.** Each group remembers its keys in a Bloom filter. A put of a
//! known key replaces a value about as long. If the key is new in the hot segment and known in the cold one, the value
//! there is dead. An unknown key has no record here that a note would make dead. GC counts exactly and starts the
//! filter anew; until the first GC after a start every write counts as a replacement, which errs on the side of more
//! GC.
//!
//! **What filters may take** is a [`Budget`] that all keyspaces of a database share. The fuller it is, the fewer bits a
//! new filter gets for each key, so there is always some left for the next one: a database with twice the keys that the
//! budget has 12 bits for settles at about 5. Keys that they wrongly take for known err on the side of more GC. A group
//! for which there are not even 2 bits has no filter until its next GC, as after a start.

mod arrivals;
mod lost;
mod seen;
mod segment;

use std::{collections::BTreeMap, sync::Arc};

use bifold_contract::{FileId, planted};

pub use self::segment::Segment;
use super::{
    budget::Budget,
    value_files::{COLD, ValueFile},
};

/// All hashes whose low `bits` bits are `prefix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Region {
    /// How many bits count.
    pub bits: u32,
    /// What they are.
    pub prefix: u64,
}

/// The most bits of hash in a group number.
const BITS_MAX: u32 = 32;

/// A group with so many bits does not split: the directory has an entry of 4 bytes for each combination of as many
/// bits as any group has. Otherwise the group of a key that gets most writes would split again and again, which helps
/// nobody.
const SPLIT_BITS_MAX: u32 = 18;

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

    /// Whether splitting can lead to it. Any other region was not written by us, and the directory for it would take
    /// any amount of memory.
    #[must_use]
    pub fn is_possible(self) -> bool {
        self.bits <= SPLIT_BITS_MAX
    }

    fn halves(self) -> [Self; 2] {
        let bits = self.bits + 1;
        [Self { bits, prefix: self.prefix }, Self { bits, prefix: self.prefix | 1 << self.bits }]
    }
}

/// The hashes whose values a file holds.
fn region_of(file: &Arc<ValueFile>) -> Region {
    Region::of(file.description.group).unwrap_or(Region::ALL)
}

/// One group.
#[derive(Clone, Debug)]
pub struct Group {
    /// The hashes it covers.
    pub region: Region,
    /// What commits append to.
    pub hot: Segment,
    /// Values that were not updated between two GC runs, and notes (§3.4; the paper's cold log, but one for each
    /// group).
    pub cold: Segment,
    /// Values of the group that are in the cold log of all groups: what is live, and what died since tags were last
    /// read. It has no files.
    pub tagged: Segment,
    /// Bytes of their tags, which are in the hot segment.
    pub tag_bytes: u64,
    /// GC is running on it.
    pub busy: bool,
    /// What was lost of the hot segment, or of files that are not in the group, since that began: by file, bytes.
    lost: BTreeMap<FileId, u64>,
}

impl Group {
    fn new(region: Region, clock: u64, budget: &Arc<Budget>) -> Self {
        let [hot, cold] = [(); 2].map(|()| Segment::new(clock, budget));
        let (tagged, lost) = (Segment::without_keys(clock, budget), BTreeMap::new());
        Self { region, hot, cold, tagged, tag_bytes: 0, busy: false, lost }
    }

    /// Bytes in it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        [&self.hot, &self.cold].iter().map(|segment| segment.live + segment.dead).sum::<u64>() + self.tag_bytes
    }

    /// Counts a value of so many bytes.
    pub fn wrote(&mut self, hash: u64, bytes: u64) {
        if !self.hot.wrote(hash, bytes) {
            self.end_older(hash);
        }
    }

    /// Counts a record of so many bytes that leaves its key without a value here.
    pub fn ended(&mut self, hash: u64, bytes: u64) {
        if !self.hot.ended(hash, bytes) {
            self.end_older(hash);
        }
    }

    /// Whether there may be a record of the key.
    #[must_use]
    pub fn may_hold(&self, hash: u64) -> bool {
        let may_be_tagged = || match &self.tagged.seen {
            Some(seen) => seen.contains(hash),
            None => self.tag_bytes > 0,
        };
        let elsewhere = || self.cold.may_hold(hash) || may_be_tagged();
        self.hot.may_hold(hash) || (!planted!("overlook_cold") && elsewhere())
    }

    /// The value of a key that is new in the hot segment may have been in another.
    fn end_older(&mut self, hash: u64) {
        let mut others = [&mut self.tagged, &mut self.cold].into_iter();
        if let Some(segment) = others.find(|segment| segment.may_hold(hash)) {
            segment.lose_one();
        }
    }

    /// Restarts the count of tagged values: these keys, so many live bytes of their values and others, and bytes of
    /// tags.
    pub fn retag(&mut self, hashes: &[u64], live: u64, dead: u64, tag_bytes: u64) {
        self.tagged.forget();
        if !hashes.is_empty() {
            self.tagged.recount(hashes, live, 0, self.hot.last_gc);
        }
        self.tagged.dead = dead;
        self.tag_bytes = tag_bytes;
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
    /// Groups of `bits` bits each, and as many more as the files need. Their filters take from `filters`.
    #[must_use]
    pub fn new(bits: u32, files: &[Arc<ValueFile>], filters: &Arc<Budget>) -> Self {
        let mut groups = Self { directory: vec![0], groups: vec![Group::new(Region::ALL, 0, filters)], clock: 0 };
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
                let segment = if file.description.class == COLD { &mut group.cold } else { &mut group.hot };
                segment.adopt(file, group.region.bits - region.bits);
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

    /// Bytes of filters. What the halves of a group have in common counts once.
    #[must_use]
    pub fn filter_bytes(&self) -> u64 {
        let segments = self.groups.iter().flat_map(|group| [&group.hot, &group.cold, &group.tagged]);
        let layers = segments.filter_map(|segment| segment.seen.as_ref()).flat_map(|seen| &seen.layers);
        let distinct: BTreeMap<_, u64> = layers.map(|layer| (Arc::as_ptr(layer), layer.taken.bytes())).collect();
        distinct.values().sum()
    }

    /// Bytes known to be dead, by file. Those of a segment are assigned to its oldest files, and those of shared
    /// files are summed up: opening these files with these figures finds about as much dead in each segment.
    #[must_use]
    pub fn dead_bytes(&self) -> Vec<(Arc<ValueFile>, u64)> {
        let mut sums: BTreeMap<FileId, (&Arc<ValueFile>, u64)> = BTreeMap::new();
        for group in &self.groups {
            for segment in [&group.hot, &group.cold] {
                for (file, bytes) in segment.dead_by_file(group.region.bits) {
                    sums.entry(file.id).or_insert((file, 0)).1 += bytes;
                }
            }
        }
        sums.into_values().map(|(file, bytes)| (Arc::clone(file), bytes)).collect()
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
        if !self.groups[at].busy && self.groups[at].region.bits < SPLIT_BITS_MAX {
            self.split(at);
        }
    }

    fn split(&mut self, at: usize) {
        let old = self.groups[at].clone();
        if 1usize << old.region.bits == self.directory.len() {
            self.directory.extend_from_within(..);
        }
        let [low, high] = old.region.halves();
        let half = |region| Group {
            region,
            hot: old.hot.half(),
            cold: old.cold.half(),
            tagged: old.tagged.half(),
            tag_bytes: old.tag_bytes / 2,
            busy: old.busy,
            // No group splits while GC runs on it.
            lost: BTreeMap::new(),
        };
        let new = u32::try_from(self.groups.len()).unwrap_or(u32::MAX);
        self.groups[at] = half(low);
        self.groups.push(half(high));
        for (prefix, entry) in self.directory.iter_mut().enumerate() {
            if high.covers(prefix as u64) {
                *entry = new;
            }
        }
    }

    /// The positions of the groups that share files with the group at `at`, itself included: files of the hot
    /// segment, or any.
    #[must_use]
    pub fn family(&self, at: usize, hot_only: bool) -> Vec<usize> {
        let group = &self.groups[at];
        let cold: &[_] = if hot_only { &[] } else { &group.cold.files };
        let regions = group.hot.files.iter().chain(cold).map(region_of).chain([group.region]);
        let widest = regions.min().unwrap_or(Region::ALL);
        (0..self.groups.len()).filter(|&other| widest.contains(self.groups[other].region)).collect()
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
        let mut groups = Groups::new(2, &[], &Budget::new(1 << 20));
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
    fn the_directory_has_an_end_however_often_one_group_is_full() {
        let mut groups = Groups::new(0, &[], &Budget::new(1 << 20));
        (0..100).for_each(|_| groups.split_at(77));
        assert_eq!((groups.all().len(), groups.directory.len()), (1 + SPLIT_BITS_MAX as usize, 1 << SPLIT_BITS_MAX));
    }

    #[test]
    fn a_group_tells_new_keys_from_known_ones() {
        let mut group = Group::new(Region::ALL, 0, &Budget::new(1 << 20));
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
        let mut group = Group::new(Region::ALL, 0, &Budget::new(1 << 20));
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

    #[test]
    fn of_cold_values_that_are_all_updated_hardly_one_counts() {
        let mut group = Group::new(Region::ALL, 0, &Budget::new(1 << 20));
        let cold: Vec<u64> = (0..1000).map(hash).collect();
        group.cold.recount(&cold, 100_000, 0, 0);
        (0..500).for_each(|n| group.wrote(hash(n), 100));
        assert!((47_000..53_000).contains(&group.cold.live), "{:?}", group.cold.live);
        (500..1000).for_each(|n| group.wrote(hash(n), 100));
        assert!(group.cold.live < 3_000, "{:?}", group.cold.live);
        // Half of them are cold again.
        group.hot.recount(&[], 0, 0, 0);
        group.cold.add(&cold[..500], 50_000, 0);
        (0..250).for_each(|n| group.wrote(hash(n), 100));
        assert!((23_000..30_000).contains(&group.cold.live), "{:?}", group.cold.live);
    }

    #[test]
    fn the_first_update_of_a_tagged_value_is_its_end() {
        let mut group = Group::new(Region::ALL, 0, &Budget::new(1 << 20));
        let tagged: Vec<u64> = (0..1000).map(hash).collect();
        group.retag(&tagged, 100_000, 0, 5_000);
        for _ in 0..3 {
            (0..100).for_each(|n| group.wrote(hash(n), 100));
        }
        assert!((9_000..11_000).contains(&group.tagged.dead), "{:?}", group.tagged.dead);
        assert_eq!(group.tagged.live + group.tagged.dead, 100_000);
        assert!((9_000..11_000).contains(&group.hot.live), "{:?}", group.hot.live);
        assert_eq!(group.bytes(), 30_000 + 5_000, "what is tagged is not in the group");
        group.retag(&[], 0, 0, 0);
        group.wrote(hash(500), 100);
        assert_eq!((group.tagged.live, group.tagged.dead), (0, 0));
    }

    /// Different keys, well spread.
    fn hash(n: u64) -> u64 {
        let n = (n ^ n >> 33).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
        (n ^ n >> 33).wrapping_mul(0xC4CE_B9FE_1A85_EC53) ^ n >> 29
    }

    #[test]
    fn filters_stay_within_their_budget_and_forget_no_key() {
        // 2 M keys would take 3 MB, and splitting and growing about twice that.
        let budget = Budget::new(1 << 20);
        let mut groups = Groups::new(4, &[], &budget);
        for n in 0..2_000_000 {
            groups.at_mut(hash(n)).wrote(hash(n), 100);
            if groups.at(hash(n)).bytes() > 1 << 20 && groups.all().len() < 256 {
                groups.split_at(hash(n));
            }
            if n % 1000 == 0 {
                assert!(budget.used_bytes() <= budget.bytes_max(), "{budget:?}");
            }
        }
        assert_eq!(groups.filter_bytes(), budget.used_bytes());
        for n in (0..2_000_000).step_by(1000) {
            let live = groups.at(hash(n)).hot.live;
            groups.at_mut(hash(n)).wrote(hash(n), 100);
            assert_eq!(groups.at(hash(n)).hot.live, live, "key {n} is taken for a new one");
        }
        drop(groups);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn with_a_short_budget_every_group_gets_a_filter_of_fewer_bits() {
        // 800 k keys in 16 groups: 1.8 MB with 12 bits and room for half as many again.
        let budget = Budget::new(1 << 20);
        let mut groups = Groups::new(4, &[], &budget);
        let mut keys = vec![Vec::new(); 16];
        (0..800_000).for_each(|n| keys[groups.position(hash(n))].push(hash(n)));
        // The first ones to be collected get most, and give it back the next times.
        for _ in 0..4 {
            for (group, keys) in groups.all_mut().iter_mut().zip(&keys) {
                group.hot.recount(keys, 100 * keys.len() as u64, 0, 0);
            }
        }
        assert!(budget.used_bytes() <= budget.bytes_max());
        for n in 800_000..840_000 {
            groups.at_mut(hash(n)).wrote(hash(n), 100);
        }
        for group in groups.all() {
            let wrongly_dead = group.hot.dead as f64 / group.hot.written as f64;
            assert!(group.hot.seen.is_some() && wrongly_dead < 0.2, "{wrongly_dead} of new keys are thought known");
        }
    }

    #[test]
    fn a_group_without_a_filter_takes_every_write_for_a_replacement() {
        let mut group = Group::new(Region::ALL, 0, &Budget::new(0));
        (0..10).for_each(|n| group.wrote(hash(n), 10));
        assert_eq!((group.hot.live, group.hot.dead), (0, 100));
        group.hot.recount(&[hash(1)], 10, 0, 0);
        group.ended(hash(1), 4);
        assert_eq!((group.hot.live, group.hot.dead), (10, 4));
    }
}
