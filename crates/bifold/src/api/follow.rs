//! Reading a database that another process writes: [`Access::Follow`](crate::Access::Follow).

use std::sync::Arc;

use bifold_contract::{Result, SeqNo};

use crate::api::db::Db;

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
    /// I/O errors; [`Error::Corruption`](crate::Error::Corruption), also if the directory holds an older database than
    /// before. This handle then sees what it saw, and the next call reads everything again.
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
            *self = self.with_state(newest)?;
        }
        Ok(Refreshed { seqno, is_newer })
    }
}
