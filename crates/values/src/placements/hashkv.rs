//! `hashkv`: values grouped by the hash of their keys, so that GC of a group needs no index lookups. HashKV, ATC 2018.
//!
//! ```text
//!  put k ─▶ group of hash(k): append (k, seqno, value)         delete k, small value of k: append a note (§3.5),
//!                                                             if k may have a record there
//!
//!  GC of a group (§3.3):    read its files ─▶ of each key the newest record counts ─▶ copy the values to new files
//!                           ─▶ under the commit lock skip keys written meanwhile, move the other addresses
//!
//!  hot and cold (§3.4):     GC of the hot segment is frequent: a value that is alone there, not updated since, goes to
//!                           the group's cold segment; GC of both segments together is rare.
//!                           Or it goes to the cold log of all groups, and a tag stays: `cold_log.rs`, `relocate.rs`
//! ```
//!
//! All versions of a key are in one group, so the newest record of a key in its group is its newest version anywhere:
//! liveness needs no lookup. Three things make that true here. Deletes and inline values leave a note in the group.
//! Range deletes, which have no hash, are in separate files that every GC run knows. GC takes only what is durable, so
//! a record whose commit a power loss undoes never counts.
//!
//! **Cold segments are ours.** The paper has one cold log for all groups: GC of it must look up in the index what is
//! live, and learns what died from tagged records in the groups. A cold segment for each group needs neither: whatever
//! is newer than a cold value is in the same group. Both exist ([`Cold`](options::Cold)), and a keyspace may change
//! from one to the other. `docs/placements/hashkv.md` has figures of what groups write.

mod cold_log;
mod discards;
mod ingest;
pub mod options;
mod ranges;
mod regroup;
mod relocate;
mod units;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Mutex},
};

use bifold_contract::{Corruption, FileId, Pointer, Result, Rewriter, SeqNo, ValueEdit, planted};
use bifold_format::{
    compression::Compressor,
    filter::key_hash,
    value::{self, FILE_HEADER_BYTES, Stored, ValueKind},
};

use self::{
    cold_log::ColdLog,
    discards::Discards,
    ingest::{Arriving, Ingest},
    ranges::Ranges,
    units::{Picked, Unit},
};
use super::{Settings, ValueOptions};
use crate::{
    parts::{
        budget::Budget,
        ingested::IngestedFiles,
        segment_groups::{Groups, Region},
        sync::LockExt,
        value_files::{COLD, ValueFile, ValueFiles},
    },
    placement::{
        Explained, GcClaim, GcContext, GcJob, GcOutcome, Placement, Profile, Replayed, RewriteJob, SpacePressure,
        ValueSpace, WriteOp,
    },
};

/// A keyspace begins with 2 to the power of this groups.
const GROUP_BITS: u32 = 4;

/// The group number of files without a region: those of range deletes and of the cold log.
const NO_REGION: u64 = 0;

/// Values grouped by hash.
pub struct HashKv {
    options: Settings,
    files: Arc<ValueFiles>,
    filters: Arc<Budget>,
    state: Arc<Mutex<HashKvState>>,
}

struct HashKvState {
    groups: Groups,
    cold_log: ColdLog,
    /// Range deletes that some file may not yet reflect.
    ranges: Ranges,
    /// Files in which something cannot be read.
    left_out: BTreeSet<FileId>,
    /// While logs are replayed: the sequence numbers of records in files that logs still have, ascending.
    in_tails: VecDeque<SeqNo>,
    /// What ingests have written that are not in force.
    arriving: Vec<Arriving>,
    /// Bytes of memory that the last GC run on groups took for each byte that it read; 0 if there was none.
    gc_memory_share: f64,
    record: Vec<u8>,
    compressor: Compressor,
}

impl HashKv {
    /// Opens it with the existing files.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn open(files: &Arc<ValueFiles>, options: &Settings) -> Result<Self> {
        let filters = Arc::clone(files.filters());
        files.in_use().iter().try_for_each(check_region)?;
        let Sorted { grouped, cold_log, .. } = Sorted::new(files);
        let mut groups = Groups::new(GROUP_BITS, &grouped, &filters);
        // Until recovery has truncated these files, notes go to others.
        groups.close();
        let state = HashKvState {
            groups,
            cold_log,
            ranges: Ranges::new(&filters),
            left_out: BTreeSet::new(),
            in_tails: VecDeque::new(),
            arriving: Vec::new(),
            gc_memory_share: 0.0,
            record: Vec::new(),
            compressor: Compressor::new(options.now().compression),
        };
        Ok(Self { options: options.clone(), files: Arc::clone(files), filters, state: Arc::new(Mutex::new(state)) })
    }

    /// What GC takes next.
    fn next(&self, pressure: &SpacePressure) -> Vec<Picked> {
        let space = self.space();
        let over = pressure.excess(&space);
        let state = &*self.state.hold();
        match pressure.all_before {
            Some(before) => units::begun_before(state, before),
            None => {
                let memory_max = self.files.buffers().bytes_max();
                let over = (over, pressure.is_pinned(&space));
                units::due(&self.options.now(), state, over, (space.total_bytes, memory_max))
            }
        }
    }

    /// Notes in the group of a key, or in all groups, that older values are dead (§3.5 for small values; deletes:
    /// ours). A group that certainly has no record of the key needs no note.
    fn note(&self, state: &mut HashKvState, op: WriteOp<'_>, seqno: SeqNo) -> Result<()> {
        let (kind, key) = match op {
            WriteOp::Put { key, .. } => (ValueKind::Stub, key),
            WriteOp::Delete { key } => (ValueKind::Delete, key),
            WriteOp::DeleteRange { start, end } => {
                return state.ranges.append(&self.files, &mut state.record, (start, end), seqno);
            }
        };
        let hash = key_hash(key);
        if !state.groups.at(hash).may_hold(hash) {
            return Ok(());
        }
        state.append((&self.files, &self.options.now()), key, seqno, What::Note(kind)).map(drop)
    }
}

/// GC of some units, all of one kind.
struct Collect {
    claim: GcClaim,
    units: Vec<Picked>,
    options: Settings,
    files: Arc<ValueFiles>,
    state: Arc<Mutex<HashKvState>>,
}

impl GcJob for Collect {
    fn claim(&self) -> &GcClaim {
        &self.claim
    }

    fn run(&self, gc: &dyn GcContext) -> Result<GcOutcome> {
        let live_bytes: Vec<u64> = self.units.iter().map(|picked| picked.live_bytes).collect();
        let units = &self.units[..gc.fit(&live_bytes)?];
        let units = || units.iter().map(|picked| picked.unit);
        let (files, state, options) = (&self.files, &self.state, &self.options.now());
        if units().any(|unit| unit == Unit::Ranges) {
            return ranges::rewrite(files, state, gc);
        }
        let of_log: BTreeSet<FileId> = units().filter_map(Unit::file).collect();
        match of_log.is_empty() {
            true => regroup::regroup((files, state, options), units().filter_map(Unit::family).collect(), gc),
            false => relocate::relocate((files, state, options), &of_log, gc),
        }
    }
}

/// What is appended to the group of a key.
enum What<'a> {
    /// A value of the key.
    Value(&'a [u8]),
    /// The key has no value here any more.
    Note(ValueKind),
    /// Where in the cold log the value is now.
    Tag(Pointer),
}

/// Checks the group number of a file: a region that splitting could have reached.
fn check_region(file: &Arc<ValueFile>) -> Result<()> {
    let group = file.description.group;
    if group == NO_REGION || Region::of(group).is_some_and(Region::is_possible) {
        return Ok(());
    }
    let damage = Corruption::new(FILE_HEADER_BYTES as u64, "description", "the number of a group", group.to_string());
    Err(damage.of(file.reader().path()))
}

impl HashKvState {
    /// Whether the replayed commit `seqno` has left a record that is there. Called in ascending order.
    fn has_in_tails(&mut self, seqno: SeqNo) -> bool {
        while self.in_tails.front().is_some_and(|&number| number < seqno) {
            self.in_tails.pop_front();
        }
        self.in_tails.front() == Some(&seqno)
    }

    /// Appends to the group of `key` and returns where the record is.
    fn append(
        &mut self,
        (files, options): (&ValueFiles, &ValueOptions),
        key: &[u8],
        seqno: SeqNo,
        what: What<'_>,
    ) -> Result<Pointer> {
        let Self { groups, ranges, record, compressor, .. } = self;
        let hash = key_hash(key);
        let group = groups.at_mut(hash);
        let file = match group.hot.head() {
            Some(file) => Arc::clone(file),
            None => {
                let file = files.begin(group.region.number())?;
                group.hot.files.push(Arc::clone(&file));
                group.hot.open = true;
                file
            }
        };
        record.clear();
        compressor.switch_to(options.compression);
        let place = (file.id, file.len());
        match what {
            What::Value(value) => value::encode_value(record, place, seqno, key, value, compressor),
            What::Note(kind) => value::encode(record, place, kind, seqno, key, Stored::NOTHING),
            What::Tag(to) => value::encode_tag(record, place, seqno, key, to),
        }
        ranges.note_first(&file, seqno);
        let pointer = files.append(&file, record)?;
        let bytes = u64::from(pointer.len);
        match what {
            What::Value(_) => {
                ranges.put(key);
                group.wrote(hash, bytes);
            }
            What::Note(_) => group.ended(hash, bytes),
            What::Tag(_) => group.tag_bytes += bytes,
        }
        let is_full = group.bytes() > options.hashkv.group_bytes;
        groups.clock += bytes;
        if is_full && groups.all().len() < options.hashkv.groups_max as usize {
            groups.split_at(hash);
        }
        Ok(pointer)
    }
}

/// The files in use, by purpose.
struct Sorted {
    grouped: Vec<Arc<ValueFile>>,
    ranges: Vec<Arc<ValueFile>>,
    cold_log: ColdLog,
}

impl Sorted {
    fn new(files: &ValueFiles) -> Self {
        let in_region = |file: &Arc<ValueFile>| file.description.group != NO_REGION;
        let (grouped, others): (Vec<_>, Vec<_>) = files.in_use().into_iter().partition(in_region);
        let is_cold = |file: &Arc<ValueFile>| file.description.class == COLD;
        let (cold, ranges): (Vec<_>, Vec<_>) = others.into_iter().partition(is_cold);
        Self { grouped, ranges, cold_log: ColdLog::new(cold.into_iter()) }
    }
}

impl Placement for HashKv {
    fn profile(&self) -> Profile {
        Profile {
            name: "hashkv",
            separates_from: Some(self.options.now().separates_from()),
            hears_of_short_values: true,
            separates_at_rewrite: false,
            learns_from_rewrites: None,
            finds_overwritten: false,
            reads_by_address: true,
            copies_percent: Profile::COPIES_PERCENT,
        }
    }

    fn write(&self, op: WriteOp<'_>, seqno: SeqNo) -> Result<Option<Pointer>> {
        let state = &mut *self.state.hold();
        match op {
            WriteOp::Put { key, value } if value.len() >= self.options.now().separates_from() => {
                state.append((&self.files, &self.options.now()), key, seqno, What::Value(value)).map(Some)
            }
            _ => self.note(state, op, seqno).map(|()| None),
        }
    }

    fn rewriter(&self, _job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
        Ok(Box::new(Discards::new(&self.state)))
    }

    fn ingester(&self, _job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
        let options = self.options.now();
        let files = IngestedFiles::new(&self.files, options.file_bytes, options.compression);
        Ok(Box::new(Ingest::new(&self.state, files, options.separates_from())))
    }

    fn count_pointers(&self, edit: &mut ValueEdit) {
        self.state.hold().lose(edit);
    }

    fn comes_into_force(&self, edit: &ValueEdit) {
        self.state.hold().take_in(&self.files, edit);
    }

    fn give_up(&self, _files: &ValueFiles, edit: &ValueEdit) {
        self.state.hold().arrived(edit).clear();
    }

    fn pick(&self, pressure: &SpacePressure, _running: &[GcClaim]) -> Option<Box<dyn GcJob>> {
        let units = self.next(pressure);
        let claim = GcClaim::alone(units.iter().flat_map(|picked| picked.files.clone()).collect());
        let (options, files, state) = (self.options.clone(), Arc::clone(&self.files), Arc::clone(&self.state));
        (!units.is_empty()).then(|| Box::new(Collect { claim, units, options, files, state }) as Box<dyn GcJob>)
    }

    fn largest_unit(&self, _files: &ValueFiles) -> u64 {
        units::largest(&self.options.now(), &self.state.hold())
    }

    /// So that the next session knows about how much is dead.
    fn count_dead(&self) {
        for (file, dead) in self.state.hold().groups.dead_bytes() {
            file.raise_dead_to(dead);
        }
    }

    fn files_were_deleted(&self, files: &ValueFiles) {
        self.state.hold().ranges.forget(files);
    }

    fn is_left_out(&self, file: FileId) {
        self.state.hold().left_out.insert(file);
    }

    fn space(&self) -> ValueSpace {
        let (files, total_bytes, drained_bytes) = self.files.sizes();
        let state = self.state.hold();
        let grouped: u64 = state.groups.all().iter().map(|group| group.hot.live + group.cold.live).sum();
        let live_bytes = grouped + units::live_in_log(&state);
        let uncollected = units::uncollected(&self.options.now(), &state);
        ValueSpace {
            files,
            total_bytes,
            live_bytes: live_bytes + uncollected.dead_bytes,
            drained_bytes,
            left_out_bytes: uncollected.bytes,
        }
    }

    fn memory_bytes(&self) -> u64 {
        let state = self.state.hold();
        state.groups.filter_bytes() + state.ranges.memory_bytes()
    }

    fn explain(&self, pressure: &SpacePressure) -> Vec<Explained> {
        let next = self.next(pressure);
        let reason = pressure.reason(&self.space());
        units::explain(&self.options.now(), &self.state.hold(), &next, reason)
    }

    fn seal(&self, files: &ValueFiles) {
        let mut state = self.state.hold();
        files.seal();
        state.ranges.close();
    }

    fn recovered(&self, files: &ValueFiles, in_tails: Vec<SeqNo>) -> Result<()> {
        let Sorted { grouped, ranges, cold_log } = Sorted::new(files);
        let mut state = self.state.hold();
        state.groups = Groups::new(GROUP_BITS, &grouped, &self.filters);
        state.cold_log = cold_log;
        state.in_tails = in_tails.into();
        state.ranges.restore(ranges)
    }

    fn replay(&self, op: Replayed<'_>, seqno: SeqNo) -> Result<()> {
        let state = &mut *self.state.hold();
        let op = match op {
            Replayed::Whole(op) => op,
            Replayed::Pointer { key } => {
                state.ranges.put(key);
                return Ok(());
            }
        };
        // By its range and not by its number: a copy of range deletes may have several with one number, and only some
        // of these.
        let is_known = match op {
            WriteOp::DeleteRange { start, end } => state.ranges.known().covers_all(start, end, seqno),
            _ => state.has_in_tails(seqno),
        };
        if is_known || planted!("forget_notes") {
            return Ok(());
        }
        // A power loss took the record and left the log, or the record was in a file that no commit points into and
        // that was deleted.
        self.note(state, op, seqno)
    }
}

#[cfg(test)]
mod tests;
