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
//! | compaction-triggered merge (§3.3) | [`merge`] |
//! | lazy merge, scan-optimised merge (§3.4) | [`order`] |
//! | state-aware lazy GC (§3.5) | counters of dead bytes in the manifest; `has_garbage_tag` follows from them |
//! | *value_small*, *value_large* (§4.1) | `separate_from_bytes`, `large_bytes` |
//! | hot and cold vLog, greedy GC (§4.2) | [`ValueLog`], files of survivors; [`queue`], `Logs` |
//! | a vTable that no merge reads (ours) | past the space target `pick` asks for a rewrite of its keys |
//!
//! What the sorted values have in common with those of other placements is in [`ordered_values`]. Logs are here.
//!
//! **Concurrent GC** (§4.2, "multiple GC threads"). GC runs on different logs are independent: each move is checked
//! against the index by itself. Any number of them runs concurrently with one rewrite.
//!
//! [`ordered_values`]: crate::parts::ordered_values
//! [`merge`]: crate::parts::ordered_values::merge
//! [`order`]: crate::parts::ordered_values::order
//! [`queue`]: crate::parts::ordered_values::queue
//! [`Extent`]: crate::parts::value_files::Extent

pub mod options;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};

use bifold_contract::{FileId, Pointer, Result, Rewriter, SeqNo, ValueEdit};

use super::{Settings, ValueOptions};
use crate::{
    parts::{
        ordered_values::{
            OrderedValues, Rules,
            queue::{Due, Queue, Rewrite},
        },
        relocation::relocate,
        stale_estimate::StaleEstimate,
        sync::LockExt,
        value_files::{ValueFile, ValueFiles},
        value_log::ValueLog,
    },
    placement::{
        Explained, GcClaim, GcContext, GcJob, GcOutcome, Order, Placement, Profile, RewriteJob, SpacePressure,
        ValueSpace, WriteOp,
    },
};

/// One GC run on logs takes as many bytes as so many full files.
const FILES_AT_ONCE: u64 = 4;

/// Medium values are separated from the flush on.
const SEPARATED_FROM: u8 = 0;

/// Medium values in vTables, large ones in logs.
pub struct DiffKv {
    ordered: OrderedValues,
    /// The hot vLog.
    value_log: ValueLog,
    /// Log files that GC is copying, and the copies.
    busy: Arc<Mutex<Vec<FileId>>>,
}

impl DiffKv {
    /// Opens it with the existing files.
    #[must_use]
    pub fn open(files: &Arc<ValueFiles>, options: &Settings) -> Self {
        let ordered = OrderedValues::new(files, (options, rules), SEPARATED_FROM, StaleEstimate::unknown());
        Self { ordered, value_log: ValueLog::new(Arc::clone(files), options), busy: Arc::default() }
    }

    /// The GC queue while these jobs are running: vTables, and logs that nobody appends to or copies.
    fn queue(&self, running: &[GcClaim]) -> Queue<'_> {
        let busy = self.busy.hold();
        // Asked after the files are listed: a commit may begin a new file meanwhile.
        let is_head = |id| self.value_log.head() == Some(id);
        Queue::new(&self.ordered, running, |id| !busy.contains(&id) && !is_head(id))
    }

    /// GC of the first of these logs.
    fn logs(&self, victims: &[&Arc<ValueFile>]) -> Logs {
        let mut bytes = 0;
        let file_bytes = self.ordered.options().now().file_bytes;
        let has_room = |file: &&&Arc<ValueFile>| {
            bytes += file.len();
            bytes - file.len() < FILES_AT_ONCE * file_bytes
        };
        let logs = victims.iter().filter(|file| file.extent().is_none()).take_while(has_room);
        let claim = GcClaim::of(logs.map(|file| file.id).collect());
        Logs { claim, file_bytes, files: Arc::clone(self.ordered.files()), busy: Arc::clone(&self.busy) }
    }
}

/// When values of vTables move.
fn rules(options: &ValueOptions) -> Rules {
    let diffkv = &options.diffkv;
    Rules { gc_threshold: diffkv.gc_threshold, merge: diffkv.merge, max_sorted_run: diffkv.max_sorted_run as usize }
}

/// GC of some logs: the index says what is live (§4.2).
struct Logs {
    claim: GcClaim,
    file_bytes: u64,
    files: Arc<ValueFiles>,
    busy: Arc<Mutex<Vec<FileId>>>,
}

impl GcJob for Logs {
    fn claim(&self) -> &GcClaim {
        &self.claim
    }

    fn run(&self, gc: &dyn GcContext) -> Result<GcOutcome> {
        let live_bytes = |&id: &FileId| self.files.get(id).map_or(0, |file| file.len() - file.dead());
        let live_bytes: Vec<u64> = self.claim.files.iter().map(live_bytes).collect();
        let sources = &self.claim.files[..gc.fit(&live_bytes)?];
        let done = relocate(&self.files, &self.busy, (sources, self.file_bytes), gc)?;
        Ok(GcOutcome::freed(done.map_or(0, |done| done.freed_bytes)))
    }
}

impl Placement for DiffKv {
    fn profile(&self) -> Profile {
        let options = self.ordered.options().now();
        let large_from = options.diffkv.large_from();
        Profile {
            name: "diffkv",
            separates_from: Some(large_from),
            hears_of_short_values: false,
            separates_at_rewrite: true,
            learns_from_rewrites: Some(options.separates_from().min(large_from)),
            finds_overwritten: false,
            reads_by_address: true,
            copies_percent: Profile::COPIES_PERCENT,
        }
    }

    fn write(&self, op: WriteOp<'_>, seqno: SeqNo) -> Result<Option<Pointer>> {
        match op {
            WriteOp::Put { key, value } if value.len() >= self.ordered.options().now().diffkv.large_from() => {
                self.value_log.append(seqno, key, value).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn rewriter(&self, job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
        Ok(self.ordered.rewriter(job))
    }

    fn ingester(&self, job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
        Ok(self.ordered.ingester(job))
    }

    fn pick(&self, pressure: &SpacePressure, running: &[GcClaim]) -> Option<Box<dyn GcJob>> {
        match self.queue(running).due(pressure)? {
            Due::Search => Some(Box::new(Rewrite::search())),
            Due::Victims(victims) => Some(match Rewrite::of(&victims) {
                Some(rewrite) => Box::new(rewrite),
                None => Box::new(self.logs(&victims)),
            }),
        }
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

    fn note_overwritten(&self, bytes: u64, _find: &dyn Fn() -> Option<(Pointer, u64)>) {
        self.ordered.stale().add(bytes);
    }

    fn stale_bytes(&self, pressure: &SpacePressure) -> u64 {
        self.ordered.stale_bytes(pressure)
    }

    fn order(&self) -> Order {
        self.ordered.order()
    }

    fn explain(&self, pressure: &SpacePressure) -> Vec<Explained> {
        let next = self.pick(pressure, &[]).map_or_else(Vec::new, |job| job.claim().files.clone());
        self.queue(&[]).explain(pressure, &next)
    }

    fn seal(&self, files: &ValueFiles) {
        self.value_log.seal();
        files.seal();
    }
}
