//! See `bifold_fuzz::sections`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bifold_fuzz::sections(bytes));
