//! What a power loss leaves of a file system in memory.
//!
//! First the entries of every directory are decided, then the bytes of every file that still has a name.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    content::Content,
    tree::{Append, Change, Data, Directory, Names, Node, Overwritten, SECTOR_BYTES, State},
};
use crate::random::Random;

/// What happens to everything that was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// All is kept, as when only the process was killed.
    KeepAll,
    /// All is lost.
    DropUnsynced,
    /// Each sector and each directory change is kept or lost on its own, as this seed decides; so are file lengths.
    Random(u64),
    /// What was done up to some moment is kept and everything later is lost. The seed decides the moment, which can
    /// lie within an append. A disk that writes everything in order leaves this.
    Prefix(u64),
}

/// The file system found after the power loss. Everything in it is durable.
pub(super) fn after(state: &State, fate: Fate) -> State {
    let mut judge = Judge::new(state, fate);
    let mut found = State {
        capacity: state.capacity,
        append_region: state.append_region,
        next_id: state.next_id,
        ..State::default()
    };
    let mut survivors: BTreeMap<u64, Arc<Node>> = BTreeMap::new();
    for (path, directory) in &state.directories {
        let names = judge.names(directory).into_iter().map(|(name, node)| {
            let survivor = survivors.entry(node.id).or_insert_with(|| Node::new(node.id, judge.content(&node.data())));
            (name, Arc::clone(survivor))
        });
        let names: Names = names.collect();
        let directory = Directory { durable: names.clone(), names, pending: Vec::new() };
        found.directories.insert(Arc::clone(path), directory);
    }
    found
}

/// Decides what is kept. It is asked about everything in a fixed order.
enum Judge {
    KeepAll,
    DropUnsynced,
    Random {
        random: Random,
        /// In how many of 8 cases something is kept. Sampled once, so that there are images with few losses and
        /// images with few survivors. An even coin per sector would hardly ever produce these.
        kept_of_8: u64,
    },
    Prefix {
        random: Random,
        /// The number of the call during which power was lost.
        last_op: u64,
    },
}

impl Judge {
    fn new(state: &State, fate: Fate) -> Self {
        match fate {
            Fate::KeepAll => Self::KeepAll,
            Fate::DropUnsynced => Self::DropUnsynced,
            Fate::Random(seed) => {
                let mut random = Random::new(seed);
                Self::Random { kept_of_8: [1, 4, 4, 7][random.below(4) as usize], random }
            }
            Fate::Prefix(seed) => {
                let mut random = Random::new(seed);
                // Calls are sampled evenly, not bytes: otherwise nearly every loss would fall into the largest
                // append.
                let ops = pending_ops(state);
                let sampled = random.below(ops.len() as u64 + 1) as usize;
                Self::Prefix { last_op: ops.get(sampled).copied().unwrap_or(u64::MAX), random }
            }
        }
    }

    fn names(&mut self, directory: &Directory) -> Names {
        if matches!(self, Self::KeepAll) {
            return directory.names.clone();
        }
        let mut names = directory.durable.clone();
        for change in &directory.pending {
            if self.keeps(change) {
                change.apply(&mut names);
            }
        }
        names
    }

    fn keeps(&mut self, change: &Change) -> bool {
        self.keeps_op(change.op)
    }

    fn keeps_op(&mut self, op: u64) -> bool {
        match self {
            Self::KeepAll => true,
            Self::DropUnsynced => false,
            Self::Random { random, kept_of_8 } => random.chance(*kept_of_8, 8),
            Self::Prefix { random, last_op } => op < *last_op || (op == *last_op && random.chance(1, 2)),
        }
    }

    fn content(&mut self, data: &Data) -> Content {
        let mut content = data.content.clone();
        if matches!(self, Self::KeepAll) {
            return content;
        }
        if let Some(durable) = data.earlier.first() {
            return self.mapped(data, &durable.content);
        }
        let mut decided = BTreeMap::new();
        for overwritten in data.overwritten.iter().rev() {
            let is_kept = self.keeps_op(overwritten.op);
            if !is_kept {
                restore(&mut content, overwritten);
            }
            if data.pending.iter().any(|append| continues(append, overwritten)) {
                decided.insert(overwritten.offset / SECTOR_BYTES, is_kept);
            }
        }
        data.overwritten_for_now.iter().rev().for_each(|overwritten| restore(&mut content, overwritten));
        match self {
            Self::KeepAll => {}
            Self::DropUnsynced => content.set_len(data.durable_len),
            Self::Random { random, kept_of_8 } => lose_sectors(&mut content, data, (random, *kept_of_8), &decided),
            Self::Prefix { random, last_op } => content.set_len(prefix_len(data, random, *last_op, &decided)),
        }
        for doomed in &data.doomed {
            content.zero(doomed.clone());
        }
        content
    }

    /// For a mapped file: each sector as it was at some moment.
    fn mapped(&mut self, data: &Data, durable: &Content) -> Content {
        match self {
            Self::KeepAll => data.content.clone(),
            Self::DropUnsynced => durable.clone(),
            Self::Random { random, kept_of_8 } => mix_moments(data, random, *kept_of_8),
            Self::Prefix { last_op, .. } if data.stored <= *last_op => data.content.clone(),
            Self::Prefix { last_op, .. } => {
                let then = data.earlier.iter().rev().find(|moment| moment.op <= *last_op);
                then.map_or_else(|| durable.clone(), |moment| moment.content.clone())
            }
        }
    }
}

/// The numbers of the calls whose effects could still be lost.
fn pending_ops(state: &State) -> Vec<u64> {
    let changes = state.directories.values().flat_map(|dir| dir.pending.iter().map(|change| change.op));
    let mut ops: Vec<u64> = changes.collect();
    for node in state.nodes().values() {
        let data = node.data();
        ops.extend(data.pending.iter().map(|append| append.op));
        ops.extend(data.overwritten.iter().map(|overwritten| overwritten.op));
        ops.extend(data.earlier.iter().skip(1).map(|moment| moment.op));
    }
    ops.sort_unstable();
    ops.dedup();
    ops
}

/// Whether one call wrote over the end of a file and beyond it, in the same sector.
fn continues(append: &Append, overwritten: &Overwritten) -> bool {
    append.op == overwritten.op && append.range.start / SECTOR_BYTES == overwritten.offset / SECTOR_BYTES
}

fn restore(content: &mut Content, overwritten: &Overwritten) {
    let room = content.len().saturating_sub(overwritten.offset).min(overwritten.before.len() as u64);
    if room > 0 {
        content.write(overwritten.offset, &overwritten.before[..room as usize]);
    }
}

/// Each sector is either what it is now or what it was at one other moment, the same moment for all.
fn mix_moments(data: &Data, random: &mut Random, kept_of_8: u64) -> Content {
    let mut mixed = data.content.clone();
    let other = &data.earlier[random.below(data.earlier.len() as u64) as usize].content;
    if random.chance(1, 4) {
        mixed.set_len(other.len().min(mixed.len()));
    }
    let mut from = 0;
    while from < mixed.len() {
        let end = (from + SECTOR_BYTES).min(mixed.len());
        if !random.chance(kept_of_8, 8) {
            let mut sector = vec![0; (end - from) as usize];
            // Bytes that did not exist yet were zeros.
            let _was_shorter = other.read(from, &mut sector);
            mixed.write(from, &sector);
        }
        from = end;
    }
    mixed
}

fn prefix_len(data: &Data, random: &mut Random, last_op: u64, decided: &BTreeMap<u64, bool>) -> u64 {
    let mut len = data.durable_len;
    for append in data.pending.iter().take_while(|append| append.op <= last_op) {
        len = append.range.end;
        if append.op == last_op && decided.get(&(append.range.start / SECTOR_BYTES)) == Some(&false) {
            len = append.range.start;
        } else if append.op == last_op {
            len = append.range.start + random.below(append.range.end - append.range.start + 1);
        }
    }
    len
}

/// Truncates the file anywhere behind the durable bytes and zeros some sectors of the rest. The durable bytes of a
/// lost sector stay: the file only grows, so they are what the sector held before. `decided` holds whether some
/// sectors are kept, those in which a call has also overwritten bytes.
fn lose_sectors(
    content: &mut Content,
    data: &Data,
    (random, kept_of_8): (&mut Random, u64),
    decided: &BTreeMap<u64, bool>,
) {
    let durable_len = data.durable_len;
    let unsynced = content.len() - durable_len;
    if unsynced == 0 {
        return;
    }
    // Likely lengths are the whole file, only the durable bytes, and an end between two appends. Sampled evenly, they
    // would hardly ever occur. The last is a file that ends with a whole record and looks as if nothing were missing.
    let len = match random.below(5) {
        0 => durable_len,
        1 => durable_len + random.below(unsynced + 1),
        2 => {
            data.pending.get(random.below(data.pending.len() as u64 + 1) as usize).map_or(durable_len, |a| a.range.end)
        }
        _ => content.len(),
    };
    content.set_len(len);
    let mut from = durable_len;
    while from < len {
        let end = (from / SECTOR_BYTES + 1) * SECTOR_BYTES;
        let is_kept = random.chance(kept_of_8, 8);
        if !decided.get(&(from / SECTOR_BYTES)).copied().unwrap_or(is_kept) {
            content.zero(from..end);
        }
        from = end;
    }
}
