//! See `bifold_fuzz::index`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bifold_fuzz::index(bytes));
