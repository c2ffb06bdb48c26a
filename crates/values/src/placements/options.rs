//! Options of separated values, as users write them. What only one placement uses is a group of its own, which that
//! placement's module defines.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use bifold_contract::{
    Result,
    option::{at_least, optional_size, size, within, within_f64},
};
use bifold_format::compression::Compression;
use serde::{Deserialize, Serialize};

use super::{
    diffkv::options::DiffKvOptions, hashkv::options::HashKvOptions, novkv::options::NovKvOptions, unikv::UniKvOptions,
};

/// Values of this length, in bytes, and above are separated where a placement was chosen and options name no other
/// length.
pub const SEPARATE_FROM_BYTES: u64 = 192;

/// Which separated values are kept in the block cache. Scans, compaction and GC never put any there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CachedValues {
    /// As [`CachedValues::Gets`] with `reads = direct`, otherwise as [`CachedValues::None`]: the system's page cache
    /// has the values already. The default.
    #[default]
    Auto,
    /// None.
    None,
    /// Those that were got by their keys.
    Gets,
}

/// Options of separated values: those that are not stored with their keys. Without effect where the placement is
/// `inline`. A value outside of its bounds is an error that names the option ([`check`](Self::check)).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ValueOptions {
    /// Values of this length and above are separated from their keys, in bytes: at least 1 (HashKV §3.5, "selective KV
    /// separation"). Unset in a new keyspace: 192, or 16 KiB with `placement = auto`. Unset for one that exists: what
    /// it has.
    #[serde(with = "optional_size", skip_serializing_if = "Option::is_none")]
    pub separate_from_bytes: Option<u64>,
    /// How many bytes of value files and tables there may be for each byte of live values: 1.05 to 100. Default: 1.5.
    /// GC starts when garbage and tables take three quarters of what this allows beyond the live values (`streams`:
    /// nine tenths), and writers are slowed as they come near to all of it. Logs come on top.
    pub space_target: f64,
    /// Files of values in the order of arrival or by key are cut at about this size, in bytes (`wisckey`, `novkv`,
    /// `diffkv`, `unikv`, and the cold log of `hashkv`): 1 KiB to 1 TiB; with `novkv` to 1 GiB, because its GC holds
    /// the values of one in memory. Default: 16 MiB. `streams` makes no larger files, nor any above 1 GiB; while there
    /// is little data, its files are smaller.
    #[serde(with = "size")]
    pub file_bytes: u64,
    /// How values are compressed, each by itself. Default: not at all.
    pub compression: Compression,
    /// Which values are kept in the block cache. Default: [`CachedValues::Auto`].
    pub cache: CachedValues,
    /// What only `hashkv` uses.
    pub hashkv: HashKvOptions,
    /// What only `novkv` uses.
    pub novkv: NovKvOptions,
    /// What only `diffkv` uses.
    pub diffkv: DiffKvOptions,
    /// What only `unikv` uses.
    pub unikv: UniKvOptions,
}

impl Default for ValueOptions {
    fn default() -> Self {
        Self {
            separate_from_bytes: None,
            space_target: 1.5,
            file_bytes: 16 << 20,
            compression: Compression::None,
            cache: CachedValues::default(),
            hashkv: HashKvOptions::default(),
            novkv: NovKvOptions::default(),
            diffkv: DiffKvOptions::default(),
            unikv: UniKvOptions::default(),
        }
    }
}

impl ValueOptions {
    /// Checks the bounds; `at` is the dotted name of these options.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](bifold_contract::Error::InvalidArgument) naming the option.
    pub fn check(&self, at: &str) -> Result<()> {
        at_least(&format!("{at}.separate_from_bytes"), self.separate_from_bytes.unwrap_or(SEPARATE_FROM_BYTES), 1)?;
        within_f64(&format!("{at}.space_target"), self.space_target, 1.05, 100.0)?;
        within(&format!("{at}.file_bytes"), self.file_bytes, 1 << 10, 1 << 40)?;
        self.hashkv.check(&format!("{at}.hashkv"))?;
        self.novkv.check(&format!("{at}.novkv"))?;
        self.diffkv.check(&format!("{at}.diffkv"))?;
        self.unikv.check(&format!("{at}.unikv"))
    }

    /// The length from which values are separated, in bytes: [`ValueOptions::separate_from_bytes`] or its default.
    #[must_use]
    pub fn separates_from(&self) -> usize {
        usize::try_from(self.separate_from_bytes.unwrap_or(SEPARATE_FROM_BYTES)).unwrap_or(usize::MAX)
    }
}

/// Checks the valid share below which a file has too much garbage.
///
/// # Errors
/// [`Error::InvalidArgument`](bifold_contract::Error::InvalidArgument) naming the option.
pub(crate) fn check_gc_threshold(at: &str, threshold: f64) -> Result<()> {
    within_f64(&format!("{at}.gc_threshold"), threshold, 0.05, 1.0)
}

/// The options in force for the values of one keyspace. Clones share them: the engine replaces them, and the placement
/// reads them where it decides something. Reading them is one atomic load.
#[derive(Clone, Debug)]
pub struct Settings(Arc<ArcSwap<ValueOptions>>);

impl Settings {
    /// These options, which have been checked, are in force.
    #[must_use]
    pub fn new(options: ValueOptions) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(options)))
    }

    /// The options in force now. A job that must not see them change copies them.
    #[must_use]
    pub fn now(&self) -> Guard<Arc<ValueOptions>> {
        self.0.load()
    }

    /// Puts other options, which have been checked, in force.
    pub fn replace(&self, options: ValueOptions) {
        self.0.store(Arc::new(options));
    }
}

/// For tests: files so small that a few values fill one.
#[cfg(test)]
pub(crate) const SMALL: ValueOptions = ValueOptions {
    separate_from_bytes: Some(1),
    space_target: 1.5,
    file_bytes: 4 << 10,
    compression: Compression::None,
    cache: CachedValues::None,
    hashkv: HashKvOptions {
        victim: crate::parts::victim::Victim::Greedy,
        cold: super::hashkv::options::Cold::Segments,
        group_bytes: 1 << 20,
        groups_max: 16,
    },
    novkv: NovKvOptions { gc_threshold: 0.7 },
    diffkv: DiffKvOptions {
        gc_threshold: 0.7,
        large_bytes: 1 << 10,
        merge: crate::parts::ordered_values::order::MergePolicy::ScanOptimised,
        max_sorted_run: 10,
    },
    unikv: UniKvOptions { gc_threshold: 0.7, gc: super::unikv::GcUnit::File },
};
