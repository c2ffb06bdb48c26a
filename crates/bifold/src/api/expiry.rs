//! Entries that expire: how users set, ask and change when. Page: `docs/expiry.md`.

use std::time::{Duration, SystemTime};

use bifold_contract::{Millis, Result};

use crate::{
    api::keyspace::Keyspace,
    state::{
        op::{Act, Op, put_until},
        time::{Sight, instant_after, instant_of},
    },
};

/// How long an entry still lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeToLive {
    /// The key has no value, or it has expired.
    NoKey,
    /// It does not expire.
    Forever,
    /// It expires when this time has passed.
    Left(Duration),
}

impl Keyspace {
    /// Sets `key` to `value` for `ttl` from now on. Then it is as if deleted: no read finds it, and compaction frees
    /// its space. `ttl` counts in milliseconds, rounded up; one that is longer than some eight thousand years
    /// ([`Duration::MAX`]) means that the entry does not expire, whatever [`KeyspaceOptions::ttl`] says.
    ///
    /// The first such put of a keyspace records in the manifest that entries expire. Older releases do not open the
    /// database from then on.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-ttl-{}", std::process::id()));
    /// # let db = bifold::Db::open(&dir)?;
    /// use std::time::Duration;
    /// let sessions = db.keyspace("sessions", bifold::KeyspaceOptions::default())?;
    /// sessions.put_with_ttl("alice", "token", Duration::from_secs(3600))?;
    /// assert!(matches!(sessions.ttl("alice")?, bifold::TimeToLive::Left(left) if left.as_secs() >= 3599));
    ///
    /// sessions.put_with_ttl("bob", "token", Duration::ZERO)?;
    /// assert_eq!(sessions.get("bob")?, None);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(dir).ok();
    /// # Ok::<(), bifold::Error>(())
    /// ```
    ///
    /// [`KeyspaceOptions::ttl`]: crate::KeyspaceOptions::ttl
    ///
    /// # Errors
    /// As [`Keyspace::put`], but the value may have 6 bytes less than 1 GiB;
    /// [`InvalidArgument`](crate::Error::InvalidArgument) if the keyspace has a merge operator.
    pub fn put_with_ttl(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: Duration) -> Result<()> {
        self.write(key.as_ref(), put_until(value.as_ref(), self.instant_after(ttl)), self.durability())
    }

    /// Sets `key` to `value` until a moment of the system's clock, for example the one that
    /// [`Pair::expires_at`](crate::Pair::expires_at) says in another database. If it has passed, no read finds the
    /// entry. `None`: for good, whatever the keyspace's `ttl` says.
    ///
    /// # Errors
    /// As [`Keyspace::put_with_ttl`].
    pub fn put_until(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expires_at: Option<SystemTime>,
    ) -> Result<()> {
        self.write(key.as_ref(), put_until(value.as_ref(), expires_at.and_then(instant_of)), self.durability())
    }

    /// How long `key` still lives. Reads no value.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn ttl(&self, key: impl AsRef<[u8]>) -> Result<TimeToLive> {
        let engine = &self.handle().engine;
        let (tree, now) = (self.tree(), engine.time.now());
        let found = engine.reader.expires_at(tree, key.as_ref(), || Sight::now(engine.reader.visible()))?;
        Ok(match found {
            None => TimeToLive::NoKey,
            Some(None) => TimeToLive::Forever,
            Some(Some(instant)) => TimeToLive::Left(Duration::from_millis(instant.saturating_sub(now))),
        })
    }

    /// Lets the value that `key` has live for `ttl` from now on. Returns `false`, and changes nothing, if there is
    /// none. It reads the value and writes it again, a large one in memory; no other write comes in between.
    ///
    /// # Errors
    /// As [`Keyspace::put_with_ttl`] and [`Keyspace::get`].
    pub fn touch(&self, key: impl AsRef<[u8]>, ttl: Duration) -> Result<bool> {
        self.rewrite_until(key.as_ref(), self.instant_after(ttl))
    }

    /// Lets the value that `key` has live for good: otherwise as [`Keyspace::touch`].
    ///
    /// # Errors
    /// As [`Keyspace::touch`].
    pub fn persist(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.rewrite_until(key.as_ref(), None)
    }

    /// A put of the keyspace's default: one that expires if it has a `ttl`.
    pub(crate) fn put_of<'v>(&self, value: &'v [u8]) -> Act<'v> {
        let ttl = self.tree().view().settings.options.ttl;
        ttl.map_or(Act::Put(value), |ttl| put_until(value, self.instant_after(ttl)))
    }

    /// When something expires that lives for `ttl` from now on.
    pub(crate) fn instant_after(&self, ttl: Duration) -> Option<Millis> {
        instant_after(self.handle().engine.time.now(), ttl)
    }

    fn rewrite_until(&self, key: &[u8], instant: Option<Millis>) -> Result<bool> {
        let engine = &self.handle().engine;
        loop {
            let Some(value) = engine.reader.current(self.tree(), key)? else { return Ok(false) };
            let op = Op { tree: self.tree(), key, act: put_until(&value, instant) };
            op.check()?;
            let mut is_same = || Ok(engine.reader.current(self.tree(), key)?.as_deref() == Some(&*value));
            if engine.commit_if(&[op], engine.options.durability, &mut is_same)?.is_some() {
                return Ok(true);
            }
        }
    }
}
