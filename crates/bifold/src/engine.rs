//! Everything one open database shares between its handles and its workers.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use bifold_contract::{Error, FileId, KeyspaceId, LogFloor, Result, SeqNo};
use bifold_index::table::TableContext;
use bifold_io::{Dir, Env, fs::FileLock};
use bifold_values::parts::{budget::Memory, unsynced::Unsynced, value_files::StoreContext};

use crate::{
    group_sync::GroupSync,
    health::Health,
    manifest::ManifestFile,
    memory::MemoryPlan,
    options::{Access, Options, Workers},
    pace::Pace,
    places::Places,
    room::Room,
    signal::Signal,
    snapshot::Snapshots,
    stats::Counters,
    sync::{FairLock, LockExt},
    tree::{Tree, Values},
    wal::Wal,
    work::Work,
};

/// One open database.
pub(crate) struct Engine {
    /// Files, time, threads.
    pub env: Env,
    /// Its directory.
    pub dir: Dir,
    /// Its options.
    pub options: Options,
    /// How its memory is shared out.
    pub plan: MemoryPlan,
    /// Cache and metadata budget of its tables.
    pub tables: Arc<TableContext>,
    /// Memory that placements share.
    pub value_memory: Memory,
    /// Keyspaces whose values the next sync covers.
    pub unsynced: Arc<Unsynced>,
    /// The commit lock, around the log.
    pub wal: FairLock<Wal>,
    /// Syncs of the log, shared by those who wait.
    pub group_sync: GroupSync,
    /// The last sequence number that reads may see.
    pub visible: AtomicU64,
    /// Open snapshots.
    pub snapshots: Arc<Snapshots>,
    /// The manifest; whoever holds it is the only one to install changes.
    pub manifest: Mutex<ManifestFile>,
    /// Where whoever waits for a change of any of these learns of it.
    pub signal: Arc<Signal>,
    /// What background work is running.
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
    /// Values that were found damaged when it was opened: see [`Db::damage`](crate::Db::damage).
    pub damaged: Vec<Error>,
    next_file: Arc<AtomicU64>,
    trees: ArcSwap<Vec<Arc<Tree>>>,
    /// Held for its drop: other processes may open the database from then on.
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
    pub next_file: Arc<AtomicU64>,
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
        let room = Room::new(&found.dir, found.reserve_bytes, found.manifest.snapshot_bytes());
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
            next_file: found.next_file,
            trees: ArcSwap::from_pointee(found.trees),
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

    /// Passes `outcome` on; if it is an error, no more writes are taken, and whoever waits learns it.
    pub fn watch<T>(&self, outcome: Result<T>) -> Result<T> {
        self.health.watch(outcome)
    }

    /// Does `work`, which changes what all share. If it panics, no more writes are taken, whoever waits learns it, and the panic
    /// goes on.
    pub fn guard<T>(&self, what: &'static str, work: impl FnOnce() -> T) -> T {
        self.health.guard(what, work)
    }

    /// Whether reads of `tree` are answered.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn readable(&self, tree: &Tree) -> Result<()> {
        if tree.is_dropped() {
            return Err(Error::Closed { what: format!("keyspace `{}`", tree.name) });
        }
        self.health.open()
    }

    /// All trees, at this moment: at the next one there may be others. Who needs a list that holds asks for
    /// [`Engine::steady_trees`].
    pub fn trees(&self) -> arc_swap::Guard<Arc<Vec<Arc<Tree>>>> {
        self.trees.load()
    }

    /// All trees. While the caller holds the commit lock, or that of the manifest, none is made and none is dropped.
    pub fn steady_trees(&self, _lock: &impl KeepsTrees) -> Arc<Vec<Arc<Tree>>> {
        self.trees.load_full()
    }

    /// The tree of a keyspace.
    pub fn tree(&self, keyspace: KeyspaceId) -> Option<Arc<Tree>> {
        find_tree(&self.trees(), keyspace)
    }

    /// The trees of these keyspaces, of those that there are.
    pub fn trees_in(&self, places: &Places) -> Vec<Arc<Tree>> {
        match places {
            Places::All => self.trees().to_vec(),
            Places::In(some) => some.iter().filter_map(|&keyspace| self.tree(keyspace)).collect(),
        }
    }

    /// Begins a change of what readers and writers see of these keyspaces, or of whether they are there. Whoever waits learns of it.
    pub fn changing(&self, keyspaces: impl IntoIterator<Item = KeyspaceId>) -> Changing<'_> {
        Changing { engine: self, keyspaces: keyspaces.into_iter().collect() }
    }

    /// Where the values are that the next sync covers: of those keyspaces that have said that there is something new. Asked
    /// under the commit lock, so that no commit is in the log of that sync whose value is in none of them.
    pub fn values_to_sync(&self, commit_lock: &Wal) -> Vec<Arc<Values>> {
        self.values_to_sync_of(&self.steady_trees(commit_lock), commit_lock)
    }

    /// The same, of `trees`, which are all.
    pub fn values_to_sync_of(&self, trees: &[Arc<Tree>], _commit_lock: &Wal) -> Vec<Arc<Values>> {
        // Those that are not among them were dropped: one that is made notes nothing before it is there.
        let find = |keyspace| find_tree(trees, keyspace);
        self.unsynced.take().into_iter().filter_map(find).map(|tree| tree.placement()).collect()
    }

    /// Replaces the set of trees; only `install` does.
    pub fn set_trees(&self, trees: Vec<Arc<Tree>>, _locks: (&ManifestFile, &Wal), _told: &Changing<'_>) {
        debug_assert!(trees.is_sorted_by_key(|tree| tree.keyspace), "a tree is found by its number");
        self.trees.store(Arc::new(trees));
    }

    /// A number for a new file or run, larger than all before.
    pub fn new_file_id(&self) -> FileId {
        self.next_file.fetch_add(1, Ordering::Relaxed)
    }

    /// Where value files of a keyspace go that is made now.
    pub fn value_home(&self, keyspace: KeyspaceId) -> StoreContext {
        value_home(&self.dir, keyspace, &self.next_file, (&self.value_memory, &self.unsynced), true)
    }

    /// The number that [`Engine::new_file_id`] hands out next.
    pub fn next_file(&self) -> FileId {
        self.next_file.load(Ordering::Relaxed)
    }

    /// The last sequence number that reads may see.
    pub fn visible(&self) -> SeqNo {
        self.visible.load(Ordering::Acquire)
    }

    /// Makes everything committed so far survive a power loss.
    ///
    /// # Errors
    /// I/O errors, and every reason not to take writes.
    pub fn sync(&self) -> Result<()> {
        self.writable()?;
        let last = self.wal.hold().next_seqno() - 1;
        self.sync_upto(last)
    }

    fn list_values(&self) -> Result<()> {
        match self.trees().iter().any(|p| p.separates) {
            true => self.list_lengths(&mut self.manifest.hold()),
            false => Ok(()),
        }
    }

    /// Whether background work runs in the calling thread.
    pub fn works_in_caller(&self) -> bool {
        self.options.workers == Workers::Caller
    }

    /// Ends the database's life: background work stops, the log is synced. Only the first call does anything.
    ///
    /// # Errors
    /// I/O errors, and the failure that poisoned the database if there was one.
    pub fn close(&self) -> Result<()> {
        let synced = match self.writable() {
            Ok(()) => self.sync().and_then(|()| self.list_values()),
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

/// What is behind a lock under which the set of trees does not change: it is replaced under both of them.
pub(crate) trait KeepsTrees {}

impl KeepsTrees for Wal {}

impl KeepsTrees for ManifestFile {}

/// A change of the trees or of one of their views, until it is dropped, by a panic as well: then what the pace has noted of them is
/// out of date, and whoever waits looks again. [`Tree::change`] and [`Engine::set_trees`] want to see one.
pub(crate) struct Changing<'a> {
    engine: &'a Engine,
    keyspaces: Vec<KeyspaceId>,
}

impl Changing<'_> {
    /// Whether it is one of this keyspace.
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

/// The tree of a keyspace among those that ascend by number.
fn find_tree(trees: &[Arc<Tree>], keyspace: KeyspaceId) -> Option<Arc<Tree>> {
    trees.binary_search_by_key(&keyspace, |tree| tree.keyspace).ok().map(|at| Arc::clone(&trees[at]))
}

/// Where value files of a keyspace go.
pub(crate) fn value_home(
    dir: &Dir,
    keyspace: KeyspaceId,
    next: &Arc<AtomicU64>,
    (memory, unsynced): (&Memory, &Arc<Unsynced>),
    writes: bool,
) -> StoreContext {
    let next = Arc::clone(next);
    let new_file = Arc::new(move || next.fetch_add(1, Ordering::Relaxed));
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
