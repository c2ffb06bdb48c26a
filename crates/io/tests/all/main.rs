//! What the files, clocks and budgets given to the engine promise, checked through their public interfaces.
#![allow(
    clippy::unwrap_used,
    reason = "clippy's allowance to unwrap in tests does not cover the helpers of test functions"
)]

mod conformance;
#[cfg(target_os = "linux")]
mod forked;
mod histories;
mod rate;
