//! The proofs at CI's counts, in release mode with arithmetic assertions on, so that counts are large and overflow is
//! still caught.

/// What is run, and the variable that sets its amount.
const ALL: [(&str, &str, &str); 3] = [
    ("-p bifold-sim --", "BIFOLD_SIM_SCALE", "100"),
    // The program from outside: failing system calls, and damaged databases under limits.
    ("-p bifold-cli --test all -- injected:: damaged::", "BIFOLD_SIM_SCALE", "100"),
    // What the fuzz targets do, on mangled encodings, this many times each.
    ("-p bifold-format --test all mangled --", "BIFOLD_FUZZ_ROUNDS", "20000"),
];

/// Runs them. Each prints its counts, and on failure the one line that repeats it.
pub fn run() -> Result<(), String> {
    ALL.iter().try_for_each(|(what, variable, amount)| {
        let words: Vec<&str> =
            ["test", "--profile", "prove"].into_iter().chain(what.split(' ')).chain(["--nocapture"]).collect();
        crate::cargo(&words, &[(variable, (*amount).to_owned())])
    })
}
