//! What the surroundings handed to the engine promise, checked through their public interfaces.
#![allow(
    clippy::unwrap_used,
    reason = "clippy's leave to unwrap in tests does not reach the helpers of test functions"
)]

mod conformance;
mod histories;
mod rate;
