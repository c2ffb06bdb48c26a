//! Tests the tests: each planted bug is woken and must make a proof fail.

use std::path::PathBuf;

/// Runs all planted bugs, or those named.
pub fn run(names: &[String]) -> Result<(), String> {
    // A directory of its own: programs built here have bugs.
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let target = std::path::absolute(target.join("planted")).map_err(|e| format!("the target directory: {e}"))?;
    let target = target.to_string_lossy();
    let mut words = vec!["run", "-q", "-p", "bifold-sim", "--", "planted", "--target", &target];
    words.extend(names.iter().map(String::as_str));
    crate::cargo(&words)
}
