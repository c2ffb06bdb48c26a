//! `novkv`: compaction reports what is dead, so GC neither looks keys up in the index nor writes to it (NovKV, MSST
//! 2020).
//!
//! ```text
//! put ─▶ VTable: values in the order of arrival ◀── pointer: file number, epoch 0, offset, length
//!           │
//!           │  flush, compaction drop versions ─▶ drop-keys, durable before the rewrite is installed       (§III-B)
//!           ▼
//! GC: values not dropped, sorted by key ─▶ SVTable: epoch + 1, the same file numbers                        (§III-C)
//!           │
//!           ▼
//! get: pointer of this epoch ─▶ its record
//!      an older one ─▶ repaired handle, or searched by key in the SVTable and the handle kept ─▶ its record (§III-D)
//! ```
//!
//! | paper | here |
//! |---|---|
//! | VTable, current VTable (§III-A.1) | a value file of [`ValueLog`] |
//! | SVTable (§III-A.2) | [`SortedTable`]; several numbers may lead to one, so that small ones are merged (ours) |
//! | VMap, SVMMap | [`ValueFiles`], `NovKvShared::tables` |
//! | DropKeys, DropBlocks (§III-B) | [`drop_keys`](crate::parts::drop_keys): numbers of versions, in their own files |
//! | *gc_threshold*, *valid_rate* (§III-C) | `victims`; begun when space asks for it (ours) |
//! | selective handle updating (§III-D) | [`Handles`]; the next compaction that finds a stale one writes it (ours) |
//!
//! **What is exact.** Each version has one entry in the index and is dropped once. So the records of a file that no
//! drop-key names are those that the index still has, whatever snapshots there are, at any time and after any crash.

pub mod options;
mod rebuild;
#[cfg(test)]
mod tests;
mod victims;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::placement::{
    self, Explained, GcClaim, GcJob, Located, Placement, Profile, RewriteJob, SpacePressure, StaleReads, ValueSpace,
    WriteOp,
};
use arc_swap::ArcSwap;
use bifold_contract::{Entry, FileId, IoSource, Kind, Pointer, Result, Rewriter, SeqNo, Value, ValueEdit, planted};
use bifold_format::{pointer, value};

use self::victims::Job;
use super::Settings;
use crate::parts::{
    drop_keys::{DropFile, DropKeys},
    handles::Handles,
    hash_map::HashMap,
    ingested::{IngestedFiles, IngestedLog},
    sorted_table::{Indexes, SortedTable, Sought},
    stale_estimate::StaleEstimate,
    sync::LockExt,
    value_files::{DROPS, SORTED, Stretches, ValueFiles},
    value_log::ValueLog,
};

/// Compaction writes drop-keys; GC reads them.
pub struct NovKv {
    options: Settings,
    value_log: ValueLog,
    shared: Arc<NovKvShared>,
}

/// What readers, rewriters and GC share.
struct NovKvShared {
    files: Arc<ValueFiles>,
    tables: ArcSwap<Tables>,
    drops: Mutex<DropKeys>,
    handles: Handles,
    indexes: Indexes,
    stale: StaleEstimate,
    /// Bytes of the tables of the index when GC was last chosen.
    index_bytes: AtomicU64,
    repaired_reads: AtomicU64,
    searched_reads: AtomicU64,
}

/// The installed sorted tables.
#[derive(Clone, Default)]
struct Tables {
    /// By the file numbers that lead to them. A number that is not here belongs to a file of the value log.
    by_number: HashMap<FileId, Arc<SortedTable>>,
    /// By their files.
    by_file: HashMap<FileId, Arc<SortedTable>>,
}

impl Tables {
    fn add(&mut self, table: Arc<SortedTable>) {
        self.by_number.extend(table.properties.aliases.iter().map(|&(number, _)| (number, Arc::clone(&table))));
        self.by_file.insert(table.file.id, table);
    }

    /// The table that a file number leads to.
    fn get(&self, number: FileId) -> Option<&Arc<SortedTable>> {
        self.by_number.get(&number)
    }

    /// The place that a pointer names, unless it is out of date.
    fn place_of(&self, pointer: Pointer) -> Option<Pointer> {
        match self.get(pointer.file) {
            None => Some(pointer),
            Some(table) if table.properties.epoch == pointer.epoch => Some(Pointer { file: table.file.id, ..pointer }),
            Some(_) => None,
        }
    }
}

impl NovKv {
    /// Opens it with the existing files.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn open(files: &Arc<ValueFiles>, options: &Settings) -> Result<Self> {
        let budget = Arc::clone(files.filters());
        let recorded = files.in_use().into_iter().filter(|file| file.is_recorded());
        let (sorted, other): (Vec<_>, Vec<_>) = recorded.partition(|file| file.description.class == SORTED);
        let mut tables = Tables::default();
        for file in sorted {
            tables.add(Arc::new(SortedTable::open(file)?));
        }
        let is_regarded = |about, drop_file| match tables.get(about) {
            Some(_) if planted!("forget_regarded") => false,
            Some(table) => table.properties.regarded.contains(&drop_file),
            None => files.get(about).is_none_or(|file| !file.is_known()),
        };
        let drop_files: Vec<_> = other.into_iter().filter(|file| file.description.class == DROPS).collect();
        let leave_out = |drop_file, why: &_| {
            let _is_new = files.leave_out(drop_file, why);
        };
        let drops = Mutex::new(DropKeys::open(&drop_files, is_regarded, leave_out)?);
        let shared = NovKvShared {
            tables: ArcSwap::from_pointee(tables),
            drops,
            handles: Handles::new(Arc::clone(&budget)),
            indexes: Indexes::new(budget),
            stale: StaleEstimate::unknown(),
            index_bytes: AtomicU64::new(0),
            repaired_reads: AtomicU64::new(0),
            searched_reads: AtomicU64::new(0),
            files: Arc::clone(files),
        };
        let value_log = ValueLog::new(Arc::clone(files), options);
        Ok(Self { options: options.clone(), value_log, shared: Arc::new(shared) })
    }
}

impl NovKvShared {
    /// The value of a version in the sorted table that its file number leads to.
    fn read_sorted(
        &self,
        table: &Arc<SortedTable>,
        (key, seqno): (&[u8], SeqNo),
        pointer: Pointer,
        source: IoSource,
    ) -> Result<Option<Value>> {
        let epoch = table.properties.epoch;
        if pointer.epoch == epoch {
            let bytes = table.file.read_bytes(pointer, source, self.files.way(source))?;
            let value = value::read_value(bytes, table.file.id, pointer.offset, key);
            return value.map(Some).map_err(|damage| damage.of(table.file.reader().path()));
        }
        if let Some(offset) = self.handles.get(pointer, epoch)
            && let Some(value) = self.read_repaired(table, (key, seqno), Pointer { offset, ..pointer }, source)?
        {
            self.repaired_reads.fetch_add(1, Relaxed);
            return Ok(Some(value));
        }
        self.searched_reads.fetch_add(1, Relaxed);
        let found = table.search(Sought { key, seqno, len: pointer.len }, &self.indexes, source)?;
        Ok(found.map(|(offset, value)| {
            self.handles.keep(pointer, epoch, offset);
            value
        }))
    }

    /// The value at a place that may belong to another version.
    fn read_repaired(
        &self,
        table: &SortedTable,
        (key, seqno): (&[u8], SeqNo),
        at: Pointer,
        source: IoSource,
    ) -> Result<Option<Value>> {
        let found = table.read_at(key, at, source, self.files.way(source))?;
        Ok(found.filter(|(written, _)| is_version(*written, seqno)).map(|(_, value)| value))
    }

    /// A better pointer for a stale one, if it is known. Of the record there only the header is read: it says which
    /// version that is, and whoever reads the value checks the rest. If the table cannot be read, the stale pointer
    /// stays, and GC leaves the file out.
    fn repaired(&self, seqno: SeqNo, stale: Pointer) -> Result<Option<Pointer>> {
        let tables = self.tables.load();
        let Some(table) = tables.get(stale.file) else { return Ok(None) };
        let epoch = table.properties.epoch;
        let known = if stale.epoch == epoch { None } else { self.handles.get(stale, epoch) };
        let Some(at) = known.map(|offset| Pointer { epoch, offset, ..stale }) else { return Ok(None) };
        match table.number_at(at, IoSource::Compaction) {
            Err(error) if error.is_unreadable() => {
                let _is_new = self.files.leave_out(table.file.id, &error);
                Ok(None)
            }
            found => Ok(found?.filter(|&written| is_version(written, seqno)).map(|_| at)),
        }
    }
}

/// Whether a handle leads to the version that is asked for: it may lead to another one.
fn is_version(written: SeqNo, asked: SeqNo) -> bool {
    written == asked || planted!("trust_handles")
}

impl Placement for NovKv {
    fn profile(&self) -> Profile {
        let separates_from = Some(self.options.now().separates_from());
        Profile {
            name: "novkv",
            separates_from,
            hears_of_short_values: false,
            separates_at_rewrite: false,
            learns_from_rewrites: separates_from,
            finds_overwritten: false,
            reads_by_address: false,
            copies_percent: Profile::COPIES_PERCENT,
        }
    }

    fn write(&self, op: WriteOp<'_>, seqno: SeqNo) -> Result<Option<Pointer>> {
        match op {
            WriteOp::Put { key, value } if value.len() >= self.options.now().separates_from() => {
                self.value_log.append(seqno, key, value).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn rewriter(&self, _job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
        let is_any_stale = !self.shared.tables.load().by_file.is_empty();
        let shared = Arc::clone(&self.shared);
        let drops = DropFile::new(&shared.files);
        Ok(Box::new(CollectDrops { shared, drops, dropped_bytes: 0, is_any_stale }))
    }

    fn ingester(&self, _job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
        let options = self.options.now();
        let files = IngestedFiles::new(&self.shared.files, options.file_bytes, options.compression);
        Ok(Box::new(IngestedLog::new(files, options.separates_from(), |_bytes| {})))
    }

    fn read(
        &self,
        _files: &ValueFiles,
        (key, seqno): (&[u8], SeqNo),
        pointer: Pointer,
        source: IoSource,
    ) -> Result<Option<Value>> {
        let shared = &self.shared;
        if let Some(table) = shared.tables.load().get(pointer.file) {
            return shared.read_sorted(table, (key, seqno), pointer, source);
        }
        if let Some(value) = shared.files.read(key, pointer, source)? {
            return Ok(Some(value));
        }
        // Its file has become a table since the first look.
        match shared.tables.load().get(pointer.file) {
            Some(table) => shared.read_sorted(table, (key, seqno), pointer, source),
            None => Ok(None),
        }
    }

    fn prefetch(&self, files: &ValueFiles, pointers: &[Pointer]) -> Option<Stretches> {
        let tables = self.shared.tables.load();
        if tables.by_file.is_empty() {
            return files.prefetch(pointers);
        }
        let repaired = |pointer: Pointer| {
            let table = tables.get(pointer.file)?;
            let offset = self.shared.handles.get(pointer, table.properties.epoch)?;
            Some(Pointer { file: table.file.id, offset, ..pointer })
        };
        let place = |&pointer: &Pointer| tables.place_of(pointer).or_else(|| repaired(pointer));
        files.prefetch(&pointers.iter().filter_map(place).collect::<Vec<_>>())
    }

    /// A repaired handle is not certain: it may lead to another version of the key, which [`Placement::read`] notices.
    fn locate_now(&self, pointer: Pointer) -> Option<Pointer> {
        self.shared.tables.load().place_of(pointer)
    }

    /// They have found so many handles that the index should take these over.
    fn readers_ask(&self) -> bool {
        self.shared.handles.are_due(self.shared.index_bytes.load(Relaxed))
    }

    fn pick(&self, pressure: &SpacePressure, _running: &[GcClaim]) -> Option<Box<dyn GcJob>> {
        let job = Job::new(&self.shared, self.choose(pressure)?);
        Some(Box::new(job))
    }

    fn comes_into_force(&self, edit: &ValueEdit) {
        self.shared.put_in_force(edit);
    }

    fn give_up(&self, files: &ValueFiles, edit: &ValueEdit) {
        for meta in &edit.added {
            self.shared.drops.hold().given_up(meta.id);
            files.remove(meta.id);
        }
    }

    fn space(&self) -> ValueSpace {
        let (files, total_bytes, _) = self.shared.files.sizes();
        let units = self.units();
        let live_bytes = units.iter().map(victims::VictimFile::needed_bytes).sum();
        let left_out_bytes = units.iter().map(victims::VictimFile::stuck_bytes).sum();
        ValueSpace { files, total_bytes, live_bytes, drained_bytes: 0, left_out_bytes }
    }

    fn note_overwritten(&self, bytes: u64, _find: &dyn Fn() -> Option<(Pointer, u64)>) {
        self.shared.stale.add(bytes);
    }

    fn stale_bytes(&self, pressure: &SpacePressure) -> u64 {
        let bound = pressure.stale_at_most(self.space().live_bytes);
        self.shared.stale.keep_below(bound)
    }

    fn memory_bytes(&self) -> u64 {
        let NovKvShared { drops, handles, indexes, .. } = &*self.shared;
        drops.hold().memory_bytes() + handles.memory_bytes() + indexes.memory_bytes()
    }

    fn stale_reads(&self) -> StaleReads {
        let NovKvShared { repaired_reads, searched_reads, .. } = &*self.shared;
        StaleReads { repaired: repaired_reads.load(Relaxed), searched: searched_reads.load(Relaxed) }
    }

    fn explain(&self, pressure: &SpacePressure) -> Vec<Explained> {
        self.explain_units(pressure)
    }

    fn seal(&self, files: &ValueFiles) {
        self.value_log.seal();
        files.seal();
    }

    fn locate(&self, files: &ValueFiles, pointer: Pointer) -> Result<Located> {
        match self.shared.tables.load().get(pointer.file) {
            // The file it was in may still exist: a crash kept its name.
            Some(_) => Ok(Located::Whole),
            None => files.locate(pointer),
        }
    }

    fn refer(&self, files: &ValueFiles, pointer: Pointer, commit: SeqNo) {
        if self.shared.tables.load().get(pointer.file).is_none() {
            files.refer(pointer, commit);
        }
    }
}

/// Collaborative compaction (§III-B): notes what a rewrite drops, and hands repaired handles to the index.
struct CollectDrops {
    shared: Arc<NovKvShared>,
    drops: DropFile,
    dropped_bytes: u64,
    is_any_stale: bool,
}

impl Rewriter for CollectDrops {
    fn keep(&mut self, entry: &Entry<'_>) -> Result<placement::Kept> {
        if self.is_any_stale
            && entry.kind == Kind::Pointer
            && let Ok(stale) = pointer::decode(entry.payload)
            && let Some(repaired) = self.shared.repaired(entry.seqno, stale)?
        {
            return Ok(placement::Kept::Pointer(repaired));
        }
        Ok(placement::Kept::Unchanged)
    }

    fn discard(&mut self, entry: &Entry<'_>, _newer: SeqNo) -> Result<()> {
        if entry.kind == Kind::Pointer
            && let Ok(pointer) = pointer::decode(entry.payload)
        {
            self.dropped_bytes += u64::from(pointer.len);
            self.drops.add(pointer.file, entry.seqno, pointer.len)?;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<ValueEdit> {
        self.shared.stale.subtract(self.dropped_bytes);
        if planted!("forget_drops") {
            return Ok(ValueEdit::default());
        }
        let added = self.drops.finish(&self.shared.drops)?.into_iter().collect();
        Ok(ValueEdit { added, ..ValueEdit::default() })
    }
}
