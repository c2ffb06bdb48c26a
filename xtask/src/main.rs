//! Chores of this repository that need more than a line of shell. `cargo xtask` lists them.

mod deny;
mod disks;
mod filtered;
mod house;
mod miri;
mod planted;
mod prove;

use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: cargo xtask CHORE
  deny      check licences and sources of all dependencies against deny.toml
  disks     fill real file systems to the last byte, kill, reopen, empty (needs root)   [NAME ...]
  house     count what keeps the code readable: lines, columns, the seam, names of placements
  miri      run a small part of `just miri`; skipped with a message where the nightly toolchain has no Miri
  prove     run the proofs at CI's counts and print their figures
  planted   wake each planted bug and check that a proof catches it   [NAME ...]
  test      run `cargo test` with these words, which must pick at least one test   WORD ...";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let chore = words.next().unwrap_or_default();
    let outcome = match chore.as_str() {
        "deny" => deny::run(),
        "disks" => disks::run(&words.collect::<Vec<_>>()),
        "house" => house::run(),
        "miri" => miri::run(),
        "prove" => prove::run(),
        "planted" => planted::run(&words.collect::<Vec<_>>()),
        "test" => filtered::run(&words.collect::<Vec<_>>()),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask {chore}: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a cargo command and waits for it.
fn cargo(words: &[&str]) -> Result<(), String> {
    let status = cargo_command(words, &[]).status().map_err(|e| format!("cannot start cargo: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo {} failed: {status}", words.join(" "))) }
}

/// A cargo command with these variables.
fn cargo_command(words: &[&str], environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    command.args(words).envs(environment.iter().copied());
    command
}
