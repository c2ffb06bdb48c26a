//! Tests of the value store over other indexes.
#![allow(missing_docs, reason = "tests")]

mod basics;
mod crashes;
mod faults;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
mod foreign;
mod memory_index;
mod program;
mod random;
mod threads;
