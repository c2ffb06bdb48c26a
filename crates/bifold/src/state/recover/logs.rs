//! What the logs of earlier sessions hold: found in one walk, in bounded memory, before anything is changed.
//!
//! ```text
//! log 7 │ commit │ commit │ commit │      log 9 │ commit │ marker: all up to 41 is durable │ commit │ to…
//!         └ its pointers: does each lead to a whole value?                                            └ torn
//!
//! stop   the first commit that is torn or missing, or that leads to a missing value
//! ```
//!
//! Commits have consecutive numbers, beginning with one that the manifest names, except where a skip says that an
//! ingest has taken some. It has arrived if the manifest has its last number. If it has not and nothing comes behind,
//! the log ends before the skip. All commits before the stop happened. What follows the stop was lost with the power,
//! later logs included, and is skipped. **Unless it was durable:** a marker or a record appended after a sync says up
//! to which commit everything is durable. A stop before that number is damage, whatever it looks like, and an error.
//!
//! A damaged value that no crash explains costs only the commit that leads there: it is reported, and reading it is
//! an error. If its commit was durable, opening fails.

use std::collections::BTreeMap;

use bifold_contract::{
    Corruption, Error, FileId, IoSource, KeyspaceId, LargeFileMeta, LogFloor, Pointer, Result, SeqNo, planted,
};
use bifold_format::{
    frame::FILE_HEADER_BYTES,
    large::{self, LargeLayout},
    log::{self, LogRecord, LoggedIngest, Operation},
    names, pointer,
    walk::{Met, Walk},
};
use bifold_io::{Dir, Reader};
use bifold_values::placement::Located;

use super::{files::NUMBERS_AHEAD_MAX, state::ManifestState};
use crate::{
    commit::kept_large::{self, NamedLarge},
    state::tree::Tree,
};

/// The shortest read that can tell a torn header from a damaged one.
const SECTOR_BYTES: u64 = 512;

/// What the logs hold.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    /// The logs that count, oldest first.
    pub logs: Vec<FoundLog>,
    /// The logs without a commit that happened, oldest first.
    pub useless: Vec<FileId>,
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

/// A log, and which of its records are looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogSpan {
    pub id: FileId,
    /// Where the first of them begins; 0: after the header.
    pub from: u64,
    /// Where the last one ends, if another process may be appending to it.
    pub to: Option<u64>,
}

impl LogSpan {
    /// All of a log.
    pub fn whole(id: FileId) -> Self {
        Self { id, from: 0, to: None }
    }
}

/// A log that counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundLog {
    pub id: FileId,
    /// Where its first record is.
    pub from: u64,
    /// The number of its first commit.
    pub first: SeqNo,
    /// How many of its bytes count.
    pub bytes: u64,
    /// Its length.
    pub file_bytes: u64,
    /// How many of its bytes are known to be durable.
    pub durable_bytes: u64,
}

/// Where the logs end, and why.
struct Stop {
    next: SeqNo,
    /// The error if the next commit was durable.
    damage: Error,
}

/// A walk over all logs.
struct Finder<'a> {
    dir: &'a Dir,
    trees: BTreeMap<KeyspaceId, &'a Tree>,
    state: &'a ManifestState,
    /// The last log floor of this manifest that a log has noted, and that log.
    noted_floor: (FileId, FileId),
    found: Logs,
    stop: Option<Stop>,
    /// An ingest that the manifest does not have, if nothing has come behind its announcement.
    pending: Option<LoggedIngest>,
    /// Damaged values, with the commits that lead there.
    damaged: Vec<(SeqNo, Error)>,
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
        let trees = trees.map(|tree| (tree.keyspace, tree)).collect();
        let found = Self { next, ..Self::default() };
        let noted_floor = (0, 0);
        let mut finder =
            Finder { dir, trees, state, noted_floor, found, stop: None, pending: None, damaged: Vec::new() };
        for &span in logs {
            finder.log(span)?;
        }
        finder.finish(logs)
    }

    /// Where their replay begins, if there are any.
    pub fn floor(&self) -> Option<LogFloor> {
        self.logs.first().map(|log| LogFloor { log: log.id, first: log.first })
    }
}

impl<'a> Finder<'a> {
    fn log(&mut self, span: LogSpan) -> Result<()> {
        let id = span.id;
        let reader = self.dir.open(&names::log(id))?;
        let (from, end) = (span.from.max(FILE_HEADER_BYTES as u64), span.to.unwrap_or(reader.len()));
        let first = self.found.next;
        let mut log = FoundLog { id, from, first, bytes: from, file_bytes: end, durable_bytes: 0 };
        if span.from > 0 || check_header(&reader, id, end)? {
            self.records(&reader, &mut log, span)?;
        } else {
            log.bytes = 0;
            self.end_at(Corruption::new(0, "log header", self.expected(), "a torn one").of(reader.path()));
        }
        let has_commits = self.found.next > log.first;
        if has_commits {
            self.found.logs.push(log)
        } else {
            self.found.useless.push(id)
        }
        Ok(())
    }

    fn records(&mut self, reader: &Reader, log: &mut FoundLog, span: LogSpan) -> Result<()> {
        let mut walk = Walk::new(log.id, log.from, log.file_bytes);
        let read = |buffer: &mut [u8], at: u64| reader.read_at(buffer, at, IoSource::Recovery);
        let mut is_first = span.from == 0;
        loop {
            match walk.step(read)? {
                Met::Record(frame, len) => {
                    let record = LogRecord::of(frame);
                    self.note(&record, log).map_err(|damage| damage.of(reader.path()))?;
                    let counts = !self.is_stopped() && self.takes(&record, (reader, log.id), is_first)?;
                    if counts && !self.is_stopped() {
                        log.bytes = record.offset + u64::from(len);
                    }
                    is_first = false;
                    continue;
                }
                Met::Torn(offset) if planted!("torn_end_is_damage") && span.to.is_some() => {
                    return Err(Corruption::new(offset, "log record", "a whole one", "a torn one").of(reader.path()));
                }
                Met::Torn(offset) => {
                    self.end_at(Corruption::new(offset, "log record", self.expected(), "a torn one").of(reader.path()));
                }
                // After the stop it says nothing.
                Met::Damaged { .. } if self.is_stopped() => {}
                Met::Damaged { offset, .. } if planted!("damage_ends_the_log") => {
                    let damage = Corruption::new(offset, "log record", self.expected(), "a damaged one");
                    self.end_at(damage.of(reader.path()));
                    return Ok(());
                }
                Met::Damaged { offset, expected, found } => {
                    return Err(Corruption::new(offset, "log record", expected, found).of(reader.path()));
                }
                Met::End => return Ok(()),
            }
            // Only to find out what later records say about durable ones.
            if walk.find_next(read)?.is_none() {
                return Ok(());
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_some()
    }

    fn expected(&self) -> String {
        format!("commit {}, which was synced", self.found.next)
    }

    /// The logs end here, unless they have ended before.
    fn end_at(&mut self, damage: Error) {
        if !planted!("serve_torn_tail") {
            let next = self.found.next;
            self.stop.get_or_insert(Stop { next, damage });
        }
    }

    /// Notes what a record says whether or not its commit happened.
    fn note(&mut self, record: &LogRecord<'_>, log: &mut FoundLog) -> std::result::Result<(), Corruption> {
        // An older log may have noted the floor of an earlier manifest, or of the one that this is a copy of.
        if let Some(floor) = record.floor()?.filter(|_| log.id >= self.state.begun_next_file) {
            self.noted_floor = self.noted_floor.max((floor, log.id));
        }
        let durable = record.durable()?;
        self.found.durable = self.found.durable.max(durable);
        if durable > 0 && durable + 1 >= record.first_seqno {
            log.durable_bytes = record.offset;
        }
        for operation in record.operations() {
            let operation = operation?;
            if let Some(pointer) = operation.pointer()
                && let Ok(pointer) = pointer::decode(pointer)
                // A number far ahead was never handed out: the pointer leads nowhere.
                && pointer.file <= self.state.next_file.saturating_add(NUMBERS_AHEAD_MAX)
            {
                self.found.last_file = self.found.last_file.max(pointer.file);
            }
            if let Operation::Large { named, .. } = operation
                && let Ok(named) = large::decode(named)
                && named.file <= self.state.next_file.saturating_add(NUMBERS_AHEAD_MAX)
            {
                self.found.last_file = self.found.last_file.max(named.file);
            }
        }
        Ok(())
    }

    /// Takes a record. Returns whether it counts. A marker at the end does not: it is not durable itself, and if torn
    /// it would look like the end of all logs.
    fn takes(&mut self, record: &LogRecord<'_>, log: (&Reader, FileId), is_first: bool) -> Result<bool> {
        let of_log = |damage: Corruption| damage.of(log.0.path());
        let counts = record.skips_to().map_err(of_log)?.is_some() || record.operations().next().is_some();
        // If its numbers are used again, an opening has found that it never arrived. A reader may hold its log.
        self.pending.take_if(|_| counts && record.first_seqno == self.found.next);
        if let Some(ingest) = self.pending {
            return if counts { Err(self.without(ingest)) } else { Ok(false) };
        }
        let announced = record.announced().map_err(of_log)?.filter(|_| record.first_seqno == self.found.next);
        let last_seqno = if planted!("trust_announcements") { SeqNo::MAX } else { self.state.last_seqno };
        if let Some(ingest) = announced.filter(|ingest| ingest.next - 1 > last_seqno) {
            self.pending = Some(ingest);
            return Ok(false);
        }
        self.commit(record, log, is_first).map(|()| counts)
    }

    /// The manifest lacks an ingest that was followed by others. A follower may have read an older manifest.
    fn without(&self, ingest: LoggedIngest) -> Error {
        let expected = format!("an ingest with numbers up to {}, as the logs say", ingest.next - 1);
        let found = format!("numbers up to {}: it is truncated or older than the logs", self.state.last_seqno);
        Corruption::new(0, "manifest", expected, found).of(self.dir.file(names::MANIFEST))
    }

    /// Takes the next commit, if this record is it.
    fn commit(&mut self, record: &LogRecord<'_>, (reader, log): (&Reader, FileId), is_first: bool) -> Result<()> {
        let next = self.found.next;
        if record.first_seqno != next && !planted!("serve_torn_tail") {
            if planted!("forget_log_gap") && is_first && self.found.logs.is_empty() {
                self.found.next = record.first_seqno;
                return self.commit(record, (reader, log), is_first);
            }
            let found = format!("commit {}: records or a log before it are missing", record.first_seqno);
            let expected = format!("commit {next}, the next one");
            let damage = Corruption::new(record.offset, "log record", expected, found).of(reader.path());
            if !is_first {
                return Err(damage);
            }
            // A power loss may have truncated the previous log at the end of a record, or removed its name.
            self.end_at(damage);
            return Ok(());
        }
        if let Some(after) = record.skips_to().map_err(|damage| damage.of(reader.path()))? {
            self.found.next = after;
            return Ok(());
        }
        let (mut leads, mut named) = (Vec::new(), Vec::new());
        let mut seqno = record.first_seqno;
        for operation in record.operations() {
            let operation = operation.map_err(|damage| damage.of(reader.path()))?;
            self.check_keyspace(&operation, record).map_err(|damage| damage.of(reader.path()))?;
            leads.extend(self.lead(&operation, seqno, (reader, record))?);
            let file = kept_large::file_of(&operation).map_err(|damage| damage.of(reader.path()))?;
            named.extend(file.map(|file| (file.named.file, file.bytes)));
            seqno += 1;
        }
        let missing = leads.iter().find(|lead| lead.located == Located::Missing);
        if let Some(lead) = missing.filter(|_| !planted!("trust_pointers")) {
            self.end_at(lead.damage(self.dir, "no whole record"));
            return Ok(());
        }
        for lead in leads {
            match lead.to {
                To::Record(pointer) => lead.tree.placement().refer(pointer, lead.seqno),
                To::Large(file) => drop(self.found.large.insert(file.named.file, file)),
            }
            if lead.located == Located::Damaged {
                self.damaged.push((lead.seqno, lead.damage(self.dir, "a damaged record")));
            }
        }
        if !named.is_empty() {
            self.found.named.entry(log).or_default().extend(named);
        }
        self.found.next = seqno;
        Ok(())
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

    /// Where an operation leads, if no table holds it yet.
    fn lead(
        &self,
        operation: &Operation<'_>,
        seqno: SeqNo,
        (reader, record): (&Reader, &LogRecord<'_>),
    ) -> Result<Option<Lead<'a>>> {
        let leads = operation.pointer().is_some() || matches!(operation, Operation::Large { .. });
        let Some(&tree) = self.trees.get(&operation.keyspace()).filter(|tree| leads && seqno > tree.flushed()) else {
            return Ok(None);
        };
        let damaged = |damage: Corruption| damage.at(record.offset).of(reader.path());
        let (to, located) = match (operation.pointer(), operation) {
            (Some(pointer), _) => {
                let pointer = pointer::decode(pointer).map_err(damaged)?;
                (To::Record(pointer), tree.placement().locate(pointer)?)
            }
            (None, Operation::Large { keyspace, key, named }) => {
                let named = large::decode(named).map_err(damaged)?;
                let bytes = LargeLayout::of(key.len(), named.len).file_bytes();
                let located = tree.placement().large().locate(key, named)?;
                (To::Large(LargeFileMeta { keyspace: *keyspace, named, bytes }), located)
            }
            _ => return Ok(None),
        };
        Ok(Some(Lead { tree, seqno, to, located }))
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
    fn finish(self, logs: &[LogSpan]) -> Result<Logs> {
        self.check_floor(logs)?;
        let Self { dir, trees, mut found, stop, pending, damaged, .. } = self;
        if pending.is_some() {
            // What is durable of it is its announcement, which goes.
            found.durable = found.durable.min(found.next - 1);
        }
        // A table is written once the log is durable up to its last commit, if other trees need that log.
        let in_tables = trees.values().map(|tree| tree.flushed()).max().unwrap_or(0);
        let was_durable = |stop: &Stop| stop.next <= found.durable.max(in_tables) && !planted!("damage_ends_the_log");
        if let Some(stop) = stop.filter(was_durable) {
            return Err(stop.damage);
        }
        for (seqno, damage) in damaged {
            if seqno <= found.durable {
                return Err(damage);
            }
            found.damaged.push(damage);
        }
        // Value files are deleted once the moves out of them are durable. Logs that stop before those moves have lost
        // their end.
        let needed = trees.values().map(|tree| tree.placement().durable_before()).max().unwrap_or(0);
        if let Some(&log) = logs.last().filter(|_| needed >= found.next) {
            let name = names::log(log.id);
            let (expected, last) = (format!("commits up to {needed}, which were synced"), found.next - 1);
            let end = dir.len(&name)?.unwrap_or(0);
            return Err(Corruption::new(end, "log", expected, format!("commits up to {last}")).of(dir.file(&name)));
        }
        let ends: Vec<SeqNo> = found.logs.iter().skip(1).map(|later| later.first).chain([found.next]).collect();
        for (log, _) in found.logs.iter_mut().zip(ends).filter(|(_, end)| *end <= found.durable + 1) {
            log.durable_bytes = log.bytes;
        }
        Ok(found)
    }
}

/// Where a commit's pointer leads.
struct Lead<'a> {
    tree: &'a Tree,
    seqno: SeqNo,
    to: To,
    located: Located,
}

#[derive(Clone, Copy)]
enum To {
    /// A record of a value file.
    Record(Pointer),
    /// The file of a large value.
    Large(LargeFileMeta),
}

impl Lead<'_> {
    fn damage(&self, dir: &Dir, found: &'static str) -> Error {
        let expected = format!("the value of commit {} in keyspace `{}`", self.seqno, self.tree.name);
        match self.to {
            To::Record(at) => {
                Corruption::new(at.offset, "value record", expected, found).of(dir.file(&names::value(at.file)))
            }
            To::Large(file) => {
                Corruption::new(0, "large value", expected, found).of(dir.file(&names::large(file.named.file)))
            }
        }
    }
}

/// Whether the log has a whole header. A crash may have torn it.
pub(crate) fn check_header(reader: &Reader, id: FileId, end: u64) -> Result<bool> {
    let mut first = vec![0; usize::try_from(end.min(SECTOR_BYTES)).unwrap_or(0)];
    reader.read_at(&mut first, 0, IoSource::Recovery)?;
    log::check_header(&first, id).map_err(|damage| damage.of(reader.path()))
}

/// Calls `each` for every record in the counted prefix of a log.
///
/// # Errors
/// I/O errors; those of `each`.
pub(crate) fn each_record(dir: &Dir, log: &FoundLog, mut each: impl FnMut(&LogRecord<'_>) -> Result<()>) -> Result<()> {
    let reader = dir.open(&names::log(log.id))?;
    let mut walk = Walk::new(log.id, log.from, log.bytes);
    let read = |buffer: &mut [u8], at: u64| reader.read_at(buffer, at, IoSource::Recovery);
    loop {
        match walk.step(read)? {
            Met::Record(frame, _) => each(&LogRecord::of(frame))?,
            Met::End => return Ok(()),
            // It was whole a moment ago.
            Met::Torn(offset) | Met::Damaged { offset, .. } => {
                let changed = Corruption::new(offset, "log record", "a whole record", "one that does not check");
                return Err(changed.of(reader.path()));
            }
        }
    }
}
