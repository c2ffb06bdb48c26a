//! GC of some groups (HashKV §3.3 and §3.4).
//!
//! ```text
//! from now on commits append to new files
//! the family's files ─▶ newest record of each key ─▶ alone in the hot segment?  no ─▶ the group's new hot file
//!                                                                            yes ─▶ its cold file,
//!                                                                                   or the cold log, and a tag here
//! a few at a time: moves of the keys that commits have not written meanwhile ─▶ the copies are the groups' files
//! ```
//!
//! A tag is a record of its key like any other: a value with a tag next to it was updated, so it is hot. The tag
//! stays here as long as it is the newest record of its key and the log has the file. Then the log learns what died.
//!
//! A run may end early: there is no room for a memtable, or something cannot be read. Some moves may be committed then,
//! so the groups keep the old files and the copies. A crash leaves the same.

mod copying;
mod leaf;
mod newest;
mod since;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex},
};

use bifold_contract::{FileId, Pointer, Result, SeqNo, planted};
use bifold_format::filter::key_hash;

use self::{
    copying::CopyContext,
    leaf::Leaf,
    newest::{COLD_LOG, Newest},
};
use super::{HashKvState, cold_log::End, units::FamilyUnit};
use crate::{
    parts::{
        buffers::Held,
        covered_ranges::CoveredRanges,
        key_table::KeyTable,
        segment_groups::{Groups, Region, Segment},
        sync::LockExt,
        value_files::{ValueFile, ValueFiles},
    },
    placement::{Commits, GcContext, GcOutcome, Moved},
    placements::ValueOptions,
};

/// Collects these units, which are groups.
pub(super) fn regroup(
    (files, state, options): (&Arc<ValueFiles>, &Mutex<HashKvState>, &ValueOptions),
    units: Vec<FamilyUnit>,
    gc: &dyn GcContext,
) -> Result<GcOutcome> {
    let held = files.buffers().hold(0, 0);
    let (taken, families) = (Vec::new(), VecDeque::new());
    let mut run = Regroup { files, state, options, ranges_upto: 0, taken, families, has_copies: false, held };
    run.copy(units, gc)?;
    run.note_memory();
    let mut freed = 0;
    while let Some(mut family) = run.families.pop_front() {
        let is_moved = run.move_all(&mut family, gc);
        if !matches!(is_moved, Ok(true)) {
            // Its groups keep the copies, like those of the others.
            run.families.push_front(family);
            is_moved?;
            break;
        }
        freed += family.freed_bytes();
    }
    Ok(GcOutcome::freed(freed))
}

/// A GC run on some families.
struct Regroup<'a> {
    files: &'a Arc<ValueFiles>,
    state: &'a Mutex<HashKvState>,
    options: &'a ValueOptions,
    /// The range deletes known when values were copied: those with numbers up to this.
    ranges_upto: SeqNo,
    /// The groups marked as busy with GC.
    taken: Vec<Region>,
    /// Families of which nothing has moved yet, and the one whose values are being moved.
    families: VecDeque<Family>,
    /// Readers find the copies.
    has_copies: bool,
    /// Memory for what is known of their keys.
    held: Held,
}

/// Moves committed under one hold of the lock: about half a millisecond.
const MOVES_AT_ONCE: usize = 512;

/// Groups that share files.
struct Family {
    unit: FamilyUnit,
    /// Nothing is appended to these any more.
    sources: Vec<GcSource>,
    leaves: Vec<Leaf>,
    keys: KeyTable<Newest>,
    /// Bytes in each file of the cold log whose tags are no longer the newest of their keys.
    ended: BTreeMap<FileId, u64>,
    copied: Vec<CopiedValue>,
    /// How far the files have been read that commits append to meanwhile.
    seen: BTreeMap<FileId, u64>,
    /// The moves before this one have been handed out.
    next: usize,
    /// All of them are committed.
    is_moved: bool,
}

/// A file that GC reads.
struct GcSource {
    file: Arc<ValueFile>,
    is_cold: bool,
}

/// A value that has been copied, or the tag of one.
struct CopiedValue {
    /// The number of its key.
    key: u32,
    /// The group of its key, among those of the family.
    leaf: u32,
    goes_to: u8,
    /// A commit has written the key since.
    is_old: bool,
    /// How long the value is.
    bytes: u32,
    /// Old and new place. `None`: it was in the cold log already, and only its tag was copied.
    moves: Option<(Pointer, Pointer)>,
}

impl Regroup<'_> {
    /// Copies the live values of these units.
    fn copy(&mut self, units: Vec<FamilyUnit>, gc: &dyn GcContext) -> Result<()> {
        let mut fresh = self.begin_files(&units)?;
        let mut copying = {
            let HashKvState { groups, ranges, cold_log, left_out, .. } = &mut *self.state.hold();
            self.ranges_upto = ranges.newest();
            let take = |unit| take((groups, left_out), unit, &mut fresh, &mut self.taken);
            self.families = units.into_iter().filter_map(take).collect();
            let log_files = cold_log.ids().collect();
            let log = cold_log.take_end(self.options.file_bytes, left_out);
            CopyContext {
                files: self.files,
                cold: self.options.hashkv.cold,
                ranges: Arc::clone(ranges.known()),
                log_files,
                log,
                index: gc.must_be_asked().then_some(gc),
            }
        };
        if copying.index.is_some() {
            // The last commit that appended to the old files must be in the index before that is asked.
            let _none_moves = gc.relocate(&[], &mut |_| {})?;
        }
        // New files of groups that have split meanwhile.
        self.files.mark_drained(fresh.into_values().map(|file| file.id), 0);
        for family in &mut self.families {
            family.copy(&mut copying)?;
        }
        let log = copying.log;
        self.finish_copies(log)
    }

    /// Counts the memory that the keys of these values take, also for the choice of the next run.
    fn note_memory(&mut self) {
        let of = |family: &Family| {
            let read: u64 = family.sources.iter().map(|source| source.file.len()).sum();
            let copied = family.copied.capacity() * size_of::<CopiedValue>();
            (read, (family.keys.memory_bytes() + copied) as u64)
        };
        let (read, memory) = self.families.iter().map(of).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        self.held.grow_to(memory as usize);
        if read > 0 {
            self.state.hold().gc_memory_share = memory as f64 / read as f64;
        }
    }

    /// Begins a file for each group, for commits to continue in. Done beforehand, because the system may take long to
    /// create a name, and a commit would wait for that.
    fn begin_files(&self, units: &[FamilyUnit]) -> Result<BTreeMap<Region, Arc<ValueFile>>> {
        let regions: BTreeSet<Region> = {
            let groups = &self.state.hold().groups;
            let members = units.iter().flat_map(|unit| members(groups, *unit));
            members.map(|member| groups.all()[member].region).collect()
        };
        let mut begun = BTreeMap::new();
        for region in regions {
            match self.files.begin(region.number()) {
                Ok(file) => drop(begun.insert(region, file)),
                Err(error) => {
                    self.files.mark_drained(begun.into_values().map(|file| file.id), 0);
                    return Err(error);
                }
            }
        }
        Ok(begun)
    }

    /// Lets readers find all copies.
    fn finish_copies(&mut self, log: End) -> Result<()> {
        let mut leaves: Vec<&mut Leaf> = self.families.iter_mut().flat_map(|family| &mut family.leaves).collect();
        let copies: Vec<_> = leaves.iter_mut().map(|leaf| leaf.copies.each_mut().map(Option::take)).collect();
        let there: Vec<[bool; 2]> = copies.iter().map(|copies| copies.each_ref().map(Option::is_some)).collect();
        let (log_copies, log_head) = log.into_parts();
        let copies = copies.into_iter().flatten().flatten().chain(log_copies);
        let Some(files) = self.files.finish_copies(copies.collect())? else {
            self.families.clear();
            return Ok(());
        };
        let mut files = files.into_iter();
        let mut fresh = Vec::new();
        for (leaf, [hot, cold]) in leaves.into_iter().zip(there) {
            let goes_on = leaf.cold.is_some();
            leaf.hot = if hot { files.next() } else { None };
            leaf.cold = if cold { files.next() } else { leaf.cold.take() };
            fresh.extend(leaf.hot.iter().chain(leaf.cold.iter().filter(|_| !goes_on)).map(|file| file.id));
        }
        let state = &mut *self.state.hold();
        fresh.into_iter().for_each(|file| state.ranges.note_copy(file, self.ranges_upto));
        state.cold_log.extend(log_head.into_iter().chain(files).collect(), state.groups.clock);
        self.has_copies = true;
        Ok(())
    }
}

/// The positions of a unit's groups.
fn members(groups: &Groups, unit: FamilyUnit) -> Vec<usize> {
    let at = groups.all().iter().position(|group| group.region == unit.region);
    at.map_or(Vec::new(), |at| groups.family(at, unit.hot_only))
}

/// Marks a unit's groups as busy: commits continue in `fresh` files. `None` when there is nothing to collect.
fn take(
    (groups, left_out): (&mut Groups, &BTreeSet<FileId>),
    unit: FamilyUnit,
    fresh: &mut BTreeMap<Region, Arc<ValueFile>>,
    taken: &mut Vec<Region>,
) -> Option<Family> {
    let members = members(groups, unit);
    let has_cold = members.iter().any(|&member| !groups.all()[member].cold.files.is_empty());
    let unit = FamilyUnit { hot_only: unit.hot_only && has_cold, ..unit };
    if members.is_empty() || members.iter().any(|&member| groups.all()[member].busy) {
        return None;
    }
    let mut sources: Vec<GcSource> = Vec::new();
    for &member in &members {
        let group = &groups.all()[member];
        let of = |segment: &Segment, is_cold| {
            let source = move |file: &Arc<ValueFile>| GcSource { file: Arc::clone(file), is_cold };
            segment.files.iter().map(source).collect::<Vec<_>>()
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
        let goes_on = |cold: &&Arc<ValueFile>| unit.hot_only && !left_out.contains(&cold.id);
        let cold = group.cold.head().filter(goes_on).cloned();
        // If this run is abandoned, nobody appends to it again.
        group.cold.open &= !unit.hot_only;
        Leaf::new(group.region, cold)
    });
    let leaves = leaves.collect();
    let (keys, ended) = (KeyTable::default(), BTreeMap::new());
    let (copied, seen) = (Vec::new(), BTreeMap::new());
    Some(Family { unit, sources, leaves, keys, ended, copied, seen, next: 0, is_moved: false })
}

impl Family {
    /// Bytes of its old files, without those of the copies.
    fn freed_bytes(&self) -> u64 {
        let drained: u64 = self.sources.iter().map(|source| source.file.len()).sum();
        let copied: u64 = self.leaves.iter().map(|leaf| leaf.copied.iter().sum::<u64>() + leaf.tag_bytes).sum();
        drained.saturating_sub(copied)
    }

    /// The next moves, without keys that range deletes have covered since.
    fn next_moves(&mut self, later: Option<&CoveredRanges>) -> Vec<Moved> {
        let some = self.next..self.copied.len().min(self.next + MOVES_AT_ONCE);
        self.next = some.end;
        let mut moves = Vec::with_capacity(some.len());
        for copied in &self.copied[some] {
            let (goes_to, value_bytes) = (usize::from(copied.goes_to), u64::from(copied.bytes));
            let (key, leaf) = (self.keys.key(copied.key), &mut self.leaves[copied.leaf as usize]);
            let is_old = copied.is_old && !planted!("move_over_newer");
            if is_old || later.is_some_and(|ranges| ranges.covers(key, self.keys.at(copied.key).seqno)) {
                leaf.tagged_dead += if goes_to == COLD_LOG { value_bytes } else { 0 };
                continue;
            }
            let (bytes, hashes) = &mut leaf.moved[goes_to];
            *bytes += value_bytes;
            hashes.push(self.keys.hash(copied.key));
            moves.extend(copied.moves.map(|(from, to)| Moved { key: key.into(), from, to }));
        }
        moves
    }

    /// A move that was handed out is not committed: nobody has written the key since, so its entry has vanished. The
    /// copy is dead.
    fn take_back(&mut self, vanished: &Moved) {
        let hash = key_hash(&vanished.key);
        let number = self.keys.find(hash, &vanished.key);
        let Some(at) = number.and_then(|number| self.keys.at(number).copied) else { return };
        let copied = &self.copied[at.get() as usize - 1];
        let (goes_to, bytes, leaf) = (usize::from(copied.goes_to), u64::from(copied.bytes), copied.leaf as usize);
        let leaf = &mut self.leaves[leaf];
        let (live, hashes) = &mut leaf.moved[goes_to];
        *live -= bytes;
        // It is one of the last. The filter forgets the key: its next value replaces nothing.
        if let Some(at) = hashes.iter().rposition(|of| *of == hash) {
            hashes.swap_remove(at);
        }
        if goes_to == COLD_LOG {
            leaf.tagged_dead += bytes;
        }
    }
}

impl Regroup<'_> {
    /// Moves the values of a family. Returns `false` when the keyspace was dropped.
    fn move_all(&self, family: &mut Family, gc: &dyn GcContext) -> Result<bool> {
        while !family.is_moved {
            // Most of what commits have written meanwhile, and all of an ingest, is read without the commit lock.
            family.pass_over_since(self.state)?;
            let mut read = Ok(());
            let is_there = gc.hold_commits(&mut |commits| {
                read = family.pass_over_since(self.state);
                if read.is_ok() { self.move_some(family, commits) } else { Ok(()) }
            })?;
            // Returned here: what fails under the lock ends writes, and reading has changed nothing.
            read?;
            if !is_there {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Moves the next values of a family. Once the last are committed, the copies are the files of its groups.
    fn move_some(&self, family: &mut Family, commits: &mut dyn Commits) -> Result<()> {
        let moved = {
            let state = self.state.hold();
            let later = (state.ranges.newest() > self.ranges_upto).then(|| &**state.ranges.known());
            family.next_moves(later)
        };
        let last = commits.commit(&moved, &mut |vanished| {
            if !planted!("vanished_moves_count") {
                family.take_back(vanished);
            }
        })?;
        if family.next == family.copied.len() {
            let state = &mut *self.state.hold();
            family.leaves.iter().for_each(|leaf| leaf.take_effect(family.unit, &family.sources, &mut state.groups));
            family.ended.iter().for_each(|(&file, &bytes)| state.cold_log.note_dead(file, bytes));
            self.files.mark_drained(family.sources.iter().map(|source| source.file.id), last);
            family.is_moved = true;
        }
        Ok(())
    }
}

impl Drop for Regroup<'_> {
    fn drop(&mut self) {
        let groups = &mut self.state.hold().groups;
        if self.has_copies && !planted!("forget_abandoned_copies") {
            // A copy of no group would come back from the manifest, above all that has become of its key meanwhile.
            let unmoved = self.families.iter().flat_map(|family| &family.leaves);
            unmoved.for_each(|leaf| leaf.keep_copies(groups));
        }
        // A run that is abandoned again and again would leave a file each time.
        let abandon = |region: &Region| groups.at_mut(region.prefix).abandon_gc();
        let unused: Vec<FileId> = self.taken.iter().filter_map(abandon).collect();
        self.files.mark_drained(unused.into_iter(), 0);
    }
}
