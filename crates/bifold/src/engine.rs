//! The state of one open database, which its handles and its workers share.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use bifold_contract::{Error, LogFloor, Result, SeqNo};
use bifold_index::table::TableContext;
use bifold_io::{Dir, Env, fs::FileLock};
use bifold_values::parts::{budget::Memory, unsynced::Unsynced};

use crate::{
    api::{
        options::{Options, Workers},
        stats::counters::Counters,
    },
    background::{space::Space, work::Work},
    commit::{
        memory::MemoryPlan,
        pace::{Pace, PacedBy},
        room::Room,
        wal::Wal,
    },
    state::{
        health::Health,
        install::State,
        manifest::ManifestFile,
        snapshot::Snapshots,
        tree::Tree,
        trees::{Numbers, Trees},
    },
    transaction::memory::TransactionMemory,
    waiting::{group_sync::GroupSync, signal::Signal, sync::FairLock},
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
    /// Syncs of the log, shared by all threads that wait for one.
    pub group_sync: GroupSync,
    /// The last sequence number that reads may see.
    pub visible: Arc<AtomicU64>,
    /// Open snapshots.
    pub snapshots: Arc<Snapshots>,
    /// What open transactions hold.
    pub transactions: Arc<TransactionMemory>,
    /// Its state, and every change of that.
    pub state: State,
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
    /// Its drop lets other processes open the database.
    _lock: Box<dyn FileLock>,
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
    pub fn new(found: Recovered) -> Arc<Self> {
        let signal = Arc::<Signal>::default();
        let work = Arc::new(Work::new(Arc::clone(&signal)));
        let trees = Arc::new(Trees::new(found.trees));
        let (snapshots, counters) = (Snapshots::of(&work), Arc::<Counters>::default());
        let space = Arc::new(Space::new(&snapshots, &work));
        let paced_by = PacedBy { counters: &counters, trees: &trees, work: &work, space: &space };
        let background_rate = found.options.background_bytes_per_second;
        let pace = Arc::new(Pace::new(found.plan.memtable, background_rate, &found.env.clock, &paced_by));
        let room = Arc::new(Room::new(
            (&found.dir, &found.env.clock),
            (&trees, &signal),
            found.options.free_bytes_min,
            (found.reserve_bytes, found.manifest.snapshot_bytes()),
        ));
        let health = Arc::new(Health::new(Arc::clone(&signal)));
        let (wal, visible) = (Arc::new(FairLock::new(found.wal)), Arc::new(AtomicU64::new(found.visible)));
        let transactions = Arc::new(TransactionMemory::of(&found.plan, &found.tables));
        let state = State {
            dir: found.dir.clone(),
            access: found.options.access,
            placements: found.options.placements.clone(),
            manifest: Mutex::new(found.manifest),
            replaying: Mutex::new(found.replaying),
            trees: Arc::clone(&trees),
            numbers: found.numbers.clone(),
            visible: Arc::clone(&visible),
            wal: Arc::clone(&wal),
            health: Arc::clone(&health),
            room: Arc::clone(&room),
            pace: Arc::clone(&pace),
            work: Arc::clone(&work),
            tables: Arc::clone(&found.tables),
            value_memory: found.value_memory,
            unsynced: found.unsynced,
        };
        Arc::new(Self {
            env: found.env,
            dir: found.dir,
            options: found.options,
            plan: found.plan,
            tables: found.tables,
            wal,
            group_sync: GroupSync::default(),
            visible,
            snapshots,
            transactions,
            state,
            signal,
            work,
            space,
            pace,
            room,
            health,
            counters,
            damaged: found.damaged,
            numbers: found.numbers,
            trees,
            _lock: found.lock,
        })
    }

    /// Returns `outcome`. An error other than [`Error::Full`] poisons the database and notifies waiting threads.
    pub fn watch<T>(&self, outcome: Result<T>) -> Result<T> {
        self.health.watch(outcome)
    }

    /// Does `work`, which changes shared state. A panic poisons the database, notifies waiting threads, and continues.
    pub fn guard<T>(&self, what: &'static str, work: impl FnOnce() -> T) -> T {
        self.health.guard(what, work)
    }

    /// Whether `tree` can be read.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn readable(&self, tree: &Tree) -> Result<()> {
        if tree.is_dropped() {
            return Err(Error::Closed { what: format!("keyspace `{}`", tree.name) });
        }
        self.health.open()
    }

    /// The last sequence number that reads may see.
    pub fn visible(&self) -> SeqNo {
        self.visible.load(Ordering::Acquire)
    }

    /// Makes everything committed so far survive a power loss.
    ///
    /// # Errors
    /// I/O errors, and every reason to refuse writes.
    pub fn sync(&self) -> Result<()> {
        self.state.writable()?;
        let last = self.wal.hold().next_seqno() - 1;
        self.sync_upto(last)
    }

    /// Whether background work runs in the calling thread.
    pub fn works_in_caller(&self) -> bool {
        self.options.workers == Workers::Caller
    }

    /// Closes the database: syncs the log and stops background work. Only the first call does anything.
    ///
    /// # Errors
    /// I/O errors, and the failure that poisoned the database if there was one.
    pub fn close(&self) -> Result<()> {
        let synced = match self.state.writable() {
            Ok(()) => self.sync().and_then(|()| self.state.record_value_lengths()),
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
        f.debug_struct("Engine").field("dir", &self.dir).field("visible", &self.visible()).finish_non_exhaustive()
    }
}
