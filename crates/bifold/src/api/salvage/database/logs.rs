//! The whole records of logs that may be damaged anywhere, and the newest operation on each key.

use std::{collections::BTreeMap, convert::Infallible};

use bifold_contract::{FileId, KeyspaceId, Kind, RangeTombstone, Result, SeqNo, Value, expiry};
use bifold_format::{
    frame::FILE_HEADER_BYTES,
    log::{self, LogRecord, Operation},
    names,
    walk::{Met, Walk},
};
use bifold_index::table::salvage::read_around_errors;
use bifold_io::Dir;

use super::super::newest::Subset;

/// Bytes of an entry in memory without key and value: a map node that is two thirds full, two boxes.
const ENTRY_BYTES: usize = 160;

/// A header that is cut short is told from a damaged one by the rest of its sector.
const SECTOR_BYTES: u64 = 512;

/// What is in a log.
pub(super) enum InLog<'a> {
    /// An operation with this number.
    Operation(SeqNo, Operation<'a>),
    /// No whole record.
    Lost(LostRecords),
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
                *next = Some(operations(&record, len, &mut met));
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

/// Hands out the operations of a record. Returns the number of the next one.
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
    record.skips_to().ok().flatten().unwrap_or(number)
}

/// What is known of one version of a key.
#[derive(Clone, Debug)]
pub(super) struct Version {
    pub seqno: SeqNo,
    pub kind: Kind,
    /// As in an entry of a table.
    pub payload: Value,
}

/// The newest operations of logs on the keys of one subset, by keyspace.
pub(super) struct LogVersions {
    subset: Subset,
    pub keys: BTreeMap<KeyspaceId, BTreeMap<Box<[u8]>, Version>>,
    bytes: usize,
    bytes_max: usize,
    /// Subsets that did not fit.
    pub left: Vec<Subset>,
}

impl LogVersions {
    pub fn new(subset: Subset, bytes_max: usize) -> Self {
        Self { subset, keys: BTreeMap::new(), bytes: 0, bytes_max, left: Vec::new() }
    }

    pub fn covers(&self, key: &[u8]) -> bool {
        self.subset.covers(key)
    }

    /// Takes an operation on one key into account.
    pub fn add(&mut self, seqno: SeqNo, operation: &Operation<'_>) {
        let Some((key, kind, payload)) = entry_of(operation) else { return };
        if !self.subset.covers(key) {
            return;
        }
        let bytes = key.len() + payload.len() + ENTRY_BYTES;
        let version = Version { seqno, kind, payload: Value::copy_of(&payload) };
        let keys = self.keys.entry(operation.keyspace()).or_default();
        match keys.get_mut(key) {
            Some(known) if known.seqno > seqno => return,
            Some(known) => {
                self.bytes -= key.len() + known.payload.len() + ENTRY_BYTES;
                *known = version;
            }
            None => drop(keys.insert(key.into(), version)),
        }
        self.bytes += bytes;
        while self.bytes > self.bytes_max && !self.subset.is_smallest() {
            self.halve();
        }
    }

    /// Leaves half of the keys to a later pass.
    fn halve(&mut self) {
        let (mine, other) = self.subset.halves();
        self.subset = mine;
        self.left.push(other);
        self.bytes = 0;
        for keys in self.keys.values_mut() {
            keys.retain(|key, _| mine.covers(key));
            self.bytes += keys.iter().map(|(key, v)| key.len() + v.payload.len() + ENTRY_BYTES).sum::<usize>();
        }
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
