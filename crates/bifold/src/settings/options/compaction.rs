//! How tables are merged, and the hash index over those of level 0.

use bifold_contract::Result;
pub use bifold_index::{
    compaction::{
        leveled::LeveledOptions as Leveled, tiered::TieredOptions as Tiered, two_layer::TwoLayerOptions as TwoLayer,
    },
    hash_index::HashIndexOptions as HashIndex,
};
use serde::{Deserialize, Serialize};

/// How tables are rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
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

impl Compaction {
    pub(super) fn check(&self) -> Result<()> {
        match self {
            Self::Leveled(options) => options.check("keyspace.compaction.leveled"),
            Self::Tiered(options) => options.check("keyspace.compaction.tiered"),
            Self::TwoLayer(options) => options.check("keyspace.compaction.two_layer"),
        }
    }
}
