//! Tests that the tests bite: each planted bug is built in and must make a proof fail.

/// Runs all planted bugs, or those named.
pub fn run(names: &[String]) -> Result<(), String> {
    let mut words = vec!["run", "--profile", "prove", "-p", "bifold-sim", "--", "planted"];
    words.extend(names.iter().map(String::as_str));
    crate::cargo(&words, &[])
}
