//! Flushes separate medium values, merges move some of them (DiffKV §3.3). Both write one sorted group.
//!
//! ```text
//! flush   inline value, not small ─────────────────▶ new vTables, level 0 ─▶ pointer
//! merge   pointer to a vTable ─┬─ its values move ─▶ new vTables of the output's level ─▶ pointer; old record dead
//!                              └─ they stay
//!         dropped entries ─▶ the record is dead
//! end     vTables durable, counters and tags of the old ones: one edit with the tables
//! ```
//!
//! The stream is in key order, so what is written is sorted, and each vTable is read from front to back.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bifold_contract::{
    Entry, FileId, IoSource, Kind, Pointer, Result, Rewriter, SeqNo, ValueEdit, ValueFileMeta, planted,
};
use bifold_format::{
    compression::Compressor,
    pointer,
    value::{self, ValueKind},
};
use bifold_io::Together;

use super::{OrderedShared, Rules, order};
use crate::{
    parts::{
        dead_counts::DeadCounts,
        hash_map::HashMap,
        scan::Scan,
        value_files::{Copy, Extent, Finished, ORDERED, OVERLAPS, ValueFile},
    },
    placement::{Kept, LevelOrder, Order, RewriteJob},
    placements::ValueOptions,
};

/// What merges have done since the database was opened, in bytes of records but for the number of merges.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// Merges that moved values because keys went to a deeper level.
    level_merges: AtomicU64,
    /// Written by flushes.
    separated: AtomicU64,
    /// Moved because keys went to a deeper level.
    merged: AtomicU64,
    /// Moved because files overlapped too many others.
    untangled: AtomicU64,
    /// Moved out of files with too much garbage.
    collected: AtomicU64,
}

/// Why the values of a file move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Level,
    Overlap,
    Garbage,
}

/// A file that pointers of the stream lead to.
struct MergeSource {
    file: Arc<ValueFile>,
    moves: Option<Why>,
    /// Reads it from front to back; present when something moves.
    scan: Option<Scan>,
    /// An entry stays with its value here.
    is_kept: bool,
}

/// The vTable that is being written.
struct MergeOutput {
    copy: Copy,
    entries: u64,
    smallest: Box<[u8]>,
    /// The last key so far.
    largest: Vec<u8>,
}

/// One rewrite.
pub(super) struct Merge {
    shared: Arc<OrderedShared>,
    /// The options that were in force when it began.
    options: ValueOptions,
    rules: Rules,
    job: RewriteJob,
    source: IoSource,
    /// It writes for an ingest: nobody finds its files before they are in force.
    is_ingest: bool,
    /// Inline values are separated if they are not small.
    parts: bool,
    compressor: Compressor,
    sources: HashMap<FileId, Option<MergeSource>>,
    group: Option<u64>,
    output: Option<MergeOutput>,
    done: Vec<ValueFileMeta>,
    /// Those of them that no sync has covered.
    unsynced: Together<Finished>,
    dead: DeadCounts,
    /// The part of these bytes that dropped entries led to.
    dropped: u64,
    /// It has moved a value because keys went to a deeper level.
    is_of_level: bool,
}

impl Merge {
    pub fn new(shared: &Arc<OrderedShared>, job: &RewriteJob) -> Self {
        let (options, rules) = (**shared.options.now(), shared.rules());
        Self {
            shared: Arc::clone(shared),
            options,
            rules,
            job: job.clone(),
            parts: job.to >= shared.separated_from,
            source: if job.from.is_some() { IoSource::Compaction } else { IoSource::Flush },
            is_ingest: false,
            compressor: Compressor::new(options.compression),
            sources: HashMap::default(),
            group: None,
            output: None,
            done: Vec::new(),
            unsynced: Together::default(),
            dead: DeadCounts::default(),
            dropped: 0,
            is_of_level: false,
        }
    }

    pub fn of_ingest(shared: &Arc<OrderedShared>, job: &RewriteJob) -> Self {
        let mut merge = Self::new(shared, job);
        merge.is_ingest = true;
        if planted!("ingest_counts_early") {
            // Nor as what a flush writes, which does not count early either.
            (merge.is_ingest, merge.source) = (false, IoSource::Compaction);
        }
        merge
    }

    /// Why the values of `file` take part in this merge, if they do.
    fn why(&self, file: &ValueFile) -> Option<Why> {
        let RewriteJob { from, to, deepest, ref moving, .. } = self.job;
        let (_, extent) = (from?, file.extent()?);
        let policy = self.rules.merge;
        // A file with damage stays where it is, with all its values; the index still points there.
        if self.shared.files.is_left_out(file.id) && !planted!("move_what_is_left_out") {
            None
        } else if policy.moves(extent.level, to, deepest) {
            Some(Why::Level)
        } else if moving.contains(&file.id) {
            Some(Why::Garbage)
        } else if !policy.honours_tags(to, deepest) {
            None
        } else if self.shared.has_garbage_tag(file) {
            Some(Why::Garbage)
        } else {
            order::has_overlap_tag(file).then_some(Why::Overlap)
        }
    }

    /// The file that `pointer` leads to, if its values are sorted.
    fn source_of(&mut self, id: FileId) -> Option<&mut MergeSource> {
        if !self.sources.contains_key(&id) {
            let file = self.shared.files.get(id).filter(|file| file.description.class == ORDERED);
            let source = file.map(|file| MergeSource { moves: self.why(&file), file, scan: None, is_kept: false });
            self.sources.insert(id, source);
        }
        self.sources.get_mut(&id)?.as_mut()
    }

    /// Moves the value at `from`, if it must move.
    fn follow(&mut self, key: &[u8], from: Pointer) -> Result<Kept> {
        let Some(source) = self.source_of(from.file) else { return Ok(Kept::Unchanged) };
        let Some(why) = source.moves else {
            source.is_kept = true;
            return Ok(Kept::Unchanged);
        };
        if source.scan.is_none() {
            self.close_scans_before(key);
        }
        self.make_room(key)?;
        let Some(Some(MergeSource { file, scan, .. })) = self.sources.get_mut(&from.file) else {
            return Ok(Kept::Unchanged);
        };
        let buffers = self.shared.files.buffers();
        let scan =
            scan.get_or_insert_with(|| Scan::new(file, from.offset, file.len(), IoSource::Compaction).within(buffers));
        let record = record_at(scan, file, from, key)?;
        let output = self.output.as_mut().unwrap_or_else(|| unreachable!("made above"));
        let to = output.copy.append(&record)?;
        output.note(key);
        if !planted!("forget_moved") {
            self.dead.add(from);
        }
        if planted!("count_moved_twice") {
            self.dead.add(from);
        }
        self.is_of_level |= why == Why::Level;
        self.shared.work.of(why).fetch_add(u64::from(to.len), Relaxed);
        Ok(Kept::Moved(to))
    }

    /// Separates an inline value.
    fn separate(&mut self, key: &[u8], seqno: SeqNo, value: &[u8]) -> Result<Kept> {
        self.make_room(key)?;
        let output = self.output.as_mut().unwrap_or_else(|| unreachable!("made above"));
        let compressor = &mut self.compressor;
        let encode = |out: &mut Vec<u8>, place| value::encode_value(out, place, seqno, key, value, compressor);
        let to = output.copy.append_with(encode)?;
        output.note(key);
        self.shared.work.separated.fetch_add(u64::from(to.len), Relaxed);
        Ok(Kept::Moved(to))
    }

    /// Ensures that there is a vTable with room. A full one ends before the first version of a key.
    fn make_room(&mut self, key: &[u8]) -> Result<()> {
        let full = |output: &mut MergeOutput| output.copy.end() >= self.options.file_bytes && *output.largest != *key;
        if let Some(output) = self.output.take_if(full) {
            self.finish_output(output)?;
        }
        if self.output.is_none() {
            let group = *self.group.get_or_insert_with(|| self.shared.files.new_number());
            let copy = self.shared.files.begin_copy_for(ORDERED, group, self.source)?;
            self.output = Some(MergeOutput { copy, entries: 0, smallest: key.into(), largest: Vec::new() });
        }
        Ok(())
    }

    fn finish_output(&mut self, output: MergeOutput) -> Result<()> {
        let MergeOutput { copy, entries, smallest, largest } = output;
        let level = if self.job.from.is_some() { self.job.to } else { 0 };
        let extent = Extent { level, entries, smallest, largest: largest.into() };
        let files = &self.shared.files;
        let (meta, finished) = match self.is_ingest {
            true => files.finish_hidden(copy, Some(extent))?,
            false => files.finish_unsynced(copy, Some(extent))?,
        };
        self.done.push(meta);
        self.unsynced.push(finished);
        if self.unsynced.is_full() { self.sync() } else { Ok(()) }
    }

    /// Makes the finished vTables durable, without their names.
    fn sync(&mut self) -> Result<()> {
        self.shared.files.sync_finished(&self.unsynced.take())
    }

    /// Frees the read-ahead of files that are at their end.
    fn close_scans_before(&mut self, key: &[u8]) {
        for source in self.sources.values_mut().flatten() {
            if source.file.extent().is_some_and(|extent| *extent.largest < *key) {
                source.scan = None;
            }
        }
    }

    /// The files of the output's level that overlap too many others, among those that this merge involves (§3.4,
    /// "Scan-optimized merge").
    fn overlapping(&self) -> Vec<(FileId, u32)> {
        if self.rules.merge != order::MergePolicy::ScanOptimised || self.job.from.is_none() {
            return Vec::new();
        }
        let is_there =
            |source: &&MergeSource| source.is_kept && source.file.extent().is_some_and(|e| e.level == self.job.to);
        let kept = self.sources.values().flatten().filter(is_there).map(|source| &source.file);
        let mut ranges: Vec<(FileId, order::Range<'_>)> =
            kept.filter_map(|file| Some((file.id, order::range_of(file)?))).collect();
        ranges.extend(self.done.iter().map(|meta| (meta.id, (&*meta.smallest, &*meta.largest))));
        ranges.sort_unstable_by_key(|&(id, _)| id);
        let only_ranges: Vec<order::Range<'_>> = ranges.iter().map(|&(_, range)| range).collect();
        let tags = order::to_tag(&only_ranges, self.rules.max_sorted_run);
        ranges.iter().zip(tags).filter(|&(_, tag)| tag).map(|(&(id, _), _)| (id, OVERLAPS)).collect()
    }
}

impl MergeOutput {
    fn note(&mut self, key: &[u8]) {
        self.entries += 1;
        self.largest.clear();
        self.largest.extend_from_slice(key);
    }
}

impl Work {
    /// For statistics.
    pub fn with(&self, levels: Vec<LevelOrder>) -> Order {
        Order {
            levels,
            level_merges: self.level_merges.load(Relaxed),
            separated_bytes: self.separated.load(Relaxed),
            merged_bytes: self.merged.load(Relaxed),
            untangled_bytes: self.untangled.load(Relaxed),
            gc_bytes: self.collected.load(Relaxed),
        }
    }

    fn of(&self, why: Why) -> &AtomicU64 {
        match why {
            Why::Level => &self.merged,
            Why::Overlap => &self.untangled,
            Why::Garbage => &self.collected,
        }
    }
}

/// The record at `from`, which must be the value of `key`.
fn record_at<'s>(scan: &'s mut Scan, file: &ValueFile, from: Pointer, key: &[u8]) -> Result<value::ValueRecord<'s>> {
    let wrong = |found: String| {
        let expected = format!("the value of `{}`, {} bytes", key.escape_ascii(), from.len);
        bifold_contract::Corruption::new(from.offset, "value record", expected, found).of(file.reader().path())
    };
    if !scan.skip_to(from.offset) {
        return Err(wrong("a place that the merge has passed".into()));
    }
    match scan.sound()? {
        Some((record, len)) if record.key == key && record.kind == ValueKind::Value && len == from.len => Ok(record),
        Some((record, len)) => Err(wrong(format!("{:?} of `{}`, {len} bytes", record.kind, record.key.escape_ascii()))),
        None => Err(wrong("the end of the file".into())),
    }
}

impl Rewriter for Merge {
    fn keep(&mut self, entry: &Entry<'_>) -> Result<Kept> {
        match entry.kind {
            Kind::Inline if self.parts && entry.payload.len() >= self.options.separates_from() => {
                self.separate(entry.key, entry.seqno, entry.payload)
            }
            Kind::Pointer => match pointer::decode(entry.payload) {
                Ok(from) => self.follow(entry.key, from),
                // Readers of the value get the error.
                Err(_) => Ok(Kept::Unchanged),
            },
            // Nobody passes an entry with its instant.
            Kind::Inline | Kind::Delete | Kind::InlineUntil | Kind::PointerUntil | Kind::Operand | Kind::Large => {
                Ok(Kept::Unchanged)
            }
        }
    }

    fn discard(&mut self, entry: &Entry<'_>, _newer: SeqNo) -> Result<()> {
        self.dropped += self.dead.drop_entry(entry);
        Ok(())
    }

    /// A vTable ends with the table if it is half full: then a later merge of either table drains whole files. A
    /// smaller one goes on, because each file costs a sync, however small it is.
    fn end_table(&mut self) -> Result<()> {
        let half_bytes = if planted!("cut_with_each_table") { 0 } else { self.options.file_bytes / 2 };
        match self.output.take_if(|output| output.copy.end() >= half_bytes) {
            Some(output) => self.finish_output(output),
            None => Ok(()),
        }
    }

    fn finish(mut self: Box<Self>) -> Result<ValueEdit> {
        if let Some(output) = self.output.take() {
            self.finish_output(output)?;
        }
        if !planted!("leave_last_values_unsynced") {
            self.sync()?;
        }
        let tagged = self.overlapping();
        let added = std::mem::take(&mut self.done);
        let garbage = std::mem::take(&mut self.dead).into_garbage();
        self.shared.stale.subtract(self.dropped);
        self.shared.work.level_merges.fetch_add(u64::from(self.is_of_level), Relaxed);
        Ok(ValueEdit { added, garbage, tagged, ..ValueEdit::default() })
    }
}

impl Drop for Merge {
    /// An abandoned rewrite leaves nothing.
    fn drop(&mut self) {
        self.done.iter().for_each(|meta| self.shared.files.remove(meta.id));
    }
}
