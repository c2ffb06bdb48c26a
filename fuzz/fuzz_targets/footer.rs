//! See `bifold_fuzz::footer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bifold_fuzz::footer(bytes));
