//! The state of one open database, which its handles and its workers share.

mod parts;

use std::{
    fmt,
    sync::{Arc, Weak, atomic::AtomicU64},
};

use bifold_contract::{Error, LogFloor, Result, SeqNo};
use bifold_index::table::TableContext;
use bifold_io::{Dir, Env, fs::FileLock};
use bifold_values::parts::{budget::Memory, unsynced::Unsynced};

use self::parts::Shared;
use crate::{
    api::{
        options::{Durability, KeyspaceOptions, Options, Workers},
        stats::counters::Counters,
    },
    background::{space::Space, waits::Waits, work::Work},
    commit::{memory::MemoryPlan, op::Op, pace::Pace, room::Room, syncs::Syncs, wal::Wal, write::Committer},
    read::get::Reader,
    state::{
        health::Health,
        install::State,
        manifest::ManifestFile,
        snapshot::Snapshots,
        tree::Tree,
        trees::{Numbers, Trees},
    },
    waiting::{signal::Signal, sync::FairLock},
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
    /// The last sequence number that reads may see.
    pub visible: Arc<AtomicU64>,
    /// Open snapshots.
    pub snapshots: Arc<Snapshots>,
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
    /// Numbers for new files.
    pub numbers: Numbers,
    /// Its trees.
    pub trees: Arc<Trees>,
    /// How threads wait for background work.
    pub waits: Arc<Waits>,
    /// The path of writes.
    pub committer: Arc<Committer>,
    /// Point reads and iterators.
    pub reader: Arc<Reader>,
    /// Its drop lets other processes open the database.
    _lock: Arc<dyn FileLock>,
}

/// What recovery found, from which an engine is made.
pub(crate) struct Recovered {
    pub env: Env,
    pub dir: Dir,
    pub options: Options,
    pub plan: MemoryPlan,
    pub tables: Arc<TableContext>,
    pub value_memory: Memory,
    pub unsynced: Arc<Unsynced>,
    pub lock: Box<dyn FileLock>,
    pub manifest: ManifestFile,
    pub wal: Wal,
    pub visible: SeqNo,
    pub replaying: Option<LogFloor>,
    pub numbers: Numbers,
    pub trees: Vec<Arc<Tree>>,
    pub damaged: Vec<Error>,
    pub reserve_bytes: u64,
}

impl Engine {
    /// An engine over what recovery found.
    pub fn new(mut found: Recovered) -> Arc<Self> {
        let damaged = std::mem::take(&mut found.damaged);
        let shared = Shared::new(found);
        let reader = Arc::new(shared.reader());
        let (waits, syncs) = (Arc::new(shared.waits()), Arc::new(shared.syncs()));
        let committer = Arc::new(shared.committer(&waits, &syncs));
        let engine = Arc::new(Self {
            env: shared.env,
            dir: shared.dir,
            options: shared.options,
            plan: shared.plan,
            tables: shared.tables,
            wal: shared.wal,
            visible: shared.visible,
            snapshots: shared.snapshots,
            state: shared.state,
            signal: shared.signal,
            work: shared.work,
            space: shared.space,
            pace: shared.pace,
            room: shared.room,
            health: shared.health,
            counters: shared.counters,
            damaged,
            numbers: shared.numbers,
            trees: shared.trees,
            syncs,
            waits,
            committer,
            reader,
            _lock: shared.lock,
        });
        if engine.options.workers == Workers::Caller {
            let works: Weak<Self> = Arc::downgrade(&engine);
            let _is_first = engine.waits.in_caller.set(works);
        }
        engine
    }

    /// Returns `outcome`. An error other than [`Error::Full`] poisons the database and notifies waiting threads.
    pub fn watch<T>(&self, outcome: Result<T>) -> Result<T> {
        self.health.watch(outcome)
    }

    /// Does `work`, which changes shared state. A panic poisons the database, notifies waiting threads, and continues.
    pub fn guard<T>(&self, what: &'static str, work: impl FnOnce() -> T) -> T {
        self.health.guard(what, work)
    }

    /// Commits `ops` atomically. The caller has checked them.
    ///
    /// # Errors
    /// I/O errors, and every reason to refuse writes.
    pub fn commit(&self, ops: &[Op<'_>], durability: Durability) -> Result<()> {
        self.commit_if(ops, durability, || Ok(true)).map(drop)
    }

    /// Commits `ops` if `condition` holds, with no other commit in between, and does what is due then if callers do
    /// that. Returns whether it has committed.
    ///
    /// # Errors
    /// As [`Engine::commit`], and those of `condition`.
    pub fn commit_if(
        &self,
        ops: &[Op<'_>],
        durability: Durability,
        condition: impl FnOnce() -> Result<bool>,
    ) -> Result<bool> {
        let done = self.committer.commit_if(ops, durability, condition)?;
        if done && !ops.is_empty() {
            self.waits.run_due_work()?;
        }
        Ok(done)
    }

    /// Changes the options of a keyspace, and does what is due then if callers do that.
    ///
    /// # Errors
    /// Those of [`State::set_options`].
    pub fn set_options(&self, tree: &Arc<Tree>, options: &KeyspaceOptions) -> Result<()> {
        self.guard("changing options", || match self.state.set_options(tree, options)? {
            true => self.waits.run_due_work(),
            false => Ok(()),
        })
    }

    /// Gives an existing keyspace the options that it was opened with, and does what is due then.
    ///
    /// # Errors
    /// Those of [`State::open_with_options`].
    pub fn open_with_options(&self, tree: &Arc<Tree>, options: &KeyspaceOptions) -> Result<()> {
        self.guard("changing options", || match self.state.open_with_options(tree, options)? {
            true => self.waits.run_due_work(),
            false => Ok(()),
        })
    }

    /// Closes the database: syncs the log and stops background work. Only the first call does anything.
    ///
    /// # Errors
    /// I/O errors, and the failure that poisoned the database if there was one.
    pub fn close(&self) -> Result<()> {
        let synced = match self.health.takes_writes() {
            Ok(()) => self.syncs.sync().and_then(|()| self.state.record_value_lengths()),
            Err(Error::ReadOnly | Error::Closed { .. }) => Ok(()),
            Err(poisoned) => Err(poisoned),
        };
        if self.health.close() {
            self.tables.remover().finish();
            self.work.stop();
            synced
        } else {
            Ok(())
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("dir", &self.dir).field("visible", &self.state.visible()).finish_non_exhaustive()
    }
}
