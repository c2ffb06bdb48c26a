//! What an ingest overwrites: some of its entries are looked up once they have arrived.
//!
//! ```text
//! a piece is written ─▶ sampled? ─▶ key and number are kept ─▶ it arrives in level 0
//!                                                              └─▶ which version is below that number, and where?
//!                                                                  └─▶ Placement::note_overwritten
//! ```
//!
//! * **The lookup** asks the tables themselves: filters would answer for the ingest's own tables.
//! * **Memory.** When samples take too much of it, every second one goes, and the others stand for twice as much. So
//!   do those that come later.

use std::sync::atomic::Ordering::Relaxed;

use bifold_contract::{Entry, Kept, SeqNo, planted};

use super::{Overwrites, Sampled, sampled_bytes};
use crate::state::{health::Health, tree::Tree};

/// The samples of an ingest take at most so many bytes: 2000 to 4000 of a long one with keys of 24 bytes, so the sum is
/// off by 1.6 to 2.2 %.
const BYTES_MAX: usize = 256 << 10;

/// A sampled entry of an ingest.
#[derive(Debug)]
pub(crate) struct SampledEntry {
    key: Box<[u8]>,
    seqno: SeqNo,
    /// The length that it was sampled by, not 0, and what that stands for.
    own_bytes: u64,
    bytes: u64,
}

impl Overwrites {
    /// Decides whether to sample an entry of an ingest, which was written as `kept` says.
    pub fn sample_of_ingest(&self, entry: &Entry<'_>, kept: &Kept) -> Option<SampledEntry> {
        let own_bytes = if let Kept::Moved(to) = kept { u64::from(to.len) } else { 0 };
        self.put(own_bytes);
        let own_bytes = match own_bytes {
            // As for commits: what short values overwrite in tables counts where the placement asks which it is.
            0 if self.are_found => self.mean_bytes.load(Relaxed),
            own_bytes => own_bytes,
        };
        let bytes = sampled_bytes(entry.seqno, own_bytes).filter(|_| !planted!("ingest_overwrites_nothing"))?;
        Some(SampledEntry { key: entry.key.into(), seqno: entry.seqno, own_bytes, bytes })
    }
}

impl SampledEntry {
    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.key.len()
    }

    /// Reports to the placement how much it overwrites. It is in a table of the tree.
    fn report(&self, tree: &Tree, overwrites: &Overwrites) {
        let Self { key, seqno, own_bytes, bytes } = self;
        let (seqno, own_bytes, bytes) = (*seqno, *own_bytes, *bytes);
        let sampled = Sampled { tree, key, seqno, own_bytes, bytes, is_short: false };
        if let Some(older) = sampled.find_older(overwrites) {
            let bytes = sampled.stands_for(u64::from(older.len));
            tree.placement().note_overwritten(bytes, &|| Some((older, bytes)));
        }
    }
}

/// The samples of an ingest.
#[derive(Debug, Default)]
pub(crate) struct IngestSamples {
    kept: Vec<SampledEntry>,
    /// Their memory.
    memory_bytes: usize,
    seen: u64,
    /// One of two to the power of this many is kept.
    halvings: u32,
}

impl IngestSamples {
    /// Adds a sample, or leaves it to others to stand for it.
    pub fn add(&mut self, sample: SampledEntry) {
        self.seen += 1;
        if !self.seen.is_multiple_of(1 << self.halvings) {
            return;
        }
        self.memory_bytes += sample.memory_bytes();
        self.kept.push(SampledEntry { bytes: sample.bytes << self.halvings, ..sample });
        while self.memory_bytes > BYTES_MAX {
            self.halve();
        }
    }

    fn halve(&mut self) {
        let mut stays = true;
        self.kept.retain_mut(|sample| {
            sample.bytes *= 2;
            stays = !stays;
            stays
        });
        self.memory_bytes = self.kept.iter().map(SampledEntry::memory_bytes).sum();
        self.halvings += 1;
    }

    /// Reports to the placement how much all of them overwrite, until the database is closed: each may take reads. The
    /// ingest is in the tables of the tree.
    pub fn report(&self, tree: &Tree, health: &Health) {
        let Some(overwrites) = &tree.overwrites else { return };
        let is_open = |_: &&SampledEntry| health.open().is_ok();
        self.kept.iter().take_while(is_open).for_each(|sample| sample.report(tree, overwrites));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_long_ingest_take_little_memory_and_stand_for_all_of_it() {
        const COUNT: u64 = 100_000;
        const EACH: u64 = 1 << 15;
        let mut samples = IngestSamples::default();
        for seqno in 0..COUNT {
            samples.add(SampledEntry { key: seqno.to_be_bytes().into(), seqno, own_bytes: 1000, bytes: EACH });
            let memory_bytes: usize = samples.kept.iter().take(1).map(SampledEntry::memory_bytes).sum();
            assert!(samples.kept.len() * memory_bytes <= BYTES_MAX, "{} samples", samples.kept.len());
        }
        let all: u64 = samples.kept.iter().map(|sample| sample.bytes).sum();
        assert!(all.abs_diff(COUNT * EACH) < COUNT * EACH / 100, "{all}");
        assert!(samples.kept.len() > 2000 && samples.kept.is_sorted_by_key(|sample| sample.seqno));
    }
}
