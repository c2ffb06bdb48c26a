//! What models of the store have in common: operations on keys, files that lose power, locks, what readers must find,
//! and how an execution runs.

use std::sync::Mutex as Unscheduled;

use shuttle::{
    rand::{Rng, thread_rng},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
};

pub type SeqNo = u64;
pub type FileId = usize;
pub type Value = u64;

pub const KEYS: u8 = 3;

/// What a commit says about the keys `first..=last`: their value from now on, or that they have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op<T> {
    pub first: u8,
    pub last: u8,
    pub seqno: SeqNo,
    pub what: Option<T>,
}

/// A record in a value file: a value, or a note of a delete.
pub type Record = Op<Value>;
/// An entry of the log and of the index.
pub type Entry = Op<Pointer>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pointer {
    pub file: FileId,
    pub at: usize,
}

impl<T> Op<T> {
    pub fn covers(&self, key: u8) -> bool {
        (self.first..=self.last).contains(&key)
    }
}

/// The newest operation on a key up to `seqno`; of equal numbers, the last one.
pub fn newest<T: Copy>(ops: &[Op<T>], key: u8, seqno: SeqNo) -> Option<Op<T>> {
    ops.iter().filter(|op| op.seqno <= seqno && op.covers(key)).max_by_key(|op| op.seqno).copied()
}

/// How much of a file survives a power loss. Mistakes show at the extremes, so they come often.
pub fn survives(synced: usize, len: usize) -> usize {
    match thread_rng().gen_range(0..4) {
        0 => synced,
        1 => len,
        _ => thread_rng().gen_range(synced..=len),
    }
}

pub fn hold<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap()
}

/// Lets other threads run for some steps.
pub fn wait(steps_max: u32) {
    (0..thread_rng().gen_range(0..=steps_max)).for_each(|_| thread::yield_now());
}

/// What a store has told its users, and what it was told.
#[derive(Default)]
pub struct Promises {
    pub visible: AtomicU64,
    pub durable: AtomicU64,
    pub snapshots: Mutex<Vec<SeqNo>>,
    /// What users wrote. Not part of the store: no thread switch happens at it.
    pub history: Unscheduled<Vec<Record>>,
}

impl Promises {
    /// Those of a store that has opened with the commits up to `end`.
    pub fn kept_up_to(end: SeqNo, history: Vec<Record>) -> Self {
        Self {
            visible: AtomicU64::new(end),
            durable: AtomicU64::new(end),
            history: Unscheduled::new(history.into_iter().filter(|record| record.seqno <= end).collect()),
            ..Self::default()
        }
    }

    pub fn expect(&self, key: u8, seqno: SeqNo) -> Option<Value> {
        newest(&self.history.lock().unwrap(), key, seqno).and_then(|record| record.what)
    }

    pub fn oldest_snapshot(&self) -> SeqNo {
        hold(&self.snapshots).iter().copied().min().unwrap_or(SeqNo::MAX)
    }

    /// Calls `look` with the number of a snapshot that is open meanwhile.
    pub fn in_snapshot(&self, look: impl FnOnce(SeqNo)) {
        let mut open = hold(&self.snapshots);
        let seqno = self.visible.load(SeqCst);
        open.push(seqno);
        drop(open);
        look(seqno);
        let mut open = hold(&self.snapshots);
        let at = open.iter().position(|&other| other == seqno).unwrap();
        open.remove(at);
    }
}

/// The disk at one moment, and what was promised before it.
pub struct Picture<Disk, Mistake> {
    pub promised: SeqNo,
    pub disk: Disk,
    pub history: Vec<Record>,
    pub mistake: Option<Mistake>,
}

impl<Disk: Clone, Mistake> Picture<Disk, Mistake> {
    pub fn of(promises: &Promises, disk: &Mutex<Disk>, mistake: Option<Mistake>) -> Self {
        let promised = promises.durable.load(SeqCst);
        let disk = hold(disk).clone();
        Self { promised, disk, history: promises.history.lock().unwrap().clone(), mistake }
    }
}

/// A store whose steps are scheduled.
pub trait Model: Send + Sync + Sized + 'static {
    /// Its disk as a power loss may find it.
    type Picture: Send;

    fn picture(&self) -> Self::Picture;

    /// Checks what opens after a power loss.
    fn judge(picture: Self::Picture);

    /// Checks that every key has its newest value.
    fn check(&self);

    /// Checks that the store still works, and that nothing is left over.
    fn live_on(&self);
}

/// What a thread does to a model, and how many times.
pub type Act<M> = (fn(&M), usize);

/// One execution: threads that do something so many times each, one that takes pictures, and what must be true
/// afterwards.
pub fn execute<M: Model>(store: M, acts: &[Act<M>], pictures: usize) {
    let store = Arc::new(store);
    let taken = Arc::new(Unscheduled::new(Vec::new()));
    let start = |&(act, times): &Act<M>| {
        let store = Arc::clone(&store);
        thread::spawn(move || (0..times).for_each(|_| act(&store)))
    };
    let mut threads: Vec<_> = acts.iter().map(start).collect();
    let camera = (Arc::clone(&store), Arc::clone(&taken));
    threads.push(thread::spawn(move || {
        for _ in 0..pictures {
            wait(60);
            let picture = camera.0.picture();
            camera.1.lock().unwrap().push(picture);
        }
    }));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    store.check();
    let taken = std::mem::take(&mut *taken.lock().unwrap());
    taken.into_iter().for_each(M::judge);
    store.live_on();
}
