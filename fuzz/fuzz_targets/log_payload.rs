//! See `bifold_fuzz::log_payload`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bifold_fuzz::log_payload(bytes));
