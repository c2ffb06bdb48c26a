//! Commits the moves of GC: see [`gc`](crate::background::gc).

use std::sync::{Arc, MutexGuard, atomic::Ordering::Relaxed};

use bifold_contract::{Result, SeqNo};
use bifold_format::pointer;
use bifold_values::placement::{Commits, Moved};

use crate::{
    api::options::Durability,
    background::left_out::note_unreadable,
    commit::{
        op::{Act, Op},
        slow::Laps,
        wal::Wal,
        write::Committer,
    },
    read::get::Reader,
    state::tree::Tree,
};

/// Commits new addresses of values that have moved.
pub(crate) struct MoveCommits {
    pub reader: Arc<Reader>,
    pub committer: Arc<Committer>,
}

impl MoveCommits {
    /// Returns once the commit under way has been applied. Its values are in files already, perhaps in files that
    /// were picked because they are full, and the index is asked which addresses lead there.
    pub fn wait_for_commit(&self) {
        drop(self.committer.wal.hold());
    }

    /// Calls `act` with the commit lock held. Returns the newest sequence number after it; `None`, without a call, when
    /// the keyspace was dropped.
    pub fn hold_commits(
        &self,
        tree: &Arc<Tree>,
        act: &mut dyn FnMut(&mut Held<'_>) -> Result<()>,
    ) -> Result<Option<SeqNo>> {
        let committer = &*self.committer;
        committer.throttle.pace_moves(tree)?;
        let mut held = Held { moves: self, tree, wal: committer.wal.hold() };
        committer.health.takes_writes()?;
        if tree.is_dropped() {
            return Ok(None);
        }
        act(&mut held)?;
        let last = committer.state.visible();
        let has_many_logs = held.wal.has_many_closed();
        drop(held);
        committer.wal.let_others();
        if has_many_logs {
            committer.syncs.sync_upto(last)?;
        }
        Ok(Some(last))
    }

    fn write_back(&self, wal: &mut Wal, tree: &Arc<Tree>, moves: &[Moved]) -> Result<()> {
        if moves.is_empty() {
            return Ok(());
        }
        let mut pointers = Vec::new();
        let mut ends = Vec::with_capacity(moves.len());
        for moved in moves {
            let start = pointers.len();
            pointer::encode(moved.to, &mut pointers);
            ends.push((start, pointers.len()));
        }
        let ops: Vec<Op<'_>> = moves
            .iter()
            .zip(ends)
            .map(|(moved, (start, end))| Op { tree, key: &moved.key, act: Act::Pointer(&pointers[start..end]) })
            .collect();
        let (bytes, committer) = (ops.iter().map(Op::memtable_bytes).sum(), &*self.committer);
        committer.health.watch(committer.make_room(wal, &ops, bytes))?;
        let mut laps = Laps::begin(&*committer.clock, committer.clock.now());
        committer.health.watch(committer.log_and_apply(wal, &ops, Durability::Buffered, &mut laps))?;
        committer.counters.gc.moved(moves);
        Ok(())
    }
}

/// The commit lock, held for a GC job.
pub(crate) struct Held<'a> {
    moves: &'a MoveCommits,
    tree: &'a Arc<Tree>,
    wal: MutexGuard<'a, Wal>,
}

impl Commits for Held<'_> {
    fn commit(&mut self, moves: &[Moved]) -> Result<SeqNo> {
        self.moves.write_back(&mut self.wal, self.tree, moves)?;
        Ok(self.moves.committer.state.visible())
    }
}

impl Held<'_> {
    /// Commits the moves whose old address is still the newest of its key.
    pub fn commit_current(&mut self, moves: &[Moved], refused: &mut dyn FnMut(&Moved)) -> Result<()> {
        let tree = self.tree;
        let (reader, counters) = (&self.moves.reader, &self.moves.committer.counters);
        let is_current = |moved: &Moved| Ok(reader.current_pointer(tree, &moved.key)? == Some(moved.from));
        let are_current = note_unreadable(tree, moves.iter().map(is_current).collect::<Result<Vec<bool>>>())?;
        counters.gc.lookups.fetch_add(moves.len() as u64, Relaxed);
        let (mut current, mut overwritten) = (Vec::with_capacity(moves.len()), Vec::new());
        for (moved, is_current) in moves.iter().zip(are_current) {
            if is_current { current.push(moved.clone()) } else { overwritten.push(moved) }
        }
        self.commit(&current)?;
        overwritten.into_iter().for_each(refused);
        Ok(())
    }
}
