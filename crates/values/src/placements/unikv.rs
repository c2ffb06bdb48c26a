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
//! * Partial KV separation (§III-C): a merge into level 1 or deeper separates what is not small (`SEPARATED_FROM`).
//! * A log for each merge: value files with an extent, of about `file_bytes`.
//! * GC of the partition with most entries, its valid values to a new log (§III-C): past the space target `pick` asks
//!   for a rewrite of the keys of the file with most garbage. All other files of these keys with too much garbage
//!   move too. With `gc = partition` a whole partition moves, the one with most garbage ([`GcUnit`]).
//! * Values that two partitions share are split by later GC (§III-D): the file's counter knows how much of it is dead,
//!   whichever partition drops it.
//!
//! Files, counters of dead bytes, merges and readers are those of [`ordered_values`](crate::parts::ordered_values),
//! which [`diffkv`](super::diffkv) uses one level further up.
//!
//! **Space.** What is overwritten in level 0 is found by the merge that takes it down, and exists twice until then.
//! So level 0 is merged when that may be a fourth of the garbage that `space_target` allows, if that is before it has
//! `unsorted_bytes`.

use std::sync::Arc;

use bifold_contract::{FileId, Pointer, Result, Rewriter, SeqNo, ValueEdit};
use serde::{Deserialize, Serialize};

use super::{Settings, ValueOptions, options::check_gc_threshold};
use crate::{
    parts::{
        ordered_values::{
            OrderedValues, Rules,
            order::MergePolicy,
            queue::{Due, Queue, Rewrite},
        },
        stale_estimate::StaleEstimate,
        value_files::ValueFiles,
    },
    placement::{Explained, GcClaim, GcJob, Order, Placement, Profile, RewriteJob, SpacePressure, ValueSpace, WriteOp},
};

/// Options that only `unikv` uses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UniKvOptions {
    /// A file whose valid share is below this has too much garbage: merges move the values that they meet in such
    /// files, and past the space target GC takes them. 0.05 to 1; default: 0.7 (ours: the paper's GC takes the
    /// partition with most entries, §III-C). If `space_target` needs a higher one, GC uses that, up to 0.9.
    pub gc_threshold: f64,
    /// What GC rewrites at once. Default: [`GcUnit::File`].
    pub gc: GcUnit,
}

/// What one GC run of `unikv` rewrites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GcUnit {
    /// The keys of the file with most garbage (ours): less is copied for each byte freed, and space for fewer copies is
    /// needed at once. The default.
    #[default]
    File,
    /// The partition with most garbage: all its values move, as in the paper, which takes the one with most entries
    /// (§III-C).
    Partition,
}

impl Default for UniKvOptions {
    fn default() -> Self {
        Self { gc_threshold: 0.7, gc: GcUnit::default() }
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

/// Values are separated from level 1 on, and never at commit.
const SEPARATED_FROM: u8 = 1;

/// Inline values in the UnsortedStore, values by key in the SortedStore.
pub struct UniKv {
    ordered: OrderedValues,
    options: Settings,
}

impl UniKv {
    /// Opens it with the existing files.
    #[must_use]
    pub fn open(files: &Arc<ValueFiles>, options: &Settings) -> Self {
        // Level 0 is merged before much of it can be stale.
        let ordered = OrderedValues::new(files, (options, rules), SEPARATED_FROM, StaleEstimate::none());
        Self { ordered, options: options.clone() }
    }

    fn queue(&self, running: &[GcClaim]) -> Queue<'_> {
        Queue::new(&self.ordered, running, |_| true)
    }
}

/// Level 1 is the last: values move only because of garbage.
fn rules(options: &ValueOptions) -> Rules {
    Rules { gc_threshold: options.unikv.gc_threshold, merge: MergePolicy::Off, max_sorted_run: usize::MAX }
}

impl Placement for UniKv {
    fn profile(&self) -> Profile {
        Profile {
            name: "unikv",
            separates_from: None,
            hears_of_short_values: false,
            separates_at_rewrite: true,
            learns_from_rewrites: None,
            finds_overwritten: false,
            reads_by_address: true,
            copies_percent: Profile::COPIES_PERCENT,
        }
    }

    fn write(&self, _op: WriteOp<'_>, _seqno: SeqNo) -> Result<Option<Pointer>> {
        Ok(None)
    }

    fn rewriter(&self, job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
        Ok(self.ordered.rewriter(job))
    }

    fn ingester(&self, job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
        Ok(self.ordered.ingester(job))
    }

    fn pick(&self, pressure: &SpacePressure, running: &[GcClaim]) -> Option<Box<dyn GcJob>> {
        let queue = self.queue(running);
        Some(Box::new(match (queue.due(pressure)?, self.options.now().unikv.gc) {
            (Due::Search, _) => Rewrite::search(),
            (Due::Victims(victims), GcUnit::File) => Rewrite::of(&victims)?,
            (Due::Victims(victims), GcUnit::Partition) => queue.worst_partition(&victims, &pressure.boundaries)?,
        }))
    }

    fn may_move(&self, from: u8, to: u8) -> bool {
        self.ordered.may_move(from, to)
    }

    fn drained_by(&self, edit: &ValueEdit) -> Vec<(FileId, u64)> {
        self.ordered.drained_by(edit)
    }

    fn give_up(&self, files: &ValueFiles, edit: &ValueEdit) {
        edit.added.iter().for_each(|meta| files.remove(meta.id));
    }

    fn space(&self) -> ValueSpace {
        self.ordered.space()
    }

    fn order(&self) -> Order {
        self.ordered.order()
    }

    fn explain(&self, pressure: &SpacePressure) -> Vec<Explained> {
        let next = self.pick(pressure, &[]).map_or_else(Vec::new, |job| job.claim().files.clone());
        self.queue(&[]).explain(pressure, &next)
    }
}
