//! put, get, del, scan, stats, compact, gc, checkpoint.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
};

use super::{Scratch, bifold, bifold_with_input, command, text};

#[test]
fn entries_are_put_read_scanned_and_deleted() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let db = text(&db);
    for (key, value) in [("a/1", "one"), ("a/2", "two"), ("b", "three")] {
        assert_eq!(bifold(&["put", db, key, value]).ok(), "");
    }
    assert_eq!(bifold(&["get", db, "a/2"]).ok(), "two");
    assert_eq!(bifold(&["scan", db]).ok(), "a/1\tone\na/2\ttwo\nb\tthree\n");
    assert_eq!(bifold(&["scan", db, "--prefix", "a/"]).ok(), "a/1\tone\na/2\ttwo\n");
    assert_eq!(bifold(&["scan", db, "--from", "a/2", "--to", "b"]).ok(), "a/2\ttwo\n");
    assert_eq!(bifold(&["scan", db, "--reverse", "--limit", "2", "--keys-only"]).ok(), "b\na/2\n");
    let entries = bifold(&["scan", db, "--json", "--limit", "1"]).json();
    assert_eq!(entries, [serde_json::json!({"key": "a/1", "value": "one"})]);
    assert_eq!(bifold(&["del", db, "a/1", "b", "never"]).ok(), "");
    assert_eq!(bifold(&["scan", db, "--keys-only"]).ok(), "a/2\n");
}

#[test]
fn a_missing_key_is_a_no_on_one_line() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    bifold(&["put", text(&db), "a", "1"]).ok();
    let line = bifold(&["get", text(&db), "b"]).refused(1);
    assert!(line.contains("`b`") && line.contains(text(&db)), "{line}");
}

#[test]
fn with_escapes_any_bytes_can_be_typed_and_are_printed_the_same_way() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let db = text(&db);
    bifold(&["put", db, "--escape", r"k\x00\xff", r"tab\tnew\nback\\é\x80"]).ok();
    assert_eq!(bifold(&["get", db, "--escape", r"k\x00\xff"]).ok(), "tab\\tnew\\nback\\\\é\\x80\n");
    assert_eq!(bifold(&["get", db, "--escape", r"k\x00\xff", "--raw"]).out, b"tab\tnew\nback\\\xc3\xa9\x80");
    assert_eq!(bifold(&["scan", db]).ok(), "k\\x00\\xff\ttab\\tnew\\nback\\\\é\\x80\n");
    assert_eq!(bifold(&["scan", db, "--escape", "--prefix", r"k\x00", "--keys-only"]).ok(), "k\\x00\\xff\n");
    assert_eq!(bifold(&["scan", db, "--prefix", r"k\x00", "--keys-only"]).ok(), "");
    let entry = bifold(&["get", db, "--escape", r"k\x00\xff", "--json"]).json();
    assert_eq!(entry[0]["key_base64"], "awD/");
    assert!(bifold(&["del", db, r"k\x00\xff"]).ok().is_empty());
    assert_eq!(bifold(&["scan", db, "--keys-only"]).ok().lines().count(), 1, "another key was deleted, or none");
    bifold(&["del", db, "--escape", r"k\x00\xff"]).ok();
    assert_eq!(bifold(&["scan", db]).ok(), "");
}

#[test]
fn values_come_unchanged_from_files_and_standard_input() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let db = text(&db);
    let file = scratch.write("value", b"\x00\\x41\n");
    bifold(&["put", db, "file", "--value-file", text(&file)]).ok();
    assert_eq!(bifold(&["get", db, "file", "--raw"]).out, b"\x00\\x41\n");
    bifold_with_input(&["put", db, "input", "--value-file", "-"], b"from\nstdin").ok();
    assert_eq!(bifold(&["get", db, "input", "--raw"]).out, b"from\nstdin");
    bifold(&["put", db, "number", "-5"]).ok();
    assert_eq!(bifold(&["get", db, "number"]).ok(), "-5");
    bifold(&["put", db, "empty", ""]).ok();
    assert_eq!(bifold(&["get", db, "empty"]).ok(), "");
}

/// A file of more than a mebibyte is put piece by piece, and gets a file of its own.
#[test]
fn long_files_come_back_and_go_where_other_values_go() {
    let scratch = Scratch::new();
    let (db, copy, lines) = (scratch.path("db"), scratch.path("copy"), scratch.path("lines.tsv"));
    let [db, copy] = [text(&db), text(&copy)];
    let long: Vec<u8> = (0..3_000_001u32).map(|n| (n.wrapping_mul(0x9E37_79B9) >> 24) as u8).collect();
    let file = scratch.write("long", &long);
    bifold(&["put", db, "a", "--value-file", text(&file)]).ok();
    bifold(&["put", db, "b", &format!("@{}", text(&file))]).ok();
    bifold(&["put", db, "c", "short"]).ok();
    let count = |dir: &str| {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".large")).count()
    };
    assert_eq!(count(db), 2);
    let is_there = |db: &str| {
        for key in ["a", "b"] {
            assert!(bifold(&["get", db, key]).out == long, "{db}, {key}");
        }
        assert_eq!(bifold(&["get", db, "c"]).ok(), "short");
        bifold(&["verify", db]).ok();
    };
    is_there(db);
    bifold(&["convert", db, copy, "--placement", "novkv"]).ok();
    assert_eq!(count(copy), 2, "large values stay large");
    is_there(copy);
    fs::write(&lines, bifold(&["export", db]).out).unwrap();
    let imported = scratch.path("imported");
    bifold(&["import", text(&imported), text(&lines)]).ok();
    is_there(text(&imported));
    assert_eq!(count(text(&imported)), 0, "import knows no large values");
    bifold(&["put", db, "a", "--value-file", text(&file), "--ttl", "1h"]).ok();
    is_there(db);
    bifold(&["compact", db]).ok();
    assert_eq!(count(db), 1);
}

#[test]
fn a_merge_combines_with_what_is_there_by_the_operator() {
    let scratch = Scratch::new();
    let (db, other) = (scratch.path("db"), scratch.path("other"));
    let (db, other) = (text(&db), text(&other));
    bifold(&["put", db, "k", "a", "--merge", "--set", "keyspace.merge=append"]).ok();
    bifold(&["put", db, "k", "b", "--merge"]).ok();
    assert_eq!(bifold(&["get", db, "k"]).ok(), "ab");
    bifold(&["put", db, "k", "c"]).ok();
    bifold(&["put", db, "k", "@", "--merge", "--literal"]).ok();
    assert_eq!(bifold(&["get", db, "k"]).ok(), "c@");
    bifold(&["put", other, "k", "a"]).ok();
    let said = bifold(&["put", other, "k", "b", "--merge"]).refused(2);
    assert!(said.contains("merge operator") && said.contains("`default`"), "{said}");
    assert_eq!(bifold(&["get", other, "k"]).ok(), "a");
}

#[test]
fn keyspaces_are_separate_and_a_wrong_one_is_named() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let db = text(&db);
    bifold(&["put", db, "k", "users", "--keyspace", "users"]).ok();
    bifold(&["put", db, "k", "default"]).ok();
    assert_eq!(bifold(&["get", db, "k", "--keyspace", "users"]).ok(), "users");
    assert_eq!(bifold(&["--keyspace", "users", "scan", db]).ok(), "k\tusers\n");
    for command in ["scan", "export"] {
        let line = bifold(&[command, db, "--keyspace", "user"]).refused(2);
        assert!(line.contains("`user`") && line.contains("default, users"), "{line}");
    }
    assert!(bifold(&["del", db, "k", "--keyspace", "user"]).refused(2).contains("`user`"));
}

#[test]
fn durability_and_options_are_taken_from_everywhere() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let db = text(&db);
    let options = scratch.write("options.toml", "memory_limit = \"64MiB\"\n[keyspace]\ncompression = \"lz4\"\n");
    bifold(&["put", db, "a", "1", "--durability", "sync", "--options", text(&options)]).ok();
    let stats = bifold(&["stats", db, "--json", "--options", text(&options), "--set", "memory_limit=32MiB"]).json();
    assert_eq!(stats[0]["memory"]["limit"], 32 << 20);
    let stats = bifold(&["stats", db, "--json", "--options", text(&options)]).json();
    assert_eq!(stats[0]["memory"]["limit"], 64 << 20);
}

#[test]
fn stats_are_a_picture_or_json() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let db = text(&db);
    bifold(&["put", db, "a", "1"]).ok();
    let picture = bifold(&["stats", db]).ok();
    for word in ["keyspace default", "space", "memory", "bytes moved"] {
        assert!(picture.contains(word), "{word}: {picture}");
    }
    assert!(!picture.contains('\x1b'), "no colours in a pipe");
    let stats = bifold(&["stats", db, "--json"]).json();
    assert_eq!(stats.len(), 1);
    assert_eq!(stats[0]["keyspaces"][0]["name"], "default");
    assert!(stats[0]["gc"]["index_lookups"].is_u64() && stats[0]["space"]["live_bytes_estimate"].is_u64());
    let files = fs::read_dir(db).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    assert_eq!(stats[0]["space"]["dir_bytes"], files.sum::<u64>());
    let logs_bytes = stats[0]["space"]["logs_bytes"].as_u64();
    assert!(logs_bytes > Some(0) && stats[0]["space"]["other_bytes"] == 0, "{}", stats[0]["space"]);
    assert!(stats[0]["space"]["pinned_by"].is_null() && picture.contains("could be reclaimed now"), "{picture}");
}

#[test]
fn compaction_and_checkpoints_keep_everything() {
    let scratch = Scratch::new();
    let (db, copy) = (scratch.path("db"), scratch.path("copy"));
    let (db, copy) = (text(&db), text(&copy));
    for n in 0..20 {
        bifold(&["put", db, &format!("k{n:02}"), &format!("v{n}")]).ok();
    }
    let before = bifold(&["export", db]).ok();
    assert!(bifold(&["compact", db]).ok().contains("compacted"));
    assert_eq!(bifold(&["export", db]).ok(), before);
    assert!(bifold(&["compact", db, "--json"]).json()[0]["bytes_after"].as_u64() > Some(0));
    bifold(&["checkpoint", db, copy]).ok();
    bifold(&["put", db, "later", "1"]).ok();
    assert_eq!(bifold(&["export", copy]).ok(), before);
    assert!(bifold(&["verify", copy]).ok().contains("sound"));
    let line = bifold(&["checkpoint", db, copy]).refused(2);
    assert!(line.contains("exists"), "{line}");
}

#[test]
fn a_placement_is_given_once_and_not_with_every_write() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    bifold(&["put", text(&db), "k", "v", "--set", "keyspace.placement=hashkv"]).ok();
    bifold(&["put", text(&db), "k", "w"]).ok();
    assert_eq!(bifold(&["get", text(&db), "k"]).ok(), "w");
    let line = bifold(&["put", text(&db), "k", "x", "--set", "keyspace.placement=wisckey"]).refused(2);
    assert!(line.contains("`hashkv`") && line.contains("bifold convert"), "{line}");
}

/// As on a disk that is mounted read-only.
#[test]
fn a_database_that_cannot_be_written_can_be_checkpointed() {
    let scratch = Scratch::new();
    let (db, out) = (scratch.path("db"), scratch.path("out"));
    let copy = out.join("copy");
    bifold(&["put", text(&db), "k", "v"]).ok();
    fs::create_dir(&out).unwrap();
    let allow = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    allow(&scratch.0, 0o755);
    allow(&out, 0o777);
    fs::read_dir(&db).unwrap().for_each(|entry| allow(&entry.unwrap().path(), 0o444));
    allow(&db, 0o555);
    // Modes mean nothing to root.
    let as_user = |args: &[&str]| {
        let mut command = command(args);
        if rustix::process::geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
        command.output()
    };
    let is_readable = as_user(&["get", text(&db), "k"]).is_ok_and(|got| got.stdout == b"v");
    let copied = is_readable.then(|| as_user(&["checkpoint", text(&db), text(&copy)]).unwrap());
    allow(&db, 0o755);
    let Some(copied) = copied else {
        println!("skipped: another user cannot run the program, or not read what is in {}", scratch.0.display());
        return;
    };
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    assert_eq!(bifold(&["get", text(&copy), "k"]).ok(), "v");
}

#[test]
fn gc_is_explained_with_scores_and_as_one_object_for_each_unit() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let lines: String = (0..50).map(|n| format!("k{n:02}\t{}\n", "v".repeat(3000))).collect();
    let file = scratch.write("in.tsv", lines);
    bifold(&["import", text(&db), text(&file), "--set", "keyspace.preset=wisckey"]).ok();
    let units = bifold(&["gc", text(&db), "--explain", "--json"]).json();
    assert!(!units.is_empty());
    for unit in &units {
        assert!(unit["unit"].is_string() && unit["score"].is_f64() && unit["total_bytes"].is_u64(), "{unit}");
    }
    let table = bifold(&["gc", text(&db), "--explain"]).ok();
    // A summary and the head come first.
    assert_eq!(table.lines().count(), 2 + units.len(), "{table}");
    assert!(table.lines().nth(1).unwrap().contains(" score "), "{table}");
}
