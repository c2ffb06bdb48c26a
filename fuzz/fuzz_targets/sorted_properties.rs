//! See `bifold_fuzz::sorted_properties`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bifold_fuzz::sorted_properties(bytes));
