//! `unikv`: values are separated from their keys when these leave level 0 (UniKV, ICDE 2020, §III-C, "partial KV
//! separation").
//!
//! ```text
//! put ─▶ memtable ─flush─▶ level 0: inline values                  the UnsortedStore
//!                            │ merge of level 0 and 1
//!                            ├─ small ─────────▶ level 1, inline                  (ours: the paper's future work)
//!                            └─ the others ────▶ log file, sorted by key ─▶ level 1: key, address    the SortedStore
//! ```
//!
//! What the paper has, and what stands for it here:
//!
//! * Partial KV separation (§III-C): a merge into level 1 or deeper separates what is not small ([`DESIGN`]).
//! * A log for each merge: value files with an extent, of about `file_bytes`.
//! * GC of the partition with most garbage, its valid values to a new log (§III-C): past the space target `pick` asks
//!   for a rewrite of the keys of the file with most garbage. All other files of these keys with too much garbage
//!   move too.
//! * Values that two partitions share are split by later GC (§III-D): the file's counter knows how much of it is dead,
//!   whichever partition drops it.
//!
//! [`diffkv`](super::diffkv) does the same one level further up, with the same files, exact counters of dead bytes,
//! and readers that look a version up again when its file was deleted. So the two share all of their code.
//!
//! **Space.** What is overwritten in level 0 is found by the merge that takes it down, and exists twice until then.
//! So level 0 is merged when that may be a fourth of the garbage that `space_target` allows, if that is before it has
//! `unsorted_bytes`.

use std::sync::Arc;

use bifold_contract::Result;
use serde::{Deserialize, Serialize};

use super::{
    Settings, ValueOptions,
    diffkv::{Design, DiffKv, options::DiffKvOptions, order::MergePolicy},
    options::check_gc_threshold,
};
use crate::parts::value_files::ValueFiles;

/// Options that only `unikv` uses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UniKvOptions {
    /// GC leaves a file alone if a larger share of it than this is valid: 0.05 to 1 (ours: the paper's GC takes the
    /// partition with most garbage, §III-C).
    pub gc_threshold: f64,
}

impl Default for UniKvOptions {
    fn default() -> Self {
        Self { gc_threshold: 0.7 }
    }
}

impl UniKvOptions {
    /// Checks the bounds; `at` is the dotted name of these options.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](bifold_contract::Error::InvalidArgument) naming the option.
    pub fn check(&self, at: &str) -> Result<()> {
        check_gc_threshold(at, self.gc_threshold)
    }
}

/// Separated from level 1 on, and never at commit.
pub const DESIGN: Design = Design { name: "unikv", separated_from: 1, has_logs: false, sorted };

/// Level 1 is the last: values move only because of garbage.
fn sorted(options: &ValueOptions) -> DiffKvOptions {
    DiffKvOptions { gc_threshold: options.unikv.gc_threshold, merge: MergePolicy::Off, ..options.diffkv }
}

/// Opens it with the existing files.
#[must_use]
pub fn open(files: &Arc<ValueFiles>, options: &Settings) -> DiffKv {
    DiffKv::open_as(DESIGN, files, options)
}
