//! The collection of some groups (HashKV §3.3 and §3.4).
//!
//! ```text
//! from now on commits append to new files ─▶ sync
//! the family's files ─▶ newest record of each key ─▶ alone in the hot part?  no ─▶ the group's new hot file
//!                                                                            yes ─▶ its cold file
//! ```

use std::sync::{Arc, Mutex};

use bifold_contract::{
    FileId, IoSource, Pointer, RangeTombstone, Result, SeqNo, ValueEdit,
    placement::{Collecting, IndexView, Moved, Moves},
};
use bifold_format::{
    filter::key_hash,
    value::{ValueKind, ValueRecord},
};

use super::{State, units::Unit};
use crate::{
    parts::{
        hash_map::HashMap,
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
    /// All that is collected was committed up to here.
    durable: SeqNo,
    /// The groups marked as being collected.
    taken: Vec<Region>,
    leaves: Vec<Leaf>,
    next: usize,
    /// All moves of this leaf have been handed out.
    done: Option<usize>,
}

/// Moves that are committed under one hold of the lock: about half a millisecond.
const MOVES_AT_ONCE: usize = 256;

/// One group of a family.
struct Leaf {
    unit: Unit,
    region: Region,
    hot: Option<Arc<ValueFile>>,
    cold: Option<Arc<ValueFile>>,
    /// While it is copied.
    copies: [Option<Copy>; 2],
    /// Bytes copied to each.
    copied: [u64; 2],
    /// The values copied, as far as their moves have not been handed out.
    values: HashMap<Box<[u8]>, Copied>,
    /// Of the moves handed out, for the hot and the cold file: bytes, and the hashes of the keys.
    moved: [(u64, Vec<u64>); 2],
    /// What commits have written since the collection began, and up to where their files have been looked at.
    since: Vec<Since>,
    seen: HashMap<FileId, u64>,
    /// The family's files. Nothing is appended to them any more.
    sources: Arc<Vec<Source>>,
    /// No other group of the family comes after this one.
    is_last: bool,
}

/// A file to collect.
struct Source {
    file: Arc<ValueFile>,
    is_cold: bool,
}

#[derive(Clone, Copy)]
struct Copied {
    seqno: SeqNo,
    from: Pointer,
    to: Pointer,
    is_cold: bool,
}

/// The newest record of a key: its number and where it stands.
#[derive(Clone, Copy)]
struct Newest {
    seqno: SeqNo,
    file: FileId,
    offset: u64,
    /// Records of the key in the hot part, so far.
    hot_records: u32,
}

impl Newest {
    /// Where the record goes: updated since the last collection, or not.
    fn goes_to(&self) -> usize {
        if self.hot_records > 1 { HOT } else { COLD_PART }
    }
}

const HOT: usize = 0;
const COLD_PART: usize = 1;

impl Regroup {
    /// Nothing yet.
    pub fn begin(files: &Arc<ValueFiles>, state: &Arc<Mutex<State>>, options: &ValueOptions) -> Self {
        Self {
            files: Arc::clone(files),
            state: Arc::clone(state),
            cold_parts: options.cold_parts,
            durable: 0,
            taken: Vec::new(),
            leaves: Vec::new(),
            next: 0,
            done: None,
        }
    }

    /// Copies what is live of these units.
    pub fn copy(&mut self, units: impl Iterator<Item = Unit>, view: &dyn IndexView) -> Result<()> {
        for unit in units {
            self.take(unit);
        }
        self.durable = view.make_durable()?;
        let ranges = self.state.hold().ranges.clone();
        let mut at = 0;
        while at < self.leaves.len() {
            let family =
                self.leaves[at..].iter().position(|leaf| leaf.is_last).map_or(self.leaves.len(), |n| at + n + 1);
            self.copy_family(at, family, &ranges)?;
            at = family;
        }
        self.finish_copies()
    }

    /// Marks a unit's groups as being collected, one leaf for each. Commits go on in new files.
    fn take(&mut self, unit: Unit) {
        let groups = &mut self.state.hold().groups;
        let Some(at) = groups.all().iter().position(|group| group.region == unit.region) else { return };
        let members = groups.family(at, unit.hot_only);
        let has_cold = members.iter().any(|&member| !groups.all()[member].cold.files.is_empty());
        let unit = Unit { hot_only: unit.hot_only && has_cold, ..unit };
        if members.iter().any(|&member| groups.all()[member].busy) {
            return;
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
        let sources = Arc::new(sources);
        for (n, &member) in members.iter().enumerate() {
            let group = &mut groups.all_mut()[member];
            group.busy = true;
            group.hot.open = false;
            self.taken.push(group.region);
            let cold = group.cold.head().filter(|_| unit.hot_only).cloned();
            // Should this collection be given up, nobody goes on with it.
            group.cold.open &= !unit.hot_only;
            self.leaves.push(Leaf {
                unit,
                region: group.region,
                hot: None,
                cold,
                copies: [None, None],
                copied: [0, 0],
                values: HashMap::default(),
                moved: Default::default(),
                since: Vec::new(),
                seen: HashMap::default(),
                sources: Arc::clone(&sources),
                is_last: n + 1 == members.len(),
            });
        }
    }

    /// Copies what counts of a family's files, each record to the files of its group.
    fn copy_family(&mut self, begin: usize, end: usize, ranges: &[RangeTombstone]) -> Result<()> {
        let Some(leaf) = self.leaves.get(begin) else { return Ok(()) };
        let (sources, hot_only) = (Arc::clone(&leaf.sources), leaf.unit.hot_only);
        let newest = newest(&sources, ranges)?;
        let mut counting: Vec<(FileId, u64, usize)> =
            newest.values().map(|n| (n.file, n.offset, if self.cold_parts { n.goes_to() } else { HOT })).collect();
        counting.sort_unstable();
        let mut counting = counting.into_iter().peekable();
        for Source { file, .. } in &*sources {
            let mut scan = Scan::new(file, file.start(), file.len(), IoSource::Collection);
            while let Some((_, offset, goes_to)) = counting.next_if(|&(id, ..)| id == file.id) {
                scan.skip_to(offset);
                let Some((record, len)) = scan.sound()? else { break };
                // A note says that older values are dead. Without the cold part, some may be there.
                if record.kind != ValueKind::Value && !hot_only {
                    continue;
                }
                let hash = key_hash(record.key);
                let leaf = self.leaves[begin..end].iter_mut().find(|leaf| leaf.region.covers(hash));
                let Some(leaf) = leaf else { continue };
                let from = Pointer { file: file.id, epoch: 0, offset: record.offset, len };
                leaf.copy(&self.files, &record, from, goes_to)?;
            }
        }
        Ok(())
    }

    /// Makes all copies durable together.
    fn finish_copies(&mut self) -> Result<()> {
        let take = |leaf: &mut Leaf| leaf.copies.each_mut().map(Option::take);
        let copies: Vec<_> = self.leaves.iter_mut().map(take).collect();
        let there: Vec<[bool; 2]> = copies.iter().map(|copies| copies.each_ref().map(Option::is_some)).collect();
        let Some(files) = self.files.finish_copies(copies.into_iter().flatten().flatten().collect())? else {
            self.leaves.clear();
            return Ok(());
        };
        let mut files = files.into_iter();
        for (leaf, [hot, cold]) in self.leaves.iter_mut().zip(there) {
            leaf.hot = if hot { files.next() } else { None };
            leaf.cold = if cold { files.next() } else { leaf.cold.take() };
        }
        Ok(())
    }
}

/// The newest record of each key (§3.3: "the latest version counts").
fn newest(sources: &[Source], ranges: &[RangeTombstone]) -> Result<HashMap<Box<[u8]>, Newest>> {
    let mut newest: HashMap<Box<[u8]>, Newest> = HashMap::default();
    for Source { file, is_cold } in sources {
        let mut scan = Scan::new(file, file.start(), file.len(), IoSource::Collection);
        while let Some((record, _)) = scan.sound()? {
            let (seqno, hot_records) = (record.seqno, u32::from(!is_cold));
            let this = Newest { seqno, file: file.id, offset: record.offset, hot_records };
            match newest.get_mut(record.key) {
                Some(known) => {
                    let hot_records = known.hot_records + hot_records;
                    let best = if known.seqno >= this.seqno { *known } else { this };
                    *known = Newest { hot_records, ..best };
                }
                None => drop(newest.insert(record.key.into(), this)),
            }
        }
    }
    newest.retain(|key, n| !is_covered(ranges, key, n.seqno));
    Ok(newest)
}

fn is_covered(ranges: &[RangeTombstone], key: &[u8], seqno: SeqNo) -> bool {
    ranges.iter().any(|range| range.seqno > seqno && range.contains(key))
}

impl Collecting for Regroup {
    fn edit(&self) -> ValueEdit {
        let cold = self.leaves.iter().filter(|leaf| leaf.copied[COLD_PART] > 0).filter_map(|leaf| leaf.cold.clone());
        let outputs: Vec<_> = self.leaves.iter().flat_map(|leaf| leaf.hot.clone()).chain(cold).collect();
        self.files.added(&outputs)
    }

    fn advance(&mut self) -> Result<Option<Moves>> {
        let Some(leaf) = self.leaves.get_mut(self.next) else { return Ok(None) };
        let state = &mut *self.state.hold();
        leaf.pass_over_since(&state.groups)?;
        let later: Vec<&RangeTombstone> = state.ranges.iter().filter(|range| range.seqno > self.durable).collect();
        if !later.is_empty() {
            leaf.values.retain(|key, copied| !later.iter().any(|range| range.seqno > copied.seqno && range.contains(key)));
        }
        let moved = leaf.next_moves();
        if leaf.values.is_empty() {
            leaf.take_effect(&mut state.groups);
            self.done = Some(self.next);
            self.next += 1;
        }
        Ok(Some(Moves { moved, check: false }))
    }

    fn refused(&mut self, _moved: &Moved) {}

    fn committed(&mut self, last: SeqNo) {
        let Some(leaf) = self.done.take().map(|at| &self.leaves[at]).filter(|leaf| leaf.is_last) else { return };
        leaf.sources.iter().for_each(|source| self.files.empty(source.file.id, last));
    }
}

impl Leaf {
    /// Copies one record to the hot or to the cold file.
    fn copy(&mut self, files: &ValueFiles, record: &ValueRecord<'_>, from: Pointer, goes_to: usize) -> Result<()> {
        let copy = match (&mut self.copies[goes_to], &self.cold) {
            (Some(copy), _) => copy,
            (none, Some(cold)) if goes_to == COLD_PART => none.insert(files.go_on_with(cold)?),
            (none, _) => none.insert(files.begin_copy([COLLECTED, COLD][goes_to], self.region.number())?),
        };
        let to = copy.append(record)?;
        self.copied[goes_to] += u64::from(to.len);
        if record.kind == ValueKind::Value {
            let copied = Copied { seqno: record.seqno, from, to, is_cold: goes_to == COLD_PART };
            self.values.insert(record.key.into(), copied);
        }
        Ok(())
    }

    /// Keys that commits have written since stay where those put them.
    fn pass_over_since(&mut self, groups: &Groups) -> Result<()> {
        for file in self.begun_since(groups) {
            let seen = self.seen.entry(file.id).or_insert(file.start());
            let mut scan = Scan::new(&file, *seen, file.len(), IoSource::Collection);
            while let Some((record, len)) = scan.sound()? {
                self.values.remove(record.key);
                let is_value = record.kind == ValueKind::Value;
                self.since.push(Since { hash: key_hash(record.key), bytes: u64::from(len), is_value });
            }
            *seen = file.len();
        }
        Ok(())
    }

    /// Some of the moves that are left.
    fn next_moves(&mut self) -> Vec<Moved> {
        let mut moves = Vec::with_capacity(MOVES_AT_ONCE.min(self.values.len()));
        for (key, copied) in self.values.extract_if(|_, _| true).take(MOVES_AT_ONCE) {
            let (bytes, hashes) = &mut self.moved[usize::from(copied.is_cold)];
            *bytes += u64::from(copied.to.len);
            hashes.push(key_hash(&key));
            moves.push(Moved { key, from: copied.from, to: copied.to });
        }
        moves
    }

    /// Files of this group that are not collected.
    fn begun_since(&self, groups: &Groups) -> Vec<Arc<ValueFile>> {
        let mut files = groups.at(self.region.prefix).hot.files.clone();
        files.retain(|file| self.sources.iter().all(|source| source.file.id != file.id));
        files
    }

    /// From now on the copies are the group's files, and those that commits have begun since.
    fn take_effect(&self, groups: &mut Groups) {
        let (clock, begun_since) = (groups.clock, self.begun_since(groups));
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
        if self.unit.hot_only {
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

/// A record that a commit has written during the collection.
struct Since {
    hash: u64,
    bytes: u64,
    is_value: bool,
}

impl Drop for Regroup {
    fn drop(&mut self) {
        let mut state = self.state.hold();
        for region in &self.taken {
            state.groups.at_mut(region.prefix).busy = false;
        }
    }
}
