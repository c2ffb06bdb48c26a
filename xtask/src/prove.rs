//! The proofs at CI's counts, in release mode with assertions of arithmetic on, so that counts are large and overflow is
//! still caught.

/// What is run, and how much of its usual amount: a variable and what it is set to.
const ALL: [(&str, &str, &str); 3] = [
    ("-p bifold-sim --", "BIFOLD_SIM_SCALE", "400"),
    // The program from outside: system calls that fail, and damaged databases under limits.
    ("-p bifold-cli --test all -- injected:: damaged::", "BIFOLD_SIM_SCALE", "400"),
    // What the fuzz targets do, on mangled encodings: each so many times.
    ("-p bifold-format --test all mangled --", "BIFOLD_FUZZ_ROUNDS", "20000"),
];

/// Runs them; each prints its counts and on failure the one line that repeats it.
pub fn run() -> Result<(), String> {
    ALL.iter().try_for_each(|(what, variable, amount)| {
        let words: Vec<&str> =
            ["test", "--profile", "prove"].into_iter().chain(what.split(' ')).chain(["--nocapture"]).collect();
        crate::cargo(&words, &[(variable, (*amount).to_owned())])
    })
}
