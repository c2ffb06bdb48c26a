//! Statistics: what a database has done and what it holds. Each field says what it means.
//!
//! Write and read amplification count from the opening of the database. **Write** = bytes written by every source
//! over user bytes written. **Read** = bytes read for gets and scans over user bytes they returned. **Space** = bytes
//! of tables, value files, large values, logs and manifest over the estimated live bytes. Each is 0 where it would be
//! divided by 0.

mod garbage;
mod keyspace;
mod order;
mod space;

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use bifold_contract::{IoSource, SeqNo};
use serde::Serialize;

pub use self::{
    garbage::{GarbageStats, GcStats},
    keyspace::{FilterStats, HashIndexStats, KeyspaceStats, LevelStats},
    order::{LevelOrderStats, OrderStats},
    space::SpaceStats,
};
pub use crate::counts::histogram::Quantiles;
use crate::{
    counts::{
        counters::{Counters, GET_HITS, SCANNED_ENTRIES, StallCause, USER_BYTES_READ},
        slow::SlowCommit,
    },
    engine::Engine,
    state::{snapshot::Holder, tree::Tree},
    waiting::sync::LockExt,
};

/// Figures of an open database; see each field.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// The number of the last operation.
    pub seqno: SeqNo,
    /// Commits since the database was opened, without those of GC. An ingest is one.
    pub commits: u64,
    /// Operations in them. Each entry of an ingest is one.
    pub operations: u64,
    /// Bytes of keys and values in them.
    pub user_bytes_written: u64,
    /// Bytes of values that gets returned and of entries that iterators yielded. A separated value counts when it is
    /// read.
    pub user_bytes_read: u64,
    /// Point reads. Each key of a `multi_get` is one.
    pub gets: u64,
    /// Point reads that found a value.
    pub get_hits: u64,
    /// Entries yielded by iterators.
    pub scanned_entries: u64,
    /// Bytes read and written, by source.
    pub io: Vec<SourceStats>,
    /// Sync calls on files.
    pub syncs: u64,
    /// Bytes written over user bytes written.
    pub write_amp: f64,
    /// Bytes read for gets and scans over user bytes they returned.
    pub read_amp: f64,
    /// Bytes of tables, value files, large values, logs and manifest over estimated live bytes.
    pub space_amp: f64,
    /// Memory by use.
    pub memory: MemoryStats,
    /// Open files.
    pub files: FileStats,
    /// Disk space by use.
    pub space: SpaceStats,
    /// Lookups in tables.
    pub lookups: LookupStats,
    /// Each keyspace.
    pub keyspaces: Vec<KeyspaceStats>,
    /// Flushes.
    pub flushes: FlushStats,
    /// Waits imposed on writers, by cause.
    pub stalls: Vec<StallStats>,
    /// The slowest commits since the database was opened, the slowest first: at most 16, of 5 ms and more.
    pub slow_commits: Vec<SlowCommitStats>,
    /// How long operations took.
    pub latency_us: LatencyStats,
    /// Open snapshots and iterators, which keep old versions alive.
    pub snapshots: Vec<SnapshotStats>,
    /// GC of separated values.
    pub gc: GcStats,
    /// Processes that read the database while this one writes it, and what they keep from being deleted.
    pub followers: FollowerStats,
    /// Threads that wait now, the longest wait first. Not those that wait for [`changes`](crate::Changes::wait).
    pub waits: Vec<WaitStats>,
    /// Waits that would never have ended, each a bug in Bifold. The watchdog ended them after 30 seconds.
    pub overdue_waits: u64,
    /// The first of these, in words.
    pub overdue_described: Vec<String>,
    /// The failure that poisoned the database, if any. It has refused writes since.
    pub poisoned: Option<String>,
    /// What opening, compaction and GC could not read and leave out from then on. Writes and all other work continue.
    /// See [`Db::left_out`](crate::Db::left_out).
    pub left_out: Vec<String>,
}

/// A thread that waits for others.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct WaitStats {
    /// Who waits.
    pub who: &'static str,
    /// What it waits for.
    pub on: &'static str,
    /// Milliseconds so far.
    pub age_ms: u64,
}

/// Processes that read with [`Access::Follow`](crate::Access::Follow) what this one writes. All zero if it does not
/// write.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct FollowerStats {
    /// How many there are.
    pub readers: u64,
    /// Files that only they need.
    pub held_files: u64,
    /// Bytes in these. They are freed when the readers refresh or end.
    pub held_bytes: u64,
}

impl FollowerStats {
    /// Also deletes what readers no longer need.
    fn of(engine: &Engine) -> Self {
        let totals = engine.dir.release_pinned();
        Self { readers: totals.readers, held_files: totals.files, held_bytes: totals.bytes }
    }
}

/// Flushes since the database was opened.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct FlushStats {
    /// The most that ran at the same time, each in a different keyspace.
    pub at_once_max: u32,
    /// Key ranges of flushes that were written by a thread other than the flushing one.
    pub ranges_helped: u64,
}

/// Bytes read and written by one source since the database was opened.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SourceStats {
    /// The source's name: [`IoSource::name`].
    pub source: &'static str,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Read calls.
    pub reads: u64,
}

/// Memory in bytes now, and how often the block cache has answered since the database was opened.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct MemoryStats {
    /// The limit on all the others together.
    pub limit: u64,
    /// In memtables.
    pub memtables: u64,
    /// In the block cache.
    pub cache: u64,
    /// In indexes and filters outside the cache.
    pub metadata: u64,
    /// In filters of groups of separated values, in open value files, and in buffers that move values.
    pub values: u64,
    /// Reserved for compaction buffers.
    pub compaction: u64,
    /// In open transactions, what they have read and written; in write caches, what they have gathered.
    pub transactions: u64,
    /// Of files that are read through mapped pages: at most `mapped_bytes_max`, not part of the limit. So many bytes of
    /// the process's resident memory may be pages that it shares with the system's page cache.
    pub mapped: u64,
    /// Reads that the block cache answered.
    pub cache_hits: u64,
    /// Reads that it did not answer.
    pub cache_misses: u64,
}

/// Open files.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct FileStats {
    /// Open now.
    pub open: u64,
    /// Of these, files being written.
    pub open_written: u64,
    /// How many may be open (`open_files_max`), including those being written unless they alone are more.
    pub open_max: u64,
    /// How often a read had to open a file again since the database was opened.
    pub reopened: u64,
}

/// Lookups in tables since the database was opened.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LookupStats {
    /// Filters that lookups checked.
    pub filters_asked: u64,
    /// Filters that said "not here".
    pub filters_denied: u64,
    /// Tables searched in vain because the filter had said "perhaps".
    pub false_positives: u64,
    /// Tables searched beyond their filter: each costs a block, cached or read.
    pub tables_searched: u64,
}

/// Waits of writers for one cause since the database was opened.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct StallStats {
    /// The cause, in words. It begins with `slowed: ` or `stopped: `.
    pub cause: &'static str,
    /// How often writers waited.
    pub count: u64,
    /// Microseconds of all waits together.
    pub total_us: u64,
    /// Microseconds of the longest wait.
    pub max_us: u64,
}

/// A slow commit and what it waited for.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SlowCommitStats {
    /// Milliseconds since it began.
    pub age_ms: u64,
    /// Microseconds that it took.
    pub total_us: u64,
    /// Its slow steps in the order in which a commit takes them. They are timed with the system's coarse clock, which
    /// moves some milliseconds at a time, so their sum may be off by that much. Empty where the system has none.
    pub steps: Vec<SlowStep>,
}

/// A step of a slow commit.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SlowStep {
    /// `pace`: slowed or stopped by the pace, or looking at the disk's free space; `commit lock`: waiting for it;
    /// `seal`: sealing a memtable and beginning a log; `values`, `log`: appending to value files and the log;
    /// `memtable`: insertion; `space`: looking at the space that values take; `sync`: making it durable.
    pub step: &'static str,
    /// Microseconds.
    pub us: u64,
}

/// How long operations took, in microseconds.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LatencyStats {
    /// Commits.
    pub put: Quantiles,
    /// Gets of one key; one in 16 is timed.
    pub get: Quantiles,
}

/// An open snapshot or iterator, which keeps old versions alive.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SnapshotStats {
    /// The number of the last operation it sees.
    pub seqno: SeqNo,
    /// How many milliseconds it has been open.
    pub age_ms: u64,
    /// `snapshot`, `iterator`, `transaction`, or `multi_get` while such a call runs.
    pub kind: &'static str,
}

impl Stats {
    pub(crate) fn of(engine: &Engine) -> Self {
        let counters = &engine.counters;
        let totals = engine.dir.totals();
        let written: u64 = totals.written_bytes.iter().sum();
        let read = totals.read_bytes[IoSource::Get as usize] + totals.read_bytes[IoSource::Scan as usize];
        let (user_written, user_read) = (counters.user_bytes_written(), counters.reads.sum(USER_BYTES_READ));
        let keyspaces: Vec<KeyspaceStats> = engine.trees.all().iter().map(|p| KeyspaceStats::of(p)).collect();
        let space = SpaceStats::of(engine, &keyspaces);
        let files =
            space.tables_bytes + space.values_bytes + space.large_bytes + space.logs_bytes + space.manifest_bytes;
        let memtables: u64 = keyspaces.iter().map(|k| k.memtable_bytes).sum();
        let live = space.live_bytes_estimate
            + space.live_values_estimate
            + space.large_bytes
            + engine.trees.all().iter().map(|p| memtable_data_bytes(p)).sum::<u64>();
        let source = |s: IoSource| SourceStats {
            source: s.name(),
            bytes_read: totals.read_bytes[s as usize],
            bytes_written: totals.written_bytes[s as usize],
            reads: totals.reads[s as usize],
        };
        let overdue = engine.signal.overdue();
        Self {
            seqno: engine.state.visible(),
            commits: counters.commits.load(Relaxed),
            operations: counters.operations.load(Relaxed),
            user_bytes_written: user_written,
            user_bytes_read: user_read,
            gets: counters.gets(),
            get_hits: counters.reads.sum(GET_HITS),
            scanned_entries: counters.reads.sum(SCANNED_ENTRIES),
            io: IoSource::ALL.into_iter().map(source).collect(),
            syncs: totals.syncs,
            write_amp: ratio(written, user_written),
            read_amp: ratio(read, user_read),
            space_amp: ratio(files, live),
            memory: MemoryStats::of(engine, memtables),
            files: FileStats::of(engine),
            space,
            lookups: LookupStats::of(counters),
            keyspaces,
            stalls: StallStats::of(counters),
            slow_commits: SlowCommitStats::of(engine),
            latency_us: LatencyStats { put: counters.put_latency.quantiles(), get: counters.get_latency.quantiles() },
            snapshots: SnapshotStats::of(engine),
            gc: GcStats::of(engine),
            followers: FollowerStats::of(engine),
            flushes: FlushStats::of(engine),
            waits: WaitStats::of(engine),
            overdue_waits: overdue.count,
            overdue_described: overdue.described,
            poisoned: engine.health.failure().map(ToString::to_string),
            left_out: engine.trees.all().iter().flat_map(|p| p.left_out()).map(|why| why.to_string()).collect(),
        }
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn memtable_data_bytes(tree: &Tree) -> u64 {
    tree.view().layers().map(|l| l.memtable.data_bytes() as u64).sum()
}

impl MemoryStats {
    fn of(engine: &Engine, memtables: u64) -> Self {
        let cache = engine.tables.cache();
        Self {
            limit: engine.plan.limit,
            memtables,
            cache: cache.bytes(),
            metadata: engine.tables.metadata_bytes(),
            values: engine.trees.all().iter().map(|p| p.placement().memory_bytes()).sum(),
            compaction: engine.plan.compaction,
            transactions: engine.transactions.bytes(),
            mapped: engine.dir.mapped_bytes(),
            cache_hits: cache.hits(),
            cache_misses: cache.misses(),
        }
    }
}

impl FileStats {
    fn of(engine: &Engine) -> Self {
        let files = engine.dir.open_files();
        Self {
            open: files.open as u64,
            open_written: files.written as u64,
            open_max: files.max as u64,
            reopened: files.reopened,
        }
    }
}

impl FlushStats {
    fn of(engine: &Engine) -> Self {
        let ranges_helped = engine.counters.flush_ranges_helped.load(Relaxed);
        Self { at_once_max: engine.pace.flushes_at_once_max(), ranges_helped }
    }
}

impl LookupStats {
    fn of(counters: &Counters) -> Self {
        Self {
            filters_asked: counters.lookups.filters_asked(),
            filters_denied: counters.lookups.filters_denied(),
            false_positives: counters.lookups.false_positives(),
            tables_searched: counters.lookups.tables_searched(),
        }
    }
}

impl StallStats {
    fn of(counters: &Counters) -> Vec<Self> {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let stalls = counters.stalls.hold();
        let describe = |(cause, (count, total, max)): (&StallCause, &(u64, Duration, Duration))| Self {
            cause: cause.name(),
            count: *count,
            total_us: micros(*total),
            max_us: micros(*max),
        };
        stalls.iter().map(describe).collect()
    }
}

impl SlowCommitStats {
    fn of(engine: &Engine) -> Vec<Self> {
        let now = engine.env.clock.now();
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let slowest = engine.counters.slow_commits.slowest().into_iter();
        let describe = |slow: SlowCommit| Self {
            age_ms: micros(now.saturating_sub(slow.begin)) / 1000,
            total_us: micros(slow.time),
            steps: slow
                .steps
                .into_iter()
                .map(|(step, time)| SlowStep { step: step.name(), us: micros(time) })
                .collect(),
        };
        slowest.map(describe).collect()
    }
}

impl WaitStats {
    fn of(engine: &Engine) -> Vec<Self> {
        let now = engine.env.clock.now();
        let age_ms = |since| u64::try_from(now.saturating_sub(since).as_millis()).unwrap_or(u64::MAX);
        let waits = engine.signal.waits().into_iter();
        waits.map(|wait| Self { who: wait.who, on: wait.on, age_ms: age_ms(wait.since) }).collect()
    }
}

impl SnapshotStats {
    /// All open ones, in the order in which they were opened.
    fn of(engine: &Engine) -> Vec<Self> {
        let now = engine.env.clock.now();
        let describe = |open: crate::state::snapshot::Described| Self {
            seqno: open.seqno,
            age_ms: u64::try_from(now.saturating_sub(open.since).as_millis()).unwrap_or(u64::MAX),
            kind: match open.holder {
                Holder::Snapshot => "snapshot",
                Holder::Iterator => "iterator",
                Holder::Transaction => "transaction",
                Holder::MultiGet => "multi_get",
            },
        };
        engine.snapshots.describe().into_iter().map(describe).collect()
    }
}
