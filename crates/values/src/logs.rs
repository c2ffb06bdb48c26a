//! Which commits have happened: what the logs of earlier sessions hold, found in one walk, in bounded memory, before
//! anything is changed. Format: `docs/formats/log.md`.
//!
//! ```text
//! log 7 │ commit │ commit │ commit │      log 9 │ commit │ marker: all up to 41 is durable │ commit │ to…
//!         └ its pointers: does each lead to a whole value?                                            └ torn
//!
//! stop   the first commit that is torn or missing, or that leads to a missing value
//! ```
//!
//! Commits have consecutive numbers, beginning with one that the manifest names, except where a skip says that nothing
//! has some. All commits before the stop happened. What follows the stop was lost with the power, later logs included,
//! and is skipped. **Unless it was durable:** a marker or a record appended after a sync says up to which commit
//! everything is durable. A stop before that number is damage, whatever it looks like, and an error.
//!
//! A damaged value that no crash explains costs only the commit that leads there: it is reported, and reading it is
//! an error. If its commit was durable, opening fails.
//!
//! ```text
//! walk_logs ─▶ Walked ─▶ finish ─▶ FoundLogs ─▶ must_reach ─▶ each_record
//!              where they end     may they?    do they hold what value files and index need?
//! ```
//!
//! **Why here.** The engine and the value store over another index have such logs, and this is the lowest crate that
//! both use and that knows value files. Without those nobody can say whether a commit has happened: its value may be
//! missing, and a deleted file proves that moves out of it were durable. What the two do differently, they say as a
//! [`LogOwner`]: which operations there are, to which values they lead, and what else records mean.

mod lead;
#[cfg(test)]
mod tests;

use std::path::Path;

use bifold_contract::{Corruption, Error, FileId, IoSource, LogFloor, Result, SeqNo, key::MAX_SEQNO, planted};
use bifold_format::{
    frame::FILE_HEADER_BYTES,
    large,
    log::{self, LogRecord, Operation},
    names, pointer,
    walk::{Met, Walk},
};
use bifold_io::{Dir, Reader};

pub use self::lead::Lead;
use crate::placement::Located;

/// The shortest read that can tell a torn header from a damaged one.
const SECTOR_BYTES: u64 = 512;

/// No session begins more files than this before its next edit, which records their numbers. A file with a larger
/// number does not belong to this database. Numbers after it must not be handed out, or they would run out one day.
pub const NUMBERS_AHEAD_MAX: FileId = 1 << 32;

/// A log, and which of its records are looked at.
#[derive(Clone, Copy, Debug)]
pub struct LogSpan {
    /// The log.
    pub id: FileId,
    /// Where the first of them begins; 0: after the header.
    pub from: u64,
    /// Where the last one ends, if another process may be appending to it.
    pub to: Option<u64>,
}

impl LogSpan {
    /// All of a log.
    #[must_use]
    pub fn whole(id: FileId) -> Self {
        Self { id, from: 0, to: None }
    }
}

/// A log with commits that happened.
#[derive(Clone, Copy, Debug)]
pub struct FoundLog {
    /// The log.
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

impl FoundLog {
    /// Replay that begins with this log begins here.
    #[must_use]
    pub fn floor(&self) -> LogFloor {
        LogFloor { log: self.id, first: self.first }
    }
}

/// What the logs hold.
#[derive(Debug, Default)]
pub struct FoundLogs {
    /// The logs with commits that happened, oldest first.
    pub logs: Vec<FoundLog>,
    /// The number of the first commit that did not happen.
    pub next: SeqNo,
    /// The last commit that is known to be durable.
    pub durable: SeqNo,
    /// The largest file number in any pointer.
    pub last_file: FileId,
    /// Damaged values of commits that happened, which no crash explains.
    pub damaged: Vec<Error>,
}

/// A record, and where it is.
#[derive(Clone, Copy, Debug)]
pub struct RecordAt<'r> {
    /// The record.
    pub record: LogRecord<'r>,
    /// Its log.
    pub log: FileId,
    path: &'r Path,
}

impl RecordAt<'_> {
    /// The error for damage in this log.
    #[must_use]
    pub fn damaged(&self, damage: Corruption) -> Error {
        damage.of(self.path)
    }
}

/// What comes next in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// A commit, or a record without operations, which has the number of the next one.
    Commit,
    /// Nothing has the numbers from that of the record up to this one.
    Skip(SeqNo),
    /// Nothing that counts.
    Nothing,
}

/// Whose logs they are. `'a` is how long its value stores live.
pub trait LogOwner<'a> {
    /// Where an operation of the next commit leads, if the index may not have it yet.
    ///
    /// # Errors
    /// Corruption, also for an operation that cannot be there; I/O errors.
    fn lead(&mut self, operation: &Operation<'_>, seqno: SeqNo, at: &RecordAt<'_>) -> Result<Option<Lead<'a>>>;

    /// Sees each whole record, whether or not its commit happened.
    ///
    /// # Errors
    /// If it cannot be decoded.
    fn note(&mut self, _at: &RecordAt<'_>) -> Result<()> {
        Ok(())
    }

    /// What a record before the stop means. The next commit has the number `next`. By default there are only commits.
    ///
    /// # Errors
    /// Corruption.
    fn meaning(&mut self, _at: &RecordAt<'_>, _next: SeqNo) -> Result<Meaning> {
        Ok(Meaning::Commit)
    }

    /// The commit whose operations it has seen last has happened. They lead there.
    fn happened(&mut self, _log: FileId, _leads: &[Lead<'a>]) {}
}

/// What a walk over logs has found, before anybody has decided whether what is missing may be missing.
#[derive(Debug)]
pub struct Walked {
    /// What is there.
    pub found: FoundLogs,
    stop: Option<Stop>,
    /// Damaged values, with the commits that lead there.
    damaged: Vec<(SeqNo, Error)>,
}

/// Where the logs end, and why.
#[derive(Debug)]
struct Stop {
    next: SeqNo,
    /// The error if the next commit was durable.
    damage: Error,
}

/// A walk over all logs.
struct LogWalk<'w, 'a> {
    dir: &'w Dir,
    owner: &'w mut dyn LogOwner<'a>,
    /// The manifest has handed out no number from this one on.
    next_file: FileId,
    walked: Walked,
}

/// Walks `logs`, oldest first, from the commit `next` on. According to the manifest, the next file has the number
/// `next_file`.
///
/// # Errors
/// I/O errors; corruption.
pub fn walk_logs(
    dir: &Dir,
    (logs, next): (&[LogSpan], SeqNo),
    next_file: FileId,
    owner: &mut dyn LogOwner<'_>,
) -> Result<Walked> {
    let found = FoundLogs { next, ..FoundLogs::default() };
    let mut walk = LogWalk { dir, owner, next_file, walked: Walked { found, stop: None, damaged: Vec::new() } };
    logs.iter().try_for_each(|&span| walk.log(span))?;
    Ok(walk.walked)
}

impl LogWalk<'_, '_> {
    fn log(&mut self, span: LogSpan) -> Result<()> {
        let id = span.id;
        let reader = self.dir.open(&names::log(id))?;
        let (from, end) = (span.from.max(FILE_HEADER_BYTES as u64), span.to.unwrap_or(reader.len()));
        let first = self.walked.found.next;
        let mut log = FoundLog { id, from, first, bytes: from, file_bytes: end, durable_bytes: 0 };
        if span.from > 0 || check_header(&reader, id, end)? {
            self.records(&reader, &mut log, span)?;
        } else {
            self.end_at(Corruption::new(0, "log header", self.expected(), "a torn one").of(reader.path()));
        }
        if self.walked.found.next > log.first {
            self.walked.found.logs.push(log);
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
                    let at = RecordAt { record: LogRecord::of(frame), log: log.id, path: reader.path() };
                    self.owner.note(&at)?;
                    self.note(&at.record, log).map_err(|damage| at.damaged(damage))?;
                    let counts = !self.is_stopped() && self.takes(&at, is_first)?;
                    if counts && !self.is_stopped() {
                        log.bytes = at.record.offset + u64::from(len);
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
        self.walked.stop.is_some()
    }

    fn expected(&self) -> String {
        format!("commit {}, which was synced", self.walked.found.next)
    }

    /// The logs end here, unless they have ended before.
    fn end_at(&mut self, damage: Error) {
        if !planted!("serve_torn_tail") {
            let next = self.walked.found.next;
            self.walked.stop.get_or_insert(Stop { next, damage });
        }
    }

    /// Notes what a record says whether or not its commit happened.
    fn note(&mut self, record: &LogRecord<'_>, log: &mut FoundLog) -> std::result::Result<(), Corruption> {
        let found = &mut self.walked.found;
        let durable = record.durable()?;
        found.durable = found.durable.max(durable);
        if durable > 0 && durable + 1 >= record.first_seqno {
            log.durable_bytes = record.offset;
        }
        for operation in record.operations() {
            let operation = operation?;
            let file = match operation {
                Operation::Large { named, .. } => large::decode(named).ok().map(|named| named.file),
                _ => operation.pointer().and_then(|pointer| pointer::decode(pointer).ok()).map(|pointer| pointer.file),
            };
            // A number far ahead was never handed out: the pointer leads nowhere.
            let file = file.filter(|&file| file <= self.next_file.saturating_add(NUMBERS_AHEAD_MAX));
            found.last_file = found.last_file.max(file.unwrap_or(0));
        }
        Ok(())
    }

    /// Takes a record. Returns whether it counts. A marker at the end does not: it is not durable itself, and if torn
    /// it would look like the end of all logs.
    fn takes(&mut self, at: &RecordAt<'_>, is_first: bool) -> Result<bool> {
        match self.owner.meaning(at, self.walked.found.next)? {
            Meaning::Nothing => Ok(false),
            Meaning::Skip(after) => {
                if self.is_next(at, is_first)? {
                    self.walked.found.next = after;
                }
                Ok(true)
            }
            Meaning::Commit => {
                if self.is_next(at, is_first)? {
                    self.commit(at)?;
                }
                Ok(at.record.operations().next().is_some())
            }
        }
    }

    /// Whether a record has the number of the next commit. The logs end before one that has not.
    fn is_next(&mut self, at: &RecordAt<'_>, is_first: bool) -> Result<bool> {
        let (next, first) = (self.walked.found.next, at.record.first_seqno);
        if first == next || planted!("serve_torn_tail") {
            return Ok(true);
        }
        if planted!("forget_log_gap") && is_first && self.walked.found.logs.is_empty() {
            self.walked.found.next = first;
            return Ok(true);
        }
        let found = format!("commit {first}: records or a log before it are missing");
        let expected = format!("commit {next}, the next one");
        let damage = at.damaged(Corruption::new(at.record.offset, "log record", expected, found));
        if !is_first {
            return Err(damage);
        }
        // A power loss may have truncated the previous log at the end of a record, or removed its name.
        self.end_at(damage);
        Ok(false)
    }

    /// Takes the next commit, unless one of its values is missing.
    fn commit(&mut self, at: &RecordAt<'_>) -> Result<()> {
        let (mut leads, mut seqno) = (Vec::new(), at.record.first_seqno);
        for operation in at.record.operations() {
            let operation = operation.map_err(|damage| at.damaged(damage))?;
            leads.extend(self.owner.lead(&operation, seqno, at)?);
            seqno += 1;
        }
        // A log can only say so if it was not a release that wrote it. Memtables would not take such numbers.
        if seqno > MAX_SEQNO {
            let (expected, found) = (format!("numbers below {MAX_SEQNO}"), format!("numbers up to {}", seqno - 1));
            return Err(at.damaged(Corruption::new(at.record.offset, "log record", expected, found)));
        }
        let missing = leads.iter().find(|lead| lead.located == Located::Missing);
        if let Some(lead) = missing.filter(|_| !planted!("trust_pointers")) {
            let damage = lead.damage(self.dir, "no whole record");
            self.end_at(damage);
            return Ok(());
        }
        for lead in &leads {
            lead.refer();
            if lead.located == Located::Damaged {
                self.walked.damaged.push((lead.seqno, lead.damage(self.dir, "a damaged record")));
            }
        }
        self.owner.happened(at.log, &leads);
        self.walked.found.next = seqno;
        Ok(())
    }
}

impl Walked {
    /// Decides whether the missing commits may be missing. The index has some up to the commit `in_index`: a stop
    /// before that is damage, too.
    ///
    /// # Errors
    /// The damage, if they may not.
    pub fn finish(self, in_index: SeqNo) -> Result<FoundLogs> {
        let Self { mut found, stop, damaged } = self;
        let was_durable = |stop: &Stop| stop.next <= found.durable.max(in_index) && !planted!("damage_ends_the_log");
        if let Some(stop) = stop.filter(was_durable) {
            return Err(stop.damage);
        }
        for (seqno, damage) in damaged {
            if seqno <= found.durable {
                return Err(damage);
            }
            found.damaged.push(damage);
        }
        let ends: Vec<SeqNo> = found.logs.iter().skip(1).map(|later| later.first).chain([found.next]).collect();
        for (log, _) in found.logs.iter_mut().zip(ends).filter(|(_, end)| *end <= found.durable + 1) {
            log.durable_bytes = log.bytes;
        }
        Ok(found)
    }
}

impl FoundLogs {
    /// Checks that the commits up to `needed` are there. Value files know such a number
    /// ([`durable_before`](crate::store::ValueStore::durable_before)): they are deleted once the moves out of them are
    /// durable, so logs that stop before those moves have lost their end.
    ///
    /// # Errors
    /// Corruption of `last_log`; I/O errors.
    pub fn must_reach(&self, needed: SeqNo, dir: &Dir, last_log: FileId) -> Result<()> {
        if needed < self.next {
            return Ok(());
        }
        let name = names::log(last_log);
        let (expected, last) = (format!("commits up to {needed}, which were synced"), self.next - 1);
        let end = dir.len(&name)?.unwrap_or(0);
        Err(Corruption::new(end, "log", expected, format!("commits up to {last}")).of(dir.file(&name)))
    }
}

/// Whether a log of `end` bytes has a whole header. A crash may have torn it.
///
/// # Errors
/// I/O errors; a header that is damaged, or of another file.
pub fn check_header(reader: &Reader, id: FileId, end: u64) -> Result<bool> {
    let mut first = vec![0; usize::try_from(end.min(SECTOR_BYTES)).unwrap_or(0)];
    reader.read_at(&mut first, 0, IoSource::Recovery)?;
    log::check_header(&first, id).map_err(|damage| damage.of(reader.path()))
}

/// Calls `each` with each record in the counted prefix of a log.
///
/// # Errors
/// I/O errors; those of `each`.
pub fn each_record(dir: &Dir, log: &FoundLog, mut each: impl FnMut(&LogRecord<'_>) -> Result<()>) -> Result<()> {
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
