//! What the logs of earlier sessions hold, and which files there are. The walk over logs and its rules are those of
//! `values/src/logs.rs`; here is what a store over another index knows of its own.
//!
//! The index gets only what is durable in the files. So everything up to its mark was durable, and logs that do not
//! have it are damaged. A log has puts, addresses and deletes of one keyspace, and no skips.

use std::collections::BTreeMap;

use bifold_contract::{Corruption, FileId, LogFloor, Result, SeqNo, planted};
use bifold_format::{log::Operation, names, pointer};
use bifold_io::Dir;
use bifold_values::{
    logs::{FoundLogs, Lead, LogOwner, LogSpan, RecordAt, walk_logs},
    store::ValueStore,
};

use crate::{index::Entry, log::KEYSPACE};

/// What a store makes of its logs.
struct StoreLogs<'a> {
    values: &'a ValueStore,
    /// Commits up to this one are in the index: where they lead does not matter.
    flushed: SeqNo,
}

/// Walks `logs`, oldest first. `flushed` says up to where the index has everything that was synced, and `marked` up to
/// where it has anything: all that was durable when it was written.
///
/// # Errors
/// I/O errors; corruption.
pub(crate) fn find_logs(
    dir: &Dir,
    values: &ValueStore,
    (logs, floor): (&[FileId], LogFloor),
    (flushed, marked): (SeqNo, SeqNo),
    next_file: FileId,
) -> Result<FoundLogs> {
    let spans: Vec<LogSpan> = logs.iter().map(|&id| LogSpan::whole(id)).collect();
    let mut walked = walk_logs(dir, (&spans, floor.first), next_file, &mut StoreLogs { values, flushed })?;
    let in_index = flushed.max(marked);
    walked.found.durable = walked.found.durable.max(in_index);
    let found = walked.finish(in_index)?;
    if !planted!("over_trusts_short_logs") {
        // The index never has what is not durable.
        let needed = values.durable_before().max(found.durable);
        found.must_reach(needed, dir, logs.last().copied().unwrap_or(floor.log))?;
    }
    Ok(found)
}

impl<'a> LogOwner<'a> for StoreLogs<'a> {
    fn lead(&mut self, operation: &Operation<'_>, seqno: SeqNo, at: &RecordAt<'_>) -> Result<Option<Lead<'a>>> {
        entry_of(operation).map_err(|damage| at.damaged(damage.at(at.record.offset)))?;
        if seqno > self.flushed { Lead::of(self.values, None, (operation, seqno), at) } else { Ok(None) }
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
