//! Waits for the next change.
//!
//! A feed looks at every commit, also at those of GC, which are no changes: so it does not fall behind logs that are
//! deleted while it waits. How a commit wakes it: [`visible`](crate::waiting::visible).

use std::{sync::Arc, time::Duration};

use bifold_contract::{Error, Result, SeqNo};

use super::Changes;
use crate::{
    engine::Engine,
    waiting::{signal::PATIENCE, visible::Turn},
};

impl Changes {
    /// Waits until there is a change that [`next`](Iterator::next) yields, at most for `timeout`; `None`: without end.
    /// Returns whether there is one. What GC commits when it moves values is no change.
    ///
    /// A feed that waits does not keep the database open, unlike other handles. When that is closed, or the last of its
    /// other handles is dropped, this ends with [`Error::Closed`] at once, and the feed holds nothing of the database
    /// any more. So a thread that waits needs no other way to be ended.
    ///
    /// Nothing is polled, and commits do something for this only if somebody is waiting.
    ///
    /// ```
    /// use bifold::{Db, Error, Options, RetainChanges};
    ///
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-wait-{}", std::process::id()));
    /// let retain_changes = Some(RetainChanges { bytes: 64 << 20, age: None });
    /// let db = Db::open_with(&dir, Options { retain_changes, ..Options::default() })?;
    /// let mut changes = db.changes(0)?;
    /// let (tell, told) = std::sync::mpsc::channel();
    /// let thread = std::thread::spawn(move || -> bifold::Result<()> {
    ///     while changes.wait(None)? {
    ///         for change in &mut changes {
    ///             let _nobody_listens = tell.send(change?.key);
    ///         }
    ///     }
    ///     Ok(())
    /// });
    /// db.put("a", "1")?;
    /// assert_eq!(told.recv().as_deref(), Ok(&b"a"[..]));
    /// db.close()?;
    /// let ended = thread.join().expect("it does not panic");
    /// assert!(matches!(ended, Err(Error::Closed { .. })));
    /// # std::fs::remove_dir_all(dir).ok();
    /// # Ok::<(), bifold::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::Poisoned`] once a failure has ended writes, because nothing will be committed any
    /// more; the errors of reading the next change, such as [`Error::ChangesGone`]; [`Error::InvalidArgument`] where
    /// another process writes the database: [`Db::refresh_within`](crate::Db::refresh_within) waits there.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool> {
        if !self.is_writer() {
            let reason = "this process does not write the database: call `Db::refresh_within`, then `Db::changes`";
            return Err(Error::invalid("wait", reason));
        }
        let has_change = self.wait_within(timeout);
        if has_change.is_err() && self.engine().is_ok_and(|engine| engine.health.open().is_err()) {
            self.handle = None;
        }
        if self.handle.is_none() {
            (self.at, self.ingest) = (None, None);
        }
        has_change
    }

    fn wait_within(&mut self, timeout: Option<Duration>) -> Result<bool> {
        let mut left = timeout;
        loop {
            let engine = self.engine()?;
            let (clock, seen) = (Arc::clone(&engine.env.clock), engine.visible.seqno());
            let begin = clock.now();
            if !self.waiting.is_empty() || self.read_on()? {
                return Ok(true);
            }
            if left == Some(Duration::ZERO) {
                return self.engine()?.health.writable().map(|()| false);
            }
            let time = left.unwrap_or(PATIENCE).min(PATIENCE);
            let has_lasted = self.sleep_after(seen, time)?;
            // On a clock that stands still this ends, too.
            let at_least = if has_lasted { time } else { Duration::ZERO };
            let passed = clock.now().saturating_sub(begin).max(at_least);
            left = left.map(|left| left.saturating_sub(passed));
        }
    }

    /// Sleeps until there are commits after `seen`, or the time is over. Returns whether it is.
    fn sleep_after(&mut self, seen: SeqNo, time: Duration) -> Result<bool> {
        let engine = self.engine()?;
        let turn = {
            let _commits = engine.wal.hold();
            engine.visible.expect_after(seen)
        };
        let Some(turn) = turn else { return Ok(false) };
        // With the turn in hand: what closes the database or fails from now on ends it.
        engine.health.writable()?;
        let has_lasted = self.sleep(turn, time)?;
        if has_lasted {
            check_wake(self.engine()?, turn);
        }
        Ok(has_lasted)
    }

    /// Sleeps without a handle of the database.
    fn sleep(&mut self, turn: Turn, time: Duration) -> Result<bool> {
        let Some(handle) = self.handle.take() else { return self.engine().map(|_| false) };
        let (visible, health) = (Arc::clone(&handle.engine.visible), Arc::clone(&handle.engine.health));
        let weak = Arc::downgrade(&handle);
        // If it was the last one, this closes the database, and the turn is over.
        drop(handle);
        let has_lasted = visible.sleep(turn, time);
        // Not even for a moment does this keep what is closed: the directory may be opened again at once.
        self.handle = health.open().ok().and_then(|()| weak.upgrade());
        self.engine().map(|_| has_lasted)
    }
}

/// Notes if there was a commit meanwhile that has not woken this thread.
fn check_wake(engine: &Engine, turn: Turn) {
    let is_slept_through = {
        let _commits = engine.wal.hold();
        engine.visible.is_slept_through(turn)
    };
    if is_slept_through {
        let words = engine.signal.note_overdue("a feed", "the next commit", "it was made and nobody notified");
        debug_assert!(false, "{words}");
    }
}
