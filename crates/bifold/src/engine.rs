//! One open database: its parts, and what takes several of them.
//!
//! ```text
//!                        ┌─▶ Reader
//! Db, Keyspace ─▶ Engine ┼─▶ Committer ─▶ Throttle ─▶ Waits ◀─ ─ ─ ─ ─ ┐ due work, where callers do it
//!                        │       │ ▲   ─▶ Syncs                        │
//!                        │       │ └── MoveCommits ◀─ Gc ◀─────────────┤
//!                        │       ▼        Flusher, Compactor, Rewrites, Reclaims ◀─ Scheduler
//!                        └─▶ State ─▶ Pace, Room, Work, Health, Trees
//! ```
//!
//! A part holds those that it calls. None of them knows the engine.

mod parts;

use std::{fmt, sync::Arc};

use bifold_contract::{Error, Result, SeqNo, planted};
use bifold_index::table::TableContext;
use bifold_io::{Dir, Env, fs::FileLock};

pub(crate) use self::parts::Recovered;
use self::parts::{Parts, Shared};
use crate::{
    background::{flush::Flusher, gc::Gc, rewrite::Rewrites},
    commit::{
        notices::Notices,
        syncs::Syncs,
        write::{Committer, Condition},
    },
    counts::counters::Counters,
    ingest::Ingests,
    install::State,
    limits::{
        memory::MemoryPlan, pace::Pace, room::Room, space::Space, transaction_memory::TransactionMemory, waits::Waits,
    },
    log::{trees::Trees, wal::Wal},
    read::get::Reader,
    schedule::Scheduler,
    settings::options::{Durability, KeyspaceOptions, Options},
    state::{health::Health, op::Op, snapshot::Snapshots, telling::Events, time::Time, tree::Tree, work::Work},
    waiting::{signal::Signal, sync::FairLock, visible::LastVisible},
};

/// One open database.
pub(crate) struct Engine {
    /// Files, time, threads.
    pub env: Env,
    /// Its directory.
    pub dir: Dir,
    /// Its options.
    pub options: Options,
    /// How its memory is divided.
    pub plan: MemoryPlan,
    /// Cache and metadata budget of its tables.
    pub tables: Arc<TableContext>,
    /// The commit lock, around the log.
    pub wal: Arc<FairLock<Wal>>,
    /// Syncs of the log and of values, shared by all threads that wait for one.
    pub syncs: Arc<Syncs>,
    /// Handles of commits that will be durable.
    pub notices: Arc<Notices>,
    /// The last sequence number that reads may see, and who waits for the next one.
    pub visible: Arc<LastVisible>,
    /// What time it is to entries that expire.
    pub time: Arc<Time>,
    /// Open snapshots.
    pub snapshots: Arc<Snapshots>,
    /// What open transactions hold.
    pub transactions: Arc<TransactionMemory>,
    /// Its state, and every change of that.
    pub state: Arc<State>,
    /// Notifies threads that wait for a change of any of these.
    pub signal: Arc<Signal>,
    /// The running background work.
    pub work: Arc<Work>,
    /// How much space keyspaces take, against their targets.
    pub space: Arc<Space>,
    /// How fast writers may go.
    pub pace: Arc<Pace>,
    /// How much room the disk has.
    pub room: Arc<Room>,
    /// Whether writes are taken.
    pub health: Arc<Health>,
    /// Counts for statistics.
    pub counters: Arc<Counters>,
    /// Values that opening found damaged: see [`Db::damage`](crate::Db::damage).
    pub damaged: Vec<Error>,
    /// Its trees.
    pub trees: Arc<Trees>,
    /// How threads wait for background work.
    pub waits: Arc<Waits>,
    /// The path of writes.
    pub committer: Arc<Committer>,
    /// Writes sorted entries without the log.
    pub ingests: Arc<Ingests>,
    /// Point reads and iterators.
    pub reader: Arc<Reader>,
    /// Writes memtables as tables.
    pub flusher: Arc<Flusher>,
    /// Rewrites key ranges for callers and GC.
    pub rewrites: Arc<Rewrites>,
    /// Runs GC jobs.
    pub gc: Arc<Gc>,
    /// What the listener is told.
    pub events: Arc<Events>,
    /// Background work: what is due, and who does it.
    pub scheduler: Arc<Scheduler>,
    /// Its drop lets other processes open the database.
    _lock: Arc<dyn FileLock>,
}

impl Engine {
    /// An engine over what recovery found.
    pub fn new(mut found: Recovered) -> Arc<Self> {
        let damaged = std::mem::take(&mut found.damaged);
        let shared = Shared::new(found);
        let (parts, workers) = (Parts::new(&shared), shared.options.workers);
        Arc::new(Self {
            env: shared.env,
            dir: shared.dir,
            options: shared.options,
            plan: shared.plan,
            tables: shared.tables,
            wal: shared.wal,
            visible: shared.visible,
            time: shared.time,
            snapshots: shared.snapshots,
            transactions: shared.transactions,
            state: shared.state,
            signal: shared.signal,
            work: shared.work,
            space: shared.space,
            pace: shared.pace,
            room: shared.room,
            health: shared.health,
            counters: shared.counters,
            damaged,
            trees: shared.trees,
            events: shared.events,
            notices: Arc::new(Notices::new(&parts.syncs, workers)),
            syncs: parts.syncs,
            waits: parts.waits,
            committer: parts.committer,
            ingests: parts.ingests,
            reader: parts.reader,
            flusher: parts.flusher,
            rewrites: parts.rewrites,
            gc: parts.gc,
            scheduler: parts.scheduler,
            _lock: shared.lock,
        })
    }

    /// Commits `ops` atomically. The caller has checked them.
    ///
    /// # Errors
    /// I/O errors, and every reason to refuse writes.
    pub fn commit(&self, ops: &[Op<'_>], durability: Durability) -> Result<()> {
        self.commit_if(ops, durability, &mut || Ok(true)).map(drop)
    }

    /// Commits `ops` if `condition` holds, with no other commit in between, and does what is due then if callers do
    /// that. Returns as [`Committer::commit_if`].
    ///
    /// # Errors
    /// As [`Engine::commit`], and those of `condition`.
    pub fn commit_if(
        &self,
        ops: &[Op<'_>],
        durability: Durability,
        condition: &mut impl Condition,
    ) -> Result<Option<SeqNo>> {
        let committed = self.committer.commit_if(ops, durability, condition);
        match &committed {
            Ok(Some(_)) if !ops.is_empty() => self.waits.run_due_work(),
            Ok(_) => {}
            Err(_) => self.waits.tell(),
        }
        committed
    }

    /// Does what a call asks for, and then tells what has happened in it if no other thread does.
    pub fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        let answer = call();
        self.waits.tell();
        answer
    }

    /// Changes the options of a keyspace, and does what is due then if callers do that.
    ///
    /// # Errors
    /// Those of [`State::set_options`].
    pub fn set_options(&self, tree: &Arc<Tree>, options: &KeyspaceOptions) -> Result<()> {
        self.health.guard("changing options", || {
            if self.state.set_options(tree, options)? {
                self.waits.run_due_work();
            }
            Ok(())
        })
    }

    /// Gives an existing keyspace the options that it was opened with, and does what is due then.
    ///
    /// # Errors
    /// Those of [`State::open_with_options`].
    pub fn open_with_options(&self, tree: &Arc<Tree>, options: &KeyspaceOptions) -> Result<()> {
        self.health.guard("changing options", || {
            if self.state.open_with_options(tree, options)? {
                self.waits.run_due_work();
            }
            Ok(())
        })
    }

    /// Closes the database: syncs the log and stops background work. Only the first call does anything, and only in the
    /// process that opened it.
    ///
    /// # Errors
    /// I/O errors, and the failure that poisoned the database if there was one.
    pub fn close(&self) -> Result<()> {
        // The threads to wait for are the parent's, too.
        if self.health.is_in_child() {
            return Ok(());
        }
        let synced = match self.health.takes_writes() {
            Ok(()) => self.syncs.sync().and_then(|()| self.state.record_value_lengths()),
            Err(Error::ReadOnly | Error::Closed { .. }) => Ok(()),
            Err(poisoned) => Err(poisoned),
        };
        self.notices.close(&synced);
        if self.health.close() {
            let written = synced.and_then(|()| self.write_last());
            self.dir.remover().finish();
            self.events.finish();
            self.work.stop();
            let _what_is_held_the_next_opening_deletes = self.dir.release_pinned();
            // What other threads have noted at their end.
            self.events.tell();
            written
        } else {
            Ok(())
        }
    }

    /// Hands to the operating system what other threads have committed with [`Durability::Memory`] since the last sync
    /// began. Nothing follows: a commit looks with the commit lock held whether the database is open.
    ///
    /// # Errors
    /// I/O errors, and the failure that poisoned the database meanwhile.
    fn write_last(&self) -> Result<()> {
        if !self.options.access.writes() || planted!("close_leaves_last_commits") {
            return Ok(());
        }
        let mut wal = self.wal.hold();
        self.health.well()?;
        self.health.watch(wal.write_out())
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("dir", &self.dir).field("visible", &self.state.visible()).finish_non_exhaustive()
    }
}
