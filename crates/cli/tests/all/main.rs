//! The program from outside: its arguments, its output, its exit code, and the files it leaves.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod advise;
mod backup;
mod bad_input;
mod bench;
mod bytes;
mod calibrate;
mod changes;
mod convert;
mod damaged;
mod demo;
mod entries;
mod export;
mod fixtures;
mod injected;
mod interrupted;
mod lab;
mod options;
mod own_operator;
mod own_placement;
mod pipes;
mod round_trips;
mod running;
mod salvage;
mod validate;
mod vat;
mod verify;

use std::{
    ffi::OsStr,
    fmt, fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

/// A directory that is removed when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("bifold-cli-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// A compacted database of 2000 entries.
    fn database(&self) -> PathBuf {
        let db = self.path("db");
        let lines: String = (0..2000).map(|n| format!("key {n:06}\tvalue {}\n", n * n)).collect();
        let file = self.write("in.tsv", lines);
        bifold(&["import", text(&db), text(&file)]).ok();
        bifold(&["compact", text(&db)]).ok();
        db
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The result of a run of the program.
struct Ran {
    code: i32,
    out: Vec<u8>,
    err: String,
}

impl fmt::Debug for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit code {}\n{}{}", self.code, String::from_utf8_lossy(&self.out), self.err)
    }
}

impl Ran {
    /// Its standard output, after success with nothing on standard error.
    #[track_caller]
    fn ok(self) -> String {
        assert!(self.code == 0 && self.err.is_empty(), "{self:?}");
        String::from_utf8(self.out).unwrap()
    }

    /// Its standard output as JSON, one value per line, after success.
    #[track_caller]
    fn json(self) -> Vec<serde_json::Value> {
        parse(&self.ok())
    }

    /// Its one line on standard error, after a refusal with `code` and nothing on standard output.
    #[track_caller]
    fn refused(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "one line: {self:?}");
        assert!(self.err.starts_with("bifold: ") && self.out.is_empty(), "{self:?}");
        self.err
    }
}

fn parse(lines: &str) -> Vec<serde_json::Value> {
    lines.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

fn command(args: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bifold"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The demo derives from it how to call the program.
    command.env_remove("CARGO_PKG_NAME");
    command
}

fn finish(command: &mut Command) -> Ran {
    let output = command.output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    Ran { code: output.status.code().unwrap_or(-1), out: output.stdout, err }
}

/// Runs the program.
fn bifold(args: &[impl AsRef<OsStr>]) -> Ran {
    finish(&mut command(args))
}

fn bifold_with_input(args: &[impl AsRef<OsStr>], input: &[u8]) -> Ran {
    let mut child = command(args).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    Ran { code: output.status.code().unwrap_or(-1), out: output.stdout, err }
}

/// A profile of a device, as `vat calibrate` writes them.
#[cfg(target_os = "linux")]
const PROFILE: &str = "format = 1
caching = \"direct\"
file_bytes = 1
seconds = 1.0
[[measured]]
unit_bytes = 4096
depth = 32
sequential_read_bytes_per_second = 1000000000
random_read_bytes_per_second = 500000000
sequential_write_bytes_per_second = 1000000000
random_write_bytes_per_second = 500000000
";

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
