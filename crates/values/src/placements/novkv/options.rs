//! Options that only `novkv` uses.

use bifold_contract::Result;
use serde::{Deserialize, Serialize};

use crate::placements::options::check_gc_threshold;

/// The most that `values.file_bytes` may be, in bytes: GC holds the values of one file in memory, and one record has
/// the index of all.
pub const FILE_BYTES_MAX: u64 = 1 << 30;

/// Options that only `novkv` uses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NovKvOptions {
    /// GC for space takes only files whose valid share is below this, or below 1.05 / `space_target` if that is larger:
    /// 0.05 to 1. Default: 0.7 (NovKV §III-C, *gc_threshold*). A sixteenth of the file must be dead in any case.
    pub gc_threshold: f64,
}

impl Default for NovKvOptions {
    fn default() -> Self {
        Self { gc_threshold: 0.7 }
    }
}

impl NovKvOptions {
    /// Checks the bounds; `at` is the dotted name of these options.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](bifold_contract::Error::InvalidArgument) naming the option.
    pub fn check(&self, at: &str) -> Result<()> {
        check_gc_threshold(at, self.gc_threshold)
    }
}
