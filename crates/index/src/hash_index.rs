//! The hash index of level 0 (UniKV §III-B): finds the runs that may hold a key.
//!
//! ```text
//! entry      tag 16 bits │ run 16 │ next 32        8 bytes; widths are options
//!
//! buckets    ┌───┬───┬───┬───┬───┬───┬───┬───┐     a key takes the first empty one of its `ways`
//!            │ h₁│   │ h₃│   │   │ h₂│   │ h₄│─┐   buckets (the paper's n, 4)
//!            └───┴───┴───┴───┴───┴───┴───┴───┘ │   if none is empty, it is chained right after the last one
//! overflow   ┌───┬───┬───┐                     │
//!            │ ◀─┼─┐ │ ◀─┼─────────────────────┘
//!            └───┴─┴─┴─┬─┘
//!                  ▲───┘ next
//! ```
//!
//! The tag is of the key's hash, so an entry may be another key's: then a table is searched in vain. What the paper
//! leaves open, and what we do:
//!
//! * **Runs, not tables, and never removed.** A run that was merged down leaves its entries behind; views skip runs
//!   they do not know. So an index only gains entries, a merge costs it nothing, and readers of older views share it.
//!   When it is full, a new one is built from the tables that are left.
//! * **Nothing is removed, so an empty bucket ends a search**: if the key had more entries, one would be there.
//! * **The order of places says nothing about age**, since runs merged within level 0 come in again: a lookup gathers
//!   all runs and searches them newest first.
//! * An entry that another key with the same tag and run has left in one of the key's places is as good as its own.
//!
//! With as many entries as buckets and four ways 0.86 of the buckets are used, and 0.14 of the entries are chained.
//! More are where the same keys are in many runs: all entries of a key that its buckets have no place for, however many
//! buckets there are.
//!
//! **Concurrency.** Entries are words that are written whole. One thread adds at a time (a mutex), and what it adds
//! is found by whoever learns of the run afterwards: a view is published after its entries.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use bifold_contract::{Error, Result, RunId, option::within};
use serde::{Deserialize, Serialize};

use crate::table::TableContext;

/// The most ways.
const WAYS_MAX: u32 = 8;

/// The multipliers for the hashes of each way: odd and unlike each other.
const MIXES: [u64; WAYS_MAX as usize] = [
    1,
    0x9E37_79B9_7F4A_7C15,
    0xC2B2_AE3D_27D4_EB4F,
    0x1656_67B1_9E37_79F9,
    0xD6E8_FEB8_6659_FD93,
    0xA076_1D64_78BD_642F,
    0xE703_7ED1_A0B4_28DB,
    0x8EBC_6AF0_9C88_C6E3,
];

/// The share of entries that are chained, at most, in a full index with one to eight ways: what is to be expected and
/// a tenth or more.
const CHAINED_MAX: [f64; WAYS_MAX as usize] = [0.42, 0.27, 0.20, 0.165, 0.14, 0.125, 0.11, 0.10];

/// Options of the hash index over level 0 (UniKV §III-B). It takes some 10 bytes of memory for each key in level 0, or
/// 16 if the same keys are in many runs, within the share of `memory_limit` that indexes and filters have. If that has
/// no room, there is no index, and reads ask every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HashIndexOptions {
    /// In how many buckets a key may be (the paper's n): 1 to 8. Default: 4.
    pub ways: u32,
    /// Bits of an entry that distinguish keys: 1 to 32. Default: 16. With fewer, more runs are searched in vain.
    pub tag_bits: u32,
    /// Bits of an entry that distinguish runs: 1 to 32; together with the tag's at most 48, since the rest leads to the
    /// next entry of a chain. Default: 16. If level 0 has more runs than they can number, it has no index.
    pub run_bits: u32,
    /// Whether the hashes of keys are written with their table, 8 bytes each, so that opening a database need not
    /// read all keys of level 0. Default: true.
    pub written: bool,
}

impl Default for HashIndexOptions {
    fn default() -> Self {
        Self { ways: 4, tag_bits: 16, run_bits: 16, written: true }
    }
}

impl HashIndexOptions {
    /// Checks the bounds; `at` is the dotted name of these options.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the option.
    pub fn check(&self, at: &str) -> Result<()> {
        within(&format!("{at}.ways"), self.ways.into(), 1, WAYS_MAX.into())?;
        within(&format!("{at}.tag_bits"), self.tag_bits.into(), 1, 32)?;
        within(&format!("{at}.run_bits"), self.run_bits.into(), 1, 32)?;
        if self.tag_bits + self.run_bits > 48 {
            let reason = format!("{} and run_bits = {} are more than 48 together", self.tag_bits, self.run_bits);
            return Err(Error::invalid(format!("option `{at}.tag_bits`"), reason));
        }
        Ok(())
    }

    /// The most runs that it can tell.
    pub(crate) fn runs_max(&self) -> u64 {
        mask(self.run_bits)
    }

    fn next_bits(&self) -> u32 {
        u64::BITS - self.tag_bits - self.run_bits
    }

    /// The entry of a key in the run with this number, at the end of its chain.
    fn entry(&self, hash: u64, run: u32) -> u64 {
        let tag = hash & mask(self.tag_bits);
        (tag << self.run_bits | u64::from(run)) << self.next_bits()
    }

    /// The run of an entry, if the entry has the key's tag.
    fn run_of(&self, entry: u64, hash: u64) -> Option<u32> {
        let tagged = entry >> self.next_bits();
        (tagged >> self.run_bits == hash & mask(self.tag_bits)).then_some((tagged & mask(self.run_bits)) as u32)
    }

    /// The position of the next entry in a chain, counted from 1; 0 at its end.
    fn next_of(&self, entry: u64) -> usize {
        (entry & mask(self.next_bits())) as usize
    }
}

fn mask(bits: u32) -> u64 {
    u64::MAX >> (u64::BITS - bits)
}

/// Entries of keys by their hashes. Runs are numbered from 1 in the order in which they were added.
#[derive(Debug)]
pub struct HashIndex {
    options: HashIndexOptions,
    buckets: Box<[AtomicU64]>,
    overflow: Box<[AtomicU64]>,
    filling: Mutex<Filling>,
    /// Gets the memory budget back on drop.
    context: Arc<TableContext>,
}

/// The state of the writer.
#[derive(Clone, Debug, Default)]
struct Filling {
    /// The run with number n at n − 1.
    runs: Vec<RunId>,
    buckets_used: usize,
    overflow_used: usize,
}

/// Usage of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashIndexUse {
    /// Runs with entries, including runs no longer in level 0.
    pub runs: u64,
    /// Buckets.
    pub buckets: u64,
    /// Buckets with an entry.
    pub buckets_used: u64,
    /// Entries in chains.
    pub chained: u64,
    /// Bytes of memory.
    pub bytes: u64,
}

impl HashIndex {
    /// An empty index for about `entries` entries; `None` if the budget does not allow it.
    #[must_use]
    pub fn with_room(entries: usize, options: &HashIndexOptions, context: &Arc<TableContext>) -> Option<Self> {
        let buckets = buckets_for(entries);
        let chained = buckets as f64 * CHAINED_MAX.get(options.ways as usize - 1).unwrap_or(&1.0);
        // A small number of keys does not spread evenly.
        Self::sized((buckets, chained as usize + 16), options, context)
    }

    /// The same, with chains that have room for any keys, also if the same ones are in many runs. Where options do not
    /// allow so many places in chains, there are more buckets instead, so that fewer are needed.
    #[must_use]
    pub fn with_long_chains(entries: usize, options: &HashIndexOptions, context: &Arc<TableContext>) -> Option<Self> {
        let entries = buckets_for(entries);
        let chained = entries.min(mask(options.next_bits()) as usize);
        Self::sized((buckets_for(entries.saturating_mul(2) - chained), chained), options, context)
    }

    /// An empty index of so many buckets and places in chains.
    fn sized(
        (buckets, chained): (usize, usize),
        options: &HashIndexOptions,
        context: &Arc<TableContext>,
    ) -> Option<Self> {
        let overflow = chained.min(mask(options.next_bits()) as usize);
        context.take(bytes_of(buckets + overflow)).then(|| Self {
            options: *options,
            buckets: empty(buckets),
            overflow: empty(overflow),
            filling: Mutex::default(),
            context: Arc::clone(context),
        })
    }

    /// Adds the keys with these hashes as keys of `run`. Answers whether there was room for all; some may be there if
    /// not.
    pub fn add(&self, run: RunId, hashes: &[u64]) -> bool {
        let mut filling = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = filling.buckets_used + filling.overflow_used;
        let Some(number) = self.number_of(run, &mut filling).filter(|_| entries + hashes.len() <= self.buckets.len())
        else {
            return false;
        };
        hashes.iter().all(|&hash| self.add_one(hash, number, &mut filling))
    }

    /// Calls `found` with the number of each run that may hold the key with this hash, in any order, possibly more
    /// than once.
    #[inline]
    pub fn find(&self, hash: u64, mut found: impl FnMut(u32)) {
        let mut bucket = 0;
        for place in self.places(hash) {
            bucket = self.buckets[place].load(Acquire);
            if bucket == 0 {
                return;
            }
            self.options.run_of(bucket, hash).into_iter().for_each(&mut found);
        }
        self.chained_to(bucket).filter_map(|entry| self.options.run_of(entry, hash)).for_each(found);
    }

    /// The runs with entries: number n at n − 1.
    #[must_use]
    pub fn runs(&self) -> Vec<RunId> {
        self.filling.lock().unwrap_or_else(PoisonError::into_inner).runs.clone()
    }

    /// Its usage.
    #[must_use]
    pub fn usage(&self) -> HashIndexUse {
        let filling = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        HashIndexUse {
            runs: filling.runs.len() as u64,
            buckets: self.buckets.len() as u64,
            buckets_used: filling.buckets_used as u64,
            chained: filling.overflow_used as u64,
            bytes: bytes_of(self.buckets.len() + self.overflow.len()),
        }
    }

    /// The number of `run`, a new one if it has none; `None` if all numbers are used.
    fn number_of(&self, run: RunId, filling: &mut Filling) -> Option<u32> {
        let known = filling.runs.iter().rposition(|&known| known == run);
        let at = known.or_else(|| {
            let has_room = (filling.runs.len() as u64) < self.options.runs_max();
            has_room.then(|| {
                filling.runs.push(run);
                filling.runs.len() - 1
            })
        });
        at.and_then(|at| u32::try_from(at + 1).ok())
    }

    fn add_one(&self, hash: u64, run: u32, filling: &mut Filling) -> bool {
        let mut last = 0;
        for place in self.places(hash) {
            let bucket = self.buckets[place].load(Relaxed);
            if bucket == 0 {
                self.buckets[place].store(self.options.entry(hash, run), Release);
                filling.buckets_used += 1;
                return true;
            }
            if self.options.run_of(bucket, hash) == Some(run) {
                return true;
            }
            last = place;
        }
        self.chain(last, hash, run, filling)
    }

    /// Adds an entry to the chain right after the bucket `head`.
    fn chain(&self, head: usize, hash: u64, run: u32, filling: &mut Filling) -> bool {
        let bucket = self.buckets[head].load(Relaxed);
        if self.chained_to(bucket).any(|entry| self.options.run_of(entry, hash) == Some(run)) {
            return true;
        }
        let Some(free) = self.overflow.get(filling.overflow_used) else { return false };
        let second = self.options.next_of(bucket) as u64;
        free.store(self.options.entry(hash, run) | second, Release);
        filling.overflow_used += 1;
        let next = filling.overflow_used as u64;
        self.buckets[head].store(bucket & !mask(self.options.next_bits()) | next, Release);
        true
    }

    /// The entries after `entry`, up to the end of its chain.
    #[inline]
    fn chained_to(&self, entry: u64) -> impl Iterator<Item = u64> {
        let after = |entry: u64| {
            let next = self.options.next_of(entry).checked_sub(1)?;
            self.overflow.get(next).map(|entry| entry.load(Acquire))
        };
        std::iter::successors(after(entry), move |&entry| after(entry))
    }

    /// The buckets of a key, first to last.
    #[inline]
    fn places(&self, hash: u64) -> impl Iterator<Item = usize> {
        let buckets = self.buckets.len() as u64;
        // The high half, scaled. The high half of a product depends on all bits of the hash.
        MIXES.iter().take(self.options.ways as usize).map(move |mix| {
            let high = hash.wrapping_mul(*mix) >> 32;
            ((high * buckets) >> 32) as usize
        })
    }
}

impl Drop for HashIndex {
    fn drop(&mut self) {
        self.context.give_back(bytes_of(self.buckets.len() + self.overflow.len()));
    }
}

fn buckets_for(entries: usize) -> usize {
    entries.clamp(1, u32::MAX as usize)
}

fn empty(entries: usize) -> Box<[AtomicU64]> {
    (0..entries).map(|_| AtomicU64::new(0)).collect()
}

fn bytes_of(entries: usize) -> u64 {
    (entries * size_of::<AtomicU64>()) as u64
}

#[cfg(test)]
mod tests;
