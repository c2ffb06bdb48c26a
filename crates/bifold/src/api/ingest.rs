//! Ingests: how users write sorted entries without the log. Page: `docs/ingest.md`.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use bifold_contract::Result;

use crate::{
    api::keyspace::Keyspace,
    ingest::{IngestReport, IngestRun},
    state::{
        op::{Act, put_until},
        time::instant_of,
    },
};

/// Sorted entries on their way into a keyspace: see [`Keyspace::ingest`]. If it is dropped without
/// [`Ingest::finish`], nothing of it stays.
///
/// It keeps the database open while it lives.
pub struct Ingest {
    keyspace: Keyspace,
    run: IngestRun,
}

impl Keyspace {
    /// Begins an ingest: entries in ascending order of their keys, which are written to tables and value files at once,
    /// without the log, and become visible and durable together by [`Ingest::finish`]. Each value is written once, or
    /// twice where [changes are kept](crate::Options::retain_changes).
    ///
    /// Other reads and writes go on meanwhile. Only one ingest can be open in a database. Its entries are newer than
    /// all that was committed before [`Ingest::finish`].
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-ingest-{}", std::process::id()));
    /// # let db = bifold::Db::open(&dir)?;
    /// # let keyspace = db.default_keyspace();
    /// let mut ingest = keyspace.ingest()?;
    /// for n in 0..1000u32 {
    ///     ingest.put(n.to_be_bytes(), "value")?;
    /// }
    /// assert_eq!(keyspace.get(7u32.to_be_bytes())?, None, "nothing is visible yet");
    /// assert_eq!(ingest.finish()?.entries, 1000);
    /// assert_eq!(keyspace.get(7u32.to_be_bytes())?.as_deref(), Some(&b"value"[..]));
    /// # db.close()?;
    /// # std::fs::remove_dir_all(dir).ok();
    /// # Ok::<(), bifold::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Error::InvalidArgument) while another ingest is open;
    /// [`Poisoned`](crate::Error::Poisoned), [`ReadOnly`](crate::Error::ReadOnly), [`Closed`](crate::Error::Closed).
    pub fn ingest(&self) -> Result<Ingest> {
        let run = self.handle().engine.ingests.begin(self.tree())?;
        Ok(Ingest { keyspace: self.clone(), run })
    }
}

impl Ingest {
    /// Adds an entry. If the keyspace has a [`ttl`](crate::KeyspaceOptions::ttl), the entry expires after it, counted
    /// from this call on.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Error::InvalidArgument) if the key is not larger than the last one, or as for
    /// [`Keyspace::put`]: nothing is added then, and the ingest goes on. After any other error, such as
    /// [`Full`](crate::Error::Full) or an I/O error, all later calls fail.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let act = self.keyspace.put_of(value.as_ref());
        self.add(key.as_ref(), act)
    }

    /// Adds an entry that expires `ttl` from now on: see [`Keyspace::put_with_ttl`].
    ///
    /// # Errors
    /// As [`Ingest::put`].
    pub fn put_with_ttl(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: Duration) -> Result<()> {
        let act = put_until(value.as_ref(), self.keyspace.instant_after(ttl));
        self.add(key.as_ref(), act)
    }

    /// Adds an entry that expires at a moment of the system's clock, or never: see [`Keyspace::put_until`].
    ///
    /// # Errors
    /// As [`Ingest::put`].
    pub fn put_until(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expires_at: Option<SystemTime>,
    ) -> Result<()> {
        self.add(key.as_ref(), put_until(value.as_ref(), expires_at.and_then(instant_of)))
    }

    /// Makes all entries visible in one step. They are durable when this returns, and so is everything that was
    /// committed before. Without entries it commits nothing and makes nothing durable. Commits wait for the end of it:
    /// about two syncs, and the flush of what a memtable has between the first key and the last one.
    ///
    /// # Errors
    /// I/O errors; [`InvalidArgument`](crate::Error::InvalidArgument) after a call that has failed;
    /// [`Full`](crate::Error::Full), [`Poisoned`](crate::Error::Poisoned), [`Closed`](crate::Error::Closed). Nothing is
    /// visible then. If the database is poisoned by this, all entries or none are there when it is opened again.
    pub fn finish(mut self) -> Result<IngestReport> {
        let (engine, run) = (&self.keyspace.handle().engine, &mut self.run);
        engine.call(|| engine.ingests.finish(run))
    }

    fn add(&mut self, key: &[u8], act: Act<'_>) -> Result<()> {
        self.keyspace.handle().engine.ingests.put(&mut self.run, key, act)
    }
}

impl Drop for Ingest {
    fn drop(&mut self) {
        self.keyspace.handle().engine.ingests.end(&mut self.run);
    }
}

impl fmt::Debug for Ingest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ingest").field("keyspace", &self.keyspace.name()).finish_non_exhaustive()
    }
}
