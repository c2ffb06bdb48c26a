//! See `bifold_fuzz::block`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bifold_fuzz::block(bytes));
