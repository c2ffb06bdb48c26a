//! Whether the database still takes writes.
//!
//! The first failure of a write, a sync or a background job decides: from then on every write answers
//! [`Error::Poisoned`] with that cause. What was acknowledged is in the files, reads go on, and reopening repairs.
//! Going on to write would risk the hole that RocksDB and others had: a lost record followed by later ones.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, Ordering},
};

use bifold_contract::{Error, Result};

/// The state of health of one open database.
#[derive(Debug, Default)]
pub(crate) struct Health {
    first_failure: OnceLock<Error>,
    sick: AtomicBool,
    closed: AtomicBool,
}

impl Health {
    /// Passes `outcome` on; if it is an error, no more writes are taken.
    pub fn watch<T>(&self, outcome: Result<T>) -> Result<T> {
        if let Err(error) = &outcome {
            self.poison(error.clone());
        }
        outcome
    }

    /// Takes no more writes, because of `cause`.
    pub fn poison(&self, cause: Error) {
        let _first_cause_stays = self.first_failure.set(cause);
        self.sick.store(true, Ordering::Release);
    }

    /// Whether writes are taken.
    ///
    /// # Errors
    /// [`Error::Poisoned`] or [`Error::Closed`].
    pub fn writable(&self) -> Result<()> {
        self.open()?;
        if self.sick.load(Ordering::Acquire)
            && let Some(cause) = self.first_failure.get()
        {
            return Err(cause.clone().poisoned());
        }
        Ok(())
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
        !self.closed.swap(true, Ordering::AcqRel)
    }
}
