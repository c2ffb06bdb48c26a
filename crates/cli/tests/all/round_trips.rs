//! import and export.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    time::{Duration, UNIX_EPOCH},
};

use bifold::{Db, KeyspaceOptions, Options};

use super::{Scratch, bifold, bifold_with_input, command, text};

/// Values of all kinds of bytes, one larger than a commit of an import.
fn values() -> Vec<Vec<u8>> {
    let mut values: Vec<_> = (0..=255_u8).map(|byte| vec![byte; usize::from(byte)]).collect();
    values.push(b"\r\n\\x41\t".to_vec());
    values.push("значение \u{2028} \u{0} \u{1f980}".into());
    values.push(vec![b'x'; 3 << 20]);
    values
}

#[test]
fn tsv_and_json_lines_hold_every_byte() {
    let scratch = Scratch::new();
    let (first, second, third) = (scratch.path("1"), scratch.path("2"), scratch.path("3"));
    // The dir format puts arbitrary bytes into values without either of the formats under test.
    for (n, value) in values().iter().enumerate() {
        scratch.write(&format!("tree/{n}"), value);
    }
    bifold(&["import", text(&first), text(&scratch.path("tree")), "--format", "dir"]).ok();
    for (key, value) in [(r"k\x00\xff\x80", r"v\xc3"), (r"a\tb\nc\rd\\e", r"\\x41"), ("ключ", "значение")] {
        bifold(&["put", text(&first), "--escape", key, value]).ok();
    }
    let tsv = bifold(&["export", text(&first), "--format", "tsv"]);
    let tsv = scratch.write("all.tsv", tsv.out);
    let said = bifold(&["import", text(&second), text(&tsv), "--format", "tsv"]).ok();
    assert!(said.starts_with("imported 262 entries"), "{said}");
    let jsonl = bifold(&["export", text(&second), "--format", "jsonl"]);
    let jsonl = scratch.write("all.jsonl", jsonl.out);
    let figures = bifold(&["import", text(&third), text(&jsonl), "--json"]).json();
    assert_eq!(figures[0]["entries"], 262);
    assert_eq!(bifold(&["export", text(&third)]).out, fs::read(&tsv).unwrap());
    for (n, value) in values().iter().enumerate().rev().step_by(10) {
        let got = bifold(&["get", text(&third), &n.to_string(), "--raw"]);
        assert!(got.code == 0 && got.out == *value, "value {n}");
    }
    assert_eq!(bifold(&["get", text(&third), "--escape", r"k\x00\xff\x80"]).ok(), "v\\xc3\n");
}

#[test]
fn export_is_in_key_order() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let file = scratch.write("in.tsv", "b\t2\na\t1\nc\t3\nab\t4\nb\t5\n");
    bifold(&["import", text(&db), text(&file)]).ok();
    assert_eq!(bifold(&["export", text(&db)]).ok(), "a\t1\nab\t4\nb\t5\nc\t3\n");
}

#[test]
fn what_is_in_key_order_is_imported_without_the_log() {
    let scratch = Scratch::new();
    let line = |n: u32| format!("key{n:06}\t{}\n", format!("value {n} ").repeat(10));
    let sorted: String = (0..20_000).map(line).collect();
    let until_half: String = (0..10_000).chain(5_000..20_000).map(line).collect();
    let content = scratch.write("sorted.tsv", &sorted);
    let cases: [(&str, &str, &[&str], u64, u64); 3] = [
        ("sorted", &sorted, &[], 20_000, 20_000),
        ("half", &until_half, &[], 25_000, 10_000),
        ("log", &sorted, &["--no-ingest"], 20_000, 0),
    ];
    for (name, input, flags, entries, ingested) in cases {
        let (db, file) = (scratch.path(name), scratch.write("in.tsv", input));
        for _ in 0..2 {
            let args = [&["import", text(&db), text(&file), "--json"], flags].concat();
            let figures = bifold(&args).json();
            assert_eq!(
                (&figures[0]["entries"], &figures[0]["ingested"]),
                (&entries.into(), &ingested.into()),
                "{name}"
            );
        }
        assert_eq!(bifold(&["export", text(&db)]).out, fs::read(&content).unwrap(), "{name}");
        assert_eq!(bifold(&["verify", text(&db)]).code, 0);
    }
}

#[test]
fn an_import_can_come_from_standard_input() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    bifold_with_input(&["import", text(&db), "-", "--format", "jsonl"], b"{\"key\":\"a\",\"value\":\"1\"}\n").ok();
    assert_eq!(bifold(&["get", text(&db), "a"]).ok(), "1");
    let line = bifold_with_input(&["import", text(&db), "-", "--format", "dir"], b"").refused(2);
    assert!(line.contains("standard input"), "{line}");
}

#[test]
fn lines_may_end_in_windows_style_and_the_last_without_newline() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let file = scratch.write("in.tsv", "a\t1\r\nb\t2");
    bifold(&["import", text(&db), text(&file)]).ok();
    assert_eq!(bifold(&["scan", text(&db)]).ok(), "a\t1\nb\t2\n");
}

#[test]
fn an_empty_file_imports_nothing() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let file = scratch.write("in.tsv", "");
    assert!(bifold(&["import", text(&db), text(&file)]).ok().starts_with("imported 0 entries"));
    assert_eq!(bifold(&["scan", text(&db)]).ok(), "");
}

#[cfg(unix)]
#[test]
fn a_directory_is_imported_without_links_and_without_the_database_itself() {
    use std::os::unix::{ffi::OsStrExt, fs::symlink};
    let scratch = Scratch::new();
    scratch.write("tree/a", "1");
    scratch.write("tree/below/deep/b", "22");
    fs::write(scratch.path("tree").join(std::ffi::OsStr::from_bytes(b"odd\xff")), "3").unwrap();
    symlink(scratch.path("tree/a"), scratch.path("tree/link")).unwrap();
    symlink(scratch.path("tree"), scratch.path("tree/loop")).unwrap();
    let db = scratch.path("tree/db");
    bifold(&["put", text(&db), "first", "0"]).ok();
    let said = bifold(&["import", text(&db), text(&scratch.path("tree"))]).ok();
    assert!(said.contains("imported 3 entries") && said.contains("left out 2"), "{said}");
    assert_eq!(bifold(&["scan", text(&db)]).ok(), "a\t1\nbelow/deep/b\t22\nfirst\t0\nodd\\xff\t3\n");
}

#[test]
fn a_reader_that_closes_the_pipe_early_is_no_error() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    // Far more than a pipe holds, so that the program is still writing when the pipe closes.
    let lines: String = (0..50_000).map(|n| format!("key {n:08}\t{}\n", "v".repeat(50))).collect();
    let file = scratch.write("in.tsv", lines);
    bifold(&["import", text(&db), text(&file)]).ok();
    for args in
        [&["export", text(&db)][..], &["scan", text(&db), "--json"], &["export", text(&db), "--format", "jsonl"]]
    {
        let mut child = command(args).spawn().unwrap();
        let mut first = String::new();
        let mut pipe = BufReader::new(child.stdout.take().unwrap());
        pipe.read_line(&mut first).unwrap();
        drop(pipe);
        let mut err = String::new();
        child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert!(first.contains("key 00000000"), "{first}");
        assert_eq!((child.wait().unwrap().code(), err.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    bifold(&["put", text(&db), "a", "1"]).ok();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = command(&["export", text(&db)]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("cannot write to standard output"));
}

/// A keyspace's default is for what is new; what was kept for good stays so in a copy with the same default.
#[test]
fn what_does_not_expire_does_not_begin_to() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let long = "v".repeat(2000);
    let hour = KeyspaceOptions { ttl: Some(Duration::from_secs(3600)), ..KeyspaceOptions::default() };
    let open = Db::open_with(&db, Options { keyspace: hour, ..Options::default() }).unwrap();
    for n in 0..1000 {
        let until = (n % 2 == 1).then(|| UNIX_EPOCH + Duration::from_secs(5_000_000_000));
        open.default_keyspace().put_until(format!("k{n:04}"), &long, until).unwrap();
    }
    open.close().unwrap();
    let jsonl = bifold(&["export", text(&db), "--format", "jsonl"]).out;
    let file = scratch.write("all.jsonl", &jsonl);
    let (ingested, logged) = (scratch.path("ingested"), scratch.path("logged"));
    let ttl = ["--set", "keyspace.ttl=1h"];
    bifold(&[&["import", text(&ingested), text(&file)][..], &ttl].concat()).ok();
    bifold(&[&["import", text(&logged), text(&file), "--no-ingest"][..], &ttl].concat()).ok();
    // A line that says nothing is new, and expires.
    let new = scratch.write("new.jsonl", "{\"key\":\"new\",\"value\":\"v\"}\n");
    for copy in [&ingested, &logged] {
        assert!(bifold(&["export", text(copy), "--format", "jsonl"]).out == jsonl, "{}", copy.display());
        bifold(&["import", text(copy), text(&new)]).ok();
        let open = Db::open(copy).unwrap();
        let expires = |key: &str| {
            open.default_keyspace().iter().find_map(|pair| {
                let pair = pair.unwrap();
                (pair.key() == key.as_bytes()).then(|| pair.expires_at().is_some())
            })
        };
        assert_eq!((expires("k0000"), expires("k0001"), expires("new")), (Some(false), Some(true), Some(true)));
        open.close().unwrap();
    }
}
