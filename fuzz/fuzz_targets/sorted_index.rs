//! See `bifold_fuzz::sorted_index`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bifold_fuzz::sorted_index(bytes));
