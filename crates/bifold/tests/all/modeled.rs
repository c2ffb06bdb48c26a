//! What models of the store have in common: operations on keys, files that lose power, locks.

use shuttle::{
    rand::{Rng, thread_rng},
    sync::{Mutex, MutexGuard},
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
