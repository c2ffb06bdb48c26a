//! The proofs at CI's counts, in release mode with arithmetic assertions on, so that counts are large and overflow is
//! still caught.

use crate::filtered;

/// What is run, each with one filter at most, and the variable that sets its amount.
const ALL: [(&str, &str, &str); 4] = [
    ("-p bifold-sim --", "BIFOLD_SIM_SCALE", "100"),
    // The program from outside: failing system calls, and damaged databases under limits.
    ("-p bifold-cli --test all -- injected::", "BIFOLD_SIM_SCALE", "100"),
    ("-p bifold-cli --test all -- damaged::", "BIFOLD_SIM_SCALE", "100"),
    // What the fuzz targets do, on mangled encodings, this many times each.
    ("-p bifold-format --test all mangled --", "BIFOLD_FUZZ_ROUNDS", "20000"),
];

/// Runs them. Each prints its counts, and on failure the one line that repeats it.
pub fn run() -> Result<(), String> {
    ALL.iter().try_for_each(|(what, variable, amount)| {
        let words: Vec<&str> =
            ["test", "--profile", "prove"].into_iter().chain(what.split(' ')).chain(["--nocapture"]).collect();
        filtered::run_tests(&mut crate::cargo_command(&words, &[(*variable, *amount)]))
    })
}
