//! Whether a store still takes writes. The first failure of a write, a sync or a job ends them: further ones would risk
//! a lost record followed by later ones. A panic is such a failure: nobody knows how much of the interrupted work is
//! done. Reads go on, and opening the store again repairs it.

use std::{
    any::Any,
    panic::{self, AssertUnwindSafe},
    sync::OnceLock,
};

use bifold_contract::{Error, Result};

/// The first failure of an open store, if there was one.
#[derive(Debug, Default)]
pub(crate) struct Health(OnceLock<Error>);

impl Health {
    /// Returns `outcome`. An error ends writes.
    pub fn watch<T>(&self, outcome: Result<T>) -> Result<T> {
        if let Err(error) = &outcome {
            // The first cause stays.
            let _is_first = self.0.set(error.clone());
        }
        outcome
    }

    /// Does `work`. A panic ends writes, and then continues.
    pub fn guard<T>(&self, what: &'static str, work: impl FnOnce() -> T) -> T {
        panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panicked| {
            let _writers_told = self.watch::<()>(Err(failure(what, panicked.as_ref())));
            panic::resume_unwind(panicked)
        })
    }

    /// Whether nothing has failed so far.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn well(&self) -> Result<()> {
        self.0.get().map_or(Ok(()), |cause| Err(cause.clone().poisoned()))
    }
}

/// A panic as an error.
pub(crate) fn failure(what: &'static str, panicked: &(dyn Any + Send)) -> Error {
    let text = panicked.downcast_ref::<String>().map(String::as_str);
    let message = text.or_else(|| panicked.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned();
    Error::Panicked { what, message }
}
