//! The designs that are compared.

use serde::Serialize;

use super::{costs, workload::Workload};

/// Where values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelPlacement {
    /// Inline: with their keys.
    Inline,
    /// In a log; GC starts at its oldest end and asks the index.
    WiscKey,
    /// In groups by the hash of their keys.
    HashKv,
    /// In files that GC rewrites as tables sorted by key.
    NovKv,
    /// Medium values in files that follow the order of their keys, large ones in logs.
    DiffKv,
    /// Inline in an unsorted layer under a hash index, separated below it.
    UniKv,
    /// In files by how often and how long ago their keys were written.
    Streams,
}

impl ModelPlacement {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Inline, Self::WiscKey, Self::HashKv, Self::NovKv, Self::DiffKv, Self::UniKv, Self::Streams];

    /// The name that options use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::WiscKey => "wisckey",
            Self::HashKv => "hashkv",
            Self::NovKv => "novkv",
            Self::DiffKv => "diffkv",
            Self::UniKv => "unikv",
            Self::Streams => "streams",
        }
    }

    /// Whether a commit writes values to value files, and the commit log holds only their addresses.
    pub fn separates_at_commit(self) -> bool {
        matches!(self, Self::WiscKey | Self::HashKv | Self::NovKv | Self::Streams)
    }
}

/// How tables are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CandidateCompaction {
    /// One run per level, each level larger than the one above by this factor.
    Leveled {
        /// The factor.
        size_ratio: u32,
    },
    /// This many runs per level before they are merged into one of the next.
    Tiered {
        /// The number of runs.
        size_ratio: u32,
    },
    /// An unsorted layer over a sorted one.
    TwoLayer,
}

/// A design with its main parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// Where values are.
    pub placement: ModelPlacement,
    /// How tables are merged.
    pub shape: CandidateCompaction,
    /// Values of at least this many bytes are separated; `None` where none are.
    pub min_bytes: Option<u64>,
    /// Bytes of a block of a table.
    pub block_bytes: u32,
}

impl Candidate {
    /// Whether values of this length are separated.
    pub fn separates(&self, value_bytes: f64) -> bool {
        self.min_bytes.is_some_and(|min_bytes| value_bytes >= min_bytes as f64)
    }
}

/// Thresholds for separation: the smallest value that is worth an address, the engine's default, and larger ones.
const MIN_BYTES: [u64; 6] = [64, 192, 512, 1 << 10, 4 << 10, 16 << 10];

/// Blocks that are read through mapped pages: a read of the unsorted layer reads one block, which need not hold other
/// entries.
const SMALL_BLOCK_BYTES: u32 = 1 << 10;

/// The engine's default.
const BLOCK_BYTES: u32 = 4 << 10;

/// All designs that differ for this workload: each placement, with every threshold and size ratio that has an
/// effect.
pub fn candidates(workload: &Workload) -> Vec<Candidate> {
    let default_ratio = CandidateCompaction::Leveled { size_ratio: costs::GROWTH };
    let mut all = Vec::new();
    for shape in [
        default_ratio,
        CandidateCompaction::Leveled { size_ratio: costs::GROWTH_LEAST_TRAFFIC },
        CandidateCompaction::Tiered { size_ratio: costs::TIERED_GROWTH },
    ] {
        all.push(Candidate { placement: ModelPlacement::Inline, shape, min_bytes: None, block_bytes: BLOCK_BYTES });
    }
    for placement in ModelPlacement::ALL.into_iter().filter(|&placement| placement != ModelPlacement::Inline) {
        let (shape, block_bytes) = match placement {
            ModelPlacement::UniKv => (CandidateCompaction::TwoLayer, SMALL_BLOCK_BYTES),
            _ => (default_ratio, BLOCK_BYTES),
        };
        let with = |min_bytes| Candidate { placement, shape, min_bytes: Some(min_bytes), block_bytes };
        all.extend(thresholds(workload).into_iter().map(with));
    }
    all
}

/// The thresholds of [`MIN_BYTES`] that separate any values, one for each different set of separated values.
fn thresholds(workload: &Workload) -> Vec<u64> {
    let separated =
        |min_bytes: u64| workload.values.iter().filter(|v| v.share > 0.0 && v.bytes >= min_bytes as f64).count();
    let mut distinct: Vec<u64> = Vec::new();
    for min_bytes in MIN_BYTES.into_iter().filter(|&min_bytes| separated(min_bytes) > 0) {
        match distinct.last_mut() {
            // Prefer the default to a smaller threshold with the same effect.
            Some(last) if separated(*last) == separated(min_bytes) => {
                *last = min_bytes.min((*last).max(costs::MIN_BYTES_DEFAULT))
            }
            _ => distinct.push(min_bytes),
        }
    }
    distinct
}
