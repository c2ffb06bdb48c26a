//! `diffkv`: partially sorted values, sorted by the merges of the keys that run anyway (DiffKV, ATC 2021).
//!
//! ```text
//! put ─┬─ small ────▶ inline, always
//!      ├─ medium ───▶ inline until the flush ─▶ vTable of level 0 ─▶ merges ─▶ vTables of deeper levels   (§3.2, §3.3)
//!      └─ large ────▶ hot vLog, before the memtable ─▶ GC asks the index ─▶ cold vLog         (§4)
//! ```
//!
//! | paper | here |
//! |---|---|
//! | vTable, sorted group, vTree (§3.2) | a value file with an [`Extent`]; its `group`; the levels of all extents |
//! | compaction-triggered merge (§3.3) | `merge` |
//! | lazy merge, scan-optimised merge (§3.4) | [`order`] |
//! | state-aware lazy GC (§3.5) | counters of dead bytes in the manifest; `has_garbage_tag` follows from them |
//! | *value_small*, *value_large* (§4.1) | `separate_from_bytes`, `large_bytes` |
//! | hot and cold vLog, greedy GC (§4.2) | [`ValueLog`], files of survivors; `victims` |
//! | a vTable that no merge reads (ours) | past the space target `pick` asks for a rewrite of its keys |
//!
//! **What is exact.** One entry of the index leads to each record of a vTable, until a rewrite drops the entry or
//! moves the value. The edit that installs the rewrite counts the record as dead. So a vTable is empty when its
//! counter says so, after any crash.
//!
//! **Readers** of an older state may find that a vTable was deleted. Then they look the version up again: whoever
//! keeps a version alive keeps it in the present state too, at another place.
//!
//! [`Extent`]: crate::parts::value_files::Extent

mod merge;
pub mod options;
pub mod order;
#[cfg(test)]
mod tests;
mod victims;

use std::sync::{Arc, Mutex};

use crate::placement::{
    Explained, GcClaim, GcJob, Order, Placement, Profile, RewriteJob, SpacePressure, ValueSpace, WriteOp,
};
use bifold_contract::{FileId, Pointer, Result, Rewriter, SeqNo, ValueEdit, planted};

use self::{
    merge::{Merge, Work},
    options::DiffKvOptions,
    victims::{GarbageFirst, Job},
};
use super::{Settings, ValueOptions};
use crate::parts::{
    stale_estimate::StaleEstimate,
    value_files::{ORDERED, ValueFile, ValueFiles},
    value_log::ValueLog,
};

/// Medium values in vTables, large ones in logs.
pub struct DiffKv {
    shared: Arc<Shared>,
    /// The hot vLog.
    value_log: ValueLog,
    /// Log files that GC is copying, and the copies.
    busy: Arc<Mutex<Vec<FileId>>>,
}

/// What differs between placements that separate and sort values in rewrites.
#[derive(Clone, Copy, Debug)]
pub struct Design {
    /// The placement's name.
    pub name: &'static str,
    /// Values that are not small are separated in tables of this level and below it.
    pub separated_from: u8,
    /// Large values go to logs at commit, and what commits overwrite is sampled, since logs make space tight within a
    /// burst.
    pub has_logs: bool,
    /// Its options, of those of all placements.
    pub sorted: fn(&ValueOptions) -> DiffKvOptions,
}

/// DiffKV's own: separated from the flush on.
const DESIGN: Design = Design { name: "diffkv", separated_from: 0, has_logs: true, sorted: |options| options.diffkv };

/// What merges need too.
struct Shared {
    design: Design,
    options: Settings,
    files: Arc<ValueFiles>,
    work: Work,
    /// The stale estimate: what is dead and no merge has read yet.
    stale: StaleEstimate,
}

impl Shared {
    /// Whether so much of a file is garbage that its values move with the next merge that reads them (§3.5, "GC
    /// tag").
    fn has_garbage_tag(&self, file: &ValueFile) -> bool {
        file.valid_share() < self.sorted().gc_threshold
    }

    /// The options in force that only this design uses.
    fn sorted(&self) -> DiffKvOptions {
        (self.design.sorted)(&self.options.now())
    }
}

impl DiffKv {
    /// Opens it with the existing files.
    #[must_use]
    pub fn open(files: &Arc<ValueFiles>, options: &Settings) -> Self {
        Self::open_as(DESIGN, files, options)
    }

    /// The same, of another design.
    #[must_use]
    pub fn open_as(design: Design, files: &Arc<ValueFiles>, options: &Settings) -> Self {
        let value_log = ValueLog::new(Arc::clone(files), options);
        let stale = if design.has_logs { StaleEstimate::unknown() } else { StaleEstimate::none() };
        let shared = Arc::new(Shared {
            design,
            options: options.clone(),
            files: Arc::clone(files),
            work: Work::default(),
            stale,
        });
        Self { shared, value_log, busy: Arc::default() }
    }

    fn value_files(&self) -> &Arc<ValueFiles> {
        &self.shared.files
    }
}

impl Placement for DiffKv {
    fn profile(&self) -> Profile {
        let Shared { design, options, .. } = &*self.shared;
        let (separates_from, large_from) = (options.now().separates_from(), self.shared.sorted().large_from());
        Profile {
            name: design.name,
            separates_from: design.has_logs.then_some(large_from),
            separates_at_rewrite: true,
            learns_from_rewrites: design.has_logs.then_some(separates_from.min(large_from)),
        }
    }

    fn write(&self, op: WriteOp<'_>, seqno: SeqNo) -> Result<Option<Pointer>> {
        match op {
            WriteOp::Put { key, value } if value.len() >= self.shared.sorted().large_from() => {
                self.value_log.append(seqno, key, value).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn rewriter(&self, job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
        Ok(Box::new(Merge::new(&self.shared, job)))
    }

    fn pick(&self, pressure: &SpacePressure, running: &[GcClaim]) -> Option<Box<dyn GcJob>> {
        let choice = GarbageFirst::concurrent_with(self, running).pick(pressure)?;
        Some(Box::new(Job::new(self, choice)))
    }

    fn may_move(&self, from: u8, to: u8) -> bool {
        let separated_from = self.shared.design.separated_from;
        from >= separated_from || to < separated_from
    }

    fn drained_by(&self, edit: &ValueEdit) -> Vec<(FileId, u64)> {
        let files = edit.garbage.iter().filter_map(|&(id, bytes, _)| Some((self.value_files().get(id)?, bytes)));
        let is_empty = |(file, bytes): &(Arc<ValueFile>, u64)| {
            let (dead, all) = (file.dead() + bytes, file.len() - file.start());
            let is_empty = dead == all || (planted!("drop_nearly_empty") && dead + 200 >= all);
            file.description.class == ORDERED && is_empty
        };
        files.filter(is_empty).map(|(file, _)| (file.id, file.len())).collect()
    }

    fn give_up(&self, files: &ValueFiles, edit: &ValueEdit) {
        edit.added.iter().for_each(|meta| files.remove(meta.id));
    }

    fn space(&self) -> ValueSpace {
        let (files, total_bytes, drained_bytes) = self.value_files().sizes();
        // What a merge has copied counts as live at its old place.
        let is_copy = |file: &Arc<ValueFile>| file.description.class == ORDERED && !file.is_known();
        let copied: u64 = self.value_files().in_use().iter().filter(|&file| is_copy(file)).map(|file| file.len()).sum();
        let live_bytes = (total_bytes - drained_bytes).saturating_sub(self.value_files().dead_bytes() + copied);
        let left_out_bytes = self.value_files().left_out_bytes();
        ValueSpace { files, total_bytes, live_bytes, drained_bytes, left_out_bytes }
    }

    fn note_overwritten(&self, bytes: u64) {
        self.shared.stale.add(bytes);
    }

    fn stale_bytes(&self, pressure: &SpacePressure) -> u64 {
        self.shared.stale.keep_below(pressure.stale_at_most(self.space().live_bytes))
    }

    fn order(&self) -> Order {
        let mut files = self.value_files().in_use();
        files.retain(|file| file.description.class == ORDERED);
        let is_tagged = |file: &ValueFile| self.shared.has_garbage_tag(file) || order::has_overlap_tag(file);
        self.shared.work.with(order::by_level(&files, is_tagged))
    }

    fn explain(&self, pressure: &SpacePressure) -> Vec<Explained> {
        GarbageFirst::of(self).explain(pressure)
    }

    fn seal(&self, files: &ValueFiles) {
        self.value_log.seal();
        files.seal();
    }
}
