//! Tests of the tests: the engine can be built with one known bug at a time, and each must be caught.
//!
//! `--cfg planted="name"` plants a bug. For each the table says which test binary of this crate must fail; the runner builds
//! that binary with the bug, in a target directory of its own, runs it, and wants to see a failed test, not a failed
//! build.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// One planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planted {
    /// Its name in `cfg(planted = "…")`.
    pub name: &'static str,
    /// The test binary that must catch it.
    pub caught_by: &'static str,
}

/// All planted bugs.
pub const ALL: &[Planted] = &[
    Planted { name: "skip_log_sync", caught_by: "power" },
    Planted { name: "skip_table_sync", caught_by: "power" },
    Planted { name: "skip_manifest_sync", caught_by: "power" },
    Planted { name: "skip_dir_sync", caught_by: "power" },
    Planted { name: "manifest_before_table", caught_by: "power" },
    Planted { name: "delete_log_early", caught_by: "power" },
    Planted { name: "drop_tombstone_early", caught_by: "metamorphic" },
    Planted { name: "ignore_snapshot_in_compaction", caught_by: "metamorphic" },
    Planted { name: "ignore_range_tombstone", caught_by: "metamorphic" },
    Planted { name: "reuse_seqno", caught_by: "metamorphic" },
    Planted { name: "half_batch", caught_by: "power" },
    Planted { name: "swallow_flush_error", caught_by: "errno" },
    Planted { name: "serve_torn_tail", caught_by: "power" },
    Planted { name: "filter_wrong_hash", caught_by: "metamorphic" },
    Planted { name: "no_checksum_check", caught_by: "bitflip" },
    Planted { name: "stale_cache", caught_by: "metamorphic" },
];

/// What became of one planted bug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The test failed, with this line.
    Caught(String),
    /// The test passed.
    Missed,
    /// The test was not run.
    NotRun(String),
}

/// How the tests are built: proofs run the same way.
const PROFILE: &str = "prove";

/// Builds and runs the test that must catch `bug`.
///
/// # Errors
/// When cargo or the wrapper cannot be started.
pub fn run(bug: &Planted, workspace: &Path, target: &Path) -> io::Result<Outcome> {
    let wrapper = wrapper(bug, target)?;
    let cargo = |last: &[&str]| -> io::Result<Output> {
        Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .current_dir(workspace)
            .env("CARGO_TARGET_DIR", target)
            .env("RUSTC_WORKSPACE_WRAPPER", &wrapper)
            .args(["test", "--profile", PROFILE, "-p", "bifold-sim", "--test", bug.caught_by])
            .args(last)
            .output()
    };
    let built = cargo(&["--no-run"])?;
    if !built.status.success() {
        return Ok(Outcome::NotRun(last_line(&built.stderr)));
    }
    let tested = cargo(&[])?;
    if tested.status.success() {
        return Ok(Outcome::Missed);
    }
    let said = [tested.stdout, tested.stderr].concat();
    let replay = String::from_utf8_lossy(&said).lines().find(|line| line.contains("repeat with")).map(str::to_owned);
    Ok(Outcome::Caught(replay.map_or_else(|| last_line(&said), |line| line.trim().to_owned())))
}

/// A script that cargo calls instead of the compiler, for crates of the workspace only: dependencies are then built once
/// for all bugs. Each bug has a script of its own, because cargo tells builds apart by the script's name.
fn wrapper(bug: &Planted, target: &Path) -> io::Result<PathBuf> {
    let target = std::path::absolute(target)?;
    fs::create_dir_all(&target)?;
    let path = target.join(format!("rustc-planted-{}.sh", bug.name));
    fs::write(&path, format!("#!/bin/sh\nexec \"$@\" --cfg 'planted=\"{}\"'\n", bug.name))?;
    make_executable(&path)?;
    Ok(path)
}

#[cfg(unix)]
fn make_executable(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

#[cfg(not(unix))]
fn make_executable(_path: &Path) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "bugs are planted by a shell script"))
}

fn last_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().to_owned()
}
