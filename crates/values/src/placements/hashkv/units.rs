//! Which groups to collect, and which half of them (HashKV §3.3 and §3.4).

use bifold_contract::{FileId, placement::Explained};

use crate::{
    parts::{
        segment_groups::{Group, Groups, Part, Region},
        victim::{self, Candidate},
    },
    placements::ValueOptions,
};

/// A collection copies at most this share of all values: what is emptied stays on the disk until the next sync.
const COPY_SHARE: u64 = 64;

/// It frees this share more than it must, so that the next one is not due at once.
const FREE_SHARE: u64 = 96;

/// But in a small database more than both: a collection begins with a sync of every file.
const COPY_BYTES_MIN: u64 = 4 << 20;
const FREE_BYTES_MIN: u64 = 256 << 10;

/// Groups of one collection of everything.
const GROUPS_AT_ONCE: usize = 16;

/// A unit is not collected for less than this share of it.
const DEAD_SHARE: u64 = 16;

/// What is collected by itself: a group with those it shares files with, or the hot part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// One of the groups.
    pub region: Region,
    /// Their cold parts stay as they are.
    pub hot_only: bool,
}

impl Unit {
    /// As a number.
    pub fn number(self) -> u64 {
        self.region.number() << 1 | u64::from(self.hot_only)
    }

    /// The unit of a number, if it is one.
    pub fn of(number: u64) -> Option<Self> {
        Some(Self { region: Region::of(number >> 1)?, hot_only: number & 1 == 1 })
    }

    fn parts(self, group: &Group) -> impl Iterator<Item = &Part> {
        [Some(&group.hot), Some(&group.cold).filter(|_| !self.hot_only)].into_iter().flatten()
    }
}

/// A few groups with files that old.
pub(super) fn begun_before(groups: &Groups, before: FileId) -> Vec<Unit> {
    let is_old = |group: &Group| group.files().any(|file| file.id < before);
    let all = families(groups, false).into_iter();
    let old = all.filter(|family| family.members.iter().any(|&at| is_old(&groups.all()[at])));
    old.take(GROUPS_AT_ONCE).map(|family| family.unit).collect()
}

/// The units to collect so that about `over` bytes come free, of a `total`.
pub(super) fn choose(options: &ValueOptions, groups: &Groups, over: u64, total: u64) -> Vec<Unit> {
    let families = candidates(options, groups);
    let candidates: Vec<Candidate> = families.iter().map(|family| family.candidate).collect();
    let mut taken = vec![false; groups.all().len()];
    let enough = over + (total / FREE_SHARE).max(FREE_BYTES_MIN);
    let (mut freed, mut copied) = (0, 0);
    let mut units = Vec::new();
    for (at, _score) in victim::rank(options.victim, &candidates, groups.clock) {
        let Family { unit, members, candidate } = &families[at];
        if !worth(candidate) || members.iter().any(|&member| taken[member]) {
            continue;
        }
        if freed >= enough || copied > (total / COPY_SHARE).max(COPY_BYTES_MIN) {
            break;
        }
        freed += candidate.dead;
        copied += candidate.live;
        members.iter().for_each(|&member| taken[member] = true);
        units.push(*unit);
    }
    units
}

/// Each unit: what is in it, and whether it is among the `next`.
pub(super) fn explain(options: &ValueOptions, groups: &Groups, next: &[u64], reason: &'static str) -> Vec<Explained> {
    let explained = |Family { unit, members, candidate }: Family| {
        let parts = members.iter().flat_map(|&at| unit.parts(&groups.all()[at]));
        let mut files: Vec<FileId> = parts.flat_map(|part| &part.files).map(|file| file.id).collect();
        files.sort_unstable();
        files.dedup();
        let number = unit.number();
        Explained {
            unit: format!("group {:x}{}", unit.region.number(), if unit.hot_only { " (hot part)" } else { "" }),
            files,
            total_bytes: candidate.live + candidate.dead,
            live_bytes: candidate.live,
            age_bytes: (candidate.rest / candidate.dead.max(1) as f64) as u64,
            score: options.victim.score(&candidate, number),
            held: match () {
                () if next.contains(&number) => None,
                () if !worth(&candidate) => Some("less than a sixteenth of it is dead"),
                () => Some(reason),
            },
        }
    };
    let mut all: Vec<Explained> = candidates(options, groups).into_iter().map(explained).collect();
    all.sort_by(|a, b| b.score.total_cmp(&a.score));
    all
}

fn worth(candidate: &Candidate) -> bool {
    candidate.dead > 0 && candidate.dead * DEAD_SHARE >= candidate.live + candidate.dead
}

/// A unit, the positions of its groups, and what is in it.
struct Family {
    unit: Unit,
    members: Vec<usize>,
    candidate: Candidate,
}

fn candidates(options: &ValueOptions, groups: &Groups) -> Vec<Family> {
    let hot = if options.cold_parts { families(groups, true) } else { Vec::new() };
    // Where there is no cold part yet, the hot one is all.
    let has_cold = |family: &Family| family.members.iter().any(|&at| !groups.all()[at].cold.files.is_empty());
    let all = families(groups, false).into_iter().filter(|family| !options.cold_parts || has_cold(family));
    hot.into_iter().chain(all).collect()
}

/// The units of one kind that are not being collected.
fn families(groups: &Groups, hot_only: bool) -> Vec<Family> {
    let mut met = vec![false; groups.all().len()];
    let mut families = Vec::new();
    for at in 0..met.len() {
        if met[at] {
            continue;
        }
        let unit = Unit { region: groups.all()[at].region, hot_only };
        let members = groups.family(at, hot_only);
        members.iter().for_each(|&member| met[member] = true);
        if members.iter().all(|&member| !groups.all()[member].busy) {
            let candidate = sum_up(groups.clock, members.iter().flat_map(|&member| unit.parts(&groups.all()[member])));
            families.push(Family { unit, members, candidate });
        }
    }
    families
}

fn sum_up<'a>(clock: u64, parts: impl Iterator<Item = &'a Part>) -> Candidate {
    let mut sum = Candidate { live: 0, dead: 0, written: 0, rest: 0.0 };
    for part in parts {
        sum.live += part.live;
        sum.dead += part.dead;
        sum.written += part.written;
        sum.rest += part.dead as f64 * (clock - part.collected_at + 1) as f64;
    }
    sum
}
