//! How large experiments are, and what of the store's settings shrinks with them.
//!
//! The papers' machines had tens of gigabytes on disk below a memtable of 64 MiB. What decides the shape of their
//! figures is less the sizes than their ratios: data to memtable (how many levels there are), memtable to table, data
//! to segment. So a smaller scale makes everything smaller, as far as the engine's own least sizes allow; the ratio
//! of data to memtable shrinks all the same, and with it the number of levels, which each experiment's page says.
//!
//! Sizes decide one more thing: whether reads wait for a device. Only at `device` is memory limited by itself, to a
//! sixth of the data; the papers' machines had 16 to 64 GB of memory for 40 to 100 GB of data, or less.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::Failure;

/// A size for every experiment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// 1 MiB of keys and values: proves that an experiment works. Its figures mean nothing.
    Tiny,
    /// 64 MiB: all experiments in about an hour. Everything fits into the page cache and most of it into the
    /// processor's.
    #[default]
    Small,
    /// 1 GiB.
    Medium,
    /// 6 GiB with a sixth of it as memory, page cache included: reads wait for the device.
    Device,
    /// 40 GiB, the papers' size.
    Large,
}

/// How often each run is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounds {
    /// So often, or once.
    pub most: usize,
    /// More than once only if the first round takes less than this; `None`: in any case.
    pub again_within: Option<Duration>,
}

impl Rounds {
    /// So many of every run.
    #[must_use]
    pub fn of(rounds: usize) -> Self {
        Self { most: rounds, again_within: None }
    }
}

/// Runs that take less are made several times also where others are made once.
const SHORT: Duration = Duration::from_secs(15 * 60);

impl Scale {
    /// Every scale.
    pub const ALL: [Self; 5] = [Self::Tiny, Self::Small, Self::Medium, Self::Device, Self::Large];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Device => "device",
            Self::Large => "large",
        }
    }

    /// Bytes of keys and values that are loaded, each key once.
    #[must_use]
    pub fn data_bytes(self) -> u64 {
        match self {
            Self::Tiny => 1 << 20,
            Self::Small => 64 << 20,
            Self::Medium => 1 << 30,
            Self::Device => 6 << 30,
            Self::Large => 40 << 30,
        }
    }

    /// Size of a memtable. Data are 16, 64, 128, 384 and 640 times as large.
    #[must_use]
    pub fn memtable_bytes(self) -> u64 {
        match self {
            Self::Tiny => 64 << 10,
            Self::Small => 1 << 20,
            Self::Medium => 8 << 20,
            Self::Device => 16 << 20,
            Self::Large => 64 << 20,
        }
    }

    /// Size of a table and of a value file: a quarter of a memtable as by default, but at the smaller scales a whole
    /// one. Each file costs a sync, which takes as long for a small one as for a large one: with quarters they would
    /// be most of what is measured.
    #[must_use]
    pub fn table_bytes(self) -> u64 {
        match self {
            Self::Large | Self::Device => self.memtable_bytes() / 4,
            Self::Medium => self.memtable_bytes() / 2,
            Self::Small | Self::Tiny => self.memtable_bytes(),
        }
    }

    /// The cap over the store's memory: 16 memtables, eight of the paper's 64 MiB at the largest scale.
    #[must_use]
    pub fn memory_limit(self) -> u64 {
        match self {
            Self::Large => 512 << 20,
            _ => 16 * self.memtable_bytes(),
        }
    }

    /// The most memory of a store's process, page cache included, in bytes; `None`: all there is.
    #[must_use]
    pub fn process_memory(self) -> Option<u64> {
        (self == Self::Device).then(|| self.data_bytes() / 6)
    }

    /// A step ends after this time even if operations are left. A load may take 15 minutes ([`crate::execute`]), and a
    /// wait for background work at least two.
    #[must_use]
    pub fn step_time_max(self) -> Option<Duration> {
        (self == Self::Device).then_some(Duration::from_secs(120))
    }

    /// How often each run is made, unless somebody says otherwise.
    #[must_use]
    pub fn rounds(self) -> Rounds {
        match self {
            Self::Tiny => Rounds::of(1),
            // A run may take an hour here.
            Self::Device => Rounds { most: 3, again_within: Some(SHORT) },
            Self::Small | Self::Medium | Self::Large => Rounds::of(3),
        }
    }

    /// The options that shrink with the data, as words to set.
    #[must_use]
    pub fn options(self) -> Vec<String> {
        let memtable = self.memtable_bytes();
        vec![
            format!("memory_limit={}", self.memory_limit()),
            format!("memtable_bytes={memtable}"),
            format!("log_bytes={}", 8 * memtable),
            format!("keyspace.table_bytes={}", self.table_bytes()),
            format!("keyspace.values.file_bytes={}", self.table_bytes()),
            format!("keyspace.values.hashkv.group_bytes={}", (self.data_bytes() / 64).max(8 << 10)),
        ]
    }

    /// The same for leveled compaction: level 1 holds four memtables, as by default.
    #[must_use]
    pub fn leveled(self) -> Vec<String> {
        vec![format!("keyspace.compaction.leveled.base_bytes={}", 4 * self.memtable_bytes())]
    }

    /// UniKV's unsorted layer: a 25th of the data as in its paper (4 of 100 GB), but at least four memtables.
    #[must_use]
    pub fn unsorted_bytes(self) -> u64 {
        (self.data_bytes() / 25).max(4 * self.memtable_bytes())
    }

    /// UniKV's ranges of keys: two fifths of the data as in its paper (40 of 100 GB).
    #[must_use]
    pub fn partition_bytes(self) -> u64 {
        self.data_bytes() * 2 / 5
    }

    /// The same options for UniKV's two layers.
    #[must_use]
    pub fn two_layers(self) -> Vec<String> {
        vec![
            format!("keyspace.compaction.two_layer.unsorted_bytes={}", self.unsorted_bytes()),
            format!("keyspace.partition_bytes={}", self.partition_bytes()),
        ]
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scale {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        Self::ALL.into_iter().find(|scale| scale.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Failure::Plan(format!("no scale is called `{text}`; there are {names}"))
        })
    }
}
