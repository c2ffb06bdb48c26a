//! The change feed: every commit in order, from a number on. Page: `docs/changes.md`.
//!
//! ```text
//! logs kept for it ─▶ logs needed for replay ─▶ the one that is written
//!      └ the first change that is still there          └ the last visible one
//! ```
//!
//! Changes are read from the logs, which have every commit in order. What GC commits when it moves a value has no value
//! with it: such a commit is no change. Of ingests the logs have no more than a name of the file with the entries.

pub(crate) mod ingested;
mod large;
mod wait;

use std::{collections::VecDeque, fmt, io::ErrorKind, sync::Arc, time::SystemTime};

use bifold_contract::{Corruption, Error, IoSource, KeyspaceId, LargeRef, Result, SeqNo, Value, expiry, planted};
use bifold_format::{
    frame::FILE_HEADER_BYTES,
    large as large_values,
    log::{LogRecord, LoggedIngest, Operation},
    names,
    walk::{Met, Walk},
};
use bifold_io::Reader;

use self::ingested::AtIngest;
use crate::{
    api::db::{Db, Handle},
    engine::Engine,
    log::{
        kept_logs::{self, cut_short},
        wal::LogFile,
    },
    open::follow::patiently,
    state::time::moment_of,
};

/// What happened to a key, or to a range of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChangeKind {
    /// It got a value.
    Put,
    /// It got an operand of its keyspace's [merge operator](crate::MergeOperator).
    Merge,
    /// It was deleted.
    Delete,
    /// All keys from `key` up to `range_end`, exclusive, were deleted.
    DeleteRange,
}

/// One operation of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// Its number. Those of a commit follow each other. Between commits there may be gaps: where GC has moved a value,
    /// and large ones before and after an ingest.
    pub seqno: SeqNo,
    /// The name of the keyspace; `None` if that was dropped since.
    pub keyspace: Option<String>,
    /// The id of the keyspace. No other keyspace of this database ever has it.
    pub keyspace_id: u32,
    /// What happened.
    pub kind: ChangeKind,
    /// The key, or the first one of a range.
    pub key: Box<[u8]>,
    /// The value of a put, or the operand of a merge; `None` for a delete, and where `large` is set.
    pub value: Option<Value>,
    /// Set if the value of a put has a file of its own: [`Db::change_reader`] reads it piece by piece.
    pub large: Option<LargeValue>,
    /// When what was put expires, if it does. There is no change when it has expired.
    pub expires_at: Option<SystemTime>,
    /// The first key after a deleted range; `None` for one without end.
    pub range_end: Option<Box<[u8]>>,
    /// Whether it is the last one of its commit.
    pub ends_commit: bool,
}

/// A value of [`Keyspace::put_reader`](crate::Keyspace::put_reader) that has a file of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LargeValue {
    /// Its length, in bytes.
    pub bytes: u64,
    named: LargeRef,
}

/// An iterator over changes: see [`Db::changes`]. Behind the last one that is visible it yields `None`; later calls go
/// on from there, and [`Changes::wait`] waits for one. It has one commit, or a part of an ingest, in memory at a time.
/// After an error the next call tries again at the same place.
///
/// It keeps the database open, as other handles do, but not while it waits. It keeps no logs: what it has not read may
/// be deleted, and then it yields [`Error::ChangesGone`].
pub struct Changes {
    /// `None` once it has waited and met the end of the database.
    handle: Option<Arc<Handle>>,
    /// The number that comes next.
    next: SeqNo,
    at: Option<AtLog>,
    /// The ingest that is read, which the log at that place leads to.
    ingest: Option<AtIngest>,
    /// The logs of a process that does not write: its state has these and no others.
    of_state: Option<Vec<LogFile>>,
    /// The rest of a commit.
    waiting: VecDeque<Change>,
}

/// How far a log is read.
struct AtLog {
    log: LogFile,
    reader: Reader,
    walk: Walk,
}

/// What is met in a log.
enum Found {
    Commit,
    /// There is no more of it yet, or a later log goes on.
    End,
    /// It is not visible yet.
    NotYet,
}

impl Db {
    /// Every change after the one with number `since`, in the order of commits; 0: from the first one on. It includes
    /// what is committed while it is read: at the end it yields `None`, and the next call looks again;
    /// [`Changes::wait`] waits for more. The number of the last change seen is where to go on later, after any number
    /// of openings.
    ///
    /// Needs [`Options::retain_changes`](crate::Options::retain_changes). A change is there as soon as its commit is
    /// visible, durable or not: where a power loss may take commits that a reader has seen, commit with
    /// [`Durability::Sync`](crate::Durability::Sync).
    ///
    /// Where another process writes the database ([`Access::Follow`](crate::Access::Follow)), the changes are those up
    /// to the state that this handle has: after [`Db::refresh`] or [`Db::refresh_within`], ask for those after the last
    /// one seen.
    ///
    /// ```
    /// use bifold::{Db, Options, RetainChanges};
    ///
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-changes-{}", std::process::id()));
    /// let retain_changes = Some(RetainChanges { bytes: 64 << 20, age: None });
    /// let db = Db::open_with(&dir, Options { retain_changes, ..Options::default() })?;
    /// db.put("a", "1")?;
    /// db.delete("a")?;
    /// let mut seen = 0;
    /// for change in db.changes(0)? {
    ///     let change = change?;
    ///     println!("{} {:?} {:?}", change.seqno, change.kind, change.key);
    ///     seen = change.seqno;
    /// }
    /// db.put("b", "2")?;
    /// assert_eq!(db.changes(seen)?.count(), 1);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(dir).ok();
    /// # Ok::<(), bifold::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ChangesGone`] if some of them are no longer there; [`Error::InvalidArgument`] if changes are not kept,
    /// or the database has no commit `since`, because a power loss took it; [`Error::Poisoned`]; [`Error::Closed`]; I/O
    /// errors.
    pub fn changes(&self, since: SeqNo) -> Result<Changes> {
        let engine = self.engine();
        let logs = logs_of(engine)?;
        let Some(first) = logs.first() else {
            let reason = "they are not kept: open the database with the option `retain_changes`";
            return Err(Error::invalid("changes", reason));
        };
        let visible = engine.reader.visible();
        if since > visible {
            let reason = format!("the last commit is {visible}: those up to {since} are not in this database");
            return Err(Error::invalid("changes", reason));
        }
        if since + 1 < first.first {
            return Err(Error::ChangesGone { since, first: first.first });
        }
        let of_state = (!engine.options.access.writes()).then_some(logs);
        let handle = Some(Arc::clone(self.handle()));
        Ok(Changes { handle, next: since + 1, at: None, ingest: None, of_state, waiting: VecDeque::new() })
    }
}

impl Changes {
    /// Reads the next commit. Returns whether there is one.
    fn read_on(&mut self) -> Result<bool> {
        let engine = self.engine()?;
        let visible = engine.reader.visible();
        if self.next > visible {
            engine.health.open()?;
            return Ok(false);
        }
        loop {
            if self.ingest.is_some() {
                if self.step_within_ingest()? {
                    return Ok(true);
                }
                continue;
            }
            if self.at.is_none() {
                self.at = Some(self.log_of_next()?);
            }
            match self.step(visible)? {
                Found::Commit if !self.waiting.is_empty() => return Ok(true),
                Found::Commit => {}
                Found::NotYet => return Ok(false),
                Found::End if !self.goes_on()? => return Ok(false),
                Found::End => {}
            }
        }
    }

    /// The log that has the next change.
    fn log_of_next(&mut self) -> Result<AtLog> {
        loop {
            let logs = self.logs()?;
            let first = logs.first().map_or(SeqNo::MAX, |log| log.first);
            let Some(&log) = logs.iter().rev().find(|log| log.first <= self.next) else {
                return Err(Error::ChangesGone { since: self.next - 1, first });
            };
            match self.open(log) {
                // It was deleted since. A state does not hold logs that are deleted right after the edit it ends with.
                Err(Error::Io { source, op, path })
                    if source.kind() == ErrorKind::NotFound && !planted!("states_hold_all_kept_logs") =>
                {
                    if !self.is_writer() {
                        self.of_state = Some(logs_of(self.engine()?)?);
                    } else if self.logs()?.iter().any(|there| there.id == log.id) {
                        // Somebody else has deleted it.
                        return Err(Error::Io { source, op, path });
                    }
                }
                opened => return opened,
            }
        }
    }

    fn logs(&self) -> Result<Vec<LogFile>> {
        self.of_state.clone().map_or_else(|| logs_of(self.engine()?), Ok)
    }

    fn engine(&self) -> Result<&Engine> {
        let closed = || Error::Closed { what: "the database".into() };
        self.handle.as_ref().map(|handle| &*handle.engine).ok_or_else(closed)
    }

    fn open(&self, log: LogFile) -> Result<AtLog> {
        let reader = self.engine()?.dir.open_held(&names::log(log.id))?;
        let walk = Walk::new(log.id, FILE_HEADER_BYTES as u64, self.end_of(log, &reader)?);
        Ok(AtLog { log, reader, walk })
    }

    /// Where what can be read of a log ends. The state of a follower ends within the last one.
    fn end_of(&self, log: LogFile, reader: &Reader) -> Result<u64> {
        let len = reader.len_now()?;
        Ok(if self.is_writer() { len } else { len.min(log.bytes) })
    }

    fn is_writer(&self) -> bool {
        self.of_state.is_none()
    }

    /// At the end of a log: whether there is more, in it or in the next one.
    fn goes_on(&mut self) -> Result<bool> {
        let logs = self.logs()?;
        let Some(at) = &self.at else { return Ok(true) };
        let (position, end) = (at.walk.position(), self.end_of(at.log, &at.reader)?);
        let Some(AtLog { log, reader, walk }) = &mut self.at else { return Ok(true) };
        if end > position + walk.left() {
            *walk = Walk::new(log.id, position, end);
            return Ok(true);
        }
        let Some(&later) = logs.iter().find(|later| later.id > log.id) else { return Ok(false) };
        // What comes between two logs, a crash has taken before anybody could rely on it. But if this one was deleted
        // meanwhile, others between the two may have been, too.
        match logs.iter().find(|there| there.id == log.id) {
            Some(there) if position < there.bytes => return Err(cut_short(reader.path(), position, there.bytes)),
            None if !planted!("feed_jumps_over_deleted_logs") => {}
            _ => self.next = self.next.max(later.first),
        }
        self.at = None;
        Ok(true)
    }

    fn step(&mut self, visible: SeqNo) -> Result<Found> {
        let Some(AtLog { log, reader, walk }) = &mut self.at else { return Ok(Found::End) };
        let read = |buffer: &mut [u8], at: u64| reader.read_at(buffer, at, IoSource::Recovery);
        let record = match walk.step(read)? {
            Met::Record(frame, _) => LogRecord::of(frame),
            Met::Torn(_) | Met::End => return Ok(Found::End),
            Met::Damaged { offset, expected, found } => {
                return Err(Corruption::new(offset, "log record", expected, found).of(reader.path()));
            }
        };
        if record.first_seqno > visible {
            let (offset, end) = (record.offset, walk.position() + walk.left());
            *walk = Walk::new(log.id, offset, end);
            return Ok(Found::NotYet);
        }
        if let Some(ingest) = record.announced().map_err(|damage| damage.of(reader.path()))? {
            return self.meet(ingest).map(|()| Found::Commit);
        }
        let operations: std::result::Result<Vec<_>, _> = record.operations().collect();
        let operations = operations.map_err(|damage| damage.of(reader.path()))?;
        let is_of_gc = operations.iter().any(is_move) && !planted!("moves_are_changes");
        let numbered = operations.iter().zip(record.first_seqno..).filter(|_| !is_of_gc);
        let unseen = numbered.filter(|(_, seqno)| *seqno >= self.next);
        for (operation, seqno) in unseen {
            let change = change_of(operation, seqno).map_err(|damage| damage.at(record.offset).of(reader.path()))?;
            self.waiting.push_back(change);
        }
        let seqno = record.first_seqno + operations.len() as SeqNo;
        if let Some(last) = self.waiting.back_mut() {
            last.ends_commit = true;
        }
        self.next = self.next.max(seqno);
        Ok(Found::Commit)
    }

    /// Goes into an ingest, or beyond it if all of it was seen.
    fn meet(&mut self, ingest: LoggedIngest) -> Result<()> {
        if ingest.next <= self.next || planted!("feed_without_ingests") {
            self.next = self.next.max(ingest.next);
            return Ok(());
        }
        match AtIngest::open(&self.engine()?.dir, ingest) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                Err(Error::ChangesGone { since: self.next - 1, first: self.first_there_without(ingest)? })
            }
            opened => opened.map(|at| self.ingest = Some(at)),
        }
    }

    /// The first change that is there without the file of an ingest. It was deleted with the log that leads to it, or
    /// this database began as a copy, which has such logs and no such files.
    fn first_there_without(&self, ingest: LoggedIngest) -> Result<SeqNo> {
        let first = logs_of(self.engine()?)?.first().map_or(ingest.next, |log| log.first);
        // Another process sees logs that nobody needs for a moment longer than what they lead to.
        Ok(if planted!("feed_stuck_at_ingests") { first } else { first.max(ingest.next) })
    }

    /// The next changes of an ingest. Returns whether there are any that were not seen.
    fn step_within_ingest(&mut self) -> Result<bool> {
        let Some(ingest) = &mut self.ingest else { return Ok(false) };
        let Some(changes) = ingest.step()? else {
            self.next = self.next.max(ingest.end());
            self.ingest = None;
            return Ok(false);
        };
        self.waiting.extend(changes.into_iter().filter(|change| change.seqno >= self.next));
        self.next = self.waiting.back().map_or(self.next, |last| last.seqno + 1);
        Ok(!self.waiting.is_empty())
    }

    fn named(&self, change: Change) -> Change {
        let tree = self.engine().ok().and_then(|engine| engine.trees.get(change.keyspace_id));
        Change { keyspace: tree.map(|tree| tree.name.clone()), ..change }
    }
}

/// The logs that have changes, oldest first.
fn logs_of(engine: &Engine) -> Result<Vec<LogFile>> {
    if engine.options.access.writes() {
        engine.health.writable()?;
        return engine.health.watch(engine.wal.hold().changes());
    }
    engine.health.open()?;
    let needed = engine.wal.hold().files();
    patiently(&engine.env, || kept_logs::of_reader(&engine.dir, &needed))
}

/// Whether an operation only says where a value is now. GC commits nothing else, except that it writes operands of a
/// merge operator again above it.
fn is_move(operation: &Operation<'_>) -> bool {
    matches!(operation, Operation::Pointer { value: None, .. } | Operation::PointerUntil { value: None, .. })
}

/// What an operation of the log changes.
fn change_of(operation: &Operation<'_>, seqno: SeqNo) -> std::result::Result<Change, Corruption> {
    let keyspace = operation.keyspace();
    let put = |key: &[u8], value: &[u8]| new(keyspace, seqno, ChangeKind::Put, key, Some(value));
    Ok(match *operation {
        Operation::Put { key, value, .. } => put(key, value),
        Operation::Pointer { key, value, pointer, .. } => put(key, value.unwrap_or(pointer)),
        Operation::PutUntil { key, instant, value, .. } => {
            Change { expires_at: Some(moment_of(instant)), ..put(key, value) }
        }
        Operation::PointerUntil { key, payload, value, .. } => {
            Change { expires_at: Some(moment_of(expiry::split(payload).0)), ..put(key, value.unwrap_or(payload)) }
        }
        Operation::Large { key, named, .. } => {
            let named = large_values::decode(named)?;
            let large = Some(LargeValue { bytes: named.len, named });
            Change { large, ..new(keyspace, seqno, ChangeKind::Put, key, None) }
        }
        Operation::Merge { key, operand, .. } => new(keyspace, seqno, ChangeKind::Merge, key, Some(operand)),
        Operation::Delete { key, .. } => new(keyspace, seqno, ChangeKind::Delete, key, None),
        Operation::DeleteRange { start, end, .. } => {
            let change = new(keyspace, seqno, ChangeKind::DeleteRange, start, None);
            Change { range_end: end.map(Into::into), ..change }
        }
    })
}

fn new(keyspace: KeyspaceId, seqno: SeqNo, kind: ChangeKind, key: &[u8], value: Option<&[u8]>) -> Change {
    Change {
        seqno,
        keyspace: None,
        keyspace_id: keyspace,
        kind,
        key: key.into(),
        value: value.map(Value::copy_of),
        large: None,
        expires_at: None,
        range_end: None,
        ends_commit: false,
    }
}

impl Iterator for Changes {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.waiting.is_empty() {
            match self.read_on() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    // The next call meets the same error: nothing is passed over.
                    (self.at, self.ingest) = (None, None);
                    return Some(Err(error));
                }
            }
        }
        self.waiting.pop_front().map(|change| Ok(self.named(change)))
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("next", &self.next).finish_non_exhaustive()
    }
}
