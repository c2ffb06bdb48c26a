//! The last commit that reads see, and the threads that wait for the next one.
//!
//! ```text
//!          ┌ commit lock ─────────────────────────────────────────────┐
//! commit   │ last := its number; awaited? then awaited := false, tell ├─▶ all who wait look again
//!          └──────────────────────────────────────────────────────────┘
//!                      ┌ commit lock ───────────────────────────────────┐
//! feed   nothing new ─▶│ more since? otherwise awaited := true, a turn  ├─▶ sleep while the turn lasts
//!                      └────────────────────────────────────────────────┘
//! ```
//!
//! * **No commit is slept through.** A feed notes the last commit that it has looked for, and asks for more under the
//!   commit lock. A commit shows itself under the same lock. If it came first, the feed finds it there and does not
//!   sleep. If it came later, it finds `awaited`, and the turn that it ends is the feed's or a later one: each turn
//!   is read under that lock, too, and turns only grow. The lock orders all accesses, so none of them needs a fence.
//! * **Nor is the end of the database**, which knows no commit lock: it is noted, then the turn ends. A feed has its
//!   turn before it looks whether the database is well, and only commits set `awaited` back.
//! * **The cost** for a commit that nobody waits for is one relaxed load, and no lock. Of a burst of commits only the
//!   first one notifies: from then on nobody is asleep.
//!
//! This file is compiled twice: here, and over the primitives of `shuttle` in `tests/all/waiting_model.rs`.

use std::time::Duration;

use bifold_contract::{SeqNo, planted};

use super::sync::{AtomicBool, AtomicU64, Condvar, LockExt, Mutex, Ordering, wait_for};

/// The last commit that reads see.
#[derive(Debug, Default)]
pub(crate) struct LastVisible {
    seqno: AtomicU64,
    /// Whether a thread may be asleep until there is more. It changes only under the commit lock.
    is_awaited: AtomicBool,
    /// Grows with everything that ends a sleep.
    turn: Mutex<u64>,
    ended: Condvar,
}

/// What a thread has seen when it goes to sleep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    number: u64,
    seen: SeqNo,
}

impl LastVisible {
    /// Everything up to this commit is visible.
    pub fn new(seqno: SeqNo) -> Self {
        Self { seqno: AtomicU64::new(seqno), ..Self::default() }
    }

    /// The number of the last commit that reads may see.
    #[inline]
    pub fn seqno(&self) -> SeqNo {
        self.seqno.load(Ordering::Acquire)
    }

    /// Makes a commit visible. The caller has the commit lock.
    #[inline]
    pub fn show(&self, seqno: SeqNo) {
        self.seqno.store(seqno, Ordering::Release);
        if self.is_awaited.load(Ordering::Relaxed) && !planted!("commits_wake_no_feed") {
            self.is_awaited.store(false, Ordering::Relaxed);
            self.wake();
        }
    }

    /// Wakes all who wait, because the database has failed or is closed. Its health says so already.
    #[cold]
    pub fn wake(&self) {
        *self.turn.hold() += 1;
        self.ended.notify_all();
    }

    /// To sleep until there is a commit after `seen`; `None` if there is one. The caller has the commit lock, and
    /// releases it before it sleeps.
    pub fn expect_after(&self, seen: SeqNo) -> Option<Turn> {
        if self.seqno() > seen {
            return None;
        }
        self.is_awaited.store(true, Ordering::Relaxed);
        Some(Turn { number: *self.turn.hold(), seen })
    }

    /// Sleeps until the turn ends or the time is over. Returns whether it is.
    pub fn sleep(&self, turn: Turn, time: Duration) -> bool {
        let mut now = self.turn.hold();
        while *now == turn.number {
            let (again, is_over) = wait_for(&self.ended, now, time);
            now = again;
            if is_over && *now == turn.number {
                return true;
            }
        }
        false
    }

    /// Whether there is a commit that has not ended this turn: a bug. The caller has the commit lock.
    pub fn is_slept_through(&self, turn: Turn) -> bool {
        self.seqno() > turn.seen && *self.turn.hold() == turn.number
    }
}
