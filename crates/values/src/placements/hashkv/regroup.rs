//! The collection of some groups (HashKV §3.3 and §3.4).
//!
//! ```text
//! from now on commits append to new files
//! the family's files ─▶ newest record of each key ─▶ alone in the hot part?  no ─▶ the group's new hot file
//!                                                                            yes ─▶ its cold file
//! a few at a time: moves of the keys that commits have not written meanwhile ─▶ the copies are the groups' files
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use bifold_contract::{
    FileId, IoSource, Pointer, RangeTombstone, Result, SeqNo,
    placement::{Collecting, Moved, Moves},
};
use bifold_format::{
    filter::key_hash,
    value::{ValueKind, ValueRecord},
};

use super::{State, units::Unit};
use crate::{
    parts::{
        key_table::KeyTable,
        scan::Scan,
        segment_groups::{Groups, Part, Region},
        sync::LockExt,
        value_files::{COLD, COLLECTED, Copy, ValueFile, ValueFiles},
    },
    placements::ValueOptions,
};

/// A collection of some families.
pub(super) struct Regroup {
    files: Arc<ValueFiles>,
    state: Arc<Mutex<State>>,
    cold_parts: bool,
    /// The range deletes known when values were copied: those with numbers up to this.
    ranges_upto: SeqNo,
    /// The groups marked as being collected.
    taken: Vec<Region>,
    families: Vec<Family>,
    next: usize,
    /// All moves of this family have been handed out.
    done: Option<usize>,
    freed: u64,
}

/// Moves that are committed under one hold of the lock: about half a millisecond.
const MOVES_AT_ONCE: usize = 512;

/// Groups that share files.
struct Family {
    unit: Unit,
    /// Nothing is appended to these any more.
    sources: Vec<Source>,
    leaves: Vec<Leaf>,
    keys: KeyTable<Newest>,
    copied: Vec<Copied>,
    /// The moves before this one have been handed out.
    next: usize,
}

/// A file to collect.
struct Source {
    file: Arc<ValueFile>,
    is_cold: bool,
}

/// The newest record of a key: its number and where it stands.
#[derive(Clone, Copy)]
struct Newest {
    seqno: SeqNo,
    source: u32,
    /// Records of the key in the hot part, so far.
    hot_records: u32,
    offset: u64,
    /// Its place among the copied ones.
    copied: Option<u32>,
}

impl Newest {
    /// Where the record goes: updated since the last collection, or not.
    fn goes_to(&self) -> usize {
        if self.hot_records > 1 { HOT } else { COLD_PART }
    }
}

const HOT: usize = 0;
const COLD_PART: usize = 1;

/// A value that has been copied.
struct Copied {
    /// The number of its key.
    key: u32,
    /// The group of its key, among those of the family.
    leaf: u32,
    is_cold: bool,
    /// A commit has written the key since.
    is_old: bool,
    from: Pointer,
    to: Pointer,
}

/// One group of a family.
struct Leaf {
    region: Region,
    hot: Option<Arc<ValueFile>>,
    cold: Option<Arc<ValueFile>>,
    /// While it is copied.
    copies: [Option<Copy>; 2],
    /// Bytes copied to each.
    copied: [u64; 2],
    /// Of the moves handed out, for the hot and the cold file: bytes, and the hashes of the keys.
    moved: [(u64, Vec<u64>); 2],
    /// What commits have written since the collection began, and up to where their files have been looked at.
    since: Vec<Since>,
    seen: Vec<(FileId, u64)>,
}

/// A record that a commit has written during the collection.
struct Since {
    hash: u64,
    bytes: u64,
    is_value: bool,
}

impl Regroup {
    /// Nothing yet.
    pub fn begin(files: &Arc<ValueFiles>, state: &Arc<Mutex<State>>, options: &ValueOptions) -> Self {
        Self {
            files: Arc::clone(files),
            state: Arc::clone(state),
            cold_parts: options.cold_parts,
            ranges_upto: 0,
            taken: Vec::new(),
            families: Vec::new(),
            next: 0,
            done: None,
            freed: 0,
        }
    }

    /// Copies what is live of these units.
    pub fn copy(&mut self, units: impl Iterator<Item = Unit>) -> Result<()> {
        let units: Vec<Unit> = units.collect();
        let mut fresh = self.begin_files(&units)?;
        let ranges = {
            let mut state = self.state.hold();
            let take = |unit| take(&mut state.groups, unit, &mut fresh, &mut self.taken);
            self.families = units.into_iter().filter_map(take).collect();
            state.ranges.clone()
        };
        // Of groups that have split meanwhile.
        self.files.empty(fresh.into_values().map(|file| file.id), 0);
        self.ranges_upto = ranges.iter().map(|range| range.seqno).max().unwrap_or(0);
        for family in &mut self.families {
            family.copy(&self.files, &ranges, self.cold_parts)?;
        }
        self.finish_copies()?;
        // Most of what commits write meanwhile is looked at without the commit lock.
        for family in &mut self.families {
            family.pass_over_since(&self.state)?;
        }
        Ok(())
    }

    /// A file for each group to go on with. The system may take its time for a new name: a commit would wait for that.
    fn begin_files(&self, units: &[Unit]) -> Result<BTreeMap<Region, Arc<ValueFile>>> {
        let regions: BTreeSet<Region> = {
            let groups = &self.state.hold().groups;
            let members = units.iter().flat_map(|unit| members(groups, *unit));
            members.map(|member| groups.all()[member].region).collect()
        };
        regions.into_iter().map(|region| Ok((region, self.files.begin(region.number())?))).collect()
    }

    /// Lets readers find all copies.
    fn finish_copies(&mut self) -> Result<()> {
        let mut leaves: Vec<&mut Leaf> = self.families.iter_mut().flat_map(|family| &mut family.leaves).collect();
        let copies: Vec<_> = leaves.iter_mut().map(|leaf| leaf.copies.each_mut().map(Option::take)).collect();
        let there: Vec<[bool; 2]> = copies.iter().map(|copies| copies.each_ref().map(Option::is_some)).collect();
        let Some(files) = self.files.finish_copies(copies.into_iter().flatten().flatten().collect())? else {
            self.families.clear();
            return Ok(());
        };
        let mut files = files.into_iter();
        for (leaf, [hot, cold]) in leaves.into_iter().zip(there) {
            leaf.hot = if hot { files.next() } else { None };
            leaf.cold = if cold { files.next() } else { leaf.cold.take() };
        }
        Ok(())
    }
}

/// The positions of a unit's groups.
fn members(groups: &Groups, unit: Unit) -> Vec<usize> {
    let at = groups.all().iter().position(|group| group.region == unit.region);
    at.map_or(Vec::new(), |at| groups.family(at, unit.hot_only))
}

/// Marks a unit's groups as being collected: commits go on in `fresh` files. `None` when there is nothing to collect.
fn take(
    groups: &mut Groups,
    unit: Unit,
    fresh: &mut BTreeMap<Region, Arc<ValueFile>>,
    taken: &mut Vec<Region>,
) -> Option<Family> {
    let members = members(groups, unit);
    let has_cold = members.iter().any(|&member| !groups.all()[member].cold.files.is_empty());
    let unit = Unit { hot_only: unit.hot_only && has_cold, ..unit };
    if members.is_empty() || members.iter().any(|&member| groups.all()[member].busy) {
        return None;
    }
    let mut sources: Vec<Source> = Vec::new();
    for &member in &members {
        let group = &groups.all()[member];
        let of = |part: &Part, is_cold| {
            let source = move |file: &Arc<ValueFile>| Source { file: Arc::clone(file), is_cold };
            part.files.iter().map(source).collect::<Vec<_>>()
        };
        sources.extend(of(&group.hot, false));
        sources.extend(of(&group.cold, true).into_iter().filter(|_| !unit.hot_only));
    }
    sources.sort_unstable_by_key(|source| source.file.id);
    sources.dedup_by_key(|source| source.file.id);
    let leaves = members.iter().map(|&member| {
        let group = &mut groups.all_mut()[member];
        group.busy = true;
        let fresh = fresh.remove(&group.region);
        group.hot.open = fresh.is_some();
        group.hot.files.extend(fresh);
        taken.push(group.region);
        let cold = group.cold.head().filter(|_| unit.hot_only).cloned();
        // Should this collection be given up, nobody goes on with it.
        group.cold.open &= !unit.hot_only;
        Leaf::new(group.region, cold)
    });
    let leaves = leaves.collect();
    Some(Family { unit, sources, leaves, keys: KeyTable::default(), copied: Vec::new(), next: 0 })
}

fn is_covered<'a>(ranges: impl IntoIterator<Item = &'a RangeTombstone>, key: &[u8], seqno: SeqNo) -> bool {
    ranges.into_iter().any(|range| range.seqno > seqno && range.contains(key))
}

impl Family {
    /// Copies what counts, each record to the files of its group.
    fn copy(&mut self, files: &ValueFiles, ranges: &[RangeTombstone], cold_parts: bool) -> Result<()> {
        self.find_newest()?;
        let counts = |&key: &u32| !is_covered(ranges, self.keys.key(key), self.keys.at(key).seqno);
        let place = |key: u32| (self.keys.at(key).source, self.keys.at(key).offset, key);
        let mut counting: Vec<(u32, u64, u32)> = self.keys.numbers().filter(counts).map(place).collect();
        counting.sort_unstable();
        let mut counting = counting.into_iter().peekable();
        for (at, source) in self.sources.iter().enumerate() {
            let file = &source.file;
            let mut scan = Scan::new(file, file.start(), file.len(), IoSource::Collection);
            while let Some((_, offset, key)) = counting.next_if(|&(source, ..)| source as usize == at) {
                scan.skip_to(offset);
                let Some((record, len)) = scan.sound()? else { break };
                let is_value = record.kind == ValueKind::Value;
                // A note says that older values are dead. Without the cold part, some may be there.
                if !is_value && !self.unit.hot_only {
                    continue;
                }
                let hash = self.keys.hash(key);
                let Some(leaf) = self.leaves.iter().position(|leaf| leaf.region.covers(hash)) else { continue };
                let goes_to = if cold_parts { self.keys.at(key).goes_to() } else { HOT };
                let to = self.leaves[leaf].copy(files, &record, goes_to)?;
                if is_value {
                    let from = Pointer { file: file.id, epoch: 0, offset, len };
                    self.keys.at_mut(key).copied = Some(self.copied.len() as u32);
                    let (leaf, is_cold) = (leaf as u32, goes_to == COLD_PART);
                    self.copied.push(Copied { key, leaf, is_cold, is_old: false, from, to });
                }
            }
        }
        Ok(())
    }

    /// The newest record of each key (§3.3: "the latest version counts").
    fn find_newest(&mut self) -> Result<()> {
        for (at, Source { file, is_cold }) in self.sources.iter().enumerate() {
            let mut scan = Scan::new(file, file.start(), file.len(), IoSource::Collection);
            while let Some((record, _)) = scan.sound()? {
                let (hash, hot_records) = (key_hash(record.key), u32::from(!is_cold));
                let (seqno, offset, source) = (record.seqno, record.offset, at as u32);
                let this = Newest { seqno, source, hot_records, offset, copied: None };
                match self.keys.find(hash, record.key) {
                    Some(number) => {
                        let known = self.keys.at_mut(number);
                        let hot_records = known.hot_records + hot_records;
                        let best = if known.seqno >= seqno { *known } else { this };
                        *known = Newest { hot_records, ..best };
                    }
                    None => self.keys.add(hash, record.key, this),
                }
            }
        }
        Ok(())
    }

    /// Keys that commits have written since stay where those put them.
    fn pass_over_since(&mut self, state: &Mutex<State>) -> Result<()> {
        for leaf in &mut self.leaves {
            let begun_since = leaf.begun_since(&self.sources, &state.hold().groups);
            leaf.look_at(&begun_since, |hash, key| {
                let copied = self.keys.find(hash, key).and_then(|number| self.keys.at(number).copied);
                if let Some(copied) = copied {
                    self.copied[copied as usize].is_old = true;
                }
            })?;
        }
        Ok(())
    }

    /// Some of the moves that are left, without those of keys that range deletes have covered since.
    fn next_moves(&mut self, later: &[&RangeTombstone]) -> Vec<Moved> {
        let mut moves = Vec::with_capacity(MOVES_AT_ONCE.min(self.copied.len() - self.next));
        while let Some(copied) = self.copied.get(self.next).filter(|_| moves.len() < MOVES_AT_ONCE) {
            self.next += 1;
            let key = self.keys.key(copied.key);
            let is_old = copied.is_old && cfg!(not(planted = "move_over_newer"));
            if is_old || is_covered(later.iter().copied(), key, self.keys.at(copied.key).seqno) {
                continue;
            }
            let (bytes, hashes) = &mut self.leaves[copied.leaf as usize].moved[usize::from(copied.is_cold)];
            *bytes += u64::from(copied.to.len);
            hashes.push(self.keys.hash(copied.key));
            moves.push(Moved { key: key.into(), from: copied.from, to: copied.to });
        }
        moves
    }
}

impl Collecting for Regroup {
    fn advance(&mut self) -> Result<Option<Moves>> {
        let Some(family) = self.families.get_mut(self.next) else { return Ok(None) };
        family.pass_over_since(&self.state)?;
        let state = &mut *self.state.hold();
        let later: Vec<&RangeTombstone> = state.ranges.iter().filter(|range| range.seqno > self.ranges_upto).collect();
        let moved = family.next_moves(&later);
        if family.next == family.copied.len() {
            family.leaves.iter().for_each(|leaf| leaf.take_effect(family.unit, &family.sources, &mut state.groups));
            self.done = Some(self.next);
            self.next += 1;
        }
        Ok(Some(Moves { moved, check: false }))
    }

    fn refused(&mut self, _moved: &Moved) {}

    fn committed(&mut self, last: SeqNo) {
        let Some(family) = self.done.take().map(|at| &mut self.families[at]) else { return };
        let emptied: u64 = family.sources.iter().map(|source| source.file.len()).sum();
        let copied: u64 = family.leaves.iter().flat_map(|leaf| leaf.copied).sum();
        self.freed += emptied.saturating_sub(copied);
        self.files.empty(family.sources.iter().map(|source| source.file.id), last);
        family.keys = KeyTable::default();
    }

    fn freed(&self) -> u64 {
        self.freed
    }
}

impl Leaf {
    fn new(region: Region, cold: Option<Arc<ValueFile>>) -> Self {
        Self {
            region,
            hot: None,
            cold,
            copies: [None, None],
            copied: [0, 0],
            moved: Default::default(),
            since: Vec::new(),
            seen: Vec::new(),
        }
    }

    /// Copies one record to the hot or to the cold file; answers where it will stand.
    fn copy(&mut self, files: &ValueFiles, record: &ValueRecord<'_>, goes_to: usize) -> Result<Pointer> {
        let copy = match (&mut self.copies[goes_to], &self.cold) {
            (Some(copy), _) => copy,
            (none, Some(cold)) if goes_to == COLD_PART => none.insert(files.go_on_with(cold)?),
            (none, _) => none.insert(files.begin_copy([COLLECTED, COLD][goes_to], self.region.number())?),
        };
        let to = copy.append(record)?;
        self.copied[goes_to] += u64::from(to.len);
        Ok(to)
    }

    /// Files of this group that are not collected.
    fn begun_since(&self, sources: &[Source], groups: &Groups) -> Vec<Arc<ValueFile>> {
        let mut files = groups.at(self.region.prefix).hot.files.clone();
        files.retain(|file| sources.iter().all(|source| source.file.id != file.id));
        files
    }

    /// Tells of the keys in what has come to these files.
    fn look_at(&mut self, files: &[Arc<ValueFile>], mut tell: impl FnMut(u64, &[u8])) -> Result<()> {
        for file in files {
            let at = self.seen.iter().position(|(id, _)| *id == file.id).unwrap_or_else(|| {
                self.seen.push((file.id, file.start()));
                self.seen.len() - 1
            });
            let end = file.len();
            let begin = std::mem::replace(&mut self.seen[at].1, end);
            let mut scan = Scan::new(file, begin, end, IoSource::Collection);
            while let Some((record, len)) = scan.sound()? {
                let hash = key_hash(record.key);
                tell(hash, record.key);
                let is_value = record.kind == ValueKind::Value;
                self.since.push(Since { hash, bytes: u64::from(len), is_value });
            }
        }
        Ok(())
    }

    /// From now on the copies are the group's files, and those that commits have begun since.
    fn take_effect(&self, unit: Unit, sources: &[Source], groups: &mut Groups) {
        let (clock, begun_since) = (groups.clock, self.begun_since(sources, groups));
        let group = groups.at_mut(self.region.prefix);
        let [(hot_live, hot_hashes), (cold_live, cold_hashes)] = &self.moved;
        let (hot_dead, cold_dead) = (self.copied[HOT] - hot_live, self.copied[COLD_PART] - cold_live);
        group.hot.files = self.hot.iter().cloned().chain(begun_since).collect();
        group.hot.recount(hot_hashes, *hot_live, hot_dead, clock);
        for &Since { hash, bytes, is_value } in &self.since {
            // In the cold part they were noted when they came.
            if is_value {
                group.hot.wrote(hash, bytes)
            } else {
                group.hot.ended(hash, bytes)
            };
        }
        if unit.hot_only {
            group.cold.add(cold_hashes, *cold_live, cold_dead);
        } else {
            group.cold.files.clear();
            group.cold.recount(cold_hashes, *cold_live, cold_dead, clock);
        }
        if let Some(cold) = &self.cold {
            if group.cold.files.iter().all(|file| file.id != cold.id) {
                group.cold.files.push(Arc::clone(cold));
            }
            group.cold.open = true;
        }
        group.busy = false;
    }
}

impl Drop for Regroup {
    fn drop(&mut self) {
        let mut state = self.state.hold();
        for region in &self.taken {
            state.groups.at_mut(region.prefix).busy = false;
        }
    }
}
