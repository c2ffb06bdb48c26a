//! Reading a database that another process writes: [`Access::Follow`](crate::Access::Follow).

use std::{sync::Arc, time::Duration};

use bifold_contract::{Error, Result, SeqNo};

use crate::api::db::Db;

/// The first pause of a call that asks again, and the longest one.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];

/// What a handle sees after [`Db::refresh`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refreshed {
    /// The last commit that it sees, as [`Snapshot::seqno`](crate::Snapshot::seqno) counts them.
    pub seqno: SeqNo,
    /// Whether it may see more than before.
    pub is_newer: bool,
}

impl Db {
    /// Makes this handle see what another process has committed since, if the database is open with
    /// [`Access::Follow`](crate::Access::Follow). Otherwise the handle always sees the newest commit, and nothing
    /// changes.
    ///
    /// The handle then sees the state after a later commit, or the same one. It never sees an earlier one. Everything
    /// obtained from it before (clones, keyspaces, snapshots, iterators) continues to see the state that it saw, and
    /// keeps its files. So get keyspaces again with [`Db::existing_keyspace`], and drop what is no longer needed.
    ///
    /// It reads what was added to the manifest and the logs, and never makes the writer wait.
    ///
    /// # Errors
    /// I/O errors; [`Error::Corruption`], also if the directory holds an older or another database than before. This
    /// handle then sees what it saw, and the next call reads everything again. [`Error::Closed`].
    ///
    /// ```
    /// use bifold::{Access, Db, Options};
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-refresh-{}", std::process::id()));
    /// let writer = Db::open(&dir)?; // usually in another process
    /// writer.put("lorem", "ipsum")?;
    ///
    /// let mut reader = Db::open_with(&dir, Options { access: Access::Follow, ..Options::default() })?;
    /// assert_eq!(reader.get("lorem")?.as_deref(), Some(&b"ipsum"[..]));
    ///
    /// writer.put("lorem", "dolor")?;
    /// assert_eq!(reader.get("lorem")?.as_deref(), Some(&b"ipsum"[..]));
    /// assert!(reader.refresh()?.is_newer);
    /// assert_eq!(reader.get("lorem")?.as_deref(), Some(&b"dolor"[..]));
    /// # drop(reader);
    /// # writer.close()?;
    /// # std::fs::remove_dir_all(dir).ok();
    /// # Ok::<(), bifold::Error>(())
    /// ```
    pub fn refresh(&mut self) -> Result<Refreshed> {
        self.engine().health.open()?;
        let Some(follower) = &self.handle().follower else {
            return Ok(Refreshed { seqno: self.engine().state.visible(), is_newer: false });
        };
        let newest = follower.newest()?;
        let (seqno, is_newer) = (newest.state.visible(), !Arc::ptr_eq(&newest, self.engine()));
        if is_newer {
            newest.events.tell();
            *self = self.with_state(newest)?;
        }
        Ok(Refreshed { seqno, is_newer })
    }

    /// [`Db::refresh`] that asks again until there is a newer state, at most for `timeout`. It always asks at least
    /// once, and once more at the end.
    ///
    /// The pauses in between grow from 1 ms to 100 ms, so a commit is seen about 100 ms later at most. The writer does
    /// nothing for it, and cannot wake a reader: each time this asks costs some system calls.
    ///
    /// A newer state need not have more commits: after a flush or merge of the writer it has the same ones in other
    /// files, and the files of the state before are needed no longer.
    ///
    /// # Errors
    /// As [`Db::refresh`]; [`Error::Closed`], when another thread closes the database meanwhile, after one pause at
    /// most; [`Error::InvalidArgument`] if the database is not open with
    /// [`Access::Follow`](crate::Access::Follow): then there are no newer states to wait for.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use bifold::{Access, Db, Options};
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-within-{}", std::process::id()));
    /// let writer = Db::open(&dir)?; // usually in another process
    /// let mut reader = Db::open_with(&dir, Options { access: Access::Follow, ..Options::default() })?;
    /// assert!(!reader.refresh_within(Duration::from_millis(5))?.is_newer);
    ///
    /// writer.put("lorem", "ipsum")?;
    /// assert!(reader.refresh_within(Duration::from_secs(10))?.is_newer);
    /// assert_eq!(reader.get("lorem")?.as_deref(), Some(&b"ipsum"[..]));
    /// # drop(reader);
    /// # writer.close()?;
    /// # std::fs::remove_dir_all(dir).ok();
    /// # Ok::<(), bifold::Error>(())
    /// ```
    pub fn refresh_within(&mut self, timeout: Duration) -> Result<Refreshed> {
        if self.handle().follower.is_none() {
            self.engine().health.open()?;
            let reason = "only a database that is open with `Access::Follow` has newer states";
            return Err(Error::invalid("refresh_within", reason));
        }
        let clock = Arc::clone(&self.engine().env.clock);
        let end = clock.now().saturating_add(timeout);
        let [mut pause, longest] = PAUSES;
        loop {
            let seen = self.refresh()?;
            let left = end.saturating_sub(clock.now());
            if seen.is_newer || left.is_zero() {
                return Ok(seen);
            }
            clock.sleep(pause.min(left));
            pause = longest.min(pause * 2);
        }
    }
}
