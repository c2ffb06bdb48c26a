//! GC: what is live in a few files goes to new ones by age, and a forwarding file says where.
//!
//! ```text
//! sources ─▶ each value: left the index? moved before? overwritten above the last run? ─▶ copy, by age ─┬─▶ one sync
//!                                                                └─▶ rows ─▶ forwarding file ───────────┘
//! one edit: adds the copies and the forwarding file, counts rows of versions that left the index meanwhile
//!           └─ the sources are drained: deleted when no snapshot is older, and what overwrote their values is durable
//! ```
//!
//! Nothing is committed, so writers do not wait and the index does not grow. A value that is overwritten while it is
//! copied needs no care: its row leads to the copy, and the merge that drops the version finds both.

use std::{cell::RefCell, sync::Arc};

use bifold_contract::{Error, FileId, IoSource, Pointer, Result, SeqNo, ValueEdit, ValueFileMeta, planted};
use bifold_format::{
    forward::{self, Forwards, ROW_BYTES, Row},
    value::{KeptRecord, ValueKind, ValueRecord},
};

use super::{Shared, file_bytes};
use crate::{
    parts::{
        buffers::Held,
        dead_counts::DeadCounts,
        scan::Scan,
        value_files::{COLLECTED, Copy, FORWARDS, ValueFile},
    },
    placement::{GcClaim, GcContext, GcJob, GcOutcome},
};

/// Survivors go to files by age: written less than a fourth, once, and four times as many commits ago as there are
/// live values, or longer ago.
const AGES: usize = 4;

/// Files of survivors are distinguished from those of commits by this in the group of their description.
const SURVIVORS: u64 = 8;

/// The index is asked about so many records at once: their filters come from memory at the same time.
const BATCH_RECORDS: usize = 32;

/// Or about fewer, of so many bytes: they stay in the processor's caches until they are copied.
const BATCH_BYTES: usize = 64 << 10;

/// No source takes more outputs than this, and one for each age. The files may have been written when `file_bytes` was
/// much larger: rows name outputs by 16 bits, and all outputs are open at once.
const OUTPUTS: u64 = 4;

/// Moves what is live out of some files.
pub struct Move {
    pub(super) claim: GcClaim,
    /// Live bytes of each file, as far as known or estimated.
    pub(super) live_bytes: Vec<u64>,
    pub(super) shared: Arc<Shared>,
}

impl GcJob for Move {
    fn claim(&self) -> &GcClaim {
        &self.claim
    }

    fn run(&self, gc: &dyn GcContext) -> Result<GcOutcome> {
        let shared = &self.shared;
        if !shared.clock.knows_commits() {
            // The ages of what it copies are counted from the last commit.
            let Some(newest) = gc.relocate(&[], &mut |_| {})? else { return Ok(GcOutcome::freed(0)) };
            shared.clock.has_commits(newest);
        }
        let count = gc.fit(&self.live_bytes)?;
        let sources: Vec<_> = self.claim.files[..count].iter().filter_map(|&id| shared.files.get(id)).collect();
        let longest = sources.iter().map(|source| source.len()).max().unwrap_or(0);
        let mut copying = Copying::new(shared, longest);
        let mut emptied = Vec::new();
        for source in &sources {
            let found = copying.copy_file(source, gc);
            let found = found.inspect_err(|error| {
                let _is_left_out = shared.files.leave_out_source(source.id, error);
            })?;
            emptied.push((source.id, found));
        }
        let (tables, copied_bytes) = (std::mem::take(&mut copying.tables), copying.copied_bytes);
        let newest = copying.newest;
        let mut written = copying.finish(&tables)?;
        // Nothing is committed, but what overwrote the others is below or at this.
        let Some(last) = gc.relocate(&[], &mut |_| {})? else { return Ok(GcOutcome::freed(0)) };
        let last = if planted!("snapshots_need_no_source") { 0 } else { last };
        written.install((&emptied, tables), (newest, last), gc)?;
        let read_bytes: u64 = sources.iter().map(|source| source.len()).sum();
        let freed_bytes = read_bytes.saturating_sub(copied_bytes);
        Ok(GcOutcome::Collected { freed_bytes, installed_bytes: copied_bytes })
    }
}

/// Where the values of one source go.
struct Table {
    source: FileId,
    forwards: Forwards,
    /// Lengths of their records, by row.
    lengths: Vec<u32>,
}

impl Table {
    fn of(source: FileId, moved: &[(u32, Pointer)]) -> Result<Self> {
        let mut forwards = Forwards::default();
        for &(from, to) in moved {
            let known = forwards.outputs.iter().position(|&output| output == to.file);
            let output = known.unwrap_or_else(|| {
                forwards.outputs.push(to.file);
                forwards.outputs.len() - 1
            });
            let output = u16::try_from(output).map_err(|_| too_many_outputs())?;
            // Files of `streams` are no longer than `FILE_BYTES_MAX`.
            forwards.rows.push(Row { from, to: to.offset as u32, output });
        }
        Ok(Self { source, forwards, lengths: moved.iter().map(|(_, to)| to.len).collect() })
    }

    /// Where the copies of these versions are.
    fn copies_of<'t>(&'t self, offsets: &'t [u32]) -> impl Iterator<Item = Pointer> + 't {
        let Forwards { outputs, rows } = &self.forwards;
        let is_among = |(row, _): &(&Row, &u32)| offsets.binary_search(&row.from).is_ok();
        rows.iter().zip(&self.lengths).filter(is_among).map(|(row, &len)| Pointer {
            file: outputs[usize::from(row.output)],
            epoch: 0,
            offset: row.to.into(),
            len,
        })
    }
}

fn too_many_outputs() -> Error {
    Error::Panicked { what: "a GC run", message: "it has written more files than rows can name".into() }
}

/// Records of a source, until the index is asked about all of them at once.
struct Batch {
    records: Vec<(KeptRecord, Pointer)>,
    /// Their keys and values.
    bytes: Vec<u8>,
    held: Held,
}

impl Batch {
    fn add(&mut self, record: &ValueRecord<'_>, from: Pointer) {
        self.records.push((record.keep_in(&mut self.bytes), from));
        self.held.grow_to(self.bytes.capacity());
    }

    fn records(&self) -> Vec<(ValueRecord<'_>, Pointer)> {
        self.records.iter().map(|(kept, from)| (kept.record(&self.bytes), *from)).collect()
    }

    fn is_full(&self) -> bool {
        self.records.len() >= BATCH_RECORDS || self.bytes.len() >= BATCH_BYTES
    }

    fn clear(&mut self) {
        self.records.clear();
        self.bytes.clear();
    }
}

/// Values copied out of a few files.
struct Copying<'a> {
    shared: &'a Shared,
    outputs: Vec<Copy>,
    /// The file of each age that is not full.
    open: [Option<usize>; AGES],
    tables: Vec<Table>,
    copied_bytes: u64,
    /// The number of the newest version that was copied.
    newest: Option<SeqNo>,
    file_bytes: u64,
    /// As many commits ago as there are live values.
    round: u64,
    held: Held,
}

impl<'a> Copying<'a> {
    /// Copies from files of at most `longest` bytes.
    fn new(shared: &'a Shared, longest: u64) -> Self {
        Self {
            shared,
            outputs: Vec::new(),
            open: [None; AGES],
            tables: Vec::new(),
            copied_bytes: 0,
            newest: None,
            file_bytes: file_bytes(&shared.options.now(), &shared.files, &shared.clock).max(longest / OUTPUTS),
            round: shared.clock.values_in(shared.space().live_bytes).max(1),
            held: shared.files.buffers().hold(0, 0),
        }
    }

    /// Copies what is live in a file. Returns how many bytes of the rest had not left the index.
    fn copy_file(&mut self, source: &ValueFile, gc: &dyn GcContext) -> Result<u64> {
        let shared = self.shared;
        let dead = shared.dead.offsets(source.id);
        // After a crash only: see `open`.
        let has_moved = shared.forwarding.has_sources([source.id]);
        let mut scan = Scan::new(source, source.start(), source.len(), IoSource::Gc).within(shared.files.buffers());
        let (mut moved, mut asked_bytes) = (Vec::<(u32, Pointer)>::new(), 0);
        let mut batch = Batch { records: Vec::new(), bytes: Vec::new(), held: shared.files.buffers().hold(0, 0) };
        while let Some((record, len)) = scan.sound()? {
            let Ok(offset) = u32::try_from(record.offset) else { continue };
            let from = Pointer { file: source.id, epoch: 0, offset: offset.into(), len };
            let is_known_dead =
                dead.binary_search(&offset).is_ok() || (has_moved && shared.forwarding.next(from).is_some());
            if record.kind != ValueKind::Value || is_known_dead {
                continue;
            }
            asked_bytes += u64::from(len);
            let is_long = len as usize > BATCH_BYTES;
            // In order: rows are found by a search.
            if is_long || batch.is_full() {
                self.copy_current(&batch.records(), &mut moved, gc)?;
                batch.clear();
            }
            match is_long {
                true => self.copy_current(&[(record, from)], &mut moved, gc)?,
                false => batch.add(&record, from),
            }
        }
        self.copy_current(&batch.records(), &mut moved, gc)?;
        self.held.grow_by(moved.len() * (size_of::<Row>() + size_of::<(u32, Pointer)>()));
        let live_bytes: u64 = moved.iter().map(|(_, to)| u64::from(to.len)).sum();
        if !moved.is_empty() {
            self.tables.push(Table::of(source.id, &moved)?);
        }
        Ok(asked_bytes.saturating_sub(live_bytes))
    }

    /// Copies those of these records that the index has as the newest of their keys.
    fn copy_current(
        &mut self,
        records: &[(ValueRecord<'_>, Pointer)],
        moved: &mut Vec<(u32, Pointer)>,
        gc: &dyn GcContext,
    ) -> Result<()> {
        let asked: Vec<(&[u8], SeqNo)> = records.iter().map(|(record, _)| (record.key, record.seqno)).collect();
        for ((record, from), above) in records.iter().zip(gc.look_above(&asked)?) {
            if self.shared.is_current(record.key, *from, above, gc)? {
                let to = self.copy(record)?;
                debug_assert_eq!(to.len, from.len, "a copy is as long as its original");
                // Files of `streams` are no longer than `FILE_BYTES_MAX`.
                moved.push((from.offset as u32, to));
            }
        }
        Ok(())
    }

    fn copy(&mut self, record: &ValueRecord<'_>) -> Result<Pointer> {
        let age = match self.shared.clock.age_of(record.seqno) {
            age if age < self.round / 4 => 0,
            age if age < self.round => 1,
            age if age < self.round.saturating_mul(4) => 2,
            _ => 3,
        };
        let is_full = |&nth: &usize| self.outputs[nth].end() >= self.file_bytes;
        let nth = match self.open[age].filter(|nth| !is_full(nth)) {
            Some(nth) => nth,
            None => {
                self.outputs.push(self.shared.files.begin_copy(COLLECTED, SURVIVORS + age as u64)?);
                *self.open[age].insert(self.outputs.len() - 1)
            }
        };
        let to = self.outputs[nth].append(record)?;
        self.copied_bytes += u64::from(to.len);
        self.newest = self.newest.max(Some(record.seqno));
        Ok(to)
    }

    /// Makes the copies durable, and the forwarding file.
    fn finish(self, tables: &[Table]) -> Result<Written<'a>> {
        let (files, mut outputs) = (&self.shared.files, self.outputs);
        if !tables.is_empty() {
            let mut file = files.begin_copy(FORWARDS, 0)?;
            for Table { source, forwards, .. } in tables {
                file.append_with(|out, place| forward::encode(out, place, *source, forwards))?;
            }
            outputs.push(file);
        }
        let added = files.finish_all_alone(outputs)?;
        added.iter().for_each(|meta| self.shared.clock.sealed(meta.id));
        let unit = added.last().and_then(|unit| files.get(unit.id));
        Ok(Written { shared: self.shared, added, unit })
    }
}

/// Files that GC has written. Once an edit names them, only the manifest knows whether they are needed. Until then
/// they are not.
struct Written<'a> {
    shared: &'a Shared,
    added: Vec<ValueFileMeta>,
    unit: Option<Arc<ValueFile>>,
}

impl Written<'_> {
    fn install(
        &mut self,
        (emptied, tables): (&[(FileId, u64)], Vec<Table>),
        (newest, last): (Option<SeqNo>, SeqNo),
        gc: &dyn GcContext,
    ) -> Result<()> {
        let shared = self.shared;
        let empty = || {
            emptied.iter().for_each(|&(source, found_bytes)| shared.emptied(source, found_bytes));
            shared.files.mark_drained(emptied.iter().map(|&(source, _)| source), last);
        };
        let Some(unit) = self.unit.clone() else {
            empty();
            return Ok(());
        };
        let rows: usize = tables.iter().map(|table| table.lengths.len()).sum();
        let tables = RefCell::new(tables);
        let mut edit = || {
            let mut garbage = DeadCounts::default();
            let mut left = 0;
            for table in &*tables.borrow() {
                // No later edit says that these versions leave the index.
                let gone = shared.dead.offsets(table.source);
                let gone = if planted!("forget_left_meanwhile") { &[] } else { &gone[..] };
                let copies: Vec<Pointer> = table.copies_of(gone).collect();
                left += copies.len();
                copies.iter().for_each(|_| garbage.add_bytes(unit.id, ROW_BYTES));
                shared.count_dead(&copies, &mut garbage);
                // A source may be there again after a power loss, and no row need be left then that says so.
                let stayed = table.lengths.len() - copies.len();
                if stayed > 0 && !planted!("moved_records_stay_live") {
                    let moved_bytes: u64 = table.lengths.iter().map(|&len| u64::from(len)).sum();
                    let gone_bytes: u64 = copies.iter().map(|copy| u64::from(copy.len)).sum();
                    garbage.add_all(table.source, moved_bytes - gone_bytes, stayed as u64);
                }
            }
            if left == rows {
                tables.borrow_mut().clear();
            }
            let is_needed = |meta: &ValueFileMeta| left < rows || meta.id != unit.id;
            let added = self.added.extract_if(.., |meta| is_needed(meta)).collect();
            let mut garbage = garbage.into_garbage();
            garbage.retain(|&(file, ..)| left < rows || file != unit.id);
            ValueEdit { added, garbage, ..ValueEdit::default() }
        };
        let mut in_force = || {
            let tables = tables.take();
            if !tables.is_empty() {
                let of_sources = tables.into_iter().map(|table| (table.source, table.forwards)).collect();
                let values = shared.clock.values_in(shared.space().live_bytes);
                shared.forwarding.add(&unit, of_sources, shared.files.filters(), values);
                shared.followed.count_values(values);
            }
            empty();
        };
        gc.install(newest, &mut edit, &mut in_force)
    }
}

impl Drop for Written<'_> {
    fn drop(&mut self) {
        self.added.iter().for_each(|meta| self.shared.files.remove(meta.id));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bifold_format::{
        compression::{Compression, Compressor},
        value,
    };
    use bifold_io::memory::MemoryFs;

    use super::{super::Streams, *};
    use crate::{
        parts::value_files::scratch::value_files,
        placement::{Moved, Placement, Scene, SpacePressure},
        placements::{SMALL, Settings},
    };

    /// An index with one version of each key. Notes the files that GC adds.
    struct AgedIndex {
        places: BTreeMap<Vec<u8>, Pointer>,
        last_commit: SeqNo,
        added: RefCell<Vec<ValueFileMeta>>,
    }

    impl Scene for AgedIndex {
        fn look_up(&self, key: &[u8]) -> Result<Option<Pointer>> {
            Ok(self.places.get(key).copied())
        }

        fn relocate(&self, _moves: &[Moved], _refused: &mut dyn FnMut(&Moved)) -> Result<Option<SeqNo>> {
            Ok(Some(self.last_commit))
        }

        fn install(&self, edit: &mut dyn FnMut() -> ValueEdit, in_force: &mut dyn FnMut()) -> Result<()> {
            self.added.borrow_mut().extend(edit().added);
            in_force();
            Ok(())
        }
    }

    #[test]
    fn ages_are_known_before_the_first_commit_of_a_session() {
        let files = Arc::new(value_files(&MemoryFs::new(), 100));
        let file = files.begin(0).unwrap();
        let mut index = AgedIndex { places: BTreeMap::new(), last_commit: 1000, added: RefCell::default() };
        let mut plain = Compressor::new(Compression::None);
        for seqno in 1..=8 {
            let (key, mut record) = ([seqno as u8], Vec::new());
            value::encode_value(&mut record, (file.id, file.len()), seqno, &key, &[1; 1000], &mut plain);
            index.places.insert(key.to_vec(), files.append(&file, &record).unwrap());
        }
        let streams = Streams::open(&files, &Settings::new(SMALL)).unwrap();
        let pressure = SpacePressure { all_before: Some(file.id + 1), ..SpacePressure::of_target(1.5) };
        streams.pick(&pressure, &[]).unwrap().run(&index).unwrap();
        let mut added = index.added.into_inner();
        added.retain(|meta| meta.class == COLLECTED);
        let is_oldest = |meta: &ValueFileMeta| meta.group == SURVIVORS + AGES as u64 - 1;
        assert!(!added.is_empty() && added.iter().all(is_oldest), "1000 commits ago, among 8 values: {added:?}");
    }
}
