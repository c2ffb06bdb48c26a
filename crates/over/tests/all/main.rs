//! Tests of the value store over other indexes.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, reason = "tests")]

mod crashes;
mod memory_index;
mod program;
mod random;
