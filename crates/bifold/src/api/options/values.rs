//! How separated values are kept.

use bifold_contract::{
    Error, Result,
    option::{at_least, size, within},
};
use bifold_format::compression::Compression;
use serde::{Deserialize, Serialize};

/// Which group of values GC takes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Victim {
    /// The one with most writes since its last GC (HashKV §3.3).
    Greedy,
    /// Dead bytes for each live byte, times the time since its last GC.
    #[default]
    CostBenefit,
    /// The most written of so many drawn at random.
    GreedyRandom(u32),
    /// Any.
    Random,
}

/// What `hashkv` does with values that are not updated between two GC runs of their group (HashKV §3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cold {
    /// They go to a segment of their group that GC takes more rarely, without asking the index.
    #[default]
    Parts,
    /// They go to one log for all groups, as in the paper; its GC asks the index.
    Log,
    /// They stay where they are.
    Off,
}

/// Which compactions move values to files of their own (`diffkv`; DiffKV §3.3, §3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MergePolicy {
    /// Only those for GC: values stay in the order of the memtable they were flushed from.
    Off,
    /// Each that takes keys to a deeper level.
    EachLevel,
    /// Those that take keys to one of the last two levels.
    Lazy,
    /// The same, and values of files that overlap more than `max_sorted_run` others move whatever their level.
    #[default]
    ScanOptimised,
}

/// Options of separated values: those that are not stored with their keys. Without effect where the placement is
/// `inline`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Values {
    /// Values of this length and above are separated from their keys, in bytes.
    #[serde(deserialize_with = "size")]
    pub min_bytes: u64,
    /// How many bytes of value files and tables there may be for each byte of live values: 1.05 to 100. GC runs
    /// when there are more. Logs come on top.
    pub space_target: f64,
    /// Which group GC takes first (`hashkv`).
    pub victim: Victim,
    /// Where values go that are not updated between two GC runs of their group (`hashkv`).
    pub cold: Cold,
    /// A group splits when its file has grown past this size, in bytes (`hashkv`).
    #[serde(deserialize_with = "size")]
    pub group_bytes: u64,
    /// About the largest number of groups, each of which is an open file; then they grow instead (`hashkv`).
    pub groups_max: u32,
    /// Files of values in the order of arrival or by key are cut at about this size, in bytes (`wisckey`, `novkv`,
    /// `diffkv`, and the cold log of `hashkv`): 1 KiB to 1 TiB; with `novkv` to 1 GiB, for its GC holds the
    /// values of one in memory.
    #[serde(deserialize_with = "size")]
    pub file_bytes: u64,
    /// A file of which a larger share than this is valid is left alone by GC (`novkv`, §III-C there; `diffkv`, §3.5
    /// there, which gives the share that is invalid): 0.05 to 1.
    pub gc_threshold: f64,
    /// Values of this length and above go to logs, in bytes, those below and from `min_bytes` on to files by key
    /// (`diffkv`).
    #[serde(deserialize_with = "size")]
    pub large_bytes: u64,
    /// Which compactions move values (`diffkv`).
    pub merge: MergePolicy,
    /// A file whose keys overlap those of more files than this, itself included, is merged with them (`diffkv`): 1 to
    /// 1000.
    pub max_sorted_run: u32,
    /// How values are compressed, each by itself.
    pub compression: Compression,
    /// Which values are kept in the block cache.
    pub cache: CachedValues,
}

impl Default for Values {
    fn default() -> Self {
        Self {
            min_bytes: 192,
            space_target: 1.5,
            victim: Victim::default(),
            cold: Cold::default(),
            group_bytes: 4 << 20,
            groups_max: 128,
            file_bytes: 16 << 20,
            gc_threshold: 0.7,
            large_bytes: 8 << 10,
            merge: MergePolicy::default(),
            max_sorted_run: 10,
            compression: Compression::None,
            cache: CachedValues::default(),
        }
    }
}

/// Which separated values are kept in the block cache. Scans, compaction and GC never put any there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CachedValues {
    /// None: the system's page cache holds them already.
    #[default]
    None,
    /// What was got by its key.
    Gets,
}

impl Values {
    pub(super) fn check(&self) -> Result<()> {
        at_least("keyspace.values.min_bytes", self.min_bytes, 1)?;
        at_least("keyspace.values.group_bytes", self.group_bytes, 1 << 10)?;
        within("keyspace.values.file_bytes", self.file_bytes, 1 << 10, 1 << 40)?;
        within("keyspace.values.groups_max", u64::from(self.groups_max), 16, 65_536)?;
        at_least("keyspace.values.large_bytes", self.large_bytes, 1)?;
        within("keyspace.values.max_sorted_run", u64::from(self.max_sorted_run), 1, 1000)?;
        if let Victim::GreedyRandom(drawn) = self.victim {
            within("keyspace.values.victim.greedy_random", u64::from(drawn), 1, 65_536)?;
        }
        if !(0.05..=1.0).contains(&self.gc_threshold) {
            let reason = format!("{} is not between 0.05 and 1", self.gc_threshold);
            return Err(Error::invalid("option `keyspace.values.gc_threshold`", reason));
        }
        if !(1.05..=100.0).contains(&self.space_target) {
            let reason = format!("{} is not between 1.05 and 100", self.space_target);
            return Err(Error::invalid("option `keyspace.values.space_target`", reason));
        }
        Ok(())
    }
}
