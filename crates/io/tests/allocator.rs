//! Alone in its process, because it measures the memory of all of it.
#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(
    clippy::unwrap_used,
    reason = "clippy's allowance to unwrap in tests does not cover the helpers of test functions"
)]

use std::fs;

const BUFFER_BYTES: usize = 4 << 20;

/// Bytes of the process in memory.
fn resident() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Buffers with something small after each of them that stays.
fn allocate_and_free() -> Vec<Vec<u8>> {
    let both = |n: u8| (vec![n; BUFFER_BYTES], vec![n; 100]);
    let (buffers, kept): (Vec<_>, Vec<_>) = (1..=16).map(both).unzip();
    assert!(buffers.iter().all(|buffer| buffer[BUFFER_BYTES / 2] > 0));
    kept
}

#[test]
fn freed_buffers_are_given_back() {
    bifold_io::give_back_freed_memory();
    // The first round would raise the size from which buffers are mapped.
    let first = allocate_and_free();
    let before = resident();
    let second = allocate_and_free();
    assert!(resident() < before + BUFFER_BYTES, "{} after {before}", resident());
    assert_eq!(first, second);
}
