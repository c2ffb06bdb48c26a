//! The entries of ingests, which no log has: each ingest has a file of them, written with its tables.
//!
//! ```text
//! log       │ commit 7 │ announced: up to 41, in 000012.ingest │ commit 42 │
//!                                          │
//! 000012.ingest                            └─▶ │ puts 19 to 30 │ puts 31 to 41 │      records as in a log
//! ```
//!
//! A file is needed as long as the log is kept that announces it. That log began before the ingest had its numbers, and
//! later logs begin after it: so a file is needed if its first number is not below that of the oldest log. It is
//! deleted when that log is gone and cannot come back with the power.

use std::{collections::BTreeSet, ops::Range};

use bifold_contract::{Corruption, FileId, IoSource, LogFloor, Result, SeqNo, planted};
use bifold_format::{
    frame::FILE_HEADER_BYTES,
    log::{LogRecord, LoggedIngest},
    names,
    walk::{Met, Walk},
};
use bifold_io::Dir;

use super::{HEAD_BYTES, KeptLogs};
use crate::state::files::Files;

/// A file with the entries of an ingest.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptIngest {
    file: FileId,
    bytes: u64,
    /// The number of its first entry.
    first: SeqNo,
}

impl KeptLogs {
    /// Keeps the file of an ingest, if it has one.
    pub fn keep_ingest(&mut self, LoggedIngest { file, bytes, .. }: LoggedIngest, first: SeqNo) {
        if file > 0 {
            self.ingests.push(KeptIngest { file, bytes, first });
        }
    }

    /// What an opening finds in `files`. Replay begins with the log `floor`, and the next commit has the number `next`:
    /// what has that number or a larger one never arrived.
    ///
    /// # Errors
    /// I/O errors.
    pub fn find_ingests(
        &mut self,
        dir: &Dir,
        files: &[FileId],
        (floor, next): (Option<LogFloor>, SeqNo),
    ) -> Result<()> {
        let oldest = self.files().next().map(|log| log.first).or(floor.map(|floor| floor.first));
        let numbers = oldest.unwrap_or(next)..next;
        if self.limits.is_none() {
            self.leaving = files.to_vec();
            return Ok(());
        }
        for &file in files {
            let name = names::ingest(file);
            let Some(first) = first_number(dir, file)?.filter(|first| numbers.contains(first)) else {
                self.leaving.push(file);
                continue;
            };
            self.ingests.push(KeptIngest { file, bytes: dir.len(&name)?.unwrap_or(0), first });
        }
        Ok(())
    }

    /// Bytes in the files of ingests that have these numbers.
    pub(super) fn ingest_bytes(&self, numbers: Range<SeqNo>) -> u64 {
        self.ingests.iter().filter(|ingest| numbers.contains(&ingest.first)).map(|ingest| ingest.bytes).sum()
    }

    /// No kept log leads to the ingests before number `first` any more.
    pub(super) fn forget_ingests(&mut self, first: SeqNo) {
        let first = if planted!("ingests_kept_forever") { 0 } else { first };
        self.leaving.extend(self.ingests.extract_if(.., |ingest| ingest.first < first).map(|ingest| ingest.file));
    }

    /// The files of ingests that no kept log leads to, if only logs of `known` are there. Others led to them: they are
    /// deleted, but a follower may hold them.
    ///
    /// # Errors
    /// I/O errors.
    pub fn take_leaving(&mut self, dir: &Dir, known: &BTreeSet<FileId>) -> Result<Vec<FileId>> {
        let is_alone = planted!("ingests_before_logs")
            || self.leaving.is_empty()
            || Files::list(dir)?.logs.iter().all(|log| known.contains(log));
        Ok(if is_alone { std::mem::take(&mut self.leaving) } else { Vec::new() })
    }
}

/// The number of the first entry in the file of an ingest. `None` if it was not written that far.
fn first_number(dir: &Dir, file: FileId) -> Result<Option<SeqNo>> {
    let reader = dir.open(&names::ingest(file))?;
    let mut walk = Walk::new(file, FILE_HEADER_BYTES as u64, reader.len()).by_chunks_of(HEAD_BYTES);
    match walk.step(|buffer: &mut [u8], at: u64| reader.read_at(buffer, at, IoSource::Recovery))? {
        Met::Record(frame, _) => Ok(Some(LogRecord::of(frame).first_seqno)),
        _ => Ok(None),
    }
}

/// The ingests with files that a log leads to and a manifest has, whose last number is `last_seqno`.
///
/// # Errors
/// I/O errors; a record that cannot be decoded. Damage only ends the list.
pub(crate) fn arrived_ingests(dir: &Dir, log: FileId, last_seqno: SeqNo) -> Result<Vec<LoggedIngest>> {
    let reader = dir.open(&names::log(log))?;
    let mut walk = Walk::new(log, FILE_HEADER_BYTES as u64, reader.len());
    let (mut arrived, of_log) = (Vec::new(), |damage: Corruption| damage.of(reader.path()));
    while let Met::Record(frame, _) =
        walk.step(|buffer: &mut [u8], at: u64| reader.read_at(buffer, at, IoSource::Recovery))?
    {
        let record = LogRecord::of(frame);
        arrived.extend(record.announced().map_err(of_log)?.filter(|ingest| ingest.next - 1 <= last_seqno));
    }
    arrived.retain(|ingest| ingest.file > 0);
    Ok(arrived)
}
