//! Commits the moves of GC: see [`gc`](crate::background::gc).

use std::sync::{
    Arc, MutexGuard,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bifold_contract::{Error, FileId, Pointer, Result, SeqNo, expiry, planted};
use bifold_format::{names, pointer};
use bifold_values::placement::{Commits, Moved};

use crate::{
    commit::write::{COMMIT_BYTES_MAX, Committer},
    counts::slow::Laps,
    log::wal::Wal,
    read::{get::Reader, operands::Chain, stored::Stored},
    settings::options::Durability,
    state::{
        left_out::note_unreadable,
        op::{Act, Op, bytes_on, put_until},
        tree::Tree,
    },
};

/// Commits new addresses of values that have moved.
pub(crate) struct MoveCommits {
    pub reader: Arc<Reader>,
    pub committer: Arc<Committer>,
    /// The largest commit of a new address and the operands above it: what one record of the log can hold. Tests lower
    /// it.
    pub bytes_max: AtomicU64,
}

/// A decision of a compaction filter that is not committed yet.
#[derive(Debug)]
pub(crate) struct Decided {
    pub key: Box<[u8]>,
    /// The version that was decided about.
    pub seqno: SeqNo,
    /// Its new value, unless it is deleted.
    pub value: Option<Vec<u8>>,
}

impl Decided {
    /// The bytes that its commit adds.
    pub fn bytes(&self, tree: &Arc<Tree>) -> u64 {
        let act = self.value.as_deref().map_or(Act::Delete, Act::Put);
        Op { tree, key: &self.key, act }.bytes()
    }
}

impl MoveCommits {
    pub fn new(reader: &Arc<Reader>, committer: &Arc<Committer>) -> Self {
        let bytes_max = AtomicU64::new(COMMIT_BYTES_MAX);
        Self { reader: Arc::clone(reader), committer: Arc::clone(committer), bytes_max }
    }

    /// Returns once the commit or ingest under way has been applied and readers see it. Its values are in files
    /// already, perhaps in files that were picked because they are full, and the index is asked which addresses lead
    /// there.
    pub fn wait_for_commit(&self) {
        drop(self.committer.wal.hold());
    }

    /// The current address of `key`, as [`Reader::current_pointer`] says. If that is in one of `files`, its value is to
    /// be moved.
    ///
    /// # Errors
    /// Those of a read, and [`Error::OperandsTooLong`] if the value cannot be moved.
    pub fn look_up(&self, tree: &Tree, key: &[u8], files: &[FileId]) -> Result<Option<Pointer>> {
        let Some(chain) = self.reader.chain(tree, key, |_| Ok(false))? else { return Ok(None) };
        if files.contains(&chain.pointer.file) {
            self.bytes_to_move(tree, key, &chain)?;
        }
        Ok(Some(chain.pointer))
    }

    /// What the index has of a value that is to be moved, and the bytes that a commit takes for it; `None` if its old
    /// address is not the newest of its key.
    fn chain_of(&self, tree: &Tree, moved: &Moved) -> Result<Option<(Chain, u64)>> {
        let (key, mut bytes) = (&moved.key[..], 0);
        let chain = self.reader.chain(tree, key, |found| {
            let is_current = found.pointer == moved.from;
            if is_current {
                bytes = self.bytes_to_move(tree, key, found)?;
            }
            Ok(is_current)
        })?;
        Ok(chain.filter(|chain| chain.pointer == moved.from).map(|chain| (chain, bytes)))
    }

    /// Bytes of a commit that gives a value its new address and writes the operands above it again. A crash must not
    /// lose some of them, so they are one record of the log.
    fn bytes_to_move(&self, tree: &Tree, key: &[u8], chain: &Chain) -> Result<u64> {
        let bytes = bytes_on(key, 1 + chain.above, chain.above_bytes);
        let bytes_max = self.bytes_max.load(Relaxed);
        if bytes <= bytes_max || planted!("gc_commits_any_length") {
            return Ok(bytes);
        }
        let path = self.reader.dir.path().join(names::value(chain.pointer.file));
        Err(Error::OperandsTooLong { path, keyspace: tree.name.clone(), key: key.into(), bytes, bytes_max })
    }

    /// Calls `act` with the commit lock held, while there is a memtable for what it commits. Returns the newest
    /// sequence number after it; `None`, without a call, when the keyspace was dropped.
    pub fn hold_commits(
        &self,
        tree: &Arc<Tree>,
        act: &mut dyn FnMut(&mut Held<'_>) -> Result<()>,
    ) -> Result<Option<SeqNo>> {
        self.committer.throttle.pace_moves(tree)?;
        self.between_commits(tree, act)
    }

    /// A sequence number that all commits are below or at, also those that readers do not see yet; `None` when the
    /// keyspace was dropped. It waits for no flush: the worker for flushes may ask.
    pub fn newest(&self, tree: &Arc<Tree>) -> Result<Option<SeqNo>> {
        if planted!("short_gc_waits_for_flushes") {
            return self.hold_commits(tree, &mut |_| Ok(()));
        }
        self.between_commits(tree, &mut |_| Ok(()))
    }

    /// Where callers do the work of a keyspace, writes its oldest memtable if no more may wait. To be called before
    /// each commit of a job that may fill any number of them: nobody else would write them before it ends.
    pub fn flush_full(&self, tree: &Arc<Tree>) {
        self.committer.throttle.waits.flush_full(tree);
    }

    /// The newest version of a key that a compaction filter decides about. If it cannot be read, that is counted, and
    /// the table is left out of later jobs.
    ///
    /// # Errors
    /// As [`Reader::stored`].
    pub fn newest_for_filter(&self, tree: &Tree, key: &[u8]) -> Result<Option<Stored>> {
        self.reader.stored(tree, key).inspect_err(|error| {
            if error.is_unreadable() {
                tree.filter.counts.failed.fetch_add(1, Relaxed);
                if tree.leave_out_named(error) == Some(true) {
                    self.committer.throttle.events.left_out(&tree.name, error);
                }
            }
        })
    }

    fn between_commits(
        &self,
        tree: &Arc<Tree>,
        act: &mut dyn FnMut(&mut Held<'_>) -> Result<()>,
    ) -> Result<Option<SeqNo>> {
        let committer = &*self.committer;
        let wal = committer.wal.hold();
        let mut held = Held { moves: self, tree, wal, asks_index: true, is_unreadable: false };
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

    /// Commits moves. `chains` says what the index has of each: when it expires, and the operands above it, which are
    /// written again above its new address. If it is empty, none of them has any of that.
    ///
    /// All of it is one record of the log and goes to one memtable.
    fn write_back(&self, wal: &mut Wal, tree: &Arc<Tree>, moves: &[Moved], chains: &[Chain]) -> Result<()> {
        if moves.is_empty() {
            return Ok(());
        }
        let mut pointers = Vec::new();
        let mut ends = Vec::with_capacity(moves.len());
        let instant_of =
            |at: usize| chains.get(at).and_then(|chain| chain.expires_at).filter(|_| !planted!("gc_forgets_expiry"));
        let operands_of = |at: usize| chains.get(at).map_or(&[][..], |chain| &chain.operands[..]);
        for (at, moved) in moves.iter().enumerate() {
            let start = pointers.len();
            pointers.extend(instant_of(at).map(expiry::encode).iter().flatten());
            pointer::encode(moved.to, &mut pointers);
            ends.push((start, pointers.len()));
        }
        let ops: Vec<Op<'_>> = moves
            .iter()
            .zip(ends)
            .enumerate()
            .flat_map(|(at, (moved, (start, end)))| {
                let payload = &pointers[start..end];
                let act = if instant_of(at).is_some() { Act::PointerUntil(payload) } else { Act::Pointer(payload) };
                let key = &moved.key;
                let operands = if planted!("gc_forgets_operands") { &[][..] } else { operands_of(at) };
                let above = operands.iter().map(move |operand| Op { tree, key, act: Act::Merge(operand) });
                std::iter::once(Op { tree, key, act }).chain(above)
            })
            .collect();
        let (bytes, committer) = (ops.iter().map(Op::memtable_bytes).sum(), &*self.committer);
        committer.health.watch(committer.make_room(wal, &ops, bytes))?;
        let mut laps = Laps::begin(&*committer.clock, committer.clock.now());
        committer.health.watch(committer.log_and_apply(wal, (&ops, &ops), Durability::Buffered, &mut laps))?;
        committer.counters.gc.moved(moves);
        Ok(())
    }
}

/// The commit lock, held for a GC job.
pub(crate) struct Held<'a> {
    moves: &'a MoveCommits,
    tree: &'a Arc<Tree>,
    wal: MutexGuard<'a, Wal>,
    /// Moves are compared with the index: see [`Tree::gc_asks_index`].
    pub asks_index: bool,
    /// The index could not be read for some of them. Nothing is committed of those that were compared together.
    pub is_unreadable: bool,
}

impl Commits for Held<'_> {
    fn commit(&mut self, moves: &[Moved], refused: &mut dyn FnMut(&Moved)) -> Result<SeqNo> {
        if self.asks_index {
            // Those that have vanished since must not come back, and the others keep instants and operands.
            let mut left = moves;
            while !left.is_empty() {
                let checked = self.commit_current(left, refused);
                self.is_unreadable |= checked.as_ref().is_err_and(Error::is_unreadable);
                left = &left[checked?..];
            }
        } else {
            self.moves.write_back(&mut self.wal, self.tree, moves, &[])?;
        }
        Ok(self.moves.committer.state.visible())
    }
}

impl Held<'_> {
    /// Commits what a compaction filter has decided about versions that are still the newest of their keys. Returns the
    /// keys of the others, but for those that cannot be looked up.
    pub fn commit_decided(&mut self, decided: &[Decided]) -> Result<Vec<Box<[u8]>>> {
        let (tree, committer) = (self.tree, &*self.moves.committer);
        let counts = &tree.filter.counts;
        let (mut ops, mut outdated) = (Vec::with_capacity(decided.len()), Vec::new());
        for Decided { key, seqno, value } in decided {
            let stored = match self.moves.newest_for_filter(tree, key) {
                Err(error) if error.is_unreadable() => continue,
                found => found?,
            };
            let Some(stored) = stored.filter(|now| now.seqno == *seqno || planted!("filter_overlooks_newer")) else {
                outdated.push(key.clone());
                continue;
            };
            let act = match value {
                None => Act::Delete,
                Some(value) => put_until(value, stored.expires_at.filter(|_| !planted!("filter_forgets_expiry"))),
            };
            let op = Op { tree, key, act };
            // What a user may not write, a filter may not.
            match op.check() {
                Ok(()) => ops.push(op),
                Err(_) => drop(counts.failed.fetch_add(1, Relaxed)),
            }
        }
        if ops.is_empty() {
            return Ok(outdated);
        }
        let bytes = ops.iter().map(Op::memtable_bytes).sum();
        let (clock, wal) = (&*committer.clock, &mut *self.wal);
        committer.health.watch(committer.make_room(wal, &ops, bytes))?;
        let mut laps = Laps::begin(clock, clock.now());
        let written = committer.separate_log_and_apply(wal, &ops, Durability::Buffered, &mut laps);
        committer.health.watch(written)?;
        let deleted = ops.iter().filter(|op| matches!(op.act, Act::Delete)).count() as u64;
        counts.deleted.fetch_add(deleted, Relaxed);
        counts.replaced.fetch_add(ops.len() as u64 - deleted, Relaxed);
        Ok(outdated)
    }

    /// Commits the moves whose old address is still the newest of its key: of the first, until those and the operands
    /// above them fill a memtable, or would be too much for one commit. Returns how many it has looked at, at least
    /// one.
    pub fn commit_current(&mut self, moves: &[Moved], refused: &mut dyn FnMut(&Moved)) -> Result<usize> {
        let (tree, committer) = (self.tree, &*self.moves.committer);
        let bytes_max = self.moves.bytes_max.load(Relaxed);
        let (mut current, mut chains, mut overwritten) = (Vec::with_capacity(moves.len()), Vec::new(), Vec::new());
        let (mut checked, mut bytes) = (0, 0);
        for moved in moves {
            let found = note_unreadable(tree, self.moves.chain_of(tree, moved))?;
            let more = found.as_ref().map_or(0, |(_, bytes)| *bytes);
            if checked > 0 && bytes + more > bytes_max {
                break;
            }
            checked += 1;
            bytes += more;
            match found {
                Some((chain, _)) => {
                    current.push(moved.clone());
                    chains.push(chain);
                }
                None => overwritten.push(moved),
            }
            // Above a separated value operands only grow, so those of a few hundred keys may be any number of bytes.
            if bytes >= committer.memtable_bytes && !planted!("gc_commits_without_bound") {
                break;
            }
        }
        committer.counters.gc.lookups.fetch_add(checked as u64, Relaxed);
        self.moves.write_back(&mut self.wal, tree, &current, &chains)?;
        overwritten.into_iter().for_each(refused);
        Ok(checked)
    }
}
