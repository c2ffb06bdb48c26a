//! Steps 5 and 6: truncates the logs and begins a new log and a new manifest. A full disk first gives up what it can.

use std::{collections::BTreeSet, sync::Arc};

use bifold_contract::{Error, FileId, Result, SeqNo, planted};
use bifold_format::{frame::FILE_HEADER_BYTES, names};
use bifold_io::Dir;
use bifold_values::{logs::FoundLog, parts::value_files::name_again};

use super::{logs::Logs, state::ManifestState};
use crate::{
    log::{
        kept_large,
        kept_logs::{Head, KeptLogs},
        manifest::ManifestFile,
        trees::state_of,
        wal::{LogFile, Wal},
    },
    state::{files::Files, numbers::Numbers, tree::Tree},
};

/// The logs as they were replayed, for checkpoints and the change feed of a database that is open read-only.
pub(super) fn frozen_logs(dir: &Dir, logs: &[FileId], (next_seqno, found): (SeqNo, &Logs)) -> Result<Wal> {
    let mut wal = Wal::none(dir, next_seqno);
    for &id in logs.iter().filter(|_| !planted!("checkpoint_without_logs")) {
        let replayed = found.logs.iter().find(|log| log.id == id);
        let (bytes, first) = match replayed {
            Some(log) => (log.bytes, log.first),
            None => (dir.len(&names::log(id))?.unwrap_or(0).min(FILE_HEADER_BYTES as u64), found.next),
        };
        wal.adopt([LogFile { id, bytes, first, has_changes: false }]);
    }
    Ok(wal)
}

/// Truncates the logs, begins the next one, and writes a manifest that records everything that stays.
pub(super) fn finish(
    dir: &Dir,
    state: &ManifestState,
    found: &Logs,
    (trees, numbers): (&[Arc<Tree>], &Numbers),
    (next_seqno, kept): (SeqNo, &KeptLogs),
    files: &Files,
) -> Result<(ManifestFile, Wal)> {
    found.logs.iter().try_for_each(|log| truncate_log(dir, log))?;
    // If nothing of a log is known to be durable, its name may not be either, whatever a sync of the directory
    // reports now.
    let unnamed = found.logs.iter().filter(|log| log.durable_bytes == 0 && !planted!("trust_cached_log_names"));
    name_again(dir, &unnamed.map(|log| names::log(log.id)).collect::<Vec<_>>())?;
    let begin = || begin(dir, state, found, (trees, numbers), (next_seqno, kept.clone()));
    begin().or_else(|error| if error.is_full() && release_reserve(dir)? { begin() } else { Err(error) }).or_else(
        |error| {
            let leftovers = (files, kept);
            if error.is_full() && remove_leftovers(dir, (state, found), trees, leftovers)? {
                begin()
            } else {
                Err(error)
            }
        },
    )
}

/// Releases the space of `RESERVE` on a full disk. Returns whether there was any.
pub(super) fn release_reserve(dir: &Dir) -> Result<bool> {
    match dir.len(names::RESERVE)? {
        Some(_) if planted!("keep_reserve") => Ok(false),
        Some(_) => dir.reserve(names::RESERVE, 0).map(|()| true),
        None => Ok(false),
    }
}

/// On a full disk: deletes what the manifest does not need, before there is another manifest. So it first makes this
/// one durable: what a killed process has appended to it may be in the system's cache only. Returns whether there was
/// anything to delete.
fn remove_leftovers(
    dir: &Dir,
    (state, found): (&ManifestState, &Logs),
    trees: &[Arc<Tree>],
    (files, kept): (&Files, &KeptLogs),
) -> Result<bool> {
    if !planted!("leftovers_before_manifest") {
        dir.write_again(names::MANIFEST, 0)?;
        dir.sync()?;
    }
    let live: BTreeSet<FileId> = trees.iter().flat_map(|p| p.placement().live_files()).collect();
    let tables: BTreeSet<FileId> = state.keyspaces.values().flat_map(|k| k.tables.keys().copied()).collect();
    let tables = files.tables.iter().filter(|id| !tables.contains(id)).map(|&id| (id, names::table(id)));
    let values = files.values.iter().filter(|id| !live.contains(id)).map(|&id| (id, names::value(id)));
    let of_entries = state.large.keys().chain(found.large.keys()).copied();
    let of_feed = found.named.values().flatten().map(|&(id, _)| id).chain(kept.large.found());
    let named: BTreeSet<FileId> = of_entries.chain(of_feed).collect();
    let large = files.large.iter().filter(|id| !named.contains(id)).map(|&id| (id, names::large(id)));
    let all = tables.chain(values).chain(large);
    // The last number stays in use: a crash now must not lead to a second file with it.
    let leftovers: Vec<String> = all.filter(|&(id, _)| id < files.last).map(|(_, name)| name).collect();
    leftovers.iter().try_for_each(|name| dir.remove(name))?;
    Ok(!leftovers.is_empty())
}

/// Begins a log and a manifest. If there is no room, it leaves nothing of either.
fn begin(
    dir: &Dir,
    state: &ManifestState,
    found: &Logs,
    (trees, numbers): (&[Arc<Tree>], &Numbers),
    (next_seqno, mut kept): (SeqNo, KeptLogs),
) -> Result<(ManifestFile, Wal)> {
    let mut needed = Vec::new();
    for log in &found.logs {
        let named = found.named.get(&log.id).cloned().unwrap_or_default();
        // Where changes were not kept for a while, large values that this log names may be gone.
        let has_all = kept.limits.is_none() || kept_large::are_there(dir, &named)?;
        let head = if has_all { Head::of(dir, log.id)? } else { Head::Other };
        let has_changes = kept.learn((log.id, log.bytes), &head);
        if has_changes && kept.limits.is_some() {
            kept.large.find(log.id, named);
        }
        needed.push(LogFile { id: log.id, bytes: log.bytes, first: log.first, has_changes });
    }
    kept.large.hold(dir, trees, found.large.values());
    let log = numbers.take();
    let forget = |_: &Error| {
        let _the_next_opening_removes_them =
            dir.remove(names::MANIFEST_TEMPORARY).and_then(|()| dir.remove(&names::log(log)));
    };
    // Numbers of lost commits are not used again. While an older log is needed, too, the new one says so: who replays
    // both expects the next number of the older one.
    let is_alone = found.floor().is_none() || planted!("skip_numbers_silently");
    let first = if is_alone { next_seqno } else { found.next };
    let mut wal = Wal::begin(dir, log, first, kept).inspect_err(forget)?;
    if first < next_seqno {
        wal.skip_to(next_seqno).inspect_err(forget)?;
    }
    if !planted!("unnamed_log_floor") {
        dir.sync()?;
    }
    let floor = found.floor().unwrap_or_else(|| wal.floor_at(log));
    let mut snapshot = state_of(trees, numbers.next(), state.last_seqno, floor);
    snapshot.seen_time = state.seen_time;
    // Forgets only what no manifest names: while the new one has its temporary name.
    let is_unnamed = || dir.len(names::MANIFEST_TEMPORARY).is_ok_and(|len| len.is_some());
    let created = ManifestFile::create(dir, state.database_id, &snapshot);
    let manifest = created.inspect_err(|error| {
        if is_unnamed() {
            forget(error)
        }
    })?;
    wal.adopt(needed);
    Ok((manifest, wal))
}

/// Truncates a log after its last commit that happened, and makes durable what is not known to be.
fn truncate_log(dir: &Dir, log: &FoundLog) -> Result<()> {
    let name = names::log(log.id);
    if log.file_bytes > log.bytes {
        dir.truncate(&name, log.bytes)?;
    }
    if log.durable_bytes < log.bytes && !planted!("trust_cached_log") {
        dir.write_again(&name, log.durable_bytes)?;
    }
    Ok(())
}
