//! The public API, one behaviour a test.

mod basics;
mod batches;
mod checkpoints;
mod keyspaces;
mod limits;
mod ranges;
mod recovery;
mod snapshots;
mod stats;
mod support;
mod threads;
