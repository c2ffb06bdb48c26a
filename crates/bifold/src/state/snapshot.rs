//! Snapshots: which sequence numbers readers still need.
//!
//! A snapshot is a sequence number and an entry in the list of open snapshots. Flush, compaction and GC read that
//! list when they begin and keep whatever one of its numbers can see.
//!
//! **Why the number is taken under the list's lock.** Every entry that a rewrite finds was committed before the
//! rewrite began. A snapshot registered later has a number at least that high, so it sees the newest version and
//! nothing it needs is dropped. If the number were taken before the lock, a rewrite could begin in between and miss
//! the snapshot.
//!
//! **The same holds for the time** with which a snapshot looks at entries that expire. A rewrite takes its own time
//! before it takes the list, so a snapshot registered later has a time at least that late: to it, too, everything has
//! expired that the rewrite drops. The time is taken after the number: if no keyspace had entries that expire then,
//! none of them is visible to the snapshot.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bifold_contract::{KeyspaceId, Millis, SeqNo, planted};

use super::time::{ReadTime, Sight, Time};
use crate::{
    state::work::Work,
    waiting::{sync::LockExt, visible::LastVisible},
};

/// What holds a snapshot open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A [`crate::Snapshot`].
    Snapshot,
    /// An iterator that was not given one.
    Iterator,
    /// A [`crate::Transaction`].
    Transaction,
    /// A call of [`multi_get`](crate::Keyspace::multi_get), until it returns.
    MultiGet,
}

/// The open snapshots of a database.
#[derive(Debug)]
pub(crate) struct Snapshots {
    open: Mutex<BTreeMap<u64, Opened>>,
    next_ticket: AtomicU64,
    /// The end of a snapshot with a lower number makes work due; 0: no end does.
    notify_below: AtomicU64,
    /// The keyspaces in which it makes work due.
    held: Mutex<BTreeSet<KeyspaceId>>,
    work: Arc<Work>,
    time: Arc<Time>,
}

#[derive(Clone, Copy, Debug)]
struct Opened {
    seqno: SeqNo,
    time: Millis,
    holder: Holder,
    since: Duration,
}

/// An open snapshot, described for statistics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Described {
    /// What it sees.
    pub seqno: SeqNo,
    /// What holds it.
    pub holder: Holder,
    /// When it was opened, on the engine's clock.
    pub since: Duration,
}

/// Keeps one snapshot open until dropped.
#[derive(Debug)]
pub(crate) struct SnapshotGuard {
    list: Arc<Snapshots>,
    ticket: u64,
    /// What the snapshot sees: everything committed up to this number.
    pub seqno: SeqNo,
    /// With which time it looks at entries that expire.
    time: Millis,
}

/// What a rewrite must keep: see [`Snapshots::cut`].
#[derive(Clone, Debug, Default)]
pub(crate) struct SnapshotCut {
    /// The numbers of all open snapshots, ascending, without repeats.
    pub seqnos: Vec<SeqNo>,
    /// The earliest time with which a snapshot of each number reads.
    pub times: Vec<Millis>,
    /// Entries with instants up to this have expired; 0 if none expire.
    pub now: Millis,
}

impl Snapshots {
    /// Opens a snapshot of everything visible now.
    pub fn open(self: &Arc<Self>, visible: &LastVisible, holder: Holder, now: Duration) -> SnapshotGuard {
        let mut open = self.open.hold();
        let seqno = visible.seqno();
        let time = self.time.if_used().unwrap_or(0);
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        open.insert(ticket, Opened { seqno, time, holder, since: now });
        SnapshotGuard { list: Arc::clone(self), ticket, seqno, time }
    }

    /// No snapshots yet. When one ends, it may notify `work`.
    pub fn of(work: &Arc<Work>, time: &Arc<Time>) -> Arc<Self> {
        Arc::new(Self {
            open: Mutex::default(),
            next_ticket: AtomicU64::new(0),
            notify_below: AtomicU64::new(0),
            held: Mutex::default(),
            work: Arc::clone(work),
            time: Arc::clone(time),
        })
    }

    /// Makes workers look at a keyspace when a snapshot with a number below `seqno` ends: it may hold what is garbage
    /// for everyone else. The caller calls this before it reads the list of open snapshots, so that none ends
    /// unnoticed.
    pub fn notify_of_ends_below(&self, seqno: SeqNo, keyspace: KeyspaceId) {
        let mut held = self.held.hold();
        held.insert(keyspace);
        self.notify_below.fetch_max(seqno, Ordering::AcqRel);
    }

    /// Notifies workers. A snapshot that holds nothing, such as that of a short scan, wakes nobody.
    fn ended(&self, seqno: SeqNo) {
        if seqno >= self.notify_below.load(Ordering::Acquire) {
            return;
        }
        let held: Vec<KeyspaceId> = {
            let mut held = self.held.hold();
            self.notify_below.store(0, Ordering::Release);
            std::mem::take(&mut *held).into_iter().collect()
        };
        if !held.is_empty() {
            self.work.look_at(&held);
        }
    }

    /// The numbers of all open snapshots, ascending, without repeats.
    pub fn seqnos(&self) -> Vec<SeqNo> {
        let mut seqnos: Vec<SeqNo> = self.open.hold().values().map(|o| o.seqno).collect();
        seqnos.sort_unstable();
        seqnos.dedup();
        seqnos
    }

    /// The open snapshots, and what time it is to a rewrite that begins now.
    pub fn cut(&self) -> SnapshotCut {
        let now = self.time.if_used().unwrap_or(0);
        let mut earliest: BTreeMap<SeqNo, Millis> = BTreeMap::new();
        for opened in self.open.hold().values() {
            let time = earliest.entry(opened.seqno).or_insert(opened.time);
            *time = opened.time.min(*time);
        }
        let (seqnos, times) = earliest.into_iter().unzip();
        SnapshotCut { seqnos, times, now }
    }

    /// The latest time at which whatever has expired has expired to everyone; 0 if nothing expires.
    pub fn expired_to_all(&self) -> Millis {
        let Some(now) = self.time.if_used() else { return 0 };
        self.open.hold().values().map(|opened| opened.time).fold(now, Millis::min)
    }

    /// The number of the oldest open snapshot.
    pub fn oldest(&self) -> Option<SeqNo> {
        self.open.hold().values().map(|o| o.seqno).min()
    }

    /// The open snapshots, oldest first.
    pub fn describe(&self) -> Vec<Described> {
        let describe = |o: &Opened| Described { seqno: o.seqno, holder: o.holder, since: o.since };
        self.open.hold().values().map(describe).collect()
    }
}

impl SnapshotGuard {
    /// What it sees.
    pub fn sight(&self) -> Sight {
        let time = if planted!("snapshots_read_with_now") { ReadTime::Now } else { ReadTime::At(self.time) };
        Sight { seqno: self.seqno, time }
    }

    /// The time with which it looks at entries that expire.
    pub fn time(&self) -> Millis {
        self.time
    }

    /// Its reader has made work due in a keyspace.
    pub fn makes_due(&self, keyspace: KeyspaceId) {
        self.list.work.look_at(&[keyspace]);
    }
}

impl Drop for SnapshotGuard {
    fn drop(&mut self) {
        self.list.open.hold().remove(&self.ticket);
        self.list.ended(self.seqno);
    }
}
