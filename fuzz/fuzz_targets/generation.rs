//! See `bifold_fuzz::generation`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bifold_fuzz::generation(bytes));
