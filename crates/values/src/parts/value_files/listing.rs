//! What the manifest records about value files: which exist, how long they are, and which are deleted.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use bifold_contract::{Error, FileId, Result, SeqNo, ValueEdit, ValueFileMeta, planted};

use super::{Drained, ValueFile, ValueFiles};
use crate::parts::{hash_map::HashMap, sync::LockExt};

impl ValueFiles {
    /// Returns the files that no edit names yet, and forgets them: the caller records them.
    #[must_use]
    pub(crate) fn unrecorded(&self) -> Vec<ValueFileMeta> {
        let files = std::mem::take(&mut *self.unrecorded.hold());
        let durable = |file: &Arc<ValueFile>| {
            let bytes = file.synced.load(Relaxed);
            file.recorded_len.store(bytes, Relaxed);
            ValueFileMeta { bytes, ..file.meta(self.context.keyspace) }
        };
        files.iter().map(durable).collect()
    }

    /// Makes the recorded lengths of these files durable.
    ///
    /// # Errors
    /// I/O errors. A file that is not there is one, too: the manifest would name what may not be durable.
    pub(crate) fn make_durable(&self, files: &[ValueFileMeta]) -> Result<()> {
        let find = |meta: &ValueFileMeta| self.get(meta.id).ok_or_else(|| not_there(meta.id));
        self.sync_files(&files.iter().map(find).collect::<Result<Vec<_>>>()?)
    }

    /// What the manifest should record when all commits up to `flushed` need no log any more: durable lengths, dead
    /// bytes, and deleted files that nothing points at.
    #[must_use]
    pub(crate) fn pending_edit(&self, flushed: SeqNo) -> ValueEdit {
        let mut edit = ValueEdit::default();
        for file in self.recorded_files() {
            self.record_growth(&file, &mut edit);
            let pending_edit = file.dead.load(Relaxed).saturating_sub(file.recorded_dead.load(Relaxed));
            if pending_edit > 0 {
                // Counted again by `installed`.
                file.dead.fetch_sub(pending_edit, Relaxed);
                edit.garbage.push((file.id, pending_edit, 0));
            }
        }
        let mut deleted = self.deleted.hold();
        edit.removed.extend(deleted.iter().filter(|&(_, &last)| last <= flushed).map(|(&id, _)| id));
        deleted.retain(|_, last| *last > flushed);
        edit
    }

    /// Adds the length of a recorded file, as far as it is durable.
    fn record_growth(&self, file: &ValueFile, edit: &mut ValueEdit) {
        let bytes = file.synced.load(Relaxed);
        if bytes > file.recorded_len.fetch_max(bytes, Relaxed) {
            edit.removed.push(file.id);
            edit.added.push(ValueFileMeta { bytes, ..file.meta(self.context.keyspace) });
        }
    }

    /// The files that edits have named, oldest first.
    fn recorded_files(&self) -> Vec<Arc<ValueFile>> {
        let mut files: Vec<_> =
            self.all.load().values().filter(|file| file.recorded_len.load(Relaxed) > 0).map(Arc::clone).collect();
        files.sort_unstable_by_key(|file| file.id);
        files
    }

    /// Everything that edits have recorded so far, as one edit.
    #[must_use]
    pub(crate) fn recorded(&self) -> ValueEdit {
        let files = self.recorded_files();
        let meta = |file: &Arc<ValueFile>| ValueFileMeta {
            bytes: file.recorded_len.load(Relaxed),
            ..file.meta(self.context.keyspace)
        };
        let dead = |file: &Arc<ValueFile>| (file.id, file.recorded_dead.load(Relaxed), 0);
        ValueEdit {
            removed: Vec::new(),
            added: files
                .iter()
                .map(meta)
                .chain(self.deleted.hold().iter().map(|(&id, &last)| self.deleted_meta(id, last)))
                .collect(),
            garbage: files.iter().map(dead).filter(|garbage| garbage.1 > 0).collect(),
            ..ValueEdit::default()
        }
    }

    /// Marks files as drained: all they held has moved, by commits up to `last`, or is dead. All at once: a file must
    /// not be reclaimed before one that holds an older version of what it holds.
    pub fn mark_drained(&self, files: impl Iterator<Item = FileId>, last: SeqNo) {
        let drained = Drained { last, is_syncing: false, is_synced: false };
        let there = files.filter(|&id| self.get(id).is_some()).map(|id| (id, drained));
        self.drained.hold().extend(there);
        self.ask_at_sync();
    }

    /// Reclaims the drained files that no snapshot and no unsynced commit points into, and whose copies are durable.
    /// Notes are copied without any commit, so a sync must have begun after the file was drained. The edit also
    /// records how long the other files are: a note that was copied to the end of one must not be truncated after the
    /// file it came from is deleted.
    ///
    /// A file that was drained later is never reclaimed without one drained earlier. What comes back after a crash
    /// must not be older than what was deleted, since GC of a hot segment takes its newest record of a key for the
    /// newest of all.
    #[must_use]
    pub(crate) fn reclaim(&self, durable: SeqNo, oldest_snapshot: Option<SeqNo>) -> ValueEdit {
        let is_free = |drained: &Drained| {
            (drained.is_synced || planted!("reclaim_unsynced"))
                && drained.last <= durable
                && oldest_snapshot.is_none_or(|snapshot| snapshot >= drained.last)
        };
        let mut edit = ValueEdit::default();
        for (&id, drained) in self.drained.hold().iter().filter(|(_, drained)| is_free(drained)) {
            edit.removed.push(id);
            edit.added.push(self.deleted_meta(id, drained.last));
        }
        if !edit.is_empty() && !planted!("forget_growth") {
            let stay: Vec<_> =
                self.recorded_files().into_iter().filter(|file| !edit.removed.contains(&file.id)).collect();
            stay.iter().for_each(|file| self.record_growth(file, &mut edit));
        }
        edit
    }

    /// Whether [`ValueFiles::reclaim`] would find something after a sync.
    #[must_use]
    pub(crate) fn can_reclaim(&self, oldest_snapshot: Option<SeqNo>) -> bool {
        self.drained.hold().values().any(|drained| oldest_snapshot.is_none_or(|snapshot| snapshot >= drained.last))
    }

    /// Counts what an edit says is dead, and deletes the files that it has removed.
    pub(crate) fn installed(&self, edit: &ValueEdit) {
        for &(id, bytes, _) in &edit.garbage {
            if let Some(file) = self.get(id) {
                file.dead.fetch_add(bytes, Relaxed);
                file.recorded_dead.fetch_add(bytes, Relaxed);
            }
        }
        for &(id, tags) in &edit.tagged {
            if let Some(file) = self.get(id) {
                file.tags.fetch_or(tags, Relaxed);
            }
        }
        for meta in edit.added.iter().filter(|meta| meta.deleted.is_none()) {
            if let Some(file) = self.get(meta.id) {
                file.recorded_len.fetch_max(meta.bytes, Relaxed);
            }
        }
        let is_deleted = |id: &FileId| edit.added.iter().all(|added| added.id != *id || added.deleted.is_some());
        let _alone = self.change.hold();
        let mut all = HashMap::clone(&self.all.load());
        let deleted: Vec<Arc<ValueFile>> =
            edit.removed.iter().copied().filter(is_deleted).filter_map(|id| all.remove(&id)).collect();
        if deleted.is_empty() {
            return;
        }
        self.all.store(Arc::new(all));
        for file in deleted {
            if let Some(drained) = self.drained.hold().remove(&file.id) {
                self.deleted.hold().insert(file.id, drained.last);
            }
            self.dirty.hold().files.retain(|dirty| dirty.id != file.id);
            file.reader.remove_when_unused_counting(&self.being_removed, file.len());
        }
    }

    /// Bytes of deleted files that nobody needs and that are still on the disk.
    #[must_use]
    pub(crate) fn being_removed_bytes(&self) -> u64 {
        self.being_removed.bytes()
    }

    /// Number of files, bytes in them, and bytes of these in drained files.
    #[must_use]
    pub fn sizes(&self) -> (u64, u64, u64) {
        let drained = self.drained.hold();
        let all = self.all.load();
        let total = all.values().map(|file| file.len()).sum();
        let idle = all.values().filter(|file| drained.contains_key(&file.id)).map(|file| file.len()).sum();
        (all.len() as u64, total, idle)
    }

    /// Bytes of drained files out of which something moved after the commit `seqno`.
    #[must_use]
    pub(crate) fn drained_after(&self, seqno: SeqNo) -> u64 {
        let drained = self.drained.hold();
        let all = self.all.load();
        let later = drained.iter().filter(|(_, drained)| drained.last > seqno);
        later.filter_map(|(id, _)| all.get(id)).map(|file| file.len()).sum()
    }

    /// The manifest entry of a deleted file, out of which values moved up to the commit `last`.
    fn deleted_meta(&self, id: FileId, last: SeqNo) -> ValueFileMeta {
        ValueFileMeta {
            id,
            class: 0,
            keyspace: self.context.keyspace,
            group: 0,
            level: 0,
            tags: 0,
            bytes: 0,
            entries: 0,
            deleted: Some(last),
            smallest: Box::default(),
            largest: Box::default(),
        }
    }
}

fn not_there(id: FileId) -> Error {
    Error::Panicked { what: "recording value files", message: format!("there is no value file {id} to be recorded") }
}

#[cfg(test)]
mod tests {
    use bifold_contract::IoSource;
    use bifold_format::{
        names,
        value::{self, Stored, ValueKind},
    };
    use bifold_io::memory::MemoryFs;

    use super::*;
    use crate::parts::value_files::scratch::value_files;

    fn files() -> ValueFiles {
        value_files(&MemoryFs::new(), 2)
    }

    fn append(files: &ValueFiles, file: &Arc<ValueFile>, seqno: SeqNo) {
        let mut record = Vec::new();
        value::encode(&mut record, (file.id, file.len()), ValueKind::Delete, seqno, b"key", Stored::NOTHING);
        files.append(file, &record).unwrap();
    }

    fn sync(files: &ValueFiles) {
        files.begin_sync();
        files.sync().unwrap();
        files.synced();
    }

    #[test]
    fn a_file_is_reclaimed_in_the_edit_that_records_the_lengths_of_the_others() {
        let files = files();
        let (stays, goes) = (files.begin(1).unwrap(), files.begin(1).unwrap());
        append(&files, &goes, 1);
        sync(&files);
        assert_eq!(files.unrecorded().len(), 2);
        // What one held is at the end of the other.
        append(&files, &stays, 1);
        files.mark_drained([goes.id].into_iter(), 2);
        assert_eq!(files.reclaim(1, None), ValueEdit::default(), "its move is not durable");
        assert_eq!(files.reclaim(2, None), ValueEdit::default(), "the copy is not durable");
        sync(&files);
        append(&files, &stays, 3);
        let edit = files.reclaim(2, None);
        assert_eq!(edit.removed, [goes.id, stays.id]);
        let lengths: Vec<_> = edit.added.iter().map(|meta| (meta.id, meta.deleted, meta.bytes)).collect();
        let durable = stays.synced.load(Relaxed);
        assert!(stays.start() < durable && durable < stays.len());
        assert_eq!(lengths, [(goes.id, Some(2), 0), (stays.id, None, durable)]);
        files.installed(&edit);
        assert!(files.get(goes.id).is_none() && files.get(stays.id).is_some());
    }

    #[test]
    fn a_reclaimed_file_stays_for_readers_that_found_it_before() {
        let files = files();
        let (stays, goes) = (files.begin(1).unwrap(), files.begin(1).unwrap());
        append(&files, &goes, 1);
        append(&files, &stays, 1);
        sync(&files);
        let _listed = files.unrecorded();
        files.mark_drained([goes.id].into_iter(), 1);
        sync(&files);
        files.installed(&files.reclaim(1, None));
        assert!(files.get(goes.id).is_none());
        let reader = goes.reader().clone();
        drop(goes);
        for _ in 0..3 {
            // Each of them makes room for itself.
            for file in [stays.reader(), &files.context.dir.open(&names::value(stays.id)).unwrap(), &reader] {
                file.read_at(&mut [0; 40], 0, IoSource::Get).unwrap();
            }
        }
        assert_eq!(files.context.dir.list().unwrap().len(), 2);
        drop(reader);
        assert_eq!(files.context.dir.list().unwrap(), [names::value(stays.id)]);
    }

    #[test]
    fn idle_files_are_closed_and_reopened_for_appends() {
        let files = files();
        let all: Vec<_> = (0..5).map(|_| files.begin(1).unwrap()).collect();
        for round in 1..4 {
            for file in &all {
                append(&files, file, round);
                let unsynced = all.iter().filter(|file| file.dirty.load(Relaxed)).count();
                assert!(files.context.dir.open_files().written >= unsynced, "they stay open until they are durable");
            }
            sync(&files);
            assert_eq!(files.context.dir.open_files().written, 0);
        }
        let record = all[0].len() - all[0].start();
        assert!(all.iter().all(|file| file.len() - file.start() == record && record % 3 == 0));
    }
}
