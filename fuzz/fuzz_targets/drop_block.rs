//! See `bifold_fuzz::drop_block`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bifold_fuzz::drop_block(bytes));
