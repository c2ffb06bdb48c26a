//! Options that only `diffkv` uses.

use bifold_contract::{
    Result,
    option::{at_least, size, within},
};
use serde::{Deserialize, Serialize};

use crate::parts::ordered_values::order::MergePolicy;
use crate::placements::options::check_gc_threshold;

/// Options that only `diffkv` uses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DiffKvOptions {
    /// A file whose valid share is below this has too much garbage: merges that move values move those that they meet
    /// in such files, and past the space target GC takes them. 0.05 to 1; default: 0.7 (DiffKV §3.5, *gc_threshold*:
    /// 0.3, which is the invalid share). If `space_target` needs a higher one, GC uses that, up to 0.9.
    pub gc_threshold: f64,
    /// Values of this length and above go to logs, in bytes: at least 1. Default: 8 KiB. Shorter ones from
    /// `separate_from_bytes` on go to files sorted by key (DiffKV §4.1, *value_large*).
    #[serde(with = "size")]
    pub large_bytes: u64,
    /// Which compactions move values (DiffKV §3.3, §3.4). Default: [`MergePolicy::ScanOptimised`].
    pub merge: MergePolicy,
    /// A file whose key range overlaps those of more files than this, itself included, is merged with them: 1 to 1000
    /// (DiffKV §3.4, *max_sorted_run*). Default: 10. Only [`MergePolicy::ScanOptimised`] uses it.
    pub max_sorted_run: u32,
}

impl Default for DiffKvOptions {
    fn default() -> Self {
        Self { gc_threshold: 0.7, large_bytes: 8 << 10, merge: MergePolicy::default(), max_sorted_run: 10 }
    }
}

impl DiffKvOptions {
    /// Checks the bounds; `at` is the dotted name of these options.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](bifold_contract::Error::InvalidArgument) naming the option.
    pub fn check(&self, at: &str) -> Result<()> {
        check_gc_threshold(at, self.gc_threshold)?;
        at_least(&format!("{at}.large_bytes"), self.large_bytes, 1)?;
        within(&format!("{at}.max_sorted_run"), self.max_sorted_run.into(), 1, 1000)
    }

    /// [`DiffKvOptions::large_bytes`] as a length.
    pub(super) fn large_from(&self) -> usize {
        usize::try_from(self.large_bytes).unwrap_or(usize::MAX)
    }
}
