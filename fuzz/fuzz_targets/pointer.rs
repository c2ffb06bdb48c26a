//! See `bifold_fuzz::pointer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bifold_fuzz::pointer(bytes));
