//! Whether a store still takes writes. The first failure of a write, a sync or a job ends them: further ones would risk
//! a lost record followed by later ones. Reads go on, and opening the store again repairs it.

use std::sync::OnceLock;

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

    /// Whether nothing has failed so far.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn well(&self) -> Result<()> {
        self.0.get().map_or(Ok(()), |cause| Err(cause.clone().poisoned()))
    }
}
