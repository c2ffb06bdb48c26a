//! Steps 7 and 8: deletes unreferenced files, and puts the commits of the logs into memtables.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bifold_contract::{Error, FileId, KeyspaceId, Result, SeqNo, planted};
use bifold_format::{
    large,
    log::{LogRecord, Operation},
    names,
};
use bifold_values::{
    logs::{FoundLog, each_record},
    placement::{Replayed, WriteOp},
};

use super::logs::Logs;
use crate::{
    background::flush::Flusher,
    install::State,
    limits::room::{Job, Means},
    settings::options::Access,
    state::{
        files::Files,
        op::{Act, Op, apply},
        tree::Tree,
    },
    waiting::sync::LockExt,
};

/// Replays logs into memtables, and writes these as tables where the memory limit or the end asks for it.
pub(crate) struct Replay<'a> {
    pub state: &'a State,
    pub flusher: &'a Flusher,
    /// A memtable is full with so many bytes.
    pub memtable_bytes: u64,
}

impl Replay<'_> {
    /// Replays the commits of the logs and writes them as tables.
    pub(crate) fn replay(&self, found: &Logs) -> Result<()> {
        for log in &found.logs {
            if self.state.access == Access::Follow {
                self.seal_before(log.id);
            }
            each_record(&self.state.dir, log, |record| self.replay_record(record, log))?;
        }
        if self.state.access.writes() { self.flush_replayed(&found.logs) } else { Ok(()) }
    }

    /// Each memtable of a follower has the commits of one log. The writer begins a log whenever it seals
    /// a memtable, so what it flushes are whole memtables here, too, and their memory is freed then.
    fn seal_before(&self, log: FileId) {
        let is_of_earlier = |tree: &&Arc<Tree>| tree.view().active.first_log().is_some_and(|first| first < log);
        for tree in self.state.trees.all().iter().filter(is_of_earlier) {
            tree.seal(&self.state.changing([tree.keyspace]));
        }
    }

    fn replay_record(&self, record: &LogRecord<'_>, log: &FoundLog) -> Result<()> {
        let writes = self.state.access.writes();
        let mut fed: BTreeMap<KeyspaceId, Arc<Tree>> = BTreeMap::new();
        for (seqno, operation) in (record.first_seqno..).zip(record.operations()) {
            let operation = operation.map_err(|e| e.of(self.state.dir.file(&names::log(log.id))))?;
            if let Some(tree) = self.state.trees.get(operation.keyspace()).filter(|tree| seqno > tree.flushed()) {
                replay_operation(&tree, &operation, seqno, log.id, writes)?;
                fed.insert(tree.keyspace, tree);
            }
            if planted!("half_batch") && !log.bytes.is_multiple_of(2) {
                break;
            }
        }
        if writes { self.flush_overfull(fed.values()) } else { Ok(()) }
    }

    /// Keeps replay within the memory limit: a full memtable becomes tables at once.
    fn flush_overfull<'a>(&self, fed: impl Iterator<Item = &'a Arc<Tree>>) -> Result<()> {
        let overfull = |p: &&Arc<Tree>| p.view().active.memtable.bytes() as u64 > self.memtable_bytes;
        fed.filter(overfull).try_for_each(|tree| {
            tree.seal(&self.state.changing([tree.keyspace]));
            self.flush_sealed(tree)
        })
    }

    /// Writes everything replayed as tables; from then on the old logs are not needed.
    fn flush_replayed(&self, logs: &[FoundLog]) -> Result<()> {
        *self.state.replaying.hold() = None;
        for tree in self.state.trees.all().iter() {
            if !tree.view().active.memtable.is_empty() {
                tree.seal(&self.state.changing([tree.keyspace]));
            }
            self.flush_sealed(tree)?;
        }
        if logs.is_empty() { Ok(()) } else { self.state.delete_logs() }
    }

    /// Writes the sealed memtables of a tree. If the disk has no room, they stay, with their logs: the database opens
    /// all the same, beyond its memory limit if necessary.
    fn flush_sealed(&self, tree: &Arc<Tree>) -> Result<()> {
        while !tree.view().sealed.is_empty() {
            match self.state.room.noting(tree, Job::Flush, || self.flusher.flush_oldest(tree, Means::Reserve)) {
                Err(Error::Full { .. }) => break,
                other => other?,
            }
        }
        Ok(())
    }

    /// Deletes unreferenced files, the remains of jobs that a crash interrupted.
    pub(crate) fn remove_unreferenced(&self, files: &Files, found: &Logs) -> Result<()> {
        let trees = self.state.trees.all();
        let live: BTreeSet<FileId> =
            trees.iter().flat_map(|p| p.view().version.tables().map(|t| t.meta().id).collect::<Vec<_>>()).collect();
        for id in files.tables.iter().filter(|id| !live.contains(id)) {
            self.state.dir.remove(&names::table(*id))?;
        }
        let live: BTreeSet<FileId> = trees.iter().flat_map(|p| p.placement().live_files()).collect();
        for id in files.values.iter().filter(|id| !live.contains(id)) {
            self.state.dir.remove(&names::value(*id))?;
        }
        let mut named: BTreeSet<FileId> =
            found.large.keys().copied().chain(trees.iter().flat_map(large_files)).collect();
        named.extend(self.state.kept_large.all());
        for id in files.large.iter().filter(|id| !named.contains(id) && !planted!("large_orphans_stay")) {
            self.state.dir.remove(&names::large(*id))?;
        }
        let wal = self.state.wal.hold();
        let kept: BTreeSet<FileId> = wal.files().into_iter().chain(wal.kept().files()).map(|f| f.id).collect();
        drop(wal);
        for id in files.logs.iter().filter(|id| !kept.contains(id)) {
            self.state.dir.remove(&names::log(*id))?;
        }
        self.state.delete_ingests()
    }
}

/// The files of large values that a tree knows.
fn large_files(tree: &Arc<Tree>) -> Vec<FileId> {
    tree.placement().large().all().iter().map(|file| file.id()).collect()
}

fn replay_operation(tree: &Arc<Tree>, operation: &Operation<'_>, seqno: SeqNo, log: u64, writes: bool) -> Result<()> {
    let (key, act, replayed) = match *operation {
        // No placement knows of operands.
        Operation::Merge { key, operand, .. } => {
            let is_taken_for_value = planted!("replay_takes_operands_for_values");
            let act = if is_taken_for_value { Act::Put(operand) } else { Act::Merge(operand) };
            apply(&Op { tree, key, act }, seqno, log);
            return Ok(());
        }
        Operation::Put { key, value, .. } => (key, Act::Put(value), Replayed::Whole(WriteOp::Put { key, value })),
        Operation::Pointer { key, pointer, .. } => (key, Act::Pointer(pointer), Replayed::Pointer { key }),
        Operation::PutUntil { key, value, .. } if planted!("replay_forgets_expiry") => {
            (key, Act::Put(value), Replayed::Whole(WriteOp::Put { key, value }))
        }
        Operation::PutUntil { key, instant, value, .. } => {
            (key, Act::PutUntil(value, instant), Replayed::Whole(WriteOp::Put { key, value }))
        }
        Operation::PointerUntil { key, payload, .. } => (key, Act::PointerUntil(payload), Replayed::Pointer { key }),
        Operation::Large { key, named, .. } => {
            let said = large::decode(named).map_err(|damage| damage.of(format!("keyspace {}", tree.name)))?;
            tree.placement().large().refer(said, key.len());
            (key, Act::Large(named, said.len), Replayed::Whole(WriteOp::Delete { key }))
        }
        Operation::Delete { key, .. } => (key, Act::Delete, Replayed::Whole(WriteOp::Delete { key })),
        Operation::DeleteRange { start, end, .. } => {
            (start, Act::DeleteRange(end), Replayed::Whole(WriteOp::DeleteRange { start, end }))
        }
    };
    if writes {
        tree.placement().replay(replayed, seqno)?;
    }
    apply(&Op { tree, key, act }, seqno, log);
    Ok(())
}
