//! Values that nobody has overwritten and that are dead all the same: a range delete covers them, or they have expired.
//! What drops their entries says so, also while GC runs on their group.
//!
//! ```text
//! GC begins ─▶ copies ─▶ moves ─▶ counts what it has moved as live ─▶ ends
//!      └───────── what is lost here is counted again at the end ───────┘
//! ```

use std::mem::take;

use bifold_contract::{FileId, planted};

use super::{Group, Segment};

impl Group {
    /// Counts a value of so many bytes as dead, if it is in a file of the group or in none: then it is tagged, or its
    /// file was collected since. Returns how many of the bytes are not known as live here.
    pub fn lose(&mut self, file: FileId, bytes: u64) -> u64 {
        let has = |segment: &Segment| segment.files.iter().any(|of| of.id == file);
        // A copy is in the group when GC ends. What has lost its entry before it could move is no copy of a live value,
        // and the cold segment is counted anew only if its old files leave it.
        if self.busy && !has(&self.cold) {
            *self.lost.entry(file).or_default() += bytes;
        }
        let segment = match () {
            () if has(&self.hot) => &mut self.hot,
            () if has(&self.cold) => &mut self.cold,
            () if self.tag_bytes > 0 => &mut self.tagged,
            () => return bytes,
        };
        let lost = bytes.min(segment.live);
        segment.live -= lost;
        segment.dead += lost;
        bytes - lost
    }

    /// GC of the group has ended, and has counted its segments anew. What was lost meanwhile of the files that it has
    /// now counts again.
    pub fn end_gc(&mut self) {
        self.busy = false;
        for (file, bytes) in take(&mut self.lost) {
            let is_here = self.files().any(|of| of.id == file);
            if is_here && !planted!("losses_during_gc_are_forgotten") {
                self.lose(file, bytes);
            }
        }
    }

    /// GC of the group was abandoned, and has counted nothing anew. Copies count as dead. Returns the file that was
    /// begun for commits to continue in, if none has: it leaves the group, since the next run begins another. Nothing
    /// happens if GC has ended.
    pub fn abandon_gc(&mut self) -> Option<FileId> {
        let is_abandoned = take(&mut self.busy);
        self.lost.clear();
        let hot = &mut self.hot;
        let is_unused = hot.open && hot.files.last().is_some_and(|last| last.is_empty());
        if !is_abandoned || !is_unused {
            return None;
        }
        hot.open = false;
        hot.files.pop().map(|unused| unused.id)
    }
}
