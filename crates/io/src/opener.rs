//! Which process opened something.
//!
//! A child that a process forks without `exec` has a copy of everything that its parent has open, and shares its files,
//! locks and mappings. What the child drops or writes there would change what the parent goes on with.

use std::{
    process,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

/// This process's number; 0 where it has to be asked for. To ask is a system call, too much for each commit.
static CURRENT: AtomicU32 = AtomicU32::new(0);

/// The process that opened something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opener(u32);

impl Opener {
    /// This process.
    #[must_use]
    pub fn this() -> Self {
        Self(current())
    }

    /// Whether this process is not the one that opened it, but a forked child. It has nothing to write, and threads
    /// that it does not have may have held locks.
    #[inline]
    #[must_use]
    pub fn is_another(self) -> bool {
        self.0 != current()
    }
}

impl Default for Opener {
    fn default() -> Self {
        Self::this()
    }
}

#[inline]
fn current() -> u32 {
    match CURRENT.load(Relaxed) {
        0 => ask(),
        id => id,
    }
}

#[cold]
fn ask() -> u32 {
    static FORGETS: OnceLock<bool> = OnceLock::new();
    let id = process::id();
    if *FORGETS.get_or_init(forget_in_children) {
        CURRENT.store(id, Relaxed);
    }
    id
}

/// From now on a forked child asks for its own number. Returns whether that is so.
#[cfg(all(target_os = "linux", not(miri)))]
fn forget_in_children() -> bool {
    extern "C" fn forget() {
        CURRENT.store(0, Relaxed);
    }
    // SAFETY: the function that the child calls stores to a static atomic, which is allowed after a fork.
    unsafe { libc::pthread_atfork(None, None, Some(forget)) == 0 }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn forget_in_children() -> bool {
    false
}
