//! Who waits for whom, under many schedules of `shuttle`: who is never woken is found, since no time is ever over there.
//!
//! | module | what is the engine's own | what is a model of it |
//! |---|---|---|
//! | [`syncs`] | `GroupSync`, `Signal` | commit lock, log, value files, the disk |
//! | [`writers`] | `Signal` | writers, a worker, flush, drop, failure, close |
//! | [`dropped`] | nothing | views, their values, readers, a job, a drop |
//!
//! Each model is told to make mistakes, one at a time, and must notice each.

#![allow(clippy::expect_used, reason = "a model says with a panic what it has found")]

mod dropped;
mod real;
mod syncs;
mod writers;
