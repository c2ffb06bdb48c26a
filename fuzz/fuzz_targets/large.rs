//! See `bifold_fuzz::large`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bifold_fuzz::large(bytes));
