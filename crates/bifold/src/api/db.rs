//! The handle of an open database.

use std::{fmt, path::Path, sync::Arc, time::Duration};

use bifold_contract::{Error, Result};
use bifold_io::Env;

use crate::{
    api::{
        backup::create::KnownSums,
        batch::Batch,
        keyspace::Keyspace,
        snapshot::Snapshot,
        stats::{GarbageStats, Stats},
    },
    background::outcome::for_each_tree,
    commit::notices::CommitNotice,
    engine::Engine,
    limits::room::Means,
    open::{follow::Follower, recover},
    settings::options::{Access, Durability, KeyspaceOptions, Options},
    state::snapshot::{Holder, SnapshotGuard},
};

/// The keyspace that always exists. The short forms on [`Db`] use it.
pub const DEFAULT_KEYSPACE: &str = "default";

/// The maximum length of a keyspace name, in bytes.
pub(crate) const KEYSPACE_NAME_MAX: usize = 255;

/// An open database: a directory that no other process writes to while it is open.
///
/// Cheap to clone and to share between threads. The database closes when [`Db::close`] is called or when its last
/// handle is dropped: [`Db`], [`Keyspace`], also in a [`Batch`], an [`Ingest`](crate::Ingest) or a
/// [`WriteCache`](crate::WriteCache), [`Snapshot`], [`Transaction`](crate::Transaction), and
/// [`Changes`](crate::Changes) that does not wait.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("bifold-doc-{}", std::process::id()));
/// let db = bifold::Db::open(&dir)?;
/// db.put("lorem", "ipsum")?;
/// assert_eq!(db.get("lorem")?.as_deref(), Some(&b"ipsum"[..]));
/// for pair in db.prefix("lo") {
///     let (key, value) = pair?.into_parts()?;
///     println!("{} = {}", key.escape_ascii(), value.escape_ascii());
/// }
/// # db.close()?;
/// # std::fs::remove_dir_all(dir).ok();
/// # Ok::<(), bifold::Error>(())
/// ```
#[derive(Clone)]
pub struct Db {
    handle: Arc<Handle>,
    default: Keyspace,
}

/// The state that all handles share. Dropping it closes the database.
pub(crate) struct Handle {
    pub engine: Arc<Engine>,
    /// What backups know of its files.
    pub known_sums: Arc<KnownSums>,
    /// Reads later states, if another process may be writing.
    pub follower: Option<Arc<Follower>>,
}

impl Handle {
    pub fn open_snapshot(&self, holder: Holder) -> SnapshotGuard {
        self.engine.snapshots.open(&self.engine.visible, holder, self.engine.env.clock.now())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Others may have the same state of a database that another process writes; there is nothing to sync then.
        if self.follower.is_none() {
            // A caller that wants to see the error of the last sync calls `close`.
            let _ignored = self.engine.close();
        }
    }
}

impl Db {
    /// Opens the database in the directory `path` with default options; creates it if there is none. Commits that are
    /// in logs alone, whether the last session was closed or crashed, are written to tables before this returns.
    ///
    /// # Errors
    /// [`Error::Locked`] when it is open already, in this process or another; [`Error::NewerFormat`]; I/O errors;
    /// [`Error::Corruption`], which names file and offset.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, Options::default())
    }

    /// Opens a database with `options`. If it exists, [`Options::keyspace`] applies to the default keyspace as
    /// [`Keyspace::set_options`] does, unless it equals [`KeyspaceOptions::default`]: then the keyspace keeps the
    /// options it has.
    ///
    /// # Errors
    /// As [`Db::open`]; [`Error::InvalidArgument`] for invalid options, when the default keyspace has another
    /// placement, hash index or merge operator than `options` ask for, or other options and access is read-only, and
    /// when a keyspace has a placement or merge operator of others that `options` lack; [`Error::NotFound`] when there
    /// is no database, and access is read-only or [`Options::if_missing`] is [`IfMissing::Fail`](crate::IfMissing).
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        Self::open_in(Env::system(), path, options)
    }

    /// Opens a database on the files, clock and threads of `env`.
    ///
    /// # Errors
    /// As [`Db::open_with`].
    pub fn open_in(env: Env, path: impl AsRef<Path>, options: Options) -> Result<Self> {
        options.check()?;
        let (engine, follower) = match options.access {
            Access::Follow => Follower::open(env, path.as_ref(), options).map(|(of, engine)| (engine, Some(of)))?,
            Access::ReadWrite | Access::ReadOnly => (recover::recover(env, path.as_ref(), options)?, None),
        };
        // Whatever fails from now on, dropping the handle closes the database.
        let handle = Arc::new(Handle { engine, known_sums: Arc::default(), follower });
        let engine = &handle.engine;
        engine.scheduler.start_workers()?;
        let default = match (engine.trees.named(DEFAULT_KEYSPACE), engine.options.access) {
            (Some(existing), _) => existing,
            (None, Access::ReadOnly | Access::Follow) => return Err(Error::NotFound { path: path.as_ref().into() }),
            (None, Access::ReadWrite) => engine.state.create_keyspace(DEFAULT_KEYSPACE, &engine.options.keyspace)?,
        };
        engine.open_with_options(&default, &engine.options.keyspace)?;
        // Where no thread does.
        match engine.options.access.writes() {
            true => engine.waits.tell(),
            false => engine.events.tell(),
        }
        Ok(Self { default: Keyspace::new(Arc::clone(&handle), default), handle })
    }

    /// The keyspace called `name`; creates it with `options` if it does not exist. `options` apply to an existing
    /// keyspace as [`Keyspace::set_options`] does, unless they equal [`KeyspaceOptions::default`]: then it keeps the
    /// options it has.
    ///
    /// # Errors
    /// I/O errors; [`Error::InvalidArgument`] for a name that is empty or has more than 255 bytes, for invalid options,
    /// when the keyspace exists with another placement, hash index or merge operator than `options` ask for, or with
    /// other options in a database that is open read-only; [`Error::ReadOnly`] when it must be created there;
    /// [`Error::Poisoned`]; [`Error::Closed`].
    pub fn keyspace(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        self.engine().health.open()?;
        if name.is_empty() || name.len() > KEYSPACE_NAME_MAX {
            let reason = format!("a name has 1 to {KEYSPACE_NAME_MAX} bytes, this one has {}", name.len());
            return Err(Error::invalid("keyspace name", reason));
        }
        let engine = self.engine();
        let tree = match engine.trees.named(name) {
            Some(existing) => existing,
            None => engine
                .call(|| engine.health.guard("creating a keyspace", || engine.state.create_keyspace(name, &options)))?,
        };
        // Another thread may have created it in the meantime, with its own options.
        engine.open_with_options(&tree, &options)?;
        Ok(Keyspace::new(Arc::clone(&self.handle), tree))
    }

    /// The keyspace called `name`, if there is one.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn existing_keyspace(&self, name: &str) -> Result<Option<Keyspace>> {
        self.engine().health.open()?;
        Ok(self.engine().trees.named(name).map(|tree| Keyspace::new(Arc::clone(&self.handle), tree)))
    }

    /// The names of all keyspaces, sorted.
    #[must_use]
    pub fn keyspace_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.engine().trees.all().iter().map(|p| p.name.clone()).collect();
        names.sort_unstable();
        names
    }

    /// Drops a keyspace and all its data. Open iterators continue to work; handles return [`Error::Closed`] from then
    /// on. Its files are deleted once no iterator reads them.
    ///
    /// # Errors
    /// As [`Db::sync`]; [`Error::InvalidArgument`] for the default keyspace or a keyspace that does not exist.
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        if name == DEFAULT_KEYSPACE {
            return Err(Error::invalid(
                "keyspace",
                "the default keyspace cannot be dropped; clear it with `delete_range(..)`",
            ));
        }
        let engine = self.engine();
        if engine.call(|| engine.health.guard("dropping a keyspace", || engine.state.drop_keyspace(name)))? {
            return Ok(());
        }
        Err(Error::invalid("keyspace", format!("there is no keyspace `{name}`")))
    }

    /// The keyspace called [`DEFAULT_KEYSPACE`], which always exists.
    #[must_use]
    pub fn default_keyspace(&self) -> &Keyspace {
        &self.default
    }

    /// An empty batch.
    #[must_use]
    pub fn batch(&self) -> Batch {
        Batch::new()
    }

    /// Commits a batch, with the database's durability. Waits while flushes, compactions or GC are far behind:
    /// [`Stats::stalls`] says for how long.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a keyspace of another database, for a batch of almost 2 GiB or more, and in a
    /// database whose files say that all sequence numbers are used;
    /// [`Error::Full`]; [`Error::Poisoned`]; [`Error::ReadOnly`]; [`Error::Closed`], also for a dropped keyspace; I/O
    /// errors. Nothing of the batch is visible then, unless all of it was written and its sync failed. After a failed
    /// write or sync the next opening finds all of it or nothing.
    pub fn commit(&self, batch: Batch) -> Result<()> {
        self.commit_with(batch, self.engine().options.durability)
    }

    /// Commits a batch with the given durability. An empty batch makes nothing durable: [`Db::sync`] does.
    ///
    /// # Errors
    /// As [`Db::commit`].
    pub fn commit_with(&self, batch: Batch, durability: Durability) -> Result<()> {
        self.takes(&batch)?;
        self.engine().commit(&batch.ops(), durability)
    }

    /// Commits a batch and returns at once, as with [`Durability::Buffered`]: the commit is visible and survives a
    /// killed process. The notice resolves when it survives a power loss, too. One thread of the engine syncs for all
    /// notices together, again and again while any are unresolved; with [`Workers::Caller`](crate::Workers) the thread
    /// that waits for a notice or polls it syncs.
    ///
    /// So one thread can have many commits under way. A reader may see a commit that a power loss then takes: wait for
    /// the notice before you tell others of the commit.
    ///
    /// # Errors
    /// As [`Db::commit`]; the system's error when the thread cannot be started: nothing is committed then.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-notice-{}", std::process::id()));
    /// # let db = bifold::Db::open(&dir)?;
    /// let mut notices = Vec::new();
    /// for n in 0..10u8 {
    ///     let mut batch = db.batch();
    ///     batch.put(db.default_keyspace(), [n], "value")?;
    ///     notices.push(db.commit_async(batch)?);
    /// }
    /// assert!(db.get([9])?.is_some());                   // visible
    /// for notice in &notices {
    ///     notice.wait()?;                                // or `notice.await` in asynchronous code
    /// }
    /// assert!(notices.iter().all(|notice| notice.is_durable()));
    /// # db.close()?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn commit_async(&self, batch: Batch) -> Result<CommitNotice> {
        self.takes(&batch)?;
        let engine = self.engine();
        engine.health.takes_writes()?;
        engine.notices.begin(&*engine.env.threads, &engine.work)?;
        let seqno = engine.commit_if(&batch.ops(), Durability::Buffered, &mut || Ok(true))?;
        Ok(engine.notices.of(seqno.unwrap_or_default()))
    }

    /// Whether all keyspaces of a batch are this database's.
    fn takes(&self, batch: &Batch) -> Result<()> {
        if batch.keyspaces().any(|keyspace| !keyspace.belongs_to(&self.handle)) {
            return Err(Error::invalid("batch", "it names a keyspace of another database"));
        }
        Ok(())
    }

    /// A view of all keyspaces as they are now. Later writes do not change it. It copies nothing.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.handle)
    }

    /// Makes everything committed so far survive a power loss, whatever its durability. Waits for the device.
    ///
    /// # Errors
    /// I/O errors, after which the database is poisoned; [`Error::Poisoned`]; [`Error::ReadOnly`]; [`Error::Closed`].
    pub fn sync(&self) -> Result<()> {
        self.engine().call(|| self.engine().syncs.sync())
    }

    /// Writes all memtables to tables and waits for the end.
    ///
    /// # Errors
    /// As [`Db::sync`]; [`Error::Full`].
    pub fn flush(&self) -> Result<()> {
        let engine = self.engine();
        engine.call(|| engine.flusher.flush(&engine.trees.all().to_vec(), Means::Reserve))
    }

    /// Merges all data of each keyspace into one sorted run and reclaims the space of deleted, overwritten and expired
    /// data, separated values included, but for what open snapshots see. Waits for the end.
    ///
    /// Where all of this is done already, nothing is written. To find that out, the first call after an opening reads
    /// the tables of earlier sessions: which old versions snapshots held in them is not recorded.
    ///
    /// # Errors
    /// As [`Db::collect_garbage`].
    pub fn compact(&self) -> Result<()> {
        let trees = self.engine().trees.all().to_vec();
        let everything = || (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
        let compact = |tree: &Arc<_>| self.engine().rewrites.compact_range(tree, everything().0, everything().1);
        match self.engine().call(|| for_each_tree(&trees, compact)) {
            // GC still runs on everything that can be read.
            Err(error) if error.is_unreadable() => self.collect_garbage().and(Err(error)),
            other => other.and_then(|()| self.collect_garbage()),
        }
    }

    /// Garbage-collects all separated values, whatever the space target, and waits for the end. Reads all values.
    ///
    /// # Errors
    /// As [`Db::sync`]; [`Error::Full`]; corruption; [`Error::OperandsTooLong`]. If something cannot be read, the rest
    /// is done first, and then this is the error.
    pub fn collect_garbage(&self) -> Result<()> {
        let engine = self.engine();
        engine.health.takes_writes()?;
        let trees = engine.trees.all().to_vec();
        engine.call(|| for_each_tree(&trees, |tree| engine.gc.gc_all(tree)))
    }

    /// What GC knows about each group or file of separated values, and why GC would pick it or not.
    #[must_use]
    pub fn explain_garbage(&self) -> Vec<GarbageStats> {
        GarbageStats::of(self.engine())
    }

    /// Waits until no flush, compaction or GC is due or running, and the files that nobody needs any more are deleted.
    /// Returns at once where the database is only read: there is no such work.
    ///
    /// # Errors
    /// [`Error::Full`] when nothing is running, and what is due waits for room on the disk: it is tried again when
    /// there is more. [`Error::Poisoned`]; [`Error::Closed`].
    pub fn wait_idle(&self) -> Result<()> {
        self.engine().scheduler.wait_idle(None).map(drop)
    }

    /// As [`Db::wait_idle`], but no longer than `limit`. Returns `true` if no work is left; otherwise work goes on in
    /// the background. Where callers do the work ([`Workers::Caller`](crate::Workers::Caller)), this does all that is
    /// due, however long that takes, unless `limit` is zero.
    ///
    /// # Errors
    /// As [`Db::wait_idle`].
    pub fn wait_idle_within(&self, limit: Duration) -> Result<bool> {
        self.engine().scheduler.wait_idle(Some(limit))
    }

    /// Values that opening found damaged after a crash, in the bytes that the manifest had not yet recorded. Each
    /// error names file, offset, commit and keyspace. Nothing else is lost: reading such a key returns the error, and
    /// all other entries are intact. `bifold verify` finds the same damage, and all other damage.
    ///
    /// If the commit of a damaged value had been synced, opening fails instead.
    #[must_use]
    pub fn damage(&self) -> &[Error] {
        &self.engine().damaged
    }

    /// What compaction and GC could not read since the database was opened, and what opening could not read of where
    /// values are and which are dead. Each error names file and offset. Such files stay as they are, and compaction and
    /// GC leave them out: reads of their intact data, writes and all other work go on. Their space is reclaimed when
    /// everything in them is deleted or overwritten, if at all. `bifold verify` finds all damage.
    #[must_use]
    pub fn left_out(&self) -> Vec<Error> {
        self.engine().trees.all().iter().flat_map(|tree| tree.left_out()).collect()
    }

    /// What the database has done since it was opened, and what it holds. Each call lists the directory, asks for the
    /// length of each file in it, and deletes files that [followers](crate::Access::Follow) no longer need.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::of(self.engine())
    }

    /// Closes the database: syncs the log and waits for the end of background work. Memtables stay in the log, from
    /// which the next opening reads them. Calls through other handles then return [`Error::Closed`]. The directory can
    /// be opened for writing again once all handles, iterators, [`Pair`](crate::Pair)s and
    /// [`ValueReader`](crate::ValueReader)s are dropped.
    ///
    /// Of several calls, the first that has synced does the rest, and the directory is locked until it returns. Others
    /// may return earlier: the first waits for all threads of the database, and one of these may be making such a call,
    /// in a method of an [`EventListener`](crate::events::EventListener).
    ///
    /// # Errors
    /// I/O errors of the last sync, and [`Error::Poisoned`] if the database was poisoned. It is closed all the same. A
    /// call that finds it closed has none of these errors.
    pub fn close(self) -> Result<()> {
        self.engine().close()
    }

    /// The directory it is in.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.engine().dir.path()
    }

    /// The options it was opened with. [`Keyspace::options`] has those of a keyspace, which may have changed since.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.engine().options
    }

    /// This handle with another state of the same database.
    pub(crate) fn with_state(&self, engine: Arc<Engine>) -> Result<Self> {
        let missing = || Error::NotFound { path: engine.dir.path().into() };
        let default = engine.trees.named(DEFAULT_KEYSPACE).ok_or_else(missing)?;
        let (known_sums, follower) = (Arc::clone(&self.handle.known_sums), self.handle.follower.clone());
        let handle = Arc::new(Handle { engine, known_sums, follower });
        Ok(Self { default: Keyspace::new(Arc::clone(&handle), default), handle })
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.handle.engine
    }

    pub(crate) fn known_sums(&self) -> &KnownSums {
        &self.handle.known_sums
    }
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Db").field(&self.path()).finish()
    }
}
