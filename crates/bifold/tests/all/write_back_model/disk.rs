//! The contents of the disk, what a power loss leaves of them, and what recovery makes of that.

use std::collections::BTreeMap;

use super::Mistake::{self, RecoversTails};
use crate::modeled::{Entry, FileId, Op, Pointer, Record, SeqNo, survives};

pub(super) const GROUPS: usize = 2;
/// The group of range deletes. GC never takes it.
pub(super) const RANGES: usize = GROUPS;

/// The group of files that an operation belongs to.
pub(super) fn group<T>(op: &Op<T>) -> usize {
    if op.first == op.last { usize::from(op.first) % GROUPS } else { RANGES }
}

pub(super) fn is_covered(record: &Record, ranges: &[Record]) -> bool {
    ranges.iter().any(|range| range.seqno > record.seqno && range.covers(record.first))
}

#[derive(Clone)]
pub(super) struct File {
    pub(super) group: usize,
    pub(super) records: Vec<Record>,
    pub(super) synced: usize,
    /// Its length in the manifest, if the manifest has it.
    pub(super) recorded: Option<usize>,
}

/// Files, log, and the manifest. Changes of the manifest are durable at once.
#[derive(Clone, Default)]
pub(super) struct Disk {
    pub(super) files: BTreeMap<FileId, File>,
    pub(super) next_file: FileId,
    pub(super) log: Vec<Entry>,
    pub(super) log_synced: usize,
    /// This much of the log is in tables. Replay skips it.
    pub(super) flushed: usize,
    pub(super) deleted: BTreeMap<FileId, SeqNo>,
}

impl Disk {
    pub(super) fn add(&mut self, group: usize, records: Vec<Record>) -> FileId {
        self.next_file += 1;
        self.files.insert(self.next_file, File { group, records, synced: 0, recorded: Some(0) });
        self.next_file
    }

    pub(super) fn append(&mut self, file: FileId, record: Record) -> Pointer {
        let records = &mut self.files.get_mut(&file).unwrap().records;
        records.push(record);
        Pointer { file, at: records.len() - 1 }
    }

    pub(super) fn lengths(&self) -> Vec<(FileId, usize)> {
        self.files.iter().map(|(&id, file)| (id, file.records.len())).collect()
    }

    pub(super) fn record(&mut self, lengths: &[(FileId, usize)]) {
        for (id, len) in lengths {
            if let Some(file) = self.files.get_mut(id) {
                file.recorded = file.recorded.max(Some(*len));
            }
        }
    }

    pub(super) fn lose_power(&mut self) {
        for file in self.files.values_mut() {
            file.records.truncate(survives(file.synced, file.records.len()));
        }
        self.log.truncate(survives(self.log_synced, self.log.len()));
    }

    fn resolves(&self, entry: &Entry) -> bool {
        let Some(Pointer { file, at }) = entry.what else { return true };
        self.files.get(&file).map_or(self.deleted.contains_key(&file), |file| at < file.records.len())
    }

    /// Ends the log where a value is missing, rewrites what the manifest does not record, and truncates that.
    pub(super) fn recover(&mut self, mistake: Option<Mistake>) {
        self.files.retain(|id, file| file.recorded.is_some() && !self.deleted.contains_key(id));
        let whole = (self.flushed..self.log.len()).find(|&at| !self.resolves(&self.log[at]));
        self.log.truncate(whole.unwrap_or(self.log.len()));
        assert!(self.log.len() >= self.log_synced, "an entry of the synced log leads to nothing");
        let rewritten: Vec<FileId> = (0..=RANGES).map(|group| self.add(group, Vec::new())).collect();
        for at in self.flushed..self.log.len() {
            let entry = self.log[at];
            let value = match entry.what.map(|to| (to, self.files.get(&to.file))) {
                None => None,
                Some((to, Some(file))) if to.at >= file.recorded.unwrap() => file.records[to.at].what,
                Some(_) => continue,
            };
            let Op { first, last, seqno, .. } = entry;
            let to = self.append(rewritten[group(&entry)], Op { first, last, seqno, what: value });
            self.log[at].what = value.map(|_| to);
        }
        for (id, file) in &mut self.files {
            if !rewritten.contains(id) && mistake != Some(RecoversTails) {
                file.records.truncate(file.recorded.unwrap());
            }
            file.synced = file.records.len();
            file.recorded = Some(file.synced);
        }
        self.flushed = self.log.len();
        self.log_synced = self.log.len();
    }
}
