//! A model of how values moved by GC interact with commits, snapshots, syncs and power losses, run by `shuttle` under
//! many schedules. It is not the engine but the order of steps in `docs/decisions/0007-order-of-write-back.md`.
//! Between any two steps, other threads or a power loss may intervene.
//!
//! ```text
//! write    ┌ commit lock: record ─▶ group's file, entry ─▶ log, entry ─▶ index, visible ┐
//! gc       freeze the group's files ─▶ newest record of each key ─▶ copy, named in the manifest with length 0
//!          ─▶ ┌ commit lock: skip what came since, one move like a write ┐ ... ┌ files drained as of `visible` ┐
//! sync     ┌ commit lock: note all lengths ┐ ─▶ values durable ─▶ log durable ─▶ say so ─▶ record the lengths
//! reclaim  drained, durable, no older snapshot ─▶ deleted in the manifest ─▶ removed
//! ```
//!
//! A power loss is a picture of the disk: what is not synced survives up to any record of each file. Each picture is
//! recovered, judged, written to, garbage-collected and pictured again. That also tests what recovery left behind.
//!
//! What is not in it: `docs/decisions/0007-order-of-write-back.md`, under "Open".

#![allow(clippy::expect_used, reason = "a model reports by a panic")]

mod disk;
mod judge;
mod store;

use shuttle::rand::{Rng, thread_rng};

use self::{disk::GROUPS, store::Store};
use crate::{
    modeled::{Act, KEYS, execute, wait},
    schedules,
};

/// What an engine might do wrong; the model must notice each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    MovesOverNewerWrites,
    MovesOverRangeDeletes,
    MovesWithOldNumber,
    /// The manifest records the copy only with its first length.
    MovesToUnnamedCopy,
    LeavesNoNote,
    NotesLengthsUnlocked,
    SyncsLogFirst,
    /// Recovery then counts what was never committed.
    RecordsBeforeLogIsDurable,
    /// As of the last commit before the moves, not after them.
    DrainsAsOfFreeze,
    /// A note may then be deleted while the value that it ends stays.
    DrainsOneByOne,
    ReclaimsUnsynced,
    ReclaimsUnderSnapshots,
    /// Asks for the oldest snapshot before asking what is durable.
    ReclaimsByEarlierSnapshots,
    /// Of two reclamations, the file that was drained later may then be deleted first.
    ReclaimsConcurrently,
    /// Keeps what value files have after their recorded lengths.
    RecoversTails,
}

use Mistake::*;

const MISTAKES: [Mistake; 15] = [
    MovesOverNewerWrites,
    MovesOverRangeDeletes,
    MovesWithOldNumber,
    MovesToUnnamedCopy,
    LeavesNoNote,
    NotesLengthsUnlocked,
    SyncsLogFirst,
    RecordsBeforeLogIsDurable,
    DrainsAsOfFreeze,
    DrainsOneByOne,
    ReclaimsUnsynced,
    ReclaimsUnderSnapshots,
    ReclaimsByEarlierSnapshots,
    ReclaimsConcurrently,
    RecoversTails,
];

/// Threads that write, run GC, sync, reclaim and read.
fn run(mistake: Option<Mistake>) {
    let acts: [Act<Store>; 7] = [
        (Store::act_at_random, 5),
        (Store::act_at_random, 5),
        (|store| store.gc(thread_rng().gen_range(0..GROUPS)), 3),
        (Store::sync, 3),
        (|store| (wait(20), store.reclaim()).1, 4),
        (Store::read_in_snapshot, 2),
        (|store| store.get(thread_rng().gen_range(0..KEYS)), 3),
    ];
    execute(Store { mistake, ..Store::default() }, &acts, 3);
}

#[test]
fn moved_values_survive_random_schedules() {
    schedules::at_random(|| run(None));
}

#[test]
fn moved_values_survive_schedules_of_few_preemptions() {
    schedules::with_few_preemptions(|| run(None));
}

#[test]
fn every_mistake_is_noticed() {
    schedules::notices(&MISTAKES, run);
}
