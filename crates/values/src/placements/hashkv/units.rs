//! What GC picks: groups, their hot segments alone, or files of the cold log (HashKV §3.3 and §3.4).

use bifold_contract::FileId;

use super::HashKvState;
use crate::{
    parts::{
        segment_groups::{Group, Groups, Region, Segment},
        value_files::{UNREADABLE, ValueFile},
        victim::{self, Candidate},
    },
    placement::Explained,
    placements::{ValueOptions, hashkv::options::Cold},
};

/// A GC run copies at most this share of all values: drained files stay on disk until the next sync.
const COPY_SHARE: u64 = 64;

/// A run frees this share more than it must, so that the next one is not due at once.
const FREE_SHARE: u64 = 96;

/// In a small database a run may exceed both.
const COPY_BYTES_MIN: u64 = 4 << 20;
const FREE_BYTES_MIN: u64 = 256 << 10;

/// A run frees so many bytes more than it must for each group, because a sync follows it that covers a file of each;
/// but not more than this share of all values. Of 64 MiB in 95 groups, a run then frees 4 MiB instead of 1.
const FREE_BYTES_PER_GROUP: u64 = 64 << 10;
const FREE_SHARE_MAX: u64 = 24;

/// What a run knows of keys may always take so much memory: many small groups share a sync.
const MEMORY_MIN: u64 = 1 << 20;

/// Groups in one run when GC takes everything.
const GROUPS_AT_ONCE: usize = 16;

/// A unit is not worth GC if less than this share of it is dead.
const DEAD_SHARE: u64 = 16;

/// Files of the cold log, likewise.
const LOG_FILES_AT_ONCE: usize = 4;

/// A unit of GC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Groups, or their hot segments.
    Family(FamilyUnit),
    /// A file of the cold log.
    File(FileId),
    /// The files of range deletes.
    Ranges,
}

/// A group with those it shares files with, or their hot segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FamilyUnit {
    /// One of the groups.
    pub region: Region,
    /// Their cold segments stay as they are.
    pub hot_only: bool,
}

impl Unit {
    /// A number that no other unit has, with its kind in the last two bits.
    fn number(self) -> u64 {
        match self {
            Self::Family(family) => family.region.number() << 2 | u64::from(family.hot_only),
            Self::File(file) => file << 2 | 2,
            Self::Ranges => 3,
        }
    }

    /// The file, if this is one.
    pub fn file(self) -> Option<FileId> {
        if let Self::File(file) = self { Some(file) } else { None }
    }

    /// The groups, if these are some.
    pub fn family(self) -> Option<FamilyUnit> {
        if let Self::Family(family) = self { Some(family) } else { None }
    }
}

impl FamilyUnit {
    fn segments(self, group: &Group) -> impl Iterator<Item = &Segment> {
        [Some(&group.hot), Some(&group.cold).filter(|_| !self.hot_only)].into_iter().flatten()
    }
}

/// A unit that GC is to take.
pub(super) struct Picked {
    pub unit: Unit,
    /// Bytes that it copies at most, as far as known or estimated.
    pub live_bytes: u64,
    /// The files that it reads.
    pub files: Vec<FileId>,
}

impl Picked {
    fn family(family: &FamilyCandidate, groups: &Groups) -> Self {
        let files = describe(groups, family.unit, &family.members).1;
        Self { unit: family.unit, live_bytes: family.candidate.live, files }
    }

    fn ranges() -> Self {
        Self { unit: Unit::Ranges, live_bytes: 0, files: Vec::new() }
    }
}

/// A few groups with files that old or, when there are none, a few such files of the cold log.
pub(super) fn begun_before(state: &HashKvState, before: FileId) -> Vec<Picked> {
    let units = with_file(state, |file| file.id < before);
    let log = state.cold_log.begun_before(before).filter(|(file, _)| !state.left_out.contains(file));
    let of_log = |(file, live_bytes)| Picked { unit: Unit::File(file), live_bytes, files: vec![file] };
    match () {
        () if !units.is_empty() => units,
        () if state.ranges.begun_before(before) => vec![Picked::ranges()],
        () => log.take(LOG_FILES_AT_ONCE).map(of_log).collect(),
    }
}

/// A few whole groups with a file for which this holds.
fn with_file(state: &HashKvState, is_old: impl Fn(&ValueFile) -> bool) -> Vec<Picked> {
    let groups = &state.groups;
    let has_old = |&at: &usize| groups.all()[at].files().any(|file| is_old(file));
    let can_be = |family: &FamilyCandidate| !family.is_stuck && family.members.iter().any(has_old);
    let old = families(state, false).into_iter().filter(can_be);
    old.take(GROUPS_AT_ONCE).map(|family| Picked::family(&family, groups)).collect()
}

/// What to collect to free about `over` bytes of `total`, unless a snapshot pins what was freed before; and what
/// range deletes ask for.
pub(super) fn due(
    options: &ValueOptions,
    state: &HashKvState,
    (over, is_pinned): (u64, bool),
    (total, memory_max): (u64, u64),
) -> Vec<Picked> {
    if state.ranges.is_rewrite_due() {
        return vec![Picked::ranges()];
    }
    if is_pinned {
        return Vec::new();
    }
    let units =
        if state.ranges.are_many() { with_file(state, |file| state.ranges.are_drained_by(file)) } else { Vec::new() };
    if units.is_empty() && over > 0 { choose(options, state, over, (total, memory_max)) } else { units }
}

/// The units to collect to free about `over` bytes of `total`. What GC knows of their keys takes at most `memory_max`
/// bytes, or one unit is taken.
fn choose(options: &ValueOptions, state: &HashKvState, over: u64, (total, memory_max): (u64, u64)) -> Vec<Picked> {
    let groups = &state.groups;
    let mut families = candidates(options, state);
    families.retain(|family| !family.is_stuck);
    let candidates: Vec<Candidate> = families.iter().map(|family| family.candidate).collect();
    let mut taken = vec![false; groups.all().len()];
    let for_sync = (groups.all().len() as u64 * FREE_BYTES_PER_GROUP).min(total / FREE_SHARE_MAX);
    let enough = over + for_sync.max(total / FREE_SHARE).max(FREE_BYTES_MIN);
    let (mut freed, mut copied) = (0, 0);
    let mut units: Vec<Picked> = Vec::new();
    for (at, _score) in victim::rank(options.hashkv.victim, &candidates, groups.clock) {
        let FamilyCandidate { unit, members, candidate, .. } = &families[at];
        // Groups and files of the log are collected in different ways, so not in one run.
        let is_other = units.first().is_some_and(|first| first.unit.file().is_some() != unit.file().is_some());
        if !worth(candidate) || is_other || members.iter().any(|&member| taken[member]) {
            continue;
        }
        if freed >= enough || copied > (total / COPY_SHARE).max(COPY_BYTES_MIN) {
            break;
        }
        let memory = (freed + copied + candidate.dead + candidate.live) as f64 * state.gc_memory_share;
        if memory > memory_max.max(MEMORY_MIN) as f64 && !units.is_empty() {
            break;
        }
        freed += candidate.dead;
        copied += candidate.live;
        members.iter().for_each(|&member| taken[member] = true);
        units.push(Picked::family(&families[at], groups));
    }
    units
}

/// Each unit: what is in it, and whether it is among the `next`.
pub(super) fn explain(
    options: &ValueOptions,
    state: &HashKvState,
    next: &[Picked],
    reason: &'static str,
) -> Vec<Explained> {
    let explained = |FamilyCandidate { unit, members, candidate, is_stuck }: FamilyCandidate| {
        let (number, is_next) = (unit.number(), next.iter().any(|picked| picked.unit == unit));
        let (unit, files) = describe(&state.groups, unit, &members);
        Explained {
            unit,
            files,
            total_bytes: candidate.live + candidate.dead,
            live_bytes: candidate.live,
            age_bytes: (candidate.rest / candidate.dead.max(1) as f64) as u64,
            score: options.hashkv.victim.score(&candidate, number),
            held: match () {
                () if is_stuck => Some(UNREADABLE),
                () if is_next => None,
                () if !worth(&candidate) => Some("less than a sixteenth of it is dead"),
                () => Some(reason),
            },
        }
    };
    let mut all: Vec<Explained> = candidates(options, state).into_iter().map(explained).collect();
    all.sort_by(|a, b| b.score.total_cmp(&a.score));
    all
}

/// Live bytes in the largest unit.
pub(super) fn largest(options: &ValueOptions, state: &HashKvState) -> u64 {
    all(options, state).into_iter().map(|family| family.candidate.live).max().unwrap_or(0)
}

/// The candidates, and each family as a whole: GC takes a family if it takes all its groups.
fn all(options: &ValueOptions, state: &HashKvState) -> Vec<FamilyCandidate> {
    let mut all = candidates(options, state);
    all.retain(|family| family.unit.family().is_none_or(|unit| unit.hot_only));
    all.extend(families(state, false));
    all
}

/// The name of a unit, and its files.
fn describe(groups: &Groups, unit: Unit, members: &[usize]) -> (String, Vec<FileId>) {
    match unit {
        Unit::Ranges => ("range deletes".to_owned(), Vec::new()),
        Unit::File(file) => (format!("file {file} (cold log)"), vec![file]),
        Unit::Family(family) => {
            let segments = members.iter().flat_map(|&at| family.segments(&groups.all()[at]));
            let mut files: Vec<FileId> = segments.flat_map(|segment| &segment.files).map(|file| file.id).collect();
            files.sort_unstable();
            files.dedup();
            let half = if family.hot_only { " (hot segment)" } else { "" };
            (format!("group {:x}{half}", family.region.number()), files)
        }
    }
}

fn worth(candidate: &Candidate) -> bool {
    candidate.dead > 0 && candidate.dead * DEAD_SHARE >= candidate.live + candidate.dead
}

/// What GC leaves as it is, whatever space it takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uncollected {
    pub bytes: u64,
    /// Of these, what is dead.
    pub dead_bytes: u64,
}

impl Uncollected {
    fn add(&mut self, live: u64, dead: u64) {
        self.bytes += live + dead;
        self.dead_bytes += dead;
    }
}

/// How much GC does not take: what it cannot read, and a cold log whose size nothing limits.
pub(super) fn uncollected(options: &ValueOptions, state: &HashKvState) -> Uncollected {
    let mut uncollected = Uncollected::default();
    let is_unlimited = options.hashkv.cold == Cold::UnlimitedLog;
    if is_unlimited {
        let live = live_in_log(state);
        uncollected.add(live, state.cold_log.bytes() - live);
    }
    if !state.left_out.is_empty() {
        add_stuck(&mut uncollected, options.hashkv.cold == Cold::Segments, state);
        let is_counted = |id: &FileId| is_unlimited || !state.left_out.contains(id);
        let of_log = state.cold_log.candidates(state.groups.clock).filter(|(id, _)| !is_counted(id));
        of_log.for_each(|(_, candidate)| uncollected.add(candidate.live, candidate.dead));
    }
    uncollected
}

/// Bytes of the cold log that are not known to be dead, neither by the log nor by tags that it has not read.
pub(super) fn live_in_log(state: &HashKvState) -> u64 {
    let ended: u64 = state.groups.all().iter().map(|group| group.tagged.dead).sum();
    state.cold_log.live().saturating_sub(ended)
}

/// Adds the groups that GC cannot take. The newest record of a key must be found among all files of its group, so
/// one file blocks all others of its family.
fn add_stuck(uncollected: &mut Uncollected, with_cold_segments: bool, state: &HashKvState) {
    let groups = &state.groups;
    // Hot segments are collected alone where there are cold ones.
    let halves = [(true, with_cold_segments, false), (false, !with_cold_segments, true)];
    for (hot_only, takes_hot, takes_cold) in halves {
        for (unit, members) in all_families(groups, hot_only) {
            if !is_stuck(state, unit, &members) {
                continue;
            }
            for group in members.iter().map(|&at| &groups.all()[at]) {
                if takes_hot {
                    uncollected.add(group.hot.live + group.tag_bytes, group.hot.dead);
                }
                if takes_cold {
                    uncollected.add(group.cold.live, group.cold.dead);
                }
            }
        }
    }
}

/// Whether a family has a file that is left out.
fn is_stuck(state: &HashKvState, unit: FamilyUnit, members: &[usize]) -> bool {
    let segments = members.iter().flat_map(|&at| unit.segments(&state.groups.all()[at]));
    !state.left_out.is_empty()
        && segments.flat_map(|segment| &segment.files).any(|file| state.left_out.contains(&file.id))
}

/// A unit, the positions of its groups, and what is in it.
struct FamilyCandidate {
    unit: Unit,
    members: Vec<usize>,
    candidate: Candidate,
    /// Something in it cannot be read.
    is_stuck: bool,
}

fn candidates(options: &ValueOptions, state: &HashKvState) -> Vec<FamilyCandidate> {
    let groups = &state.groups;
    let with_parts = options.hashkv.cold == Cold::Segments;
    let hot = if with_parts { families(state, true) } else { Vec::new() };
    // Without a cold segment, the hot one is everything.
    let has_cold = |family: &FamilyCandidate| family.members.iter().any(|&at| !groups.all()[at].cold.files.is_empty());
    let all = families(state, false).into_iter().filter(|family| !with_parts || has_cold(family));
    let of_log = state.cold_log.candidates(groups.clock);
    let is_limited = options.hashkv.cold != Cold::UnlimitedLog;
    let of_log = of_log.filter(|(_, candidate)| is_limited || candidate.live == 0).map(|(id, candidate)| {
        let is_stuck = state.left_out.contains(&id);
        FamilyCandidate { unit: Unit::File(id), members: Vec::new(), candidate, is_stuck }
    });
    hot.into_iter().chain(all).chain(of_log).collect()
}

/// The units of one kind that GC does not have already.
fn families(state: &HashKvState, hot_only: bool) -> Vec<FamilyCandidate> {
    let groups = &state.groups;
    let is_idle = |members: &[usize]| members.iter().all(|&member| !groups.all()[member].busy);
    let idle = all_families(groups, hot_only).into_iter().filter(|(_, members)| is_idle(members));
    let family = |(unit, members): (FamilyUnit, Vec<usize>)| {
        let candidate = sum_up(unit, groups.clock, members.iter().map(|&member| &groups.all()[member]));
        FamilyCandidate { unit: Unit::Family(unit), is_stuck: is_stuck(state, unit, &members), members, candidate }
    };
    idle.map(family).collect()
}

/// All units of one kind, with the positions of their groups.
fn all_families(groups: &Groups, hot_only: bool) -> Vec<(FamilyUnit, Vec<usize>)> {
    let mut seen = vec![false; groups.all().len()];
    let mut families = Vec::new();
    for at in 0..seen.len() {
        if seen[at] {
            continue;
        }
        let members = groups.family(at, hot_only);
        members.iter().for_each(|&member| seen[member] = true);
        families.push((FamilyUnit { region: groups.all()[at].region, hot_only }, members));
    }
    families
}

/// What is in a unit. Tags are copied with it. What is dead in the cold log is freed by GC of the log.
fn sum_up<'a>(unit: FamilyUnit, clock: u64, groups: impl Iterator<Item = &'a Group>) -> Candidate {
    let mut sum = Candidate { live: 0, dead: 0, written: 0, rest: 0.0 };
    for group in groups {
        sum.live += group.tag_bytes;
        sum.add_dead(group.tagged.dead, clock - group.hot.last_gc);
        for segment in unit.segments(group) {
            sum.live += segment.live;
            sum.written += segment.written;
            sum.add_dead(segment.dead, clock - segment.last_gc);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bifold_io::memory::MemoryFs;

    use super::*;
    use crate::{
        parts::{sync::LockExt, value_files::scratch::value_files},
        placements::{Settings, hashkv::HashKv},
    };

    /// What GC takes of many groups that are all half dead, if the run before took so much memory for a byte.
    fn taken(gc_memory_share: f64, memory_max: u64) -> usize {
        let files = Arc::new(value_files(&MemoryFs::new(), 100));
        let options = ValueOptions::default();
        let hashkv = HashKv::open(&files, &Settings::new(options)).unwrap();
        let mut state = hashkv.state.hold();
        state.groups = Groups::new(6, &[], &hashkv.filters);
        state.gc_memory_share = gc_memory_share;
        for at in 0..1 << 6 {
            let hot = &mut state.groups.at_mut(at).hot;
            (hot.live, hot.dead, hot.written) = (1 << 20, 1 << 20, 2 << 20);
        }
        choose(&options, &state, 32 << 20, (1 << 30, memory_max)).len()
    }

    #[test]
    fn what_gc_knows_of_keys_takes_as_much_memory_as_allowed_or_one_unit_is_taken() {
        let without = taken(0.0, 0);
        assert!(without > 8, "{without}: as much as the run is to free");
        // Half a byte for each of 2 MiB: a MiB for a unit.
        assert_eq!(taken(0.5, 8 << 20), 8);
        assert_eq!(taken(0.5, 0), 1, "so much is always allowed");
        assert_eq!(taken(100.0, 8 << 20), 1, "one is always taken");
        assert_eq!(taken(0.001, 8 << 20), without);
    }
}
