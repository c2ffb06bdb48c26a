//! The proofs at CI's counts, in release mode with assertions of arithmetic on, so that counts are large and overflow is
//! still caught.

/// Runs them; each prints its counts and on failure the one line that repeats it. Then the functions of the fuzz targets.
pub fn run() -> Result<(), String> {
    crate::cargo(
        &["test", "--profile", "prove", "-p", "bifold-sim", "--", "--nocapture"],
        &[("BIFOLD_SIM_SCALE", "400".into())],
    )?;
    // What the fuzz targets do, on mangled encodings: each so many times.
    crate::cargo(
        &["test", "--profile", "prove", "-p", "bifold-format", "--test", "all", "mangled", "--", "--nocapture"],
        &[("BIFOLD_FUZZ_ROUNDS", "20000".into())],
    )
}
