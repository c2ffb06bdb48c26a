//! HashKV's write cache (§3.2 there): writes of a keyspace are gathered in memory, where a newer write of a key
//! replaces an older one, and are committed together when they are many.
//!
//! ```text
//! put, delete ─▶ gathered: the newest write of each key ─▶ full? ─▶ one commit: values, log, memtable
//! get ─────────▶ gathered, else the keyspace
//! ```
//!
//! * **One commit**, so a crash leaves all that one drain writes, or nothing of it. The paper has a write journal for
//!   this.
//! * **Writers wait** while the gathered writes are committed. Readers do not: they find them here until the commit is
//!   visible in the keyspace.
//! * **Memory** is that of transactions. If they have none left, what is gathered is committed early.

use std::{
    fmt,
    sync::{
        Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bifold_contract::{Error, Result, Value, planted};

use super::writes::{Put, PutWhat, Writes};
use crate::{
    api::keyspace::Keyspace,
    limits::transaction_memory::Charge,
    settings::options::Durability,
    state::op::{Act, Op, put_until},
    waiting::sync::LockExt,
};

/// More is not gathered: all of it, and one more value, is one commit.
const BYTES_MAX: u64 = 512 << 20;

/// Writes of one keyspace that are gathered in memory and committed together: HashKV's write cache. Made by
/// [`Keyspace::write_cache`].
///
/// A key that is written again before it is committed is written to disk once, and leaves no garbage. In return **a
/// crash loses what is gathered**, the end of a killed process included: use it for what can be made again. What was
/// drained has the promises of any commit, and a crash keeps all that one drain wrote or nothing of it.
///
/// Reads of the cache see its writes. The keyspace itself, its ranges and snapshots see them from the next drain on:
/// [`drain`](WriteCache::drain) before a scan. Threads may share it. The write that fills it waits until all is
/// committed, and other writers to it wait with it, so do not write to it from a compaction filter or an event
/// listener, which may be what the commit waits for.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("bifold-doc-write-cache-{}", std::process::id()));
/// # let db = bifold::Db::open(&dir)?;
/// let counts = db.default_keyspace();
/// let cache = counts.write_cache(4 << 20)?;
/// for count in 0..1000u32 {
///     cache.put("visits", count.to_le_bytes())?;         // in memory
/// }
/// assert_eq!(cache.get("visits")?.as_deref(), Some(&999u32.to_le_bytes()[..]));
/// assert_eq!(counts.get("visits")?, None);
///
/// cache.close()?;                                        // one commit of one key
/// assert_eq!(counts.get("visits")?.as_deref(), Some(&999u32.to_le_bytes()[..]));
/// # db.close()?;
/// # std::fs::remove_dir_all(dir).ok();
/// # Ok::<(), bifold::Error>(())
/// ```
pub struct WriteCache {
    keyspace: Keyspace,
    bytes_max: u64,
    /// Held by whoever writes or drains.
    turn: Mutex<()>,
    /// Changed only by the holder of `turn`.
    gathered: RwLock<Writes>,
    charge: Charge,
    replaced: AtomicU64,
}

impl Keyspace {
    /// A cache that gathers up to `bytes_max` bytes of writes to this keyspace: keys, values, and 96 bytes for each
    /// key. The write that reaches this limit commits all of them; with 0 each write is a commit. They are counted as
    /// writes of open transactions are, so [`Options::transaction_bytes_max`](crate::Options::transaction_bytes_max),
    /// by default a sixteenth of `memory_limit`, is a limit, too.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Error::InvalidArgument) for more than 512 MiB, all of which would be one commit.
    pub fn write_cache(&self, bytes_max: u64) -> Result<WriteCache> {
        if bytes_max > BYTES_MAX {
            let reason = format!("{bytes_max} bytes are too many for one commit: at most {BYTES_MAX} may be gathered");
            return Err(Error::invalid("bytes_max", reason));
        }
        Ok(WriteCache {
            keyspace: self.clone(),
            bytes_max,
            turn: Mutex::new(()),
            gathered: RwLock::default(),
            charge: Charge::on(&self.handle().engine.transactions),
            replaced: AtomicU64::new(0),
        })
    }
}

impl WriteCache {
    /// Sets `key` to `value`. If the keyspace has a [`ttl`](crate::KeyspaceOptions::ttl), it counts from now on.
    ///
    /// # Errors
    /// As [`Keyspace::put`]. If what is gathered could not be committed, all that was gathered before stays in the
    /// cache. This write is there, too, unless transactions had no memory left for it: write it again.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.write(key.as_ref(), self.keyspace.put_of(value.as_ref()))
    }

    /// Sets `key` to `value` for `ttl` from now on: see [`Keyspace::put_with_ttl`].
    ///
    /// # Errors
    /// As [`WriteCache::put`].
    pub fn put_with_ttl(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: Duration) -> Result<()> {
        self.write(key.as_ref(), put_until(value.as_ref(), self.keyspace.instant_after(ttl)))
    }

    /// Deletes `key`. It is no error if the key does not exist.
    ///
    /// # Errors
    /// As [`WriteCache::put`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.write(key.as_ref(), Act::Delete)
    }

    /// The value of `key`: what was written last, here or, if nothing of the key is gathered, in the keyspace.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let (key, tree) = (key.as_ref(), self.keyspace.tree());
        let engine = &self.keyspace.handle().engine;
        let gathered = self.gathered().look(tree.keyspace, key);
        let Some(written) = gathered else { return self.keyspace.get(key) };
        tree.readable(&engine.health)?;
        let is_alive = |put: &Put| match put.what {
            PutWhat::Value(Some(instant)) => instant > engine.time.now(),
            _ => true,
        };
        Ok(written.filter(is_alive).map(|put| put.value))
    }

    /// Commits all that is gathered, as one commit with the database's durability.
    ///
    /// # Errors
    /// As [`Db::commit`](crate::Db::commit). All of it stays in the cache then, and the next drain commits it again.
    pub fn drain(&self) -> Result<()> {
        self.drain_with(self.keyspace.handle().engine.options.durability)
    }

    /// [`WriteCache::drain`] with this durability. [`Durability::Sync`] makes durable what was drained earlier, too.
    ///
    /// # Errors
    /// As [`WriteCache::drain`].
    pub fn drain_with(&self, durability: Durability) -> Result<()> {
        let _turn = self.turn.hold();
        self.commit_gathered(durability)?;
        match durability {
            // A commit of nothing syncs nothing. After one of something this finds everything durable.
            Durability::Sync => self.keyspace.handle().engine.syncs.sync(),
            _ => Ok(()),
        }
    }

    /// Drains the cache and ends it. Dropping it does the same, and ignores errors.
    ///
    /// # Errors
    /// As [`WriteCache::drain`]; what is gathered may be lost then. It is lost if the database was closed before.
    pub fn close(self) -> Result<()> {
        self.drain()
    }

    /// The memory that gathered writes take, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.charge.bytes()
    }

    /// How many writes were replaced by newer ones of their keys before they were committed.
    #[must_use]
    pub fn replaced(&self) -> u64 {
        self.replaced.load(Relaxed)
    }

    fn write(&self, key: &[u8], act: Act<'_>) -> Result<()> {
        let (tree, engine) = (self.keyspace.tree(), &self.keyspace.handle().engine);
        let op = Op { tree, key, act };
        // What a commit refuses, it refuses with all that is gathered.
        op.check()?;
        tree.readable(&engine.health)?;
        engine.health.takes_writes()?;
        let durability = engine.options.durability;
        let _turn = self.turn.hold();
        // The lock ends here: what follows reads under it.
        let kept = self.change().set(&self.keyspace, key, put_by(act), &self.charge);
        match kept {
            Ok(has_replaced) => {
                self.replaced.fetch_add(u64::from(has_replaced), Relaxed);
                if self.bytes() >= self.bytes_max { self.commit_gathered(durability) } else { Ok(()) }
            }
            // Transactions and other caches have the memory. What is gathered is older than this write.
            Err(Error::TransactionTooLarge { .. }) => {
                self.commit_gathered(durability)?;
                engine.commit(&[op], durability)
            }
            Err(error) => Err(error),
        }
    }

    /// Commits what is gathered. The caller has the turn.
    fn commit_gathered(&self, durability: Durability) -> Result<()> {
        let engine = &self.keyspace.handle().engine;
        if planted!("write_cache_is_emptied_first") {
            let writes = std::mem::take(&mut *self.change());
            self.charge.give_back(self.bytes());
            return engine.commit(&writes.ops(), durability);
        }
        let gathered = self.gathered();
        let ops = gathered.ops();
        if ops.is_empty() {
            return Ok(());
        }
        if planted!("write_cache_drains_in_two") && ops.len() > 1 {
            engine.commit(&ops[..ops.len() / 2], durability)?;
        }
        engine.commit(&ops, durability)?;
        drop(ops);
        drop(gathered);
        *self.change() = Writes::default();
        self.charge.give_back(self.bytes());
        Ok(())
    }

    fn gathered(&self) -> RwLockReadGuard<'_, Writes> {
        self.gathered.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Only for the holder of the turn.
    fn change(&self) -> RwLockWriteGuard<'_, Writes> {
        self.gathered.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an operation puts; `None`: it deletes.
fn put_by(act: Act<'_>) -> Option<(&[u8], PutWhat)> {
    match act {
        Act::Put(value) => Some((value, PutWhat::Value(None))),
        Act::PutUntil(value, instant) => Some((value, PutWhat::Value(Some(instant)))),
        _ => None,
    }
}

impl Drop for WriteCache {
    fn drop(&mut self) {
        let _nobody_is_left_to_tell = self.drain();
    }
}

impl fmt::Debug for WriteCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteCache").field("keyspace", &self.keyspace).field("bytes", &self.bytes()).finish()
    }
}
