//! What the bytes of the directory are: which are needed, which can be reclaimed, and what holds up the others.
//!
//! ```text
//! dir_bytes ─┬─ tables_bytes ─┬─ live_bytes_estimate
//!            │                └─ dead_bytes_estimate       until compactions drop it
//!            ├─ values_bytes ─┬─ live_values_estimate
//!            │                ├─ dead_values_estimate      until GC moves the live values in the same file
//!            │                └─ drained_bytes ─┬─ pinned_bytes          until `pinned_by` is dropped
//!            │                                  └─ awaiting_sync_bytes   until the next GC run, which syncs
//!            ├─ large_bytes                                      until compactions drop their entries
//!            ├─ kept_large_bytes                                 until the change feed has no need of them
//!            ├─ logs_bytes, manifest_bytes, appends_bytes, reserve_bytes
//!            └─ other_bytes
//! ```

use bifold_format::names::{self, FileKind};
use bifold_io::fs::APPENDS_NAME;
use bifold_values::placement::ValueSpace;
use serde::Serialize;

use super::{KeyspaceStats, SnapshotStats};
use crate::{engine::Engine, state::overwrites::Overwrites};

/// Space in bytes.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SpaceStats {
    /// Everything in the directory: the sum of tables, values, large values, those kept for the change feed alone,
    /// logs, manifest, appends, reserve and others.
    pub dir_bytes: u64,
    /// Tables in use.
    pub tables_bytes: u64,
    /// Files of separated values.
    pub value_files: u64,
    /// Bytes in them: live, dead and drained.
    pub values_bytes: u64,
    /// Of `values_bytes`, live values: known, or estimated from a sample.
    pub live_values_estimate: u64,
    /// Of `values_bytes`, the rest of the files in use.
    pub dead_values_estimate: u64,
    /// Of `live_values_estimate`, all bytes of files that compaction and GC leave out because something in them
    /// cannot be read, and of files that cannot be garbage-collected without them. No job can free them.
    pub left_out_bytes: u64,
    /// Of `values_bytes`, files without live values: pinned or awaiting a sync.
    pub drained_bytes: u64,
    /// Of `drained_bytes`, what an open snapshot or iterator may still read.
    pub pinned_bytes: u64,
    /// The oldest open snapshot or iterator, if anything is pinned. Pinned bytes are reclaimed only after it is
    /// dropped.
    pub pinned_by: Option<SnapshotStats>,
    /// Of `drained_bytes`, what nothing reads any more. It is reclaimed once the moves out of it are synced, which the
    /// next GC run does.
    pub awaiting_sync_bytes: u64,
    /// Files of large values, one for each.
    pub large_files: u64,
    /// Bytes in them.
    pub large_bytes: u64,
    /// Files of large values that no entry names any more, but a log that is kept for the [change
    /// feed](crate::Db::changes).
    pub kept_large_files: u64,
    /// Bytes in them.
    pub kept_large_bytes: u64,
    /// Logs.
    pub logs_bytes: u64,
    /// The manifest.
    pub manifest_bytes: u64,
    /// The append region. Bytes that stay in it until the next sync also count for their log or value file.
    pub appends_bytes: u64,
    /// The file `RESERVE`: space for a full disk.
    pub reserve_bytes: u64,
    /// The rest of the directory: files that an iterator still reads, files being removed, files of dropped keyspaces
    /// that still have handles, files being written, files that do not belong to the database.
    pub other_bytes: u64,
    /// Estimate of live bytes in tables: the last level or everything above it, whichever is larger.
    pub live_bytes_estimate: u64,
    /// The rest of the tables.
    pub dead_bytes_estimate: u64,
    /// What a full compaction and GC would free now. While a snapshot or iterator is open, dead bytes that are not
    /// drained do not count: it might still see them.
    pub reclaimable_bytes_estimate: u64,
    /// Files that could not be deleted when they were no longer needed; the next opening deletes them.
    pub failed_removals: u64,
    /// Calls that listed the directory or a file's length and failed, and reads of what a sampled write has overwritten
    /// that failed: some of these figures may be off.
    pub unanswered: u64,
}

impl SpaceStats {
    pub(super) fn of(engine: &Engine, keyspaces: &[KeyspaceStats]) -> Self {
        let tables_bytes: u64 = keyspaces.iter().flat_map(|k| &k.levels).map(|l| l.bytes).sum();
        let dead: u64 = keyspaces.iter().map(dead_in_tables).sum();
        let snapshots = SnapshotStats::of(engine);
        let values = ValueBytes::of(engine, &snapshots);
        let files = FileBytes::of(engine);
        let (large_files, large_bytes) =
            keyspaces.iter().fold((0, 0), |(files, bytes), k| (files + k.large_files, bytes + k.large_bytes));
        let (kept_large_files, kept_large_bytes) = engine.state.kept_large.left();
        let in_values = values.all.total_bytes + large_bytes + kept_large_bytes;
        let known = tables_bytes + in_values + files.logs + files.manifest + files.appends + files.reserve;
        let other_bytes = files.all.saturating_sub(known);
        let dead_values = values.dead();
        let awaiting_sync_bytes = values.all.drained_bytes - values.pinned;
        let unseen = if snapshots.is_empty() { dead + dead_values } else { 0 };
        Self {
            dir_bytes: known + other_bytes,
            tables_bytes,
            value_files: values.all.files,
            values_bytes: values.all.total_bytes,
            live_values_estimate: values.all.live_bytes,
            dead_values_estimate: dead_values,
            left_out_bytes: values.all.left_out_bytes,
            drained_bytes: values.all.drained_bytes,
            pinned_bytes: values.pinned,
            pinned_by: snapshots.into_iter().min_by_key(|open| open.seqno).filter(|_| values.pinned > 0),
            awaiting_sync_bytes,
            large_files,
            large_bytes,
            kept_large_files,
            kept_large_bytes,
            logs_bytes: files.logs,
            manifest_bytes: files.manifest,
            appends_bytes: files.appends,
            reserve_bytes: files.reserve,
            other_bytes,
            live_bytes_estimate: tables_bytes - dead,
            dead_bytes_estimate: dead,
            reclaimable_bytes_estimate: awaiting_sync_bytes + unseen,
            failed_removals: engine.dir.totals().failed_removals,
            unanswered: files.unanswered + unread_samples(engine),
        }
    }
}

/// Samples of what writes overwrite that could not be read.
fn unread_samples(engine: &Engine) -> u64 {
    engine.trees.all().iter().filter_map(|tree| tree.overwrites.as_ref()).map(Overwrites::unread).sum()
}

/// What value files hold, and how much of it snapshots pin.
struct ValueBytes {
    all: ValueSpace,
    pinned: u64,
}

impl ValueBytes {
    fn of(engine: &Engine, snapshots: &[SnapshotStats]) -> Self {
        let trees = engine.trees.all();
        let oldest = snapshots.iter().map(|open| open.seqno).min();
        let pinned = |seqno| trees.iter().map(|p| p.placement().drained_after(seqno)).sum();
        let pinned: u64 = oldest.map_or(0, pinned);
        let all = trees.iter().map(|p| p.placement().space()).fold(ValueSpace::default(), ValueSpace::plus);
        // A file may have been deleted between the two calls.
        Self { pinned: pinned.min(all.drained_bytes), all }
    }

    fn dead(&self) -> u64 {
        self.all.total_bytes.saturating_sub(self.all.drained_bytes + self.all.live_bytes)
    }
}

/// Assumes that the levels above the last one hold only new versions of its keys: as many bytes of the last level are
/// dead.
fn dead_in_tables(keyspace: &KeyspaceStats) -> u64 {
    let last = keyspace.levels.iter().rposition(|l| l.bytes > 0).unwrap_or(0);
    let above: u64 = keyspace.levels.iter().take(last).map(|l| l.bytes).sum();
    above.min(keyspace.levels.get(last).map_or(0, |l| l.bytes))
}

/// File sizes from the directory: a read-only database has no other account of its logs.
#[derive(Default)]
struct FileBytes {
    all: u64,
    logs: u64,
    manifest: u64,
    appends: u64,
    reserve: u64,
    unanswered: u64,
}

impl FileBytes {
    fn of(engine: &Engine) -> Self {
        let mut files = Self::default();
        let names = engine.dir.list().inspect_err(|_| files.unanswered += 1).unwrap_or_default();
        for name in names {
            // Statistics do not fail: they count the calls that did. A file may also have been deleted meanwhile.
            let bytes = engine.dir.len(&name).inspect_err(|_| files.unanswered += 1).ok().flatten().unwrap_or(0);
            files.all += bytes;
            match names::parse(&name) {
                FileKind::Log(_) | FileKind::Ingest(_) => files.logs += bytes,
                FileKind::Manifest => files.manifest += bytes,
                FileKind::Reserve => files.reserve += bytes,
                _ if name == APPENDS_NAME => files.appends += bytes,
                _ => {}
            }
        }
        files
    }
}
