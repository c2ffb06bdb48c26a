//! Tests of the value store over other indexes.
#![allow(missing_docs, reason = "tests")]

mod basics;
mod crashes;
mod faults;
mod memory_index;
mod program;
mod random;
mod threads;
