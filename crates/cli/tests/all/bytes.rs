//! Any bytes are stored as typed, and printed as stored.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::Read,
    os::unix::ffi::OsStrExt,
    process::Stdio,
};

use super::{Scratch, bifold, bifold_with_input, command, finish, text};

#[test]
fn arguments_are_taken_literally() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let db = text(&db);
    for value in [r"C:\temp\new", r"\\server\x41", r"\", r"\q", "%41", "$HOME", "", " padded ", "quo\"ted'", "-5"] {
        bifold(&["put", db, value.get(..1).unwrap_or("empty"), value]).ok();
        let got = bifold(&["get", db, value.get(..1).unwrap_or("empty")]);
        assert_eq!((got.code, got.out.as_slice(), got.err.as_str()), (0, value.as_bytes(), ""), "{value}");
        if !value.is_empty() && value != "-5" {
            bifold(&["put", db, value, "as a key"]).ok();
            assert_eq!(bifold(&["get", db, value]).ok(), "as a key");
            assert_eq!(bifold(&["scan", db, "--prefix", value, "--json"]).json()[0]["key"], value);
            bifold(&["del", db, value]).ok();
            bifold(&["get", db, value]).refused(1);
        }
    }
}

/// Arguments have all bytes but 0, which no argument can have; standard input and files have all.
#[test]
fn every_byte_can_be_stored_and_read_in_every_way() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let db = text(&db);
    let typed: Vec<u8> = (1..=255).collect();
    let all: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
    let put = |args: &[&OsStr]| {
        let args: Vec<&OsStr> = ["put", db].map(OsStr::new).into_iter().chain(args.iter().copied()).collect();
        finish(&mut command(&args)).ok();
    };
    put(&[OsStr::new("typed"), OsStr::from_bytes(&typed)]);
    put(&[OsStr::from_bytes(&typed), OsStr::new("key")]);
    let file = scratch.write("file", &all);
    let at_file: OsString = [OsStr::new("@"), file.as_os_str()].into_iter().collect();
    put(&[OsStr::new("at"), &at_file]);
    put(&[OsStr::new("option"), OsStr::new("--value-file"), file.as_os_str()]);
    bifold_with_input(&["put", db, "dash", "-"], &all).ok();
    let escaped: String = all.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    bifold(&["put", db, "--escape", "escaped", &escaped]).ok();
    assert_eq!(bifold(&["get", db, "typed"]).out, typed);
    for key in ["at", "option", "dash", "escaped"] {
        assert_eq!(bifold(&["get", db, key]).out, all, "{key}");
        assert_eq!(bifold(&["get", db, key, "--raw"]).out, all, "{key}");
        // The printed escapes can be typed again.
        let printed = bifold(&["get", db, "--escape", key]).ok();
        bifold(&["put", db, "--escape", "again", printed.trim_end_matches('\n')]).ok();
        assert_eq!(bifold(&["get", db, "again"]).out, all, "{key}");
    }
    let got = finish(&mut command(&[OsStr::new("get"), OsStr::new(db), OsStr::from_bytes(&typed)]));
    assert_eq!(got.ok(), "key");
    for format in ["tsv", "jsonl"] {
        let copy = scratch.path(format);
        let exported = bifold(&["export", db, "--format", format]);
        bifold_with_input(&["import", text(&copy), "-", "--format", format], &exported.out).ok();
        assert_eq!(bifold(&["export", text(&copy), "--format", format]).out, exported.out);
    }
}

/// A terminal does what some control characters say, and a tab ends a field.
#[test]
fn names_of_keyspaces_are_printed_with_escapes() {
    let scratch = Scratch::new();
    let (db, name) = (scratch.path("db"), "a\tb\x1b[2J\nc");
    bifold(&["put", text(&db), "k", &"v".repeat(5000), "--keyspace", name, "--set", "keyspace.placement=wisckey"]).ok();
    let value_file = fs::read_dir(&db).unwrap().map(|entry| entry.unwrap().path());
    let value_file = value_file.filter(|path| path.extension().is_some_and(|e| e == "val")).max().unwrap();
    // Value files have ids instead of names.
    let named: Vec<String> = (1..20).map(|id| format!("--name={id}={name}{id}")).collect();
    let mut of_file: Vec<&str> = vec!["salvage", text(&value_file)];
    of_file.extend(named.iter().map(String::as_str));
    let keys = [&of_file[..], &["--keys"]].concat();
    for args in [&["stats", text(&db)][..], &["gc", text(&db), "--explain"], &["salvage", text(&db)], &of_file, &keys] {
        let printed = bifold(args).ok();
        let fields = printed.replace(['\n', '\t'], "");
        assert!(printed.contains(r"a\tb\x1b[2J\nc") && !fields.contains(char::is_control), "{args:?}: {printed:?}");
        assert!(!printed.contains("a\tb"), "{args:?}: {printed:?}");
    }
    let missing = bifold(&["get", text(&db), "k", "--keyspace", "none"]).refused(2);
    assert!(!missing.trim_end().contains(char::is_control), "{missing:?}");
}

#[test]
fn values_that_begin_with_an_at_sign_or_a_dash_can_be_typed() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let db = text(&db);
    for (args, value) in [
        (&["k", "--literal", "@ada"][..], "@ada"),
        (&["k", "--literal", "-"], "-"),
        (&["k", "--", "--first"], "--first"),
        (&["--literal", "k", "--", "-"], "-"),
        (&["--literal", "k", r"@\x41"], r"@\x41"),
        (&["--escape", "k", r"\x40ada"], "@ada"),
        (&["--escape", "k", r"\x2d"], "-"),
    ] {
        bifold(&["put", db].iter().chain(args).collect::<Vec<_>>()).ok();
        assert_eq!(bifold(&["get", db, "k"]).ok(), value, "{args:?}");
    }
}

#[test]
fn a_reader_that_takes_one_byte_of_a_value_is_no_error() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let file = scratch.write("value", vec![b'v'; 8 << 20]);
    bifold(&["put", text(&db), "k", "--value-file", text(&file)]).ok();
    for args in [&["get", text(&db), "k"][..], &["get", text(&db), "k", "--escape"], &["get", text(&db), "k", "--json"]]
    {
        let mut child = command(args).spawn().unwrap();
        let mut pipe = child.stdout.take().unwrap();
        pipe.read_exact(&mut [0]).unwrap();
        drop(pipe);
        let mut err = String::new();
        child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert_eq!((child.wait().unwrap().code(), err.as_str()), (Some(0), ""), "{args:?}");
    }
}

/// An endless value is refused, from standard input and from a file, before it exhausts memory.
#[test]
fn a_value_that_exceeds_memory_is_an_error() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let program = env!("CARGO_BIN_EXE_bifold");
    for value in ["-", "@/dev/zero"] {
        let line = format!("ulimit -v 400000; exec '{program}' put '{}' k {value} < /dev/zero", text(&db));
        let mut bash = std::process::Command::new("bash");
        let ran = finish(bash.args(["-c", &line]).stdin(Stdio::null()));
        assert!(ran.code == 2 && ran.err.starts_with("bifold: cannot read"), "{value}: {ran:?}");
        assert!(!db.exists());
    }
}
