//! A commit, from the caller's bytes to visibility.
//!
//! ```text
//! check sizes ─▶ pace ─▶ ┌ commit lock ────────────────────────────────────────────────┐ ─▶ wait for sync
//!                        │ seal full memtables ─▶ log ─▶ memtables ─▶ visible := last │   (Sync only)
//!                        └────────────────────────────────────────────────────────────┘
//! ```
//!
//! One lock and a short critical section: a commit is about a microsecond of work, less than handing it to a leader
//! would cost. Readers take no lock; they see a commit once `visible` has passed its last operation, so a batch
//! appears as a whole.
//!
//! Cost of a put of 1 000 bytes: one copy into the log's buffer with one checksum pass, one system call (`Buffered`),
//! one copy into the memtable.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use bifold_contract::{Error, Result, SeqNo, expiry};
use bifold_format::{large, pointer};
use bifold_io::Clock;

use crate::{
    commit::syncs::Syncs,
    counts::{
        counters::Counters,
        slow::{Laps, Step},
    },
    install::State,
    limits::{
        pace::{Pace, slowed::Throttle},
        room::Room,
    },
    log::wal::Wal,
    settings::options::Durability,
    state::{
        health::Health,
        op::{Act, Op, apply},
        overwrites::Sampled,
        tree::Tree,
    },
    waiting::{sync::FairLock, visible::LastVisible},
};

/// The largest commit, in bytes: what one log record can hold, with a margin.
pub(crate) const COMMIT_BYTES_MAX: u64 = (2 << 30) - (1 << 20);

/// A memtable that names large values of more bytes than so many memtables have, and than so many bytes, is sealed
/// before the next one: only a flush finds out which of them are overwritten.
const LARGE_MEMTABLES: u64 = 4;
const LARGE_BYTES_MIN: u64 = 16 << 20;

/// What must hold for a commit to be made.
pub(crate) trait Condition {
    /// Called without the commit lock, right before it is taken. What takes long is done here.
    ///
    /// # Errors
    /// Nothing is committed then, and the commit returns the error.
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    /// Called under the commit lock. Returns whether the commit is made.
    ///
    /// # Errors
    /// As [`Condition::prepare`].
    fn holds(&mut self) -> Result<bool>;
}

impl<F: FnMut() -> Result<bool>> Condition for F {
    fn holds(&mut self) -> Result<bool> {
        self()
    }
}

/// The path of writes: everything between the caller's bytes and visibility.
pub(crate) struct Committer {
    pub clock: Arc<dyn Clock>,
    /// The commit lock, around the log.
    pub wal: Arc<FairLock<Wal>>,
    /// The last sequence number that reads may see.
    pub visible: Arc<LastVisible>,
    pub health: Arc<Health>,
    pub counters: Arc<Counters>,
    pub room: Arc<Room>,
    pub pace: Arc<Pace>,
    pub throttle: Throttle,
    pub state: Arc<State>,
    pub syncs: Arc<Syncs>,
    /// A memtable is full with so many bytes.
    pub memtable_bytes: u64,
    /// Logs that one memtable needs are too long with so many bytes.
    pub log_bytes: u64,
}

impl Committer {
    /// Commits `ops`, which the caller has checked, atomically if `condition` holds, with no other commit in between.
    /// Returns the commit's last number; `None` if the condition does not hold. Without `ops` the condition is not
    /// asked.
    ///
    /// # Errors
    /// I/O errors, every reason to refuse writes, and those of `condition`.
    pub fn commit_if(
        &self,
        ops: &[Op<'_>],
        durability: Durability,
        condition: &mut impl Condition,
    ) -> Result<Option<SeqNo>> {
        self.health.takes_writes()?;
        if ops.is_empty() {
            return Ok(Some(self.visible.seqno()));
        }
        let bytes: u64 = ops.iter().map(Op::bytes).sum();
        if bytes > COMMIT_BYTES_MAX {
            return Err(Error::invalid("batch", format!("{bytes} bytes are too many for one commit; split it")));
        }
        self.prepare_expiring(ops)?;
        let begin = self.clock.now();
        let mut laps = Laps::begin(&*self.clock, begin);
        let has_looked = self.room.admit(ops, bytes, self.counters.user_bytes_written())?;
        let in_memtable = ops.iter().map(Op::memtable_bytes).sum();
        let may_have_waited = self.throttle.pace(ops, bytes, in_memtable)?;
        laps.end_if(Step::Pace, has_looked || may_have_waited);
        condition.prepare()?;
        let (last, has_many_logs) = {
            let (mut wal, has_waited) = self.wal.hold_and_tell();
            laps.end_if(Step::Lock, has_waited);
            self.health.takes_writes()?;
            if !condition.holds()? {
                return Ok(None);
            }
            if let Some(dropped) = ops.iter().find(|op| op.tree.is_dropped()) {
                return Err(Error::Closed { what: format!("keyspace `{}`", dropped.tree.name) });
            }
            wal.check_numbers(ops.len())?;
            let write = || {
                let has_sealed = self.make_room(&mut wal, ops, in_memtable)?;
                laps.end_if(Step::Seal, has_sealed);
                self.separate_log_and_apply(&mut wal, ops, durability, &mut laps)
            };
            let last = self.health.watch(self.health.guard("a commit", write))?;
            (last, wal.has_many_closed())
        };
        let mut has_looked = false;
        self.pace.note_values(ops, || {
            laps.end(Step::Memtable);
            has_looked = true;
        });
        laps.end_if(Step::Space, has_looked);
        self.counters.commit(ops);
        if durability == Durability::Sync || has_many_logs {
            laps.end(Step::Memtable);
            self.syncs.sync_upto(last)?;
            laps.end(Step::Sync);
        }
        let time = self.clock.now().saturating_sub(begin);
        self.counters.put_latency.record(time);
        self.counters.slow_commits.note(begin, time, laps);
        Ok(Some(last))
    }

    /// Writes the values to separate to their files, then does [`Committer::log_and_apply`].
    pub fn separate_log_and_apply(
        &self,
        wal: &mut Wal,
        ops: &[Op<'_>],
        durability: Durability,
        laps: &mut Laps<'_>,
    ) -> Result<SeqNo> {
        if ops.iter().all(Op::bypasses_placement) {
            return self.log_and_apply(wal, (ops, ops), durability, laps);
        }
        // Nothing is allocated where all values stay inline, as most short ones do.
        let (mut pointers, mut ends, mut sampled) = (Vec::new(), Vec::new(), Vec::new());
        for (at, (op, seqno)) in ops.iter().zip(wal.next_seqno()..).enumerate() {
            let pointer = op.route(seqno)?;
            if let Some(pointer) = pointer {
                if let Act::PutUntil(_, instant) = op.act {
                    pointers.extend(expiry::encode(instant));
                }
                pointer::encode(pointer, &mut pointers);
                ends.push((at, pointers.len()));
            }
            sampled.extend(op.sample(seqno, pointer));
        }
        laps.end(Step::Values);
        let last = match ends.is_empty() {
            true => self.log_and_apply(wal, (ops, ops), durability, laps)?,
            false => self.log_and_apply(wal, (&separated(ops, &pointers, &ends), ops), durability, laps)?,
        };
        sampled.iter().for_each(Sampled::report);
        Ok(last)
    }

    /// Writes to the log, then to the memtables, then makes the commit visible. Nothing after the log can fail. `given`
    /// are the operations before their values were separated, which the log has, too, if changes are kept.
    pub fn log_and_apply(
        &self,
        wal: &mut Wal,
        (ops, given): (&[Op<'_>], &[Op<'_>]),
        durability: Durability,
        laps: &mut Laps<'_>,
    ) -> Result<SeqNo> {
        let last = self.log_and_apply_unseen(wal, (ops, given), durability, laps)?;
        self.visible.show(last);
        Ok(last)
    }

    /// The same without the last step. The index has the commit, and readers do not see it.
    pub fn log_and_apply_unseen(
        &self,
        wal: &mut Wal,
        (ops, given): (&[Op<'_>], &[Op<'_>]),
        durability: Durability,
        laps: &mut Laps<'_>,
    ) -> Result<SeqNo> {
        let count =
            u32::try_from(ops.len()).map_err(|_| Error::invalid("batch", "too many operations for one commit"))?;
        let (log, keeps) = (wal.current(), wal.keeps_changes());
        let first = wal.append(count, |encoder| {
            for (op, given) in ops.iter().zip(given) {
                let keyspace = op.tree.keyspace;
                let value = given.value().filter(|_| keeps);
                match (op.act, value) {
                    (Act::Put(value), _) => encoder.put(keyspace, op.key, value),
                    (Act::PutUntil(value, instant), _) => encoder.put_until(keyspace, op.key, instant, value),
                    (Act::Pointer(to), None) => encoder.pointer(keyspace, op.key, to),
                    (Act::Pointer(to), Some(value)) => encoder.pointer_and_value(keyspace, op.key, to, value),
                    (Act::PointerUntil(to), None) => encoder.pointer_until(keyspace, op.key, to),
                    (Act::PointerUntil(to), Some(value)) => {
                        encoder.pointer_and_value_until(keyspace, op.key, to, value)
                    }
                    (Act::Merge(operand), _) => encoder.merge(keyspace, op.key, operand),
                    (Act::Large(named, _), _) => encoder.large(keyspace, op.key, named),
                    (Act::Delete, _) => encoder.delete(keyspace, op.key),
                    (Act::DeleteRange(end), _) => encoder.delete_range(keyspace, op.key, end),
                }
            }
        })?;
        if keeps {
            retain_large(wal, ops)?;
        }
        // On a nearly full disk an admitted commit is written at once.
        if durability > Durability::Memory || wal.is_full() || self.room.is_short() {
            wal.write_out()?;
        }
        laps.end(Step::Log);
        for (op, seqno) in ops.iter().zip(first..) {
            if apply(op, seqno, log) {
                wal.note_fed(op.tree);
            }
        }
        Ok(first + SeqNo::from(count) - 1)
    }

    /// Seals the memtables that this commit would overfill. If one of the others needs so many logs that they have
    /// grown too long, it is sealed, too. Returns whether one was sealed.
    pub fn make_room(&self, wal: &mut Wal, ops: &[Op<'_>], bytes: u64) -> Result<bool> {
        let overfull = |tree: &Arc<Tree>| {
            let view = tree.view();
            let memtable = &view.active.memtable;
            !memtable.is_empty() && memtable.bytes() as u64 + bytes > self.memtable_bytes
        };
        let mut full: Vec<Arc<Tree>> = Vec::new();
        for op in ops {
            let holds_much = || has_many_large_values(op, LARGE_BYTES_MIN.max(LARGE_MEMTABLES * self.memtable_bytes));
            if full.iter().all(|p| !Arc::ptr_eq(p, op.tree)) && (overfull(op.tree) || holds_much()) {
                full.push(Arc::clone(op.tree));
            }
        }
        if let Some(oldest) = wal.pins_more_than(self.log_bytes)
            && full.iter().all(|p| !Arc::ptr_eq(p, &oldest))
        {
            full.push(oldest);
        }
        if full.is_empty() { Ok(false) } else { self.state.seal(wal, &full).map(|()| true) }
    }
}

/// `ops` with addresses for values that were separated: for each its place in `ops` and where its address ends in
/// `pointers`.
fn separated<'a>(ops: &[Op<'a>], pointers: &'a [u8], ends: &[(usize, usize)]) -> Vec<Op<'a>> {
    let (mut ops, mut start) = (ops.to_vec(), 0);
    for &(at, end) in ends {
        let pointer = &pointers[start..end];
        ops[at].act = match ops[at].act {
            Act::PutUntil(..) => Act::PointerUntil(pointer),
            _ => Act::Pointer(pointer),
        };
        start = end;
    }
    ops
}

/// The change feed needs the files that a commit names, which was appended last.
fn retain_large(wal: &Wal, ops: &[Op<'_>]) -> Result<()> {
    for op in ops {
        if let Act::Large(named, _) = op.act {
            let named = large::decode(named).map_err(|damage| damage.of(format!("keyspace {}", op.tree.name)))?;
            let file = op.tree.placement().large().find(op.key.len(), named);
            file.into_iter().for_each(|file| wal.retain_large(file));
        }
    }
    Ok(())
}

/// Whether the memtable of an operation that puts a large value names others of more than so many bytes.
fn has_many_large_values(op: &Op<'_>, most: u64) -> bool {
    matches!(op.act, Act::Large(..)) && op.tree.view().active.large_bytes.load(Relaxed) > most
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bifold_contract::{LargeRef, key::MAX_SEQNO};
    use bifold_io::{Env, memory::MemoryFs};

    use super::*;
    use crate::{
        open::recover::recover,
        settings::options::{Options, Workers},
    };

    /// No worker runs: sealed memtables stay, and so do the logs that they need.
    #[test]
    fn logs_that_only_sealed_memtables_need_cause_no_seal() {
        let env = Env { fs: Arc::new(MemoryFs::new()), ..Env::system() };
        let options = Options { workers: Workers::Threads(2), log_bytes: 64 << 10, ..Options::default() };
        let engine = recover(env, Path::new("/db"), options).unwrap();
        let [idle, busy, other] =
            ["idle", "busy", "other"].map(|name| engine.state.create_keyspace(name, &engine.options.keyspace).unwrap());
        let put = |tree: &Arc<Tree>, n: u32| {
            let op = Op { tree, key: &n.to_be_bytes(), act: Act::Put(&[1; 1000]) };
            engine.commit(&[op], Durability::Buffered).unwrap();
        };
        let sealed = || [&idle, &busy, &other].map(|tree| tree.view().sealed.len());
        put(&idle, 0);
        (0..60).for_each(|n| put(&busy, n));
        assert_eq!(sealed(), [0, 0, 0], "less than log_bytes");
        (60..70).for_each(|n| put(&busy, n));
        assert_eq!(sealed(), [1, 1, 0], "each has needed more than log_bytes");
        for n in 100..115 {
            put(&other, n);
            put(&busy, n);
            put(&idle, n);
        }
        assert_eq!(sealed(), [1, 1, 0], "what is sealed keeps the logs, not these entries");
        (200..260).for_each(|n| put(&other, n));
        assert_eq!(sealed(), [2, 2, 1], "again each has needed more than log_bytes");
    }

    /// No worker runs: what sealed memtables name stays. Only the entries are committed, without the files.
    #[test]
    fn large_values_that_only_sealed_memtables_name_cause_no_seal() {
        const BYTES: u64 = LARGE_BYTES_MIN / 2;
        let env = Env { fs: Arc::new(MemoryFs::new()), ..Env::system() };
        let options = Options { workers: Workers::Threads(2), memtable_bytes: 1 << 20, ..Options::default() };
        let engine = recover(env, Path::new("/db"), options).unwrap();
        let tree = engine.state.create_keyspace("large", &engine.options.keyspace).unwrap();
        let put = |n: u64| {
            let (key, named) = (n.to_be_bytes(), LargeRef { file: 1000 + n, len: BYTES, sum: n });
            let mut encoded = Vec::new();
            large::encode(named, &mut encoded);
            tree.placement().large().refer(named, key.len());
            let op = Op { tree: &tree, key: &key, act: Act::Large(&encoded, BYTES) };
            engine.commit(&[op], Durability::Buffered).unwrap();
        };
        for (n, sealed) in (0..).zip([0, 0, 0, 1, 1, 1, 2]) {
            put(n);
            assert_eq!(tree.view().sealed.len(), sealed, "a memtable names three of them at most, put {n}");
        }
    }

    fn any_op(tree: &Arc<Tree>) -> Op<'_> {
        Op { tree, key: b"key", act: Act::Put(b"value") }
    }

    /// The log says that there are hardly any numbers left, as none does that a release has written.
    #[test]
    fn commits_that_no_numbers_are_left_for_are_refused_and_nothing_else() {
        let fs = MemoryFs::new();
        let open = || {
            let env = Env { fs: Arc::new(fs.clone()), ..Env::system() };
            let options = Options { workers: Workers::Caller, ..Options::default() };
            let engine = recover(env, Path::new("/db"), options).unwrap();
            let known = engine.trees.named("k");
            let tree = known.map_or_else(|| engine.state.create_keyspace("k", &engine.options.keyspace), Ok).unwrap();
            (engine, tree)
        };
        let (engine, tree) = open();
        engine.wal.hold().skip_to(MAX_SEQNO - 1).unwrap();
        let two = engine.commit(&[any_op(&tree), any_op(&tree)], Durability::Buffered).unwrap_err();
        assert!(two.to_string().contains("no sequence numbers are left"), "{two}");
        engine.commit(&[any_op(&tree)], Durability::Buffered).unwrap();
        engine.close().unwrap();
        drop((engine, tree));
        for _ in 0..2 {
            let (engine, tree) = open();
            assert_eq!(engine.visible.seqno(), MAX_SEQNO - 1);
            assert!(engine.reader.stored(&tree, b"key").unwrap().is_some());
            let refused = engine.commit(&[any_op(&tree)], Durability::Sync);
            assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
            engine.health.well().unwrap();
            engine.close().unwrap();
        }
    }
}
