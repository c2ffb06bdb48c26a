//! The engine's own files, over the primitives of `shuttle`: the code that waits and wakes here is the engine's.

#![allow(dead_code, reason = "the models do not ask for statistics")]

#[path = "../../../src/waiting/group_sync.rs"]
pub mod group_sync;
#[path = "../../../src/waiting/signal.rs"]
pub mod signal;
#[path = "../../../src/waiting/visible.rs"]
pub mod visible;

/// What `src/sync.rs` is to the engine.
pub mod sync {
    use std::{sync::PoisonError, time::Duration};

    pub use shuttle::{
        sync::{
            Condvar, Mutex, MutexGuard,
            atomic::{AtomicBool, AtomicU64, Ordering},
        },
        thread::ThreadId,
    };

    pub trait LockExt<T> {
        fn hold(&self) -> MutexGuard<'_, T>;
    }

    impl<T> LockExt<T> for Mutex<T> {
        fn hold(&self) -> MutexGuard<'_, T> {
            self.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// No time ever passes here: a thread that is not woken is found to wait forever.
    pub fn wait_for<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>, time: Duration) -> (MutexGuard<'a, T>, bool) {
        let (guard, end) = changed.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner);
        (guard, end.timed_out())
    }

    pub fn thread_id() -> ThreadId {
        shuttle::thread::current().id()
    }
}
