//! Whether the database still takes writes.
//!
//! The first failure of a write, a sync or a background job decides: from then on every write answers
//! [`Error::Poisoned`] with that cause. What was acknowledged is in the files, reads go on, and reopening repairs.
//! Going on to write would risk the hole that RocksDB and others had: a lost record followed by later ones. A panic is
//! such a failure: of what it interrupts nobody knows how much is done, and who waits for it would wait for ever.
//!
//! **Invariant.** Whoever fails to append to or to sync the log or the manifest says so here before it lets go of the lock
//! that the next writer of that file waits for, and the next writer looks here first. Every change of health is told to
//! whoever waits for anything, here and nowhere else.

use std::{
    any::Any,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use bifold_contract::{Error, Result};

use crate::signal::Signal;

/// The state of health of one open database.
#[derive(Debug, Default)]
pub(crate) struct Health {
    first_failure: OnceLock<Error>,
    closed: AtomicBool,
    signal: Arc<Signal>,
}

impl Health {
    /// All is well. Whoever waits at `signal` learns when it is not any more.
    pub fn new(signal: Arc<Signal>) -> Self {
        Self { signal, ..Self::default() }
    }

    /// Passes `outcome` on; if it is an error, no more writes are taken, and whoever waits learns it.
    pub fn watch<T>(&self, outcome: Result<T>) -> Result<T> {
        // A disk with too little room was found out before anything was changed.
        if let Some(error) = outcome.as_ref().err().filter(|error| !matches!(error, Error::Full { .. })) {
            let _first_cause_stays = self.first_failure.set(error.clone());
            self.signal.tell();
        }
        outcome
    }

    /// Does `work`, of which nobody knows how much is done if it panics: then no more writes are taken, and the panic goes on.
    pub fn guard<T>(&self, what: &'static str, work: impl FnOnce() -> T) -> T {
        panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panicked| {
            let failure = Error::Panicked { what, message: message(panicked.as_ref()) };
            let _told_to_all_others = self.watch(Err::<(), _>(failure));
            panic::resume_unwind(panicked)
        })
    }

    /// Whether writes are taken.
    ///
    /// # Errors
    /// [`Error::Poisoned`] or [`Error::Closed`].
    pub fn writable(&self) -> Result<()> {
        self.open()?;
        self.well()
    }

    /// Whether nothing has failed so far.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn well(&self) -> Result<()> {
        self.failure().map_or(Ok(()), |cause| Err(cause.clone().poisoned()))
    }

    /// Whether reads are answered.
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

    /// Answers nothing from now on. Returns whether this call closed it.
    pub fn close(&self) -> bool {
        let is_first = !self.closed.swap(true, Ordering::AcqRel);
        self.signal.tell();
        is_first
    }
}

/// What a panic said.
fn message(panicked: &(dyn Any + Send)) -> String {
    let text = panicked.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panicked.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}
