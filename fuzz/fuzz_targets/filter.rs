//! See `bifold_fuzz::filter`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bifold_fuzz::filter(bytes));
