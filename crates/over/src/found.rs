//! What the logs of earlier sessions hold: found in one walk, in bounded memory, before anything is changed. The rules
//! are those of Bifold's engine (`crates/bifold/src/state/recover/logs.rs`), for a log that has one keyspace.
//!
//! Commits have consecutive numbers. The first that is torn or missing, or leads to a missing value, ends the logs: it
//! and what follows was lost with the power. **Unless it was durable**, which a marker, a record after a sync or the
//! index's mark says: then it is damage, and an error.

use std::collections::BTreeMap;

use bifold_contract::{Corruption, Error, FileId, IoSource, LogFloor, Result, SeqNo, planted};
use bifold_format::{
    frame::FILE_HEADER_BYTES,
    log::{self, LogRecord, Operation},
    names, pointer,
    walk::{Met, Walk},
};
use bifold_io::{Dir, Reader};
use bifold_values::{placement::Located, store::ValueStore};

use crate::{
    index::Entry,
    log::{KEYSPACE, LogFile},
};

/// The shortest read that can tell a torn header from a damaged one.
const SECTOR_BYTES: u64 = 512;

/// No session begins more files than this before its next edit, which records their numbers.
pub(crate) const NUMBERS_AHEAD_MAX: FileId = 1 << 32;

/// What the logs hold.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The logs with commits that happened, oldest first.
    pub logs: Vec<FoundLog>,
    /// The number of the first commit that did not happen.
    pub next: SeqNo,
    /// The last commit that is known to be durable.
    pub durable: SeqNo,
    /// The largest file number in any address.
    pub last_file: FileId,
}

/// A log with commits that have happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundLog {
    pub id: FileId,
    /// The number of its first commit.
    pub first: SeqNo,
    /// How many of its bytes count, how many there are, and how many are known to be durable.
    pub bytes: u64,
    pub file_bytes: u64,
    pub durable_bytes: u64,
}

struct Finder<'a> {
    dir: &'a Dir,
    values: &'a ValueStore,
    /// Commits up to this one are in the index: where they lead does not matter.
    flushed: SeqNo,
    next_file: FileId,
    found: Found,
    /// Why the logs end, and the number of the commit that is not there.
    stop: Option<(SeqNo, Error)>,
    /// Damaged values of commits, which no crash explains.
    damaged: Vec<(SeqNo, Error)>,
}

impl Found {
    /// Walks `logs`, oldest first. `flushed` says up to where the index has everything that was synced, and `marked` up
    /// to where it has anything: all that was durable when it was written.
    ///
    /// # Errors
    /// I/O errors; corruption.
    pub fn find(
        dir: &Dir,
        values: &ValueStore,
        (logs, floor): (&[FileId], LogFloor),
        (flushed, marked): (SeqNo, SeqNo),
        next_file: FileId,
    ) -> Result<Self> {
        let found = Self { next: floor.first, durable: flushed.max(marked), ..Self::default() };
        let mut finder = Finder { dir, values, flushed, next_file, found, stop: None, damaged: Vec::new() };
        logs.iter().try_for_each(|&id| finder.log(id))?;
        finder.finish(logs.last().copied().unwrap_or(floor.log))
    }

    /// Where replay begins, if there is anything to replay.
    pub fn floor(&self) -> Option<LogFloor> {
        self.logs.first().map(|log| LogFloor { log: log.id, first: log.first })
    }

    /// These logs, for those that come after them.
    pub fn files(&self) -> Vec<LogFile> {
        self.logs.iter().map(|log| LogFile { id: log.id, first: log.first, bytes: log.bytes }).collect()
    }
}

impl Finder<'_> {
    fn log(&mut self, id: FileId) -> Result<()> {
        let reader = self.dir.open(&names::log(id))?;
        let first = self.found.next;
        let start = FILE_HEADER_BYTES as u64;
        let mut log = FoundLog { id, first, bytes: start, file_bytes: reader.len(), durable_bytes: 0 };
        if check_header(&reader, id)? {
            self.records(&reader, &mut log)?;
        } else {
            self.end_at(Corruption::new(0, "log header", self.expected(), "a torn one").of(reader.path()));
        }
        if self.found.next > log.first {
            self.found.logs.push(log);
        }
        Ok(())
    }

    fn records(&mut self, reader: &Reader, log: &mut FoundLog) -> Result<()> {
        let mut walk = Walk::new(log.id, FILE_HEADER_BYTES as u64, log.file_bytes);
        let read = |buffer: &mut [u8], at: u64| reader.read_at(buffer, at, IoSource::Recovery);
        let mut is_first = true;
        loop {
            match walk.step(read)? {
                Met::Record(frame, len) => {
                    let record = LogRecord::of(frame);
                    self.note(&record, log).map_err(|damage| damage.of(reader.path()))?;
                    if self.stop.is_none() {
                        self.commit(&record, reader, is_first)?;
                    }
                    // A marker at the end is not counted: torn, it would look like the end of all logs.
                    if self.stop.is_none() && record.operations().next().is_some() {
                        log.bytes = record.offset + u64::from(len);
                    }
                    is_first = false;
                    continue;
                }
                Met::Torn(offset) => {
                    self.end_at(Corruption::new(offset, "log record", self.expected(), "a torn one").of(reader.path()));
                }
                // After the end it says nothing.
                Met::Damaged { .. } if self.stop.is_some() => {}
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

    fn expected(&self) -> String {
        format!("commit {}, which was synced", self.found.next)
    }

    /// The logs end here, unless they have ended before.
    fn end_at(&mut self, damage: Error) {
        let next = self.found.next;
        self.stop.get_or_insert((next, damage));
    }

    /// Notes what a record says whether or not its commit happened.
    fn note(&mut self, record: &LogRecord<'_>, log: &mut FoundLog) -> std::result::Result<(), Corruption> {
        let durable = record.durable()?;
        self.found.durable = self.found.durable.max(durable);
        if durable > 0 && durable + 1 >= record.first_seqno {
            log.durable_bytes = record.offset;
        }
        for operation in record.operations() {
            if let Some(address) = operation?.pointer()
                && let Ok(address) = pointer::decode(address)
                // A number far ahead was never handed out: the address leads nowhere.
                && address.file <= self.next_file.saturating_add(NUMBERS_AHEAD_MAX)
            {
                self.found.last_file = self.found.last_file.max(address.file);
            }
        }
        Ok(())
    }

    /// Takes the next commit, if this record is it.
    fn commit(&mut self, record: &LogRecord<'_>, reader: &Reader, is_first: bool) -> Result<()> {
        let next = self.found.next;
        if record.first_seqno != next {
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
        let mut leads = Vec::new();
        let mut seqno = next;
        for operation in record.operations() {
            let entry = operation.and_then(|operation| entry_of(&operation).map(|(_, entry)| entry));
            let entry = entry.map_err(|damage| damage.at(record.offset).of(reader.path()))?;
            if let Entry::Separated(pointer) = entry
                && seqno > self.flushed
            {
                leads.push((seqno, pointer, self.values.locate(pointer)?));
            }
            seqno += 1;
        }
        let damage = |&(seqno, pointer, _): &(SeqNo, bifold_contract::Pointer, Located), found| {
            let expected = format!("the value of commit {seqno}");
            Corruption::new(pointer.offset, "value record", expected, found)
                .of(self.dir.file(&names::value(pointer.file)))
        };
        if let Some(lead) = leads.iter().find(|lead| lead.2 == Located::Missing) {
            let damage = damage(lead, "no whole record");
            self.end_at(damage);
            return Ok(());
        }
        let damaged = leads.iter().filter(|lead| lead.2 == Located::Damaged);
        let damaged: Vec<_> = damaged.map(|lead| (lead.0, damage(lead, "a damaged record"))).collect();
        self.damaged.extend(damaged);
        leads.iter().for_each(|&(seqno, pointer, _)| self.values.refer(pointer, seqno));
        self.found.next = seqno;
        Ok(())
    }

    /// Decides whether the missing commits may be missing.
    fn finish(self, last_log: FileId) -> Result<Found> {
        let Self { dir, values, mut found, stop, damaged, .. } = self;
        if let Some((_, damage)) = stop.filter(|(next, _)| *next <= found.durable) {
            return Err(damage);
        }
        if let Some((_, damage)) = damaged.into_iter().find(|(seqno, _)| *seqno <= found.durable) {
            return Err(damage);
        }
        // Value files are deleted once the moves out of them are durable, and the index never has what is not.
        let needed = values.durable_before().max(found.durable);
        if needed >= found.next && !planted!("over_trusts_short_logs") {
            let (expected, last) = (format!("commits up to {needed}, which were synced"), found.next - 1);
            let name = names::log(last_log);
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

/// The key of an operation, and what it gets.
pub(crate) fn entry_of<'a>(operation: &Operation<'a>) -> std::result::Result<(&'a [u8], Entry), Corruption> {
    match *operation {
        Operation::Put { keyspace: KEYSPACE, key, value } => Ok((key, Entry::Inline(value.into()))),
        Operation::Pointer { keyspace: KEYSPACE, key, pointer, .. } => {
            pointer::decode(pointer).map(|pointer| (key, Entry::Separated(pointer)))
        }
        Operation::Delete { keyspace: KEYSPACE, key } => Ok((key, Entry::Deleted)),
        ref other => {
            let found = format!("{:?}", std::mem::discriminant(other));
            Err(Corruption::new(0, "log operation", "a put, an address or a delete of keyspace 1", found))
        }
    }
}

/// Whether the log has a whole header. A crash may have torn it.
fn check_header(reader: &Reader, id: FileId) -> Result<bool> {
    let mut first = vec![0; usize::try_from(reader.len().min(SECTOR_BYTES)).unwrap_or(0)];
    reader.read_at(&mut first, 0, IoSource::Recovery)?;
    log::check_header(&first, id).map_err(|damage| damage.of(reader.path()))
}

/// Calls `each` for the records up to the last commit that has happened, in order.
///
/// # Errors
/// I/O errors; those of `each`.
pub(crate) fn each_record(dir: &Dir, log: &FoundLog, mut each: impl FnMut(&LogRecord<'_>) -> Result<()>) -> Result<()> {
    let reader = dir.open(&names::log(log.id))?;
    let mut walk = Walk::new(log.id, FILE_HEADER_BYTES as u64, log.bytes);
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

/// The largest file number, and files by kind.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub logs: Vec<FileId>,
    pub values: Vec<FileId>,
    pub last: FileId,
}

impl Files {
    /// Lists `dir`, in ascending order of numbers.
    ///
    /// # Errors
    /// I/O errors.
    pub fn list(dir: &Dir) -> Result<Self> {
        let mut kinds: BTreeMap<FileId, names::FileKind> = BTreeMap::new();
        for name in dir.list()? {
            let kind = names::parse(&name);
            if let names::FileKind::Log(id) | names::FileKind::Value(id) | names::FileKind::Table(id) = kind {
                kinds.insert(id, kind);
            }
        }
        let mut files = Self { last: kinds.keys().next_back().copied().unwrap_or(0), ..Self::default() };
        for (id, kind) in kinds {
            match kind {
                names::FileKind::Log(_) => files.logs.push(id),
                names::FileKind::Value(_) => files.values.push(id),
                _ => {}
            }
        }
        Ok(files)
    }
}
