//! See `bifold_fuzz::forwards`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bifold_fuzz::forwards(bytes));
