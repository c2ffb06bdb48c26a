//! Range deletes, which no hash can place: those that some file of a group may not yet reflect.
//!
//! ```text
//! delete_range ─▶ appended to the file of range deletes ─▶ in memory, merged with its neighbours
//!
//!   file of a group      1 │ 5 │ 9 │ …     begun by commits: range deletes before its first record cover nothing in it
//!   copy made by GC                        those that the GC run knew cover nothing in it
//!
//!   floor = the least of these numbers over all files that exist ─▶ range deletes up to the floor are forgotten
//! ```
//!
//! **Which are forgotten.** GC copies no record that a range delete covers. So a range delete is needed until each
//! file older than it has been collected *and deleted*: after a crash a drained file is in use again, with everything
//! that GC left out. Copies keep their numbers, so what counts is not the numbers in a file but what the file
//! [regards](Ranges::regards). Nothing is known of a file of an earlier session: it holds on to all range deletes.
//!
//! **When there are many.** Where they take more than a share of the memory for filters, GC takes all groups that
//! hold on to them (`drain_upto`), a few at a time, whatever their garbage.
//!
//! **On disk** they stand in files of group 0. When these are much longer than what is needed of them, the needed
//! ones are copied to another file ([`rewrite`]) and the old files are drained. Only a sync keeps them then: no
//! snapshot reads them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use bifold_contract::{FileId, IoSource, Result, SeqNo, planted};
use bifold_format::value::{self, Stored, ValueKind};

use super::{HashKvState, NO_REGION};
use crate::{
    parts::{
        budget::{Budget, Taken},
        covered_ranges::CoveredRanges,
        scan::Scan,
        sync::LockExt,
        value_files::{COLLECTED, ValueFile, ValueFiles},
    },
    placement::{GcContext, GcOutcome},
};

/// The largest share of the memory for filters that range deletes of a keyspace take before GC takes the groups that
/// hold on to them.
const MEMORY_SHARE: u64 = 4;

/// They may always take this much.
const MEMORY_BYTES_MIN: u64 = 64 << 10;

/// Their files may have twice the bytes that are needed of them, and this many more.
const FILE_SLACK_BYTES: u64 = 64 << 10;

/// Bytes of a range-delete record without its two keys.
const RECORD_BYTES: u64 = 28;

/// The range deletes of a keyspace.
pub(super) struct Ranges {
    /// Shared with GC runs: adding one while GC runs makes a copy.
    known: Arc<CoveredRanges>,
    /// The number of the last one, forgotten or not.
    newest: SeqNo,
    /// Their files; the last one is appended to if it is open.
    files: Vec<Arc<ValueFile>>,
    is_open: bool,
    /// For each file of a group: range deletes up to this number cover nothing in it.
    regards: BTreeMap<FileId, SeqNo>,
    /// Range deletes up to this number are forgotten.
    forgotten_upto: SeqNo,
    /// GC takes groups that hold on to one up to this number.
    drain_upto: SeqNo,
    /// Their files are being copied.
    is_rewritten: bool,
    memory: Taken,
    memory_max: u64,
}

impl Ranges {
    pub fn new(filters: &Arc<Budget>) -> Self {
        Self {
            known: Arc::default(),
            newest: 0,
            files: Vec::new(),
            is_open: false,
            regards: BTreeMap::new(),
            forgotten_upto: 0,
            drain_upto: 0,
            is_rewritten: false,
            memory: filters.take_anyway(0),
            memory_max: (filters.bytes_max() / MEMORY_SHARE).max(MEMORY_BYTES_MIN),
        }
    }

    /// The range deletes known now.
    pub fn known(&self) -> &Arc<CoveredRanges> {
        &self.known
    }

    /// The number of the last one.
    pub fn newest(&self) -> SeqNo {
        self.newest
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Notes one and appends it to its file.
    pub fn append(
        &mut self,
        files: &ValueFiles,
        record: &mut Vec<u8>,
        (start, end): (&[u8], Option<&[u8]>),
        seqno: SeqNo,
    ) -> Result<()> {
        let file = match self.files.last() {
            Some(last) if self.is_open => Arc::clone(last),
            _ => {
                let file = files.begin(NO_REGION)?;
                self.files.push(Arc::clone(&file));
                self.is_open = true;
                file
            }
        };
        record.clear();
        encode(record, (file.id, file.len()), (start, end, seqno));
        files.append(&file, record)?;
        Arc::make_mut(&mut self.known).add(start, end, seqno);
        self.newest = self.newest.max(seqno);
        self.count();
        Ok(())
    }

    /// Notes that a value is put.
    pub fn put(&mut self, key: &[u8]) {
        if self.known.is_first_put(key) {
            Arc::make_mut(&mut self.known).put(key);
        }
    }

    /// Notes that a record with this number is appended to a file: if it is the first, nothing in it is older.
    pub fn note_first(&mut self, file: &ValueFile, seqno: SeqNo) {
        if file.is_empty() {
            self.regards.insert(file.id, seqno.saturating_sub(1));
        }
    }

    /// A GC run that knew all up to `upto` has written a file.
    pub fn note_copy(&mut self, file: FileId, upto: SeqNo) {
        self.regards.insert(file, upto);
    }

    /// An ingest with numbers from this one on has written a file with keys from `first` to `last`.
    pub fn note_ingest(&mut self, file: FileId, (first, last): (&[u8], &[u8]), seqno: SeqNo) {
        self.regards.insert(file, seqno.saturating_sub(1));
        if !self.known.is_empty() {
            Arc::make_mut(&mut self.known).put_within(first, last);
        }
    }

    /// Reads those of an earlier session from these files.
    pub fn restore(&mut self, files: Vec<Arc<ValueFile>>) -> Result<()> {
        let mut found = Vec::new();
        for file in &files {
            let mut scan = Scan::new(file, file.start(), file.len(), IoSource::Recovery);
            while let Some((record, _)) = scan.sound()? {
                found.push((record.key.to_vec(), record.range_end().map(<[u8]>::to_vec), record.seqno));
            }
        }
        self.newest = found.iter().map(|found| found.2).max().unwrap_or(0).max(self.newest);
        let found = found.iter().map(|(start, end, seqno)| (&**start, end.as_deref(), *seqno));
        Arc::make_mut(&mut self.known).restore(found);
        (self.files, self.is_open) = (files, false);
        self.count();
        Ok(())
    }

    /// Nothing is appended to the present files any more.
    pub fn close(&mut self) {
        self.is_open = false;
    }

    /// Files were deleted: forgets what only those did not reflect.
    pub fn forget(&mut self, files: &ValueFiles) {
        self.regards.retain(|&id, _| files.get(id).is_some());
        if !self.known.is_empty() {
            self.forgotten_upto = self.floor(files);
            if self.known.iter().any(|(_, _, seqno)| seqno <= self.forgotten_upto) {
                Arc::make_mut(&mut self.known).forget_upto(self.forgotten_upto);
                self.count();
            }
        }
    }

    /// All files of groups reflect the range deletes up to this number.
    fn floor(&self, files: &ValueFiles) -> SeqNo {
        let existing = if planted!("forget_ranges_early") { files.in_use() } else { files.all() };
        let grouped = existing.iter().filter(|file| file.description.group != NO_REGION);
        grouped.filter_map(|file| self.regarded_by(file)).min().unwrap_or(self.newest)
    }

    /// Range deletes up to this number cover nothing in a file; `None` for a file without records.
    fn regarded_by(&self, file: &ValueFile) -> Option<SeqNo> {
        (!file.is_empty()).then(|| self.regards.get(&file.id).copied().unwrap_or(0))
    }

    /// Whether GC must take the groups that hold on to them.
    pub fn are_many(&self) -> bool {
        self.known.bytes() > self.memory_max / 2 && self.forgotten_upto < self.drain_upto
    }

    /// Whether a file holds on to range deletes that are too many.
    pub fn are_drained_by(&self, file: &ValueFile) -> bool {
        self.regarded_by(file).is_some_and(|regarded| regarded < self.drain_upto)
    }

    /// Whether their files should be rewritten.
    pub fn is_rewrite_due(&self) -> bool {
        let bytes: u64 = self.files.iter().map(|file| file.len() - file.start()).sum();
        let needed = self.known.key_bytes() + self.known.len() as u64 * RECORD_BYTES;
        let slack = if self.known.is_empty() { 0 } else { FILE_SLACK_BYTES + needed };
        !self.is_rewritten && bytes > needed + slack
    }

    /// Whether any of their files has a number below this.
    pub fn begun_before(&self, before: FileId) -> bool {
        !self.is_rewritten && self.files.iter().any(|file| file.id < before)
    }

    /// Records their memory, and begins to drain when that is too much.
    fn count(&mut self) {
        self.memory.change_anyway(self.known.bytes());
        if self.known.bytes() > self.memory_max && self.forgotten_upto >= self.drain_upto {
            self.drain_upto = self.newest;
        }
    }
}

fn encode(out: &mut Vec<u8>, place: (FileId, u64), (start, end, seqno): (&[u8], Option<&[u8]>, SeqNo)) {
    let (kind, stored) = match end {
        Some(end) => (ValueKind::DeleteRange, Stored::plain(end)),
        None => (ValueKind::DeleteRangeUnbounded, Stored::NOTHING),
    };
    value::encode(out, place, kind, seqno, start, stored);
}

/// Rewrites the files of range deletes: those that are needed, merged with their neighbours. Commits continue in
/// another file.
pub(super) fn rewrite(files: &Arc<ValueFiles>, state: &Mutex<HashKvState>, gc: &dyn GcContext) -> Result<GcOutcome> {
    let Some(rewrite) = RangeRewrite::begin(state) else { return Ok(GcOutcome::freed(0)) };
    let Some(copied) = rewrite.copy(files)? else { return Ok(GcOutcome::freed(0)) };
    gc.hold_commits(&mut |_| {
        let is_source = |file: &ValueFile| rewrite.sources.iter().any(|source| source.id == file.id);
        state.hold().ranges.files.retain(|file| !is_source(file));
        // A sync that begins from now on covers the copy. No reader ever reads these files.
        files.mark_drained(rewrite.sources.iter().map(|source| source.id), 0);
        Ok(())
    })?;
    let bytes: u64 = rewrite.sources.iter().map(|file| file.len() - file.start()).sum();
    Ok(GcOutcome::freed(bytes.saturating_sub(copied)))
}

/// The files of range deletes, taken for a rewrite.
struct RangeRewrite<'a> {
    state: &'a Mutex<HashKvState>,
    sources: Vec<Arc<ValueFile>>,
    known: Arc<CoveredRanges>,
}

impl<'a> RangeRewrite<'a> {
    /// `None` when there are none, or another rewrite has them.
    fn begin(state: &'a Mutex<HashKvState>) -> Option<Self> {
        let ranges = &mut state.hold().ranges;
        if ranges.is_rewritten || ranges.files.is_empty() {
            return None;
        }
        ranges.is_rewritten = true;
        ranges.close();
        Some(Self { state, sources: ranges.files.clone(), known: Arc::clone(&ranges.known) })
    }

    /// Copies what is needed. Returns its bytes; `None` if that is not possible now.
    fn copy(&self, files: &ValueFiles) -> Result<Option<u64>> {
        let mut copied = 0;
        if !self.known.is_empty() {
            let mut copy = files.begin_copy(COLLECTED, NO_REGION)?;
            for range in self.known.iter() {
                copied += u64::from(copy.append_with(|out, place| encode(out, place, range))?.len);
            }
            // Nobody else knows the file, so nobody has sealed it.
            let Some(written) = files.finish_copies(vec![copy])? else { return Ok(None) };
            self.state.hold().ranges.files.splice(0..0, written);
        }
        Ok(Some(copied))
    }
}

impl Drop for RangeRewrite<'_> {
    fn drop(&mut self) {
        self.state.hold().ranges.is_rewritten = false;
    }
}
