//! Where the records of a stretch begin, so that the next search there reads one of them and not all.
//!
//! ```text
//! a search reads the whole stretch ─▶ a list, in memory ─▶ later searches: header and value of one record
//! list: for each record a word: the lowest 19 bits of its number │ 13 bits: where in the stretch it begins
//! ```
//!
//! A wrong word costs a read: the record says which version it is, and if that is another one the stretch is read
//! again. So lists need not be complete, and the file says nothing of them.

use bifold_contract::{FileId, SeqNo};
use bifold_format::frame;

use super::STRETCH_BYTES;
use crate::parts::budget::Taken;

/// Records of a stretch begin within its first 8 KiB.
const OFFSET_BITS: u32 = STRETCH_BYTES.trailing_zeros();

/// The lists of one table.
#[derive(Debug, Default)]
pub(super) struct StretchPlaces {
    /// One more than where the list of each stretch begins among `words`. 0: it has none.
    begins: Box<[u32]>,
    /// The lists: how many records, then a word for each.
    words: Vec<u32>,
    /// Of the share that lists may have, and of the whole budget.
    memory: Option<[Taken; 2]>,
}

/// Names a stretch of a table that has `of` of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct StretchNumber {
    number: usize,
    of: usize,
}

impl StretchNumber {
    /// That of the stretch at `start` of a table whose values end at `values_end`. Stretches are not shorter than the
    /// distance between two numbers, so each has its own.
    pub fn new(start: u64, values_end: u64) -> Self {
        Self { number: (start / STRETCH_BYTES) as usize, of: (values_end / STRETCH_BYTES) as usize + 1 }
    }
}

/// The list of a stretch that begins at `start` of `file`. Empty if it would be of no use: of a single record, or of
/// damaged ones.
pub(super) fn list_of(bytes: &[u8], file: FileId, start: u64) -> Vec<u32> {
    let mut list = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let Some((number, len)) = frame::peek(&bytes[at..], file, start + at as u64) else { return Vec::new() };
        if at < STRETCH_BYTES as usize {
            list.push((number as u32) << OFFSET_BITS | at as u32);
        }
        at += len;
    }
    if list.len() > 1 { list } else { Vec::new() }
}

impl StretchPlaces {
    /// Whether a stretch has a list.
    pub fn has(&self, stretch: StretchNumber) -> bool {
        self.begins.get(stretch.number).is_some_and(|&begin| begin > 0)
    }

    /// Where in its stretch the record of this number may begin.
    pub fn find(&self, stretch: StretchNumber, seqno: SeqNo) -> Option<u64> {
        let begin = self.begins.get(stretch.number)?.checked_sub(1)? as usize;
        let (&count, rest) = self.words.get(begin..)?.split_first()?;
        let sought = (seqno as u32) << OFFSET_BITS;
        let is_it = |word: &u32| word >> OFFSET_BITS == sought >> OFFSET_BITS;
        let word = rest.iter().take(count as usize).copied().find(is_it)?;
        Some(u64::from(word) % STRETCH_BYTES)
    }

    /// Bytes of memory that one list more takes.
    pub fn growth(&self, stretch: StretchNumber, list: &[u32]) -> u64 {
        let begins = if self.begins.is_empty() { stretch.of } else { 0 };
        ((begins + self.capacity_with(list) - self.words.capacity()) * size_of::<u32>()) as u64
    }

    /// Grows by a quarter: memory that holds nothing yet is missing elsewhere.
    fn capacity_with(&self, list: &[u32]) -> usize {
        let (needed, present) = (self.words.len() + 1 + list.len(), self.words.capacity());
        if needed <= present { present } else { needed.max(present + present / 4) }
    }

    /// Keeps the list of a stretch in memory that was taken for it, if it still takes as much.
    pub fn keep(&mut self, stretch: StretchNumber, list: &[u32], memory: [Taken; 2]) {
        let is_fitting = memory.iter().all(|taken| taken.bytes() == self.growth(stretch, list));
        if self.has(stretch) || stretch.number >= stretch.of || !is_fitting {
            return;
        }
        let capacity = self.capacity_with(list);
        if self.begins.is_empty() {
            self.begins = vec![0; stretch.of].into_boxed_slice();
        }
        let Some(begin) = self.begins.get_mut(stretch.number) else { return };
        *begin = self.words.len() as u32 + 1;
        self.words.reserve_exact(capacity - self.words.len());
        self.words.push(list.len() as u32);
        self.words.extend_from_slice(list);
        match &mut self.memory {
            Some(held) => held.iter_mut().zip(memory).for_each(|(held, more)| held.join(more)),
            none => *none = Some(memory),
        }
    }

    /// Memory for them.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, |[of_share, _]| of_share.bytes())
    }
}

#[cfg(test)]
mod tests;
