//! What a database did and what it holds: honest figures, each with its meaning.
//!
//! Amplifications count from the opening of the database: **write** = bytes written by every source over user bytes
//! written; **read** = bytes read for gets and scans over user bytes they returned; **space** = bytes of tables, value
//! files, logs and manifest over the estimated live bytes.

mod order;
mod space;

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bifold_contract::{IoSource, SeqNo};
use bifold_format::names;
use bifold_index::lookup::LookupCounters;
use bifold_values::placement::{Moved, StaleReads};
use serde::Serialize;

pub use self::{
    order::{LevelOrderStats, OrderStats},
    space::SpaceStats,
};
pub use crate::histogram::Quantiles;
use crate::{
    engine::Engine,
    histogram::Histogram,
    snapshot::Holder,
    sync::LockExt,
    tree::Tree,
    write::{Act, Op},
};

/// One get in so many is timed: two readings of the clock cost a fiftieth of a cached get.
const GET_SAMPLE: u64 = 16;

/// What a writer waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StallCause {
    /// Slowed because memtables fill faster than they are written.
    Memtables,
    /// Stopped because every memtable was full.
    MemtablesFull,
    /// Slowed because compactions are behind.
    CompactionDebt,
    /// Value files have grown past their target faster than garbage is collected.
    Space,
}

impl StallCause {
    fn name(self) -> &'static str {
        match self {
            Self::Memtables => "slowed: memtables fill faster than they are written",
            Self::MemtablesFull => "stopped: every memtable was full",
            Self::CompactionDebt => "slowed: compactions are behind",
            Self::Space => "slowed: garbage grows faster than it is collected",
        }
    }
}

/// Running counts of an open database.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    commits: AtomicU64,
    operations: AtomicU64,
    user_bytes_written: AtomicU64,
    user_bytes_read: AtomicU64,
    gets: AtomicU64,
    get_hits: AtomicU64,
    scanned_entries: AtomicU64,
    stalls: Mutex<BTreeMap<StallCause, (u64, Duration, Duration)>>,
    /// Commits, the wait for their sync included.
    pub put_latency: Histogram,
    get_latency: Histogram,
    /// What lookups in tables met.
    pub lookups: LookupCounters,
    /// What collections of values did.
    pub gc: GcCounters,
}

/// Counts of collections.
#[derive(Debug, Default)]
pub(crate) struct GcCounters {
    /// Collections.
    pub jobs: AtomicU64,
    /// Questions asked of the index.
    pub lookups: AtomicU64,
    /// Moves committed, and the bytes of their records.
    inserts: AtomicU64,
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
                    Act::Put(payload) | Act::Pointer(payload) => payload.len(),
                    Act::Delete => 0,
                    Act::DeleteRange(end) => end.map_or(0, <[u8]>::len),
                }
        };
        self.commits.fetch_add(1, Relaxed);
        self.operations.fetch_add(ops.len() as u64, Relaxed);
        self.user_bytes_written.fetch_add(ops.iter().map(bytes).sum::<usize>() as u64, Relaxed);
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
        self.gets.fetch_add(1, Relaxed).is_multiple_of(GET_SAMPLE).then(now)
    }

    /// Counts the end of a get that began at `begin`, if that was timed.
    pub fn got(&self, value_bytes: Option<usize>, now: impl FnOnce() -> Duration, begin: Option<Duration>) {
        if let Some(bytes) = value_bytes {
            self.get_hits.fetch_add(1, Relaxed);
            self.user_bytes_read.fetch_add(bytes as u64, Relaxed);
        }
        if let Some(begin) = begin {
            self.get_latency.record(now().saturating_sub(begin));
        }
    }

    /// Counts a pair that an iterator yielded.
    pub fn scanned(&self, bytes: usize) {
        self.scanned_entries.fetch_add(1, Relaxed);
        self.user_bytes_read.fetch_add(bytes as u64, Relaxed);
    }

    /// Bytes of keys and values committed so far.
    pub fn user_bytes_written(&self) -> u64 {
        self.user_bytes_written.load(Relaxed)
    }
}

/// Figures of an open database; see each field.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// The last commit.
    pub seqno: SeqNo,
    /// Commits since the database was opened.
    pub commits: u64,
    /// Operations in them.
    pub operations: u64,
    /// Bytes of keys and values in them.
    pub user_bytes_written: u64,
    /// Bytes of values that gets returned and of pairs that iterators yielded.
    pub user_bytes_read: u64,
    /// Point reads.
    pub gets: u64,
    /// Point reads that found a value.
    pub get_hits: u64,
    /// Pairs yielded by iterators.
    pub scanned_entries: u64,
    /// Bytes by the part of the engine that moved them.
    pub io: Vec<SourceStats>,
    /// Sync calls on files.
    pub syncs: u64,
    /// Bytes written over user bytes written.
    pub write_amp: f64,
    /// Bytes read for gets and scans over user bytes they returned.
    pub read_amp: f64,
    /// Bytes of tables, value files, logs and manifest over estimated live bytes.
    pub space_amp: f64,
    /// Where memory is.
    pub memory: MemoryStats,
    /// How many files are open.
    pub files: FileStats,
    /// Where space is.
    pub space: SpaceStats,
    /// What lookups in tables met.
    pub lookups: LookupStats,
    /// Each keyspace.
    pub keyspaces: Vec<KeyspaceStats>,
    /// Waits imposed on writers, by cause.
    pub stalls: Vec<StallStats>,
    /// How long operations took.
    pub latency_us: LatencyStats,
    /// What is open and keeps old versions alive.
    pub snapshots: Vec<SnapshotStats>,
    /// GcPick of parted values.
    pub gc: GcStats,
    /// Who waits now, the longest first.
    pub waits: Vec<WaitStats>,
    /// Waits that would never have ended, each a fault of this program: the watchdog has ended them after 30 seconds.
    pub overdue_waits: u64,
    /// The first of these, in words.
    pub overdue_described: Vec<String>,
    /// The failure after which no more writes are taken, if any.
    pub poisoned: Option<String>,
    /// What compactions and collections could not read since the database was opened, and leave out from then on: writes and all
    /// other work go on. See [`Db::left_out`](crate::Db::left_out).
    pub left_out: Vec<String>,
}

/// A thread that waits for others.
#[derive(Clone, Debug, Serialize)]
pub struct WaitStats {
    /// Who waits.
    pub who: &'static str,
    /// For what.
    pub on: &'static str,
    /// Milliseconds so far.
    pub age_ms: u64,
}

/// Bytes moved for one part of the engine.
#[derive(Clone, Debug, Serialize)]
pub struct SourceStats {
    /// RewriteScope part.
    pub source: &'static str,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Read calls.
    pub reads: u64,
}

/// Memory in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryStats {
    /// The cap over all the others.
    pub limit: u64,
    /// In memtables.
    pub memtables: u64,
    /// In the block cache.
    pub cache: u64,
    /// In indexes and filters outside the cache.
    pub metadata: u64,
    /// In filters of groups of values kept apart, for open value files, and in buffers through which values are moved.
    pub values: u64,
    /// Set aside for buffers of compactions.
    pub compaction: u64,
    /// Reads that the block cache answered.
    pub cache_hits: u64,
    /// Reads that it did not.
    pub cache_misses: u64,
}

/// Open files.
#[derive(Clone, Debug, Serialize)]
pub struct FileStats {
    /// Open now.
    pub open: u64,
    /// Of these, being written.
    pub open_written: u64,
    /// How many may be open (`open_files_max`), those being written included unless they are more.
    pub open_max: u64,
    /// Times that a read had to open a file again since the database was opened.
    pub reopened: u64,
}

/// What lookups in tables met.
#[derive(Clone, Debug, Serialize)]
pub struct LookupStats {
    /// Tables whose filter was asked.
    pub filters_asked: u64,
    /// Filters that said "not here".
    pub filters_denied: u64,
    /// Tables searched without result although the filter had said "perhaps".
    pub false_positives: u64,
    /// Tables searched beyond their filter: each costs a block, from the cache or read.
    pub tables_searched: u64,
}

/// One keyspace.
#[derive(Clone, Debug, Serialize)]
pub struct KeyspaceStats {
    /// Its name.
    pub name: String,
    /// Its placement.
    pub placement: &'static str,
    /// Its compaction policy.
    pub compaction: &'static str,
    /// Entries in tables and memtables, older versions and tombstones included.
    pub entries_estimate: u64,
    /// Bytes in memtables.
    pub memtable_bytes: u64,
    /// Memtables waiting to be written.
    pub sealed_memtables: u64,
    /// Its levels.
    pub levels: Vec<LevelStats>,
    /// Key ranges that are compacted each on its own (`partition_bytes`).
    pub partitions: u64,
    /// The hash index over level 0, where there is one and it has something in it (`hash_index`).
    pub hash_index: Option<HashIndexStats>,
    /// Compactions that merged tables.
    pub merges: u64,
    /// Compactions that only moved tables.
    pub moves: u64,
    /// Mean share of the lower level that a compaction touched, relative to the upper level's share (VAT §3: α), each weighted
    /// by the bytes it brought down; a table that is only moved touches none. 0 before the first.
    pub alpha: f64,
    /// How far the tree is from its shape; from 1.0 on a compaction is due.
    pub debt: f64,
    /// How well values are sorted, where compactions sort them (`diffkv`).
    pub values: Option<OrderStats>,
}

/// A hash index over level 0.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HashIndexStats {
    /// Runs it has keys of, those that have left level 0 since it was made included.
    pub runs: u64,
    /// Buckets, each with room for one entry.
    pub buckets: u64,
    /// Buckets with an entry.
    pub buckets_used: u64,
    /// Entries chained to a full bucket.
    pub chained: u64,
    /// Bytes of memory, which are part of `memory.metadata`.
    pub bytes: u64,
}

/// One level of a keyspace.
#[derive(Clone, Debug, Serialize)]
pub struct LevelStats {
    /// Its number; 0 is the newest.
    pub level: u32,
    /// Sorted runs in it.
    pub runs: u64,
    /// Tables in it.
    pub tables: u64,
    /// Bytes in it.
    pub bytes: u64,
    /// Entries in it.
    pub entries: u64,
    /// Tombstones among them.
    pub tombstones: u64,
}

/// Waits of writers for one cause.
#[derive(Clone, Debug, Serialize)]
pub struct StallStats {
    /// Why.
    pub cause: &'static str,
    /// How often.
    pub count: u64,
    /// Microseconds in all.
    pub total_us: u64,
    /// Microseconds of the longest.
    pub max_us: u64,
}

/// How long operations took, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyStats {
    /// Commits.
    pub put: Quantiles,
    /// Point reads, of which one in 16 is timed.
    pub get: Quantiles,
}

/// Something open that keeps old versions alive.
#[derive(Clone, Debug, Serialize)]
pub struct SnapshotStats {
    /// The last commit it sees.
    pub seqno: SeqNo,
    /// Milliseconds it has been open.
    pub age_ms: u64,
    /// `snapshot` or `iterator`.
    pub kind: &'static str,
}

/// GcPick of parted values.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct GcStats {
    /// Questions that collections asked of the index, and looks at how much there is to collect.
    pub index_lookups: u64,
    /// Addresses that collections wrote to the index.
    pub index_inserts: u64,
    /// Bytes of values that moved.
    pub bytes: u64,
    /// Collections.
    pub jobs: u64,
    /// Reads of values that have moved since the index learnt where they are (`novkv`): where an earlier read knew the place.
    pub repaired_reads: u64,
    /// And where the value had to be searched for.
    pub searched_reads: u64,
}

/// A group or file of values kept apart: what garbage collection knows of it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct GarbageStats {
    /// The keyspace.
    pub keyspace: String,
    /// RewriteScope group or file.
    pub unit: String,
    /// Its files.
    pub files: Vec<String>,
    /// Bytes in it.
    pub total_bytes: u64,
    /// Bytes of it that are live, as far as known or estimated.
    pub live_bytes: u64,
    /// Bytes written to the keyspace since it was collected, or since the database was opened.
    pub age_bytes: u64,
    /// How much the policy wants it; the largest first.
    pub score: f64,
    /// Why it is not collected now; nothing when it is next.
    pub held: Option<&'static str>,
}

impl GarbageStats {
    /// All units of a database.
    pub(crate) fn of(engine: &Engine) -> Vec<Self> {
        let trees = engine.trees();
        let units = trees.iter().flat_map(|p| {
            let explained = p.placement().explain(&engine.pressure(p));
            explained.into_iter().map(move |unit| Self {
                keyspace: p.name.clone(),
                unit: unit.unit,
                files: unit.files.into_iter().map(names::value).collect(),
                total_bytes: unit.total_bytes,
                live_bytes: unit.live_bytes,
                age_bytes: unit.age_bytes,
                score: unit.score,
                held: unit.held,
            })
        });
        units.collect()
    }
}

impl GcStats {
    fn of(engine: &Engine) -> Self {
        let gc = &engine.counters.gc;
        let stale: Vec<StaleReads> = engine.trees().iter().map(|p| p.placement().stale_reads()).collect();
        Self {
            index_lookups: gc.lookups.load(Relaxed),
            index_inserts: gc.inserts.load(Relaxed),
            bytes: gc.moved_bytes.load(Relaxed),
            jobs: gc.jobs.load(Relaxed),
            repaired_reads: stale.iter().map(|reads| reads.repaired).sum(),
            searched_reads: stale.iter().map(|reads| reads.searched).sum(),
        }
    }
}

impl Stats {
    pub(crate) fn of(engine: &Engine) -> Self {
        let counters = &engine.counters;
        let totals = engine.dir.totals();
        let written: u64 = totals.written_bytes.iter().sum();
        let read = totals.read_bytes[IoSource::Get as usize] + totals.read_bytes[IoSource::Scan as usize];
        let (user_written, user_read) = (counters.user_bytes_written(), counters.user_bytes_read.load(Relaxed));
        let keyspaces: Vec<KeyspaceStats> = engine.trees().iter().map(|p| KeyspaceStats::of(p)).collect();
        let space = SpaceStats::of(engine, &keyspaces);
        let files = space.tables_bytes + space.values_bytes + space.logs_bytes + space.manifest_bytes;
        let memtables: u64 = keyspaces.iter().map(|k| k.memtable_bytes).sum();
        let live = space.live_bytes_estimate
            + space.live_values_estimate
            + engine.trees().iter().map(|p| memtable_data_bytes(p)).sum::<u64>();
        let source = |s: IoSource| SourceStats {
            source: s.name(),
            bytes_read: totals.read_bytes[s as usize],
            bytes_written: totals.written_bytes[s as usize],
            reads: totals.reads[s as usize],
        };
        let overdue = engine.signal.overdue();
        Self {
            seqno: engine.visible(),
            commits: counters.commits.load(Relaxed),
            operations: counters.operations.load(Relaxed),
            user_bytes_written: user_written,
            user_bytes_read: user_read,
            gets: counters.gets.load(Relaxed),
            get_hits: counters.get_hits.load(Relaxed),
            scanned_entries: counters.scanned_entries.load(Relaxed),
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
            latency_us: LatencyStats { put: counters.put_latency.quantiles(), get: counters.get_latency.quantiles() },
            snapshots: SnapshotStats::of(engine),
            gc: GcStats::of(engine),
            waits: WaitStats::of(engine),
            overdue_waits: overdue.count,
            overdue_described: overdue.described,
            poisoned: engine.health.failure().map(ToString::to_string),
            left_out: engine.trees().iter().flat_map(|p| p.left_out()).map(|why| why.to_string()).collect(),
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
            values: engine.trees().iter().map(|p| p.placement().memory_bytes()).sum(),
            compaction: engine.plan.compaction,
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

impl KeyspaceStats {
    fn of(tree: &Tree) -> Self {
        let view = tree.view();
        let shape = tree.shape(&view);
        let levels: Vec<LevelStats> = (0u32..)
            .zip(&shape.levels.levels)
            .map(|(level, l)| {
                let tables = || l.runs.iter().flat_map(|r| &r.tables);
                LevelStats {
                    level,
                    runs: l.runs.len() as u64,
                    tables: tables().count() as u64,
                    bytes: l.bytes(),
                    entries: tables().map(|t| t.entries).sum(),
                    tombstones: tables().map(|t| t.tombstones + t.range_tombstones).sum(),
                }
            })
            .collect();
        let history = *tree.history.hold();
        let in_memtables: u64 = view.layers().map(|l| l.memtable.entries()).sum();
        Self {
            name: tree.name.clone(),
            placement: tree.placement().profile().name,
            compaction: tree.policy.name(),
            entries_estimate: in_memtables + levels.iter().map(|l| l.entries).sum::<u64>(),
            memtable_bytes: view.layers().map(|l| l.memtable.bytes() as u64).sum(),
            sealed_memtables: view.sealed.len() as u64,
            levels,
            partitions: shape.partitions.len() as u64,
            hash_index: view.version.hash_index().map(|index| HashIndexStats {
                runs: index.runs,
                buckets: index.buckets,
                buckets_used: index.buckets_used,
                chained: index.chained,
                bytes: index.bytes,
            }),
            merges: history.merges,
            moves: history.moves,
            alpha: history.alpha_sum / history.alpha_bytes.max(1) as f64,
            debt: shape.debt(),
            values: OrderStats::of(tree),
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

impl WaitStats {
    fn of(engine: &Engine) -> Vec<Self> {
        let now = engine.env.clock.now();
        let age_ms = |since| u64::try_from(now.saturating_sub(since).as_millis()).unwrap_or(u64::MAX);
        let waits = engine.signal.waits().into_iter();
        waits.map(|wait| Self { who: wait.who, on: wait.on, age_ms: age_ms(wait.since) }).collect()
    }
}

impl SnapshotStats {
    /// All that are open, in the order in which they were opened.
    fn of(engine: &Engine) -> Vec<Self> {
        let now = engine.env.clock.now();
        let describe = |open: crate::snapshot::Described| Self {
            seqno: open.seqno,
            age_ms: u64::try_from(now.saturating_sub(open.since).as_millis()).unwrap_or(u64::MAX),
            kind: match open.holder {
                Holder::Snapshot => "snapshot",
                Holder::Iterator => "iterator",
            },
        };
        engine.snapshots.describe().into_iter().map(describe).collect()
    }
}
