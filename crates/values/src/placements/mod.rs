//! One file per design.
//!
//! | placement | paper |
//! |---|---|
//! | [`inline`] | none: a plain LSM-tree |
//! | [`wisckey`] | WiscKey, FAST 2016, as HashKV §2 and §4 describe and compare it |
//! | [`hashkv`] | HashKV, ATC 2018 |
//! | [`novkv`] | NovKV, MSST 2020 |
//! | [`diffkv`] | DiffKV, ATC 2021 |
//! | [`unikv`] | UniKV, ICDE 2020 |

pub mod diffkv;
pub mod hashkv;
pub mod inline;
pub mod novkv;
pub mod unikv;
pub mod wisckey;

use bifold_format::compression::Compression;

use self::diffkv::order::MergePolicy;
use crate::parts::victim::Victim;

/// Where groups put values that were not updated between two GC runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cold {
    /// Each group into a segment of its own.
    #[default]
    Parts,
    /// All into one log, as in the paper.
    Log,
    /// They stay among the others.
    Off,
}

/// Options of all placements that separate values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValueOptions {
    /// Values of this length and above are separated, in bytes (HashKV §3.5, "selective KV separation").
    pub min_bytes: usize,
    /// Files of values in the order of arrival are cut at about this size, in bytes.
    pub file_bytes: u64,
    /// A group splits when it has grown past this size, in bytes.
    pub group_bytes: u64,
    /// There are about as many groups at most; then they grow instead.
    pub groups_max: usize,
    /// What becomes of values that are not updated (HashKV §3.4, "hotness awareness").
    pub cold: Cold,
    /// Which group GC takes.
    pub victim: Victim,
    /// A file of which more than this share is valid is left alone by GC (NovKV §III-C; DiffKV §3.5, which counts what
    /// is invalid).
    pub gc_threshold: f64,
    /// Values of this length and above go to logs, in bytes (DiffKV §4.1, *value_large*).
    pub large_bytes: usize,
    /// Which merges move values (DiffKV §3.3, §3.4).
    pub merge: MergePolicy,
    /// A file that overlaps more others than this, with itself, is merged with them (DiffKV §3.4).
    pub max_sorted_run: usize,
    /// How values are compressed, each by itself.
    pub compression: Compression,
}

/// For tests: files so small that a few values fill one.
#[cfg(test)]
pub(crate) const SMALL: ValueOptions = ValueOptions {
    min_bytes: 1,
    file_bytes: 4 << 10,
    group_bytes: 1 << 20,
    groups_max: 16,
    cold: Cold::Parts,
    victim: Victim::Greedy,
    gc_threshold: 0.7,
    large_bytes: 1 << 10,
    merge: MergePolicy::ScanOptimised,
    max_sorted_run: 10,
    compression: Compression::None,
};
