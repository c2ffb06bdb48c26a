//! The steps of commits, GC, syncs, reclamation and reads, in the order of the decision. At every lock another thread
//! may run.

use std::collections::BTreeMap;

use shuttle::{
    rand::{Rng, thread_rng},
    sync::{Mutex, atomic::Ordering::SeqCst},
};

use super::{
    Mistake::{self, *},
    disk::{Disk, GROUPS, RANGES, group, is_covered},
    judge::{Picture, live_on},
};
use crate::modeled::{Entry, FileId, KEYS, Model, Op, Pointer, Promises, Record, SeqNo, Value, hold, newest, wait};

#[derive(Clone, Default)]
pub(super) struct Group {
    pub(super) files: Vec<FileId>,
    /// Commits append to the last one.
    pub(super) is_open: bool,
}

#[derive(Default)]
pub(super) struct Store {
    pub(super) mistake: Option<Mistake>,
    /// The commit lock, and the number of the last commit.
    pub(super) commits: Mutex<SeqNo>,
    pub(super) groups: [Mutex<Group>; GROUPS + 1],
    pub(super) disk: Mutex<Disk>,
    pub(super) index: Mutex<Vec<Entry>>,
    /// Files that everything has moved out of, and the last commit at that time.
    pub(super) drained: Mutex<BTreeMap<FileId, SeqNo>>,
    pub(super) promises: Promises,
}

impl Store {
    fn errs(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    pub(super) fn write(&self, first: u8, last: u8, what: Option<Value>) {
        let mut commit = hold(&self.commits);
        let record = Op { first, last, seqno: *commit + 1, what };
        self.promises.history.lock().unwrap().push(record);
        let leaves_note = first < last || !self.errs(LeavesNoNote);
        let to = (what.is_some() || leaves_note).then(|| self.append(record));
        self.log_and_apply(&mut commit, Op { first, last, seqno: record.seqno, what: what.and(to) });
    }

    fn append(&self, record: Record) -> Pointer {
        let nth = group(&record);
        let group = &mut *hold(&self.groups[nth]);
        if !group.is_open {
            group.files.push(hold(&self.disk).add(nth, Vec::new()));
            group.is_open = true;
        }
        hold(&self.disk).append(*group.files.last().unwrap(), record)
    }

    fn log_and_apply(&self, commit: &mut SeqNo, entry: Entry) {
        hold(&self.disk).log.push(entry);
        hold(&self.index).push(entry);
        *commit = entry.seqno.max(*commit);
        self.promises.visible.store(*commit, SeqCst);
    }

    pub(super) fn gc(&self, group: usize) {
        let begun = self.promises.visible.load(SeqCst);
        let frozen = {
            let mut group = hold(&self.groups[group]);
            group.is_open = false;
            group.files.clone()
        };
        let records = self.records(&frozen);
        let ranges = self.ranges();
        let counting = (0..KEYS).filter_map(|key| newest(&records, key, SeqNo::MAX).filter(|r| r.what.is_some()));
        let copies: Vec<Record> = counting.filter(|record| !is_covered(record, &ranges)).collect();
        let copy = self.add_copy(group, &copies);
        let mut left: Vec<_> = (0..).map(|at| Pointer { file: copy, at }).zip(copies).collect();
        loop {
            let mut commit = hold(&self.commits);
            self.skip(group, &frozen, &mut left);
            let Some((to, Op { first, last, seqno, .. })) = left.pop() else {
                let as_of = if self.errs(DrainsAsOfFreeze) { begun } else { *commit };
                return self.take_effect(group, &frozen, copy, as_of);
            };
            let seqno = if self.errs(MovesWithOldNumber) { seqno } else { *commit + 1 };
            self.log_and_apply(&mut commit, Op { first, last, seqno, what: Some(to) });
        }
    }

    fn records(&self, files: &[FileId]) -> Vec<Record> {
        files.iter().flat_map(|id| hold(&self.disk).files[id].records.clone()).collect()
    }

    fn ranges(&self) -> Vec<Record> {
        let files = hold(&self.groups[RANGES]).files.clone();
        self.records(&files)
    }

    fn add_copy(&self, group: usize, copies: &[Record]) -> FileId {
        let mut disk = hold(&self.disk);
        let copy = disk.add(group, copies.to_vec());
        if self.errs(MovesToUnnamedCopy) {
            disk.files.get_mut(&copy).unwrap().recorded = None;
        }
        copy
    }

    /// Keys written since the group was frozen, and those that a range delete covers, do not move.
    fn skip(&self, group: usize, frozen: &[FileId], left: &mut Vec<(Pointer, Record)>) {
        let mut since = hold(&self.groups[group]).files.clone();
        since.retain(|file| !frozen.contains(file));
        let since = self.records(&since);
        if !self.errs(MovesOverNewerWrites) {
            left.retain(|(_, record)| !since.iter().any(|newer| newer.covers(record.first)));
        }
        if !self.errs(MovesOverRangeDeletes) {
            let ranges = self.ranges();
            left.retain(|(_, record)| !is_covered(record, &ranges));
        }
    }

    fn take_effect(&self, group: usize, frozen: &[FileId], copy: FileId, as_of: SeqNo) {
        let mut group = hold(&self.groups[group]);
        group.files.retain(|file| !frozen.contains(file));
        group.files.insert(0, copy);
        if self.errs(DrainsOneByOne) {
            for &file in frozen.iter().rev() {
                hold(&self.drained).insert(file, as_of);
                wait(60);
            }
        } else {
            hold(&self.drained).extend(frozen.iter().map(|&file| (file, as_of)));
        }
    }

    pub(super) fn sync(&self) {
        let unlocked = self.errs(NotesLengthsUnlocked).then(|| hold(&self.disk).lengths());
        let (upto, lengths, log) = {
            let commit = hold(&self.commits);
            let disk = hold(&self.disk);
            (*commit, unlocked.unwrap_or_else(|| disk.lengths()), disk.log.len())
        };
        if self.errs(SyncsLogFirst) {
            self.sync_log(log);
        }
        for &(id, len) in &lengths {
            if let Some(file) = hold(&self.disk).files.get_mut(&id) {
                file.synced = file.synced.max(len);
            }
        }
        if self.errs(RecordsBeforeLogIsDurable) {
            hold(&self.disk).record(&lengths);
        }
        self.sync_log(log);
        self.promises.durable.fetch_max(upto, SeqCst);
        let mut disk = hold(&self.disk);
        disk.record(&lengths);
        if thread_rng().gen_bool(0.3) {
            disk.flushed = disk.flushed.max(log);
        }
    }

    fn sync_log(&self, len: usize) {
        let mut disk = hold(&self.disk);
        disk.log_synced = disk.log_synced.max(len);
    }

    pub(super) fn reclaim(&self) {
        let before = self.errs(ReclaimsByEarlierSnapshots).then(|| {
            let oldest = self.promises.oldest_snapshot();
            wait(60);
            oldest
        });
        let durable = self.promises.durable.load(SeqCst);
        // Asked after `durable` is known: a snapshot opened later is no older than that.
        let oldest = match self.mistake {
            Some(ReclaimsUnderSnapshots) => SeqNo::MAX,
            _ => before.unwrap_or_else(|| self.promises.oldest_snapshot()),
        };
        let is_free = |as_of: SeqNo| (as_of <= durable || self.errs(ReclaimsUnsynced)) && as_of <= oldest;
        let mut drained = hold(&self.drained);
        let deleted: Vec<_> = drained.iter().map(|(&id, &as_of)| (id, as_of)).filter(|&(_, n)| is_free(n)).collect();
        drained.retain(|_, as_of| !is_free(*as_of));
        if self.errs(ReclaimsConcurrently) {
            drop(drained);
            wait(400);
            hold(&self.disk).deleted.extend(deleted.iter().copied());
        } else {
            // One record of the manifest, and one reclamation at a time: what exists after a crash is never older
            // than what was deleted, so no note is deleted while its value exists.
            hold(&self.disk).deleted.extend(deleted.iter().copied());
            drop(drained);
        }
        deleted.iter().for_each(|(id, _)| drop(hold(&self.disk).files.remove(id)));
    }

    /// `None` if the file is deleted.
    fn read(&self, key: u8, seqno: SeqNo) -> Option<Option<Value>> {
        let found = newest(&hold(&self.index), key, seqno).and_then(|entry| entry.what);
        let Some(Pointer { file, at }) = found else { return Some(None) };
        Some(hold(&self.disk).files.get(&file)?.records[at].what)
    }

    pub(super) fn read_in_snapshot(&self) {
        self.promises.in_snapshot(|seqno| {
            let look = |key| {
                let found = self.read(key, seqno).expect("the file of a snapshot exists");
                assert_eq!(found, self.promises.expect(key, seqno), "key {key} in a snapshot of {seqno}");
            };
            (0..KEYS).for_each(look);
            wait(120);
            (0..KEYS).for_each(look);
        });
    }

    /// A read without a snapshot looks the key up again if the file is deleted.
    pub(super) fn get(&self, key: u8) {
        let look = |_| {
            let seqno = self.promises.visible.load(SeqCst);
            Some((seqno, self.read(key, seqno)?))
        };
        let (seqno, found) = (0..9).find_map(look).expect("a file that the newest entry leads to");
        assert_eq!(found, self.promises.expect(key, seqno), "key {key} as of {seqno}");
    }

    pub(super) fn act_at_random(&self) {
        let mut rng = thread_rng();
        let (key, other) = (rng.gen_range(0..KEYS), rng.gen_range(0..KEYS));
        match rng.gen_range(0..8) {
            0..4 => self.write(key, key, Some(rng.gen_range(0..Value::MAX))),
            4 | 5 => self.write(key, key, None),
            6 if key != other => self.write(key.min(other), key.max(other), None),
            _ => self.sync(),
        }
    }
}

impl Model for Store {
    type Picture = Picture;

    fn picture(&self) -> Picture {
        self.reclaim();
        Picture::of(&self.promises, &self.disk, self.mistake)
    }

    fn judge(picture: Picture) {
        picture.judge(1);
    }

    fn check(&self) {
        (0..KEYS).for_each(|key| self.get(key));
    }

    fn live_on(&self) {
        live_on(self);
    }
}
