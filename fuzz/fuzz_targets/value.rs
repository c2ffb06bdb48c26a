//! See `bifold_fuzz::value`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bifold_fuzz::value(bytes));
