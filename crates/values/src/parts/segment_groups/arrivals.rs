//! Files that an ingest has written, as groups take them in.

use std::sync::Arc;

use super::{Groups, Segment, region_of};
use crate::parts::value_files::ValueFile;

impl Groups {
    /// Adds files that an ingest has written, so many bytes of them as notes, to all groups of their region, which they
    /// have in common.
    pub fn take_in(&mut self, files: &[Arc<ValueFile>], notes: u64) {
        let Some(region) = files.first().map(region_of) else { return };
        for group in self.groups.iter_mut().filter(|group| region.contains(group.region)) {
            group.hot.take_in(files, notes, group.region.bits - region.bits);
        }
        self.clock += files.iter().map(|file| file.len() - file.start()).sum::<u64>();
    }
}

impl Segment {
    /// Adds files that an ingest has written, which the segments of 2 to the power of `share` groups have in common.
    /// Nothing is known of their keys, so they count as a replacement of what is here, until the next GC. No note is
    /// live.
    fn take_in(&mut self, files: &[Arc<ValueFile>], notes: u64, share: u32) {
        let bytes = files.iter().map(|file| file.len() - file.start()).sum::<u64>() >> share;
        let replaced = self.live.min(bytes);
        let notes = (notes >> share).min(bytes);
        self.live = self.live - replaced + (bytes - notes);
        self.dead += replaced + notes;
        self.written += bytes;
        (self.seen, self.lost) = (None, 0);
        // Commits go on in the file that is open.
        let at = self.files.len() - usize::from(self.head().is_some());
        self.open &= at < self.files.len();
        self.files.splice(at..at, files.iter().cloned());
    }
}
