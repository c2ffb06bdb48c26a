//! A transaction, as users have it.

use std::{
    fmt,
    ops::RangeBounds,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bifold_contract::{Error, Result, SeqNo, Value, planted};

use super::{
    begin::{Isolation, TransactionOptions},
    intervals::Interval,
    reads::ReadSet,
    scan::TransactionRange,
    validate::ReadCheck,
    writes::{Put, PutWhat, Savepoint, Writes, Written},
};
use crate::{
    api::{
        db::Handle,
        keyspace::{Keyspace, delete_bounds, interval_of, owned_bounds, prefix_bounds},
    },
    commit::notices::CommitNotice,
    limits::transaction_memory::Charge,
    read::{operands::combined, scan::KeyBounds},
    settings::options::Durability,
    state::{
        op::{Act, Op, put_until},
        snapshot::{Holder, SnapshotGuard},
    },
    waiting::sync::LockExt,
};

/// After so many tries a commit is checked under the commit lock, so that it ends.
const TRIES_WITHOUT_LOCK: usize = 8;

/// A transaction over all keyspaces: it reads one snapshot and its own writes, and takes effect as one commit, or not
/// at all.
///
/// It takes no locks. A commit is refused with [`Error::Conflict`] if somebody else has committed a change to what the
/// transaction has read: a key, or any key of a range as far as it was iterated, one that was not there included.
/// [`Db::transact`](crate::Db::transact) then tries again. A transaction that writes nothing never conflicts.
///
/// Writes stay in memory until [`Transaction::commit`]; dropping the transaction forgets them. What open transactions
/// hold is bounded by [`Options::transaction_bytes_max`](crate::Options::transaction_bytes_max). A transaction may stay
/// open for any time, but keeps old versions on disk as a [`Snapshot`](crate::Snapshot) does.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("bifold-doc-transaction-{}", std::process::id()));
/// let db = bifold::Db::open(&dir)?;
/// let ks = db.default_keyspace();
/// let mut tx = db.transaction();
/// assert_eq!(tx.get(ks, "seats")?, None);
/// tx.put(ks, "seats", "1")?;
///
/// db.put("seats", "99")?;                                // somebody else
/// assert!(tx.commit().unwrap_err().is_conflict());
/// assert_eq!(db.get("seats")?.as_deref(), Some(&b"99"[..]));
/// # db.close()?;
/// # std::fs::remove_dir_all(dir).ok();
/// # Ok::<(), bifold::Error>(())
/// ```
#[must_use = "a transaction that is dropped writes nothing"]
pub struct Transaction {
    handle: Arc<Handle>,
    snapshot: Arc<SnapshotGuard>,
    options: TransactionOptions,
    reads: Mutex<ReadSet>,
    writes: Writes,
    charge: Charge,
}

impl Transaction {
    pub(super) fn begin(handle: &Arc<Handle>, options: TransactionOptions) -> Self {
        Self {
            snapshot: Arc::new(handle.open_snapshot(Holder::Transaction)),
            options,
            reads: Mutex::default(),
            writes: Writes::default(),
            charge: Charge::on(&handle.engine.transactions),
            handle: Arc::clone(handle),
        }
    }

    /// The last commit that it sees, in addition to its own writes.
    #[must_use]
    pub fn snapshot(&self) -> SeqNo {
        self.snapshot.seqno
    }

    /// The memory that it takes, in bytes, as counted against
    /// [`Options::transaction_bytes_max`](crate::Options::transaction_bytes_max).
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.charge.bytes()
    }

    /// The value of `key`: what this transaction has written last, or else what the snapshot has.
    ///
    /// # Errors
    /// As [`Keyspace::get`]; [`Error::TransactionTooLarge`].
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let key = key.as_ref();
        self.belongs(keyspace)?;
        match self.writes.look(keyspace.tree().keyspace, key) {
            Some(Some(Put { value, what: PutWhat::Operand })) if !planted!("transaction_sees_operands_alone") => {
                let base = self.get_stored(keyspace, key)?;
                combined(keyspace.tree(), key, (base.as_deref(), &value)).map(|value| Some(value.into()))
            }
            Some(written) => Ok(written.map(|put| put.value)),
            None => self.get_stored(keyspace, key),
        }
    }

    /// The value of `key` at the snapshot.
    fn get_stored(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Value>> {
        self.note_key(keyspace, key)?;
        self.note_instant(keyspace, key)?;
        self.handle.engine.reader.get(keyspace.tree(), key, Some(self.snapshot.sight()))
    }

    /// [`Transaction::get`] that makes the commit depend on `key` at every isolation, even if this transaction has
    /// written it: nobody else may have changed it since the transaction began.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn get_for_update(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let key = key.as_ref();
        self.belongs(keyspace)?;
        if !planted!("for_update_notes_nothing") {
            self.lock_reads().note_key(keyspace.tree(), key, &self.charge)?;
            self.note_instant_of(keyspace, key)?;
        }
        self.get(keyspace, key)
    }

    /// Whether `key` has a value. To the commit this is a read of the whole value.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        let key = key.as_ref();
        self.belongs(keyspace)?;
        match self.writes.look(keyspace.tree().keyspace, key) {
            Some(written) => Ok(written.is_some()),
            None => {
                self.note_key(keyspace, key)?;
                self.note_instant(keyspace, key)?;
                self.handle.engine.reader.contains(keyspace.tree(), key, Some(self.snapshot.sight()))
            }
        }
    }

    /// The values of several keys, in the order of `keys`.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>> {
        self.belongs(keyspace)?;
        let keys: Vec<K> = keys.into_iter().collect();
        let own = |key: &K| self.writes.look(keyspace.tree().keyspace, key.as_ref());
        let own: Vec<Option<Written>> = keys.iter().map(own).collect();
        let stored: Vec<&[u8]> =
            keys.iter().zip(&own).filter(|(_, own)| own.is_none()).map(|(key, _)| key.as_ref()).collect();
        for key in &stored {
            self.note_key(keyspace, key)?;
            self.note_instant(keyspace, key)?;
        }
        let mut found =
            self.handle.engine.reader.multi_get(keyspace.tree(), stored, self.snapshot.sight())?.into_iter();
        let value = |(own, key): (Option<Written>, &K)| match own {
            Some(Some(Put { what: PutWhat::Operand, .. })) => self.get(keyspace, key),
            Some(written) => Ok(written.map(|put| put.value)),
            None => Ok(found.next().flatten()),
        };
        own.into_iter().zip(&keys).map(value).collect()
    }

    /// All entries of `keyspace`, in key order: as [`Transaction::range`].
    pub fn iter(&self, keyspace: &Keyspace) -> TransactionRange<'_> {
        self.range::<&[u8]>(keyspace, ..)
    }

    /// The entries of `keyspace` whose keys lie in `range`, in key order, from either end. A serializable commit
    /// depends on the part of the range that the iterator has passed, and on all of it once the iterator has ended. The
    /// iterator yields the errors that [`Transaction::get`] returns.
    pub fn range<K: AsRef<[u8]>>(&self, keyspace: &Keyspace, range: impl RangeBounds<K>) -> TransactionRange<'_> {
        self.scan(keyspace, owned_bounds(&range))
    }

    /// The entries of `keyspace` whose keys begin with `prefix`: as [`Transaction::range`].
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> TransactionRange<'_> {
        self.scan(keyspace, prefix_bounds(prefix.as_ref()))
    }

    /// Sets `key` to `value`. If the keyspace has a [`ttl`](crate::KeyspaceOptions::ttl), it counts from now on, not
    /// from the commit.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a key or value that cannot be stored ([`Keyspace::put`]), or a keyspace of
    /// another database; [`Error::TransactionTooLarge`]. Nothing is changed then.
    pub fn put(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_act(keyspace, key.as_ref(), keyspace.put_of(value.as_ref()))
    }

    /// Sets `key` to `value` for `ttl` from now on, not from the commit: see [`Keyspace::put_with_ttl`]. The
    /// transaction itself sees the value until it ends.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn put_with_ttl(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<()> {
        self.put_act(keyspace, key.as_ref(), put_until(value.as_ref(), keyspace.instant_after(ttl)))
    }

    fn put_act(&mut self, keyspace: &Keyspace, key: &[u8], act: Act<'_>) -> Result<()> {
        self.check(keyspace, key, act)?;
        let put = match act {
            Act::PutUntil(value, instant) => (value, PutWhat::Value(Some(instant))),
            Act::Put(value) => (value, PutWhat::Value(None)),
            _ => unreachable!("a put"),
        };
        self.writes.set(keyspace, key, Some(put), &self.charge).map(drop)
    }

    /// Gives `key` an operand: see [`Keyspace::merge`]. It reads nothing, so a serializable commit does not depend on
    /// the key: what others commit meanwhile is below the operand. With [`Isolation::Snapshot`] it is a write like any
    /// other.
    ///
    /// # Errors
    /// As [`Transaction::put`]; [`Error::Merge`] if this transaction has written the key, and the operator cannot
    /// combine both.
    pub fn merge(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<()> {
        let (key, operand) = (key.as_ref(), operand.as_ref());
        self.check(keyspace, key, Act::Merge(operand))?;
        let Some(before) = self.writes.look(keyspace.tree().keyspace, key) else {
            return self.writes.set(keyspace, key, Some((operand, PutWhat::Operand)), &self.charge).map(drop);
        };
        let what = before.as_ref().map_or(PutWhat::Value(None), |put| put.what);
        let both = combined(keyspace.tree(), key, (before.as_ref().map(|put| &*put.value), operand))?;
        self.writes.set(keyspace, key, Some((&both, what)), &self.charge).map(drop)
    }

    /// Deletes `key`. It is no error if the key does not exist.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn delete(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        let key = key.as_ref();
        self.check(keyspace, key, Act::Delete)?;
        self.writes.set(keyspace, key, None, &self.charge).map(drop)
    }

    /// Deletes all keys in `range`, those that others put there before this transaction is committed included. It reads
    /// nothing, so a serializable commit does not depend on the range.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn delete_range<K: AsRef<[u8]>>(&mut self, keyspace: &Keyspace, range: impl RangeBounds<K>) -> Result<()> {
        let Some((start, end)) = delete_bounds(&range) else { return self.belongs(keyspace) };
        self.check(keyspace, &start, Act::DeleteRange(end.as_deref()))?;
        self.writes.delete_range(keyspace, (start, end), &self.charge)
    }

    /// A moment to which [`Transaction::rollback_to`] goes back. If nothing was written since the last one, it is that
    /// one.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-savepoint-{}", std::process::id()));
    /// # let db = bifold::Db::open(&dir)?;
    /// # let ks = db.default_keyspace();
    /// let mut tx = db.transaction();
    /// tx.put(ks, "a", "1")?;
    /// let savepoint = tx.savepoint();
    /// tx.delete_range::<&str>(ks, ..)?;
    /// assert_eq!(tx.get(ks, "a")?, None);
    /// tx.rollback_to(savepoint)?;
    /// assert_eq!(tx.get(ks, "a")?.as_deref(), Some(&b"1"[..]));
    /// # drop(tx);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(dir).ok();
    /// # Ok::<(), bifold::Error>(())
    /// ```
    pub fn savepoint(&mut self) -> Savepoint {
        self.writes.savepoint()
    }

    /// Undoes all writes since `savepoint`, to which it can go back again. Reads since then still count: the program
    /// knows their answers.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is of another transaction, or if this transaction has gone back to an earlier
    /// savepoint since.
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<()> {
        self.writes.go_back(savepoint, &self.charge)
    }

    /// Ends the transaction without writing anything, as dropping it does.
    pub fn rollback(self) {}

    /// Commits all writes as one commit, with the durability of the transaction's options. Returns its number: a
    /// snapshot with this [`seqno`](crate::Snapshot::seqno) or a larger one sees it. Without writes that is the number
    /// of the transaction's own snapshot.
    ///
    /// # Errors
    /// [`Error::Conflict`]; as [`Keyspace::get`]; as [`Db::commit`](crate::Db::commit), which says what is visible
    /// then. [`Error::Closed`] also when a keyspace was dropped that was read.
    pub fn commit(self) -> Result<SeqNo> {
        let durability = self.options.durability.unwrap_or(self.handle.engine.options.durability);
        self.commit_with(durability)
    }

    /// [`Transaction::commit`] that does not wait for a sync: the notice it returns resolves when the commit is
    /// durable, as that of [`Db::commit_async`](crate::Db::commit_async) does. Without writes it resolves when all that
    /// the transaction could see is.
    ///
    /// # Errors
    /// As [`Transaction::commit`]; [`Error::ReadOnly`]; the system's error if it cannot create a thread.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-tx-notice-{}", std::process::id()));
    /// # let db = bifold::Db::open(&dir)?;
    /// let ks = db.default_keyspace();
    /// let mut tx = db.transaction();
    /// tx.put(ks, "a", "1")?;
    /// let notice = tx.commit_async()?;                   // visible
    /// notice.wait()?;                                    // durable
    /// # db.close()?;
    /// # std::fs::remove_dir_all(dir).ok();
    /// # Ok::<(), bifold::Error>(())
    /// ```
    pub fn commit_async(self) -> Result<CommitNotice> {
        let handle = Arc::clone(&self.handle);
        let engine = &handle.engine;
        engine.health.takes_writes()?;
        engine.notices.begin(&*engine.env.threads, &engine.work)?;
        let seqno = self.commit_with(Durability::Buffered)?;
        Ok(engine.notices.of(seqno))
    }

    /// [`Transaction::commit`] with this durability. Without writes nothing is synced, whatever it has read.
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    pub fn commit_with(self, durability: Durability) -> Result<SeqNo> {
        let Self { handle, snapshot, options, reads, writes, charge } = self;
        let engine = &handle.engine;
        let ops = writes.ops();
        if ops.is_empty() {
            // All of it happened when the snapshot was taken.
            return engine.health.open().map(|()| snapshot.seqno);
        }
        let mut reads = reads.into_inner().unwrap_or_else(PoisonError::into_inner);
        reads.end_scans(&charge);
        let mut check = ReadCheck::new(&engine.reader, &snapshot, &reads);
        if options.isolation == Isolation::Snapshot {
            check.add_writes(&writes);
        }
        if planted!("transaction_publishes_first") {
            engine.commit(&ops, durability)?;
            return check.at_once().map(|()| engine.reader.visible());
        }
        for _ in 0..TRIES_WITHOUT_LOCK {
            if let Some(committed) = engine.commit_if(&ops, durability, &mut check)? {
                return Ok(committed);
            }
        }
        check.decide_under_lock();
        let committed = engine.commit_if(&ops, durability, &mut check)?;
        Ok(committed.unwrap_or_else(|| unreachable!("under the lock it is decided")))
    }

    fn scan(&self, keyspace: &Keyspace, bounds: KeyBounds) -> TransactionRange<'_> {
        let interval = interval_of(&bounds);
        let noted = self.belongs(keyspace).and_then(|()| self.note_scan(keyspace, interval.clone()));
        let stored = self.handle.engine.reader.range(keyspace.tree(), bounds, Arc::clone(&self.snapshot));
        let own = self.writes.to(keyspace.tree().keyspace);
        TransactionRange::new(stored, own, interval, noted.map(|number| (number, &self.reads, &self.charge)))
    }

    /// The number of the scan, if it is noted.
    fn note_scan(&self, keyspace: &Keyspace, interval: Option<Interval>) -> Result<Option<u64>> {
        let is_noted = self.options.isolation == Isolation::Serializable && !planted!("transaction_forgets_ranges");
        let Some(interval) = interval.filter(|_| is_noted) else { return Ok(None) };
        self.lock_reads().begin_scan(keyspace.tree(), interval, &self.charge).map(Some)
    }

    fn note_key(&self, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
        match self.options.isolation {
            Isolation::Serializable => self.lock_reads().note_key(keyspace.tree(), key, &self.charge),
            Isolation::Snapshot => Ok(()),
        }
    }

    /// Notes when the value that a read of `key` finds expires, if the commit depends on it.
    fn note_instant(&self, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
        match self.options.isolation {
            Isolation::Serializable => self.note_instant_of(keyspace, key),
            Isolation::Snapshot => Ok(()),
        }
    }

    fn note_instant_of(&self, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
        let (tree, reader) = (keyspace.tree(), &self.handle.engine.reader);
        if tree.may_lose_entries()
            && let Some(Some(at)) = reader.expires_at(tree, key, || self.snapshot.sight())?
        {
            self.lock_reads().note_instant(at);
        }
        Ok(())
    }

    fn lock_reads(&self) -> MutexGuard<'_, ReadSet> {
        self.reads.hold()
    }

    fn belongs(&self, keyspace: &Keyspace) -> Result<()> {
        match keyspace.belongs_to(&self.handle) {
            true => Ok(()),
            false => Err(Error::invalid("transaction", "the keyspace belongs to another database")),
        }
    }

    fn check(&self, keyspace: &Keyspace, key: &[u8], act: Act<'_>) -> Result<()> {
        self.belongs(keyspace)?;
        Op { tree: keyspace.tree(), key, act }.check()
    }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction")
            .field("snapshot", &self.snapshot())
            .field("options", &self.options)
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}
