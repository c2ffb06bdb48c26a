//! Tests of the tests: the engine can be built with one known bug at a time, and each must be caught.
//!
//! `--cfg planted="name"` plants a bug. For each the table says which test binary of this crate must fail. The runner first
//! runs those binaries without any bug: a test that fails anyway catches nothing. Then it builds the binary with the bug, in a
//! target directory of its own, runs it at half its usual amount until the first failure, and wants to see a line that
//! repeats that failure: a failed build, or a test that did less than it should, is not enough.

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
    Planted { name: "unnamed_log_floor", caught_by: "power" },
    Planted { name: "forget_log_gap", caught_by: "power" },
    Planted { name: "overlook_lost_log", caught_by: "bitflip" },
    Planted { name: "delete_log_early", caught_by: "power" },
    Planted { name: "drop_tombstone_early", caught_by: "metamorphic" },
    Planted { name: "ignore_snapshot_in_compaction", caught_by: "metamorphic" },
    Planted { name: "ignore_range_tombstone", caught_by: "metamorphic" },
    Planted { name: "reuse_seqno", caught_by: "metamorphic" },
    Planted { name: "half_batch", caught_by: "power" },
    Planted { name: "poison_late", caught_by: "lost_sync" },
    Planted { name: "swallow_flush_error", caught_by: "errno" },
    Planted { name: "skip_value_sync", caught_by: "power" },
    Planted { name: "trust_pointers", caught_by: "power" },
    Planted { name: "forget_notes", caught_by: "power" },
    Planted { name: "serve_torn_tail", caught_by: "power" },
    Planted { name: "filter_wrong_hash", caught_by: "metamorphic" },
    Planted { name: "no_checksum_check", caught_by: "bitflip" },
    Planted { name: "stale_cache", caught_by: "metamorphic" },
];

/// What became of one planted bug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The test failed: what it did until then, and how to repeat the failure.
    Caught(String),
    /// The test passed.
    Missed,
    /// The test was not run, or failed without saying how to repeat it.
    NotRun(String),
}

/// How the tests are built: as the proofs are, but for less time in the compiler, since every bug is built anew.
pub const PROFILE: &str = "planted";

/// How much of its usual amount a test does. Half: a bug that is found just so would be missed after the next change of a
/// random number.
const SCALE_PERCENT: &str = "50";

/// Where and in what bugs are planted.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// The sources.
    pub workspace: &'a Path,
    /// Where they are built.
    pub target: &'a Path,
}

impl Site<'_> {
    /// Builds and runs the test that must catch `bug`.
    ///
    /// # Errors
    /// When cargo or the wrapper cannot be started.
    pub fn plant(self, bug: &Planted) -> io::Result<Outcome> {
        let wrapper = wrapper(bug, self.target)?;
        let cargo = |last: &[&str]| self.cargo(bug.caught_by, Some(&wrapper), last);
        let built = cargo(&["--no-run"])?;
        if !built.status.success() {
            return Ok(Outcome::NotRun(last_line(&built.stderr)));
        }
        let tested = cargo(&[])?;
        if tested.status.success() {
            return Ok(Outcome::Missed);
        }
        let said = [tested.stdout, tested.stderr].concat();
        Ok(story(&said, bug.caught_by).map_or_else(|| Outcome::NotRun(last_line(&said)), Outcome::Caught))
    }

    /// Demands that `test` passes when no bug is planted.
    ///
    /// # Errors
    /// When cargo cannot be started.
    pub fn control(self, test: &str) -> io::Result<Result<(), String>> {
        let tested = self.cargo(test, None, &[])?;
        let said = [tested.stdout, tested.stderr].concat();
        Ok(if tested.status.success() { Ok(()) } else { Err(story(&said, test).unwrap_or_else(|| last_line(&said))) })
    }

    fn cargo(self, test: &str, wrapper: Option<&Path>, last: &[&str]) -> io::Result<Output> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(self.workspace).env("CARGO_TARGET_DIR", self.target);
        cargo.env("BIFOLD_SIM_FAILURES", "1").env("BIFOLD_SIM_SCALE", SCALE_PERCENT);
        if let Some(wrapper) = wrapper {
            cargo.env("RUSTC_WORKSPACE_WRAPPER", wrapper);
        }
        cargo.args(["test", "--profile", PROFILE, "-p", "bifold-sim", "--test", test]).args(last).output()
    }
}

/// From the output of a failed test: what it did, and how to repeat its first failure.
fn story(said: &[u8], test: &str) -> Option<String> {
    let said = String::from_utf8_lossy(said);
    let line = |begin: &str| said.lines().map(str::trim).find(|line| line.starts_with(begin));
    let repeat = line("repeat with: ")?;
    let counts = line(&format!("{test}: ")).unwrap_or_default();
    Some(format!("{counts}; {repeat}"))
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
