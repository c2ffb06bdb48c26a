//! One file per design.
//!
//! | placement | paper |
//! |---|---|
//! | [`inline`] | none: a plain LSM-tree |
//! | [`wisckey`] | WiscKey, FAST 2016, as HashKV §2 and §4 describe and compare it |
//! | [`hashkv`] | HashKV, ATC 2018 |
//! | [`novkv`] | NovKV, MSST 2020 |

pub mod hashkv;
pub mod inline;
pub mod novkv;
pub mod wisckey;

use bifold_format::compression::Compression;

use crate::parts::victim::Victim;

/// Where groups put values that were not updated between two collections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cold {
    /// Each group into a part of its own.
    #[default]
    Parts,
    /// All into one log, as in the paper.
    Log,
    /// They stay among the others.
    Off,
}

/// Options of all placements that keep values apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValueOptions {
    /// Values of this length and above are kept apart, in bytes (HashKV §3.5, "selective KV separation").
    pub min_bytes: usize,
    /// Files of values in the order of arrival are cut at about this size, in bytes.
    pub file_bytes: u64,
    /// A group splits when it has grown past this size, in bytes.
    pub group_bytes: u64,
    /// There are about as many groups at most; then they grow instead.
    pub groups_max: usize,
    /// What becomes of values that are not updated (HashKV §3.4, "hotness awareness").
    pub cold: Cold,
    /// Which group is collected.
    pub victim: Victim,
    /// A file of which more than this share is valid is not collected (NovKV §III-C).
    pub gc_threshold: f64,
    /// How values are compressed, each by itself.
    pub compression: Compression,
}
