//! A small part of what `just miri` runs, where the nightly toolchain has Miri.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use crate::filtered;

/// The tests of the memtable that take longest.
const SKIPPED: [&str; 2] = ["memtable::tests::shapes", "memtable::tests::a_cursor_may_change_direction_at_any_step"];

/// Runs the other tests of the memtable, one case of each property, or says in one line why not.
pub fn run() -> Result<(), String> {
    if let Err(reason) = is_there() {
        println!("Miri: skipped, {reason} (`rustup component add --toolchain nightly miri rust-src`)");
        return Ok(());
    }
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    let target = Path::new(&target).join("miri");
    let mut tests = nightly("cargo", &["miri", "test", "-q", "-p", "bifold-index", "--lib", "--target-dir"]);
    tests.arg(target).args(["memtable", "--"]).args(SKIPPED.iter().flat_map(|name| ["--skip", name]));
    tests.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("PROPTEST_CASES", "1");
    filtered::run_tests(&mut tests)
}

/// Why Miri cannot run here: no `rustup`, no nightly toolchain, or one without a component.
fn is_there() -> Result<(), &'static str> {
    answer(nightly("cargo", &["miri", "--version"])).ok_or("the nightly toolchain or its component miri is missing")?;
    let sysroot = answer(nightly("rustc", &["--print", "sysroot"])).ok_or("there is no nightly toolchain")?;
    let sources = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library");
    if sources.is_dir() { Ok(()) } else { Err("the nightly toolchain lacks the component rust-src") }
}

/// What a command prints, if it succeeds.
fn answer(mut command: Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A program of the nightly toolchain. `cargo xtask` runs within a stable one, whose settings it must not inherit.
fn nightly(program: &str, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.arg("+nightly").args(words);
    ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN", "LD_LIBRARY_PATH"].iter().for_each(|name| {
        command.env_remove(name);
    });
    command
}
