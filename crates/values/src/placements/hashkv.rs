//! `hashkv`: values grouped by the hash of their keys, so that a group is collected without asking the index.
//! HashKV, ATC 2018.
//!
//! ```text
//!  put k ─▶ group of hash(k): append (k, seqno, value)         delete k, small value of k: append a note (§3.5)
//!
//!  collect a group (§3.3):  read its files ─▶ of each key the newest record counts ─▶ copy the values to a new file
//!                           ─▶ under the commit lock carry over what was appended meanwhile, move the addresses
//! ```
//!
//! All versions of a key are in one group, so the newest record of a key in its group is its newest version anywhere:
//! liveness needs no lookup. Three things make that true here: deletes and values kept beside their keys leave a note in
//! the group; range deletes, which no hash can place, stand in a file of their own that every collection knows; and only
//! what is durable is collected, so that no record counts whose commit a power loss takes back.

use std::sync::{Arc, Mutex};

use bifold_contract::{
    FileId, IoSource, Placement, Pointer, Profile, RangeTombstone, Result, Rewriter, SeqNo, ValueEdit, ValueFileMeta,
    placement::{
        Collecting, Collection, Explained, Found, IndexView, Moved, Moves, Replayed, RewriteJob, Routed, SpacePressure,
        ValueSpace,
    },
};
use bifold_format::{
    compression::Compressor,
    filter::key_hash,
    value::{self, Stored, ValueKind, ValueRecord},
};

use super::{ValueOptions, inline::Unmoved};
use crate::parts::{
    hash_map::HashMap,
    scan::Scan,
    segment_groups::{Group, Groups, Region},
    sync::LockExt,
    value_files::{Home, Kept, ValueFile, ValueFiles},
    victim::{self, Candidate},
};

/// A keyspace begins with 2 to this power groups.
const GROUP_BITS: u32 = 4;

/// The group number of the file of range deletes: of no region.
const RANGES: u64 = 0;

/// A collection copies at most this share of all values: what is emptied stays on the disk until the next sync.
const COPY_SHARE: u64 = 8;

/// Groups of one collection of everything.
const GROUPS_AT_ONCE: usize = 16;

/// A group is not collected for less than this share of it.
const DEAD_SHARE: u64 = 16;

/// Values grouped by hash.
pub struct HashKv {
    options: ValueOptions,
    files: Arc<ValueFiles>,
    state: Arc<Mutex<State>>,
}

struct State {
    groups: Groups,
    /// Range deletes that some file may not know of, and the file they stand in.
    ranges: Vec<RangeTombstone>,
    ranges_file: Option<Arc<ValueFile>>,
    record: Vec<u8>,
    compressor: Compressor,
}

impl HashKv {
    /// With the files that are there.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn open(home: Home, options: ValueOptions, listed: &ValueEdit, present: &[FileId]) -> Result<Self> {
        let files = Arc::new(ValueFiles::open(home, listed, present)?);
        let mut groups = Groups::new(GROUP_BITS, &grouped(&files));
        // Until recovery has settled what their files hold, notes go to others.
        groups.close();
        let state = State {
            groups,
            ranges: Vec::new(),
            ranges_file: None,
            record: Vec::new(),
            compressor: Compressor::new(options.compression),
        };
        Ok(Self { options, files, state: Arc::new(Mutex::new(state)) })
    }

    fn append(&self, state: &mut State, hash: u64, kind: ValueKind, seqno: SeqNo, pair: Pair<'_>) -> Result<Pointer> {
        let State { groups, record, compressor, .. } = state;
        let group = groups.at_mut(hash);
        let file = match group.head() {
            Some(file) => Arc::clone(file),
            None => {
                let file = self.files.begin(group.region.number())?;
                group.files.push(Arc::clone(&file));
                group.open = true;
                file
            }
        };
        record.clear();
        let place = (file.id, file.len());
        match kind {
            ValueKind::Value => value::encode_value(record, place, seqno, pair.0, pair.1, compressor),
            _ => value::encode(record, place, kind, seqno, pair.0, Stored::NOTHING),
        }
        let pointer = self.files.append(&file, record)?;
        let bytes = u64::from(pointer.len);
        match kind {
            ValueKind::Value => group.wrote(hash, bytes),
            _ => group.ended(hash, bytes),
        }
        groups.clock += bytes;
        if file.len() > self.options.group_bytes && groups.all().len() < self.options.groups_max {
            groups.split_at(hash);
        }
        Ok(pointer)
    }

    /// Tells the group of a key, or all groups, that older values are dead (§3.5 for small values; deletes: ours).
    fn note(&self, state: &mut State, op: Routed<'_>, seqno: SeqNo) -> Result<()> {
        let (kind, key) = match op {
            Routed::Put { key, .. } => (ValueKind::Stub, key),
            Routed::Delete { key } => (ValueKind::Delete, key),
            Routed::DeleteRange { start, end } => return self.append_range(state, start, end, seqno),
        };
        self.append(state, key_hash(key), kind, seqno, (key, &[])).map(drop)
    }

    fn append_range(&self, state: &mut State, start: &[u8], end: Option<&[u8]>, seqno: SeqNo) -> Result<()> {
        let file = match &state.ranges_file {
            Some(file) => Arc::clone(file),
            None => Arc::clone(state.ranges_file.insert(self.files.begin(RANGES)?)),
        };
        let (kind, stored) = match end {
            Some(end) => (ValueKind::DeleteRange, Stored::plain(end)),
            None => (ValueKind::DeleteRangeUnbounded, Stored::NOTHING),
        };
        state.record.clear();
        value::encode(&mut state.record, (file.id, file.len()), kind, seqno, start, stored);
        self.files.append(&file, &state.record)?;
        state.ranges.push(RangeTombstone { start: start.into(), end: end.map(Into::into), seqno });
        Ok(())
    }
}

/// The files that belong to groups.
fn grouped(files: &ValueFiles) -> Vec<Arc<ValueFile>> {
    files.in_use().into_iter().filter(|file| file.description.group != RANGES).collect()
}

/// A key and its value.
type Pair<'a> = (&'a [u8], &'a [u8]);

impl Placement for HashKv {
    fn profile(&self) -> Profile {
        Profile { name: "hashkv", parts_from: Some(self.options.min_bytes), parts_at_rewrite: false }
    }

    fn route(&self, op: Routed<'_>, seqno: SeqNo) -> Result<Option<Pointer>> {
        let state = &mut *self.state.hold();
        match op {
            Routed::Put { key, value } if value.len() >= self.options.min_bytes => {
                self.append(state, key_hash(key), ValueKind::Value, seqno, (key, value)).map(Some)
            }
            _ => self.note(state, op, seqno).map(|()| None),
        }
    }

    fn begin_sync(&self) {
        self.files.begin_sync();
    }

    fn sync(&self) -> Result<()> {
        self.files.sync()
    }

    fn synced(&self) {
        self.files.synced();
    }

    fn rewriter(&self, _job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
        Ok(Box::new(Unmoved))
    }

    fn read(&self, key: &[u8], pointer: Pointer, source: IoSource) -> Result<Option<Found>> {
        Ok(self.files.read(key, pointer, source)?.map(|value| Found { value, fresher: None }))
    }

    fn prefetch(&self, pointers: &[Pointer]) {
        self.files.prefetch(pointers);
    }

    fn pick(&self, pressure: &SpacePressure) -> Option<Collection> {
        let space = self.space();
        let over = pressure.excess(&space);
        if let Some(before) = pressure.all_before {
            let units = begun_before(&self.state.hold().groups, before);
            if !units.is_empty() {
                return Some(Collection::Units(units));
            }
        } else if over > 0 && !pressure.is_pinned(&space) {
            let units = choose(&self.options, &self.state.hold().groups, over, space.total_bytes);
            if !units.is_empty() {
                return Some(Collection::Units(units));
            }
        }
        self.files.can_retire(pressure.oldest_snapshot).then_some(Collection::Retire)
    }

    fn collect(&self, pick: &Collection, view: &dyn IndexView) -> Result<Box<dyn Collecting>> {
        let mut regroup = Regroup {
            files: Arc::clone(&self.files),
            state: Arc::clone(&self.state),
            durable: view.durable(),
            taken: Vec::new(),
            leaves: Vec::new(),
            next: 0,
        };
        let Collection::Units(units) = pick else { return Ok(Box::new(regroup)) };
        let families = take_families(&mut self.state.hold().groups, units);
        regroup.taken = families.iter().flatten().map(|(region, _)| *region).collect();
        families.iter().try_for_each(|family| regroup.copy(family))?;
        Ok(Box::new(regroup))
    }

    fn retire(&self, durable: SeqNo, oldest_snapshot: Option<SeqNo>) -> ValueEdit {
        self.files.retire(durable, oldest_snapshot)
    }

    fn may_move(&self, _from: u8, _to: u8) -> bool {
        true
    }

    fn unlisted(&self) -> Vec<ValueFileMeta> {
        self.files.unlisted()
    }

    fn make_durable(&self, files: &[ValueFileMeta]) -> Result<()> {
        self.files.make_durable(files)
    }

    fn news(&self, flushed: SeqNo) -> ValueEdit {
        // So that the next opening knows about how much is dead.
        for group in self.state.hold().groups.all() {
            if let Some(file) = group.files.last() {
                file.raise_dead_to(group.dead);
            }
        }
        self.files.news(flushed)
    }

    fn installed(&self, edit: &ValueEdit) {
        self.files.installed(edit);
    }

    fn files(&self) -> ValueEdit {
        self.files.listed()
    }

    fn space(&self) -> ValueSpace {
        let (files, total_bytes, emptied_bytes) = self.files.sizes();
        let live_bytes = self.state.hold().groups.all().iter().map(|group| group.live).sum();
        ValueSpace { files, total_bytes, live_bytes, emptied_bytes }
    }

    fn emptied_after(&self, seqno: SeqNo) -> u64 {
        self.files.emptied_after(seqno)
    }

    fn explain(&self, pressure: &SpacePressure) -> Vec<Explained> {
        let space = self.space();
        let next = match self.pick(pressure) {
            Some(Collection::Units(units)) => units,
            _ => Vec::new(),
        };
        let groups = &self.state.hold().groups;
        let mut all: Vec<Explained> = families(groups)
            .into_iter()
            .map(|(unit, candidate)| {
                let members = groups.family(unit);
                let number = groups.all()[unit].region.number();
                let files = members.iter().flat_map(|&at| &groups.all()[at].files).map(|file| file.id);
                let mut files: Vec<FileId> = files.collect();
                files.sort_unstable();
                files.dedup();
                Explained {
                    unit: format!("group {number:x}"),
                    files,
                    total_bytes: candidate.live + candidate.dead,
                    live_bytes: candidate.live,
                    age_bytes: candidate.age,
                    score: self.options.victim.score(&candidate, number),
                    held: match () {
                        () if next.contains(&number) => None,
                        () if !worth(&candidate) => Some("less than a sixteenth of it is dead"),
                        () => Some(pressure.reason(&space)),
                    },
                }
            })
            .collect();
        all.sort_by(|a, b| b.score.total_cmp(&a.score));
        all
    }

    fn seal(&self) {
        let mut state = self.state.hold();
        state.groups.close();
        state.ranges_file = None;
    }

    fn resolves(&self, pointer: Pointer) -> bool {
        self.files.resolves(pointer)
    }

    fn replay(&self, op: Replayed<'_>, seqno: SeqNo) -> Result<Option<Pointer>> {
        if cfg!(planted = "forget_notes") && matches!(op, Replayed::Whole(_)) {
            return Ok(None);
        }
        let state = &mut *self.state.hold();
        match (op, self.files.unlisted_value(op)?) {
            (_, Kept::Value(key, value)) => {
                self.append(state, key_hash(key), ValueKind::Value, seqno, (key, &value)).map(Some)
            }
            (Replayed::Whole(op), _) => self.note(state, op, seqno).map(|()| None),
            (_, Kept::As(pointer)) => Ok(pointer),
        }
    }

    fn durable_before(&self) -> SeqNo {
        self.files.durable_before()
    }

    fn settle(&self, last: SeqNo) -> Result<()> {
        self.files.settle(last)?;
        let files = self.files.in_use();
        let (ranges, grouped): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| file.description.group == RANGES);
        let mut state = self.state.hold();
        state.groups = Groups::new(GROUP_BITS, &grouped);
        for file in ranges {
            let mut scan = Scan::new(&file, file.start(), file.len(), IoSource::Recovery);
            while let Some((record, _)) = scan.sound()? {
                let end = record.range_end().map(Into::into);
                state.ranges.push(RangeTombstone { start: record.key.into(), end, seqno: record.seqno });
            }
        }
        Ok(())
    }

    fn cut(&self) -> Result<()> {
        self.files.cut()
    }

    fn drop_files(&self) {
        self.files.drop_all();
    }

    fn live_files(&self) -> Vec<FileId> {
        self.files.present()
    }
}

/// A few groups with files that old, by number.
fn begun_before(groups: &Groups, before: FileId) -> Vec<u64> {
    let is_old = |at: &usize| groups.all()[*at].files.iter().any(|file| file.id < before);
    let families = families(groups).into_iter().map(|(at, _)| at);
    let old = families.filter(|&at| groups.family(at).iter().any(is_old));
    old.take(GROUPS_AT_ONCE).map(|at| groups.all()[at].region.number()).collect()
}

/// The groups to collect, by number, so that about `over` bytes come free.
fn choose(options: &ValueOptions, groups: &Groups, over: u64, total: u64) -> Vec<u64> {
    let families = families(groups);
    let candidates: Vec<Candidate> = families.iter().map(|(_, candidate)| *candidate).collect();
    let (mut freed, mut copied) = (0, 0);
    let mut units = Vec::new();
    for (at, _score) in victim::rank(options.victim, &candidates, groups.clock) {
        let candidate = &candidates[at];
        if !worth(candidate) {
            continue;
        }
        if freed >= over + total / 32 || copied > total / COPY_SHARE {
            break;
        }
        freed += candidate.dead;
        copied += candidate.live;
        units.push(groups.all()[families[at].0].region.number());
    }
    units
}

fn worth(candidate: &Candidate) -> bool {
    candidate.dead > 0 && candidate.dead * DEAD_SHARE >= candidate.live + candidate.dead
}

/// Each family that is not being collected: the position of one of its groups, and what is in it.
fn families(groups: &Groups) -> Vec<(usize, Candidate)> {
    let mut met = vec![false; groups.all().len()];
    let mut families = Vec::new();
    for at in 0..met.len() {
        if met[at] {
            continue;
        }
        let members = groups.family(at);
        members.iter().for_each(|&member| met[member] = true);
        let members: Vec<&Group> = members.iter().map(|&member| &groups.all()[member]).collect();
        if members.iter().any(|group| group.busy) {
            continue;
        }
        let candidate = Candidate {
            live: members.iter().map(|group| group.live).sum(),
            dead: members.iter().map(|group| group.dead).sum(),
            written: members.iter().map(|group| group.written).sum(),
            age: groups.clock - members.iter().map(|group| group.collected_at).max().unwrap_or(0),
        };
        families.push((at, candidate));
    }
    families
}

/// The families of these groups, marked as being collected.
fn take_families(groups: &mut Groups, units: &[u64]) -> Vec<Vec<(Region, Vec<Arc<ValueFile>>)>> {
    let mut families = Vec::new();
    for region in units.iter().filter_map(|&unit| Region::of(unit)) {
        let Some(at) = groups.all().iter().position(|group| group.region == region && !group.busy) else { continue };
        let members = groups.family(at);
        let mut family = Vec::new();
        for member in members {
            let group = &mut groups.all_mut()[member];
            group.busy = true;
            family.push((group.region, group.files.clone()));
        }
        families.push(family);
    }
    families
}

/// The collection of some families.
struct Regroup {
    files: Arc<ValueFiles>,
    state: Arc<Mutex<State>>,
    /// Records with numbers up to this one are copied ahead, the others under the commit lock.
    durable: SeqNo,
    /// The groups marked as being collected.
    taken: Vec<Region>,
    leaves: Vec<Leaf>,
    next: usize,
}

/// One group of a family.
struct Leaf {
    region: Region,
    output: Option<Arc<ValueFile>>,
    /// The values copied so far.
    values: HashMap<Box<[u8]>, Copied>,
    /// The family's files, and up to where they have been copied.
    sources: Arc<Vec<(Arc<ValueFile>, u64)>>,
    /// Files of this group alone that commits have begun since.
    begun_since: Vec<(Arc<ValueFile>, u64)>,
    /// No other group of the family comes after this one.
    is_last: bool,
}

#[derive(Clone, Copy)]
struct Copied {
    seqno: SeqNo,
    from: Pointer,
    to: Pointer,
}

/// The newest record of a key: its number and where it stands.
#[derive(Clone, Copy)]
struct Newest {
    seqno: SeqNo,
    file: FileId,
    offset: u64,
}

impl Regroup {
    /// Copies what is live in the durable part of a family's files, each value to the file of its group.
    fn copy(&mut self, family: &[(Region, Vec<Arc<ValueFile>>)]) -> Result<()> {
        let mut sources: Vec<(Arc<ValueFile>, u64)> =
            family.iter().flat_map(|(_, files)| files).map(|file| (Arc::clone(file), file.len())).collect();
        sources.sort_unstable_by_key(|(file, _)| file.id);
        sources.dedup_by_key(|(file, _)| file.id);
        let ranges = self.state.hold().ranges.clone();
        let newest = self.newest(&mut sources, &ranges)?;
        let mut outputs: Vec<_> = family.iter().map(|_| None).collect();
        let mut values: Vec<HashMap<Box<[u8]>, Copied>> = family.iter().map(|_| HashMap::default()).collect();
        for (file, end) in &sources {
            let mut scan = Scan::new(file, file.start(), *end, IoSource::Collection);
            while let Some((record, len)) = scan.sound()? {
                let counts = newest.get(record.key).is_some_and(|n| (n.file, n.offset) == (file.id, record.offset));
                if !counts || record.kind != ValueKind::Value {
                    continue;
                }
                let hash = key_hash(record.key);
                let Some(leaf) = family.iter().position(|(region, _)| region.covers(hash)) else { continue };
                let output = match &mut outputs[leaf] {
                    Some(output) => output,
                    none => none.insert(self.files.begin_copy(family[leaf].0.number())?),
                };
                let to = output.append(&record)?;
                let from = Pointer { file: file.id, epoch: 0, offset: record.offset, len };
                values[leaf].insert(record.key.into(), Copied { seqno: record.seqno, from, to });
            }
        }
        let sources = Arc::new(sources);
        for (at, ((region, _), (output, values))) in family.iter().zip(outputs.into_iter().zip(values)).enumerate() {
            self.leaves.push(Leaf {
                region: *region,
                output: self.files.finish_copies(output.into_iter().collect())?.pop(),
                values,
                sources: Arc::clone(&sources),
                begun_since: Vec::new(),
                is_last: at + 1 == family.len(),
            });
        }
        Ok(())
    }

    /// The newest durable record of each key (§3.3: "the latest version counts"). Shortens each source to its durable part.
    fn newest(
        &self,
        sources: &mut [(Arc<ValueFile>, u64)],
        ranges: &[RangeTombstone],
    ) -> Result<HashMap<Box<[u8]>, Newest>> {
        let mut newest: HashMap<Box<[u8]>, Newest> = HashMap::default();
        for (file, end) in sources {
            let mut scan = Scan::new(file, file.start(), *end, IoSource::Collection);
            while let Some((record, _)) = scan.sound()? {
                // Copies come first in a file, then what commits appended, in their order.
                if record.seqno > self.durable {
                    *end = record.offset;
                    break;
                }
                let this = Newest { seqno: record.seqno, file: file.id, offset: record.offset };
                match newest.get_mut(record.key) {
                    Some(known) if known.seqno >= this.seqno => {}
                    Some(known) => *known = this,
                    None => drop(newest.insert(record.key.into(), this)),
                }
            }
        }
        newest.retain(|key, n| !is_covered(ranges, key, n.seqno));
        Ok(newest)
    }
}

fn is_covered(ranges: &[RangeTombstone], key: &[u8], seqno: SeqNo) -> bool {
    ranges.iter().any(|range| range.seqno > seqno && range.contains(key))
}

impl Collecting for Regroup {
    fn edit(&self) -> ValueEdit {
        let outputs: Vec<_> = self.leaves.iter().filter_map(|leaf| leaf.output.clone()).collect();
        self.files.added(&outputs)
    }

    fn advance(&mut self) -> Result<Option<Moves>> {
        let Some(leaf) = self.leaves.get_mut(self.next) else { return Ok(None) };
        self.next += 1;
        let state = &mut *self.state.hold();
        // Commits may have begun another file for the group since.
        for file in &state.groups.at(leaf.region.prefix).files {
            if leaf.sources.iter().all(|(source, _)| source.id != file.id) {
                leaf.begun_since.push((Arc::clone(file), file.start()));
            }
        }
        leaf.carry_over(&self.files, &mut state.record)?;
        let later: Vec<RangeTombstone> =
            state.ranges.iter().filter(|range| range.seqno > self.durable).cloned().collect();
        leaf.values.retain(|key, copied| !is_covered(&later, key, copied.seqno));
        leaf.take_effect(&mut state.groups);
        let moved = leaf.values.drain().map(|(key, copied)| Moved { key, from: copied.from, to: copied.to }).collect();
        Ok(Some(Moves { moved, check: false }))
    }

    fn refused(&mut self, _moved: &Moved) {}

    fn committed(&mut self, last: SeqNo) {
        let Some(leaf) = self.next.checked_sub(1).map(|at| &self.leaves[at]) else { return };
        let shared: &[_] = if leaf.is_last { &leaf.sources } else { &[] };
        leaf.begun_since.iter().chain(shared).for_each(|(file, _)| self.files.empty(file.id, last));
    }
}

impl Leaf {
    /// Appends to the output what commits have appended to the sources since they were copied.
    fn carry_over(&mut self, files: &ValueFiles, buffer: &mut Vec<u8>) -> Result<()> {
        for (file, copied_to) in self.sources.iter().chain(&self.begun_since) {
            let mut scan = Scan::new(file, *copied_to, file.len(), IoSource::Collection);
            while let Some((record, len)) = scan.sound()? {
                if !self.region.covers(key_hash(record.key)) {
                    continue;
                }
                let to = append_copy(files, &mut self.output, self.region, &record, buffer)?;
                match record.kind {
                    ValueKind::Value => {
                        let from = Pointer { file: file.id, epoch: 0, offset: record.offset, len };
                        self.values.insert(record.key.into(), Copied { seqno: record.seqno, from, to });
                    }
                    _ => drop(self.values.remove(record.key)),
                }
            }
        }
        Ok(())
    }

    /// From now on the output is the group's only file.
    fn take_effect(&self, groups: &mut Groups) {
        let clock = groups.clock;
        let group = groups.at_mut(self.region.prefix);
        group.files = self.output.iter().cloned().collect();
        group.open = self.output.is_some();
        group.busy = false;
        let hashes: Vec<u64> = self.values.keys().map(|key| key_hash(key)).collect();
        let live: u64 = self.values.values().map(|copied| u64::from(copied.to.len)).sum();
        let total = self.output.as_ref().map_or(0, |file| file.len() - file.start());
        group.recount(&hashes, live, total.saturating_sub(live), clock);
    }
}

fn append_copy(
    files: &ValueFiles,
    output: &mut Option<Arc<ValueFile>>,
    region: Region,
    record: &ValueRecord<'_>,
    buffer: &mut Vec<u8>,
) -> Result<Pointer> {
    let file = match output {
        Some(file) => file,
        none => none.insert(files.begin(region.number())?),
    };
    buffer.clear();
    value::encode(buffer, (file.id, file.len()), record.kind, record.seqno, record.key, record.stored());
    files.append(file, buffer)
}

impl Drop for Regroup {
    fn drop(&mut self) {
        let mut state = self.state.hold();
        for region in &self.taken {
            state.groups.at_mut(region.prefix).busy = false;
        }
    }
}
