//! See `bifold_fuzz::sealed`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bifold_fuzz::sealed(bytes));
