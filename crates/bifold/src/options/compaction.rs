//! How tables are merged, and the hash index over those of level 0.

use bifold_contract::{Error, Result};
use serde::{Deserialize, Serialize};

use super::text::{at_least, size, within};

/// How tables are rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compaction {
    /// One sorted run a level: least space, fewest runs to read.
    Leveled(Leveled),
    /// Several runs a level: least writing.
    Tiered(Tiered),
    /// An unsorted layer over one sorted layer.
    TwoLayer(TwoLayer),
}

impl Default for Compaction {
    fn default() -> Self {
        Self::Leveled(Leveled::default())
    }
}

/// Options of leveled compaction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Leveled {
    /// How many times larger each level is than the one above, at least 2.
    pub growth: u32,
    /// How many levels there are, level 0 included: 2 to 16.
    pub levels: u8,
    /// Level 0 is due when so many of its runs overlap; at half as many when merging them down is cheap.
    pub level0_runs: u32,
    /// No level but the last has a target below this, in bytes: about what level 0 holds when it is due.
    #[serde(deserialize_with = "size")]
    pub base_bytes: u64,
}

impl Default for Leveled {
    fn default() -> Self {
        Self { growth: 10, levels: 7, level0_runs: 8, base_bytes: 256 << 20 }
    }
}

/// Options of tiered compaction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tiered {
    /// Runs of a level that are merged into one run of the next, at least 2.
    pub growth: u32,
    /// How many levels there are, level 0 included: 2 to 16.
    pub levels: u8,
}

impl Default for Tiered {
    fn default() -> Self {
        Self { growth: 4, levels: 7 }
    }
}

/// Options of two-layer compaction (UniKV §III-A).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TwoLayer {
    /// The unsorted layer is merged into the sorted one at this size, in bytes; with the placement `unikv` earlier, when what it may overwrite is a
    /// fourth of what `values.space_target` leaves for garbage.
    #[serde(deserialize_with = "size")]
    pub unsorted_bytes: u64,
    /// Runs of the unsorted layer that are merged among themselves when there are more, for the sake of scans.
    pub scan_merge_runs: u32,
}

impl Default for TwoLayer {
    fn default() -> Self {
        Self { unsorted_bytes: 1 << 30, scan_merge_runs: 8 }
    }
}

/// Options of the hash index over level 0 (UniKV §III-B). It takes some 10 bytes of memory for each key in level 0, within the share of
/// `memory_limit` that indexes and filters have; where that has no room, there is none, and reads ask every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HashIndex {
    /// Places a key may have, 1 to 8 (the paper's n).
    pub ways: u32,
    /// Bits of an entry that tell keys apart, 1 to 32.
    pub tag_bits: u32,
    /// Bits of an entry that tell runs apart, 1 to 32; with the tag's at most 48. More runs than they can tell are searched without the index.
    pub run_bits: u32,
    /// Whether the hashes of keys are written with their table, 8 bytes each, so that opening a database need not read all keys of
    /// level 0.
    pub written: bool,
}

impl Default for HashIndex {
    fn default() -> Self {
        Self { ways: 4, tag_bits: 16, run_bits: 16, written: true }
    }
}

impl HashIndex {
    pub(super) fn check(self) -> Result<()> {
        within("keyspace.hash_index.ways", u64::from(self.ways), 1, 8)?;
        within("keyspace.hash_index.tag_bits", u64::from(self.tag_bits), 1, 32)?;
        within("keyspace.hash_index.run_bits", u64::from(self.run_bits), 1, 32)?;
        if self.tag_bits + self.run_bits > 48 {
            let reason = format!("{} and run_bits = {} are more than 48 together", self.tag_bits, self.run_bits);
            return Err(Error::invalid("option `keyspace.hash_index.tag_bits`", reason));
        }
        Ok(())
    }
}

impl Compaction {
    pub(super) fn check(&self) -> Result<()> {
        match *self {
            Compaction::Leveled(o) => {
                within("keyspace.compaction.leveled.growth", u64::from(o.growth), 2, 1000)?;
                within("keyspace.compaction.leveled.levels", u64::from(o.levels), 2, 16)?;
                within("keyspace.compaction.leveled.level0_runs", u64::from(o.level0_runs), 1, 1000)?;
                at_least("keyspace.compaction.leveled.base_bytes", o.base_bytes, 1 << 10)
            }
            Compaction::Tiered(o) => {
                within("keyspace.compaction.tiered.growth", u64::from(o.growth), 2, 1000)?;
                within("keyspace.compaction.tiered.levels", u64::from(o.levels), 2, 16)
            }
            Compaction::TwoLayer(o) => {
                at_least("keyspace.compaction.two_layer.unsorted_bytes", o.unsorted_bytes, 1 << 10)?;
                within("keyspace.compaction.two_layer.scan_merge_runs", u64::from(o.scan_merge_runs), 2, 1000)
            }
        }
    }
}
