//! The hot or the cold segment of a group: its files, and what is known of their bytes.

use std::sync::Arc;

use super::{region_of, seen::Seen};
use crate::parts::{budget::Budget, value_files::ValueFile};

/// The hot or the cold segment of a group.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Its files, oldest first. Those shared with other groups cover more than the group's region.
    pub files: Vec<Arc<ValueFile>>,
    /// The last of them may be appended to.
    pub open: bool,
    /// Bytes of live records, as far as known.
    pub live: u64,
    /// Bytes of dead records, as far as known.
    pub dead: u64,
    /// Bytes written since the last GC.
    pub written: u64,
    /// [`Groups::clock`](super::Groups::clock) at the last GC.
    pub last_gc: u64,
    pub(super) seen: Option<Seen>,
    /// Known keys that have no value here any more.
    pub(super) lost: u64,
    budget: Arc<Budget>,
}

impl Segment {
    pub(super) fn new(clock: u64, budget: &Arc<Budget>) -> Self {
        Self {
            files: Vec::new(),
            open: false,
            live: 0,
            dead: 0,
            written: 0,
            last_gc: clock,
            seen: Seen::for_keys(0, budget),
            lost: 0,
            budget: Arc::clone(budget),
        }
    }

    /// A segment that knows no key, and takes no memory for that.
    pub(super) fn without_keys(clock: u64, budget: &Arc<Budget>) -> Self {
        let mut segment = Self::new(clock, budget);
        segment.forget();
        segment
    }

    /// The file to append to.
    #[must_use]
    pub fn head(&self) -> Option<&Arc<ValueFile>> {
        self.files.last().filter(|file| self.open && !file.is_sealed())
    }

    /// Adds a file of an earlier session, which the segments of 2 to the power of `share` groups have in common.
    pub(super) fn adopt(&mut self, file: &Arc<ValueFile>, share: u32) {
        let bytes = (file.len() - file.start()) >> share;
        let dead = (file.dead() >> share).min(bytes);
        self.live += bytes - dead;
        self.dead += dead;
        self.files.push(Arc::clone(file));
        self.seen = None;
        self.open = share == 0;
    }

    /// Adds a file to which a GC run that was abandoned has copied so many bytes, unless it is there. Either the copies
    /// are dead or what they were made from. Until the next GC nothing is known of its keys, as after a start.
    pub fn keep_copy(&mut self, file: &Arc<ValueFile>, bytes: u64) {
        if self.files.iter().all(|of| of.id != file.id) {
            // In front: commits go on in the last one.
            self.files.insert(0, Arc::clone(file));
        }
        self.dead += bytes;
        (self.seen, self.lost) = (None, 0);
    }

    /// How much of each file is dead, in a group of so many bits.
    pub(super) fn dead_by_file(&self, bits: u32) -> impl Iterator<Item = (&Arc<ValueFile>, u64)> {
        let mut left = self.dead;
        self.files.iter().map(move |file| {
            let share = bits.saturating_sub(region_of(file).bits);
            let bytes = left.min((file.len() - file.start()) >> share);
            left -= bytes;
            (file, bytes)
        })
    }

    pub(super) fn half(&self) -> Self {
        let (live, dead, written) = (self.live / 2, self.dead / 2, self.written / 2);
        let seen = self.seen.as_ref().map(Seen::half);
        Self {
            files: self.files.clone(),
            open: false,
            live,
            dead,
            written,
            seen,
            lost: self.lost / 2,
            budget: Arc::clone(&self.budget),
            ..*self
        }
    }

    /// Notes a key. Returns whether it may have been here before.
    fn note_key(&mut self, hash: u64) -> bool {
        let Some(seen) = &mut self.seen else { return true };
        let known = seen.insert(hash, &self.budget);
        if known.is_none() {
            // A filter that forgot a key would take its next value for the first: garbage that nobody sees.
            self.seen = None;
        }
        known.unwrap_or(true)
    }

    /// Counts a value of so many bytes. Returns whether its key may have been here before.
    pub fn wrote(&mut self, hash: u64, bytes: u64) -> bool {
        self.written += bytes;
        let known = self.note_key(hash);
        *(if known { &mut self.dead } else { &mut self.live }) += bytes;
        known
    }

    /// Counts a record of so many bytes that leaves its key without a value here. Returns what [`Segment::wrote`]
    /// does.
    pub fn ended(&mut self, hash: u64, bytes: u64) -> bool {
        self.written += bytes;
        self.dead += bytes;
        let known = self.note_key(hash);
        if known {
            self.lose_one();
        }
        known
    }

    pub(super) fn may_hold(&self, hash: u64) -> bool {
        self.seen.as_ref().map_or(!self.files.is_empty(), |seen| seen.contains(hash))
    }

    /// Counts one value of average length as dead.
    pub(super) fn lose_one(&mut self) {
        let keys = self.seen.as_ref().map_or(0, |seen| seen.keys);
        if keys == 0 {
            return;
        }
        let mean = self.live / keys.saturating_sub(self.lost).max(1);
        self.lost += 1;
        self.live -= mean;
        self.dead += mean;
    }

    /// Adds what GC has copied here: the hashes of its keys, its live and its other bytes.
    pub fn add(&mut self, hashes: &[u64], live: u64, dead: u64) {
        for &hash in hashes {
            let is_back = self.note_key(hash);
            self.lost = self.lost.saturating_sub(u64::from(is_back));
        }
        self.live += live;
        self.dead += dead;
    }

    /// Forgets the keys and what there was of them.
    pub(super) fn forget(&mut self) {
        (self.seen, self.lost, self.live, self.dead) = (None, 0, 0, 0);
    }

    /// Restarts the count after a GC run that found these keys and so many live bytes.
    pub fn recount(&mut self, hashes: &[u64], live: u64, dead: u64, clock: u64) {
        // The old filter goes first: the new one may need its bytes.
        self.forget();
        self.seen = Seen::for_keys(hashes.len(), &self.budget);
        (self.written, self.last_gc) = (0, clock);
        self.add(hashes, live, dead);
    }
}
