//! A flush that several threads write: each takes key ranges of the memtable that nobody has taken.
//!
//! ```text
//! the thread that flushes   cut ─▶ share ─▶ write range after range ─▶ wait for the others ─▶ one edit for all ranges
//! idle workers                       └────▶ write a range ─────────────┘
//! ```
//!
//! **Invariants.** Ranges meet where the flush would end a table anyway, so level 0 has the parts it would have if one
//! thread wrote it. Nothing is installed before every range is written: the memtable leaves in one step, and the log's
//! floor passes it only then. After an error in one range nothing of the others is left.
//!
//! Flushes of one tree never overlap, so memtables of a tree are installed oldest first.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use bifold_contract::{Error, FileId, KeyspaceId, Result, ValueEdit, planted};
use bifold_index::compaction::run::Output;

use crate::{
    state::snapshot::SnapshotCut,
    state::tree::{Layer, Tree, View},
    waiting::{
        signal::{PATIENCE, Signal},
        sync::{LockExt, wait_for},
    },
};

/// How a memtable is written.
pub(crate) struct Flush {
    /// Its tree.
    pub tree: Arc<Tree>,
    pub view: Arc<View>,
    pub layer: Arc<Layer>,
    /// The tree has no older data.
    pub is_first: bool,
    pub snapshots: SnapshotCut,
    /// Tables end before these keys, which ascend.
    pub cuts: Vec<Box<[u8]>>,
    /// Tables end at this size.
    pub cut_bytes: u64,
}

/// A flush, and how far it has got.
pub(crate) struct SharedFlush {
    flush: Flush,
    /// The keys at which ranges meet, ascending.
    bounds: Vec<Box<[u8]>>,
    progress: Mutex<FlushProgress>,
    changed: Condvar,
}

#[derive(Default)]
struct FlushProgress {
    /// Ranges that someone has taken.
    taken: usize,
    /// Ranges that are being written.
    writing: usize,
    /// What was written, by range.
    written: BTreeMap<usize, Output>,
    /// Why one could not be written. No more are begun then.
    failed: Option<Error>,
}

/// Keys from one to before another; without one, from the first or to the last.
pub(crate) type KeyRange<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

/// A range that one thread writes. It ends when this is dropped, also by a panic: the flush must not wait forever.
pub(crate) struct TakenRange {
    shared: Arc<SharedFlush>,
    at: usize,
}

impl SharedFlush {
    pub fn new(flush: Flush, bounds: Vec<Box<[u8]>>) -> Arc<Self> {
        Arc::new(Self { flush, bounds, progress: Mutex::default(), changed: Condvar::new() })
    }

    /// Whether there is a range that nobody has taken.
    pub fn has_more(&self) -> bool {
        let progress = self.progress.hold();
        progress.taken <= self.bounds.len() && progress.failed.is_none()
    }

    /// Takes the next range.
    pub fn take(self: &Arc<Self>) -> Option<TakenRange> {
        let mut progress = self.progress.hold();
        if progress.taken > self.bounds.len() || progress.failed.is_some() {
            return None;
        }
        let at = progress.taken;
        progress.taken += 1;
        progress.writing += 1;
        Some(TakenRange { shared: Arc::clone(self), at })
    }

    /// Waits until nobody writes. Every writer ends, also when the database fails or is closed: it asks while it
    /// writes.
    pub fn wait(&self, signal: &Signal, since: Duration) {
        let mut progress = self.progress.hold();
        let mut waiting = None;
        while progress.writing > 0 && !planted!("leave_ranges_behind") {
            waiting.get_or_insert_with(|| signal.waiting("a flush", "key ranges that others write", since));
            // The end of each range wakes this thread. If that ever fails, this looks again all the same.
            progress = wait_for(&self.changed, progress, PATIENCE).0;
        }
    }

    /// What all ranges have become, in key order. After an error in one, the others are given up.
    ///
    /// # Errors
    /// That of a range.
    pub fn outcome(&self, give_up: impl Fn(&Flush, &Output)) -> Result<Output> {
        let mut progress = self.progress.hold();
        let written = std::mem::take(&mut progress.written).into_values();
        match progress.failed.take() {
            None => Ok(joined(written)),
            Some(error) => {
                written.for_each(|output| give_up(&self.flush, &output));
                Err(error)
            }
        }
    }
}

impl TakenRange {
    /// The keyspace of the flush.
    pub fn keyspace(&self) -> KeyspaceId {
        self.shared.flush.tree.keyspace
    }

    /// Writes it by `write`. The thread that flushes learns of an error.
    pub fn write(&self, write: impl FnOnce(&Flush, KeyRange<'_>) -> Result<Output>) {
        let bounds = &self.shared.bounds;
        let start = self.at.checked_sub(1).map(|before| &*bounds[before]);
        let outcome = write(&self.shared.flush, (start, bounds.get(self.at).map(|end| &**end)));
        let mut progress = self.shared.progress.hold();
        match outcome {
            Ok(output) => drop(progress.written.insert(self.at, output)),
            Err(error) => drop(progress.failed.get_or_insert(error)),
        }
    }
}

impl Drop for TakenRange {
    fn drop(&mut self) {
        let mut progress = self.shared.progress.hold();
        progress.writing -= 1;
        if !progress.written.contains_key(&self.at) && progress.failed.is_none() {
            let message = "a thread ended before it had written its key range".to_owned();
            progress.failed = Some(Error::Panicked { what: "a flush", message });
        }
        drop(progress);
        self.shared.changed.notify_all();
    }
}

/// The keys at which to cut a flush into at most `most` ranges with about equally many `cuts`, which ascend.
pub(crate) fn bounds(cuts: &[Box<[u8]>], most: usize) -> Vec<Box<[u8]>> {
    let tables = cuts.len() + 1;
    let ranges = most.min(tables).max(1);
    (1..ranges).map(|range| cuts[range * tables / ranges - 1].clone()).collect()
}

/// The outputs of neighbouring ranges as one.
fn joined(outputs: impl Iterator<Item = Output>) -> Output {
    let (mut all, mut garbage) = (Output::default(), BTreeMap::<FileId, (u64, u64)>::new());
    for output in outputs {
        all.tables.extend(output.tables);
        all.held.extend(output.held);
        let ValueEdit { removed, added, garbage: of_range, tagged, large, pointers } = output.values;
        all.values.large.extend(large);
        all.values.pointers.extend(pointers);
        all.values.removed.extend(removed);
        all.values.added.extend(added);
        all.values.tagged.extend(tagged);
        // Whether an edit drains a file is seen from its one count.
        for (file, bytes, records) in of_range {
            let sum = garbage.entry(file).or_default();
            *sum = (sum.0 + bytes, sum.1 + records);
        }
    }
    all.values.garbage = garbage.into_iter().map(|(file, (bytes, records))| (file, bytes, records)).collect();
    all
}

#[cfg(test)]
mod tests;
