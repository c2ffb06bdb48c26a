//! Files, rows, log and tables; edits of the manifest; what a power loss leaves, and what recovery makes of that.

use std::collections::{BTreeMap, BTreeSet};

use super::Mistake::{self, *};
use crate::modeled::{Entry, FileId, Pointer, Record, SeqNo, newest, survives};

#[derive(Clone, Debug)]
pub(super) struct File {
    pub(super) records: Vec<Record>,
    pub(super) synced: usize,
    /// Its length in the manifest, if the manifest has it.
    pub(super) recorded: Option<usize>,
    /// Records that no entry of a table leads to, as the manifest counts them.
    pub(super) dead: usize,
}

/// What one GC run has moved.
#[derive(Clone, Debug, Default)]
pub(super) struct Unit {
    pub(super) rows: BTreeMap<Pointer, Pointer>,
    pub(super) used: usize,
}

/// Changes of the manifest are durable at once: tables, units, lengths, counts, deletions.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    pub(super) files: BTreeMap<FileId, File>,
    pub(super) next_file: FileId,
    pub(super) units: Vec<Unit>,
    pub(super) log: Vec<Entry>,
    pub(super) log_synced: usize,
    /// This much of the log is in tables.
    pub(super) flushed: usize,
    pub(super) level0: Vec<Entry>,
    pub(super) last_run: Vec<Entry>,
    pub(super) deleted: BTreeMap<FileId, SeqNo>,
    pub(super) memory: Memory,
}

/// What the process knows and a power loss ends.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// Where versions stood that have left the index.
    pub(super) left: BTreeSet<Pointer>,
    /// Of files from this one on, all of them are known.
    pub(super) first_begun: FileId,
    /// Files that everything has moved out of, and the last commit at that time.
    pub(super) drained: BTreeMap<FileId, SeqNo>,
    pub(super) claimed: BTreeSet<FileId>,
    pub(super) open: Option<FileId>,
    /// Files that an earlier process had moved everything out of, without deleting them.
    pub(super) moved_before: BTreeSet<FileId>,
}

/// What a merge or a flush has found out when its edit is recorded.
#[derive(Default)]
pub(super) struct Rewritten {
    pub(super) kept: Vec<Entry>,
    pub(super) dropped: Vec<Pointer>,
    /// Those that were followed too early.
    pub(super) followed: Vec<Pointer>,
    /// Rows that led to the addresses that it wrote.
    pub(super) used: Vec<Pointer>,
}

impl Disk {
    pub(super) fn add(&mut self, records: Vec<Record>, recorded: Option<usize>) -> FileId {
        self.next_file += 1;
        self.files.insert(self.next_file, File { records, synced: 0, recorded, dead: 0 });
        self.next_file
    }

    pub(super) fn append(&mut self, record: Record) -> Pointer {
        let file = self.memory.open.unwrap_or_else(|| self.add(Vec::new(), Some(0)));
        self.memory.open = Some(file);
        let records = &mut self.files.get_mut(&file).unwrap().records;
        records.push(record);
        Pointer { file, at: records.len() - 1 }
    }

    pub(super) fn next(&self, at: Pointer) -> Option<Pointer> {
        self.units.iter().find_map(|unit| unit.rows.get(&at).copied())
    }

    /// Where the value is now, and the rows on the way.
    pub(super) fn follow(&self, mut at: Pointer) -> (Pointer, Vec<Pointer>) {
        let mut rows = Vec::new();
        while let Some(to) = self.next(at) {
            rows.push(at);
            at = to;
        }
        (at, rows)
    }

    /// Memtable and level 0.
    pub(super) fn above(&self) -> Vec<Entry> {
        [&self.log[self.flushed..], &self.level0].concat()
    }

    pub(super) fn index(&self) -> Vec<Entry> {
        [&self.above()[..], &self.last_run].concat()
    }

    /// Whether a record of a file that GC has taken is the newest of its key, as far as what is above the last run
    /// says.
    pub(super) fn is_current(&self, record: &Record, from: Pointer, mistake: Option<Mistake>) -> bool {
        let leads_here = |entry: Entry| entry.what.is_some_and(|to| to == from || self.follow(to).0 == from);
        let is_not_older = |entry: &Entry| entry.seqno >= record.seqno;
        let knows_all = from.file >= self.memory.first_begun || mistake == Some(TrustsWhatIsAboveForOldFiles);
        match newest(&self.above(), record.first, SeqNo::MAX).filter(is_not_older) {
            Some(entry) => leads_here(entry),
            None if knows_all && mistake != Some(AsksTheIndexForNewFiles) => true,
            None => newest(&self.index(), record.first, SeqNo::MAX).is_some_and(leads_here),
        }
    }

    fn use_rows(&mut self, rows: &[Pointer]) {
        for row in rows {
            let unit = self.units.iter_mut().find(|unit| unit.rows.contains_key(row));
            unit.expect("rows stay until all of their unit are used").used += 1;
        }
    }

    pub(super) fn drop_used_units(&mut self) {
        self.units.retain(|unit| unit.used < unit.rows.len());
    }

    /// A version whose record is at this place leaves the index.
    fn leaves(&mut self, place: Pointer) {
        self.memory.left.insert(place);
        if let Some(file) = self.files.get_mut(&place.file) {
            file.dead += 1;
        }
    }

    /// The edit of a flush or merge, after which the caller replaces the tables.
    pub(super) fn rewritten(&mut self, Rewritten { dropped, followed, used, .. }: &Rewritten) {
        self.use_rows(used);
        followed.iter().for_each(|&place| self.leaves(place));
        for &at in dropped {
            let (place, rows) = self.follow(at);
            self.use_rows(&rows);
            self.leaves(place);
        }
        self.drop_used_units();
    }

    /// The edit of a GC run.
    pub(super) fn install(
        &mut self,
        (source, copy): (FileId, FileId),
        mut unit: Unit,
        last: SeqNo,
        mistake: Option<Mistake>,
    ) {
        let is_gone = |row: &&Pointer| self.memory.left.contains(row) && mistake != Some(ForgetsWhatLeftMeanwhile);
        let gone: Vec<Pointer> = unit.rows.keys().filter(is_gone).map(|row| unit.rows[row]).collect();
        unit.used = gone.len();
        if mistake != Some(LeavesMovedRecordsLive) {
            self.files.get_mut(&source).unwrap().dead += unit.rows.len() - gone.len();
        }
        let file = self.files.get_mut(&copy).unwrap();
        file.recorded = Some(file.records.len());
        gone.into_iter().for_each(|place| self.leaves(place));
        self.units.push(unit);
        self.drop_used_units();
        self.memory.drained.insert(source, last);
    }

    /// Of files that commits append to or an edit names. GC makes its own copies durable.
    pub(super) fn lengths(&self) -> Vec<(FileId, usize)> {
        self.files
            .iter()
            .filter(|(_, file)| file.recorded.is_some())
            .map(|(&id, file)| (id, file.records.len()))
            .collect()
    }

    pub(super) fn record(&mut self, lengths: &[(FileId, usize)]) {
        for (id, len) in lengths {
            if let Some(file) = self.files.get_mut(id).filter(|file| file.recorded.is_some()) {
                file.recorded = file.recorded.max(Some(*len));
            }
        }
    }

    pub(super) fn lose_power(&mut self) {
        for file in self.files.values_mut() {
            file.records.truncate(survives(file.synced, file.records.len()));
        }
        self.log.truncate(survives(self.log_synced, self.log.len()).max(self.flushed));
        self.memory = Memory::default();
    }

    fn resolves(&self, entry: &Entry) -> bool {
        let Some(at) = entry.what else { return true };
        match self.files.get(&at.file) {
            Some(file) => at.at < file.records.len(),
            None => self.next(at).is_some() || self.deleted.contains_key(&at.file),
        }
    }

    /// Ends the log where a value is missing, and records what it leads to.
    pub(super) fn recover(&mut self, mistake: Option<Mistake>) {
        self.files.retain(|id, file| file.recorded.is_some() && !self.deleted.contains_key(id));
        let whole = (self.flushed..self.log.len()).find(|&at| !self.resolves(&self.log[at]));
        self.log.truncate(whole.unwrap_or(self.log.len()));
        assert!(self.log.len() >= self.log_synced, "an entry of the synced log leads to nothing");
        let led_to: BTreeSet<Pointer> = self.log[self.flushed..].iter().filter_map(|entry| entry.what).collect();
        for (&id, file) in &mut self.files {
            let new = file.recorded.unwrap()..file.records.len();
            file.dead += new.filter(|&at| !led_to.contains(&Pointer { file: id, at })).count();
            (file.synced, file.recorded) = (file.records.len(), Some(file.records.len()));
        }
        self.log_synced = self.log.len();
        self.memory.first_begun = self.next_file + 1;
        let moved = self.units.iter().flat_map(|unit| unit.rows.keys()).map(|row| row.file);
        let moved: BTreeSet<FileId> = moved.filter(|id| self.files.contains_key(id)).collect();
        if mistake == Some(DrainsMovedFilesAtOpening) {
            self.memory.drained = moved.iter().map(|&id| (id, 0)).collect();
        }
        self.memory.moved_before = moved;
    }
}
