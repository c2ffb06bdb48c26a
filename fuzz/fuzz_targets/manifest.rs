//! See `bifold_fuzz::manifest`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bifold_fuzz::manifest(bytes));
