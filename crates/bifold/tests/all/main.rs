//! The public API, one behaviour a test.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up should panic")]

mod backups;
mod basics;
mod batches;
mod checkpoints;
mod expiry;
mod fixtures;
mod flushes;
mod full_disk;
mod hard_links;
mod idle;
mod keyspaces;
mod killed;
mod left_out;
mod limits;
mod many_keyspaces;
mod open_files;
mod options;
mod own_placement;
mod panics;
mod partitions;
mod ranges;
mod recovery;
mod salvage;
mod schedules;
mod snapshots;
mod space_held;
mod stats;
mod support;
mod threads;
mod transactions;
mod unikv;
mod values;
mod waiting_model;
mod waits;
mod write_back_model;
