//! `diffkv`: values sorted in part, by the merges of the keys that run anyway (DiffKV, ATC 2021).
//!
//! ```text
//! put ─┬─ small ────▶ beside its key, always
//!      ├─ medium ───▶ beside its key until the flush ─▶ vTable of level 0 ─▶ merges ─▶ vTables of deeper levels   (§3.2, §3.3)
//!      └─ large ────▶ hot vLog, before the memtable ─▶ collected by asking the index ─▶ cold vLog                 (§4)
//! ```
//!
//! | paper | here |
//! |---|---|
//! | vTable, sorted group, vTree (§3.2) | a value file with an [`Extent`]; its `group`; the levels of all extents |
//! | compaction-triggered merge (§3.3) | `merge` |
//! | lazy merge, scan-optimised merge (§3.4) | [`order`] |
//! | state-aware lazy GC (§3.5) | counters of dead bytes in the manifest; `has_garbage_tag` follows from them |
//! | *value_small*, *value_large* (§4.1) | `min_bytes`, `large_bytes` |
//! | hot and cold vLog, greedy GC (§4.2) | [`Arrivals`], files that [`Relocation`] writes; `victims` |
//! | a vTable that no merge meets (ours) | past the space target `pick` asks for a rewrite of its keys |
//!
//! **What is exact.** One entry of the index leads to each record of a vTable, until a rewrite drops the entry or moves the value; the
//! edit that installs the rewrite counts the record as dead. So a vTable is empty when its counter says so, after any crash.
//!
//! **Readers** of an older state may come to a vTable that is gone. Then they look the version up anew: whoever keeps a version alive
//! keeps it in the present state too, at another place.
//!
//! [`Extent`]: crate::parts::value_files::Extent

mod merge;
pub mod order;
#[cfg(test)]
mod tests;
mod victims;

use std::sync::{Arc, Mutex};

use bifold_contract::{
    Error, FileId, IoSource, Placement, Pointer, Profile, Result, Rewriter, SeqNo, ValueEdit, ValueFileMeta,
    placement::{
        Collecting, Collection, Explained, FilesHeld, Found, IndexView, Located, Order, RewriteJob, Routed,
        SpacePressure, ValueSpace,
    },
};

use self::{
    merge::{Merge, Work},
    victims::GarbageFirst,
};
use super::ValueOptions;
use crate::parts::{
    arrivals::Arrivals,
    hidden::Hidden,
    relocation::Relocation,
    value_files::{Home, ORDERED, ValueFile, ValueFiles},
};

/// Medium values in vTables, large ones in logs.
pub struct DiffKv {
    shared: Arc<Shared>,
    /// The hot vLog.
    arrivals: Arrivals,
    /// Log files that collections are copying, and the copies.
    busy: Arc<Mutex<Vec<FileId>>>,
}

/// What differs between placements whose values rewrites part and sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Design {
    /// The placement's name.
    pub name: &'static str,
    /// Values that are not small are apart in tables of this level and below it.
    pub parted_from: u8,
    /// Large values go to logs as they come, and what commits hide is sampled, since logs make space tight within a burst.
    pub has_logs: bool,
}

/// DiffKV's own: apart from the flush on.
const DESIGN: Design = Design { name: "diffkv", parted_from: 0, has_logs: true };

/// What merges need too.
struct Shared {
    design: Design,
    options: ValueOptions,
    files: Arc<ValueFiles>,
    work: Work,
    /// What is dead that no merge has met.
    hidden: Hidden,
}

impl Shared {
    /// Whether so much of a file is garbage that its values move with the next merge that meets them (§3.5, "GC tag").
    fn has_garbage_tag(&self, file: &ValueFile) -> bool {
        file.valid_share() < self.options.gc_threshold
    }
}

impl DiffKv {
    /// With the files that are there.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn open(home: Home, options: ValueOptions, listed: &ValueEdit, present: &[FileId]) -> Result<Self> {
        Self::open_as(DESIGN, home, options, listed, present)
    }

    /// The same, of another design.
    ///
    /// # Errors
    /// As [`DiffKv::open`].
    pub fn open_as(
        design: Design,
        home: Home,
        options: ValueOptions,
        listed: &ValueEdit,
        present: &[FileId],
    ) -> Result<Self> {
        let files = Arc::new(ValueFiles::open(home, listed, present)?);
        let arrivals = Arrivals::new(Arc::clone(&files), options.file_bytes, options.compression);
        let hidden = if design.has_logs { Hidden::unknown() } else { Hidden::none() };
        let shared = Arc::new(Shared { design, options, files, work: Work::default(), hidden });
        Ok(Self { shared, arrivals, busy: Arc::default() })
    }

    fn value_files(&self) -> &Arc<ValueFiles> {
        &self.shared.files
    }
}

impl Placement for DiffKv {
    fn profile(&self) -> Profile {
        let Shared { design, options, .. } = &*self.shared;
        Profile {
            name: design.name,
            parts_from: design.has_logs.then_some(options.large_bytes),
            parts_at_rewrite: true,
            learns_from_rewrites: design.has_logs.then_some(options.min_bytes.min(options.large_bytes)),
        }
    }

    fn route(&self, op: Routed<'_>, seqno: SeqNo) -> Result<Option<Pointer>> {
        match op {
            Routed::Put { key, value } if value.len() >= self.shared.options.large_bytes => {
                self.arrivals.append(seqno, key, value).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn begin_sync(&self) {
        self.value_files().begin_sync();
    }

    fn sync(&self) -> Result<()> {
        self.value_files().sync()
    }

    fn synced(&self) {
        self.value_files().synced();
    }

    fn has_unsynced(&self) -> bool {
        self.value_files().has_unsynced()
    }

    fn rewriter(&self, job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
        Ok(Box::new(Merge::new(&self.shared, job)))
    }

    fn read(&self, key: &[u8], _seqno: SeqNo, pointer: Pointer, source: IoSource) -> Result<Option<Found>> {
        Ok(self.value_files().read(key, pointer, source)?.map(|value| Found { value, fresher: None }))
    }

    fn prefetch(&self, pointers: &[Pointer]) -> bool {
        self.value_files().prefetch(pointers)
    }

    fn pick(&self, pressure: &SpacePressure) -> Option<Collection> {
        GarbageFirst::of(self).pick(pressure)
    }

    fn pick_beside(&self, pressure: &SpacePressure, running: &[Collection]) -> Option<Collection> {
        GarbageFirst::beside(self, running)?.pick(pressure)
    }

    fn collect(&self, pick: &Collection, view: &dyn IndexView) -> Result<Box<dyn Collecting>> {
        let units = if let Collection::Units(units) = pick { units.as_slice() } else { &[] };
        let mut copies = Relocation::of(self.value_files(), &self.busy, units);
        copies.copy(self.shared.options.file_bytes, view)?;
        Ok(Box::new(copies))
    }

    fn retire(&self, durable: SeqNo, oldest_snapshot: Option<SeqNo>) -> ValueEdit {
        self.value_files().retire(durable, oldest_snapshot)
    }

    fn may_move(&self, from: u8, to: u8) -> bool {
        let parted_from = self.shared.design.parted_from;
        from >= parted_from || to < parted_from
    }

    fn can_retire(&self, oldest_snapshot: Option<SeqNo>) -> bool {
        self.value_files().can_retire(oldest_snapshot)
    }

    fn largest_unit(&self) -> u64 {
        self.value_files().largest()
    }

    fn unlisted(&self) -> Vec<ValueFileMeta> {
        self.value_files().unlisted()
    }

    fn make_durable(&self, files: &[ValueFileMeta]) -> Result<()> {
        self.value_files().make_durable(files)
    }

    fn news(&self, flushed: SeqNo) -> ValueEdit {
        self.value_files().news(flushed)
    }

    fn emptied_by(&self, edit: &ValueEdit) -> Vec<(FileId, u64)> {
        let files = edit.garbage.iter().filter_map(|&(id, bytes, _)| Some((self.value_files().get(id)?, bytes)));
        let is_empty = |(file, bytes): &(Arc<ValueFile>, u64)| {
            let (dead, all) = (file.dead() + bytes, file.len() - file.start());
            let is_empty = dead == all || (cfg!(planted = "drop_nearly_empty") && dead + 200 >= all);
            file.description.class == ORDERED && is_empty
        };
        files.filter(is_empty).map(|(file, _)| (file.id, file.len())).collect()
    }

    fn installed(&self, edit: &ValueEdit) {
        self.value_files().installed(edit);
    }

    fn give_up(&self, edit: &ValueEdit) {
        edit.added.iter().for_each(|meta| self.value_files().remove(meta.id));
    }

    fn leave_out(&self, file: FileId, why: &Error) -> bool {
        self.value_files().leave_out(file, why)
    }

    fn left_out(&self) -> Vec<Error> {
        self.value_files().left_out()
    }

    fn files(&self) -> ValueEdit {
        self.shared.files.listed()
    }

    fn space(&self) -> ValueSpace {
        let (files, total_bytes, emptied_bytes) = self.value_files().sizes();
        // What a merge has copied counts as live where it still stands.
        let is_copy = |file: &Arc<ValueFile>| file.description.class == ORDERED && !file.is_known();
        let copied: u64 = self.value_files().in_use().iter().filter(|&file| is_copy(file)).map(|file| file.len()).sum();
        let live_bytes = (total_bytes - emptied_bytes).saturating_sub(self.value_files().dead_bytes() + copied);
        let left_out_bytes = self.value_files().left_out_bytes();
        ValueSpace { files, total_bytes, live_bytes, emptied_bytes, left_out_bytes }
    }

    fn hides(&self, bytes: u64) {
        self.shared.hidden.come(bytes);
    }

    fn hidden_bytes(&self, pressure: &SpacePressure) -> u64 {
        self.shared.hidden.keep_below(pressure.hidden_at_most(self.space().live_bytes))
    }

    fn memory_bytes(&self) -> u64 {
        self.value_files().memory_bytes()
    }

    fn order(&self) -> Order {
        let mut files = self.value_files().in_use();
        files.retain(|file| file.description.class == ORDERED);
        let is_tagged = |file: &ValueFile| self.shared.has_garbage_tag(file) || order::has_overlap_tag(file);
        self.shared.work.with(order::by_level(&files, is_tagged))
    }

    fn emptied_after(&self, seqno: SeqNo) -> u64 {
        self.value_files().emptied_after(seqno)
    }

    fn explain(&self, pressure: &SpacePressure) -> Vec<Explained> {
        GarbageFirst::of(self).explain(pressure)
    }

    fn seal(&self) {
        self.arrivals.seal();
        self.value_files().seal();
    }

    fn locate(&self, pointer: Pointer) -> Result<Located> {
        self.value_files().locate(pointer)
    }

    fn refer(&self, pointer: Pointer, commit: SeqNo) {
        self.value_files().refer(pointer, commit);
    }

    fn durable_before(&self) -> SeqNo {
        self.value_files().durable_before()
    }

    fn settle(&self, last: SeqNo, durable: SeqNo) -> Result<()> {
        self.value_files().settle(last, durable).map(drop)
    }

    fn drop_files(&self) {
        self.value_files().drop_all();
    }

    fn live_files(&self) -> Vec<FileId> {
        self.value_files().present()
    }

    fn hold_files(&self) -> FilesHeld {
        self.value_files().hold()
    }
}
