//! The designs that are compared.

use serde::Serialize;

use super::{costs, workload::Workload};

/// Where values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Beside their keys.
    Inline,
    /// In a log, collected from its oldest end by asking the index.
    WiscKey,
    /// In groups by the hash of their keys.
    HashKv,
    /// In files that are made tables by key when they are collected.
    NovKv,
    /// Those of medium length in files that follow their keys' order, the long ones in logs.
    DiffKv,
    /// Beside their keys in an unsorted layer under a hash index, apart below it.
    UniKv,
}

impl Placement {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Inline, Self::WiscKey, Self::HashKv, Self::NovKv, Self::DiffKv, Self::UniKv];

    /// The name that options use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::WiscKey => "wisckey",
            Self::HashKv => "hashkv",
            Self::NovKv => "novkv",
            Self::DiffKv => "diffkv",
            Self::UniKv => "unikv",
        }
    }

    /// Whether values go to their files with the commit, and the commit log has their addresses only.
    pub fn separates_at_commit(self) -> bool {
        matches!(self, Self::WiscKey | Self::HashKv | Self::NovKv)
    }
}

/// How tables are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// One run a level, each level so many times larger than the one above.
    Leveled {
        /// How many times.
        growth: u32,
    },
    /// So many runs a level before they are merged into one of the next.
    Tiered {
        /// How many.
        growth: u32,
    },
    /// An unsorted layer over a sorted one.
    TwoLayer,
}

/// A design with its main parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// Where values are.
    pub placement: Placement,
    /// How tables are merged.
    pub shape: Shape,
    /// Values of this length and above are apart, in bytes; `None` where none are.
    pub min_bytes: Option<u64>,
    /// Blocks of tables, in bytes.
    pub block_bytes: u32,
}

impl Candidate {
    /// Whether values of this length are apart.
    pub fn parts(&self, value_bytes: f64) -> bool {
        self.min_bytes.is_some_and(|min_bytes| value_bytes >= min_bytes as f64)
    }
}

/// The lengths from which on values may be apart: the first is the least that is worth an address, the second the
/// engine's default.
const MIN_BYTES: [u64; 6] = [64, 192, 512, 1 << 10, 4 << 10, 16 << 10];

/// Blocks that are read through mapped pages: where a read of the unsorted layer is one block, it need not hold others.
const SMALL_BLOCK_BYTES: u32 = 1 << 10;

/// The engine's default.
const BLOCK_BYTES: u32 = 4 << 10;

/// All designs that differ for this workload: each placement, and of lengths and growths those that change something.
pub fn candidates(workload: &Workload) -> Vec<Candidate> {
    let default_growth = Shape::Leveled { growth: costs::GROWTH };
    let mut all = Vec::new();
    for shape in [
        default_growth,
        Shape::Leveled { growth: costs::GROWTH_LEAST_TRAFFIC },
        Shape::Tiered { growth: costs::TIERED_GROWTH },
    ] {
        all.push(Candidate { placement: Placement::Inline, shape, min_bytes: None, block_bytes: BLOCK_BYTES });
    }
    for placement in Placement::ALL.into_iter().filter(|&placement| placement != Placement::Inline) {
        let (shape, block_bytes) = match placement {
            Placement::UniKv => (Shape::TwoLayer, SMALL_BLOCK_BYTES),
            _ => (default_growth, BLOCK_BYTES),
        };
        let with = |min_bytes| Candidate { placement, shape, min_bytes: Some(min_bytes), block_bytes };
        all.extend(thresholds(workload).into_iter().map(with));
    }
    all
}

/// Of [`MIN_BYTES`] those that put different values apart, and some at all.
fn thresholds(workload: &Workload) -> Vec<u64> {
    let apart =
        |min_bytes: u64| workload.values.iter().filter(|v| v.share > 0.0 && v.bytes >= min_bytes as f64).count();
    let mut distinct: Vec<u64> = Vec::new();
    for min_bytes in MIN_BYTES.into_iter().filter(|&min_bytes| apart(min_bytes) > 0) {
        match distinct.last_mut() {
            // The default rather than a smaller one that means the same.
            Some(last) if apart(*last) == apart(min_bytes) => {
                *last = min_bytes.min((*last).max(costs::MIN_BYTES_DEFAULT))
            }
            _ => distinct.push(min_bytes),
        }
    }
    distinct
}
