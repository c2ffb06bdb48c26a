//! See `bifold_fuzz::manifest_payload`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bifold_fuzz::manifest_payload(bytes));
