//! Errors are one line, the exit code is 2, and nothing is written.

use std::fs;

use super::{Scratch, bifold, bifold_with_input, finish, text};

#[test]
fn bad_lines_are_named_and_no_database_is_created() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    for (name, content, place, why) in [
        ("a.tsv", "k\tv\nno tab here\n", "a.tsv:2:", "no tab"),
        ("b.tsv", "k\tv\nk\tv\n\tempty key\n", "b.tsv:3:", "key is empty"),
        ("c.tsv", "k\t\\q\n", "c.tsv:1:", "`\\q`"),
        ("d.tsv", "a\tb\tc\n", "d.tsv:1:", "more than one tab"),
        ("e.tsv", "a\tb\n\nc\td\n", "e.tsv:2:", "empty"),
        ("a.jsonl", "{\"key\":\"a\",\"value\":\"b\"}\n{\"key\":\"a\"}\n", "a.jsonl:2:", "no `value`"),
        ("b.jsonl", "not json\n", "b.jsonl:1:", "a line is {"),
        ("c.jsonl", "{\"key_base64\":\"?\",\"value\":\"b\"}\n", "c.jsonl:1:", "base64"),
    ] {
        let file = scratch.write(name, content);
        let line = bifold(&["import", text(&db), text(&file)]).refused(2);
        assert!(line.contains(place) && line.contains(why), "{name}: {line}");
        assert!(!db.exists(), "{name}");
    }
    let file = scratch.write("odd.tsv", b"k\t\xff\n");
    assert!(bifold(&["import", text(&db), text(&file)]).refused(2).contains("not UTF-8"));
    let long = scratch.write("long.tsv", format!("{}\tv\n", "k".repeat((64 << 10) + 1)));
    assert!(bifold(&["import", text(&db), text(&long)]).refused(2).contains("65537 bytes"));
    assert!(!db.exists());
}

#[test]
fn a_bad_import_leaves_an_existing_database_as_it_was() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    bifold(&["put", text(&db), "k", "before"]).ok();
    let lines: String = (0..3000).map(|n| format!("k{n}\tv\n")).chain(["oops\n".to_owned()]).collect();
    let file = scratch.write("in.tsv", lines);
    assert!(bifold(&["import", text(&db), text(&file)]).refused(2).contains("in.tsv:3001:"));
    assert_eq!(bifold(&["scan", text(&db)]).ok(), "k\tbefore\n");
}

#[test]
fn the_wrong_kind_of_input_is_refused() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let file = scratch.write("data.bin", "x");
    let dir = scratch.path("");
    for (args, why) in [
        (&[text(&file)][..], "--format"),
        (&[text(&file), "--format", "dir"], "not a directory"),
        (&[text(&dir), "--format", "tsv"], "is a directory"),
        (&[text(&file), "--format", "csv"], "csv"),
        (&["/does/not/exist.tsv"], "cannot open"),
    ] {
        let args: Vec<&str> = ["import", text(&db)].into_iter().chain(args.iter().copied()).collect();
        let line = bifold(&args).refused(2);
        assert!(line.contains(why), "{args:?}: {line}");
        assert!(!db.exists());
    }
}

#[test]
fn a_missing_database_is_an_error_and_is_not_created() {
    let scratch = Scratch::new();
    let db = scratch.path("none");
    for args in [
        &["get", text(&db), "k"][..],
        &["scan", text(&db)],
        &["stats", text(&db)],
        &["export", text(&db)],
        &["verify", text(&db)],
        &["compact", text(&db)],
        &["del", text(&db), "k"],
        &["checkpoint", text(&db), text(&scratch.path("copy"))],
        &["convert", text(&db), text(&scratch.path("copy")), "--placement", "hashkv"],
        &["salvage", text(&db.join("000014.val")), "--out", text(&scratch.path("copy"))],
    ] {
        let line = bifold(args).refused(2);
        assert!(line.contains(text(&db)), "{line}");
        assert!(!db.exists() && !scratch.path("copy").exists(), "{args:?}");
    }
    // So is a directory without a database, which stays empty.
    fs::create_dir(&db).unwrap();
    for command in ["scan", "stats", "verify", "compact", "gc"] {
        bifold(&[command, text(&db)]).refused(2);
        assert_eq!(fs::read_dir(&db).unwrap().count(), 0, "{command}");
    }
}

/// For every command, a database that has lost its manifest is neither empty nor new nor missing.
#[test]
fn a_lost_manifest_is_damage_for_every_command() {
    let scratch = Scratch::new();
    let (copy, input) = (scratch.path("copy"), scratch.write("in.tsv", "a\tb\n"));
    for (name, set) in [("logs", "keyspace.placement=inline"), ("values", "keyspace.placement=wisckey")] {
        let db = scratch.path(name);
        let db = text(&db);
        bifold(&["put", db, "k", &"v".repeat(5000), "--set", set]).ok();
        fs::remove_file(scratch.path(name).join("MANIFEST")).unwrap();
        let files = || {
            let names = fs::read_dir(db).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<_> = names.filter(|name| name != "LOCK").collect();
            names.sort();
            names
        };
        let before = files();
        for args in [
            &["get", db, "k"][..],
            &["put", db, "k", "v"],
            &["del", db, "k"],
            &["scan", db],
            &["export", db],
            &["import", db, text(&input)],
            &["stats", db],
            &["compact", db],
            &["gc", db],
            &["gc", db, "--explain"],
            &["checkpoint", db, text(&copy)],
            &["convert", db, text(&copy), "--placement", "hashkv"],
            &["advise", "--db", db],
            &["bench", "--dir", db, "--workload", "load", "--num", "10"],
        ] {
            let ran = bifold(args);
            assert!(ran.code == 2 && ran.err.contains("MANIFEST"), "{args:?}: {ran:?}");
            assert!(!ran.err.contains("checkpoint to"), "{ran:?}");
            assert!(!copy.exists(), "{args:?}");
            assert_eq!(files(), before, "{args:?}");
        }
        let ran = bifold(&["verify", db]);
        assert!(ran.code == 1 && String::from_utf8_lossy(&ran.out).contains("MANIFEST"), "{ran:?}");
    }
}

#[test]
fn unusable_keys_values_and_options_are_refused_before_a_database_is_created() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let bad_options = scratch.write("bad.toml", "memory_limit = 1\nx = 2\n");
    let long_name = "n".repeat(300);
    for (args, why) in [
        (&["", "v"][..], "key is empty"),
        (&["--escape", r"k\", "v"], "backslash"),
        (&["--escape", "k", r"\xzz"], "bad value"),
        (&["k", "@"], "--literal"),
        (&["k", "@/does/not/exist"], "--literal"),
        (&["k", "v", "--literal", "--escape"], "--escape"),
        (&["k", "v", "--set", "nonsense=1"], "nonsense"),
        (&["k", "v", "--set", "memory_limit=1"], "memory_limit"),
        (&["k", "v", "--durability", "perhaps"], "buffered"),
        (&["k", "v", "--options", text(&bad_options)], "bad.toml"),
        (&["k", "v", "--options", "/does/not/exist.toml"], "exist.toml"),
        (&["k", "v", "--keyspace", ""], "keyspace"),
        (&["k", "v", "--keyspace", &long_name], "at most 255"),
        (&["k", "v", "--merge"], "merge operator"),
        (&["k", "v", "--merge", "--set", "keyspace.table_bytes=65536"], "merge operator"),
        (&["k", "v", "--ttl", "1h", "--set", "keyspace.merge=append"], "nothing expires"),
        (&["k", "--value-file", "/does/not/exist"], "exist"),
        (&["k", "v", "--value-file", "x"], "--value-file"),
        (&["k"], "VALUE"),
    ] {
        let args: Vec<&str> = ["put", text(&db)].into_iter().chain(args.iter().copied()).collect();
        let line = bifold(&args).refused(2);
        assert!(line.contains(why), "{args:?}: {line}");
        assert!(!db.exists(), "{args:?}");
    }
}

/// A keyspace made without a merge operator never gets one.
#[test]
fn a_refused_merge_makes_no_keyspace() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let db = text(&db);
    bifold(&["put", db, "k", "v"]).ok();
    let before = bifold(&["options", db]).ok();
    let changing = ["put", db, "k", "v", "--merge", "--set", "keyspace.compression=lz4"];
    assert!(bifold(&changing).refused(2).contains("`default` has no merge operator"));
    assert_eq!(bifold(&["options", db]).ok(), before, "nor does it change one");
    let merge = ["put", db, "k", "v", "--merge", "--keyspace", "words"];
    assert!(bifold(&merge).refused(2).contains("keyspace.merge"));
    let with_operator: Vec<&str> = merge.iter().copied().chain(["--set", "keyspace.merge=append"]).collect();
    bifold(&with_operator).ok();
    bifold(&merge).ok();
    assert_eq!(bifold(&["get", db, "k", "--keyspace", "words"]).ok(), "vv");
    let file = scratch.write("in.tsv", "k\tv\n");
    let long_name = "n".repeat(256);
    let new = scratch.path("new");
    let import = ["import", text(&new), text(&file), "--keyspace", &long_name];
    assert!(bifold(&import).refused(2).contains("256 bytes") && !new.exists());
}

/// Nothing expires in a keyspace with a merge operator. The check of the input finds that, too.
#[test]
fn a_line_that_expires_is_refused_where_nothing_can_before_anything_is_written() {
    let scratch = Scratch::new();
    let (db, new) = (scratch.path("db"), scratch.path("new"));
    let expiring = r#"{"key":"b","value":"2","expires_at_ms":4102444800000}"#;
    let lines = format!("{{\"key\":\"a\",\"value\":\"1\"}}\n{expiring}\n");
    let file = scratch.write("in.jsonl", &lines);
    bifold(&["put", text(&db), "k", "v", "--set", "keyspace.merge=append"]).ok();
    let before = bifold(&["options", text(&db)]).ok();
    for (db, set) in [(&db, "keyspace.compression=lz4"), (&new, "keyspace.merge=append")] {
        let line = bifold(&["import", text(db), text(&file), "--set", set]).refused(2);
        assert!(line.contains("in.jsonl:2: ") && line.contains("merge operator"), "{line}");
        let args = ["import", text(db), "-", "--format", "jsonl", "--set", set];
        let line = bifold_with_input(&args, lines.as_bytes()).refused(2);
        assert!(line.contains("standard input:2: ") && line.contains("merge operator"), "{line}");
    }
    assert!(!new.exists());
    assert_eq!(bifold(&["scan", text(&db)]).ok(), "k\tv\n");
    assert_eq!(bifold(&["options", text(&db)]).ok(), before);
    // One that never expires is like any other there.
    scratch.write("in.jsonl", lines.replace("4102444800000", "null"));
    bifold(&["import", text(&db), text(&file)]).ok();
    assert_eq!(bifold(&["scan", text(&db)]).ok(), "a\t1\nb\t2\nk\tv\n");
}

#[test]
fn usage_errors_are_one_line_that_points_to_help() {
    for (args, why) in [
        (&[][..], "bifold demo"),
        (&["gett", "x"], "gett"),
        (&["get", "x"], "<KEY>"),
        (&["scan", "x", "--limit", "many"], "many"),
        (&["scan", "x", "--prefix", "a", "--from", "b"], "--from"),
        (&["scan", "x", "--from", "b", "--to", "a"], "--from"),
        (&["export", "x", "--format", "dir"], "tsv or jsonl"),
        (&["convert", "x", "y"], "--placement"),
        (&["salvage"], "<DIR|FILE>"),
        (&["salvage", "x", "--all"], "--out"),
        (&["salvage", "x", "--out", "y", "--keys"], "--keys"),
        (&["salvage", "x", "--name", "users=7"], "not the id"),
        (&["salvage", "x", "--name", "7="], "1 to 255 bytes"),
        (&["salvage", "x", "--name", &format!("7={}", "n".repeat(256))], "1 to 255 bytes"),
    ] {
        let line = bifold(args).refused(2);
        assert!(line.contains(why), "{args:?}: {line}");
    }
    assert!(bifold(&["get", "x"]).refused(2).contains("bifold get --help"));
}

#[test]
fn help_teaches_by_example() {
    for command in [
        "demo",
        "put",
        "get",
        "del",
        "scan",
        "import",
        "export",
        "stats",
        "verify",
        "compact",
        "gc",
        "checkpoint",
        "backup",
        "backup create",
        "backup list",
        "backup verify",
        "backup restore",
        "backup prune",
        "convert",
        "salvage",
        "bench",
        "vat",
        "vat model",
        "vat plot",
    ] {
        let words: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let help = bifold(&words).ok();
        assert!(help.contains("Example") && help.contains(&format!("bifold {command}")), "{command}: {help}");
        // The group's own help lists a command of a group.
        let (group, name) = words.split_at(words.len() - 2);
        let list: Vec<&str> = group.iter().copied().chain(["--help"]).collect();
        assert!(bifold(&list).ok().contains(&format!("  {} ", name[0])), "{command}");
    }
    assert!(bifold(&["--version"]).ok().starts_with("bifold "));
}

#[test]
fn a_database_open_elsewhere_is_reported_as_locked() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    bifold(&["put", text(&db), "k", "v"]).ok();
    // The demo's writer holds the database until its pipe closes.
    let mut writer = super::command(&["demo-writer", text(&db)]).spawn().unwrap();
    let mut byte = [0];
    std::io::Read::read_exact(writer.stdout.as_mut().unwrap(), &mut byte).unwrap();
    let line = finish(&mut super::command(&["put", text(&db), "k", "w"])).refused(2);
    assert!(line.contains("lock"), "{line}");
    writer.kill().unwrap();
    writer.wait().unwrap();
    bifold(&["put", text(&db), "k", "w"]).ok();
    assert_eq!(bifold(&["get", text(&db), "k"]).ok(), "w");
}
