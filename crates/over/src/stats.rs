//! Figures of an open store.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use bifold_contract::IoSource;
use bifold_values::placement::{Moved, ValueSpace};

use crate::{
    core::{Core, hold},
    index::{Changes, ForeignIndex},
};

/// Figures of a store since it was opened. What the foreign engine reads and writes is not among them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Bytes written to files, by purpose: `value` (commits), `gc`, `log`, `manifest`. Without those that are 0.
    pub written: Vec<(&'static str, u64)>,
    /// Bytes read from files, by purpose: `get`, `scan`, `gc`, `recovery`. Without those that are 0.
    pub read: Vec<(&'static str, u64)>,
    /// Bytes of values that were put.
    pub put_bytes: u64,
    /// Changes handed to the index, marks included.
    pub index_changes: u64,
    /// Bytes of their keys and entries.
    pub index_bytes: u64,
    /// How often the index was synced.
    pub checkpoints: u64,
    /// GC runs.
    pub gc_jobs: u64,
    /// Lookups that GC made to find out which values are live.
    pub gc_lookups: u64,
    /// Values that GC moved.
    pub gc_moves: u64,
    /// Bytes of their records at the new addresses.
    pub gc_moved_bytes: u64,
    /// Value files now.
    pub value_files: u64,
    /// Bytes in them.
    pub value_bytes: u64,
    /// Of these, bytes that are live, as far as known.
    pub live_bytes: u64,
    /// Bytes of logs now.
    pub log_bytes: u64,
    /// Memory of layers, filters and open value files, in bytes. An estimate.
    pub memory_bytes: u64,
    /// Value files in which something cannot be read, and why.
    pub left_out: Vec<String>,
}

/// Counters of an open store.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub put_bytes: AtomicU64,
    pub lookups: AtomicU64,
    pub gc_jobs: AtomicU64,
    pub checkpoints: AtomicU64,
    pub is_full: AtomicBool,
    moves: AtomicU64,
    moved_bytes: AtomicU64,
    changes: AtomicU64,
    change_bytes: AtomicU64,
}

impl Counters {
    pub fn moved(&self, moves: &[&Moved]) {
        self.moves.fetch_add(moves.len() as u64, Relaxed);
        self.moved_bytes.fetch_add(moves.iter().map(|moved| u64::from(moved.to.len)).sum(), Relaxed);
    }

    pub fn drained(&self, changes: &Changes) {
        self.changes.fetch_add(changes.len() as u64, Relaxed);
        self.change_bytes.fetch_add(changes.bytes() as u64, Relaxed);
    }
}

impl<I: ForeignIndex> Core<I> {
    pub fn stats(&self) -> Stats {
        let (totals, counters) = (self.dir.totals(), &self.counters);
        let ValueSpace { files, total_bytes, live_bytes, .. } = self.values.space();
        let log_bytes = hold(&self.log).bytes();
        let layers: u64 = self.layers.all().iter().map(|layer| layer.bytes()).sum();
        let of = |bytes: &[u64; IoSource::COUNT]| {
            let named = IoSource::ALL.into_iter().map(|source| (source.name(), bytes[source as usize]));
            named.filter(|(_, bytes)| *bytes > 0).collect()
        };
        Stats {
            written: of(&totals.written_bytes),
            read: of(&totals.read_bytes),
            put_bytes: counters.put_bytes.load(Relaxed),
            index_changes: counters.changes.load(Relaxed),
            index_bytes: counters.change_bytes.load(Relaxed),
            checkpoints: counters.checkpoints.load(Relaxed),
            gc_jobs: counters.gc_jobs.load(Relaxed),
            gc_lookups: counters.lookups.load(Relaxed),
            gc_moves: counters.moves.load(Relaxed),
            gc_moved_bytes: counters.moved_bytes.load(Relaxed),
            value_files: files,
            value_bytes: total_bytes,
            live_bytes,
            log_bytes,
            memory_bytes: layers + self.values.memory_bytes(),
            left_out: self.values.left_out().iter().map(ToString::to_string).collect(),
        }
    }
}
