//! A model of how values that GC moves without a commit interact with commits, flushes, merges, snapshots and power
//! losses, run by `shuttle` under many schedules. It is not the engine but the order of steps in
//! `docs/decisions/0029-streams.md`. Between any two steps, other threads or a power loss may intervene.
//!
//! ```text
//! write    ┌ commit lock: value ─▶ open file, entry ─▶ log and memtable, visible ┐
//! gc       a sealed file ─▶ records that are current above the last run ─▶ copies, synced ─▶ ┌ commit lock: last ┐
//!          ─▶ sync of their commits ─▶ ┌ manifest: copies, rows, what moved is dead in the source; rows of what left
//!          meanwhile count as used; source drained as of `last` ┐
//! merge    level 0 and last run ─▶ addresses follow rows, counted for the edit
//!          ─▶ ┌ manifest: new last run; dropped versions follow rows now; rows used; units without rows go ┐
//! reclaim  drained, durable, no older snapshot ─▶ deleted
//! read     view ─▶ address ─▶ its file, or its row and again, or a newer view
//! ```
//!
//! What is not in it: rows in files of their own, estimates of garbage, several tables of a run.

#![allow(clippy::expect_used, reason = "a model reports by a panic")]

mod disk;
mod judge;
mod store;

use shuttle::rand::{Rng, thread_rng};

use self::store::Store;
use crate::{
    modeled::{Act, KEYS, execute, wait},
    schedules,
};

/// What an engine might do wrong; the model must notice each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// A value that has moved twice is two rows away.
    FollowsOneRow,
    /// The index does not have the record of a commit under way yet, and GC takes it for dead.
    AsksTheIndexForNewFiles,
    /// Nothing above the last run overwrites a version that left it before the store was opened.
    TrustsWhatIsAboveForOldFiles,
    InstallsUnsyncedCopies,
    /// A power loss then takes the commits and leaves the copies.
    InstallsCopiesOfUnsyncedCommits,
    /// A source may be there again after a power loss, when all its rows are used up.
    LeavesMovedRecordsLive,
    /// Nothing leads to copies that are not installed yet: they look dead.
    TakesUninstalledCopies,
    /// Both GC runs move what is live.
    TwoRunsTakeOneFile,
    /// As of the last commit before the records are looked at, not after it.
    DrainsAsOfTheBeginning,
    /// As of the last commit that readers see, while the index has a newer one.
    DrainsAsOfVisible,
    ReclaimsUnsynced,
    ReclaimsUnderSnapshots,
    /// No edit will say that a version left the index which did while it was copied.
    ForgetsWhatLeftMeanwhile,
    /// A merge may be abandoned.
    CountsRowsWhenMet,
    /// GC may move a dropped version until the edit.
    FollowsDroppedWhenMet,
    /// A source that exists after a power loss has its rows already.
    MovesAgainAfterAPowerLoss,
    /// What overwrote the rest of a source may be lost with the power.
    DrainsMovedFilesAtOpening,
}

use Mistake::*;

const MISTAKES: [Mistake; 17] = [
    FollowsOneRow,
    AsksTheIndexForNewFiles,
    TrustsWhatIsAboveForOldFiles,
    InstallsUnsyncedCopies,
    InstallsCopiesOfUnsyncedCommits,
    LeavesMovedRecordsLive,
    TakesUninstalledCopies,
    TwoRunsTakeOneFile,
    DrainsAsOfTheBeginning,
    DrainsAsOfVisible,
    ReclaimsUnsynced,
    ReclaimsUnderSnapshots,
    ForgetsWhatLeftMeanwhile,
    CountsRowsWhenMet,
    FollowsDroppedWhenMet,
    MovesAgainAfterAPowerLoss,
    DrainsMovedFilesAtOpening,
];

/// Threads that write, run GC, sync, flush, merge, reclaim and read.
fn run(mistake: Option<Mistake>) {
    let acts: [Act<Store>; 9] = [
        (Store::write_at_random, 7),
        (Store::gc, 4),
        (Store::gc, 4),
        (Store::sync, 3),
        (Store::flush, 4),
        (|store| (wait(10), store.merge()).1, 4),
        (|store| (wait(20), store.reclaim()).1, 4),
        (Store::read_in_snapshot, 2),
        (|store| store.get(thread_rng().gen_range(0..KEYS)), 4),
    ];
    execute(Store { mistake, ..Store::default() }, &acts, 2);
}

#[test]
fn forwarded_values_survive_random_schedules() {
    schedules::at_random(|| run(None));
}

#[test]
fn forwarded_values_survive_schedules_of_few_preemptions() {
    schedules::with_few_preemptions(|| run(None));
}

#[test]
fn every_mistake_with_rows_is_noticed() {
    schedules::notices(&MISTAKES, run);
}
