//! See `bifold_fuzz::log`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bifold_fuzz::log(bytes));
