//! Locks without poisoning: a panic in a holder is a bug that has been reported; what it left is still the truth.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Taking a lock whatever happened to earlier holders.
pub trait LockExt<T> {
    /// Waits for the lock.
    fn hold(&self) -> MutexGuard<'_, T>;
}

impl<T> LockExt<T> for Mutex<T> {
    fn hold(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
