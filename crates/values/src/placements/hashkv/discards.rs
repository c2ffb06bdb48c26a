//! What rewrites drop because a range was deleted: groups cannot find that out by themselves.
//!
//! A group learns of a put or delete at once, from the filter of its keys. A range delete names no key. So its
//! garbage is counted when flush or compaction drops an entry for it: the newest of its key in the stream, since
//! older ones were counted when that was written. A key that was put again since counts twice until the next GC of
//! the group, which errs on the side of collecting.
//!
//! The same holds for an entry that has expired. GC of its group asks the index
//! (`IndexView::must_be_asked`).
//!
//! All of this counts once the edit of the rewrite is recorded: a rewrite that is abandoned drops nothing, and is done
//! again, also one that has ended when another key range of its flush fails. A group that knows no tags, as after a
//! start, cannot tell the cold log what of its values is dead, so the same edit records that.

use std::{
    collections::BTreeMap,
    mem::take,
    sync::{Arc, Mutex},
};

use bifold_contract::{Entry, FileId, Kind, PointerChanges, Result, Rewriter, SeqNo, ValueEdit, planted};
use bifold_format::{filter::key_hash, pointer};

use super::HashKvState;
use crate::{parts::sync::LockExt, placement::Kept};

/// So many are looked at under one hold of the lock.
const TOLD_AT_ONCE: usize = 256;

/// The hooks of one rewrite.
pub(super) struct Discards {
    state: Arc<Mutex<HashKvState>>,
    /// The last key.
    key: Vec<u8>,
    dropped: Vec<Dropped>,
    /// Bytes that no group knows to be dead, by file and by the prefix of the group.
    lost: BTreeMap<(FileId, u64), u64>,
}

/// A record whose entry was dropped.
struct Dropped {
    key: Box<[u8]>,
    seqno: SeqNo,
    file: FileId,
    bytes: u64,
    /// Nothing shadowed it.
    has_vanished: bool,
}

impl Discards {
    pub fn new(state: &Arc<Mutex<HashKvState>>) -> Self {
        Self { state: Arc::clone(state), key: Vec::new(), dropped: Vec::new(), lost: BTreeMap::new() }
    }

    /// Whether an entry is the newest of its key.
    fn note_key(&mut self, entry: &Entry<'_>) -> bool {
        let is_newest = self.key != entry.key;
        if is_newest {
            self.key.clear();
            self.key.extend_from_slice(entry.key);
        }
        is_newest
    }

    /// Sums up those of which their groups know nothing.
    fn sum_up(&mut self) {
        let state = &*self.state.hold();
        for Dropped { key, seqno, file, bytes, has_vanished } in self.dropped.drain(..) {
            // A forgotten range delete covers nothing in any group any more.
            if has_vanished || state.ranges.known().covers(&key, seqno) {
                let group = state.groups.at(key_hash(&key)).region.prefix;
                *self.lost.entry((file, group)).or_default() += bytes;
            }
        }
    }
}

impl Rewriter for Discards {
    fn keep(&mut self, entry: &Entry<'_>) -> Result<Kept> {
        self.note_key(entry);
        Ok(Kept::Unchanged)
    }

    fn discard(&mut self, entry: &Entry<'_>, newer: SeqNo) -> Result<()> {
        let has_vanished = newer == entry.seqno;
        if self.note_key(entry)
            && entry.kind == Kind::Pointer
            && let Ok(at) = pointer::decode(entry.payload)
        {
            let (key, bytes) = (entry.key.into(), at.len.into());
            self.dropped.push(Dropped { key, seqno: entry.seqno, file: at.file, bytes, has_vanished });
            if self.dropped.len() >= TOLD_AT_ONCE {
                self.sum_up();
            }
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<ValueEdit> {
        self.sum_up();
        let Self { lost, .. } = *self;
        let lost = lost.into_iter().map(|((file, group), bytes)| (file, group, bytes)).collect();
        let pointers = PointerChanges { lost, ..PointerChanges::default() };
        Ok(ValueEdit { pointers, ..ValueEdit::default() })
    }
}

impl HashKvState {
    /// Counts what `edit`, which is about to be recorded, has lost. The log's share is its garbage.
    pub(super) fn lose(&mut self, edit: &mut ValueEdit) {
        for (file, group, bytes) in take(&mut edit.pointers.lost) {
            let unknown = self.groups.at_mut(group).lose(file, bytes);
            let is_of_log = unknown > 0 && self.cold_log.ids().any(|id| id == file);
            if is_of_log && !planted!("log_learns_from_tags_alone") {
                edit.garbage.push((file, unknown, 0));
            }
        }
    }
}
