//! Readers of a database that is being written, on the simulated disk.
//!
//! [`watched`] runs a history. After each change that the writer makes, a reader may be opened, refreshed, killed, or
//! made to fail at one of its calls; then the writer is killed at a random call, and another one recovers. [`within`]
//! does the opposite: a writer overwrites, flushes, merges and collects everything while a reader is between two of
//! its calls.
//!
//! Required: each state that a reader sees is that after some commit, no earlier than the last one that was
//! acknowledged or that it has seen before; it stays the same until the reader refreshes; without an injected fault
//! nothing fails; `verify` is clean; whatever ends how, the writer deletes in the end what it does not need.

pub mod watched;
pub mod within;

use std::path::Path;

use bifold::{Access, Db, IfMissing, KeyspaceOptions, Options};
use bifold_io::{memory::MemoryFs, pins::READERS};

use crate::report::{Report, guarded};

/// Runs both for `seed`.
#[must_use]
pub fn run(seed: u64) -> Report {
    let mut report = Report::default();
    for (what, scene) in [("watched", watched::run as fn(u64, &mut Report) -> _), ("within", within::run)] {
        if let Err(trouble) = guarded(|| scene(seed, &mut report)) {
            report.fail(format!("followers --seed {seed}"), &trouble.during(what));
        }
    }
    report
}

/// A reader's options: it keeps so few files open that it opens them by name again and again.
fn reading(options: &Options) -> Options {
    Options {
        access: Access::Follow,
        if_missing: IfMissing::Fail,
        open_files_max: 2,
        cache_bytes: Some(0),
        keyspace: KeyspaceOptions::default(),
        ..options.clone()
    }
}

/// Ends a reader as `kill -9` does: it removes nothing.
fn kill(fs: &MemoryFs, reader: Db) {
    std::mem::forget(reader);
    fs.end_locks_in(&Path::new(crate::env::DIR).join(READERS));
}
