//! The whole records of logs that may be damaged anywhere, the newest operation on each key, and the operands above it.

use std::{convert::Infallible, mem::size_of};

use bifold_contract::{FileId, KeyspaceId, Kind, RangeTombstone, Result, SeqNo, Value, expiry};
use bifold_format::{
    frame::FILE_HEADER_BYTES,
    log::{self, LogRecord, LoggedIngest, Operation},
    names,
    walk::{Met, Walk},
};
use bifold_index::table::salvage::read_around_errors;
use bifold_io::Dir;

use super::super::bounded::{BoundedKeys, OfKey};
use crate::open::recover::ManifestState;

/// Bytes of an entry in memory without key and value: a map node that is two thirds full, two boxes.
const ENTRY_BYTES: usize = 200;

/// Bytes of an operand without its bytes: a box, a vector that is half full.
const OPERAND_BYTES: usize = 2 * size_of::<Version>() + 16;

/// A header that is cut short is told from a damaged one by the rest of its sector.
const SECTOR_BYTES: u64 = 512;

/// What is in a log.
pub(super) enum InLog<'a> {
    /// An operation with this number.
    Operation(SeqNo, Operation<'a>),
    /// The end of a record with these numbers, and what it says of the manifest.
    Record(RecordNumbers, OfManifest),
    /// No whole record.
    Lost(LostRecords),
}

/// The numbers of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordNumbers {
    pub first: SeqNo,
    /// That of the next record.
    pub next: SeqNo,
    /// They belong to no operation in a log: an ingest has taken them.
    pub is_skip: bool,
}

/// What a record says that the manifest has, or is about to have.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfManifest {
    announced: Option<LoggedIngest>,
    floor: Option<FileId>,
}

/// A stretch of a log without a whole record.
pub(super) struct LostRecords {
    pub offset: u64,
    pub bytes: u64,
    pub problem: String,
    /// The number of the next commit, if there is one: those that are lost have smaller ones.
    pub below: Option<SeqNo>,
}

/// Walks the log `id`. `next` is the number that the next commit has, if that is known.
///
/// # Errors
/// I/O errors of opening it.
pub(super) fn walk(dir: &Dir, id: FileId, next: &mut Option<SeqNo>, mut met: impl FnMut(InLog<'_>)) -> Result<()> {
    let name = names::log(id);
    let name = if dir.len(&name)?.is_some() { name } else { names::again(&name) };
    let reader = dir.open(&name)?;
    let end = reader.len();
    let read = |buffer: &mut [u8], at: u64| -> std::result::Result<(), Infallible> {
        read_around_errors(&reader, buffer, at);
        Ok(())
    };
    let mut head = vec![0; SECTOR_BYTES.min(end) as usize];
    let Ok(()) = read(&mut head, 0);
    let problem = match log::check_header(&head, id) {
        Ok(true) => None,
        Ok(false) => Some("a header that is cut short".to_owned()),
        Err(damage) => Some(damage.to_string()),
    };
    if let Some(problem) = problem {
        met(InLog::Lost(LostRecords { offset: 0, bytes: end.min(FILE_HEADER_BYTES as u64), problem, below: None }));
    }
    let mut walk = Walk::new(id, FILE_HEADER_BYTES as u64, end);
    let mut lost: Option<(u64, String)> = None;
    loop {
        let Ok(step) = walk.step(read);
        match step {
            Met::Record(frame, len) => {
                let record = LogRecord::of(frame);
                let (offset, first) = (record.offset, record.first_seqno);
                if let Some(gap) = gap(lost.take(), (next.take(), first), offset) {
                    met(InLog::Lost(gap));
                }
                let behind = operations(&record, len, &mut met);
                let skip = record.skips_to().ok().flatten();
                let numbers = RecordNumbers { first, next: skip.unwrap_or(behind), is_skip: skip.is_some() };
                *next = Some(numbers.next);
                let announced = record.announced().ok().flatten();
                met(InLog::Record(numbers, OfManifest { announced, floor: record.floor().ok().flatten() }));
                continue;
            }
            Met::Torn(offset) => {
                lost.get_or_insert((offset, "a record that is cut short, or has lost sectors".to_owned()));
            }
            Met::Damaged { offset, expected, found } => {
                lost.get_or_insert((offset, format!("expected {expected}, found {found}")));
            }
            Met::End => break,
        }
        let Ok(found) = walk.find_next(read);
        if found.is_none() {
            break;
        }
    }
    if let Some((offset, problem)) = lost {
        *next = None;
        met(InLog::Lost(LostRecords { offset, bytes: end - offset, problem, below: None }));
    }
    Ok(())
}

/// Why the manifest is older than the logs, if they say so: for the reasons for which opening refuses it.
///
/// # Errors
/// I/O errors of opening them.
pub(super) fn say_older(dir: &Dir, logs: &[FileId], state: &ManifestState) -> Result<Option<String>> {
    let (mut next, mut noted, mut missing) = (None, (0, 0), None);
    // An ingest that the manifest does not have, if nothing has come behind its announcement.
    let mut pending: Option<LoggedIngest> = None;
    for &log in logs {
        walk(dir, log, &mut next, |met| match met {
            InLog::Operation(..) => {}
            InLog::Record(RecordNumbers { first, next, .. }, said) => {
                // An older log may have noted the floor of an earlier manifest, or of the one that this is a copy of.
                if let Some(floor) = said.floor.filter(|_| log >= state.begun_next_file) {
                    noted = noted.max((floor, log));
                }
                let counts = next > first;
                // If its numbers are used again, an opening has found that it never arrived.
                if let Some(ingest) = pending.take_if(|_| counts).filter(|ingest| first >= ingest.next) {
                    missing.get_or_insert(ingest.next - 1);
                }
                pending = said.announced.filter(|ingest| ingest.next - 1 > state.last_seqno).or(pending);
            }
            // What is lost may have used its numbers again.
            InLog::Lost(_) => pending = None,
        })?;
    }
    if let Some(last) = missing {
        let has = state.last_seqno;
        return Ok(Some(format!(
            "logs have an ingest with numbers up to {last}, and it has {has}: truncated or older"
        )));
    }
    let (floor, noted_by) = noted;
    let needed = state.log_floor.log;
    Ok((floor > needed).then(|| {
        let (floor, noted_by, needed) = (names::log(floor), names::log(noted_by), names::log(needed));
        format!("{noted_by} says that {floor} is the first log needed, and it says {needed}: truncated or older")
    }))
}

/// What is missing before the commit `first`, whose record is at `offset`.
fn gap(lost: Option<(u64, String)>, (next, first): (Option<SeqNo>, SeqNo), offset: u64) -> Option<LostRecords> {
    match (lost, next) {
        (Some((start, problem)), _) => {
            Some(LostRecords { offset: start, bytes: offset - start, problem, below: Some(first) })
        }
        (None, Some(next)) if next < first => {
            let problem = format!("operations {next} to {} are in no log", first - 1);
            Some(LostRecords { offset, bytes: 0, problem, below: Some(first) })
        }
        _ => None,
    }
}

/// Hands out the operations of a record. Returns the number behind them.
fn operations(record: &LogRecord<'_>, len: u32, met: &mut impl FnMut(InLog<'_>)) -> SeqNo {
    let mut number = record.first_seqno;
    for operation in record.operations() {
        match operation {
            Ok(operation) => met(InLog::Operation(number, operation)),
            Err(damage) => {
                let problem = damage.to_string();
                met(InLog::Lost(LostRecords { offset: record.offset, bytes: len.into(), problem, below: None }));
            }
        }
        number += 1;
    }
    number
}

/// What is known of one version of a key.
#[derive(Clone, Debug)]
pub(super) struct Version {
    pub seqno: SeqNo,
    pub kind: Kind,
    /// As in an entry of a table.
    pub payload: Value,
    /// Whether a log has it, not a table.
    pub is_logged: bool,
}

/// What logs have of a key: the newest operation that is no operand, if there is one, and the operands above it.
#[derive(Default)]
pub(super) struct Logged {
    newest: Option<Version>,
    /// The oldest first. Each has a number of its own.
    operands: Vec<Version>,
    /// Bytes of these.
    operand_bytes: usize,
}

/// By keyspace.
pub(super) type LogVersions = BoundedKeys<KeyspaceId, Logged>;

impl Logged {
    /// The key of an operation, and what it tells of it; `None` if it is on no single key.
    pub fn of<'a>(seqno: SeqNo, operation: &Operation<'a>) -> Option<(&'a [u8], Self)> {
        let (key, kind, payload) = entry_of(operation)?;
        let version = Version { seqno, kind, payload: Value::from(payload), is_logged: true };
        let logged = match kind {
            Kind::Operand => Self { operand_bytes: bytes_of(&version), operands: vec![version], newest: None },
            _ => Self { newest: Some(version), ..Self::default() },
        };
        Some((key, logged))
    }

    /// All of them.
    pub fn into_versions(self) -> impl Iterator<Item = Version> {
        self.newest.into_iter().chain(self.operands)
    }

    fn put(&mut self, newest: Version) {
        // Of two with one number, the one in the later log: a crash took back the commit of the other.
        if self.newest.as_ref().is_none_or(|known| known.seqno <= newest.seqno) {
            self.operands.retain(|operand| operand.seqno > newest.seqno);
            self.operand_bytes = self.operands.iter().map(bytes_of).sum();
            self.newest = Some(newest);
        }
    }

    fn merge(&mut self, operand: Version) {
        if self.newest.as_ref().is_some_and(|known| known.seqno >= operand.seqno) {
            return;
        }
        let at = self.operands.partition_point(|known| known.seqno < operand.seqno);
        self.operand_bytes += bytes_of(&operand);
        match self.operands.get_mut(at).filter(|known| known.seqno == operand.seqno) {
            Some(known) => self.operand_bytes -= bytes_of(&std::mem::replace(known, operand)),
            None => self.operands.insert(at, operand),
        }
    }
}

fn bytes_of(operand: &Version) -> usize {
    operand.payload.len() + OPERAND_BYTES
}

impl OfKey for Logged {
    fn bytes(&self) -> usize {
        ENTRY_BYTES + self.operand_bytes + self.newest.as_ref().map_or(0, |newest| newest.payload.len())
    }

    fn join(&mut self, other: Self) {
        other.newest.into_iter().for_each(|newest| self.put(newest));
        other.operands.into_iter().for_each(|operand| self.merge(operand));
    }
}

/// What an operation on one key makes of it. A value that the log has is taken from there.
fn entry_of<'a>(operation: &Operation<'a>) -> Option<(&'a [u8], Kind, Vec<u8>)> {
    Some(match *operation {
        Operation::Put { key, value, .. } => (key, Kind::Inline, value.to_vec()),
        Operation::Pointer { key, value: Some(value), .. } => (key, Kind::Inline, value.to_vec()),
        Operation::Pointer { key, pointer, .. } => (key, Kind::Pointer, pointer.to_vec()),
        Operation::PutUntil { key, instant, value, .. } => {
            (key, Kind::InlineUntil, [&expiry::encode(instant), value].concat())
        }
        Operation::PointerUntil { key, payload, value: Some(value), .. } => {
            (key, Kind::InlineUntil, [&expiry::encode(expiry::split(payload).0), value].concat())
        }
        Operation::PointerUntil { key, payload, .. } => (key, Kind::PointerUntil, payload.to_vec()),
        Operation::Delete { key, .. } => (key, Kind::Delete, Vec::new()),
        Operation::Large { key, named, .. } => (key, Kind::Large, named.to_vec()),
        Operation::Merge { key, operand, .. } => (key, Kind::Operand, operand.to_vec()),
        Operation::DeleteRange { .. } => return None,
    })
}

/// The tombstone of a range delete.
pub(super) fn range_of(seqno: SeqNo, operation: &Operation<'_>) -> Option<RangeTombstone> {
    let Operation::DeleteRange { start, end, .. } = *operation else { return None };
    Some(RangeTombstone { start: start.into(), end: end.map(Into::into), seqno })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(seqno: SeqNo, what: &'static [u8], is_operand: bool) -> Logged {
        let (keyspace, key) = (2, &b"k"[..]);
        let operation = match is_operand {
            true => Operation::Merge { keyspace, key, operand: what },
            false => Operation::Put { keyspace, key, value: what },
        };
        Logged::of(seqno, &operation).unwrap().1
    }

    #[test]
    fn operands_above_the_newest_value_are_kept_once_each_in_any_order() {
        let all = [(3, "a", true), (5, "old", false), (7, "c", true), (6, "b", true), (9, "d", true), (2, "z", false)];
        for first in 0..all.len() {
            let mut known = Logged::default();
            for at in 0..all.len() {
                let (seqno, what, is_operand) = all[(first + at) % all.len()];
                known.join(logged(seqno, what.as_bytes(), is_operand));
                // The later log counts.
                known.join(logged(7, b"again", true));
                known.join(logged(7, b"c", true));
            }
            let bytes: usize = known.operands.iter().map(bytes_of).sum();
            assert_eq!(known.operand_bytes, bytes);
            let found: Vec<_> = known.into_versions().map(|v| (v.seqno, v.payload.to_vec())).collect();
            let expected = [(5, "old"), (6, "b"), (7, "c"), (9, "d")];
            assert_eq!(found, expected.map(|(seqno, what)| (seqno, what.as_bytes().to_vec())), "from {first}");
        }
    }
}
