//! Logs that only the change feed needs: nothing in them has to be replayed any more.
//!
//! ```text
//! kept, oldest first ──────────────▶ needed for replay ──▶ the one that is written
//! └ deleted from here on, as soon as they take too many bytes or are too old
//! ```
//!
//! A log that is kept begins with a mark, a record that says so and names the kept log before it, and has all values
//! that its commits put. So an opening knows which logs are kept, and how long, without being told; and it sees a gap
//! where a power loss has undone the deletion of an older log only. Large values that its commits put are in files of
//! their own ([`KeptLarge`]), and so are the entries of ingests ([`ingests`]).

mod ingests;

use std::{collections::VecDeque, path::Path, sync::Arc, time::Duration};

use bifold_contract::{Corruption, Error, FileId, IoSource, LargeFileMeta, Result, SeqNo, planted};
use bifold_format::{
    frame::FILE_HEADER_BYTES,
    log::{Kept, LogRecord},
    names,
    walk::{Met, Walk},
};
use bifold_io::Dir;
use bifold_values::{logs::check_header, parts::large_files::LargeFile};

use self::ingests::KeptIngest;
pub(crate) use self::ingests::arrived_ingests;
use super::{
    kept_large::{self, KeptLarge},
    wal::LogFile,
};
use crate::{settings::retain_changes::RetainChanges, state::files::Files};

/// Enough of a log to see whether its changes are kept.
const HEAD_BYTES: usize = 512;

/// How long logs are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    bytes: u64,
    /// 0: however old.
    millis: u64,
}

/// The logs that are kept, oldest first, each with the time from which on nothing else needed it.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptLogs {
    /// `None`: none are.
    pub limits: Option<Limits>,
    /// The newest closed log with a mark and commits, needed for replay or not, and where its last commit ends; 0:
    /// there is none. The next mark names it.
    newest: (FileId, u64),
    /// The one before the oldest of them and where its last commit ends, if its mark is damaged: an opening does not
    /// keep it.
    unmarked: Option<(FileId, u64)>,
    logs: VecDeque<(LogFile, Duration)>,
    /// The files of ingests that these and later logs lead to.
    ingests: Vec<KeptIngest>,
    /// Those that only logs led to which are not kept any more.
    leaving: Vec<FileId>,
    /// Large values that these name, and logs that replay needs.
    pub large: KeptLarge,
}

/// What nobody needs any more: logs, and large values that only they have led to.
#[derive(Debug, Default)]
pub(crate) struct NotKept {
    pub logs: Vec<FileId>,
    pub large: Vec<Arc<LargeFile>>,
}

impl Limits {
    /// Those of the options; `None` to keep none.
    pub fn of(retain: &RetainChanges) -> Option<Self> {
        let millis = retain.age.map_or(0, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX).max(1));
        (retain.bytes > 0).then_some(Self { bytes: retain.bytes, millis })
    }
}

impl KeptLogs {
    /// What an opening finds: `below` are the logs that need not be replayed, `others` those that must, both ascending.
    /// Without `retain` logs are kept as they were before.
    ///
    /// # Errors
    /// I/O errors; a first record that is damaged although its checksum is right.
    pub fn find(
        dir: &Dir,
        (below, others): (&[FileId], &[FileId]),
        retain: Option<&RetainChanges>,
        now: Duration,
    ) -> Result<Self> {
        let needed = others.iter().map(|&id| Head::of(dir, id)).collect::<Result<Vec<_>>>()?;
        // A log without changes in between would be a gap. One that has nothing yet is none.
        let is_interrupted = needed.contains(&Head::Other);
        let (mut logs, mut as_before) = (VecDeque::new(), needed.iter().rev().find_map(Head::limits));
        let mut next_older = needed.iter().find_map(Head::previous);
        let linking = others.iter().zip(&needed).find(|(_, head)| head.previous().is_some());
        let (mut linked_by, mut large) = (linking.map(|(&id, _)| id), KeptLarge::default());
        let mut unmarked = None;
        for &id in below.iter().rev().take_while(|_| !is_interrupted) {
            let (limits, first, previous) = match Head::of(dir, id)? {
                Head::Kept { limits, first, previous } => (limits, first, previous),
                _ if next_older.is_some_and(|(next, _)| id == next) => {
                    unmarked = next_older;
                    break;
                }
                Head::Empty => continue,
                Head::Other => break,
            };
            match next_older {
                // It has no commits.
                Some((next, _)) if id > next => continue,
                Some((next, _)) if id < next && !planted!("kept_logs_with_gaps") => break,
                _ => {}
            }
            let named = linked_by.map_or_else(|| kept_large::walked(dir, id), |by| kept_large::listed(dir, by))?;
            if !kept_large::are_there(dir, &named)? {
                break;
            }
            large.find(id, named);
            linked_by = Some(id);
            let found = dir.len(&names::log(id))?.unwrap_or(0);
            let bytes = next_older.map_or(found, |(_, bytes)| bytes);
            next_older = Some(previous);
            as_before = as_before.or(Some(limits));
            logs.push_front((LogFile { id, bytes, first, has_changes: true }, now));
        }
        let limits = retain.map_or(as_before, Limits::of);
        if limits.is_none() || planted!("forget_kept_logs") {
            logs.clear();
            large.clear();
        }
        let newest = logs.back().map_or((0, 0), |(log, _)| (log.id, log.bytes));
        Ok(Self { limits, newest, unmarked, logs, ingests: Vec::new(), leaving: Vec::new(), large })
    }

    /// What the mark at the beginning of the log that comes next says; `None` if it has none.
    pub fn mark(&self) -> Option<Kept> {
        let Limits { bytes, millis } = self.limits?;
        let (previous, previous_end) = self.newest;
        Some(Kept { bytes, millis, previous, previous_end })
    }

    /// Learns of a closed log, whose last commit ends there. One without commits is not linked: recovery deletes it.
    pub fn close(&mut self, id: FileId, commits_end: u64) {
        if commits_end > 0 {
            self.newest = (id, commits_end);
        }
    }

    /// Learns of a log with commits that replay needs, which begins with `head`, and where its last commit ends. They
    /// come oldest first. Returns whether a change feed may read it.
    pub fn learn(&mut self, (id, commits_end): (FileId, u64), head: &Head) -> bool {
        let has_changes = matches!(head, Head::Kept { .. });
        self.newest = if has_changes { (id, commits_end) } else { (0, 0) };
        has_changes
    }

    /// The logs, oldest first.
    pub fn files(&self) -> impl Iterator<Item = LogFile> + '_ {
        self.logs.iter().map(|(log, _)| *log)
    }

    /// All that verification reads, each with where its last commit ends.
    pub fn to_verify(&self) -> impl Iterator<Item = (FileId, u64)> + '_ {
        self.unmarked.into_iter().chain(self.files().map(|log| (log.id, log.bytes)))
    }

    /// Bytes in them, in files of large values that only they need, and in the files of their ingests. Those from
    /// number `upto` on belong to later logs.
    fn bytes(&self, upto: SeqNo) -> u64 {
        let first = self.logs.front().map_or(upto, |(log, _)| log.first);
        let logs: u64 = self.files().map(|log| log.bytes + self.large.left_in(log.id)).sum();
        logs + self.ingest_bytes(first..upto)
    }

    /// Takes logs that nothing else needs from `now` on. Later ones begin with the number `upto`. Returns what to
    /// delete.
    pub fn take(&mut self, logs: Vec<LogFile>, upto: SeqNo, now: Duration) -> NotKept {
        let mut gone = Vec::new();
        for log in logs {
            self.logs.push_back((log, now));
            if self.limits.is_none() || !log.has_changes && !planted!("keep_before_a_gap") {
                // No feed can go beyond it.
                gone.extend(self.logs.drain(..).map(|(log, _)| log.id));
            }
        }
        let Limits { bytes, millis } = self.limits.unwrap_or(Limits { bytes: 0, millis: 0 });
        let age = Duration::from_millis(millis);
        let is_old = |since: Duration| millis > 0 && now.saturating_sub(since) > age;
        while let Some(&(oldest, since)) = self.logs.front()
            && (self.bytes(upto) > bytes || is_old(since))
        {
            gone.push(oldest.id);
            self.logs.pop_front();
        }
        let first = self.logs.front().map_or(upto, |(log, _)| log.first);
        self.forget_ingests(first);
        NotKept { large: self.large.forget(&gone), logs: gone }
    }
}

/// A log that ends at `found`, which does not have all of its `bytes`.
pub(crate) fn cut_short(file: &Path, found: u64, bytes: u64) -> Error {
    Corruption::new(found, "log", format!("{bytes} bytes, as the next log says"), "the end").of(file)
}

/// The logs that have changes, oldest first, as a process finds them that does not write them. Its state replays
/// `needed`.
///
/// # Errors
/// I/O errors; a first record that is damaged although its checksum is right.
pub(crate) fn of_reader(dir: &Dir, needed: &[LogFile]) -> Result<Vec<LogFile>> {
    let mut heads = Vec::new();
    for &log in needed {
        let has_commits = log.bytes > FILE_HEADER_BYTES as u64;
        if !has_commits && !planted!("readers_need_empty_logs") && dir.len(&names::log(log.id))?.is_none() {
            // An opening deletes such a log, whoever reads.
            continue;
        }
        let head = Head::of(dir, log.id)?;
        // The first record of one without commits may be half written.
        if has_commits || matches!(head, Head::Kept { .. }) {
            heads.push((log, head));
        }
    }
    let floor = needed.first().map_or(FileId::MAX, |log| log.id);
    let below: Vec<FileId> = Files::list(dir)?.logs.into_iter().filter(|&id| id < floor).collect();
    let ids: Vec<FileId> = heads.iter().map(|(log, _)| log.id).collect();
    let kept = KeptLogs::find(dir, (&below, &ids), None, Duration::ZERO)?;
    let without = heads.iter().rposition(|(_, head)| *head == Head::Other);
    let later = heads.iter().skip(without.map_or(0, |at| at + 1)).map(|(log, _)| *log);
    let kept = kept.files().filter(|_| !planted!("readers_overlook_kept_logs"));
    Ok(kept.chain(later).collect())
}

/// Reads a log that is kept from its first byte to its last one, at least to `commits_end`. Returns the large values
/// that it names.
///
/// # Errors
/// Damage, I/O errors.
pub(crate) fn verify(dir: &Dir, (id, commits_end): (FileId, u64)) -> Result<Vec<LargeFileMeta>> {
    let reader = dir.open(&names::log(id))?;
    let damage = |at, expected, found| Err(Corruption::new(at, "log record", expected, found).of(reader.path()));
    if reader.len() < commits_end {
        return Err(cut_short(reader.path(), reader.len(), commits_end));
    }
    if !check_header(&reader, id, reader.len())? {
        return Err(Corruption::new(0, "log header", "a whole one", "one that is cut short").of(reader.path()));
    }
    if !matches!(Head::of(dir, id)?, Head::Kept { .. }) {
        let expected = "a mark, which says that the log is kept for the change feed";
        return damage(FILE_HEADER_BYTES as u64, expected, "another record, or a damaged one");
    }
    let (mut walk, mut named) = (Walk::new(id, FILE_HEADER_BYTES as u64, reader.len()), Vec::new());
    loop {
        match walk.step(|buffer: &mut [u8], at: u64| reader.read_at(buffer, at, IoSource::Recovery))? {
            Met::Record(frame, _) => kept_large::note_named(&LogRecord::of(frame), &reader, &mut named)?,
            Met::End => return Ok(named),
            // It was synced to its end before anything stopped needing it.
            Met::Torn(at) => return damage(at, "a whole one", "one that is cut short"),
            Met::Damaged { offset, expected, found } => return damage(offset, expected, found),
        }
    }
}

/// What the first record of a log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// The log is kept within these limits. Its first operation has the number `first`, the kept log before it the
    /// number and length `previous`.
    Kept { limits: Limits, first: SeqNo, previous: (FileId, u64) },
    /// There is none: the process ended before it had written one, or a power loss has taken it.
    Empty,
    /// The log is not kept.
    Other,
}

impl Head {
    /// That of this log.
    pub fn of(dir: &Dir, id: FileId) -> Result<Self> {
        let reader = dir.open(&names::log(id))?;
        let mut walk = Walk::new(id, FILE_HEADER_BYTES as u64, reader.len()).by_chunks_of(HEAD_BYTES);
        let read = |buffer: &mut [u8], at: u64| reader.read_at(buffer, at, IoSource::Recovery);
        let record = match walk.step(read)? {
            Met::Record(frame, _) => LogRecord::of(frame),
            Met::End | Met::Torn(_) if !planted!("an_empty_log_is_a_gap") => return Ok(Self::Empty),
            _ => return Ok(Self::Other),
        };
        let kept = record.kept().map_err(|damage| damage.of(reader.path()))?;
        Ok(kept.map_or(Self::Other, |Kept { bytes, millis, previous, previous_end }| Self::Kept {
            limits: Limits { bytes, millis },
            first: record.first_seqno,
            previous: (previous, previous_end),
        }))
    }

    fn limits(&self) -> Option<Limits> {
        match self {
            Self::Kept { limits, .. } => Some(*limits),
            Self::Empty | Self::Other => None,
        }
    }

    fn previous(&self) -> Option<(FileId, u64)> {
        match self {
            Self::Kept { previous, .. } => Some(*previous),
            Self::Empty | Self::Other => None,
        }
    }
}
