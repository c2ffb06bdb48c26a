//! Where the bytes of the directory are: which are needed, which could go, and what keeps the others.
//!
//! ```text
//! dir_bytes ─┬─ tables_bytes ─┬─ live_bytes_estimate
//!            │                └─ dead_bytes_estimate       until compactions drop it
//!            ├─ values_bytes ─┬─ live_values_estimate
//!            │                ├─ dead_values_estimate      until a collection moves what is live beside it
//!            │                └─ drained_bytes ─┬─ pinned_bytes          until `pinned_by` is dropped
//!            │                                  └─ awaiting_sync_bytes   until the next collection, which syncs
//!            ├─ logs_bytes, manifest_bytes, appends_bytes, reserve_bytes
//!            └─ other_bytes
//! ```

use bifold_format::names::{self, FileKind};
use bifold_io::fs::APPENDS_NAME;
use bifold_values::placement::ValueSpace;
use serde::Serialize;

use super::{KeyspaceStats, SnapshotStats};
use crate::engine::Engine;

/// Space in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct SpaceStats {
    /// Everything in the directory: the sum of tables, values, logs, manifest, appends, reserve and others.
    pub dir_bytes: u64,
    /// Tables in force.
    pub tables_bytes: u64,
    /// Files of values kept apart.
    pub value_files: u64,
    /// Bytes in them: live, dead and emptied.
    pub values_bytes: u64,
    /// Of these, bytes of values that are needed, as far as known or, by a sample, estimated.
    pub live_values_estimate: u64,
    /// Of these, the rest of the files in use.
    pub dead_values_estimate: u64,
    /// Of the live, all bytes of files that are left out since something in them cannot be read, and of what cannot be collected
    /// without them: nothing can free them.
    pub left_out_bytes: u64,
    /// Of these, bytes of files out of use: pinned or awaiting a sync.
    pub drained_bytes: u64,
    /// Of the emptied, what a snapshot or iterator that is open may still read.
    pub pinned_bytes: u64,
    /// The oldest of those, if anything is pinned: only when it has been dropped do pinned bytes go.
    pub pinned_by: Option<SnapshotStats>,
    /// Of the emptied, what nobody reads any more: it goes as soon as the moves out of it are synced, which the next
    /// collection does.
    pub awaiting_sync_bytes: u64,
    /// Logs.
    pub logs_bytes: u64,
    /// The manifest.
    pub manifest_bytes: u64,
    /// The append region. What stands in it until the next sync counts for its log or value file, too.
    pub appends_bytes: u64,
    /// The file `RESERVE`: space for a full disk.
    pub reserve_bytes: u64,
    /// The rest of the directory: tables that an iterator still reads, files of dropped keyspaces to which there are
    /// handles, files that are being written, files that are not the database's.
    pub other_bytes: u64,
    /// Estimate of live bytes in tables: the last sorted level, and what above it cannot be older versions of it.
    pub live_bytes_estimate: u64,
    /// The rest of the tables.
    pub dead_bytes_estimate: u64,
    /// What collecting and compacting everything would free now. While a snapshot or iterator is open, what is dead but
    /// not emptied does not count: it might be what that one sees.
    pub reclaimable_bytes_estimate: u64,
    /// Files that could not be removed when they were not needed any more; the next opening removes them.
    pub failed_removals: u64,
    /// Questions about the directory that the system did not answer when these figures were made: some may be too small.
    pub unanswered: u64,
}

impl SpaceStats {
    pub(super) fn of(engine: &Engine, keyspaces: &[KeyspaceStats]) -> Self {
        let tables_bytes: u64 = keyspaces.iter().flat_map(|k| &k.levels).map(|l| l.bytes).sum();
        let dead: u64 = keyspaces.iter().map(dead_in_tables).sum();
        let snapshots = SnapshotStats::of(engine);
        let values = ValueBytes::of(engine, &snapshots);
        let files = FileBytes::of(engine);
        let known = tables_bytes + values.all.total_bytes + files.logs + files.manifest + files.appends + files.reserve;
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
            logs_bytes: files.logs,
            manifest_bytes: files.manifest,
            appends_bytes: files.appends,
            reserve_bytes: files.reserve,
            other_bytes,
            live_bytes_estimate: tables_bytes - dead,
            dead_bytes_estimate: dead,
            reclaimable_bytes_estimate: awaiting_sync_bytes + unseen,
            failed_removals: engine.dir.totals().failed_removals,
            unanswered: files.unanswered,
        }
    }
}

/// What value files hold, and how much of it snapshots pin.
struct ValueBytes {
    all: ValueSpace,
    pinned: u64,
}

impl ValueBytes {
    fn of(engine: &Engine, snapshots: &[SnapshotStats]) -> Self {
        let trees = engine.trees();
        let oldest = snapshots.iter().map(|open| open.seqno).min();
        let pinned = |seqno| trees.iter().map(|p| p.placement().drained_after(seqno)).sum();
        let pinned: u64 = oldest.map_or(0, pinned);
        let all = trees.iter().map(|p| p.placement().space()).fold(ValueSpace::default(), ValueSpace::plus);
        // A file may have gone between the two questions.
        Self { pinned: pinned.min(all.drained_bytes), all }
    }

    fn dead(&self) -> u64 {
        self.all.total_bytes.saturating_sub(self.all.drained_bytes + self.all.live_bytes)
    }
}

/// What lies above the last level is at most new versions of its keys; those it can replace are dead.
fn dead_in_tables(keyspace: &KeyspaceStats) -> u64 {
    let last = keyspace.levels.iter().rposition(|l| l.bytes > 0).unwrap_or(0);
    let above: u64 = keyspace.levels.iter().take(last).map(|l| l.bytes).sum();
    above.min(keyspace.levels.get(last).map_or(0, |l| l.bytes))
}

/// What the directory says of its files: whoever has it open for reading only has no other account of the logs.
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
            // Statistics do not fail: they say that they could not ask. A file may also have gone meanwhile.
            let bytes = engine.dir.len(&name).inspect_err(|_| files.unanswered += 1).ok().flatten().unwrap_or(0);
            files.all += bytes;
            match names::parse(&name) {
                FileKind::Log(_) => files.logs += bytes,
                FileKind::Manifest => files.manifest += bytes,
                FileKind::Reserve => files.reserve += bytes,
                _ if name == APPENDS_NAME => files.appends += bytes,
                _ => {}
            }
        }
        files
    }
}
