//! The state of one open database, which its handles and its workers share.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use bifold_contract::{Error, KeyspaceId, LogFloor, Result, SeqNo};
use bifold_index::table::TableContext;
use bifold_io::{Dir, Env, fs::FileLock};
use bifold_values::parts::{budget::Memory, unsynced::Unsynced, value_files::StoreContext};

use crate::{
    api::{
        options::{Access, Options, Workers},
        stats::Counters,
    },
    background::work::Work,
    commit::{memory::MemoryPlan, pace::Pace, room::Room, wal::Wal},
    state::{
        health::Health,
        manifest::ManifestFile,
        snapshot::Snapshots,
        tree::{Tree, Values},
        trees::{self, Numbers, Trees},
    },
    waiting::{
        group_sync::GroupSync,
        signal::Signal,
        sync::{FairLock, LockExt},
    },
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
    /// Memory that placements share.
    pub value_memory: Memory,
    /// Keyspaces with values that the next sync covers.
    pub unsynced: Arc<Unsynced>,
    /// The commit lock, around the log.
    pub wal: FairLock<Wal>,
    /// Syncs of the log, shared by all threads that wait for one.
    pub group_sync: GroupSync,
    /// The last sequence number that reads may see.
    pub visible: AtomicU64,
    /// Open snapshots.
    pub snapshots: Arc<Snapshots>,
    /// The manifest; only the holder of its lock may install changes.
    pub manifest: Mutex<ManifestFile>,
    /// Notifies threads that wait for a change of any of these.
    pub signal: Arc<Signal>,
    /// The running background work.
    pub work: Arc<Work>,
    /// How fast writers may go.
    pub pace: Pace,
    /// How much room the disk has.
    pub room: Room,
    /// Whether writes are taken.
    pub health: Health,
    /// Counts for statistics.
    pub counters: Counters,
    /// The logs that recovery has not finished with, if any.
    pub replaying: Mutex<Option<LogFloor>>,
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
        let pace = Pace::new(found.plan.memtable, found.options.background_bytes_per_second, &found.env.clock);
        let work = Arc::new(Work::new(Arc::clone(&signal)));
        let trees = Arc::new(Trees::new(found.trees));
        let room = Room::new(
            (&found.dir, &found.env.clock),
            (&trees, &signal),
            found.options.free_bytes_min,
            (found.reserve_bytes, found.manifest.snapshot_bytes()),
        );
        Arc::new(Self {
            env: found.env,
            dir: found.dir,
            options: found.options,
            plan: found.plan,
            tables: found.tables,
            value_memory: found.value_memory,
            unsynced: found.unsynced,
            wal: FairLock::new(found.wal),
            group_sync: GroupSync::default(),
            visible: AtomicU64::new(found.visible),
            snapshots: Snapshots::of(&work),
            room,
            manifest: Mutex::new(found.manifest),
            work,
            pace,
            health: Health::new(Arc::clone(&signal)),
            signal,
            counters: Counters::default(),
            replaying: Mutex::new(found.replaying),
            damaged: found.damaged,
            numbers: found.numbers,
            trees,
            _lock: found.lock,
        })
    }

    /// Whether writes are taken.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Closed`], [`Error::Poisoned`].
    pub fn writable(&self) -> Result<()> {
        if self.options.access == Access::ReadOnly {
            self.health.open()?;
            return Err(Error::ReadOnly);
        }
        self.health.writable()
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

    /// Begins a change of what readers and writers see of these keyspaces, or of whether they exist. Its end notifies
    /// waiting threads.
    pub fn changing(&self, keyspaces: impl IntoIterator<Item = KeyspaceId>) -> Changing<'_> {
        Changing { engine: self, keyspaces: keyspaces.into_iter().collect() }
    }

    /// The values that the next sync covers: those of keyspaces that have noted something new. Called under the
    /// commit lock, so that each commit in the log of that sync has its values in one of them.
    pub fn values_to_sync(&self, commit_lock: &Wal) -> Vec<Arc<Values>> {
        self.values_to_sync_of(&self.trees.steady(commit_lock), commit_lock)
    }

    /// The same, for `trees`, which are all trees.
    pub fn values_to_sync_of(&self, trees: &[Arc<Tree>], _commit_lock: &Wal) -> Vec<Arc<Values>> {
        // A keyspace that is not among them was dropped: a new one notes nothing before it is in the list.
        let find = |keyspace| trees::find(trees, keyspace);
        self.unsynced.take().into_iter().filter_map(find).map(|tree| tree.placement()).collect()
    }

    /// The context of the value files of a new keyspace.
    pub fn value_home(&self, keyspace: KeyspaceId) -> StoreContext {
        value_home(&self.dir, keyspace, &self.numbers, (&self.value_memory, &self.unsynced), true)
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
        self.writable()?;
        let last = self.wal.hold().next_seqno() - 1;
        self.sync_upto(last)
    }

    fn record_value_lengths(&self) -> Result<()> {
        match self.trees.all().iter().any(|p| p.separates) {
            true => self.list_lengths(&mut self.manifest.hold()),
            false => Ok(()),
        }
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
        let synced = match self.writable() {
            Ok(()) => self.sync().and_then(|()| self.record_value_lengths()),
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

/// A change of the trees or of one of their views. It ends when this is dropped, also by a panic: then what the pace
/// has noted about these trees is out of date, and waiting threads look again. [`Tree::change`] and
/// [`Trees::set`] require one.
pub(crate) struct Changing<'a> {
    engine: &'a Engine,
    keyspaces: Vec<KeyspaceId>,
}

impl Changing<'_> {
    /// Whether it changes this keyspace.
    pub fn is_of(&self, keyspace: KeyspaceId) -> bool {
        self.keyspaces.contains(&keyspace)
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.engine.pace.forget(&self.keyspaces);
        self.engine.work.look_at(&self.keyspaces);
    }
}

/// The context of the value files of a keyspace.
pub(crate) fn value_home(
    dir: &Dir,
    keyspace: KeyspaceId,
    numbers: &Numbers,
    (memory, unsynced): (&Memory, &Arc<Unsynced>),
    writes: bool,
) -> StoreContext {
    let numbers = numbers.clone();
    let new_file = Arc::new(move || numbers.take());
    StoreContext {
        dir: dir.clone(),
        keyspace,
        new_file,
        writes,
        memory: memory.clone(),
        unsynced: Arc::clone(unsynced),
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("dir", &self.dir).field("visible", &self.visible()).finish_non_exhaustive()
    }
}
