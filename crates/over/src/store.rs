//! What users call.

use std::{
    ops::{ControlFlow, RangeBounds},
    path::Path,
    sync::{Arc, Mutex},
    thread::JoinHandle,
};

use bifold_contract::{Result, Value};
use bifold_io::Env;

use crate::{
    batch::{Batch, check_key},
    core::{Core, Upto, hold},
    index::ForeignIndex,
    options::{Options, Workers},
    recover,
    snapshot::Snapshot,
    stats::Stats,
};

/// Keys in a foreign index, values in files of Bifold's. All methods may be called from several threads.
///
/// A write survives the end of the process when it returns, and a power loss after the next [`Store::sync`]. After any
/// crash the store has a prefix of the commits. Dropping a store waits for the end of its work and syncs nothing;
/// [`Store::close`] syncs.
pub struct Store<I: ForeignIndex> {
    core: Arc<Core<I>>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

impl<I: ForeignIndex> Store<I> {
    /// Opens the store whose value files are in the directory `path` and whose keys are in `index`, or creates one over
    /// an empty index. The directory must be another one than the index's.
    ///
    /// # Errors
    /// I/O errors; [`Error::Locked`](bifold_contract::Error::Locked);
    /// [`Error::Corruption`](bifold_contract::Error::Corruption), also for an index that does not belong to these files
    /// or is older than they are; [`Error::InvalidArgument`](bifold_contract::Error::InvalidArgument) for options out
    /// of their bounds, another placement than the store has, and a new store over an index with entries; those of the
    /// index.
    pub fn open(path: impl AsRef<Path>, index: I, options: Options) -> Result<Self> {
        Self::open_in(&Env::system(), path, index, options)
    }

    /// As [`Store::open`], on the files, clock and threads of `env`.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_in(env: &Env, path: impl AsRef<Path>, index: I, options: Options) -> Result<Self> {
        let core = Arc::new(recover::open(env, path.as_ref(), index, options)?);
        let worker = match options.workers {
            Workers::Caller => None,
            Workers::Thread => {
                let core = Arc::clone(&core);
                Some(env.threads.spawn("bifold-over", Box::new(move || core.worker()))?)
            }
        };
        Ok(Self { core, worker: Mutex::new(worker) })
    }

    /// Sets a key to a value.
    ///
    /// # Errors
    /// Those of [`Batch::put`] and [`Store::write`].
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut batch = Batch::new();
        batch.put(key, value)?;
        self.write(&batch)
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// Those of [`Batch::delete`] and [`Store::write`].
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        let mut batch = Batch::new();
        batch.delete(key)?;
        self.write(&batch)
    }

    /// Commits a batch. Waits while the index or GC is far behind.
    ///
    /// # Errors
    /// I/O errors, and those of the index, a full disk among both. After one, all writes return
    /// [`Error::Poisoned`](bifold_contract::Error::Poisoned) until the store is opened again; the batch may be there
    /// then. [`Error::InvalidArgument`](bifold_contract::Error::InvalidArgument) for a batch of almost 2 GiB or more,
    /// which changes nothing.
    pub fn write(&self, batch: &Batch) -> Result<()> {
        self.core.commit(batch)
    }

    /// The value of a key; `None` if it has none.
    ///
    /// # Errors
    /// I/O errors and corruption; the index's; [`Error::InvalidArgument`](bifold_contract::Error::InvalidArgument) for
    /// a key that [`Batch::put`] refuses.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        check_key(key)?;
        self.core.get(key)
    }

    /// Shows the keys of a range and their values to `see`, in ascending order, until `see` breaks. It is shown the
    /// store as it is now.
    ///
    /// # Errors
    /// I/O errors and corruption; the index's.
    pub fn scan<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K>,
        mut see: impl FnMut(&[u8], &Value) -> ControlFlow<()>,
    ) -> Result<()> {
        let snapshot = self.snapshot()?;
        for pair in snapshot.scan(range)? {
            let (key, value) = pair?;
            if see(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The store as it is now, whatever is written later. GC frees nothing that it may read. Waits for the commit under
    /// way.
    ///
    /// # Errors
    /// The index's.
    pub fn snapshot(&self) -> Result<Snapshot<'_, I>> {
        Snapshot::open(&self.core)
    }

    /// Makes everything committed so far survive a power loss.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub fn sync(&self) -> Result<()> {
        self.core.health.well()?;
        let last = hold(&self.core.log).next() - 1;
        self.core.sync(Upto::Commit(last)).map(drop)
    }

    /// Hands everything committed so far to the index, and syncs that. The next opening replays what comes later.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub fn checkpoint(&self) -> Result<()> {
        self.core.checkpoint_all()
    }

    /// Collects all garbage in value files, whatever the target, and waits for the end.
    ///
    /// # Errors
    /// As [`Store::write`]. What cannot be read is left out, and is the error in the end.
    pub fn gc(&self) -> Result<()> {
        self.core.collect_all()
    }

    /// Does all the work that is due, in the calling thread: hands sealed layers to the index, syncs it, collects
    /// garbage, and deletes files.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub fn wait_idle(&self) -> Result<()> {
        self.core.work_all()
    }

    /// Figures since the store was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.core.stats()
    }

    /// The index.
    #[must_use]
    pub fn index(&self) -> &I {
        &self.core.index
    }

    /// Hands everything to the index, syncs it, and closes the store. Returns its last figures. The next opening has
    /// nothing to replay.
    ///
    /// # Errors
    /// As [`Store::write`]. The store is closed all the same.
    pub fn close(self) -> Result<Stats> {
        self.stop();
        self.core.checkpoint_all()?;
        Ok(self.core.stats())
    }

    fn stop(&self) {
        self.core.signal.stop();
        if let Some(worker) = hold(&self.worker).take() {
            // A panic of the worker was reported by its thread.
            let _ended = worker.join();
        }
    }
}

impl<I: ForeignIndex> Drop for Store<I> {
    fn drop(&mut self) {
        self.stop();
    }
}
