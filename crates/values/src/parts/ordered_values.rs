//! Values sorted by key, partially: flushes and merges of the keys write them, merges move some of them (DiffKV §3;
//! UniKV §III-C).
//!
//! ```text
//! rewrite of a key's table ─▶ value not small ─▶ a file with an extent: a level, a group, a range of keys
//!                          └▶ value in such a file ─┬─ moves with its key: level, overlap or garbage ([`merge`])
//!                                                   └─ stays
//! past the space target    ─▶ the file with most garbage first ([`queue`]): a rewrite of its keys moves its values
//! ```
//!
//! **What is exact.** One entry of the index leads to each record of such a file, until a rewrite drops the entry or
//! moves the value. The edit that installs the rewrite counts the record as dead. So a file is empty when its counter
//! says so, after any crash.
//!
//! **Readers** of an older state may find that a file was deleted. Then they look the version up again: whatever keeps
//! a version alive keeps it in the current state too, at another place.

pub mod merge;
pub mod order;
pub mod queue;

use std::sync::Arc;

use bifold_contract::{FileId, Rewriter, ValueEdit, planted};

use self::{
    merge::{Merge, Work},
    order::MergePolicy,
};
use super::{
    stale_estimate::StaleEstimate,
    value_files::{ORDERED, ValueFile, ValueFiles},
};
use crate::{
    placement::{Order, RewriteJob, SpacePressure, ValueSpace},
    placements::{Settings, ValueOptions},
};

/// When values move. A placement derives them from the options in force.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// A file of which less than this share is valid has too much garbage (DiffKV §3.5, *gc_threshold*).
    pub gc_threshold: f64,
    /// Which merges move values (DiffKV §3.3, §3.4).
    pub merge: MergePolicy,
    /// A file whose keys overlap those of more files than this, itself included, overlaps too many (DiffKV §3.4).
    pub max_sorted_run: usize,
}

/// The sorted values of one keyspace.
pub struct OrderedValues {
    shared: Arc<OrderedShared>,
}

/// What merges need too.
struct OrderedShared {
    /// Values that are not small are separated in tables of this level and below it.
    separated_from: u8,
    options: Settings,
    rules: fn(&ValueOptions) -> Rules,
    files: Arc<ValueFiles>,
    work: Work,
    /// The stale estimate: what is dead and no merge has read yet.
    stale: StaleEstimate,
}

impl OrderedShared {
    fn rules(&self) -> Rules {
        (self.rules)(&self.options.now())
    }

    /// Whether so much of a file is garbage that its values move with the next merge that reads them (DiffKV §3.5, "GC
    /// tag").
    fn has_garbage_tag(&self, file: &ValueFile) -> bool {
        file.valid_share() < self.rules().gc_threshold
    }
}

impl OrderedValues {
    /// Those in the existing files. Values are separated in tables of the level `separated_from` and below it.
    #[must_use]
    pub fn new(
        files: &Arc<ValueFiles>,
        (options, rules): (&Settings, fn(&ValueOptions) -> Rules),
        separated_from: u8,
        stale: StaleEstimate,
    ) -> Self {
        let (files, options) = (Arc::clone(files), options.clone());
        let shared = OrderedShared { separated_from, options, rules, files, work: Work::default(), stale };
        Self { shared: Arc::new(shared) }
    }

    /// The value files of the keyspace.
    #[must_use]
    pub fn files(&self) -> &Arc<ValueFiles> {
        &self.shared.files
    }

    /// The options in force.
    #[must_use]
    pub fn options(&self) -> &Settings {
        &self.shared.options
    }

    /// The stale estimate. Merges subtract what they find.
    #[must_use]
    pub fn stale(&self) -> &StaleEstimate {
        &self.shared.stale
    }

    /// See [`Placement::rewriter`](crate::placement::Placement::rewriter).
    #[must_use]
    pub fn rewriter(&self, job: &RewriteJob) -> Box<dyn Rewriter> {
        Box::new(Merge::new(&self.shared, job))
    }

    /// See [`Placement::ingester`](crate::placement::Placement::ingester).
    #[must_use]
    pub fn ingester(&self, job: &RewriteJob) -> Box<dyn Rewriter> {
        Box::new(Merge::of_ingest(&self.shared, job))
    }

    /// See [`Placement::may_move`](crate::placement::Placement::may_move).
    #[must_use]
    pub fn may_move(&self, from: u8, to: u8) -> bool {
        let separated_from = self.shared.separated_from;
        from >= separated_from || to < separated_from
    }

    /// See [`Placement::drained_by`](crate::placement::Placement::drained_by).
    #[must_use]
    pub fn drained_by(&self, edit: &ValueEdit) -> Vec<(FileId, u64)> {
        let files = edit.garbage.iter().filter_map(|&(id, bytes, _)| Some((self.files().get(id)?, bytes)));
        let is_empty = |(file, bytes): &(Arc<ValueFile>, u64)| {
            let (dead, all) = (file.dead() + bytes, file.len() - file.start());
            let is_empty = dead == all || (planted!("drop_nearly_empty") && dead + 200 >= all);
            is_ordered(file) && is_empty
        };
        files.filter(is_empty).map(|(file, _)| (file.id, file.len())).collect()
    }

    /// What the value files hold, those of other kinds included.
    #[must_use]
    pub fn space(&self) -> ValueSpace {
        let mut unknown = self.files().in_use();
        unknown.retain(|file| is_ordered(file) && !file.is_known());
        let (files, total_bytes, drained_bytes) = self.files().sizes();
        // Asked once: some may be installed meanwhile.
        let is_flushed = |file: &Arc<ValueFile>| file.is_of_flush() && !planted!("flushed_values_count_early");
        let (flushed, copies): (Vec<_>, Vec<_>) = unknown.into_iter().partition(is_flushed);
        let bytes_in = |files: &[Arc<ValueFile>]| files.iter().map(|file| file.len()).sum::<u64>();
        // What a flush has written is neither live here nor garbage before it is installed.
        let files = files.saturating_sub(flushed.len() as u64);
        let total_bytes = total_bytes.saturating_sub(bytes_in(&flushed));
        // What a merge has copied counts as live at its old place.
        let used_bytes = total_bytes.saturating_sub(drained_bytes);
        let live_bytes = used_bytes.saturating_sub(self.files().dead_bytes() + bytes_in(&copies));
        let left_out_bytes = self.files().left_out_bytes();
        ValueSpace { files, total_bytes, live_bytes, drained_bytes, left_out_bytes }
    }

    /// See [`Placement::stale_bytes`](crate::placement::Placement::stale_bytes).
    #[must_use]
    pub fn stale_bytes(&self, pressure: &SpacePressure) -> u64 {
        self.shared.stale.keep_below(pressure.stale_at_most(self.space().live_bytes))
    }

    /// See [`Placement::order`](crate::placement::Placement::order).
    #[must_use]
    pub fn order(&self) -> Order {
        let mut files = self.files().in_use();
        files.retain(|file| is_ordered(file));
        let is_tagged = |file: &ValueFile| self.shared.has_garbage_tag(file) || order::has_overlap_tag(file);
        self.shared.work.with(order::by_level(&files, is_tagged))
    }
}

/// Whether the values of a file are sorted by key.
fn is_ordered(file: &ValueFile) -> bool {
    file.description.class == ORDERED
}
