//! Locks without poisoning.
//!
//! A panic while a lock is held is a bug that the panicking thread reports. The state under our locks changes in single
//! steps, so readers may go on. Where several steps belong together, writers may not:
//! [`Health::guard`](crate::state::health::Health::guard).

pub(crate) use std::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::ThreadId,
};
use std::{
    sync::{PoisonError, TryLockError, atomic::Ordering::Relaxed},
    time::Duration,
};

/// [`Mutex::lock`] that ignores panics of other holders.
pub(crate) trait LockExt<T> {
    /// Waits for the lock.
    fn hold(&self) -> MutexGuard<'_, T>;
}

impl<T> LockExt<T> for Mutex<T> {
    fn hold(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// [`Condvar::wait_timeout`] that ignores panics of other holders. Returns whether the time is over.
pub(crate) fn wait_for<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    time: Duration,
) -> (MutexGuard<'a, T>, bool) {
    let (guard, end) = changed.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner);
    (guard, end.timed_out())
}

/// The id of this thread.
pub(crate) fn thread_id() -> ThreadId {
    std::thread::current().id()
}

/// A lock whose holder can let others go first. Without that, a thread that takes the lock many times in a row would
/// keep the others out: a thread that must first be woken comes too late every time.
#[derive(Debug, Default)]
pub(crate) struct FairLock<T> {
    inner: Mutex<T>,
    /// How many calls had to wait for the lock.
    waited: AtomicU64,
    /// How many of them have got it.
    served: AtomicU64,
}

impl<T> FairLock<T> {
    /// A lock around `value`.
    pub fn new(value: T) -> Self {
        Self { inner: Mutex::new(value), waited: AtomicU64::new(0), served: AtomicU64::new(0) }
    }

    /// Waits for the lock.
    pub fn hold(&self) -> MutexGuard<'_, T> {
        self.hold_and_tell().0
    }

    /// The same. Also returns whether another thread had it.
    pub fn hold_and_tell(&self) -> (MutexGuard<'_, T>, bool) {
        match self.inner.try_lock() {
            Ok(guard) => (guard, false),
            Err(TryLockError::Poisoned(guard)) => (guard.into_inner(), false),
            Err(TryLockError::WouldBlock) => {
                self.waited.fetch_add(1, Relaxed);
                let guard = self.inner.hold();
                self.served.fetch_add(1, Relaxed);
                (guard, true)
            }
        }
    }

    /// Whether a thread waits for the lock.
    #[cfg(test)]
    pub fn is_awaited(&self) -> bool {
        self.served.load(Relaxed) < self.waited.load(Relaxed)
    }

    /// Returns when all threads that now wait for the lock have got it. The caller must not hold it.
    pub fn let_others(&self) {
        let waiting = self.waited.load(Relaxed);
        while self.served.load(Relaxed) < waiting {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    #[test]
    fn a_waiting_thread_gets_the_lock_before_one_that_lets_others_go_first() {
        let lock = FairLock::new(0);
        let (begun, began) = mpsc::channel();
        thread::scope(|scope| {
            let guard = lock.hold();
            scope.spawn(|| {
                begun.send(()).expect("the other end is there");
                *lock.hold() = 1;
            });
            began.recv().expect("it is sent");
            while lock.waited.load(Relaxed) == 0 {
                thread::yield_now();
            }
            drop(guard);
            lock.let_others();
            assert_eq!(*lock.hold(), 1);
        });
    }
}
