//! `bifold options`, and what --set does to a database that exists.

use std::path::Path;

use super::{Scratch, bifold, text};

fn shown(db: &Path, keyspace: &str) -> String {
    bifold(&["options", text(db), "--keyspace", keyspace]).ok()
}

#[test]
fn options_are_shown_and_only_those_that_are_named_change() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let set = ["--set", "keyspace.compression=lz4", "--set", "keyspace.placement=hashkv"];
    bifold(&[&["put", text(&db), "k", "v", "--keyspace", "a"][..], &set].concat()).ok();
    let before = shown(&db, "a");
    assert!(before.contains("compression = \"lz4\"") && before.contains("placement = \"hashkv\""), "{before}");
    let target = ["--set", "keyspace.values.space_target=1.2"];
    let after = bifold(&[&["options", text(&db), "--keyspace", "a"][..], &target].concat()).ok();
    assert_eq!(after, before.replace("space_target = 1.5", "space_target = 1.2"));
    assert_eq!(shown(&db, "a"), after, "it was not only printed");
    let json = bifold(&["options", text(&db), "--keyspace", "a", "--json"]).json();
    assert_eq!(json[0]["values"]["space_target"], 1.2);
    // A command that writes changes the options of its own keyspace only.
    let other = shown(&db, "default");
    bifold(&["put", text(&db), "k", "w", "--keyspace", "a", "--set", "keyspace.filter_bits_per_key=12"]).ok();
    assert_eq!(shown(&db, "a"), after.replace("filter_bits_per_key = 10", "filter_bits_per_key = 12"));
    assert_eq!(shown(&db, "default"), other);
    // The output is a file for --options.
    let file = scratch.write("options.toml", &after);
    bifold(&["options", text(&db), "--keyspace", "a", "--options", text(&file)]).ok();
    assert_eq!(shown(&db, "a"), after);
    let part = scratch.write("part.toml", "[keyspace]\ncompression = \"none\"\n");
    bifold(&["options", text(&db), "--keyspace", "a", "--options", text(&part)]).ok();
    let plain = after.replacen("compression = \"lz4\"", "compression = \"none\"", 1);
    assert_eq!(shown(&db, "a"), plain, "back to a default");
    assert_eq!(bifold(&["get", text(&db), "k", "--keyspace", "a"]).ok(), "w");
}

#[test]
fn a_new_database_has_options_in_the_named_keyspace_only() {
    let scratch = Scratch::new();
    let (db, plain) = (scratch.path("db"), scratch.path("plain"));
    bifold(&["put", text(&db), "k", "v", "--keyspace", "sessions", "--set", "keyspace.ttl=1h"]).ok();
    bifold(&["put", text(&plain), "k", "v"]).ok();
    assert!(shown(&db, "sessions").contains("ttl = \"3600000ms\""), "{}", shown(&db, "sessions"));
    assert_eq!(shown(&db, "default"), shown(&plain, "default"));
}

#[test]
fn a_checkpoint_changes_no_options() {
    let scratch = Scratch::new();
    let (db, copy) = (scratch.path("db"), scratch.path("copy"));
    bifold(&["put", text(&db), "k", "v"]).ok();
    let before = shown(&db, "default");
    let checkpoint = |set: &str| bifold(&["checkpoint", text(&db), text(&copy), "--set", set]);
    let refused = checkpoint("keyspace.compression=zstd").refused(2);
    assert!(refused.contains("bifold options DB --set") && !copy.exists(), "{refused}");
    assert_eq!(shown(&db, "default"), before);
    let refused = checkpoint("retain_changes.bytes=1MiB").refused(2);
    assert!(refused.contains("retain_changes") && !copy.exists(), "{refused}");
    // It would be printed nowhere and change nothing.
    let refused = bifold(&["options", text(&db), "--set", "retain_changes.bytes=1MiB"]).refused(2);
    assert!(refused.contains("a command that writes"), "{refused}");
    // It may name options that the keyspace already has.
    checkpoint("keyspace.compression=none").ok();
    assert_eq!((shown(&db, "default"), shown(&copy, "default")), (before.clone(), before));
}

#[test]
fn options_that_cannot_change_are_refused_and_nothing_changes() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    bifold(&["put", text(&db), "k", "v"]).ok();
    let before = shown(&db, "default");
    for (command, set, says) in [
        ("options", "keyspace.placement=wisckey", "bifold convert"),
        ("options", "keyspace.hash_index.ways=4", "bifold convert"),
        ("options", "keyspace.restart_interval=0", "restart_interval"),
        ("options", "keyspace.no_such=1", "no_such"),
        ("stats", "keyspace.compression=zstd", "bifold options DB --set"),
    ] {
        let refused = bifold(&[command, text(&db), "--set", set]).refused(2);
        assert!(refused.contains(says), "{set}: {refused}");
        assert_eq!(shown(&db, "default"), before, "{set}");
    }
    // A command may name options that the keyspace already has.
    bifold(&["stats", text(&db), "--set", "keyspace.compression=none"]).ok();
    let missing = bifold(&["options", text(&db), "--keyspace", "nobody"]).refused(2);
    assert!(missing.contains("`nobody`") && missing.contains("default"), "{missing}");
}

#[test]
fn old_names_are_read_and_reported() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let ran = bifold(&["put", text(&db), "k", "v", "--set", "keyspace.values.min_bytes=100"]);
    assert!(ran.code == 0 && ran.err.contains("is now called `keyspace.values.separate_from_bytes`"), "{ran:?}");
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    assert!(shown(&db, "default").contains("separate_from_bytes = 100"));
    // Once, however often a command needs its options.
    let lines = scratch.write("in.tsv", (0..500).map(|n| format!("k{n:03}\tv\n")).collect::<String>());
    let copy = scratch.path("copy");
    for args in [
        &["import", text(&db), text(&lines)][..],
        &["convert", text(&db), text(&copy), "--placement", "hashkv"],
        &["advise", "--db", text(&db)],
    ] {
        let ran = bifold(&[args, &["--set", "keyspace.values.min_bytes=100"]].concat());
        assert!(ran.code == 0 && ran.err.lines().count() == 1, "{args:?}: {ran:?}");
    }
    let file = scratch.write("old.toml", "[keyspace.values]\nmin_bytes = 1\nseparate_from_bytes = 1\n");
    let both = bifold(&["options", text(&db), "--options", text(&file)]).refused(2);
    assert!(both.contains("keyspace.values.min_bytes") && both.contains("separate_from_bytes"), "{both}");
}
