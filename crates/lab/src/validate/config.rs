//! Trees of several depths, with the engine's options for them.
//!
//! ```text
//! model     memory S₀ ──▶ level 1, f·S₀ ──▶ …  ──▶ level l, f^l·S₀
//! engine    memtable ──▶ level 0, one flush of S₀ ──▶ level 1 ──▶ … ──▶ level l             leveling
//!           memtable ──▶ level 0, f runs of S₀ ──▶ level 1, f runs of f·S₀ ──▶ … ──▶ level l − 1      tiering
//! ```
//!
//! **Leveling.** The model merges memory straight into level 1. The engine writes level 0 first and reads it back:
//! with `level0_runs` = 1 each flush is merged at once, so level 0 is the model's memory on its way.
//!
//! **Tiering.** A flush is a run of the model's first level, which is level 0 here. After f^(l − 1) flushes all data
//! are in one run of the last level.

use bifold::{
    Compaction, Compression, Durability, KeyspaceOptions, Options, PlacementKind, Workers,
    options::{Leveled, Tiered, Values},
};
use serde::Serialize;

/// How levels are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MergePolicy {
    /// Each merge takes the next level, too.
    Leveling,
    /// A level is merged into one run of the next.
    Tiering,
}

/// Where values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// With their keys.
    Inline,
    /// In a value log.
    Log,
}

/// The size of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tables {
    /// A level is one table, so merges take all of it: the model's plain leveling (Eq. 4).
    Whole,
    /// A quarter of a flush, as by default: 16 MiB of 64. Merges take one table at a time (Eq. 13).
    Quarter,
    /// [`SMALL_TABLE_BYTES`].
    Small,
}

/// About what Kreon reads at once, with about as few keys per table (§4).
pub const SMALL_TABLE_BYTES: u64 = 8 << 10;

impl MergePolicy {
    /// The name in a table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Leveling => "leveling",
            Self::Tiering => "tiering",
        }
    }
}

impl Place {
    /// The name in a table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Log => "log",
        }
    }
}

impl Tables {
    /// The name in a table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Quarter => "quarter",
            Self::Small => "small",
        }
    }
}

/// The engine's minimum.
const TABLE_BYTES_LEAST: u64 = 1 << 10;

/// A tree to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Config {
    /// How levels are merged.
    #[serde(rename = "compaction")]
    pub shape: MergePolicy,
    /// Where values are.
    #[serde(rename = "values")]
    pub place: Place,
    /// The size of tables.
    pub tables: Tables,
    /// The model's l.
    pub levels: u32,
    /// The model's f.
    pub growth: u32,
}

/// The data.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Entries of each flush.
    pub entries: u64,
    /// Size of each key.
    pub key_bytes: usize,
    /// Size of each value.
    pub value_bytes: usize,
    /// The seed of keys and values.
    pub seed: u64,
}

impl Load {
    /// S₀: bytes of keys and values in a flush.
    #[must_use]
    pub fn flush_bytes(&self) -> u64 {
        self.entries * (self.key_bytes + self.value_bytes) as u64
    }
}

/// So much space that it never makes a merge due.
const SPACE_UNBOUNDED: u32 = 1_000_000;

impl Config {
    /// The number of flushes that make the last level as large as in the model.
    #[must_use]
    pub fn flushes(&self) -> u64 {
        let depth = match self.shape {
            MergePolicy::Leveling => self.levels,
            MergePolicy::Tiering => self.levels - 1,
        };
        u64::from(self.growth).saturating_pow(depth)
    }

    /// The largest size of a table.
    #[must_use]
    pub fn table_bytes(&self, load: &Load) -> u64 {
        match self.tables {
            // More than a table ever holds.
            Tables::Whole => load.flush_bytes().saturating_mul(self.flushes()).saturating_mul(4),
            Tables::Quarter => (load.flush_bytes() / 4).max(TABLE_BYTES_LEAST),
            Tables::Small => SMALL_TABLE_BYTES,
        }
    }

    /// The engine's options for this tree, on top of the user's.
    #[must_use]
    pub fn options(&self, load: &Load, base: Options) -> Options {
        let compaction = match self.shape {
            MergePolicy::Leveling => Compaction::Leveled(Leveled {
                size_ratio: self.growth,
                levels: level_count(self.levels + 1),
                level0_runs: 1,
                // So small that all levels exist from the beginning, as in the model, and not only when there are
                // many data.
                base_bytes: 1 << 10,
                ..Leveled::default()
            }),
            MergePolicy::Tiering => Compaction::Tiered(Tiered {
                size_ratio: self.growth,
                levels: level_count(self.levels),
                // The model merges a level when it is full and at no other time.
                space_percent: SPACE_UNBOUNDED,
            }),
        };
        let placement = match self.place {
            Place::Inline => PlacementKind::Inline,
            Place::Log => PlacementKind::WiscKey,
        };
        // Flushes are requested so that all have the same bytes: no memtable is ever full.
        let memtable_bytes = (load.flush_bytes() * 4).max(1 << 20);
        Options {
            workers: Workers::Caller,
            durability: Durability::Memory,
            memtable_bytes,
            memory_limit: base.memory_limit.max(memtable_bytes * 16),
            log_bytes: base.log_bytes.max(memtable_bytes * 4),
            keyspace: KeyspaceOptions {
                placement,
                values: Values { separate_from_bytes: Some(1), ..base.keyspace.values },
                compression: Compression::None,
                table_bytes: self.table_bytes(load),
                partition_bytes: None,
                compaction,
                ..base.keyspace
            },
            ..base
        }
    }
}

/// The engine's number of levels, at most 16.
fn level_count(levels: u32) -> u8 {
    u8::try_from(levels).unwrap_or(u8::MAX)
}
