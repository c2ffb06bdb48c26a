//! Tests of the value store over other indexes.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up should panic")]

mod basics;
mod crashes;
mod faults;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
mod foreign;
mod memory_index;
mod program;
mod random;
mod threads;
