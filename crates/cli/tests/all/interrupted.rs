//! Ctrl-C, SIGTERM and SIGKILL: the program ends by the signal, and leaves nothing incomplete.

use std::{
    fs,
    io::Write,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use super::{Scratch, bifold, text};

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// The process that runs the tests may ignore signals, and its children inherit that.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal=INT,TERM").arg(env!("CARGO_BIN_EXE_bifold")).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn send(child: &Child, signal: i32) {
    let sent = Command::new("kill").args([format!("-{signal}"), child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Waits until `is_so`, while `child` runs. Returns whether it still ran then.
fn wait_until(child: &mut Child, is_so: impl Fn() -> bool) -> bool {
    loop {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        if is_so() {
            return true;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn an_import_from_a_pipe_leaves_no_temporary_file() {
    for signal in [SIGINT, SIGTERM, SIGKILL] {
        let scratch = Scratch::new();
        fs::create_dir(scratch.path("tmp")).unwrap();
        let db = scratch.path("db");
        let mut import = command(&["import", text(&db), "-", "--format", "tsv"]);
        let mut child = import.stdin(Stdio::piped()).env("TMPDIR", scratch.path("tmp")).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // More than a pipe holds: some of it is saved.
        (0..30_000).for_each(|n| writeln!(stdin, "key {n}\tvalue").unwrap());
        send(&child, signal);
        assert_eq!(child.wait().unwrap().signal(), Some(signal));
        assert!(!db.exists() && is_empty(&scratch.path("tmp")));
    }
}

/// A database that takes `convert` a while.
fn filled(scratch: &Scratch) -> std::path::PathBuf {
    let db = scratch.path("db");
    let args = ["bench", "--dir", text(&db), "--workload", "load", "--num", "60000", "--value-size", "1000"];
    assert_eq!(bifold(&args).code, 0);
    db
}

#[test]
fn a_conversion_that_is_interrupted_leaves_nothing() {
    let scratch = Scratch::new();
    let (db, copy, partial) = (filled(&scratch), scratch.path("copy"), scratch.path("copy.partial"));
    for signal in [SIGINT, SIGTERM] {
        let mut child = command(&["convert", text(&db), text(&copy), "--placement", "hashkv"]).spawn().unwrap();
        assert!(wait_until(&mut child, || partial.join("MANIFEST").exists()), "too small a database for this test");
        send(&child, signal);
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.signal(), Some(signal), "{}", String::from_utf8_lossy(&ended.stderr));
        assert!(ended.stderr.is_empty() && !partial.exists() && !copy.exists());
    }
    // It is no obstacle to the next one.
    assert_eq!(bifold(&["convert", text(&db), text(&copy), "--placement", "hashkv"]).code, 0);
    assert!(copy.exists() && !partial.exists());
}

#[test]
fn a_benchmark_that_is_interrupted_removes_its_temporary_database() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("tmp")).unwrap();
    let mut bench = command(&["bench", "--workload", "load", "--num", "100000000"]);
    let mut child = bench.env("TMPDIR", scratch.path("tmp")).spawn().unwrap();
    assert!(wait_until(&mut child, || !is_empty(&scratch.path("tmp"))));
    send(&child, SIGINT);
    assert_eq!(child.wait().unwrap().signal(), Some(SIGINT));
    assert!(is_empty(&scratch.path("tmp")));
}

/// A shell without job control has what it starts in the background ignore SIGINT.
#[cfg(target_os = "linux")]
#[test]
fn a_signal_that_is_ignored_from_the_beginning_stays_ignored() {
    let scratch = Scratch::new();
    let tmp = scratch.path("tmp");
    fs::create_dir(&tmp).unwrap();
    let mut bench = Command::new("env");
    bench.args(["--ignore-signal=INT", env!("CARGO_BIN_EXE_bifold"), "bench", "--workload", "load"]);
    bench.args(["--num", "20000", "--value-size", "100"]).env("TMPDIR", &tmp).stdin(Stdio::null());
    let mut child = bench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    assert!(wait_until(&mut child, || !is_empty(&tmp)), "too short a benchmark for this test");
    send(&child, SIGINT);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert!(is_empty(&tmp));
}

/// A database needs no cleanup.
#[test]
fn a_writer_that_is_interrupted_leaves_a_sound_database() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let lines: String = (0..200_000).map(|n| format!("key {n:08}\tvalue {n}\n")).collect();
    let file = scratch.write("in.tsv", lines);
    for signal in [SIGINT, SIGTERM, SIGKILL] {
        let mut child = command(&["import", text(&db), text(&file)]).spawn().unwrap();
        wait_until(&mut child, || db.join("MANIFEST").exists());
        send(&child, signal);
        child.wait().unwrap();
        assert_eq!(bifold(&["verify", text(&db)]).code, 0);
        bifold(&["put", text(&db), "after", "it"]).ok();
    }
    bifold(&["import", text(&db), text(&file)]).ok();
    assert_eq!(bifold(&["scan", text(&db), "--keys-only"]).ok().lines().count(), 200_001);
}
