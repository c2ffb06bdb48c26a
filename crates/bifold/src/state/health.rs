//! Whether the database still takes writes.
//!
//! The first failure of a write, a sync or a background job poisons the database: from then on every write returns
//! [`Error::Poisoned`] with that cause. What was acknowledged is in the files, reads go on, and reopening repairs.
//! Further writes would risk the hole that RocksDB and others had: a lost record followed by later ones. A panic is
//! such a failure: nobody knows how much of the interrupted work is done, and whoever waits for that work would wait
//! forever.
//!
//! **Invariant.** A thread that fails to append to or to sync the log or the manifest records that here before it
//! releases the lock that the next writer of that file waits for, and the next writer checks here first. Only this
//! module notifies waiting threads of a change of health, those that wait for a commit among them.

use std::{
    any::Any,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use bifold_contract::{Error, Result, planted};
use bifold_io::Opener;

use crate::{
    settings::options::Access,
    state::telling::Events,
    waiting::{signal::Signal, visible::LastVisible},
};

/// The state of health of one open database.
#[derive(Debug, Default)]
pub(crate) struct Health {
    first_failure: OnceLock<Error>,
    closed: AtomicBool,
    signal: Arc<Signal>,
    visible: Arc<LastVisible>,
    access: Access,
    events: Arc<Events>,
    opener: Opener,
}

impl Health {
    /// A healthy state of a database opened for `access`. A failure notifies the threads that wait at `signal` and for
    /// what is `visible`, and is told.
    pub fn new((signal, visible): (&Arc<Signal>, &Arc<LastVisible>), access: Access, events: &Arc<Events>) -> Self {
        let (signal, visible, events) = (Arc::clone(signal), Arc::clone(visible), Arc::clone(events));
        Self { signal, visible, access, events, ..Self::default() }
    }

    /// Returns `outcome`. An error poisons the database and notifies waiting threads, unless it is [`Error::Full`],
    /// [`Error::Closed`] or [`Error::OperandsTooLong`]: those are found before anything has changed.
    pub fn watch<T>(&self, outcome: Result<T>) -> Result<T> {
        let is_failure = |error: &&Error| {
            !matches!(error, Error::Full { .. } | Error::Closed { .. } | Error::OperandsTooLong { .. })
        };
        if let Some(error) = outcome.as_ref().err().filter(is_failure) {
            // The first cause stays.
            if self.first_failure.set(error.clone()).is_ok() {
                self.events.poisoned(error);
            }
            self.notify();
        }
        outcome
    }

    /// Does `work`. A panic poisons the database, because nobody knows how much of the work is done, and then
    /// continues.
    pub fn guard<T>(&self, what: &'static str, work: impl FnOnce() -> T) -> T {
        panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panicked| {
            let failure = Error::Panicked { what, message: message(panicked.as_ref()) };
            let _others_notified = self.watch(Err::<(), _>(failure));
            panic::resume_unwind(panicked)
        })
    }

    /// Whether writes of a caller are taken.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], and those of [`Health::writable`].
    pub fn takes_writes(&self) -> Result<()> {
        if !self.access.writes() {
            self.open()?;
            return Err(Error::ReadOnly);
        }
        self.writable()
    }

    /// Whether jobs and commits go on.
    ///
    /// # Errors
    /// [`Error::Poisoned`] or [`Error::Closed`].
    pub fn writable(&self) -> Result<()> {
        self.open()?;
        if self.is_in_child() {
            return Err(Error::Closed { what: "the database in a forked child".into() });
        }
        self.well()
    }

    /// Whether a copy of the database can be made. That seals files and notes their lengths, so a forked child of the
    /// process that writes must not.
    ///
    /// # Errors
    /// [`Error::Closed`]; where the database is open for writing, [`Error::Poisoned`].
    pub fn can_be_copied(&self) -> Result<()> {
        if self.access.writes() { self.writable() } else { self.open() }
    }

    /// Whether this is a forked child of the process that opened the database. The parent goes on with its files, and
    /// knows nothing of what a child would write to them.
    pub fn is_in_child(&self) -> bool {
        self.opener.is_another() && !planted!("children_write")
    }

    /// Whether nothing has failed so far.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn well(&self) -> Result<()> {
        self.failure().map_or(Ok(()), |cause| Err(cause.clone().poisoned()))
    }

    /// Whether the database is open.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed { what: "the database".into() });
        }
        Ok(())
    }

    /// The failure that poisoned the database, if any.
    pub fn failure(&self) -> Option<&Error> {
        self.first_failure.get()
    }

    /// Closes the database: all calls fail from now on. Returns whether this call closed it.
    pub fn close(&self) -> bool {
        let is_first = !self.closed.swap(true, Ordering::AcqRel);
        self.notify();
        is_first
    }

    fn notify(&self) {
        self.signal.notify();
        self.visible.wake();
    }
}

/// The message of a panic.
fn message(panicked: &(dyn Any + Send)) -> String {
    let text = panicked.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panicked.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sync that a `Sync` commit asks for may find that another thread has closed the database.
    #[test]
    fn what_a_closed_or_full_database_refuses_poisons_nothing() {
        let health = Health::default();
        let full = Error::Full { free_bytes: 0, needed_bytes: 1, path: "/db".into() };
        for refused in [Error::Closed { what: "the database".into() }, full] {
            assert!(health.watch(Err::<(), _>(refused)).is_err());
            health.well().unwrap();
        }
        assert!(health.watch(Err::<(), _>(Error::NotFound { path: "/db".into() })).is_err());
        assert!(matches!(health.well(), Err(Error::Poisoned { .. })));
    }
}
