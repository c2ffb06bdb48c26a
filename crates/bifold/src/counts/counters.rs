//! The running counts of an open database, from which statistics are made.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bifold_contract::Value;
use bifold_index::lookup::LookupCounters;
use bifold_io::striped::Striped;
use bifold_values::placement::Moved;

use crate::{
    counts::{histogram::Histogram, slow::SlowCommits},
    state::op::{Act, Op},
    waiting::sync::LockExt,
};

/// One get in this many is timed: two readings of the clock cost a fiftieth of a cached get.
const GET_SAMPLE: u64 = 16;

/// Counters of reads.
const GETS: usize = 0;
pub(crate) const GET_HITS: usize = 1;
pub(crate) const USER_BYTES_READ: usize = 2;
pub(crate) const SCANNED_ENTRIES: usize = 3;
/// Keys of `multi_get`. They are not in [`GETS`], by which the gets are chosen that are timed.
const GETS_TOGETHER: usize = 4;

/// Why a writer waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StallCause {
    /// Slowed because memtables fill faster than they are written.
    Memtables,
    /// Stopped because every memtable was full.
    MemtablesFull,
    /// Slowed because compactions are behind.
    CompactionDebt,
    /// Slowed because value files have grown past their target faster than GC frees space.
    Space,
}

impl StallCause {
    pub fn name(self) -> &'static str {
        match self {
            Self::Memtables => "slowed: memtables fill faster than they are written",
            Self::MemtablesFull => "stopped: every memtable was full",
            Self::CompactionDebt => "slowed: compactions are behind",
            Self::Space => "slowed: garbage grows faster than GC frees it",
        }
    }
}

/// Running counts of an open database.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) commits: AtomicU64,
    pub(crate) operations: AtomicU64,
    user_bytes_written: AtomicU64,
    /// Of reads: see [`GETS`].
    pub(crate) reads: Striped<5>,
    pub(crate) stalls: Mutex<BTreeMap<StallCause, (u64, Duration, Duration)>>,
    /// Commits, including the wait for their sync.
    pub put_latency: Histogram,
    /// The slowest of them.
    pub slow_commits: SlowCommits,
    pub(crate) get_latency: Histogram,
    /// Key ranges of flushes that other threads wrote than the one that flushed.
    pub flush_ranges_helped: AtomicU64,
    /// Lookups in tables.
    pub lookups: LookupCounters,
    /// GC of separated values.
    pub gc: GcCounters,
}

/// Counts of GC.
#[derive(Debug, Default)]
pub(crate) struct GcCounters {
    /// GC runs.
    pub jobs: AtomicU64,
    /// Lookups in the index.
    pub lookups: AtomicU64,
    /// Moves committed, and the bytes of their records.
    pub(crate) inserts: AtomicU64,
    pub moved_bytes: AtomicU64,
}

impl GcCounters {
    /// Counts committed moves.
    pub fn moved(&self, moves: &[Moved]) {
        self.inserts.fetch_add(moves.len() as u64, Relaxed);
        self.moved_bytes.fetch_add(moves.iter().map(|m| u64::from(m.to.len)).sum(), Relaxed);
    }
}

impl Counters {
    /// Counts a commit.
    pub fn commit(&self, ops: &[Op<'_>]) {
        let bytes = |op: &Op<'_>| {
            op.key.len()
                + match op.act {
                    Act::Put(payload) | Act::PutUntil(payload, _) | Act::Merge(payload) => payload.len(),
                    Act::Pointer(payload) | Act::PointerUntil(payload) => payload.len(),
                    Act::Large(_, value_bytes) => value_bytes as usize,
                    Act::Delete => 0,
                    Act::DeleteRange(end) => end.map_or(0, <[u8]>::len),
                }
        };
        self.commits.fetch_add(1, Relaxed);
        self.operations.fetch_add(ops.len() as u64, Relaxed);
        self.user_bytes_written.fetch_add(ops.iter().map(bytes).sum::<usize>() as u64, Relaxed);
    }

    /// Counts an ingest of so many entries, with so many bytes of keys and values.
    pub fn ingested(&self, entries: u64, bytes: u64) {
        self.commits.fetch_add(1, Relaxed);
        self.operations.fetch_add(entries, Relaxed);
        self.user_bytes_written.fetch_add(bytes, Relaxed);
    }

    /// Counts a wait of a writer.
    pub fn stalled(&self, cause: StallCause, time: Duration) {
        let mut stalls = self.stalls.hold();
        let (count, total, max) = stalls.entry(cause).or_default();
        *count += 1;
        *total += time;
        *max = (*max).max(time);
    }

    /// The time, for one get in [`GET_SAMPLE`].
    pub fn sample_get(&self, now: impl FnOnce() -> Duration) -> Option<Duration> {
        self.reads.add(GETS, 1).is_multiple_of(GET_SAMPLE).then(now)
    }

    /// Counts the end of a get that began at `begin`, if that was timed.
    pub fn got(&self, value_bytes: Option<usize>, now: impl FnOnce() -> Duration, begin: Option<Duration>) {
        if let Some(bytes) = value_bytes {
            self.reads.add(GET_HITS, 1);
            self.reads.add(USER_BYTES_READ, bytes as u64);
        }
        if let Some(begin) = begin {
            self.get_latency.record(now().saturating_sub(begin));
        }
    }

    /// Counts the keys of a `multi_get`, by what was found for each.
    pub fn got_together(&self, found: &[Option<Value>]) {
        let values = || found.iter().flatten();
        self.reads.add(GETS_TOGETHER, found.len() as u64);
        self.reads.add(GET_HITS, values().count() as u64);
        self.reads.add(USER_BYTES_READ, values().map(|value| value.len() as u64).sum());
    }

    /// Point reads so far.
    pub(crate) fn gets(&self) -> u64 {
        self.reads.sum(GETS) + self.reads.sum(GETS_TOGETHER)
    }

    /// Counts entries that an iterator yielded, with bytes of their keys and of values that are there already.
    pub fn scanned(&self, entries: u64, bytes: u64) {
        self.reads.add(SCANNED_ENTRIES, entries);
        self.reads.add(USER_BYTES_READ, bytes);
    }

    /// Counts the value of such an entry that was read, or combined.
    pub fn read_value(&self, bytes: usize) {
        self.reads.add(USER_BYTES_READ, bytes as u64);
    }

    /// Bytes of keys and values committed so far.
    pub fn user_bytes_written(&self) -> u64 {
        self.user_bytes_written.load(Relaxed)
    }
}
