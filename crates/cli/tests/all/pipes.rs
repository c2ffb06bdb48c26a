//! Imports from inputs that can be read only once, and from inputs without end; outputs that nobody reads.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

use super::{Ran, Scratch, bifold, bifold_with_input, command, finish, text};

/// Runs a line of bash in which `$B` is the program and `$D` the directory.
fn bash(scratch: &Scratch, line: &str) -> Ran {
    let mut bash = Command::new("bash");
    bash.args(["-c", line])
        .env("B", env!("CARGO_BIN_EXE_bifold"))
        .env("D", scratch.path(""))
        .env("TMPDIR", scratch.path("tmp"));
    finish(bash.stdin(Stdio::null()))
}

fn scratch() -> Scratch {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("tmp")).unwrap();
    scratch
}

/// No temporary file is left.
#[track_caller]
fn nothing_is_saved(scratch: &Scratch) {
    assert_eq!(fs::read_dir(scratch.path("tmp")).unwrap().count(), 0);
}

#[test]
fn whatever_comes_through_a_pipe_is_imported() {
    for (what, line) in [
        ("process substitution", "$B import $D/db <(printf 'a\\tb\\nc\\td\\n') --format tsv"),
        ("a FIFO", "mkfifo $D/f.tsv; printf 'a\\tb\\nc\\td\\n' > $D/f.tsv & $B import $D/db $D/f.tsv; wait"),
        ("standard input by name", "printf 'a\\tb\\nc\\td\\n' | $B import $D/db /dev/stdin --format tsv"),
        ("standard input", "printf 'a\\tb\\nc\\td\\n' | $B import $D/db - --format tsv"),
        (
            "a file as standard input",
            "printf 'a\\tb\\nc\\td\\n' > $D/in; $B import $D/db /dev/stdin --format tsv < $D/in",
        ),
        (
            "a file that is read on",
            "printf 'x\\na\\tb\\nc\\td\\n' > $D/in; (read -r; $B import $D/db - --format tsv) < $D/in",
        ),
        ("slow writers", "(printf 'a\\t'; sleep 0.2; printf 'b\\nc\\td') | $B import $D/db - --format tsv"),
    ] {
        let scratch = scratch();
        let said = bash(&scratch, line).ok();
        assert!(said.starts_with("imported 2 entries"), "{what}: {said}");
        assert_eq!(bifold(&["scan", text(&scratch.path("db"))]).ok(), "a\tb\nc\td\n", "{what}");
        nothing_is_saved(&scratch);
    }
}

#[test]
fn a_bad_input_from_a_pipe_imports_nothing() {
    let scratch = scratch();
    let db = scratch.path("db");
    for (input, place) in [("- --format tsv", "standard input:5002:"), ("/dev/stdin --format tsv", "/dev/stdin:5002:")]
    {
        let line = format!("(for n in $(seq 5001); do echo \"k$n\tv\"; done; echo oops) | $B import $D/db {input}");
        let ran = bash(&scratch, &line);
        let said = ran.refused(2);
        assert!(said.contains(place) && said.contains("no tab"), "{said}");
        assert!(!db.exists());
        nothing_is_saved(&scratch);
    }
}

#[test]
fn options_from_a_pipe_are_in_force() {
    let scratch = scratch();
    bash(&scratch, "$B put $D/db k v --options <(echo 'keyspace.compression = \"lz4\"')").ok();
    let options = bifold(&["options", text(&scratch.path("db"))]).ok();
    assert!(options.contains("compression = \"lz4\""), "{options}");
}

/// Input without end is refused as soon as it can no longer be valid, or when there is no memory for it.
#[test]
fn a_line_without_end_is_refused_with_little_memory() {
    let scratch = scratch();
    for (make, format, why) in [
        ("cat /dev/zero", "tsv", "no tab in the first"),
        ("yes | tr -d '\\n'", "jsonl", "does not begin with `{`"),
        ("(printf 'key\\t'; cat /dev/zero)", "tsv", "no memory for more"),
        ("(printf '{\"key\":\"'; cat /dev/zero)", "jsonl", "no memory for more"),
    ] {
        let line = format!("{make} | (ulimit -v 400000; exec $B import $D/db - --format {format})");
        let said = bash(&scratch, &line).refused(2);
        assert!(said.contains("standard input:1: ") && said.contains(why), "{make}: {said}");
        assert!(!scratch.path("db").exists());
        nothing_is_saved(&scratch);
    }
}

#[test]
fn an_input_that_does_not_fit_into_the_temporary_directory_is_an_error() {
    let scratch = scratch();
    let line = "unset TMPDIR; export TMPDIR=$D/none; printf 'a\\tb\\n' | $B import $D/db - --format tsv";
    let said = bash(&scratch, line).refused(2);
    assert!(said.contains("none") && said.contains("TMPDIR"), "{said}");
    // Files are limited to a few blocks, so saving fails in the middle.
    let line = "trap '' XFSZ; (ulimit -f 8; for n in $(seq 30000); do echo \"key$n|value\"; done | tr '|' '\\t' | $B \
    import $D/db - --format tsv)";
    let said = bash(&scratch, line).refused(2);
    assert!(said.contains("cannot save standard input") && said.contains("TMPDIR"), "{said}");
    assert!(!scratch.path("db").exists());
    nothing_is_saved(&scratch);
}

/// Whoever opens a FIFO first gets what its writer has written, and a second one waits for another writer.
#[test]
fn a_value_from_a_fifo_is_stored_as_it_was_written() {
    let scratch = Scratch::new();
    let (db, fifo) = (scratch.path("db"), scratch.path("fifo"));
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let at_fifo = format!("@{}", text(&fifo));
    for given in [&["--value-file", text(&fifo)][..], &[at_fifo.as_str()]] {
        for round in 0..3 {
            let value = format!("{} {round}", given[0]);
            let mut put = Command::new("timeout");
            put.args(["10", env!("CARGO_BIN_EXE_bifold"), "put", text(&db), "k"]).args(given);
            let mut put = put.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let mut writer = loop {
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                match rustix::fs::open(fifo.as_path(), flags, Mode::empty()) {
                    Ok(writer) => break fs::File::from(writer),
                    // Nobody has opened it to read yet.
                    Err(Errno::NXIO) => assert_eq!(put.try_wait().unwrap(), None),
                    Err(error) => panic!("{error}"),
                }
                thread::sleep(Duration::from_millis(1));
            };
            writer.write_all(value.as_bytes()).unwrap();
            drop(writer);
            let put = put.wait_with_output().unwrap();
            assert!(put.status.success(), "{value}: {put:?}");
            assert_eq!(bifold(&["get", text(&db), "k"]).ok(), value);
        }
    }
}

#[test]
fn a_large_input_from_a_pipe_is_imported_completely() {
    let scratch = Scratch::new();
    let lines: String = (0..60_000).map(|n| format!("key {n:08}\tvalue {n} {}\n", "x".repeat(n % 90))).collect();
    let db = scratch.path("db");
    let said = bifold_with_input(&["import", text(&db), "-", "--format", "tsv"], lines.as_bytes()).ok();
    assert!(said.starts_with("imported 60 000 entries"), "{said}");
    assert_eq!(bifold(&["export", text(&db)]).out, lines.as_bytes());
}

/// Runs the program with a standard output that nobody reads.
fn unread(args: &[&str]) -> i32 {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    finish(command(args).stdout(writer)).code
}

/// Changes a byte of the largest file of `dir` with this end of its name, early in it.
fn damage(dir: &Path, end: &str) -> PathBuf {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| text(path).ends_with(end));
    let victim = files.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let mut bytes = fs::read(&victim).unwrap();
    let at = bytes.len() / 8;
    bytes[at] ^= 0x10;
    fs::write(&victim, bytes).unwrap();
    victim
}

/// Damage is an answer that scripts ask for, whoever reads the rest.
#[test]
fn a_reader_that_goes_away_does_not_hide_damage() {
    let scratch = Scratch::new();
    let (db, repository) = (scratch.path("db"), scratch.path("backups"));
    let lines: String = (0..60).map(|n| format!("k{n:02}\t{}\n", "v".repeat(3000))).collect();
    let file = scratch.write("in.tsv", lines);
    bifold(&["import", text(&db), text(&file), "--set", "keyspace.preset=wisckey"]).ok();
    bifold(&["compact", text(&db)]).ok();
    bifold(&["backup", "create", text(&db), text(&repository)]).ok();
    let (db, kept) = (text(&db), text(&repository));
    let sound = [&["verify", db][..], &["salvage", db], &["backup", "verify", kept], &["backup", "list", kept]];
    for args in sound.into_iter().chain([&["export", db, "--skip-damaged"][..]]) {
        assert_eq!(unread(args), 0, "{args:?}");
    }
    let values = damage(Path::new(db), ".val");
    damage(&repository.join("files"), "");
    let salvage = ["salvage", text(&values)];
    for args in [
        &["verify", db][..],
        &["verify", db, "--json"],
        &["backup", "verify", kept],
        &["export", db, "--skip-damaged"],
        &["export", db, "--skip-damaged", "--json"],
        &["salvage", db],
        &["salvage", db, "--json"],
        &salvage,
        &[&salvage[..], &["--json"]].concat(),
        &[&salvage[..], &["--keys"]].concat(),
        &[&salvage[..], &["--keys", "--json"]].concat(),
    ] {
        assert_eq!(unread(args), 1, "{args:?}");
    }
    fs::write(repository.join("generations/000001.gen"), "short").unwrap();
    assert_eq!(unread(&["backup", "list", kept]), 1);
    assert_eq!(unread(&["backup", "list", kept, "--json"]), 1);
}
