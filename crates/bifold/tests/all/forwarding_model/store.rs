//! The steps of commits, GC, flushes, merges, reclamation and reads, in the order of the decision. At every lock
//! another thread may run.

use shuttle::{
    rand::{Rng, thread_rng},
    sync::{Mutex, atomic::Ordering::SeqCst},
};

use super::{
    Mistake::{self, *},
    disk::{Disk, Rewritten, Unit},
    judge::{Picture, live_on},
};
use crate::modeled::{Entry, FileId, KEYS, Model, Op, Pointer, Promises, Record, SeqNo, Value, hold, newest, wait};

#[derive(Default)]
pub(super) struct Store {
    pub(super) mistake: Option<Mistake>,
    /// The commit lock, and the number of the last commit.
    pub(super) commits: Mutex<SeqNo>,
    /// Held for an edit of the manifest.
    pub(super) disk: Mutex<Disk>,
    /// One rewrite of tables at a time.
    pub(super) rewriting: Mutex<()>,
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
        let to = what.map(|_| hold(&self.disk).append(record));
        hold(&self.disk).log.push(Op { first, last, seqno: record.seqno, what: to });
        *commit = record.seqno;
        self.promises.visible.store(record.seqno, SeqCst);
    }

    pub(super) fn write_at_random(&self) {
        let mut rng = thread_rng();
        let (key, other) = (rng.gen_range(0..KEYS), rng.gen_range(0..KEYS));
        match rng.gen_range(0..8) {
            0..6 => self.write(key, key, Some(rng.gen_range(0..Value::MAX))),
            6 => self.write(key, key, None),
            _ => self.write(key.min(other), key.max(other), None),
        }
    }

    pub(super) fn gc(&self) {
        let begun = *hold(&self.commits);
        if let Some(source) = self.claim() {
            self.collect(source, begun);
        }
    }

    /// Moves what is live out of a file that nobody else takes.
    pub(super) fn collect(&self, source: FileId, begun: SeqNo) {
        let (records, known_dead) = {
            let disk = hold(&self.disk);
            let has_row = |at: &Pointer| disk.next(*at).is_some() && !self.errs(MovesAgainAfterAPowerLoss);
            let records = disk.files[&source].records.clone();
            let places = (0..records.len()).map(|at| Pointer { file: source, at });
            let known_dead: Vec<bool> = places.map(|at| disk.memory.left.contains(&at) || has_row(&at)).collect();
            (records, known_dead)
        };
        let mut moved = Vec::new();
        for (at, record) in records.into_iter().enumerate().filter(|&(at, _)| !known_dead[at]) {
            let from = Pointer { file: source, at };
            if hold(&self.disk).is_current(&record, from, self.mistake) {
                moved.push((from, record));
            }
        }
        self.install(source, &moved, begun);
        hold(&self.disk).memory.claimed.remove(&source);
    }

    /// A file that nothing is appended to, and that no other run has taken.
    fn claim(&self) -> Option<FileId> {
        let mut disk = hold(&self.disk);
        if thread_rng().gen_bool(0.5) {
            disk.memory.open = None;
        }
        let memory = &disk.memory;
        let is_free = |id: &FileId| {
            let is_taken = memory.claimed.contains(id) && !self.errs(TwoRunsTakeOneFile);
            let is_installed = disk.files[id].recorded.is_some() || self.errs(TakesUninstalledCopies);
            !is_taken && is_installed && memory.open != Some(*id) && !memory.drained.contains_key(id)
        };
        let free: Vec<FileId> = disk.files.keys().copied().filter(is_free).collect();
        let source = *free.get(thread_rng().gen_range(0..free.len().max(1)))?;
        disk.memory.claimed.insert(source);
        Some(source)
    }

    fn install(&self, source: FileId, moved: &[(Pointer, Record)], begun: SeqNo) {
        let copy = hold(&self.disk).add(moved.iter().map(|(_, record)| *record).collect(), None);
        if !self.errs(InstallsUnsyncedCopies) {
            hold(&self.disk).files.get_mut(&copy).unwrap().synced = moved.len();
        }
        let last = match self.mistake {
            Some(DrainsAsOfTheBeginning) => begun,
            Some(DrainsAsOfVisible) => self.promises.visible.load(SeqCst),
            _ => *hold(&self.commits),
        };
        let newest = moved.iter().map(|(_, record)| record.seqno).max().unwrap_or(0);
        if newest > self.promises.durable.load(SeqCst) && !self.errs(InstallsCopiesOfUnsyncedCommits) {
            self.sync();
        }
        let rows = moved.iter().enumerate().map(|(at, (from, _))| (*from, Pointer { file: copy, at }));
        let unit = Unit { rows: rows.collect(), used: 0 };
        hold(&self.disk).install((source, copy), unit, last, self.mistake);
    }

    pub(super) fn sync(&self) {
        let (upto, lengths, log) = self.note_lengths();
        self.make_durable(&lengths);
        let mut disk = hold(&self.disk);
        disk.log_synced = disk.log_synced.max(log);
        drop(disk);
        self.promises.durable.fetch_max(upto, SeqCst);
    }

    /// Under the commit lock: the last commit, how long value files are, and how long the log.
    fn note_lengths(&self) -> (SeqNo, Vec<(FileId, usize)>, usize) {
        let commit = hold(&self.commits);
        let disk = hold(&self.disk);
        (*commit, disk.lengths(), disk.log.len())
    }

    fn make_durable(&self, lengths: &[(FileId, usize)]) {
        for &(id, len) in lengths {
            if let Some(file) = hold(&self.disk).files.get_mut(&id) {
                file.synced = file.synced.max(len);
            }
        }
    }

    /// Entries of the log become a table of level 0. What they lead to is durable first.
    pub(super) fn flush(&self) {
        let _one = hold(&self.rewriting);
        let (upto, lengths, log) = self.note_lengths();
        self.make_durable(&lengths);
        let flushed = hold(&self.disk).flushed;
        let entries = hold(&self.disk).log[flushed..log].to_vec();
        let rewritten = self.renew(entries);
        let mut disk = hold(&self.disk);
        disk.rewritten(&rewritten);
        disk.level0.extend(rewritten.kept);
        disk.flushed = log;
        disk.log_synced = disk.log_synced.max(log);
        disk.record(&lengths);
        drop(disk);
        self.promises.durable.fetch_max(upto, SeqCst);
    }

    /// Addresses are written as they are now. Which rows that uses is known, and counts with the edit.
    fn renew(&self, entries: Vec<Entry>) -> Rewritten {
        let mut rewritten = Rewritten::default();
        for entry in entries {
            let Some(old) = entry.what else {
                rewritten.kept.push(entry);
                continue;
            };
            let (new, rows) = hold(&self.disk).follow(old);
            rewritten.kept.push(Op { what: Some(new), ..entry });
            rewritten.used.extend(rows);
        }
        rewritten
    }

    /// Level 0 and the last run become one.
    pub(super) fn merge(&self) {
        let _one = hold(&self.rewriting);
        let (level0, last_run) = {
            let disk = hold(&self.disk);
            (disk.level0.clone(), disk.last_run.clone())
        };
        let snapshots = hold(&self.promises.snapshots).clone();
        let all = [&level0[..], &last_run].concat();
        let is_dropped = |entry: &Entry| entry.what.is_some() && is_shadowed(entry, &all, &snapshots);
        let (dropped, kept): (Vec<Entry>, Vec<Entry>) = all.iter().copied().partition(is_dropped);
        let mut rewritten = self.renew(kept);
        if self.errs(CountsRowsWhenMet) {
            let used = std::mem::take(&mut rewritten.used);
            hold(&self.disk).rewritten(&Rewritten { used, ..Rewritten::default() });
        }
        rewritten.dropped = dropped.iter().filter_map(|entry| entry.what).collect();
        if self.errs(FollowsDroppedWhenMet) {
            for at in std::mem::take(&mut rewritten.dropped) {
                let (place, rows) = hold(&self.disk).follow(at);
                rewritten.followed.push(place);
                rewritten.used.extend(rows);
            }
        }
        if thread_rng().gen_bool(0.2) {
            return;
        }
        let mut disk = hold(&self.disk);
        disk.rewritten(&rewritten);
        disk.level0.drain(..level0.len());
        disk.last_run = rewritten.kept;
    }

    pub(super) fn reclaim(&self) {
        let durable = self.promises.durable.load(SeqCst);
        // Asked after `durable` is known: a snapshot opened later is no older than that.
        let oldest = self.promises.oldest_snapshot();
        let is_free = |as_of: SeqNo| {
            (as_of <= durable || self.errs(ReclaimsUnsynced)) && (as_of <= oldest || self.errs(ReclaimsUnderSnapshots))
        };
        let mut disk = hold(&self.disk);
        let free: Vec<_> = disk.memory.drained.iter().map(|(&id, &n)| (id, n)).filter(|&(_, n)| is_free(n)).collect();
        for (id, as_of) in free {
            disk.memory.drained.remove(&id);
            disk.deleted.insert(id, as_of);
            disk.files.remove(&id);
        }
    }

    /// `None` if the value is no longer where this view has it.
    fn read(&self, view: &[Entry], key: u8, seqno: SeqNo) -> Option<Option<Value>> {
        let Some(mut at) = newest(view, key, seqno).and_then(|entry| entry.what) else { return Some(None) };
        for rows in 0.. {
            if let Some(file) = hold(&self.disk).files.get(&at.file) {
                return Some(file.records[at.at].what);
            }
            let next = hold(&self.disk).next(at);
            at = next.filter(|_| rows == 0 || !self.errs(FollowsOneRow))?;
        }
        unreachable!("it returns")
    }

    /// An iterator keeps the view that it began with, and looks up anew what has moved since.
    pub(super) fn read_in_snapshot(&self) {
        self.promises.in_snapshot(|seqno| {
            let view = hold(&self.disk).index();
            wait(120);
            for key in 0..KEYS {
                let again = |_| {
                    let view = hold(&self.disk).index();
                    self.read(&view, key, seqno)
                };
                let found = self.read(&view, key, seqno).or_else(|| (0..9).find_map(again));
                let found = found.expect("a snapshot's value is somewhere");
                assert_eq!(found, self.promises.expect(key, seqno), "key {key} in a snapshot of {seqno}");
            }
        });
    }

    /// A read without a snapshot begins again if the value is no longer where its view has it.
    pub(super) fn get(&self, key: u8) {
        let look = |_| {
            let view = hold(&self.disk).index();
            let seqno = self.promises.visible.load(SeqCst);
            Some((seqno, view.iter().map(|entry| entry.seqno).max().unwrap_or(0), self.read(&view, key, seqno)?))
        };
        let (seqno, newest_seen, found) = (0..9).find_map(look).expect("a file that the newest entry leads to");
        // Commits between the two loads are not in the view.
        assert_eq!(found, self.promises.expect(key, seqno.min(newest_seen)), "key {key} as of {seqno}");
    }
}

impl Model for Store {
    type Picture = Picture;

    fn picture(&self) -> Picture {
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

/// Whether a newer entry hides this one from every reader.
fn is_shadowed(entry: &Entry, all: &[Entry], snapshots: &[SeqNo]) -> bool {
    let newer = all.iter().filter(|other| other.seqno > entry.seqno && other.covers(entry.first));
    let next = newer.map(|other| other.seqno).min();
    next.is_some_and(|next| !snapshots.iter().any(|open| (entry.seqno..next).contains(open)))
}
