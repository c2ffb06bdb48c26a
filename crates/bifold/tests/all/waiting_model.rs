//! Who waits for whom, under many schedules of `shuttle`. Time never passes there, so a thread that is never woken is
//! found.
//!
//! | module | what is the engine's own | what is a model of it |
//! |---|---|---|
//! | [`syncs`] | `GroupSync`, `Signal` | commit lock, log, value files, the disk |
//! | [`writers`] | `Signal` | writers, a worker, flush, drop, failure, close |
//! | [`feeds`] | `LastVisible` | commit lock, commits, feeds, failure or close |
//! | [`dropped`] | nothing | views, their values, readers, a job, a drop |
//!
//! Each model can make mistakes, one at a time, and must notice each.

#![allow(clippy::expect_used, reason = "a model reports by a panic")]

mod dropped;
mod feeds;
mod real;
mod syncs;
mod writers;
