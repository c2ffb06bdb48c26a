//! Locks, waits, and the one place that notifies.

pub(crate) mod group_sync;
pub(crate) mod signal;
#[cfg(test)]
mod signal_tests;
pub(crate) mod sync;
pub(crate) mod visible;
