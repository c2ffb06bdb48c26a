//! What the logs of earlier sessions hold. The walk and its rules are those of `values/src/logs.rs`; here is what only
//! the engine's logs have: several keyspaces, large values that the change feed needs, and records that are no commits.
//!
//! * A skip takes numbers that nobody has. It may announce an ingest. That has arrived if the manifest has its last
//!   number. If it has not and nothing comes behind, the log ends before the skip.
//! * A log floor says which logs the manifest needed. An earlier one in the manifest means that its end is missing.
//! * A table is never ahead of the logs that others need: a stop before what a tree has flushed is damage.

use std::{collections::BTreeMap, sync::Arc};

use bifold_contract::{Corruption, Error, FileId, KeyspaceId, LargeFileMeta, LogFloor, Result, SeqNo, planted};
use bifold_format::{
    log::{LogRecord, LoggedIngest, Operation},
    names,
};
use bifold_io::Dir;
use bifold_values::logs::{FoundLog, FoundLogs, Lead, LogOwner, LogSpan, Meaning, RecordAt, Walked, walk_logs};

use super::state::ManifestState;
use crate::{
    log::kept_large::{self, NamedLarge},
    state::tree::{Tree, Values},
};

/// What the logs hold.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    /// The logs that count, oldest first.
    pub logs: Vec<FoundLog>,
    /// The number of the first commit that did not happen.
    pub next: SeqNo,
    /// The last commit that is known to be durable.
    pub durable: SeqNo,
    /// The largest file number in any pointer.
    pub last_file: FileId,
    /// The files of large values that commits name which happened, and which no table may have yet.
    pub large: BTreeMap<FileId, LargeFileMeta>,
    /// All that commits name which happened, by log: the change feed may need them.
    pub named: BTreeMap<FileId, NamedLarge>,
    /// Damaged values of commits that happened, which no crash explains.
    pub damaged: Vec<Error>,
}

/// What the engine makes of its logs.
struct EngineLogs<'a> {
    dir: &'a Dir,
    trees: &'a BTreeMap<KeyspaceId, (&'a Tree, Arc<Values>)>,
    state: &'a ManifestState,
    /// The last log floor of this manifest that a log has noted, and that log.
    noted_floor: (FileId, FileId),
    /// An ingest that the manifest does not have, if nothing has come behind its announcement.
    pending: Option<LoggedIngest>,
    /// Large values that the next commit names, as far as it has been seen.
    naming: NamedLarge,
    large: BTreeMap<FileId, LargeFileMeta>,
    named: BTreeMap<FileId, NamedLarge>,
}

impl Logs {
    /// Walks `logs`, oldest first, from the commit `next` on. Their pointers lead into the value files of `trees`.
    ///
    /// # Errors
    /// I/O errors; corruption.
    pub fn find<'a>(
        dir: &Dir,
        state: &ManifestState,
        (logs, next): (&[LogSpan], SeqNo),
        trees: impl Iterator<Item = &'a Tree>,
    ) -> Result<Self> {
        let trees: BTreeMap<KeyspaceId, (&Tree, Arc<Values>)> =
            trees.map(|tree| (tree.keyspace, (tree, tree.placement()))).collect();
        let mut owner = EngineLogs {
            dir,
            trees: &trees,
            state,
            noted_floor: (0, 0),
            pending: None,
            naming: Vec::new(),
            large: BTreeMap::new(),
            named: BTreeMap::new(),
        };
        let walked = walk_logs(dir, (logs, next), state.next_file, &mut owner)?;
        owner.finish(walked, logs)
    }

    /// Where their replay begins, if there are any.
    pub fn floor(&self) -> Option<LogFloor> {
        self.logs.first().map(FoundLog::floor)
    }
}

impl<'a> LogOwner<'a> for EngineLogs<'a> {
    fn lead(&mut self, operation: &Operation<'_>, seqno: SeqNo, at: &RecordAt<'_>) -> Result<Option<Lead<'a>>> {
        self.check_keyspace(operation, &at.record).map_err(|damage| at.damaged(damage))?;
        let trees = self.trees;
        // What a table holds may lead anywhere.
        let lead = match trees.get(&operation.keyspace()).filter(|(tree, _)| seqno > tree.flushed()) {
            Some((tree, values)) => Lead::of(values, Some(&tree.name), (operation, seqno), at)?,
            None => None,
        };
        let file = kept_large::file_of(operation).map_err(|damage| at.damaged(damage))?;
        self.naming.extend(file.map(|file| (file.named.file, file.bytes)));
        Ok(lead)
    }

    fn note(&mut self, at: &RecordAt<'_>) -> Result<()> {
        let floor = at.record.floor().map_err(|damage| at.damaged(damage))?;
        // An older log may have noted the floor of an earlier manifest, or of the one that this is a copy of.
        if let Some(floor) = floor.filter(|_| at.log >= self.state.begun_next_file) {
            self.noted_floor = self.noted_floor.max((floor, at.log));
        }
        Ok(())
    }

    fn meaning(&mut self, at: &RecordAt<'_>, next: SeqNo) -> Result<Meaning> {
        self.naming.clear();
        let record = &at.record;
        let skip = record.skips_to().map_err(|damage| at.damaged(damage))?;
        let counts = skip.is_some() || record.operations().next().is_some();
        // If its numbers are used again, an opening has found that it never arrived. A reader may hold its log.
        self.pending.take_if(|_| counts && record.first_seqno == next);
        if let Some(ingest) = self.pending {
            return if counts { Err(self.without(ingest)) } else { Ok(Meaning::Nothing) };
        }
        let announced = record.announced().map_err(|damage| at.damaged(damage))?;
        let announced = announced.filter(|_| record.first_seqno == next);
        let last_seqno = if planted!("trust_announcements") { SeqNo::MAX } else { self.state.last_seqno };
        if let Some(ingest) = announced.filter(|ingest| ingest.next - 1 > last_seqno) {
            self.pending = Some(ingest);
            return Ok(Meaning::Nothing);
        }
        Ok(skip.map_or(Meaning::Commit, Meaning::Skip))
    }

    fn happened(&mut self, log: FileId, leads: &[Lead<'a>]) {
        self.large.extend(leads.iter().filter_map(Lead::large).map(|file| (file.named.file, file)));
        if !self.naming.is_empty() {
            self.named.entry(log).or_default().append(&mut self.naming);
        }
    }
}

impl EngineLogs<'_> {
    /// The manifest lacks an ingest that was followed by others. A follower may have read an older manifest.
    fn without(&self, ingest: LoggedIngest) -> Error {
        let expected = format!("an ingest with numbers up to {}, as the logs say", ingest.next - 1);
        let found = format!("numbers up to {}: it is truncated or older than the logs", self.state.last_seqno);
        Corruption::new(0, "manifest", expected, found).of(self.dir.file(names::MANIFEST))
    }

    /// Operations on a dropped keyspace are skipped; its number is below the next one.
    fn check_keyspace(&self, operation: &Operation<'_>, record: &LogRecord<'_>) -> std::result::Result<(), Corruption> {
        let keyspace = operation.keyspace();
        if FileId::from(keyspace) < self.state.next_file {
            return Ok(());
        }
        let known = format!("a keyspace below {}, which MANIFEST says is the next number", self.state.next_file);
        Err(Corruption::new(record.offset, "log record", known, keyspace.to_string()))
    }

    /// The manifest must not be older than what logs say. A follower may have read an older one.
    fn check_floor(&self, logs: &[LogSpan]) -> Result<()> {
        let (noted, log) = self.noted_floor;
        if noted <= self.state.log_floor.log || logs.iter().any(|span| span.to.is_some()) {
            return Ok(());
        }
        let expected =
            format!("{} or later as the first log that is needed, as {} says", names::log(noted), names::log(log));
        let found = format!("{}: it is truncated or older than the other files", names::log(self.state.log_floor.log));
        Err(Corruption::new(0, "manifest", expected, found).of(self.dir.file(names::MANIFEST)))
    }

    /// Decides whether the missing commits may be missing.
    fn finish(self, mut walked: Walked, logs: &[LogSpan]) -> Result<Logs> {
        self.check_floor(logs)?;
        let Self { dir, trees, pending, large, named, .. } = self;
        if pending.is_some() {
            // What is durable of it is its announcement, which goes.
            walked.found.durable = walked.found.durable.min(walked.found.next - 1);
        }
        // A table is written once the log is durable up to its last commit, if other trees need that log.
        let in_tables = trees.values().map(|(tree, _)| tree.flushed()).max().unwrap_or(0);
        let found = walked.finish(in_tables)?;
        let needed = trees.values().map(|(_, values)| values.durable_before()).max().unwrap_or(0);
        if let Some(last) = logs.last() {
            found.must_reach(needed, dir, last.id)?;
        }
        let FoundLogs { logs, next, durable, last_file, damaged } = found;
        Ok(Logs { logs, next, durable, last_file, large, named, damaged })
    }
}
